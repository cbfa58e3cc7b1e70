//! Families of subvolumes: the blocks that each holds, the blocks that siblings have dropped, and
//! the payers.
//!
//! Problem.  A block that snapshots share is allocated once and referred to by many; whether it is
//!           given back rightly depends on lines of deadlists and counts of shares that no reader
//!           ever looks at.
//! Idea.     Count from the leaves. An epoch *holds*, as a leaf, its tree; as a sealed one,
//!           for blocks that both children have inherited, the more that one of the two holds;
//!           and blocks pending for it are still held. Then all else follows, block by block:
//!
//! ```text
//!   deadlist of a child  =  what its sibling holds and it does not, of what was inherited
//!   own references       =  what an epoch holds that it has not inherited: no other epoch does
//!   shares of a block    =  its own references, of all families, but one
//!   usage of an origin   =  the blocks that have it, each once
//! ```
//!
//! The deadlists are RECOUNT-E4 and RECOUNT-E5, the shares RECOUNT-E6, the usage RECOUNT-E2.
//!
//! A dying subvolume that is being walked has a tree that can be read from its cursor on, and only
//! its own blocks count there. It has inherited the blocks that its sibling holds, or has on
//! its deadlist; so that list is believed. Once it is absorbed, the blocks of the list are pending
//! for its heir.
//!
//! Memory: 48 bytes for a run of each epoch whose sibling is still to come, the larger part of a
//! family first; nothing while the pool has one subvolume, and neither shares nor quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_format::item::{
    Content, DeadItem, EXTENT, Extent, PendingItem, ShareItem, Step, SubvolState, WINDOW_BLOCKS,
};
use copyhold_pool::Pool;
use copyhold_table::{NodeVisit, Table};
use copyhold_types::{BLOCK_BYTES, BlockAddr, EpochId, Key, NodePtr, Pointer, Run, TableId};
use copyhold_volume::family::{Epoch, Family};

use crate::checker::Checker;
use crate::problem::{Owner, Problem};
use crate::refs::{Ref, What, overlay};
use crate::system::System;

/// References of one epoch, canonical.
type Held = Vec<Ref<1>>;

/// The counts over all families.
#[derive(Default)]
struct Count {
    /// By the epoch that is to release it.
    pending: BTreeMap<EpochId, Held>,
    /// References that only one epoch holds.
    own: Held,
}

/// The lanes of an overlay of two siblings.
const HELD: [[u32; 4]; 2] = [[1, 0, 0, 0], [0, 1, 0, 0]];
const DEAD: [[u32; 4]; 2] = [[0, 0, 1, 0], [0, 0, 0, 1]];

pub(crate) async fn check(checker: &mut Checker, system: &System) {
    let families = match system.families() {
        Ok(families) => families,
        Err(bad) => {
            if !checker.lost.contains_key(&Pool::SYSTEM) {
                let (epoch, why) = (bad.epoch, bad.why.into());
                checker.report.add(Problem::Family { epoch, why });
            }
            checker.counting = false;
            Vec::new()
        }
    };
    let mut count = Count::default();
    if checker.counting {
        count.pending(checker, system).await;
    }
    let mut seen = Vec::new();
    for family in &families {
        count.family(checker, system, family).await;
        seen.extend(family.subvols());
    }
    for (holder, refs) in &count.pending {
        if !refs.is_empty() && families.iter().all(|family| family.get(*holder).is_none()) {
            let (holder, why) = (*holder, "there is no such epoch".into());
            checker.report.add(Problem::Pending { holder, why });
        }
    }
    for subvol in system.live().filter(|subvol| !seen.contains(subvol)) {
        system.files(checker, subvol).await;
    }
    if checker.counting && checker.lost.is_empty() {
        let own = count.own(checker);
        shares(checker, &own).await;
        system.usage(checker, &usage(&own));
    }
}

impl Count {
    async fn family(&mut self, checker: &mut Checker, system: &System, family: &Family) {
        let mut stack: Vec<Held> = Vec::new();
        for (epoch, children) in order(family) {
            let mut held = match children {
                None => leaf(checker, system, epoch).await,
                Some(children) => {
                    let other = stack.pop().expect("the second child came before");
                    let one = stack.pop().expect("the first child came before");
                    self.join(checker, system, children, [one, other]).await
                }
            };
            if let Some(pending) = self.pending.get_mut(&epoch.id) {
                held.append(pending);
                held = overlay(held);
            }
            if epoch.parent.is_none() {
                self.own.append(&mut held);
            }
            stack.push(held);
        }
    }

    /// The blocks held by an epoch whose children hold these, and whether their deadlists say so.
    async fn join(
        &mut self,
        checker: &mut Checker,
        system: &System,
        children: [&Epoch; 2],
        held: [Held; 2],
    ) -> Held {
        let mut both = Vec::with_capacity(held[0].len() + held[1].len());
        for (n, held) in held.into_iter().enumerate() {
            for one in held {
                match children[n].owns(one.what.epoch) {
                    true => self.own.push(one),
                    false => both.push(one.lanes(HELD[n].map(|lane| lane * one.counts[0]))),
                }
            }
        }
        let walked = children.map(|child| system.is_walked(child.subvol) && child.is_live());
        for n in 0..2 {
            let Some(set) = children[n].deadlist.filter(|_| checker.counting) else { continue };
            // A walked one still has the blocks that the other one has dropped.
            let remainder = walked[1 - n].then_some(children[1 - n].id);
            dead(checker, set, DEAD[n], remainder, &mut both).await;
        }
        let is_whole = checker.lost.is_empty() && checker.counting;
        let mut up = Held::new();
        for mut one in overlay(both) {
            let [a, b, dead_a, dead_b] = one.counts;
            if walked[0] {
                one.counts[0] = (b + dead_b).saturating_sub(dead_a);
            } else if walked[1] {
                one.counts[1] = (a + dead_a).saturating_sub(dead_b);
            }
            let [a, b, ..] = one.counts;
            let wanted = [b.saturating_sub(a), a.saturating_sub(b)];
            for (n, said) in [dead_a, dead_b].into_iter().enumerate() {
                if said != wanted[n] && is_whole {
                    let (epoch, run, found) = (children[n].id, one.run(), wanted[n]);
                    checker.report.add(Problem::Deadlist { epoch, run, said, found });
                }
            }
            if a.max(b) > 0 {
                up.push(one.lanes([a.max(b)]));
            }
        }
        overlay(up)
    }

    /// Releases that are still to be decided, and those that heirs are still to make.
    async fn pending(&mut self, checker: &mut Checker, system: &System) {
        for (key, value) in all(checker, Pool::PENDING).await {
            match PendingItem::parse(&value) {
                Ok(PendingItem { pointer, content, count }) => {
                    self.add_pending(checker, EpochId(key.object), content, pointer, count);
                }
                Err(error) => record(checker, Pool::PENDING, key, &error),
            }
        }
        for (heir, set) in system.inherited() {
            let mut found = Vec::new();
            dead(checker, set, [1], None, &mut found).await;
            for one in found {
                let What { content, epoch, origin } = one.what;
                let pointer = Pointer { run: one.run(), epoch, origin };
                self.add_pending(checker, heir, content, pointer, one.counts[0]);
            }
        }
    }

    fn add_pending(
        &mut self,
        checker: &mut Checker,
        holder: EpochId,
        content: Content,
        pointer: Pointer,
        count: u32,
    ) {
        checker.refer_again(pointer.run, Owner::Release { holder });
        let list = self.pending.entry(holder).or_default();
        list.push(Ref::new(content, pointer, [count]));
    }

    /// Own references to each block, of any epoch; reports errors among them.
    fn own(&mut self, checker: &mut Checker) -> Held {
        let all = std::mem::take(&mut self.own).into_iter().map(|mut one| {
            one.what.epoch = EpochId::POOL;
            one
        });
        let mut own = overlay(all.collect());
        own.sort_by_key(|one| one.run().addr);
        let mut last: Option<Ref<1>> = None;
        for one in &own {
            if let Some(before) = last.filter(|last| last.end() > one.run().addr.raw()) {
                let (origin, other) = (before.what.origin, one.what.origin);
                checker.report.add(Problem::Origin { run: one.run(), origin, other });
            }
            last = last.filter(|last| last.end() > one.end()).or(Some(*one));
        }
        own
    }
}

/// Epochs, children before their parents, those with more below them first.
fn order(family: &Family) -> Vec<(&Epoch, Option<[&Epoch; 2]>)> {
    let mut sizes: BTreeMap<EpochId, usize> = BTreeMap::new();
    let epochs: Vec<&Epoch> = family.epochs().collect();
    // FAMILY-F1: children have higher numbers.
    for epoch in epochs.iter().rev() {
        let below = epoch.children.into_iter().flatten().map(|child| sizes[&child]);
        let size = 1 + below.sum::<usize>();
        sizes.insert(epoch.id, size);
    }
    let mut order = Vec::with_capacity(epochs.len());
    let mut todo: Vec<&Epoch> = epochs.into_iter().filter(|epoch| epoch.parent.is_none()).collect();
    while let Some(epoch) = todo.pop() {
        let children = epoch.children.map(|children| {
            let mut two = children.map(|child| family.get(child).expect("RECOUNT-E3: a child"));
            two.sort_by_key(|child| std::cmp::Reverse(sizes[&child.id]));
            two
        });
        order.push((epoch, children));
        todo.extend(children.into_iter().flatten());
    }
    // The way down, smaller parts first, is read backwards.
    order.reverse();
    order
}

/// The blocks that the tree of a subvolume holds.
async fn leaf(checker: &mut Checker, system: &System, epoch: &Epoch) -> Held {
    let Some(item) = system.subvol(epoch.subvol) else { return Held::new() };
    let mut held = match item.state {
        SubvolState::Live => system.files(checker, epoch.subvol).await,
        SubvolState::Dying(Step::Settle) => extents(checker, epoch, Key::MIN).await,
        SubvolState::Dying(Step::Walk(from)) => {
            let mut held = extents(checker, epoch, from).await;
            held.extend(nodes(checker, epoch, from).await);
            held.retain(|one| epoch.owns(one.what.epoch));
            return overlay(held);
        }
        SubvolState::Dying(_) => return Held::new(),
    };
    if !checker.counting {
        return Held::new();
    }
    held.extend(nodes(checker, epoch, Key::MIN).await);
    overlay(held)
}

/// Extents of a dying subvolume, from a key on: no more of its files is needed.
async fn extents(checker: &mut Checker, epoch: &Epoch, from: Key) -> Held {
    let mut held = Held::new();
    let is_walked = from != Key::MIN;
    let Some(table) = checker.table(epoch.table) else { return held };
    let mut items = checker.items(&table, from..Key::MAX);
    while let Some(page) = items.next(&mut checker.report).await {
        for (key, value) in page.iter().filter(|(key, _)| key.kind == EXTENT) {
            let Ok(extent) = Extent::parse(value) else {
                record(checker, epoch.table, *key, &"it is no extent");
                continue;
            };
            if is_walked && !epoch.owns(extent.pointer.epoch) {
                continue;
            }
            checker.refer_again(extent.pointer.run, Owner::Dying { subvol: epoch.subvol });
            held.push(Ref::new(Content::Data, extent.pointer, [1]));
        }
    }
    held
}

/// Nodes of the tree that an epoch reads, its own or what it lies over; of partitions that end
/// behind `from`.
async fn nodes(checker: &Checker, epoch: &Epoch, from: Key) -> Held {
    let mut held = Held::new();
    let Some(table) = checker.table(epoch.table) else { return held };
    let base = lowest(&table);
    let mut starts: Vec<Key> = base.descriptors().iter().map(|(_, found)| found.start).collect();
    starts.sort();
    let first = starts.partition_point(|start| *start <= from).saturating_sub(1);
    let first = starts.get(first).copied().unwrap_or(Key::MIN);
    let mut found = Vec::new();
    let mut visit = |visit: NodeVisit<'_>| {
        if visit.partition >= first {
            found.push(visit.ptr);
        }
    };
    base.for_each_node(checker.pool.node_source(), false, &mut visit).await;
    for ptr in found {
        let epoch = ptr.epoch;
        for run in checker.pieces_of(ptr).await.iter().flat_map(NodePtr::runs) {
            let pointer = Pointer { run, epoch, origin: epoch };
            held.push(Ref::new(Content::Node, pointer, [1]));
        }
    }
    held
}

/// The table whose bases a table reads: a forked one that was not handed over has none.
pub(crate) fn lowest(table: &Arc<Table>) -> Arc<Table> {
    let mut at = table.clone();
    while let Some(under) = at.under() {
        at = under;
    }
    at
}

/// The blocks that a deadlist names, with its counts in the lanes given. `remainder`: the dying
/// epoch that still holds it.
async fn dead<const N: usize>(
    checker: &mut Checker,
    set: TableId,
    lanes: [u32; N],
    remainder: Option<EpochId>,
    into: &mut Vec<Ref<N>>,
) {
    let mut before = None;
    for (key, value) in all(checker, set).await {
        let item = match DeadItem::parse(key, &value) {
            Ok(item) => item,
            Err(error) => {
                record(checker, set, key, &error);
                continue;
            }
        };
        let run = Run::new(BlockAddr::from_raw(key.offset), item.blocks);
        let says = (EpochId(key.object), item.content, item.count, item.origin);
        canonical(checker, set, key, (run, says), &mut before);
        if let Some(holder) = remainder {
            checker.refer_again(run, Owner::Release { holder });
        }
        let pointer = Pointer { run, epoch: EpochId(key.object), origin: item.origin };
        into.push(Ref::new(item.content, pointer, lanes.map(|lane| lane * item.count)));
    }
}

/// For the marks of runs in one window, there is one way to write it (R27).
fn canonical<T: PartialEq>(
    checker: &mut Checker,
    table: TableId,
    key: Key,
    segment: (Run, T),
    before: &mut Option<(Run, T)>,
) {
    if let Some((run, says)) = before {
        let window = u64::from(WINDOW_BLOCKS);
        let [one, next] = [run.addr.block(), segment.0.addr.block()];
        let is_window =
            run.addr.device() == segment.0.addr.device() && one / window == next / window;
        if is_window && run.end() == next && *says == segment.1 {
            record(checker, table, key, &"it has the same data as the segment before it");
        }
    }
    *before = Some(segment);
}

/// RECOUNT-E6: the table of shares against own references.
async fn shares(checker: &mut Checker, own: &Held) {
    let data = |one: &&Ref<1>| one.what.content == Content::Data && one.counts[0] > 1;
    let mut both: Vec<Ref<2>> =
        own.iter().filter(data).map(|one| one.lanes([one.counts[0] - 1, 0])).collect();
    both.iter_mut().for_each(|one| one.what.origin = EpochId::POOL);
    let mut before = None;
    for (key, value) in all(checker, Pool::SHARES).await {
        match ShareItem::parse(key, &value) {
            Ok(item) => {
                let run = Run::new(BlockAddr::from_raw(key.offset), item.blocks);
                canonical(checker, Pool::SHARES, key, (run, item.count), &mut before);
                let (epoch, origin) = (EpochId::POOL, EpochId::POOL);
                let pointer = Pointer { run, epoch, origin };
                both.push(Ref::new(Content::Data, pointer, [0, item.count]));
            }
            Err(error) => record(checker, Pool::SHARES, key, &error),
        }
    }
    for one in overlay(both) {
        let ([found, said], run) = (one.counts, one.run());
        if found != said {
            checker.report.add(Problem::Shares { run, said, found });
        }
    }
}

/// Bytes of data and of nodes, by origin.
fn usage(own: &Held) -> BTreeMap<EpochId, [u64; 2]> {
    let mut usage: BTreeMap<EpochId, [u64; 2]> = BTreeMap::new();
    for one in own {
        let bytes = u64::from(one.run().blocks) * BLOCK_BYTES as u64;
        usage.entry(one.what.origin).or_default()[one.what.content as usize] += bytes;
    }
    usage
}

/// The items of a table of the pool's own.
async fn all(checker: &mut Checker, table: TableId) -> Vec<(Key, copyhold_pool::Value)> {
    let mut all = Vec::new();
    let Some(table) = checker.table(table) else { return all };
    let mut items = checker.items(&table, Key::MIN..Key::MAX);
    while let Some(page) = items.next(&mut checker.report).await {
        checker.report.verified.items += page.len() as u64;
        all.extend(page);
    }
    all
}

fn record(checker: &mut Checker, table: TableId, key: Key, why: &dyn std::fmt::Display) {
    checker.report.add(Problem::Record { table, key, why: why.to_string() });
}
