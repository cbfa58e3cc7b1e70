//! The header of an emulated namespace.
//!
//! Two equal copies lie in the last two blocks, so one block that rots costs nothing. A header is
//! written when a namespace is made, and never again.
//!
//! PIHEAD-H1  A device whose last two blocks have the magic is never used without its tuples: a
//!            header that cannot be used is an error.
//! PIHEAD-H2  Bytes are untrusted. Parsing returns a header that was possible to write, or an
//!            error.

use copyhold_types::BLOCK_BYTES;
use xxhash_rust::xxh3::xxh3_128;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{HEADERS, Layout};
use super::{Format, FormatError};

const MAGIC: [u8; 8] = *b"CPYHLDPI";
const VERSION: u32 = 1;
/// Features that this program knows: none yet.
const KNOWN: Features = Features { compat: 0, ro_compat: 0, incompat: 0 };

/// Features of a namespace. Programs that do not know a bit of the second open it for reading
/// only, of the third not at all; bits of the first they may ignore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub compat: u64,
    pub ro_compat: u64,
    pub incompat: u64,
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random, and new whenever a namespace is made.
    pub identity: [u8; 16],
    pub features: Features,
    pub format: Format,
    /// Of the file or disk.
    pub blocks: u64,
    /// Of the namespace.
    pub data_blocks: u64,
}

/// A namespace that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderProblem {
    #[error(
        "its header of protection information is damaged, in both copies; `copyhold check \
         --repair` makes it from the label of a pool"
    )]
    Damaged,
    #[error(
        "its two headers of protection information are of different namespaces; \
         `copyhold debug protection` shows both: restore the last two blocks from a copy"
    )]
    Different,
    #[error("its protection information has version {0}; this program knows version {VERSION}")]
    Version(u32),
    #[error(
        "its protection information has features that this program does not know: {0:#x}; use a \
         newer version of Copyhold"
    )]
    Features(u64),
    #[error(
        "its protection information has features without which this program can only read it: \
         {0:#x}; mount it with `-o ro`, or use a newer version of Copyhold"
    )]
    ReadOnlyFeatures(u64),
    #[error(
        "its protection information is of a device of {was} blocks, and this one has {is}; \
         restore its size, or copy the whole original"
    )]
    Size { was: u64, is: u64 },
    #[error(
        "its header has room for {is} blocks of data, and not for {was}; use a copy of the \
         device that is older than the damage"
    )]
    Room { was: u64, is: u64 },
    #[error("its header has an impossible format: {0}")]
    Format(#[from] FormatError),
    #[error("a device of {blocks} blocks is too small for protection information")]
    TooSmall { blocks: u64 },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderDisk {
    magic: [u8; 8],
    version: U32,
    zero: U32,
    identity: [u8; 16],
    digest: U128,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    blocks: U64,
    data_blocks: U64,
    /// [`Format::to_bytes`].
    format: [u8; 8],
    rest: [u8; 4000],
}

const _: () = assert!(size_of::<HeaderDisk>() == BLOCK_BYTES);

/// The digest of a header, its own field taken as zero.
pub fn header_digest(block: &[u8; BLOCK_BYTES]) -> u128 {
    let mut block = *block;
    block[32..48].fill(0);
    xxh3_128(&block)
}

impl Header {
    /// Of a new namespace on a device of this size.
    pub fn new(identity: [u8; 16], format: Format, blocks: u64) -> Result<Header, HeaderProblem> {
        let layout = Layout::within(format, blocks).ok_or(HeaderProblem::TooSmall { blocks })?;
        let (features, data_blocks) = (Features::default(), layout.data_blocks);
        Ok(Header { identity, features, format, blocks, data_blocks })
    }

    pub(super) fn layout(&self) -> Layout {
        Layout { format: self.format, data_blocks: self.data_blocks }
    }

    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut disk = HeaderDisk::new_zeroed();
        disk.magic = MAGIC;
        disk.version = VERSION.into();
        disk.identity = self.identity;
        disk.compat = self.features.compat.into();
        disk.ro_compat = self.features.ro_compat.into();
        disk.incompat = self.features.incompat.into();
        disk.blocks = self.blocks.into();
        disk.data_blocks = self.data_blocks.into();
        disk.format = self.format.to_bytes();
        let mut block = [0; BLOCK_BYTES];
        block.copy_from_slice(disk.as_bytes());
        let digest = header_digest(&block);
        block[32..48].copy_from_slice(&digest.to_le_bytes());
        block
    }

    /// Parses one copy. `None`, if it has no magic. The version is judged before the digest, which
    /// another version may compute differently, unless the digest fits this version; features
    /// before fields that they may give a meaning to.
    pub fn parse(block: &[u8; BLOCK_BYTES]) -> Option<Result<Header, HeaderProblem>> {
        let Ok(disk) = HeaderDisk::ref_from_bytes(block) else { return None };
        (disk.magic == MAGIC).then(|| disk.parse(block))
    }

    /// The header of a device of this size, from its last two blocks; `None`, if it has none.
    pub fn find(
        copies: [&[u8; BLOCK_BYTES]; HEADERS as usize],
        blocks: u64,
    ) -> Option<Result<Header, HeaderProblem>> {
        let found: Vec<_> = copies.into_iter().filter_map(Header::parse).collect();
        let good: Vec<Header> = found.iter().filter_map(|copy| copy.clone().ok()).collect();
        let header = match good[..] {
            [one, other] if one != other => return Some(Err(HeaderProblem::Different)),
            [header, ..] => header,
            [] => {
                // A damaged copy says less than the other one's problem.
                let says_more = |problem: &HeaderProblem| *problem != HeaderProblem::Damaged;
                let problems = || found.iter().filter_map(|copy| copy.clone().err());
                return problems().find(says_more).or_else(|| problems().next()).map(Err);
            }
        };
        match header.blocks {
            was if was != blocks => Some(Err(HeaderProblem::Size { was, is: blocks })),
            _ => Some(Ok(header)),
        }
    }

    /// Whether this program may write there.
    pub fn check_writable(&self) -> Result<(), HeaderProblem> {
        match self.features.ro_compat & !KNOWN.ro_compat {
            0 => Ok(()),
            unknown => Err(HeaderProblem::ReadOnlyFeatures(unknown)),
        }
    }
}

impl HeaderDisk {
    /// Whether it was written with this version, and only the field of the version has changed.
    fn has_rotten_version(&self, block: &[u8; BLOCK_BYTES]) -> bool {
        let mut written = *block;
        written[8..12].copy_from_slice(&VERSION.to_le_bytes());
        self.digest.get() == header_digest(&written)
    }

    fn parse(&self, block: &[u8; BLOCK_BYTES]) -> Result<Header, HeaderProblem> {
        if self.version.get() != VERSION {
            return Err(match self.has_rotten_version(block) {
                true => HeaderProblem::Damaged,
                false => HeaderProblem::Version(self.version.get()),
            });
        }
        if self.digest.get() != header_digest(block) {
            return Err(HeaderProblem::Damaged);
        }
        let (compat, ro_compat) = (self.compat.get(), self.ro_compat.get());
        let features = Features { compat, ro_compat, incompat: self.incompat.get() };
        match features.incompat & !KNOWN.incompat {
            0 => {}
            unknown => return Err(HeaderProblem::Features(unknown)),
        }
        let is_clean = self.zero.get() == 0 && self.rest.iter().all(|byte| *byte == 0);
        if !is_clean {
            return Err(HeaderProblem::Damaged);
        }
        let format = Format::of_bytes(self.format)?;
        let (blocks, was) = (self.blocks.get(), self.data_blocks.get());
        match Layout::within(format, blocks).map_or(0, |layout| layout.data_blocks) {
            0 => Err(HeaderProblem::TooSmall { blocks }),
            is if is != was => Err(HeaderProblem::Room { was, is }),
            _ => Ok(Header { identity: self.identity, features, format, blocks, data_blocks: was }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::format::tests::formats;
    use super::*;

    const BLOCKS: u64 = 1000;

    fn header() -> Header {
        Header::new([7; 16], "4096+16:64b".parse().unwrap(), BLOCKS).unwrap()
    }

    fn signed(change: impl FnOnce(&mut [u8; BLOCK_BYTES])) -> [u8; BLOCK_BYTES] {
        let mut block = header().encode();
        change(&mut block);
        let digest = header_digest(&block);
        block[32..48].copy_from_slice(&digest.to_le_bytes());
        block
    }

    fn problem(block: &[u8; BLOCK_BYTES]) -> String {
        Header::find([block, block], BLOCKS).unwrap().unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            format in formats(),
            blocks in 4..u64::MAX,
            identity in any::<[u8; 16]>(),
        ) {
            let header = Header::new(identity, format, blocks).unwrap();
            let block = header.encode();
            prop_assert_eq!(Header::find([&block, &block], blocks), Some(Ok(header)));
        }

        #[test]
        fn any_bytes_are_a_header_or_an_error(
            changes in prop::collection::vec((0..100_usize, any::<u8>()), 0..6),
            blocks in any::<u64>(),
        ) {
            let block = signed(|block| changes.iter().for_each(|(at, byte)| block[*at] = *byte));
            if let Some(Ok(header)) = Header::parse(&block) {
                prop_assert_eq!(header.encode(), block);
            }
            let _ = Header::find([&block, &[0; BLOCK_BYTES]], blocks);
        }
    }

    #[test]
    fn one_damaged_copy_costs_nothing() {
        let good = header().encode();
        let mut rotten = good;
        rotten[4000] ^= 1;
        let zeros = [0; BLOCK_BYTES];
        for copies in [[&good, &rotten], [&rotten, &good], [&good, &zeros], [&zeros, &good]] {
            assert_eq!(Header::find(copies, BLOCKS), Some(Ok(header())));
        }
        assert_eq!(Header::find([&zeros, &zeros], BLOCKS), None);
    }

    #[test]
    fn each_problem_has_its_own_message() {
        let mut rotten = header().encode();
        rotten[90] ^= 1;
        assert!(problem(&rotten).contains("damaged, in both copies"));
        assert!(problem(&signed(|block| block[8] = 2)).contains("has version 2"));
        assert!(problem(&signed(|block| block[64] = 4)).contains("does not know: 0x4"));
        assert!(problem(&signed(|block| block[90] = 8)).contains("64b has 16 bytes"));
        assert!(problem(&signed(|block| block[91] = 48)).contains("not 48b"));
        assert!(problem(&signed(|block| block[92] = 0)).contains("1, 2 or 3, not 0"));
        assert!(problem(&signed(|block| block[80] ^= 1)).contains("has room for"));
        let other = signed(|block| block[16] = 1);
        let found = Header::find([&header().encode(), &other], BLOCKS);
        assert_eq!(found, Some(Err(HeaderProblem::Different)));
        let block = header().encode();
        let found = Header::find([&block, &block], 900);
        assert_eq!(found, Some(Err(HeaderProblem::Size { was: BLOCKS, is: 900 })));
        let too_small = Header::new([0; 16], header().format, 3);
        assert_eq!(too_small, Err(HeaderProblem::TooSmall { blocks: 3 }));
    }

    #[test]
    fn fields_without_a_meaning_are_zeros() {
        for at in [12, 15, 96, 2000, 4095] {
            let found = Header::parse(&signed(|block| block[at] = 1));
            assert_eq!(found, Some(Err(HeaderProblem::Damaged)), "byte {at}");
        }
        for at in [93, 95] {
            let found = Header::parse(&signed(|block| block[at] = 2));
            assert!(matches!(found, Some(Err(HeaderProblem::Format(FormatError::Bytes(_))))));
        }
        // A feature may give them one.
        let block = signed(|block| (block[64], block[4000]) = (1, 1));
        assert_eq!(Header::parse(&block), Some(Err(HeaderProblem::Features(1))));
    }

    #[test]
    fn another_version_is_named_whatever_its_digest_is() {
        let mut block = header().encode();
        (block[8], block[32]) = (7, !block[32]);
        assert_eq!(Header::parse(&block), Some(Err(HeaderProblem::Version(7))));
        // A copy of which only the version is damaged costs nothing.
        let good = header().encode();
        let mut block = good;
        block[10] ^= 4;
        assert_eq!(Header::parse(&block), Some(Err(HeaderProblem::Damaged)));
        assert_eq!(Header::find([&block, &good], BLOCKS), Some(Ok(header())));
    }

    #[test]
    fn unknown_features_forbid_writing_or_nothing() {
        let block = signed(|block| block[56] = 2);
        let header = Header::find([&block, &block], BLOCKS).unwrap().unwrap();
        assert_eq!(header.check_writable(), Err(HeaderProblem::ReadOnlyFeatures(2)));
        let block = signed(|block| block[48] = 2);
        let header = Header::find([&block, &block], BLOCKS).unwrap().unwrap();
        assert_eq!(header.check_writable(), Ok(()));
        assert!(header.encode() == block, "the bit is kept");
    }
}
