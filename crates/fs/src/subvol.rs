//! The subvolumes whose files these are, as far as files are concerned.
//!
//! Transactions name the table of their files [`FILES`]; which table that is, is decided when they
//! are applied, since a snapshot gives a subvolume another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use copyhold_format::item::{HashKey, ParentDirectory};
use copyhold_memory::OwedDelay;
use copyhold_runtime::{FifoMutex, FifoRwLock};
use copyhold_types::{InodeNo, SubvolId, TableId};
use copyhold_volume as volume;
use event_listener::Event;

use crate::leftovers::Leftovers;
use crate::refusal_pace::Deletions;
use crate::walks::Walks;
use crate::{FsError, NodeId, Result};

/// The files of the subvolume that a transaction is applied to: any table behind the pool's own.
pub(crate) const FILES: TableId = TableId(15);

/// A subvolume in use.
pub(crate) struct Subvol {
    pub(crate) volume: Arc<volume::Subvol>,
    pub(crate) hash_key: HashKey,
    /// Renames between directories, one at a time: so no path to the root changes during one.
    pub(crate) rename: FifoMutex,
    /// Held shared from the look at preallocated space to the write that is accepted for it, and
    /// exclusively by a snapshot until it shares that space: data accepted for it has no other
    /// (R10, R22).
    pub(crate) in_place: FifoRwLock,
    /// Its inodes in memory.
    pub(crate) cached: AtomicUsize,
    /// Held while it is set read-only, or writable.
    pub(crate) property_lock: FifoMutex,
    /// It is being set read-only: nothing is accepted any more (READONLY-O1).
    pub(crate) closing: AtomicBool,
    pub(crate) leftovers: Leftovers,
    pub(crate) deletions: Deletions,
    /// Some of its dirty data has left memory.
    pub(crate) dirty_room: Event,
    /// How often dirty blocks of it have left memory.
    pub(crate) dirty_progress: AtomicU64,
    pub(crate) owed_delay: OwedDelay,
    /// By limit.
    pub(crate) walks: [Walks; 2],
}

impl Subvol {
    pub(crate) fn new(volume: Arc<volume::Subvol>) -> Subvol {
        let hash_key = volume.item().hash_key;
        Subvol {
            volume,
            hash_key,
            rename: FifoMutex::new(),
            in_place: FifoRwLock::new(),
            cached: AtomicUsize::new(0),
            property_lock: FifoMutex::new(),
            closing: AtomicBool::new(false),
            leftovers: Leftovers::default(),
            deletions: Deletions::default(),
            dirty_room: Event::new(),
            dirty_progress: AtomicU64::new(0),
            owed_delay: OwedDelay::default(),
            walks: Default::default(),
        }
    }

    pub(crate) fn id(&self) -> SubvolId {
        self.volume.id()
    }

    /// It is not being deleted.
    pub(crate) fn present(&self) -> Result<()> {
        if self.volume.is_dying() { Err(FsError::Stale) } else { Ok(()) }
    }

    /// It may be changed: it is not read-only, nor becoming so, and its leftovers are known
    /// (LEFTOVER-O1).
    pub(crate) fn writable(&self) -> Result<()> {
        self.expect_read_write()?;
        if self.closing.load(Ordering::SeqCst) {
            return Err(FsError::ReadOnly { why: "this subvolume is becoming read-only".into() });
        }
        self.leftovers.check()
    }

    pub(crate) fn expect_read_write(&self) -> Result<()> {
        self.present()?;
        match self.volume.is_read_only() {
            true => Err(FsError::ReadOnly { why: "this subvolume is read-only".into() }),
            false => Ok(()),
        }
    }

    /// The directory that holds its entry; of the pool's root subvolume, itself.
    pub(crate) fn parent(&self) -> NodeId {
        let ParentDirectory { subvol, directory } = self.volume.item().place;
        NodeId { subvol, ino: directory }
    }

    pub(crate) fn node(&self, ino: InodeNo) -> NodeId {
        NodeId { subvol: self.id(), ino }
    }

    /// Where its items are now. The caller has pinned the tables that it will read.
    pub(crate) fn table(&self) -> TableId {
        self.volume.files()
    }
}
