//! The reaper works through a subvolume's lists in the background, in steps (R28): it removes
//! files without a name after the last reference to them, and cuts off leftover blocks behind the
//! end of a file (`leftovers`).
//!
//! The transaction that removes a file's last name adds an ORPHAN item; the transaction that
//! removes the last of its items removes the ORPHAN item too. So the next mount finds every orphan
//! of a crash.
//!
//! The reaper removes the first file at once; then it pauses, and removes files unlinked during
//! the pause in one batch. [`Filesystem::reaper_idle`] waits for no pause, and a removal that has
//! begun is finished even if its waiter is cancelled.
//!
//! A removal that fails, for lack of space or because a node cannot be read, is tried again: after
//! [`RETRY`], and after each try that leaves a failure, twice as long, up to about 100 seconds. A
//! pool that has stopped needs no further try. Where space is short, a step removes fewer items
//! (R28). A removal that finds no space even for one item is also tried again when a request waits
//! for the reaper and the figures of space have changed since (R22).

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_format::item::{EXTENT, Extent, ORPHAN, inode_key, orphan_key, truncate_key};
use copyhold_pool::{Figures, Tier, Transaction};
use copyhold_runtime::{FifoMutex, Rt, finishing};
use copyhold_sync::{Mutex, MutexGuard, of};
use copyhold_types::{Key, Nanos};
use copyhold_volume::{InodeChange, quota};
use event_listener::Event;
use futures_util::future::select;
use rustc_hash::FxHashSet;

use crate::file::WriteReason;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::promise::owe;
use crate::sabotage::Sabotage;
use crate::subvol::FILES;
use crate::{Filesystem, FsError, NodeId, Result};

/// Items that one transaction removes, at most.
const STEP: usize = 256;
/// Steps that find space, one after the other, before a small step is doubled: a step that finds
/// none has waited for commits and readers.
const STEPS_BEFORE_DOUBLING: usize = 16;

/// How long an unlinked file may wait for a batch.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a removal that has failed waits for the first further try, and how often that doubles.
const RETRY: Duration = Duration::from_millis(100);
const DOUBLINGS: u32 = 10;

/// How long after a file was last found without a name, but in use, the front end may still be
/// about to report its last forget.
const LATELY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Reaper {
    queue: Mutex<Queue, of::ReaperQueue>,
    /// Held while files of the queue are removed.
    working: FifoMutex,
    /// Ends the task's pause.
    hurry: Event,
}

#[derive(Default)]
struct Queue {
    nodes: BTreeSet<NodeId>,
    /// Their removal has failed.
    failed: BTreeSet<NodeId>,
    /// Their removal found no space, where the figures of space were these.
    short: BTreeSet<NodeId>,
    figures: Option<Figures>,
    /// Tries, one after the other, that have left some of them.
    tries: u32,
    /// A task will try them again.
    has_retry: bool,
    /// Files without a name that were found in use, until they are removed or get a name.
    in_use: FxHashSet<NodeId>,
    /// When the last of them was found so.
    found_in_use: Nanos,
    /// It runs, or pauses: either way it looks at the queue again.
    has_task: bool,
}

impl Queue {
    /// Whether a removal that found no space might find some now.
    fn may_fit(&self, now: Figures) -> bool {
        !self.short.is_empty() && self.figures != Some(now)
    }

    fn try_short_again(&mut self) {
        let short = std::mem::take(&mut self.short);
        self.nodes.extend(short);
    }
}

/// Items that the next step removes: fewer after a refusal, more after many steps.
struct Step {
    items: usize,
    done: usize,
}

impl Step {
    fn new() -> Step {
        Step { items: STEP, done: 0 }
    }

    /// A step of so many items, which may be none, found no space. Whether there is a smaller one.
    fn shrink(&mut self, items: usize) -> bool {
        *self = Step { items: items.div_ceil(4).max(1), done: 0 };
        items > 1
    }

    fn is_done(&mut self) {
        self.done += 1;
        if self.done == STEPS_BEFORE_DOUBLING {
            *self = Step { items: (2 * self.items).min(STEP), done: 0 };
        }
    }
}

impl Filesystem {
    /// Queues a file if it has no name and no references.
    pub(crate) fn reap_if_unused(self: &Arc<Self>, inode: &Inode) {
        let is_nameless = inode.state().is_nameless();
        if !is_nameless || self.writable().is_err() {
            return;
        }
        if self.inodes.is_held(inode.node) {
            let mut queue = self.reaper.queue.lock();
            queue.in_use.insert(inode.node);
            queue.found_in_use = self.rt.now();
        }
        // The last reference may have gone before the file was noted as in use.
        if !self.inodes.is_held(inode.node) {
            self.reap_later(inode.node);
        }
    }

    /// Whether a file that lost its last name lately is still in use, if only because the front end
    /// has not said yet that it is not.
    pub(crate) fn is_one_unlinked_lately(&self) -> bool {
        if self.breaks(Sabotage::AskUnderTheMap) {
            return self.inodes.any_state(InodeState::is_nameless);
        }
        let queue = self.reaper.queue.lock();
        let lately = queue.found_in_use + LATELY.as_nanos() as Nanos;
        !queue.in_use.is_empty() && self.rt.now() < lately
    }

    /// For a file that is removed, or has a name again.
    pub(crate) fn forget_in_use(&self, node: NodeId) {
        self.reaper.queue.lock().in_use.remove(&node);
    }

    pub(crate) fn reap_later(self: &Arc<Self>, node: NodeId) {
        let mut queue = self.reaper.queue.lock();
        queue.nodes.insert(node);
        if std::mem::replace(&mut queue.has_task, true) {
            return;
        }
        drop(queue);
        self.rt.spawn(Box::pin(reap_in_rounds(self.rt.clone(), Arc::downgrade(self))));
    }

    /// Files that wait for a batch are removed now, but this call does not wait.
    pub(crate) fn hurry_reaper(&self) {
        if self.reaper.queue.lock().has_task {
            self.reaper.hurry.notify(usize::MAX);
        }
    }

    /// At the end of a mount no references are left.
    pub(crate) fn orphans_are_closed(self: &Arc<Self>) {
        for inode in self.inodes.all() {
            let is_nameless = inode.state().is_nameless();
            if is_nameless {
                self.reap_later(inode.node);
            }
        }
    }

    /// Removes all files without a name and without references.
    pub async fn reaper_idle(self: &Arc<Self>) {
        if self.is_reaper_idle() {
            return;
        }
        let now = self.pool.space();
        {
            let mut queue = self.reaper.queue.lock();
            if queue.may_fit(now) {
                queue.try_short_again();
            }
        }
        let fs = self.clone();
        finishing(&self.rt, async move { fs.reap_queue().await }).await;
    }

    fn is_reaper_idle(&self) -> bool {
        let now = self.pool.space();
        let queue = self.reaper.queue.lock();
        let has_work = queue.may_fit(now) || !queue.nodes.is_empty();
        drop(queue);
        !has_work && self.reaper.working.try_lock().is_some()
    }

    /// Whether the removal of an unlinked file is under way or about to begin.
    pub(crate) fn is_reaping(&self) -> bool {
        self.is_one_unlinked_lately() || !self.is_reaper_idle()
    }

    async fn reap_queue(self: &Arc<Self>) {
        let _working = self.reaper.working.lock().await;
        let mut step = Step::new();
        loop {
            let before = self.pool.space();
            let Some(node) = self.reaper.queue.lock().nodes.pop_first() else { return };
            match self.reap(node, &mut step).await {
                // It is gone with its subvolume.
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => self.reap_again(node, &error, before),
            }
        }
    }

    /// Queues a file for the next try; `before`: the figures of space before the last one. If
    /// the pool may not be written, the next mount removes the file.
    fn reap_again(self: &Arc<Self>, node: NodeId, error: &FsError, before: Figures) {
        tracing::warn!(%node, %error, "removing an unlinked file failed");
        if self.writable().is_err() || self.pool_runs().is_err() || self.breaks(Sabotage::ReapOnce)
        {
            return;
        }
        let mut queue = self.reaper.queue.lock();
        if error.is_full() {
            queue.short.insert(node);
            queue.figures = Some(before);
        } else {
            queue.failed.insert(node);
        }
        if std::mem::replace(&mut queue.has_retry, true) {
            return;
        }
        let pause = RETRY * 2_u32.pow(queue.tries.min(DOUBLINGS));
        queue.tries += 1;
        drop(queue);
        self.rt.spawn(Box::pin(retry(self.rt.clone(), Arc::downgrade(self), pause)));
    }

    async fn reap(self: &Arc<Self>, node: NodeId, step: &mut Step) -> Result<()> {
        let inode = match self.inode(node).await {
            Ok(inode) => inode,
            Err(FsError::Stale) => {
                self.forget_in_use(node);
                return self.drop_list_items(node).await;
            }
            Err(error) => return Err(error),
        };
        if inode.state().item.nlink > 0 {
            return self.cut_now(&inode).await;
        }
        {
            let _map = inode.map.write().await;
            // The last user of the file queues it again; one may have come during the wait.
            if self.inodes.is_held(node) && !self.breaks(Sabotage::ReplayInUse) {
                return Ok(());
            }
            let state = inode.state();
            if state.item.nlink > 0 || state.gone {
                return Ok(());
            }
            self.end_inode(&inode, state);
        }
        let removed = self.remove_items(&inode, step).await;
        self.inodes.remove(node);
        removed
    }

    /// Removes the extents behind a pending cut.
    async fn cut_now(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        if inode.state().data.cut.size().is_none() {
            return Ok(());
        }
        self.write_through(inode, WriteReason::UnderSharedLock).await
    }

    /// Holders of the file find it gone, and its dirty blocks are dropped.
    pub(crate) fn end_inode(&self, inode: &InodeRef, mut state: MutexGuard<'_, InodeState>) {
        let was_nameless = state.is_nameless();
        state.gone = true;
        let forgotten = state.data.drop_blocks(0..u64::MAX);
        state.data.drop_room();
        // Its size, its times and a pending cut are dropped, too: nothing would ever log them.
        state.data.change_is_logged(true);
        state.data.cut_is_logged();
        drop(state);
        if was_nameless {
            self.forget_in_use(inode.node);
        }
        self.flusher.room.forget(inode, forgotten);
        self.unlist_if_clean(inode);
    }

    /// Removes every item of the file, its inode and place on the lists last.
    async fn remove_items(&self, inode: &InodeRef, step: &mut Step) -> Result<()> {
        let ino = inode.node.ino;
        let mut from = Key::new(ino.0, copyhold_types::Kind(0), 0);
        let end = Key::new(ino.0 + 1, copyhold_types::Kind(0), 0);
        loop {
            let items = self.range(&inode.subvol, from, end, step.items).await?;
            let edits = items.len() + 3;
            let extents = items.iter().filter(|(key, _)| key.kind == EXTENT).count();
            let wanted = (edits, edits * KEY_BYTES);
            let credit = self.credit_to_release(&inode.subvol, Tier::FinishDelete, wanted, extents);
            let credit = match credit.await {
                Err(full) if full.is_full() && step.shrink(items.len()) => continue,
                credit => credit?,
            };
            let mut tx = Transaction::new();
            for (key, value) in &items {
                if key.kind == EXTENT {
                    let extent = Extent::parse(value)
                        .map_err(|source| self.damaged_record("an extent", inode.node, source))?;
                    tx.release(extent.pointer);
                }
                if *key != inode_key(ino) {
                    tx.delete(FILES, *key);
                }
            }
            let last = items.len() < step.items;
            step.is_done();
            if last {
                tx.delete(FILES, inode_key(ino));
                tx.delete(FILES, orphan_key(ino));
                tx.delete(FILES, truncate_key(ino));
            }
            let still = self.volumes.snapshot_guard_to_tidy(&inode.subvol.volume)?;
            let still = if last { still.with_inode(InodeChange::Gone(ino)) } else { still };
            let txg = still.apply(credit, tx, None)?;
            owe(self, &inode.subvol, quota::Request::for_edits(2, INODE_BYTES + KEY_BYTES));
            inode.state().last_txg = Some(txg);
            match items.last().and_then(|(key, _)| key.successor()) {
                Some(next) if !last => from = next,
                _ => return Ok(()),
            }
        }
    }

    /// Places on the lists of a file that does not exist.
    async fn drop_list_items(&self, node: NodeId) -> Result<()> {
        let subvol = self.subvol(node.subvol).await?;
        let credit = self.credit(Tier::FinishDelete, 2, 2 * KEY_BYTES).await?;
        let mut tx = Transaction::new();
        debug_assert_eq!(orphan_key(node.ino).kind, ORPHAN);
        tx.delete(FILES, orphan_key(node.ino));
        tx.delete(FILES, truncate_key(node.ino));
        self.volumes.snapshot_guard_to_tidy(&subvol.volume)?.apply(credit, tx, None)?;
        Ok(())
    }
}

/// The task: until nothing was unlinked for a pause. Does not keep the filesystem open meanwhile.
async fn reap_in_rounds(rt: Rt, fs: Weak<Filesystem>) {
    loop {
        let hurried = {
            let Some(fs) = fs.upgrade() else { return };
            let hurried = fs.reaper.hurry.listen();
            fs.reap_queue().await;
            hurried
        };
        select(rt.sleep(PAUSE), hurried).await;
        let Some(fs) = fs.upgrade() else { return };
        let mut queue = fs.reaper.queue.lock();
        if queue.nodes.is_empty() {
            queue.has_task = false;
            return;
        }
    }
}

/// The task that tries failed removals again.
async fn retry(rt: Rt, fs: Weak<Filesystem>, pause: Duration) {
    rt.sleep(pause).await;
    let Some(fs) = fs.upgrade() else { return };
    {
        let mut queue = fs.reaper.queue.lock();
        let failed = std::mem::take(&mut queue.failed);
        queue.nodes.extend(failed);
        queue.try_short_again();
        queue.has_retry = false;
    }
    fs.reap_queue().await;
    let mut queue = fs.reaper.queue.lock();
    if queue.failed.is_empty() && queue.short.is_empty() {
        queue.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of no items would end a removal that has not begun.
    #[test]
    fn a_step_removes_at_least_one_item() {
        for found in [0, 1, 2, 5, STEP] {
            let mut step = Step::new();
            assert_eq!(step.shrink(found), found > 1);
            assert!((1..=found.max(1)).contains(&step.items), "{found}: {}", step.items);
            let small = step.items;
            (0..STEPS_BEFORE_DOUBLING).for_each(|_| step.is_done());
            assert_eq!(step.items, (2 * small).min(STEP));
        }
    }
}
