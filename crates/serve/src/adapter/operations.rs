//! The kernel's operations, each as one call of the engine.
//!
//! Content that changes is in `content`, ioctls are in `ioctls`.

use std::sync::atomic::Ordering;

use copyhold_fs::{FsError, ListFlags, Looked, ReadFlags, RenameFlags, Seek, Uses, XattrSet};
use copyhold_fuse::protocol::{
    AttrReply, Caller, CopyRange, Data, DirEntry, Entries, Entry, Fallocate, Handle, Ioctl,
    IoctlReply, LockOwner, Lookup, NewNode, NodeId, Open, Opened, Read, Release, Rename, SetAttr,
    SetXattr, Statfs, Write,
};
use copyhold_fuse::{Errno, Operations, Payload, Reply, Share};
use copyhold_memory::{MemoryCharge, MemoryClass};
use copyhold_types::SubvolId;

use super::convert::{file_mode, judged, known, maker, opened, set_attr, to_open};
use super::holes::SeekRequest;
use super::turns::Load;
use super::{Adapter, checksum_modes, convert, ioctls, pages};
use crate::control;
use crate::errno::errno;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const O_EXCL: u32 = 0o200;
pub(super) const SEEK_DATA: u32 = 3;
pub(super) const SEEK_HOLE: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const O_NOATIME: u32 = rustix::fs::OFlags::NOATIME.bits();
/// Without the bit of O_DIRECTORY, which is a part of it in programs.
pub(super) const O_TMPFILE: u32 = 0o20_000_000;

impl Operations for Adapter {
    async fn destroy(&self) {
        let closed = self.fs.close().await;
        let closed = match closed {
            Ok(()) => self.fs.pool().close().await.map_err(FsError::from),
            failed => failed.and(self.fs.pool().close().await.map_err(FsError::from)),
        };
        let was_told = self.told_to_stop.load(Ordering::Acquire);
        match &closed {
            Ok(()) => tracing::info!("closed"),
            Err(_) if was_told => tracing::info!("closed; the filesystem was shut down before"),
            Err(error) => tracing::error!(%error, "closing failed; mounting again recovers"),
        }
        let _only_once = self.closed.set(if was_told { Ok(()) } else { closed });
        // umount(2) of a `fuseblk` returns when this does, and the user may want the device then.
        self.fs.pool().device().release();
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if let Ok(node) = known(node) {
            self.fs.forget(node, lookups);
        }
    }

    fn charge(&self, node: NodeId, bytes: usize) -> Option<MemoryCharge> {
        let subvol = self.fs.volumes().subvol(known(node).ok()?.subvol)?;
        Some(subvol.owner().charge(MemoryClass::Request, bytes as i64))
    }

    fn share(&self, node: NodeId) -> Share {
        self.share_of(known(node).map_or(SubvolId::ROOT, |node| node.subvol))
    }

    async fn lookup(&self, by: Caller, parent: NodeId, name: &[u8]) -> Reply<Lookup> {
        let parent = known(parent)?;
        let looked_up = match name {
            b"." => self.fs.lookup_node(parent).await.map(Looked::Found),
            _ => self.fs.look(parent, name).await,
        };
        match looked_up {
            Ok(Looked::Found(entry)) => self.found(parent, name, &entry).await,
            Ok(Looked::Absent(absent)) => Ok(self.absent(by, parent, absent)),
            Err(error) => Err(errno(error)),
        }
    }

    async fn getattr(&self, by: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        self.attributes(by, node).await
    }

    async fn statx(&self, by: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        if !self.tells_births {
            return Err(Errno::ENOSYS);
        }
        self.attributes(by, node).await
    }

    async fn setattr(&self, by: Caller, node: NodeId, set: SetAttr) -> Reply<AttrReply> {
        let (node, mut set) = (known(node)?, set_attr(&set));
        // O_TRUNC comes behind the OPEN, and names no descriptor: like truncate(2) of a file that
        // is open.
        set.empties &= self.fs.uses(node).has(Uses::WRITER);
        let _turn = self.turn(node, 0).await;
        let changed = self.fs.setattr(&judged(by), node, &set).await;
        changed.map(|attr| self.answer(&attr)).map_err(errno)
    }

    async fn readlink(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        self.fs.readlink(known(node)?).await.map_err(errno)
    }

    async fn symlink(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let caller = maker(by, Some(&new))?;
        let (parent, turn) = self.enter(parent, target.len()).await?;
        let made = self.fs.symlink(&caller, parent, name, target).await;
        self.end_turn_delayed(turn, parent).await;
        made.map(|entry| self.made(by, parent, name, &entry)).map_err(errno)
    }

    async fn mknod(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let caller = maker(by, Some(&new))?;
        let (parent, turn) = self.enter(parent, 0).await?;
        let made = self.fs.mknod(&caller, parent, name, new.mode, new.rdev).await;
        self.end_turn_delayed(turn, parent).await;
        made.map(|entry| self.made(by, parent, name, &entry)).map_err(errno)
    }

    async fn mkdir(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let caller = maker(by, Some(&new))?;
        let (parent, turn) = self.enter(parent, 0).await?;
        let made = self.fs.mkdir(&caller, parent, name, file_mode(&new)).await;
        self.end_turn_delayed(turn, parent).await;
        made.map(|entry| self.made(by, parent, name, &entry)).map_err(errno)
    }

    async fn create(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
        open: Open,
    ) -> Reply<(Entry, Opened)> {
        let (caller, flags) = (maker(by, Some(&new))?, to_open(&open));
        let mode = file_mode(&new);
        // The kernel has looked the name up under the directory's lock and found nothing; that may
        // have been long ago.
        let exclusive = open.flags & O_EXCL != 0;
        let (parent, turn) = self.enter(parent, 0).await?;
        let made = self.fs.create(&caller, parent, name, mode, flags, exclusive).await;
        self.end_turn_delayed(turn, parent).await;
        let (entry, is_new) = made.map_err(errno)?;
        Ok((self.made(by, parent, name, &entry), opened(&open, !is_new && flags.write)))
    }

    async fn tmpfile(
        &self,
        by: Caller,
        parent: NodeId,
        new: NewNode<'_>,
        open: Open,
    ) -> Reply<(Entry, Opened)> {
        let caller = maker(by, Some(&new))?;
        let (parent, mode) = (known(parent)?, file_mode(&new));
        let turn = self.turn(parent, 0).await;
        // open(2) makes no file without a name but by this flag: without it the kernel has made
        // one for itself, and overlayfs does.
        let made = match open.flags & O_TMPFILE {
            0 => self.fs.tmpfile_for_copy_up(&caller, parent, mode).await,
            _ => self.fs.tmpfile(&caller, parent, mode).await,
        };
        self.end_turn_delayed(turn, parent).await;
        made.map(|entry| (self.held(&entry), opened(&open, false))).map_err(errno)
    }

    async fn unlink(&self, by: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let (parent, _turn) = self.enter(parent, 0).await?;
        self.fs.unlink(parent, name).await.map_err(errno)?;
        self.left(by.pid, parent);
        Ok(())
    }

    async fn rmdir(&self, by: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let parent = known(parent)?;
        let turn = self.turn(parent, 0).await;
        let removed = self.fs.rmdir(parent, name).await;
        drop(turn);
        match removed {
            Err(FsError::IsSubvolume(_)) => Box::pin(self.remove_subvolume(by, parent, name)).await,
            removed => {
                removed.map_err(errno)?;
                self.left(by.pid, parent);
                Ok(())
            }
        }
    }

    async fn rename(&self, by: Caller, parent: NodeId, rename: Rename<'_>) -> Reply<()> {
        let has = |flag| rename.flags & flag != 0;
        if rename.flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) != 0 {
            return Err(Errno::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: has(RENAME_NOREPLACE),
            exchange: has(RENAME_EXCHANGE),
            whiteout: has(RENAME_WHITEOUT),
        };
        let (from, to) = (known(parent)?, known(rename.new_parent)?);
        let caller = if from.subvol != to.subvol {
            self.mover(by)
        } else if flags.whiteout {
            maker(by, None)?
        } else {
            judged(by)
        };
        let (thread, leaves_a_name) = (by.pid, !flags.exchange && !flags.whiteout);
        let _turn = self.turn(from, 0).await;
        let renamed = self.fs.rename(&caller, from, rename.name, to, rename.new_name, flags).await;
        renamed.map_err(errno)?;
        if leaves_a_name {
            self.left(thread, from);
        }
        Ok(())
    }

    async fn link(&self, by: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let (node, parent) = (known(node)?, known(parent)?);
        let _turn = self.turn(parent, 0).await;
        let linked = self.fs.link(node, parent, name).await;
        linked.map(|entry| self.made(by, parent, name, &entry)).map_err(errno)
    }

    async fn open(&self, _: Caller, node: NodeId, open: Open) -> Reply<Opened> {
        let (node, flags) = (known(node)?, to_open(&open));
        self.fs.open_node(node, flags).await.map_err(errno)?;
        Ok(opened(&open, flags.write))
    }

    async fn read(&self, _: Caller, inode: NodeId, read: Read) -> Reply<Data> {
        let (node, fills_pages) = (known(inode)?, pages::fills_pages(&read));
        let flags = ReadFlags { no_atime: read.flags & O_NOATIME != 0, direct: !fills_pages };
        let _transfer = fills_pages.then(|| {
            self.fs.note_uses(node, Uses::CACHED);
            self.pages.transfer(inode, pages::range(read.offset, read.size))
        });
        let _turn = self.turn(node, read.size as usize).await;
        let data = self.fs.read_with(node, read.offset, read.size as usize, flags).await;
        data.map(convert::data).map_err(errno)
    }

    fn write(
        &self,
        _: Caller,
        node: NodeId,
        write: Write,
        data: &mut Payload,
    ) -> impl Future<Output = Reply<u32>> {
        self.write_data(node, write, data)
    }

    async fn flush(&self, _: Caller, node: NodeId, _: Handle, _: LockOwner) -> Reply<()> {
        Box::pin(self.fs.flush(known(node)?)).await.map_err(errno)
    }

    async fn release(&self, _: Caller, node: NodeId, _: Release) -> Reply<()> {
        self.fs.release(known(node)?);
        Ok(())
    }

    async fn fsync(&self, _: Caller, node: NodeId, _: Handle, data_only: bool) -> Reply<()> {
        let node = known(node)?;
        let _turn = self.turn_for(node, Load::FLUSH).await;
        self.fs.fsync(node, data_only).await.map_err(errno)
    }

    async fn opendir(&self, by: Caller, node: NodeId, open: Open) -> Reply<Opened> {
        self.open(by, node, open).await
    }

    async fn readdir(
        &self,
        _: Caller,
        node: NodeId,
        read: Read,
        entries: &mut Entries,
    ) -> Reply<()> {
        let (dir, attributes) = (known(node)?, entries.wants_attributes());
        let flags = ListFlags { attributes, no_atime: read.flags & O_NOATIME != 0 };
        let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
            let plain = DirEntry {
                ino: entry.node.raw(),
                cookie: entry.cookie,
                mode: entry.kind.mode_bits(),
                name: entry.name,
            };
            match entry.attr {
                Some(attr) => {
                    let found = copyhold_fs::Entry { node: entry.node, attr };
                    entries.push_plus(&self.named(dir, entry.name, &found), plain)
                }
                None => entries.push(plain),
            }
        };
        let listed = self.fs.list(dir, read.offset, flags, &mut take).await;
        self.shedder.look_at(&self.fs, self.notifier.get());
        listed.map_err(errno)
    }

    async fn releasedir(&self, by: Caller, node: NodeId, release: Release) -> Reply<()> {
        self.release(by, node, release).await
    }

    async fn fsyncdir(&self, _: Caller, node: NodeId, _: Handle, _: bool) -> Reply<()> {
        let node = known(node)?;
        let _turn = self.turn_for(node, Load::FLUSH).await;
        self.fs.fsyncdir(node).await.map_err(errno)
    }

    async fn statfs(&self, _: Caller, node: NodeId) -> Reply<Statfs> {
        let found = self.fs.statfs_of(known(node)?);
        Ok(Statfs {
            blocks: found.blocks,
            free: found.blocks_free,
            available: found.blocks_available,
            files: found.files,
            files_free: found.files_free,
            bsize: found.block_bytes,
            frsize: found.block_bytes,
            name_max: found.name_max,
        })
    }

    async fn syncfs(&self, _: Caller) -> Reply<()> {
        self.fs.sync().await.map_err(errno)
    }

    async fn setxattr(&self, by: Caller, node: NodeId, set: SetXattr<'_>) -> Reply<()> {
        let how = match set.flags {
            0 => XattrSet::Any,
            XATTR_CREATE => XattrSet::Create,
            XATTR_REPLACE => XattrSet::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let (caller, node) = (judged(by), known(node)?);
        if set.name == control::CHECKED.as_bytes() {
            let is_valid = self.tokens.make_writable(&**self.fs.pool().runtime(), node, set.value);
            return if is_valid { Ok(()) } else { Err(Errno::EKEYEXPIRED) };
        }
        if set.name == control::CHECKSUM.as_bytes() {
            return Box::pin(checksum_modes::set(&self.fs, self.rules.ids(by), node, set.value))
                .await;
        }
        let _turn = self.turn(node, set.value.len()).await;
        let done = self.fs.set_xattr(&caller, node, set.name, set.value, how, set.kill_sgid).await;
        done.map_err(errno)
    }

    async fn getxattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        let (node, _turn) = self.enter(node, 0).await?;
        if name == control::CHECKSUM.as_bytes() {
            return Box::pin(checksum_modes::get(&self.fs, node)).await;
        }
        if name == control::CHECKSUM_IN_EFFECT.as_bytes() {
            return Box::pin(checksum_modes::get_in_effect(&self.fs, node)).await;
        }
        self.fs.get_xattr(node, name).await.map_err(errno)
    }

    async fn listxattr(&self, _: Caller, node: NodeId) -> Reply<Vec<u8>> {
        let (node, _turn) = self.enter(node, 0).await?;
        self.fs.list_xattr(node).await.map_err(errno)
    }

    async fn removexattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<()> {
        let (node, _turn) = self.enter(node, 0).await?;
        self.fs.remove_xattr(node, name).await.map_err(errno)
    }

    async fn access(&self, by: Caller, node: NodeId, mask: u32) -> Reply<()> {
        let caller = self.rules.ids(by).ok_or(Errno::EACCES)?;
        self.fs.access(&caller, known(node)?, mask).await.map_err(errno)
    }

    fn fallocate(
        &self,
        by: Caller,
        node: NodeId,
        range: Fallocate,
    ) -> impl Future<Output = Reply<()>> {
        self.allocate(by, node, range)
    }

    async fn lseek(
        &self,
        _: Caller,
        node: NodeId,
        seek: copyhold_fuse::protocol::Seek,
    ) -> Reply<u64> {
        let whence = match seek.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let (fs, pages, notifier) = (&*self.fs, &self.pages, self.notifier.get());
        let (node, from) = (known(node)?, seek.offset);
        let request = SeekRequest { fs, pages, notifier, node, from, whence };
        Box::pin(request.resolve()).await.map_err(errno)
    }

    fn copy_range(
        &self,
        by: Caller,
        node: NodeId,
        copy: CopyRange,
    ) -> impl Future<Output = Reply<u64>> {
        self.copy(by, node, copy)
    }

    async fn ioctl(&self, by: Caller, node: NodeId, ioctl: Ioctl<'_>) -> Reply<IoctlReply> {
        if ioctl.command == control::TENANTS.number() {
            return Box::pin(self.ask_tenants(by, node, &ioctl)).await;
        }
        let on = known(node)?;
        let answer =
            Box::pin(ioctls::answer(&self.fs, &self.describe, self.rules, by, on, &ioctl)).await?;
        if ioctl.command == ioctls::SHUTDOWN {
            self.told_to_stop.store(true, Ordering::Release);
        }
        if ioctls::changes_attributes(ioctl.command) {
            self.forget_attributes(node);
        }
        Ok(answer)
    }
}
