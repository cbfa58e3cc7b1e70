//! The interface to the layer that knows the owner of each table.
//!
//! A flush writes nodes of some table's tree and releases others. Only the layer above knows their
//! owner, and whether a released node is still referenced by another tree (R4): the pool calls it
//! while the flush's transaction is applied, with all state of the decision locked.

use copyhold_runtime::BoxFuture;
use copyhold_table::Edit;
use copyhold_types::{EpochId, Key, NodePtr, Pointer, TableId, Txg};

use crate::Transaction;

/// Edits that one released pointer has credit for: rows of deadlists or of the shares, or pending
/// releases. A run has parts in two windows at most; where a snapshot holds all of each part, or
/// the sibling has dropped all of it, three edits are enough for it. A release that takes more
/// stays pending.
pub const EDITS_PER_RELEASE: usize = 6;
/// Bytes of the largest such edit: a pending release, 17 of key and 33 of value.
pub const RELEASE_EDIT_BYTES: usize = 50;

/// The layer above, as the pool sees it.
pub trait Tenancy: Send + Sync {
    /// The epoch that new nodes of `table` are stamped with.
    fn epoch(&self, table: TableId) -> EpochId;

    /// Nodes of this epoch and of newer ones are of no other table's tree.
    fn own_from(&self, table: TableId) -> EpochId;

    /// Runs `apply`, which joins the open txg, while the families of these tables are locked: the
    /// locks of the layer above come before the pool's.
    fn with_families_locked(
        &self,
        tables: &[TableId],
        apply: &mut dyn FnMut(&mut dyn NodeTurnover),
    );

    /// Edits that belong to a txg as a whole. Nothing is joined to any txg while it answers; it
    /// never waits.
    fn closing(&self, txg: Txg) -> Vec<(TableId, Key, Edit)>;

    /// Takes one bounded step that frees released space. False: nothing is left to do, or the step
    /// failed, which is logged.
    fn free_step(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }
}

/// Records the changes of a flush to a table's tree.
pub trait NodeTurnover {
    /// Adds to `tx` the consequences of the new nodes and of the released ones.
    fn turned_over(
        &mut self,
        table: TableId,
        written: &[NodePtr],
        replaced: &[NodePtr],
        tx: &mut Transaction,
    );
}

/// A pool without tenants: its nodes are its own, and a replaced one is free.
pub(crate) struct NoTenants;

impl Tenancy for NoTenants {
    fn epoch(&self, _: TableId) -> EpochId {
        EpochId::POOL
    }

    fn own_from(&self, _: TableId) -> EpochId {
        EpochId::POOL
    }

    fn with_families_locked(&self, _: &[TableId], apply: &mut dyn FnMut(&mut dyn NodeTurnover)) {
        apply(&mut NoTenants);
    }

    fn closing(&self, _: Txg) -> Vec<(TableId, Key, Edit)> {
        Vec::new()
    }
}

impl NodeTurnover for NoTenants {
    fn turned_over(
        &mut self,
        _: TableId,
        _: &[NodePtr],
        replaced: &[NodePtr],
        tx: &mut Transaction,
    ) {
        replaced.iter().for_each(|ptr| free_node(tx, ptr));
    }
}

/// Frees all copies of a node that only the pool references (rule R20).
pub fn free_node(tx: &mut Transaction, ptr: &NodePtr) {
    for run in ptr.runs() {
        tx.release(Pointer { run, epoch: EpochId::POOL, origin: EpochId::POOL });
    }
}
