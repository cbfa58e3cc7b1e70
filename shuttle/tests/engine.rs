//! Clients of one filesystem, stopped anywhere in their operations for the sake of others: what is
//! in memory, what the log says and what the check finds agree.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_fs::{Filesystem, OpenFlags, RenameFlags, SetAttr};
use copyhold_pool::Sabotage;
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use shuttle::future::yield_now;

use common::{CALLER, ROOT, device, empty, holds, look, pool, times};

const CLIENTS: u64 = 3;
const STEPS: u64 = 5;

/// One client: its operations meet those of the others at shared names.
async fn client(fs: &Arc<Filesystem>, number: u64) {
    for step in 0..STEPS {
        let name = format!("n{}", (number + step) % 3);
        let other = format!("n{}", (number * 2 + step) % 3);
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&CALLER, ROOT, name.as_bytes(), 0o644, flags, false).await;
        let Ok((entry, _)) = made else { continue };
        let content = vec![(number * STEPS + step) as u8; 3000 + 2000 * step as usize];
        let _ = fs.write(entry.node, 1000 * number, &content, Default::default()).await;
        match (number + step) % 5 {
            0 => drop(fs.fsync(entry.node, false).await),
            1 => {
                let flags = RenameFlags::default();
                let (from, to) = (name.as_bytes(), other.as_bytes());
                drop(fs.rename(&CALLER, ROOT, from, ROOT, to, flags).await);
            }
            2 => drop(fs.unlink(ROOT, other.as_bytes()).await),
            3 => {
                let set = SetAttr { size: Some(700), ..SetAttr::default() };
                drop(fs.setattr(&CALLER, entry.node, &set).await);
            }
            _ => drop(fs.link(entry.node, ROOT, format!("l{number}").as_bytes()).await),
        }
        fs.release(entry.node);
        fs.forget(entry.node, 1);
        // Beside what others do, not when all is quiet.
        fs.reaper_idle().await;
    }
}

/// All clients at once; then the power fails, and what a sync had promised is there.
async fn history(rt: Arc<ShuttleRuntime>, sabotage: Option<Sabotage>) {
    let rt: Rt = rt;
    let device_one = device(&rt, empty(&rt).await);
    let pool_one = pool(&rt, device_one.clone(), sabotage).await;
    let fs = Filesystem::open(pool_one, Default::default()).await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for number in 0..CLIENTS {
        let (fs, done) = (fs.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            client(&fs, number).await;
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < CLIENTS as usize {
        yield_now().await;
    }
    fs.sync().await.unwrap();
    let shown = look(&fs).await;
    holds(&rt, device_one.crash(3), shown).await;
}

/// One client of tenants: what it writes and snapshots, others settle at the same time.
async fn tenant(fs: &Arc<Filesystem>, number: u64) {
    for step in 0..3_u64 {
        let name = format!("t{number}-{step}");
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&CALLER, ROOT, name.as_bytes(), 0o644, flags, false).await;
        let (entry, _) = made.unwrap();
        let content = vec![(number * 3 + step) as u8; 5000];
        fs.write(entry.node, 0, &content, Default::default()).await.unwrap();
        let snapshot = format!("s{number}-{step}");
        fs.snapshot(ROOT.subvol, ROOT, snapshot.as_bytes(), false, None).await.unwrap();
        fs.release(entry.node);
        fs.forget(entry.node, 1);
    }
}

/// Snapshots are made while everything is settled in tables, by more than one.
async fn snapshots(rt: Arc<ShuttleRuntime>) {
    let rt: Rt = rt;
    let device_one = device(&rt, empty(&rt).await);
    let pool_one = pool(&rt, device_one.clone(), None).await;
    let fs = Filesystem::open(pool_one, Default::default()).await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for number in 0..4 {
        let (fs, done) = (fs.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            if number < 2 {
                tenant(&fs, number).await;
            } else {
                for _ in 0..4 {
                    fs.pool().flush_all().await.unwrap();
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < 4 {
        yield_now().await;
    }
    fs.sync().await.unwrap();
    let shown = look(&fs).await;
    fs.close().await.unwrap();
    fs.pool().close().await.unwrap();
    holds(&rt, device_one.image(), shown).await;
}

#[test]
fn clients_that_are_stopped_anywhere_leave_a_sound_pool() {
    explore(Order::Random, 1, times(60), |rt| history(rt, None));
    explore(Order::Priorities, 2, times(60), |rt| history(rt, None));
}

#[test]
fn snapshots_beside_flushes_leave_a_sound_pool() {
    explore(Order::Random, 3, times(40), snapshots);
    explore(Order::Priorities, 4, times(40), snapshots);
}

/// R1 broken on purpose: what is remembered is in another order than what is logged.
/// One history in a thousand or two shows it, and which one changes with the engine: so the bound
/// is far above that, and the first that shows it is the last.
#[test]
fn an_order_of_the_log_that_is_not_that_of_memory_is_noticed() {
    let broken = || {
        let rule = Some(Sabotage::JoinFirst);
        explore(Order::Random, 12, times(16_000), move |rt| history(rt, rule));
    };
    assert!(catch_unwind(AssertUnwindSafe(broken)).is_err(), "nobody noticed");
}
