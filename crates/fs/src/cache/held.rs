//! How many nodes of a shard the front end holds, and when that is too many.
//!
//! Problem.  The front end releases nodes when it likes. It can be asked to, but not for nodes in
//!           use there, and the engine does not know which those are.
//! Idea.     Ask for an eighth more than the surplus, and not again before another eighth has
//!           come: then asking costs little for each node, even if all of them are in use. Owners
//!           within their part of the bound are not asked (LOOKUP-L5).

use copyhold_memory::{LOOKUP_BYTES, Slot};
use rustc_hash::FxHashMap;

use crate::NodeId;

/// A count, its bound, and the count beyond which to ask the next time.
#[derive(Debug, Default)]
pub(super) struct Held {
    count: usize,
    max: usize,
    ask_beyond: usize,
}

impl Held {
    pub(super) fn new(max: usize) -> Held {
        Held { count: 0, max, ask_beyond: max }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// One more. Whether it is time to ask.
    pub(super) fn add(&mut self) -> bool {
        self.count += 1;
        self.is_crowded()
    }

    pub(super) fn drop(&mut self) {
        self.count -= 1;
        if self.count <= self.max {
            self.ask_beyond = self.max;
        }
    }

    fn is_crowded(&self) -> bool {
        self.count > self.ask_beyond
    }

    /// How many to ask for now; 0 until there are more again.
    pub(super) fn take_surplus(&mut self) -> usize {
        if !self.is_crowded() {
            return 0;
        }
        let step = self.max.div_ceil(8);
        self.ask_beyond = self.count + step;
        self.count - self.max + step
    }
}

/// The nodes to ask for, of all shards.
pub(super) struct Surplus {
    /// The place of each owner beyond its part in `left`, which has the nodes that are still to be
    /// found of it; the owner that is most over its part comes first.
    places: FxHashMap<Slot, usize>,
    left: Vec<usize>,
    pub(super) nodes: Vec<NodeId>,
}

impl Surplus {
    /// `over`: owners beyond their parts, and the bytes. `more`: nodes of each beside those.
    pub(super) fn of(over: &[(Slot, u64)], more: usize) -> Surplus {
        let places = over.iter().enumerate().map(|(place, (slot, _))| (*slot, place)).collect();
        let nodes = |bytes: u64| bytes.div_ceil(LOOKUP_BYTES) as usize;
        let left = over.iter().map(|(_, bytes)| nodes(*bytes) + more).collect();
        Surplus { places, left, nodes: Vec::new() }
    }

    /// Takes up to `count` of the nodes of a shard.
    pub(super) fn take(&mut self, idle: impl Iterator<Item = (NodeId, Slot)>, count: usize) {
        let mut found: Vec<Vec<NodeId>> = vec![Vec::new(); self.left.len()];
        for (node, owner) in idle {
            let Some(&place) = self.places.get(&owner) else { continue };
            if found[place].len() < count.min(self.left[place]) {
                found[place].push(node);
            }
            if found[0].len() == count {
                break;
            }
        }
        let mut wanted = count;
        for (place, nodes) in found.into_iter().enumerate() {
            let taken = nodes.len().min(wanted);
            wanted -= taken;
            self.left[place] -= taken;
            self.nodes.extend(&nodes[..taken]);
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{InodeNo, SubvolId};

    use super::*;

    fn nodes(owner: u32, count: u64) -> impl Iterator<Item = (NodeId, Slot)> {
        let node = move |n| NodeId { subvol: SubvolId(owner), ino: InodeNo(n) };
        (0..count).map(move |n| (node(n), Slot(owner)))
    }

    #[test]
    fn the_owner_most_over_its_part_is_asked_first_and_one_within_it_never() {
        let over = [(Slot(2), 10 * LOOKUP_BYTES), (Slot(3), 5 * LOOKUP_BYTES)];
        let mut surplus = Surplus::of(&over, 2);
        let asked = |surplus: &Surplus| {
            [1, 2, 3].map(|of| surplus.nodes.iter().filter(|node| node.subvol.0 == of).count())
        };
        let shard = || nodes(1, 100).chain(nodes(3, 100)).chain(nodes(2, 8));
        surplus.take(shard(), 6);
        assert_eq!(asked(&surplus), [0, 6, 0], "LOOKUP-L5");
        surplus.take(shard(), 8);
        assert_eq!(asked(&surplus), [0, 12, 2]);
        surplus.take(shard(), 100);
        assert_eq!(asked(&surplus), [0, 12, 7], "no more than their excess, and two");
    }

    #[test]
    fn what_is_in_use_is_asked_for_once_in_an_eighth() {
        let mut held = Held::new(80);
        let asked: Vec<usize> =
            (0..200).filter(|_| held.add() && held.take_surplus() > 0).collect();
        assert_eq!(asked, (80..200).step_by(11).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_given_back_makes_room_to_the_bound() {
        let mut held = Held::new(80);
        assert!((0..80).all(|_| !held.add()));
        assert!(held.add());
        let surplus = held.take_surplus();
        assert_eq!(surplus, 11);
        assert_eq!(held.take_surplus(), 0);
        (0..surplus).for_each(|_| held.drop());
        assert!((0..10).all(|_| !held.add()), "70 are left");
        assert!(held.add(), "81 again");
    }
}
