//! When dirty data is written.
//!
//! A file is on the list from its first dirty block until nothing of it is only in memory. It is
//! written when it is old, when much of it is dirty, when half of the limit is used. So devices are
//! busy long before a writer has to wait for room (`dirty_room`). `writers` are the tasks.
//!
//! One timer runs while the list is not empty. Tasks hold the filesystem weakly: one that is
//! dropped ends them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use copyhold_runtime::Rt;
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Nanos, SubvolId};
use copyhold_volume::tenant_of;

use crate::dirty_files::DirtyFiles;
use crate::dirty_room::DirtyRoom;
use crate::flight::Flight;
use crate::foreground::Foreground;
use crate::inode::{InodeRef, InodeState};
use crate::writers::List;
use crate::{Filesystem, Options, Result};

/// The timer looks this often in an interval.
const TICKS: u32 = 5;

pub(crate) struct WritebackScheduler {
    pub(crate) room: DirtyRoom,
    file_bytes_start: u64,
    interval: Duration,
    pub(crate) list: Mutex<List, of::DirtyFiles>,
    pub(crate) foreground: Foreground,
    pub(crate) flight: Flight,
}

impl WritebackScheduler {
    pub(crate) fn new(options: &Options, rt: &Rt) -> WritebackScheduler {
        WritebackScheduler {
            room: DirtyRoom::new(options.dirty_bytes_max.max(1 << 20), rt.clone()),
            file_bytes_start: options.file_dirty_bytes_start,
            interval: options.writeback_interval,
            list: Mutex::new(List::default()),
            foreground: Foreground::default(),
            flight: Flight::default(),
        }
    }

    /// No more background work.
    pub(crate) fn end(&self) {
        let mut list = self.list.lock();
        list.ended = true;
        list.files = DirtyFiles::default();
        drop(list);
        self.room.wake_all();
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
        self.flusher.room.used()
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
        } else if self.flusher.room.is_half_used() {
            self.start_writers(Nanos::MAX);
        }
    }

    /// Puts a file on the list while its state is held: a writer that finds the file `listed`, and
    /// then asks for a sync or a snapshot, has to find it there. A file that is gone has nothing to
    /// write: on the list it would stay in memory.
    pub(crate) fn list_file(&self, inode: &InodeRef, state: &mut InodeState) -> Dirt {
        let mut timer = false;
        if !state.gone && !state.data.list(true) {
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
        self.flusher.room.forget(inode, settled);
    }

    /// Waits until the writes under way have ended, of any task.
    pub(crate) async fn writes_end(self: &Arc<Self>, inode: &InodeRef) -> Result<()> {
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
}
