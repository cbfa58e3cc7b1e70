//! Memory groups of the mounted filesystem, as questions show and change them.
//!
//! A row costs a look at each group inside its own, so a list in pages looks at all groups once for
//! each of their holders.

use std::sync::Arc;

use copyhold_format::item::SHARED_MEMORY;
use copyhold_fs::{Filesystem, FsError, evict};
use copyhold_types::SubvolId;
use copyhold_volume::{MemoryGroup, Subvol, VolumeError, change_memory_limits, living_inside};

use super::Answer;
use super::answers::refused;
use super::paths::Paths;
use crate::wire::Refusal;
use crate::wire::memory::{Brief, Freed, MemoryChange, MemoryRow};

/// The row of a group; its path is for a caller who may know it.
pub(super) fn row_of(fs: &Filesystem, group: MemoryGroup<'_>, path: Option<String>) -> MemoryRow {
    let owner = group.owner(fs.volumes());
    let (figures, now) = (fs.pool().memory().figures(&owner), fs.pool().runtime().now());
    let row = MemoryRow::new(&owner.limits(), &figures, &owner.pressure(now));
    match group {
        MemoryGroup::Shared => MemoryRow { id: SHARED_MEMORY.0, ..row },
        MemoryGroup::Of(subvol) => {
            let parent = subvol.item().place.subvol;
            let parent = (parent != SubvolId::ROOT).then_some(parent.0);
            MemoryRow { id: subvol.id().0, path, parent, ..row }
        }
    }
}

/// At most `most` groups at and inside a subvolume, of the root all, with numbers behind `after`.
pub(super) async fn rows(
    fs: &Filesystem,
    top: SubvolId,
    after: u64,
    most: usize,
) -> Answer<Vec<Brief>> {
    let (mut paths, mut rows) = (Paths::of_page(fs), Vec::new());
    if after == 0 && top == SubvolId::ROOT {
        rows.push(Brief(row_of(fs, MemoryGroup::Shared, None)));
    }
    for subvol in living_inside(fs.volumes(), top, after, most - rows.len()) {
        let path = paths.of(subvol.id()).await.map_err(refused)?;
        rows.push(Brief(row_of(fs, MemoryGroup::Of(&subvol), path)));
    }
    paths.end(rows.len() < most);
    Ok(rows)
}

/// The row of one group; none: the shared one.
pub(super) async fn row(fs: &Filesystem, of: Option<SubvolId>, named: bool) -> Answer<MemoryRow> {
    let Some(id) = of else { return Ok(row_of(fs, MemoryGroup::Shared, None)) };
    let subvol = living(fs, id)?;
    let path = match named {
        true => Paths::new(fs).of(id).await.map_err(refused)?,
        false => None,
    };
    Ok(row_of(fs, MemoryGroup::Of(&subvol), path))
}

/// Changes limits, durably.
pub(super) async fn set(
    fs: &Filesystem,
    of: Option<SubvolId>,
    change: &MemoryChange,
) -> Answer<()> {
    let subvol = of.map(|id| living(fs, id)).transpose()?;
    let group = subvol.as_deref().map_or(MemoryGroup::Shared, MemoryGroup::Of);
    let changed = change_memory_limits(fs.volumes(), group, |old| change.apply(old)).await;
    let txg = changed.map_err(told)?;
    fs.pool().commit(txg).await.map_err(|error| refused(error.into()))
}

/// Evicts caches of a group.
pub(super) async fn reclaim(fs: &Filesystem, of: Option<SubvolId>, bytes: u64) -> Answer<Freed> {
    let subvol = of.map(|id| living(fs, id)).transpose()?;
    let group = subvol.as_deref().map_or(MemoryGroup::Shared, MemoryGroup::Of);
    let freed = evict(fs, &group.owner(fs.volumes()), bytes).await;
    Ok(freed.into_iter().map(|(class, bytes)| (class.name().into(), bytes)).collect())
}

fn living(fs: &Filesystem, id: SubvolId) -> Answer<Arc<Subvol>> {
    let subvol = fs.volumes().subvol(id).filter(|subvol| !subvol.is_dying());
    subvol.ok_or_else(gone)
}

fn gone() -> Refusal {
    Refusal::new("ESTALE", "the subvolume is deleted, and its group with it")
}

fn told(error: VolumeError) -> Refusal {
    match FsError::from(error) {
        FsError::Stale => gone(),
        error => refused(error),
    }
}
