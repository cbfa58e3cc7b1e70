//! Each operation of the kernel as calls of `copyhold-fs`.

use std::time::Duration;

use copyhold_fs::{FallocateMode, FsError, WriteFlags};

use super::{Server, convert};
use crate::operations::{Operations, Reply};
use crate::protocol::{
    AttrReply, Caller, CopyRange, Data, DirEntry, Entries, Entry, Fallocate, Handle, Ioctl,
    IoctlReply, Lock, LockOwner, Lookup, NewNode, NodeId, Open, Opened, Read, Release, Rename, Seek,
    SetAttr, SetXattr, Statfs, Write, flags::fopen,
};
use crate::{Errno, Payload};

/// Data of this size is handed over with its buffer instead of being copied.
const KEEP_BYTES: usize = 64 << 10;

impl Server {
    fn opened_file(&self) -> Opened {
        let quiet = if self.options.locks { 0 } else { fopen::NOFLUSH };
        let flags = fopen::KEEP_CACHE | fopen::PARALLEL_DIRECT_WRITES | quiet;
        Opened { handle: Handle(0), flags }
    }

    async fn close(&self) -> Result<(), FsError> {
        let flushed = self.fs.close().await;
        let closed = self.fs.pool().close().await;
        flushed.and(closed.map_err(FsError::from))
    }
}

impl Operations for Server {
    async fn destroy(&self) {
        let closed = self.close().await;
        if let Err(error) = &closed {
            tracing::error!(%error, "the pool was not closed in order; it recovers when mounted");
        }
        *self.closing.lock() = Some(closed);
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if let Ok(node) = convert::node(node) {
            self.fs.forget(node, lookups);
        }
    }

    async fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Lookup> {
        let parent = convert::node(parent)?;
        let found = if name == b"." {
            // A file handle is opened; what it names need not be a directory.
            self.fs.lookup_node(parent).await
        } else {
            self.fs.lookup(parent, name).await
        };
        match found {
            Ok(found) => Ok(Lookup::Found(self.entry(&found))),
            Err(FsError::NotFound) if self.options.absent_valid > Duration::ZERO => {
                Ok(Lookup::Absent { valid: self.options.absent_valid })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        Ok(self.attr(&self.fs.getattr(convert::node(node)?).await?))
    }

    async fn statx(&self, by: Caller, node: NodeId, handle: Option<Handle>) -> Reply<AttrReply> {
        self.getattr(by, node, handle).await
    }

    async fn setattr(&self, by: Caller, node: NodeId, set: SetAttr) -> Reply<AttrReply> {
        let (caller, set) = (convert::caller(by, 0), convert::set_attr(&set));
        Ok(self.attr(&self.fs.setattr(&caller, convert::node(node)?, &set).await?))
    }

    async fn readlink(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        Ok(self.fs.readlink(convert::node(node)?).await?)
    }

    async fn symlink(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let (caller, parent) = (convert::caller(by, new.umask), convert::node(parent)?);
        Ok(self.entry(&self.fs.symlink(&caller, parent, name, target).await?))
    }

    async fn mknod(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let (caller, parent) = (convert::caller(by, new.umask), convert::node(parent)?);
        let made = self.fs.mknod(&caller, parent, name, new.mode, new.rdev).await?;
        Ok(self.entry(&made))
    }

    async fn mkdir(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let (caller, parent) = (convert::caller(by, new.umask), convert::node(parent)?);
        let made = self.fs.mkdir(&caller, parent, name, new.mode & 0o7777).await?;
        Ok(self.entry(&made))
    }

    async fn create(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
        open: Open,
    ) -> Reply<(Entry, Opened)> {
        if !self.options.open {
            // The kernel falls back to MKNOD, once and for all, and then opens without us.
            return Err(Errno::ENOSYS);
        }
        let (caller, parent) = (convert::caller(by, new.umask), convert::node(parent)?);
        let exclusive = open.flags & libc::O_EXCL as u32 != 0;
        let (mode, flags) = (new.mode & 0o7777, convert::open_flags(open));
        let made = self.fs.create(&caller, parent, name, mode, flags, exclusive).await?;
        Ok((self.entry(&made.0), self.opened_file()))
    }

    async fn tmpfile(
        &self,
        by: Caller,
        parent: NodeId,
        new: NewNode<'_>,
        _: Open,
    ) -> Reply<(Entry, Opened)> {
        let (caller, parent) = (convert::caller(by, new.umask), convert::node(parent)?);
        let made = self.fs.tmpfile(&caller, parent, new.mode & 0o7777).await?;
        Ok((self.entry(&made), self.opened_file()))
    }

    async fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        Ok(self.fs.unlink(convert::node(parent)?, name).await?)
    }

    async fn rmdir(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        Ok(self.fs.rmdir(convert::node(parent)?, name).await?)
    }

    async fn rename(&self, by: Caller, parent: NodeId, rename: Rename<'_>) -> Reply<()> {
        let Rename { name, new_parent, new_name, flags } = rename;
        let (parent, new_parent) = (convert::node(parent)?, convert::node(new_parent)?);
        let (caller, flags) = (convert::caller(by, 0), convert::rename_flags(flags)?);
        Ok(self.fs.rename(&caller, parent, name, new_parent, new_name, flags).await?)
    }

    async fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let (node, parent) = (convert::node(node)?, convert::node(parent)?);
        Ok(self.entry(&self.fs.link(node, parent, name).await?))
    }

    async fn open(&self, _: Caller, node: NodeId, open: Open) -> Reply<Opened> {
        if !self.options.open {
            return Err(Errno::ENOSYS);
        }
        self.fs.open_node(convert::node(node)?, convert::open_flags(open)).await?;
        Ok(self.opened_file())
    }

    async fn read(&self, _: Caller, node: NodeId, read: Read) -> Reply<Data> {
        let found = self.fs.read(convert::node(node)?, read.offset, read.size as usize).await?;
        Ok(convert::data(found))
    }

    async fn write(&self, _: Caller, node: NodeId, write: Write, data: &mut Payload) -> Reply<u32> {
        let node = convert::node(node)?;
        let flags = WriteFlags { kill_priv: write.kill_suidgid, append: false };
        let len = data.bytes().len();
        if len >= KEEP_BYTES && data.is_whole() {
            self.fs.write_buf(node, write.offset, data.take(), len, flags).await?;
        } else {
            self.fs.write(node, write.offset, data.bytes(), flags).await?;
        }
        Ok(write.size)
    }

    async fn flush(&self, _: Caller, node: NodeId, _: Handle, owner: LockOwner) -> Reply<()> {
        if !self.options.locks {
            return Err(Errno::ENOSYS);
        }
        self.locks.release_posix(node, owner);
        Ok(())
    }

    async fn release(&self, _: Caller, node: NodeId, release: Release) -> Reply<()> {
        if self.options.locks && release.flock_unlock {
            self.locks.release_flock(node, release.lock_owner);
        }
        self.fs.release(convert::node(node)?);
        Ok(())
    }

    async fn fsync(&self, _: Caller, node: NodeId, _: Handle, data_only: bool) -> Reply<()> {
        Ok(self.fs.fsync(convert::node(node)?, data_only).await?)
    }

    async fn opendir(&self, _: Caller, node: NodeId, open: Open) -> Reply<Opened> {
        if !self.options.open {
            return Err(Errno::ENOSYS);
        }
        self.fs.open_node(convert::node(node)?, convert::open_flags(open)).await?;
        Ok(Opened { handle: Handle(0), flags: fopen::KEEP_CACHE | fopen::CACHE_DIR })
    }

    async fn readdir(
        &self,
        _: Caller,
        node: NodeId,
        read: Read,
        entries: &mut Entries,
    ) -> Reply<()> {
        let node = convert::node(node)?;
        let plus = entries.wants_attributes();
        let mut visit = |found: &copyhold_fs::DirEntry<'_>| {
            let shown = DirEntry {
                ino: found.node.raw(),
                cookie: found.cookie,
                mode: found.kind.mode_bits(),
                name: found.name,
            };
            match found.attr {
                Some(attr) => {
                    let found = copyhold_fs::Entry { node: found.node, attr };
                    entries.push_plus(&self.entry(&found), shown)
                }
                None => entries.push(shown),
            }
        };
        if plus {
            self.fs.readdirplus(node, read.offset, &mut visit).await?;
        } else {
            self.fs.readdir(node, read.offset, &mut visit).await?;
        }
        Ok(())
    }

    async fn releasedir(&self, _: Caller, node: NodeId, _: Release) -> Reply<()> {
        self.fs.release(convert::node(node)?);
        Ok(())
    }

    async fn fsyncdir(&self, _: Caller, node: NodeId, _: Handle, _: bool) -> Reply<()> {
        Ok(self.fs.fsyncdir(convert::node(node)?).await?)
    }

    async fn statfs(&self, _: Caller, _: NodeId) -> Reply<Statfs> {
        Ok(convert::statfs(&self.fs.statfs()))
    }

    async fn syncfs(&self, _: Caller) -> Reply<()> {
        Ok(self.fs.sync().await?)
    }

    async fn setxattr(&self, by: Caller, node: NodeId, set: SetXattr<'_>) -> Reply<()> {
        let (caller, node) = (convert::caller(by, 0), convert::node(node)?);
        let how = convert::xattr_set(set.flags)?;
        Ok(self.fs.set_xattr(&caller, node, set.name, set.value, how, set.kill_sgid).await?)
    }

    async fn getxattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        Ok(self.fs.get_xattr(convert::node(node)?, name).await?)
    }

    async fn listxattr(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        Ok(self.fs.list_xattr(convert::node(node)?).await?)
    }

    async fn removexattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<()> {
        Ok(self.fs.remove_xattr(convert::node(node)?, name).await?)
    }

    async fn access(&self, by: Caller, node: NodeId, mask: u32) -> Reply<()> {
        Ok(self.fs.access(&convert::caller(by, 0), convert::node(node)?, mask).await?)
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
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => FallocateMode::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => FallocateMode::Punch,
            libc::FALLOC_FL_ZERO_RANGE => FallocateMode::Zero { keep_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        Ok(self.fs.fallocate(convert::node(node)?, range.offset, range.length, mode).await?)
    }

    async fn lseek(&self, _: Caller, node: NodeId, seek: Seek) -> Reply<u64> {
        let whence = match seek.whence as i32 {
            libc::SEEK_DATA => copyhold_fs::Seek::Data,
            libc::SEEK_HOLE => copyhold_fs::Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        Ok(self.fs.seek(convert::node(node)?, seek.offset, whence).await?)
    }

    async fn copy_range(&self, _: Caller, node: NodeId, copy: CopyRange) -> Reply<u64> {
        let (from, to) = (convert::node(node)?, convert::node(copy.target)?);
        let (at, target_at) = (copy.offset, copy.target_offset);
        Ok(self.fs.copy_file_range(from, at, to, target_at, copy.length).await?)
    }

    async fn ioctl(&self, by: Caller, node: NodeId, ioctl: Ioctl<'_>) -> Reply<IoctlReply> {
        self.ioctl_on(by, convert::node(node)?, ioctl).await
    }
}
