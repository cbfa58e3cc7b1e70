//! Whether new limits of a group fit those of the others.
//!
//! FIT-L1  A change is refused if it promises, as `min`, more than there can be: above the group's
//!         own `max`, or together with the groups beside it above the `max` of a group above or
//!         the budget; and if it lowers a `max` below the promises of the groups inside.
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
        "min={min} is above max={max}: a group cannot keep more than it may have; lower min, or \
         raise max"
    )]
    Own { min: u64, max: u64 },
    #[error(
        "with min={min}, this group and those beside it would be promised {sum} bytes, more than \
         the max={max} of a group above them; lower min here or there, or raise that max"
    )]
    Beside { min: u64, sum: u64, max: u64 },
    #[error(
        "with min={min}, all groups would be promised {sum} bytes, more than the {budget} bytes of \
         the daemon's budget; lower min here or there, or mount with a larger `-o memory=`"
    )]
    Budget { min: u64, sum: u64, budget: u64 },
    #[error(
        "max={max} is less than the {sum} bytes that are promised, as min, to the groups inside; \
         lower their min first"
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
        let promised = |holder: Option<&MemoryOwner>| {
            let owners = self.owners();
            let mins = owners.iter().filter(|other| *other != of && other.is_held_by(holder));
            mins.map(|other| other.limits().promise.min).fold(0, u64::saturating_add)
        };
        if max < old.max {
            let sum = promised(Some(of));
            if sum > max {
                return Err(LimitsError::Inside { max, sum });
            }
        }
        if min <= old.promise.min {
            return Ok(());
        }
        let holder = of.holder();
        let sum = min.saturating_add(promised(holder.as_ref()));
        let budget = self.budget();
        let above = of.above().iter().map(|group| group.limits().max).min().unwrap_or(u64::MAX);
        match sum {
            sum if sum > above => Err(LimitsError::Beside { min, sum, max: above }),
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
