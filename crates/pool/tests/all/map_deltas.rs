//! Space maps of which flushes write what changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::space_map::{DELTAS_MAX, Descriptor, METASLAB};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, map_use, metaslab_view};
use copyhold_runtime::Rt;
use copyhold_space::{MetaslabId, StoredMap};
use copyhold_types::{Key, Run};
use futures_util::future::join;

use crate::machine::{Machine, allocate, free};

/// 64 metaslabs of 1 MiB.
const BLOCKS: u64 = 64 << 8;

fn machine() -> Machine {
    let machine = Machine::on(&SimImage::empty(BLOCKS));
    let (log_bytes, metaslab_blocks) = (Some(1 << 20), Some(256));
    let options = CreateOptions { log_bytes, metaslab_blocks, ..CreateOptions::default() };
    let rt = machine.rt.clone() as Rt;
    machine.rt.block_on(Pool::create(&rt, &machine.device(), &options)).unwrap();
    machine
}

fn open(machine: &Machine, maps_bytes: u64, prefer_deltas: bool) -> Arc<Pool> {
    let limits = Limits { maps_bytes, prefer_deltas, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let opening = Pool::open(machine.rt.clone() as Rt, machine.device(), options);
    machine.rt.block_on(opening).unwrap()
}

async fn descriptors(pool: &Pool) -> Vec<Descriptor> {
    let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let items = items.iter().filter(|(key, _)| key.kind == METASLAB);
    items.map(|(_, value)| Descriptor::parse(value).unwrap()).collect()
}

fn deltas(descriptors: &[Descriptor]) -> usize {
    descriptors.iter().map(|found| found.deltas.len()).sum()
}

async fn allocated(pool: &Arc<Pool>) -> Vec<Run> {
    let mut runs = Vec::new();
    for id in pool.space_map().metaslabs() {
        runs.extend(metaslab_view(pool, id).await.allocated);
    }
    runs
}

/// All that is allocated is what descriptors and nodes say, and no block twice.
fn of_maps(descriptors: &[Descriptor]) -> BTreeSet<u64> {
    let parts = descriptors.iter().flat_map(Descriptor::parts);
    let runs: Vec<Run> = parts.flat_map(|part| part.runs().collect::<Vec<_>>()).collect();
    let blocks: BTreeSet<u64> = runs.iter().flat_map(|run| run.addr.block()..run.end()).collect();
    assert_eq!(blocks.len() as u64, runs.iter().map(|run| u64::from(run.blocks)).sum::<u64>());
    blocks
}

/// Runs in most metaslabs, whose maps are on disk and mostly not in memory.
async fn spread(pool: &Arc<Pool>) -> Vec<Run> {
    let runs = allocate(pool, BLOCKS / 2).await;
    pool.flush_all().await.unwrap();
    pool.flush_all().await.unwrap();
    runs
}

/// A block of every `nth` sixteen.
fn some(runs: &[Run], nth: u32) -> Vec<Run> {
    let blocks = runs.iter().flat_map(|run| (0..run.blocks).map(|at| run.slice(at, 1)));
    blocks.filter(|run| run.addr.block() % 16 == u64::from(nth)).collect()
}

#[test]
fn scattered_frees_beside_maps_on_disk_are_flushed_without_a_read() {
    let machine = machine();
    let pool = open(&machine, 0, false);
    machine.rt.block_on(async {
        let runs = spread(&pool).await;
        let before = map_use(&pool);
        assert!(before.loaded < 32, "{before:?}");
        free(&pool, &some(&runs, 3)).await;
        pool.flush_all().await.unwrap();
        let after = map_use(&pool);
        assert!(after.deltas > before.deltas + 20, "{before:?}, {after:?}");
        assert!(after.loads < before.loads + 8, "{before:?}, {after:?}");
        let found = descriptors(&pool).await;
        assert!(deltas(&found) > 20, "{found:?}");
        // More than a small map has: then it is written whole, and its deltas are free.
        for nth in 4..14 {
            free(&pool, &some(&runs, nth)).await;
            pool.flush_all().await.unwrap();
        }
        assert!(map_use(&pool).wholes > after.wholes + 20, "{after:?}, {:?}", map_use(&pool));
        let found = descriptors(&pool).await;
        let seen = allocated(&pool).await;
        let all: BTreeSet<u64> = seen.iter().flat_map(|run| run.addr.block()..run.end()).collect();
        assert!(of_maps(&found).is_subset(&all));
    });
    pool.space_map().check();
    let seen = machine.rt.block_on(allocated(&pool));
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    // All maps in memory say the same.
    let pool = open(&machine, u64::MAX, false);
    assert_eq!(machine.rt.block_on(allocated(&pool)), seen);
    pool.space_map().check();
}

fn is_flushing(pool: &Pool, id: MetaslabId) -> bool {
    pool.space_map().pins().any(|pin| pin.metaslab == id && pin.flushing)
}

/// All deltas of a round are installed at one moment, in which one map is being read.
#[test]
fn a_map_that_gets_a_delta_while_it_is_read_is_read_again() {
    let machine = machine();
    let pool = open(&machine, 0, false);
    machine.rt.block_on(async {
        let runs = spread(&pool).await;
        let (before, is_done) = (map_use(&pool), AtomicBool::new(false));
        free(&pool, &some(&runs, 3)).await;
        let flush = async {
            pool.flush_all().await.unwrap();
            is_done.store(true, Relaxed);
        };
        let read = async {
            let ids: Vec<MetaslabId> = pool.space_map().metaslabs().collect();
            for id in ids.into_iter().cycle().take_while(|_| !is_done.load(Relaxed)) {
                drop(metaslab_view(&pool, id).await);
                assert_eq!(pool.space_map().set_aside(), [], "LOADS-M6");
            }
        };
        join(flush, read).await;
        assert!(map_use(&pool).deltas > before.deltas + 20);
    });
    pool.space_map().check();
}

/// A block is freed twice, and its map is read while the delta with the second free is written.
#[test]
fn a_delta_is_given_up_if_the_map_contradicts_it_while_it_is_written() {
    let machine = machine();
    let pool = open(&machine, 0, false);
    let id = machine.rt.block_on(async {
        let runs = spread(&pool).await;
        let some = some(&runs, 3);
        free(&pool, &some).await;
        pool.flush_all().await.unwrap();
        let space = pool.space_map();
        let of = |run: &Run| space.parts_of(run.addr.block()..run.end())[0].0;
        let is_cold = |run: &&Run| space.cold_map(of(run)).is_some_and(|map| map.is_some());
        let twice = *some.iter().rev().find(is_cold).expect("most maps are cold");
        let id = of(&twice);
        let before = space.cold_map(id);
        free(&pool, &[twice]).await;
        assert_eq!(space.set_aside(), [], "nothing is known of it yet");
        let read = async {
            while !is_flushing(&pool, id) {
                pool.runtime().sleep(Duration::from_micros(2)).await;
            }
            drop(metaslab_view(&pool, id).await);
            assert_eq!(space.set_aside(), [id], "AWAY-A5");
        };
        join(pool.flush_all(), read).await.0.unwrap();
        assert_eq!(Some(space.missing_map(id).map(|found| found.0)), before);
        let found = descriptors(&pool).await;
        let parts = |of: &Descriptor| StoredMap::of(of);
        assert!(found.iter().map(parts).any(|map| Some(map) == before), "the map is as it was");
        id
    });
    pool.space_map().check();
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    // The log says that the block is free, and so does the map.
    let pool = open(&machine, u64::MAX, false);
    assert_eq!(pool.space_map().set_aside(), []);
    assert!(pool.space_map().metaslab(id).unwrap().is_loaded);
    pool.space_map().check();
}

#[test]
fn loaded_maps_have_deltas_up_to_the_most_and_then_none() {
    let machine = machine();
    let pool = open(&machine, u64::MAX, true);
    machine.rt.block_on(async {
        let runs = spread(&pool).await;
        let mut most = 0;
        for nth in 0..16 {
            free(&pool, &some(&runs, nth)).await;
            pool.flush_all().await.unwrap();
            let found = descriptors(&pool).await;
            most = found.iter().map(|found| found.deltas.len()).max().unwrap().max(most);
            of_maps(&found);
        }
        assert!((2..=DELTAS_MAX).contains(&most), "{most}");
        assert!(pool.space().allocated < BLOCKS / 8, "the maps are whole, and deltas are free");
    });
    pool.space_map().check();
}

#[test]
fn a_metaslab_with_a_delta_that_cannot_be_read_is_set_aside_until_it_can() {
    let machine = machine();
    let pool = open(&machine, u64::MAX, true);
    let (broken, free_blocks) = machine.rt.block_on(async {
        let runs = spread(&pool).await;
        free(&pool, &some(&runs, 3)).await;
        pool.flush_all().await.unwrap();
        let found = descriptors(&pool).await;
        let delta = found.iter().find_map(|found| found.deltas.last().copied());
        (delta.expect("there are deltas"), pool.space().free)
    });
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    for run in broken.runs() {
        machine.disk.break_block(run.addr.block(), 5, Lasting::Forever);
    }
    let pool = open(&machine, u64::MAX, true);
    assert_eq!(pool.space_map().set_aside().len(), 1);
    assert!(pool.space().free < free_blocks);
    pool.space_map().check();
    machine.disk.heal();
    machine.rt.block_on(pool.flush_all()).unwrap();
    assert_eq!(pool.space_map().set_aside(), []);
    pool.space_map().check();
}
