//! Options of a check.

/// The parts to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The contents of files, too: reads everything that is allocated.
    pub data: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { data: true }
    }
}
