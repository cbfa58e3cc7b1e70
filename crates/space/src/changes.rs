//! The changes of a metaslab since its map was made, as far as trimming the log needs them.

use copyhold_types::Txg;

/// The oldest txg with a change, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) oldest: Option<Txg>,
    pub(crate) edits: u64,
}

impl Changes {
    pub(crate) fn note(&mut self, txg: Txg) {
        *self = self.and(Changes { oldest: Some(txg), edits: 1 });
    }

    /// Both together.
    pub(crate) fn and(self, other: Changes) -> Changes {
        let oldest = match (self.oldest, other.oldest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Changes { oldest, edits: self.edits + other.edits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_txg_that_is_closing_may_come_last() {
        let mut changes = Changes::default();
        [5, 4, 6].into_iter().for_each(|n| changes.note(Txg::new(n).unwrap()));
        assert_eq!(changes, Changes { oldest: Txg::new(4), edits: 3 });
    }
}
