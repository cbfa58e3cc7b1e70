//! One budget for the daemon's memory, divided among its users (P15, docs/memory.md).
//!
//! Problem.  Caches and buffers have limits of their own, each where it is, and a user who has so
//!           much for this daemon knows none of them.
//! Idea.     Fixed shares of the rest when the process and the space maps have theirs; the
//!           cache of nodes takes the rest, since it can do with little and use any amount.
//!
//! MEMORY-M1  All shares, with the fixed memory and the memory that the allocator may retain, are
//!            within the budget.

use copyhold_types::{BLOCK_BYTES, BlockAddr};

const MIB: u64 = 1 << 20;

/// The default budget is never less or more.
const USUAL: (u64, u64) = (128 * MIB, 4096 * MIB);
/// Hundredths of the budget: the allocator keeps freed memory that has neighbours in use, and
/// rounds up. With a thousand tenants, 113 MiB were resident for 83 in use.
const USABLE: u64 = 72;
/// The process, its threads and its code.
const PROCESS: u64 = 16 * MIB;
/// Maps of a large pool: a part of the budget, at least so much.
const MAPS_PART: u64 = 16;
const MAPS_MIN: u64 = 8 * MIB;
/// The least that is shared out.
const REST_MIN: u64 = 52 * MIB;
/// A dirty block takes 4 KiB, and where only one of a file is dirty up to another one.
const DIRTY_BLOCK: u64 = BLOCK_BYTES as u64 + 1024;
/// An inode in memory.
pub const INODE_BYTES: u64 = 512;
/// A node that the front end holds.
pub const LOOKUP_BYTES: u64 = 64;
/// An absent name, with its part of a hash table.
pub const NAME_BYTES: u64 = 72;
/// An edit while it is replayed: in the log, unpacked, and where it belongs.
const REPLAYED: u64 = 160;
/// The largest request of data. A write by a ring is in memory twice until it is answered.
const REQUEST: u64 = 256 << 10;
/// Background requests that the kernel has under way, at least and at most: few of one tenant must
/// not keep those of others away (P20).
const BACKGROUND: (u64, u64) = (64, 4096);

/// The memory that there is for this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    pub memory: u64,
    /// The limit of its control group.
    pub group: Option<u64>,
}

/// The size of a pool, as far as memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    pub blocks: u64,
    /// Of each metaslab.
    pub metaslab_blocks: u64,
}

/// The bytes of each share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// All of it.
    pub budget: u64,
    /// The limit of a control group that leaves less than the pool needs.
    pub tight_group: Option<u64>,
    /// Buffers of requests.
    pub requests: u64,
    pub dirty: u64,
    pub delta: u64,
    pub inodes: u64,
    pub lookups: u64,
    pub names: u64,
    pub nodes: u64,
    /// The blocks of the largest pool for which the same choices are no error.
    pub blocks_max: u64,
    /// The most for space maps. Where all of them take less, the rest of it is shared out.
    pub maps: u64,
}

/// A budget that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharesError {
    #[error("a budget of {budget} bytes is too small: a pool of this size needs at least {least}")]
    TooLittle { budget: u64, least: u64 },
    #[error("{delta} bytes of edits exceed a budget of {budget} bytes; at most {most} fit")]
    TooManyEdits { delta: u64, budget: u64, most: u64 },
}

impl Shares {
    /// `budget`: the user's choice, or one that suits the machine. `delta`: the user's choice.
    pub fn of(
        budget: Option<u64>,
        delta: Option<u64>,
        pool: PoolSize,
        machine: AvailableMemory,
    ) -> Result<Shares, SharesError> {
        let of = |blocks| Shares::of_size(budget, delta, PoolSize { blocks, ..pool }, machine);
        let shares = of(pool.blocks)?;
        Ok(Shares { blocks_max: largest(pool.blocks, |blocks| of(blocks).is_ok()), ..shares })
    }

    fn of_size(
        budget: Option<u64>,
        delta: Option<u64>,
        pool: PoolSize,
        machine: AvailableMemory,
    ) -> Result<Shares, SharesError> {
        let all = maps(pool.blocks);
        let fixed = PROCESS + metaslabs(pool);
        let least = (fixed + all.min(MAPS_MIN) + REST_MIN) * 100 / USABLE;
        let (budget, tight_group) = match budget {
            Some(budget) => (budget, None),
            None => by_default(machine, least),
        };
        if budget < least {
            return Err(SharesError::TooLittle { budget, least });
        }
        let left = budget / 100 * USABLE - fixed;
        let maps = (budget / MAPS_PART).max(MAPS_MIN).min(left.saturating_sub(REST_MIN));
        let rest = left - all.min(maps);
        let divided = Shares::divided(budget, rest, delta);
        divided.map(|shares| Shares { tight_group, maps, ..shares }).map_err(|most| {
            let delta = delta.unwrap_or_default();
            SharesError::TooManyEdits { delta, budget, most }
        })
    }

    /// If that much `delta` does not fit, the error is what does.
    fn divided(budget: u64, rest: u64, delta: Option<u64>) -> Result<Shares, u64> {
        let shares = Shares {
            budget,
            tight_group: None,
            requests: (rest / 4).min(BACKGROUND.1 * 2 * REQUEST),
            dirty: (rest / 5).min(80 * MIB),
            delta: delta.unwrap_or((rest / 4).min(64 * MIB)),
            inodes: (rest / 8).min(64 * MIB),
            lookups: rest / 16,
            names: 0,
            nodes: 0,
            blocks_max: 0,
            maps: 0,
        };
        let Shares { requests, dirty, delta, inodes, lookups, .. } = shares;
        let left = rest - (requests + dirty + inodes + lookups);
        let left = left.checked_sub(delta).ok_or(left)?;
        // A small budget has little left for nodes.
        let names = (rest / 16).min(left / 8);
        Ok(Shares { names, nodes: left - names, ..shares })
    }

    /// Bytes for buffers that requests come in, before small ones are copied out of large ones.
    pub fn request_buffers(&self) -> u64 {
        (self.requests - self.spare()).min(64 * MIB)
    }

    /// Bytes for unused buffers.
    pub fn spare(&self) -> u64 {
        (self.requests / 4).min(28 * MIB)
    }

    /// Requests that the kernel may have under way in the background.
    pub fn background(&self) -> u64 {
        (self.requests / (2 * REQUEST)).clamp(BACKGROUND.0, BACKGROUND.1)
    }

    /// Edits that recovery may replay: it has nothing else in memory yet.
    pub fn replay_edits(&self) -> u64 {
        let Shares { dirty, delta, inodes, lookups, names, nodes, .. } = self;
        (dirty + delta + inodes + lookups + names + nodes) / REPLAYED
    }

    /// Bytes of one copy of the log that users may fill: as recovery has the records in memory
    /// beside their edits, half of what edits may take.
    pub fn log_bytes(&self) -> u64 {
        self.replay_edits() * REPLAYED / 2
    }

    /// Bytes of file data that may be dirty.
    pub fn dirty_data(&self) -> u64 {
        self.dirty / DIRTY_BLOCK * BLOCK_BYTES as u64
    }

    /// How many inodes may be in memory.
    pub fn inodes_max(&self) -> u64 {
        self.inodes / INODE_BYTES
    }

    /// How many absent names may be known.
    pub fn names_max(&self) -> u64 {
        self.names / NAME_BYTES
    }

    /// How many nodes the front end may hold.
    pub fn lookups_max(&self) -> u64 {
        self.lookups / LOOKUP_BYTES
    }
}

/// The largest number of blocks that `fits`, as `least` does, and all below.
fn largest(least: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut fitting, mut beyond) = (least, BlockAddr::MAX_BLOCK.max(least) + 1);
    while beyond - fitting > 1 {
        let between = fitting.midpoint(beyond);
        *(if fits(between) { &mut fitting } else { &mut beyond }) = between;
    }
    fitting
}

/// 1 KiB for each metaslab, whether its map is in memory or not, and up to as much for the places
/// of deltas, which a large metaslab has more of. A pool that has grown keeps the size of its
/// metaslabs, so it may have a hundred times as many as its size needs.
fn metaslabs(PoolSize { blocks, metaslab_blocks }: PoolSize) -> u64 {
    (blocks.div_ceil(metaslab_blocks) << 10) + blocks / 4096
}

/// All maps: two bits for each block, and a little for each MiB.
fn maps(pool_blocks: u64) -> u64 {
    pool_blocks / 4 + pool_blocks / 32
}

/// The usual budget, but what the pool needs `least` in any case; and the group's limit, if that is
/// more than half of it.
fn by_default(machine: AvailableMemory, least: u64) -> (u64, Option<u64>) {
    let tight_group = machine.group.filter(|limit| least > limit / 2);
    (usual(machine).max(least), tight_group)
}

/// An eighth of the memory that there is for this process. Of a small group it takes no more than
/// half.
fn usual(AvailableMemory { memory, group }: AvailableMemory) -> u64 {
    let group = group.unwrap_or(u64::MAX);
    (memory.min(group) / 8).clamp(USUAL.0, USUAL.1).min(group / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolSize = usual_pool((100 << 30) / BLOCK_BYTES as u64);

    /// With about as many metaslabs as `create` makes.
    const fn usual_pool(blocks: u64) -> PoolSize {
        let metaslab_blocks = if blocks < 1 << 28 { 1 << 18 } else { 1 << 22 };
        PoolSize { blocks, metaslab_blocks }
    }

    const MACHINE: AvailableMemory = AvailableMemory { memory: 8192 * MIB, group: None };

    fn of(budget: u64, delta: Option<u64>) -> Result<Shares, SharesError> {
        Shares::of(Some(budget), delta, POOL, MACHINE)
    }

    fn total(shares: Shares) -> u64 {
        let Shares { requests, dirty, delta, inodes, lookups, names, nodes, .. } = shares;
        requests + dirty + delta + inodes + lookups + names + nodes
    }

    #[test]
    fn a_small_budget_uses_a_part_of_a_large_log() {
        let log = |mib: u64| of(mib * MIB, None).unwrap().log_bytes() / MIB;
        assert!(log(128) < 30 && log(240) < 64 && log(300) > 64, "{:?}", [128, 240, 300].map(log));
        // Half of the log of a small pool is less in any case.
        assert!(log(110) > 16, "{}", log(110));
    }

    #[test]
    fn nobody_has_more_than_there_is() {
        for mib in [128, 200, 256, 512, 1024, 3072, 4096, 65_536, u64::MAX / MIB] {
            let shares = of(mib * MIB, None).unwrap();
            let maps = maps(POOL.blocks).min(shares.maps);
            let rest = total(shares) + PROCESS + metaslabs(POOL) + maps;
            assert!(rest <= mib * MIB / 100 * USABLE, "{mib}: {shares:?}");
            assert!(shares.nodes >= mib * MIB / 20, "{mib}: {shares:?}");
        }
    }

    #[test]
    fn what_is_said_of_the_delta_goes_off_the_nodes() {
        let (usual, said) = (of(512 * MIB, None).unwrap(), of(512 * MIB, Some(2 * MIB)).unwrap());
        assert_eq!((said.delta, total(said)), (2 * MIB, total(usual)));
        let Err(SharesError::TooManyEdits { most, .. }) = of(512 * MIB, Some(400 * MIB)) else {
            panic!("400 MiB of edits do not fit");
        };
        assert!(of(512 * MIB, Some(most)).is_ok() && of(512 * MIB, Some(most + 1)).is_err());
    }

    #[test]
    fn too_little_is_refused_with_what_would_do() {
        let Err(SharesError::TooLittle { least, .. }) = of(32 * MIB, None) else {
            panic!("32 MiB are too little");
        };
        assert!(of(least, None).is_ok() && of(least - 1, None).is_err());
    }

    #[test]
    fn by_default_it_is_an_eighth_of_what_the_machine_and_its_group_leave() {
        for (machine, group, budget) in [
            (8192, None, 1024),
            (8192, Some(4096), 512),
            (8192, Some(65_536), 1024),
            (8192, Some(512), 128),
            (8192, Some(200), 100),
            (512, None, 128),
            (1 << 20, None, 4096),
        ] {
            let group = group.map(|mib: u64| mib * MIB);
            let machine = AvailableMemory { memory: machine * MIB, group };
            assert_eq!(usual(machine), budget * MIB, "{machine:?}");
        }
    }

    #[test]
    fn a_group_that_is_too_small_for_the_pool_is_told() {
        let least = 95 * MIB;
        let of = |group: Option<u64>| {
            by_default(AvailableMemory { group: group.map(|mib| mib * MIB), ..MACHINE }, least)
        };
        assert_eq!(of(None), (1024 * MIB, None));
        assert_eq!(of(Some(4096)), (512 * MIB, None));
        assert_eq!(of(Some(190)), (95 * MIB, None));
        for group in [189, 64, 1] {
            assert_eq!(of(Some(group)), (least, Some(group * MIB)), "{group}");
        }
    }

    #[test]
    fn the_largest_pool_of_a_budget_fits_and_no_larger_one() {
        for (mib, delta) in [(128, None), (256, Some(20 * MIB))] {
            let most = of(mib * MIB, delta).unwrap().blocks_max;
            let of =
                |blocks| Shares::of(Some(mib * MIB), delta, PoolSize { blocks, ..POOL }, MACHINE);
            assert!(of(most).is_ok() && of(most + 1).is_err(), "{mib}: {most}");
        }
        let by_default = Shares::of(None, None, POOL, MACHINE).unwrap();
        assert_eq!(by_default.blocks_max, BlockAddr::MAX_BLOCK);
    }

    /// A pool of 64 MiB has metaslabs of 16 MiB, and keeps them when it grows.
    #[test]
    fn a_pool_does_not_grow_to_more_metaslabs_than_the_budget_has_memory_for() {
        let small = PoolSize { blocks: 64 << 8, metaslab_blocks: 16 << 8 };
        let most = |mib: u64| {
            let shares = Shares::of(Some(mib * MIB), None, small, MACHINE).unwrap();
            shares.blocks_max.div_ceil(small.metaslab_blocks)
        };
        let (few, many) = (most(128), most(1024));
        assert!(few << 10 < 24 * MIB && (8 * MIB..1024 * MIB).contains(&(many << 10)), "{few}");
    }

    #[test]
    fn a_large_pool_needs_hardly_more_than_a_small_one() {
        let blocks = (100 << 40) / BLOCK_BYTES as u64;
        let shares = Shares::of(Some(256 * MIB), None, usual_pool(blocks), MACHINE).unwrap();
        assert_eq!(shares.maps, 16 * MIB);
        let small = of(256 * MIB, None).unwrap();
        assert_eq!(small.maps, 16 * MIB);
        assert!(shares.nodes > small.nodes * 3 / 4, "{shares:?}, {small:?}");
    }

    #[test]
    fn by_default_it_fits_any_pool() {
        for tib in [0, 1, 100] {
            let pool = usual_pool((tib << 40) / BLOCK_BYTES as u64);
            assert!(Shares::of(None, None, pool, MACHINE).is_ok());
        }
    }
}
