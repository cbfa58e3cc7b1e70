//! Whether new limits of a group fit those of the others.
//!
//! FIT-L1  A change is refused if it promises, as `min`, more than there can be: above the group's
//!         own `max`, or together with the groups beside it, at any level above, more than the
//!         `max` of the group there, or the budget; and if it lowers a `max` below the promises of
//!         the groups inside. Below a `max`, a group is promised its `min`, or more if those inside
//!         are; the budget has to keep the `min` of the children of the root.
//!
//! Only the change is judged. Contradictions come all the same, by a move of a group or a smaller
//! budget; then promises are shared out by use (`protection`).

use std::sync::atomic::Ordering::Relaxed;

use crate::owner::{Memory, MemoryOwner};
use crate::place::GroupLimits;

/// A contradiction, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    #[error("weight={weight}: a weight is between 1 and {}", GroupLimits::WEIGHT_MAX)]
    Weight { weight: u32 },
    #[error(
        "min={} is above max={}: a group cannot keep more than it may have; lower min, or raise max",
        size(*min), size(*max)
    )]
    Own { min: u64, max: u64 },
    #[error(
        "with min={}, this group and those beside it would be promised {}, more than the max={} of \
         a group above them; lower min here or there, or raise that max",
        size(*min), size(*sum), size(*max)
    )]
    Beside { min: u64, sum: u64, max: u64 },
    #[error(
        "with min={}, all groups would be promised {}, more than the {} of the daemon's budget; \
         lower min here or there, or mount with a larger `-o memory=`",
        size(*min), size(*sum), size(*budget)
    )]
    Budget { min: u64, sum: u64, budget: u64 },
    #[error(
        "max={} is less than the {} that are promised, as min, to the groups inside; lower their \
         min first",
        size(*max), size(*sum)
    )]
    Inside { max: u64, sum: u64 },
}

impl Memory {
    /// Checks new limits of a group against the present ones of the others (FIT-L1).
    pub fn check_limits(&self, of: &MemoryOwner, new: &GroupLimits) -> Result<(), LimitsError> {
        let weight = new.weight;
        if !(1..=GroupLimits::WEIGHT_MAX).contains(&weight) {
            return Err(LimitsError::Weight { weight });
        }
        let (old, min, max) = (of.limits(), new.promise.min, new.max);
        let changes_own = min != old.promise.min || max != old.max;
        if changes_own && min > max {
            return Err(LimitsError::Own { min, max });
        }
        if max >= old.max && min <= old.promise.min {
            return Ok(());
        }
        let tree = self.tree();
        let min_of = |owner: &MemoryOwner| match owner == of {
            true => min,
            false => owner.limits().promise.min,
        };
        let inside = tree.inside(&tree.owners.iter().map(min_of).collect::<Vec<_>>());
        let sum_in = |group: &MemoryOwner| {
            let at = tree.owners.iter().position(|owner| owner == group);
            at.map_or(0, |at| inside[at])
        };
        let sum = sum_in(of);
        if max < old.max && sum > max {
            return Err(LimitsError::Inside { max, sum });
        }
        if min <= old.promise.min {
            return Ok(());
        }
        let budget = self.budget();
        for group in of.above() {
            let (sum, max) = (sum_in(&group), group.limits().max);
            if sum > max {
                return Err(LimitsError::Beside { min, sum, max });
            }
            if sum > budget {
                return Err(LimitsError::Budget { min, sum, budget });
            }
        }
        // Those inside of a child of the root are kept as far as its own promise goes (PROTECT-E3).
        let tops = tree.tops().map(|top| min_of(&tree.owners[top]));
        match tops.fold(0, u64::saturating_add) {
            sum if sum > budget => Err(LimitsError::Budget { min, sum, budget }),
            _ => Ok(()),
        }
    }

    /// The bytes that all groups share; `u64::MAX` before it is set.
    pub fn budget(&self) -> u64 {
        self.budget_cell().load(Relaxed)
    }

    pub fn set_budget(&self, bytes: u64) {
        self.budget_cell().store(bytes, Relaxed);
    }
}

/// As in settings: a number with K, M, G or T, if it is a multiple.
fn size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(bits, _)| bytes > 0 && bytes.trailing_zeros() >= *bits);
    unit.map_or(bytes.to_string(), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Promise;

    fn limits(min: u64, max: u64) -> GroupLimits {
        GroupLimits { promise: Promise { min, low: 0 }, max, ..GroupLimits::default() }
    }

    #[test]
    fn promises_beyond_what_there_can_be_are_refused_with_the_figures() {
        const NONE: u64 = u64::MAX;
        let memory = Memory::default();
        let [top, beside, one, two] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        two.set_holder(Some(&top));
        let set = |of: &MemoryOwner, new: GroupLimits| {
            memory.check_limits(of, &new)?;
            of.set_limits(&new);
            Ok(())
        };
        assert_eq!(set(&one, limits(1 << 50, NONE)), Ok(()), "there is no budget yet");
        assert_eq!(set(&one, limits(0, NONE)), Ok(()));
        memory.set_budget(1000);
        assert_eq!(set(&top, limits(6, 5)), Err(LimitsError::Own { min: 6, max: 5 }));
        assert_eq!(set(&top, limits(0, 500)), Ok(()));
        assert_eq!(set(&one, limits(300, NONE)), Ok(()));
        let refused = LimitsError::Beside { min: 201, sum: 501, max: 500 };
        assert_eq!(set(&two, limits(201, NONE)), Err(refused));
        assert_eq!(set(&two, limits(200, NONE)), Ok(()));
        let refused = LimitsError::Inside { max: 499, sum: 500 };
        assert_eq!(set(&top, limits(0, 499)), Err(refused));
        assert_eq!(set(&top, limits(400, 500)), Ok(()));
        let refused = LimitsError::Budget { min: NONE, sum: NONE, budget: 1000 };
        assert_eq!(set(&beside, limits(NONE, NONE)), Err(refused));
        assert_eq!(set(&beside, limits(600, NONE)), Ok(()));
        for weight in [0, 10_001] {
            let new = GroupLimits { weight, ..two.limits() };
            assert_eq!(set(&two, new), Err(LimitsError::Weight { weight }));
        }
        memory.set_budget(100);
        let weight = GroupLimits { weight: 7, ..two.limits() };
        assert_eq!(set(&two, weight), Ok(()), "a promise that is there is not judged again");
        assert_eq!(set(&two, limits(100, NONE)), Ok(()), "nor one that becomes less");
    }

    /// A promise to a group without a `min` above it adds to those beside that one.
    #[test]
    fn promises_at_all_levels_add_up() {
        let memory = Memory::default();
        let [top, middle, low, beside] = std::array::from_fn(|_| memory.add_owner());
        middle.set_holder(Some(&top));
        beside.set_holder(Some(&top));
        low.set_holder(Some(&middle));
        top.set_limits(&limits(0, 100));
        beside.set_limits(&limits(60, u64::MAX));
        let refused = LimitsError::Beside { min: 41, sum: 101, max: 100 };
        assert_eq!(memory.check_limits(&low, &limits(41, u64::MAX)), Err(refused));
        assert_eq!(memory.check_limits(&low, &limits(40, u64::MAX)), Ok(()));
        low.set_limits(&limits(40, u64::MAX));
        assert_eq!(memory.check_limits(&middle, &limits(40, u64::MAX)), Ok(()), "the same bytes");
        memory.set_budget(99);
        assert_eq!(memory.check_limits(memory.shared(), &limits(99, u64::MAX)), Ok(()));
        top.set_limits(&limits(60, 100));
        let refused = LimitsError::Budget { min: 40, sum: 100, budget: 99 };
        assert_eq!(memory.check_limits(memory.shared(), &limits(40, u64::MAX)), Err(refused));
    }

    #[test]
    fn sizes_are_printed_as_they_are_set() {
        let sizes = [0, 1000, 1024, 340 << 20, 3 << 30, 5 << 40, (1 << 30) + 1].map(size);
        assert_eq!(sizes, ["0", "1000", "1K", "340M", "3G", "5T", "1073741825"]);
    }

    /// A group without a limit of its own is inside those above it.
    #[test]
    fn the_limit_of_any_group_above_counts() {
        let memory = Memory::default();
        let [top, middle, low] = std::array::from_fn(|_| memory.add_owner());
        middle.set_holder(Some(&top));
        low.set_holder(Some(&middle));
        top.set_limits(&limits(0, 10));
        let refused = LimitsError::Beside { min: 11, sum: 11, max: 10 };
        assert_eq!(memory.check_limits(&low, &limits(11, u64::MAX)), Err(refused));
    }
}
