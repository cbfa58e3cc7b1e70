//! The figures of a group with all that it holds.
//!
//! FIGURES-F1  A group's bytes and counters are the sums over itself and the groups that it holds,
//!             at any depth.
//! FIGURES-F2  `effective` is the protection that a walk of reclaim now gives: the part of its
//!             promise that the groups above can keep.
//!
//! The figures of a group cost a look at each group inside it, and at the groups above it in the
//! picture that walks share. So those of all groups, in pages of any size, cost a look at each
//! group for each of its holders.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::events::Counts;
use crate::owner::{Memory, MemoryClass, MemoryOwner};
use crate::protection::{Promise, protections};

/// Of a group with all that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes by class, in the order of [`MemoryClass::ALL`].
    pub classes: [u64; MemoryClass::ALL.len()],
    /// Most bytes so far: of a group that holds others, as far as these were read together.
    pub peak: u64,
    pub effective: Promise,
    pub counts: Counts,
}

impl Figures {
    fn own(owner: &MemoryOwner) -> Figures {
        Figures {
            classes: MemoryClass::ALL.map(|class| owner.charged(class).max(0) as u64),
            peak: owner.history().peak(),
            effective: Promise::default(),
            counts: owner.counts(),
        }
    }

    fn add(&mut self, held: &Figures) {
        self.classes.iter_mut().zip(held.classes).for_each(|(sum, more)| *sum += more);
        self.peak = self.peak.max(held.peak);
        self.counts.add(&held.counts);
    }

    /// Bytes of all classes.
    pub fn current(&self) -> u64 {
        self.classes.iter().sum()
    }
}

impl Memory {
    /// The figures of a group now.
    pub fn figures(&self, group: &MemoryOwner) -> Figures {
        let inside = self.with_inside(group);
        self.lists().looked_at(inside.len());
        let mut sum = Figures::default();
        inside.iter().for_each(|owner| sum.add(&Figures::own(owner)));
        // A peak of a group inside is part of one of its holder.
        group.note_peak(sum.current());
        let effective = match sum.current() {
            // MEMGROUP-T2.
            0 => Promise::default(),
            _ => self.effective(group),
        };
        Figures { peak: sum.peak.max(sum.current()), effective, ..sum }
    }

    /// A group and all that it holds, at any depth, each once.
    fn with_inside(&self, group: &MemoryOwner) -> Vec<MemoryOwner> {
        let mut found = vec![group.clone()];
        // Circles of holders come and go (HELD-T1).
        let mut seen = HashSet::from([group.slot()]);
        let mut at = 0;
        while let Some(holder) = found.get(at) {
            if holder.place().has_held.load(Relaxed) {
                let held = self.owners_at(&self.inside().held_by(holder.serial()));
                found.extend(held.into_iter().filter(|of| seen.insert(of.slot())));
            }
            at += 1;
        }
        found
    }

    fn effective(&self, group: &MemoryOwner) -> Promise {
        let picture = self.picture_with(&[group.slot()]);
        let place = picture.place(group.slot());
        place.map_or(Promise::default(), |at| protections(&picture.groups)[at])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Event, GroupLimits, Stat};

    fn promise(low: u64) -> GroupLimits {
        GroupLimits { promise: Promise { min: 0, low }, ..GroupLimits::default() }
    }

    #[test]
    fn effective_protection_is_that_of_the_next_walk() {
        let memory = Memory::default();
        let [top, one, two] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        two.set_holder(Some(&top));
        top.set_limits(&promise(8000));
        one.set_limits(&promise(6000));
        two.set_limits(&promise(4000));
        let _charges = [&one, &two].map(|owner| owner.charge(MemoryClass::Node, 10_000));
        let lows = [&top, &one, &two].map(|owner| memory.figures(owner).effective.low);
        assert_eq!(lows, [8000, 4800, 3200], "FIGURES-F2");
        assert_eq!(memory.figures(&top).current(), 20_000);
        assert_eq!(memory.figures(&memory.add_owner()), Figures::default());
    }

    #[test]
    fn the_peak_of_a_holder_is_the_highest_sum_that_was_read() {
        let memory = Memory::default();
        let [top, one, two] = std::array::from_fn(|_| memory.add_owner());
        one.set_holder(Some(&top));
        two.set_holder(Some(&top));
        let charges = [&one, &two].map(|owner| owner.charge(MemoryClass::Edit, 1 << 20));
        assert_eq!(memory.figures(&top).peak, 2 << 20);
        drop(charges);
        let _charge = one.charge(MemoryClass::Edit, 3 << 20);
        drop(memory.picture());
        assert_eq!([&top, &one, &two].map(|of| memory.figures(of).peak >> 20), [3, 3, 1]);
    }

    /// Looks at owners, to list so many groups that all use some memory: tenants with four
    /// subvolumes each, one inside the other.
    fn looks(groups: usize) -> u64 {
        let memory = Memory::default();
        let owners: Vec<MemoryOwner> = (0..groups).map(|_| memory.add_owner()).collect();
        for at in (0..groups).filter(|at| at % 5 > 0) {
            owners[at].set_holder(Some(&owners[at - 1]));
        }
        let _charges: Vec<_> =
            owners.iter().map(|owner| owner.charge(MemoryClass::Inode, 512)).collect();
        let before = memory.looks();
        let listed = owners.iter().map(|owner| memory.figures(owner).current());
        assert_eq!(listed.sum::<u64>(), groups as u64 / 5 * (5 + 4 + 3 + 2 + 1) * 512);
        memory.looks() - before
    }

    #[test]
    fn a_list_of_twice_as_many_groups_costs_twice_as_many_looks() {
        let [few, many] = [1000, 2000].map(looks);
        // One for each holder of a group, and one for the picture.
        assert_eq!((few, many), (4 * 1000, 4 * 2000));
    }

    #[test]
    fn a_list_of_idle_groups_draws_no_picture() {
        let memory = Memory::default();
        let owners: Vec<MemoryOwner> = (0..100).map(|_| memory.add_owner()).collect();
        let _charge = owners[0].charge(MemoryClass::Node, 1);
        let idle = owners[1..].iter().map(|owner| memory.figures(owner).current());
        assert_eq!((idle.sum::<u64>(), memory.drawn().lock().count()), (0, 0));
        assert_eq!(memory.looks(), 99);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Charge(usize, usize, i64),
        Count(usize, usize),
        Stat(usize, usize, u64),
        Hold(usize, Option<usize>),
        End(usize),
    }

    const GROUPS: usize = 8;

    fn step() -> impl Strategy<Value = Step> {
        let group = || 0..GROUPS;
        prop_oneof![
            (group(), 0..MemoryClass::ALL.len(), 0..99_i64)
                .prop_map(|(g, c, n)| Step::Charge(g, c, n)),
            (group(), 0..Event::ALL.len()).prop_map(|(g, e)| Step::Count(g, e)),
            (group(), 0..Stat::ALL.len(), 0..99_u64).prop_map(|(g, s, n)| Step::Stat(g, s, n)),
            (group(), prop::option::of(group())).prop_map(|(g, holder)| Step::Hold(g, holder)),
            group().prop_map(Step::End),
        ]
    }

    /// A group of the model, without those that it holds.
    #[derive(Clone, Default)]
    struct Plain {
        holder: Option<usize>,
        classes: [u64; MemoryClass::ALL.len()],
        events: [u64; Event::ALL.len()],
        stats: [u64; Stat::ALL.len()],
    }

    impl Plain {
        fn take_counts(&mut self, of: &Plain) {
            self.events.iter_mut().zip(of.events).for_each(|(sum, more)| *sum += more);
            self.stats.iter_mut().zip(of.stats).for_each(|(sum, more)| *sum += more);
        }
    }

    fn is_above(plain: &[Plain], above: usize, mut at: usize) -> bool {
        while let Some(holder) = plain[at].holder {
            at = holder;
            if at == above {
                return true;
            }
        }
        false
    }

    proptest! {
        /// FIGURES-F1, against a model that adds up each group by itself.
        #[test]
        fn figures_are_sums_over_what_a_group_holds(
            steps in prop::collection::vec(step(), 0..80)
        ) {
            let memory = Memory::default();
            let mut owners: Vec<MemoryOwner> = (0..GROUPS).map(|_| memory.add_owner()).collect();
            let mut charges: Vec<Vec<_>> = (0..GROUPS).map(|_| Vec::new()).collect();
            let mut plain = vec![Plain::default(); GROUPS];
            for step in steps {
                match step {
                    Step::Charge(g, class, bytes) => {
                        charges[g].push(owners[g].charge(MemoryClass::ALL[class], bytes));
                        plain[g].classes[class] += bytes as u64;
                    }
                    Step::Count(g, event) => {
                        owners[g].count(Event::ALL[event]);
                        plain[g].events[event] += 1;
                    }
                    Step::Stat(g, stat, more) => {
                        owners[g].add_stat(Stat::ALL[stat], more);
                        plain[g].stats[stat] += more;
                    }
                    Step::Hold(g, holder) => {
                        let circle = |h: &usize| *h == g || is_above(&plain, g, *h);
                        let holder = holder.filter(|h| !circle(h));
                        owners[g].set_holder(holder.map(|h| &owners[h]));
                        plain[g].holder = holder;
                    }
                    Step::End(g) if plain.iter().all(|of| of.holder != Some(g)) => {
                        // Its counts are its holder's; another group begins.
                        charges[g].clear();
                        owners[g] = memory.shared().clone();
                        owners[g] = memory.add_owner();
                        let ended = std::mem::take(&mut plain[g]);
                        ended.holder.into_iter().for_each(|h| plain[h].take_counts(&ended));
                    }
                    Step::End(_) => {}
                }
            }
            for (g, owner) in owners.iter().enumerate() {
                let mut sum = Plain::default();
                for (at, of) in plain.iter().enumerate() {
                    if at == g || is_above(&plain, g, at) {
                        sum.take_counts(of);
                        sum.classes.iter_mut().zip(of.classes).for_each(|(s, more)| *s += more);
                    }
                }
                let figures = memory.figures(owner);
                prop_assert_eq!(figures.classes, sum.classes);
                prop_assert_eq!(Event::ALL.map(|event| figures.counts.event(event)), sum.events);
                prop_assert_eq!(Stat::ALL.map(|stat| figures.counts.stat(stat)), sum.stats);
                prop_assert!(figures.peak >= figures.current());
            }
        }
    }
}
