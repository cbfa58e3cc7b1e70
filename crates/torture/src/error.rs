//! Why the torture ended early.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("`{command}` failed: {says}")]
    Command { command: String, says: String },
    #[error("thread {thread}: {what}")]
    Broken { thread: usize, what: String },
    #[error("interrupted")]
    Interrupted,
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
