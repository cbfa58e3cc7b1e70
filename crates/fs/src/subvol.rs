//! The subvolume whose files these are.

use copyhold_format::item::{HashKey, SubvolFlags, SubvolItem};
use copyhold_runtime::FifoMutex;
use copyhold_types::{EpochId, SubvolId, TableId};
use parking_lot::{RwLock, RwLockReadGuard};

/// A live subvolume.
pub(crate) struct Subvol {
    pub(crate) id: SubvolId,
    /// Where its items are.
    pub(crate) table: TableId,
    pub(crate) hash_key: HashKey,
    pub(crate) read_only: bool,
    /// Renames between directories, one at a time: so the ways to the root stand still under them.
    pub(crate) rename: FifoMutex,
    /// Held shared while a transaction that stamps pointers is applied, exclusively when an epoch
    /// is sealed (R4).
    epochs: RwLock<Epochs>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    pub(crate) current: EpochId,
    /// The start of what is shared with nobody.
    pub(crate) first: EpochId,
}

impl Subvol {
    pub(crate) fn new(id: SubvolId, item: &SubvolItem) -> Subvol {
        Subvol {
            id,
            table: item.table,
            hash_key: item.hash_key,
            read_only: item.flags.0 & SubvolFlags::READ_ONLY != 0,
            rename: FifoMutex::new(),
            epochs: RwLock::new(Epochs { current: item.epoch, first: item.first }),
        }
    }

    pub(crate) fn epochs(&self) -> RwLockReadGuard<'_, Epochs> {
        self.epochs.read()
    }
}
