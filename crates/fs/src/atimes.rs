//! Access times that wait to be logged.
//!
//! Problem.  The first read of a file behind a change sets its access time. Logged at once, reading
//!           a tree would take a transaction for each file; kept until the file changes, every file
//!           that was ever read would stay in memory.
//! Idea.     The time waits, and goes out with the file's next change. A list names the inodes
//!           that wait. Sync logs all of them, and so does the background when the list is long:
//!           many inodes of one subvolume in a transaction.
//!
//! ATIME-A1  An inode whose time waits is on the list, or in the hands of the task that logs them.
//!           It stays in memory until it is logged, or could not be.
//! ATIME-A2  Those on the list are an eighth of the inodes there is room for, and those in
//!           a task's hands another one. Beyond, a read leaves no time.
//! ATIME-A3  Files of a read-only subvolume have the times that they had.
//! ATIME-A4  Times free nothing, and are not worth the space of transactions that do: on a full
//!           pool they are discarded (R21), and where their owner has no room under a limit. A
//!           reader of its files is often another tenant.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use copyhold_pool::{Tier, Transaction, expect_room};
use copyhold_runtime::{FifoMutex, finishing};
use copyhold_sync::{Mutex, of};
use copyhold_volume::quota::{self, Request};

use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::INODE_BYTES;
use crate::promise::Charge;
use crate::{Atime, FileFlags, Filesystem, FsError, NodeId, Options, Result};

/// Times that one transaction logs.
const STEP: usize = 32;
/// More than they add to tables, before they are flushed.
const STEP_BLOCKS: u64 = 16;

pub(crate) struct Atimes {
    waiting: Mutex<Waiting, of::AccessTimes>,
    /// Held while those are being logged that were on the list.
    logging: FifoMutex,
    max: usize,
}

#[derive(Default)]
struct Waiting {
    nodes: BTreeSet<NodeId>,
    has_task: bool,
}

impl Atimes {
    pub(crate) fn new(options: &Options) -> Atimes {
        let max = (options.inodes_max / 8).max(STEP);
        Atimes { waiting: Mutex::default(), logging: FifoMutex::default(), max }
    }
}

impl Filesystem {
    /// The file was read: sets its access time, as relatime has it.
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        if self.options.atime == Atime::Never || self.writable().is_err() {
            return;
        }
        let now = self.now();
        let mut state = inode.state();
        if inode.subvol.writable().is_err() {
            return;
        }
        let shown = state.shown;
        let stale = shown.atime <= shown.mtime
            || shown.atime <= shown.ctime
            || shown.atime.secs.saturating_add(24 * 3600) <= now.secs;
        if stale
            && shown.atime < now
            && !state.has_flag(FileFlags::NOATIME)
            && (state.atime_lazy || self.atime_waits(inode.node))
        {
            state.shown.atime = now;
            state.atime_lazy = true;
        }
    }

    /// Puts a file on the list, unless that is full (ATIME-A2).
    fn atime_waits(&self, node: NodeId) -> bool {
        let mut waiting = self.atimes.waiting.lock();
        let is_long = waiting.nodes.len() >= self.atimes.max / 2;
        if is_long && !std::mem::replace(&mut waiting.has_task, true) {
            self.rt.spawn(Box::pin(log_in_background(self.me.clone())));
        }
        let has_room = waiting.nodes.len() < self.atimes.max;
        if has_room {
            waiting.nodes.insert(node);
        }
        has_room
    }

    /// Logs the access times in the queue, and discards those that cannot be logged. A round that
    /// has begun ends even if its caller goes away: only the round knows these times (ATIME-A1).
    pub(crate) async fn log_atimes(self: &Arc<Self>) -> Result<()> {
        if self.all_atimes_are_logged().await {
            return Ok(());
        }
        let fs = self.clone();
        finishing(&self.rt, async move { fs.log_all_atimes().await }).await
    }

    /// None is on the list, or in the hands of a task.
    async fn all_atimes_are_logged(&self) -> bool {
        let _logging = self.atimes.logging.lock().await;
        self.atimes.waiting.lock().nodes.is_empty()
    }

    async fn log_all_atimes(&self) -> Result<()> {
        let _logging = self.atimes.logging.lock().await;
        let nodes: Vec<NodeId> =
            std::mem::take(&mut self.atimes.waiting.lock().nodes).into_iter().collect();
        let mut result = Ok(());
        for of_subvol in nodes.chunk_by(|one, next| one.subvol == next.subvol) {
            for some in of_subvol.chunks(STEP) {
                result = result.and(self.log_some_atimes(some).await);
            }
        }
        result
    }

    async fn log_some_atimes(&self, nodes: &[NodeId]) -> Result<()> {
        let inodes: Vec<InodeRef> =
            nodes.iter().filter_map(|&node| self.inodes.get(node)).collect();
        let logged = self.log_atimes_of(&inodes).await;
        if logged.is_err() {
            inodes.iter().for_each(|inode| inode.state().give_up_atime());
        }
        match logged {
            // A deleted or read-only file needs no access time.
            Err(FsError::Stale | FsError::ReadOnly { .. } | FsError::Quota(_)) => Ok(()),
            Err(refused) if refused.is_full() => Ok(()),
            logged => logged,
        }
    }

    /// All of one subvolume, by number.
    async fn log_atimes_of(&self, inodes: &[InodeRef]) -> Result<()> {
        let edits = inodes.len();
        let Some(first) = inodes.first() else { return Ok(()) };
        // Nothing is flushed for their sake.
        let wanted = Request::for_edits(edits, edits * INODE_BYTES);
        let owner = first.subvol.id();
        let hold = self.volumes.ledger().hold(owner, wanted, quota::Tier::Write)?;
        expect_room(&self.pool, STEP_BLOCKS, Tier::Write)?;
        let credit = self.credit(Tier::Write, edits, edits * INODE_BYTES).await?;
        self.put_atimes(inodes, Charge { credit, hold })
    }

    fn put_atimes(&self, inodes: &[InodeRef], charge: Charge) -> Result<()> {
        let Some(first) = inodes.first() else { return Ok(()) };
        first.subvol.expect_read_write()?;
        // By number, as all tasks with several locks do.
        let mut tx = Transaction::new();
        let mut states = Vec::with_capacity(inodes.len());
        for inode in inodes {
            let state = inode.state();
            if state.atime_lazy && !state.gone {
                self.put_inode(&mut tx, inode.node.ino, &state.next_item());
                states.push(state);
            }
        }
        if states.is_empty() {
            return Ok(());
        }
        let txg = self.apply(&first.subvol, charge, tx)?;
        for mut state in states {
            let item = state.next_item();
            state.logged(item, txg);
        }
        Ok(())
    }
}

impl InodeState {
    /// Callers see the logged access time again.
    fn give_up_atime(&mut self) {
        if std::mem::take(&mut self.atime_lazy) {
            self.shown.atime = self.item.atime;
        }
    }
}

async fn log_in_background(fs: Weak<Filesystem>) {
    let Some(fs) = fs.upgrade() else { return };
    if let Err(error) = fs.log_atimes().await {
        tracing::warn!(%error, "access times were not logged");
    }
    fs.atimes.waiting.lock().has_task = false;
}
