//! Reclaim: which lists are looked at, and how much of each, until enough is free.
//!
//! ```text
//!   pass 1  keeps low:  as small a part of each list as may be enough, a 4096th at least;
//!             then twice as much, … , then all
//!             each list in turn gives its part; enough is free: done
//!   pass 2  keeps min:  the same, if nothing came free and low was a reason
//! ```
//!
//! RECLAIM-R1  Each round takes from every list its part, also when enough is free before the last
//!             list: the first lists do not pay for all.
//! RECLAIM-R2  Nothing is refused before pass 2 has looked at all that is not within `min`.
//! RECLAIM-R3  A request takes at most twice what it needs, and an object of each list: in a round
//!             a list stops at its part of that, by the bytes to look at. So rounds that found only
//!             objects in use are not made up for by all lists at once. If others had less to
//!             give, the lists that stopped go on.

use std::borrow::Cow;

use crate::protection::{GroupUse, Promise, protections};
use crate::scan::{Arm, Carry, Look, Pass, part};

/// A round looks at one in so many bytes at least, as a power of two.
const GENTLEST: u32 = 12;

/// The lists of the groups of a walk.
pub trait Lists {
    /// The groups with their usage now, the root first, parents before their children.
    fn groups(&self) -> Cow<'_, [GroupUse]>;

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
    if need == 0 {
        return done;
    }
    let skipped = pass(lists, need, arm, Pass::KeepsLow, &mut done);
    if done.freed < need && skipped {
        pass(lists, need, arm, Pass::KeepsMin, &mut done);
    }
    done
}

/// Whether `low` was a reason to leave something.
fn pass(lists: &mut dyn Lists, need: u64, arm: Arm, pass: Pass, done: &mut Reclaimed) -> bool {
    let (mut skipped, mut next) = (false, None);
    loop {
        let mut turns = turns(lists, arm, pass, &mut skipped);
        let sum = turns.iter().map(|turn| turn.part).sum();
        let priority = next.unwrap_or_else(|| first_round(sum, need.saturating_sub(done.freed)));
        turns.iter_mut().for_each(|turn| turn.begin(lists, priority));
        take_turns(lists, turns, need, done);
        if done.freed >= need || priority == 0 {
            return skipped;
        }
        next = Some(priority - 1);
    }
}

/// The lists that have something to give in this pass.
fn turns(lists: &dyn Lists, arm: Arm, pass: Pass, skipped: &mut bool) -> Vec<Turn> {
    let groups = lists.groups();
    let given = protections(&groups);
    let turn = |(list, (group, given)): (usize, (&GroupUse, Promise))| {
        let size = lists.size(list);
        if size == 0 {
            return None;
        }
        let scan = arm.scan(size, group.usage, given, pass);
        *skipped |= scan.low_skipped;
        let breaks_low = pass == Pass::KeepsMin && group.usage <= given.low;
        (scan.bytes > 0).then(|| Turn::new(list, scan.bytes, breaks_low))
    };
    groups.iter().zip(given).enumerate().filter_map(turn).collect()
}

/// The bytes of all lists that the last pass looks at: it frees them, if none is in use.
pub(crate) fn within_reach(lists: &dyn Lists, arm: Arm) -> u64 {
    turns(lists, arm, Pass::KeepsMin, &mut false).iter().map(|turn| turn.part).sum()
}

/// The gentlest round that looks at as many bytes as are needed.
fn first_round(sum: u64, need: u64) -> u32 {
    (0..=GENTLEST).rev().find(|priority| sum >> priority >= need >> 1).unwrap_or(0)
}

/// A list in a round.
struct Turn {
    list: usize,
    /// Its part of the round, beside those of the others.
    part: u64,
    /// Bytes to look at.
    left: u64,
    /// It stops when so many come free.
    enough: u64,
    /// The last object may have more bytes than are left.
    over: bool,
    breaks_low: bool,
}

impl Turn {
    fn new(list: usize, part: u64, breaks_low: bool) -> Turn {
        Turn { list, part, left: 0, enough: 0, over: false, breaks_low }
    }

    fn begin(&mut self, lists: &mut dyn Lists, priority: u32) {
        self.over = priority == 0;
        let credit = lists.carry(self.list).add(self.part, priority);
        // One that was looked at too much before has an object to give all the same (RECLAIM-R2).
        self.left = credit.max(u64::from(self.over));
    }

    /// Whether the list can go on.
    fn look(&mut self, lists: &mut dyn Lists, done: &mut Reclaimed) -> bool {
        let look = Look { bytes: self.left, enough: self.enough, over: self.over };
        let (seen, freed) = lists.shrink(self.list, look);
        self.left = self.left.saturating_sub(seen);
        if self.breaks_low && seen > 0 && !done.below_low.contains(&self.list) {
            done.below_low.push(self.list);
        }
        done.freed += freed;
        if lists.size(self.list) == 0 {
            return false;
        }
        lists.carry(self.list).spend(seen);
        freed >= self.enough && self.left > 0
    }
}

/// Looks at lists, as far as a round goes, or to twice the need (RECLAIM-R3).
fn take_turns(lists: &mut dyn Lists, mut turns: Vec<Turn>, need: u64, done: &mut Reclaimed) {
    turns.retain(|turn| turn.left > 0);
    let twice = need.saturating_mul(2);
    while done.freed < twice && !turns.is_empty() {
        let sum: u64 = turns.iter().map(|turn| turn.part).sum();
        let most = twice - done.freed;
        turns.retain_mut(|turn| {
            turn.enough = part(most, turn.part, sum).max(1);
            turn.look(lists, done)
        });
    }
    for turn in turns {
        lists.carry(turn.list).forgive(turn.enough);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;

    /// Lists of pages: each page that is looked at comes free, or loses its mark.
    struct Pages {
        groups: Vec<GroupUse>,
        pages: Vec<u64>,
        /// Of these, bytes that were used since the last look.
        marked: Vec<u64>,
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
                marked: vec![0; count],
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
        fn groups(&self) -> Cow<'_, [GroupUse]> {
            let mut groups = self.groups.clone();
            for (at, group) in groups.iter_mut().enumerate() {
                group.usage = self.pages[at] + self.pinned[at];
            }
            for at in (1..groups.len()).rev() {
                let (usage, parent) = (groups[at].usage, groups[at].parent.unwrap());
                groups[parent].usage += usage;
            }
            Cow::Owned(groups)
        }

        fn size(&self, group: usize) -> u64 {
            self.pages[group]
        }

        fn carry(&mut self, group: usize) -> &mut Carry {
            &mut self.carries[group]
        }

        fn shrink(&mut self, group: usize, look: Look) -> (u64, u64) {
            let cleared = look.bytes.min(self.marked[group]);
            self.marked[group] -= cleared;
            let freed = (look.bytes - cleared).min(self.pages[group]).min(look.enough);
            self.pages[group] -= freed;
            self.scanned[group] += cleared + freed;
            (cleared + freed, freed)
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

    #[test]
    fn many_lists_of_used_pages_give_no_more_than_one() {
        for count in [1, 100, 1000] {
            let mut groups = vec![(None, 0, Promise::default())];
            groups.extend((0..count).map(|_| (Some(0), 400 * MIB / count, low(0))));
            let mut pages = Pages::new(&groups);
            pages.marked.clone_from(&pages.pages);
            let done = reclaim(&mut pages, MIB, Arm::Proportional);
            assert!((MIB..=2 * MIB + count).contains(&done.freed), "{}: RECLAIM-R3", done.freed);
            let most = pages.pages[1..].iter().max().unwrap();
            assert!(most < &(400 * MIB / count), "RECLAIM-R1");
        }
    }

    proptest! {
        /// Enough comes free if there is enough, however it is divided; and not more than that
        /// allows.
        #[test]
        fn a_request_takes_what_it_needs_and_little_more(
            of in prop::collection::vec((0..64 * MIB, 0..=4_u64), 1..40),
            need in 1..64 * MIB,
        ) {
            let mut groups = vec![(None, 0, Promise::default())];
            groups.extend(of.iter().map(|(bytes, _)| (Some(0), *bytes, low(0))));
            let mut pages = Pages::new(&groups);
            for (at, (bytes, marked)) in of.iter().enumerate() {
                pages.marked[at + 1] = bytes / 4 * marked;
            }
            let (sum, marked) = (pages.sum(), pages.marked.iter().sum::<u64>());
            let done = reclaim(&mut pages, need, Arm::Proportional);
            prop_assert!(done.freed <= 2 * need + of.len() as u64, "RECLAIM-R3");
            prop_assert!(done.freed >= need.min(sum - marked), "RECLAIM-R2");
        }
    }

    #[test]
    fn a_list_that_was_looked_at_too_much_gives_before_a_refusal() {
        let mut pages = Pages::new(&[(None, 0, Promise::default()), (Some(0), PAGE, low(0))]);
        pages.carries[1].spend(4 * PAGE);
        assert_eq!(reclaim(&mut pages, 1, Arm::Proportional).freed, 1, "RECLAIM-R2");
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
