//! When dirty data is written, and how writers are kept within the limit.
//!
//! A file is on the list from its first dirty block until nothing of it is only in memory. It is
//! written when it is old, when much of it is dirty, when half of the limit is used: by a task of
//! its own, or together with others where little of each is dirty. So devices are busy long before
//! a writer has to wait, which it does at the limit; beside other tenants that have dirty data, at
//! its part of the limit (`memory::scarce`): a tenant that writes fast waits for its own data.
//!
//! A tenant has few tasks while another one waits for the device (`foreground.rs`). A task that is
//! one too many leaves between two batches, and its file waits again.
//!
//! One timer runs while the list is not empty. Tasks hold the filesystem weakly: one that is
//! dropped ends them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_memory::{MemoryClass, Room, Scarce, stalled};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Nanos, SubvolId};
use copyhold_volume::tenant_of;
use event_listener::{Event, IntoNotification};
use futures_util::future::{join, select};

use crate::dirty_files::DirtyFiles;
use crate::foreground::Foreground;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::subvol::Subvol;
use crate::{Filesystem, FsError, NodeId, Options, Result};

/// Tasks that write at the same time.
const WRITERS_MAX: usize = 8;
/// Tasks of one tenant while another one waits for the device. Each has two batches of up to 4 MiB
/// under way, so the device is busy.
const WRITERS_BESIDE: usize = 2;
/// Files with less than this much ready are written together with others: a request in all.
const GROUP_BLOCKS: usize = 256;
/// The timer looks this often in an interval.
const TICKS: u32 = 5;
/// Pause after a failed write, before the next writer may take the file.
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct WritebackScheduler {
    /// Bytes of dirty blocks, taken ones included.
    bytes: Scarce,
    file_bytes_start: u64,
    interval: Duration,
    list: Mutex<List, of::DirtyFiles>,
    /// How often blocks have left memory.
    progress: AtomicU64,
    /// There is room for all again.
    room: Event,
    /// Half of the limit is free: no group waits for its part.
    relief: Event,
    pub(crate) foreground: Foreground,
}

#[derive(Default)]
struct List {
    files: DirtyFiles,
    timer: bool,
    writers: Writers,
    ended: bool,
    /// How often a task has failed, and the last error.
    failures: Failures,
    /// The same by subvolume, of those whose last task has failed.
    failures_of: BTreeMap<SubvolId, Failures>,
}

#[derive(Clone, Default)]
struct Failures {
    count: u64,
    last: Option<FsError>,
}

impl Failures {
    fn note(&mut self, error: &FsError) {
        self.count += 1;
        self.last = Some(error.clone());
    }
}

/// Tasks that write.
#[derive(Default)]
struct Writers {
    all: usize,
    by_tenant: BTreeMap<SubvolId, usize>,
}

impl Writers {
    fn of(&self, tenant: SubvolId) -> usize {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }

    fn begin(&mut self, tenant: SubvolId) {
        self.all += 1;
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

impl List {
    /// Whether one more task may write for this tenant, which may have `max`.
    fn may_begin(&self, tenant: SubvolId, max: usize) -> bool {
        !self.ended && self.writers.all < WRITERS_MAX && self.writers.of(tenant) < max
    }

    /// Begins to write the file that has waited longest, of tenants that `may`.
    fn begin_oldest(
        &mut self,
        due: Nanos,
        now: Nanos,
        may: impl Fn(SubvolId) -> bool,
    ) -> Option<InodeRef> {
        let (_, node) = self.files.oldest(due, may)?;
        self.files.begin(node, now)
    }
}

impl WritebackScheduler {
    pub(crate) fn new(options: &Options) -> WritebackScheduler {
        WritebackScheduler {
            bytes: Scarce::new(MemoryClass::Dirty, options.dirty_bytes_max.max(1 << 20)),
            file_bytes_start: options.file_dirty_bytes_start,
            interval: options.writeback_interval,
            list: Mutex::new(List::default()),
            progress: AtomicU64::new(0),
            room: Event::new(),
            relief: Event::new(),
            foreground: Foreground::default(),
        }
    }

    /// `blocks` more of a file are in memory.
    pub(crate) fn add(&self, inode: &Inode, blocks: usize) {
        self.bytes.add(inode.owner(), (blocks * BLOCK_BYTES) as u64);
    }

    /// `blocks` of a file have left memory: as many waiting writers can continue, each with one. A
    /// waiter that does not use it lets another wait longer, until half of the limit is free for
    /// all.
    pub(crate) fn forget(&self, inode: &Inode, blocks: usize) {
        self.bytes.forget(inode.owner(), (blocks * BLOCK_BYTES) as u64);
        if blocks > 0 {
            self.progress.fetch_add(1, Ordering::Relaxed);
            inode.subvol.dirty_progress.fetch_add(1, Ordering::Relaxed);
        }
        if !self.bytes.is_half_used() {
            self.wake_all();
        } else if blocks > 0 {
            self.room.notify(blocks.additional());
            // All of them: none may be left when nothing of the owner is to come back any more.
            if !self.bytes.has_part(inode.owner()) {
                inode.subvol.dirty_room.notify(usize::MAX);
            }
        }
    }

    /// Waiters for room look again whether there will be any.
    pub(crate) fn wake_all(&self) {
        self.room.notify(usize::MAX);
        self.relief.notify(usize::MAX);
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
    fn note_failure(&self, group: &[InodeRef], error: &FsError) {
        let mut list = self.list.lock();
        list.failures.note(error);
        for inode in group {
            list.failures_of.entry(inode.node.subvol).or_default().note(error);
        }
    }

    /// A task for these files was successful.
    fn note_success(&self, group: &[InodeRef]) {
        let mut list = self.list.lock();
        group.iter().for_each(|inode| _ = list.failures_of.remove(&inode.node.subvol));
    }

    /// How often blocks have left memory, and how writing them has failed: of all files, or, for a
    /// waiter for its part, of its own subvolume.
    fn course(&self, room: Room, subvol: &Subvol) -> (u64, Failures) {
        let list = self.list.lock();
        match room {
            Room::OverPart => {
                let failures = list.failures_of.get(&subvol.id()).cloned().unwrap_or_default();
                (subvol.dirty_progress.load(Ordering::Relaxed), failures)
            }
            _ => (self.progress.load(Ordering::Relaxed), list.failures.clone()),
        }
    }

    /// How many tasks may write for this tenant.
    fn writers_max(&self, tenant: SubvolId, now: Nanos) -> usize {
        if self.foreground.is_beside(tenant, now) { WRITERS_BESIDE } else { WRITERS_MAX }
    }

    /// Whether a task that writes for this tenant ends before its next batch. It counts no longer
    /// then.
    fn leaves(&self, tenant: SubvolId, now: Nanos) -> bool {
        let max = self.writers_max(tenant, now);
        if max == WRITERS_MAX {
            return false;
        }
        let mut list = self.list.lock();
        let leaves = list.writers.of(tenant) > max;
        if leaves {
            list.writers.end(tenant);
        }
        leaves
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
        self.flusher.bytes.used()
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
        } else if self.flusher.bytes.is_half_used() {
            self.start_writers(Nanos::MAX);
        }
    }

    /// Puts a file on the list while its state is held: a writer that finds the file `listed`, and
    /// then asks for a sync or a snapshot, has to find it there.
    pub(crate) fn list_file(&self, inode: &InodeRef, state: &mut InodeState) -> Dirt {
        let mut timer = false;
        if !state.data.list(true) {
            let tenant = tenant_of(&self.volumes, inode.node.subvol);
            let mut list = self.flusher.list.lock();
            list.files.insert(inode.node, inode, tenant, self.rt.now());
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
        while let Some((tenant, group)) = self.next_group(due) {
            self.spawn_writer(tenant, group);
        }
    }

    /// Starts to write the file's dirty blocks now, unless it is being written.
    fn start_writer(self: &Arc<Self>, node: NodeId) {
        let now = self.rt.now();
        let begun = {
            let mut list = self.flusher.list.lock();
            let tenant = list.files.tenant_of(node);
            let may =
                |tenant: &SubvolId| list.may_begin(*tenant, self.flusher.writers_max(*tenant, now));
            tenant.filter(may).and_then(|tenant| {
                let inode = list.files.begin(node, now)?;
                list.writers.begin(tenant);
                Some((tenant, inode))
            })
        };
        if let Some((tenant, inode)) = begun {
            self.spawn_writer(tenant, vec![inode]);
        }
    }

    /// The files for one task, and the tenant that it counts for: the file that has waited longest
    /// of the tenants that may have one more task, and, while that is little, those that have
    /// waited longest of any. The task is counted already.
    fn next_group(&self, due: Nanos) -> Option<(SubvolId, Vec<InodeRef>)> {
        let now = self.rt.now();
        let (tenant, first) = {
            let mut list = self.flusher.list.lock();
            if list.writers.all >= WRITERS_MAX {
                return None;
            }
            let may = |tenant| list.may_begin(tenant, self.flusher.writers_max(tenant, now));
            let (tenant, node) = list.files.oldest(due, may)?;
            let inode = list.files.begin(node, now)?;
            list.writers.begin(tenant);
            (tenant, inode)
        };
        let mut blocks = first.state().data.ready();
        let mut group = vec![first];
        while blocks < GROUP_BLOCKS && group.len() < GROUP_BLOCKS {
            // A tenant that is held to few tasks has no files in those of others.
            let may = |of| of == tenant || self.flusher.writers_max(of, now) == WRITERS_MAX;
            let next = self.flusher.list.lock().begin_oldest(due, now, may);
            let Some(inode) = next else { break };
            blocks += inode.state().data.ready();
            group.push(inode);
        }
        Some((tenant, group))
    }

    fn spawn_writer(self: &Arc<Self>, tenant: SubvolId, group: Vec<InodeRef>) {
        let fs = self.clone();
        self.rt.spawn(Box::pin(async move {
            let has_left = AtomicBool::new(false);
            let mut result = match &group[..] {
                [inode] => fs.write_out_twice(inode, tenant, &has_left).await,
                files => fs.write_together(files).await,
            };
            for inode in &group {
                result = result.and(fs.writes_end(inode).await);
            }
            if result.is_ok() {
                fs.flusher.note_success(&group);
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
                    fs.flusher.note_failure(&group, &error);
                }
            }
            fs.writer_ended(tenant, &group, has_left.into_inner());
        }));
    }

    fn writer_ended(self: &Arc<Self>, tenant: SubvolId, group: &[InodeRef], has_left: bool) {
        {
            let mut list = self.flusher.list.lock();
            if !has_left {
                list.writers.end(tenant);
            }
            group.iter().for_each(|inode| list.files.ended(inode.node));
        }
        group.iter().for_each(|inode| self.unlist_if_clean(inode));
        if group.iter().any(|inode| inode.state().error.is_some()) {
            self.flusher.wake_all();
        } else if self.flusher.bytes.is_half_used() {
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
    /// written; until this task of the tenant `has_left`.
    async fn write_out_twice(
        self: &Arc<Self>,
        inode: &InodeRef,
        tenant: SubvolId,
        has_left: &AtomicBool,
    ) -> Result<()> {
        let version = inode.state().data.version();
        let leaves = || {
            let leaves =
                has_left.load(Ordering::Relaxed) || self.flusher.leaves(tenant, self.rt.now());
            has_left.store(leaves, Ordering::Relaxed);
            leaves
        };
        let write = || async {
            while !leaves() && self.write_batch(inode, version, false).await? {}
            Ok(())
        };
        let (one, other) = join(write(), write()).await;
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

    /// Waits while the limit is used up, or this subvolume's part of it beside others, unless every
    /// write-back fails: then it is unknown when there will be room, and the caller gets the error.
    pub(crate) async fn wait_for_room(self: &Arc<Self>, subvol: &Subvol) -> Result<()> {
        if self.dirty_room(subvol) == Room::Free {
            return Ok(());
        }
        let wait = Box::pin(self.wait_for_dirty_room(subvol));
        stalled(subvol.volume.owner(), || self.rt.now(), wait).await
    }

    async fn wait_for_dirty_room(self: &Arc<Self>, subvol: &Subvol) -> Result<()> {
        loop {
            let room = self.dirty_room(subvol);
            let relief = self.flusher.relief.listen();
            let listener = match room {
                Room::Free => return Ok(()),
                Room::OverPart => subvol.dirty_room.listen(),
                Room::Full => self.flusher.room.listen(),
            };
            if self.dirty_room(subvol) != room {
                continue;
            }
            self.writable()?;
            self.pool_runs()?;
            let before = self.flusher.course(room, subvol);
            self.start_writers(Nanos::MAX);
            select(listener, relief).await;
            let now = self.flusher.course(room, subvol);
            let has_failed = now.0 == before.0 && now.1.count > before.1.count;
            if has_failed && self.dirty_room(subvol) == room {
                return now.1.last.map_or(Ok(()), Err);
            }
        }
    }

    fn dirty_room(&self, subvol: &Subvol) -> Room {
        self.flusher.bytes.room(self.pool.memory(), subvol.volume.owner())
    }
}

#[cfg(test)]
mod tests {
    use copyhold_device::DynDevice;
    use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
    use copyhold_pool::{CreateOptions, OpenOptions, Pool};
    use copyhold_runtime::{Rt, Runtime, SeededRuntime};
    use copyhold_types::{DeviceId, InodeNo};

    use super::*;
    use crate::foreground::note_wait;
    use crate::{Caller, OpenFlags, WriteFlags};

    const ROOT: NodeId = NodeId { subvol: SubvolId::ROOT, ino: InodeNo::ROOT };
    const FILES: u64 = 10;

    async fn open(rt: &Rt) -> Arc<Filesystem> {
        let image = SimImage::empty(65_536);
        let device: DynDevice =
            SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(1));
        Pool::create(rt, &device, &CreateOptions::default()).await.unwrap();
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        let pool = Pool::open(rt.clone(), device, options).await.unwrap();
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
        let (dirty_bytes_max, file_dirty_bytes_start) = (1 << 30, 1 << 30);
        let writeback_interval = Duration::from_secs(3600);
        let options = Options {
            dirty_bytes_max,
            file_dirty_bytes_start,
            writeback_interval,
            ..Options::default()
        };
        Filesystem::open(pool, options).await.unwrap()
    }

    /// Files of a new subvolume of the root, each of which has more than two batches of dirty
    /// stretches.
    async fn dirty_tenant(fs: &Arc<Filesystem>) -> SubvolId {
        let subvol = fs.create_subvolume(&Caller::ROOT, ROOT, b"tenant", None).await.unwrap();
        let root = NodeId { subvol, ino: InodeNo::ROOT };
        for n in 0..FILES {
            let (name, flags) = (format!("file{n}"), OpenFlags::READ_WRITE);
            let by = &Caller::ROOT;
            let made = fs.create(by, root, name.as_bytes(), 0o644, flags, false).await;
            let node = made.unwrap().0.node;
            for block in 0..800 {
                let at = block * 2 * BLOCK_BYTES as u64;
                fs.write(node, at, &[7; BLOCK_BYTES], WriteFlags::default()).await.unwrap();
            }
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
            let fs = open(&(rt.clone() as Rt)).await;
            let subvol = dirty_tenant(&fs).await;
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
}
