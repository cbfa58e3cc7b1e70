//! Inodes and names of [`MemoryFs`](crate::MemoryFs).

use std::collections::BTreeMap;

use copyhold_fuse::protocol::{Attr, Caller, NewNode, NodeId, Rename};
use copyhold_fuse::{Errno, Reply};
use copyhold_types::Timestamp;

use crate::contents::Contents;

#[derive(Debug)]
pub(crate) enum Body {
    File(Vec<u8>),
    Directory {
        parent: NodeId,
        names: BTreeMap<Vec<u8>, u64>,
        /// By cookie, which grows with each new name.
        order: BTreeMap<u64, (Vec<u8>, NodeId)>,
    },
    Symlink(Vec<u8>),
    Special,
}

impl Body {
    pub(crate) fn directory(parent: NodeId) -> Body {
        Body::Directory { parent, names: BTreeMap::new(), order: BTreeMap::new() }
    }
}

/// Mode, user and group of a new inode.
pub(crate) struct Owner {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    pub(crate) flags: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) lookups: u64,
    pub(crate) body: Body,
}

impl Inode {
    pub(crate) fn new(owner: Owner, rdev: u32, body: Body, time: Timestamp) -> Inode {
        let (nlink, size) = match &body {
            Body::Directory { .. } => (2, 0),
            Body::Symlink(target) => (1, target.len() as u64),
            Body::File(_) | Body::Special => (1, 0),
        };
        Inode {
            mode: owner.mode,
            nlink,
            uid: owner.uid,
            gid: owner.gid,
            rdev,
            size,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: 0,
            xattrs: BTreeMap::new(),
            lookups: 0,
            body,
        }
    }

    pub(crate) fn attr(&self, node: NodeId) -> Attr {
        Attr {
            ino: node.0,
            size: self.size,
            blocks: self.size.div_ceil(512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: Some(self.btime),
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: 4096,
            attributes: 0,
            attributes_mask: 0,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub(crate) fn kill_suidgid(&mut self) {
        if self.is_directory() {
            return;
        }
        self.mode &= !libc::S_ISUID;
        if self.mode & libc::S_IXGRP != 0 {
            self.mode &= !libc::S_ISGID;
        }
    }

    pub(crate) fn resize(&mut self, size: u64, contents: Contents) -> Reply<()> {
        let Body::File(bytes) = &mut self.body else { return Err(Errno::EISDIR) };
        if contents == Contents::Kept {
            bytes.resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
        }
        self.size = size;
        Ok(())
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], contents: Contents) -> Reply<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > self.size {
            self.resize(end, contents)?;
        }
        let Body::File(bytes) = &mut self.body else { return Err(Errno::EISDIR) };
        if contents == Contents::Kept {
            bytes[offset as usize..end as usize].copy_from_slice(data);
        }
        Ok(())
    }

    pub(crate) fn zero(&mut self, start: u64, end: u64) {
        let Body::File(bytes) = &mut self.body else { return };
        let end = end.min(bytes.len() as u64) as usize;
        let start = (start as usize).min(end);
        bytes[start..end].fill(0);
    }
}

#[derive(Debug)]
pub(crate) struct Tree {
    inodes: BTreeMap<NodeId, Inode>,
    next: u64,
}

/// Cookies of "." and "..".
const DOTS: [(u64, &[u8]); 2] = [(1, b"."), (2, b"..")];

impl Tree {
    pub(crate) fn new(uid: u32, gid: u32, time: Timestamp) -> Tree {
        let owner = Owner { mode: libc::S_IFDIR | 0o755, uid, gid };
        let root = Inode::new(owner, 0, Body::directory(NodeId::ROOT), time);
        Tree { inodes: BTreeMap::from([(NodeId::ROOT, root)]), next: NodeId::ROOT.0 + 1 }
    }

    pub(crate) fn get(&self, node: NodeId) -> Reply<&Inode> {
        self.inodes.get(&node).ok_or(Errno::ESTALE)
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Reply<&mut Inode> {
        self.inodes.get_mut(&node).ok_or(Errno::ESTALE)
    }

    /// Umask and the directory's setgid bit applied.
    pub(crate) fn owner_in(&self, parent: NodeId, by: Caller, new: &NewNode<'_>) -> Reply<Owner> {
        let by = by.ids.ok_or(Errno::EOVERFLOW)?;
        let parent = self.get(parent)?;
        let is_link = new.mode & libc::S_IFMT == libc::S_IFLNK;
        let mut mode = if is_link { new.mode } else { new.mode & !new.umask };
        let mut gid = by.gid;
        if parent.mode & libc::S_ISGID != 0 {
            gid = parent.gid;
            if new.mode & libc::S_IFMT == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            }
        }
        Ok(Owner { mode, uid: by.uid, gid })
    }

    pub(crate) fn add(&mut self, inode: Inode) -> NodeId {
        let node = NodeId(self.next);
        self.next += 1;
        self.inodes.insert(node, inode);
        node
    }

    fn names(&self, directory: NodeId) -> Reply<&BTreeMap<Vec<u8>, u64>> {
        match &self.get(directory)?.body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(crate) fn child(&self, parent: NodeId, name: &[u8]) -> Reply<Option<NodeId>> {
        let inode = self.get(parent)?;
        if name == b"." {
            return Ok(Some(parent));
        }
        let Body::Directory { parent: above, names, order } = &inode.body else {
            return Err(Errno::ENOTDIR);
        };
        if name == b".." {
            return Ok(Some(*above));
        }
        Ok(names.get(name).map(|cookie| order[cookie].1))
    }

    /// Gives `node` a name, which must be free.
    fn set_name(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: NodeId,
        time: Timestamp,
    ) -> Reply<()> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode = self.get_mut(parent)?;
        let Body::Directory { names, order, .. } = &mut inode.body else {
            return Err(Errno::ENOTDIR);
        };
        let cookie = order.last_key_value().map_or(DOTS.len() as u64, |(&last, _)| last) + 1;
        assert!(names.insert(name.to_vec(), cookie).is_none(), "the name is free");
        order.insert(cookie, (name.to_vec(), node));
        (inode.mtime, inode.ctime) = (time, time);
        Ok(())
    }

    fn clear_name(&mut self, parent: NodeId, name: &[u8], time: Timestamp) -> Reply<()> {
        let inode = self.get_mut(parent)?;
        let Body::Directory { names, order, .. } = &mut inode.body else {
            return Err(Errno::ENOTDIR);
        };
        let cookie = names.remove(name).ok_or(Errno::ENOENT)?;
        order.remove(&cookie);
        (inode.mtime, inode.ctime) = (time, time);
        Ok(())
    }

    fn change_links(&mut self, node: NodeId, by: i32) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.nlink = inode.nlink.saturating_add_signed(by);
        }
    }

    pub(crate) fn insert(&mut self, parent: NodeId, name: &[u8], inode: Inode) -> Reply<NodeId> {
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let (is_directory, time) = (inode.is_directory(), inode.ctime);
        let node = NodeId(self.next);
        self.set_name(parent, name, node, time)?;
        self.add(inode);
        if is_directory {
            self.change_links(parent, 1);
        }
        Ok(node)
    }

    pub(crate) fn link(
        &mut self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
        time: Timestamp,
    ) -> Reply<()> {
        if self.names(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.set_name(parent, name, node, time)?;
        self.change_links(node, 1);
        self.get_mut(node)?.ctime = time;
        Ok(())
    }

    pub(crate) fn unlink(
        &mut self,
        parent: NodeId,
        name: &[u8],
        directory: bool,
        time: Timestamp,
    ) -> Reply<()> {
        let node = self.child(parent, name)?.ok_or(Errno::ENOENT)?;
        match (&self.get(node)?.body, directory) {
            (Body::Directory { .. }, false) => return Err(Errno::EISDIR),
            (Body::Directory { names, .. }, true) if !names.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            (Body::Directory { .. }, true) => {
                self.change_links(parent, -1);
                self.change_links(node, -1);
            }
            (_, true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.clear_name(parent, name, time)?;
        self.change_links(node, -1);
        self.get_mut(node)?.ctime = time;
        self.tidy(node);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        parent: NodeId,
        rename: &Rename<'_>,
        time: Timestamp,
    ) -> Reply<()> {
        let Rename { name, new_parent, new_name, flags } = *rename;
        let moved = self.child(parent, name)?.ok_or(Errno::ENOENT)?;
        let target = self.child(new_parent, new_name)?;
        if flags & libc::RENAME_EXCHANGE != 0 {
            let target = target.ok_or(Errno::ENOENT)?;
            self.place(parent, name, moved, new_parent, new_name, time)?;
            return self.place_new(target, parent, name, new_parent, time);
        }
        if let Some(target) = target {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            if target == moved {
                return Ok(());
            }
            self.unlink(new_parent, new_name, self.get(target)?.is_directory(), time)?;
        }
        self.place(parent, name, moved, new_parent, new_name, time)?;
        if flags & libc::RENAME_WHITEOUT != 0 {
            let owner = Owner { mode: libc::S_IFCHR, uid: 0, gid: 0 };
            self.insert(parent, name, Inode::new(owner, 0, Body::Special, time))?;
        }
        Ok(())
    }

    /// Moves a name, over another one that keeps its inode.
    fn place(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: NodeId,
        new_parent: NodeId,
        new_name: &[u8],
        time: Timestamp,
    ) -> Reply<()> {
        self.clear_name(parent, name, time)?;
        if self.names(new_parent)?.contains_key(new_name) {
            self.clear_name(new_parent, new_name, time)?;
        }
        self.place_new(node, new_parent, new_name, parent, time)
    }

    /// Names `node`, which comes from `old_parent`.
    fn place_new(
        &mut self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
        old_parent: NodeId,
        time: Timestamp,
    ) -> Reply<()> {
        self.set_name(parent, name, node, time)?;
        let inode = self.get_mut(node)?;
        inode.ctime = time;
        if let Body::Directory { parent: above, .. } = &mut inode.body {
            *above = parent;
            self.change_links(old_parent, -1);
            self.change_links(parent, 1);
        }
        Ok(())
    }

    /// Cookie, name and node of the entries behind `cookie`.
    pub(crate) fn list(
        &self,
        directory: NodeId,
        cookie: u64,
    ) -> Reply<Vec<(u64, Vec<u8>, NodeId)>> {
        /// More than any answer holds.
        const AT_ONCE: usize = 4096;
        let Body::Directory { parent, order, .. } = &self.get(directory)?.body else {
            return Err(Errno::ENOTDIR);
        };
        let dots = DOTS.into_iter().zip([directory, *parent]);
        let dots = dots.map(|((at, name), node)| (at, name.to_vec(), node));
        let rest = order.range(cookie.saturating_add(1)..);
        let rest = rest.map(|(&at, (name, node))| (at, name.clone(), *node));
        Ok(dots.filter(|dot| dot.0 > cookie).chain(rest).take(AT_ONCE).collect())
    }

    pub(crate) fn forget(&mut self, node: NodeId, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&node) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            self.tidy(node);
        }
    }

    /// MEMFS-M1.
    fn tidy(&mut self, node: NodeId) {
        let gone = |inode: &Inode| inode.nlink == 0 && inode.lookups == 0;
        if node != NodeId::ROOT && self.inodes.get(&node).is_some_and(gone) {
            self.inodes.remove(&node);
        }
    }
}
