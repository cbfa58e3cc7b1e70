//! The groups that each group holds.
//!
//! Problem.  An owner knows its holder, but not the groups that it holds itself. A list of groups
//!           in pages would look at all owners for each page, to add up what the rows of one page
//!           hold.
//! Idea.     The pairs of holder and held in one ordered set. Children of the root are not in it:
//!           they are most, where there are many.
//!
//! INSIDE-I1  The set has each owner with a holder, behind the serial number of that holder. An
//!            owner leaves it before another one gets its slot.

use std::collections::BTreeSet;

use copyhold_sync::{Mutex, of};

use crate::place::{Place, Slot};

/// The serial number of a holder, and the slot of a group that it holds.
type Pair = (u64, Slot);

#[derive(Debug, Default)]
pub(crate) struct Inside {
    pairs: Mutex<BTreeSet<Pair>, of::MemoryInside>,
}

impl Inside {
    /// A set that grows has nodes that are about two thirds full.
    pub(crate) const PAIR_BYTES: usize = size_of::<Pair>() * 3 / 2;

    /// A group has another holder: serial numbers, as [`Place::holder`] has them.
    pub(crate) fn has_moved(&self, held: Slot, before: u64, now: u64) {
        let mut pairs = self.pairs.lock();
        pairs.remove(&(before, held));
        if now != Place::TOP {
            pairs.insert((now, held));
        }
    }

    /// The slots of the groups that an owner with this serial number holds.
    pub(crate) fn held_by(&self, holder: u64) -> Vec<Slot> {
        let held = (holder, Slot(0))..=(holder, Slot(u32::MAX));
        self.pairs.lock().range(held).map(|(_, slot)| *slot).collect()
    }
}
