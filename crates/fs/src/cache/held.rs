//! How many nodes of a shard the front end holds, and when that is too many.
//!
//! Problem.  The front end releases nodes when it likes. It can be asked to, but not for nodes in
//!           use there, and the engine does not know which those are.
//! Idea.     Ask for an eighth more than the surplus, and not again before another eighth has
//!           come: then asking costs little for each node, even if all of them are in use.

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

#[cfg(test)]
mod tests {
    use super::*;

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
