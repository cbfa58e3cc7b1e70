//! The pointers that a dying subvolume owns, released in key order and bounded steps.
//!
//! Its table is settled and does not change. All nodes below a node that is older than the
//! subvolume's first epoch are older, too: the walk skips them. A partition's own nodes are
//! released after its items, so that after a crash the cursor never leads to a freed node (R18).
//! Layers hide items of the base, so a partition with layers is read as a whole.
//!
//! A step is one transaction: releases, and the cursor behind them.

use std::sync::atomic::Ordering;

use copyhold_format::item::{EXTENT, Extent, Step, SubvolState};
use copyhold_format::node::PartitionDescriptor;
use copyhold_pool::{Pool, Transaction};
use copyhold_table::Table;
use copyhold_types::{Key, NodePtr, Pointer, Purpose};

use crate::deletion::put_step;
use crate::error::{Result, VolumeError};
use crate::family::Epoch;
use crate::nodes;
use crate::release::Release;
use crate::sabotage::Sabotage;
use crate::volumes::{Subvol, Volumes};

/// Extents that one step releases.
const EXTENTS_PER_STEP: usize = 256;
/// Items that are read at a time where layers hide others.
const ITEMS_PER_READ: usize = 1024;

/// Where a walk is: the partition, and the position behind it.
struct WalkPosition {
    /// Of so many partitions it is this one.
    index: usize,
    partitions: usize,
    id: u64,
    partition: PartitionDescriptor,
    end: Option<Key>,
}

/// The result of a step from its cursor on.
struct Found {
    owned: Vec<Pointer>,
    /// Where the next step begins; `None`: behind the partition.
    next: Option<Key>,
    /// How much of the partition lies behind, of how much.
    passed: (usize, usize),
}

impl Default for Found {
    fn default() -> Found {
        Found { owned: Vec::new(), next: None, passed: (1, 1) }
    }
}

impl Volumes {
    /// How far the deletion of a subvolume has come in its tree, in percent, where each partition
    /// counts the same, and in it each leaf. Behind it are only records and the drops of its
    /// relatives. `None`: it lives.
    pub fn walked_percent(&self, subvol: &Subvol) -> Option<u8> {
        let SubvolState::Dying(step) = subvol.item().state else { return None };
        Some(match step {
            Step::Settle => 0,
            Step::Walk(_) => subvol.walked.load(Ordering::Relaxed),
            Step::Absorb | Step::Rebury { .. } | Step::Forget { .. } => 100,
        })
    }

    pub(crate) async fn walk_step(&self, subvol: &Subvol, from: Key) -> Result<()> {
        let table = self.pool.table(subvol.files());
        let leaf = *(subvol.family.read_tree().leaf(subvol.id()))
            .ok_or(VolumeError::NoSubvolume(subvol.id()))?;
        let pin = self.pool.pin();
        let place = place(&table, from);
        let Found { owned, next, passed } = match place.partition.layers.is_empty() {
            _ if !place.has_owned(&leaf) => Found::default(),
            true => self.owned_below(&leaf, &place, from).await?,
            false => self.owned_merged(&leaf, &table, &place, from).await?,
        };
        let percent = place.percent(passed);
        let content = copyhold_format::item::Content::Data;
        let holder = leaf.id;
        let release = |pointer| Release { holder, pointer, content, count: 1 };
        let mut releases: Vec<Release> = owned.into_iter().map(release).collect();
        let mut tx = Transaction::new();
        let step = match (next, place.end) {
            (Some(next), _) => Step::Walk(next),
            (None, end) => {
                let owned = self.owned_nodes(&leaf, &table, &place).await?;
                let owned = self.pool.pieces_of(&owned).await?;
                releases.extend(owned.iter().flat_map(|ptr| nodes::releases(leaf.id, ptr)));
                place.tell_empty(&table, &mut tx);
                end.map_or(Step::Absorb, Step::Walk)
            }
        };
        drop(pin);
        let item = put_step(subvol, step, &mut tx);
        self.release_step(&subvol.family, &releases, tx).await?;
        if next.is_none() {
            table.empty_partition(place.partition.start);
        }
        subvol.walked.store(percent, Ordering::Relaxed);
        self.set_step(subvol, item);
        Ok(())
    }

    /// Owned extents under owned leaves.
    async fn owned_below(&self, leaf: &Epoch, place: &WalkPosition, from: Key) -> Result<Found> {
        let mut found = Found::default();
        let Some(root) = place.partition.root.filter(|root| leaf.owns(root.epoch)) else {
            return Ok(found);
        };
        let mut leaves = vec![(place.partition.start, root)];
        if place.partition.height > 0 {
            let inner = self.node(root, Purpose::Inner).await?;
            let inner =
                inner.as_inner().ok_or_else(|| self.damaged(root, "it is no inner node"))?;
            leaves = inner.iter().map(|child| (child.first, child.ptr)).collect();
        }
        for (n, (_, ptr)) in leaves.iter().enumerate() {
            // A child ends where the next begins.
            let end = leaves.get(n + 1).map(|next| next.0);
            if end.is_some_and(|end| end <= from) || !leaf.owns(ptr.epoch) {
                continue;
            }
            let node = self.node(*ptr, Purpose::Leaf).await?;
            let node = node.as_leaf().ok_or_else(|| self.damaged(*ptr, "it is no leaf"))?;
            let items = node.iter().enumerate();
            let is_due = |key: &Key| *key >= from && key.kind == EXTENT;
            for (at, (key, value)) in items.filter(|(_, (key, _))| is_due(key)) {
                found.add(leaf, key, &value.to_vec())?;
                let bounded = !self.ledger().breaks(Sabotage::OneStep);
                if bounded && found.owned.len() == EXTENTS_PER_STEP {
                    found.next = place.behind(key);
                    let len = node.iter().count();
                    found.passed = (n * len + at, leaves.len() * len);
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    async fn owned_merged(
        &self,
        leaf: &Epoch,
        table: &Table,
        place: &WalkPosition,
        from: Key,
    ) -> Result<Found> {
        let mut found = Found::default();
        let end = place.end.unwrap_or(Key::MAX);
        let items = self.pool.range(table.id(), from, end, ITEMS_PER_READ).await?;
        if items.len() == ITEMS_PER_READ {
            found.next = place.behind(items[ITEMS_PER_READ - 1].0);
            found.passed = (0, 1);
        }
        for (key, value) in items.iter().filter(|(key, _)| key.kind == EXTENT) {
            found.add(leaf, *key, value)?;
        }
        Ok(found)
    }

    /// Nodes of the partition's base and layers that the subvolume owns.
    async fn owned_nodes(
        &self,
        leaf: &Epoch,
        table: &Table,
        place: &WalkPosition,
    ) -> Result<Vec<NodePtr>> {
        if !place.has_owned(leaf) {
            return Ok(Vec::new());
        }
        let owns = |ptr: &NodePtr| leaf.owns(ptr.epoch);
        Ok(self.pool.nodes_of(table, place.partition.start, owns).await?)
    }

    async fn node(
        &self,
        ptr: NodePtr,
        why: Purpose,
    ) -> Result<std::sync::Arc<copyhold_format::node::Node>> {
        let nodes = self.pool.node_source();
        if let Some(node) = nodes.cached(&ptr) {
            return Ok(node);
        }
        Ok(nodes.read(ptr, why).await.map_err(copyhold_pool::PoolError::from)?)
    }

    fn damaged(&self, ptr: NodePtr, why: &str) -> VolumeError {
        let what = format!("{ptr:?}");
        copyhold_pool::PoolError::Damaged { what, why: why.into() }.into()
    }
}

impl WalkPosition {
    /// How much of the tree lies behind, with so much of this partition.
    fn percent(&self, (passed, all): (usize, usize)) -> u8 {
        ((self.index * all + passed) * 100 / (self.partitions * all)) as u8
    }

    /// Whether anything in it can be owned.
    fn has_owned(&self, leaf: &Epoch) -> bool {
        let PartitionDescriptor { root, layers, .. } = &self.partition;
        let mut roots = root.iter().chain(layers.iter().map(|layer| &layer.root));
        roots.any(|root| leaf.owns(root.epoch))
    }

    /// A read of this table after a crash meets no released nodes.
    fn tell_empty(&self, table: &Table, tx: &mut Transaction) {
        let PartitionDescriptor { start, complete_to, .. } = self.partition;
        let empty = PartitionDescriptor { complete_to, ..PartitionDescriptor::empty(start) };
        let key = PartitionDescriptor::key(table.id(), self.id);
        tx.put(Pool::TABLES, key, &empty.encode()[..]);
    }

    /// The key behind `key`, if it is in the partition.
    fn behind(&self, key: Key) -> Option<Key> {
        key.successor().filter(|next| self.end.is_none_or(|end| *next < end))
    }
}

impl Found {
    fn add(&mut self, leaf: &Epoch, key: Key, value: &[u8]) -> Result<()> {
        let wrong = |source| VolumeError::Record { key, source };
        let pointer = Extent::parse(value).map_err(wrong)?.pointer;
        if leaf.owns(pointer.epoch) {
            self.owned.push(pointer);
        }
        Ok(())
    }
}

/// The partition that has `from`.
fn place(table: &Table, from: Key) -> WalkPosition {
    let mut partitions = table.descriptors();
    partitions.sort_by_key(|(_, partition)| partition.start);
    let at = partitions.partition_point(|(_, partition)| partition.start <= from);
    let end = partitions.get(at).map(|(_, next)| next.start);
    let count = partitions.len();
    let (id, partition) = partitions.swap_remove(at - 1);
    WalkPosition { index: at - 1, partitions: count, id, partition, end }
}
