//! The model of a pool: a map, and the list of what was done to it.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::EXTENT;
use copyhold_format::item::Extent;
use copyhold_runtime::FifoMutex;
use copyhold_types::{BLOCK_BYTES, Buf, Key, Kind, Run, TableId, Txg};
use parking_lot::Mutex;

pub(crate) const TABLE: TableId = TableId(1 << 40);
/// An item of bytes.
pub(crate) const ITEM: Kind = Kind(40);
const COUNTER: Kind = Kind(41);
pub(crate) const OBJECTS: u64 = 6;

/// Where a client keeps the number of its last transaction.
pub(crate) fn counter(client: u64) -> Key {
    Key::new(0, COUNTER, client)
}

/// The value of a key in a table, and the content of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Vec<u8>,
    /// Names the content of an extent's blocks.
    pub(crate) stamp: u64,
}

impl Stored {
    pub(crate) fn plain(value: Vec<u8>) -> Stored {
        Stored { value, stamp: 0 }
    }

    pub(crate) fn extent(&self, key: Key) -> Option<Extent> {
        (key.kind == EXTENT).then(|| Extent::parse(&self.value).expect("the model's own"))
    }
}

/// Block `index` of what is named by `stamp`.
pub(crate) fn content(stamp: u64, index: u32) -> Buf {
    let word = (stamp ^ u64::from(index) << 56).to_le_bytes();
    let mut buf = Buf::zeroed(1);
    buf.make_mut().chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&word));
    buf
}

pub(crate) fn holds(block: &[u8], stamp: u64, index: u32) -> bool {
    assert_eq!(block.len(), BLOCK_BYTES);
    let word = (stamp ^ u64::from(index) << 56).to_le_bytes();
    block.chunks_exact(8).all(|found| found == word)
}

pub(crate) type State = BTreeMap<Key, Stored>;

/// One transaction: the new values of the keys that it touched.
pub(crate) type Changes = Vec<(Key, Option<Stored>)>;

/// The external knowledge of a pool. Transactions are numbered from 1, in the order in which they
/// were applied.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// The state after transaction `settled`, and the transactions since.
    base: State,
    settled: u64,
    log: Vec<(Txg, Changes)>,
    pub(crate) now: State,
    /// Everything up to this transaction was acknowledged as durable.
    pub(crate) synced: u64,
    /// And so was this txg, with all that was in it.
    synced_txg: Option<Txg>,
    /// Ids that the pool gave out, ever (rule R9).
    pub(crate) ids: BTreeSet<u64>,
    /// Blocks of data that were damaged on purpose.
    pub(crate) spoiled: BTreeSet<u64>,
}

impl World {
    pub(crate) fn next(&self) -> u64 {
        self.last() + 1
    }

    pub(crate) fn last(&self) -> u64 {
        self.settled + self.log.len() as u64
    }

    pub(crate) fn push(&mut self, txg: Txg, changes: Changes) -> u64 {
        apply(&mut self.now, &changes);
        self.log.push((txg, changes));
        self.last()
    }

    /// Transaction `n` was acknowledged as durable, in `txg`.
    pub(crate) fn sync(&mut self, txg: Txg, n: u64) {
        self.synced = self.synced.max(n);
        self.synced_txg = self.synced_txg.max(Some(txg));
    }

    /// The pool knows `txg` to be durable, even if no client has received its answer.
    pub(crate) fn know_durable(&mut self, txg: Txg) {
        let count = self.log.partition_point(|(of, _)| *of <= txg) as u64;
        self.sync(txg, self.settled + count);
    }

    /// So was all that has happened.
    pub(crate) fn sync_all(&mut self) {
        if let Some((txg, _)) = self.log.last() {
            self.sync(*txg, self.last());
        }
    }

    /// The state after transaction `n`.
    pub(crate) fn state_at(&self, n: u64) -> State {
        let mut state = self.base.clone();
        let count = (n - self.settled) as usize;
        self.log[..count].iter().for_each(|(_, changes)| apply(&mut state, changes));
        state
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Recovery has settled on the state after transaction `n`: nothing later has ever been.
    pub(crate) fn settle(&mut self, n: u64) {
        self.base = self.state_at(n);
        self.now = self.base.clone();
        (self.settled, self.synced) = (n, n);
        self.log.clear();
    }

    /// Extents that transactions after `n` brought.
    pub(crate) fn extents_since(&self, n: u64) -> Vec<Run> {
        let skip = n.saturating_sub(self.settled) as usize;
        extents(&self.log[skip..])
    }

    /// Extents that the last txgs brought, so many of them.
    pub(crate) fn extents_of_last(&self, txgs: usize) -> Vec<Run> {
        let all: BTreeSet<Txg> = self.log.iter().map(|(txg, _)| *txg).collect();
        let skip = all.len().saturating_sub(txgs);
        let Some(first) = all.into_iter().nth(skip) else { return Vec::new() };
        extents(&self.log[self.log.partition_point(|(txg, _)| *txg < first)..])
    }

    /// Extents that came in txgs of which nothing was acknowledged.
    pub(crate) fn extents_of_doubt(&self) -> Vec<Run> {
        let skip = self.log.partition_point(|(txg, _)| Some(*txg) <= self.synced_txg);
        let (known, doubtful) = self.log.split_at(skip);
        // A part of an extent that was there before is nothing new.
        let base = self.base.iter().filter_map(|(key, stored)| stored.extent(*key));
        let base = base.map(|extent| extent.pointer.run);
        let old: BTreeSet<u64> = base.chain(extents(known)).map(|run| run.addr.block()).collect();
        let new = extents(doubtful).into_iter();
        new.filter(|run| !old.contains(&run.addr.block())).collect()
    }
}

fn extents(log: &[(Txg, Changes)]) -> Vec<Run> {
    let changes = log.iter().flat_map(|(_, changes)| changes);
    let extents = changes.filter_map(|(key, to)| to.as_ref().and_then(|to| to.extent(*key)));
    extents.map(|extent| extent.pointer.run).collect()
}

fn apply(state: &mut State, changes: &Changes) {
    for (key, to) in changes {
        match to {
            Some(stored) => drop(state.insert(*key, stored.clone())),
            None => drop(state.remove(key)),
        }
    }
}

/// The world and the locks that its clients take.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) world: Mutex<World>,
    pub(crate) objects: [FifoMutex; OBJECTS as usize],
}

impl Shared {
    /// Fresh locks: their former holders have ended.
    pub(crate) fn with(world: World) -> Shared {
        Shared { world: Mutex::new(world), ..Shared::default() }
    }
}
