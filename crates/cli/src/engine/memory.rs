//! One budget for the daemon's memory, divided among its users (P15, docs/memory.md).
//!
//! Problem.  Caches and buffers have limits of their own, each where it is, and a user who has so
//!           much for this daemon knows none of them.
//! Idea.     Fixed shares of the rest when the process and the pool's maps have theirs; the
//!           cache of nodes takes the rest, since it can do with little and use any amount.
//!
//! MEMORY-M1  All shares, with the fixed memory and the memory that the allocator may retain, are
//!            within the budget.

use copyhold_fs::Options;
use copyhold_fuse::protocol::Settings;
use copyhold_pool::Limits;
use copyhold_types::BLOCK_BYTES;

use super::cgroup;
use crate::failure::Failure;
use crate::size::Size;

const MIB: u64 = 1 << 20;

/// The default budget is never less or more.
const USUAL: (u64, u64) = (128 * MIB, 4096 * MIB);
/// Hundredths of the budget: the allocator keeps what it cannot give back beside what is in use,
/// and rounds up. With a thousand tenants, 113 MiB were resident for 83 that were in use.
const USABLE: u64 = 72;
/// The process, its threads and its code.
const PROCESS: u64 = 16 * MIB;
/// The least that is shared out.
const REST_MIN: u64 = 52 * MIB;
/// A dirty block takes 4 KiB, and where only one of a file is dirty up to another one.
const DIRTY_BLOCK: u64 = BLOCK_BYTES as u64 + 1024;
const INODE: u64 = 512;
const LOOKUP: u64 = 64;
/// An edit while it is replayed: in the log, unpacked, and where it belongs.
const REPLAYED: u64 = 160;
/// The largest request of data. A write by a ring is in memory twice until it is answered.
const REQUEST: u64 = 256 << 10;
/// Background requests that the kernel has under way, at least and at most: few of one tenant must
/// not keep those of others away (P20).
const BACKGROUND: (u64, u64) = (64, 4096);

/// The bytes of each share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// All of it.
    pub(super) budget: u64,
    /// The limit of a control group that leaves less than the pool needs.
    tight_group: Option<u64>,
    /// Buffers of requests.
    requests: u64,
    dirty: u64,
    delta: u64,
    inodes: u64,
    lookups: u64,
    nodes: u64,
}

impl Shares {
    /// `budget`: the user's choice, or one that suits this machine. `delta`: the user's choice.
    pub(crate) fn of(
        budget: Option<Size>,
        delta: Option<Size>,
        pool_blocks: u64,
    ) -> Result<Shares, Failure> {
        let fixed = PROCESS + maps(pool_blocks);
        let least = (fixed + REST_MIN) * 100 / USABLE;
        let (budget, tight_group) = match budget {
            Some(Size(budget)) => (budget, None),
            None => by_default(of_machine(), cgroup::memory_limit(), least),
        };
        if budget < least {
            return Err(Failure::usage(format!(
                "memory={} is too little: a pool of this size takes memory={}M at least",
                Size(budget),
                least.div_ceil(MIB),
            )));
        }
        let rest = budget / 100 * USABLE - fixed;
        let divided = Shares::divided(budget, rest, delta.map(|size| size.0));
        divided.map(|shares| Shares { tight_group, ..shares }).map_err(|most| {
            let (delta, budget) = (delta.unwrap_or(Size(0)), Size(budget));
            let most = most / MIB;
            Failure::usage(format!(
                "delta={delta} is too much of memory={budget}: delta={most}M fits"
            ))
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
            nodes: 0,
        };
        let Shares { requests, dirty, delta, inodes, lookups, .. } = shares;
        let left = rest - (requests + dirty + inodes + lookups);
        let nodes = left.checked_sub(delta).ok_or(left)?;
        Ok(Shares { nodes, ..shares })
    }

    /// A warning to the user about a default budget.
    pub(crate) fn warning(&self) -> Option<String> {
        let (group, least) = (Size(self.tight_group?), self.budget.div_ceil(MIB));
        Some(format!(
            "the control group limits memory to {group}, and the daemon may take {least}M of it, \
             the least for a pool of this size (`-o memory=` takes no less); raise the group's \
             limit to {}M, or the daemon may be killed",
            2 * least
        ))
    }

    /// Bytes for buffers that requests come in, before small ones are copied out of large ones.
    pub(crate) fn requests(&self) -> usize {
        (self.requests - self.spare()).min(64 * MIB) as usize
    }

    /// Bytes for unused buffers.
    pub(crate) fn spare(&self) -> u64 {
        (self.requests / 4).min(28 * MIB)
    }

    pub(crate) fn limit_kernel(&self, settings: &mut Settings) {
        let background = (self.requests / (2 * REQUEST)).clamp(BACKGROUND.0, BACKGROUND.1);
        settings.max_background = background as u16;
    }

    pub(crate) fn limit_pool(&self, limits: &mut Limits) {
        limits.delta_bytes = self.delta;
        limits.node_cache_bytes = self.nodes as usize;
        // Recovery has nothing else in memory yet.
        let Shares { dirty, delta, inodes, lookups, nodes, .. } = self;
        let free = dirty + delta + inodes + lookups + nodes;
        limits.replay_edits = limits.replay_edits.min(free / REPLAYED);
    }

    pub(crate) fn limit_files(&self, options: &mut Options) {
        options.dirty_bytes_max = self.dirty / DIRTY_BLOCK * BLOCK_BYTES as u64;
        options.file_dirty_bytes_start =
            options.file_dirty_bytes_start.min(options.dirty_bytes_max / 8);
        options.inodes_max = (self.inodes / INODE) as usize;
        options.lookups_max = (self.lookups / LOOKUP) as usize;
    }
}

/// Two bits for each block, and a little for each MiB.
fn maps(pool_blocks: u64) -> u64 {
    pool_blocks / 4 + pool_blocks / 32
}

/// The usual budget, but what the pool needs `least` in any case; and the group's limit, if that is
/// more than half of it.
fn by_default(machine: u64, group: Option<u64>, least: u64) -> (u64, Option<u64>) {
    let tight_group = group.filter(|limit| least > limit / 2);
    (usual(machine, group).max(least), tight_group)
}

/// An eighth of the memory that there is for this process. Of a small group it takes no more than
/// half.
fn usual(machine: u64, group: Option<u64>) -> u64 {
    let group = group.unwrap_or(u64::MAX);
    (machine.min(group) / 8).clamp(USUAL.0, USUAL.1).min(group / 2)
}

fn of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: u64 = (100 << 30) / BLOCK_BYTES as u64;

    fn of(budget: u64, delta: Option<u64>) -> Result<Shares, Failure> {
        Shares::of(Some(Size(budget)), delta.map(Size), POOL)
    }

    fn total(shares: Shares) -> u64 {
        let Shares { requests, dirty, delta, inodes, lookups, nodes, .. } = shares;
        requests + dirty + delta + inodes + lookups + nodes
    }

    #[test]
    fn nobody_has_more_than_there_is() {
        for mib in [128, 200, 256, 512, 1024, 3072, 4096, 65_536, u64::MAX / MIB] {
            let shares = of(mib * MIB, None).unwrap();
            let rest = total(shares) + PROCESS + maps(POOL);
            assert!(rest <= mib * MIB / 100 * USABLE, "{mib}: {shares:?}");
            assert!(shares.nodes >= mib * MIB / 20, "{mib}: {shares:?}");
        }
    }

    #[test]
    fn what_is_said_of_the_delta_goes_off_the_nodes() {
        let (usual, said) = (of(512 * MIB, None).unwrap(), of(512 * MIB, Some(2 * MIB)).unwrap());
        assert_eq!((said.delta, total(said)), (2 * MIB, total(usual)));
        let refused = of(512 * MIB, Some(400 * MIB)).unwrap_err().to_string();
        let fits = refused.split("delta=").nth(2).unwrap().split('M').next().unwrap();
        let fits = fits.parse::<u64>().unwrap() * MIB;
        assert!(of(512 * MIB, Some(fits)).is_ok() && of(512 * MIB, Some(fits + MIB)).is_err());
    }

    #[test]
    fn too_little_is_refused_with_what_would_do() {
        let refused = of(32 * MIB, None).unwrap_err().to_string();
        assert!(refused.contains("at least"), "{refused}");
        let least: u64 =
            refused.split("memory=").nth(2).unwrap().split('M').next().unwrap().parse().unwrap();
        assert!(of(least * MIB, None).is_ok());
        assert!(of((least - 1) * MIB, None).is_err());
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
            assert_eq!(usual(machine * MIB, group), budget * MIB, "{machine}, {group:?}");
        }
    }

    #[test]
    fn a_group_that_is_too_small_for_the_pool_is_told() {
        let least = 95 * MIB;
        let of = |group: Option<u64>| by_default(8192 * MIB, group.map(|mib| mib * MIB), least);
        assert_eq!(of(None), (1024 * MIB, None));
        assert_eq!(of(Some(4096)), (512 * MIB, None));
        assert_eq!(of(Some(190)), (95 * MIB, None));
        for group in [189, 64, 1] {
            assert_eq!(of(Some(group)), (least, Some(group * MIB)), "{group}");
        }
        let shares = self::of(512 * MIB, None).unwrap();
        assert_eq!(shares.warning(), None);
        let tight = Shares { budget: least, tight_group: Some(64 * MIB), ..shares };
        let warning = tight.warning().unwrap();
        assert!(warning.contains("64.0 MiB") && warning.contains("95M"), "{warning}");
        assert!(warning.contains("-o memory=") && !warning.contains('\n'), "{warning}");
    }

    #[test]
    fn by_default_it_fits_any_pool() {
        for tib in [0, 1, 100] {
            assert!(Shares::of(None, None, (tib << 40) / BLOCK_BYTES as u64).is_ok());
        }
    }
}
