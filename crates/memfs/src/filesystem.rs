//! A filesystem in memory: the reference for tests of the mount, and the ceiling in benchmarks.
//!
//! It has names, attributes, extended attributes and locks as usual, behind one mutex. With
//! [`Contents::Dropped`] file data is counted and thrown away, and reads give zeros: no filesystem
//! behind the same transport can exceed the throughput of such a mount.
//!
//! MEMFS-M1  A node stays while it has links, lookups or is the root; then it is gone.

// It is no part of the engine, and asks the machine for the time.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use copyhold_fuse::protocol::{
    AttrReply, Caller, CopyRange, Data, DirEntry, Entries, Entry, Fallocate, Handle, Ioctl,
    IoctlReply, Lock, LockOwner, Lookup, NewNode, NodeId, Open, Opened, Read, Release, Rename,
    Seek, SetAttr, SetTime, SetXattr, Statfs, Write, flags::fopen,
};
use copyhold_fuse::{Errno, Operations, Payload, Reply};
use copyhold_sync::{Mutex, of};
use copyhold_types::Timestamp;

use crate::contents::Contents;
use crate::locks::Locks;
use crate::tree::{Body, Inode, Tree};

/// A filesystem in memory, for [`Session`](copyhold_fuse::Session).
#[derive(Debug)]
pub struct MemoryFs {
    tree: Mutex<Tree, of::MemfsTree>,
    locks: Arc<Locks>,
    contents: Contents,
    syncs: AtomicU64,
    destroyed: AtomicBool,
}

/// Nothing changes but through the kernel.
const VALID: Duration = Duration::from_secs(3600);

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// The kernel asks for these before it sets flags.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FSXATTR_BYTES: usize = 28;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

impl MemoryFs {
    /// Empty; the root belongs to this process's user.
    pub fn new(contents: Contents) -> MemoryFs {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let tree = Mutex::new(Tree::new(uid.as_raw(), gid.as_raw(), now()));
        MemoryFs {
            tree,
            locks: Arc::default(),
            contents,
            syncs: AtomicU64::new(0),
            destroyed: AtomicBool::new(false),
        }
    }

    /// How often the kernel asked for everything to be made durable.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Acquire)
    }

    /// Whether the last request was served.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// An open for direct I/O has the kernel drop its cache of the file: each direct write would
    /// have to, and one that may not wait is retried many times before the kernel stops.
    fn opened(open: &Open) -> Opened {
        let mut flags = fopen::CACHE_DIR | fopen::PARALLEL_DIRECT_WRITES;
        if open.flags & libc::O_DIRECT as u32 == 0 {
            flags |= fopen::KEEP_CACHE;
        }
        Opened { handle: Handle(0), flags }
    }

    fn make(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: &NewNode<'_>,
        body: Body,
    ) -> Reply<Entry> {
        let mut tree = self.tree.lock();
        let inode = Inode::new(tree.owner_in(parent, by, new)?, new.rdev, body, now());
        let node = tree.insert(parent, name, inode)?;
        Ok(entry(&mut tree, node))
    }
}

/// The answer that names `node`; counts as a lookup.
fn entry(tree: &mut Tree, node: NodeId) -> Entry {
    let inode = tree.get_mut(node).expect("just found");
    inode.lookups += 1;
    let attr = inode.attr(node);
    Entry { node, generation: 0, attr, entry_valid: VALID, attr_valid: VALID }
}

fn attr_reply(inode: &Inode, node: NodeId) -> AttrReply {
    AttrReply { attr: inode.attr(node), valid: VALID }
}

fn apply(inode: &mut Inode, set: SetAttr, contents: Contents) -> Reply<()> {
    let time = now();
    let given = |set: SetTime| match set {
        SetTime::Now => time,
        SetTime::At(at) => at,
    };
    if let Some(size) = set.size {
        inode.resize(size, contents)?;
        inode.mtime = time;
    }
    if set.uid.is_some() || set.gid.is_some() || set.kill_suidgid {
        inode.kill_suidgid();
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    if let Some(mode) = set.mode {
        inode.mode = (inode.mode & libc::S_IFMT) | (mode & 0o7777);
    }
    inode.atime = set.atime.map_or(inode.atime, given);
    inode.mtime = set.mtime.map_or(inode.mtime, given);
    inode.ctime = set.ctime.unwrap_or(time);
    Ok(())
}

impl Operations for MemoryFs {
    async fn destroy(&self) {
        assert!(!self.destroyed.swap(true, Ordering::AcqRel), "destroyed once");
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.tree.lock().forget(node, lookups);
    }

    async fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Lookup> {
        let mut tree = self.tree.lock();
        Ok(match tree.child(parent, name)? {
            Some(node) => Lookup::Found(entry(&mut tree, node)),
            None => Lookup::Absent { valid: VALID },
        })
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        Ok(attr_reply(self.tree.lock().get(node)?, node))
    }

    async fn statx(&self, by: Caller, node: NodeId, handle: Option<Handle>) -> Reply<AttrReply> {
        self.getattr(by, node, handle).await
    }

    async fn setattr(&self, _: Caller, node: NodeId, set: SetAttr) -> Reply<AttrReply> {
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(node)?;
        apply(inode, set, self.contents)?;
        Ok(attr_reply(inode, node))
    }

    async fn readlink(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        match &self.tree.lock().get(node)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn symlink(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        self.make(by, parent, name, &new, Body::Symlink(target.to_vec()))
    }

    async fn mknod(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let is_file = new.mode & libc::S_IFMT == libc::S_IFREG;
        let body = if is_file { Body::File(Vec::new()) } else { Body::Special };
        self.make(by, parent, name, &new, body)
    }

    async fn mkdir(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        self.make(by, parent, name, &new, Body::directory(parent))
    }

    async fn create(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
        open: Open,
    ) -> Reply<(Entry, Opened)> {
        let entry = self.make(by, parent, name, &new, Body::File(Vec::new()))?;
        Ok((entry, MemoryFs::opened(&open)))
    }

    async fn tmpfile(
        &self,
        by: Caller,
        parent: NodeId,
        new: NewNode<'_>,
        open: Open,
    ) -> Reply<(Entry, Opened)> {
        let mut tree = self.tree.lock();
        let owner = tree.owner_in(parent, by, &new)?;
        let mut inode = Inode::new(owner, 0, Body::File(Vec::new()), now());
        inode.nlink = 0;
        let node = tree.add(inode);
        Ok((entry(&mut tree, node), MemoryFs::opened(&open)))
    }

    async fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.tree.lock().unlink(parent, name, false, now())
    }

    async fn rmdir(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.tree.lock().unlink(parent, name, true, now())
    }

    async fn rename(&self, _: Caller, parent: NodeId, rename: Rename<'_>) -> Reply<()> {
        self.tree.lock().rename(parent, &rename, now())
    }

    async fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let mut tree = self.tree.lock();
        tree.link(node, parent, name, now())?;
        Ok(entry(&mut tree, node))
    }

    async fn open(&self, _: Caller, node: NodeId, open: Open) -> Reply<Opened> {
        if open.flags & libc::O_TRUNC as u32 != 0 {
            let mut tree = self.tree.lock();
            let inode = tree.get_mut(node)?;
            let kill_suidgid = open.kill_suidgid;
            let set = SetAttr { size: Some(0), kill_suidgid, ..SetAttr::default() };
            apply(inode, set, self.contents)?;
        }
        Ok(MemoryFs::opened(&open))
    }

    async fn read(&self, _: Caller, node: NodeId, read: Read) -> Reply<Data> {
        let tree = self.tree.lock();
        let inode = tree.get(node)?;
        let Body::File(bytes) = &inode.body else { return Err(Errno::EISDIR) };
        let start = read.offset.min(inode.size);
        let end = read.offset.saturating_add(read.size.into()).min(inode.size);
        Ok(match self.contents {
            Contents::Kept => bytes[start as usize..end as usize].to_vec().into(),
            Contents::Dropped => Data::zeros((end - start) as usize),
        })
    }

    async fn write(&self, _: Caller, node: NodeId, write: Write, data: &mut Payload) -> Reply<u32> {
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(node)?;
        inode.write(write.offset, data.bytes(), self.contents)?;
        if write.kill_suidgid {
            inode.kill_suidgid();
        }
        inode.mtime = now();
        inode.ctime = inode.mtime;
        Ok(write.size)
    }

    async fn flush(&self, _: Caller, node: NodeId, _: Handle, owner: LockOwner) -> Reply<()> {
        self.locks.release_posix(node, owner);
        Ok(())
    }

    async fn release(&self, _: Caller, node: NodeId, release: Release) -> Reply<()> {
        if release.flock_unlock {
            self.locks.release_flock(node, release.lock_owner);
        }
        Ok(())
    }

    async fn fsync(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Reply<()> {
        Ok(())
    }

    async fn opendir(&self, _: Caller, _: NodeId, open: Open) -> Reply<Opened> {
        Ok(MemoryFs::opened(&open))
    }

    async fn readdir(
        &self,
        _: Caller,
        node: NodeId,
        read: Read,
        entries: &mut Entries,
    ) -> Reply<()> {
        let mut tree = self.tree.lock();
        for (cookie, name, child) in tree.list(node, read.offset)? {
            let mode = tree.get(child)?.mode;
            let found = DirEntry { ino: child.0, cookie, mode, name: &name };
            let dots = name.starts_with(b".") && (&name[1..] == b"" || &name[1..] == b".");
            let pushed = if entries.wants_attributes() && !dots && entries.has_room(name.len()) {
                entries.push_plus(&entry(&mut tree, child), found)
            } else {
                entries.push(found)
            };
            if !pushed {
                break;
            }
        }
        Ok(())
    }

    async fn releasedir(&self, _: Caller, _: NodeId, _: Release) -> Reply<()> {
        Ok(())
    }

    async fn fsyncdir(&self, _: Caller, _: NodeId, _: Handle, _: bool) -> Reply<()> {
        Ok(())
    }

    async fn statfs(&self, _: Caller, _: NodeId) -> Reply<Statfs> {
        let blocks = 1 << 30;
        Ok(Statfs {
            blocks,
            free: blocks,
            available: blocks,
            files: 1 << 32,
            files_free: 1 << 32,
            bsize: 4096,
            frsize: 4096,
            name_max: 255,
        })
    }

    async fn syncfs(&self, _: Caller) -> Reply<()> {
        self.syncs.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    async fn setxattr(&self, _: Caller, node: NodeId, set: SetXattr<'_>) -> Reply<()> {
        if set.name.starts_with(b"system.posix_acl_") {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut tree = self.tree.lock();
        let xattrs = &mut tree.get_mut(node)?.xattrs;
        match (xattrs.contains_key(set.name), set.flags as i32) {
            (true, libc::XATTR_CREATE) => Err(Errno::EEXIST),
            (false, libc::XATTR_REPLACE) => Err(Errno::ENODATA),
            _ => {
                xattrs.insert(set.name.to_vec(), set.value.to_vec());
                Ok(())
            }
        }
    }

    async fn getxattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        self.tree.lock().get(node)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    async fn listxattr(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        let tree = self.tree.lock();
        Ok(tree.get(node)?.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    async fn removexattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<()> {
        let mut tree = self.tree.lock();
        tree.get_mut(node)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA)
    }

    async fn getlk(&self, _: Caller, node: NodeId, lock: Lock) -> Reply<Option<Lock>> {
        Ok(self.locks.test(node, &lock))
    }

    async fn setlk(&self, _: Caller, node: NodeId, lock: Lock) -> Reply<()> {
        self.locks.set(node, &lock)
    }

    async fn setlkw(&self, _: Caller, node: NodeId, lock: Lock) -> Reply<()> {
        self.locks.wait(node, lock).await
    }

    async fn fallocate(&self, _: Caller, node: NodeId, range: Fallocate) -> Reply<()> {
        let mode = range.mode as i32;
        let end = range.offset + range.length;
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(node)?;
        let zero = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !(zero | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mode & zero != 0 {
            inode.zero(range.offset, end);
        }
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && end > inode.size {
            inode.resize(end, self.contents)?;
        }
        Ok(())
    }

    async fn lseek(&self, _: Caller, node: NodeId, seek: Seek) -> Reply<u64> {
        let size = self.tree.lock().get(node)?.size;
        match seek.whence as i32 {
            _ if seek.offset >= size => Err(Errno::ENXIO),
            libc::SEEK_DATA => Ok(seek.offset),
            libc::SEEK_HOLE => Ok(size),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn copy_range(&self, _: Caller, node: NodeId, copy: CopyRange) -> Reply<u64> {
        let mut tree = self.tree.lock();
        let source = tree.get(node)?;
        let Body::File(bytes) = &source.body else { return Err(Errno::EISDIR) };
        let end = copy.offset.saturating_add(copy.length).min(source.size);
        let length = end.saturating_sub(copy.offset);
        let part = match self.contents {
            Contents::Kept if length > 0 => bytes[copy.offset as usize..end as usize].to_vec(),
            _ => Vec::new(),
        };
        let target = tree.get_mut(copy.target)?;
        target.write(copy.target_offset, &part, self.contents)?;
        if target.size < copy.target_offset + length {
            target.resize(copy.target_offset + length, self.contents)?;
        }
        target.mtime = now();
        Ok(length)
    }

    async fn ioctl(&self, _: Caller, node: NodeId, ioctl: Ioctl<'_>) -> Reply<IoctlReply> {
        let mut tree = self.tree.lock();
        let inode = tree.get_mut(node)?;
        match ioctl.command {
            FS_IOC_GETFLAGS => {
                let output = inode.flags.to_ne_bytes().to_vec();
                Ok(IoctlReply { result: 0, output })
            }
            FS_IOC_SETFLAGS => {
                let bytes = ioctl.input.first_chunk().ok_or(Errno::EINVAL)?;
                inode.flags = u32::from_ne_bytes(*bytes);
                Ok(IoctlReply::default())
            }
            FS_IOC_FSGETXATTR => Ok(IoctlReply { result: 0, output: vec![0; FSXATTR_BYTES] }),
            _ => Err(Errno::ENOTTY),
        }
    }
}
