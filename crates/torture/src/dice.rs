//! Random choices: the same for the same seed, round and thread.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

pub struct Dice(Xoshiro256PlusPlus);

impl Dice {
    pub fn new(seed: u64, round: u64, thread: u64) -> Dice {
        let mixed = seed ^ round.rotate_left(24) ^ thread.rotate_left(48);
        Dice(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        let wide = u128::from(self.0.next_u64()) * end as u128;
        (wide >> 64) as usize
    }

    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len())])
    }
}
