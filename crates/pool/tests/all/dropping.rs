//! Tables of the pool's own that go, with edits that are in memory only.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, Tier, Transaction};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, TableId};

const TABLE: TableId = TableId(50);
const OTHER: TableId = TableId(51);

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

async fn open(rt: &Arc<SeededRuntime>, disk: &Arc<SimDevice>) -> Arc<Pool> {
    let device: DynDevice = disk.clone();
    Pool::open(rt.clone() as Rt, device, OpenOptions::default()).await.unwrap()
}

async fn put(pool: &Arc<Pool>, table: TableId, keys: std::ops::Range<u64>, byte: u8) {
    let mut tx = Transaction::new();
    keys.for_each(|n| tx.put(table, key(n), vec![byte; 100]));
    let credit = pool.admit(Tier::Write, tx.len(), 100 * tx.len()).await.unwrap();
    pool.apply(credit, tx).unwrap();
}

async fn items(pool: &Arc<Pool>) -> Vec<(u64, u8)> {
    let found = pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    found.iter().map(|(key, value)| (key.offset, value[0])).collect()
}

async fn commit(pool: &Arc<Pool>) {
    pool.commit(pool.open_txg()).await.unwrap();
}

/// What of the log a crash leaves is the seed's choice; `durable`: that the table went is told.
fn drop_and_crash(seed: u64, durable: bool) {
    let rt = SeededRuntime::new(seed);
    let config = SimConfig::new(seed);
    let image = SimImage::empty(16384);
    let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config.clone());
    let image = rt.block_on(async {
        let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
        let device: DynDevice = disk.clone();
        Pool::create(&(rt.clone() as Rt), &device, &options).await.unwrap();
        let pool = open(&rt, &disk).await;
        put(&pool, TABLE, 0..300, 1).await;
        pool.flush_all().await.unwrap();
        put(&pool, TABLE, 200..500, 2).await;
        put(&pool, OTHER, 0..10, 3).await;
        commit(&pool).await;
        let (allocated, flushes) = (pool.space().allocated, pool.devices().counters().flushes);
        pool.drop_table(TABLE).await.unwrap();
        assert_eq!(pool.devices().counters().flushes, flushes, "edits that go are not flushed");
        assert!(pool.space().allocated < allocated, "its nodes are free");
        let counted = pool.tables().iter().map(|table| table.weight()).sum();
        assert_eq!(pool.unflushed(), counted);
        if durable {
            commit(&pool).await;
        }
        disk.crash(seed)
    });
    rt.drop_tasks();
    let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
    rt.block_on(async {
        let pool = open(&rt, &disk).await;
        let old = (0..200).map(|n| (n, 1));
        let whole: Vec<(u64, u8)> = old.chain((200..500).map(|n| (n, 2))).collect();
        // Who asks for a table makes it.
        let is_there = pool.tables().iter().any(|table| table.id() == TABLE);
        let found = items(&pool).await;
        match is_there {
            false => assert!(found.is_empty()),
            // Nothing of a batch that is not durable is kept in part.
            true => assert!(!durable && found == whole, "{found:?}"),
        }
        pool.close().await.unwrap();
    });
    rt.drop_tasks();
}

#[test]
fn a_table_goes_with_the_edits_that_it_has_in_memory_or_stays_with_all_of_them() {
    for seed in 0..30 {
        drop_and_crash(seed, seed % 2 == 0);
    }
}
