//! The charges of each owner, predicted to the byte (rules R23 to R26, R42).
//!
//! The plainest model: content is whole blocks, each with a number of its own. The subvolume that
//! writes a block pays for it while any file has it, also files that get it by snapshot or reflink.
//! So usage is counted from the existing files: for each number that one of them has, one block of
//! its owner's.
//!
//! Where quotas are turned on and off beside clients, some of it is a range (`eras`).

use std::collections::{BTreeMap, BTreeSet};

use copyhold_fs::NodeId;
use copyhold_types::{BLOCK_BYTES, SubvolId};
use copyhold_volume::quota::{GroupId, GroupState, GroupUse, Ledger};

use super::content::Content;
use super::counts::Count;
use super::eras::Eras;
use super::tree::ObjectId;
use super::world::Moment;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The content of a block begins with its number; blocks of zeros have no owner.
pub(crate) type BlockId = u128;

fn block_id(bytes: &[u8]) -> Option<BlockId> {
    let number = bytes.first_chunk().map(|bytes| BlockId::from_le_bytes(*bytes));
    number.filter(|number| *number != 0)
}

fn block_ids(bytes: &[u8]) -> impl Iterator<Item = BlockId> + Clone {
    bytes.chunks(BLOCK_BYTES).filter_map(block_id)
}

/// The engine's figures of quotas.
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

    pub(crate) fn group(&self, id: GroupId) -> Option<&GroupUse> {
        self.groups.iter().find(|group| group.id == id)
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
        let group = self.group(id).expect("a group");
        group.members.iter().flat_map(|member| self.below(*member)).collect()
    }
}

/// Charged bytes: the certain ones, and those with the possible ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Bytes {
    pub(crate) fn add(&mut self, other: Bytes) {
        self.least += other.least;
        self.most += other.most;
    }

    fn allows(&self, bytes: u64) -> bool {
        (self.least..=self.most).contains(&bytes)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) eras: Eras,
}

impl Usage {
    /// `payer` begins to write these blocks.
    pub(crate) fn write(&mut self, payer: SubvolId, bytes: &[u8]) {
        self.eras.write(payer, block_ids(bytes));
    }

    /// It has written them.
    pub(crate) fn wrote(&mut self, moment: Moment, bytes: &[u8]) {
        self.eras.wrote(moment, block_ids(bytes));
    }

    /// After a recovery it is known of all what has come.
    pub(crate) fn settle_heirs(&mut self, nodes: &BTreeMap<ObjectId, NodeId>) {
        for heir in self.eras.to_come() {
            self.eras.has_come(heir, nodes.get(&heir).map(|node| node.subvol));
        }
    }

    /// Bytes of each payer that these files hold.
    pub(crate) fn of<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Content>,
    ) -> BTreeMap<SubvolId, Bytes> {
        let held: BTreeSet<BlockId> =
            files.into_iter().flat_map(Content::stored).filter_map(block_id).collect();
        let mut usage: BTreeMap<SubvolId, Bytes> = BTreeMap::new();
        for block in held {
            let (payers, sure) = self.eras.now().payers_of(block);
            let least = if sure && payers.len() == 1 { BLOCK } else { 0 };
            for payer in payers {
                usage.entry(payer).or_default().add(Bytes { least, most: BLOCK });
            }
        }
        usage
    }

    /// RECOUNT-E2, for data: when nothing is on its way, usage is what files hold; of a group, the
    /// sum of the distinct subvolumes below it.
    pub(crate) fn check<'a>(
        &self,
        shown: &Shown,
        files: impl IntoIterator<Item = &'a Content>,
        counts: &BTreeMap<SubvolId, Count>,
    ) {
        let (found, predicted) = (shown.data(), self.of(files));
        let of = |payer: &SubvolId| predicted.get(payer).copied().unwrap_or_default();
        let payers: BTreeSet<_> = found.keys().chain(predicted.keys()).collect();
        let as_predicted =
            |payer: &&SubvolId| of(payer).allows(found.get(payer).copied().unwrap_or(0));
        let is_right = payers.iter().all(as_predicted);
        assert!(is_right, "RECOUNT-E2: each subvolume pays for {found:?}, not for {predicted:?}");
        for group in shown.groups.iter().filter(|group| group.id.level() > 0) {
            let mut data = Bytes::default();
            shown.below(group.id).iter().for_each(|subvol| data.add(of(subvol)));
            assert!(
                data.allows(group.data),
                "RECOUNT-E2: {} has {}, not {data:?}",
                group.id,
                group.data
            );
        }
        let is_live = |group: &&GroupUse| group.state == GroupState::Live && group.id.level() == 0;
        for group in shown.groups.iter().filter(is_live) {
            let predicted = counts.get(&SubvolId(group.id.id() as u32)).copied();
            let predicted = predicted.unwrap_or_default();
            let is_right = predicted.allows(group.inodes, group.snapshots);
            let (id, inodes, snapshots) = (group.id, group.inodes, group.snapshots);
            assert!(is_right, "RECOUNT-E2: {inodes} and {snapshots} in {id}, not {predicted:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u8) -> Vec<u8> {
        vec![n; BLOCK_BYTES]
    }

    fn of(n: &[u8]) -> Content {
        Content::from_bytes(&n.iter().flat_map(|n| block(*n)).collect::<Vec<_>>())
    }

    fn exactly(bytes: u64) -> Bytes {
        Bytes { least: bytes, most: bytes }
    }

    #[test]
    fn whoever_wrote_a_block_pays_once_while_anybody_holds_it() {
        let [one, other] = [SubvolId(7), SubvolId(8)];
        let mut usage = Usage::default();
        usage.eras.turned(1, true, 1);
        usage.write(one, &[block(1), block(2)].concat());
        usage.write(other, &block(3));
        let files = [of(&[1, 2]), of(&[1, 0, 3, 3])];
        let both = BTreeMap::from([(one, exactly(2 * BLOCK)), (other, exactly(BLOCK))]);
        assert_eq!(usage.of(&files), both);
        let each = BTreeMap::from([(one, exactly(BLOCK)), (other, exactly(BLOCK))]);
        assert_eq!(usage.of(&files[1..]), each);
        usage.eras.inherit(one, other);
        assert_eq!(usage.of(&files), BTreeMap::from([(other, exactly(3 * BLOCK))]));
    }

    #[test]
    fn beside_a_turning_only_what_was_installed_before_is_charged_to_nobody() {
        let payer = SubvolId(7);
        let mut usage = Usage::default();
        usage.write(payer, &block(1));
        usage.wrote(2, &block(1));
        usage.eras.installed(3);
        usage.write(payer, &block(2));
        usage.wrote(4, &block(2));
        usage.eras.begin_turn(5, (true, 1), []);
        usage.write(payer, &block(3));
        usage.eras.end_turn(6);
        usage.write(payer, &block(4));
        let may = |n: &[u8]| usage.of(&[of(n)]).get(&payer).copied().unwrap_or_default();
        assert_eq!(may(&[1]), exactly(0));
        assert_eq!(may(&[2]), Bytes { least: 0, most: BLOCK });
        assert_eq!(may(&[3]), Bytes { least: 0, most: BLOCK });
        assert_eq!(may(&[4]), exactly(BLOCK));
        // A crash undoes it: the remaining blocks then have no owner.
        usage.eras.settle(false, 0, 4);
        assert_eq!(usage.of(&[of(&[1, 2, 3])]), BTreeMap::new());
    }
}
