//! Callers that give up: what they have asked of the device goes on, and hurts nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_pool::{
    BlockMode, Condition, CreateOptions, LaneClass, Limits, OpenOptions, Pool, PoolError, Tier,
    Transaction,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{Buf, Bufs, DeviceId, EpochId, Key, Kind, Pointer, Purpose, Run, TableId};
use futures_util::future::select;
use futures_util::pin_mut;

const TABLE: TableId = TableId(100);
const BLOCKS: u32 = 300;

async fn new_pool(rt: Rt, device: DynDevice) -> Result<Arc<Pool>, PoolError> {
    let options = CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(8),
        ..CreateOptions::default()
    };
    Pool::create(&rt, &device, &options).await?;
    let limits = Limits { node_cache_bytes: 0, ..Limits::default() };
    Pool::open(rt, device, OpenOptions { limits, ..OpenOptions::default() }).await
}

/// Drops the operation, unless it is done soon.
async fn give_up_soon<T>(rt: &Rt, operation: impl Future<Output = T>) {
    let sleep = rt.sleep(Duration::from_nanos(rt.random() % 1_000_000));
    pin_mut!(operation);
    drop(select(operation, sleep).await);
}

async fn put(pool: &Arc<Pool>, n: u64) -> Result<Vec<Run>, PoolError> {
    let mut reserved = pool.reserve(u64::from(BLOCKS), Tier::Write).await?;
    let claims = pool.claim(LaneClass::Data, BLOCKS.into(), &mut reserved)?;
    let mut tx = Transaction::new();
    for item in 0..100 {
        tx.put(TABLE, Key::new(n, Kind(40), item), vec![n as u8; 60]);
    }
    let runs: Vec<Run> = claims.iter().map(|claim| claim.run()).collect();
    for run in &runs {
        pool.write(*run, blocks(n, *run), Purpose::Data, BlockMode::PLAIN).await?;
    }
    claims.into_iter().for_each(|claim| tx.allocate(claim));
    let credit = pool.admit(Tier::Write, tx.len(), 10_000).await?;
    pool.apply(credit, tx)?;
    Ok(runs)
}

async fn release(pool: &Arc<Pool>, n: u64, runs: Vec<Run>) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    tx.delete(TABLE, Key::new(n, Kind(40), 0));
    for run in runs {
        tx.release(Pointer { run, epoch: EpochId(1), origin: EpochId(1) });
    }
    let credit = pool.admit(Tier::Delete, tx.len(), 64).await?;
    pool.apply(credit, tx).map(drop)
}

fn blocks(n: u64, run: Run) -> Bufs {
    (0..run.blocks).map(|_| Buf::from_bytes(&[1 + n as u8; 4096])).collect()
}

#[test]
fn commits_flushes_and_discards_are_finished_whoever_gives_up() {
    for seed in 0..15 {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig { one_slow_in: 4, ..SimConfig::new(seed) };
        let image = SimImage::empty(4096);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        let work = async {
            let (rt, mut live) = (rt.clone() as Rt, BTreeMap::new());
            let pool = new_pool(rt.clone(), disk).await?;
            for n in 0..24 {
                live.insert(n, put(&pool, n).await?);
                give_up_soon(&rt, pool.commit(pool.open_txg())).await;
                give_up_soon(&rt, pool.flush_all()).await;
                if live.len() > 3 {
                    let (old, runs) = live.pop_first().expect("there are some");
                    release(&pool, old, runs).await?;
                }
                pool.commit(pool.open_txg()).await?;
                give_up_soon(&rt, pool.trim(0..u64::MAX, 1)).await;
            }
            rt.sleep(Duration::from_secs(10)).await;
            for (n, runs) in live {
                for run in runs {
                    let found = pool.read(run, Condition::Nothing, Purpose::Data, None).await?;
                    let same = found.iter().all(|byte| *byte == 1 + n as u8);
                    assert!(same, "seed {seed}: {n} in {run:?} is not what was written");
                }
                for item in 0..100 {
                    let found = pool.get(TABLE, Key::new(n, Kind(40), item)).await?;
                    assert_eq!(found.as_deref(), Some(&[n as u8; 60][..]), "seed {seed}");
                }
            }
            pool.space_map().check();
            assert_eq!(pool.space().claimed, 0);
            pool.close().await
        };
        rt.block_on(work).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        rt.drop_tasks();
    }
}
