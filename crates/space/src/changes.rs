//! What has changed in a metaslab since its map on disk was made, as far as the log's trimming
//! needs to know it: the oldest txg, and how many edits.
//!
//! Transactions of the open txg and of the closing one apply in any order, so a map that is frozen
//! now may miss edits of either. It is complete only up to the newest *closed* txg; edits of later
//! ones stay pinned. The last few txgs are counted apart to know them.

use copyhold_types::Txg;
use smallvec::SmallVec;

/// Txgs that are counted apart. At most two are not closed at any time.
const RECENT: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    oldest: Option<Txg>,
    edits: u64,
    /// The newest txgs, ascending, with their edits.
    recent: SmallVec<[(Txg, u64); RECENT]>,
}

impl Changes {
    pub(crate) fn oldest(&self) -> Option<Txg> {
        self.oldest
    }

    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    pub(crate) fn note(&mut self, txg: Txg) {
        self.edits += 1;
        self.oldest = Some(self.oldest.map_or(txg, |oldest| oldest.min(txg)));
        let at = self.recent.partition_point(|&(recent, _)| recent < txg);
        if let Some(entry) = self.recent.get_mut(at).filter(|entry| entry.0 == txg) {
            entry.1 += 1;
        } else if self.recent.len() < RECENT {
            self.recent.insert(at, (txg, 1));
        } else if at > 0 {
            self.recent.remove(0);
            self.recent.insert(at - 1, (txg, 1));
        }
    }

    /// Takes out the changes of `closed` and before; those of later txgs stay.
    pub(crate) fn split(&mut self, closed: Txg) -> Changes {
        let from = self.recent.partition_point(|&(txg, _)| txg <= closed);
        let recent: SmallVec<[(Txg, u64); RECENT]> = self.recent.drain(from..).collect();
        let counted: u64 = recent.iter().map(|&(_, edits)| edits).sum();
        let mut later = Changes { oldest: recent.first().map(|r| r.0), edits: counted, recent };
        // Nothing recent is closed, and there are older edits that were no longer counted apart:
        // take all of them for later ones.
        if from == 0 && self.edits > counted {
            later.edits = self.edits;
            later.oldest = self.oldest.max(Some(closed.next()));
        }
        let mut earlier = std::mem::replace(self, later);
        earlier.edits -= self.edits;
        earlier.oldest = earlier.oldest.filter(|&oldest| oldest <= closed);
        earlier
    }

    /// Puts back what [`Self::split`] took out.
    pub(crate) fn rejoin(&mut self, earlier: Changes) {
        self.edits += earlier.edits;
        self.oldest = earlier.oldest.or(self.oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txg(n: u64) -> Txg {
        Txg::new(n).unwrap()
    }

    #[test]
    fn edits_of_txgs_that_are_not_closed_stay() {
        let mut changes = Changes::default();
        for n in [3, 4, 5, 9, 8, 9] {
            changes.note(txg(n));
        }
        let earlier = changes.split(txg(8));
        assert_eq!((earlier.oldest(), earlier.edits()), (Some(txg(3)), 4));
        assert_eq!((changes.oldest(), changes.edits()), (Some(txg(9)), 2));
        changes.rejoin(earlier);
        assert_eq!((changes.oldest(), changes.edits()), (Some(txg(3)), 6));
    }

    #[test]
    fn what_was_not_counted_apart_is_taken_for_later() {
        let mut changes = Changes::default();
        for n in [1, 10, 11, 12, 13] {
            changes.note(txg(n));
        }
        let earlier = changes.split(txg(9));
        assert_eq!(changes.oldest(), Some(txg(10)));
        assert_eq!(earlier.edits() + changes.edits(), 5);
    }

    #[test]
    fn without_changes_nothing_is_split_off() {
        let mut changes = Changes::default();
        changes.note(txg(7));
        assert_eq!(changes.split(txg(6)).oldest(), None);
        assert_eq!(changes.oldest(), Some(txg(7)));
    }
}
