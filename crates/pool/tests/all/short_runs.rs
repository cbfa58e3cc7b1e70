//! Free space in runs that are shorter than a node, and metadata that is written all the same
//! (R21).

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_pool::{
    CreateOptions, Lane, LaneClass, Limits, OpenOptions, Pool, PoolError, Tier, Transaction,
};
use copyhold_runtime::{Rt, Runtime, SeededRuntime};
use copyhold_types::{DeviceId, EpochId, Key, Kind, Pointer, Run, TableId};
use futures_util::future::{Either, select};

const TABLE: TableId = TableId(100);
/// 64 MiB.
const BLOCKS: u64 = 1 << 14;
/// Items of one transaction, and bytes of each value.
const ITEMS: u64 = 16;
const VALUE: usize = 1000;
/// Whatever a pool does for a transaction takes no longer.
const PATIENCE: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, PoolError>;

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

/// Nothing that packs.
fn noise(n: u64) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..VALUE).map(|_| next()).collect()
}

fn pointer(run: Run) -> Pointer {
    Pointer { run, epoch: EpochId::POOL, origin: EpochId::POOL }
}

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    limits: Limits,
}

impl Machine {
    fn new(log_bytes: Option<u64>, limits: Limits) -> Machine {
        let machine = Machine::on(SimImage::empty(BLOCKS), limits);
        let (rt, device): (Rt, DynDevice) = (machine.rt.clone(), machine.disk.clone());
        let options = CreateOptions { log_bytes, ..CreateOptions::default() };
        machine.rt.block_on(Pool::create(&rt, &device, &options)).unwrap();
        machine
    }

    fn on(image: SimImage, limits: Limits) -> Machine {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1));
        Machine { rt, disk, limits }
    }

    fn open(&self) -> Arc<Pool> {
        let options = OpenOptions { limits: self.limits.clone(), ..OpenOptions::default() };
        self.rt.block_on(Pool::open(self.rt.clone(), self.disk.clone(), options)).unwrap()
    }

    /// The power fails, and the machine is switched on again.
    fn restart(self, pool: Arc<Pool>) -> Machine {
        drop(pool);
        let image = self.disk.crash(1);
        self.rt.drop_tasks();
        Machine::on(image, self.limits.clone())
    }

    /// What `work` comes to.
    ///
    /// # Panics
    /// It takes too long: the pool is stuck.
    async fn in_time<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let sleep = self.rt.sleep(PATIENCE);
        match select(std::pin::pin!(work), std::pin::pin!(sleep)).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => panic!("{what}: nothing happened for {PATIENCE:?}"),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

async fn put(pool: &Arc<Pool>, keys: impl Iterator<Item = u64>, salt: u64) -> Result<()> {
    let mut tx = Transaction::new();
    keys.for_each(|n| tx.put(TABLE, key(n), noise(n + salt)));
    let edits = tx.len();
    let credit = pool.admit(Tier::Write, edits, edits * (VALUE + 20)).await?;
    pool.apply(credit, tx).map(drop)
}

async fn write_data(pool: &Arc<Pool>, blocks: u64) -> Result<Vec<Run>> {
    let mut reserved = pool.reserve(blocks, Tier::Write).await?;
    let claims = pool.claim(LaneClass::Data, blocks, &mut reserved)?;
    let runs = claims.iter().map(|claim| claim.run()).collect();
    let mut tx = Transaction::new();
    claims.into_iter().for_each(|claim| tx.allocate(claim));
    let credit = pool.admit(Tier::Write, tx.len(), 64).await?;
    pool.apply(credit, tx)?;
    Ok(runs)
}

async fn fill(pool: &Arc<Pool>, until: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    while pool.space().available() > until {
        let blocks = 64.min(pool.space().available() - until);
        runs.extend(write_data(pool, blocks).await.expect("there is room"));
    }
    runs
}

async fn delete(pool: &Arc<Pool>, runs: impl Iterator<Item = Run>) -> Result<()> {
    let mut tx = Transaction::new();
    runs.for_each(|run| tx.release(pointer(run)));
    let credit = pool.admit(Tier::Delete, tx.len(), 64).await?;
    pool.apply(credit, tx).map(drop)
}

/// Frees six of every eight blocks, as random overwrites and the deletion of a snapshot do.
async fn make_holes(pool: &Arc<Pool>, runs: &[Run]) {
    for run in runs {
        let holes = (0..run.blocks.saturating_sub(7)).step_by(8).map(|at| run.slice(at, 6));
        delete(pool, holes).await.unwrap();
    }
    pool.flush_all().await.unwrap();
    pool.flush_all().await.unwrap();
}

/// Takes all runs of a node's length, so that free space is in short runs only.
async fn take_long_runs(pool: &Arc<Pool>) {
    let lane = Lane { cpu: 0, class: LaneClass::Node };
    loop {
        let mut reserved = pool.space_map().reserve(8, Tier::Internal).unwrap();
        let Ok(claim) = pool.space_map().claim_run(lane, 8, &mut reserved) else { return };
        let mut tx = Transaction::new();
        tx.allocate(claim);
        let credit = pool.admit(Tier::Delete, 1, 64).await.unwrap();
        pool.apply(credit, tx).unwrap();
    }
}

#[test]
fn metadata_grows_until_the_pool_is_full_in_runs_of_six_blocks() {
    let limits = Limits { delta_bytes: 4 << 20, ..Limits::default() };
    let machine = Machine::new(Some(4 << 20), limits);
    let pool = machine.open();
    machine.rt.block_on(async {
        let runs = fill(&pool, 512).await;
        make_holes(&pool, &runs).await;
        take_long_runs(&pool).await;
        let refused = async {
            for n in 0.. {
                let grown = put(&pool, n * ITEMS..(n + 1) * ITEMS, 0);
                if let Err(error) = machine.in_time("growing", grown).await {
                    return error;
                }
            }
            unreachable!("no pool is that large");
        };
        let error = refused.await;
        assert!(matches!(error, PoolError::Full { .. }), "{error}");
        let left = pool.space();
        assert!(left.free <= left.reserve + left.total / 32, "refused early: {left:?}");
        machine
            .in_time("a deletion", delete(&pool, [runs[1].slice(6, 2)].into_iter()))
            .await
            .unwrap();
        machine.in_time("flushing", pool.flush_all()).await.unwrap();
    });
    let machine = machine.restart(pool);
    let pool = machine.open();
    machine.rt.block_on(async {
        let mut tx = Transaction::new();
        (0..2000).for_each(|n| tx.delete(TABLE, key(n)));
        let deleted = async {
            let credit = pool.admit(Tier::Delete, tx.len(), 64).await?;
            pool.apply(credit, tx)
        };
        machine.in_time("a deletion after a crash", deleted).await.unwrap();
        machine.in_time("flushing", pool.flush_all()).await.unwrap();
        machine.in_time("a write of what was freed", write_data(&pool, 100)).await.unwrap();
        let found = pool.get(TABLE, key(2001)).await.unwrap();
        assert_eq!(found.as_deref(), Some(&noise(2001)[..]));
    });
}

/// Nothing is added in the end: keys that exist get new values of the same size.
#[test]
fn a_table_is_written_anew_again_and_again_in_runs_of_six_blocks() {
    const KEYS: u64 = 3000;
    let machine = Machine::new(None, Limits::default());
    let pool = machine.open();
    machine.rt.block_on(async {
        for n in 0..KEYS / ITEMS {
            put(&pool, n * ITEMS..(n + 1) * ITEMS, 0).await.unwrap();
        }
        pool.flush_all().await.unwrap();
        let runs = fill(&pool, 512).await;
        make_holes(&pool, &runs).await;
        take_long_runs(&pool).await;
        let room = pool.space().available();
        let more = fill(&pool, 3000.min(room)).await;
        for round in 0..1500 {
            let keys = (0..ITEMS).map(|i| (round * ITEMS + i) * 7919 % KEYS);
            machine.in_time("an update", put(&pool, keys, round)).await.unwrap();
        }
        machine.in_time("flushing", pool.flush_all()).await.unwrap();
        assert!(pool.unflushed().edits < 16, "all but the flush's own record is in bases");
        machine.in_time("a deletion", delete(&pool, more.into_iter())).await.unwrap();
        pool.flush_all().await.unwrap();
        machine.in_time("a write of what was freed", write_data(&pool, 500)).await.unwrap();
    });
    drop(pool);
}
