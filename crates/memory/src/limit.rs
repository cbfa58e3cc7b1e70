//! The limits `high` and `max`: whether a group may use more.
//!
//! An owner whose counter passes a step reports, and keeps the room below its limits; a request
//! for more than that asks the `ledger` again (LEDGER-L2).

use std::sync::atomic::Ordering::Relaxed;

use crate::events::Event;
use crate::owner::MemoryOwner;

/// A limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Above it, the group's nodes are reclaimed and its writers are delayed.
    High,
    /// Nothing passes it.
    Max,
}

/// A group that would pass a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverLimit {
    pub group: MemoryOwner,
    pub limit: Limit,
    /// By so many bytes.
    pub over: u64,
}

impl Limit {
    /// The occasion on which it counts.
    pub fn event(self) -> Event {
        match self {
            Limit::High => Event::High,
            Limit::Max => Event::Max,
        }
    }
}

impl MemoryOwner {
    /// Whether this group, or one above, may be near a limit: then [`Self::over_limit`] says more.
    pub fn is_near_limit(&self) -> bool {
        !self.has_room(0)
    }

    fn has_room(&self, more: u64) -> bool {
        self.judged().has_room(more, self.ledger().limits())
    }

    /// The nearest group, from this one upwards, that would pass this limit of its own with `more`
    /// bytes of this owner.
    pub fn over_limit(&self, limit: Limit, more: u64) -> Option<OverLimit> {
        if self.has_room(more) {
            return None;
        }
        self.report().into_iter().find_map(|(group, all)| {
            let all = all.max(0) as u64 + more;
            let most = group.limit(limit);
            let over = all.checked_sub(most).filter(|over| *over > 0)?;
            Some(OverLimit { group, limit, over })
        })
    }

    /// The nearest group that would pass its `max`, or else its `high`.
    pub fn over_any_limit(&self, more: u64) -> Option<OverLimit> {
        self.over_limit(Limit::Max, more).or_else(|| self.over_limit(Limit::High, more))
    }

    /// It has other limits or promises (LEDGER-L2).
    pub(crate) fn has_new_limits(&self) {
        self.ledger().changes.fetch_add(1, Relaxed);
        let is_limited = [Limit::High, Limit::Max].into_iter().any(|of| self.limit(of) < u64::MAX);
        if is_limited && self.ledger().next_limits() == 0 {
            self.all().iter().for_each(|owner| _ = owner.report());
        }
    }

    fn limit(&self, of: Limit) -> u64 {
        match of {
            Limit::High => self.place().high.load(Relaxed),
            Limit::Max => self.place().max.load(Relaxed),
        }
    }

    /// Bytes between the sum of this group and its nearest limit.
    fn room(&self, all: i64) -> u64 {
        let nearest = self.limit(Limit::High).min(self.limit(Limit::Max));
        nearest.saturating_sub(all.max(0) as u64)
    }

    /// A counter has passed so many multiples of a step. One that goes to and fro there is no
    /// reason for a report.
    pub(crate) fn has_passed_steps(&self, steps: u64, usage: u64) {
        if self.ledger().count_steps(steps) && self.judged().is_old(usage) {
            self.report();
        }
    }

    /// Tells the ledger the usage of now. Returns the sums of this group and of those above.
    fn report(&self) -> Vec<(MemoryOwner, i64)> {
        self.ledger().with(&|| self.above(), |sums, above| {
            let limits = self.ledger().limits();
            let own = self.usage() as i64;
            let more = own - std::mem::replace(&mut sums.of(self.slot()).own, own);
            let up = std::iter::once(self).chain(above);
            let add = |group: &MemoryOwner| (group.clone(), sums.of(group.slot()).add(more));
            let chain: Vec<(MemoryOwner, i64)> = up.map(add).collect();
            let room = chain.iter().map(|(group, all)| group.room(*all)).min();
            self.judged().store(own, room.unwrap_or(0), limits);
            chain
        })
    }

    /// This group has another holder, as `set` says: its sum moves along.
    pub(crate) fn move_sum(&self, set: impl Fn()) {
        let ledger = self.ledger();
        let _moving = ledger.moving.lock();
        let all = ledger.with(&|| self.above(), |sums, above| {
            let all = sums.of(self.slot()).all;
            above.iter().for_each(|group| _ = sums.of(group.slot()).add(-all));
            // Reports that have found the groups above look again.
            ledger.moves.fetch_add(1, Relaxed);
            set();
            all
        });
        let holds_others = self.place().has_held.load(Relaxed);
        ledger.with(&|| self.above(), |sums, above| {
            above.iter().for_each(|group| _ = sums.of(group.slot()).add(all));
            // LEDGER-L2.
            match ledger.limits() {
                0 => {}
                _ if all == 0 && !holds_others => self.judged().has_no_room(),
                _ => _ = ledger.next_limits(),
            }
        });
        if all != 0 || self.usage() > 0 {
            ledger.changes.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::STEP;
    use crate::{GroupLimits, Memory, MemoryClass};

    fn max(max: u64) -> GroupLimits {
        GroupLimits { max, ..GroupLimits::default() }
    }

    #[test]
    fn a_limit_holds_for_all_that_a_group_holds_and_for_no_other() {
        let memory = Memory::default();
        let [top, one, two, other] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        two.set_holder(Some(&top));
        let charge = one.charge(MemoryClass::Node, 600 << 10);
        assert!(!one.is_near_limit(), "LEDGER-L3");
        top.set_limits(&max(1 << 20));
        assert_eq!(two.over_limit(Limit::Max, 0), None);
        assert!(!two.is_near_limit());
        let more = two.charge(MemoryClass::Dirty, 500 << 10);
        let over = |over: u64| OverLimit { group: top.clone(), limit: Limit::Max, over };
        assert_eq!(two.over_limit(Limit::Max, 0), Some(over(76 << 10)));
        assert_eq!(one.over_limit(Limit::Max, 5), None, "LEDGER-L2: its last report was before");
        charge.change(64 << 10);
        assert_eq!(one.over_limit(Limit::Max, 5), Some(over((140 << 10) + 5)));
        assert_eq!(other.over_limit(Limit::Max, 1 << 40), None);
        drop(more);
        assert_eq!(one.over_limit(Limit::Max, 0), None);
    }

    #[test]
    fn each_limit_is_asked_by_itself_and_the_nearest_group_comes_first() {
        let memory = Memory::default();
        let [top, one] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        top.set_limits(&GroupLimits { high: 100, ..max(500) });
        one.set_limits(&GroupLimits { high: 50, ..max(900) });
        let found = |bytes| {
            let over = |limit| one.over_limit(limit, bytes);
            [Limit::High, Limit::Max].map(|of| over(of).map(|of| (of.group == top, of.over)))
        };
        assert_eq!(found(50), [None, None]);
        assert_eq!(found(60), [Some((false, 10)), None]);
        assert_eq!(found(600), [Some((false, 550)), Some((true, 100))]);
        assert_eq!(found(1000), [Some((false, 950)), Some((false, 100))]);
        let new = memory.add_owner();
        new.set_holder(Some(&one));
        let over = new.over_limit(Limit::High, 60).map(|of| of.over);
        assert_eq!(over, Some(10), "LEDGER-L2: it has moved");
    }

    #[test]
    fn a_request_for_more_than_the_room_is_judged() {
        let memory = Memory::default();
        let [top, one] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        top.set_limits(&max(1 << 20));
        assert_eq!(one.over_limit(Limit::Max, 0), None);
        assert!(!one.is_near_limit());
        assert_eq!(one.over_limit(Limit::Max, 1 << 20), None);
        let over = one.over_limit(Limit::Max, (1 << 20) + 1).map(|of| (of.group, of.over));
        assert_eq!(over, Some((top, 1)), "LEDGER-L2");
    }

    fn sum(of: &MemoryOwner) -> crate::ledger::Sum {
        of.ledger().with(&Vec::<()>::new, |sums, _| *sums.of(of.slot()))
    }

    #[test]
    fn a_counter_that_goes_to_and_fro_at_a_step_is_reported_once() {
        let owner = Memory::default().add_owner();
        owner.set_limits(&max(1 << 30));
        owner.add(MemoryClass::Node, STEP - 1);
        for _ in 0..3 {
            owner.add(MemoryClass::Node, 10);
            assert_eq!(sum(&owner).own, STEP + 9, "LEDGER-L1");
            owner.add(MemoryClass::Node, -10);
        }
        assert_eq!(sum(&owner).own, STEP + 9);
        owner.add(MemoryClass::Node, 10);
        owner.add(MemoryClass::Node, -9 - STEP);
        assert_eq!(sum(&owner).own, 0, "LEDGER-L1: a step less");
    }

    /// The group that moves has no usage, nor has the one inside.
    #[test]
    fn a_request_of_a_group_inside_one_that_moved_asks() {
        let memory = Memory::default();
        let [full, moved, inside] = std::array::from_fn(|_| memory.add_owner());
        inside.set_holder(Some(&moved));
        let charge = full.charge(MemoryClass::Dirty, 1000);
        full.set_limits(&max(1000));
        assert_eq!(inside.over_limit(Limit::Max, 1), None);
        assert!(!inside.is_near_limit());
        moved.set_holder(Some(&full));
        assert_eq!(inside.over_limit(Limit::Max, 1).map(|of| of.over), Some(1), "LEDGER-L2");
        drop(charge);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a race needs real threads")]
    fn two_threads_that_move_a_group_leave_one_sum() {
        let memory = Memory::default();
        let [one, two, moved] = std::array::from_fn(|_| memory.add_owner());
        one.set_limits(&max(1 << 30));
        moved.add(MemoryClass::Edit, STEP);
        std::thread::scope(|scope| {
            for holder in [&one, &two] {
                let moved = &moved;
                scope.spawn(move || (0..2000).for_each(|_| moved.set_holder(Some(holder))));
            }
        });
        let sums = [&one, &two].map(|of| sum(of).all);
        let held = [&one, &two].map(|of| if moved.is_held_by(Some(of)) { STEP } else { 0 });
        assert_eq!(sums, held, "LEDGER-L1");
        moved.add(MemoryClass::Edit, -STEP);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Change(usize, usize, i64),
        Limit(usize, u64),
        Hold(usize, Option<usize>),
        End(usize),
        Ask(usize, u64),
    }

    const GROUPS: usize = 6;

    fn step() -> impl Strategy<Value = Step> {
        let group = || 0..GROUPS;
        let bytes = || 0..300_000_u64;
        prop_oneof![
            4 => (group(), 0..MemoryClass::ALL.len(), -200_000..300_000_i64)
                .prop_map(|(g, class, bytes)| Step::Change(g, class, bytes)),
            1 => (group(), bytes()).prop_map(|(g, max)| Step::Limit(g, max * 5)),
            2 => (group(), prop::option::of(group())).prop_map(|(g, h)| Step::Hold(g, h)),
            1 => group().prop_map(Step::End),
            4 => (group(), bytes()).prop_map(|(g, more)| Step::Ask(g, more)),
        ]
    }

    fn is_at_or_above(holders: &[Option<usize>], above: usize, at: usize) -> bool {
        std::iter::successors(Some(at), |at| holders[*at]).any(|at| at == above)
    }

    proptest! {
        /// Beside a plain model: nothing is over a limit without need, and no more passes one than
        /// the steps in which owners report.
        #[test]
        fn limits_are_those_of_plain_sums(steps in prop::collection::vec(step(), 0..120)) {
            let memory = Memory::default();
            let mut owners: Vec<MemoryOwner> = (0..GROUPS).map(|_| memory.add_owner()).collect();
            let mut charged = [[0_i64; MemoryClass::ALL.len()]; GROUPS];
            let mut holders = [None; GROUPS];
            for step in steps {
                match step {
                    Step::Change(g, class, bytes) => {
                        let bytes = bytes.max(-charged[g][class]);
                        owners[g].add(MemoryClass::ALL[class], bytes);
                        charged[g][class] += bytes;
                    }
                    Step::Limit(g, bytes) => owners[g].set_limits(&max(bytes)),
                    Step::Hold(g, holder) => {
                        let holder = holder.filter(|h| !is_at_or_above(&holders, g, *h));
                        owners[g].set_holder(holder.map(|h| &owners[h]));
                        holders[g] = holder;
                    }
                    Step::End(g) if holders.iter().all(|holder| *holder != Some(g)) => {
                        for (class, bytes) in MemoryClass::ALL.into_iter().zip(charged[g]) {
                            owners[g].add(class, -bytes);
                        }
                        owners[g] = memory.shared().clone();
                        owners[g] = memory.add_owner();
                        (charged[g], holders[g]) = ([0; MemoryClass::ALL.len()], None);
                    }
                    Step::End(_) => {}
                    Step::Ask(g, more) => {
                        let over = |of: usize| {
                            let inside = |at: &usize| is_at_or_above(&holders, of, *at);
                            let of_inside = (0..GROUPS).filter(inside);
                            let sum: i64 = of_inside.flat_map(|at| charged[at]).sum();
                            sum as u64 + more
                        };
                        let found = owners[g].over_limit(Limit::Max, more);
                        let steps = GROUPS * (MemoryClass::ALL.len() + 1);
                        let slack = (steps as i64 * STEP) as u64;
                        let above = std::iter::successors(Some(g), |at| holders[*at]);
                        for of in above {
                            let max = owners[of].limits().max;
                            let is_found = found.as_ref().is_some_and(|it| it.group == owners[of]);
                            prop_assert!(!is_found || over(of) + slack > max);
                            let is_far = over(of).saturating_sub(slack) > max;
                            prop_assert!(!is_far || found.is_some(), "{} of {}", over(of), max);
                        }
                        owners.iter().for_each(|owner| _ = owner.report());
                        for (of, owner) in owners.iter().enumerate() {
                            let all = sum(owner).all as u64;
                            prop_assert_eq!(all, over(of) - more, "LEDGER-L1");
                        }
                    }
                }
            }
            for (owner, charged) in owners.iter().zip(charged) {
                MemoryClass::ALL.into_iter().zip(charged).for_each(|(of, n)| owner.add(of, -n));
            }
        }
    }
}
