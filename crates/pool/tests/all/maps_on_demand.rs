//! Pools whose space maps do not fit in memory together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, PoolError, Tier, expect_room, map_use, metaslab_view,
};
use copyhold_runtime::{Rt, Runtime, yield_now};
use copyhold_space::Stock;
use copyhold_types::Run;

use crate::machine::{Machine, allocate, free};

/// 128 metaslabs of 1 MiB.
const BLOCKS: u64 = 128 << 8;
/// Memory of a few maps beside the edits of all metaslabs.
const FEW: u64 = 128 * 200;

fn machine(blocks: u64, metaslab_blocks: Option<u64>) -> Machine {
    let machine = Machine::on(&SimImage::empty(blocks));
    let log_bytes = Some(1 << 20);
    let options = CreateOptions { log_bytes, metaslab_blocks, ..CreateOptions::default() };
    let rt = machine.rt.clone() as Rt;
    machine.rt.block_on(Pool::create(&rt, &machine.device(), &options)).unwrap();
    machine
}

fn open(machine: &Machine, maps_bytes: u64) -> Arc<Pool> {
    let limits = Limits { maps_bytes, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let opening = Pool::open(machine.rt.clone() as Rt, machine.device(), options);
    machine.rt.block_on(opening).unwrap()
}

/// Allocates until the pool is full.
async fn fill(pool: &Arc<Pool>, step: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    loop {
        match pool.reserve(step, Tier::Write).await {
            Ok(reserved) => drop(reserved),
            Err(PoolError::Full { .. }) => return runs,
            Err(error) => panic!("{error}"),
        }
        runs.extend(allocate(pool, step).await);
    }
}

/// Frees all blocks but those to keep, in each metaslab some, and flushes; returns those.
async fn thin_out(pool: &Arc<Pool>, runs: &[Run], keeps: impl Fn(u64) -> bool) -> Vec<Run> {
    let blocks = runs.iter().flat_map(|run| (0..run.blocks).map(|at| run.slice(at, 1)));
    let (kept, freed): (Vec<Run>, Vec<Run>) = blocks.partition(|run| keeps(run.addr.block()));
    for part in freed.chunks(500) {
        free(pool, part).await;
    }
    pool.flush_all().await.unwrap();
    kept
}

async fn allocated(pool: &Arc<Pool>) -> Vec<Run> {
    let mut runs = Vec::new();
    for id in pool.space_map().metaslabs() {
        runs.extend(metaslab_view(pool, id).await.allocated);
    }
    runs
}

#[test]
fn a_pool_is_filled_and_emptied_with_few_maps_in_memory() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, FEW);
    let (figures, kept) = machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        let left = pool.space();
        assert!(left.available() < 600, "full by the figures of all maps: {left:?}");
        let kept = thin_out(&pool, &runs, |block| !block.is_multiple_of(3)).await;
        pool.space_map().check();
        (pool.space(), kept)
    });
    let use_of_maps = map_use(&pool);
    // A map is loaded to be allocated from or written whole, and not for a delta.
    assert!(use_of_maps.loads > 64 && use_of_maps.deltas > 64, "{use_of_maps:?}");
    assert!(use_of_maps.loaded < 64, "{use_of_maps:?}");
    let seen = machine.rt.block_on(allocated(&pool));
    assert!(figures.free > BLOCKS / 4, "{figures:?}");
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);

    // All maps in memory say the same.
    let pool = open(&machine, u64::MAX);
    assert_eq!(machine.rt.block_on(allocated(&pool)), seen);
    assert_eq!(pool.space().allocated, figures.allocated);
    machine.rt.block_on(async {
        free(&pool, &kept[..1000]).await;
        pool.flush_all().await.unwrap();
    });
    pool.space_map().check();
}

#[test]
fn an_empty_pool_of_100_tib_opens_with_few_maps_in_memory() {
    const TIB: u64 = 1 << 28;
    let machine = machine(100 * TIB, None);
    let pool = open(&machine, 32 << 20);
    assert_eq!(pool.space_map().metaslabs().count(), 6400);
    let before = map_use(&pool);
    assert!(before.loaded <= 256 && before.bytes < 4 << 20, "{before:?}");
    assert!(before.bytes / 256 <= 20 << 10, "an empty map: {before:?}");
    // More than the loaded maps have.
    let reserved = machine.rt.block_on(pool.reserve(5 * TIB, Tier::Write)).unwrap();
    let after = map_use(&pool);
    assert!(after.loads > 0 && after.bytes < 8 << 20, "{after:?}");
    drop(reserved);
    let trimmed = machine.rt.block_on(pool.trim(0..1 << 22, 1)).unwrap();
    assert!(trimmed > (1 << 22) - 8 * 256, "all of the first map but labels: {trimmed}");
}

#[test]
fn a_request_for_many_maps_ends_while_others_evict() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, 0);
    let trim = async |pool: &Arc<Pool>| pool.trim(0..256, 1).await.unwrap();
    machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        // Each metaslab has a map on disk.
        thin_out(&pool, &runs, |block| block.is_multiple_of(16)).await;
        trim(&pool).await
    });
    let before = map_use(&pool);
    assert!(before.loaded < 64, "{before:?}");
    let (requesting, done) = (pool.clone(), Arc::new(AtomicBool::new(false)));
    let has_ended = done.clone();
    machine.rt.spawn(Box::pin(async move {
        let reserved = requesting.reserve(BLOCKS / 2, Tier::Write).await;
        has_ended.store(reserved.is_ok(), Ordering::Relaxed);
    }));
    machine.rt.block_on(async {
        for _ in 0..300 {
            trim(&pool).await;
            machine.rt.sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(done.load(Ordering::Relaxed), "LOADS-M2: {:?}", map_use(&pool));
}

#[test]
fn an_idle_pool_comes_to_rest() {
    let machine = machine(BLOCKS, Some(256));
    let mut pool = open(&machine, 0);
    machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        thin_out(&pool, &runs, |block| !block.is_multiple_of(3)).await;
    });
    let mut has_cold = false;
    for limit in [0, 40_000, 60_000, 80_000, 100_000, u64::MAX] {
        machine.rt.block_on(pool.close()).unwrap();
        drop(pool);
        pool = open(&machine, limit);
        let passes = |count: u64| machine.rt.block_on(machine.rt.sleep(Duration::from_secs(count)));
        passes(5);
        let before = map_use(&pool);
        passes(10);
        assert_eq!(map_use(&pool), before, "LOADS-M4");
        has_cold |= pool.space_map().stock() == Stock::Low && before.loaded < 128;
    }
    assert!(has_cold, "a pool with few maps had less than it should have");
}

#[test]
fn a_round_writes_few_maps_at_a_time_beyond_the_limit_of_memory() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, 0);
    let most_loaded = Arc::new(AtomicU64::new(0));
    let (watched, most) = (pool.clone(), most_loaded.clone());
    let before = machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        let kept = thin_out(&pool, &runs, |block| block.is_multiple_of(3)).await;
        let before = map_use(&pool).loaded;
        machine.rt.spawn(Box::pin(async move {
            loop {
                most.fetch_max(map_use(&watched).loaded, Ordering::Relaxed);
                yield_now().await;
            }
        }));
        free(&pool, &kept[..]).await;
        pool.flush_all().await.unwrap();
        before
    });
    let most_loaded = most_loaded.load(Ordering::Relaxed);
    assert!(most_loaded <= before + 16, "LOADS-M5: {before}, {most_loaded}");
}

#[test]
fn the_maps_with_the_longest_runs_are_read_at_the_open() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, 0);
    machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        // Holes of two blocks in the first half.
        let is_kept = |block: u64| match block < BLOCKS / 2 {
            true => block.is_multiple_of(3),
            false => block.is_multiple_of(256),
        };
        thin_out(&pool, &runs, is_kept).await;
        pool.close().await.unwrap();
    });
    drop(pool);
    let pool = open(&machine, 70_000);
    let space = pool.space_map();
    let loaded = space.metaslabs().filter_map(|id| space.metaslab(id));
    let good_chunks = loaded.map(|info| info.good_chunks).sum::<u32>();
    assert!(map_use(&pool).loaded < 64, "{:?}", map_use(&pool));
    assert!(good_chunks > 20, "{good_chunks}");
}

#[test]
fn a_pool_has_room_whether_maps_are_loaded_or_not() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, 0);
    machine.rt.block_on(machine.rt.sleep(Duration::from_secs(3)));
    let available = pool.space().available();
    assert!(pool.reserve_now(available, Tier::Write).is_err(), "{:?}", map_use(&pool));
    assert!(expect_room(&pool, available, Tier::Write).is_ok(), "LOADS-M3");
    assert!(expect_room(&pool, available + 1, Tier::Write).is_err());
}

#[test]
fn a_trim_reaches_all_free_chunks_though_few_maps_are_in_memory() {
    let machine = machine(BLOCKS, Some(256));
    let pool = open(&machine, 0);
    let (trimmed, whole) = machine.rt.block_on(async {
        let runs = fill(&pool, 500).await;
        thin_out(&pool, &runs, |block| block.is_multiple_of(512)).await;
        let mut whole = 0;
        for id in pool.space_map().metaslabs() {
            let free = metaslab_view(&pool, id).await.free;
            whole += free.iter().filter(|run| run.blocks == 256).count() as u64;
        }
        (pool.trim(0..BLOCKS, 1).await.unwrap(), whole)
    });
    assert!(whole > 50 && trimmed == whole * 256, "{trimmed} of {whole}: {:?}", map_use(&pool));
}
