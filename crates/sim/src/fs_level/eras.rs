//! Quotas are turned on and off while clients work: the knowledge of owners then.
//!
//! Each turning begins another era. While it is under way, an operation may belong to either side
//! of it; so its charges are certain in the era before, and possible in the new one. Data that is
//! written and not yet installed when quotas are turned on may count or not, too; the time of its
//! installation decides. All other charges are determined: data that was made with quotas off, and
//! installed before they were turned on, is charged to no subvolume.
//!
//! A crash may bring the era before back, with all of its sums, as long as the turning is not known
//! to be durable.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::SubvolId;

use super::tree::ObjectId;
use super::usage::BlockId;
use super::world::Moment;

/// A time in which quotas were on, or off, all along.
#[derive(Clone, Debug, Default)]
pub(crate) struct Era {
    pub(crate) on: bool,
    pub(crate) generation: u64,
    /// When the turning began.
    pub(crate) begun: Moment,
    /// When it had ended; nothing while it is under way.
    since: Option<Moment>,
    /// The owner that pays for a block while a file has it; false: it pays if any owner does.
    payers: BTreeMap<BlockId, (SubvolId, bool)>,
    /// Inodes that were created in it, or are in snapshots of those: they count.
    counted: BTreeMap<ObjectId, bool>,
    /// The heirs that were requested; a crash may have undone them.
    heirs: Vec<(SubvolId, SubvolId, bool)>,
    /// The requested heir, when its number is known.
    heirs_to_come: Vec<(SubvolId, ObjectId, bool)>,
}

impl Era {
    pub(crate) fn is(&self, on: bool, generation: u64) -> bool {
        (self.on, self.generation) == (on, generation)
    }

    /// The owners that may pay for a block: none, one, or several; and whether one certainly does.
    pub(crate) fn payers_of(&self, block: BlockId) -> (BTreeSet<SubvolId>, bool) {
        let mut payers = BTreeSet::new();
        let Some((payer, sure)) = self.payers.get(&block) else { return (payers, false) };
        self.follow(*payer, &mut payers);
        (payers, *sure)
    }

    /// Living subvolumes have no heirs, so each owner of a chain of heirs died later than its
    /// predecessor.
    fn follow(&self, payer: SubvolId, payers: &mut BTreeSet<SubvolId>) {
        let heirs = || self.heirs.iter().filter(|(dead, ..)| *dead == payer);
        if !heirs().any(|(.., sure)| *sure) && !payers.insert(payer) {
            return;
        }
        heirs().for_each(|(_, heir, _)| self.follow(*heir, payers));
    }
}

/// The eras that a crash may bring back, and what has not been installed yet.
#[derive(Clone, Debug)]
pub(crate) struct Eras {
    /// The last is now, or is coming.
    all: Vec<Era>,
    /// The writers whose data is not known to be installed; and the times of their writes.
    dirty: BTreeMap<BlockId, (SubvolId, Option<Moment>)>,
    /// How often quotas were being turned.
    turns: u64,
    /// Clients that change groups, limits or reserves.
    pub(crate) promising: usize,
}

impl Default for Eras {
    fn default() -> Eras {
        let first = Era { since: Some(0), ..Era::default() };
        Eras { all: vec![first], dirty: BTreeMap::new(), turns: 0, promising: 0 }
    }
}

impl Eras {
    pub(crate) fn now(&self) -> &Era {
        self.all.last().expect("there is always one")
    }

    pub(crate) fn is_on(&self) -> bool {
        self.now().on
    }

    /// A turning is under way, or it is not known how it ended.
    pub(crate) fn is_turning(&self) -> bool {
        self.now().since.is_none()
    }

    /// Quotas are on, and no client is turning them.
    pub(crate) fn is_steadily_on(&self) -> bool {
        self.is_on() && !self.is_turning()
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns
    }

    /// All that is recorded now: the eras, and whether it is sure to be of each.
    fn open(&mut self) -> impl Iterator<Item = (&mut Era, bool)> {
        let settled = self.all.iter().rposition(|era| era.since.is_some()).unwrap_or(0);
        self.all[settled..].iter_mut().map(|era| {
            let sure = era.since.is_some();
            (era, sure)
        })
    }

    // -- turning ------------------------------------------------------------

    /// Quotas are being turned. Of these objects it is not known whether they are made before it.
    pub(crate) fn begin_turn(
        &mut self,
        begun: Moment,
        (on, generation): (bool, u64),
        coming: impl IntoIterator<Item = ObjectId>,
    ) {
        self.turns += 1;
        let before = self.now();
        let mut era = Era { on, generation, begun, ..Era::default() };
        // Whatever is being deleted may be so before it, or behind it.
        era.heirs = before.heirs.iter().map(|(dead, heir, _)| (*dead, *heir, false)).collect();
        let to_come = before.heirs_to_come.iter();
        era.heirs_to_come = to_come.map(|(dead, heir, _)| (*dead, *heir, false)).collect();
        if on {
            let dirty = self.dirty.iter();
            era.payers = dirty.map(|(block, (payer, _))| (*block, (*payer, false))).collect();
            era.counted = coming.into_iter().map(|id| (id, false)).collect();
        }
        self.all.push(era);
    }

    pub(crate) fn end_turn(&mut self, ended: Moment) {
        self.all.last_mut().expect("there is always one").since = Some(ended);
    }

    /// Quotas have been turned while no client worked and no data was dirty.
    pub(crate) fn turned(&mut self, moment: Moment, on: bool, generation: u64) {
        if !self.now().is(on, generation) {
            self.dirty.clear();
            self.begin_turn(moment, (on, generation), []);
            self.end_turn(moment);
        }
    }

    /// The power has failed while an operator turned quotas, or did not.
    pub(crate) fn may_have_turned(&mut self, moment: Moment) {
        self.dirty.clear();
        let generation = self.now().generation;
        if self.is_on() {
            self.begin_turn(moment, (false, generation), []);
        }
        self.begin_turn(moment, (true, generation + 1), []);
    }

    /// A crash restores an era that has begun, not before the last era whose turning had ended
    /// before `synced`.
    pub(crate) fn settle(&mut self, on: bool, generation: u64, synced: Moment) {
        let durable = |era: &Era| era.since.is_some_and(|since| since < synced);
        let least = self.all.iter().rposition(durable).unwrap_or(0);
        let mut possible = self.all.drain(..).skip(least);
        let found = possible.find(|era| era.is(on, generation));
        let Some(found) = found else {
            panic!("quotas are as they were not, or not any more: on {on}, {generation}")
        };
        drop(possible);
        self.all = vec![Era { since: Some(0), ..found }];
        self.dirty.clear();
        self.promising = 0;
    }

    /// Of which eras a crash may bring back the next has been turned to, and when.
    pub(crate) fn next_since(&self, on: bool, generation: u64) -> Option<Moment> {
        let at = self.all.iter().position(|era| era.is(on, generation))?;
        self.all.get(at + 1)?.since
    }

    /// When the turning to an era began.
    pub(crate) fn begun(&self, on: bool, generation: u64) -> Option<Moment> {
        self.all.iter().find(|era| era.is(on, generation)).map(|era| era.begun)
    }

    // -- what counts --------------------------------------------------------

    /// `payer` begins to write these blocks.
    pub(crate) fn write(&mut self, payer: SubvolId, blocks: impl Iterator<Item = BlockId> + Clone) {
        self.dirty.extend(blocks.clone().map(|block| (block, (payer, None))));
        for (era, sure) in self.open().filter(|(era, _)| era.on) {
            era.payers.extend(blocks.clone().map(|block| (block, (payer, sure))));
        }
    }

    /// These blocks have been written.
    pub(crate) fn wrote(&mut self, moment: Moment, blocks: impl Iterator<Item = BlockId>) {
        for block in blocks {
            if let Some((_, written)) = self.dirty.get_mut(&block) {
                *written = Some(moment);
            }
        }
    }

    /// Data that had been written before this moment is installed.
    pub(crate) fn installed(&mut self, moment: Moment) {
        self.dirty.retain(|_, (_, written)| written.is_none_or(|written| written >= moment));
    }

    /// Something is being made.
    pub(crate) fn make(&mut self, id: ObjectId) {
        for (era, sure) in self.open().filter(|(era, _)| era.on) {
            era.counted.insert(id, sure);
        }
    }

    /// A snapshot is being made of the first, which has the second.
    pub(crate) fn snapshot(&mut self, ids: &BTreeMap<ObjectId, ObjectId>) {
        for (era, sure) in self.open() {
            let copies = ids.iter().filter_map(|(old, new)| {
                let counts = era.counted.get(old)?;
                Some((*new, *counts && sure))
            });
            let copies: Vec<_> = copies.collect();
            era.counted.extend(copies);
        }
    }

    /// Whether an inode counts: surely, or maybe.
    pub(crate) fn counts(&self, id: ObjectId) -> Option<bool> {
        self.now().counted.get(&id).copied()
    }

    // -- heirs --------------------------------------------------------------

    pub(crate) fn inherit(&mut self, dead: SubvolId, heir: SubvolId) {
        self.open().for_each(|(era, sure)| era.heirs.push((dead, heir, sure)));
    }

    /// An object is to come that inherits of `dead`.
    pub(crate) fn inherits_to_come(&mut self, dead: SubvolId, heir: ObjectId) {
        self.open().for_each(|(era, sure)| era.heirs_to_come.push((dead, heir, sure)));
    }

    /// It has come, and this is its number; or it will never come.
    pub(crate) fn has_come(&mut self, heir: ObjectId, number: Option<SubvolId>) {
        for era in &mut self.all {
            let came = era.heirs_to_come.extract_if(.., |(_, id, _)| *id == heir);
            let came: Vec<_> = came.collect();
            let heirs = came.into_iter().filter_map(|(dead, _, sure)| Some((dead, number?, sure)));
            era.heirs.extend(heirs);
        }
    }

    /// Those whose number is not known yet.
    pub(crate) fn to_come(&self) -> Vec<ObjectId> {
        let all = self.all.iter().flat_map(|era| &era.heirs_to_come);
        all.map(|(_, heir, _)| *heir).collect()
    }

    /// Living subvolumes have no heirs.
    pub(crate) fn retain_heirs_of(&mut self, is_dead: impl Fn(SubvolId) -> bool) {
        self.all.iter_mut().for_each(|era| era.heirs.retain(|(dead, ..)| is_dead(*dead)));
    }
}
