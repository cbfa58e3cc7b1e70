//! When dirty data is written, and how writers are kept within the limit.
//!
//! A file is on the list from its first dirty block until nothing of it is only in memory. It is
//! written when it is old, when much of it is dirty, when half of the limit is used: by a task of
//! its own, or together with others where little of each is dirty. So devices are busy long before
//! a writer has to wait, which it does at the limit.
//!
//! One timer runs while the list is not empty. Tasks hold the filesystem weakly: one that is
//! dropped ends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_memory::MemoryClass;
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Nanos, SubvolId};
use event_listener::{Event, IntoNotification};
use futures_util::future::join;

use crate::dirty_files::DirtyFiles;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::{Filesystem, FsError, NodeId, Options, Result};

/// Tasks that write at the same time.
const WRITERS_MAX: usize = 8;
/// Files with less than this much ready are written together with others: a request in all.
const GROUP_BLOCKS: usize = 256;
/// The timer looks this often in an interval.
const TICKS: u32 = 5;
/// Pause after a failed write, before the next writer may take the file.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct WritebackScheduler {
    /// Bytes of dirty blocks, taken ones included.
    bytes: AtomicU64,
    bytes_max: u64,
    file_bytes_start: u64,
    interval: Duration,
    list: Mutex<List, of::DirtyFiles>,
    /// How often blocks have left memory.
    progress: AtomicU64,
    room: Event,
}

#[derive(Default)]
struct List {
    files: DirtyFiles,
    timer: bool,
    writers: usize,
    ended: bool,
    /// How often a task has failed, and the last error.
    failures: u64,
    failure: Option<FsError>,
}

impl List {
    /// Counts one more task that writes, if there may be one.
    fn begin_writer(&mut self) -> bool {
        let may = !self.ended && self.writers < WRITERS_MAX;
        self.writers += usize::from(may);
        may
    }

    fn begin_oldest(&mut self, due: Nanos, now: Nanos) -> Option<InodeRef> {
        let node = self.files.oldest(due)?;
        self.files.begin(node, now)
    }
}

impl WritebackScheduler {
    pub(crate) fn new(options: &Options) -> WritebackScheduler {
        WritebackScheduler {
            bytes: AtomicU64::new(0),
            bytes_max: options.dirty_bytes_max.max(1 << 20),
            file_bytes_start: options.file_dirty_bytes_start,
            interval: options.writeback_interval,
            list: Mutex::new(List::default()),
            progress: AtomicU64::new(0),
            room: Event::new(),
        }
    }

    /// `blocks` more of a file are in memory.
    pub(crate) fn add(&self, inode: &Inode, blocks: usize) {
        let bytes = (blocks * BLOCK_BYTES) as u64;
        inode.owner().add(MemoryClass::Dirty, bytes as i64);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `blocks` of a file have left memory: as many waiting writers can continue, each with one. A
    /// waiter that does not use it lets another wait longer, until half of the limit is free for
    /// all.
    pub(crate) fn forget(&self, inode: &Inode, blocks: usize) {
        let bytes = (blocks * BLOCK_BYTES) as u64;
        inode.owner().add(MemoryClass::Dirty, -(bytes as i64));
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if blocks > 0 {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
        if before - bytes < self.bytes_max / 2 {
            self.wake_all();
        } else if blocks > 0 {
            self.room.notify(blocks.additional());
        }
    }

    /// Waiters for room look again whether there will be any.
    pub(crate) fn wake_all(&self) {
        self.room.notify(usize::MAX);
    }

    /// No more background work.
    pub(crate) fn end(&self) {
        let mut list = self.list.lock();
        list.ended = true;
        list.files = DirtyFiles::default();
        drop(list);
        self.wake_all();
    }

    /// The files that a failed task leaves are tried again; waiters for room get the error.
    fn note_failure(&self, error: FsError) {
        let mut list = self.list.lock();
        list.failures += 1;
        list.failure = Some(error);
    }

    /// How often blocks have left memory, and how often writing them has failed.
    fn course(&self) -> (u64, u64) {
        (self.progress.load(Ordering::Relaxed), self.list.lock().failures)
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max
    }

    fn is_half_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.bytes_max / 2
    }

    /// The dirty files, by number.
    pub(crate) fn files(&self) -> Vec<InodeRef> {
        self.list.lock().files.all()
    }

    /// The dirty files of a subvolume, by number.
    pub(crate) fn files_of(&self, subvol: SubvolId) -> Vec<InodeRef> {
        self.list.lock().files.of(subvol)
    }
}

/// The timer and the writer that a file needs once it is dirty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dirt {
    /// The list was empty: its timer is to run.
    timer: bool,
    ready: usize,
}

impl Filesystem {
    /// Bytes of file data that are only in memory.
    pub fn dirty_bytes(&self) -> u64 {
        self.flusher.bytes.load(Ordering::Relaxed)
    }

    /// Puts a file on the list, and starts the writers that it needs there.
    pub(crate) fn note_dirty(self: &Arc<Self>, inode: &InodeRef) {
        let dirt = self.list_file(inode, &mut inode.state());
        self.schedule_writeback(inode, dirt);
    }

    /// Starts the writers that [`Self::list_file`] has found to be needed.
    pub(crate) fn schedule_writeback(self: &Arc<Self>, inode: &InodeRef, dirt: Dirt) {
        if dirt.timer {
            self.start_timer();
        }
        if (dirt.ready * BLOCK_BYTES) as u64 >= self.flusher.file_bytes_start {
            self.start_writer(inode.node);
        } else if self.flusher.is_half_full() {
            self.start_writers(Nanos::MAX);
        }
    }

    /// Puts a file on the list while its state is held: a writer that finds the file `listed`, and
    /// then asks for a sync or a snapshot, has to find it there.
    pub(crate) fn list_file(&self, inode: &InodeRef, state: &mut InodeState) -> Dirt {
        let mut timer = false;
        if !state.data.list(true) {
            let mut list = self.flusher.list.lock();
            list.files.insert(inode.node, inode, self.rt.now());
            timer = !list.timer && !list.ended;
            list.timer |= timer;
        }
        Dirt { timer, ready: state.data.ready() }
    }

    fn start_timer(self: &Arc<Self>) {
        let (weak, rt) = (Arc::downgrade(self), self.rt.clone());
        let tick = self.flusher.interval / TICKS;
        self.rt.spawn(Box::pin(async move {
            loop {
                rt.sleep(tick).await;
                let Some(fs) = Weak::upgrade(&weak) else { return };
                if !fs.tick() {
                    return;
                }
            }
        }));
    }

    /// Starts writing old files. Returns whether to continue.
    fn tick(self: &Arc<Self>) -> bool {
        let interval = self.flusher.interval.as_nanos() as Nanos;
        let tick = interval / Nanos::from(TICKS);
        let old = self.rt.now().saturating_sub(interval.saturating_sub(tick));
        self.start_writers(old);
        let mut list = self.flusher.list.lock();
        if list.files.is_empty() || list.ended {
            list.timer = false;
        }
        list.timer
    }

    /// Starts writing files that have been dirty since `due` or longer, the oldest first.
    fn start_writers(self: &Arc<Self>, due: Nanos) {
        while let Some(group) = self.next_group(due) {
            self.spawn_writer(group);
        }
    }

    /// Starts to write the file's dirty blocks now, unless it is being written.
    fn start_writer(self: &Arc<Self>, node: NodeId) {
        let begun = {
            let mut list = self.flusher.list.lock();
            list.begin_writer().then(|| list.files.begin(node, self.rt.now()))
        };
        match begun {
            Some(Some(inode)) => self.spawn_writer(vec![inode]),
            Some(None) => self.flusher.list.lock().writers -= 1,
            None => {}
        }
    }

    /// The files for one task: the one that has waited longest, and, while that is little, those
    /// behind it. The task is counted already.
    fn next_group(&self, due: Nanos) -> Option<Vec<InodeRef>> {
        let first = {
            let mut list = self.flusher.list.lock();
            list.files.oldest(due)?;
            list.begin_writer().then(|| list.begin_oldest(due, self.rt.now())).flatten()?
        };
        let mut blocks = first.state().data.ready();
        let mut group = vec![first];
        while blocks < GROUP_BLOCKS && group.len() < GROUP_BLOCKS {
            let next = self.flusher.list.lock().begin_oldest(due, self.rt.now());
            let Some(inode) = next else { break };
            blocks += inode.state().data.ready();
            group.push(inode);
        }
        Some(group)
    }

    fn spawn_writer(self: &Arc<Self>, group: Vec<InodeRef>) {
        let fs = self.clone();
        self.rt.spawn(Box::pin(async move {
            let mut result = match &group[..] {
                [inode] => fs.write_out_twice(inode).await,
                files => fs.write_together(files).await,
            };
            for inode in &group {
                result = result.and(fs.writes_end(inode).await);
            }
            if let Err(error) = result {
                let node = group[0].node;
                tracing::warn!(%node, %error, "write-back failed; the data stays in memory");
                match fs.pool_runs() {
                    Ok(()) => fs.rt.sleep(RETRY).await,
                    // No retry helps a pool that has stopped.
                    Err(_) => fs.flusher.end(),
                }
                // A file that is gone with its subvolume is no failure.
                if !matches!(error, FsError::Stale) {
                    fs.flusher.note_failure(error);
                }
            }
            fs.writer_ended(&group);
        }));
    }

    fn writer_ended(self: &Arc<Self>, group: &[InodeRef]) {
        {
            let mut list = self.flusher.list.lock();
            list.writers -= 1;
            group.iter().for_each(|inode| list.files.ended(inode.node));
        }
        group.iter().for_each(|inode| self.unlist_if_clean(inode));
        if group.iter().any(|inode| inode.state().error.is_some()) {
            self.flusher.wake_all();
        } else if self.flusher.is_half_full() {
            self.start_writers(Nanos::MAX);
        }
    }

    /// Takes a file off the list once nothing of it is only in memory.
    pub(crate) fn unlist_if_clean(&self, inode: &InodeRef) {
        let settled = {
            let mut state = inode.state();
            let settled = state.data.settle_attached(self.pool.durable_txg());
            let clean = state.data.blocks.is_empty() && state.data.is_settled();
            if clean {
                state.data.list(false);
                self.flusher.list.lock().files.remove(inode.node);
            }
            settled
        };
        self.flusher.forget(inode, settled);
    }

    /// Writes everything that is dirty of the file up to change number `version`.
    pub(crate) async fn write_out(self: &Arc<Self>, inode: &InodeRef, version: u64) -> Result<()> {
        while self.write_batch(inode, version, false).await? {}
        Ok(())
    }

    /// As [`Self::write_out`] of all there is now, one batch being summed while another is being
    /// written.
    async fn write_out_twice(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        let version = inode.state().data.version();
        let (one, other) =
            join(self.write_out(inode, version), self.write_out(inode, version)).await;
        one.and(other)
    }

    /// Waits until the writes under way have ended, of any task.
    async fn writes_end(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
        self.batches_end(inode).await;
        let attached = inode.state().data.attached_txg();
        if let Some(txg) = attached {
            self.pool.wait_durable(txg).await?;
        }
        Ok(())
    }

    /// Fails if the pool has stopped: data only in memory would never be written.
    pub(crate) fn pool_runs(&self) -> Result<()> {
        Ok(self.pool.check_writable()?)
    }

    /// Waits while the limit is used up, unless every write-back fails: then it is unknown when
    /// there will be room, and the caller gets the error.
    pub(crate) async fn wait_for_room(self: &Arc<Self>) -> Result<()> {
        if !self.flusher.is_full() {
            return Ok(());
        }
        let mut before = self.flusher.course();
        while self.flusher.is_full() {
            let listener = self.flusher.room.listen();
            if !self.flusher.is_full() {
                break;
            }
            self.writable()?;
            self.pool_runs()?;
            self.start_writers(Nanos::MAX);
            listener.await;
            let now = self.flusher.course();
            if now.0 == before.0 && now.1 != before.1 && self.flusher.is_full() {
                let failure = self.flusher.list.lock().failure.clone();
                return failure.map_or(Ok(()), Err);
            }
            before = now;
        }
        Ok(())
    }
}
