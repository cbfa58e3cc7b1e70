//! The filesystem as the kernel's operations: `fs` on one side, `fuse` on the other.
//!
//! Each method of `operations` turns a request's values into the engine's and the answer back;
//! nothing is decided here but decisions that only a mount can make: how long the kernel may
//! believe an answer (for long: it is the only way to change anything), and that file locks are
//! the kernel's own, since all their owners come through it.
//!
//! `content` has the changes of content, `convert` translates values, `ioctls` answers ioctl(2),
//! `tenants` answers questions about subvolumes and quotas, `tokens` keeps the proofs that these
//! need, and `turns` keeps the requests of one tenant from those of others. Callers that the
//! kernel does not name are identified by `who`. The others send notifications to the kernel:
//! `forget` drops names and attributes that changed without it, `pages` drops cached pages
//! (`underway` delays that behind READs and WRITEs of them), `holes` has dirty pages written back
//! before a hole is reported, and `shed` makes the kernel forget inodes, and `prune` names that
//! do not exist. Tests have a small `kernel` with pages before all of it.

mod checksum_modes;
mod content;
mod convert;
mod forget;
mod holes;
mod ioctls;
#[cfg(test)]
mod kernel;
mod operations;
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

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use copyhold_fs::{
    Absent, Attr, FileKind, Filesystem, FsError, NodeId as FsNode, SubvolumeCalls, owed_delay,
};
use copyhold_fuse::protocol::{
    AttrReply, Caller, Entry, Ids, Ioctl, IoctlReply, Lookup, NodeId, Settings,
};
use copyhold_fuse::{Errno, Notifier, Reply, Share};
use copyhold_types::SubvolId;

use convert::{ATTRIBUTES_VALID, known};
use pages::Pages;
use prune::Pruner;
use shed::Shedder;
use tenants::Terms;
use tokens::Tokens;
use turns::{Load, Turn, Turns};

pub(crate) use ioctls::Describe;
pub(crate) use rules::Rules;
pub(crate) use who::sees_callers;

use crate::errno::errno;

/// setuid and setgid.
const SET_ID: u32 = 0o6000;

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

impl Adapter {
    pub(crate) fn new(fs: Arc<Filesystem>, describe: Describe, rules: Rules) -> Adapter {
        let (notifier, shedder, pages) = (OnceLock::new(), Shedder::default(), Pages::default());
        let (told_to_stop, closed) = (AtomicBool::new(false), OnceLock::new());
        let tells_births = true;
        fs.delays().wait_in_front_end();
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

    /// How long the kernel may believe these attributes (PRUNE-P4).
    fn validity(&self, attr: &Attr) -> Duration {
        let each_path_asks =
            attr.kind == FileKind::Directory && prune::is_short_for(&self.fs, attr.node.subvol);
        if each_path_asks { Duration::ZERO } else { ATTRIBUTES_VALID }
    }

    fn answer(&self, attr: &Attr) -> AttrReply {
        convert::answer(attr, self.validity(attr))
    }

    fn entry(&self, entry: &copyhold_fs::Entry) -> Entry {
        convert::found(entry, self.validity(&entry.attr))
    }

    /// An entry that the kernel will hold.
    fn held(&self, entry: &copyhold_fs::Entry) -> Entry {
        self.shedder.look_at(&self.fs, self.notifier.get());
        self.entry(entry)
    }

    /// The entry of a name without a look-up (PRUNE-P3).
    fn named(&self, parent: FsNode, name: &[u8], entry: &copyhold_fs::Entry) -> Entry {
        let mut named = self.entry(entry);
        if self.pruner.flights.has(parent, name) {
            named.entry_valid = Duration::ZERO;
        }
        named
    }

    /// The entry of a name that was made now.
    fn made(&self, by: Caller, parent: FsNode, name: &[u8], entry: &copyhold_fs::Entry) -> Entry {
        // If the call has looked the name up, that name is not one that does not exist.
        self.pruner.debts.take(by.pid, parent.subvol);
        self.shedder.look_at(&self.fs, self.notifier.get());
        self.named(parent, name, entry)
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

    fn prune(&self) {
        self.pruner.look_at(&self.fs, self.notifier.get());
    }

    fn absent(&self, by: Caller, parent: FsNode, absent: Absent) -> Lookup {
        self.prune();
        if absent.is_over {
            self.pruner.debts.note(by.pid, parent.subvol);
            // The next path is to request them (PRUNE-P4).
            self.forget_attributes(NodeId(parent.raw()));
        }
        Lookup::Absent { valid: absent.valid }
    }

    /// To be called behind a change that has left a name that does not exist. The kernel has no
    /// attributes of the directory then.
    fn left(&self, thread: u32, parent: FsNode) {
        self.prune();
        if prune::is_over(&self.fs, parent.subvol) {
            self.pruner.debts.note(thread, parent.subvol);
        }
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

    async fn attributes(&self, by: Caller, node: NodeId) -> Reply<AttrReply> {
        let node = known(node)?;
        let mut attr = self.fs.getattr(node).await.map_err(errno)?;
        let is_dir = attr.kind == FileKind::Directory;
        if is_dir && self.fs.names().is_short() && self.pruner.debts.take(by.pid, node.subvol) {
            Box::pin(self.pruner.hold(&self.fs, node)).await;
            attr = self.fs.getattr(node).await.map_err(errno)?;
        }
        Ok(self.answer(&attr))
    }

    /// Waits until a request of this node's tenant may work that moves so many bytes.
    fn turn(&self, node: FsNode, bytes: usize) -> impl Future<Output = Turn> {
        self.turn_for(node, Load::of(bytes))
    }

    fn turn_for(&self, node: FsNode, load: Load) -> impl Future<Output = Turn> {
        let share = move || self.share_of(node.subvol);
        self.turns.take(&**self.fs.pool().runtime(), node.subvol, share, load)
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

    /// Ends a turn, and waits behind it as [`Self::delay`] does.
    async fn end_turn_delayed(&self, turn: Turn, node: FsNode) {
        drop(turn);
        self.delay(node).await;
    }

    /// Waits as long as requests of this node's group owe because of its limits. No turn is held
    /// meanwhile: a flush or a removal of the same tenant does not stand behind it (TURN-Q5).
    async fn delay(&self, node: FsNode) {
        if let Some(owed) = owed_delay(&self.fs, node.subvol) {
            Box::pin(owed).await;
        }
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
        self.left(by.pid, parent);
        Ok(())
    }
}
