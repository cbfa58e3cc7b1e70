//! Failures of the runner itself. The failure of a test is a result.

use std::io;
use std::path::PathBuf;

use copyhold_harness::HarnessError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum RunnerError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Harness(#[from] HarnessError),
    #[error("{}: {message}", file.display())]
    Runfile { file: PathBuf, message: String },
    #[error("{}:{line}: {message}", file.display())]
    Line { file: PathBuf, line: usize, message: String },
    #[error("'{0}' is no list of tags; use NAME,NAME or a part of them such as 2/3")]
    Tags(String),
    #[error("no runfile and no directory of the suite has the test {0}")]
    NoSuchTest(String),
    #[error("the failsafe cannot be started: {0}")]
    Failsafe(String),
    #[error("no account has the name {0}")]
    NoSuchUser(String),
    #[error("the answer of getent(1) is no account: {0}")]
    Account(String),
    #[error("the report for JUnit cannot be written: {0}")]
    Junit(String),
    #[error("interrupted; the cleanup of the last group has run")]
    Interrupted,
}

/// Names the object of a system call that failed.
pub(crate) trait On<T> {
    fn on(self, what: impl ToString) -> Result<T, RunnerError>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl ToString) -> Result<T, RunnerError> {
        self.map_err(|error| RunnerError::System { what: what.to_string(), source: error.into() })
    }
}
