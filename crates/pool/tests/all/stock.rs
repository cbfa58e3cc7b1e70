//! Stock mode: each txg writes the maps of the metaslabs that it changed, in passes.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, StockFigures, end_txg, flush_figures,
};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::{Purpose, Run};

use crate::extents::write;
use crate::machine::{Machine, allocate, free};

const METASLABS: u64 = 64;

fn options(space_log: bool) -> OpenOptions {
    let limits = Limits { space_log, ..Limits::default() };
    OpenOptions { limits, ..OpenOptions::default() }
}

/// A pool of many metaslabs, most of which have data.
async fn filled(machine: &Machine, space_log: bool) -> (Arc<Pool>, Vec<Run>) {
    let create = CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(256),
        ..CreateOptions::default()
    };
    let (rt, device): (Rt, _) = (machine.rt.clone(), machine.device());
    Pool::create(&rt, &device, &create).await.unwrap();
    let pool = Pool::open(rt, device, options(space_log)).await.unwrap();
    let mut runs = Vec::new();
    for n in 0..METASLABS * 8 {
        runs.push(write(&pool, n, n as u8, 16).await.0);
    }
    pool.commit(pool.open_txg()).await.unwrap();
    (pool, runs)
}

fn machine() -> Machine {
    Machine::on(&SimImage::empty(METASLABS * 256))
}

fn stock(pool: &Pool) -> StockFigures {
    flush_figures(pool).stock.expect("it is in stock mode")
}

#[test]
fn a_txg_writes_all_maps_that_it_changed() {
    let machine = machine();
    machine.rt.block_on(async {
        let (pool, _) = filled(&machine, false).await;
        let (dirty, all) = flush_figures(&pool).metaslabs;
        assert!(dirty > 20 && all >= METASLABS - 1, "{dirty} of {all}");
        end_txg(&pool).await;
        let figures = stock(&pool);
        assert_eq!((figures.txgs, figures.single), (1, 0));
        assert!(figures.passes >= 2 && figures.passes == figures.most, "{figures:?}");
        assert!(figures.maps >= dirty && figures.edits >= 2 * METASLABS, "{figures:?}");
        let (left, _) = flush_figures(&pool).metaslabs;
        assert!(left < dirty / 4, "{left} of {dirty} metaslabs have changes");
        // A txg that changed nothing takes no pass.
        end_txg(&pool).await;
        assert_eq!(stock(&pool), figures);
    });
}

#[test]
fn with_the_log_no_txg_writes_maps() {
    let machine = machine();
    machine.rt.block_on(async {
        let (pool, _) = filled(&machine, true).await;
        end_txg(&pool).await;
        assert_eq!(pool.devices().counters().purposes[Purpose::Map as usize].writes, 0);
        assert_eq!(flush_figures(&pool).stock, None);
    });
}

/// The maps of a full pool go where the reserve is.
#[test]
fn a_txg_of_a_full_pool_writes_its_maps() {
    let machine = machine();
    machine.rt.block_on(async {
        let (pool, _) = filled(&machine, false).await;
        let mut runs = Vec::new();
        for step in [64, 8, 1] {
            while pool.space().available() > step + 8 {
                runs.extend(allocate(&pool, step).await);
            }
        }
        for part in 0..3 {
            let before = stock(&pool);
            let (dirty, _) = flush_figures(&pool).metaslabs;
            end_txg(&pool).await;
            let (figures, (left, _)) = (stock(&pool), flush_figures(&pool).metaslabs);
            assert!(figures.maps >= before.maps + dirty && left <= dirty / 2, "{part}: {left}");
            pool.space_map().check();
            // Frees come through, however full it is.
            free(&pool, &[runs.pop().unwrap()]).await;
        }
        free(&pool, &runs).await;
        end_txg(&pool).await;
        assert!(pool.space().available() >= runs.len() as u64, "{:?}", pool.space());
    });
}

/// The marker sees no pause between the commits.
#[test]
fn the_timer_ends_a_txg_though_commits_follow_each_other() {
    let machine = machine();
    let rt = machine.rt.clone();
    rt.block_on(async {
        let (pool, _) = filled(&machine, false).await;
        let before = stock(&pool).txgs;
        for n in 0..200 {
            let (_, txg) = write(&pool, 1000 + n, 1, 1).await;
            pool.commit(txg).await.unwrap();
            rt.sleep(Duration::from_millis(60)).await;
        }
        let txgs = stock(&pool).txgs - before;
        assert!((1..=3).contains(&txgs), "{txgs} txgs in 12 seconds");
        // An idle pool comes to rest.
        rt.sleep(Duration::from_secs(20)).await;
        let rested = stock(&pool);
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(stock(&pool), rested);
    });
}

/// Each moment of the passes is a crash: all allocations are recovered.
#[test]
fn a_crash_between_passes_loses_nothing() {
    let machine = machine();
    let rt = machine.rt.clone();
    let images = rt.block_on(async {
        let (pool, runs) = filled(&machine, false).await;
        let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (done, passes) = (ended.clone(), pool.clone());
        rt.spawn(Box::pin(async move {
            end_txg(&passes).await;
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        }));
        let mut images = Vec::new();
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            images.push(machine.disk.image());
            rt.sleep(Duration::from_micros(200)).await;
        }
        images.push(machine.disk.image());
        images.into_iter().map(|image| (image, runs.clone())).collect::<Vec<_>>()
    });
    assert!(images.len() > 4, "{} moments", images.len());
    for (image, runs) in images {
        let machine = Machine::on(&image);
        machine.rt.block_on(async {
            let rt: Rt = machine.rt.clone();
            let pool = Pool::open(rt, machine.device(), options(false)).await.unwrap();
            let map = pool.space_map();
            map.check();
            let allocated: Vec<Run> =
                map.metaslabs().flat_map(|id| map.allocated_runs(id)).collect();
            let holds =
                |run: &Run| allocated.iter().any(|of| of.addr <= run.addr && run.end() <= of.end());
            assert!(runs.iter().all(holds), "an allocation is lost");
        });
    }
}
