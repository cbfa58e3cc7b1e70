//! `copyhold version`.

use crate::failure::Failure;
use crate::report::Report;

/// Print the version of the program
#[derive(Debug, clap::Args)]
pub(crate) struct Version {}

impl Version {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let version = env!("CARGO_PKG_VERSION");
        report.show(&serde_json::json!({ "version": version }), || format!("copyhold {version}\n"))
    }
}
