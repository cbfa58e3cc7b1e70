//! Why a scenario could not be played, as opposed to: was played and showed something else.

use std::io;
use std::path::PathBuf;

use copyhold_harness::HarnessError;

use crate::parse::ParseError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SuiteError {
    #[error("{what}: {source}")]
    System {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Harness(#[from] HarnessError),
    #[error("`{command}` failed: {says}")]
    Command { command: String, says: String },
    #[error("{}: {source}", file.display())]
    Scenario {
        file: PathBuf,
        #[source]
        source: ParseError,
    },
    #[error("kernel btrfs needs loop devices, and those need root; leave --target btrfs out")]
    NotRoot,
    #[error("{0}: no file here ends in .scenario")]
    NoScenarios(PathBuf),
    #[error("`{command}` gave something else than the contract says: {what}")]
    Contract { command: String, what: String },
    #[error("the kernel's records disagree: {0}")]
    Records(String),
    #[error("no subvolume was made under the name {0}")]
    UnknownName(String),
}

/// Says on what a system call failed.
pub(crate) trait On<T> {
    fn on(self, what: impl ToString) -> Result<T, SuiteError>;
}

impl<T, E: Into<io::Error>> On<T> for Result<T, E> {
    fn on(self, what: impl ToString) -> Result<T, SuiteError> {
        self.map_err(|error| SuiteError::System { what: what.to_string(), source: error.into() })
    }
}
