//! How many inodes and snapshots count for each subvolume: its own, and those of all that is held
//! inside it, but for the one that holds everything.

use std::collections::BTreeMap;

use super::tree::{Kind, ObjectId, Tree};
use super::usage::Usage;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) inodes: u64,
    /// Inodes that may count, too: they came while quotas were being turned.
    pub(crate) doubtful: u64,
    pub(crate) snapshots: u64,
}

impl Count {
    pub(crate) fn add(&mut self, other: Count) {
        self.inodes += other.inodes;
        self.doubtful += other.doubtful;
        self.snapshots += other.snapshots;
    }

    pub(crate) fn allows(&self, inodes: u64, snapshots: u64) -> bool {
        let most = self.inodes + self.doubtful;
        (self.inodes..=most).contains(&inodes) && self.snapshots == snapshots
    }
}

/// Of one client's tree; `nameless` are the files without a name that a subvolume keeps. `None` is
/// the subvolume that holds everything.
pub(crate) fn of(
    tree: &Tree,
    usage: &Usage,
    nameless: impl Fn(ObjectId) -> u64,
) -> BTreeMap<Option<ObjectId>, Count> {
    let mut own: BTreeMap<Option<ObjectId>, Count> = BTreeMap::new();
    let real = tree.objects.iter().filter(|(_, object)| object.kind != Kind::Placeholder);
    for (id, object) in real {
        if let Some(sure) = usage.eras.counts(*id) {
            let count = own.entry(tree.subvol_with(*id)).or_default();
            *if sure { &mut count.inodes } else { &mut count.doubtful } += 1;
        }
        if object.kind == Kind::Subvol {
            own.entry(Some(*id)).or_default().doubtful += nameless(*id);
        }
        if object.kind == Kind::Subvol
            && let Some(origin) = tree.origins.get(id).filter(|id| tree.objects.contains_key(id))
        {
            own.entry(Some(*origin)).or_default().snapshots += 1;
        }
    }
    let mut sums = own.clone();
    for (subvol, count) in own {
        let holders = tree.holders(subvol);
        holders.iter().for_each(|holder| sums.entry(Some(*holder)).or_default().add(count));
    }
    sums
}
