//! Looking up: the delta over the frozen delta over the settled trees, all of one moment
//! (TABLE-T1).
//!
//! A range is read in *stretches*. A stretch is a partition's part of the range, or less if the
//! delta has more than [`STRETCH_EDITS`] edits there: the delta's edits are copied, the frozen
//! delta, layers and base shared, all under the partition's lock; then they are merged without it.
//! One stretch is of one moment, the next may be of a later one; callers that need more hold the
//! locks of the keys that they read, as they do anyway.
//!
//! Edits and nodes in memory are found without waiting. Only a read that has to wait for a node
//! continues as a future, and that on the heap: else every operation that may ever read, which is
//! all of them, would take as much memory as the deepest read while it waits for anything.

mod part;
mod together;

use std::cmp::Ordering;
use std::collections::btree_map;
use std::future::Future;
use std::iter::{Peekable, Rev};
use std::ops::{ControlFlow, Range};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::vec;

use copyhold_format::node::{Node, ValueRef};
use copyhold_types::{Key, NodePtr, Purpose};

use crate::delta::Delta;
use crate::partition::Partitions;
use crate::pile::Pile;
use crate::settled::Settled;
use crate::table::{Cached, Table};
use crate::{Edit, NodeFuture, NodeSource, TableError, Value};

pub use part::{Differing, PartialItems};
pub use together::ReadBounds;

/// Most edits that are copied under a partition's lock.
const STRETCH_EDITS: usize = if cfg!(test) { 5 } else { 4096 };

/// The result of one look-up of a key in the edits.
enum Look {
    Edit(Option<Value>),
    Settled(Settled),
}

/// A value where it was found.
enum Found<'a> {
    Edit(Value),
    Node(ValueRef<'a>),
}

impl From<Found<'_>> for Value {
    fn from(found: Found<'_>) -> Value {
        match found {
            Found::Edit(value) => value,
            Found::Node(value) => Value::from(value),
        }
    }
}

/// Nodes that need no waiting; for the others it waits for ever.
struct CachedNodes<'a>(&'a dyn NodeSource);

impl NodeSource for CachedNodes<'_> {
    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.0.cached(ptr)
    }

    fn read(&self, _: NodePtr, _: Purpose) -> NodeFuture<'_, Arc<Node>> {
        Box::pin(std::future::pending())
    }
}

/// The result that `read` finds without waiting.
fn at_once<T>(read: impl Future<Output = Result<T, TableError>>) -> Cached<T> {
    match pin!(read).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(found)) => Cached::Known(found),
        _ => Cached::Unknown,
    }
}

/// The edits of one moment in [from, to), and the settled trees under them.
struct Stretch {
    from: Key,
    to: Key,
    /// From the delta, in the direction of the walk.
    edits: Vec<(Key, Edit)>,
    frozen: Option<Arc<Delta>>,
    settled: Settled,
}

impl Table {
    /// The value of `key`. Does not suspend when the edits or cached nodes have the answer.
    pub async fn get(&self, nodes: &dyn NodeSource, key: Key) -> Result<Option<Value>, TableError> {
        let settled = match self.look(key) {
            Look::Edit(value) => return Ok(value),
            Look::Settled(settled) => settled,
        };
        match settled.get_cached(nodes, key) {
            Cached::Known(value) => Ok(value),
            Cached::Unknown => Box::pin(settled.get(nodes, key)).await,
        }
    }

    /// As [`Self::get`], for where nothing may wait.
    pub fn get_cached(&self, nodes: &dyn NodeSource, key: Key) -> Cached<Option<Value>> {
        match self.look(key) {
            Look::Edit(value) => Cached::Known(value),
            Look::Settled(settled) => settled.get_cached(nodes, key),
        }
    }

    /// Items with a key in `range`, ascending, at most `limit`.
    pub async fn range(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, TableError> {
        match self.range_cached(nodes, range.clone(), limit) {
            Cached::Known(items) => Ok(items),
            Cached::Unknown => Box::pin(self.range_read(nodes, range, limit)).await,
        }
    }

    async fn range_read(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, TableError> {
        let mut items = Vec::new();
        let mut from = range.start;
        while from < range.end && items.len() < limit {
            let stretch = self.stretch_up(from, range.end, limit - items.len());
            from = stretch.to;
            let visit = |key, value: Found<'_>| {
                items.push((key, Value::from(value)));
                if items.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            stretch.for_each(nodes, 0, visit).await?;
        }
        Ok(items)
    }

    /// As [`Self::range`], for where nothing may wait.
    pub fn range_cached(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        limit: usize,
    ) -> Cached<Vec<(Key, Value)>> {
        at_once(self.range_read(&CachedNodes(nodes), range, limit))
    }

    /// Visits the items in `range` in order, edits over bases, as consistent as a
    /// [range](Table::range) is; reads leaves ahead.
    ///
    /// # Errors
    /// The first node that cannot be read.
    pub async fn for_each_item(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        visit: &mut (dyn FnMut(Key, &[u8]) + Send),
    ) -> Result<(), TableError> {
        let mut scratch = Vec::new();
        let mut from = range.start;
        while from < range.end {
            let stretch = self.stretch_up(from, range.end, STRETCH_EDITS);
            from = stretch.to;
            let visit = |key, value: Found<'_>| {
                match value {
                    Found::Edit(value) => visit(key, &value),
                    Found::Node(value) => {
                        scratch.resize(value.len(), 0);
                        value.copy_to(&mut scratch);
                        visit(key, &scratch);
                    }
                }
                ControlFlow::Continue(())
            };
            stretch.for_each(nodes, self.limits.read_ahead, visit).await?;
        }
        Ok(())
    }

    /// The last item with `floor <= key < below`.
    pub async fn last_below(
        &self,
        nodes: &dyn NodeSource,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>, TableError> {
        match at_once(self.last_below_read(&CachedNodes(nodes), below, floor)) {
            Cached::Known(item) => Ok(item),
            Cached::Unknown => Box::pin(self.last_below_read(nodes, below, floor)).await,
        }
    }

    async fn last_below_read(
        &self,
        nodes: &dyn NodeSource,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>, TableError> {
        let mut to = below;
        while floor < to {
            let stretch = self.stretch_down(floor, to);
            to = stretch.from;
            if let Some(item) = stretch.last(nodes).await? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn look(&self, key: Key) -> Look {
        let partitions = self.read_partitions();
        let state = partitions.covering(key).state.lock();
        match (state.unflushed(&key), &partitions.under) {
            (Some(value), _) => Look::Edit(value),
            (None, Some(under)) => {
                drop(state);
                under.look(key)
            }
            (None, None) => Look::Settled(state.settled.clone()),
        }
    }

    /// The first stretch of [from, to), which is not empty; enough of it for `limit` items.
    fn stretch_up(&self, from: Key, to: Key, limit: usize) -> Stretch {
        let (own, under) = self.own_stretch_up(from, to, limit);
        match under {
            None => own,
            Some(under) => {
                let lower = under.stretch_up(own.from, own.to, limit);
                own.over(lower, Ordering::Less)
            }
        }
    }

    /// The last stretch of [from, to), which is not empty; down to its last item, if it has one.
    fn stretch_down(&self, from: Key, to: Key) -> Stretch {
        let (own, under) = self.own_stretch_down(from, to);
        match under {
            None => own,
            Some(under) => {
                let lower = under.stretch_down(own.from, own.to);
                own.over(lower, Ordering::Greater)
            }
        }
    }

    fn own_stretch_up(
        &self,
        from: Key,
        mut to: Key,
        limit: usize,
    ) -> (Stretch, Option<Arc<Table>>) {
        let partitions = self.read_partitions();
        let index = partitions.index_covering(from);
        if let Some(end) = partitions.end(index) {
            to = to.min(end);
        }
        let state = partitions.get(index).state.lock();
        let (mut edits, mut puts) = (Vec::new(), 0);
        for (key, edit) in state.delta.range(from..to) {
            if puts == limit || edits.len() == STRETCH_EDITS {
                to = *key;
                break;
            }
            puts += usize::from(edit.value().is_some());
            edits.push((*key, edit.clone()));
        }
        let (frozen, settled) = (state.frozen.clone(), state.settled.clone());
        (Stretch { from, to, edits, frozen, settled }, partitions.under.clone())
    }

    fn own_stretch_down(&self, mut from: Key, to: Key) -> (Stretch, Option<Arc<Table>>) {
        let partitions = self.read_partitions();
        let index = last_starting_below(&partitions, to);
        let partition = partitions.get(index);
        from = from.max(partition.start);
        let state = partition.state.lock();
        let mut edits = Vec::new();
        for (key, edit) in state.delta.range(from..to).rev() {
            edits.push((*key, edit.clone()));
            if edit.value().is_some() || edits.len() == STRETCH_EDITS {
                from = *key;
                break;
            }
        }
        let (frozen, settled) = (state.frozen.clone(), state.settled.clone());
        (Stretch { from, to, edits, frozen, settled }, partitions.under.clone())
    }
}

/// The partition that has the keys right below `to`, which is not `Key::MIN`.
fn last_starting_below(partitions: &Partitions, to: Key) -> usize {
    let index = partitions.index_covering(to);
    if partitions.get(index).start == to { index - 1 } else { index }
}

impl Stretch {
    /// The edits of a forked table over the table that it was forked from, where both are known.
    /// It has no frozen edits and no base of its own.
    fn over(self, lower: Stretch, direction: Ordering) -> Stretch {
        let (from, to) = (lower.from, lower.to);
        let inside = |(key, _): &(Key, Edit)| (from..to).contains(key);
        let own: Vec<(Key, Edit)> = self.edits.into_iter().filter(inside).collect();
        let edits = match (own.is_empty(), lower.edits.is_empty()) {
            (true, _) => lower.edits,
            (_, true) => own,
            _ => {
                let over = own.into_iter().peekable();
                let under = lower.edits.iter().map(|(key, edit)| (key, edit)).peekable();
                Overlay { over, under, direction }.collect()
            }
        };
        Stretch { edits, ..lower }
    }

    /// Visits the items of the stretch in ascending order until `visit` breaks off; reads
    /// `read_ahead` leaves beyond the one that it is in.
    async fn for_each(
        self,
        nodes: &dyn NodeSource,
        read_ahead: usize,
        mut visit: impl FnMut(Key, Found<'_>) -> ControlFlow<()> + Send,
    ) -> Result<(), TableError> {
        let nothing = Delta::default();
        let frozen = self.frozen.as_deref().unwrap_or(&nothing);
        let edits = self.edits.into_iter();
        let mut edits = Overlay::upwards(edits, frozen.range(self.from..self.to)).peekable();
        // Where an edit has the only key that there can be, nothing is read.
        let is_known = self.from.successor() == Some(self.to) && edits.peek().is_some();
        let to = if is_known { self.from } else { self.to };
        let mut under = Pile::upwards(nodes, &self.settled, self.from, to, read_ahead).await?;
        loop {
            let edit = edits.peek().map(|(key, _)| *key);
            let Some(side) = Side::nearer(edit, under.key(), Ordering::Less) else { break };
            let flow = if side == Side::Under {
                let key = under.key().expect("the nearer side has a key");
                match under.value()? {
                    Some(value) => visit(key, Found::Node(value)),
                    None => ControlFlow::Continue(()),
                }
            } else if let Some((key, Edit::Put(value))) = edits.next() {
                visit(key, Found::Edit(value))
            } else {
                ControlFlow::Continue(())
            };
            if flow.is_break() {
                break;
            }
            if side != Side::Over {
                under.advance().await?;
            }
        }
        Ok(())
    }

    /// The last item of the stretch.
    async fn last(self, nodes: &dyn NodeSource) -> Result<Option<(Key, Value)>, TableError> {
        let nothing = Delta::default();
        let frozen = self.frozen.as_deref().unwrap_or(&nothing);
        let edits = self.edits.into_iter();
        let mut edits = Overlay::downwards(edits, frozen.range(self.from..self.to)).peekable();
        // Where an edit puts an item right at the end, nothing is read. Where it deletes one
        // there, the item before it is wanted, for any item that a layer has at the end.
        let at_end = edits.peek().filter(|(key, _)| key.successor() == Some(self.to));
        if let Some((key, Edit::Put(value))) = at_end {
            return Ok(Some((*key, value.clone())));
        }
        let first_only = at_end.is_none();
        let mut under =
            Pile::downwards(nodes, &self.settled, self.from, self.to, first_only).await?;
        loop {
            let edit = edits.peek().map(|(key, _)| *key);
            let Some(side) = Side::nearer(edit, under.key(), Ordering::Greater) else {
                return Ok(None);
            };
            if side == Side::Under {
                let key = under.key().expect("the nearer side has a key");
                if let Some(value) = under.value()? {
                    return Ok(Some((key, Value::from(value))));
                }
            } else if let Some((key, Edit::Put(value))) = edits.next() {
                return Ok(Some((key, value)));
            }
            if side != Side::Over {
                under.advance().await?;
            }
        }
    }
}

/// Which of two ordered sources has the next key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Over,
    Under,
    Both,
}

impl Side {
    /// `direction`: how a key that comes first compares with one that comes later.
    fn nearer(over: Option<Key>, under: Option<Key>, direction: Ordering) -> Option<Side> {
        match (over, under) {
            (None, None) => None,
            (Some(_), None) => Some(Side::Over),
            (None, Some(_)) => Some(Side::Under),
            (Some(over), Some(under)) => Some(match over.cmp(&under) {
                Ordering::Equal => Side::Both,
                order if order == direction => Side::Over,
                _ => Side::Under,
            }),
        }
    }
}

/// The delta's edits over the frozen ones, each key once.
struct Overlay<U: Iterator> {
    over: Peekable<vec::IntoIter<(Key, Edit)>>,
    under: Peekable<U>,
    direction: Ordering,
}

type FrozenEdits<'a> = btree_map::Range<'a, Key, Edit>;

impl<'a> Overlay<FrozenEdits<'a>> {
    fn upwards(over: vec::IntoIter<(Key, Edit)>, under: FrozenEdits<'a>) -> Self {
        let (over, under) = (over.peekable(), under.peekable());
        Overlay { over, under, direction: Ordering::Less }
    }
}

impl<'a> Overlay<Rev<FrozenEdits<'a>>> {
    fn downwards(over: vec::IntoIter<(Key, Edit)>, under: FrozenEdits<'a>) -> Self {
        let (over, under) = (over.peekable(), under.rev().peekable());
        Overlay { over, under, direction: Ordering::Greater }
    }
}

impl<'a, U: Iterator<Item = (&'a Key, &'a Edit)>> Iterator for Overlay<U> {
    type Item = (Key, Edit);

    fn next(&mut self) -> Option<(Key, Edit)> {
        let over = self.over.peek().map(|(key, _)| *key);
        let under = self.under.peek().map(|(key, _)| **key);
        let side = Side::nearer(over, under, self.direction)?;
        if side != Side::Over {
            let under = self.under.next();
            if side == Side::Under {
                return under.map(|(key, edit)| (*key, edit.clone()));
            }
        }
        self.over.next()
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{EpochId, Kind, TableId, Txg};

    use super::*;
    use crate::store::{Sink, Store, block_on};
    use crate::{FreezePoint, Limits};

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    /// Items 0, 2, 4 … 78 in a base of several leaves, none of them cached.
    fn settled() -> (Table, Arc<Store>) {
        let limits = Limits { leaf_bytes: 4096, partition_leaves: 8, read_ahead: 2 };
        let (table, store) = (Table::new(TableId(1), limits), Arc::<Store>::default());
        for n in (0..80).step_by(2) {
            table.apply(Txg::FIRST, key(n), Edit::put(vec![n as u8; 500]));
        }
        let birth = Txg::FIRST.next();
        let point =
            FreezePoint { complete_to: Txg::FIRST, birth, own: EpochId::POOL, edits_max: 1000 };
        let job = table.freeze(Key::MIN, point).unwrap();
        let flushed = block_on(job.merge(&*store, &mut Sink::new(&store))).unwrap();
        assert!(flushed.written.len() > 4);
        table.install(job, flushed);
        store.set_slow(1);
        (table, store)
    }

    #[test]
    fn what_the_edits_say_needs_no_node() {
        let (table, store) = settled();
        table.apply(Txg::FIRST, key(2), Edit::Delete);
        table.apply(Txg::FIRST, key(3), Edit::put(&[3]));
        assert_eq!(table.get_cached(&*store, key(2)), Cached::Known(None));
        assert_eq!(table.get_cached(&*store, key(3)), Cached::Known(Some(Value::from(&[3]))));
        assert_eq!(table.get_cached(&*store, key(4)), Cached::Unknown);
        assert_eq!(store.reads(), 0);
        store.set_slow(0);
        assert_eq!(table.get_cached(&*store, key(4)), Cached::Known(Some(vec![4; 500].into())));
        assert_eq!(table.get_cached(&*store, key(5)), Cached::Known(None));
        let range = || table.range_cached(&*store, key(2)..key(5), 9);
        let found = vec![(key(3), Value::from(&[3])), (key(4), vec![4; 500].into())];
        assert_eq!(range(), Cached::Known(found));
        store.set_slow(1);
        assert_eq!(range(), Cached::Unknown);
    }

    #[test]
    fn a_lookup_reads_the_path_and_nothing_beside_it() {
        let (table, store) = settled();
        assert!(block_on(table.get(&*store, key(40))).unwrap().is_some());
        assert_eq!(store.reads(), 2);
        let found = block_on(table.range(&*store, key(40)..key(41), 100)).unwrap();
        assert_eq!((found.len(), store.reads()), (1, 4));
        let last = block_on(table.last_below(&*store, key(40), key(0))).unwrap();
        assert_eq!((last.unwrap().0, store.reads()), (key(38), 6));
    }

    #[test]
    fn an_item_of_a_layer_that_is_deleted_does_not_hide_the_base_below() {
        let (table, store) = settled();
        table.apply(Txg::FIRST, key(78), Edit::put(&[1]));
        let birth = Txg::FIRST.next();
        let point =
            FreezePoint { complete_to: Txg::FIRST, birth, own: EpochId::POOL, edits_max: 1000 };
        let start = table.stats().last().unwrap().start;
        let job = table.freeze(start, point).unwrap();
        let spilled = block_on(job.spill(&*store, &mut Sink::new(&store), u64::MAX)).unwrap();
        table.install(job, spilled);
        table.apply(Txg::FIRST, key(78), Edit::Delete);
        for below in [79, 80] {
            let last = block_on(table.last_below(&*store, key(below), key(0))).unwrap();
            assert_eq!(last.map(|(key, _)| key), Some(key(76)));
        }
    }

    #[test]
    fn a_range_stops_at_its_limit() {
        let (table, store) = settled();
        let found = block_on(table.range(&*store, key(1)..key(79), 1)).unwrap();
        assert_eq!((found[0].0, found.len(), store.reads()), (key(2), 1, 2));
        let none = block_on(table.range(&*store, key(50)..key(10), 9)).unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn a_read_that_waits_is_of_the_moment_when_it_began() {
        let (table, store) = settled();
        let mut range = Box::pin(table.range(&*store, key(0)..key(6), 100));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        while store.reads() == 0 {
            assert!(range.as_mut().poll(&mut cx).is_pending());
        }
        for n in 0..80 {
            table.apply(Txg::FIRST, key(n), Edit::Delete);
        }
        let found = block_on(range).unwrap();
        assert_eq!(found.iter().map(|(key, _)| key.offset).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(block_on(table.range(&*store, key(0)..key(6), 100)).unwrap().is_empty());
    }
}
