//! Uberblocks: where recovery starts. One self-checksummed block in a ring in each label area.
//!
//! An uberblock names only durable state (rule R6): the log's head, and the digest of the batch
//! before it, so that the first batch can be distinguished from any other. The one with the
//! highest number that verifies, on either label, wins.

use copyhold_types::{BLOCK_BYTES, Digest, Incarnation, PoolId, Txg};
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::label::digest_without;
use crate::{FormatError, digest};

const MAGIC: [u8; 8] = *b"CHUBERBL";
/// No pool reaches it.
const NUMBER_MAX: u64 = 1 << 63;
const WHAT: &str = "uberblock";
/// Most bytes of the descriptor of the table of tables.
pub const TABLES_MAX: usize = 1024;

/// A parsed uberblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uberblock {
    pub pool: PoolId,
    /// Counts uberblocks; the slot in the ring is this modulo its size.
    pub number: u64,
    pub incarnation: Incarnation,
    /// Every txg up to this one is durable: recovery may not end before it (rule R2).
    pub durable: Txg,
    /// Log position, in blocks, from which recovery reads.
    pub head: u64,
    /// Digest of the batch before the first that recovery applies, and that batch's txg.
    pub before_head: Digest,
    pub before_head_txg: u64,
    /// Descriptor of the table of tables' one partition, as `format::node` encodes it.
    pub tables: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct UberblockDisk {
    magic: [u8; 8],
    number: U64,
    pool: [u8; 16],
    digest: U128,
    incarnation: U64,
    durable: U64,
    head: U64,
    before_head_txg: U64,
    before_head: U128,
    tables_len: U32,
    reserved: U32,
    tables: [u8; TABLES_MAX],
}
const _: () = assert!(size_of::<UberblockDisk>() == 104 + TABLES_MAX);
const DIGEST_AT: usize = 32;

impl Uberblock {
    /// One block, ready to be written.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.tables.len() <= TABLES_MAX, "a descriptor fits, with all its layers");
        let mut tables = [0; TABLES_MAX];
        tables[..self.tables.len()].copy_from_slice(&self.tables);
        let disk = UberblockDisk {
            magic: MAGIC,
            number: self.number.into(),
            pool: self.pool.0,
            digest: 0.into(),
            incarnation: self.incarnation.0.into(),
            durable: self.durable.get().into(),
            head: self.head.into(),
            before_head_txg: self.before_head_txg.into(),
            before_head: self.before_head.0.into(),
            tables_len: (self.tables.len() as u32).into(),
            reserved: 0.into(),
            tables,
        };
        let mut block = vec![0; BLOCK_BYTES];
        block[..size_of::<UberblockDisk>()].copy_from_slice(disk.as_bytes());
        let sum = digest(&block);
        block[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&sum.0.to_le_bytes());
        block
    }

    /// `block`: one block of the ring as read; `pool`: the id in its label.
    pub fn parse(block: &[u8], pool: PoolId) -> Result<Uberblock, FormatError> {
        let (disk, _) = UberblockDisk::ref_from_prefix(block)
            .map_err(|_| FormatError::Short { what: WHAT, len: block.len() })?;
        if disk.magic != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        if digest_without(block, DIGEST_AT).0 != disk.digest.get() {
            return Err(FormatError::Digest { what: WHAT });
        }
        if disk.pool != pool.0 {
            return Err(FormatError::Field { what: WHAT, field: "pool", value: 0 });
        }
        let len = disk.tables_len.get();
        let field = |field, value| FormatError::Field { what: WHAT, field, value };
        let number = disk.number.get();
        if number == 0 || number > NUMBER_MAX {
            return Err(field("number", number));
        }
        Ok(Uberblock {
            pool,
            number,
            incarnation: Incarnation(disk.incarnation.get()),
            durable: Txg::new(disk.durable.get()).ok_or(field("durable", 0))?,
            head: disk.head.get(),
            before_head: Digest(disk.before_head.get()),
            before_head_txg: disk.before_head_txg.get(),
            tables: disk.tables.get(..len as usize).ok_or(field("length", len.into()))?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uberblock() -> Uberblock {
        Uberblock {
            pool: PoolId([3; 16]),
            number: 41,
            incarnation: Incarnation(2),
            durable: Txg::new(77).unwrap(),
            head: 12_345,
            before_head: Digest(1 << 100),
            before_head_txg: 70,
            tables: vec![1, 2, 3],
        }
    }

    #[test]
    fn an_uberblock_comes_back() {
        let block = uberblock().encode();
        assert_eq!(Uberblock::parse(&block, PoolId([3; 16])).unwrap(), uberblock());
    }

    #[test]
    fn another_pools_uberblock_and_flipped_bits_are_refused() {
        let good = uberblock().encode();
        assert!(Uberblock::parse(&good, PoolId([4; 16])).is_err());
        for at in 0..good.len() * 8 {
            let mut block = good.clone();
            block[at / 8] ^= 1 << (at % 8);
            assert!(Uberblock::parse(&block, PoolId([3; 16])).is_err(), "bit {at}");
        }
    }
}
