//! Subvolumes as ordinary users see them: their own, by name.
//!
//! Each question looks at a bounded number of subvolumes and directory entries, for any number of
//! subvolumes in the pool, and says where the next one continues. The name is the last part of the
//! path: the rest may be names in directories that the user cannot read.

use std::sync::Arc;

use copyhold_format::item::GroupId;
use copyhold_fs::{FileKind, Filesystem, FsError, NodeId, SubvolInfo};
use copyhold_types::{InodeNo, SubvolId};

use super::answers::{group_row, refused, row};
use super::{Answer, Part};
use crate::wire::{GroupRow, Subvolume};

/// Entries of a directory among which the name of a subvolume is looked for.
const ENTRIES_MAX: usize = 4096;

/// Rows of the living subvolumes of `owner`, of at most `most` behind `after`.
pub(super) async fn rows<R>(
    fs: &Arc<Filesystem>,
    owner: u32,
    (after, most): (u64, usize),
    make: impl Fn(&SubvolInfo, Option<String>) -> Option<R>,
) -> Answer<Part<R>> {
    let mut behind = fs.subvolumes_behind(SubvolId(u32::try_from(after).unwrap_or(u32::MAX)), most);
    let next = behind.last().filter(|_| behind.len() == most).map(|last| last.id.0.into());
    behind.retain(|one| !one.is_dying && one.id != SubvolId::ROOT);
    let mut rows = Vec::new();
    for info in behind {
        if owner_of(fs, info.id).await.map_err(refused)? == Some(owner) {
            let name = name(fs, &info).await.map_err(refused)?;
            rows.extend(make(&info, name));
        }
    }
    Ok(Part { rows, next })
}

/// The row of one subvolume; its name is for its owner.
pub(super) async fn shown(
    fs: &Arc<Filesystem>,
    id: SubvolId,
    owner: Option<u32>,
) -> Answer<Subvolume> {
    let info = fs.subvolumes_behind(SubvolId(id.0 - 1), 1).into_iter().next();
    let info = info.filter(|info| info.id == id).ok_or(FsError::Stale).map_err(refused)?;
    let is_own = owner.is_some() && owner_of(fs, id).await.map_err(refused)? == owner;
    let name = match is_own && !info.is_dying && id != SubvolId::ROOT {
        true => name(fs, &info).await.map_err(refused)?,
        false => None,
    };
    Ok(outline(fs, &info, name))
}

/// Without the places and sources of other subvolumes.
pub(super) fn outline(fs: &Filesystem, info: &SubvolInfo, name: Option<String>) -> Subvolume {
    Subvolume { parent: None, origin: None, ..row(fs, info, name) }
}

/// The group of a subvolume, without the groups above it.
pub(super) fn group(fs: &Filesystem, info: &SubvolInfo, name: Option<String>) -> Option<GroupRow> {
    let group = fs.volumes().ledger().show_group(GroupId::of(info.id)).ok()?;
    Some(GroupRow { parents: Vec::new(), ..group_row(&group, name) })
}

async fn owner_of(fs: &Filesystem, id: SubvolId) -> Result<Option<u32>, FsError> {
    match fs.getattr(NodeId { subvol: id, ino: InodeNo::ROOT }).await {
        Ok(attr) => Ok(Some(attr.uid)),
        Err(FsError::Stale | FsError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// None for a subvolume that moves meanwhile, or one in a very large directory.
async fn name(fs: &Filesystem, info: &SubvolInfo) -> Result<Option<String>, FsError> {
    let root = NodeId { subvol: info.id, ino: InodeNo::ROOT };
    let (mut name, mut seen) = (None, 0);
    let mut visit = |entry: &copyhold_fs::DirEntry<'_>| {
        seen += 1;
        if entry.node == root && entry.kind == FileKind::Directory && entry.name != b"." {
            name = Some(String::from_utf8_lossy(entry.name).into_owned());
        }
        name.is_none() && seen < ENTRIES_MAX
    };
    match fs.readdir(info.parent, 0, &mut visit).await {
        Ok(()) | Err(FsError::Stale | FsError::NotFound) => Ok(name),
        Err(error) => Err(error),
    }
}
