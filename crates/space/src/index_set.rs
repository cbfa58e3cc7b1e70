//! A set of metaslabs that is walked without a lock, in the order of their numbers.
//!
//! Problem.  A commit concerns a few metaslabs, and an allocation the few whose maps are loaded. A
//!           walk over all 6,400 of a pool of 100 TiB would touch as many cache lines.
//! Idea.     One bit per metaslab, changed under the metaslab's lock and read without one: a walk
//!           over a pool of 100 TiB reads 800 bytes. The words are made with the first metaslab
//!           that needs them, so a pool that grows needs nothing here.
//!
//! INDEXSET-I1  A walk meets every member that was in the set before the walk began and is in it
//!              until the walk ends. Of a member that joins or leaves meanwhile it may know or not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use copyhold_format::label::METASLABS_MAX;

const WORDS: usize = 64;
const PART: usize = WORDS * 64;
/// Parts of 4,096 metaslabs: 262,144 in all.
const PARTS: usize = 64;
/// A label with more metaslabs is refused.
const _: () = assert!((PARTS * PART) as u64 >= METASLABS_MAX);

type Words = [AtomicU64; WORDS];

/// See the module.
#[derive(Debug)]
pub(crate) struct IndexSet {
    parts: [OnceLock<Box<Words>>; PARTS],
}

impl Default for IndexSet {
    fn default() -> IndexSet {
        IndexSet { parts: [const { OnceLock::new() }; PARTS] }
    }
}

impl IndexSet {
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        Some(&self.parts.get(at / WORDS)?.get()?[at % WORDS])
    }

    pub(crate) fn insert(&self, index: usize) {
        let part =
            self.parts[index / PART].get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        let bit = 1 << (index % 64);
        let word = &part[index / 64 % WORDS];
        if word.load(Ordering::Acquire) & bit == 0 {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    pub(crate) fn remove(&self, index: usize) {
        let bit = 1 << (index % 64);
        if let Some(word) = self.word(index / 64)
            && word.load(Ordering::Acquire) & bit != 0
        {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Puts it in or takes it out.
    pub(crate) fn set(&self, index: usize, is_member: bool) {
        match is_member {
            true => self.insert(index),
            false => self.remove(index),
        }
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        let word = self.word(index / 64).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (index % 64) & 1 != 0
    }

    /// The first member at or behind `index`.
    fn next(&self, index: usize) -> Option<usize> {
        let mut at = index / 64;
        let mut mask = !0 << (index % 64);
        while at < PARTS * WORDS {
            match self.word(at) {
                // No member of this part was ever in the set.
                None => at = (at / WORDS + 1) * WORDS,
                Some(word) => {
                    let found = word.load(Ordering::Acquire) & mask;
                    if found != 0 {
                        return Some(at * 64 + found.trailing_zeros() as usize);
                    }
                    at += 1;
                }
            }
            mask = !0;
        }
        None
    }

    /// The members in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let found = self.next(at)?;
            at = found + 1;
            Some(found)
        })
    }

    /// The members from `first` on and round.
    pub(crate) fn round_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let (mut at, mut is_round) = (first, false);
        std::iter::from_fn(move || {
            loop {
                match self.next(at) {
                    Some(found) if !is_round || found < first => {
                        at = found + 1;
                        return Some(found);
                    }
                    None if !is_round => (at, is_round) = (0, true),
                    _ => return None,
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_behaves_as_a_set(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![0usize..200, 4000..4200usize, 9000..9010usize]),
                0..60,
            ),
            from in 0usize..9100,
        ) {
            let (set, mut model) = (IndexSet::default(), BTreeSet::new());
            for (is_member, index) in steps {
                set.set(index, is_member);
                match is_member {
                    true => model.insert(index),
                    false => model.remove(&index),
                };
                prop_assert_eq!(set.contains(index), is_member);
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            let round: Vec<usize> = model.range(from..).chain(model.range(..from)).copied().collect();
            prop_assert_eq!(set.round_from(from).collect::<Vec<_>>(), round);
        }
    }
}
