//! Changed inputs, from a seed: the same ones each time.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

/// Longer inputs are cut.
const LEN_MAX: usize = 16 << 10;
/// Numbers at which programs err.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// The `round`th change of what is there to begin with.
pub fn mutated(inputs: &[Vec<u8>], round: u64) -> Vec<u8> {
    let mut dice = Dice(Xoshiro256PlusPlus::seed_from_u64(round));
    let mut bytes = inputs.get(dice.below(inputs.len())).cloned().unwrap_or_default();
    for _ in 0..1 + dice.below(4) {
        change(&mut bytes, inputs, &mut dice);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// Less than `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end.max(1) as u64) as usize
    }
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let most = 1 << dice.below(7);
    let len = (1 + dice.below(most)).min(bytes.len() - at);
    match dice.below(8) {
        0 => bytes[at..at + len.min(1)].iter_mut().for_each(|byte| *byte ^= 1 << dice.below(8)),
        1 => bytes[at..at + len].iter_mut().for_each(|byte| *byte = dice.below(256) as u8),
        2 => {
            let number = EDGES[dice.below(EDGES.len())].to_le_bytes();
            let width = (1 << dice.below(4)).min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        3 => drop(bytes.drain(at..at + len)),
        4 => {
            let again = bytes[at..at + len].to_vec();
            bytes.splice(at..at, again);
        }
        5 => {
            let new: Vec<u8> = (0..1 + dice.below(16)).map(|_| dice.below(256) as u8).collect();
            bytes.splice(at..at, new);
        }
        6 => {
            let other = &inputs[dice.below(inputs.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        _ => bytes.truncate(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_one_input_and_rounds_differ() {
        let inputs = [b"one input".to_vec(), b"another one".to_vec()];
        let all: Vec<_> = (0..50).map(|round| mutated(&inputs, round)).collect();
        assert_eq!(all, (0..50).map(|round| mutated(&inputs, round)).collect::<Vec<_>>());
        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 30, "{} of 50", distinct.len());
    }

    #[test]
    fn nothing_to_begin_with_is_an_input_too() {
        (0..50).for_each(|round| drop(mutated(&[Vec::new()], round)));
    }
}
