//! Subvolumes, their trees and the tables of the pool, all in memory, and what can happen to them.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{
    Content, DeadItem, EpochItem, HashKey, ParentDirectory as Entry, PendingItem, ShareItem, Step,
    SubvolItem, SubvolState, dead_key, epoch_key, pending_key, share_key, subvol_key,
};
use copyhold_pool::EDITS_PER_RELEASE;
use copyhold_table::{Cached, Edit};
use copyhold_types::{
    BlockAddr, DeviceId, EpochId, InodeNo, Key, Kind, Pointer, Run, SubvolId, TableId, Timestamp,
};
use copyhold_volume::family::{Birth, Family, FamilyId};
use copyhold_volume::release::{
    Damage, Dead, DeadWindow, EditTable, Evaluation, Lookup, Outcome, Release,
};
use copyhold_volume::segment::Segment;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::RngCore;

pub(crate) const SYSTEM: TableId = TableId(2);
pub(crate) const SHARES: TableId = TableId(3);
pub(crate) const PENDING: TableId = TableId(4);

/// Blocks of a subvolume's one file, and of it under one node.
const FILE_BLOCKS: u64 = 40;
const GROUP_BLOCKS: u64 = 8;
const NODE_BLOCKS: u32 = 2;

/// A rule that a history breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    DecidedEarly,
    SplitWithoutShare,
    RacingBuries,
    ConcurrentDeletions,
    RefundedByEpoch,
    WalkedUnsettled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) broken: Option<Broken>,
    /// Look-ups of a hundred that would have to read a node.
    pub(crate) unknown: u64,
    /// Everything in memory is forgotten after every operation.
    pub(crate) crashes: bool,
    /// Snapshots among a hundred operations.
    pub(crate) snapshots: u64,
    pub(crate) subvols: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { broken: None, unknown: 0, crashes: false, snapshots: 10, subvols: 8 }
    }
}

pub(crate) type Items = BTreeMap<Key, Vec<u8>>;

/// A block of a file: where it is, who wrote the pointer, who pays.
pub(crate) type Block = (u64, EpochId, EpochId);

/// A table of files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) blocks: BTreeMap<u64, Block>,
    /// By group; nothing while the tree lies over one that is not settled.
    pub(crate) nodes: Option<BTreeMap<u64, Pointer>>,
    pub(crate) dirty: BTreeSet<u64>,
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) rng: Xoshiro256PlusPlus,
    pub(crate) config: Config,
    pub(crate) tables: BTreeMap<TableId, Items>,
    pub(crate) families: BTreeMap<FamilyId, Family>,
    pub(crate) subvols: BTreeMap<SubvolId, SubvolItem>,
    /// Of live epochs, and of sealed ones that are not handed over.
    pub(crate) trees: BTreeMap<EpochId, Tree>,
    pub(crate) allocated: BTreeMap<u64, (EpochId, Content)>,
    pub(crate) usage: BTreeMap<(EpochId, Content), i64>,
    pub(crate) next: u64,
}

struct Tables<'a> {
    tables: &'a BTreeMap<TableId, Items>,
    rng: std::cell::RefCell<&'a mut Xoshiro256PlusPlus>,
    unknown: u64,
}

pub(crate) fn addr(block: u64) -> BlockAddr {
    BlockAddr::new(DeviceId(0), block)
}

impl Tables<'_> {
    fn known<T>(&self, value: T) -> Cached<T> {
        match self.rng.borrow_mut().next_u64() % 100 < self.unknown {
            true => Cached::Unknown,
            false => Cached::Known(value),
        }
    }

    fn items(&self, table: TableId, from: Key) -> impl Iterator<Item = (Key, &Vec<u8>)> {
        let to = Key { offset: from.offset + 32, ..from };
        let items = self.tables.get(&table).into_iter();
        items.flat_map(move |items| items.range(from..to)).map(|(key, value)| (*key, value))
    }
}

impl Lookup for Tables<'_> {
    fn dead(&self, at: DeadWindow) -> Result<Cached<Vec<Segment<Dead>>>, Damage> {
        let items = self.items(at.set, dead_key(at.epoch, at.window));
        Ok(self.known(items.map(|(key, value)| dead_segment(key, value)).collect()))
    }

    fn shares(&self, window: BlockAddr) -> Result<Cached<Vec<Segment<u32>>>, Damage> {
        let items = self.items(SHARES, share_key(window));
        let segments = items.map(|(key, value)| {
            let item = ShareItem::parse(key, value).unwrap();
            Segment {
                run: Run::new(BlockAddr::from_raw(key.offset), item.blocks),
                mark: item.count,
            }
        });
        Ok(self.known(segments.collect()))
    }

    fn nothing_is_shared(&self) -> bool {
        self.tables[&SHARES].is_empty()
    }
}

pub(crate) fn dead_segment(key: Key, value: &[u8]) -> Segment<Dead> {
    let DeadItem { blocks, content, count, origin } = DeadItem::parse(key, value).unwrap();
    let run = Run::new(BlockAddr::from_raw(key.offset), blocks);
    Segment { run, mark: Dead { content, count, origin } }
}

fn wrong(damage: Damage) -> String {
    damage.to_string()
}

impl World {
    pub(crate) fn new(rng: Xoshiro256PlusPlus, config: Config) -> World {
        let tables = [SYSTEM, SHARES, PENDING].map(|table| (table, Items::new()));
        World {
            rng,
            config,
            tables: tables.into(),
            families: BTreeMap::new(),
            subvols: BTreeMap::new(),
            trees: BTreeMap::new(),
            allocated: BTreeMap::new(),
            usage: BTreeMap::new(),
            next: 10,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.allocated.is_empty()
            && self.tables.values().all(BTreeMap::is_empty)
            && self.trees.is_empty()
            && self.families.is_empty()
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn live(&self) -> Vec<SubvolId> {
        let live = self.subvols.iter().filter(|(_, item)| item.state == SubvolState::Live);
        live.map(|(&subvol, _)| subvol).collect()
    }

    pub(crate) fn family_of(&self, subvol: SubvolId) -> FamilyId {
        let found = self.families.values().find(|family| family.leaf(subvol).is_some());
        found.expect("every subvolume has a family").id()
    }

    pub(crate) fn leaf(&self, subvol: SubvolId) -> copyhold_volume::family::Epoch {
        *self.families[&self.family_of(subvol)].leaf(subvol).unwrap()
    }

    // -- transactions -------------------------------------------------------

    pub(crate) fn put(&mut self, key: Key, value: &[u8]) {
        self.tables.get_mut(&SYSTEM).unwrap().insert(key, value.to_vec());
    }

    pub(crate) fn put_epoch(&mut self, family: FamilyId, epoch: EpochId) {
        let item = self.families[&family].get(epoch).unwrap().item();
        self.put(epoch_key(epoch), &item.encode());
    }

    pub(crate) fn put_subvol(&mut self, subvol: SubvolId) {
        let item = self.subvols[&subvol];
        self.put(subvol_key(subvol), &item.encode());
    }

    pub(crate) fn evaluate(
        &mut self,
        family: FamilyId,
        climb: Option<u32>,
        releases: &[Release],
    ) -> Result<Outcome, String> {
        let rng = std::cell::RefCell::new(&mut self.rng);
        let look = Tables { tables: &self.tables, rng, unknown: self.config.unknown };
        let mut evaluation = Evaluation::new(&self.families[&family], &look);
        evaluation = match climb {
            Some(levels) => evaluation.climbing(levels),
            None => evaluation.within_credit(),
        };
        for release in releases {
            evaluation.release(*release).map_err(wrong)?;
        }
        let outcome = evaluation.take();
        let edits = outcome.edits.len() + outcome.pending.len();
        if climb.is_none() && edits > EDITS_PER_RELEASE * releases.len() {
            return Err(format!("{edits} edits of {} releases", releases.len()));
        }
        Ok(outcome)
    }

    pub(crate) fn apply(&mut self, outcome: Outcome) -> Result<(), String> {
        for (place, key, edit) in outcome.edits {
            let table = match place {
                EditTable::Deadlist(set) => set,
                EditTable::Shares => SHARES,
            };
            let items = self.tables.entry(table).or_default();
            match edit {
                Edit::Put(value) => drop(items.insert(key, value.to_vec())),
                Edit::Delete => drop(items.remove(&key).ok_or("a delete of nothing")?),
            }
        }
        for freed in outcome.freed {
            for block in freed.run.addr.block()..freed.run.end() {
                let said = (freed.origin, freed.content);
                let was = self.allocated.remove(&block).ok_or(format!("{block} freed twice"))?;
                *self.usage.entry(said).or_default() -= 1;
                if was != said && self.config.broken.is_none() {
                    return Err(format!("{block} is {was:?}, not {said:?}"));
                }
            }
        }
        for release in outcome.pending {
            let sequence = self.id();
            let key = pending_key(release.holder, sequence);
            let value = release.item().encode().to_vec();
            self.tables.get_mut(&PENDING).unwrap().insert(key, value);
        }
        Ok(())
    }

    pub(crate) fn release(&mut self, family: FamilyId, releases: &[Release]) -> Result<(), String> {
        let mut outcome = self.evaluate(family, None, releases)?;
        if self.config.broken == Some(Broken::RefundedByEpoch) {
            for freed in &mut outcome.freed {
                let of = releases.iter().find(|r| r.pointer.run.addr <= freed.run.addr);
                freed.origin = of.unwrap_or(&releases[0]).pointer.epoch;
            }
        }
        self.apply(outcome)
    }

    fn allocate(&mut self, blocks: u32, origin: EpochId, content: Content) -> Run {
        let start = self.below(600);
        let is_free =
            |world: &World, at| world.allocated.range(at..at + u64::from(blocks)).next().is_none();
        let at = (start..).find(|&at| is_free(self, at)).expect("there is no last block");
        for block in at..at + u64::from(blocks) {
            self.allocated.insert(block, (origin, content));
        }
        *self.usage.entry((origin, content)).or_default() += i64::from(blocks);
        Run::new(addr(at), blocks)
    }

    // -- operations ---------------------------------------------------------

    /// One random operation.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let live = self.live();
        let Some(&one) = live.get(self.below(live.len().max(1) as u64) as usize) else {
            self.create();
            return Ok(());
        };
        let other = live[self.below(live.len() as u64) as usize];
        let room = self.subvols.len() < self.config.subvols;
        let snapshots = self.config.snapshots;
        match self.below(100) {
            0..3 if room => self.create(),
            n if n >= 3 && n < 3 + snapshots && room => self.snapshot(one),
            40..46 if live.len() > 1 => self.delete(one),
            46..56 => self.reflink(one, other)?,
            56..64 => self.drop_range(one)?,
            64..68 => self.split(one)?,
            68..74 => self.settle(self.leaf(one).id)?,
            74..78 => self.renumber(one),
            78..90 => self.background()?,
            90..93 => self.race(one, other)?,
            _ => self.write(one)?,
        }
        Ok(())
    }

    fn new_item(&mut self, table: TableId, epoch: EpochId) -> SubvolItem {
        let place = Entry { subvol: SubvolId::ROOT, directory: InodeNo::ROOT };
        SubvolItem::new(table, epoch, place, HashKey([0; 16]), Timestamp::default(), [0; 16])
    }

    pub(crate) fn create(&mut self) {
        let (epoch, table) = (EpochId(self.id()), TableId(self.id()));
        let subvol = SubvolId(self.id() as u32);
        let family = Family::new(epoch, subvol, table);
        let item = self.new_item(table, epoch);
        let id = family.id();
        self.subvols.insert(subvol, item);
        self.families.insert(id, family);
        self.trees.insert(epoch, Tree { nodes: Some(BTreeMap::new()), ..Tree::default() });
        self.put_epoch(id, epoch);
        self.put_subvol(subvol);
    }

    pub(crate) fn snapshot(&mut self, source: SubvolId) {
        let family = self.family_of(source);
        let sealed = self.leaf(source).id;
        let new = SubvolId(self.id() as u32);
        let births = [source, new].map(|subvol| Birth {
            id: EpochId(self.id()),
            subvol,
            table: TableId(self.id()),
            deadlist: TableId(self.id()),
        });
        self.families.get_mut(&family).unwrap().seal(source, births);
        let blocks = self.trees[&sealed].blocks.clone();
        for birth in births {
            let tree = Tree { blocks: blocks.clone(), ..Tree::default() };
            self.trees.insert(birth.id, tree);
            self.tables.insert(birth.deadlist, Items::new());
        }
        let of_source = self.subvols[&source];
        for Birth { id, subvol, table, .. } in births {
            self.subvols.insert(subvol, SubvolItem { table, epoch: id, first: id, ..of_source });
            self.put_epoch(family, id);
            self.put_subvol(subvol);
        }
        self.put_epoch(family, sealed);
    }

    fn range(&mut self) -> std::ops::Range<u64> {
        let from = self.below(FILE_BLOCKS);
        let blocks = 1 + self.below(16);
        from..(from + blocks).min(FILE_BLOCKS)
    }

    /// Takes blocks out of a file, as runs; now and then cut where they need not be.
    fn take(&mut self, epoch: EpochId, range: std::ops::Range<u64>) -> Vec<Release> {
        let tree = self.trees.get_mut(&epoch).unwrap();
        let mut taken: Vec<Release> = Vec::new();
        for at in range {
            tree.dirty.insert(at / GROUP_BLOCKS);
            let Some((block, of, origin)) = tree.blocks.remove(&at) else { continue };
            let cut = self.rng.next_u64().is_multiple_of(8);
            match taken.last_mut() {
                Some(Release { pointer, .. })
                    if !cut
                        && pointer.run.end() == block
                        && (pointer.epoch, pointer.origin) == (of, origin) =>
                {
                    pointer.run = Run::new(pointer.run.addr, pointer.run.blocks + 1);
                }
                _ => {
                    let pointer = Pointer { run: Run::new(addr(block), 1), epoch: of, origin };
                    taken.push(Release {
                        holder: epoch,
                        pointer,
                        content: Content::Data,
                        count: 1,
                    });
                }
            }
        }
        taken
    }

    fn write(&mut self, subvol: SubvolId) -> Result<(), String> {
        let (leaf, family) = (self.leaf(subvol), self.family_of(subvol));
        let range = self.range();
        let blocks = range.end - range.start;
        let run = self.allocate(blocks as u32, leaf.current, Content::Data);
        let dropped = self.take(leaf.id, range.clone());
        let tree = self.trees.get_mut(&leaf.id).unwrap();
        for (at, block) in range.zip(run.addr.block()..) {
            tree.blocks.insert(at, (block, leaf.current, leaf.current));
        }
        self.release(family, &dropped)
    }

    fn drop_range(&mut self, subvol: SubvolId) -> Result<(), String> {
        let (leaf, family) = (self.leaf(subvol), self.family_of(subvol));
        let range = self.range();
        let dropped = self.take(leaf.id, range);
        if self.config.broken == Some(Broken::DecidedEarly) && self.subvols.len() < 12 {
            let outcome = self.evaluate(family, None, &dropped)?;
            // The seal has the blocks still, in the snapshot; the decision was made without it.
            let put_back: Vec<Release> = dropped;
            let now = self.trees[&leaf.id].clone();
            self.put_back(leaf.id, &put_back);
            self.snapshot(subvol);
            let mine = self.leaf(subvol).id;
            let dirty = now.dirty.clone();
            let tree = self.trees.get_mut(&mine).unwrap();
            (tree.blocks, tree.dirty) = (now.blocks, dirty);
            return self.apply(outcome);
        }
        self.release(family, &dropped)
    }

    fn put_back(&mut self, epoch: EpochId, dropped: &[Release]) {
        let tree = self.trees.get_mut(&epoch).unwrap();
        let mut free = (0..).filter(|at| !tree.blocks.contains_key(at)).collect_n(200);
        for Release { pointer, .. } in dropped {
            for block in pointer.run.addr.block()..pointer.run.end() {
                let at = free.next().unwrap();
                tree.blocks.insert(at, (block, pointer.epoch, pointer.origin));
            }
        }
    }

    fn reflink(&mut self, from: SubvolId, to: SubvolId) -> Result<(), String> {
        let (source, leaf) = (self.leaf(from), self.leaf(to));
        let family = self.family_of(to);
        let range = self.range();
        let at = self.below(FILE_BLOCKS - (range.end - range.start) + 1);
        let found: Vec<Block> =
            range.filter_map(|n| self.trees[&source.id].blocks.get(&n).copied()).collect();
        if !self.share(family, &found)? {
            return Ok(());
        }
        let dropped = self.take(leaf.id, at..at + found.len() as u64);
        let tree = self.trees.get_mut(&leaf.id).unwrap();
        for (at, (block, _, origin)) in (at..).zip(found) {
            tree.blocks.insert(at, (block, leaf.current, origin));
        }
        self.release(family, &dropped)
    }

    /// One more reference to each block; whether that could be looked up.
    fn share(&mut self, family: FamilyId, blocks: &[Block]) -> Result<bool, String> {
        let rng = std::cell::RefCell::new(&mut self.rng);
        let look = Tables { tables: &self.tables, rng, unknown: self.config.unknown };
        let mut evaluation = Evaluation::new(&self.families[&family], &look);
        for (block, _, _) in blocks {
            if !evaluation.share(Run::new(addr(*block), 1)).map_err(wrong)? {
                return Ok(false);
            }
        }
        let outcome = evaluation.take();
        self.apply(outcome)?;
        Ok(true)
    }

    /// A block that cannot be divided is referred to by two pieces from now on: the second is a
    /// reference of its own (R11).
    fn split(&mut self, subvol: SubvolId) -> Result<(), String> {
        let (leaf, family) = (self.leaf(subvol), self.family_of(subvol));
        let (from, to) = (self.below(FILE_BLOCKS), self.below(FILE_BLOCKS));
        let Some(&piece) = self.trees[&leaf.id].blocks.get(&from).filter(|_| from != to) else {
            return Ok(());
        };
        let broken = self.config.broken == Some(Broken::SplitWithoutShare);
        if !broken && !self.share(family, &[piece])? {
            return Ok(());
        }
        let dropped = self.take(leaf.id, to..to + 1);
        let (block, epoch, origin) = piece;
        let epoch = if broken { epoch } else { leaf.current };
        let tree = self.trees.get_mut(&leaf.id).unwrap();
        tree.blocks.insert(to, (block, epoch, origin));
        self.release(family, &dropped)
    }

    /// Two subvolumes drop something at once.
    fn race(&mut self, one: SubvolId, other: SubvolId) -> Result<(), String> {
        if one == other {
            return Ok(());
        }
        let families = [one, other].map(|subvol| self.family_of(subvol));
        let leaves = [one, other].map(|subvol| self.leaf(subvol).id);
        let range = self.range();
        let dropped = leaves.map(|leaf| self.take(leaf, range.clone()));
        if self.config.broken != Some(Broken::RacingBuries) {
            self.release(families[0], &dropped[0])?;
            return self.release(families[1], &dropped[1]);
        }
        let first = self.evaluate(families[0], None, &dropped[0])?;
        let second = self.evaluate(families[1], None, &dropped[1])?;
        self.apply(first)?;
        self.apply(second)
    }

    fn renumber(&mut self, subvol: SubvolId) {
        let (family, current) = (self.family_of(subvol), EpochId(self.id()));
        self.families.get_mut(&family).unwrap().renumber(subvol, current);
        let leaf = self.leaf(subvol);
        self.put_epoch(family, leaf.id);
    }

    // -- flushing -----------------------------------------------------------

    fn family_with(&self, epoch: EpochId) -> FamilyId {
        let found = self.families.values().find(|family| family.get(epoch).is_some());
        found.expect("an epoch has a family").id()
    }

    /// Flushes a tree, what lies under it first.
    pub(crate) fn settle(&mut self, epoch: EpochId) -> Result<(), String> {
        let family = self.family_with(epoch);
        let parent = self.families[&family].get(epoch).unwrap().parent;
        if self.trees[&epoch].nodes.is_none() {
            let parent = parent.expect("it lies over something");
            self.settle(parent)?;
            self.hand_over(family, parent);
        }
        let current = self.families[&family].get(epoch).unwrap().current;
        let dirty = std::mem::take(&mut self.trees.get_mut(&epoch).unwrap().dirty);
        let mut dropped = Vec::new();
        for group in dirty {
            let blocks = group * GROUP_BLOCKS..(group + 1) * GROUP_BLOCKS;
            let is_empty = self.trees[&epoch].blocks.range(blocks).next().is_none();
            let new = (!is_empty).then(|| Pointer {
                run: self.allocate(NODE_BLOCKS, current, Content::Node),
                epoch: current,
                origin: current,
            });
            let nodes = self.trees.get_mut(&epoch).unwrap().nodes.as_mut().unwrap();
            let old = match new {
                Some(new) => nodes.insert(group, new),
                None => nodes.remove(&group),
            };
            let release =
                |pointer| Release { holder: epoch, pointer, content: Content::Node, count: 1 };
            dropped.extend(old.map(release));
        }
        self.release(family, &dropped)
    }

    fn hand_over(&mut self, family: FamilyId, sealed: EpochId) {
        let nodes = self.trees.remove(&sealed).unwrap().nodes;
        for child in self.families[&family].get(sealed).unwrap().children.unwrap() {
            self.trees.get_mut(&child).unwrap().nodes.clone_from(&nodes);
        }
    }

    // -- crash --------------------------------------------------------------

    /// Families and subvolumes as their records have them.
    pub(crate) fn reload(&mut self) -> Result<(), String> {
        let (mut epochs, mut subvols) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in &self.tables[&SYSTEM] {
            if *key == epoch_key(EpochId(key.object)) {
                let item = EpochItem::parse(*key, value).map_err(|e| e.to_string())?;
                epochs.insert(EpochId(key.object), item);
            } else {
                let item = SubvolItem::parse(value).map_err(|e| e.to_string())?;
                subvols.insert(SubvolId(key.object as u32), item);
            }
        }
        let families = Family::restore(&epochs).map_err(|e| e.to_string())?;
        let families = families.into_iter().map(|family| (family.id(), family)).collect();
        if families != self.families || subvols != self.subvols {
            return Err("the records do not say what there is".into());
        }
        (self.families, self.subvols) = (families, subvols);
        Ok(())
    }

    pub(crate) fn pending(&self) -> impl Iterator<Item = (Key, Release)> + '_ {
        self.tables[&PENDING].iter().map(|(key, value)| {
            let item = PendingItem::parse(value).unwrap();
            (*key, Release::from_item(EpochId(key.object), &item))
        })
    }

    pub(crate) fn delete(&mut self, subvol: SubvolId) {
        self.subvols.get_mut(&subvol).unwrap().state = SubvolState::Dying(Step::Settle);
        self.put_subvol(subvol);
    }

    pub(crate) fn group_key(group: u64) -> Key {
        Key::new(group, Kind(0), 0)
    }

    pub(crate) fn group_blocks(group: u64) -> std::ops::Range<u64> {
        group * GROUP_BLOCKS..(group + 1) * GROUP_BLOCKS
    }
}

trait CollectN: Iterator + Sized {
    /// The first `n`, so that what they were taken from may change.
    fn collect_n(self, n: usize) -> std::vec::IntoIter<Self::Item> {
        self.take(n).collect::<Vec<_>>().into_iter()
    }
}

impl<I: Iterator> CollectN for I {}
