//! The trees of a table, bases and layers: every node in every copy, and that each is the one its
//! parent means.
//!
//! For a node at hand the digest is right, so what is wrong in it was written so. Checked are: its
//! level, the table in its header, its keys (inside the range that the parent gives it, beginning
//! at the key that the parent names), its items (as many as the parent says), and its birth.
//! Parsing shows that the keys of a node ascend. Each value of a layer is an edit.
//!
//! A node that snapshots share is read once: a table that inherits it takes the result of the
//! first read.

use std::collections::BTreeSet;
use std::ops::Range;

use copyhold_device::DynDevice;
use copyhold_format::node::{
    Child, Header, InnerView, LayerDescriptor, LeafView, Level, Node, PartitionDescriptor,
    parse_edit,
};
use copyhold_types::{BlockAddr, Key, NodePtr, Purpose, TableId, Txg};
use futures_util::stream::{self, StreamExt};

use crate::copies::Copies;
use crate::problem::Problem;
use crate::reach::Reach;
use crate::report::Draft;
use crate::role::Role;

/// Nodes that are read at the same time.
const READS: usize = 8;

/// Checks the trees of one partition after the other.
pub(crate) struct TreeCheck<'a> {
    pub(crate) device: &'a DynDevice,
    pub(crate) table: TableId,
    pub(crate) role: Role,
    /// The nodes that were read for other tables, if any were.
    pub(crate) seen: Option<&'a Reach>,
    /// Nodes that cannot be read, by their first copy: each table reports those that it lacks.
    pub(crate) unreadable: &'a mut BTreeSet<BlockAddr>,
    /// No node was written in a later txg.
    pub(crate) newest: Txg,
    pub(crate) report: &'a mut Draft,
    /// Every node, to be counted as a reference.
    pub(crate) nodes: Vec<(NodePtr, Level)>,
    /// Ranges of keys that cannot be read.
    pub(crate) lost: Vec<Range<Key>>,
}

/// The parent's description of a node.
struct Said {
    ptr: NodePtr,
    level: Level,
    in_layer: bool,
    range: Range<Key>,
    /// `None`: the parent does not say.
    first: Option<Key>,
    items: Option<u64>,
}

impl TreeCheck<'_> {
    /// `descriptors` in the order of their keys.
    pub(crate) async fn partitions(&mut self, descriptors: &[(u64, PartitionDescriptor)]) {
        for (at, (_, descriptor)) in descriptors.iter().enumerate() {
            let end = descriptors.get(at + 1).map_or(Key::MAX, |(_, next)| next.start);
            self.report.verified.partitions += 1;
            self.partition(descriptor, descriptor.start..end).await;
        }
    }

    async fn partition(&mut self, descriptor: &PartitionDescriptor, range: Range<Key>) {
        for layer in &descriptor.layers {
            self.report.verified.layers += 1;
            self.layer(layer, range.clone()).await;
        }
        let Some(ptr) = descriptor.root else { return };
        let (level, items) = (Level::of_height(descriptor.height), descriptor.items);
        self.tree(Said { ptr, level, in_layer: false, range, first: None, items: Some(items) })
            .await;
    }

    async fn layer(&mut self, layer: &LayerDescriptor, range: Range<Key>) {
        let (ptr, level, items) = (layer.root, Level::of_height(layer.height), layer.items);
        let root = Said { ptr, level, in_layer: true, range, first: None, items: Some(items) };
        if layer.last_txg > self.newest {
            let last = layer.last_txg;
            self.wrong(&root, format!("it has edits up to txg {last}, which is yet to come"));
        }
        self.tree(root).await;
    }

    /// `root`: says how many items the whole tree has.
    async fn tree(&mut self, root: Said) {
        let all = root.items.unwrap_or(0);
        let root = match root.level {
            Level::Leaf => root,
            Level::Inner => Said { items: None, ..root },
        };
        let copies = Copies::read(self.device, root.ptr, root.purpose()).await;
        let Some(Node::Inner(inner)) = self.node(&root, copies) else { return };
        let found = self.leaves(&inner, &root).await;
        if found.is_some_and(|found| found != all) {
            let why = format!("its count of items is {all}");
            self.wrong(&root, format!("{why}, and its leaves have {}", found.unwrap_or(0)));
        }
    }

    /// The items of all leaves; `None`: some cannot be read.
    async fn leaves(&mut self, inner: &InnerView, root: &Said) -> Option<u64> {
        let children: Vec<Child> = inner.iter().collect();
        let (device, range) = (self.device, &root.range);
        let why = purpose(Level::Leaf, root.in_layer);
        let mut found = Some(0);
        let (seen, unread): (Vec<_>, Vec<_>) =
            children.iter().enumerate().partition(|(_, child)| self.is_seen(&child.ptr));
        for (_, child) in seen {
            let pieces = match child.ptr.fragmented {
                false => vec![child.ptr],
                true => Copies::read(device, child.ptr, why).await.pieces,
            };
            self.nodes.extend(pieces.into_iter().map(|piece| (piece, Level::Leaf)));
            found = found.map(|sum| sum + u64::from(child.items));
        }
        let mut reads = stream::iter(unread)
            .map(|(n, child)| async move { (n, Copies::read(device, child.ptr, why).await) })
            .buffered(READS);
        while let Some((n, copies)) = reads.next().await {
            let child = &children[n];
            let from = if n == 0 { range.start } else { child.first };
            let to = children.get(n + 1).map_or(range.end, |next| next.first);
            let said = Said {
                ptr: child.ptr,
                level: Level::Leaf,
                in_layer: root.in_layer,
                range: from..to,
                first: Some(child.first),
                items: Some(child.items.into()),
            };
            let items = self.node(&said, copies).map(|node| node.header().items as u64);
            found = found.zip(items).map(|(sum, items)| sum + items);
        }
        found
    }

    /// Checks one node. `None`: it cannot be used.
    fn node(&mut self, said: &Said, copies: Copies) -> Option<Node> {
        self.nodes.extend(copies.pieces.iter().map(|piece| (*piece, said.level)));
        self.report.verified.node_copies += copies.count;
        let parsed = copies.good.as_ref().map(|buf| Node::parse(buf.clone()));
        let why = match parsed {
            Some(Ok(node)) if node.level() == said.level => {
                if self.is_seen(&said.ptr) {
                    return Some(node);
                }
                self.bad_copies(said, &copies);
                self.check_header(said, node.header());
                if let (Node::Leaf(leaf), true) = (&node, said.in_layer) {
                    self.check_edits(said, leaf);
                }
                return Some(node);
            }
            Some(Ok(_)) => "its level is not the one that its parent records".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => copies.complaints(),
        };
        self.lost.push(said.range.clone());
        self.unreadable.extend(said.ptr.copies.into_iter().flatten().take(1));
        let (table, from, to) = (self.table, said.range.start, said.range.end);
        self.report.add(match said.in_layer {
            true => Problem::Layer { table, from, to, why },
            false => Problem::Node { table, level: said.level, from, to, why },
        });
        None
    }

    /// Whether the node was read, and could be, for another table that has inherited it.
    fn is_seen(&self, ptr: &NodePtr) -> bool {
        let is_unreadable = || ptr.copies.iter().flatten().any(|at| self.unreadable.contains(at));
        self.role.is_inherited(ptr.epoch)
            && self.seen.is_some_and(|seen| ptr.runs().all(|run| seen.has(run)))
            && !is_unreadable()
    }

    fn bad_copies(&mut self, said: &Said, copies: &Copies) {
        let (table, level) = (self.table, said.level);
        for (run, why) in &copies.bad {
            let (run, why) = (*run, why.clone());
            self.report.add(match said.in_layer {
                true => Problem::LayerCopy { table, run, why },
                false => Problem::NodeCopy { table, level, run, why },
            });
        }
    }

    fn check_edits(&mut self, said: &Said, leaf: &LeafView) {
        let wrong = |(key, value)| parse_edit(value).err().map(|error| (key, error));
        if let Some((key, error)) = leaf.iter().find_map(wrong) {
            self.wrong(said, format!("its edit of {key} is invalid: {error}"));
        }
    }

    fn check_header(&mut self, said: &Said, header: &Header) {
        if !self.role.fits(said.ptr.epoch, header.table, self.table) {
            self.wrong(said, format!("it was written for table {}", header.table));
        }
        if header.birth > self.newest {
            self.wrong(said, format!("it was born in txg {}, which is yet to come", header.birth));
        }
        let range = &said.range;
        if header.first < range.start || header.last >= range.end {
            let (first, last) = (header.first, header.last);
            let ends = format!("from {} to {}", range.start, range.end);
            self.wrong(said, format!("its keys {first} to {last} are not in its range {ends}"));
        } else if said.first.is_some_and(|first| first != header.first) {
            self.wrong(said, "its parent names another first key".into());
        }
        let items = header.items as u64;
        if let Some(wanted) = said.items
            && wanted != items
        {
            self.wrong(said, format!("it has {items} items, and its parent records {wanted}"));
        }
    }

    fn wrong(&mut self, said: &Said, why: String) {
        let run = said.ptr.runs().next().expect("a pointer that was parsed has a copy");
        let (table, level) = (self.table, said.level);
        self.report.add(match said.in_layer {
            true => Problem::LayerContent { table, run, why },
            false => Problem::NodeContent { table, level, run, why },
        });
    }
}

impl Said {
    fn purpose(&self) -> Purpose {
        purpose(self.level, self.in_layer)
    }
}

fn purpose(level: Level, in_layer: bool) -> Purpose {
    if in_layer { Purpose::Layer } else { level.purpose() }
}
