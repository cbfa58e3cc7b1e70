//! The extent item: the place of a file's blocks, their owner, and their checksums.
//!
//! ```text
//!   0 address u64 (block 48 bits, device 16) · blocks - 1 u8 · flags u8
//!  10 epoch u64 · origin u64 · birth u32 · CRC-32C of the first block u32
//!  34 CRC-32C of each following block: u32 each
//! ```
//!
//! The origin is stored as its distance from the epoch, which is nearly always 0: twice epoch -
//! origin, or, where the origin is the newer (a clone of a neighbour's extent), twice the distance
//! less 1. The difference wraps, so that any two numbers have one.
//!
//! The key's offset is the file block of the first. An extent has at most [`EXTENT_BLOCKS_MAX`]
//! blocks and never crosses a multiple of them in the file (P11). The fields up to 34 are columns
//! of a leaf (`node::schema`), so one that hardly varies costs hardly anything.
//!
//! Flags: bit 0 unwritten (space without content: no checksums, reads as zero); bits 1 to 3 the
//! compression, 0 for none; bits 4 and 5 the checksum mode. Not yet written by any
//! program, and refused: a compressed extent, whose tail starts with `physical blocks - 1 u8 ·
//! offset of its first block in the run's content u8 · blocks of the run's content - 1 u8 · 0`,
//! then the checksums of the physical blocks behind the first (R11).
//!
//! EXTENT-B1  An extent has checksums of its own only if its checksum mode is item (0) and
//!            it has content. Otherwise the item ends at 34, and the first checksum is 0.
//! EXTENT-B2  The birth is the low half of a txg in an extent with guards (1) or with tuples of the
//!            device (2), and 0 in any other one, also in one without checksums (3).

use copyhold_types::{BlockAddr, EpochId, Pointer, Run};
use smallvec::SmallVec;

use super::checksum_mode::ChecksumMode;
use crate::FormatError;
use crate::wire::Reader;

const WHAT: &str = "extent item";
const UNWRITTEN: u8 = 1;
/// The lower of the two bits of the checksum mode.
const MODE_AT: u32 = 4;
const MODE: u8 = 3 << MODE_AT;

/// 128 KiB.
pub const EXTENT_BLOCKS_MAX: u32 = 32;

/// The content of an extent's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Content, with the CRC-32C of each block.
    Written(SmallVec<[u32; 4]>),
    /// Content with guards of the host beside each block, written at this birth.
    Guarded { birth: u32 },
    /// Content with tuples that the device has made, at this birth.
    Offloaded { birth: u32 },
    /// Content without checksums.
    Unverified,
    /// Nothing yet: reads as zero.
    Unwritten,
}

impl ExtentState {
    /// Of a part of the extent.
    fn slice(&self, skip: u32, blocks: u32) -> ExtentState {
        match self {
            ExtentState::Written(sums) => {
                ExtentState::Written(sums[skip as usize..(skip + blocks) as usize].into())
            }
            other => other.clone(),
        }
    }

    /// The checksum mode of its content; none without content.
    pub fn checksum_mode(&self) -> Option<ChecksumMode> {
        Some(match self {
            ExtentState::Written(_) => ChecksumMode::Item,
            ExtentState::Guarded { .. } => ChecksumMode::Guard,
            ExtentState::Offloaded { .. } => ChecksumMode::Offload,
            ExtentState::Unverified => ChecksumMode::None,
            ExtentState::Unwritten => return None,
        })
    }

    /// The birth that its blocks have in their tags.
    pub fn birth(&self) -> Option<u32> {
        match *self {
            ExtentState::Guarded { birth } | ExtentState::Offloaded { birth } => Some(birth),
            _ => None,
        }
    }

    fn flags(&self) -> u8 {
        match self.checksum_mode() {
            Some(mode) => mode.code() << MODE_AT,
            None => UNWRITTEN,
        }
    }

    /// The state of an extent without checksums of its own (EXTENT-B1, EXTENT-B2).
    fn without_sums(flags: u8, birth: u32) -> Option<ExtentState> {
        let mode = ChecksumMode::of_code((flags & MODE) >> MODE_AT)?;
        match (mode, flags & UNWRITTEN != 0, birth) {
            (ChecksumMode::Item, true, 0) => Some(ExtentState::Unwritten),
            (ChecksumMode::Guard, false, birth) => Some(ExtentState::Guarded { birth }),
            (ChecksumMode::Offload, false, birth) => Some(ExtentState::Offloaded { birth }),
            (ChecksumMode::None, false, 0) => Some(ExtentState::Unverified),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// 1 to [`EXTENT_BLOCKS_MAX`] blocks. Epoch and origin differ after a reflink only, and either
    /// may be the newer.
    pub pointer: Pointer,
    pub state: ExtentState,
}

impl Extent {
    pub fn blocks(&self) -> u32 {
        self.pointer.run.blocks
    }

    /// `blocks` blocks of this extent from its `skip`th, as an extent of its own.
    pub fn slice(&self, skip: u32, blocks: u32) -> Extent {
        let run = self.pointer.run.slice(skip, blocks);
        let state = self.state.slice(skip, blocks);
        Extent { pointer: Pointer { run, ..self.pointer }, state }
    }

    pub fn encode(&self) -> SmallVec<[u8; 64]> {
        let Pointer { run, epoch, origin } = self.pointer;
        assert!((1..=EXTENT_BLOCKS_MAX).contains(&run.blocks), "extent of {} blocks", run.blocks);
        let sums: &[u32] = match &self.state {
            ExtentState::Written(sums) => {
                assert_eq!(sums.len(), run.blocks as usize, "EXTENT-B1: a checksum a block");
                sums
            }
            _ => &[0],
        };
        let mut out = SmallVec::new();
        out.extend_from_slice(&run.addr.raw().to_le_bytes());
        out.extend_from_slice(&[(run.blocks - 1) as u8, self.state.flags()]);
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&distance(epoch, origin).to_le_bytes());
        out.extend_from_slice(&self.state.birth().unwrap_or(0).to_le_bytes());
        for sum in sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out
    }

    pub fn parse(value: &[u8]) -> Result<Extent, FormatError> {
        let mut reader = Reader::new(WHAT, value);
        let addr = BlockAddr::from_raw(reader.u64()?);
        let blocks = u32::from(reader.u8()?) + 1;
        let flags = reader.u8()?;
        let epoch = reader.u64()?;
        let distance = reader.u64()?;
        let birth = reader.u32()?;
        let first = reader.u32()?;
        if blocks > EXTENT_BLOCKS_MAX || addr.block() + u64::from(blocks) > BlockAddr::MAX_BLOCK {
            return Err(reader.bad("blocks", blocks.into()));
        }
        if flags & !(UNWRITTEN | MODE) != 0 {
            return Err(reader.bad("flags", flags.into()));
        }
        let state = if flags != 0 {
            if first != 0 {
                return Err(reader.bad("checksum", first.into()));
            }
            let state = ExtentState::without_sums(flags, birth);
            state.ok_or_else(|| reader.bad("flags and birth", flags.into()))?
        } else {
            if birth != 0 {
                return Err(reader.bad("birth", birth.into()));
            }
            let mut sums: SmallVec<[u32; 4]> = SmallVec::with_capacity(blocks as usize);
            sums.push(first);
            for _ in 1..blocks {
                sums.push(reader.u32()?);
            }
            ExtentState::Written(sums)
        };
        let rest = reader.rest().len();
        if rest != 0 {
            return Err(FormatError::Field { what: WHAT, field: "length", value: rest as u64 });
        }
        let pointer = Pointer {
            run: Run::new(addr, blocks),
            epoch: EpochId(epoch),
            origin: origin_at(EpochId(epoch), distance),
        };
        Ok(Extent { pointer, state })
    }
}

/// The distance of an origin from its epoch, small in either direction.
fn distance(epoch: EpochId, origin: EpochId) -> u64 {
    let older = epoch.0.wrapping_sub(origin.0);
    (older << 1) ^ ((older as i64) >> 63) as u64
}

/// The origin at a distance from its epoch.
fn origin_at(epoch: EpochId, distance: u64) -> EpochId {
    let older = (distance >> 1) ^ (distance & 1).wrapping_neg();
    EpochId(epoch.0.wrapping_sub(older))
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;
    use proptest::prelude::*;

    use super::*;

    fn extent(blocks: u32, state: ExtentState) -> Extent {
        let run = Run::new(BlockAddr::new(DeviceId(3), 77), blocks);
        Extent { pointer: Pointer { run, epoch: EpochId(9), origin: EpochId(4) }, state }
    }

    #[test]
    fn a_slice_keeps_its_own_checksums() {
        let whole = extent(4, ExtentState::Written([1, 2, 3, 4].into_iter().collect()));
        let part = whole.slice(1, 2);
        assert_eq!(part.pointer.run.addr.block(), 78);
        assert_eq!(part.state, ExtentState::Written([2, 3].into_iter().collect()));
    }

    #[test]
    fn unknown_flags_and_trailing_bytes_are_refused() {
        let mut bytes = extent(1, ExtentState::Unwritten).encode();
        assert!(Extent::parse(&bytes).is_ok());
        bytes[9] = 0x40;
        assert!(Extent::parse(&bytes).is_err());
        bytes[9] = 1;
        bytes.push(0);
        assert!(Extent::parse(&bytes).is_err());
    }

    #[test]
    fn checksums_without_meaning_are_refused() {
        let with = |state, change: fn(&mut [u8])| {
            let mut bytes = extent(1, state).encode();
            change(&mut bytes);
            Extent::parse(&bytes)
        };
        let guarded = || ExtentState::Guarded { birth: 7 };
        assert!(with(guarded(), |_| {}).is_ok());
        assert!(with(guarded(), |bytes| bytes[9] |= UNWRITTEN).is_err(), "guards of no content");
        assert!(with(guarded(), |bytes| bytes[9] = 0).is_err(), "a birth with checksums");
        assert!(with(guarded(), |bytes| bytes[9] = 0x30).is_err(), "a birth without any");
        assert!(with(guarded(), |bytes| bytes[33] = 1).is_err(), "a checksum beside guards");
        assert!(with(ExtentState::Unwritten, |bytes| bytes[26] = 1).is_err(), "nothing was born");
    }

    fn states(blocks: usize) -> impl Strategy<Value = ExtentState> {
        prop_oneof![
            proptest::collection::vec(any::<u32>(), blocks)
                .prop_map(|sums| ExtentState::Written(sums.into())),
            any::<u32>().prop_map(|birth| ExtentState::Guarded { birth }),
            any::<u32>().prop_map(|birth| ExtentState::Offloaded { birth }),
            Just(ExtentState::Unverified),
            Just(ExtentState::Unwritten),
        ]
    }

    fn extents() -> impl Strategy<Value = Extent> {
        (1..=EXTENT_BLOCKS_MAX).prop_flat_map(|blocks| {
            states(blocks as usize).prop_map(move |state| extent(blocks, state))
        })
    }

    proptest! {
        #[test]
        fn an_extent_comes_back_as_it_was(it in extents()) {
            prop_assert_eq!(Extent::parse(&it.encode()), Ok(it));
        }

        #[test]
        fn a_part_keeps_checksum_mode_and_birth(it in extents(), at in any::<u32>()) {
            let skip = at % it.blocks();
            let part = it.slice(skip, it.blocks() - skip);
            prop_assert_eq!(part.state.checksum_mode(), it.state.checksum_mode());
            prop_assert_eq!(part.state.birth(), it.state.birth());
        }

        #[test]
        fn bytes_that_parse_are_those_that_are_encoded(
            it in extents(),
            at in 8..34_usize,
            byte in any::<u8>(),
        ) {
            let mut bytes = it.encode();
            bytes[at] = byte;
            if let Ok(parsed) = Extent::parse(&bytes) {
                prop_assert_eq!(parsed.encode(), bytes);
            }
        }

        #[test]
        fn an_origin_may_be_older_or_newer_than_the_epoch(epoch in any::<u64>(), by in 0..100u64) {
            let epoch = EpochId(epoch);
            for origin in [epoch.0.wrapping_add(by), epoch.0.wrapping_sub(by)].map(EpochId) {
                let mut it = extent(1, ExtentState::Unwritten);
                (it.pointer.epoch, it.pointer.origin) = (epoch, origin);
                prop_assert!(distance(epoch, origin) <= 2 * by);
                prop_assert_eq!(Extent::parse(&it.encode()), Ok(it));
            }
        }
    }
}
