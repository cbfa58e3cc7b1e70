//! `copyhold check`: verifies a whole pool, and says what each damage means for its owner.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::engine;
use crate::failure::{Failure, Kind};
use crate::report::Report;

/// Verify a whole pool that is not mounted
///
/// Reads every pointer and compares every digest, counts every block against the space maps and
/// every name against the links, and changes nothing. Exits with 3 when it finds damage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold check /srv/pool.img\n  \
    copyhold check /srv/pool.img --json | jq -c '.findings[]'")]
pub(crate) struct Check {
    /// The file or block device
    pool: PathBuf,
    /// Read and verify the contents of files, too
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    data: bool,
}

/// One thing that is not as it should be.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// Stable name of the kind of damage.
    pub(crate) kind: String,
    /// What is damaged, and where.
    pub(crate) what: String,
    /// What that means for the user.
    pub(crate) meaning: String,
}

/// Everything that a check found, and what it looked at.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    pub(crate) findings: Vec<Finding>,
    /// What was verified: names and counts.
    pub(crate) verified: serde_json::Map<String, serde_json::Value>,
}

impl Check {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let verdict = engine::check(&self.pool, self.data)?;
        report.show(&verdict, || text(&self.pool, &verdict))?;
        match verdict.findings.len() {
            0 => Ok(()),
            found => Err(Failure::new(
                Kind::Damaged,
                format!("{}: {found} kinds of damage", self.pool.display()),
            )),
        }
    }
}

pub(crate) fn text(pool: &Path, verdict: &Verdict) -> String {
    let mut text = String::new();
    for finding in &verdict.findings {
        text += &format!("{}: {}\n    {}\n", finding.kind, finding.what, finding.meaning);
    }
    let verified: Vec<String> = verdict
        .verified
        .iter()
        .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
        .collect();
    text += &format!("{}: verified {}", pool.display(), verified.join(", "));
    text += if verdict.findings.is_empty() { "; clean\n" } else { "\n" };
    text
}
