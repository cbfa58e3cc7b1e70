//! Nodes of subvolumes' tables: their owner when a flush writes them, and their release when a
//! flush drops them.
//!
//! A table of files belongs to an epoch for life. Its nodes are stamped with the number that the
//! epoch stamps, and released by it like data: another table may still refer to nodes that a
//! forked table's flush replaces. All other tables are the pool's own.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;

use copyhold_format::item::Content;
use copyhold_pool::{Edit, NodeTurnover, Pool, Tenancy, Transaction, free_node, unflushed};
use copyhold_runtime::BoxFuture;
use copyhold_types::{EpochId, Key, NodePtr, Pointer, SubvolId, TableId, Txg};

use crate::family::{Epoch, Family, FamilyId};
use crate::quota::Amount;
use crate::release::{Evaluation, Release};
use crate::snapshot_guard::refund;
use crate::stored::Stored;
use crate::volumes::{FamilyCell, Volumes, VolumesState};

/// Answers the pool.
pub(crate) struct Tenants(pub(crate) Arc<VolumesState>);

impl Tenancy for Tenants {
    fn epoch(&self, table: TableId) -> EpochId {
        self.0.epoch_of(table).map_or(EpochId::POOL, |epoch| epoch.current)
    }

    fn own_from(&self, table: TableId) -> EpochId {
        self.0.epoch_of(table).map_or(EpochId::POOL, |epoch| epoch.first)
    }

    fn with_families_locked(
        &self,
        tables: &[TableId],
        apply: &mut dyn FnMut(&mut dyn NodeTurnover),
    ) {
        let Some(pool) = self.0.pool.upgrade() else { return };
        let homes: BTreeMap<TableId, (Arc<FamilyCell>, EpochId)> = {
            let map = self.0.map.read();
            let home = |table| map.tables.get(table).map(|home| (*table, home.clone()));
            tables.iter().filter_map(home).collect()
        };
        let cells: BTreeMap<FamilyId, &Arc<FamilyCell>> =
            homes.values().map(|(family, _)| (family.id, family)).collect();
        let trees: BTreeMap<_, _> =
            cells.iter().map(|(id, family)| (*id, family.read_tree())).collect();
        let _burials: Vec<_> = cells.values().map(|family| family.lock_burial()).collect();
        // Nodes are never shared by reflink.
        let look = Stored { pool: &pool, sharing: false, _shares_lock: None, kept: None };
        let evaluations = trees
            .iter()
            .map(|(id, tree)| (*id, Evaluation::new(tree, &look).within_credit()))
            .collect();
        let settled = BTreeSet::new();
        let state = &*self.0;
        apply(&mut Turnover { state, pool: &pool, homes: &homes, evaluations, settled });
    }

    fn closing(&self, txg: Txg) -> Vec<(TableId, Key, Edit)> {
        let rows = self.0.ledger.hold_back(self.0.ledger.closing(txg));
        rows.into_iter().map(|(key, edit)| (Pool::SYSTEM, key, edit)).collect()
    }

    fn free_step(&self) -> BoxFuture<'_, bool> {
        let Some(pool) = self.0.pool.upgrade() else { return Box::pin(ready(false)) };
        let volumes = Volumes { pool, state: self.0.clone() };
        Box::pin(async move { volumes.free_step().await })
    }
}

impl VolumesState {
    /// The epoch whose files the table has; none: it is the pool's own.
    fn epoch_of(&self, table: TableId) -> Option<Epoch> {
        let (family, epoch) = self.map.read().tables.get(&table).cloned()?;
        let tree = family.read_tree();
        tree.get(epoch).copied()
    }
}

/// The turnover of one flush, with the families of its tables held still.
struct Turnover<'a> {
    state: &'a VolumesState,
    pool: &'a Pool,
    homes: &'a BTreeMap<TableId, (Arc<FamilyCell>, EpochId)>,
    evaluations: BTreeMap<FamilyId, Evaluation<'a>>,
    /// Tables of which it is known how much the flush has merged.
    settled: BTreeSet<TableId>,
}

impl NodeTurnover for Turnover<'_> {
    fn turned_over(
        &mut self,
        table: TableId,
        written: &[NodePtr],
        replaced: &[NodePtr],
        tx: &mut Transaction,
    ) {
        for ptr in written {
            let bytes = ptr.runs().map(|run| run.bytes()).sum();
            let ledger = &self.state.ledger;
            ledger.report_miscount(ledger.charge(ptr.epoch, Amount::metadata(bytes), None));
        }
        let Some((family, holder)) = self.homes.get(&table) else {
            return replaced.iter().for_each(|ptr| free_node(tx, ptr));
        };
        let evaluation = self.evaluations.get_mut(&family.id).expect("its family is held");
        for release in replaced.iter().flat_map(|ptr| releases(*holder, ptr)) {
            // The transaction is being applied: contradictory space stays allocated, and a check
            // finds it.
            if let Err(damage) = evaluation.release(release) {
                tracing::error!("{damage}; run `copyhold check`");
            }
        }
        let freed = self.state.decided(self.pool, evaluation.take(), tx);
        freed.iter().for_each(|freed| refund(self.state, freed));
        // The tree is held already; to take it a second time would be to wait behind a writer.
        if let Some(epoch) = evaluation.family().get(*holder)
            && self.settled.insert(table)
        {
            // A round takes all partitions of a table that are frozen.
            let stats = self.pool.table(table).stats();
            let merged: usize = stats.iter().map(|stats| stats.frozen_bytes).sum();
            let left: usize = stats.iter().map(|stats| stats.delta_bytes).sum();
            let family = evaluation.family();
            let others = unflushed_of(self.pool, family, epoch.subvol, &self.settled);
            self.state.ledger.flushed(epoch.subvol, merged as u64, left as u64 + others);
        }
    }
}

/// Bytes of a subvolume's unflushed edits: in the table of its files, and in those under it that
/// were its own before it was snapshotted; but for those in `settled`. The climb ends behind its
/// own epochs (FAMILY-F4), however many snapshots there are above.
pub(crate) fn unflushed_of(
    pool: &Pool,
    family: &Family,
    subvol: SubvolId,
    settled: &BTreeSet<TableId>,
) -> u64 {
    let Some(leaf) = family.leaf(subvol) else { return 0 };
    let above = |of: &Epoch| {
        let parent = of.parent.and_then(|parent| family.get(parent));
        parent.filter(|of| of.subvol == subvol)
    };
    let (files, mut at) = unflushed(pool, leaf.table);
    let mut bytes = if settled.contains(&leaf.table) { 0 } else { files as u64 };
    let mut epoch = above(leaf);
    while let (Some(table), Some(of)) = (at, epoch) {
        // Sealed epochs that are handed over have no table any more.
        if table.id() == of.table {
            let counts = !settled.contains(&table.id());
            bytes += if counts { table.unflushed_bytes() as u64 } else { 0 };
            at = table.under();
        } else {
            at = Some(table);
        }
        epoch = above(of);
    }
    bytes
}

/// The releases of a node that is dropped: each of its copies.
pub(crate) fn releases(holder: EpochId, ptr: &NodePtr) -> impl Iterator<Item = Release> + use<> {
    let epoch = ptr.epoch;
    ptr.runs().map(move |run| {
        let pointer = Pointer { run, epoch, origin: epoch };
        Release { holder, pointer, content: Content::Node, count: 1 }
    })
}
