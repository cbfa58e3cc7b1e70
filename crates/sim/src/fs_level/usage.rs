//! Who pays for what, predicted to the byte (rules R23 to R26, R42).
//!
//! The plainest model: content is whole blocks, each with a number of its own. Whoever writes one
//! pays for it while any file holds it, whoever else comes to hold it by snapshot or reflink. So
//! usage is counted from the files that there are: for each number that one of them holds, one
//! block of its payer's.
//!
//! Quotas are turned on and off when nothing is dirty; what was written before counts for nobody.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::{BLOCK_BYTES, SubvolId};
use copyhold_volume::quota::{GroupId, GroupUse, Ledger};

use super::content::Content;

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
    /// Who was to inherit of whom; a crash may have undone it.
    heirs: Vec<(SubvolId, SubvolId)>,
    /// What the limit of a subvolume was set to since the last recovery, and what it was then.
    limits: BTreeMap<SubvolId, Vec<Option<u64>>>,
    /// What it was before quotas were turned on or off, while that may be undone by a crash.
    before: Option<Box<Usage>>,
}

impl Usage {
    /// Quotas have been turned on or off; `lasting` if no crash undoes that.
    pub(crate) fn turned(&mut self, shown: &Shown, lasting: bool) {
        let Shown { on, generation, .. } = *shown;
        if (on, generation) != (self.on, self.generation) {
            let now = Usage { on, generation, ..Usage::default() };
            let before = std::mem::replace(self, now);
            self.before = Some(Box::new(before));
        }
        if lasting {
            self.before = None;
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

    pub(crate) fn set_limit(&mut self, of: SubvolId, limit: Option<u64>) {
        self.limits.entry(of).or_insert_with(|| vec![None]).push(limit);
    }

    pub(crate) fn limit(&self, of: SubvolId) -> Option<u64> {
        self.limits.get(&of).and_then(|limits| *limits.last().expect("there is one"))
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
            let before = self.before.take();
            *self = *before.expect("quotas are on or off as they were turned");
            assert_eq!(found, (self.on, self.generation), "quotas are as they never were");
        }
        self.before = None;
        self.heirs.retain(|(dead, _)| !live.contains(dead));
        let mut limits = BTreeMap::new();
        for group in shown.groups.iter().filter(|group| group.id.level() == 0) {
            let (of, found) = (SubvolId(group.id.id() as u32), group.limits.referenced);
            let was = self.limits.get(&of).map_or(&[None][..], |was| was);
            assert!(was.contains(&found), "the limit of {of} is {found:?}, and was {was:?}");
            limits.insert(of, vec![found]);
        }
        self.limits = limits;
    }

    /// E2, for data: when nothing is on its way, usage is what files hold; of a group, the sum of
    /// the distinct subvolumes below it.
    pub(crate) fn check<'a>(&self, shown: &Shown, files: impl IntoIterator<Item = &'a Content>) {
        let (found, predicted) = (shown.data(), self.of(files));
        assert_eq!(found, predicted, "E2: bytes of data that each subvolume pays for");
        for group in shown.groups.iter().filter(|group| group.id.level() > 0) {
            let below = shown.below(group.id);
            let data: u64 = below.iter().filter_map(|subvol| predicted.get(subvol)).sum();
            assert_eq!(group.data, data, "E2: bytes of data of group {}", group.id);
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
