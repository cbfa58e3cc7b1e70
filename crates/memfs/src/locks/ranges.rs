//! The locks that are held on one file.
//!
//! POSIX locks are ranges of bytes: setting one replaces what its owner had there, splitting what
//! sticks out. A flock lock is the whole file, one for each open file.
//!
//! RANGES-K1  Ranges of one owner do not overlap, and neighbours of the same kind are one range.
//! RANGES-K2  Where ranges of two owners overlap, both are read locks.

use copyhold_fuse::protocol::{Lock, LockKind, LockOwner};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) owner: LockOwner,
    pub(super) write: bool,
    pub(super) start: u64,
    /// Inclusive.
    pub(super) end: u64,
    pub(super) pid: u32,
}

impl Held {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    /// Whether `self`, of the same owner and kind, can be one with start..=end.
    fn touches(&self, start: u64, end: u64) -> bool {
        self.start <= end.saturating_add(1) && start <= self.end.saturating_add(1)
    }
}

/// Ranges in order of their start.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    held: Vec<Held>,
}

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Held ranges that are in the way of `lock`.
    pub(super) fn conflicts(&self, lock: &Lock) -> impl Iterator<Item = &Held> {
        let Lock { owner, kind, start, end, .. } = *lock;
        let before = self.held.partition_point(|held| held.start <= end);
        self.held[..before].iter().filter(move |held| {
            held.owner != owner
                && held.overlaps(start, end)
                && (kind == LockKind::Write || (kind == LockKind::Read && held.write))
        })
    }

    /// Makes `lock` so, in place of its owner's locks there. Nothing may be in the way.
    pub(super) fn set(&mut self, lock: &Lock) {
        assert!(self.conflicts(lock).next().is_none(), "RANGES-K2: a lock in the way of {lock:?}");
        let Lock { owner, kind, mut start, mut end, pid, .. } = *lock;
        let write = kind == LockKind::Write;
        let mut rests = Vec::new();
        self.held.retain(|held| {
            if held.owner != owner {
                return true;
            }
            if kind != LockKind::Unlock && held.write == write && held.touches(start, end) {
                start = start.min(held.start);
                end = end.max(held.end);
                return false;
            }
            if !held.overlaps(lock.start, lock.end) {
                return true;
            }
            if held.start < lock.start {
                rests.push(Held { end: lock.start - 1, ..*held });
            }
            if held.end > lock.end {
                rests.push(Held { start: lock.end + 1, ..*held });
            }
            false
        });
        if kind != LockKind::Unlock {
            rests.push(Held { owner, write, start, end, pid });
        }
        for rest in rests {
            let at = self.held.partition_point(|held| held.start <= rest.start);
            self.held.insert(at, rest);
        }
    }

    /// Drops everything of `owner`; whether there was anything.
    pub(super) fn drop_owner(&mut self, owner: LockOwner) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.owner != owner);
        self.held.len() < before
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(self.held.is_sorted_by_key(|held| held.start));
        for (at, one) in self.held.iter().enumerate() {
            assert!(one.start <= one.end);
            for other in &self.held[at + 1..] {
                if one.owner == other.owner {
                    assert!(!one.overlaps(other.start, other.end), "RANGES-K1: {one:?} {other:?}");
                    let same = one.write == other.write;
                    assert!(
                        !same || !one.touches(other.start, other.end),
                        "RANGES-K1: {one:?} {other:?}"
                    );
                } else if one.overlaps(other.start, other.end) {
                    assert!(!one.write && !other.write, "RANGES-K2: {one:?} {other:?}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use copyhold_fuse::protocol::Handle;
    use proptest::prelude::*;

    use super::*;

    /// Which owners hold which byte, and how.
    type Model = Vec<BTreeMap<u64, bool>>;
    const BYTES: u64 = 24;

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        let owner = LockOwner(owner);
        Lock { handle: Handle(0), owner, kind, start, end, pid: 1, flock: false }
    }

    fn locks() -> impl Strategy<Value = Lock> {
        let kind = prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)];
        (0u64..4, kind, 0..BYTES, 0..BYTES)
            .prop_map(|(owner, kind, a, b)| lock(owner, kind, a.min(b), a.max(b)))
    }

    fn model_refuses(model: &Model, lock: &Lock) -> bool {
        model[lock.start as usize..=lock.end as usize].iter().any(|byte| {
            byte.iter().any(|(&owner, &write)| {
                owner != lock.owner.0
                    && (lock.kind == LockKind::Write || (lock.kind == LockKind::Read && write))
            })
        })
    }

    fn model_set(model: &mut Model, lock: &Lock) {
        for byte in &mut model[lock.start as usize..=lock.end as usize] {
            match lock.kind {
                LockKind::Unlock => byte.remove(&lock.owner.0),
                kind => byte.insert(lock.owner.0, kind == LockKind::Write),
            };
        }
    }

    proptest! {
        #[test]
        fn ranges_are_what_a_map_of_bytes_says(history in prop::collection::vec(locks(), 0..60)) {
            let mut ranges = Ranges::default();
            let mut model: Model = vec![BTreeMap::new(); BYTES as usize];
            for lock in history {
                let refused = ranges.conflicts(&lock).next().is_some();
                prop_assert_eq!(refused, model_refuses(&model, &lock));
                if !refused {
                    ranges.set(&lock);
                    model_set(&mut model, &lock);
                }
                ranges.check();
                let mut found: Model = vec![BTreeMap::new(); BYTES as usize];
                for held in &ranges.held {
                    for byte in &mut found[held.start as usize..=held.end as usize] {
                        byte.insert(held.owner.0, held.write);
                    }
                }
                prop_assert_eq!(&found, &model);
            }
        }
    }

    #[test]
    fn a_range_to_the_end_has_no_neighbour_behind_it() {
        let mut ranges = Ranges::default();
        ranges.set(&lock(1, LockKind::Write, 5, u64::MAX));
        ranges.set(&lock(1, LockKind::Unlock, 7, 9));
        ranges.check();
        let ends: Vec<_> = ranges.held.iter().map(|held| (held.start, held.end)).collect();
        assert_eq!(ends, [(5, 6), (10, u64::MAX)]);
        assert!(ranges.drop_owner(LockOwner(1)));
        assert!(ranges.is_empty() && !ranges.drop_owner(LockOwner(1)));
    }
}
