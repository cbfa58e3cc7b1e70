//! Objects that were evicted lately, as hashes in a table of a fixed size.
//!
//! Problem.  A cache that is too small and one that is large enough miss alike. Only in the first
//!           one are the misses of objects that it had a while ago.
//! Idea.     An eviction notes the hash of the object, and a miss looks for it. Each hash has one
//!           place, and the next hash with that place takes it: so the table forgets by itself.
//!
//! GHOSTS-G1  The table comes with the first eviction, and never grows. A note and a look cost one
//!            access to memory each.
//! GHOSTS-G2  An eviction is found once at most. A hash that was not noted is found with a
//!            probability of 2^-31 at most.

/// The hashes of some evicted objects.
#[derive(Debug)]
pub struct Ghosts {
    /// Places are two to this power.
    bits: u32,
    /// Some bits of each hash; 0: none.
    tags: Box<[u32]>,
}

impl Ghosts {
    /// For about `1 << bits` objects.
    pub fn new(bits: u32) -> Ghosts {
        assert!((1..=32).contains(&bits), "a tag and a place use other bits of a hash");
        Ghosts { bits, tags: Box::default() }
    }

    /// An object with this hash, which is random in all bits, is evicted.
    pub fn note(&mut self, hash: u64) {
        if self.tags.is_empty() {
            self.tags = vec![0; 1 << self.bits].into();
        }
        self.tags[self.place(hash)] = Ghosts::tag(hash);
    }

    /// Whether an object with this hash was evicted lately, and was not found since.
    pub fn take(&mut self, hash: u64) -> bool {
        let place = self.place(hash);
        let found = self.tags.get_mut(place).filter(|tag| **tag == Ghosts::tag(hash));
        found.map(|tag| *tag = 0).is_some()
    }

    fn place(&self, hash: u64) -> usize {
        (hash >> (64 - self.bits)) as usize
    }

    fn tag(hash: u64) -> u32 {
        hash as u32 | 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BITS: u32 = 3;

    proptest! {
        /// GHOSTS-G2 against a map: of all hashes with a place, the last one that was noted.
        #[test]
        fn the_last_hash_of_each_place_is_found_once(
            steps in prop::collection::vec((any::<bool>(), 0..64_u64, 0..4_u64), 0..200),
        ) {
            let mut ghosts = Ghosts::new(BITS);
            let mut last: BTreeMap<u64, u64> = BTreeMap::new();
            for (evicts, high, low) in steps {
                let hash = high << 58 | low << 1;
                let place = hash >> (64 - BITS);
                if evicts {
                    ghosts.note(hash);
                    last.insert(place, hash as u32 as u64);
                } else {
                    let noted = last.get(&place) == Some(&(hash as u32 as u64));
                    prop_assert_eq!(ghosts.take(hash), noted, "GHOSTS-G2");
                    if noted {
                        last.remove(&place);
                    }
                }
                prop_assert!(ghosts.tags.len() <= 1 << BITS, "GHOSTS-G1");
            }
        }
    }
}
