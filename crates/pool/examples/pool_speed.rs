//! What the pool itself costs, without a filesystem: transactions applied per second, and commits.
//!
//! `cargo run --release -p copyhold-pool --example pool_speed [FILE]`

#![allow(clippy::disallowed_methods, reason = "a measurement")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use copyhold_device::{DynDevice, FileDevice};
use copyhold_pool::{CreateOptions, LaneClass, OpenOptions, Pool, Tier, Transaction};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::{Buf, DeviceId, EpochId, Key, Kind, Pointer, Purpose, Run, TableId};

const TABLE: TableId = TableId(100);
const EXTENT: Kind = Kind(16);
const BYTES: u64 = 4 << 30;
const KEYS: u64 = 100_000;

fn value(run: Run, sum: u32) -> Vec<u8> {
    let mut value = run.addr.raw().to_le_bytes().to_vec();
    value.extend_from_slice(&[0, 0]);
    value.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    value.extend_from_slice(&sum.to_le_bytes());
    value
}

/// Puts one extent over another: what a random overwrite asks of the pool.
async fn overwrite(pool: &Arc<Pool>, at: u64, attach: bool) -> copyhold_types::Txg {
    let key = Key::new(7, EXTENT, at);
    let old = pool.get(TABLE, key).await.expect("readable");
    let mut space = pool.reserve_now(1, Tier::Write).expect("there is room");
    let claim = pool.claim(LaneClass::Sync, 1, &mut space).expect("reserved").remove(0);
    let run = claim.run();
    let mut tx = Transaction::new();
    if attach {
        let mut data = Buf::zeroed(1);
        data.make_mut()[0] = at as u8;
        let sum = copyhold_format::block_checksum(&data);
        tx.put(TABLE, key, value(run, sum));
        tx.attach(run, data.into());
    } else {
        tx.put(TABLE, key, value(run, at as u32));
    }
    tx.allocate(claim);
    if let Some(old) = old {
        let raw = u64::from_le_bytes(old[..8].try_into().expect("eight bytes"));
        let run = Run::new(copyhold_types::BlockAddr::from_raw(raw), 1);
        tx.release(Pointer { run, epoch: EpochId(1), origin: EpochId(1) });
    }
    let credit = pool.admit(Tier::Write, 3, 60).await.expect("admitted");
    pool.apply(credit, tx).expect("applied")
}

fn scatter(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn main() {
    let path: PathBuf =
        std::env::args_os().nth(1).map_or_else(|| "pool-speed.img".into(), PathBuf::from);
    let executors = Executors::start(Config::default()).expect("executors start");
    let rt: Rt = executors.clone();
    let device: DynDevice =
        FileDevice::create(executors.reactor(), DeviceId(0), &path, BYTES, false)
            .expect("a new file");
    let pool = executors.block_on(async {
        Pool::create(&rt, &device, &CreateOptions::default()).await.expect("created");
        Pool::open(rt.clone(), device.clone(), OpenOptions::default()).await.expect("opened")
    });

    let begin = Instant::now();
    let count = 400_000;
    executors.block_on(async {
        for n in 0..count {
            overwrite(&pool, scatter(n) % KEYS, false).await;
        }
    });
    let each = begin.elapsed().as_nanos() as u64 / count;
    println!("overwrite, one task: {each} ns each");

    let begin = Instant::now();
    let count = 4000;
    executors.block_on(async {
        for n in 0..count {
            let txg = overwrite(&pool, scatter(n) % KEYS, true).await;
            pool.commit(txg).await.expect("committed");
        }
    });
    let each = begin.elapsed().as_micros() as u64 / count;
    println!("overwrite and commit, one task: {each} us each");

    let counters = device.counters().snapshot();
    for why in Purpose::ALL {
        let count = counters.purposes[why as usize];
        println!("{:>6}: {} writes, {} bytes", why.name(), count.writes, count.written_bytes);
    }
    println!("flushes: {}", counters.flushes);
    executors.block_on(pool.close()).expect("closed");
    std::fs::remove_file(&path).expect("removed");
}
