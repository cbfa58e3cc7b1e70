//! Two clocks: a monotonic one for waiting, a wall clock for the times of files.

/// Nanoseconds of a monotonic clock whose zero means nothing.
pub type Nanos = u64;

/// Wall-clock time: seconds since 1970 (negative before) and nanoseconds below 10⁹. Packed,
/// since each inode in memory has seven: twelve bytes instead of sixteen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C, packed(4))]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}
