//! The flush policies under a steady load, commit by commit.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_pool::{
    CreateOptions, FlushPolicy, Limits, OpenOptions, Pool, Tier, Transaction, flush_figures,
};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::{Key, Kind, TableId};

use crate::machine::Machine;

const TABLES: u64 = 60;
const EDITS_PER_COMMIT: u64 = 300;
const EDITS_MAX: u64 = 8000;
const COMMITS: u64 = 300;

fn options(flush: FlushPolicy, replay_edits: u64) -> OpenOptions {
    let limits = Limits { flush, replay_edits, ..Limits::default() };
    OpenOptions { limits, ..OpenOptions::default() }
}

/// A pool of many units.
fn world(flush: FlushPolicy) -> (Machine, Arc<Pool>) {
    let machine = Machine::on(&SimImage::empty(16384));
    let create = CreateOptions {
        log_bytes: Some(8 << 20),
        metaslab_blocks: Some(1024),
        ..CreateOptions::default()
    };
    let options = options(flush, EDITS_MAX);
    let rt: Rt = machine.rt.clone();
    let pool = machine.rt.block_on(async {
        let device = machine.device();
        Pool::create(&rt, &device, &create).await.unwrap();
        Pool::open(rt, device, options).await.unwrap()
    });
    (machine, pool)
}

/// Commits edits of all tables, and lets the flusher run.
async fn commit(machine: &Machine, pool: &Arc<Pool>, number: u64, edits: u64) {
    let mut tx = Transaction::new();
    for n in 0..edits {
        let n = number * edits + n;
        let key = Key::new(1, Kind(40), n / TABLES % 40);
        tx.put(TableId(100 + n % TABLES), key, n.to_le_bytes().to_vec());
    }
    let credit = pool.admit(Tier::Write, edits as usize, 64 * edits as usize).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
    machine.rt.sleep(Duration::from_millis(20)).await;
}

/// Units that are flushed between two commits, once the log has been filled and trimmed.
fn flushed_per_commit(flush: FlushPolicy, edits: u64) -> Vec<u64> {
    let (machine, pool) = world(flush);
    let rt = machine.rt.clone();
    rt.block_on(async {
        let (mut found, mut before) = (Vec::new(), 0);
        for number in 0..COMMITS {
            commit(&machine, &pool, number, edits).await;
            let figures = flush_figures(&pool);
            for (used, limit) in figures.levels {
                assert!(used * 10 <= limit * 9, "{number}: {used} of {limit}, {figures:?}");
            }
            if number >= COMMITS / 3 {
                found.push(figures.units - before);
            }
            before = figures.units;
        }
        found
    })
}

fn mean_and_most(found: &[u64]) -> (f64, u64) {
    let sum: u64 = found.iter().sum();
    (sum as f64 / found.len() as f64, found.iter().copied().max().unwrap_or(0))
}

#[test]
fn even_flushes_at_most_three_times_the_mean_with_a_commit() {
    let even = flushed_per_commit(FlushPolicy::Even, EDITS_PER_COMMIT);
    let (mean, most) = mean_and_most(&even);
    assert!(mean > 1.0, "{mean}: {even:?}");
    assert!(most as f64 <= 3.0 * mean, "{most} at a mean of {mean}: {even:?}");
}

#[test]
fn thresholds_flush_in_bursts() {
    let bursts = flushed_per_commit(FlushPolicy::Threshold, EDITS_PER_COMMIT);
    let (mean, most) = mean_and_most(&bursts);
    assert!(most as f64 > 3.0 * mean, "{most} at a mean of {mean}: {bursts:?}");
}

#[test]
fn a_storm_of_small_commits_does_not_flush_a_unit_for_each() {
    let even = flushed_per_commit(FlushPolicy::Even, 6);
    let rounds = even.iter().filter(|&&units| units > 0).count();
    let (mean, _) = mean_and_most(&even);
    assert!(mean < 0.5, "{mean}: {even:?}");
    assert!(rounds <= even.len() / 8, "{rounds} rounds: {even:?}");
}

/// As after a mount that allows less time for recovery.
#[test]
fn a_log_longer_than_the_limit_on_edits_is_flushed_until_it_fits() {
    let (machine, pool) = world(FlushPolicy::Even);
    machine.rt.block_on(async {
        for number in 0..15 {
            commit(&machine, &pool, number, EDITS_PER_COMMIT).await;
        }
    });
    let edits = pool.log_use().edits;
    let image = machine.disk.image();
    drop((pool, machine));
    let machine = Machine::on(&image);
    let (rt, limit) = (machine.rt.clone(), edits / 5);
    rt.block_on(async {
        let options = options(FlushPolicy::Even, limit);
        let pool = Pool::open(rt.clone() as Rt, machine.device(), options).await.unwrap();
        assert_eq!(flush_figures(&pool).levels[1], (edits, limit));
        for number in 15..30 {
            commit(&machine, &pool, number, EDITS_PER_COMMIT / 10).await;
        }
        let (used, _) = flush_figures(&pool).levels[1];
        assert!(used <= limit, "{used} of {limit}");
    });
}

#[test]
fn an_idle_pool_flushes_nothing() {
    let (machine, pool) = world(FlushPolicy::Even);
    let rt = machine.rt.clone();
    rt.block_on(async {
        for number in 0..COMMITS / 4 {
            commit(&machine, &pool, number, EDITS_PER_COMMIT).await;
        }
        // The growth of the last edits, and the records of its rounds.
        rt.sleep(Duration::from_secs(10)).await;
        let rested = flush_figures(&pool);
        rt.sleep(Duration::from_secs(60)).await;
        let now = flush_figures(&pool);
        assert!(rested.units > 0);
        assert_eq!((now.rounds, now.units), (rested.rounds, rested.units));
    });
}

/// Half of this log is 4 MiB; each commit takes a block or more.
#[test]
fn a_limit_on_bytes_keeps_the_log_shorter_than_half() {
    const BLOCKS: u64 = 200;
    let (machine, pool) = world(FlushPolicy::Even);
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    let mut options = options(FlushPolicy::Even, EDITS_MAX);
    options.limits.log_bytes = BLOCKS * 4096;
    let opening = Pool::open(machine.rt.clone() as Rt, machine.device(), options);
    let pool = machine.rt.block_on(opening).unwrap();
    machine.rt.clone().block_on(async {
        let mut most = 0;
        for number in 0..COMMITS {
            commit(&machine, &pool, number, 6).await;
            let [(used, limit), ..] = flush_figures(&pool).levels;
            assert_eq!(limit, BLOCKS);
            most = used.max(most);
        }
        assert!((BLOCKS / 2..=BLOCKS).contains(&most), "{most}");
    });
}
