//! The content of a simulated medium: sparse blocks, shared between copies.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use copyhold_types::BLOCK_BYTES;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::RngCore;

/// The unit at which a crash may tear a write.
pub const SECTOR_BYTES: usize = 512;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

pub(super) type Block = [u8; BLOCK_BYTES];

/// The content that a write brings to one block; `None` makes a hole, which reads as zeros.
pub(super) type Content = Option<Arc<Block>>;

/// The content of a device at one moment. A clone costs a map, not the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimImage {
    blocks: u64,
    held: BTreeMap<u64, Arc<Block>>,
}

impl SimImage {
    /// All zeros, nothing allocated.
    pub fn empty(blocks: u64) -> SimImage {
        SimImage { blocks, held: BTreeMap::new() }
    }

    /// Size in blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Changes the length; blocks behind a smaller one are lost.
    pub(super) fn set_blocks(&mut self, blocks: u64) {
        self.blocks = blocks;
        self.held.split_off(&blocks);
    }

    /// How many blocks are not holes.
    pub fn held_blocks(&self) -> u64 {
        self.held.len() as u64
    }

    pub fn read_block(&self, block: u64) -> [u8; BLOCK_BYTES] {
        self.held.get(&block).map_or([0; BLOCK_BYTES], |content| **content)
    }

    pub(super) fn content(&self, block: u64) -> Content {
        self.held.get(&block).cloned()
    }

    /// Copies the content of a block into `place`, which is zeros.
    pub(super) fn read_into(&self, block: u64, place: &mut [u8]) {
        if let Some(content) = self.held.get(&block) {
            place.copy_from_slice(&content[..]);
        }
    }

    /// Changes one block in place, as damage does.
    pub fn corrupt(&mut self, block: u64, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        assert!(block < self.blocks, "block {block} of a device with {}", self.blocks);
        let mut content = self.read_block(block);
        change(&mut content);
        self.held.insert(block, Arc::new(content));
    }

    pub(super) fn is_held(&self, block: u64) -> bool {
        self.held.contains_key(&block)
    }

    /// The blocks of a range that are not holes.
    pub(super) fn held_in(&self, block: u64, blocks: u64) -> Vec<u64> {
        self.held.range(block..block + blocks).map(|(block, _)| *block).collect()
    }

    /// Sets the content of one block; `None` makes a hole.
    pub fn put(&mut self, block: u64, content: Option<Arc<[u8; BLOCK_BYTES]>>) {
        assert!(block < self.blocks, "block {block} of a device with {}", self.blocks);
        match content {
            Some(content) => drop(self.held.insert(block, content)),
            None => drop(self.held.remove(&block)),
        }
    }

    /// Puts the sectors of `content` that `sectors` has a bit for.
    pub(super) fn put_torn(&mut self, block: u64, content: &Content, sectors: u8) {
        if sectors == u8::MAX {
            return self.put(block, content.clone());
        }
        if sectors == 0 {
            return;
        }
        let held = match self.held.entry(block) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Arc::new([0; BLOCK_BYTES])),
        };
        let held = Arc::make_mut(held);
        for sector in (0..SECTORS).filter(|sector| sectors & 1 << sector != 0) {
            let at = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            match content {
                Some(content) => held[at.clone()].copy_from_slice(&content[at]),
                None => held[at].fill(0),
            }
        }
    }
}

/// How much of a write that no flush covered is found after a crash.
#[derive(Clone, Copy)]
pub(super) enum Survival {
    All,
    Nothing,
    /// A coin for each sector.
    Sectors,
    /// Up to a point, as a device does that writes in order.
    Prefix,
}

impl Survival {
    pub(super) fn pick(rng: &mut Xoshiro256PlusPlus) -> Survival {
        match rng.next_u64() % 8 {
            0..3 => Survival::All,
            3..6 => Survival::Nothing,
            6 => Survival::Sectors,
            _ => Survival::Prefix,
        }
    }

    /// Applies the surviving part of a write.
    pub(super) fn apply(
        self,
        image: &mut SimImage,
        write: &[(u64, Content)],
        rng: &mut Xoshiro256PlusPlus,
    ) {
        let cut = rng.next_u64() % (write.len() as u64 * SECTORS as u64 + 1);
        for (i, (block, content)) in write.iter().enumerate() {
            let first = (i * SECTORS) as u64;
            let sectors = match self {
                Survival::All => u8::MAX,
                Survival::Nothing => 0,
                Survival::Sectors => rng.next_u64() as u8,
                Survival::Prefix if cut >= first + SECTORS as u64 => u8::MAX,
                Survival::Prefix => (1_u8 << cut.saturating_sub(first)) - 1,
            };
            image.put_torn(*block, content, sectors);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng;

    use super::*;

    fn block(byte: u8) -> Content {
        Some(Arc::new([byte; BLOCK_BYTES]))
    }

    #[test]
    fn a_copy_does_not_see_later_changes() {
        let mut a = SimImage::empty(10);
        a.put(3, block(1));
        let b = a.clone();
        a.corrupt(3, |bytes| bytes[7] = 9);
        assert_eq!((a.read_block(3)[7], b.read_block(3)[7]), (9, 1));
        assert_eq!(b.read_block(4), [0; BLOCK_BYTES]);
    }

    #[test]
    fn a_prefix_ends_at_one_sector_and_all_before_it_are_new() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for _ in 0..200 {
            let mut image = SimImage::empty(10);
            let write = [(4, block(5)), (5, block(5)), (6, block(5))];
            Survival::Prefix.apply(&mut image, &write, &mut rng);
            let bytes: Vec<u8> = (4..7).flat_map(|block| image.read_block(block)).collect();
            let new = bytes.iter().take_while(|byte| **byte == 5).count();
            assert_eq!(new % SECTOR_BYTES, 0);
            assert!(bytes[new..].iter().all(|byte| *byte == 0));
        }
    }
}
