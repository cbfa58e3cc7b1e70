//! The table against a `BTreeMap`: random histories in which edits, readers, flushes and crashes
//! interleave, over small leaves and partitions, so that both split and merge all the time; nodes
//! become unreadable and readable again, and flushes go to layers by choice and for need.
//!
//! A reader's results are compared with the values that each key had while it ran; without edits
//! in between that is exact.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_format::node::LAYERS_MAX;
use copyhold_format::node::PartitionDescriptor;
use copyhold_types::{EpochId, Key, Kind, NodePtr, TableId, Txg};
use proptest::prelude::*;

use crate::rest::tests::rest_and_open;
use crate::store::{Sink, Store, block_on};
use crate::{
    Edit, FlushJob, Flushed, FreezePoint, Limits, RecoveringTable, Table, TableError, Value, Weight,
};

/// Leaves of one block split often; leaves of several blocks join, too.
const SMALL: Limits = Limits { leaf_bytes: 4096, partition_leaves: 4, read_ahead: 3 };
const LARGE: Limits = Limits { leaf_bytes: 12 << 10, partition_leaves: 3, read_ahead: 2 };
const ID: TableId = TableId(5);

#[derive(Clone, Debug)]
enum Op {
    Put(Key, Vec<u8>),
    /// So many keys from one on, every so many, with values of one length.
    Fill(Key, u64, u64, usize),
    Delete(Key),
    DeleteAll(Key, Key),
    Get(Key),
    Range(Key, Key, usize),
    LastBelow(Key, Key),
    /// One of the partitions; at most so many edits.
    Flush(usize, usize, How),
    /// One of the nodes cannot be read, wherever it is.
    Rot(usize),
    Heal,
    /// Lets one of the tasks continue.
    Step(usize),
    Failing(bool),
    Slow(u64),
    CloseTxg,
    Crash,
    /// Puts the table to rest, if it may, and opens it.
    Rest,
}

/// Where a flush goes, unless the base cannot be read.
#[derive(Clone, Copy, Debug)]
enum How {
    Merge,
    Spill,
    AsIsCheaper,
    /// Merges layers, edits or not.
    Layers,
}

fn keys() -> impl Strategy<Value = Key> {
    (0..3u64, prop_oneof![Just(1u8), Just(16)], 0..150u64)
        .prop_map(|(object, kind, offset)| Key::new(object, Kind(kind), offset))
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..60usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        1 => (0..1500usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        1 => Just(vec![3; 9000]),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (keys(), values()).prop_map(|(key, value)| Op::Put(key, value)),
        4 => (keys(), 1..150u64, 1..3u64, 0..300usize)
            .prop_map(|(key, count, every, len)| Op::Fill(key, count, every, len)),
        3 => keys().prop_map(Op::Delete),
        1 => (keys(), keys()).prop_map(|(a, b)| Op::DeleteAll(a.min(b), a.max(b))),
        4 => keys().prop_map(Op::Get),
        3 => (keys(), keys(), 0..40usize)
            .prop_map(|(a, b, limit)| Op::Range(a.min(b), a.max(b), limit)),
        4 => (keys(), keys()).prop_map(|(a, b)| Op::LastBelow(a.max(b), a.min(b))),
        8 => (0..8usize, prop_oneof![Just(10_000usize), 1..60usize], hows())
            .prop_map(|(partition, edits, how)| Op::Flush(partition, edits, how)),
        1 => any::<usize>().prop_map(Op::Rot),
        1 => Just(Op::Heal),
        10 => any::<usize>().prop_map(Op::Step),
        1 => any::<bool>().prop_map(Op::Failing),
        1 => (0..3u64).prop_map(Op::Slow),
        3 => Just(Op::CloseTxg),
        1 => Just(Op::Crash),
        3 => Just(Op::Rest),
    ]
}

fn hows() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Merge), Just(How::Spill), Just(How::AsIsCheaper), Just(How::Layers)]
}

type Items = BTreeMap<Key, Vec<u8>>;
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum Task {
    Read { query: Query, since: usize, read: Boxed<Result<Vec<(Key, Value)>, TableError>> },
    Flush(Boxed<(FlushJob, Sink, Result<Flushed, TableError>)>),
}

#[derive(Clone, Copy, Debug)]
enum Query {
    Get(Key),
    Range(Key, Key, usize),
    LastBelow(Key, Key),
}

/// The durable state at the end of a txg.
#[derive(Clone, Default)]
struct Durable {
    items: Items,
    descriptors: BTreeMap<u64, PartitionDescriptor>,
    log_from: u64,
}

struct World {
    limits: Limits,
    table: Arc<Table>,
    store: Arc<Store>,
    items: Items,
    /// Every change of the items, for readers that run meanwhile.
    changes: Vec<(Key, Option<Vec<u8>>)>,
    /// Edits as the log has them.
    log: Vec<(Txg, Key, Edit)>,
    descriptors: BTreeMap<u64, PartitionDescriptor>,
    durable: Durable,
    open: Txg,
    tasks: Vec<Task>,
    failed: bool,
    flushes: u64,
    /// The usage in memory, summed up from the results of edits, flushes and aborts.
    weight: Weight,
    /// Released in a txg that is not durable yet, or while a reader may still need it.
    released: Vec<NodePtr>,
}

impl World {
    fn new(limits: Limits) -> World {
        World {
            limits,
            table: Arc::new(Table::new(ID, limits)),
            store: Arc::default(),
            items: Items::new(),
            changes: Vec::new(),
            log: Vec::new(),
            descriptors: BTreeMap::new(),
            durable: Durable::default(),
            open: Txg::FIRST,
            tasks: Vec::new(),
            failed: false,
            flushes: 0,
            weight: Weight::default(),
            released: Vec::new(),
        }
    }

    fn edit(&mut self, key: Key, value: Option<Vec<u8>>) {
        let before = match &value {
            Some(value) => self.items.insert(key, value.clone()),
            None => self.items.remove(&key),
        };
        self.changes.push((key, before));
        let edit = Edit::from(value.map(Value::from));
        self.log.push((self.open, key, edit.clone()));
        self.weight = self.weight + self.table.apply_weighed(self.open, key, edit);
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Put(key, value) => self.edit(key, Some(value)),
            Op::Delete(key) => self.edit(key, None),
            Op::Fill(key, count, every, len) => {
                for n in 0..count {
                    let key = Key { offset: key.offset + n * every, ..key };
                    self.edit(key, Some(vec![n as u8; len]));
                }
            }
            Op::DeleteAll(from, to) => {
                let keys: Vec<Key> = self.items.range(from..to).map(|(key, _)| *key).collect();
                keys.into_iter().for_each(|key| self.edit(key, None));
            }
            Op::Get(key) => self.read(Query::Get(key)),
            Op::Range(from, to, limit) => self.read(Query::Range(from, to, limit)),
            Op::LastBelow(below, floor) => self.read(Query::LastBelow(below, floor)),
            Op::Flush(partition, edits_max, how) => self.flush(partition, edits_max, how),
            Op::Rot(n) => {
                let addresses = self.store.addresses();
                if let Some(addr) = addresses.iter().nth(n % addresses.len().max(1)) {
                    self.failed = true;
                    self.store.set_rotten(*addr);
                }
            }
            Op::Heal => self.store.heal(),
            Op::Step(n) => self.step(n),
            Op::Failing(failing) => {
                self.failed |= failing;
                self.store.set_failing(failing);
            }
            Op::Slow(slow) => self.store.set_slow(slow),
            Op::CloseTxg => self.close_txg(),
            Op::Crash => self.crash(),
            Op::Rest => _ = rest_and_open(&mut self.table),
        }
        self.table.check();
    }

    fn read(&mut self, query: Query) {
        let (table, store) = (self.table.clone(), self.store.clone());
        let read = Box::pin(async move {
            match query {
                Query::Get(key) => {
                    let found = table.get(&*store, key).await?;
                    Ok(found.map(|value| (key, value)).into_iter().collect())
                }
                Query::Range(from, to, limit) => table.range(&*store, from..to, limit).await,
                Query::LastBelow(below, floor) => {
                    Ok(table.last_below(&*store, below, floor).await?.into_iter().collect())
                }
            }
        });
        self.tasks.push(Task::Read { query, since: self.changes.len(), read });
        self.step(self.tasks.len() - 1);
    }

    fn flush(&mut self, partition: usize, edits_max: usize, how: How) {
        let starts: Vec<Key> = self.table.stats().iter().map(|stats| stats.start).collect();
        let Some(complete_to) = self.open.prev() else { return };
        // After a crash, all layers may be those of others (LAYERS-L3).
        let own = EpochId(u64::MAX);
        let point = FreezePoint { complete_to, birth: self.open, own, edits_max };
        let start = starts[partition % starts.len()];
        let job = match how {
            How::Layers => self.table.freeze_layers(start, point),
            _ => self.table.freeze(start, point),
        };
        let Some(job) = job else { return };
        let mut sink = Sink::new(&self.store);
        let store = self.store.clone();
        self.tasks.push(Task::Flush(Box::pin(async move {
            let spills = match how {
                How::Merge | How::Layers => false,
                How::Spill => true,
                How::AsIsCheaper => job.is_cheaper_to_spill(&*store).await,
            };
            if spills {
                let spilled = job.spill(&*store, &mut sink, u64::MAX).await;
                return (job, sink, spilled);
            }
            let mut merged = job.merge(&*store, &mut sink).await;
            if merged.is_err() {
                sink.written.drain(..).for_each(|ptr| store.free(&ptr));
                merged = job.spill(&*store, &mut sink, u64::MAX).await;
            }
            (job, sink, merged)
        })));
    }

    fn step(&mut self, n: usize) {
        if self.tasks.is_empty() {
            return;
        }
        let n = n % self.tasks.len();
        let mut cx = Context::from_waker(Waker::noop());
        match &mut self.tasks[n] {
            Task::Read { query, since, read } => {
                let (query, since) = (*query, *since);
                if let Poll::Ready(found) = read.as_mut().poll(&mut cx) {
                    self.tasks.remove(n);
                    self.check_read(query, since, found);
                }
            }
            Task::Flush(flush) => {
                if let Poll::Ready((job, sink, merged)) = flush.as_mut().poll(&mut cx) {
                    self.tasks.remove(n);
                    self.finish_flush(job, sink, merged);
                }
            }
        }
    }

    fn finish_flush(&mut self, job: FlushJob, sink: Sink, merged: Result<Flushed, TableError>) {
        // Now and then a flush fails at its end, when its writes are flushed.
        self.flushes += 1;
        if merged.is_err() || self.flushes.is_multiple_of(6) {
            assert!(merged.is_ok() || self.failed);
            self.weight = self.weight - self.table.abort(job);
            assert_eq!(self.table.weight(), self.weight, "after an abort");
            sink.written.iter().for_each(|ptr| self.store.free(ptr));
            return;
        }
        let flushed = merged.unwrap();
        assert_eq!(flushed.written, sink.written);
        assert!(flushed.layers.len() <= LAYERS_MAX, "SPILL-S1: {:?}", flushed.layers);
        self.released.extend(&flushed.replaced);
        let (tells, settled) = self.table.install(job, flushed);
        self.weight = self.weight - settled;
        for told in tells {
            match told.descriptor {
                Some(descriptor) => self.descriptors.insert(told.partition, descriptor),
                None => self.descriptors.remove(&told.partition),
            };
        }
        assert_eq!(self.table.weight(), self.weight, "after a flush");
        let listed: BTreeMap<u64, PartitionDescriptor> =
            self.table.descriptors().into_iter().collect();
        assert_eq!(listed, self.descriptors, "the table of tables was told everything");
    }

    fn close_txg(&mut self) {
        let pin = self.table.pin().map_or(self.open.get() + 1, Txg::get);
        self.durable = Durable {
            items: self.items.clone(),
            descriptors: self.descriptors.clone(),
            log_from: pin,
        };
        self.log.retain(|(txg, _, _)| txg.get() >= pin);
        self.open = self.open.next();
        if self.tasks.is_empty() {
            self.released.drain(..).for_each(|ptr| self.store.free(&ptr));
        }
    }

    /// The open txg is lost, and all that runs.
    fn crash(&mut self) {
        self.tasks.clear();
        let Durable { items, descriptors, log_from } = self.durable.clone();
        self.items = items;
        self.descriptors = descriptors;
        self.log.retain(|(txg, _, _)| txg.get() >= log_from && *txg < self.open);
        let mut recovering = RecoveringTable::new(ID);
        for (txg, key, edit) in &self.log {
            recovering.apply(*txg, *key, edit.clone());
        }
        let descriptors = self.descriptors.clone().into_iter().collect();
        self.table = Arc::new(recovering.finish(self.limits, descriptors).unwrap());
        self.weight = self.table.weight();
        self.changes.clear();
        let reachable = self.reachable();
        self.released.clear();
        for addr in self.store.addresses().difference(&reachable) {
            let ptr = NodePtr {
                copies: [Some(*addr), None],
                blocks: 1,
                fragmented: false,
                epoch: Default::default(),
                digest: Default::default(),
            };
            self.store.free(&ptr);
        }
    }

    fn reachable(&self) -> BTreeSet<copyhold_types::BlockAddr> {
        let mut reachable = BTreeSet::new();
        self.store.set_failing(false);
        self.store.heal();
        block_on(self.table.for_each_node(&*self.store, true, &mut |visit| {
            assert!(matches!(visit.node, Some(Ok(_))));
            assert!(reachable.insert(visit.ptr.copies[0].unwrap()), "a node with two parents");
        }));
        reachable
    }

    /// All that `key` was since change `since`.
    fn states(&self, key: Key, since: usize) -> Vec<Option<&[u8]>> {
        let before = self.changes[since..].iter().filter(|(changed, _)| *changed == key);
        let mut states: Vec<Option<&[u8]>> = before.map(|(_, old)| old.as_deref()).collect();
        states.push(self.items.get(&key).map(|value| &value[..]));
        states
    }

    fn check_read(&self, query: Query, since: usize, found: Result<Vec<(Key, Value)>, TableError>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                assert!(self.failed, "{error}");
                return;
            }
        };
        assert!(found.is_sorted_by(|a, b| a.0 < b.0));
        for (key, value) in &found {
            assert!(self.states(*key, since).contains(&Some(value)), "{query:?}: {key} is wrong");
        }
        let (from, to) = match query {
            Query::Get(key) => (key, key.successor().unwrap()),
            Query::Range(from, to, limit) => {
                assert!(found.len() <= limit);
                let full = found.len() == limit;
                let last = found.last().map_or(from, |(key, _)| key.successor().unwrap());
                (from, if full { last } else { to })
            }
            Query::LastBelow(below, floor) => (found.first().map_or(floor, |(key, _)| *key), below),
        };
        let found: BTreeSet<Key> = found.iter().map(|(key, _)| *key).collect();
        assert!(found.iter().all(|key| from <= *key && *key < to));
        let changed = self.changes[since..].iter().map(|(key, _)| *key);
        let known: BTreeSet<Key> = self.items.keys().copied().chain(changed).collect();
        for key in known.range(from..to).filter(|key| !found.contains(key)) {
            assert!(self.states(*key, since).contains(&None), "{query:?}: {key} is missing");
        }
    }

    /// Lets all tasks end, flushes all edits, and compares all items.
    fn settle(mut self) {
        self.store.set_failing(false);
        self.store.heal();
        self.finish_tasks();
        self.compare();
        for _ in 0..1000 {
            let stats = self.table.stats();
            let Some(partition) = stats.iter().position(|s| s.edits > 0 || s.layers > 0) else {
                break;
            };
            self.close_txg();
            self.flush(partition, 700, How::Layers);
            self.finish_tasks();
        }
        assert_eq!(self.table.pin(), None);
        assert_eq!(self.table.unflushed_bytes(), 0);
        self.compare();
        let stats = self.table.stats();
        let base_items: u64 = stats.iter().map(|stats| stats.base_items).sum();
        assert_eq!(base_items, self.items.len() as u64);
        self.close_txg();
        assert_eq!(self.reachable(), self.store.addresses(), "nothing leaks, nothing dangles");
        self.check_shape();
        self.crash();
        self.compare();
    }

    fn finish_tasks(&mut self) {
        while !self.tasks.is_empty() {
            self.step(0);
        }
    }

    fn compare(&self) {
        let range = Key::MIN..Key::MAX;
        let all = block_on(self.table.range(&*self.store, range, usize::MAX)).unwrap();
        let all: Items = all.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
        assert!(all == self.items, "the table is not what it should be");
        let mut visited = Items::new();
        block_on(self.table.for_each_item(&*self.store, Key::MIN..Key::MAX, &mut |key, value| {
            assert!(visited.last_key_value().is_none_or(|(last, _)| *last < key));
            visited.insert(key, value.to_vec());
        }))
        .unwrap();
        assert!(visited == self.items, "a walk visits everything");
        let mut backwards = Vec::new();
        let mut below = Key::MAX;
        while let Some((key, value)) =
            block_on(self.table.last_below(&*self.store, below, Key::MIN)).unwrap()
        {
            backwards.push((key, value.to_vec()));
            below = key;
        }
        assert!(backwards.into_iter().eq(self.items.iter().rev().map(|(k, v)| (*k, v.clone()))));
    }

    /// Rows name the content of their leaves; leaves and partitions are within their limits.
    fn check_shape(&self) {
        let limits = self.limits;
        let mut rows = Vec::new();
        let mut leaves = BTreeMap::new();
        block_on(self.table.for_each_node(&*self.store, true, &mut |visit| {
            let node = visit.node.unwrap().unwrap();
            if let Some(inner) = node.as_inner() {
                assert!((2..=limits.partition_leaves).contains(&inner.children()));
                rows.extend(inner.iter());
            } else {
                let header = node.header();
                assert!(header.used <= limits.leaf_bytes || header.items == 1);
                assert!(header.first >= visit.partition);
                leaves.insert(visit.ptr.copies, (header.first, header.items));
            }
        }));
        for row in rows {
            assert_eq!(leaves.remove(&row.ptr.copies), Some((row.first, row.items as usize)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_table_is_a_map_through_flushes_failures_and_crashes(
        ops in proptest::collection::vec(ops(), 1..120),
        limits in prop_oneof![Just(SMALL), Just(LARGE)],
    ) {
        let mut world = World::new(limits);
        ops.into_iter().for_each(|op| world.run(op));
        world.settle();
    }
}
