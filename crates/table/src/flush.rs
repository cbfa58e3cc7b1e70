//! Freezing, installing, aborting: the effects of a flush on a partition in memory.
//!
//! `freeze` takes the delta, or the next bounded part of it (R20 iv), and leaves an empty one for
//! the edits to come; `merge` or `spill` makes new nodes of it; `install` swaps base and layers,
//! inside the pool's transaction, and returns the edits for the table of tables; `abort` puts the
//! edits back.
//!
//! A bounded flush is one step of a *sweep* over the partition's keys. Only the last step moves
//! `complete_to` and with it the pin, so a sweep ends although edits keep coming behind it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use copyhold_format::node::PartitionDescriptor;
use copyhold_types::{EpochId, Key, TableId, Txg};

use crate::delta::{Delta, Weight};
use crate::merge::{Flushed, Part};
use crate::partition::{PartitionState, Partitions, Sweep};
use crate::settled::{Inherited, LAYERS_HANDED, Settled};
use crate::table::{Limits, Table};
use crate::{Edit, Value};

/// From when a flush is, and how large it may be.
#[derive(Clone, Copy, Debug)]
pub struct FreezePoint {
    /// All transactions of txgs up to this one have applied their edits already.
    pub complete_to: Txg,
    /// The open txg; the birth of the nodes that are written.
    pub birth: Txg,
    /// Nodes of this epoch and newer ones are this table's alone.
    pub own: EpochId,
    /// Most edits that this flush takes.
    pub edits_max: usize,
}

/// A flush under way: edits that are to be settled. Ends in install or abort.
#[must_use]
#[derive(Debug)]
pub struct FlushJob {
    pub(crate) table: TableId,
    pub(crate) start: Key,
    pub(crate) limits: Limits,
    pub(crate) birth: Txg,
    pub(crate) own: EpochId,
    /// Whether it leaves few layers.
    pub(crate) compacts: bool,
    pub(crate) settled: Settled,
    pub(crate) frozen: Arc<Delta>,
    /// Where the edits of a bounded flush end; `None`: at the partition's end.
    upto: Option<Key>,
    /// Where the next partition begins.
    pub(crate) end: Option<Key>,
}

/// A change of one partition in the table of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorEdit {
    pub table: TableId,
    pub partition: u64,
    /// `None`: the partition is gone, its keys are in another one.
    pub descriptor: Option<PartitionDescriptor>,
}

impl DescriptorEdit {
    pub fn key(&self) -> Key {
        PartitionDescriptor::key(self.table, self.partition)
    }

    pub fn edit(&self) -> Edit {
        Edit::from(self.descriptor.as_ref().map(|descriptor| Value::from(descriptor.encode())))
    }
}

impl FlushJob {
    /// First key of the partition; its name in [`crate::PartitionStats`].
    pub fn start(&self) -> Key {
        self.start
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn table(&self) -> TableId {
        self.table
    }

    /// The table is, or will be, under others, which inherit its layers: of many it makes few
    /// (LAYERS-L3).
    pub fn compacting(self) -> FlushJob {
        FlushJob { compacts: self.settled.layers.len() >= LAYERS_HANDED, ..self }
    }

    /// The memory that they take.
    pub fn edits_bytes(&self) -> usize {
        self.frozen.bytes()
    }
}

impl Table {
    /// Begins to flush the partition that starts at `start`. `None` if it has no edits, is being
    /// flushed, is gone, has no base yet since the table was forked, or the table is retired.
    pub fn freeze(&self, start: Key, point: FreezePoint) -> Option<FlushJob> {
        self.freeze_if(start, point, |state| !state.delta.is_empty())
    }

    /// As [`Self::freeze`], for a merge that is not due: a partition with layers needs no edits.
    pub fn freeze_layers(&self, start: Key, point: FreezePoint) -> Option<FlushJob> {
        let has_any =
            |state: &PartitionState| !state.delta.is_empty() || !state.settled.layers.is_empty();
        self.freeze_if(start, point, has_any)
    }

    fn freeze_if(
        &self,
        start: Key,
        point: FreezePoint,
        is_due: impl FnOnce(&PartitionState) -> bool,
    ) -> Option<FlushJob> {
        assert!(point.edits_max > 0, "a flush takes an edit");
        let partitions = self.read_partitions();
        let index = partitions.index_starting(start)?;
        let end = partitions.iter().nth(index + 1).map(|next| next.start);
        let partition = partitions.get(index);
        let mut state = partition.state.lock();
        if self.retired.load(Ordering::Acquire)
            || partitions.under.is_some()
            || state.frozen.is_some()
            || !is_due(&state)
        {
            return None;
        }
        let (frozen, upto) = state.take_part(start, point);
        let frozen = Arc::new(frozen);
        state.frozen = Some(frozen.clone());
        state.settled.inherited = Inherited::Known(state.settled.inherited(point.own));
        Some(FlushJob {
            table: self.id(),
            start,
            limits: self.limits,
            birth: point.birth,
            own: point.own,
            compacts: false,
            settled: state.settled.clone(),
            frozen,
            upto,
            end,
        })
    }

    /// Makes the new base and layers count. All new nodes are durable, and the transaction that
    /// logs the returned edits, the releases and the allocations is being applied. Never waits.
    ///
    /// Also returns the usage of the edits that left memory.
    pub fn install(&self, job: FlushJob, flushed: Flushed) -> (Vec<DescriptorEdit>, Weight) {
        let mut partitions = self.write_partitions();
        let before = partitions.weight();
        let index = partitions.index_starting(job.start).expect("a flush keeps its partition");
        let end = partitions.end(index);
        let state = partitions.get_mut(index).state.get_mut();
        let frozen = state.frozen.take().expect("PART-P2: the job froze it");
        assert!(Arc::ptr_eq(&frozen, &job.frozen), "PART-P2: one flush at a time");
        assert!(
            flushed.parts[0].start == job.start,
            "TABLE-T4: the first part starts the partition"
        );
        let old = std::mem::take(state);
        let inherited = old.settled.inherited;
        let mut states = old.into_parts(&flushed.parts, end, job.upto);
        let (_, mut first) = states.remove(0);
        assert!(
            flushed.layers.is_empty() || states.is_empty(),
            "LAYERS-L2: layers lie over one base"
        );
        if !flushed.layers.is_empty() {
            first.settled.layers = flushed.layers.into();
            first.settled.inherited = inherited;
        }
        *partitions.get_mut(index).state.get_mut() = first;
        let parts = 1 + states.len();
        partitions.insert_behind(index, states);
        let gone = if parts == 1 { absorb_empty(&mut partitions, index) } else { None };
        let (index, parts) = if gone.is_some() { (index - 1, 1) } else { (index, parts) };
        let told = (index..index + parts).map(|index| {
            let partition = partitions.get(index);
            (partition.id, Some(partition.descriptor()))
        });
        let edits = told
            .chain(gone.map(|id| (id, None)))
            .map(|(partition, descriptor)| DescriptorEdit {
                table: self.id(),
                partition,
                descriptor,
            })
            .collect();
        let settled = before - partitions.weight();
        partitions.charged(Weight::default() - settled);
        drop(partitions);
        drop((job, frozen));
        (edits, settled)
    }

    /// Aborts a flush: its edits are the delta's again, nothing else has changed. Returns the
    /// usage of the edits that leave memory: those that newer ones of the same key replace.
    pub fn abort(&self, job: FlushJob) -> Weight {
        let partitions = self.read_partitions();
        let start = job.start;
        let index = partitions.index_starting(start).expect("a flush keeps its partition");
        let mut state = partitions.get(index).state.lock();
        let before = state.weight();
        let frozen = state.frozen.take().expect("PART-P2: the job froze it");
        assert!(Arc::ptr_eq(&frozen, &job.frozen), "PART-P2: one flush at a time");
        drop(job);
        let frozen = Arc::try_unwrap(frozen).unwrap_or_else(|shared| Delta::clone(&shared));
        state.delta.merge_under(frozen);
        // A sweep that is at its beginning is none: the next flush begins one.
        state.sweep = state.sweep.filter(|sweep| sweep.resume > start);
        let settled = before - state.weight();
        drop(state);
        partitions.charged(Weight::default() - settled);
        settled
    }
}

impl PartitionState {
    /// Takes the next edits of a sweep out of the delta, and where they end.
    fn take_part(&mut self, start: Key, point: FreezePoint) -> (Delta, Option<Key>) {
        let begin = Sweep { complete_to: point.complete_to, resume: start, fresh: None };
        let sweep = self.sweep.filter(|sweep| sweep.resume > start).unwrap_or(begin);
        self.sweep = Some(sweep);
        let oldest = self.delta.oldest();
        let beyond = |from: Key| self.delta.range(from..).nth(point.edits_max).map(|(key, _)| *key);
        let upto = if self.delta.len() > point.edits_max { beyond(sweep.resume) } else { None };
        let mut part = self.delta.split_off(&sweep.resume);
        match upto {
            Some(upto) => {
                let later = part.split_off(&upto);
                self.delta.merge_under(later);
                self.delta.set_oldest(oldest);
            }
            None => self.delta.set_oldest(sweep.fresh.or(oldest)),
        }
        (part, upto)
    }

    /// The state of each part after a flush that went up to `upto`. `end`: where the last ends.
    fn into_parts(
        mut self,
        parts: &[Part],
        end: Option<Key>,
        upto: Option<Key>,
    ) -> Vec<(Key, PartitionState)> {
        let sweep = self.sweep.expect("PART-P3: a flush is a step of a sweep");
        let mut states = Vec::with_capacity(parts.len());
        for (n, part) in parts.iter().enumerate().rev() {
            let end = parts.get(n + 1).map(|next| next.start).or(end);
            let mut state = PartitionState {
                settled: Settled { base: part.base(), ..Settled::default() },
                delta: if n == 0 {
                    std::mem::take(&mut self.delta)
                } else {
                    self.delta.split_off(&part.start)
                },
                complete_to: self.complete_to,
                ..PartitionState::default()
            };
            match upto {
                Some(upto) if end.is_none_or(|end| upto < end) && !state.delta.is_empty() => {
                    let resume = upto.max(part.start);
                    state.sweep = Some(Sweep { resume, ..sweep });
                }
                _ => {
                    state.complete_to = state.complete_to.max(Some(sweep.complete_to));
                    let oldest = state.delta.oldest();
                    state.delta.set_oldest(sweep.fresh.or(oldest));
                }
            }
            states.push((part.start, state));
        }
        states.reverse();
        states
    }
}

/// Moves the keys of a partition without items to the one before, if neither is in the middle of a
/// flush or sweep; returns its id, if it is gone. The whole is complete to the lower of both
/// (TABLE-T3).
fn absorb_empty(partitions: &mut Partitions, index: usize) -> Option<u64> {
    let state = partitions.get_mut(index).state.get_mut();
    if index == 0 || !state.settled.is_empty() || state.sweep.is_some() {
        return None;
    }
    let before = partitions.get_mut(index - 1).state.get_mut();
    if before.frozen.is_some() || before.sweep.is_some() {
        return None;
    }
    let gone = partitions.remove(index);
    let id = gone.id;
    let gone = gone.state.into_inner();
    let before = partitions.get_mut(index - 1).state.get_mut();
    before.complete_to = before.complete_to.min(gone.complete_to);
    before.delta.merge_under(gone.delta);
    Some(id)
}

#[cfg(test)]
mod tests {
    use copyhold_types::Kind;

    use super::*;
    use crate::store::{Sink, Store, block_on};
    use crate::{RecoveringTable, Value};

    const LIMITS: Limits = Limits { leaf_bytes: 4096, partition_leaves: 4, read_ahead: 2 };

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    fn txg(n: u64) -> Txg {
        Txg::new(n).unwrap()
    }

    fn put(table: &Table, at: u64, keys: impl Iterator<Item = u64>) {
        keys.for_each(|n| table.apply(txg(at), key(n), Edit::put(vec![at as u8; 200])));
    }

    fn point(complete_to: u64, edits_max: usize) -> FreezePoint {
        FreezePoint {
            complete_to: txg(complete_to),
            birth: txg(complete_to + 1),
            own: EpochId::POOL,
            edits_max,
        }
    }

    fn merge(job: &FlushJob, store: &Arc<Store>) -> Flushed {
        block_on(job.merge(&**store, &mut Sink::new(store))).unwrap()
    }

    fn flush(table: &Table, store: &Arc<Store>, start: Key, point: FreezePoint) {
        let job = table.freeze(start, point).unwrap();
        let flushed = merge(&job, store);
        table.install(job, flushed);
    }

    fn get(table: &Table, store: &Arc<Store>, n: u64) -> Option<Value> {
        block_on(table.get(&**store, key(n))).unwrap()
    }

    #[test]
    fn one_edit_rewrites_one_leaf_and_the_inner_node() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        put(&table, 1, 0..40);
        flush(&table, &store, Key::MIN, point(1, 1000));
        store.set_slow(1);
        put(&table, 2, 5..6);
        let job = table.freeze(Key::MIN, point(2, 1000)).unwrap();
        let flushed = merge(&job, &store);
        assert_eq!((flushed.replaced.len(), flushed.written.len()), (2, 2));
        assert_eq!((flushed.leaves_read, store.reads()), (1, 2));
        table.install(job, flushed);
        assert_eq!(get(&table, &store, 5).as_deref(), Some(&[2; 200][..]));
    }

    #[test]
    fn edits_that_change_nothing_write_nothing() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        put(&table, 1, 0..40);
        flush(&table, &store, Key::MIN, point(1, 1000));
        table.apply(txg(2), key(100), Edit::put(&[1]));
        table.apply(txg(2), key(100), Edit::Delete);
        table.apply(txg(2), key(7), Edit::put(vec![1; 200]));
        let job = table.freeze(Key::MIN, point(2, 1000)).unwrap();
        let flushed = merge(&job, &store);
        assert!(flushed.written.is_empty() && flushed.replaced.is_empty());
        let (told, _) = table.install(job, flushed);
        let descriptor = told[0].descriptor.as_ref().unwrap();
        assert_eq!((descriptor.complete_to, descriptor.items), (Some(txg(2)), 40));
        assert_eq!(table.pin(), None);
    }

    #[test]
    fn a_sweep_ends_and_moves_the_pin_although_edits_keep_coming() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        put(&table, 3, 0..10);
        for step in 0..4u64 {
            assert_eq!(table.pin(), Some(txg(3)));
            put(&table, 4 + step, 0..3);
            flush(&table, &store, Key::MIN, point(3 + step, 3));
        }
        assert_eq!(table.pin(), Some(txg(5)), "the first edit behind the sweep");
        let (_, descriptor) = table.descriptors().remove(0);
        assert_eq!(descriptor.complete_to, Some(txg(3)));
        assert_eq!(descriptor.items, 10);
    }

    #[test]
    fn a_flush_is_one_at_a_time_and_can_be_given_up() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        assert!(table.freeze(Key::MIN, point(1, 9)).is_none(), "nothing to flush");
        put(&table, 1, 0..3);
        let job = table.freeze(Key::MIN, point(1, 9)).unwrap();
        put(&table, 2, 2..5);
        assert!(table.freeze(Key::MIN, point(2, 9)).is_none(), "one at a time");
        assert_eq!((table.stats()[0].frozen_edits, table.stats()[0].edits), (3, 3));
        table.abort(job);
        assert_eq!((table.stats()[0].frozen_edits, table.stats()[0].edits), (0, 5));
        assert_eq!(table.pin(), Some(txg(1)));
        assert_eq!(get(&table, &store, 2).as_deref(), Some(&[2; 200][..]));
    }

    #[test]
    fn an_unreadable_leaf_fails_its_partition_alone() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        put(&table, 1, 0..200);
        flush(&table, &store, Key::MIN, point(1, 1000));
        let starts: Vec<Key> = table.stats().iter().map(|stats| stats.start).collect();
        assert!(starts.len() > 2);
        put(&table, 2, 0..200);
        store.set_slow(1);
        store.set_failing(true);
        let job = table.freeze(starts[1], point(2, 1000)).unwrap();
        let error = block_on(job.merge(&*store, &mut Sink::new(&store))).unwrap_err();
        assert!(error.to_string().contains(&starts[1].to_string()), "{error}");
        table.abort(job);
        store.set_failing(false);
        flush(&table, &store, starts[2], point(2, 1000));
        assert_eq!(table.stats()[2].edits, 0);
        assert!(table.stats()[1].edits > 0);
    }

    /// The whole of two partitions is complete only to the lower of both: replay would drop an
    /// edit between the two.
    #[test]
    fn a_partition_that_takes_over_an_empty_one_is_complete_as_far_as_both_were() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        put(&table, 1, 0..100);
        flush(&table, &store, Key::MIN, point(1, 1000));
        let [first, second, ..] = &table.stats()[..] else { panic!("it was split") };
        let (second, end) = (second.start, table.stats().get(2).map_or(100, |s| s.start.offset));
        assert_eq!(first.start, Key::MIN);
        (second.offset..end).for_each(|n| table.apply(txg(2), key(n), Edit::Delete));
        put(&table, 2, 0..1);
        let late = table.freeze(second, point(2, 1000)).unwrap();
        let emptied = merge(&late, &store);
        put(&table, 3, second.offset + 1..second.offset + 2);
        put(&table, 4, 1..2);
        flush(&table, &store, Key::MIN, point(4, 1000));
        let (told, _) = table.install(late, emptied);
        assert!(told.iter().any(|told| told.descriptor.is_none()), "the second is gone");
        assert_eq!(table.pin(), Some(txg(3)));

        let mut recovering = RecoveringTable::new(TableId(1));
        recovering.apply(txg(3), key(second.offset + 1), Edit::put(vec![3; 200]));
        recovering.apply(txg(4), key(1), Edit::put(vec![4; 200]));
        let table = recovering.finish(LIMITS, table.descriptors()).unwrap();
        assert!(get(&table, &store, second.offset + 1).is_some());
        assert!(get(&table, &store, second.offset).is_none());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "real threads, for the locks")]
    fn threads_edit_while_another_flushes() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::default());
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let table = &table;
                scope.spawn(move || {
                    for round in 1..4 {
                        put(table, round, (0..150).map(|n| n * 3 + thread));
                    }
                });
            }
            scope.spawn(|| {
                for step in 0..40 {
                    let stats = table.stats();
                    let start = stats[step % stats.len()].start;
                    let Some(job) = table.freeze(start, point(1, 100)) else { continue };
                    let flushed = merge(&job, &store);
                    table.install(job, flushed);
                }
            });
        });
        table.check();
        let all = block_on(table.range(&*store, Key::MIN..Key::MAX, usize::MAX)).unwrap();
        assert!(all.iter().map(|(key, _)| key.offset).eq(0..450));
        assert!(all.iter().all(|(_, value)| value[..] == [3; 200]));
    }
}
