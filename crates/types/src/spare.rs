//! The memory of released buffers, for the next ones.
//!
//! Problem.  Each block that is read or written is in a buffer that lives as long as its request.
//!           Fresh memory for it costs a page fault and a clearing of each page, and the thread
//!           that frees it may be another than the one that takes it.
//! Idea.     Freed memory is kept by its size, for all threads, in the sizes that requests have,
//!           and not more than [`keep_spare`] says.
//!
//! Content of one tenant can be in the next one's buffer until that is overwritten, so only a
//! caller that overwrites all of it, or fills up the rest, may take it: `buf` ensures that.

// Not the locks of `parking_lot`: a checker that replaces those ends them with each execution.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zerocopy::FromZeros;

use crate::BLOCK_BYTES;
use crate::block::Block;

/// Sizes are powers of two below this one, in blocks: up to 256 KiB, the largest request of FUSE.
const SIZES: usize = 7;

static SPARE: [Mutex<Vec<Vec<Block>>>; SIZES] = [const { Mutex::new(Vec::new()) }; SIZES];

/// The maximum that is kept of each size, in bytes.
static BYTES_MAX: AtomicUsize = AtomicUsize::new(4 << 20);

/// From now on at most `bytes` are kept for buffers to come, 4 MiB of a size at most.
pub fn keep_spare(bytes: usize) {
    BYTES_MAX.store((bytes / SIZES).min(4 << 20), Ordering::Relaxed);
}

/// Memory of `blocks` blocks, with arbitrary content.
pub(crate) fn take(blocks: usize) -> Vec<Block> {
    kept(blocks).unwrap_or_else(|| fresh(blocks))
}

/// The same, all zeros.
pub(crate) fn take_zeroed(blocks: usize) -> Vec<Block> {
    let Some(mut memory) = kept(blocks) else { return fresh(blocks) };
    memory.as_mut_slice().zero();
    memory
}

fn kept(blocks: usize) -> Option<Vec<Block>> {
    of_size(blocks)?.pop()
}

fn fresh(blocks: usize) -> Vec<Block> {
    Block::new_vec_zeroed(blocks).expect("memory for a buffer")
}

/// Keeps memory that has no owner any more.
pub(crate) fn give_back(memory: Vec<Block>) {
    let Some(mut spare) = of_size(memory.len()) else { return };
    if (spare.len() + 1) * memory.len() * BLOCK_BYTES <= BYTES_MAX.load(Ordering::Relaxed) {
        spare.push(memory);
    }
}

fn of_size(blocks: usize) -> Option<MutexGuard<'static, Vec<Vec<Block>>>> {
    let size = blocks.is_power_of_two().then(|| SPARE.get(blocks.ilog2() as usize))??;
    // A list is whole at any time.
    Some(size.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_kept_up_to_a_limit_in_sizes_that_requests_have() {
        // No other test of this crate has buffers of this size.
        const BLOCKS: usize = 32;
        let most = BYTES_MAX.load(Ordering::Relaxed) / (BLOCKS * BLOCK_BYTES);
        (0..most + 3).for_each(|_| give_back(fresh(BLOCKS)));
        assert_eq!(of_size(BLOCKS).unwrap().len(), most);
        let taken = take(BLOCKS);
        assert_eq!(taken.len(), BLOCKS);
        assert_eq!(of_size(BLOCKS).unwrap().len(), most - 1);
        for blocks in [0, 3, 33, 128] {
            assert!(of_size(blocks).is_none());
            assert_eq!(take(blocks).len(), blocks);
            give_back(fresh(blocks));
        }
    }
}
