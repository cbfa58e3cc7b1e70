//! Signatures that callers code against while the bodies are being written.
#![allow(unused_variables, dead_code)]

use std::sync::Arc;

use copyhold_device::{DeviceError, DynDevice};
use copyhold_runtime::Rt;
use copyhold_types::*;

pub use self::stub::{Claim, LaneClass, Reservation, Tier, Value};

/// Stand-ins with the shape that `table` and `space` will give them.
mod stub {
    use copyhold_types::Run;

    /// An item's value: short bytes, cheap to clone.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Value(pub Vec<u8>);
    impl std::ops::Deref for Value {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.0
        }
    }
    impl From<&[u8]> for Value {
        fn from(bytes: &[u8]) -> Value {
            Value(bytes.to_vec())
        }
    }

    /// Who may touch how much of the reserve (R21).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Tier {
        Write,
        Delete,
        DeleteSubvolume,
        Internal,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LaneClass {
        Data,
        Node,
        Sync,
    }

    /// Space promised: settle by claiming from it; dropping gives the rest back.
    #[must_use]
    #[derive(Debug)]
    pub struct Reservation {
        blocks: u64,
    }
    impl Reservation {
        pub fn blocks(&self) -> u64 {
            self.blocks
        }
        /// Takes `blocks` out into a reservation of its own.
        pub fn split(&mut self, blocks: u64) -> Reservation {
            self.blocks -= blocks;
            Reservation { blocks }
        }
        /// Adds `other` to this one.
        pub fn join(&mut self, mut other: Reservation) {
            self.blocks += std::mem::take(&mut other.blocks);
        }
    }

    /// A run taken from free space, not yet logged; a crash or a drop gives it back (R19).
    #[must_use]
    #[derive(Debug)]
    pub struct Claim {
        run: Run,
    }
    impl Claim {
        pub fn run(&self) -> Run {
            self.run
        }
    }
}

/// What can go wrong in a pool. `Clone`: one failure is told to many waiters.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    #[error("pool is full: {wanted} blocks wanted, {free} free, of which {reserve} are kept for \
             deletes; delete something or add space")]
    Full { wanted: u64, free: u64, reserve: u64 },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{what} is damaged: {why}")]
    Damaged { what: String, why: String },
    #[error("the pool is open read-only: {why}")]
    ReadOnly { why: String },
    #[error("the pool has stopped: {why}; nothing more is written, mount it again")]
    Stopped { why: String },
}

/// Where an edit of a table goes: put or delete.
#[derive(Default, Debug)]
pub struct Transaction {
    edits: Vec<(TableId, Key, Option<Value>)>,
    claims: Vec<Claim>,
    released: Vec<Pointer>,
    attached: Vec<(Run, Vec<Buf>)>,
}

impl Transaction {
    /// Most edits that one transaction may hold; larger work goes in steps (R28).
    pub const MAX_EDITS: usize = 1024;

    pub fn new() -> Transaction {
        Transaction::default()
    }
    pub fn put(&mut self, table: TableId, key: Key, value: impl Into<Value>) {
        self.edits.push((table, key, Some(value.into())));
    }
    pub fn delete(&mut self, table: TableId, key: Key) {
        self.edits.push((table, key, None));
    }
    /// Logs the allocation of what a pointer in this transaction refers to.
    pub fn allocate(&mut self, claim: Claim) {
        self.claims.push(claim);
    }
    /// Drops a reference. What that means is decided when the transaction is applied (R4).
    pub fn release(&mut self, pointer: Pointer) {
        self.released.push(pointer);
    }
    /// Data of a claimed run that the commit writes beside its batch (P12). Until the commit the
    /// caller keeps the bytes readable (they are not on the device).
    pub fn attach(&mut self, run: Run, data: Vec<Buf>) {
        self.attached.push((run, data));
    }
}

/// Log and metadata space obtained for one transaction.
#[must_use]
#[derive(Debug)]
pub struct Credit(());

/// While held, nothing that was referenced when it was taken is reused (R3).
#[derive(Debug)]
pub struct Pin(());

/// Numbers of which none is ever given out twice, also not after a crash (R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdSpace {
    Table,
    Epoch,
    Subvol,
    Inode(SubvolId),
}

/// Blocks, as statfs tells them.
#[derive(Clone, Copy, Debug)]
pub struct SpaceFigures {
    pub total: u64,
    pub free: u64,
    /// Usable by ordinary writes: free without the reserve and what is promised already.
    pub available: u64,
    /// Freed, but not yet allocatable.
    pub freeing: u64,
}

pub struct Pool {
    rt: Rt,
}

impl Pool {
    /// The pool's own table of subvolumes, epochs and settings.
    pub const SYSTEM: TableId = TableId(2);

    pub fn runtime(&self) -> &Rt {
        &self.rt
    }
    pub fn is_read_only(&self) -> bool {
        todo!()
    }
    pub fn pin(&self) -> Pin {
        todo!()
    }
    pub async fn get(&self, table: TableId, key: Key) -> Result<Option<Value>, PoolError> {
        todo!()
    }
    /// Items with `from <= key < to`, ascending, at most `limit`.
    pub async fn range(
        &self,
        table: TableId,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, PoolError> {
        todo!()
    }
    /// The last item with `floor <= key < below`.
    pub async fn last_below(
        &self,
        table: TableId,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>, PoolError> {
        todo!()
    }
    /// Promises `blocks` blocks; waits for space that is on its way before it refuses (R22).
    pub async fn reserve(&self, blocks: u64, tier: Tier) -> Result<Reservation, PoolError> {
        todo!()
    }
    /// As [`Self::reserve`], but never waits: `None` when it would have to.
    pub fn try_reserve(&self, blocks: u64, tier: Tier) -> Option<Reservation> {
        todo!()
    }
    /// Places `blocks` of an accepted reservation: as few runs as there are, in order.
    pub fn claim(&self, class: LaneClass, blocks: u64, from: &mut Reservation) -> Vec<Claim> {
        todo!()
    }
    pub async fn write(&self, run: Run, data: Vec<Buf>, why: Purpose) -> Result<(), PoolError> {
        todo!()
    }
    pub async fn read(&self, run: Run, why: Purpose) -> Result<Buf, PoolError> {
        todo!()
    }
    /// Obtains what a transaction of at most `edits` edits and `bytes` bytes of keys and values
    /// needs; waits when the log or the deltas are behind. Hold no credit while asking for one.
    pub async fn admit(&self, tier: Tier, edits: usize, bytes: usize) -> Result<Credit, PoolError> {
        todo!()
    }
    /// As [`Self::admit`], but never waits.
    pub fn try_admit(&self, tier: Tier, edits: usize, bytes: usize) -> Option<Credit> {
        todo!()
    }
    /// Joins the open txg and applies everything at once; never waits. Fails only when the pool
    /// has stopped, and then nothing was applied.
    pub fn apply(&self, credit: Credit, tx: Transaction) -> Result<Txg, PoolError> {
        todo!()
    }
    /// The txg that a transaction would join now.
    pub fn open_txg(&self) -> Txg {
        todo!()
    }
    /// The last txg that is durable.
    pub fn durable_txg(&self) -> Txg {
        todo!()
    }
    /// Waits until `txg` is durable; starts its commit if need be. One group, one flush (P12).
    pub async fn commit(&self, txg: Txg) -> Result<(), PoolError> {
        todo!()
    }
    /// Waits until `txg` is durable without hastening it (attached data waits so).
    pub async fn wait_durable(&self, txg: Txg) -> Result<(), PoolError> {
        todo!()
    }
    pub async fn next_id(&self, space: IdSpace) -> Result<u64, PoolError> {
        todo!()
    }
    /// A new, empty table. Its edits are logged like any other's; a table exists by having items.
    pub async fn new_table(&self) -> Result<TableId, PoolError> {
        todo!()
    }
    pub fn space(&self) -> SpaceFigures {
        todo!()
    }
    /// Discards free runs of at least `min_blocks`; blocks discarded.
    pub async fn trim(&self, min_blocks: u64) -> Result<u64, PoolError> {
        todo!()
    }
    /// Stops all writing at once; nothing after this reaches the device (GOINGDOWN).
    pub fn stop(&self, why: &str) {
        todo!()
    }
    pub async fn close(self: &Arc<Self>) -> Result<(), PoolError> {
        todo!()
    }
}

/// Opening needs a device only; see `Pool::open` when it lands.
pub async fn sketch(_: DynDevice) {}
