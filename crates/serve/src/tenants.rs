//! The engine's operations for tenants, as the mount's front end asks for them.
//!
//! A small trait, so that permissions, and the way of answers, are tested without a pool. Missing
//! methods answer ENOSYS: that is their default.

mod answers;
mod filesystem;
mod memory;
mod names;
mod owned;
mod paths;
mod scans;

pub(crate) use filesystem::count_all;

use std::future::Future;

use copyhold_format::item::GroupId;
use copyhold_fs::{Caller, Deleted, NodeId, Right, RolledBack};
use copyhold_types::SubvolId;

use crate::NamesLimit;
use crate::wire::growth::{PoolSize, Resized};
use crate::wire::memory::{Brief, Freed, MemoryChange, MemoryRow};
use crate::wire::names::{NamesRow, NamesTotals};
use crate::wire::scan::Scan;
use crate::wire::{GroupChange, GroupRow, QuotaStatus, Refusal, Room, Subvolume};

/// An answer, or why not.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// Where a new subvolume is to be, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry<'a> {
    pub(crate) right: Right,
    pub(crate) by: &'a Caller,
    pub(crate) parent: NodeId,
    pub(crate) name: &'a [u8],
    /// None: those of the subvolume that holds the entry.
    pub(crate) groups: &'a [GroupId],
}

/// Rows of a list, some of which may have been left out.
#[derive(Debug)]
pub(crate) struct Part<R> {
    pub(crate) rows: Vec<R>,
    /// The number behind which the list continues.
    pub(crate) next: Option<u64>,
}

async fn not_built<T>(what: &'static str) -> Answer<T> {
    Err(Refusal::new("ENOSYS", format!("{what}: not implemented yet")))
}

/// The engine, for questions about tenants. Privileges of the caller were checked before; a
/// [`Right`] is checked with the change that it is for.
pub(crate) trait Tenants: Send + Sync {
    /// The owner of a file or directory.
    fn owner(&self, node: NodeId) -> impl Future<Output = Answer<u32>> + Send;

    /// The outermost subvolume below the root that holds this one.
    fn tenant(&self, subvol: SubvolId) -> SubvolId {
        subvol
    }

    fn create(&self, _: NewEntry<'_>) -> impl Future<Output = Answer<SubvolId>> + Send {
        not_built("creating subvolumes")
    }

    fn snapshot(
        &self,
        _source: SubvolId,
        _: NewEntry<'_>,
        _read_only: bool,
    ) -> impl Future<Output = Answer<SubvolId>> + Send {
        not_built("snapshots")
    }

    /// Deletes the subvolume that `name` in `parent` leads to.
    fn delete(
        &self,
        _: Right,
        _parent: NodeId,
        _name: &[u8],
        _heir: Option<SubvolId>,
    ) -> impl Future<Output = Answer<Deleted>> + Send {
        not_built("deleting subvolumes")
    }

    /// Puts a new snapshot of `snapshot` in the place of the subvolume that `name` in `parent`
    /// leads to, which gets the place `keep`, if there is one.
    fn roll_back(
        &self,
        _: Right,
        _parent: NodeId,
        _name: &[u8],
        _snapshot: SubvolId,
        _keep: Option<(NodeId, &[u8])>,
    ) -> impl Future<Output = Answer<RolledBack>> + Send {
        not_built("rolling back")
    }

    fn set_read_only(&self, _: SubvolId, _on: bool) -> impl Future<Output = Answer<()>> + Send {
        not_built("changing properties")
    }

    /// At most `most` subvolumes with ids behind `after`, the root and the dying too, in order.
    fn subvolumes(
        &self,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Vec<Subvolume>>> + Send {
        not_built("listing subvolumes")
    }

    /// The living subvolumes of an owner, with names only, of at most `most` behind `after`.
    fn own_subvolumes(
        &self,
        _owner: u32,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Part<Subvolume>>> + Send {
        not_built("listing subvolumes")
    }

    /// The subvolume that a directory is in, as a caller sees it who has that directory open: its
    /// name is for its owner.
    fn shown(
        &self,
        _: SubvolId,
        _owner: Option<u32>,
    ) -> impl Future<Output = Answer<Subvolume>> + Send {
        not_built("showing subvolumes")
    }

    /// Ids of those that are being freed, likewise.
    fn leaving(&self, _after: u64, _most: usize) -> impl Future<Output = Answer<Vec<u32>>> + Send {
        not_built("listing deleted subvolumes")
    }

    /// A step of looking through a subvolume, or two; the answer takes at most so many bytes.
    fn scan(
        &self,
        _: SubvolId,
        _other: Option<SubvolId>,
        _: &Scan,
        _room: usize,
    ) -> impl Future<Output = Answer<serde_json::Value>> + Send {
        not_built("looking through subvolumes")
    }

    fn room(&self, _: NodeId) -> impl Future<Output = Answer<Room>> + Send {
        not_built("telling what is left")
    }

    fn quota_enable(&self, _simple: bool) -> impl Future<Output = Answer<()>> + Send {
        not_built("quotas")
    }

    fn quota_disable(&self) -> impl Future<Output = Answer<()>> + Send {
        not_built("quotas")
    }

    fn quota_rescan(&self) -> impl Future<Output = Answer<()>> + Send {
        not_built("quotas")
    }

    fn quota_status(&self) -> impl Future<Output = Answer<QuotaStatus>> + Send {
        not_built("quotas")
    }

    /// At most `most` groups behind `after`, in order of their raw ids.
    fn groups(
        &self,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Vec<GroupRow>>> + Send {
        not_built("quotas")
    }

    /// The groups of the living subvolumes of an owner, with names only, likewise.
    fn own_groups(
        &self,
        _owner: u32,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Part<GroupRow>>> + Send {
        not_built("quotas")
    }

    fn regroup(&self, _: &GroupChange) -> impl Future<Output = Answer<()>> + Send {
        not_built("quotas")
    }

    /// Forgets what is stale; how many groups that were.
    fn clear_stale(&self) -> impl Future<Output = Answer<u64>> + Send {
        not_built("quotas")
    }

    /// At most `most` memory groups at and inside a subvolume, of the root all, behind `after`.
    fn memory(
        &self,
        _: SubvolId,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Vec<Brief>>> + Send {
        not_built("memory groups")
    }

    /// The memory groups of the living subvolumes of an owner, by name, likewise.
    fn own_memory(
        &self,
        _owner: u32,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Part<Brief>>> + Send {
        not_built("memory groups")
    }

    /// The memory group of a subvolume, or the shared one; `named`: with its path.
    fn memory_group(
        &self,
        _: Option<SubvolId>,
        _named: bool,
    ) -> impl Future<Output = Answer<MemoryRow>> + Send {
        not_built("memory groups")
    }

    /// Changes the limits of such a group, durably.
    fn set_memory(
        &self,
        _: Option<SubvolId>,
        _: &MemoryChange,
    ) -> impl Future<Output = Answer<()>> + Send {
        not_built("memory groups")
    }

    /// The absent names of subvolumes behind this one.
    fn names(
        &self,
        _after: u64,
        _most: usize,
    ) -> impl Future<Output = Answer<Vec<NamesRow>>> + Send {
        not_built("absent names")
    }

    fn names_totals(&self) -> Answer<NamesTotals> {
        Err(Refusal::new("EOPNOTSUPP", "absent names are not known here"))
    }

    /// Changes their limit.
    fn set_names(&self, _: NamesLimit) -> Answer<NamesTotals> {
        self.names_totals()
    }

    /// How many a subvolume has.
    fn names_of(&self, _: SubvolId) -> Answer<u64> {
        self.names_totals().map(|totals| totals.live)
    }

    /// Makes the pool larger.
    fn grow(&self, _: PoolSize) -> impl Future<Output = Answer<Resized>> + Send {
        not_built("growing")
    }

    /// Evicts caches of such a group.
    fn reclaim_memory(
        &self,
        _: Option<SubvolId>,
        _bytes: u64,
    ) -> impl Future<Output = Answer<Freed>> + Send {
        not_built("memory groups")
    }
}
