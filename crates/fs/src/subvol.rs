//! The subvolumes whose files these are.
//!
//! Transactions name the table of their files [`FILES`]; which table that is, is decided when they
//! are applied, since a snapshot gives a subvolume another one.

use std::sync::Arc;

use copyhold_format::item::{HashKey, SubvolItem};
use copyhold_pool::{Credit, Pool, PoolError, Transaction};
use copyhold_runtime::FifoMutex;
use copyhold_types::{EpochId, InodeNo, SubvolId, TableId, Txg};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{FsError, NodeId, Result};

/// The files of the subvolume that a transaction is applied to.
pub(crate) const FILES: TableId = TableId(0);

/// A live subvolume.
pub(crate) struct Subvol {
    pub(crate) id: SubvolId,
    pub(crate) hash_key: HashKey,
    read_only: bool,
    parent: NodeId,
    /// Renames between directories, one at a time: so the ways to the root stand still under them.
    pub(crate) rename: FifoMutex,
    /// Held shared while a transaction that stamps pointers is applied, exclusively when an epoch
    /// is sealed (R4).
    now: RwLock<Now>,
}

#[derive(Clone, Copy, Debug)]
struct Now {
    table: TableId,
    current: EpochId,
    /// The start of what is shared with nobody.
    first: EpochId,
}

/// A subvolume whose epochs stand still.
pub(crate) struct Hold<'a> {
    now: RwLockReadGuard<'a, Now>,
}

impl Subvol {
    pub(crate) fn new(id: SubvolId, item: &SubvolItem) -> Subvol {
        Subvol {
            id,
            hash_key: item.hash_key,
            read_only: item.flags.read_only(),
            parent: NodeId { subvol: item.place.subvol, ino: item.place.directory },
            rename: FifoMutex::new(),
            now: RwLock::new(Now { table: item.table, current: item.epoch, first: item.first }),
        }
    }

    pub(crate) fn writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(FsError::ReadOnly { why: "the subvolume is".into() }),
            false => Ok(()),
        }
    }

    /// The directory that holds its entry; of the pool's root subvolume, itself.
    pub(crate) fn parent(&self) -> NodeId {
        self.parent
    }

    pub(crate) fn node(&self, ino: InodeNo) -> NodeId {
        NodeId { subvol: self.id, ino }
    }

    /// Where its items are now. The caller has pinned what it will read.
    pub(crate) fn table(&self) -> TableId {
        self.now.read().table
    }

    /// Taken before the transaction is stamped, held until it is applied.
    pub(crate) fn hold(&self) -> Hold<'_> {
        Hold { now: self.now.read() }
    }
}

impl Hold<'_> {
    pub(crate) fn current(&self) -> EpochId {
        self.now.current
    }

    /// Whether a pointer of that epoch is shared with no other subvolume.
    pub(crate) fn owns(&self, epoch: EpochId) -> bool {
        epoch >= self.now.first
    }

    pub(crate) fn apply(
        &self,
        pool: &Arc<Pool>,
        credit: Credit,
        mut tx: Transaction,
    ) -> std::result::Result<Txg, PoolError> {
        tx.bind(FILES, self.now.table);
        pool.apply(credit, tx)
    }
}
