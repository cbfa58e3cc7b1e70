//! What pins the log is seen wherever it is: in a table, or flushed and not durably recorded
//! (FLUSH-F2, R6).

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copyhold_device::sim::SimImage;
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, Sabotage, Tier, Transaction};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::{Key, Kind, TableId};
use shuttle::future::yield_now;

use common::{device, times};

const TABLE: TableId = TableId(100);

/// An edit is flushed while the oldest pin is asked for: as long as its record is not durable, the
/// log is pinned from its txg on.
async fn history(rt: Arc<ShuttleRuntime>, sabotage: Option<Sabotage>) {
    let rt: Rt = rt;
    let device = device(&rt, SimImage::empty(4096));
    let create = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    Pool::create(&rt, &(device.clone() as _), &create).await.unwrap();
    let limits = Limits { sabotage, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device, options).await.unwrap();
    let mut tx = Transaction::new();
    tx.put(TABLE, Key::new(1, Kind(40), 1), vec![1; 40]);
    let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();

    let done = Arc::new(AtomicBool::new(false));
    let (flushing, flushed) = (pool.clone(), done.clone());
    rt.spawn(Box::pin(async move {
        flushing.flush_all().await.unwrap();
        flushed.store(true, Ordering::Relaxed);
    }));
    while !done.load(Ordering::Relaxed) {
        let pin = pool.oldest_pin();
        let is_pinned = pin.is_some_and(|pin| pin <= txg);
        assert!(is_pinned || pool.durable_txg() > txg, "R6: {pin:?} without the pin of {txg}");
        yield_now().await;
    }
}

#[test]
fn an_edit_pins_the_log_until_the_record_of_its_flush_is_durable() {
    explore(Order::Random, 1, times(200), |rt| history(rt, None));
    explore(Order::Priorities, 2, times(200), |rt| history(rt, None));
}

#[test]
fn asking_the_records_before_the_tables_is_noticed() {
    let broken = || {
        let rule = Some(Sabotage::RecordsAskedFirst);
        explore(Order::Random, 1, times(4000), move |rt| history(rt, rule));
    };
    assert!(catch_unwind(AssertUnwindSafe(broken)).is_err(), "nobody noticed");
}
