//! `copyhold quota`: turns the accounting of space on and off.

use std::path::PathBuf;

use serde_json::json;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::Report;
use crate::view;
use copyhold_serve::wire::{Question, QuotaStatus};

/// Turn quotas on and off
///
/// With simple quotas the subvolume that wrote a block pays for it as long as the block exists.
/// Snapshots cost nothing, and limits hold for any number of them. Blocks written before quotas
/// were enabled do not count. `copyhold help qgroup` describes limits and usage.
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Enable(Enable),
    Disable(Disable),
    Status(Status),
    Rescan(Rescan),
}

/// Count the writes of each subvolume from now on
///
/// The time does not depend on the content of the pool. Enabling quotas twice changes nothing. Full
/// quotas, which also count shared blocks, are not implemented: they become slower with each
/// snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota enable --simple /mnt")]
struct Enable {
    /// The only mode
    #[arg(long, short = 's')]
    simple: bool,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Stop counting, and forget all groups, limits and relations
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota disable /mnt")]
struct Disable {
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Show whether quotas are on
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota status /mnt --json | jq .enabled")]
struct Status {
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Always refused: simple quotas need no rescan
///
/// Simple quotas are exact after every commit. The verb exists for scripts written for btrfs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota rescan /mnt     gives the reason")]
struct Rescan {
    /// Any directory or file of the mount
    path: PathBuf,
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let (path, question) = match self.what {
            What::Enable(Enable { simple, path }) => (path, Question::QuotaEnable { simple }),
            What::Disable(Disable { path }) => (path, Question::QuotaDisable),
            What::Rescan(Rescan { path }) => (path, Question::QuotaRescan),
            What::Status(Status { path }) => {
                let control = tenants::directory(&path)?;
                let status: QuotaStatus = control.put(&Question::QuotaStatus)?;
                return report.show(&status, || view::text(&json!(status)));
            }
        };
        let control = tenants::directory(&path)?;
        match question.changes() {
            true => control.change(|| Ok(question.clone())),
            false => control.put(&question),
        }
    }
}
