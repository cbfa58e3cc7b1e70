//! Ages the space of an empty pool, of any size: all of it is allocated, then single blocks all
//! over it are freed. Nothing refers to the allocated blocks, so `copyhold check` reports them as
//! lost; no data are written, so a pool of 10 TiB in a sparse file takes a gigabyte of the host's
//! disk.
//!
//! `cargo run --release -p copyhold-pool --example aged_space POOL PERCENT`
//!
//! `PERCENT` of the blocks are freed, each by itself. docs/space.md has the measurements.

#![allow(clippy::disallowed_methods, reason = "a measurement")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use copyhold_device::{DynDevice, FileDevice, OpenMode};
use copyhold_pool::{LaneClass, OpenOptions, Pool, PoolError, Tier, Transaction, metaslab_view};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::{DeviceId, EpochId, Pointer, Run};

/// Blocks that one transaction allocates.
const STEP: u64 = 1 << 14;
/// A run of 64 KiB.
const LONG: u64 = 16;
/// Holes that one transaction makes.
const HOLES: usize = 4000;

/// Appends a run to those before it.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.addr.raw() + u64::from(last.blocks) == run.addr.raw() => {
            match last.blocks.checked_add(run.blocks) {
                Some(blocks) => *last = Run::new(last.addr, blocks),
                None => runs.push(run),
            }
        }
        _ => runs.push(run),
    }
}

/// Allocates `blocks`; `None`: the pool is full.
async fn allocate(pool: &Arc<Pool>, blocks: u64, runs: &mut Vec<Run>) -> Option<()> {
    let mut space = room(pool.reserve(blocks, Tier::Write).await)?;
    let claims = pool.claim(LaneClass::Data, blocks, &mut space).expect("reserved");
    let credit = room(pool.admit(Tier::Write, claims.len(), 64).await)?;
    let mut tx = Transaction::new();
    for claim in claims {
        push(runs, claim.run());
        tx.allocate(claim);
    }
    pool.apply(credit, tx).expect("applied");
    Some(())
}

/// `None`: the pool is full.
fn room<T>(granted: Result<T, PoolError>) -> Option<T> {
    match granted {
        Ok(granted) => Some(granted),
        Err(PoolError::Full { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

async fn free(pool: &Arc<Pool>, holes: &mut Vec<Run>) {
    let mut tx = Transaction::new();
    for run in holes.drain(..) {
        tx.release(Pointer { run, epoch: EpochId::POOL, origin: EpochId::POOL });
    }
    let credit = pool.admit(Tier::Delete, tx.len(), 64).await.expect("admitted");
    pool.apply(credit, tx).expect("applied");
}

/// The blocks of a run that are freed: on average `percent` of them, at random.
fn holes(run: Run, percent: u64) -> impl Iterator<Item = Run> {
    let scattered = |block: u64| block.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let is_hole = move |at: &u32| {
        let block = scattered(run.addr.raw() + u64::from(*at)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((block >> 32) * 100) >> 32 < percent
    };
    (0..run.blocks).filter(is_hole).map(move |at| run.slice(at, 1))
}

/// Allocates up to `most` blocks, at most until the pool is full; returns the runs.
async fn fill(pool: &Arc<Pool>, most: u64) -> Vec<Run> {
    let (mut runs, mut left, mut step) = (Vec::new(), most, STEP);
    while step > 0 {
        let fits = step <= left && allocate(pool, step, &mut runs).await.is_some();
        if fits {
            left -= step;
        } else {
            step /= 2;
        }
    }
    runs.sort_unstable_by_key(|run| run.addr.raw());
    runs
}

/// Free blocks in runs of 64 KiB or more.
async fn in_long_runs(pool: &Arc<Pool>) -> u64 {
    let mut blocks = 0;
    for id in pool.space_map().metaslabs() {
        let free = metaslab_view(pool, id).await.free_and_freeing;
        blocks +=
            free.iter().map(|run| u64::from(run.blocks)).filter(|run| *run >= LONG).sum::<u64>();
    }
    blocks
}

/// Frees blocks of allocated runs, and commits; returns how many.
async fn make_holes(pool: &Arc<Pool>, runs: Vec<Run>, percent: u64) -> u64 {
    let (mut freed, mut part) = (0, Vec::new());
    for hole in runs.into_iter().flat_map(|run| holes(run, percent)) {
        freed += 1;
        part.push(hole);
        if part.len() == HOLES {
            free(pool, &mut part).await;
        }
    }
    free(pool, &mut part).await;
    pool.commit(pool.open_txg()).await.expect("committed");
    freed
}

fn arguments() -> Option<(PathBuf, u64)> {
    let mut words = std::env::args_os().skip(1);
    let path = words.next()?.into();
    Some((path, words.next()?.to_str()?.parse().ok()?))
}

fn main() {
    let Some((path, percent)) = arguments() else {
        eprintln!("usage: aged_space POOL PERCENT");
        std::process::exit(2);
    };
    let executors = Executors::start(Config::default()).expect("executors start");
    let rt: Rt = executors.clone();
    let device: DynDevice =
        FileDevice::open(executors.reactor(), DeviceId(0), &path, OpenMode::ReadWrite)
            .expect("a pool");
    let options = OpenOptions::default();
    let pool = executors.block_on(Pool::open(rt, device, options)).expect("opened");
    let begin = Instant::now();
    executors.block_on(async {
        let (mut freed, mut before, mut long) = (0, u64::MAX, u64::MAX);
        // The reserve leaves long runs free. Another round takes those that data may have.
        while long == u64::MAX || long < before / 10 * 9 {
            before = long;
            let filled = fill(&pool, long).await;
            freed += make_holes(&pool, filled, percent).await;
            pool.flush_all().await.expect("flushed");
            long = in_long_runs(&pool).await;
            println!("{freed} holes of a block, {long} free blocks in runs of 64 KiB");
        }
        println!("{:.0} s", begin.elapsed().as_secs_f64());
        pool.close().await.expect("closed");
    });
}
