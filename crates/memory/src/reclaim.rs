//! Reclaim: which lists are looked at, and how much of each, until enough is free.
//!
//! ```text
//!   pass 1  keeps low:  for a 4096th of each list, then twice as much, … , then all
//!             each list in turn gives its part; enough is free: done
//!   pass 2  keeps min:  the same, if nothing came free and low was a reason
//! ```
//!
//! RECLAIM-R1  Each round takes from every list its part, also when enough is free before the last
//!             list: the first lists do not pay for all.
//! RECLAIM-R2  Nothing is refused before pass 2 has looked at all that is not within `min`.
//! RECLAIM-R3  No list gives more than the request needs in a round: after rounds that found only
//!             objects in use, the next one looks at twice as much, up to all of a list.

use crate::protection::{GroupUse, protections};
use crate::scan::{Arm, Carry, Look, Pass};

/// A first round looks at one in so many bytes, as a power of two.
const GENTLEST: u32 = 12;

/// The lists of the groups of a walk.
pub trait Lists {
    /// The groups with their usage now, the root first, parents before their children.
    fn groups(&self) -> Vec<GroupUse>;

    /// Bytes in the list of a group; groups that have children may have none.
    fn size(&self, group: usize) -> u64;

    /// The remainder of the list's scans.
    fn carry(&mut self, group: usize) -> &mut Carry;

    /// Looks at the next objects of a list. Returns the bytes that it looked at, and those of them
    /// that are free now.
    fn shrink(&mut self, group: usize, look: Look) -> (u64, u64);
}

/// The result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    pub freed: u64,
    /// Groups that were looked at below their `low`.
    pub below_low: Vec<usize>,
}

/// Frees `need` bytes, if that is possible.
pub fn reclaim(lists: &mut dyn Lists, need: u64, arm: Arm) -> Reclaimed {
    let mut done = Reclaimed::default();
    let skipped = pass(lists, need, arm, Pass::KeepsLow, &mut done);
    if done.freed < need && skipped {
        pass(lists, need, arm, Pass::KeepsMin, &mut done);
    }
    done
}

/// Whether `low` was a reason to leave something.
fn pass(lists: &mut dyn Lists, need: u64, arm: Arm, pass: Pass, done: &mut Reclaimed) -> bool {
    let mut skipped = false;
    for priority in (0..=GENTLEST).rev() {
        let groups = lists.groups();
        let given = protections(&groups);
        for (at, (group, given)) in groups.iter().zip(given).enumerate() {
            let size = lists.size(at);
            if size == 0 {
                continue;
            }
            let scan = arm.scan(size, group.usage, given, pass);
            skipped |= scan.low_skipped;
            if scan.bytes == 0 {
                continue;
            }
            let bytes = lists.carry(at).add(scan.bytes, priority);
            let look = Look { bytes, enough: need, over: priority == 0 };
            let (seen, freed) = lists.shrink(at, look);
            if lists.size(at) > 0 {
                lists.carry(at).spend(seen);
                if freed >= need {
                    lists.carry(at).forgive();
                }
            }
            let breaks_low = pass == Pass::KeepsMin && group.usage <= given.low;
            if breaks_low && seen > 0 && !done.below_low.contains(&at) {
                done.below_low.push(at);
            }
            done.freed += freed;
        }
        if done.freed >= need {
            break;
        }
    }
    skipped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::Promise;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    /// Lists of pages without users: each page that is looked at comes free.
    struct Pages {
        groups: Vec<GroupUse>,
        pages: Vec<u64>,
        pinned: Vec<u64>,
        carries: Vec<Carry>,
        scanned: Vec<u64>,
    }

    impl Pages {
        fn new(groups: &[(Option<usize>, u64, Promise)]) -> Pages {
            let count = groups.len();
            let group = |(parent, _, promise)| GroupUse { parent, promise, ..GroupUse::default() };
            Pages {
                groups: groups.iter().copied().map(group).collect(),
                pages: groups.iter().map(|(_, bytes, _)| *bytes).collect(),
                pinned: vec![0; count],
                carries: vec![Carry::default(); count],
                scanned: vec![0; count],
            }
        }

        fn sum(&self) -> u64 {
            self.groups()[0].usage
        }

        /// Adds to a list, reclaiming what is above `max`.
        fn add(&mut self, group: usize, bytes: u64, max: u64, arm: Arm) -> Reclaimed {
            self.pages[group] += bytes;
            match self.sum().checked_sub(max) {
                Some(over) if over > 0 => reclaim(self, over.max(32 * PAGE), arm),
                _ => Reclaimed::default(),
            }
        }
    }

    impl Lists for Pages {
        fn groups(&self) -> Vec<GroupUse> {
            let mut groups = self.groups.clone();
            for (at, group) in groups.iter_mut().enumerate() {
                group.usage = self.pages[at] + self.pinned[at];
            }
            for at in (1..groups.len()).rev() {
                let (usage, parent) = (groups[at].usage, groups[at].parent.unwrap());
                groups[parent].usage += usage;
            }
            groups
        }

        fn size(&self, group: usize) -> u64 {
            self.pages[group]
        }

        fn carry(&mut self, group: usize) -> &mut Carry {
            &mut self.carries[group]
        }

        fn shrink(&mut self, group: usize, look: Look) -> (u64, u64) {
            let freed = look.bytes.min(self.pages[group]).min(look.enough);
            self.pages[group] -= freed;
            self.scanned[group] += freed;
            (freed, freed)
        }
    }

    fn low(mib: u64) -> Promise {
        Promise { min: 0, low: mib * MIB }
    }

    /// The kernel's own test of memory.low: a parent with 50 MiB, children that claim 75, 25, 0 and
    /// 500 (that one is empty); another group takes 148 of 200 MiB.
    #[test]
    fn children_end_where_those_of_the_kernel_do() {
        let mut pages = Pages::new(&[
            (None, 0, Promise::default()),
            (Some(0), 0, low(50)),
            (Some(1), 50 * MIB, low(75)),
            (Some(1), 50 * MIB, low(25)),
            (Some(1), 50 * MIB, low(0)),
            (Some(1), 0, low(500)),
            (Some(0), 0, low(0)),
        ]);
        for _ in 0..148 {
            pages.pinned[6] += MIB;
            pages.add(6, 0, 200 * MIB, Arm::Proportional);
        }
        let mib = |group: usize| pages.pages[group] as f64 / MIB as f64;
        let ends = [mib(2), mib(3), mib(4), mib(5)];
        let near = |end: f64, wanted: f64| (end - wanted).abs() <= 3.0;
        assert!(near(ends[0], 29.0) && near(ends[1], 21.0), "{ends:?}");
        assert!(ends[2] <= 2.0 && ends[3] == 0.0, "{ends:?}");
    }

    /// Twice as much is promised as there is: all end at equal parts.
    #[test]
    fn overcommitted_promises_are_equal_parts() {
        let mut groups = vec![(None, 0, Promise::default()), (Some(0), 0, low(100))];
        groups.extend((0..4).map(|_| (Some(1), 0, low(50))));
        let mut pages = Pages::new(&groups);
        for round in 0..4000 {
            pages.add(2 + round % 4, MIB / 4, 100 * MIB, Arm::Proportional);
        }
        for group in 2..6 {
            let mib = pages.pages[group] as f64 / MIB as f64;
            assert!((mib - 25.0).abs() <= 1.25, "group {group} has {mib}");
        }
    }

    /// A protected and idle group is not looked at; and its rival takes nothing from it.
    #[test]
    fn an_idle_group_within_its_promise_is_never_looked_at() {
        let mut pages = Pages::new(&[
            (None, 0, Promise::default()),
            (Some(0), 300 * MIB, low(400)),
            (Some(0), 0, low(0)),
        ]);
        for _ in 0..2000 {
            let done = pages.add(2, MIB, 480 * MIB, Arm::Proportional);
            assert_eq!(done.below_low, []);
        }
        assert_eq!((pages.pages[1], pages.scanned[1]), (300 * MIB, 0), "SCANS-P1");
        assert!(pages.sum() <= 480 * MIB);
    }

    /// A protected group grows by memory that cannot be taken back, to almost all there is; nothing
    /// is refused before (RECLAIM-R2).
    #[test]
    fn nothing_is_refused_before_all_but_the_pinned_is_free() {
        let max = 480 * MIB;
        let mut pages = Pages::new(&[
            (None, 0, Promise::default()),
            (Some(0), 0, low(400)),
            (Some(0), 0, low(0)),
        ]);
        while pages.sum() < max {
            pages.add(2, MIB, max, Arm::Proportional);
        }
        let mut refused_at = None;
        while refused_at.is_none() {
            pages.pinned[1] += MIB;
            pages.add(2, MIB, max, Arm::Proportional);
            if pages.sum() > max {
                refused_at = Some(pages.pinned[1]);
            }
        }
        assert!(refused_at.unwrap() >= max / 100 * 97, "at {refused_at:?}");
    }

    /// The soft promise gives way when all that is left is promised.
    #[test]
    fn low_gives_way_and_min_does_not() {
        let promise = Promise { min: 100 * MIB, low: 400 * MIB };
        let mut pages = Pages::new(&[(None, 0, Promise::default()), (Some(0), 300 * MIB, promise)]);
        let done = reclaim(&mut pages, 50 * MIB, Arm::Proportional);
        assert!(done.freed >= 50 * MIB);
        assert_eq!(done.below_low, [1], "RECLAIM-R2");
        let done = reclaim(&mut pages, 500 * MIB, Arm::Proportional);
        assert!(pages.pages[1] >= 99 * MIB, "{done:?}, {} left", pages.pages[1]);
    }

    /// Steps of the protection from above the usage down to nothing, beside a rival of the same
    /// size without protection: a page of the group is looked at as much less often as the ideal
    /// says, by three hundredths at most; all or nothing has a cliff instead.
    #[test]
    fn pressure_follows_the_part_that_is_not_protected() {
        let pressure = |arm: Arm, of: u64| {
            let mut pages = Pages::new(&[
                (None, 0, Promise::default()),
                (Some(0), 0, low(of)),
                (Some(0), 0, low(0)),
            ]);
            for _ in 0..200 {
                // Both are read again at once, as they are.
                pages.pages[1..].fill(190 * MIB);
                pages.add(2, MIB, 380 * MIB, arm);
            }
            pages.scanned[1] as f64 / pages.scanned[2] as f64
        };
        for of in [210, 170, 120, 80, 40, 0] {
            let ideal = (1.0 - of as f64 / 190.0).max(0.0);
            let part = pressure(Arm::Proportional, of);
            assert!((part - ideal).abs() <= 0.03, "{of} MiB: {part}, not {ideal}");
        }
        let published = [170, 120, 80, 40].map(|of| pressure(Arm::Published, of));
        assert!(published.is_sorted() && published[0] < 0.15 && published[2] > 0.95);
        assert!(pressure(Arm::Binary, 170) > 0.95, "the cliff");
        assert_eq!(pressure(Arm::Binary, 210), 0.0);
    }
}
