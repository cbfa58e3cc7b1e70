//! Rings of the smallest size, and transactions that are large against them: the log never
//! overflows (A3).

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::SimDevice;
use copyhold_pool::{CreateOptions, OpenOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, TableId};
use futures_util::future::join_all;

const TABLE: TableId = TableId(100);
/// The smallest pool.
const BLOCKS: u64 = 2048;
/// Bytes that do not compress.
const VALUE_BYTES: usize = 2048;

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

fn play(seed: u64, log_bytes: Option<u64>) -> Result<(), PoolError> {
    let rt = SeededRuntime::new(seed);
    let device: DynDevice = SimDevice::new(rt.clone() as Rt, DeviceId(0), BLOCKS, seed);
    let played = rt.block_on(async {
        let create = CreateOptions { log_bytes, ..CreateOptions::default() };
        Pool::create(&(rt.clone() as Rt), &device, &create).await?;
        let pool = Pool::open(rt.clone() as Rt, device.clone(), OpenOptions::default()).await?;
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
    for seed in 0..8 {
        for log_bytes in [None, Some(1)] {
            play(seed, log_bytes).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}
