//! How a table came to be, or that it went (`docs/format.md`, 7.6).

use crate::bytes::Bytes;
use crate::damage::{Parse, demand};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// For keys without edits, that table has the values.
    Over(u64),
    Gone,
}

impl Lineage {
    pub(crate) fn parse(value: &[u8]) -> Parse<Lineage> {
        let mut bytes = Bytes(value);
        let (what, number) = (bytes.u8()?, bytes.u64()?);
        bytes.end()?;
        demand(what <= 1 && number > 0, "neither over a table nor gone")?;
        Ok(if what == 0 { Lineage::Over(number) } else { Lineage::Gone })
    }
}
