//! Who pays for what, predicted to the byte (rules R23 to R26, R42).
//!
//! The plainest model: content is whole blocks, each with a number of its own. Whoever writes one
//! pays for it while any file holds it, whoever else comes to hold it by snapshot or reflink. So
//! usage is counted from the files that there are: for each number that one of them holds, one
//! block of its payer's.
//!
//! Quotas are turned on and off when nothing is dirty; what was written before counts for nobody.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::Limits;
use copyhold_fs::NodeId;
use copyhold_types::{BLOCK_BYTES, SubvolId};
use copyhold_volume::quota::{GroupId, GroupState, GroupUse, Ledger};

use super::content::Content;
use super::counts::Count;
use super::tree::ObjectId;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// What a block holds begins with its number; zeros are nobody's.
type BlockId = u128;

fn block_id(bytes: &[u8]) -> Option<BlockId> {
    let number = bytes.first_chunk().map(|bytes| BlockId::from_le_bytes(*bytes));
    number.filter(|number| *number != 0)
}

/// What the engine says of quotas.
pub(crate) struct Shown {
    pub(crate) on: bool,
    pub(crate) generation: u64,
    pub(crate) groups: Vec<GroupUse>,
}

impl Shown {
    pub(crate) fn of(ledger: &Ledger) -> Shown {
        debug_assert_eq!(ledger.miscounts(), 0, "a sum of the quotas is wrong; see its error");
        let status = ledger.status();
        let groups = ledger.show().unwrap_or_default();
        Shown { on: status.counted_from.is_some(), generation: status.generation, groups }
    }

    fn data(&self) -> BTreeMap<SubvolId, u64> {
        let owners = self.groups.iter().filter(|group| group.id.level() == 0 && group.data > 0);
        owners.map(|group| (SubvolId(group.id.id() as u32), group.data)).collect()
    }

    /// The subvolumes below a group, each once.
    fn below(&self, id: GroupId) -> BTreeSet<SubvolId> {
        if id.level() == 0 {
            return BTreeSet::from([SubvolId(id.id() as u32)]);
        }
        let group = self.groups.iter().find(|group| group.id == id).expect("a group");
        group.members.iter().flat_map(|member| self.below(*member)).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) on: bool,
    pub(crate) generation: u64,
    payers: BTreeMap<BlockId, SubvolId>,
    /// What was made while quotas were on, and what was snapshotted of it: these inodes count.
    counted: BTreeSet<ObjectId>,
    /// Who was to inherit of whom; a crash may have undone it.
    heirs: Vec<(SubvolId, SubvolId)>,
    /// In whose place something comes whose number is not known yet; whether the old one is kept.
    replaced: Vec<(SubvolId, ObjectId, bool)>,
    /// What the limit of a subvolume was set to since the last recovery, and what it was then.
    limits: BTreeMap<SubvolId, Vec<Limits>>,
    /// What it was each time before quotas were turned on or off, while a crash may undo that.
    before: Vec<Usage>,
    /// Quotas were being turned on or off when the power failed.
    turning: bool,
}

impl Usage {
    /// Quotas have been turned on or off; `lasting` if no crash undoes that.
    pub(crate) fn turned(&mut self, shown: &Shown, lasting: bool) {
        let Shown { on, generation, .. } = *shown;
        if (on, generation) != (self.on, self.generation) {
            let now = Usage { on, generation, ..Usage::default() };
            let mut before = std::mem::replace(self, now);
            self.before = std::mem::take(&mut before.before);
            self.before.push(before);
        }
        if lasting {
            self.before.clear();
        }
    }

    /// `payer` begins to write these blocks.
    pub(crate) fn write(&mut self, payer: SubvolId, bytes: &[u8]) {
        if self.on {
            let blocks = bytes.chunks(BLOCK_BYTES).filter_map(block_id);
            self.payers.extend(blocks.map(|block| (block, payer)));
        }
    }

    pub(crate) fn inherit(&mut self, dead: SubvolId, heir: SubvolId) {
        self.heirs.push((dead, heir));
    }

    /// An object is to come in the place of `old`, which it inherits of unless that is kept.
    pub(crate) fn replace(&mut self, old: SubvolId, new: ObjectId, is_kept: bool) {
        self.replaced.push((old, new, is_kept));
    }

    /// This object has come, and its number is known; or it will never come.
    pub(crate) fn replaced(&mut self, new: ObjectId, node: Option<NodeId>) {
        let Some(at) = self.replaced.iter().position(|(_, id, _)| *id == new) else { return };
        let (old, _, is_kept) = self.replaced.remove(at);
        let Some(new) = node.map(|node| node.subvol) else { return };
        if !is_kept {
            self.inherit(old, new);
        }
        if let Some(limits) = self.limits.get(&old).cloned() {
            self.limits.insert(new, limits);
        }
    }

    /// After a recovery it is known of all what has come.
    pub(crate) fn settle_replaced(&mut self, nodes: &BTreeMap<ObjectId, NodeId>) {
        for (_, new, _) in self.replaced.clone() {
            self.replaced(new, nodes.get(&new).copied());
        }
    }

    pub(crate) fn set_limits(&mut self, of: SubvolId, limits: Limits) {
        self.limits.entry(of).or_insert_with(|| vec![Limits::default()]).push(limits);
    }

    pub(crate) fn limits(&self, of: SubvolId) -> Limits {
        let limits = self.limits.get(&of).and_then(|limits| limits.last());
        limits.copied().unwrap_or_default()
    }

    /// Something is being made.
    pub(crate) fn make(&mut self, id: ObjectId) {
        if self.on {
            self.counted.insert(id);
        }
    }

    /// A snapshot is being made of the first, which has the second.
    pub(crate) fn snapshot(&mut self, ids: &BTreeMap<ObjectId, ObjectId>) {
        let copies = ids.iter().filter(|(old, _)| self.counted.contains(old));
        let copies: Vec<ObjectId> = copies.map(|(_, new)| *new).collect();
        self.counted.extend(copies);
    }

    pub(crate) fn is_counted(&self, id: ObjectId) -> bool {
        self.counted.contains(&id)
    }

    /// The power has failed while an operator was at work.
    pub(crate) fn may_have_turned(&mut self) {
        self.turning = true;
    }

    /// Bytes of each payer that these files hold.
    pub(crate) fn of<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Content>,
    ) -> BTreeMap<SubvolId, u64> {
        let held: BTreeSet<BlockId> =
            files.into_iter().flat_map(Content::stored).filter_map(block_id).collect();
        let mut usage = BTreeMap::new();
        for payer in held.iter().filter_map(|block| self.payers.get(block)) {
            *usage.entry(self.heir_of(*payer)).or_default() += BLOCK;
        }
        usage
    }

    /// Nobody inherits from the living, so whoever is an heir's heir died later.
    fn heir_of(&self, payer: SubvolId) -> SubvolId {
        let heir = self.heirs.iter().find(|(dead, _)| *dead == payer);
        heir.map_or(payer, |(_, heir)| self.heir_of(*heir))
    }

    /// After a recovery, before what these live subvolumes hold is compared.
    pub(crate) fn settle(&mut self, shown: &Shown, live: &BTreeSet<SubvolId>) {
        let found = (shown.on, shown.generation);
        if found != (self.on, self.generation) {
            let turned = Usage { on: found.0, generation: found.1, ..Usage::default() };
            let may_be = self.turning && (0..2).contains(&(found.1 - self.generation));
            let mut before = std::mem::take(&mut self.before).into_iter();
            let before = before.find(|before| (before.on, before.generation) == found);
            *self = match before.filter(|_| !may_be) {
                Some(before) => before,
                None if may_be => turned,
                None => panic!("quotas are as they never were: {found:?}"),
            };
        }
        self.before.clear();
        self.turning = false;
        self.heirs.retain(|(dead, _)| !live.contains(dead));
        let mut limits = BTreeMap::new();
        for group in shown.groups.iter().filter(|group| group.id.level() == 0) {
            let (of, found) = (SubvolId(group.id.id() as u32), group.limits);
            let was = self.limits.get(&of).cloned().unwrap_or_else(|| vec![Limits::default()]);
            assert!(was.contains(&found), "the limits of {of} are {found:?}, and were {was:?}");
            limits.insert(of, vec![found]);
        }
        self.limits = limits;
    }

    /// E2, for data: when nothing is on its way, usage is what files hold; of a group, the sum of
    /// the distinct subvolumes below it.
    pub(crate) fn check<'a>(
        &self,
        shown: &Shown,
        files: impl IntoIterator<Item = &'a Content>,
        counts: &BTreeMap<SubvolId, Count>,
    ) {
        let (found, predicted) = (shown.data(), self.of(files));
        assert_eq!(found, predicted, "E2: bytes of data that each subvolume pays for");
        for group in shown.groups.iter().filter(|group| group.id.level() > 0) {
            let below = shown.below(group.id);
            let data: u64 = below.iter().filter_map(|subvol| predicted.get(subvol)).sum();
            assert_eq!(group.data, data, "E2: bytes of data of group {}", group.id);
        }
        let is_live = |group: &&GroupUse| group.state == GroupState::Live && group.id.level() == 0;
        for group in shown.groups.iter().filter(is_live) {
            let count = Count { inodes: group.inodes, snapshots: group.snapshots };
            let predicted = counts.get(&SubvolId(group.id.id() as u32)).copied();
            assert_eq!(count, predicted.unwrap_or_default(), "E2: what is in {}", group.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u8) -> Vec<u8> {
        vec![n; BLOCK_BYTES]
    }

    #[test]
    fn whoever_wrote_a_block_pays_once_while_anybody_holds_it() {
        let [one, other] = [SubvolId(7), SubvolId(8)];
        let mut usage = Usage { on: true, ..Usage::default() };
        usage.write(one, &[block(1), block(2)].concat());
        usage.write(other, &block(3));
        let of =
            |n: &[u8]| Content::from_bytes(&n.iter().flat_map(|n| block(*n)).collect::<Vec<_>>());
        let files = [of(&[1, 2]), of(&[1, 0, 3, 3])];
        assert_eq!(usage.of(&files), BTreeMap::from([(one, 2 * BLOCK), (other, BLOCK)]));
        assert_eq!(usage.of(&files[1..]), BTreeMap::from([(one, BLOCK), (other, BLOCK)]));
        usage.inherit(one, other);
        assert_eq!(usage.of(&files), BTreeMap::from([(other, 3 * BLOCK)]));
    }
}
