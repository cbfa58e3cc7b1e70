//! Frames: the envelope of every part of the log.

use std::sync::Arc;

use copyhold_types::{BLOCK_BYTES, Buf, Digest, Incarnation, PoolId, Txg};
use xxhash_rust::xxh3::xxh3_128_with_seed;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;

const MAGIC: [u8; 7] = *b"CHFRAME";
const WHAT: &str = "log frame";
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 128;
/// Payloads from this size on are compressed when that saves a block.
const COMPRESS_FROM: usize = BLOCK_BYTES - HEADER_BYTES;
/// Most bytes that a payload may unpack to; a longer one was never written.
const UNPACKED_MAX: usize = 64 << 20;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Piece,
    Batch,
    Mark,
}

impl FrameKind {
    fn code(self) -> u8 {
        match self {
            FrameKind::Piece => b'P',
            FrameKind::Batch => b'B',
            FrameKind::Mark => b'M',
        }
    }

    fn parse(code: u8) -> Option<FrameKind> {
        [FrameKind::Piece, FrameKind::Batch, FrameKind::Mark].into_iter().find(|k| k.code() == code)
    }
}

/// A verified frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub incarnation: Incarnation,
    pub position: u64,
    pub txg: Txg,
    /// Whole blocks that the frame takes in the ring.
    pub blocks: u64,
    /// Over header and payload as written; a batch refers to its pieces and its predecessor by it.
    pub digest: Digest,
    /// Unpacked.
    pub payload: Arc<[u8]>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameDisk {
    magic: [u8; 7],
    kind: u8,
    pool: [u8; 16],
    digest: U128,
    incarnation: U64,
    position: U64,
    txg: U64,
    stored: U32,
    unpacked: U32,
    packing: u8,
    reserved: [u8; 55],
}
const _: () = assert!(size_of::<FrameDisk>() == HEADER_BYTES);
const DIGEST_AT: usize = 24;
const STORED_PLAIN: u8 = 0;
const STORED_ZSTD: u8 = 1;

/// Blocks that a frame with `stored` payload bytes takes.
fn frame_blocks(stored: usize) -> u64 {
    (HEADER_BYTES + stored).div_ceil(BLOCK_BYTES) as u64
}

/// A payload as it will be stored: compressed (zstd level 1) when that saves a block (P16). How
/// large the frame is follows from it, where it goes need not be known yet.
pub struct Payload<'a> {
    plain: &'a [u8],
    packed: Option<Vec<u8>>,
}

impl<'a> Payload<'a> {
    pub fn new(plain: &'a [u8]) -> Payload<'a> {
        assert!(plain.len() <= UNPACKED_MAX, "{} bytes in one frame", plain.len());
        Payload { plain, packed: pack(plain) }
    }

    fn stored(&self) -> &[u8] {
        self.packed.as_deref().unwrap_or(self.plain)
    }

    /// Blocks that the frame takes.
    pub fn blocks(&self) -> u64 {
        frame_blocks(self.stored().len())
    }
}

fn pack(payload: &[u8]) -> Option<Vec<u8>> {
    if payload.len() <= COMPRESS_FROM {
        return None;
    }
    let packed = zstd::bulk::compress(payload, 1).ok()?;
    (frame_blocks(packed.len()) < frame_blocks(payload.len())).then_some(packed)
}

/// The fields of a frame before its payload.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    pub pool: PoolId,
    /// Seeds the digest.
    pub secret: u64,
    pub kind: FrameKind,
    pub incarnation: Incarnation,
    pub position: u64,
    pub txg: Txg,
}

/// Encodes a frame. Returns whole blocks and the frame's digest.
pub fn encode_frame(head: FrameHead, payload: &Payload<'_>) -> (Buf, Digest) {
    let stored = payload.stored();
    let disk = FrameDisk {
        magic: MAGIC,
        kind: head.kind.code(),
        pool: head.pool.0,
        digest: 0.into(),
        incarnation: head.incarnation.0.into(),
        position: head.position.into(),
        txg: head.txg.get().into(),
        stored: (stored.len() as u32).into(),
        unpacked: (payload.plain.len() as u32).into(),
        packing: if payload.packed.is_some() { STORED_ZSTD } else { STORED_PLAIN },
        reserved: [0; 55],
    };
    let mut buf = Buf::zeroed(payload.blocks() as usize);
    let out = buf.make_mut();
    let end = HEADER_BYTES + stored.len();
    out[..HEADER_BYTES].copy_from_slice(disk.as_bytes());
    out[HEADER_BYTES..end].copy_from_slice(stored);
    let digest = xxh3_128_with_seed(&out[..end], head.secret);
    out[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&digest.to_le_bytes());
    (buf, Digest(digest))
}

impl Frame {
    /// How many blocks `bytes` (from a block of the ring) claim, if they begin a frame of this pool
    /// at `position`. Nothing is verified yet.
    pub fn claim(bytes: &[u8], pool: PoolId, position: u64) -> Option<u64> {
        let (disk, _) = FrameDisk::ref_from_prefix(bytes).ok()?;
        let ours = disk.magic == MAGIC && disk.pool == pool.0 && disk.position.get() == position;
        ours.then(|| frame_blocks(disk.stored.get() as usize))
    }

    /// `bytes` begin at the frame and reach at least to its end.
    pub fn parse(
        bytes: &[u8],
        pool: PoolId,
        secret: u64,
        position: u64,
    ) -> Result<Frame, FormatError> {
        let short = FormatError::Short { what: WHAT, len: bytes.len() };
        let (disk, _) = FrameDisk::ref_from_prefix(bytes).map_err(|_| short.clone())?;
        if disk.magic != MAGIC || disk.pool != pool.0 || disk.position.get() != position {
            return Err(FormatError::Magic { what: WHAT });
        }
        let end = HEADER_BYTES + disk.stored.get() as usize;
        let stored = bytes.get(HEADER_BYTES..end).ok_or(short)?;
        if seeded_digest(&bytes[..end], secret) != disk.digest.get() {
            return Err(FormatError::Digest { what: WHAT });
        }
        let field = |field, value| FormatError::Field { what: WHAT, field, value };
        Ok(Frame {
            kind: FrameKind::parse(disk.kind).ok_or(field("kind", disk.kind.into()))?,
            incarnation: Incarnation(disk.incarnation.get()),
            position,
            txg: Txg::new(disk.txg.get()).ok_or(field("txg", 0))?,
            blocks: frame_blocks(stored.len()),
            digest: Digest(disk.digest.get()),
            payload: unpack(disk, stored)?.into(),
        })
    }
}

fn seeded_digest(frame: &[u8], secret: u64) -> u128 {
    let mut hash = xxhash_rust::xxh3::Xxh3::with_seed(secret);
    hash.update(&frame[..DIGEST_AT]);
    hash.update(&[0; 16]);
    hash.update(&frame[DIGEST_AT + 16..]);
    hash.digest128()
}

fn unpack(disk: &FrameDisk, stored: &[u8]) -> Result<Vec<u8>, FormatError> {
    let unpacked = disk.unpacked.get() as usize;
    let wrong = FormatError::Field { what: WHAT, field: "unpacked", value: unpacked as u64 };
    match disk.packing {
        STORED_PLAIN if unpacked == stored.len() => Ok(stored.to_vec()),
        STORED_ZSTD if unpacked <= UNPACKED_MAX => zstd::bulk::decompress(stored, unpacked)
            .ok()
            .filter(|payload| payload.len() == unpacked)
            .ok_or(wrong),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId([9; 16]);

    fn frame(payload: &[u8]) -> (Vec<u8>, Digest) {
        let (buf, digest) = encode_frame(
            FrameHead {
                pool: POOL,
                secret: 5,
                kind: FrameKind::Piece,
                incarnation: Incarnation(1),
                position: 40,
                txg: Txg::FIRST,
            },
            &Payload::new(payload),
        );
        (buf.to_vec(), digest)
    }

    #[test]
    fn small_large_and_incompressible_payloads_come_back() {
        let noise: Vec<u8> = (0..20_000u64).map(|i| ((i * i % 251 * 7) >> 1) as u8).collect();
        for payload in [vec![], vec![1; 100], vec![2; 100_000], noise] {
            let (bytes, digest) = frame(&payload);
            let blocks = Frame::claim(&bytes, POOL, 40).unwrap();
            assert_eq!(blocks as usize * BLOCK_BYTES, bytes.len());
            let read = Frame::parse(&bytes, POOL, 5, 40).unwrap();
            assert_eq!((&*read.payload, read.digest, read.blocks), (&*payload, digest, blocks));
        }
    }

    #[test]
    fn a_frame_of_another_lap_pool_or_secret_is_not_one() {
        let (bytes, _) = frame(b"records");
        assert!(Frame::parse(&bytes, POOL, 5, 41).is_err());
        assert!(Frame::parse(&bytes, PoolId([8; 16]), 5, 40).is_err());
        assert!(Frame::parse(&bytes, POOL, 6, 40).is_err());
    }

    #[test]
    fn every_flipped_bit_that_matters_is_noticed() {
        let (good, _) = frame(b"records");
        for at in 0..(HEADER_BYTES + 7) * 8 {
            let mut bytes = good.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(Frame::parse(&bytes, POOL, 5, 40).is_err(), "bit {at}");
        }
    }
}
