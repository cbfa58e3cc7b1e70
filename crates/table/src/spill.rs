//! Spilling: frozen edits become a layer, a sorted run over the base, which is not read.
//!
//! A new layer takes in the newest ones that are together not larger than it, and so many that no
//! more than [`LAYERS_WANTED`] are left; so their sizes are like the digits of a counter, and each
//! edit is written a few times, however long the base cannot be merged into. Deletes stay: a layer
//! or the base below may have the key.
//!
//! SPILL-S1  Layers are taken in from the newest on, without a gap (LAYERS-L1).
//! SPILL-S2  A layer that cannot be read, or for which there is no space while it is written anew,
//!           stays as it is, and so do those below it; above it there is room for more, up to what
//!           a descriptor can hold.

use copyhold_format::node::{
    Child, LAYERS_MAX, LayerDescriptor, LeafBuilder, Level, encode_edit, encode_inner,
};
use copyhold_types::{Key, NodePtr, Purpose, Txg};

use crate::delta::earlier;
use crate::edits::Edits;
use crate::flush::FlushJob;
use crate::merge::{Flushed, Part};
use crate::packer::Packer;
use crate::read_ahead::{ReadAhead, give_way};
use crate::settled::{Base, Tree};
use crate::source::InnerNode;
use crate::{NodeSink, NodeSource, TableError};

/// Layers of a partition, as far as they can be merged among themselves.
const LAYERS_WANTED: usize = 4;

/// Layers are merged as long as they have fewer leaves together.
const LEAVES_MAX: usize = 4096;

/// Layers are for less than one in so many items of the base.
const SHARE: u64 = 5;

/// And for edits that are fewer than one in so many items of the leaves that they touch.
const REWRITTEN: u64 = 4;

impl FlushJob {
    /// Whether a layer now and a merge later write less than a merge now (P4): the edits touch
    /// leaves with many more items, and all layers are small beside the base. Read errors are left
    /// to the merge.
    pub async fn is_cheaper_to_spill(&self, nodes: &dyn NodeSource) -> bool {
        let edits = self.frozen.len() as u64;
        if edits == 0 || self.is_merge_due() {
            return false;
        }
        if !self.settled.layers.is_empty() {
            return true;
        }
        match self.children(nodes).await {
            Ok(children) => {
                let items = self.touched(&children).map(|leaf| u64::from(leaf.items));
                items.sum::<u64>() >= edits * REWRITTEN
            }
            Err(_) => false,
        }
    }

    /// Whether a merge would copy leaves that other tables keep, long before it is due.
    pub fn is_in_vain(&self) -> bool {
        let base = self.settled.base.root;
        let is_shared = self.inherited() > 0 || base.is_some_and(|root| root.epoch < self.own);
        is_shared && !self.is_merge_due()
    }

    /// Whether the edits of this table itself are no small share of the base.
    fn is_merge_due(&self) -> bool {
        let own = self.settled.layers.edits() - self.inherited() + self.frozen.len() as u64;
        own * SHARE > self.settled.base.items
    }

    fn inherited(&self) -> u64 {
        self.settled.inherited(self.own)
    }

    /// The maximal size of a merge. Read errors are left to the merge.
    pub async fn merge_size(&self, nodes: &dyn NodeSource) -> MergeSize {
        let Ok(children) = self.children(nodes).await else { return MergeSize::default() };
        let (base, layers) = (self.settled.base.root, &self.settled.layers);
        let mut touched: Vec<&Child> = self.touched(&children).collect();
        let mut more = 0;
        if !layers.is_empty() {
            // It takes in all layers, which may touch any leaf, and fill as many as they have.
            touched = children.iter().collect();
            for layer in layers.iter() {
                more += 2 * self.size_of(nodes, layer).await.map_or(0, |size| size.leaves);
            }
        }
        let replaced = touched.iter().map(|leaf| leaf.ptr).chain(base);
        let mut replaced = replaced.chain(layers.iter().map(|layer| layer.root));
        // The first and last leaf may take in neighbours; the root is new, too.
        let edits = (2 * self.frozen.bytes()).div_ceil(self.limits.leaf_bytes);
        let leaves = touched.len() + more + 3 + edits;
        MergeSize { leaves, is_shared: replaced.any(|ptr| ptr.epoch < self.own) }
    }

    /// Nothing but layers to be merged.
    pub fn is_idle(&self) -> bool {
        self.frozen.is_empty()
    }

    /// The leaves that have edits.
    fn touched<'a>(&'a self, children: &'a [Child]) -> impl Iterator<Item = &'a Child> + 'a {
        let mut edits = self.frozen.range(..).map(|(key, _)| *key);
        let mut next = edits.next();
        children.iter().enumerate().filter_map(move |(n, child)| {
            let to = children.get(n + 1).map(|next| next.first);
            let is_here = |key: &Key| to.is_none_or(|to| *key < to);
            let touched = next.as_ref().is_some_and(is_here);
            if touched {
                next = edits.find(|key| !is_here(key));
            }
            touched.then_some(child)
        })
    }

    /// Makes a layer of the edits, for [`crate::Table::install`]; without edits, one layer of the
    /// newest of many. `room`: blocks of one copy that
    /// layers may take that are written anew, until the old ones are free.
    ///
    /// # Errors
    /// [`TableError::Partition`], when the layer cannot be written, or there is no place for it.
    /// Then the job is to be aborted, and the nodes in the sink are not needed.
    pub async fn spill(
        &self,
        nodes: &dyn NodeSource,
        sink: &mut dyn NodeSink,
        room: u64,
    ) -> Result<Flushed, TableError> {
        self.spilled(nodes, sink, room).await.map_err(|error| self.failed(error))
    }

    async fn spilled(
        &self,
        nodes: &dyn NodeSource,
        sink: &mut dyn NodeSink,
        room: u64,
    ) -> Result<Flushed, TableError> {
        let Base { root, height, items } = self.settled.base;
        let parts = vec![Part { start: self.start, root, height, items }];
        let layers = self.settled.layers.to_vec();
        let nothing = Flushed { parts, layers, replaced: vec![], written: vec![], leaves_read: 0 };
        if self.is_idle() && !self.compacts {
            return Ok(nothing);
        }
        let taken = self.readable(nodes, self.taken(), room).await;
        if self.is_idle() && taken < 2 {
            return Ok(nothing);
        }
        let (taken, kept) = nothing.layers.split_at(taken);
        if kept.len() == LAYERS_MAX {
            return Err(TableError::Layers { layers: kept.len() });
        }
        let edits = Edits::new(nodes, &self.frozen, taken, self.limits.read_ahead).await?;
        let replaced = edits.layer_nodes();
        let mut run = Run { job: self, sink, children: Vec::new(), written: Vec::new() };
        run.write_leaves(edits).await?;
        let layer = run.finish(self.first_txg(taken)).await?;
        let layers = [&[layer], kept].concat();
        Ok(Flushed { layers, replaced, written: run.written, ..nothing })
    }

    /// How many of the newest layers the new one takes in, if they can be read. Inherited ones stay
    /// as long as there is a place for the new one (LAYERS-L3).
    fn taken(&self) -> usize {
        let layers = &self.settled.layers;
        if self.compacts {
            return layers.len() - (LAYERS_WANTED - 1);
        }
        let inherited = self.inherited_layers();
        let own = layers.len() - inherited;
        let wanted = LAYERS_WANTED.min(LAYERS_MAX - inherited);
        let mut edits = self.frozen.len() as u64;
        let mut taken = 0;
        for layer in layers[..own].iter() {
            if layer.items > edits && own - taken < wanted {
                break;
            }
            edits += layer.items;
            taken += 1;
        }
        taken.max(layers.len().saturating_sub(LAYERS_MAX - 1))
    }

    /// How many of the oldest layers are inherited.
    fn inherited_layers(&self) -> usize {
        let (mut left, layers) = (self.inherited(), self.settled.layers.iter().rev());
        let is_inherited = |layer: &&LayerDescriptor| {
            let begins = left > 0;
            left = left.saturating_sub(layer.items);
            begins
        };
        layers.take_while(is_inherited).count()
    }

    /// How many of the newest `most` layers can be read, and are not too large together (SPILL-S2).
    async fn readable(&self, nodes: &dyn NodeSource, most: usize, room: u64) -> usize {
        let mut all = Size::default();
        for (n, layer) in self.settled.layers[..most].iter().enumerate() {
            let Ok(Size { leaves, blocks }) = self.size_of(nodes, layer).await else { return n };
            all = Size { leaves: all.leaves + leaves, blocks: all.blocks + blocks };
            if all.leaves > LEAVES_MAX || all.blocks > room {
                return n;
            }
        }
        most
    }

    /// Reads a whole layer.
    async fn size_of(
        &self,
        nodes: &dyn NodeSource,
        layer: &LayerDescriptor,
    ) -> Result<Size, TableError> {
        let blocks_of = |ptr: &NodePtr| u64::from(ptr.blocks) + 1;
        let leaves: Vec<NodePtr> = match Level::of_height(layer.height) {
            Level::Leaf => vec![layer.root],
            Level::Inner => {
                let inner = InnerNode::fetch(nodes, layer.root, Purpose::Layer).await?;
                inner.iter().map(|child| child.ptr).collect()
            }
        };
        let blocks = blocks_of(&layer.root) + leaves.iter().map(blocks_of).sum::<u64>();
        let size = Size { leaves: leaves.len(), blocks };
        let why = Tree::of(layer).purpose(Level::Leaf);
        let window = self.limits.read_ahead;
        let mut leaves = ReadAhead::new(nodes, why, window, leaves.into_iter());
        while let Some((_, leaf)) = leaves.next().await {
            leaf?;
        }
        Ok(size)
    }

    fn first_txg(&self, taken: &[LayerDescriptor]) -> Txg {
        let firsts = taken.iter().map(|layer| Some(layer.first_txg));
        let first = firsts.fold(self.frozen.oldest(), earlier);
        first.expect("LAYERS-L2: there are edits").min(self.birth)
    }
}

/// The size of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeSize {
    /// Leaves that it may write before any is freed, or as much.
    pub leaves: usize,
    /// It may replace shared nodes, too, which frees no space.
    pub is_shared: bool,
}

/// The size of layers.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    leaves: usize,
    /// Of one copy, were each node in fragments.
    blocks: u64,
}

/// A layer being written.
struct Run<'a> {
    job: &'a FlushJob,
    sink: &'a mut dyn NodeSink,
    children: Vec<Child>,
    written: Vec<NodePtr>,
}

impl Run<'_> {
    async fn write_leaves(&mut self, mut edits: Edits<'_>) -> Result<(), TableError> {
        let mut packer = Packer::new(self.job.limits.leaf_bytes);
        let (mut value, mut kind) = (Vec::new(), None);
        while let Some((key, edit)) = edits.next_before(None).await? {
            if kind.replace(key.kind) != Some(key.kind) {
                value.clear();
            }
            encode_edit(edit.value().map(|value| &value[..]), &mut value);
            packer.push(key, &value);
            if packer.has_full() {
                self.write_all(packer.take_full()).await?;
                give_way().await;
            }
        }
        self.write_all(packer.finish(true)).await
    }

    async fn write_all(&mut self, leaves: Vec<LeafBuilder>) -> Result<(), TableError> {
        for leaf in leaves {
            let ptr = self.sink.write(Purpose::Layer, leaf.finish(self.job.origin())).await?;
            self.written.push(ptr);
            self.children.push(Child { first: leaf.first(), ptr, items: leaf.items() as u32 });
        }
        Ok(())
    }

    async fn finish(&mut self, first_txg: Txg) -> Result<LayerDescriptor, TableError> {
        let items = self.children.iter().map(|child| u64::from(child.items)).sum();
        let (root, height) = match &self.children[..] {
            [] => panic!("LAYERS-L2: a layer has edits"),
            [leaf] => (leaf.ptr, 0),
            leaves => {
                let node = encode_inner(self.job.origin(), leaves);
                let root = self.sink.write(Purpose::Layer, node).await?;
                self.written.push(root);
                (root, 1)
            }
        };
        Ok(LayerDescriptor { root, height, items, first_txg, last_txg: self.job.birth })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use copyhold_types::{BlockAddr, EpochId, Kind, TableId};

    use super::*;
    use crate::settled::LAYERS_HANDED;
    use crate::store::{Sink, Store, block_on};
    use crate::{Cached, Edit, FreezePoint, Limits, PartitionStats, RecoveringTable, Table, Value};

    const LIMITS: Limits = Limits { leaf_bytes: 4096, partition_leaves: 64, read_ahead: 2 };

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    struct World {
        table: Table,
        store: Arc<Store>,
        txg: Txg,
    }

    impl World {
        /// Items 0, 10, 20 … 3990 in a base of many leaves.
        fn new() -> World {
            let table = Table::new(TableId(1), LIMITS);
            let mut world = World { table, store: Arc::default(), txg: Txg::FIRST };
            world.put((0..400).map(|n| n * 10), 1);
            world.flush(false);
            world
        }

        fn put(&mut self, keys: impl Iterator<Item = u64>, byte: u8) {
            keys.for_each(|n| self.table.apply(self.txg, key(n), Edit::put(vec![byte; 100])));
        }

        fn delete(&mut self, n: u64) {
            self.table.apply(self.txg, key(n), Edit::Delete);
        }

        fn job(&mut self) -> FlushJob {
            let complete_to = self.txg;
            self.txg = self.txg.next();
            let point =
                FreezePoint { complete_to, birth: self.txg, own: EpochId::POOL, edits_max: 10_000 };
            self.table.freeze(Key::MIN, point).unwrap()
        }

        /// Flushes to a layer or the base, and frees the replaced nodes; returns the numbers of
        /// replaced and of written nodes.
        fn flush(&mut self, spills: bool) -> (usize, usize) {
            let job = self.job();
            let mut sink = Sink::new(&self.store);
            let flushed = match spills {
                true => block_on(job.spill(&*self.store, &mut sink, u64::MAX)).unwrap(),
                false => block_on(job.merge(&*self.store, &mut sink)).unwrap(),
            };
            let nodes = (flushed.replaced.len(), flushed.written.len());
            flushed.replaced.iter().for_each(|ptr| self.store.free(ptr));
            self.table.install(job, flushed);
            self.table.check();
            nodes
        }

        fn layers(&self) -> Vec<u64> {
            let (_, descriptor) = self.table.descriptors().remove(0);
            descriptor.layers.iter().map(|layer| layer.items).collect()
        }

        fn get(&self, n: u64) -> Result<Option<Value>, TableError> {
            let found = block_on(self.table.get(&*self.store, key(n)));
            match (self.table.get_cached(&*self.store, key(n)), &found) {
                (Cached::Known(cached), Ok(found)) => assert_eq!(cached, *found),
                (Cached::Known(_), Err(error)) => panic!("cached, and {error}"),
                (Cached::Unknown, _) => {}
            }
            found
        }

        fn byte(&self, n: u64) -> Option<u8> {
            self.get(n).unwrap().map(|value| value[0])
        }

        /// No node of the base can be read from now on, or none of a layer.
        fn rot(&self, layer: Option<usize>) {
            let mut rotten: Vec<BlockAddr> = Vec::new();
            block_on(self.table.for_each_node(&*self.store, false, &mut |visit| {
                if visit.layer == layer {
                    rotten.extend(visit.ptr.copies[0]);
                }
            }));
            rotten.into_iter().for_each(|addr| self.store.set_rotten(addr));
        }
    }

    #[test]
    fn a_layer_lies_over_the_base_and_under_the_edits() {
        let mut world = World::new();
        world.put([10, 15, 30].into_iter(), 2);
        world.delete(20);
        assert_eq!(world.flush(true), (0, 1));
        world.put([30].into_iter(), 3);
        assert_eq!(world.layers(), [4]);
        assert_eq!([0, 10, 15, 20, 30].map(|n| world.byte(n)), [1, 2, 2, 0, 3].map(not_zero));
        let range = block_on(world.table.range(&*world.store, key(0)..key(45), 9)).unwrap();
        let range: Vec<_> = range.iter().map(|(key, value)| (key.offset, value[0])).collect();
        assert_eq!(range, [(0, 1), (10, 2), (15, 2), (30, 3), (40, 1)]);
        let last = |below| {
            let last = block_on(world.table.last_below(&*world.store, key(below), key(0)));
            last.unwrap().map(|(key, _)| key.offset)
        };
        assert_eq!([25, 16, 15, 11, 10].map(last), [15, 15, 10, 10, 0].map(Some));
        world.flush(false);
        assert_eq!((world.layers(), world.table.stats()[0].base_items), (vec![], 400));
    }

    fn not_zero(byte: u8) -> Option<u8> {
        (byte > 0).then_some(byte)
    }

    fn freeze(table: &Table, own: EpochId) -> FlushJob {
        let (complete_to, birth) = (Txg::new(50).unwrap(), Txg::new(51).unwrap());
        table.freeze(Key::MIN, FreezePoint { complete_to, birth, own, edits_max: 999 }).unwrap()
    }

    /// The layer that both have is not small beside the base: one more edit makes its merge due.
    #[test]
    fn a_snapshot_merges_when_its_own_edits_are_enough() {
        let mut world = World::new();
        world.put((0..80).map(|n| n * 50), 2);
        world.flush(true);
        let source = Arc::new(world.table);
        let children = [Table::over(&source, TableId(2)), Table::snapshot(&source, TableId(3))];
        children.iter().for_each(|child| drop(child.adopt()));
        let [next, snapshot] = children;
        let store = &*world.store;
        let put = |table: &Table, keys: std::ops::Range<u64>| {
            for n in keys {
                table.apply(Txg::new(50).unwrap(), key(n), Edit::put(&[3]));
            }
        };
        put(&next, 0..1);
        let job = freeze(&next, EpochId::POOL);
        assert!(!block_on(job.is_cheaper_to_spill(store)) && !job.is_in_vain());

        let mut own = 0;
        for (more, merges) in [(1, false), (40, false), (39, false), (1, true)] {
            put(&snapshot, own..own + more);
            own += more;
            let job = freeze(&snapshot, EpochId::POOL);
            assert_eq!(!block_on(job.is_cheaper_to_spill(store)), merges, "{own} edits");
            assert_eq!(!job.is_in_vain(), merges);
            let mut sink = Sink::new(&world.store);
            let spilled = block_on(job.spill(store, &mut sink, u64::MAX)).unwrap();
            assert_eq!(spilled.layers.last().unwrap().items, 80, "the inherited one stays");
            snapshot.install(job, spilled);
        }
    }

    /// Before a fork, of many layers few are made; with a layer that cannot be read, or without
    /// space, all stay as they are.
    #[test]
    fn a_compaction_makes_few_layers_or_changes_nothing() {
        let mut world = World::new();
        for n in 0..6 {
            world.put(n * 10..n * 10 + 3, 5);
            let job = world.job();
            let spilled = block_on(job.spill(&*world.store, &mut Sink::new(&world.store), 0));
            world.table.install(job, spilled.unwrap());
        }
        assert_eq!(world.layers().len(), 6);
        let compact = |world: &World, room: u64| {
            let (complete_to, birth) = (Txg::new(50).unwrap(), Txg::new(51).unwrap());
            let own = EpochId::POOL;
            let point = FreezePoint { complete_to, birth, own, edits_max: 999 };
            let job = world.table.freeze_layers(Key::MIN, point).unwrap().compacting();
            let mut sink = Sink::new(&world.store);
            let spilled = block_on(job.spill(&*world.store, &mut sink, room)).unwrap();
            let changed = !spilled.written.is_empty() || !spilled.replaced.is_empty();
            match changed {
                true => drop(world.table.install(job, spilled)),
                false => drop(world.table.abort(job)),
            }
            changed
        };
        assert!(!compact(&world, 0), "there is no space");
        assert!(compact(&world, u64::MAX));
        assert_eq!(world.layers().len(), LAYERS_WANTED);
        assert_eq!([0, 21, 52, 3].map(|n| world.byte(n)), [5, 5, 5, 0].map(not_zero));
        for n in 0..4 {
            world.put(n * 10 + 5..n * 10 + 6, 6);
            let job = world.job();
            let spilled = block_on(job.spill(&*world.store, &mut Sink::new(&world.store), 0));
            world.table.install(job, spilled.unwrap());
        }
        world.rot(Some(0));
        let before = world.layers();
        assert!(!compact(&world, u64::MAX), "the newest cannot be read");
        assert_eq!(world.layers(), before);
    }

    /// Each generation is a snapshot of the one before, with a layer of its own: their number and
    /// size are bounded, and no snapshot rewrites what it has inherited for one edit.
    #[test]
    fn a_hundred_generations_of_snapshots_keep_few_layers() {
        let mut world = World::new();
        let mut table =
            Arc::new(std::mem::replace(&mut world.table, Table::new(TableId(1), LIMITS)));
        let txg = Txg::new(50).unwrap();
        let flush = |table: &Table, store: &Arc<Store>, few: bool| {
            let with_edits = |stats: &PartitionStats| (stats.edits > 0).then_some(stats.start);
            let starts: Vec<Key> = table.stats().iter().filter_map(with_edits).collect();
            let flush_one = |start: Key| {
                let (birth, own) = (txg.next(), EpochId::POOL);
                let point = FreezePoint { complete_to: txg, birth, own, edits_max: 999 };
                let job = table.freeze(start, point).unwrap();
                let job = if few { job.compacting() } else { job };
                let flushed = match block_on(job.is_cheaper_to_spill(&**store)) {
                    true => block_on(job.spill(&**store, &mut Sink::new(store), u64::MAX)),
                    false => block_on(job.merge(&**store, &mut Sink::new(store))),
                };
                let flushed = flushed.unwrap();
                let written = flushed.written.len();
                table.install(job, flushed);
                written
            };
            starts.into_iter().map(flush_one).sum::<usize>()
        };
        for generation in 0..100_u64 {
            for n in 0..60 {
                table.apply(txg, key(generation * 1000 + n * 7), Edit::put(&[9; 100]));
            }
            flush(&table, &world.store, true);
            for PartitionStats { layers, layer_edits, base_items, .. } in table.stats() {
                assert!(layers <= LAYERS_HANDED, "{generation}: {layers} layers");
                let most = base_items + base_items / 2;
                assert!(layer_edits <= most, "{generation}: {layer_edits} edits, {base_items}");
            }
            let clone = Table::snapshot(&table, TableId(1000 + generation));
            drop(clone.adopt());
            clone.apply(txg, key(1), Edit::put(&[1]));
            assert!(flush(&clone, &world.store, false) <= 2, "{generation}: one leaf of its own");
            let next = Table::snapshot(&table, TableId(2 + generation));
            drop(next.adopt());
            table = Arc::new(next);
        }
    }

    /// After a mount, the layers with nodes of others are inherited, up to the size of the base.
    #[test]
    fn after_a_mount_layers_count_as_inherited_up_to_the_size_of_the_base() {
        let mut world = World::new();
        world.put((0..80).map(|n| n * 50), 2);
        world.flush(true);
        let recover = |world: &World| {
            let mut recovering = RecoveringTable::new(TableId(1));
            recovering.apply(Txg::new(50).unwrap(), key(3), Edit::put(&[3]));
            recovering.finish(LIMITS, world.table.descriptors()).unwrap()
        };
        let is_in_vain = |table: &Table, own| freeze(table, own).is_in_vain();
        assert!(!is_in_vain(&recover(&world), EpochId::POOL), "it is this table's alone");
        assert!(is_in_vain(&recover(&world), EpochId(u64::MAX)));
        world.put((0..500).map(|n| n * 8), 2);
        world.flush(true);
        assert!(!is_in_vain(&recover(&world), EpochId(u64::MAX)), "it is larger than the base");
    }

    #[test]
    fn layers_come_back_after_a_crash_and_the_log_is_free_of_their_edits() {
        let mut world = World::new();
        world.put(0..5, 2);
        world.flush(true);
        assert_eq!(world.table.pin(), None);
        world.put(3..4, 3);
        let mut recovering = RecoveringTable::new(TableId(1));
        recovering.apply(Txg::FIRST, key(0), Edit::put(vec![9; 100]));
        recovering.apply(world.txg, key(3), Edit::put(vec![3; 100]));
        world.table = recovering.finish(LIMITS, world.table.descriptors()).unwrap();
        assert_eq!([0, 3, 4, 10].map(|n| world.byte(n)), [2, 3, 2, 1].map(Some));
    }

    #[test]
    fn what_a_layer_or_an_edit_has_is_known_although_the_base_cannot_be_read() {
        let mut world = World::new();
        world.put([10, 15].into_iter(), 2);
        world.delete(20);
        world.flush(true);
        world.put([17].into_iter(), 3);
        world.rot(None);
        assert_eq!([10, 15, 17, 20].map(|n| world.byte(n)), [2, 2, 3, 0].map(not_zero));
        assert!([0, 11].iter().all(|n| world.get(*n).is_err()), "only the base has these");
        let range = |from, to| block_on(world.table.range(&*world.store, key(from)..key(to), 9));
        let last = |to| block_on(world.table.last_below(&*world.store, key(to), key(0)));
        for n in [10, 15, 17] {
            assert_eq!(range(n, n + 1).unwrap().len(), 1);
            assert_eq!(last(n + 1).unwrap().unwrap().0, key(n));
        }
        assert!(range(20, 21).unwrap().is_empty());
        assert!(range(10, 12).is_err() && last(12).is_err() && last(21).is_err());
    }

    #[test]
    fn the_number_of_layers_is_bounded_and_their_sizes_are_like_digits() {
        let mut world = World::new();
        world.rot(None);
        let mut written = 0;
        for round in 0..64u64 {
            world.put((0..100).map(|n| 10_000 + round * 100 + n), 7);
            written += world.flush(true).1;
            assert!(world.layers().len() <= LAYERS_WANTED);
            assert_eq!(world.layers().iter().sum::<u64>(), (round + 1) * 100);
        }
        assert_eq!(world.layers(), [6400]);
        // 6400 edits are in about 190 leaves, and each was written at most seven times.
        assert!(written < 190 * 7 + 100, "{written} nodes");
        world.store.heal();
        world.flush_nothing_but_layers();
        assert_eq!((world.byte(16_399), world.byte(0)), (Some(7), Some(1)));
    }

    impl World {
        fn flush_nothing_but_layers(&mut self) {
            self.put([0].into_iter(), 1);
            self.flush(false);
            assert_eq!(self.layers(), [0; 0]);
        }
    }

    #[test]
    fn layers_that_cannot_be_read_stay_and_new_ones_lie_above_them() {
        let mut world = World::new();
        for bad in 0..LAYERS_MAX as u64 - 1 {
            world.put((0..100).map(|n| 10_000 + bad * 100 + n), 7);
            world.flush(true);
            world.rot(Some(0));
            assert_eq!(world.layers().len() as u64, bad + 1);
        }
        for round in 0..20 {
            world.put((0..30).map(|n| 20_000 + n), round);
            world.flush(true);
            assert_eq!(world.layers().len(), LAYERS_MAX);
            assert_eq!(world.byte(20_029), Some(round));
        }
        assert!(world.get(10_000).is_err() && world.get(5).is_err());
        world.rot(Some(0));
        world.put(0..1, 9);
        let job = world.job();
        let full = block_on(job.spill(&*world.store, &mut Sink::new(&world.store), u64::MAX));
        assert!(full.unwrap_err().to_string().contains("keys from"));
        world.table.abort(job);
        assert_eq!(world.byte(0), Some(9), "it stays in the delta, and pins the log");
        world.store.heal();
        world.flush_nothing_but_layers();
        assert_eq!((world.byte(10_000), world.byte(20_000)), (Some(7), Some(19)));
    }

    #[test]
    fn few_edits_for_many_leaves_are_cheaper_to_spill_until_they_are_a_fifth_of_the_base() {
        let mut world = World::new();
        let cheaper = |world: &mut World| {
            let job = world.job();
            let cheaper = block_on(job.is_cheaper_to_spill(&*world.store));
            world.table.abort(job);
            cheaper
        };
        world.put((0..30).map(|n| n * 130), 2);
        assert!(cheaper(&mut world), "an edit for each leaf");
        world.put((0..30).map(|n| n * 130 + 3), 2);
        assert!(cheaper(&mut world));
        world.put((0..30).map(|n| n * 130 + 7), 2);
        assert!(!cheaper(&mut world), "90 of 400");
        world.flush(false);
        world.put(4000..4030, 2);
        assert!(!cheaper(&mut world), "all in one leaf");
        world.put((0..2).map(|n| n * 500), 2);
        assert!(!cheaper(&mut world), "all but two");
    }
}
