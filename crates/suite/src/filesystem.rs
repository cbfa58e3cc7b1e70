//! What a scenario needs of a mounted filesystem.
//!
//! Files are the same everywhere (`files.rs`). Subvolumes and groups are asked for by a program,
//! `btrfs` or `copyhold`, in the same words and order: that is part of what is tested.

use std::path::Path;
use std::process::Command;

use crate::error::SuiteError;
use crate::outcome::Outcome;
use crate::scenario::{GroupId, State};

/// Directories that hold a filesystem are called so.
pub(crate) const PREFIX: &str = "copyhold-scenario-";

pub(crate) trait Filesystem {
    fn mount_point(&self) -> &Path;

    /// The program with nothing asked of it yet.
    fn program(&self) -> Command;

    /// Simple quotas.
    fn enable(&self) -> Result<Outcome, SuiteError>;

    fn deduplicate(&self, source: &Path, target: &Path) -> Result<Outcome, SuiteError>;

    fn defragment(&self, file: &Path) -> Result<Outcome, SuiteError>;

    fn subvolume_id(&self, path: &Path) -> Result<u64, SuiteError>;

    /// Everything that was done is durable and counted.
    fn sync(&self) -> Result<(), SuiteError>;

    /// What deleted subvolumes leave is freed, and counted.
    fn finish_deletions(&self) -> Result<(), SuiteError>;

    /// Unmounts and mounts again.
    fn remount(&self) -> Result<(), SuiteError>;

    /// All groups; none where quotas are off.
    fn accounts(&self) -> Result<Vec<Row>, SuiteError>;

    /// Unmounts, verifies what is left on the device, and removes it.
    fn take_down(&self) -> Result<(), SuiteError>;
}

/// What a group is charged with, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) group: GroupId,
    pub(crate) state: State,
    pub(crate) data: u64,
    pub(crate) metadata: u64,
    pub(crate) limit: Option<u64>,
    pub(crate) parents: Vec<GroupId>,
}
