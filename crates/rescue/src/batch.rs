//! A txg of the log (`docs/format.md`, 5.2).

use crate::damage::Damage;
use crate::frames::Frame;
use crate::source::Source;

/// A txg of the log, complete.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) txg: u64,
    pub(crate) digest: u128,
    pub(crate) incarnation: u64,
    pub(crate) data_flushed: bool,
    pub(crate) tables: Vec<u8>,
    pub(crate) pieces: Vec<Frame>,
    pub(crate) frame: Frame,
    /// Bytes of the payload before its records.
    pub(crate) records: usize,
}

impl Batch {
    /// Its records, in their order: those of each piece, then its own.
    pub(crate) fn records(&self, source: &dyn Source) -> Result<Vec<Vec<u8>>, Damage> {
        let mut parts = Vec::new();
        for piece in &self.pieces {
            parts.push(piece.payload(source)?);
        }
        parts.push(self.frame.payload(source)?.split_off(self.records));
        Ok(parts)
    }
}
