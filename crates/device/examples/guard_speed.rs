//! Measures guards of 4 KiB on one thread: GB/s and microseconds a block, the best of rounds.

#![allow(clippy::disallowed_methods, reason = "a clock is the point of this program")]

use std::hint::black_box;
use std::time::Instant;

use copyhold_device::pi::Guard;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: usize = 4096;
const ROUNDS: usize = 50;

fn main() {
    let data: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|n| ((n * 31) >> 3) as u8).collect();
    for guard in Guard::ALL {
        let seconds = (0..ROUNDS).map(|_| seconds(guard, &data)).fold(f64::MAX, f64::min);
        let (speed, each) = (data.len() as f64 / seconds / 1e9, seconds / BLOCKS as f64 * 1e6);
        println!("| `{guard}` | {speed:.1} | {each:.2} |");
    }
}

fn seconds(guard: Guard, data: &[u8]) -> f64 {
    let begin = Instant::now();
    for block in data.chunks_exact(BLOCK_BYTES) {
        black_box(guard.of(black_box(block), &[]));
    }
    begin.elapsed().as_secs_f64()
}
