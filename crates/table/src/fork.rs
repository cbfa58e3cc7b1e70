//! Forking: tables that begin with the content of another one.
//!
//! Problem.  The cost of a snapshot must not depend on the size of its content, nor on the
//!           unflushed part of it.
//! Idea.     The table that was forked takes no edits any more and lies *under* its children. A
//!           child has edits, and no base: keys without an edit are read from the table under it.
//!           When that is settled (all in its bases, nothing under it), the child *adopts* its
//!           partitions.
//!
//! TABFORK-K1  A table with another one under it has one partition without a base, and is not
//!             flushed; so the table under it is flushed first.
//! TABFORK-K2  A table under another one never changes but by being flushed and by adopting.
//! TABFORK-K3  A table without edits that itself lies over another one is passed over: its
//!             children lie over that other one. So the depth is that of tables with unflushed
//!             edits (R29). Adoption first prevents flushes there ([`Table::stand_still`]), even
//!             of layers: a flush would release nodes that by then are the children's.
//! TABFORK-K5  Tables that adopt one by one are not all behind the table when a crash comes. So
//!             the first of them finds it *sealed*: its descriptors say that all of its edits are
//!             in its bases, and replay brings none back, whose flush would release nodes that
//!             others have adopted.
//! TABFORK-K4  A child replays all of its edits in the log, for any adopted partitions (TABLE-T3).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use copyhold_types::{Key, TableId, Txg};

use crate::delta::Weight;
use crate::flush::DescriptorEdit;
use crate::partition::{Partition, PartitionState, Partitions};
use crate::settled::{Descent, Settled};
use crate::table::Table;

impl Table {
    /// A table that continues `parent`, which takes no edits from now on.
    pub fn over(parent: &Arc<Table>, id: TableId) -> Table {
        let (child, under) = (Table::new(id, parent.limits()), parent.fork_point());
        let is_passed_over = under.id() != parent.id();
        let descent = parent.read_partitions().descent;
        let mut partitions = child.write_partitions();
        partitions.under = Some(under);
        // It continues what the parent was a snapshot of.
        partitions.descent = if is_passed_over { descent } else { Descent::Continues };
        drop(partitions);
        child
    }

    /// As [`Self::over`], beside the table that continues (LAYERS-L3).
    pub fn snapshot(parent: &Arc<Table>, id: TableId) -> Table {
        let child = Table::over(parent, id);
        child.write_partitions().descent = Descent::Snapshot;
        child
    }

    /// The table under the children of this table: itself, or the one under it if it adds nothing
    /// (TABFORK-K3).
    pub fn fork_point(self: &Arc<Table>) -> Arc<Table> {
        match self.under() {
            Some(under) if self.has_no_edits() => under,
            _ => self.clone(),
        }
    }

    /// The table under this one, if it has no base of its own yet.
    pub fn under(&self) -> Option<Arc<Table>> {
        self.read_partitions().under.clone()
    }

    /// Puts a recovered table over the table that it was forked from.
    pub fn lay_over(&self, under: Arc<Table>) {
        let mut partitions = self.write_partitions();
        assert!(partitions.iter().count() == 1, "TABFORK-K1: {} has bases of its own", self.id());
        partitions.under = Some(under);
        partitions.descent = Descent::Recovered;
    }

    /// How many tables lie under this one.
    pub fn depth(&self) -> usize {
        self.under().map_or(0, |under| 1 + under.depth())
    }

    fn has_no_edits(&self) -> bool {
        let partitions = self.read_partitions();
        partitions.iter().all(|partition| {
            let state = partition.state.lock();
            state.delta.is_empty() && state.frozen.is_none()
        })
    }

    /// Whether all of the table is in bases of its own.
    pub fn is_settled(&self) -> bool {
        self.under().is_none() && self.has_no_edits()
    }

    /// Whether the table is settled, and stays it: then no flush of it begins any more. Its nodes
    /// are about to be those of the tables over it. One caller at a time.
    pub fn stand_still(&self) -> bool {
        let before = self.retired.swap(true, Ordering::AcqRel);
        // A merge of layers may have begun just before.
        let is_settled = self.is_settled();
        if !is_settled {
            self.retired.store(before, Ordering::Release);
        }
        is_settled
    }

    /// Records that the table is complete up to `txg`, in whose transaction the returned edits
    /// are: it is retired, so no edit of it can be newer (TABFORK-K5). Empty, if that was recorded
    /// before.
    pub fn seal(&self, txg: Txg) -> Vec<DescriptorEdit> {
        if self.sealed.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        for partition in self.read_partitions().iter() {
            let mut state = partition.state.lock();
            state.complete_to = state.complete_to.max(Some(txg));
        }
        self.tell_all()
    }

    /// The descriptors, as edits of the table of tables.
    fn tell_all(&self) -> Vec<DescriptorEdit> {
        let tell = |(partition, descriptor)| DescriptorEdit {
            table: self.id(),
            partition,
            descriptor: Some(descriptor),
        };
        self.descriptors().into_iter().map(tell).collect()
    }

    /// Takes over the partitions of the settled table under this one, which is retired, while the
    /// transaction that logs the returned edits is being applied. Never waits.
    ///
    /// Also returns the usage that is added to memory: its edits are in more partitions than
    /// before.
    pub fn adopt(&self) -> (Vec<DescriptorEdit>, Weight) {
        let mut partitions = self.write_partitions();
        let before = partitions.weight();
        let under = partitions.under.take().expect("TABFORK-K1: a table is forked from something");
        assert!(under.is_settled(), "TABFORK-K1: {} is not settled", under.id());
        let own = std::mem::take(partitions.get_mut(0).state.get_mut());
        assert!(
            own.frozen.is_none() && own.settled.base.root.is_none(),
            "TABFORK-K1: {} was flushed",
            self.id()
        );
        let mut delta = own.delta;
        let bases: Vec<(Key, Settled)> = {
            let of = under.read_partitions();
            let descent = partitions.descent;
            let settled = |partition: &Partition| partition.state.lock().settled.for_child(descent);
            of.iter().map(|partition| (partition.start, settled(partition))).collect()
        };
        let mut list = Vec::with_capacity(bases.len());
        for (id, (start, settled)) in bases.into_iter().enumerate().rev() {
            let delta = if id == 0 { std::mem::take(&mut delta) } else { delta.split_off(&start) };
            let state = PartitionState { settled, delta, ..PartitionState::default() };
            list.push(Partition::new(id as u64, start, state));
        }
        list.reverse();
        let owned = partitions.owned.take();
        *partitions = Partitions::new(list);
        partitions.owned = owned;
        let more = partitions.charged(partitions.weight() - before);
        drop(partitions);
        (self.tell_all(), more)
    }

    /// A partition has no items any more; the caller has released its nodes.
    pub fn empty_partition(&self, start: Key) {
        let partitions = self.read_partitions();
        let index = partitions.index_starting(start).expect("a partition starts there");
        partitions.get(index).state.lock().settled = Settled::default();
    }

    /// The edits of the table of tables when this table is gone.
    pub fn gone(&self) -> Vec<DescriptorEdit> {
        let told = self.descriptors().into_iter();
        told.map(|(partition, _)| DescriptorEdit { table: self.id(), partition, descriptor: None })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use copyhold_types::{EpochId, Kind};
    use proptest::prelude::*;

    use super::*;
    use crate::rest::tests::rest_and_open;
    use crate::store::{Sink, Store, block_on};
    use crate::{Edit, FreezePoint, Limits};

    const LIMITS: Limits = Limits { leaf_bytes: 4096, partition_leaves: 4, read_ahead: 2 };

    type Content = BTreeMap<u64, u8>;

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    fn flush(table: &Table, store: &Arc<Store>, edits_max: usize) {
        for stats in table.stats() {
            let point = FreezePoint {
                complete_to: Txg::FIRST,
                birth: Txg::FIRST.next(),
                own: EpochId::POOL,
                edits_max,
            };
            let Some(job) = table.freeze(stats.start, point) else { continue };
            let job = job.compacting();
            let spills = block_on(job.is_cheaper_to_spill(&**store));
            let flushed = match spills {
                true => block_on(job.spill(&**store, &mut Sink::new(store), u64::MAX)),
                false => block_on(job.merge(&**store, &mut Sink::new(store))),
            };
            table.install(job, flushed.unwrap());
        }
    }

    fn settle(table: &Table, store: &Arc<Store>) {
        if let Some(under) = table.under() {
            settle(&under, store);
            table.adopt();
        }
        // A sweep that is under way has to come round first.
        while !table.is_settled() {
            flush(table, store, 10_000);
        }
        table.check();
    }

    /// A flush of a table with layers could begin at any time, and release nodes of its children.
    #[test]
    fn no_flush_begins_of_what_is_about_to_be_adopted() {
        let store = Arc::<Store>::default();
        let table = Arc::new(Table::new(TableId(1), LIMITS));
        let point = FreezePoint {
            complete_to: Txg::FIRST,
            birth: Txg::FIRST.next(),
            own: EpochId::POOL,
            edits_max: 10_000,
        };
        table.apply(Txg::FIRST, key(1), Edit::Put((&[1][..]).into()));
        let edits = table.freeze(Key::MIN, point).expect("it has edits");
        assert!(!table.stand_still(), "a flush is under way");
        let layer = block_on(edits.spill(&*store, &mut Sink::new(&store), u64::MAX)).unwrap();
        table.install(edits, layer);
        let merge = table.freeze_layers(Key::MIN, point).expect("it has a layer");
        assert!(!table.stand_still(), "a merge is under way");
        table.abort(merge);

        let child = Table::over(&table, TableId(2));
        assert!(table.stand_still());
        assert!(table.freeze_layers(Key::MIN, point).is_none());
        child.adopt();
        assert!(child.freeze_layers(Key::MIN, point).is_some());
    }

    /// Every query returns the same result as the model.
    fn compare(table: &Table, store: &Arc<Store>, wanted: &Content) {
        let all = block_on(table.range(&**store, Key::MIN..Key::MAX, usize::MAX)).unwrap();
        let all: Content = all.iter().map(|(key, value)| (key.offset, value[0])).collect();
        assert_eq!(&all, wanted);
        for n in (0..120).step_by(7) {
            let found = block_on(table.get(&**store, key(n))).unwrap();
            assert_eq!(found.map(|value| value[0]), wanted.get(&n).copied());
            let last = block_on(table.last_below(&**store, key(n), key(0))).unwrap();
            let last = last.map(|(key, value)| (key.offset, value[0]));
            assert_eq!(last, wanted.range(..n).next_back().map(|(n, byte)| (*n, *byte)));
            let some = block_on(table.range(&**store, key(n)..key(120), 3)).unwrap();
            let some: Vec<u64> = some.iter().map(|(key, _)| key.offset).collect();
            let near: Vec<u64> = wanted.range(n..).take(3).map(|(n, _)| *n).collect();
            assert_eq!(some, near);
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(usize, u64, u8),
        Delete(usize, u64),
        Fork(usize),
        Flush(usize, usize),
        Settle(usize),
        Drop(usize),
        Rest(usize),
    }

    fn ops() -> impl Strategy<Value = Op> {
        let table = || any::<usize>();
        prop_oneof![
            8 => (table(), 0..120u64, any::<u8>()).prop_map(|(t, n, byte)| Op::Put(t, n, byte)),
            4 => (table(), 0..120u64).prop_map(|(t, n)| Op::Delete(t, n)),
            2 => table().prop_map(Op::Fork),
            2 => (table(), 1..40usize).prop_map(|(t, edits)| Op::Flush(t, edits)),
            1 => table().prop_map(Op::Settle),
            1 => table().prop_map(Op::Drop),
            3 => table().prop_map(Op::Rest),
        ]
    }

    proptest! {
        #[test]
        fn forked_tables_are_copies_that_live_on_by_themselves(
            ops in prop::collection::vec(ops(), 1..80)
        ) {
            let store = Arc::<Store>::default();
            let mut next = 10;
            let mut live = vec![(Arc::new(Table::new(TableId(9), LIMITS)), Content::new())];
            for op in ops {
                match op {
                    Op::Put(at, n, byte) => {
                        let at = at % live.len();
                        let (table, content) = &mut live[at];
                        table.apply(Txg::FIRST, key(n), Edit::put(vec![byte; 150]));
                        content.insert(n, byte);
                    }
                    Op::Delete(at, n) => {
                        let at = at % live.len();
                        let (table, content) = &mut live[at];
                        table.apply(Txg::FIRST, key(n), Edit::Delete);
                        content.remove(&n);
                    }
                    Op::Fork(at) if live.len() < 6 => {
                        let at = at % live.len();
                        let (parent, content) = live.remove(at);
                        for make in [Table::over, Table::snapshot] {
                            let child = Arc::new(make(&parent, TableId(next)));
                            next += 1;
                            live.push((child, content.clone()));
                        }
                    }
                    Op::Fork(_) => {}
                    // A table over another one cannot be flushed: the lowest table under it can.
                    Op::Flush(at, edits) => {
                        let table = &live[at % live.len()].0;
                        flush(&table.under().unwrap_or_else(|| table.clone()), &store, edits);
                    }
                    Op::Settle(at) => settle(&live[at % live.len()].0, &store),
                    Op::Drop(at) if live.len() > 1 => {
                        live.remove(at % live.len());
                    }
                    Op::Drop(_) => {}
                    Op::Rest(at) => {
                        let at = at % live.len();
                        rest_and_open(&mut live[at].0);
                    }
                }
            }
            for (table, content) in &live {
                compare(table, &store, content);
            }
            for (table, content) in &live {
                settle(table, &store);
                compare(table, &store, content);
            }
        }
    }

    #[test]
    fn a_table_without_edits_is_passed_over() {
        let root = Arc::new(Table::new(TableId(1), LIMITS));
        root.apply(Txg::FIRST, key(1), Edit::put(&[1]));
        let mut newest = Arc::new(Table::over(&root, TableId(2)));
        for id in 3..100 {
            newest = Arc::new(Table::over(&newest, TableId(id)));
        }
        assert_eq!(newest.depth(), 1);
        assert!(
            newest
                .freeze(
                    Key::MIN,
                    FreezePoint {
                        complete_to: Txg::FIRST,
                        birth: Txg::FIRST,
                        own: EpochId::POOL,
                        edits_max: 1
                    }
                )
                .is_none()
        );
    }
}
