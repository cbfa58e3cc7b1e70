//! Tables (`docs/format.md`, 6.7 and 7): the value of a key, over all parts that have one.
//!
//! ```text
//!   edits of the table, of those it lies over     in memory, from the log
//!   layers of the lowest, the newest first        ┐ each a tree: a leaf at a time
//!   base of the lowest                            ┘
//! ```
//!
//! A *window* is a range of keys for which each tree has one leaf; a table is read window by
//! window. Where a leaf is lost, the parts over it still count, and the window says that more may
//! have been there. So damage costs the keys of that leaf, and no others.
//!
//! SALVAGE-T1  The value of a key is that in the highest of the parts that have the key.
//! SALVAGE-T2  An edit counts over a partition only if its txg is above the txg that it is
//!             complete to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use crate::damage::Damage;
use crate::key::{Key, LINEAGE, PARTITION};
use crate::lineage::Lineage;
use crate::node::{Node, Pointer};
use crate::partition::{Partition, Tree, layered};
use crate::replay::{Edits, Replay};
use crate::source::Source;

pub(crate) const TABLES: u64 = 1;
pub(crate) const SYSTEM: u64 = 2;

/// Tables that may lie over each other; more is a circle.
const DEPTH_MAX: usize = 1 << 16;
/// Most bytes of unpacked nodes that are kept.
const CACHE_BYTES: usize = 32 << 20;

/// The items of a range of keys.
#[derive(Debug)]
pub(crate) struct Window {
    /// Its last key.
    pub(crate) last: Key,
    pub(crate) items: Vec<(Key, Box<[u8]>)>,
    /// There may have been more items, or the ones here may be old.
    pub(crate) damage: Option<Damage>,
}

#[derive(Default)]
struct Cache {
    nodes: BTreeMap<u128, (u64, Rc<Node>)>,
    bytes: usize,
    clock: u64,
}

/// All tables of a pool.
pub(crate) struct Tables {
    edits: BTreeMap<u64, Edits>,
    partitions: BTreeMap<u64, Vec<Partition>>,
    lineages: BTreeMap<u64, Lineage>,
    /// Ranges of the table of tables that are lost.
    lost: Vec<(Key, Key, Damage)>,
    cache: RefCell<Cache>,
}

impl Tables {
    /// `root`: the descriptor of the table of tables.
    pub(crate) fn open(source: &dyn Source, root: &[u8], replay: Replay) -> Result<Tables, Damage> {
        let wrong = |why| Damage::new("the descriptor of the table of tables", why);
        let root = Partition::parse(root).map_err(wrong)?;
        let mut tables = Tables {
            edits: replay.tables,
            partitions: BTreeMap::from([(TABLES, vec![root])]),
            lineages: BTreeMap::new(),
            lost: Vec::new(),
            cache: RefCell::default(),
        };
        let mut from = Some(Key::default());
        while let Some(first) = from {
            let window = tables.window(source, TABLES, first, Key::MAX);
            tables.lost.extend(window.damage.map(|damage| (first, window.last, damage)));
            for (key, value) in &window.items {
                tables.add(*key, value);
            }
            from = window.last.next();
        }
        tables.partitions.values_mut().for_each(|of| of.sort_by_key(|partition| partition.start));
        Ok(tables)
    }

    fn add(&mut self, key: Key, value: &[u8]) {
        let wrong = |why: String| {
            (key, key, Damage::new(format!("item {key:?} of the table of tables"), why))
        };
        if key.object == TABLES {
            return; // It is in no table.
        }
        match key.kind {
            PARTITION => match Partition::parse(value) {
                Ok(found) => self.partitions.entry(key.object).or_default().push(found),
                Err(why) => self.lost.push(wrong(why)),
            },
            LINEAGE => match Lineage::parse(value) {
                Ok(found) => drop(self.lineages.insert(key.object, found)),
                Err(why) => self.lost.push(wrong(why)),
            },
            _ => {}
        }
    }

    /// The damage of the table of tables.
    pub(crate) fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.lost.iter().map(|(_, _, damage)| damage)
    }

    /// Calls `take` with the items from `first` to `last` in their order, until it breaks; lost
    /// ones are reported with their keys.
    pub(crate) fn scan(
        &self,
        source: &dyn Source,
        table: u64,
        first: Key,
        last: Key,
        mut take: impl FnMut(Found<'_>),
    ) {
        let mut from = Some(first);
        while let Some(first) = from.filter(|first| *first <= last) {
            let window = self.window(source, table, first, last);
            if let Some(damage) = &window.damage {
                take(Found::Lost { first, last: window.last, damage });
            }
            for (key, value) in &window.items {
                take(Found::Item(*key, value));
            }
            from = window.last.next();
        }
    }

    /// The item, if there is one.
    pub(crate) fn get(
        &self,
        source: &dyn Source,
        table: u64,
        key: Key,
    ) -> Result<Option<Box<[u8]>>, Damage> {
        let window = self.window(source, table, key, key);
        match (window.items.into_iter().next(), window.damage) {
            (Some((_, value)), _) => Ok(Some(value)),
            (None, Some(damage)) => Err(damage),
            (None, None) => Ok(None),
        }
    }

    /// The items from `first` on, up to `last` at most.
    pub(crate) fn window(&self, source: &dyn Source, table: u64, first: Key, last: Key) -> Window {
        let mut window = Window { last, items: Vec::new(), damage: self.uncertain(table) };
        let stack = match self.stack(table) {
            Ok(stack) => stack,
            Err(damage) => return Window { damage: Some(damage), ..window },
        };
        let lowest = *stack.last().expect("the table itself");
        let partition = self.partition(lowest, first, &mut window.last);
        // The leaves, from the base up; the window ends where the first of them does.
        let base =
            partition.and_then(|partition| partition.base.as_ref()).map(|tree| (tree, false));
        let layers = partition.into_iter().flat_map(|partition| &partition.layers);
        let trees = base.into_iter().chain(layers.map(|tree| (tree, true)).rev());
        let mut leaves = Vec::new();
        for (tree, is_layer) in trees {
            leaves.push((self.leaf(source, tree, first, &mut window.last), is_layer));
        }
        let range = (Bound::Included(first), Bound::Included(window.last));
        let mut decided: BTreeMap<Key, Option<Box<[u8]>>> = BTreeMap::new();
        for table in &stack {
            let settled = partition.filter(|_| *table == lowest);
            let settled = settled.map_or(0, |partition| partition.complete_to);
            let edits = self.edits.get(table).into_iter().flat_map(|edits| edits.range(range));
            for (key, edit) in edits.filter(|(_, edit)| edit.txg > settled) {
                decided.entry(*key).or_insert_with(|| edit.value.clone());
            }
        }
        for (leaf, is_layer) in leaves.into_iter().rev() {
            if let Err(damage) = leaf.and_then(|leaf| decide(&leaf, is_layer, range, &mut decided))
            {
                window.damage = Some(damage);
                break; // What lies under it may be old.
            }
        }
        let items = decided.into_iter().filter_map(|(key, value)| Some((key, value?)));
        window.items = items.collect();
        window
    }

    /// The table and those under it, the lowest last.
    fn stack(&self, table: u64) -> Result<Vec<u64>, Damage> {
        let mut stack = vec![table];
        let mut at = table;
        loop {
            match self.lineages.get(&at) {
                None => return Ok(stack),
                Some(Lineage::Gone) => {
                    return Err(Damage::new(format!("table {at}"), "it is gone"));
                }
                Some(Lineage::Over(under)) if *under < at && stack.len() < DEPTH_MAX => {
                    stack.push(*under);
                    at = *under;
                }
                Some(Lineage::Over(_)) => {
                    let why = "it lies over a table that is not older";
                    return Err(Damage::new(format!("table {at}"), why));
                }
            }
        }
    }

    /// Whether descriptors of the table, or of one under it, may be lost.
    fn uncertain(&self, table: u64) -> Option<Damage> {
        let tables = self.stack(table).unwrap_or_default();
        let is_lost = |first: &Key, last: &Key, table: u64| {
            *first <= Key::new(table, LINEAGE, u64::MAX) && *last >= Key::new(table, PARTITION, 0)
        };
        let mut lost = self.lost.iter();
        lost.find(|(first, last, _)| tables.iter().any(|table| is_lost(first, last, *table)))
            .filter(|_| table != TABLES)
            .map(|(_, _, damage)| damage.clone())
    }

    /// The partition that has `key`; `last` is moved to its end, if that comes before.
    fn partition(&self, table: u64, key: Key, last: &mut Key) -> Option<&Partition> {
        let partitions = self.partitions.get(&table)?;
        let next = partitions.partition_point(|partition| partition.start <= key);
        if let Some(end) = partitions.get(next).and_then(|next| next.start.before()) {
            *last = end.min(*last);
        }
        partitions.get(next.checked_sub(1)?)
    }

    /// The leaf of a tree that has `key`; `last` is moved to its end, if that comes before.
    fn leaf(
        &self,
        source: &dyn Source,
        tree: &Tree,
        key: Key,
        last: &mut Key,
    ) -> Result<Rc<Node>, Damage> {
        if tree.height == 0 {
            return self.node(source, &tree.root);
        }
        let root = self.node(source, &tree.root)?;
        let Node::Inner(children) = &*root else {
            return Err(Damage::new("a tree of two levels", "its root is a leaf"));
        };
        let next = children.partition_point(|(first, _)| *first <= key);
        let next = next.max(1); // The first has the keys from the start of the partition.
        if let Some(end) = children.get(next).and_then(|(first, _)| first.before()) {
            *last = end.min(*last);
        }
        self.node(source, &children[next - 1].1)
    }

    fn node(&self, source: &dyn Source, pointer: &Pointer) -> Result<Rc<Node>, Damage> {
        let cache = &mut *self.cache.borrow_mut();
        cache.clock += 1;
        if let Some((used, node)) = cache.nodes.get_mut(&pointer.id()) {
            *used = cache.clock;
            return Ok(node.clone());
        }
        let node = Rc::new(Node::load(source, pointer)?);
        cache.bytes += node.cost();
        cache.nodes.insert(pointer.id(), (cache.clock, node.clone()));
        while cache.bytes > CACHE_BYTES && cache.nodes.len() > 1 {
            let oldest = cache.nodes.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            let gone = cache.nodes.remove(&oldest);
            cache.bytes -= gone.map_or(0, |(_, node)| node.cost());
        }
        Ok(node)
    }
}

/// A result of a scan.
pub(crate) enum Found<'a> {
    Item(Key, &'a [u8]),
    /// Of these keys more may have been there than is reported next.
    Lost {
        first: Key,
        last: Key,
        damage: &'a Damage,
    },
}

/// Adds a leaf's values of keys that no part above it has (SALVAGE-T1).
fn decide(
    leaf: &Node,
    is_layer: bool,
    (first, last): (Bound<Key>, Bound<Key>),
    decided: &mut BTreeMap<Key, Option<Box<[u8]>>>,
) -> Result<(), Damage> {
    let Node::Leaf(items) = leaf else {
        return Err(Damage::new("a tree", "an inner node where a leaf must be"));
    };
    let (Bound::Included(first), Bound::Included(last)) = (first, last) else {
        unreachable!("a window includes its ends")
    };
    let from = items.partition_point(|(key, _)| *key < first);
    for (key, value) in items[from..].iter().take_while(|(key, _)| *key <= last) {
        let value = if is_layer { layered(value)?.map(Into::into) } else { Some(value.clone()) };
        decided.entry(*key).or_insert(value);
    }
    Ok(())
}
