//! The tasks that write dirty files.
//!
//! Problem.  A tenant that writes fast has dirty files for every task, and those of another one
//!           wait until a large file has been written. A file of a few blocks is not worth a
//!           request of its own.
//! Idea.     Tasks are shared out among the tenants with dirty files. A task that is one too many
//!           leaves between two batches, and its file waits again. Small files share a task.
//!
//! WRITERS-W1  A tenant has at most an equal part of the tasks, among the tenants with dirty files:
//!             one at least. While another tenant waits for the device (`foreground`), it has two
//!             at most. A task beyond that leaves before its next batch.
//! WRITERS-W2  Files that share a task have together a request of blocks at most. They are of any
//!             tenants that may have a task more: a large file is written by tasks that count for
//!             its own tenant.
//! WRITERS-W3  A file that was not begun keeps its age.
//!
//! No task waits for its tenant's part of unflushed edits: it would keep a place that others need.
//! Writers ask for it before their data is accepted (`throttle`).
//!
//! `flight` bounds the bytes that all tasks have at the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use copyhold_types::{Nanos, SubvolId};
use futures_util::future::join;

use crate::dirty_files::{DirtyFiles, TaskId};
use crate::flight::{Flying, Lane};
use crate::inode::InodeRef;
use crate::{Filesystem, FsError, NodeId, Result};

/// Tasks that write at the same time.
pub(crate) const WRITERS_MAX: usize = 8;
/// Tasks of one tenant while another one waits for the device.
pub(crate) const WRITERS_BESIDE: usize = 2;
/// Files with less than this much ready are written together with others: a request in all.
pub(crate) const GROUP_BLOCKS: usize = 256;
/// Pause after a failed write, before the next task may take the file.
const RETRY: Duration = Duration::from_millis(200);

/// Tasks that write.
#[derive(Default)]
pub(crate) struct Writers {
    pub(crate) all: usize,
    by_tenant: BTreeMap<SubvolId, usize>,
    /// Tasks so far.
    begun: u64,
}

/// A task that writes files. It counts for its tenant until it `has_left`.
pub(crate) struct WriterTask {
    id: TaskId,
    tenant: SubvolId,
    files: Vec<InodeRef>,
    has_left: AtomicBool,
    /// It has asked for room at the device.
    has_begun: AtomicBool,
}

impl Writers {
    fn of(&self, tenant: SubvolId) -> usize {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }

    /// The number of the task that begins next.
    fn next_id(&self) -> TaskId {
        TaskId(self.begun)
    }

    fn begin(&mut self, tenant: SubvolId) {
        self.all += 1;
        self.begun += 1;
        *self.by_tenant.entry(tenant).or_default() += 1;
    }

    fn end(&mut self, tenant: SubvolId) {
        self.all -= 1;
        let left = self.of(tenant) - 1;
        match left {
            0 => self.by_tenant.remove(&tenant),
            _ => self.by_tenant.insert(tenant, left),
        };
    }
}

/// The dirty files, and the tasks that write them.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) files: DirtyFiles,
    pub(crate) timer: bool,
    pub(crate) writers: Writers,
    pub(crate) ended: bool,
    /// Writers that wait for data to be written, by tenant.
    pub(crate) waiters: BTreeMap<SubvolId, usize>,
}

impl List {
    /// Whether one more task may write for this tenant, which may have `max`.
    fn may_begin(&self, tenant: SubvolId, max: usize) -> bool {
        !self.ended && self.writers.all < WRITERS_MAX && self.has_turn(tenant, max)
    }

    /// Whether the tenant has fewer tasks than it may have.
    fn has_turn(&self, tenant: SubvolId, max: usize) -> bool {
        self.writers.of(tenant) < self.part(max)
    }

    /// Tasks that each tenant may have, up to `max` (WRITERS-W1).
    fn part(&self, max: usize) -> usize {
        let by_tenant = &self.writers.by_tenant;
        let only_written = by_tenant.keys().filter(|tenant| !self.files.waits(**tenant)).count();
        let tenants = self.files.tenants_that_wait() + only_written;
        (WRITERS_MAX / tenants.max(1)).clamp(1, max)
    }
}

impl Filesystem {
    /// Starts writing files that have been dirty since `due` or longer, the oldest first.
    pub(crate) fn start_writers(self: &Arc<Self>, due: Nanos) {
        while let Some(task) = self.next_task(due, |_, _| true) {
            self.spawn_writer(task);
        }
    }

    /// Starts writing files of tenants whose writers wait (DIRTYROOM-D4).
    pub(crate) fn start_writers_waited_for(self: &Arc<Self>) {
        let waits = |list: &List, tenant| list.waiters.contains_key(&tenant);
        while let Some(task) = self.next_task(Nanos::MAX, waits) {
            self.spawn_writer(task);
        }
    }

    /// Starts to write the file's dirty blocks now, unless it is being written.
    pub(crate) fn start_writer(self: &Arc<Self>, node: NodeId) {
        let now = self.rt.now();
        let begun = {
            let mut list = self.flusher.list.lock();
            let tenant = list.files.tenant_of(node);
            let may = |tenant: &SubvolId| list.may_begin(*tenant, self.writers_max(*tenant, now));
            tenant.filter(may).and_then(|tenant| WriterTask::begin(&mut list, tenant, node, now))
        };
        if let Some(task) = begun {
            self.spawn_writer(task);
        }
    }

    /// The next task: for the file that has waited longest of the tenants that may have one more,
    /// and, while they are small, for those that have waited longest after it (WRITERS-W2); all of
    /// tenants that are `chosen`.
    fn next_task(
        &self,
        due: Nanos,
        chosen: impl Fn(&List, SubvolId) -> bool,
    ) -> Option<WriterTask> {
        let now = self.rt.now();
        let mut task = {
            let mut list = self.flusher.list.lock();
            let may = |tenant| {
                chosen(&list, tenant) && list.may_begin(tenant, self.writers_max(tenant, now))
            };
            let (tenant, node) = list.files.oldest(due, may)?;
            WriterTask::begin(&mut list, tenant, node, now)?
        };
        let mut blocks = task.files[0].state().data.ready();
        while task.files.len() < GROUP_BLOCKS {
            let next = {
                let list = self.flusher.list.lock();
                let has_turn = |of| list.has_turn(of, self.writers_max(of, now));
                let may = |of| of == task.tenant || (chosen(&list, of) && has_turn(of));
                list.files.oldest(due, may).and_then(|(_, node)| list.files.find(node))
            };
            // Its state comes before the list in the order of locks.
            let Some(inode) = next else { break };
            blocks += inode.state().data.ready();
            if blocks > GROUP_BLOCKS {
                break;
            }
            let begun = self.flusher.list.lock().files.begin(inode.node, now, task.id);
            task.files.extend(begun);
        }
        Some(task)
    }

    /// How many tasks may write for this tenant, as far as others wait for the device.
    fn writers_max(&self, tenant: SubvolId, now: Nanos) -> usize {
        match self.flusher.foreground.is_beside(tenant, now) {
            true => WRITERS_BESIDE,
            false => WRITERS_MAX,
        }
    }

    fn spawn_writer(self: &Arc<Self>, task: WriterTask) {
        let fs = self.clone();
        self.rt.spawn(Box::pin(async move {
            let mut result = match &task.files[..] {
                [inode] => task.write_alone(&fs, inode).await,
                files => fs.write_together(files, &task).await,
            };
            for inode in &task.files {
                result = result.and(fs.writes_end(inode).await);
            }
            match result {
                Ok(()) => fs.flusher.room.note_success(&task.files),
                Err(error) => fs.note_writer_failed(&task, error).await,
            }
            fs.writer_ended(task);
        }));
    }

    async fn note_writer_failed(&self, task: &WriterTask, error: FsError) {
        let node = task.files[0].node;
        tracing::warn!(%node, %error, "write-back failed; the data stays in memory");
        match self.pool_runs() {
            Ok(()) => self.rt.sleep(RETRY).await,
            // No retry helps a pool that has stopped.
            Err(_) => self.flusher.end(),
        }
        // A file that is gone with its subvolume is no failure.
        if !matches!(error, FsError::Stale) {
            self.flusher.room.note_failure(&task.files, &error);
        }
    }

    fn writer_ended(self: &Arc<Self>, task: WriterTask) {
        {
            let mut list = self.flusher.list.lock();
            if !task.has_left.load(Relaxed) {
                list.writers.end(task.tenant);
            }
            let has_begun = task.has_begun.load(Relaxed);
            let ended = |inode: &InodeRef| list.files.ended(inode.node, task.id, has_begun);
            task.files.iter().for_each(ended);
        }
        task.files.iter().for_each(|inode| self.unlist_if_clean(inode));
        if task.files.iter().any(|inode| inode.state().error.is_some()) {
            self.flusher.room.wake_all();
        } else if self.flusher.room.is_half_used() {
            self.start_writers(Nanos::MAX);
        } else {
            self.start_writers_waited_for();
        }
    }
}

impl WriterTask {
    /// A task that begins to write this file, counted for the tenant.
    fn begin(list: &mut List, tenant: SubvolId, node: NodeId, now: Nanos) -> Option<WriterTask> {
        let id = list.writers.next_id();
        let inode = list.files.begin(node, now, id)?;
        list.writers.begin(tenant);
        let no = || AtomicBool::new(false);
        Some(WriterTask { id, tenant, files: vec![inode], has_left: no(), has_begun: no() })
    }

    /// Writes all of the file that is dirty now, one batch being summed while another is being
    /// written; until the task leaves.
    async fn write_alone(&self, fs: &Arc<Filesystem>, inode: &InodeRef) -> Result<()> {
        let version = inode.state().data.version();
        let write = || async {
            while !self.leaves(fs) && self.write_batch(fs, inode, version).await? {}
            Ok(())
        };
        let (one, other) = join(write(), write()).await;
        one.and(other)
    }

    /// Writes all that is dirty of the file up to change number `version`.
    pub(crate) async fn write_out(
        &self,
        fs: &Arc<Filesystem>,
        inode: &InodeRef,
        version: u64,
    ) -> Result<()> {
        while self.write_batch(fs, inode, version).await? {}
        Ok(())
    }

    /// Writes one batch, when there is room for it at the device. Says whether there was one.
    async fn write_batch(
        &self,
        fs: &Arc<Filesystem>,
        inode: &InodeRef,
        version: u64,
    ) -> Result<bool> {
        self.has_begun.store(true, Relaxed);
        fs.write_batch(inode, version, false, self.lane()).await
    }

    /// Waits for room at the device for so many blocks, or fewer (FLIGHT-L1).
    pub(crate) async fn take_room(&self, fs: &Filesystem, blocks: usize) -> Flying {
        self.has_begun.store(true, Relaxed);
        self.lane().take_some(fs, blocks).await
    }

    pub(crate) fn lane(&self) -> Lane {
        Lane::Tasks(self.tenant)
    }

    /// Whether the task ends before its next batch (WRITERS-W1). It counts no longer then.
    fn leaves(&self, fs: &Filesystem) -> bool {
        if self.has_left.load(Relaxed) {
            return true;
        }
        let max = fs.writers_max(self.tenant, fs.rt.now());
        let mut list = fs.flusher.list.lock();
        let leaves = list.writers.of(self.tenant) > list.part(max);
        if leaves {
            list.writers.end(self.tenant);
            self.has_left.store(true, Relaxed);
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use copyhold_pool::{Limits, is_edit_part_used_up};
    use copyhold_runtime::{Rt, Runtime, SeededRuntime};

    use super::*;
    use crate::WriteFlags;
    use crate::foreground::note_wait;
    use crate::testing::{dirty_file, open, open_limited, tenant};

    const FILES: usize = 10;
    const LARGE: usize = GROUP_BLOCKS + 1;
    /// More than the tests write.
    const DIRTY_MAX: u64 = 1 << 30;

    /// A tenant with files, each of which has more than two batches of dirty stretches.
    async fn dirty_tenant(fs: &Arc<Filesystem>, name: &str) -> SubvolId {
        let subvol = tenant(fs, name).await;
        for n in 0..FILES {
            dirty_file(fs, subvol, &format!("file{n}"), 800).await;
        }
        subvol
    }

    fn writers(fs: &Filesystem) -> usize {
        fs.flusher.list.lock().writers.all
    }

    #[test]
    fn a_tenant_has_fewer_tasks_while_another_one_waits_for_the_device() {
        let rt = SeededRuntime::new(1);
        rt.block_on(async {
            let fs = open(&(rt.clone() as Rt), DIRTY_MAX).await;
            let subvol = dirty_tenant(&fs, "tenant").await;
            // Of the tenant itself, that is alone: it writes as fast as before.
            note_wait(&fs, subvol);
            fs.start_writers(Nanos::MAX);
            assert_eq!(writers(&fs), WRITERS_MAX);
            let before = fs.dirty_bytes();
            while fs.dirty_bytes() == before {
                rt.sleep(Duration::from_micros(10)).await;
            }
            assert_eq!(writers(&fs), WRITERS_MAX, "they continue");
            note_wait(&fs, SubvolId::ROOT);
            while writers(&fs) > WRITERS_BESIDE {
                rt.sleep(Duration::from_micros(10)).await;
            }
            assert!(fs.dirty_bytes() > before / 4, "a task has left before the end of its file");
            fs.start_writers(Nanos::MAX);
            assert_eq!(writers(&fs), WRITERS_BESIDE);
            // The note is old some day, and then tasks write the rest.
            while fs.dirty_bytes() > 0 {
                rt.sleep(Duration::from_secs(1)).await;
                assert!(writers(&fs) <= WRITERS_MAX);
                fs.start_writers(Nanos::MAX);
            }
            fs.close().await.unwrap();
        });
    }

    /// WRITERS-W1.
    #[test]
    fn tenants_with_dirty_files_have_equal_parts_of_the_tasks() {
        let rt = SeededRuntime::new(2);
        rt.block_on(async {
            let fs = open(&(rt.clone() as Rt), DIRTY_MAX).await;
            let first = dirty_tenant(&fs, "first").await;
            fs.start_writers(Nanos::MAX);
            let of = |tenant| fs.flusher.list.lock().writers.of(tenant);
            assert_eq!(of(first), WRITERS_MAX);
            let mut others = Vec::new();
            for name in ["second", "third"] {
                let tenant = tenant(&fs, name).await;
                dirty_file(&fs, tenant, "a", LARGE).await;
                others.push(tenant);
            }
            let before = fs.dirty_bytes();
            while others.iter().any(|tenant| of(*tenant) == 0) {
                rt.sleep(Duration::from_micros(10)).await;
                fs.start_writers(Nanos::MAX);
            }
            assert!(of(first) <= WRITERS_MAX - others.len());
            assert!(
                fs.dirty_bytes() > before / 2,
                "tasks have left before the ends of their files"
            );
            fs.close().await.unwrap();
        });
    }

    /// EDITS-E3: a task that waited for its tenant would keep a place that others need.
    #[test]
    fn a_task_writes_while_its_tenant_has_its_part_of_unflushed_edits() {
        let rt = SeededRuntime::new(4);
        rt.block_on(async {
            let limits = Limits { delta_bytes: 256 << 10, ..Limits::default() };
            let fs = open_limited(&(rt.clone() as Rt), DIRTY_MAX, limits).await;
            let subvol = tenant(&fs, "tenant").await;
            let owner = fs.volumes.subvol(subvol).unwrap().owner().clone();
            dirty_file(&fs, subvol, "dirty", LARGE).await;
            let mut made = 0;
            while !is_edit_part_used_up(&fs.pool, &owner) {
                made += 1;
                dirty_file(&fs, subvol, &format!("file{made}"), 0).await;
            }
            fs.start_writers(Nanos::MAX);
            while fs.flusher.flight.bytes_of_tasks() == 0 {
                rt.sleep(Duration::from_micros(1)).await;
            }
            assert!(is_edit_part_used_up(&fs.pool, &owner), "the task has waited for a flush");
            fs.close().await.unwrap();
        });
    }

    /// FLIGHT-L5.
    #[test]
    fn batches_that_wait_for_the_maps_of_their_files_have_no_room_at_the_device() {
        let rt = SeededRuntime::new(5);
        rt.block_on(async {
            let fs = open(&(rt.clone() as Rt), DIRTY_MAX).await;
            let of = tenant(&fs, "tenant").await;
            let mut files = Vec::new();
            // The first is an item of a few bytes: two share a task, and one has its own.
            for (name, blocks) in [("inline", 0), ("small", 1), ("large", LARGE)] {
                files.push(fs.inode(dirty_file(&fs, of, name, blocks).await).await.unwrap());
            }
            fs.write(files[0].node, 0, b"content", WriteFlags::default()).await.unwrap();
            let [inline, _, large] = &files[..] else { unreachable!() };
            let maps = (inline.map.write().await, large.map.write().await);
            fs.start_writers(Nanos::MAX);
            rt.sleep(Duration::from_secs(1)).await;
            let is_written = |inode: &InodeRef| inode.state().data.blocks.is_empty();
            let written = [0, 1, 2].map(|n| is_written(&files[n]));
            assert_eq!((written, writers(&fs)), ([false, true, false], 2));
            assert_eq!(fs.flusher.flight.bytes_of_tasks(), 0);
            drop(maps);
            fs.close().await.unwrap();
            assert!(files.iter().all(is_written));
        });
    }

    /// WRITERS-W2 and WRITERS-W3.
    #[test]
    fn a_large_file_is_written_in_its_turn_by_a_task_of_its_tenant() {
        let rt = SeededRuntime::new(3);
        rt.block_on(async {
            let fs = open(&(rt.clone() as Rt), DIRTY_MAX).await;
            let (one, two) = (tenant(&fs, "one").await, tenant(&fs, "two").await);
            let small = dirty_file(&fs, one, "small", 1).await;
            let smaller = dirty_file(&fs, two, "small", 1).await;
            let large = dirty_file(&fs, two, "large", LARGE).await;
            let last = dirty_file(&fs, one, "last", 1).await;
            let next = || {
                let task = fs.next_task(Nanos::MAX, |_, _| true).unwrap();
                (task.tenant, task.files.iter().map(|inode| inode.node).collect::<Vec<_>>())
            };
            assert_eq!(next(), (one, vec![small, smaller]));
            assert_eq!(next(), (two, vec![large]));
            assert_eq!(next(), (one, vec![last]));
            fs.close().await.unwrap();
        });
    }
}
