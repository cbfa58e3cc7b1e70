//! Room for dirty data, and the writers that wait for it.
//!
//! A writer waits when the limit of dirty data is used up; beside other tenants that have dirty
//! data, at its part of the limit (`memory::scarce`): a tenant that writes fast waits for its own
//! data. A wait ends with an error when writing back fails instead.
//!
//! DIRTYROOM-D1  Progress and failures of the data that a writer waits for decide about its wait:
//!               of its own subvolume while it waits for its part, else of all.
//! DIRTYROOM-D2  When data of a group has left memory, all its writers look: none may be left when
//!               nothing of its data is to leave memory any more.
//! DIRTYROOM-D3  A writer of a group above its `max` waits for dirty data of its own subvolume.
//!               With none left it goes on (`forced`): no limit of memory stops a write for ever.
//! DIRTYROOM-D4  While a writer waits, files of its tenant are written, and each task that ends is
//!               followed by others, if files wait. Data of other tenants stays in memory then,
//!               while less than half of the limit is used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_memory::{
    Admission, Event as MemoryEvent, Limit, MemoryClass, MemoryOwner, Scarce, stalled,
};
use copyhold_runtime::{BoxFuture, Rt};
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Nanos, SubvolId};
use copyhold_volume::tenant_of;
use event_listener::{Event, IntoNotification};
use futures_util::future::select;

use crate::dirty_pace::DirtyPace;
use crate::inode::{Inode, InodeRef};
use crate::subvol::Subvol;
use crate::throttle::reclaim_over;
use crate::writers::List;
use crate::{FileFlags, Filesystem, FsError, Result};

pub(crate) struct DirtyRoom {
    /// Bytes of dirty blocks, taken ones included.
    bytes: Scarce,
    /// How often blocks have left memory.
    progress: AtomicU64,
    /// There is room for all again.
    room: Event,
    /// Half of the limit is free: no group waits for its part.
    relief: Event,
    failures: Mutex<Failures, of::DirtyFailures>,
    pace: DirtyPace,
}

/// A writer that waits, until it is dropped.
struct Waiter<'a> {
    list: &'a Mutex<List, of::DirtyFiles>,
    tenant: SubvolId,
}

impl<'a> Waiter<'a> {
    fn of(fs: &'a Filesystem, subvol: &Subvol) -> Waiter<'a> {
        let (list, tenant) = (&fs.flusher.list, tenant_of(&fs.volumes, subvol.id()));
        *list.lock().waiters.entry(tenant).or_default() += 1;
        Waiter { list, tenant }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let waiters = &mut self.list.lock().waiters;
        if let Some(count) = waiters.get_mut(&self.tenant) {
            *count -= 1;
        }
        waiters.retain(|_, count| *count > 0);
    }
}

/// How often a task has failed, and the last error.
#[derive(Default)]
struct Failures {
    of_all: Failed,
    /// Of subvolumes whose last task has failed.
    of: BTreeMap<SubvolId, Failed>,
}

#[derive(Clone, Default)]
struct Failed {
    count: u64,
    last: Option<FsError>,
}

/// The course of write-back up to a moment.
struct Course {
    progress: u64,
    failed: Failed,
}

impl Failed {
    fn note(&mut self, error: &FsError) {
        self.count += 1;
        self.last = Some(error.clone());
    }
}

impl DirtyRoom {
    pub(crate) fn new(limit: u64, rt: Rt) -> DirtyRoom {
        DirtyRoom {
            bytes: Scarce::new(MemoryClass::Dirty, limit),
            progress: AtomicU64::new(0),
            room: Event::new(),
            relief: Event::new(),
            failures: Mutex::new(Failures::default()),
            pace: DirtyPace::new(rt),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.bytes.used()
    }

    pub(crate) fn is_half_used(&self) -> bool {
        self.bytes.is_half_used()
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
            self.progress.fetch_add(1, Relaxed);
            inode.subvol.dirty_progress.fetch_add(1, Relaxed);
            let is_clean = || inode.owner().charged(MemoryClass::Dirty) <= 0;
            let is_busy = self.bytes.last_fill(inode.owner()).is_some_and(|fill| fill > 0.5);
            self.pace.note_written(inode.node.subvol, blocks, is_busy, is_clean);
        }
        if !self.bytes.is_half_used() {
            self.wake_all();
        } else if blocks > 0 {
            self.room.notify(blocks.additional());
            // DIRTYROOM-D2.
            inode.subvol.dirty_room.notify(usize::MAX);
        }
    }

    /// Waiters look again whether there will be room.
    pub(crate) fn wake_all(&self) {
        self.room.notify(usize::MAX);
        self.relief.notify(usize::MAX);
    }

    /// The files that a failed task leaves are tried again; waiters for room get the error.
    pub(crate) fn note_failure(&self, files: &[InodeRef], error: &FsError) {
        let mut failures = self.failures.lock();
        failures.of_all.note(error);
        for inode in files {
            failures.of.entry(inode.node.subvol).or_default().note(error);
        }
    }

    /// A task for these files was successful.
    pub(crate) fn note_success(&self, files: &[InodeRef]) {
        let mut failures = self.failures.lock();
        files.iter().for_each(|inode| _ = failures.of.remove(&inode.node.subvol));
    }

    /// DIRTYROOM-D1.
    fn course(&self, wait: Option<Wait>, subvol: &Subvol) -> Course {
        let failures = self.failures.lock();
        let (progress, failed) = match wait {
            Some(Wait::Own) => (&subvol.dirty_progress, failures.of.get(&subvol.id()).cloned()),
            _ => (&self.progress, Some(failures.of_all.clone())),
        };
        Course { progress: progress.load(Relaxed), failed: failed.unwrap_or_default() }
    }
}

/// The data for which a writer waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// That of its own subvolume: its part is used up, or a group is above its `max`.
    Own,
    /// Any: the limit is used up.
    Any,
}

impl Filesystem {
    /// Waits while the limit is used up, or this subvolume's part of it beside others, and while
    /// its group is above its `max` and has data to write back, unless every write-back fails: then
    /// it is unknown when there will be room, and the caller gets the error.
    pub(crate) async fn wait_for_room(self: &Arc<Self>, subvol: &Subvol) -> Result<()> {
        let owner = subvol.volume.owner();
        if owner.is_near_limit()
            && let Some(over) = reclaim_over(self, subvol, Limit::Max)
        {
            over.group.count(MemoryEvent::Max);
        }
        if self.wait_of(subvol).is_some() {
            let wait = Box::pin(self.wait_for_dirty_room(subvol));
            stalled(owner, || self.rt.now(), wait).await?;
        }
        if owner.is_near_limit() && is_above_max(owner) {
            owner.count(MemoryEvent::Forced);
        }
        Ok(())
    }

    async fn wait_for_dirty_room(self: &Arc<Self>, subvol: &Subvol) -> Result<()> {
        let waiting = &self.flusher.room;
        let _waiter = Waiter::of(self, subvol);
        loop {
            let wait = self.wait_of(subvol);
            let relief = waiting.relief.listen();
            let listener = match wait {
                None => return Ok(()),
                Some(Wait::Own) => subvol.dirty_room.listen(),
                Some(Wait::Any) => waiting.room.listen(),
            };
            if self.wait_of(subvol) != wait {
                continue;
            }
            self.writable()?;
            self.pool_runs()?;
            let before = waiting.course(wait, subvol);
            match wait {
                Some(Wait::Any) => self.start_writers(Nanos::MAX),
                _ => self.start_writers_waited_for(),
            }
            select(listener, relief).await;
            let now = waiting.course(wait, subvol);
            let has_failed =
                now.progress == before.progress && now.failed.count > before.failed.count;
            if has_failed && self.wait_of(subvol) == wait {
                return now.failed.last.map_or(Ok(()), Err);
            }
        }
    }

    fn wait_of(&self, subvol: &Subvol) -> Option<Wait> {
        let owner = subvol.volume.owner();
        match self.flusher.room.bytes.admission(self.pool.memory(), owner) {
            Admission::OverPart => Some(Wait::Own),
            Admission::Full => Some(Wait::Any),
            // DIRTYROOM-D3.
            Admission::Free => {
                (owner.charged(MemoryClass::Dirty) > 0 && is_above_max(owner)).then_some(Wait::Own)
            }
        }
    }
}

/// Behind a write that has added so many blocks of a file to memory: its wait for the time in which
/// as many are written back, as far as memory is filled (DIRTYPACE-D1). The blocks of a file with
/// the flag SYNC leave memory in the call (DIRTYPACE-D4).
pub(crate) fn wait_for_write_back(
    fs: &Filesystem,
    inode: &Inode,
    blocks: usize,
) -> Option<BoxFuture<'static, ()>> {
    let leave = inode.state().has_flag(FileFlags::SYNC);
    if blocks == 0 || leave {
        return None;
    }
    let subvol = &inode.subvol;
    let (room, owner) = (&fs.flusher.room, subvol.volume.owner());
    let fill = room.bytes.fill(fs.pool.memory(), owner)?;
    let wait = room.pace.wait(subvol.id(), blocks as f64, fill)?;
    let (owner, rt) = (owner.clone(), fs.rt.clone());
    Some(Box::pin(async move { stalled(&owner, || rt.now(), wait).await }))
}

/// Whether this group, or one above, is above its `max`.
fn is_above_max(owner: &MemoryOwner) -> bool {
    owner.over_limit(Limit::Max, 0).is_some()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use copyhold_memory::GroupLimits;
    use copyhold_runtime::{Rt, SeededRuntime};
    use futures_util::FutureExt;

    use super::*;
    use crate::testing::{dirty_file, open, tenant};

    const LIMIT_BLOCKS: usize = 256;

    /// A filesystem, and a clean file of each of two tenants. The first has more than its part of
    /// dirty data, which no task can write; the second has some.
    async fn crowded(rt: &Rt) -> (Arc<Filesystem>, [InodeRef; 2]) {
        let fs = open(rt, (LIMIT_BLOCKS * BLOCK_BYTES) as u64).await;
        let mut files = Vec::new();
        for (name, blocks) in [("first", LIMIT_BLOCKS / 2), ("second", LIMIT_BLOCKS / 8)] {
            let tenant = tenant(&fs, name).await;
            let node = dirty_file(&fs, tenant, "file", 0).await;
            let inode = fs.inode(node).await.unwrap();
            fs.flusher.room.add(&inode, blocks);
            files.push(inode);
        }
        (fs, files.try_into().ok().unwrap())
    }

    /// DIRTYROOM-D1.
    #[test]
    fn progress_and_failures_of_others_do_not_end_a_wait_for_a_part() {
        let rt = SeededRuntime::new(4);
        rt.block_on(async {
            let (fs, [first, second]) = crowded(&(rt.clone() as Rt)).await;
            let room = &fs.flusher.room;
            let mut wait = pin!(fs.wait_for_room(&first.subvol));
            assert!(wait.as_mut().now_or_never().is_none());
            let failed = |of: &InodeRef| {
                let error = FsError::Invalid("a failed write");
                room.note_failure(std::slice::from_ref(of), &error);
                room.wake_all();
            };
            failed(&second);
            assert!(wait.as_mut().now_or_never().is_none(), "an error of the other tenant");
            room.forget(&second, 1);
            failed(&first);
            let error = wait.now_or_never().expect("its own data cannot be written").unwrap_err();
            assert!(matches!(error, FsError::Invalid(_)), "{error}");
            room.forget(&first, LIMIT_BLOCKS / 2);
            room.forget(&second, LIMIT_BLOCKS / 8 - 1);
            fs.close().await.unwrap();
        });
    }

    /// DIRTYROOM-D4.
    #[test]
    fn a_writer_above_max_has_only_data_of_its_own_tenant_written() {
        let rt = SeededRuntime::new(6);
        rt.block_on(async {
            let fs = open(&(rt.clone() as Rt), 1 << 30).await;
            let (one, two) = (tenant(&fs, "one").await, tenant(&fs, "two").await);
            let written = dirty_file(&fs, one, "file", 8).await;
            let kept = dirty_file(&fs, two, "file", 8).await;
            let subvol = fs.inode(written).await.unwrap().subvol.clone();
            let owner = |of| fs.volumes.subvol(of).unwrap().owner().clone();
            let limits = GroupLimits { max: 0, ..GroupLimits::default() };
            owner(one).set_limits(&limits);
            fs.wait_for_room(&subvol).await.unwrap();
            let dirty = [one, two].map(|of| owner(of).charged(MemoryClass::Dirty));
            assert_eq!(dirty[0], 0);
            assert!(dirty[1] > 0, "another tenant's data stays: {kept}");
            fs.close().await.unwrap();
        });
    }

    /// DIRTYROOM-D2.
    #[test]
    fn all_writers_of_a_group_continue_when_it_has_room_in_its_part() {
        let rt = SeededRuntime::new(5);
        rt.block_on(async {
            let (fs, [first, second]) = crowded(&(rt.clone() as Rt)).await;
            let room = &fs.flusher.room;
            room.add(&second, LIMIT_BLOCKS / 4);
            let mut waits: Vec<_> =
                (0..3).map(|_| Box::pin(fs.wait_for_room(&first.subvol))).collect();
            assert!(waits.iter_mut().all(|wait| wait.now_or_never().is_none()));
            room.forget(&first, LIMIT_BLOCKS / 8);
            assert!(room.is_half_used());
            for wait in &mut waits {
                wait.now_or_never().expect("there is room in its part").unwrap();
            }
            drop(waits);
            room.forget(&first, LIMIT_BLOCKS / 2 - LIMIT_BLOCKS / 8);
            room.forget(&second, LIMIT_BLOCKS / 8 + LIMIT_BLOCKS / 4);
            fs.close().await.unwrap();
        });
    }
}
