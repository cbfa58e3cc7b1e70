//! Making files of every kind.

use std::sync::Arc;

use copyhold_format::item::{InodeItem, SYMLINK_MAX, orphan_key, symlink_key};
use copyhold_pool::{Tier, Transaction};
use copyhold_types::{InodeNo, Timestamp};
use copyhold_volume::InodeChange;

use super::{Bucket, Found, LINKS_MAX, Name};
use crate::filesystem::new_item;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::subvol::FILES;
use crate::throttle::{before_change, slow_creation};
use crate::{
    Caller, Entry, FileFlags, FileKind, Filesystem, FsError, NodeId, OpenFlags, Result, Sabotage,
    Uses, privileges,
};

/// A file to be made.
#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    kind: FileKind,
    /// Permission bits.
    mode: u32,
    rdev: u32,
    /// Of a symlink.
    target: &'a [u8],
    opened: bool,
}

impl New<'static> {
    /// The file that a rename leaves at the old name for a union filesystem.
    pub(super) const WHITEOUT: New<'static> =
        New { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: &[], opened: false };
}

impl Filesystem {
    /// Makes and opens a regular file. An existing one is opened, unless `exclusive`; the flag
    /// returned says whether it was made.
    #[allow(clippy::too_many_arguments)] // as open(2) has them
    pub async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Entry, bool)> {
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: &[], opened: true };
        loop {
            match self.make(caller, parent, name, new).await {
                Err(FsError::Exists) if !exclusive => {}
                other => return other.map(|inode| (self.entry(&inode), true)),
            }
            let entry = match self.lookup(parent, name).await {
                // Removed in between: made again.
                Err(FsError::NotFound) => continue,
                other => other?,
            };
            let inode = self.inode(entry.node).await?;
            if let Err(error) = self.open_inode(&inode, flags).await {
                self.forget_entry(entry.node);
                return Err(error);
            }
            return Ok((Entry { attr: inode.attr(), ..entry }, false));
        }
    }

    /// Makes a file of any kind but directories and symlinks, without opening it. `mode` holds the
    /// type.
    pub async fn mknod(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let type_bits = mode & 0o170000;
        let kind = match FileKind::from_mode(if type_bits == 0 { 0o100000 } else { type_bits }) {
            Some(FileKind::Directory | FileKind::Symlink) | None => {
                return Err(FsError::Invalid("mknod makes no such type"));
            }
            Some(kind) => kind,
        };
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if device { rdev } else { 0 };
        let new = New { kind, mode, rdev, target: &[], opened: false };
        Ok(self.entry(&*self.make(caller, parent, name, new).await?))
    }

    pub async fn mkdir(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry> {
        let new = New { kind: FileKind::Directory, mode, rdev: 0, target: &[], opened: false };
        Ok(self.entry(&*self.make(caller, parent, name, new).await?))
    }

    pub async fn symlink(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        if target.len() > SYMLINK_MAX {
            return Err(FsError::NameTooLong { len: target.len(), max: SYMLINK_MAX });
        }
        if target.is_empty() || target.contains(&0) {
            return Err(FsError::Invalid("the target of a symlink"));
        }
        let new = New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target, opened: false };
        Ok(self.entry(&*self.make(caller, parent, name, new).await?))
    }

    pub async fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        let inode = self.inode(node).await?;
        if inode.kind != FileKind::Symlink {
            return Err(FsError::Invalid("not a symlink"));
        }
        let value = self.get(&inode.subvol, symlink_key(node.ino)).await?;
        let parsed = copyhold_format::item::parse_symlink(value.as_deref().unwrap_or_default());
        let target = parsed.map_err(|source| self.damaged_record("the symlink", node, source))?;
        self.touch_atime(&inode);
        Ok(target.to_vec())
    }

    /// Makes and opens a regular file without a name.
    pub async fn tmpfile(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
    ) -> Result<Entry> {
        self.make_nameless(caller, parent, mode, false).await
    }

    /// As [`Self::tmpfile`], for a front end that copies all of another file into it, as overlayfs
    /// does, and lets no program reach it before. Until it has a name, a change of its owner is a
    /// part of that copy: setuid, setgid and capabilities stay.
    pub async fn tmpfile_for_copy_up(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
    ) -> Result<Entry> {
        self.make_nameless(caller, parent, mode, true).await
    }

    async fn make_nameless(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        in_copy_up: bool,
    ) -> Result<Entry> {
        self.writable()?;
        let dir = self.inode(parent).await?;
        self.permit_in(&dir.subvol)?;
        dir.expect_dir()?;
        before_change(self, dir.subvol.volume.owner()).await?;
        slow_creation(self, &dir.subvol).await;
        let inherited = self.inherited_acl(&dir, FileKind::Regular, mode, caller.umask).await?;
        let ino = self.next_ino(&dir.subvol).await?;
        let mut acls = inherited.xattrs(&dir.subvol, ino)?;
        let (edits, bytes) = (2 + acls.edits(), INODE_BYTES + KEY_BYTES + acls.bytes());
        let credit = self.charge_for(&dir.subvol, Tier::Write, edits, bytes, 1).await?;

        let dir_state = dir.state();
        dir_state.expect_addable_to()?;
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: &[], opened: true };
        let mut item = item_of(new, caller, &dir_state, inherited.mode, self.now());
        item.nlink = 0;
        let mut tx = Transaction::new();
        acls.put(&mut tx, &mut item);
        self.put_inode(&mut tx, ino, &item);
        tx.put(FILES, orphan_key(ino), &[][..]);
        let txg = self.apply_inode(&dir.subvol, credit, tx, InodeChange::Born(ino))?;
        drop(dir_state);

        let inode = Arc::new(Inode::new(&dir.subvol, ino, item, Some(txg)));
        {
            let mut state = inode.state();
            state.linkable = true;
            state.in_copy_up = in_copy_up && !self.breaks(Sabotage::StripCopyUp);
        }
        self.inodes.add_open(inode.node, Uses::WRITER);
        self.inodes.insert_new(inode.clone());
        Ok(self.entry(&inode))
    }

    async fn make(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new: New<'_>,
    ) -> Result<InodeRef> {
        self.writable()?;
        let dir = self.inode(parent).await?;
        self.permit_in(&dir.subvol)?;
        dir.expect_dir()?;
        before_change(self, dir.subvol.volume.owner()).await?;
        slow_creation(self, &dir.subvol).await;
        let name = Name::to_make(name)?;
        let _entries = dir.lock.write().await;
        let bucket = self.bucket(&dir, name.bytes()).await?;
        if bucket.find(self, &dir, name.bytes()).is_some() {
            return Err(FsError::Exists);
        }
        if self.breaks(Sabotage::CountSubdirs) && dir.state().item.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks { max: LINKS_MAX });
        }
        let inherited = self.inherited_acl(&dir, new.kind, new.mode, caller.umask).await?;
        let ino = self.next_ino(&dir.subvol).await?;
        let target = if new.target.is_empty() { 0 } else { KEY_BYTES + new.target.len() };
        let mut acls = inherited.xattrs(&dir.subvol, ino)?;
        let bytes = 2 * INODE_BYTES + bucket.edit_bytes(name.bytes()) + target + acls.bytes();
        let edits = 3 + usize::from(target > 0) + acls.edits();
        let credit = self.charge_for(&dir.subvol, Tier::Write, edits, bytes, 1).await?;

        let now = self.now();
        let (inode, txg, sync) = {
            let mut dir_state = dir.state();
            dir_state.expect_addable_to()?;
            let is_dir = new.kind == FileKind::Directory;
            let mut item = item_of(new, caller, &dir_state, inherited.mode, now);
            item.parent = dir.node.ino;
            if is_dir {
                item.nlink = 2;
            }
            let node = dir.subvol.node(ino);
            let mut tx = Transaction::new();
            let found = Found { node, kind: new.kind };
            tx.put(FILES, bucket.key(), bucket.with(self, &dir, name.bytes(), found)?);
            acls.put(&mut tx, &mut item);
            self.put_inode(&mut tx, ino, &item);
            if new.kind == FileKind::Symlink {
                tx.put(FILES, symlink_key(ino), new.target);
            }
            let dir_item = dir_state.dir_item(1, is_dir.into(), now);
            self.put_inode(&mut tx, dir.node.ino, &dir_item);
            let txg = self.apply_inode(&dir.subvol, credit, tx, InodeChange::Born(ino))?;
            dir_state.logged_and_shown(dir_item, txg, true);
            let inode = Arc::new(Inode::new(&dir.subvol, ino, item, Some(txg)));
            if new.opened {
                self.inodes.add_open(node, Uses::WRITER);
            }
            self.inodes.insert_new(inode.clone());
            (inode, txg, dir_state.is_sync_dir())
        };
        if sync {
            self.pool.commit(txg).await?;
        }
        Ok(inode)
    }

    fn forget_entry(self: &Arc<Self>, node: NodeId) {
        if self.options.count_lookups {
            self.forget(node, 1);
        }
    }
}

/// Puts a bucket, or deletes it where nothing is left.
pub(crate) fn put_bucket(tx: &mut Transaction, bucket: Bucket) {
    bucket.put(tx, FILES);
}

/// The item of a new file in a directory: owner, group and flags by the directory, and the
/// remaining bits of the requested mode.
pub(super) fn item_of(
    new: New<'_>,
    caller: &Caller,
    dir: &InodeState,
    mode: u32,
    now: Timestamp,
) -> InodeItem {
    const SET_GID: u32 = privileges::SET_GID as u32;
    let is_dir = new.kind == FileKind::Directory;
    let mut mode = mode & 0o7777;
    let mut owner = caller.clone();
    if dir.item.mode & privileges::SET_GID != 0 {
        owner.gid = dir.item.gid;
        if is_dir {
            mode |= SET_GID;
        } else if mode & (SET_GID | 0o010) == SET_GID | 0o010
            && !caller.is_privileged()
            && caller.groups.is_some()
            && !caller.in_group(owner.gid)
        {
            mode &= !SET_GID;
        }
    }
    let inherits = FileFlags::NODUMP.0
        | FileFlags::NOATIME.0
        | FileFlags::SYNC.0
        | if is_dir { FileFlags::DIRSYNC.0 | FileFlags::PROJINHERIT.0 } else { 0 };
    let mut item = new_item(new.kind.mode_bits() | mode, &owner, now);
    item.flags = dir.item.flags & inherits;
    if dir.has_flag(FileFlags::PROJINHERIT) {
        item.project = dir.item.project;
    }
    if new.kind == FileKind::Symlink {
        item.size = new.target.len() as u64;
        item.flags = 0;
    }
    if is_dir || new.kind == FileKind::Regular {
        item.checksum_mode = dir.item.checksum_mode;
    }
    item.rdev = new.rdev;
    debug_assert_eq!(item.parent, InodeNo(0));
    item
}
