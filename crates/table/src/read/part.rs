//! Reading part of a table: its wanted leaves, or its differences from another table.
//!
//! Problem.  Two tables that were one share most of their nodes. The cost of a comparison should
//!           depend on the differences only.
//! Idea.     Edits and layers are walked always, of the leaves of a base only those that the
//!           caller wants. Other leaves return nothing: so a key that is not returned may still
//!           have a value, and a deleted one is returned as deleted.
//! Compare.  Leaves that both have are the same in both and not wanted; neither are layers that
//!           both have over the same base. A partition with the same root and no layers of its own
//!           is not even opened. A key that one side returns and the other does not is looked up
//!           there.
//!
//! PARTIAL-D1  A key that neither side returns has the same value in both: each finds it in a
//!             layer or a leaf that the other has, too.
//!
//! Where partitions begin, and whether edits are flushed, does not matter. Each stretch is of one
//! moment of either table; a caller that needs more prevents changes.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Range;

use copyhold_format::node::LayerDescriptor;
use copyhold_types::{Key, NodePtr, Purpose};

use super::{Overlay, Side, Stretch};
use crate::cursor::Wants;
use crate::delta::Delta;
use crate::pile::Pile;
use crate::settled::{Settled, Tree};
use crate::source::InnerNode;
use crate::{NodeSource, Table, TableError, Value};

/// Stretches in which nothing is found that one call passes over.
const STRETCHES_MAX: usize = 4096;

/// A part of a table's items for some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialItems {
    /// In order; `None`: it is deleted.
    pub items: Vec<(Key, Option<Value>)>,
    /// The key at which to continue, if the range has more.
    pub next: Option<Key>,
}

/// Where two tables differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// In order: a key, and the value of either table there.
    pub items: Vec<(Key, [Option<Value>; 2])>,
    /// The key at which to continue, if the range has more.
    pub next: Option<Key>,
}

impl Table {
    /// The content of edits, layers and the wanted leaves of bases for keys in `range`, about
    /// `most` of them. `wants` is called for roots, too: an unwanted inner node excludes all nodes
    /// below it.
    pub async fn partial_items(
        &self,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        most: usize,
        wants: &(dyn Fn(&NodePtr) -> bool + Send + Sync),
    ) -> Result<PartialItems, TableError> {
        let (mut items, mut from) = (Vec::new(), range.start);
        for _ in 0..STRETCHES_MAX {
            if from >= range.end || items.len() >= most {
                break;
            }
            let stretch = self.stretch_up(from, range.end, most - items.len());
            let mut base = stretch.settled.base.tree();
            base.root = base.root.filter(wants);
            let layers = stretch.settled.layers.clone();
            let told =
                stretch.partial_items(nodes, (&layers, base), wants, most - items.len()).await?;
            items.extend(told.0);
            from = told.1;
        }
        Ok(PartialItems { items, next: (from < range.end).then_some(from) })
    }

    /// Keys in `range` with different values in this table and `other`, about `most` of them.
    pub async fn differing(
        &self,
        other: &Table,
        nodes: &dyn NodeSource,
        range: Range<Key>,
        most: usize,
    ) -> Result<Differing, TableError> {
        let (mut items, mut from, mut looked) = (Vec::new(), range.start, 0);
        for _ in 0..STRETCHES_MAX {
            if from >= range.end || looked >= most {
                break;
            }
            let own = self.stretch_up(from, range.end, most);
            let their = other.stretch_up(from, own.to, most);
            let own = own.cut(their.to);
            let (told, to) = tell_both(nodes, [own, their], most).await?;
            looked += told[0].len().max(told[1].len());
            from = to;
            for (key, sides) in merged(told) {
                let [one, two] = match sides {
                    [Some(one), Some(two)] => [one, two],
                    [Some(one), None] => [one, other.get(nodes, key).await?],
                    [None, two] => [self.get(nodes, key).await?, two.flatten()],
                };
                if one != two {
                    items.push((key, [one, two]));
                }
            }
        }
        Ok(Differing { items, next: (from < range.end).then_some(from) })
    }
}

type Items = Vec<(Key, Option<Value>)>;

/// The content of two stretches of the same keys apart from their common nodes on disk, up to a
/// key.
async fn tell_both(
    nodes: &dyn NodeSource,
    [one, two]: [Stretch; 2],
    most: usize,
) -> Result<([Items; 2], Key), TableError> {
    let (range, settled) = (one.from..one.to, [one.settled.clone(), two.settled.clone()]);
    let same_base = settled[0].base.root == settled[1].base.root;
    let common = if same_base { BTreeSet::new() } else { common_leaves(nodes, &settled).await? };
    let wants: &Wants<'_> = &|ptr| !common.contains(ptr);
    let tree = |settled: &Settled| match same_base {
        true => Tree { root: None, ..settled.base.tree() },
        false => settled.base.tree(),
    };
    // The oldest come last, and lie over the same base.
    let pairs = settled[0].layers.iter().rev().zip(settled[1].layers.iter().rev());
    let same = pairs.take_while(|(one, two)| same_base && one.root == two.root).count();
    let layers = [0, 1].map(|n: usize| {
        let all: &[LayerDescriptor] = &settled[n].layers;
        all[..all.len() - same].to_vec()
    });
    let (mut told, to) =
        one.partial_items(nodes, (&layers[0], tree(&settled[0])), wants, most).await?;
    let two = two.cut(to);
    let (other, end) =
        two.partial_items(nodes, (&layers[1], tree(&settled[1])), wants, most).await?;
    debug_assert!(range.contains(&end) || end == range.end);
    told.truncate(told.partition_point(|(key, _)| *key < end));
    Ok(([told, other], end))
}

/// Leaves that both bases have.
async fn common_leaves(
    nodes: &dyn NodeSource,
    settled: &[Settled; 2],
) -> Result<BTreeSet<NodePtr>, TableError> {
    let one = leaves(nodes, settled[0].base.tree()).await?;
    let two = leaves(nodes, settled[1].base.tree()).await?;
    Ok(one.intersection(&two).copied().collect())
}

async fn leaves(nodes: &dyn NodeSource, tree: Tree) -> Result<BTreeSet<NodePtr>, TableError> {
    let Some(root) = tree.root else { return Ok(BTreeSet::new()) };
    if tree.height == 0 {
        return Ok(BTreeSet::from([root]));
    }
    let inner = InnerNode::fetch(nodes, root, Purpose::Inner).await?;
    Ok(inner.iter().map(|child| child.ptr).collect())
}

/// Two lists in order as one; where a list has nothing of a key, `None`.
fn merged([one, two]: [Items; 2]) -> impl Iterator<Item = (Key, [Option<Option<Value>>; 2])> {
    let (mut one, mut two) = (one.into_iter().peekable(), two.into_iter().peekable());
    std::iter::from_fn(move || {
        let key_of = |list: &mut Peekable<std::vec::IntoIter<_>>| list.peek().map(|(key, _)| *key);
        let keys = [key_of(&mut one), key_of(&mut two)];
        let key = keys.into_iter().flatten().min()?;
        let here = |list: &mut Peekable<std::vec::IntoIter<(Key, Option<Value>)>>| {
            list.next_if(|(at, _)| *at == key).map(|(_, value)| value)
        };
        Some((key, [here(&mut one), here(&mut two)]))
    })
}

impl Stretch {
    /// The part below `to`, which lies in it.
    fn cut(mut self, to: Key) -> Stretch {
        self.edits.truncate(self.edits.partition_point(|(key, _)| *key < to));
        Stretch { to, ..self }
    }

    /// The content of edits, these layers and the wanted leaves of this base, at most `most` keys;
    /// and the key up to which that is all.
    async fn partial_items(
        self,
        nodes: &dyn NodeSource,
        trees: (&[LayerDescriptor], Tree),
        wants: &Wants<'_>,
        most: usize,
    ) -> Result<(Items, Key), TableError> {
        let nothing = Delta::default();
        let frozen = self.frozen.as_deref().unwrap_or(&nothing);
        let (range, edits) = ((self.from, self.to), self.edits.into_iter());
        let mut edits = Overlay::upwards(edits, frozen.range(range.0..range.1)).peekable();
        let mut under = Pile::partly(nodes, trees, wants, range, 0).await?;
        let mut told = Vec::new();
        loop {
            let edit = edits.peek().map(|(key, _)| *key);
            let Some(side) = Side::nearer(edit, under.key(), Ordering::Less) else {
                return Ok((told, self.to));
            };
            let key = if side == Side::Under { under.key() } else { edit };
            let key = key.expect("the nearer side has a key");
            if told.len() == most {
                return Ok((told, key));
            }
            let value = match side {
                Side::Under => under.value()?.map(Value::from),
                _ => edits.next().and_then(|(_, edit)| edit.value().cloned()),
            };
            told.push((key, value));
            if side != Side::Over {
                under.advance().await?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use copyhold_types::{EpochId, Kind, TableId, Txg};
    use proptest::prelude::*;

    use super::*;
    use crate::store::{Sink, Store, block_on};
    use crate::{Edit, FreezePoint, Limits};

    const LIMITS: Limits = Limits { leaf_bytes: 4096, partition_leaves: 8, read_ahead: 2 };

    fn key(n: u64) -> Key {
        Key::new(7, Kind(1), n)
    }

    /// Merges unsettled edits into the base, or lays them over it.
    fn flush(table: &Table, store: &Arc<Store>, lay: bool) {
        for stats in table.stats() {
            let (complete_to, birth) = (Txg::FIRST, Txg::FIRST.next());
            let point = FreezePoint { complete_to, birth, own: EpochId::POOL, edits_max: 10_000 };
            let Some(job) = table.freeze(stats.start, point) else { continue };
            let mut sink = Sink::new(store);
            let flushed = match lay && stats.layers < 6 {
                true => block_on(job.spill(&**store, &mut sink, u64::MAX)),
                false => block_on(job.merge(&**store, &mut sink)),
            };
            table.install(job, flushed.unwrap());
        }
    }

    /// As deep as it lies over others.
    fn settle(table: &Table, store: &Arc<Store>, lay: bool) {
        if let Some(under) = table.under() {
            while !under.is_settled() {
                settle(&under, store, lay);
            }
            table.adopt();
        }
        flush(table, store, lay);
    }

    fn differing(one: &Table, two: &Table, store: &Store, most: usize) -> Vec<u64> {
        let (mut keys, mut from) = (Vec::new(), Some(Key::MIN));
        while let Some(start) = from {
            let found = block_on(one.differing(two, store, start..Key::MAX, most)).unwrap();
            for (key, [one, two]) in found.items {
                assert_ne!(one, two);
                keys.push(key.offset);
            }
            assert!(found.next.is_none_or(|next| next > start));
            from = found.next;
        }
        keys
    }

    fn content(table: &Table, store: &Store) -> BTreeMap<u64, Value> {
        let all = block_on(table.range(store, Key::MIN..Key::MAX, usize::MAX)).unwrap();
        all.into_iter().map(|(key, value)| (key.offset, value)).collect()
    }

    fn wanted(one: &Table, two: &Table, store: &Store) -> Vec<u64> {
        let (one, two) = (content(one, store), content(two, store));
        let keys: BTreeSet<u64> = one.keys().chain(two.keys()).copied().collect();
        keys.into_iter().filter(|key| one.get(key) != two.get(key)).collect()
    }

    #[test]
    fn what_two_forks_share_is_not_read() {
        let (root, store) = (Arc::new(Table::new(TableId(1), LIMITS)), Arc::<Store>::default());
        for n in 0..4000 {
            root.apply(Txg::FIRST, key(n), Edit::put(vec![1; 300]));
        }
        settle(&root, &store, false);
        let forks = [2, 3].map(|id| Table::over(&root, TableId(id)));
        forks[1].apply(Txg::FIRST, key(1234), Edit::put(&[2]));
        forks[1].apply(Txg::FIRST, key(2345), Edit::Delete);
        for round in 0..2 {
            store.set_slow(1);
            let before = store.reads();
            assert_eq!(differing(&forks[0], &forks[1], &store, 100), [1234, 2345]);
            let (reads, nodes) = (store.reads() - before, store.addresses().len());
            assert!(reads <= 20 && nodes > 300, "round {round}: {reads} of {nodes} nodes");
            store.set_slow(0);
            forks.iter().for_each(|fork| settle(fork, &store, false));
        }
    }

    #[test]
    fn of_leaves_that_nobody_wants_nothing_is_told() {
        let (table, store) = (Table::new(TableId(1), LIMITS), Arc::<Store>::default());
        for n in 0..500 {
            table.apply(Txg::FIRST, key(n), Edit::put(vec![1; 100]));
        }
        flush(&table, &store, false);
        table.apply(Txg::FIRST, key(70), Edit::put(&[2]));
        flush(&table, &store, true);
        table.apply(Txg::FIRST, key(80), Edit::Delete);
        let told = |wants: &(dyn Fn(&NodePtr) -> bool + Send + Sync)| {
            block_on(table.partial_items(&*store, Key::MIN..Key::MAX, 10_000, wants)).unwrap()
        };
        let found = told(&|ptr| ptr.epoch > EpochId::POOL);
        let both = vec![(key(70), Some(Value::from(&[2]))), (key(80), None)];
        assert_eq!(found, PartialItems { items: both, next: None });
        assert_eq!(told(&|_| true).items.len(), 500);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(usize, u64, u8),
        Delete(usize, u64),
        Fork(usize),
        Settle(usize, bool),
        Under(usize, bool),
    }

    fn ops() -> impl Strategy<Value = Op> {
        let table = || any::<usize>();
        prop_oneof![
            8 => (table(), 0..300u64, 0..3u8).prop_map(|(t, n, byte)| Op::Put(t, n, byte)),
            4 => (table(), 0..300u64).prop_map(|(t, n)| Op::Delete(t, n)),
            2 => table().prop_map(Op::Fork),
            2 => (table(), any::<bool>()).prop_map(|(t, lay)| Op::Settle(t, lay)),
            1 => (table(), any::<bool>()).prop_map(|(t, lay)| Op::Under(t, lay)),
        ]
    }

    proptest! {
        #[test]
        fn what_differs_is_found_whatever_is_settled(
            ops in prop::collection::vec(ops(), 1..100),
            most in 1..40usize,
        ) {
            let store = Arc::<Store>::default();
            let mut live = vec![Arc::new(Table::new(TableId(9), LIMITS))];
            for n in 0..200 {
                live[0].apply(Txg::FIRST, key(n), Edit::put(vec![1; 150]));
            }
            let mut next = 10;
            for op in ops {
                let at = |t: usize| t % live.len();
                match op {
                    Op::Put(t, n, byte) => {
                        live[at(t)].apply(Txg::FIRST, key(n), Edit::put(vec![byte; 150]));
                    }
                    Op::Delete(t, n) => live[at(t)].apply(Txg::FIRST, key(n), Edit::Delete),
                    Op::Fork(t) if live.len() < 5 => {
                        let parent = live.remove(at(t));
                        for _ in 0..2 {
                            live.push(Arc::new(Table::over(&parent, TableId(next))));
                            next += 1;
                        }
                    }
                    Op::Fork(_) => {}
                    Op::Settle(t, lay) => settle(&live[at(t)], &store, lay),
                    Op::Under(t, lay) => {
                        let table = &live[at(t)];
                        flush(&table.under().unwrap_or_else(|| table.clone()), &store, lay);
                    }
                }
            }
            for one in &live {
                for two in &live {
                    let found = differing(one, two, &store, most);
                    prop_assert_eq!(found, wanted(one, two, &store));
                }
            }
        }
    }
}
