//! A subvolume is not changed before its leftovers are known (LEFTOVER-O1), and is marked read-only
//! when all that it has accepted is there (READONLY-O1). In random histories few crashes leave
//! blocks behind the end of a file in a subvolume that two come to at the same moment; here they
//! do.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options, Sabotage, SetAttr, WriteFlags};
use copyhold_sim::Machine;
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

fn options(sabotage: Option<Sabotage>) -> Options {
    Options { attach_bytes_max: 0, sabotage, ..Options::default() }
}

async fn open(machine: &Machine, sabotage: Option<Sabotage>) -> Arc<Filesystem> {
    machine.mount(options(sabotage)).await.expect("it opens")
}

/// A pool with a subvolume `a`, and in it a file `f`.
async fn begin(machine: &Machine, sabotage: Option<Sabotage>) -> (Arc<Filesystem>, NodeId) {
    let fs = machine.mount_new(options(sabotage)).await.expect("it is made");
    let root = &Caller::ROOT;
    let a = fs.create_subvolume(root, fs.root(), b"a", None).await.expect("it is made");
    let made = fs.create(root, root_of(a), b"f", 0o600, OpenFlags::READ_WRITE, true).await;
    (fs, made.expect("it is made").0.node)
}

async fn write(fs: &Arc<Filesystem>, node: NodeId, block: u64) {
    let written = fs.write(node, block * BLOCK, &[7; BLOCK_BYTES], WriteFlags::default()).await;
    written.expect("there is room");
}

/// What was logged is durable; data that was not installed is lost by a crash.
async fn commit(fs: &Arc<Filesystem>) {
    fs.pool().commit(fs.pool().open_txg()).await.expect("it commits");
}

/// A crash leaves block 4 of a file behind its end. Whether zeros show when it grows, at the moment
/// when another comes to the subvolume for the first time.
fn is_sound_at_once(broken: Option<Sabotage>) -> bool {
    let machine = Machine::on(11, SimImage::empty(8192));
    let left = machine.run(async {
        let (fs, node) = begin(&machine, None).await;
        write(&fs, node, 4).await;
        {
            let mut sync = pin!(fs.fsync(node, false));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(sync.as_mut().poll(&mut cx).is_pending());
            write(&fs, node, 1).await;
        }
        machine.rt().sleep(Duration::from_millis(100)).await;
        commit(&fs).await;
        node
    });
    let node = left.expect("the power is on");
    let machine = Machine::on(12, machine.crash(1));
    let sound = machine.run(async {
        let fs = open(&machine, broken).await;
        let (first, rt) = (fs.clone(), machine.rt());
        rt.spawn(Box::pin(async move { drop(first.lookup(root_of(node.subvol), b"f").await) }));
        rt.sleep(Duration::from_nanos(1)).await;
        let size = fs.getattr(node).await.expect("it is there").size;
        assert!(size <= 4 * BLOCK, "block 4 is behind the end");
        let longer = SetAttr { size: Some(8 * BLOCK), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node, &longer).await.expect("it grows");
        let behind = fs.read(node, size, 8 * BLOCK_BYTES).await.expect("it can be read");
        behind.to_vec().iter().all(|byte| *byte == 0)
    });
    sound.expect("the power is on")
}

/// Whether a subvolume that is read-only has after a crash what was accepted before.
fn is_sound_when_read_only(broken: Option<Sabotage>) -> bool {
    let machine = Machine::on(13, SimImage::empty(8192));
    let node = machine.run(async {
        let (fs, node) = begin(&machine, broken).await;
        write(&fs, node, 0).await;
        fs.set_subvolume_read_only(node.subvol, true).await.expect("it is marked");
        commit(&fs).await;
        node
    });
    let node = node.expect("the power is on");
    let machine = Machine::on(14, machine.crash(2));
    let sound = machine.run(async {
        let fs = open(&machine, None).await;
        let found = fs.read(node, 0, BLOCK_BYTES).await;
        found.is_ok_and(|found| found.to_vec() == [7; BLOCK_BYTES])
    });
    sound.expect("the power is on")
}

#[test]
fn who_comes_beside_the_first_finds_no_leftovers() {
    assert!(is_sound_at_once(None));
}

#[test]
fn changing_a_subvolume_before_its_leftovers_are_known_is_noticed() {
    assert!(!is_sound_at_once(Some(Sabotage::ChangeBeforeKnown)));
}

#[test]
fn a_read_only_subvolume_has_what_was_accepted() {
    assert!(is_sound_when_read_only(None));
}

#[test]
fn marking_a_subvolume_read_only_before_its_data_is_there_is_noticed() {
    assert!(!is_sound_when_read_only(Some(Sabotage::MarkFirst)));
}
