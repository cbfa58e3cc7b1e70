//! Targets for libFuzzer: everything that parses bytes from a device. Any bytes give an answer or
//! an error, never a panic; and what parses is encoded again as it was.
//!
//! ```text
//!   cargo install cargo-fuzz
//!   cargo +nightly fuzz run node              from the directory `fuzz`, until it is stopped
//!   cargo +nightly fuzz run node -- -max_total_time=60
//! ```
//!
//! CI runs the same properties with a bounded number of random inputs: unit tests beside the code.

#![forbid(unsafe_code)]

use copyhold_format::digest;

/// Where labels and uberblocks have their digest.
const DIGEST_AT: usize = 32;

/// One block that begins with `data`.
pub fn block(data: &[u8]) -> Vec<u8> {
    let mut block = data[..data.len().min(4096)].to_vec();
    block.resize(4096, 0);
    block
}

/// Makes the digest of a label or an uberblock right, so that the fuzzer gets behind it.
pub fn set_digest(block: &mut [u8]) {
    block[DIGEST_AT..DIGEST_AT + 16].fill(0);
    let sum = digest(block);
    block[DIGEST_AT..DIGEST_AT + 16].copy_from_slice(&sum.0.to_le_bytes());
}
