//! Two clocks: a monotonic one for waiting, a wall clock for what files show.

/// Nanoseconds of a monotonic clock whose zero means nothing.
pub type Nanos = u64;

/// Wall-clock time: seconds since 1970 (negative before) and nanoseconds below 10⁹.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}
