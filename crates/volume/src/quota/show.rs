//! The output of `quota status` and `qgroup show`.

use std::collections::BTreeMap;
use std::ops::Bound;

use copyhold_format::item::{GroupId, Limits, Tombstone, UsageItem};
use copyhold_types::EpochId;

use super::groups::Group;
use super::{Ledger, QuotaError};

/// Whether quotas are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// On: space with an origin from this epoch on is counted.
    pub counted_from: Option<EpochId>,
    /// How often quotas were enabled.
    pub generation: u64,
    /// Records of quotas that were turned off, not yet removed.
    pub leftovers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    Live,
    /// A deleted subvolume that still pays, for space that others refer to or that is yet to be
    /// freed.
    Tombstone,
    /// A deleted subvolume that pays for nothing. It goes by itself.
    Stale,
}

impl GroupState {
    /// As programs see it.
    pub fn name(self) -> &'static str {
        match self {
            GroupState::Live => "live",
            GroupState::Tombstone => "tombstone",
            GroupState::Stale => "stale",
        }
    }
}

/// One group as it is now. Sizes are bytes; paths are the caller's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUse {
    pub id: GroupId,
    pub state: GroupState,
    /// The record of a deleted subvolume: since when, and its name.
    pub tombstone: Option<Tombstone>,
    /// `data` and `metadata`. `exclusive` is the same: every byte has one payer.
    pub referenced: u64,
    pub exclusive: u64,
    pub data: u64,
    pub metadata: u64,
    pub reserved: u64,
    /// The most that unflushed edits will take.
    pub unflushed: u64,
    /// Of living subvolumes, with the subvolumes inside them.
    pub inodes: u64,
    pub snapshots: u64,
    /// Living subvolumes below the group, or inside the subvolume.
    pub subvolumes: u64,
    pub limits: Limits,
    /// Bytes that it is sure to get.
    pub reserve: u64,
    pub parents: Vec<GroupId>,
    pub members: Vec<GroupId>,
}

impl Ledger {
    pub fn status(&self) -> Status {
        let groups = self.groups.lock();
        Status {
            counted_from: groups.from,
            generation: groups.generation,
            leftovers: groups.leftovers.len(),
        }
    }

    /// All groups, in order of their ids. Charges continue meanwhile, so sums of different groups
    /// may be of different moments.
    pub fn show(&self) -> Result<Vec<GroupUse>, QuotaError> {
        self.show_behind(GroupId::place(0), usize::MAX)
    }

    /// At most `most` groups behind a place in their order. A list in such pages looks at each
    /// group once.
    pub fn show_behind(&self, after: GroupId, most: usize) -> Result<Vec<GroupUse>, QuotaError> {
        let groups = self.on()?;
        let behind = groups.all.range((Bound::Excluded(after), Bound::Unbounded));
        let behind = behind.map(|(_, group)| group).inspect(|_| self.looked_at_group());
        Ok(behind.filter(|group| group.is_visible()).take(most).map(GroupUse::of).collect())
    }

    /// How many groups [`Self::show`] returns.
    pub fn shown(&self) -> Result<usize, QuotaError> {
        Ok(self.on()?.all.values().filter(|group| group.is_visible()).count())
    }

    /// Usage by origin epoch, as the next closing would leave it in the records.
    pub fn usage(&self) -> BTreeMap<EpochId, UsageItem> {
        let rows = self.rows.all().into_iter();
        let items = rows.map(|row| (row.epoch, row.item()));
        items.filter(|(_, item)| item.data + item.metadata > 0).collect()
    }

    /// One of them.
    pub fn show_group(&self, id: GroupId) -> Result<GroupUse, QuotaError> {
        self.on()?.get(id).map(GroupUse::of)
    }
}

impl GroupUse {
    fn of(group: &Group) -> GroupUse {
        let sums = group.node.sums();
        let positive = |count: i64| count.max(0) as u64;
        let (data, metadata) = (positive(sums.data), positive(sums.metadata));
        let is_dead = group.owner.as_ref().is_some_and(|owner| owner.account.is_dead());
        let state = match (is_dead, data + metadata) {
            (false, _) => GroupState::Live,
            (true, 0) => GroupState::Stale,
            (true, _) => GroupState::Tombstone,
        };
        GroupUse {
            id: group.node.id,
            state,
            tombstone: group.item.tombstone.clone(),
            referenced: data + metadata,
            exclusive: data + metadata,
            data,
            metadata,
            reserved: positive(sums.reserved),
            unflushed: positive(sums.unflushed),
            inodes: positive(sums.inodes),
            snapshots: positive(sums.snapshots),
            subvolumes: positive(sums.subvolumes),
            limits: group.item.limits,
            reserve: group.item.reserve,
            parents: group.parents.iter().copied().collect(),
            members: group.members.iter().copied().collect(),
        }
    }
}
