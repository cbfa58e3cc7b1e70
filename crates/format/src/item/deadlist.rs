//! Segments of runs: deadlists, shares, and releases that are to be decided later.
//!
//! ```text
//! a deadlist set   (pointer's epoch, DEAD, address)   blocks - 1 u8 · content u8 · count u32 ·
//!                                                     origin u64
//! the shares       (0, SHARE, address)                blocks - 1 u8 · count u32
//! pending release  (holder, PENDING, sequence)        address u64 · blocks u32 · content u8 ·
//!                                                     count u32 · epoch u64 · origin u64
//! ```
//!
//! A segment has the same entry for all its blocks. Segments under one object are disjoint, lie
//! each in one *window*, [`WINDOW_BLOCKS`] blocks of a device that begin at a multiple of their
//! number, and are as long as they can be: so the entries of a run's blocks are found in the
//! windows that it touches, and their encoding is unique.

use copyhold_types::{BlockAddr, EpochId, Key, Pointer, Run};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DEAD, LISTS, PENDING, SHARE};
use crate::FormatError;

/// No segment crosses a multiple of this many blocks of its device.
pub const WINDOW_BLOCKS: u32 = 32;

/// The content of blocks: usage is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Content {
    /// Of files.
    Data = 0,
    /// Nodes of a subvolume's table.
    Node = 1,
}

/// Inherited pointers that nothing below an epoch holds any more; all of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadItem {
    pub blocks: u32,
    pub content: Content,
    /// How often each block was dropped; at least 1.
    pub count: u32,
    pub origin: EpochId,
}

/// References to a run beyond the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareItem {
    pub blocks: u32,
    /// At least 1.
    pub count: u32,
}

/// `count` pointers that a holder has dropped; their meaning is decided later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingItem {
    pub pointer: Pointer,
    pub content: Content,
    pub count: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeadDisk {
    blocks_less_1: u8,
    content: u8,
    count: U32,
    origin: U64,
}
const _: () = assert!(size_of::<DeadDisk>() == DeadItem::BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ShareDisk {
    blocks_less_1: u8,
    count: U32,
}
const _: () = assert!(size_of::<ShareDisk>() == ShareItem::BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PendingDisk {
    addr: U64,
    blocks: U32,
    content: u8,
    count: U32,
    epoch: U64,
    origin: U64,
}
const _: () = assert!(size_of::<PendingDisk>() == PendingItem::BYTES);

pub fn dead_key(epoch: EpochId, addr: BlockAddr) -> Key {
    Key::new(epoch.0, DEAD, addr.raw())
}

pub fn share_key(addr: BlockAddr) -> Key {
    Key::new(LISTS, SHARE, addr.raw())
}

/// `sequence` distinguishes the releases of one holder.
pub fn pending_key(holder: EpochId, sequence: u64) -> Key {
    Key::new(holder.0, PENDING, sequence)
}

impl Content {
    fn parse(what: &'static str, value: u8) -> Result<Content, FormatError> {
        match value {
            0 => Ok(Content::Data),
            1 => Ok(Content::Node),
            _ => Err(FormatError::Field { what, field: "content", value: value.into() }),
        }
    }
}

/// A segment of `blocks` blocks at `addr` lies in one window.
fn check_segment(what: &'static str, addr: BlockAddr, blocks: u32) -> Result<(), FormatError> {
    let window = u64::from(WINDOW_BLOCKS);
    if addr.block() % window + u64::from(blocks) > window {
        return Err(FormatError::Field { what, field: "blocks", value: blocks.into() });
    }
    Ok(())
}

fn check_count(what: &'static str, count: u32) -> Result<(), FormatError> {
    match count {
        0 => Err(FormatError::Field { what, field: "count", value: 0 }),
        _ => Ok(()),
    }
}

impl DeadItem {
    pub const BYTES: usize = 14;
    const WHAT: &str = "deadlist segment";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        assert!((1..=WINDOW_BLOCKS).contains(&self.blocks) && self.count > 0, "{self:?}");
        zerocopy::transmute!(DeadDisk {
            blocks_less_1: (self.blocks - 1) as u8,
            content: self.content as u8,
            count: self.count.into(),
            origin: self.origin.0.into(),
        })
    }

    /// The segment at the address that `key` has.
    pub fn parse(key: Key, value: &[u8]) -> Result<DeadItem, FormatError> {
        let disk = DeadDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let (blocks, count) = (u32::from(disk.blocks_less_1) + 1, disk.count.get());
        check_segment(Self::WHAT, BlockAddr::from_raw(key.offset), blocks)?;
        check_count(Self::WHAT, count)?;
        let content = Content::parse(Self::WHAT, disk.content)?;
        Ok(DeadItem { blocks, content, count, origin: EpochId(disk.origin.get()) })
    }
}

impl ShareItem {
    pub const BYTES: usize = 5;
    const WHAT: &str = "share";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        assert!((1..=WINDOW_BLOCKS).contains(&self.blocks) && self.count > 0, "{self:?}");
        zerocopy::transmute!(ShareDisk {
            blocks_less_1: (self.blocks - 1) as u8,
            count: self.count.into(),
        })
    }

    /// The segment at the address that `key` has.
    pub fn parse(key: Key, value: &[u8]) -> Result<ShareItem, FormatError> {
        let disk = ShareDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let (blocks, count) = (u32::from(disk.blocks_less_1) + 1, disk.count.get());
        check_segment(Self::WHAT, BlockAddr::from_raw(key.offset), blocks)?;
        check_count(Self::WHAT, count)?;
        Ok(ShareItem { blocks, count })
    }
}

impl PendingItem {
    pub const BYTES: usize = 33;
    const WHAT: &str = "pending release";

    pub fn encode(&self) -> [u8; Self::BYTES] {
        assert!(self.count > 0, "{self:?}");
        let Pointer { run, epoch, origin } = self.pointer;
        zerocopy::transmute!(PendingDisk {
            addr: run.addr.raw().into(),
            blocks: run.blocks.into(),
            content: self.content as u8,
            count: self.count.into(),
            epoch: epoch.0.into(),
            origin: origin.0.into(),
        })
    }

    pub fn parse(value: &[u8]) -> Result<PendingItem, FormatError> {
        let disk = PendingDisk::ref_from_bytes(value)
            .map_err(|_| FormatError::Short { what: Self::WHAT, len: value.len() })?;
        let (addr, blocks) = (BlockAddr::from_raw(disk.addr.get()), disk.blocks.get());
        if blocks == 0 || addr.block() + u64::from(blocks) > BlockAddr::MAX_BLOCK {
            let value = blocks.into();
            return Err(FormatError::Field { what: Self::WHAT, field: "blocks", value });
        }
        let count = disk.count.get();
        check_count(Self::WHAT, count)?;
        let content = Content::parse(Self::WHAT, disk.content)?;
        let (epoch, origin) = (EpochId(disk.epoch.get()), EpochId(disk.origin.get()));
        Ok(PendingItem {
            pointer: Pointer { run: Run::new(addr, blocks), epoch, origin },
            content,
            count,
        })
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;
    use proptest::prelude::*;

    use super::*;

    fn content(node: bool) -> Content {
        if node { Content::Node } else { Content::Data }
    }

    #[test]
    fn a_segment_across_windows_or_of_nothing_is_refused() {
        let item = DeadItem { blocks: 4, content: Content::Data, count: 1, origin: EpochId(2) };
        let at = |block| dead_key(EpochId(1), BlockAddr::new(DeviceId(0), block));
        assert_eq!(DeadItem::parse(at(28), &item.encode()), Ok(item));
        assert!(DeadItem::parse(at(29), &item.encode()).is_err());
        let mut bytes = item.encode();
        bytes[2] = 0;
        assert!(DeadItem::parse(at(28), &bytes).is_err());
        let share = ShareItem { blocks: 32, count: 1 };
        let at = |block| share_key(BlockAddr::new(DeviceId(0), block));
        assert_eq!(ShareItem::parse(at(64), &share.encode()), Ok(share));
        assert!(ShareItem::parse(at(65), &share.encode()).is_err());
    }

    proptest! {
        #[test]
        fn items_come_back_as_they_were(
            block in 0..BlockAddr::MAX_BLOCK - 40,
            blocks in 1..=WINDOW_BLOCKS,
            count in 1..=u32::MAX,
            numbers in any::<[u64; 2]>(),
            node in any::<bool>(),
        ) {
            let [epoch, origin] = numbers.map(EpochId);
            let addr = BlockAddr::new(DeviceId(3), block / 32 * 32);
            let dead = DeadItem { blocks, content: content(node), count, origin };
            prop_assert_eq!(DeadItem::parse(dead_key(epoch, addr), &dead.encode()), Ok(dead));
            let share = ShareItem { blocks, count };
            prop_assert_eq!(ShareItem::parse(share_key(addr), &share.encode()), Ok(share));
            let pointer = Pointer { run: Run::new(addr, blocks), epoch, origin };
            let pending = PendingItem { pointer, content: content(node), count };
            prop_assert_eq!(PendingItem::parse(&pending.encode()), Ok(pending));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            offset in any::<u64>(),
        ) {
            let _ = DeadItem::parse(Key::new(1, DEAD, offset), &bytes);
            let _ = ShareItem::parse(Key::new(0, SHARE, offset), &bytes);
            let _ = PendingItem::parse(&bytes);
        }
    }
}
