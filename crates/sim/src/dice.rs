//! Choices by a seed.

use std::ops::Range;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Whatever a history chooses, it chooses by these.
#[derive(Clone, Debug)]
pub struct Dice(Xoshiro256PlusPlus);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Separate dice for one client: its throws do not depend on the other clients.
    pub fn fork(&mut self) -> Dice {
        Dice::new(self.number())
    }

    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 up to `end - 1`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number of any magnitude below `2^bits`: small ones are as likely as large ones.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.below(1 << bits)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub fn pick_ref<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
