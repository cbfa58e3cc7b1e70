//! Rows and refusals of the engine, as answers have them.

use copyhold_format::item::GroupId;
use copyhold_fs::{Filesystem, FsError, SubvolInfo};
use copyhold_pool::PoolError;
use copyhold_types::SubvolId;
use copyhold_volume::quota::GroupUse;

use crate::chain;
use crate::errno::{errno, errno_of_pool};
use crate::moment::rfc3339;
use crate::wire::{Group, GroupLimits, GroupRow, Refusal, Subvolume, SubvolumeState};

pub(super) fn row(fs: &Filesystem, info: &SubvolInfo, path: Option<String>) -> Subvolume {
    let state = match info.is_dying {
        true => SubvolumeState::Deleting,
        false => SubvolumeState::Live,
    };
    let group = GroupId::of(info.id);
    let paid = || fs.volumes().ledger().show_group(group).ok().map(|group| group.referenced);
    let subvol = fs.volumes().subvol(info.id);
    let generation = subvol.and_then(|subvol| fs.volumes().generation(&subvol).ok());
    Subvolume {
        id: info.id.0,
        path,
        parent: (info.id != SubvolId::ROOT).then_some(info.parent.subvol.0),
        readonly: info.read_only,
        origin: info.origin.map(|origin| origin.0),
        created: rfc3339(info.created),
        state,
        generation: generation.map(|epoch| epoch.0),
        freeing_bytes: info.is_dying.then(paid).flatten(),
        freed_percent: info.walked_percent,
    }
}

pub(super) fn group_row(group: &GroupUse, path: Option<String>) -> GroupRow {
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
        subvolumes: group.subvolumes,
        limits: GroupLimits {
            referenced: limits.referenced,
            exclusive: limits.exclusive,
            inodes: limits.inodes,
            snapshots: limits.snapshots,
            subvolumes: limits.subvolumes,
        },
        reserve: group.reserve,
        parents: group.parents.iter().map(|parent| Group(*parent)).collect(),
    }
}

/// The errno that a system call would have answered with, and more words.
pub(super) fn refused(error: FsError) -> Refusal {
    let text = chain(&error);
    let code = match &error {
        FsError::Quota(error) => error.code(),
        _ => errno(error).name().unwrap_or("EIO"),
    };
    Refusal::new(code, text)
}

/// As [`refused`], of a call on the pool itself.
pub(super) fn refused_by_pool(error: PoolError) -> Refusal {
    Refusal::new(errno_of_pool(&error).name().unwrap_or("EIO"), chain(&error))
}
