//! Tables that need work, found without looking at the others.
//!
//! Problem.  There are a few tables for each snapshot, and edits wait in any of them. After each
//!           commit and around each flush the pool looks for the oldest log pin, and for tables to
//!           hand over: that must not cost more with a thousand snapshots than with ten.
//! Idea.     Tables with edits are ordered by a txg that none of their edits is older than. A
//!           flush makes a table's oldest edit younger; a query for the oldest table notices that,
//!           and sorts the table anew. So that is done once for each flush, and not for each
//!           query. The fork relation is recorded where it changes. A flush or handover records
//!           the tables that may have become settled.
//!
//! BUSY-B1  A table that has edits is filed, by no younger a txg than its oldest edit's; or that
//!          edit is being applied.
//! BUSY-B2  `over` contains exactly the tables that lie over another one.
//! BUSY-B3  A settled table under another one is ripe, or being handed over.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::{TableId, Txg};

#[derive(Debug, Default)]
pub(crate) struct Busy {
    by_age: BTreeSet<(Txg, TableId)>,
    filed: BTreeMap<TableId, Txg>,
    /// The tables over each table.
    over: BTreeMap<TableId, BTreeSet<TableId>>,
    /// Tables under others that may be settled by now.
    ripe: BTreeSet<TableId>,
    /// Tables that too many others may lie under (R29).
    deep: BTreeSet<TableId>,
}

impl Busy {
    /// Files a table with edits by `txg`; nothing changes if it is filed.
    pub(crate) fn begin(&mut self, id: TableId, txg: Txg) {
        if !self.filed.contains_key(&id) {
            self.file(id, Some(txg));
        }
    }

    /// Files a table anew by its oldest edit; `None`: it has none.
    pub(crate) fn file(&mut self, id: TableId, oldest: Option<Txg>) {
        let before = match oldest {
            Some(txg) => self.filed.insert(id, txg),
            None => self.filed.remove(&id),
        };
        if let Some(txg) = before {
            self.by_age.remove(&(txg, id));
        }
        if let Some(txg) = oldest {
            self.by_age.insert((txg, id));
        }
    }

    /// The table that is filed by the oldest txg.
    pub(crate) fn oldest(&self) -> Option<(Txg, TableId)> {
        self.by_age.first().copied()
    }

    pub(crate) fn with_edits(&self) -> impl Iterator<Item = TableId> {
        self.filed.keys().copied()
    }

    pub(crate) fn filed(&self, id: TableId) -> Option<Txg> {
        self.filed.get(&id).copied()
    }

    // -- what lies over what ------------------------------------------------

    pub(crate) fn laid_over(&mut self, child: TableId, under: TableId) {
        self.over.entry(under).or_default().insert(child);
        self.ripe.insert(under);
    }

    /// `child` has bases of its own now, or is gone.
    pub(crate) fn lifted(&mut self, child: TableId, under: TableId) {
        if let Some(children) = self.over.get_mut(&under) {
            children.remove(&child);
            if children.is_empty() {
                self.over.remove(&under);
                self.ripe.remove(&under);
            }
        }
        self.deep.remove(&child);
        self.may_be_settled(child);
    }

    /// A table under others was flushed, or has taken a table over.
    pub(crate) fn may_be_settled(&mut self, id: TableId) {
        if self.is_under(id) {
            self.ripe.insert(id);
        }
    }

    pub(crate) fn is_under(&self, id: TableId) -> bool {
        self.over.contains_key(&id)
    }

    pub(crate) fn under(&self) -> BTreeSet<TableId> {
        self.over.keys().copied().collect()
    }

    pub(crate) fn over(&self, id: TableId) -> impl Iterator<Item = TableId> {
        self.over.get(&id).into_iter().flatten().copied()
    }

    pub(crate) fn take_ripe(&mut self) -> Option<TableId> {
        self.ripe.pop_first()
    }

    pub(crate) fn is_deep(&mut self, id: TableId) {
        self.deep.insert(id);
    }

    pub(crate) fn take_deep(&mut self) -> BTreeSet<TableId> {
        std::mem::take(&mut self.deep)
    }

    /// A table is gone.
    pub(crate) fn gone(&mut self, id: TableId) {
        self.file(id, None);
        self.deep.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: u64) -> TableId {
        TableId(id)
    }

    #[test]
    fn the_oldest_is_found_among_those_with_edits_and_filed_anew_when_it_is_younger() {
        let mut busy = Busy::default();
        let txg = |n| Txg::new(n).unwrap();
        for (id, at) in [(5, 3), (6, 2), (7, 2), (6, 9)] {
            busy.begin(table(id), txg(at));
        }
        assert_eq!(busy.oldest(), Some((txg(2), table(6))));
        busy.file(table(6), Some(txg(8)));
        assert_eq!(busy.oldest(), Some((txg(2), table(7))));
        busy.file(table(7), None);
        busy.gone(table(5));
        assert_eq!(busy.oldest(), Some((txg(8), table(6))));
        assert_eq!(busy.with_edits().collect::<Vec<_>>(), [table(6)]);
    }

    #[test]
    fn what_is_handed_over_is_asked_of_its_children_next() {
        let mut busy = Busy::default();
        busy.laid_over(table(2), table(1));
        busy.laid_over(table(3), table(1));
        busy.laid_over(table(4), table(2));
        assert_eq!(busy.under(), [1, 2].map(table).into());
        assert_eq!([busy.take_ripe(), busy.take_ripe()], [1, 2].map(|id| Some(table(id))));
        busy.lifted(table(2), table(1));
        busy.lifted(table(3), table(1));
        assert!(!busy.is_under(table(1)), "nothing lies over it any more");
        assert_eq!((busy.take_ripe(), busy.take_ripe()), (Some(table(2)), None));
        busy.may_be_settled(table(3));
        assert_eq!(busy.take_ripe(), None, "nothing lies over it");
    }
}
