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
/// Simple quotas: every block is paid for, for its whole life, by the subvolume that wrote it.
/// Snapshots cost nothing, and limits hold however many there are. What was written before quotas
/// were enabled is not counted. `copyhold help qgroup` sets limits and shows usage.
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

/// Count from now on who pays for what is written
///
/// It takes no time, whatever is on the pool. Enabling again changes nothing. Full quotas, which
/// know what is shared with whom, are not built: they become slower with each snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota enable --simple /mnt")]
struct Enable {
    /// The only mode there is
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

/// Tell whether quotas are on
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota status /mnt --json | jq .enabled")]
struct Status {
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Refused, since there is never anything to rescan
///
/// Simple quotas are exact after every commit. The verb is there for scripts made for btrfs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold quota rescan /mnt     says why not")]
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
        tenants::directory(&path)?.put(&question)
    }
}
