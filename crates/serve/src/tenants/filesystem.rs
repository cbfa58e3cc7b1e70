//! The mounted filesystem, as questions about tenants see it.

use std::sync::Arc;

use copyhold_format::item::GroupId;
use copyhold_fs::{
    Deleted, Filesystem, FsError, NodeId, Right, RolledBack, SubvolInfo, SubvolumeCalls,
};
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupState, Ledger, LimitKind, QuotaError};
use copyhold_volume::{MemoryGroup, Subvol, Volumes, freeing_behind, is_freeing, tenant_of};

use super::answers::{group_row, refused, refused_by_pool, row};
use super::paths::Paths;
use super::{Answer, NewEntry, Part, Tenants, memory, names, owned, scans};
use crate::NamesLimit;
use crate::wire::growth::{PoolSize, Resized};
use crate::wire::memory::{Brief, Effective, Freed, MemoryChange, MemoryRow};
use crate::wire::names::{NamesRow, NamesTotals};
use crate::wire::scan::Scan;
use crate::wire::{GroupChange, GroupRow, Limited, QuotaStatus, Refusal, Room, Subvolume};

impl Tenants for Arc<Filesystem> {
    fn tenant(&self, subvol: SubvolId) -> SubvolId {
        tenant_of(self.volumes(), subvol)
    }

    async fn owner(&self, node: NodeId) -> Answer<u32> {
        Ok(self.getattr(node).await.map_err(refused)?.uid)
    }

    async fn create(&self, place: NewEntry<'_>) -> Answer<SubvolId> {
        let NewEntry { right, by, parent, name, .. } = place;
        let calls = SubvolumeCalls::new(self, right);
        let made = calls.create(by, parent, name, groups(place)).await;
        made.map_err(refused)
    }

    async fn snapshot(
        &self,
        source: SubvolId,
        place: NewEntry<'_>,
        read_only: bool,
    ) -> Answer<SubvolId> {
        let NewEntry { right, parent, name, .. } = place;
        let calls = SubvolumeCalls::new(self, right);
        let made = calls.snapshot(source, parent, name, read_only, groups(place)).await;
        made.map_err(refused)
    }

    async fn delete(
        &self,
        right: Right,
        parent: NodeId,
        name: &[u8],
        heir: Option<SubvolId>,
    ) -> Answer<Deleted> {
        let deleted = SubvolumeCalls::new(self, right).delete(parent, name, heir).await;
        deleted.map_err(refused)
    }

    async fn roll_back(
        &self,
        right: Right,
        parent: NodeId,
        name: &[u8],
        snapshot: SubvolId,
        keep: Option<(NodeId, &[u8])>,
    ) -> Answer<RolledBack> {
        let calls = SubvolumeCalls::new(self, right);
        calls.roll_back(parent, name, snapshot, keep).await.map_err(refused)
    }

    async fn set_read_only(&self, subvol: SubvolId, on: bool) -> Answer<()> {
        self.set_subvolume_read_only(subvol, on).await.map_err(refused)
    }

    async fn subvolumes(&self, after: u64, most: usize) -> Answer<Vec<Subvolume>> {
        let after = SubvolId(u32::try_from(after).unwrap_or(u32::MAX));
        let behind = self.subvolumes_behind(after, most);
        let is_page = most > 1;
        let mut paths = if is_page { Paths::of_page(self) } else { Paths::new(self) };
        let mut rows = Vec::new();
        for info in behind {
            let path = match info.is_dying {
                true => None,
                false => paths.of(info.id).await.map_err(refused)?,
            };
            rows.push(row(self, &info, path));
        }
        paths.end(is_page && rows.len() < most);
        Ok(rows)
    }

    async fn own_subvolumes(&self, owner: u32, after: u64, most: usize) -> Answer<Part<Subvolume>> {
        let make = |info: &SubvolInfo, name| Some(owned::outline(self, info, name));
        owned::rows(self, owner, (after, most), make).await
    }

    async fn shown(&self, subvol: SubvolId, owner: Option<u32>) -> Answer<Subvolume> {
        owned::shown(self, subvol, owner).await
    }

    async fn own_groups(&self, owner: u32, after: u64, most: usize) -> Answer<Part<GroupRow>> {
        if !self.volumes().ledger().is_on() {
            return Err(quota(QuotaError::Off));
        }
        let make = |info: &SubvolInfo, name| owned::group(self, info, name);
        owned::rows(self, owner, (after, most), make).await
    }

    async fn leaving(&self, after: u64, most: usize) -> Answer<Vec<u32>> {
        if !is_freeing(self.volumes(), &[]) {
            // The space that they released and the rows that they leave go with them.
            self.sync_subvolumes(&[]).await.map_err(refused)?;
        }
        let after = SubvolId(u32::try_from(after).unwrap_or(u32::MAX));
        let behind = freeing_behind(self.volumes(), after, most);
        Ok(behind.into_iter().map(|id| id.0).collect())
    }

    async fn scan(
        &self,
        subvol: SubvolId,
        other: Option<SubvolId>,
        step: &Scan,
        room: usize,
    ) -> Answer<serde_json::Value> {
        scans::step(self, subvol, other, step, room).await.map_err(refused)
    }

    async fn room(&self, node: NodeId) -> Answer<Room> {
        let (pool, own) = (self.statfs(), self.statfs_of(node));
        let bytes = |blocks: u64| blocks * u64::from(own.block_bytes);
        Ok(Room {
            subvolume: node.subvol.0,
            size_bytes: bytes(own.blocks),
            used_bytes: bytes(own.blocks.saturating_sub(own.blocks_free)),
            available_bytes: bytes(own.blocks_available),
            inodes_available: own.files_free,
            limited: own.blocks_available < pool.blocks_available,
        })
    }

    async fn quota_enable(&self, simple: bool) -> Answer<()> {
        if !simple {
            return self.volumes().ledger().enable_full().map(drop).map_err(quota);
        }
        self.enable_quotas().await.map_err(refused)
    }

    async fn quota_disable(&self) -> Answer<()> {
        match self.volumes().ledger().is_on() {
            true => self.disable_quotas().await.map_err(refused),
            false => Ok(()),
        }
    }

    async fn quota_status(&self) -> Answer<QuotaStatus> {
        let status = self.volumes().ledger().status();
        Ok(QuotaStatus {
            enabled: status.counted_from.is_some(),
            mode: status.counted_from.map(|_| "simple".into()),
            generation: status.generation,
            counted_from_epoch: status.counted_from.map(|epoch| epoch.0),
            leftovers: status.leftovers as u64,
        })
    }

    async fn quota_rescan(&self) -> Answer<()> {
        self.volumes().ledger().rescan().map_err(quota)
    }

    async fn groups(&self, after: u64, most: usize) -> Answer<Vec<GroupRow>> {
        let behind = self.volumes().ledger().show_behind(GroupId::place(after), most);
        let mut paths = Paths::of_page(self);
        let mut rows = Vec::new();
        for group in behind.map_err(quota)? {
            let living = group.id.subvol().filter(|_| group.state == GroupState::Live);
            let path = match (living, &group.tombstone) {
                (Some(subvol), _) => paths.of(subvol).await.map_err(refused)?,
                (None, Some(stone)) => Some(String::from_utf8_lossy(&stone.name).into_owned()),
                (None, None) => None,
            };
            rows.push(group_row(&group, path));
        }
        paths.end(rows.len() < most);
        Ok(rows)
    }

    async fn regroup(&self, change: &GroupChange) -> Answer<()> {
        let pool = self.statfs();
        let free = pool.blocks_available * u64::from(pool.block_bytes);
        let change = |ledger: &Ledger| match *change {
            GroupChange::Create { group } => ledger.create(group.0),
            GroupChange::Destroy { group } => ledger.destroy(group.0),
            GroupChange::Assign { child, parent } => ledger.assign(child.0, parent.0),
            GroupChange::Remove { child, parent } => ledger.remove(child.0, parent.0),
            GroupChange::Limit { group, kind, limit } => ledger.limit(group.0, of(kind), limit),
            GroupChange::Reserve { group, bytes } => ledger.reserve(group.0, bytes, free),
        };
        self.change_quotas(change).await.map_err(refused)
    }

    async fn clear_stale(&self) -> Answer<u64> {
        let ledger = self.volumes().ledger();
        let before = ledger.shown().map_err(quota)?;
        ledger.sweep_all().map_err(quota)?;
        let mut rows = usize::MAX;
        while rows > 0 {
            let clear = |ledger: &Ledger| {
                let cleared = ledger.sweep(Volumes::LIFE_EDITS / 2);
                rows = cleared.len();
                Ok(cleared)
            };
            self.change_quotas(clear).await.map_err(refused)?;
        }
        Ok(before.saturating_sub(ledger.shown().map_err(quota)?) as u64)
    }

    async fn memory(&self, top: SubvolId, after: u64, most: usize) -> Answer<Vec<Brief>> {
        memory::rows(self, top, after, most).await
    }

    async fn own_memory(&self, owner: u32, after: u64, most: usize) -> Answer<Part<Brief>> {
        let make = |info: &SubvolInfo, name| {
            let subvol = self.volumes().subvol(info.id)?;
            let row = memory::row_of(self, MemoryGroup::Of(&subvol), name);
            Some(Brief(MemoryRow { parent: None, ..row }))
        };
        // The number of a row is its id and one.
        let mut part = owned::rows(self, owner, (after.saturating_sub(1), most), make).await?;
        part.next = part.next.map(|last| last + 1);
        Ok(part)
    }

    async fn memory_group(&self, of: Option<SubvolId>, named: bool) -> Answer<MemoryRow> {
        let row = memory::row(self, of, named).await?;
        // An owner of the group alone is not told which subvolume holds it.
        let parent = row.parent.filter(|_| named);
        // Nor what that one and its neighbours leave of the promises.
        let claim = Effective { min: row.min.0.min(row.current), low: row.low.0.min(row.current) };
        let effective = if named { row.effective } else { claim };
        Ok(MemoryRow { parent, effective, ..row })
    }

    async fn set_memory(&self, of: Option<SubvolId>, change: &MemoryChange) -> Answer<()> {
        memory::set(self, of, change).await
    }

    async fn names(&self, after: u64, most: usize) -> Answer<Vec<NamesRow>> {
        names::rows(self, after, most).await
    }

    fn names_totals(&self) -> Answer<NamesTotals> {
        Ok(names::totals(self))
    }

    fn set_names(&self, limit: NamesLimit) -> Answer<NamesTotals> {
        Ok(names::set(self, limit))
    }

    fn names_of(&self, subvol: SubvolId) -> Answer<u64> {
        Ok(names::live(self, subvol))
    }

    async fn grow(&self, size: PoolSize) -> Answer<Resized> {
        let grown = copyhold_pool::grow(self.pool(), size.into()).await;
        grown.map(Resized::from).map_err(refused_by_pool)
    }

    async fn reclaim_memory(&self, of: Option<SubvolId>, bytes: u64) -> Answer<Freed> {
        memory::reclaim(self, of, bytes).await
    }
}

/// Lets all subvolumes stamp epochs that quotas count, if they are on: a crash may have come
/// between that and the enabling.
pub(crate) async fn count_all(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    let volumes = fs.volumes();
    let is_outdated = |subvol: &Arc<Subvol>| !subvol.is_dying() && volumes.is_outdated(subvol);
    match volumes.list().iter().any(is_outdated) {
        true => fs.enable_quotas().await,
        false => Ok(()),
    }
}

fn of(kind: Limited) -> LimitKind {
    match kind {
        Limited::Referenced => LimitKind::Referenced,
        Limited::Exclusive => LimitKind::Exclusive,
        Limited::Inodes => LimitKind::Inodes,
        Limited::Snapshots => LimitKind::Snapshots,
        Limited::Subvolumes => LimitKind::Subvolumes,
    }
}

fn groups(place: NewEntry<'_>) -> Option<Vec<GroupId>> {
    (!place.groups.is_empty()).then(|| place.groups.to_vec())
}

fn quota(error: QuotaError) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}
