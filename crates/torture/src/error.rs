//! Why the torture ended early.

use std::io;

use copyhold_harness::HarnessError;

#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Harness(#[from] HarnessError),
    #[error("thread {thread}: {what}")]
    Broken { thread: usize, what: String },
}

/// Says on what a system call failed.
pub trait On<T> {
    fn on(self, what: impl ToString) -> Result<T, TortureError>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl ToString) -> Result<T, TortureError> {
        self.map_err(|error| TortureError::System { what: what.to_string(), source: error.into() })
    }
}
