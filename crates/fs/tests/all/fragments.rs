//! Nodes in fragments, as free space in short runs makes them, below files and subvolumes: while
//! lists cannot be read, and in a pool that is overwritten at random and nearly full (R21).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::Lasting;
use copyhold_fs::{Filesystem, FsError, NodeId, Options};
use copyhold_pool::{Limits, OpenOptions, Pool};
use copyhold_runtime::{Rt, Runtime, SeededRuntime};
use copyhold_types::{NodePtr, SubvolId};
use futures_util::future::{Either, select};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::tenants::*;
use crate::common::*;

const EIO: i32 = 5;

/// Free space is in runs of at most so many blocks.
async fn open(world: &World, run_max: Option<u32>) -> Arc<Filesystem> {
    let limits = Limits { run_max, ..Limits::default() };
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let pool = Pool::open(world.rt.clone() as Rt, world.device.clone(), options).await.unwrap();
    Filesystem::open(pool, Options::default()).await.unwrap()
}

async fn files(fs: &Arc<Filesystem>, name: &str, count: usize) -> SubvolId {
    let subvol = subvolume(fs, name).await;
    for n in 0..count {
        file(fs, root_of(subvol), &format!("f{n}")).await;
    }
    subvol
}

/// The nodes of a subvolume's files that are in fragments.
async fn lists(fs: &Filesystem, subvol: SubvolId) -> Vec<NodePtr> {
    let table = fs.pool().table(fs.volumes().subvol(subvol).unwrap().files());
    let mut nodes = Vec::new();
    table.for_each_node(fs.pool().node_source(), false, &mut |v| nodes.push(v.ptr)).await;
    nodes.retain(|ptr| ptr.fragmented);
    nodes
}

#[test]
fn a_deletion_stops_where_a_list_cannot_be_read_and_loses_nothing() {
    let world = World::new(5, 16384);
    world.run(async {
        let fs = open(&world, Some(2)).await;
        let [a, b] = [files(&fs, "a", 2000).await, files(&fs, "b", 300).await];
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let hidden = lists(&fs, a).await;
        assert!(!hidden.is_empty(), "nothing is in fragments");
        for run in hidden.iter().flat_map(NodePtr::runs) {
            world.device.break_block(run.addr.block(), EIO, Lasting::Forever);
        }
        for name in ["a", "b"] {
            fs.delete_subvolume(ROOT, name.as_bytes(), None).await.unwrap();
        }
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(fs.volumes().unfreeable(), Some(a));
        assert_eq!(fs.volumes().dying(), [a], "{b} does not wait for it");
        world.close(fs).await;
        world.device.heal();
        let fs = open(&world, Some(2)).await;
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(fs.volumes().dying(), []);
        check_space(&fs).await;
        world.close(fs).await;
    });
}

const BLOCK: u64 = 4096;
const ROUNDS: u64 = 40;
const OVERWRITES: u64 = 100;
/// Whatever an operation waits for takes no longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of the space that users may take, how many thousandths are taken.
fn fullness(fs: &Filesystem) -> u64 {
    let space = fs.pool().space();
    let users = space.total - space.reserve;
    1000 - 1000 * space.available().min(users) / users
}

/// A file whose blocks are overwritten at random, below snapshots, and what is in all of them.
struct Overwritten {
    world: World,
    fs: Arc<Filesystem>,
    run_max: Option<u32>,
    random: Xoshiro256PlusPlus,
    node: NodeId,
    blocks: Vec<u8>,
    /// The oldest first.
    snapshots: VecDeque<(u64, Vec<u8>)>,
    refused: usize,
    deleted: usize,
}

impl Overwritten {
    /// 97 of 100 blocks that users may take are the file's.
    async fn new(world: World, seed: u64, run_max: Option<u32>) -> Overwritten {
        let fs = open(&world, run_max).await;
        let subvol = subvolume(&fs, "source").await;
        let node = file(&fs, root_of(subvol), "file").await;
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (blocks, snapshots) = (Vec::new(), VecDeque::new());
        let (refused, deleted) = (0, 0);
        let mut made =
            Overwritten { world, fs, run_max, random, node, blocks, snapshots, refused, deleted };
        while fullness(&made.fs) < 970 {
            let at = made.blocks.len() as u64;
            made.blocks.push(0);
            made.write(at).await.expect("there is room");
            if at % 64 == 63 {
                made.fs.sync().await.unwrap();
            }
        }
        made.fs.sync().await.unwrap();
        made
    }

    async fn in_time<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let sleep = self.world.rt.sleep(PATIENCE);
        match select(std::pin::pin!(work), std::pin::pin!(sleep)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => panic!("{what}: nothing happened for {PATIENCE:?}"),
        }
    }

    async fn write(&mut self, block: u64) -> copyhold_fs::Result<()> {
        let byte = (self.random.next_u64() % 255) as u8 + 1;
        let data = pattern(byte, BLOCK as usize);
        let written = self.fs.write(self.node, block * BLOCK, &data, Default::default());
        self.in_time("a write", written).await?;
        self.blocks[block as usize] = byte;
        Ok(())
    }

    /// Overwrites a block; what snapshots hold is given back when it is refused.
    async fn overwrite(&mut self) {
        let block = self.random.next_u64() % self.blocks.len() as u64;
        while let Err(error) = self.write(block).await {
            assert!(matches!(error, FsError::NoSpace(_)), "{error}");
            assert!(!self.snapshots.is_empty(), "R21: refused with nothing to give up: {error}");
            self.refused += 1;
            self.delete_oldest().await;
        }
    }

    async fn delete_oldest(&mut self) {
        let Some((n, _)) = self.snapshots.pop_front() else { return };
        let name = format!("s{n}");
        let deleted = self.fs.delete_subvolume(ROOT, name.as_bytes(), None);
        self.in_time("a deletion", deleted).await.expect("R21: it is never refused");
        self.in_time("freeing", self.fs.volumes().finish_background()).await.unwrap();
        self.deleted += 1;
    }

    async fn snapshot(&mut self, n: u64) {
        let name = format!("s{n}");
        let subvol = self.node.subvol;
        let made = self.fs.snapshot(subvol, ROOT, name.as_bytes(), true, None);
        match self.in_time("a snapshot", made).await {
            Ok(_) => self.snapshots.push_back((n, self.blocks.clone())),
            Err(FsError::NoSpace(_)) => self.delete_oldest().await,
            Err(error) => panic!("a snapshot: {error}"),
        }
    }

    /// All content is what was written.
    async fn verify(&self) {
        let held = self.snapshots.iter().map(|(n, blocks)| (format!("s{n}"), blocks));
        for (name, blocks) in held.chain([("source".to_owned(), &self.blocks)]) {
            let root = self.fs.lookup(ROOT, name.as_bytes()).await.unwrap().node;
            let node = self.fs.lookup(root, b"file").await.unwrap().node;
            for (block, byte) in blocks.iter().enumerate().step_by(7) {
                let found = read(&self.fs, node, block as u64 * BLOCK, BLOCK as usize).await;
                assert_eq!(found, pattern(*byte, BLOCK as usize), "block {block} of {name}");
            }
        }
    }

    /// The power fails.
    fn crash(self, seed: u64) -> Overwritten {
        let Overwritten { world, fs, run_max, .. } = self;
        let world = world.crash(fs, seed);
        let fs = world.run(open(&world, run_max));
        Overwritten { world, fs, ..self }
    }
}

/// In most rounds 95 to 99 of 100 blocks that users may take are taken; what a round needs beyond
/// that, snapshots give back.
#[test]
fn random_overwrites_below_snapshots_of_a_nearly_full_pool_go_on() {
    for (seed, run_max) in [(1, None), (2, Some(2)), (3, Some(1))] {
        let world = World::new(seed, 8192);
        let rt = world.rt.clone();
        let mut pool = rt.block_on(Overwritten::new(world, seed, run_max));
        let (mut fullest, mut nearly_full) = (0, 0);
        for round in 0..ROUNDS {
            rt_of(&pool).block_on(async {
                pool.snapshot(round).await;
                for n in 0..OVERWRITES {
                    pool.overwrite().await;
                    if n % 16 == 15 {
                        let synced = pool.fs.fsync(pool.node, false);
                        pool.in_time("an fsync", synced).await.unwrap();
                    }
                }
                pool.fs.sync().await.unwrap();
                let full = fullness(&pool.fs);
                nearly_full += u64::from(full >= 950);
                fullest = full.max(fullest);
                while fullness(&pool.fs) > 975 && !pool.snapshots.is_empty() {
                    pool.delete_oldest().await;
                    free_blocks(&pool.fs).await;
                }
            });
            if round % 10 == 9 {
                pool = pool.crash(seed + round);
                rt_of(&pool).block_on(pool.verify());
            }
        }
        assert!(nearly_full > ROUNDS / 2, "95 of 100 are taken in {nearly_full} rounds only");
        assert!(fullest >= 985 && pool.deleted > 5, "{fullest} of 1000, {} deleted", pool.deleted);
        println!("{fullest} of 1000, {} snapshots deleted, {} refused", pool.deleted, pool.refused);
        rt_of(&pool).block_on(async {
            while !pool.snapshots.is_empty() {
                pool.delete_oldest().await;
            }
            pool.world.close(pool.fs.clone()).await;
        });
    }
}

fn rt_of(pool: &Overwritten) -> Arc<SeededRuntime> {
    pool.world.rt.clone()
}
