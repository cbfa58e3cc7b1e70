//! Where a job reads or writes next, and what: the same history on each target.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use copyhold_harness::Interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::error::{BenchError, On};

/// The unit of random jobs.
pub(crate) const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum Order {
    /// Each place as likely as any other.
    Random,
    /// Each place that is kept as likely as any other.
    Kept(Kept),
    /// One behind the other; behind the last the first.
    Sequential { next: u64 },
}

/// Which units of a file are kept and which are freed: each by itself, at random.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// The share of units that are freed, below 100.
    pub(crate) freed_percent: u32,
    pub(crate) seed: u64,
}

impl Kept {
    pub(crate) fn has(self, index: u64) -> bool {
        let seed = self.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = Xoshiro256PlusPlus::seed_from_u64(seed).next_u64();
        below(draw, 100) >= u64::from(self.freed_percent)
    }
}

/// A number below `limit`, from a uniform draw.
fn below(draw: u64, limit: u64) -> u64 {
    ((u128::from(draw) * u128::from(limit)) >> 64) as u64
}

/// A file of `units` units, and an order in which they are touched.
pub(crate) struct Places {
    rng: Xoshiro256PlusPlus,
    order: Order,
    unit: usize,
    units: u64,
}

impl Places {
    /// Blocks at random, another history for each `seed`.
    pub(crate) fn random(blocks: u64, seed: u64) -> Places {
        Places::new(Order::Random, BLOCK, blocks, seed)
    }

    /// Kept blocks at random; there is one at least.
    pub(crate) fn kept(blocks: u64, kept: Kept, seed: u64) -> Places {
        assert!((0..blocks).any(|index| kept.has(index)), "all of {blocks} blocks are freed");
        Places::new(Order::Kept(kept), BLOCK, blocks, seed)
    }

    /// Pieces of `unit` bytes, a multiple of a block, in order.
    pub(crate) fn sequential(unit: usize, units: u64, seed: u64) -> Places {
        Places::new(Order::Sequential { next: 0 }, unit, units, seed)
    }

    /// Blocks in order, from block `next` on.
    pub(crate) fn blocks_from(next: u64, blocks: u64, seed: u64) -> Places {
        Places::new(Order::Sequential { next }, BLOCK, blocks, seed)
    }

    fn new(order: Order, unit: usize, units: u64, seed: u64) -> Places {
        assert!(unit.is_multiple_of(BLOCK), "direct I/O is in blocks");
        Places { rng: Xoshiro256PlusPlus::seed_from_u64(seed), order, unit, units }
    }

    /// Bytes that are read or written at once.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    pub(crate) fn next_offset(&mut self) -> u64 {
        let index = match &mut self.order {
            Order::Random => below(self.rng.next_u64(), self.units),
            Order::Kept(kept) => loop {
                let index = below(self.rng.next_u64(), self.units);
                if kept.has(index) {
                    break index;
                }
            },
            Order::Sequential { next } => {
                let index = *next;
                *next = (index + 1) % self.units;
                index
            }
        };
        index * self.unit as u64
    }

    /// No block is like another, and that costs little: each 64 bytes begin with a random word.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for line in bytes.chunks_exact_mut(64) {
            line[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
    }
}

/// Makes a file of `blocks` blocks, durably.
pub(crate) fn fill_file(
    path: &Path,
    blocks: u64,
    seed: u64,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    const CHUNK: usize = 256;
    let mut content = Places::random(blocks, seed);
    let file = File::create(path).on(path.display())?;
    let mut chunk = vec![0; CHUNK * BLOCK];
    let mut block = 0;
    while block < blocks {
        interrupt.check()?;
        content.fill(&mut chunk);
        let now = (blocks - block).min(CHUNK as u64);
        let bytes = &chunk[..now as usize * BLOCK];
        file.write_all_at(bytes, block * BLOCK as u64).on("filling the file")?;
        block += now;
    }
    file.sync_all().on("filling the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_the_file_and_stay_in_it() {
        let mut places = Places::random(10, 1);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            let offset = places.next_offset();
            assert_eq!(offset % BLOCK as u64, 0);
            seen[(offset / BLOCK as u64) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }

    #[test]
    fn of_the_kept_places_each_is_used_and_no_freed_one() {
        let kept = Kept { freed_percent: 22, seed: 5 };
        let count = (0..10_000).filter(|&index| kept.has(index)).count();
        assert!((7_600..8_000).contains(&count), "{count} of 10,000 are kept");
        let mut places = Places::kept(50, kept, 1);
        let used: std::collections::BTreeSet<u64> =
            (0..2000).map(|_| places.next_offset() / BLOCK as u64).collect();
        assert!(used.iter().copied().eq((0..50).filter(|&index| kept.has(index))));
        let all = Kept { freed_percent: 0, seed: 5 };
        assert!((0..100).all(|index| all.has(index)));
    }

    #[test]
    fn in_order_the_first_comes_behind_the_last() {
        let mut places = Places::sequential(2 * BLOCK, 3, 1);
        let offsets: Vec<u64> = (0..4).map(|_| places.next_offset()).collect();
        assert_eq!(offsets, [0, 8192, 16384, 0]);
    }

    #[test]
    fn a_filled_file_has_its_size_and_no_two_blocks_alike() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data");
        fill_file(&path, 300, 1, &Interrupt::never()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 300 * BLOCK);
        let blocks: std::collections::BTreeSet<&[u8]> = bytes.chunks(BLOCK).collect();
        assert_eq!(blocks.len(), 300);
    }
}
