//! The mounted filesystem, as who asks about tenants sees it.

use std::sync::Arc;

use copyhold_format::item::GroupId;
use copyhold_fs::{Filesystem, FsError, NodeId, SubvolInfo};
use copyhold_pool::{Credit, Tier};
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupState, GroupUse, LimitKind, QuotaError};
use copyhold_volume::{VolumeError, Volumes};

use super::paths::Paths;
use super::{Answer, Place, Tenants};
use crate::adapter::errno;
use crate::control::wire::{
    Group, GroupChange, GroupLimits, GroupRow, Limited, QuotaStatus, Refusal, Room, Subvolume,
    SubvolumeState,
};
use crate::failure::chain;
use crate::moment::rfc3339;

/// Relations that one clearing ends, at most.
const CLEAR_EDITS: usize = 64;
/// A relation's record.
const RELATION_BYTES: usize = 32;

impl Tenants for Arc<Filesystem> {
    async fn owner(&self, node: NodeId) -> Answer<u32> {
        Ok(self.getattr(node).await.map_err(refused)?.uid)
    }

    async fn entry(&self, parent: NodeId, name: &[u8]) -> Answer<NodeId> {
        let found = self.lookup(parent, name).await.map_err(refused)?.node;
        self.forget(found, 1);
        Ok(found)
    }

    async fn create(&self, place: Place<'_>) -> Answer<SubvolId> {
        let Place { by, parent, name, .. } = place;
        let made = self.create_subvolume(by, parent, name, groups(place)).await;
        made.map_err(refused)
    }

    async fn snapshot(
        &self,
        source: SubvolId,
        place: Place<'_>,
        read_only: bool,
    ) -> Answer<SubvolId> {
        let Place { parent, name, .. } = place;
        let made = Filesystem::snapshot(self, source, parent, name, read_only, groups(place)).await;
        made.map_err(refused)
    }

    async fn delete(&self, parent: NodeId, name: &[u8], heir: Option<SubvolId>) -> Answer<()> {
        self.delete_subvolume(parent, name, heir).await.map(drop).map_err(refused)
    }

    async fn set_read_only(&self, subvol: SubvolId, on: bool) -> Answer<()> {
        self.set_subvolume_read_only(subvol, on).await.map_err(refused)
    }

    async fn subvolumes(&self, after: u64, most: usize) -> Answer<Vec<Subvolume>> {
        let behind = Filesystem::subvolumes(self).into_iter();
        let behind = behind.filter(|one| u64::from(one.id.0) > after).take(most);
        let mut paths = Paths::new(self);
        let mut rows = Vec::new();
        for info in behind {
            let path = match info.is_dying {
                true => None,
                false => paths.of(info.id).await.map_err(refused)?,
            };
            rows.push(row(self, &info, path));
        }
        Ok(rows)
    }

    async fn leaving(&self, after: u64, most: usize) -> Answer<Vec<u32>> {
        let all = Filesystem::subvolumes(self).into_iter();
        let dying = all.filter(|one| one.is_dying).map(|one| one.id.0);
        Ok(dying.filter(|&id| u64::from(id) > after).take(most).collect())
    }

    async fn room(&self, node: NodeId) -> Answer<Room> {
        let (pool, ledger) = (self.statfs(), self.volumes().ledger());
        let bytes = |blocks: u64| blocks * u64::from(pool.block_bytes);
        let (group, subvol) = (GroupId::of(node.subvol), node.subvol);
        let free = bytes(pool.blocks_available).saturating_sub(ledger.kept_for_others(subvol));
        let left = ledger.available(subvol);
        let available = left.map_or(free, |left| left.min(free));
        let used = match ledger.show_group(group) {
            Ok(group) if left.is_some() => group.referenced,
            _ => bytes(pool.blocks - pool.blocks_free),
        };
        let files = ledger.available_inodes(subvol);
        Ok(Room {
            subvolume: subvol.0,
            size_bytes: used + available,
            used_bytes: used,
            available_bytes: available,
            inodes_available: files.map_or(pool.files_free, |left| left.min(pool.files_free)),
            limited: left.is_some_and(|left| left < free),
        })
    }

    async fn quota_enable(&self, simple: bool) -> Answer<()> {
        let volumes = self.volumes();
        if !simple {
            return volumes.ledger().enable_full().map(drop).map_err(quota);
        }
        let credit = credit(self, 0).await?;
        volumes.enable_quotas(credit).await.map_err(volume)?;
        renew(self).await
    }

    async fn quota_disable(&self) -> Answer<()> {
        if !self.volumes().ledger().is_on() {
            return Ok(());
        }
        let credit = credit(self, 0).await?;
        self.volumes().disable_quotas(credit).map(drop).map_err(volume)
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
        let all = self.volumes().ledger().show().map_err(quota)?;
        let behind = all.into_iter().filter(|one| one.id.raw() > after).take(most);
        let mut paths = Paths::new(self);
        let mut rows = Vec::new();
        for group in behind {
            let living = group.id.subvol().filter(|_| group.state == GroupState::Live);
            let path = match (living, &group.tombstone) {
                (Some(subvol), _) => paths.of(subvol).await.map_err(refused)?,
                (None, Some(stone)) => Some(String::from_utf8_lossy(&stone.name).into_owned()),
                (None, None) => None,
            };
            rows.push(group_row(&group, path));
        }
        Ok(rows)
    }

    async fn regroup(&self, change: &GroupChange) -> Answer<()> {
        let (volumes, change) = (self.volumes(), change.clone());
        let free = self.statfs();
        let free = free.blocks_available * u64::from(free.block_bytes);
        let credit = credit(self, relations(self, &change)).await?;
        let changed = volumes.change_quotas(credit, |ledger| match change {
            GroupChange::Create { group } => ledger.create(group.0),
            GroupChange::Destroy { group } => ledger.destroy(group.0),
            GroupChange::Assign { child, parent } => ledger.assign(child.0, parent.0),
            GroupChange::Remove { child, parent } => ledger.remove(child.0, parent.0),
            GroupChange::Limit { group, kind, limit } => ledger.limit(group.0, of(kind), limit),
            GroupChange::Reserve { group, bytes } => ledger.reserve(group.0, bytes, free),
        });
        changed.map(drop).map_err(volume)
    }

    async fn clear_stale(&self) -> Answer<u64> {
        let ledger = self.volumes().ledger();
        let before = ledger.show().map_err(quota)?.len();
        let credit = credit(self, CLEAR_EDITS).await?;
        let cleared =
            self.volumes().change_quotas(credit, |ledger| ledger.clear_stale(CLEAR_EDITS / 2));
        cleared.map_err(volume)?;
        Ok(before.saturating_sub(ledger.show().map_err(quota)?.len()) as u64)
    }
}

/// Lets all subvolumes stamp epochs that quotas count, so that what is written from now on does. A
/// crash may have come between that and the enabling.
pub(crate) async fn renew(fs: &Filesystem) -> Answer<()> {
    let volumes = fs.volumes();
    for subvol in volumes.list().into_iter().filter(|subvol| !subvol.is_dying()) {
        if volumes.is_outdated(&subvol) {
            let credit = credit(fs, 0).await?;
            match volumes.renew(&subvol, credit).await {
                Err(_) if subvol.is_dying() => {}
                renewed => renewed.map_err(volume)?,
            }
        }
    }
    Ok(())
}

/// For a change of quotas, and for edits of so many relations besides. What tidies up may take from
/// the reserve, and a limit is what one sets when there is no room left.
async fn credit(fs: &Filesystem, relations: usize) -> Answer<Credit> {
    let edits = Volumes::LIFE_EDITS + relations;
    let bytes = Volumes::LIFE_BYTES + relations * RELATION_BYTES;
    let credit = fs.pool().admit(Tier::Delete, edits, bytes).await;
    credit.map_err(|error| refused(error.into()))
}

/// Relations that go with a group.
fn relations(fs: &Filesystem, change: &GroupChange) -> usize {
    let GroupChange::Destroy { group } = change else { return 0 };
    fs.volumes().ledger().show_group(group.0).map_or(0, |group| group.parents.len())
}

fn of(kind: Limited) -> LimitKind {
    match kind {
        Limited::Referenced => LimitKind::Referenced,
        Limited::Exclusive => LimitKind::Exclusive,
        Limited::Inodes => LimitKind::Inodes,
        Limited::Snapshots => LimitKind::Snapshots,
    }
}

fn groups(place: Place<'_>) -> Option<Vec<GroupId>> {
    (!place.groups.is_empty()).then(|| place.groups.to_vec())
}

fn row(fs: &Filesystem, info: &SubvolInfo, path: Option<String>) -> Subvolume {
    let state = match info.is_dying {
        true => SubvolumeState::Deleting,
        false => SubvolumeState::Live,
    };
    let group = GroupId::of(info.id);
    let paid = || fs.volumes().ledger().show_group(group).ok().map(|group| group.referenced);
    Subvolume {
        id: info.id.0,
        path,
        parent: (info.id != SubvolId::ROOT).then_some(info.parent.subvol.0),
        readonly: info.read_only,
        origin: info.origin.map(|origin| origin.0),
        created: rfc3339(info.created),
        state,
        freeing_bytes: info.is_dying.then(paid).flatten(),
    }
}

fn group_row(group: &GroupUse, path: Option<String>) -> GroupRow {
    let limits = &group.limits;
    GroupRow {
        id: Group(group.id),
        path,
        state: group.state.name().into(),
        deleted: group.tombstone.as_ref().map(|stone| rfc3339(stone.since)),
        referenced: group.referenced,
        exclusive: group.exclusive,
        data: group.data,
        metadata: group.metadata,
        reserved: group.reserved,
        unflushed: group.unflushed,
        inodes: group.inodes,
        snapshots: group.snapshots,
        limits: GroupLimits {
            referenced: limits.referenced,
            exclusive: limits.exclusive,
            inodes: limits.inodes,
            snapshots: limits.snapshots,
        },
        reserve: group.reserve,
        parents: group.parents.iter().map(|parent| Group(*parent)).collect(),
    }
}

fn volume(error: VolumeError) -> Refusal {
    refused(error.into())
}

fn quota(error: QuotaError) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}

/// The errno that a system call would have answered with, and more words.
fn refused(error: FsError) -> Refusal {
    let text = chain(&error);
    let code = match &error {
        FsError::Quota(error) => error.code(),
        _ => errno(error).name().unwrap_or("EIO"),
    };
    Refusal::new(code, text)
}
