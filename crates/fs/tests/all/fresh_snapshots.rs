//! Snapshots and rollbacks made while an fsync is under way. The content that they show can be read
//! at once, although the commit of the fsync has not written it yet.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use copyhold_device::sim::{Fault, Trigger};
use copyhold_fs::{Filesystem, FsError, NodeId};
use copyhold_runtime::Runtime;
use copyhold_types::{Purpose, SubvolId};
use futures_util::future::join;

use crate::common::tenants::*;
use crate::common::*;

const LEN: usize = 20_480;
const SEEDS: std::ops::Range<u64> = 1..60;
const ENOSPC: i32 = 28;

/// A subvolume with a file that is durable, and numbers at hand for the next snapshot.
async fn prepared(fs: &Arc<Filesystem>) -> (SubvolId, NodeId) {
    let a = subvolume(fs, "a").await;
    let node = file(fs, root_of(a), "f").await;
    write(fs, node, 0, &pattern(1, 2 * LEN)).await;
    fs.sync().await.unwrap();
    snapshot(fs, a, "first", false).await;
    fs.sync().await.unwrap();
    (a, node)
}

/// The content of file `f`, without waiting for anything but the read.
async fn content_of(fs: &Arc<Filesystem>, subvol: SubvolId) -> Vec<u8> {
    let copy = fs.lookup(root_of(subvol), b"f").await.unwrap().node;
    fs.read(copy, 0, LEN).await.unwrap().to_vec()
}

/// Plays `act` in many orders of tasks, with an fsync of [`LEN`] new bytes under way.
fn during_an_fsync<F: Future<Output = ()>>(act: impl Fn(Arc<Filesystem>, SubvolId) -> F) {
    for seed in SEEDS {
        let world = World::new(2000 + seed, 16384);
        world.run(async {
            let fs = world.open().await;
            let (a, node) = prepared(&fs).await;
            write(&fs, node, 0, &pattern(2, LEN)).await;
            let same = fs.clone();
            let mut sync = pin!(same.fsync(node, false));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(sync.as_mut().poll(&mut cx).is_pending());
            let (synced, ()) = join(sync, act(fs.clone(), a)).await;
            assert!(matches!(synced, Ok(()) | Err(FsError::Stale)), "{synced:?}");
            fs.volumes().finish_background().await.unwrap();
            world.close(fs).await;
        });
    }
}

#[test]
fn a_snapshot_made_during_an_fsync_can_be_read_at_once() {
    during_an_fsync(|fs, a| async move {
        let made = snapshot(&fs, a, "s", true).await;
        assert!(content_of(&fs, made).await == pattern(2, LEN));
        let nested = snapshot(&fs, made, "nested", false).await;
        assert!(content_of(&fs, nested).await == pattern(2, LEN));
    });
}

#[test]
fn a_rollback_to_a_subvolume_during_an_fsync_can_be_read_at_once() {
    during_an_fsync(|fs, a| async move {
        let made = fs.roll_back_subvolume(ROOT, b"first", a, None).await.unwrap().subvol;
        assert!(content_of(&fs, made).await == pattern(2, LEN));
    });
}

#[test]
fn a_snapshot_made_during_an_fsync_outlives_its_source() {
    during_an_fsync(|fs, a| async move {
        let made = snapshot(&fs, a, "s", false).await;
        fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
        assert!(content_of(&fs, made).await == pattern(2, LEN));
    });
}

/// The commit lasts as long as the host has no space, be it for hours.
#[test]
fn a_snapshot_made_while_the_host_is_full_can_be_read() {
    let world = World::new(2100, 16384);
    world.run(async {
        let fs = world.open().await;
        let (a, node) = prepared(&fs).await;
        let host_full = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
        world.device.arm_for_good(host_full, Fault::Error(ENOSPC));
        write(&fs, node, 0, &pattern(2, LEN)).await;
        let same = fs.clone();
        let mut sync = pin!(same.fsync(node, false));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(sync.as_mut().poll(&mut cx).is_pending());
        let look = async {
            world.rt.sleep(Duration::from_secs(60)).await;
            let made = snapshot(&fs, a, "s", true).await;
            assert!(content_of(&fs, made).await == pattern(2, LEN));
            world.rt.sleep(Duration::from_secs(3600)).await;
            assert!(content_of(&fs, made).await == pattern(2, LEN));
            world.device.disarm();
            made
        };
        let (synced, made) = join(sync, look).await;
        synced.unwrap();
        fs.sync().await.unwrap();
        assert!(content_of(&fs, made).await == pattern(2, LEN));
        world.close(fs).await;
    });
}
