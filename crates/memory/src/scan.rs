//! How much of a group's memory a pass of reclaim looks at.
//!
//! Problem.  A walk that looks at all of a group, or at nothing, has a cliff at the protection: a
//!           page more, and the group loses as much as one without protection.
//! Idea.     The part of a group that is looked at is the part of its usage above its protection:
//!           it rises from nothing, and rises as the group grows.
//!
//! SCANS-P1  A group within its protection is not looked at (equal counts as within).
//! SCANS-P2  The first pass keeps `low`, the second only `min`. A pass that left out objects for
//!           `low`, or took less for it, says so: before any refusal the second one follows.
//! SCANS-P3  A pass looks at a small part first, then at twice as much, and so on. A list whose
//!           part is less than its next object keeps it for the next time, so lists of a few
//!           objects give in proportion, too; and they do not all give an object at the same
//!           time ([`Carry`]).
//!
//! The other arms are for comparison, in the same build: as published first, in 2019, all or
//! nothing, and none.

use std::fmt;
use std::str::FromStr;

use crate::protection::Promise;

/// The rule by which protections count (`-o reclaim=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    #[default]
    Proportional,
    /// The first published formula: the overage beside the protection, 128 KiB at least.
    Published,
    /// All of a group that is above its protection.
    Binary,
    /// No protection counts.
    Off,
}

impl Arm {
    pub const ALL: [Arm; 4] = [Arm::Proportional, Arm::Published, Arm::Binary, Arm::Off];

    /// The word of mount options.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Proportional => "proportional",
            Arm::Published => "published",
            Arm::Binary => "binary",
            Arm::Off => "off",
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arm {
    type Err = ();

    fn from_str(text: &str) -> Result<Arm, ()> {
        Arm::ALL.into_iter().find(|arm| arm.name() == text).ok_or(())
    }
}

/// The passes of one request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    KeepsLow,
    KeepsMin,
}

/// How much of a list is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub bytes: u64,
    /// `low` was a reason for less.
    pub low_skipped: bool,
}

/// Rules that are broken on purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Broken {
    /// SCANS-P1.
    ignores_guard: bool,
    /// SCANS-P2.
    hides_scaling: bool,
}

/// A pass looks at this much of a group above its protection, or a tenth of its overage if that is
/// less: so it comes to an end.
const FLOOR: u64 = 128 << 10;
const FLOOR_PART: u64 = 10;

/// Bytes of a new list that are looked at sooner, at most.
const FIRST_MOST: u64 = 128 << 10;

impl Arm {
    /// Of a list of `size` bytes of a group that uses `usage` bytes.
    pub fn scan(self, size: u64, usage: u64, given: Promise, pass: Pass) -> Scan {
        self.scan_unless(size, usage, given, pass, Broken::default())
    }

    fn scan_unless(
        self,
        size: u64,
        usage: u64,
        given: Promise,
        pass: Pass,
        broken: Broken,
    ) -> Scan {
        let keeps_low = pass == Pass::KeepsLow && given.low > given.min;
        let guard = match (self, pass) {
            (Arm::Off, _) => return Scan { bytes: size, low_skipped: false },
            _ if broken.ignores_guard => 0,
            (_, Pass::KeepsLow) => given.low.max(given.min),
            (_, Pass::KeepsMin) => given.min,
        };
        if usage <= guard {
            // One that is within `min` has nothing to give in any pass.
            return Scan { bytes: 0, low_skipped: keeps_low && usage > given.min };
        }
        let bytes = match self {
            Arm::Proportional => {
                let floor = FLOOR.min((usage - guard) / FLOOR_PART);
                (size - part(size, guard, usage + 1)).max(floor)
            }
            Arm::Published if guard > 0 => part(size, usage, guard).saturating_sub(size).max(FLOOR),
            _ => size,
        };
        let bytes = bytes.min(size);
        Scan { bytes, low_skipped: keeps_low && bytes < size && !broken.hides_scaling }
    }
}

/// `size · by / of`, at most the largest number.
pub(crate) fn part(size: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(size) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

/// The part of a list's scans that has not been done (SCANS-P3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carry {
    /// Of a byte, in the parts of the last request.
    remainder: u64,
    /// Bytes to look at: fewer than the next object has. Negative if more was looked at.
    credit: i64,
}

impl Carry {
    /// Of the `nth` list of a cache, the first object of which has so many bytes. Two lists in a
    /// row begin with different parts of that, or of `FIRST_MOST`: those behind a large object
    /// may be small.
    pub fn of_list(nth: u64, object: u64) -> Carry {
        let object = object.min(FIRST_MOST);
        // Fibonacci hashing: any number of lists in a row divide an object evenly.
        let part = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let credit = (u128::from(part) * u128::from(object)) >> u64::BITS;
        Carry { remainder: 0, credit: credit as i64 }
    }

    /// The bytes to look at now: a `2^priority`th of `bytes`, and all that was left.
    pub fn add(&mut self, bytes: u64, priority: u32) -> u64 {
        // If the list has become small since, no more than twice of it.
        let sum = u128::from(self.remainder % (1 << priority)) + u128::from(bytes);
        self.remainder = (sum % (1 << priority)) as u64;
        self.credit = self.credit.saturating_add_unsigned((sum >> priority) as u64);
        self.credit.max(0) as u64
    }

    /// So many bytes were looked at.
    pub fn spend(&mut self, seen: u64) {
        self.credit = self.credit.saturating_sub_unsigned(seen);
    }

    /// Looks that a request did not need are not made up for, but for less than an object.
    pub fn forgive(&mut self, most: u64) {
        self.credit = self.credit.min(i64::try_from(most).unwrap_or(i64::MAX));
    }
}

/// One look at a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// At objects of so many bytes.
    pub bytes: u64,
    /// Or at fewer, if so many come free (RECLAIM-R3).
    pub enough: u64,
    /// The last object may have more bytes than are left: nothing comes after this look.
    pub over: bool,
}

impl Look {
    /// Whether the next object, of `size` bytes, is looked at after `seen` bytes, of which `freed`
    /// are free now.
    pub fn goes_on(&self, seen: u64, freed: u64, size: u64) -> bool {
        let fits = if self.over { seen < self.bytes } else { seen + size <= self.bytes };
        freed < self.enough && fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    const PAGE: u64 = 4096;

    fn low(low: u64) -> Promise {
        Promise { min: 0, low }
    }

    fn all(arm: Arm, size: u64, given: Promise, pass: Pass) -> Scan {
        arm.scan(size, size, given, pass)
    }

    #[test]
    fn a_group_at_its_protection_is_left_alone_and_a_page_above_nearly() {
        let size = 10_000 * PAGE;
        let scan = |usage: u64| Arm::Proportional.scan(usage, usage, low(size), Pass::KeepsLow);
        assert_eq!(scan(size), Scan { bytes: 0, low_skipped: true }, "SCANS-P1");
        let above = scan(size + PAGE);
        assert!(above.bytes <= PAGE + 1 && above.bytes > 0 && above.low_skipped, "{above:?}");
        let binary = Arm::Binary.scan(size + PAGE, size + PAGE, low(size), Pass::KeepsLow);
        assert_eq!(binary.bytes, size + PAGE, "the cliff");
    }

    /// The line of section 10 of the reference: 1 - low / usage, within a thousandth.
    #[test]
    fn scans_follow_the_part_above_the_protection() {
        let size = 19 << 30;
        for (of, thousandths) in [(21, 0), (17, 105), (12, 368), (8, 579), (4, 789), (0, 1000)] {
            let scan = all(Arm::Proportional, size, low(of << 30), Pass::KeepsLow);
            let part = scan.bytes / (size / 1000);
            assert!(part.abs_diff(thousandths) <= 1, "{of} GiB: {part} thousandths");
            assert_eq!(scan.low_skipped, of > 0, "SCANS-P2");
        }
        // W / low - 1, at most all.
        for (of, thousandths) in [(17, 117), (12, 583), (8, 1000), (4, 1000)] {
            let scan = all(Arm::Published, size, low(of << 30), Pass::KeepsLow);
            let part = scan.bytes / (size / 1000);
            assert!(part.abs_diff(thousandths) <= 1, "{of} GiB: {part} thousandths");
        }
    }

    #[test]
    fn the_second_pass_keeps_only_what_is_never_taken() {
        let given = Promise { min: 400 * PAGE, low: 2000 * PAGE };
        let scan = |pass| all(Arm::Proportional, 1000 * PAGE, given, pass);
        assert_eq!(scan(Pass::KeepsLow), Scan { bytes: 0, low_skipped: true });
        let second = scan(Pass::KeepsMin);
        assert!(second.bytes.abs_diff(600 * PAGE) <= PAGE && !second.low_skipped, "{second:?}");
        let within = Arm::Proportional.scan(300 * PAGE, 300 * PAGE, given, Pass::KeepsLow);
        assert_eq!(within, Scan::default(), "no second pass helps");
    }

    /// Whether a pass over a list that is a whole group leaves what it keeps, and says so if the
    /// other pass would leave less.
    fn is_sound(usage: u64, given: Promise, broken: Broken) -> bool {
        let kept = [(Pass::KeepsLow, given.low.max(given.min)), (Pass::KeepsMin, given.min)];
        let [first, second] = kept.map(|(pass, kept)| {
            let scan = Arm::Proportional.scan_unless(usage, usage, given, pass, broken);
            // Of a division the result is rounded down.
            (scan, usage - scan.bytes + 1 >= kept.min(usage))
        });
        let says_so = first.0.low_skipped || first.0.bytes + 1 >= second.0.bytes;
        first.1 && second.1 && says_so
    }

    fn groups() -> impl Strategy<Value = (u64, Promise)> {
        let bytes = || prop_oneof![Just(0_u64), 0..100 * PAGE, 0..1_u64 << 40];
        let promise = (bytes(), bytes()).prop_map(|(min, low)| Promise { min, low });
        (bytes(), promise)
    }

    /// Without one of the two rules the property is noticed to fail.
    #[test]
    fn each_rule_is_needed() {
        let mut runner = TestRunner::deterministic();
        for (ignores_guard, hides_scaling) in [(true, false), (false, true)] {
            let broken = Broken { ignores_guard, hides_scaling };
            let noticed = (0..64).any(|_| {
                let (usage, given) = groups().new_tree(&mut runner).expect("a group").current();
                !is_sound(usage, given, broken)
            });
            assert!(noticed, "{broken:?}");
        }
    }

    #[test]
    fn extremes_are_no_overflow() {
        for usage in [0, 1, PAGE, u64::MAX >> 4, u64::MAX - 1] {
            for promised in [0, 1, u64::MAX >> 4, u64::MAX] {
                for arm in [Arm::Proportional, Arm::Published, Arm::Binary, Arm::Off] {
                    let given = Promise { min: promised / 2, low: promised };
                    for pass in [Pass::KeepsLow, Pass::KeepsMin] {
                        assert!(arm.scan(usage, usage, given, pass).bytes <= usage);
                    }
                }
            }
        }
    }

    proptest! {
        /// SCANS-P1 and SCANS-P2.
        #[test]
        fn a_pass_leaves_what_it_keeps_and_says_what_it_left_for_low((usage, given) in groups()) {
            prop_assert!(is_sound(usage, given, Broken::default()));
        }

        /// A list far smaller than 2^12 pages gets its part all the same.
        #[test]
        fn nothing_is_lost_by_small_parts(
            scans in prop::collection::vec((0..1_u64 << 30, 0..=12_u32), 1..40)
        ) {
            let mut carry = Carry::default();
            let priority = scans[0].1;
            let sum: u64 = scans.iter().map(|(bytes, _)| bytes).sum();
            let mut seen = 0;
            for (bytes, _) in scans {
                let pages = carry.add(bytes, priority) / PAGE * PAGE;
                carry.spend(pages);
                seen += pages;
            }
            let left = (sum >> priority) - seen;
            prop_assert!(left < PAGE, "{} of {} by {}", seen, sum, priority);
        }

        #[test]
        fn a_new_list_is_looked_at_soon_but_not_at_much(nth: u64, object: u64) {
            let first = Carry::of_list(nth, object).add(0, 0);
            prop_assert!(first <= object.min(FIRST_MOST), "SCANS-P3: {}", first);
        }

        /// More usage, or less protection, never means less to look at.
        #[test]
        fn scans_are_monotone(
            size in 1..1_u64 << 40, given in 0..1_u64 << 40, more in 0..1_u64 << 30
        ) {
            let scan = |size, given| all(Arm::Proportional, size, low(given), Pass::KeepsLow).bytes;
            prop_assert!(scan(size + more, given) >= scan(size, given));
            prop_assert!(scan(size, given + more) <= scan(size, given));
        }
    }
}
