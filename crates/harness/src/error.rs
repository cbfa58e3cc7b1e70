//! Failures of the harness, each with what the program said.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarnessError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("`{command}` failed ({status}): {says}")]
    Failed { command: String, status: String, says: String },
    #[error(
        "`{command}` has not ended after {} s and was killed; look for a process that holds the \
         pool; output so far: {says}",
        patience.as_secs()
    )]
    Hangs { command: String, patience: Duration, says: String },
    #[error("`{command}` printed no {field}: {answer}; is the program of another version?")]
    Answer { command: String, field: &'static str, answer: String },
    #[error(
        "daemon {pid} has not ended {} s after SIGKILL; `copyhold umount` aborts its connection",
        patience.as_secs()
    )]
    StillRuns { pid: i32, patience: Duration },
    #[error("interrupted; everything is unmounted and removed")]
    Interrupted,
}

/// Names the object of a system call that failed.
pub(crate) trait On<T> {
    fn on(self, what: impl ToString) -> Result<T, HarnessError>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl ToString) -> Result<T, HarnessError> {
        self.map_err(|error| HarnessError::System { what: what.to_string(), source: error.into() })
    }
}
