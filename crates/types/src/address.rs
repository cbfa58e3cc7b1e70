//! Where bytes are: device, block, run.

use std::fmt;

/// The unit of allocation and of device addresses, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// A device of the pool. Never reused, even after the device is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// One block of one device. On disk and in sort order a `u64`: 16 bits of device, 48 of block.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(u64);

impl BlockAddr {
    const BLOCK_BITS: u32 = 48;
    /// Largest block number that an address can hold.
    pub const MAX_BLOCK: u64 = (1 << Self::BLOCK_BITS) - 1;

    /// `block` counts 4 KiB blocks from the start of the device; at most [`Self::MAX_BLOCK`].
    pub fn new(device: DeviceId, block: u64) -> BlockAddr {
        assert!(block <= Self::MAX_BLOCK, "block {block} does not fit an address");
        BlockAddr(u64::from(device.0) << Self::BLOCK_BITS | block)
    }

    /// The packed form, as on disk. Any `u64` is a well-formed address (not always an existing
    /// one).
    pub fn from_raw(raw: u64) -> BlockAddr {
        BlockAddr(raw)
    }

    pub fn raw(self) -> u64 {
        self.0
    }

    pub fn device(self) -> DeviceId {
        DeviceId((self.0 >> Self::BLOCK_BITS) as u16)
    }

    pub fn block(self) -> u64 {
        self.0 & Self::MAX_BLOCK
    }

    /// The address `blocks` further on the same device.
    pub fn offset(self, blocks: u64) -> BlockAddr {
        BlockAddr::new(self.device(), self.block() + blocks)
    }
}

impl fmt::Debug for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device().0, self.block())
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Consecutive blocks of one device; never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    pub addr: BlockAddr,
    pub blocks: u32,
}

impl Run {
    pub fn new(addr: BlockAddr, blocks: u32) -> Run {
        assert!(blocks > 0, "a run is never empty");
        Run { addr, blocks }
    }

    /// First block behind the run.
    pub fn end(self) -> u64 {
        self.addr.block() + u64::from(self.blocks)
    }

    pub fn contains(self, addr: BlockAddr) -> bool {
        let blocks = self.addr.block()..self.end();
        addr.device() == self.addr.device() && blocks.contains(&addr.block())
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES as u64
    }

    /// `blocks` blocks of this run from its `skip`th.
    pub fn slice(self, skip: u32, blocks: u32) -> Run {
        assert!(skip + blocks <= self.blocks, "slice {skip}+{blocks} of {self:?}");
        Run::new(self.addr.offset(u64::from(skip)), blocks)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.addr, self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_device_and_block_apart() {
        let addr = BlockAddr::new(DeviceId(7), 123_456);
        assert_eq!((addr.device(), addr.block()), (DeviceId(7), 123_456));
        assert_eq!(BlockAddr::from_raw(addr.raw()), addr);
        assert_eq!(Run::new(addr, 8).slice(3, 5), Run::new(addr.offset(3), 5));
    }
}
