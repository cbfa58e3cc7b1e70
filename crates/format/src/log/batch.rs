//! The payload of a batch frame, which closes a txg.

use copyhold_types::{Digest, Txg};

use crate::FormatError;
use crate::wire::{Reader, put_varint};

const WHAT: &str = "batch";

/// A piece that belongs to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceRef {
    pub position: u64,
    pub blocks: u64,
    pub digest: Digest,
}

/// A parsed batch. Its records are those of the pieces in order, then its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Digest of the batch before; the chain that recovery follows.
    pub before: Digest,
    /// The highest txg that was known to be durable when this was written (0: none).
    pub durable: u64,
    /// Whether a device flush came between this txg's data and the batch, so that recovery need
    /// not verify that data.
    pub data_flushed: bool,
    pub pieces: Vec<PieceRef>,
    /// Descriptor of the table of tables (rule R5: its root moves in the log).
    pub tables: Vec<u8>,
    pub records: Vec<u8>,
}

impl Batch {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.records.len() + self.tables.len() + 64);
        out.extend_from_slice(&self.before.0.to_le_bytes());
        put_varint(&mut out, self.durable);
        out.push(u8::from(self.data_flushed));
        put_varint(&mut out, self.pieces.len() as u64);
        for piece in &self.pieces {
            put_varint(&mut out, piece.position);
            put_varint(&mut out, piece.blocks);
            out.extend_from_slice(&piece.digest.0.to_le_bytes());
        }
        put_varint(&mut out, self.tables.len() as u64);
        out.extend_from_slice(&self.tables);
        out.extend_from_slice(&self.records);
        out
    }

    /// `payload` of the batch frame of `txg`.
    pub fn parse(payload: &[u8], txg: Txg) -> Result<Batch, FormatError> {
        let mut r = Reader::new(WHAT, payload);
        let before = Digest(r.u128()?);
        let durable = r.bounded("durable txg", txg.get() - 1)?;
        let data_flushed = match r.u8()? {
            0 => false,
            1 => true,
            other => return Err(r.bad("data flushed", other.into())),
        };
        let count = r.bounded("pieces", payload.len() as u64 / 18)?;
        let mut pieces = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let (position, blocks) = (r.varint()?, r.bounded("piece blocks", 1 << 20)?);
            pieces.push(PieceRef { position, blocks, digest: Digest(r.u128()?) });
        }
        let tables = r.bounded("descriptor", crate::uberblock::TABLES_MAX as u64)?;
        let tables = r.bytes(tables as usize)?.to_vec();
        let records = r.rest().to_vec();
        Ok(Batch { before, durable, data_flushed, pieces, tables, records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch() -> Batch {
        Batch {
            before: Digest(12),
            durable: 6,
            data_flushed: true,
            pieces: vec![PieceRef { position: 300, blocks: 4, digest: Digest(u128::MAX) }],
            tables: vec![1, 2],
            records: vec![3; 9],
        }
    }

    #[test]
    fn a_batch_comes_back() {
        assert_eq!(Batch::parse(&batch().encode(), Txg::new(7).unwrap()).unwrap(), batch());
    }

    #[test]
    fn a_batch_cannot_call_itself_durable() {
        assert!(Batch::parse(&batch().encode(), Txg::new(6).unwrap()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes: Vec<u8>) {
            let _ = Batch::parse(&bytes, Txg::FIRST);
        }
    }
}
