//! `copyhold subvolume rollback`: a subvolume returns to the state of a snapshot.

use std::path::PathBuf;

use serde_json::json;

use crate::control::tenants::{self, Entry};
use crate::failure::Failure;
use crate::report::Report;
use copyhold_serve::wire::{Keep, Question};

/// Replace a subvolume by a new snapshot of a snapshot
///
/// A new, writable snapshot of SNAPSHOT replaces SUBVOLUME in constant time, with its quota groups,
/// limits and reserve, and pays from then on for the remaining blocks of the old state. It has an
/// id of its own. The old state is deleted, as by `subvolume delete`; with --keep it becomes a
/// subvolume at another path instead. After its deletion, open files of the old state return
/// ESTALE. SNAPSHOT does not change.
///
/// SNAPSHOT is any subvolume that shares history with SUBVOLUME: a snapshot of it, or its source. A
/// subvolume with subvolumes inside it can only be rolled back with --keep; they remain in the old
/// state.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold subvolume rollback /mnt/alice /mnt/backups/alice-monday\n  \
    copyhold subvolume rollback --keep /mnt/alice-broken /mnt/alice /mnt/backups/alice-monday\n  \
    copyhold subvolume rollback /mnt/ci-7 /mnt/base     a clone becomes fresh again")]
pub(super) struct Rollback {
    /// Keep the old state as a subvolume of this path
    #[arg(long, value_name = "PATH")]
    keep: Option<PathBuf>,
    /// The root of the subvolume to replace
    subvolume: PathBuf,
    /// The root of the snapshot
    snapshot: PathBuf,
}

impl Rollback {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let entry = tenants::subvolume(&self.subvolume)?.entry()?;
        let snapshot = tenants::subvolume(&self.snapshot)?;
        snapshot.expect_same_mount(&entry)?;
        let kept = self.keep.as_deref().map(Entry::new).transpose()?;
        kept.iter().try_for_each(|kept| snapshot.expect_same_mount(kept))?;
        let place = kept.as_ref().map(Entry::open).transpose()?;
        let snapshot = snapshot.open()?;
        let control = entry.open()?;
        // The kernel still has the data that programs wrote to maps of files.
        control.write_pages()?;
        let made: u32 = control.change(|| {
            let keep = kept.as_ref().zip(place.as_ref()).map(|(kept, place)| {
                Ok::<_, Failure>(Keep { directory: place.writable_token()?, name: kept.name() })
            });
            let (snapshot, keep) = (snapshot.token()?, keep.transpose()?);
            Ok(Question::RollBack { name: entry.name(), snapshot, keep })
        })?;
        let (path, of) = (self.subvolume.display().to_string(), self.snapshot.display());
        let kept = kept.map(|kept| kept.path().display().to_string());
        let text = || {
            let old = kept.as_ref().map(|at| format!("; what it was is at {at}"));
            format!("{path} is subvolume {made} now, as {of} is{}\n", old.unwrap_or_default())
        };
        report.show(&json!({ "id": made, "path": path, "kept": kept }), text)
    }
}
