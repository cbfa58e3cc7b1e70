//! Eviction of a memory group's caches, as an operator orders it.
//!
//! Nodes, clean data and inodes are in shards, each under a lock of its own. Each shard gives an
//! even part of the bytes first; in a second round shards that have more give what is missing. The
//! task lets others run after each shard.

use copyhold_memory::{MemoryClass, MemoryOwner};
use copyhold_pool::{CachePart, cache_parts};
use copyhold_runtime::yield_now;

use crate::Filesystem;

/// A shard of a cache.
#[derive(Clone, Copy)]
enum Part<'a> {
    Of(CachePart<'a>),
    Inodes(usize),
}

/// Evicts `bytes` of a group and of all that it holds, if there are as many, with the promises of
/// [`Memory::reclaim_below`]. Returns the bytes that were evicted, by class.
///
/// [`Memory::reclaim_below`]: copyhold_memory::Memory::reclaim_below
pub async fn evict(fs: &Filesystem, group: &MemoryOwner, bytes: u64) -> Vec<(MemoryClass, u64)> {
    let inodes = (0..fs.inodes.shards()).map(Part::Inodes);
    let parts: Vec<Part<'_>> = cache_parts(&fs.pool).map(Part::Of).chain(inodes).collect();
    let classes = [MemoryClass::Node, MemoryClass::Data, MemoryClass::Inode];
    let mut freed = classes.map(|class| (class, 0));
    let mut left = bytes;
    for is_even in [true, false] {
        for (at, part) in parts.iter().enumerate() {
            let need = if is_even { left.div_ceil((parts.len() - at) as u64) } else { left };
            if need == 0 {
                break;
            }
            let of = part.evict(fs, group, need);
            let sum = freed.iter_mut().find(|(class, _)| *class == part.class());
            sum.expect("all classes are there").1 += of;
            left = left.saturating_sub(of);
            yield_now().await;
        }
    }
    freed.to_vec()
}

impl Part<'_> {
    fn class(self) -> MemoryClass {
        match self {
            Part::Of(part) => part.class(),
            Part::Inodes(_) => MemoryClass::Inode,
        }
    }

    fn evict(self, fs: &Filesystem, group: &MemoryOwner, bytes: u64) -> u64 {
        match self {
            Part::Of(part) => part.evict(group, bytes),
            Part::Inodes(shard) => fs.inodes.reclaim_in(shard, group, bytes),
        }
    }
}
