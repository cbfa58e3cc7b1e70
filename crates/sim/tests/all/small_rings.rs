//! Rings of the smallest size, and transactions that are large against them: the log never
//! overflows (LOGROOM-A3), mounts alone do not fill it (OPEN-O2), and what the last three
//! uberblocks need of it is kept over mounts (R6).

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Caller, Filesystem, FsError, Options};
use copyhold_log::Ring;
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, PoolError, Sabotage, Tier, Transaction, read_labels,
    read_uberblocks,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_sim::Machine;
use copyhold_types::{DeviceId, Key, Kind, TableId};
use futures_util::future::join_all;

const TABLE: TableId = TableId(100);
/// Blocks of the smallest pool, and of two larger ones. All have the smallest ring.
const SIZES: [u64; 3] = [2048, 3 * 2048 + 77, 32 * 2048];
/// Bytes that do not compress.
const VALUE_BYTES: usize = 2048;

fn pool_blocks(seed: u64) -> u64 {
    SIZES[seed as usize % SIZES.len()]
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

fn noise(n: u64, len: usize) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| byte()).collect()
}

/// Puts up to 64 KiB; every third of those that come is committed.
async fn put(pool: &Arc<Pool>, n: u64) -> Result<(), PoolError> {
    let chance = noise(n, 8);
    let count = 1 + u64::from(chance[0]) % 32;
    let mut tx = Transaction::new();
    for i in 0..count {
        tx.put(TABLE, key((n * 7 + i) % 60), noise(n * 100 + i, VALUE_BYTES));
    }
    let bytes = count as usize * (VALUE_BYTES + 22);
    let credit = pool.admit(Tier::Write, count as usize, bytes).await?;
    if chance[1].is_multiple_of(2) {
        pool.runtime().sleep(Duration::from_micros(u64::from(chance[2]) * 20)).await;
    }
    let txg = pool.apply(credit, tx)?;
    if chance[3].is_multiple_of(3) { pool.commit(txg).await } else { Ok(()) }
}

fn broken(sabotage: Option<Sabotage>) -> OpenOptions {
    let limits = Limits { sabotage, ..Limits::default() };
    OpenOptions { limits, ..OpenOptions::default() }
}

fn play(seed: u64, sabotage: Option<Sabotage>) -> Result<(), PoolError> {
    let rt = SeededRuntime::new(seed);
    let blocks = pool_blocks(seed);
    let device: DynDevice = SimDevice::new(rt.clone() as Rt, DeviceId(0), blocks, seed);
    let played = rt.block_on(async {
        let create = CreateOptions { log_bytes: Some(1), ..CreateOptions::default() };
        Pool::create(&(rt.clone() as Rt), &device, &create).await?;
        let pool = Pool::open(rt.clone() as Rt, device.clone(), broken(sabotage)).await?;
        for round in 0..12 {
            let puts = (0..40).map(|n| put(&pool, seed * 1_000_000 + round * 1000 + n));
            join_all(puts).await.into_iter().collect::<Result<(), PoolError>>()?;
        }
        Ok(())
    });
    rt.drop_tasks();
    played
}

#[test]
fn a_small_ring_never_overflows() {
    for seed in 0..24 {
        play(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn admitting_above_the_limit_of_the_log_is_noticed() {
    let rule = Some(Sabotage::AdmitAboveLimit);
    let noticed = (0..100).find(|seed| play(*seed, rule).is_err());
    assert!(noticed.is_some(), "LOGROOM-A3 can be broken for 100 seeds, and nobody notices");
}

/// Whether the log that the last three uberblocks need is still there.
async fn keeps_log(device: &DynDevice) -> bool {
    let label = read_labels(device).await.unwrap().label;
    let found = read_uberblocks(device, &label).await.unwrap();
    let newest = found.last().unwrap();
    let ring = Ring::new(device.clone(), label.log, label.log_blocks, label.pool, label.secret);
    let end = ring.scan(newest.head).await.end;
    found.iter().rev().take(3).all(|uberblock| end <= uberblock.head + ring.blocks())
}

/// Many short mounts, each of which ends in a crash. Whether the log was kept all the time.
fn keeps_log_over_mounts(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let mut image = SimImage::empty(pool_blocks(seed));
    for mount in 0..30 {
        let rt = SeededRuntime::new(seed + mount);
        let config = SimConfig::new(seed + mount);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        let device: DynDevice = disk.clone();
        rt.block_on(async {
            if mount == 0 {
                let create = CreateOptions { log_bytes: Some(1), ..CreateOptions::default() };
                Pool::create(&(rt.clone() as Rt), &device, &create).await.unwrap();
            }
            let pool = Pool::open(rt.clone() as Rt, device.clone(), broken(sabotage)).await;
            let pool = pool.unwrap();
            for n in 0..1 + (seed + mount) % 7 {
                put(&pool, seed * 1_000_000 + mount * 1000 + n).await.unwrap();
            }
            let txg = pool.open_txg();
            pool.commit(txg).await.unwrap();
        });
        let kept = rt.block_on(keeps_log(&device));
        rt.drop_tasks();
        if !kept {
            return false;
        }
        image = disk.crash(seed + mount);
    }
    true
}

#[test]
fn the_log_of_older_uberblocks_is_kept_over_mounts() {
    (0..10).for_each(|seed| assert!(keeps_log_over_mounts(seed, None), "R6: seed {seed}"));
    let rule = Some(Sabotage::KeepNewestHeadOnly);
    let noticed = (0..20).any(|seed| !keeps_log_over_mounts(seed, rule));
    assert!(noticed, "R6 can be broken for 20 seeds, and nobody notices");
}

/// A pool in use, then many mounts, each of which is killed at once or soon. How the last one ends.
fn mounts_after_mounts(seed: u64, sabotage: Option<Sabotage>) -> Result<(), PoolError> {
    let mut image = SimImage::empty(pool_blocks(seed));
    for mount in 0..200 {
        let rt = SeededRuntime::new(seed + mount);
        let config = SimConfig::new(seed + mount);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        let device: DynDevice = disk.clone();
        let opened: Result<(), PoolError> = rt.block_on(async {
            if mount == 0 {
                let create = CreateOptions { log_bytes: Some(1), ..CreateOptions::default() };
                Pool::create(&(rt.clone() as Rt), &device, &create).await?;
            }
            let pool = Pool::open(rt.clone() as Rt, device, broken(sabotage)).await?;
            for n in 0..if mount == 0 { seed * 3 } else { 0 } {
                put(&pool, seed * 1_000_000 + n).await?;
            }
            // Longer than `mark_after`, so the last batch is marked.
            let has_time = seed % 2 == 1 && mount % 2 == 1;
            pool.runtime().sleep(Duration::from_millis(if has_time { 150 } else { 0 })).await;
            Ok(())
        });
        rt.drop_tasks();
        opened?;
        image = disk.crash(seed + mount);
    }
    Ok(())
}

#[test]
fn mounts_that_are_killed_do_not_fill_the_ring() {
    for seed in 0..8 {
        mounts_after_mounts(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let rule = Some(Sabotage::AlwaysBegin);
    let noticed = (0..8).any(|seed| mounts_after_mounts(seed, rule).is_err());
    assert!(noticed, "OPEN-O2 can be broken for 8 seeds, and nobody notices");
}

/// The same of a filesystem. Here the flusher starts only when the tenants are known, some time
/// after `Pool::open`.
#[test]
fn mounts_of_a_filesystem_that_are_killed_take_no_log() {
    let machine = Machine::on(1, SimImage::empty(SIZES[0]));
    let made = machine.run(async {
        let create = CreateOptions { log_bytes: Some(1), ..CreateOptions::default() };
        Pool::create(&machine.rt(), &machine.device(), &create).await?;
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        let pool = Pool::open(machine.rt(), machine.device(), options).await?;
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await
    });
    made.expect("the power is on").expect("it is made");
    let (mut image, mut live_blocks) = (machine.crash(1), Vec::new());
    for mount in 0..20 {
        let machine = Machine::on(mount, image);
        let opened = machine.run(async {
            let options = OpenOptions { tenants: true, ..OpenOptions::default() };
            let pool = Pool::open(machine.rt(), machine.device(), options).await?;
            let fs = Filesystem::open(pool, Options::default()).await?;
            machine.rt().sleep(Duration::from_millis(mount * 20)).await;
            live_blocks.push(fs.pool().log_use().live_blocks);
            Ok::<(), FsError>(())
        });
        opened.expect("the power is on").expect("it opens");
        image = machine.crash(mount);
    }
    assert!(live_blocks[19] <= live_blocks[0] + 4, "{live_blocks:?}");
}
