//! Numbers that are never assigned twice (rule R9).
//!
//! Each space of numbers has a high-water mark in the system table. Only numbers below a durable
//! mark are assigned; recovery continues at the mark. So a number of an object that a crash has
//! lost, and that a client may still use, never names another object.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_runtime::FifoMutex;
use copyhold_sync::{Mutex, of};
use copyhold_types::{InodeNo, Key, Kind, SubvolId, TableId, Txg};

use crate::{Pool, PoolError, Sabotage, Transaction};

/// The item kind of a high-water mark: 8 bytes, little-endian.
pub const ID_MARK: Kind = Kind(4);
/// Tables below have fixed numbers.
const FIRST_TABLE: u64 = 16;
/// Numbers taken at a time.
const STEP: u64 = 4096;

/// A space of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdSpace {
    Table,
    Epoch,
    Subvol,
    Inode(SubvolId),
}

impl IdSpace {
    /// Where the high-water mark is kept.
    pub fn key(self) -> Key {
        let (class, of) = match self {
            IdSpace::Table => (0, 0),
            IdSpace::Epoch => (1, 0),
            IdSpace::Subvol => (2, 0),
            IdSpace::Inode(subvol) => (3, u64::from(subvol.0)),
        };
        Key::new(class, ID_MARK, of)
    }

    /// The first number (roots have theirs), and the first that does not fit the format any more
    /// (rule R40).
    fn range(self) -> (u64, u64) {
        match self {
            IdSpace::Table => (FIRST_TABLE, u64::MAX),
            IdSpace::Epoch => (1, u64::MAX),
            IdSpace::Subvol => (u64::from(SubvolId::ROOT.0) + 1, 1 << SubvolId::BITS),
            IdSpace::Inode(_) => (InodeNo::ROOT.0 + 1, 1 << InodeNo::BITS),
        }
    }

    fn name(self) -> &'static str {
        match self {
            IdSpace::Table => "table",
            IdSpace::Epoch => "epoch",
            IdSpace::Subvol => "subvolume",
            IdSpace::Inode(_) => "inode",
        }
    }
}

/// Before the first number is assigned: all tables lie below the mark. A snapshot's tables must be
/// newer than those that they lie over.
fn check_first(pool: &Pool, space: IdSpace, mark: u64) -> Result<(), PoolError> {
    if space != IdSpace::Table || pool.ids.spaces.lock().contains_key(&space) {
        return Ok(());
    }
    match pool.tables.newest().filter(|newest| newest.0 >= mark) {
        Some(newest) => {
            let why = format!("it allows table {mark}, and table {newest} is there");
            Err(PoolError::damaged("an id mark", why))
        }
        None => Ok(()),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ids {
    spaces: Mutex<BTreeMap<IdSpace, Range>, of::Ids>,
    /// One extension of a range at a time.
    extending: FifoMutex,
}

/// Numbers at hand: below `durable` they may be assigned, below `logged` when `by` is durable.
#[derive(Clone, Copy, Debug)]
struct Range {
    next: u64,
    durable: u64,
    logged: u64,
    by: Txg,
}

impl Ids {
    /// A number, if one is in hand; and whether the range should be extended soon. `durable`: the
    /// txg that is, if that matters.
    fn take(&self, space: IdSpace, durable: Option<Txg>) -> Option<(u64, bool)> {
        let mut spaces = self.spaces.lock();
        let range = spaces.get_mut(&space)?;
        if durable.is_none_or(|durable| range.by <= durable) {
            range.durable = range.logged;
        }
        let number = range.next;
        (number < range.durable).then(|| {
            range.next += 1;
            (number, range.logged - range.next < STEP / 2)
        })
    }
}

impl Pool {
    /// A new number. Waits for a commit only when a range is used up faster than it is extended.
    pub async fn next_id(self: &Arc<Self>, space: IdSpace) -> Result<u64, PoolError> {
        loop {
            let durable = (!self.sabotaged(Sabotage::ReissueIds)).then(|| self.durable_txg());
            if let Some((number, low)) = self.ids.take(space, durable) {
                if low && let Some(_extending) = self.ids.extending.try_lock() {
                    self.extend_ids(space).await?;
                }
                return Ok(number);
            }
            let extending = self.ids.extending.lock().await;
            let by = match self.ids.spaces.lock().get(&space) {
                Some(range) if range.logged > range.next => Some(range.by),
                _ => None,
            };
            let by = match by {
                Some(by) => by,
                None => self.extend_ids(space).await?,
            };
            drop(extending);
            self.commit(by).await?;
        }
    }

    /// Logs a higher mark; the numbers below it are good when that is durable.
    async fn extend_ids(self: &Arc<Self>, space: IdSpace) -> Result<Txg, PoolError> {
        let (_, end) = space.range();
        let mark = self.read_id_mark(space).await?;
        check_first(self, space, mark)?;
        let to = mark.saturating_add(STEP).min(end);
        if to == mark {
            return Err(PoolError::NoIds(space.name()));
        }
        let mut tx = Transaction::new();
        tx.put(Pool::SYSTEM, space.key(), &to.to_le_bytes());
        let credit = self.internal_credit(1, 64, 0)?;
        let by = self.apply(credit, tx)?;
        let mut spaces = self.ids.spaces.lock();
        let fresh = Range { next: mark, durable: mark, logged: to, by };
        let range = spaces.entry(space).or_insert(fresh);
        (range.logged, range.by) = (to, by);
        Ok(by)
    }

    /// The mark below which all assigned numbers of a space lie, for a space that continues from
    /// there; valid now, and while the caller prevents further assignments.
    pub fn id_mark(&self, space: IdSpace, stored: u64) -> u64 {
        let spaces = self.ids.spaces.lock();
        spaces.get(&space).map_or(stored, |range| range.logged.max(stored))
    }

    /// The stored mark: the start of a space from which no number was taken since the pool was
    /// opened.
    pub async fn stored_id_mark(self: &Arc<Self>, space: IdSpace) -> Result<u64, PoolError> {
        let _not_extended = self.ids.extending.lock().await;
        self.read_id_mark(space).await
    }

    async fn read_id_mark(self: &Arc<Self>, space: IdSpace) -> Result<u64, PoolError> {
        let stored = self.get(Pool::SYSTEM, space.key()).await?;
        match stored.as_deref().map(<[u8; 8]>::try_from) {
            None => Ok(space.range().0),
            Some(Ok(bytes)) => Ok(u64::from_le_bytes(bytes)),
            Some(Err(_)) => Err(PoolError::damaged("an id mark", "it is not 8 bytes")),
        }
    }

    /// The next number: above all that were assigned, and often far below the mark. `None`: no
    /// number was taken since the pool was opened.
    pub fn next_id_in_hand(&self, space: IdSpace) -> Option<u64> {
        self.ids.spaces.lock().get(&space).map(|range| range.next)
    }

    /// A new, empty table. A table exists by having items.
    pub async fn new_table(self: &Arc<Self>) -> Result<TableId, PoolError> {
        self.next_id(IdSpace::Table).await.map(TableId)
    }
}
