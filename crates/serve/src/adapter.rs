//! The filesystem as the kernel's operations: `fs` on one side, `fuse` on the other.
//!
//! Each method turns a request's values into the engine's and the answer back; nothing is decided
//! here but decisions that only a mount can make: how long the kernel may believe an answer (for
//! long: it is the only way to change anything), and that file locks are the kernel's own, since
//! all their owners come through it.
//!
//! `convert` translates values, `ioctls` answers ioctl(2), `tenants` answers questions about
//! subvolumes and quotas, `tokens` keeps the proofs that these need, and `turns` keeps the requests
//! of one tenant from those of others. Callers that the kernel does not name are identified by
//! `who`. The others send notifications to the kernel: `forget` drops names and attributes that
//! changed without it, `pages` drops cached pages (`underway` delays that behind READs and WRITEs
//! of them), `holes` has dirty pages written back before a hole is reported, and `shed` makes the
//! kernel forget inodes, and `prune` names that do not exist.
//! Tests have a small `kernel` with pages before all of it.

mod convert;
mod forget;
mod holes;
mod ioctls;
#[cfg(test)]
mod kernel;
mod pages;
mod prune;
mod rules;
mod shed;
mod tenants;
#[cfg(test)]
mod tests;
mod tokens;
mod turns;
mod underway;
mod who;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use copyhold_fs::{
    Absent, FallocateMode, FileKind, Filesystem, FsError, ListFlags, Looked, NodeId as FsNode,
    ReadFlags, RenameFlags, Seek, SubvolumeCalls, Uses, WriteFlags, XattrSet,
};
use copyhold_fuse::protocol::flags::fopen;
use copyhold_fuse::protocol::{
    AttrReply, Caller, CopyRange, Data, DirEntry, Entries, Entry, Fallocate, Handle, Ids, Ioctl,
    IoctlReply, LockOwner, Lookup, NewNode, NodeId, Open, Opened, Read, Release, Rename, SetAttr,
    SetXattr, Settings, Statfs, Write,
};
use copyhold_fuse::{Errno, Notifier, Operations, Payload, Reply, Share};
use copyhold_memory::{MemoryCharge, MemoryClass};
use copyhold_types::SubvolId;

use convert::{answer, file_mode, found, judged, known, maker, set_attr, to_open};
use holes::SeekRequest;
use pages::Pages;
use prune::Pruner;
use shed::Shedder;
use tenants::Terms;
use tokens::Tokens;
use turns::{Turn, Turns};

pub(crate) use ioctls::Describe;
pub(crate) use rules::Rules;
pub(crate) use who::sees_callers;

use crate::control;
use crate::errno::errno;

const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const FALLOC_KEEP_SIZE: u32 = 0x01;
const FALLOC_PUNCH_HOLE: u32 = 0x02;
const FALLOC_ZERO_RANGE: u32 = 0x10;
const O_EXCL: u32 = 0o200;
/// Without the bit of O_DIRECTORY, which is a part of it in programs.
const O_TMPFILE: u32 = 0o20_000_000;
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
const O_NOATIME: u32 = rustix::fs::OFlags::NOATIME.bits();
/// setuid and setgid.
const SET_ID: u32 = 0o6000;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// A caller that is neither root nor in any group.
const STRANGER: copyhold_fs::Caller = copyhold_fs::Caller::new(u32::MAX, u32::MAX, 0);

/// A filesystem being served.
pub(crate) struct Adapter {
    fs: Arc<Filesystem>,
    describe: Describe,
    rules: Rules,
    tells_births: bool,
    /// Known once the mount is being served.
    notifier: OnceLock<Notifier>,
    shedder: Shedder,
    pruner: Pruner,
    pages: Pages,
    tokens: Tokens,
    turns: Turns,
    /// A program has told the filesystem to go down (GOINGDOWN).
    told_to_stop: AtomicBool,
    /// The result of closing the pool, behind the end of the session.
    closed: OnceLock<Result<(), FsError>>,
}

/// How the kernel is to treat this mount.
pub(crate) fn settings(writeback_cache: bool) -> Settings {
    Settings { locks: false, writeback_cache, file_handles: false, ..Settings::default() }
}

/// Data of so many bytes is kept with its buffer; less is copied where it belongs.
const KEEP_BYTES: usize = 64 << 10;

/// An open for direct I/O has the kernel drop its cache of the file. Each direct write would have
/// to, and one that may not wait is retried many times before the kernel stops. FLUSH comes at a
/// close only if there may be something to do then (`Filesystem::flush`).
fn opened(open: &Open, flush: bool) -> Opened {
    let mut flags = fopen::CACHE_DIR | fopen::PARALLEL_DIRECT_WRITES;
    if open.flags & O_DIRECT == 0 {
        flags |= fopen::KEEP_CACHE;
    }
    if !flush {
        flags |= fopen::NOFLUSH;
    }
    Opened { handle: Handle(0), flags }
}

impl Adapter {
    pub(crate) fn new(fs: Arc<Filesystem>, describe: Describe, rules: Rules) -> Adapter {
        let (notifier, shedder, pages) = (OnceLock::new(), Shedder::default(), Pages::default());
        let (told_to_stop, closed) = (AtomicBool::new(false), OnceLock::new());
        let tells_births = true;
        Adapter {
            fs,
            describe,
            rules,
            tells_births,
            notifier,
            shedder,
            pruner: Pruner::default(),
            pages,
            tokens: Tokens::default(),
            turns: Turns::default(),
            told_to_stop,
            closed,
        }
    }

    /// Whether it knows when files were made. If not, the kernel soon stops asking for that: a
    /// request for each file whose time of birth a program reads.
    pub(crate) fn telling_births(self, tells_births: bool) -> Adapter {
        Adapter { tells_births, ..self }
    }

    /// The way in which the kernel is notified of changes behind its back.
    pub(crate) fn notify_through(&self, notifier: Notifier) {
        self.fs.names().keep_for_front_end();
        let _already = self.notifier.set(notifier);
    }

    /// The result of closing the pool, once the session has ended.
    pub(crate) fn closed(&self) -> Result<(), FsError> {
        self.closed.get().cloned().unwrap_or(Ok(()))
    }

    /// An entry that the kernel will hold.
    fn held(&self, entry: &copyhold_fs::Entry) -> Entry {
        self.shedder.look_at(&self.fs, self.notifier.get());
        found(entry)
    }

    /// The entry of a name that was made now (PRUNE-P3).
    fn made(&self, parent: FsNode, name: &[u8], entry: &copyhold_fs::Entry) -> Entry {
        let mut held = self.held(entry);
        if self.pruner.flights.has(parent, name) {
            held.entry_valid = Duration::ZERO;
        }
        held
    }

    /// The answer to a look-up that has found this; see PRUNE-P3.
    async fn found(
        &self,
        parent: FsNode,
        name: &[u8],
        entry: &copyhold_fs::Entry,
    ) -> Reply<Lookup> {
        if !self.pruner.flights.has(parent, name) {
            return Ok(Lookup::Found(self.held(entry)));
        }
        self.fs.forget(entry.node, 1);
        Box::pin(self.pruner.flights.wait(self.fs.pool().runtime(), parent, name)).await;
        Err(Errno::ESTALE)
    }

    /// To be called when there may be more names that do not exist.
    fn prune(&self) {
        self.pruner.look_at(&self.fs, self.notifier.get());
    }

    fn absent(&self, parent: FsNode, absent: Absent) -> Lookup {
        self.prune();
        if absent.is_over {
            // The next path is to request them (PRUNE-P4).
            self.forget_attributes(NodeId(parent.raw()));
        }
        Lookup::Absent { valid: absent.valid }
    }

    /// The caller of a change of content, and whether the change removes privileges of the file.
    /// The kernel removes most of them itself, by a SETATTR without values; it leaves setgid
    /// without group-execute permission, which a caller outside the group must not keep. An
    /// unidentified caller is in no group.
    async fn writer(&self, by: Caller, node: FsNode) -> Reply<(copyhold_fs::Caller, bool)> {
        let has_any = self.fs.getattr(node).await.map_err(errno)?.mode & SET_ID != 0;
        let caller = if has_any { self.rules.ids(by).unwrap_or(STRANGER) } else { judged(by) };
        let takes = has_any && !caller.is_privileged();
        Ok((caller, takes))
    }

    /// The caller of a rename from one subvolume to another: an owner by the ids of the request
    /// (CALLER-D2), unless it manages the pool.
    fn mover(&self, by: Caller) -> copyhold_fs::Caller {
        let is_administrator = self.rules.privileges(self.rules.who(by));
        let by_ids = |ids: Ids| copyhold_fs::Caller::new(ids.uid, ids.gid, 0);
        copyhold_fs::Caller { is_administrator, ..by.ids.map_or(STRANGER, by_ids) }
    }

    /// The kernel would continue to use its cached attributes (6.18): a mode, and its permissions.
    fn forget_attributes(&self, node: NodeId) {
        if let Some(notifier) = self.notifier.get() {
            // If the kernel cannot be notified, its attributes are old for a minute.
            let _ = notifier.forget_attributes(node);
        }
    }

    async fn attributes(&self, node: NodeId) -> Reply<AttrReply> {
        let node = known(node)?;
        let attr = self.fs.getattr(node).await.map_err(errno)?;
        if self.fs.names().is_short() && attr.kind == FileKind::Directory {
            return Box::pin(self.attributes_when_short(node)).await;
        }
        Ok(answer(&attr))
    }

    /// Those of a directory while entries for names are scarce (PRUNE-P4).
    async fn attributes_when_short(&self, dir: FsNode) -> Reply<AttrReply> {
        let each_path_asks = self.pruner.hold(&self.fs, dir).await;
        let attr = answer(&self.fs.getattr(dir).await.map_err(errno)?);
        Ok(if each_path_asks { AttrReply { valid: Duration::ZERO, ..attr } } else { attr })
    }

    /// Waits until a request of this node's tenant may work that moves so many bytes.
    fn turn(&self, node: FsNode, bytes: usize) -> impl Future<Output = Turn> {
        let share = move || self.share_of(node.subvol);
        self.turns.take(&**self.fs.pool().runtime(), node.subvol, share, bytes)
    }

    /// The tenant of a subvolume, and its weight.
    fn share_of(&self, subvol: SubvolId) -> Share {
        let volumes = self.fs.volumes();
        let tenant = copyhold_volume::tenant_of(volumes, subvol);
        let group = volumes.subvol(tenant);
        let weight = group.map_or(Share::default().weight, |one| one.owner().limits().weight);
        Share { tenant: tenant.0.into(), weight }
    }

    /// The node of a request, and its turn: see [`Self::turn`].
    async fn enter(&self, node: NodeId, bytes: usize) -> Reply<(FsNode, Turn)> {
        let node = known(node)?;
        Ok((node, self.turn(node, bytes).await))
    }

    fn terms(&self) -> Terms<'_> {
        let rt = self.fs.pool().runtime();
        Terms { rules: self.rules, tokens: &self.tokens, rt: &**rt }
    }

    async fn ask_tenants(&self, by: Caller, node: NodeId, ioctl: &Ioctl<'_>) -> Reply<IoctlReply> {
        let (on, room) = (known(node)?, ioctl.output_size as usize);
        let who = self.rules.who(by);
        let answered = tenants::answer(&self.fs, self.terms(), who, on, ioctl.input, room).await;
        self.kernel_forgets(answered.changed).await;
        Ok(IoctlReply { result: 0, output: answered.text })
    }

    async fn kernel_forgets(&self, changed: tenants::Changed) {
        if let Some(notifier) = self.notifier.get().filter(|_| changed != Default::default()) {
            if let Some(subvol) = changed.names {
                self.pruner.forget_all(&self.fs, notifier, subvol).await;
            }
            let flights = &self.pruner.flights;
            for (parent, name) in &changed.entries {
                // A subvolume may have this name now (PRUNE-P3).
                flights.wait(self.fs.pool().runtime(), *parent, name).await;
            }
            forget::changed(notifier, &self.pages, changed).await;
        }
    }

    /// An empty subvolume goes as a directory does, if the caller may delete subvolumes.
    async fn remove_subvolume(&self, by: Caller, parent: FsNode, name: &[u8]) -> Reply<()> {
        let right = self.rules.right(self.rules.who(by), false);
        let right = right.map_err(|refusal| Errno::named(&refusal.code).unwrap_or(Errno::EIO))?;
        let calls = SubvolumeCalls::new(&self.fs, right);
        let deleted = calls.remove_empty(parent, name).await.map_err(errno)?;
        // The entry it forgets itself, having been asked to remove it.
        self.kernel_forgets(tenants::Changed { stale: deleted.stale, ..Default::default() }).await;
        Ok(())
    }
}

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

    async fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Lookup> {
        let parent = known(parent)?;
        let looked_up = match name {
            b"." => self.fs.lookup_node(parent).await.map(Looked::Found),
            _ => self.fs.look(parent, name).await,
        };
        match looked_up {
            Ok(Looked::Found(entry)) => self.found(parent, name, &entry).await,
            Ok(Looked::Absent(absent)) => Ok(self.absent(parent, absent)),
            Err(error) => Err(errno(error)),
        }
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        self.attributes(node).await
    }

    async fn statx(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        if !self.tells_births {
            return Err(Errno::ENOSYS);
        }
        self.attributes(node).await
    }

    async fn setattr(&self, by: Caller, node: NodeId, set: SetAttr) -> Reply<AttrReply> {
        let (node, mut set) = (known(node)?, set_attr(&set));
        // O_TRUNC comes behind the OPEN, and names no descriptor: like truncate(2) of a file that
        // is open.
        set.empties &= self.fs.uses(node).has(Uses::WRITER);
        let _turn = self.turn(node, 0).await;
        let changed = self.fs.setattr(&judged(by), node, &set).await;
        changed.map(|attr| answer(&attr)).map_err(errno)
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
        let (parent, _turn) = self.enter(parent, target.len()).await?;
        let made = self.fs.symlink(&caller, parent, name, target).await;
        made.map(|entry| self.made(parent, name, &entry)).map_err(errno)
    }

    async fn mknod(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let caller = maker(by, Some(&new))?;
        let (parent, _turn) = self.enter(parent, 0).await?;
        let made = self.fs.mknod(&caller, parent, name, new.mode, new.rdev).await;
        made.map(|entry| self.made(parent, name, &entry)).map_err(errno)
    }

    async fn mkdir(
        &self,
        by: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Reply<Entry> {
        let caller = maker(by, Some(&new))?;
        let (parent, _turn) = self.enter(parent, 0).await?;
        let made = self.fs.mkdir(&caller, parent, name, file_mode(&new)).await;
        made.map(|entry| self.made(parent, name, &entry)).map_err(errno)
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
        let (parent, _turn) = self.enter(parent, 0).await?;
        let made = self.fs.create(&caller, parent, name, mode, flags, exclusive).await;
        let (entry, is_new) = made.map_err(errno)?;
        Ok((self.made(parent, name, &entry), opened(&open, !is_new && flags.write)))
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
        let _turn = self.turn(parent, 0).await;
        // open(2) makes no file without a name but by this flag: without it the kernel has made
        // one for itself, and overlayfs does.
        let made = match open.flags & O_TMPFILE {
            0 => self.fs.tmpfile_for_copy_up(&caller, parent, mode).await,
            _ => self.fs.tmpfile(&caller, parent, mode).await,
        };
        made.map(|entry| (self.held(&entry), opened(&open, false))).map_err(errno)
    }

    async fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let (parent, _turn) = self.enter(parent, 0).await?;
        let removed = self.fs.unlink(parent, name).await;
        self.prune();
        removed.map_err(errno)
    }

    async fn rmdir(&self, by: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        let parent = known(parent)?;
        let turn = self.turn(parent, 0).await;
        let removed = self.fs.rmdir(parent, name).await;
        drop(turn);
        self.prune();
        match removed {
            Err(FsError::IsSubvolume(_)) => Box::pin(self.remove_subvolume(by, parent, name)).await,
            removed => removed.map_err(errno),
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
        let _turn = self.turn(from, 0).await;
        let renamed = self.fs.rename(&caller, from, rename.name, to, rename.new_name, flags).await;
        self.prune();
        renamed.map_err(errno)
    }

    async fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        let (node, parent) = (known(node)?, known(parent)?);
        let _turn = self.turn(parent, 0).await;
        let linked = self.fs.link(node, parent, name).await;
        linked.map(|entry| self.made(parent, name, &entry)).map_err(errno)
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

    async fn write(&self, _: Caller, node: NodeId, write: Write, data: &mut Payload) -> Reply<u32> {
        // The kernel has resolved O_APPEND: it may send the parts of one write in any order.
        // Write-back of its pages is accepted in full or refused: it asks for no count there. Of a
        // short count for a direct write, whose parts are under way together, it makes EIO.
        let is_direct = pages::is_direct(&write);
        let partial = !write.cached && !is_direct;
        let (kill_priv, accepted) = (write.kill_suidgid, write.cached);
        let flags = WriteFlags { kill_priv, append: false, partial, accepted };
        let (inode, length) = (node, data.bytes().len());
        let node = known(node)?;
        let range = pages::range(write.offset, write.size);
        let _transfer = (!is_direct).then(|| {
            self.fs.note_uses(node, Uses::CACHED);
            self.pages.transfer(inode, range.clone())
        });
        let turn = self.turn(node, length).await;
        let was_privileged = write.kill_suidgid
            && Box::pin(self.fs.getattr(node)).await.map_err(errno)?.mode & SET_ID != 0;
        let written = if length >= KEEP_BYTES {
            self.fs.write_buf(node, write.offset, data.take(), length, flags).await
        } else if partial {
            self.fs.write_some(node, write.offset, data.bytes(), flags).await
        } else {
            self.fs.write(node, write.offset, data.bytes(), flags).await.map(|()| length)
        };
        // TURN-Q2.
        drop(turn);
        if was_privileged {
            self.forget_attributes(inode);
        }
        let written = written.map(|bytes| bytes as u32).map_err(errno);
        if is_direct {
            self.pages.written(&self.fs, self.notifier.get(), node, range).await;
        }
        written
    }

    async fn flush(&self, _: Caller, node: NodeId, _: Handle, _: LockOwner) -> Reply<()> {
        Box::pin(self.fs.flush(known(node)?)).await.map_err(errno)
    }

    async fn release(&self, _: Caller, node: NodeId, _: Release) -> Reply<()> {
        self.fs.release(known(node)?);
        Ok(())
    }

    async fn fsync(&self, _: Caller, node: NodeId, _: Handle, data_only: bool) -> Reply<()> {
        let (node, _turn) = self.enter(node, 0).await?;
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
                    let mut found = found(&copyhold_fs::Entry { node: entry.node, attr });
                    // PRUNE-P3.
                    if self.pruner.flights.has(dir, entry.name) {
                        found.entry_valid = Duration::ZERO;
                    }
                    entries.push_plus(&found, plain)
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
        let (node, _turn) = self.enter(node, 0).await?;
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
        let _turn = self.turn(node, set.value.len()).await;
        let done = self.fs.set_xattr(&caller, node, set.name, set.value, how, set.kill_sgid).await;
        done.map_err(errno)
    }

    async fn getxattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        let (node, _turn) = self.enter(node, 0).await?;
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

    async fn fallocate(&self, by: Caller, inode: NodeId, range: Fallocate) -> Reply<()> {
        let keep_size = range.mode & FALLOC_KEEP_SIZE != 0;
        let mode = match range.mode & !FALLOC_KEEP_SIZE {
            0 => FallocateMode::Allocate { keep_size },
            FALLOC_PUNCH_HOLE => FallocateMode::Punch,
            FALLOC_ZERO_RANGE => FallocateMode::Zero { keep_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let node = known(inode)?;
        let (caller, was_privileged) = self.writer(by, node).await?;
        let turn = self.turn(node, range.length as usize).await;
        let done = self.fs.fallocate_by(&caller, node, range.offset, range.length, mode).await;
        drop(turn);
        if was_privileged {
            self.forget_attributes(inode);
        }
        done.map_err(errno)
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

    async fn copy_range(&self, by: Caller, node: NodeId, copy: CopyRange) -> Reply<u64> {
        let (from, to) = (known(node)?, known(copy.target)?);
        let (caller, was_privileged) = self.writer(by, to).await?;
        let ends = ((from, copy.offset), (to, copy.target_offset));
        let turn = self.turn(to, copy.length as usize).await;
        let copied = self.fs.copy_file_range_by(&caller, ends.0, ends.1, copy.length).await;
        drop(turn);
        if was_privileged {
            self.forget_attributes(copy.target);
        }
        copied.map_err(errno)
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
