//! A tenant at its limit, whose writes are refused, beside one that makes and unlinks files: each
//! goes on, wherever the other is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options, Sabotage};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::{DeviceId, InodeNo};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};
use shuttle::future::yield_now;

const CALLER: Caller = Caller::ROOT;
const CLIENTS: usize = 4;

async fn filesystem(rt: &Rt, sabotage: Option<Sabotage>) -> Arc<Filesystem> {
    let device: DynDevice =
        SimDevice::from_image(rt.clone(), DeviceId(0), SimImage::empty(4096), SimConfig::new(1));
    let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    Pool::create(rt, &device, &options).await.unwrap();
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device, options).await.unwrap();
    Filesystem::format(&pool, &CALLER, 0o755).await.unwrap();
    Filesystem::open(pool, Options { sabotage, ..Options::default() }).await.unwrap()
}

async fn file(fs: &Arc<Filesystem>, parent: NodeId, name: &str) -> NodeId {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&CALLER, parent, name.as_bytes(), 0o644, flags, false).await;
    made.unwrap().0.node
}

/// Each write of it is refused, and looks first for unlinked files that could make room.
async fn refused(fs: &Arc<Filesystem>, node: NodeId) {
    for _ in 0..2 {
        let written = fs.write(node, 0, &[7; 8192], Default::default()).await;
        assert!(written.is_err(), "the limit holds");
    }
}

/// Makes files, and unlinks them while they are open.
async fn busy(fs: &Arc<Filesystem>, number: usize) {
    for step in 0..3 {
        let name = format!("{number}-{step}");
        let node = file(fs, NodeId::ROOT, &name).await;
        fs.unlink(NodeId::ROOT, name.as_bytes()).await.unwrap();
        fs.release(node);
        fs.forget(node, 1);
    }
}

async fn history(rt: Arc<ShuttleRuntime>, sabotage: Option<Sabotage>) {
    let rt: Rt = rt;
    let fs = filesystem(&rt, sabotage).await;
    fs.enable_quotas().await.unwrap();
    let subvol = fs.create_subvolume(&CALLER, NodeId::ROOT, b"tenant", None).await.unwrap();
    let node = file(&fs, NodeId { subvol, ino: InodeNo::ROOT }, "full").await;
    let none = |ledger: &Ledger| ledger.limit(GroupId::of(subvol), LimitKind::Referenced, Some(0));
    fs.change_quotas(none).await.unwrap();

    let done = Arc::new(AtomicUsize::new(0));
    for number in 0..CLIENTS {
        let (fs, done) = (fs.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            match number % 2 {
                0 => refused(&fs, node).await,
                _ => busy(&fs, number).await,
            }
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < CLIENTS {
        yield_now().await;
    }
    fs.close().await.unwrap();
}

#[test]
fn a_tenant_at_its_limit_stops_nobody() {
    explore(Order::Random, 1, 40, |rt| history(rt, None));
    explore(Order::Priorities, 2, 40, |rt| history(rt, None));
}

/// The circle that once froze whole pools: states under the map here, the map under a state there.
#[test]
fn states_asked_under_the_lock_of_the_map_are_noticed() {
    let broken = || {
        let rule = Some(Sabotage::AskUnderTheMap);
        explore(Order::Random, 3, 400, move |rt| history(rt, rule));
    };
    assert!(catch_unwind(AssertUnwindSafe(broken)).is_err(), "no order of tasks showed it");
}
