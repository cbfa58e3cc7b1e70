//! The plain model of epochs (the plan's executable one), block by block, and the engine beside it.
//!
//! The model has no tables, no steps and nothing pending: a deletion is one operation. When all
//! that is on its way has arrived, the engine's used blocks, shares, deadlists and usage are the
//! model's, whatever the order in which it got there.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{Content, DeadItem, EPOCH, EpochItem, ShareItem};
use copyhold_pool::{Condition, Pool};
use copyhold_types::{EpochId, Key, Purpose, SubvolId, TableId};

use crate::world::World;

/// A block is known by what was written to it: a number that is in no other.
type Tag = u64;
type Slot = (u64, u64);
/// What was dropped of what was inherited: by the pointer's epoch.
type Dead = BTreeMap<(EpochId, Tag), u32>;

#[derive(Clone, Copy, Debug)]
struct Pointer {
    tag: Tag,
    epoch: EpochId,
}

#[derive(Clone, Debug)]
struct Epoch {
    current: EpochId,
    first: EpochId,
    parent: Option<EpochId>,
    children: Option<[EpochId; 2]>,
    dead: Dead,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    epochs: BTreeMap<EpochId, Epoch>,
    live: BTreeMap<SubvolId, (EpochId, BTreeMap<Slot, Pointer>)>,
    /// By what was written, with its origin.
    allocated: BTreeMap<Tag, EpochId>,
    /// References beyond the first.
    shares: BTreeMap<Tag, u32>,
}

impl Epochs {
    pub(crate) fn create(&mut self, subvol: SubvolId, id: EpochId, current: EpochId) {
        let (dead, first) = (Dead::new(), id);
        let epoch = Epoch { current, first, parent: None, children: None, dead };
        self.epochs.insert(id, epoch);
        self.live.insert(subvol, (id, BTreeMap::new()));
    }

    pub(crate) fn write(&mut self, subvol: SubvolId, slot: Slot, tag: Tag) {
        let epoch = self.current(subvol);
        self.allocated.insert(tag, epoch);
        self.put(subvol, slot, Pointer { tag, epoch });
    }

    pub(crate) fn drop_slot(&mut self, subvol: SubvolId, slot: Slot) {
        let (leaf, tree) = self.live.get_mut(&subvol).expect("it lives");
        let (leaf, old) = (*leaf, tree.remove(&slot));
        old.into_iter().for_each(|old| self.release(leaf, old.epoch, old.tag));
    }

    pub(crate) fn reflink(&mut self, (from, slot): (SubvolId, Slot), (to, at): (SubvolId, Slot)) {
        let Some(found) = self.live[&from].1.get(&slot).copied() else {
            return self.drop_slot(to, at);
        };
        *self.shares.entry(found.tag).or_default() += 1;
        let epoch = self.current(to);
        self.put(to, at, Pointer { epoch, ..found });
    }

    /// `ids`: of what the source goes on with, and of the new one.
    pub(crate) fn snapshot(&mut self, source: SubvolId, new: SubvolId, ids: [EpochId; 2]) {
        let (sealed, tree) = self.live[&source].clone();
        for id in ids {
            let (parent, dead) = (Some(sealed), Dead::new());
            let child = Epoch { current: id, first: id, parent, children: None, dead };
            self.epochs.insert(id, child);
        }
        self.epochs.get_mut(&sealed).expect("it lives").children = Some(ids);
        self.live.insert(source, (ids[0], tree.clone()));
        self.live.insert(new, (ids[1], tree));
    }

    pub(crate) fn delete(&mut self, subvol: SubvolId) {
        let (leaf, tree) = self.live.remove(&subvol).expect("it lives");
        let first = self.epochs[&leaf].first;
        for pointer in tree.values().filter(|pointer| pointer.epoch >= first) {
            free(&mut self.allocated, &mut self.shares, pointer.tag);
        }
        let Some(parent) = self.epochs[&leaf].parent else {
            self.epochs.remove(&leaf);
            return;
        };
        let heir = self.sibling(leaf);
        let Epoch { first, parent: grand, dead, .. } =
            self.epochs.remove(&parent).expect("a parent is there");
        self.epochs.remove(&leaf);
        if let Some(grand) = grand {
            let above = self.epochs.get_mut(&grand).expect("a parent is there");
            let children = above.children.as_mut().expect("it is sealed");
            *children.iter_mut().find(|child| **child == parent).expect("its child") = heir;
        }
        let into = self.epochs.get_mut(&heir).expect("a sibling is there");
        (into.first, into.parent) = (first, grand);
        let inherited = std::mem::replace(&mut into.dead, dead);
        for ((epoch, tag), count) in inherited {
            (0..count).for_each(|_| self.release(heir, epoch, tag));
        }
    }

    fn put(&mut self, subvol: SubvolId, slot: Slot, pointer: Pointer) {
        let (leaf, tree) = self.live.get_mut(&subvol).expect("it lives");
        let (leaf, old) = (*leaf, tree.insert(slot, pointer));
        old.into_iter().for_each(|old| self.release(leaf, old.epoch, old.tag));
    }

    fn current(&self, subvol: SubvolId) -> EpochId {
        self.epochs[&self.live[&subvol].0].current
    }

    fn owns(&self, holder: EpochId, epoch: EpochId) -> bool {
        epoch >= self.epochs[&holder].first
    }

    fn sibling(&self, epoch: EpochId) -> EpochId {
        let parent = self.epochs[&epoch].parent.expect("what is inherited is a parent's");
        let [one, other] = self.epochs[&parent].children.expect("a parent is sealed");
        if one == epoch { other } else { one }
    }

    /// `holder` drops a pointer; so have both below it.
    fn release(&mut self, mut holder: EpochId, epoch: EpochId, tag: Tag) {
        while !self.owns(holder, epoch) {
            let sibling = self.sibling(holder);
            let dead = &mut self.epochs.get_mut(&sibling).expect("it is there").dead;
            let Some(count) = dead.get_mut(&(epoch, tag)) else {
                let dead = &mut self.epochs.get_mut(&holder).expect("it is there").dead;
                *dead.entry((epoch, tag)).or_default() += 1;
                return;
            };
            *count -= 1;
            if *count == 0 {
                dead.remove(&(epoch, tag));
            }
            holder = self.epochs[&holder].parent.expect("it has a sibling");
        }
        free(&mut self.allocated, &mut self.shares, tag);
    }

    fn dead(&self) -> BTreeMap<EpochId, Dead> {
        let some = self.epochs.iter().filter(|(_, epoch)| !epoch.dead.is_empty());
        some.map(|(id, epoch)| (*id, epoch.dead.clone())).collect()
    }
}

/// One reference of its own is gone.
fn free(allocated: &mut BTreeMap<Tag, EpochId>, shares: &mut BTreeMap<Tag, u32>, tag: Tag) {
    match shares.get_mut(&tag) {
        Some(1) => drop(shares.remove(&tag)),
        Some(count) => *count -= 1,
        None => drop(allocated.remove(&tag).expect("nothing is freed twice")),
    }
}

impl World {
    /// The engine against the model, when all that is on its way has arrived.
    pub(crate) fn compare_epochs(&mut self) {
        self.finish();
        let plain = self.plain.clone().expect("it is kept beside");
        let tags = self.tags();
        let used: BTreeSet<Tag> = tags.values().copied().collect();
        assert_eq!(used.len(), tags.len(), "RECOUNT-E1: nothing is there twice");
        assert!(
            used.iter().eq(plain.allocated.keys()),
            "RECOUNT-E1: {used:?}, not {:?}",
            plain.allocated
        );
        assert_eq!(self.shares(&tags), plain.shares, "RECOUNT-E6");
        assert_eq!(self.deadlists(&tags), plain.dead(), "deadlists");
        let ledger = self.volumes.ledger();
        assert_eq!(ledger.miscounts(), 0);
        let mut wanted: BTreeMap<SubvolId, u64> = BTreeMap::new();
        for origin in plain.allocated.values().filter(|origin| ledger.counts(**origin)) {
            *wanted.entry(self.payer(self.owners[origin])).or_default() += 4096;
        }
        let groups = ledger.show().expect("quotas are on").into_iter();
        let found = groups.filter(|group| group.data > 0);
        let found: BTreeMap<_, _> =
            found.map(|group| (SubvolId(group.id.id() as u32), group.data)).collect();
        assert_eq!(found, wanted, "RECOUNT-E2");
    }

    /// What is in each block that a live subvolume refers to.
    fn tags(&self) -> BTreeMap<u64, Tag> {
        let mut tags = BTreeMap::new();
        for subvol in self.model.keys() {
            for (_, extent) in self.extents(*subvol) {
                let run = extent.pointer.run;
                let read = self.pool().read(run, Condition::Nothing, Purpose::Data, None);
                let data = self.rt.block_on(read).unwrap();
                let tag = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
                tags.extend((run.addr.raw()..).zip(data.chunks(4096).map(tag)));
            }
        }
        tags
    }

    fn shares(&self, tags: &BTreeMap<u64, Tag>) -> BTreeMap<Tag, u32> {
        let mut shares = BTreeMap::new();
        for (key, value) in self.all(Pool::SHARES) {
            let ShareItem { blocks, count } = ShareItem::parse(key, &value).unwrap();
            let run = key.offset..key.offset + u64::from(blocks);
            shares.extend(run.map(|block| (tags[&block], count)));
        }
        shares
    }

    /// What the deadlists of all epochs say of data.
    fn deadlists(&self, tags: &BTreeMap<u64, Tag>) -> BTreeMap<EpochId, Dead> {
        let mut all: BTreeMap<EpochId, Dead> = BTreeMap::new();
        for (key, value) in self.all(Pool::SYSTEM).into_iter().filter(|(key, _)| key.kind == EPOCH)
        {
            let Some(set) = EpochItem::parse(key, &value).unwrap().deadlist else { continue };
            for (at, value) in self.all(set) {
                let item = DeadItem::parse(at, &value).unwrap();
                if item.content == Content::Data {
                    let dead = all.entry(EpochId(key.object)).or_default();
                    let run = at.offset..at.offset + u64::from(item.blocks);
                    let epoch = EpochId(at.object);
                    dead.extend(run.map(|block| ((epoch, tags[&block]), item.count)));
                }
            }
        }
        all
    }

    fn all(&self, table: TableId) -> Vec<(Key, copyhold_pool::Value)> {
        let items = self.pool().range(table, Key::MIN, Key::MAX, usize::MAX);
        self.rt.block_on(items).unwrap()
    }
}
