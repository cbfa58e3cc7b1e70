//! Why there are no figures.

use std::io;

use copyhold_harness::HarnessError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Harness(#[from] HarnessError),
    #[error("`{0} info --json` gives no counters that this program knows")]
    NoCounters(String),
    #[error("{files} files are more than a process may have open ({open}); use fewer --files")]
    TooManyFiles { files: u32, open: u64 },
    #[error("--files-max {bytes} is too small for the room of clean data: at least {least}")]
    FilesTooSmall { bytes: u64, least: u64 },
    #[error("there is no block device under this filesystem")]
    NoDevice,
    #[error("the daemon refuses: {0}")]
    Refused(String),
    #[error("the process `copyhold-bench {0}` does not answer; its own message is above")]
    NoAnswer(&'static str),
    #[error("without a mount: {0}")]
    Engine(String),
    #[error("{0} of the measurements failed; the figures of the others are above")]
    Failed(usize),
    #[error("{0}: the filesystem reports no number of this subvolume")]
    NoId(String),
    #[error("the null mount could not be served: {0}")]
    Null(String),
    #[error(
        "{what}: {expected} expected, {found} found; the filesystem did not keep what it was given"
    )]
    Wrong { what: &'static str, expected: u64, found: u64 },
}

impl BenchError {
    /// Whether a filesystem had no space left.
    pub(crate) fn is_no_space(&self) -> bool {
        let of = |source: &io::Error| source.kind() == io::ErrorKind::StorageFull;
        matches!(self, BenchError::System { source, .. } if of(source))
    }

    pub(crate) fn is_interrupt(&self) -> bool {
        matches!(self, BenchError::Harness(HarnessError::Interrupted))
    }

    /// Of a filesystem in this process.
    pub(crate) fn engine(error: impl std::error::Error) -> BenchError {
        BenchError::Engine(error.to_string())
    }
}

/// Says on what a system call failed.
pub(crate) trait On<T> {
    fn on(self, what: impl ToString) -> Result<T, BenchError>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl ToString) -> Result<T, BenchError> {
        self.map_err(|error| BenchError::System { what: what.to_string(), source: error.into() })
    }
}
