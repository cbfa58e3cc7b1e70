//! How a table came to be or went, as an item of the table of tables.
//!
//! The item's key is (table, [`LINEAGE`], 0). A table without the item lies over no other.
//!
//! ```text
//!   0 what u8: 0 lies over another table, 1 is gone
//!   1 over u64: the table under it · or gone u64: the txg since when
//! ```

use copyhold_types::{Key, Kind, TableId, Txg};

use crate::FormatError;
use crate::wire::Reader;

/// The kind of a lineage item in the table of tables.
pub const LINEAGE: Kind = Kind(5);

const WHAT: &str = "lineage of a table";

/// Facts about a table that the log alone does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// It has no base yet: keys without an edit are read from that table.
    Over(TableId),
    /// It is gone: its records in the log up to that txg mean nothing.
    Gone(Txg),
}

impl Lineage {
    pub fn key(table: TableId) -> Key {
        Key::new(table.0, LINEAGE, 0)
    }

    pub fn encode(self) -> [u8; 9] {
        let (what, number) = match self {
            Lineage::Over(under) => (0, under.0),
            Lineage::Gone(since) => (1, since.get()),
        };
        let mut bytes = [what; 9];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Lineage, FormatError> {
        let mut reader = Reader::new(WHAT, bytes);
        let (what, number) = (reader.u8()?, reader.u64()?);
        if !reader.is_empty() {
            return Err(reader.bad("bytes behind its end", bytes.len() as u64));
        }
        match (what, Txg::new(number)) {
            (0, Some(_)) => Ok(Lineage::Over(TableId(number))),
            (1, Some(since)) => Ok(Lineage::Gone(since)),
            _ => Err(reader.bad("what", what.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lineage_comes_back_as_it_was() {
        for it in [Lineage::Over(TableId(7)), Lineage::Gone(Txg::FIRST)] {
            assert_eq!(Lineage::parse(&it.encode()), Ok(it));
        }
        assert!(Lineage::parse(&[0; 9]).is_err());
        assert!(Lineage::parse(&[2, 1, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let _ = Lineage::parse(&bytes);
        }
    }
}
