//! Cuts a stream of items in key order into leaves.
//!
//! Items that fit one leaf become one. Otherwise leaves are filled to fifteen sixteenths, so that
//! values that grow a little do not split the leaf at the next flush; and the last two leaves
//! share their items evenly, except at the end of a partition, where items are likely to be
//! appended.

use copyhold_format::node::LeafBuilder;
use copyhold_types::Key;

#[derive(Debug)]
pub(crate) struct Packer {
    bytes_max: usize,
    /// Leaves that are full, in order; the caller takes them.
    full: Vec<LeafBuilder>,
    /// A full leaf that may yet share its items with the last one.
    held: Option<LeafBuilder>,
    current: LeafBuilder,
    many: bool,
}

impl Packer {
    pub(crate) fn new(bytes_max: usize) -> Packer {
        let current = LeafBuilder::new(bytes_max);
        Packer { bytes_max, full: Vec::new(), held: None, current, many: false }
    }

    pub(crate) fn push(&mut self, key: Key, value: &[u8]) {
        if self.current.push(key, value) {
            return;
        }
        if !self.many {
            self.many = true;
            let whole = self.fresh();
            whole.for_each(|key, value| self.push_filled(key, value));
        }
        self.push_filled(key, value);
    }

    /// The leaves that are full.
    pub(crate) fn take_full(&mut self) -> Vec<LeafBuilder> {
        std::mem::take(&mut self.full)
    }

    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    /// Bytes of the leaf that is being filled.
    pub(crate) fn current_bytes(&self) -> usize {
        self.current.bytes()
    }

    /// The one leaf that there is so far, taken out; `None` if there are more.
    pub(crate) fn take_only(&mut self) -> Option<LeafBuilder> {
        let only = !self.many && !self.current.is_empty();
        only.then(|| self.fresh())
    }

    pub(crate) fn is_only(&self) -> bool {
        !self.many && !self.current.is_empty()
    }

    /// Completes the last leaves of a stretch; the next item begins a new one.
    pub(crate) fn finish(&mut self, appends_next: bool) -> Vec<LeafBuilder> {
        let last = self.fresh();
        match self.held.take() {
            Some(held) if !appends_next && last.bytes() < self.filled() / 2 => {
                self.share(&held, &last)
            }
            Some(held) => self.full.extend([held, last]),
            None if last.is_empty() => {}
            None => self.full.push(last),
        }
        self.many = false;
        self.current = LeafBuilder::new(self.bytes_max);
        self.take_full()
    }

    fn share(&mut self, held: &LeafBuilder, last: &LeafBuilder) {
        let half = (held.bytes() + last.bytes()) / 2;
        let limit = half + half / 8;
        let mut leaf = LeafBuilder::new(limit);
        let mut push = |key: Key, value: &[u8]| {
            if !leaf.push(key, value) {
                self.full.push(std::mem::replace(&mut leaf, LeafBuilder::new(limit)));
                assert!(leaf.push(key, value), "an empty leaf takes any item");
            }
        };
        held.for_each(&mut push);
        last.for_each(&mut push);
        self.full.push(leaf);
    }

    fn push_filled(&mut self, key: Key, value: &[u8]) {
        if self.current.push(key, value) {
            return;
        }
        let full = self.fresh();
        self.full.extend(self.held.replace(full));
        assert!(self.current.push(key, value), "an empty leaf takes any item");
    }

    /// The leaf that was being filled; an empty one takes its place.
    fn fresh(&mut self) -> LeafBuilder {
        let limit = if self.many { self.filled() } else { self.bytes_max };
        std::mem::replace(&mut self.current, LeafBuilder::new(limit))
    }

    fn filled(&self) -> usize {
        self.bytes_max / 16 * 15
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::Kind;

    use super::*;

    fn pack(items: u64, appends_next: bool) -> Vec<LeafBuilder> {
        let mut packer = Packer::new(4096);
        (0..items).for_each(|n| packer.push(Key::new(1, Kind(1), n), &n.to_le_bytes()));
        packer.finish(appends_next)
    }

    #[test]
    fn leaves_hold_all_items_in_order_and_share_the_last_ones_evenly() {
        for items in 0..1500 {
            let leaves = |appends_next| pack(items, appends_next).len();
            assert_eq!(leaves(true), leaves(false), "sharing makes no more leaves");
            for appends_next in [true, false] {
                let leaves = pack(items, appends_next);
                let mut expect = 0..items;
                for leaf in &leaves {
                    assert!(leaf.bytes() <= 4096 && !leaf.is_empty());
                    leaf.for_each(|key, _| assert_eq!(Some(key.offset), expect.next()));
                }
                assert_eq!(expect.next(), None);
                if let [.., a, b] = &leaves[..]
                    && !appends_next
                {
                    assert!(b.bytes() * 3 > a.bytes(), "{} after {}", b.bytes(), a.bytes());
                }
            }
        }
    }
}
