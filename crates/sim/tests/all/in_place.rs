//! What others refer to is not written in place (R10), also where that is the only way left: a
//! preallocated file that a clone has, too, on a pool without a free block.

use std::sync::Arc;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, FallocateMode, Filesystem, NodeId, OpenFlags, Options, WriteFlags};
use copyhold_sim::Machine;
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId};
use copyhold_volume::Sabotage;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

async fn create(fs: &Arc<Filesystem>, dir: NodeId, name: &[u8]) -> NodeId {
    let made = fs.create(&Caller::ROOT, dir, name, 0o600, OpenFlags::READ_WRITE, true).await;
    made.expect("it is made").0.node
}

async fn write(fs: &Arc<Filesystem>, node: NodeId, at: u64, byte: u8) -> bool {
    fs.write(node, at, &[byte; BLOCK_BYTES], WriteFlags::default()).await.is_ok()
}

/// Whether the file holds what was written, or nothing where that was refused.
async fn is_sound(fs: &Arc<Filesystem>, node: NodeId, byte: u8, accepted: bool) -> bool {
    let wanted = vec![if accepted { byte } else { 0 }; BLOCK_BYTES];
    fs.read(node, 0, BLOCK_BYTES).await.is_ok_and(|found| found.to_vec() == wanted)
}

/// A file and its clone are written to on a full pool. Whether each has its own content.
fn both_are_sound(broken: Option<Sabotage>) -> bool {
    let machine = Machine::on(10, SimImage::empty(8192));
    let sound = machine.run(async {
        let fs = machine.mount_new(Options::default()).await.expect("it is made");
        let root = &Caller::ROOT;
        let origin = fs.create_subvolume(root, fs.root(), b"origin", None).await.expect("made");
        let ours = create(&fs, root_of(origin), b"f").await;
        let len = BLOCK_BYTES as u64;
        fs.fallocate(ours, 0, len, FallocateMode::Allocate { keep_size: false })
            .await
            .expect("there is room");
        let clone =
            fs.snapshot(origin, fs.root(), b"clone", false, None).await.expect("it is made");
        let theirs = fs.lookup(root_of(clone), b"f").await.expect("it is there").node;
        let hog = create(&fs, fs.root(), b"hog").await;
        let mut at = 0;
        while write(&fs, hog, at, 7).await {
            at += len;
        }
        broken.into_iter().for_each(|rule| fs.volumes().break_rule(rule));
        let accepted = [write(&fs, ours, 0, 1).await, write(&fs, theirs, 0, 2).await];
        let synced = fs.sync().await.is_ok();
        let ours = is_sound(&fs, ours, 1, accepted[0]).await;
        let theirs = is_sound(&fs, theirs, 2, accepted[1]).await;
        synced && ours && theirs
    });
    sound.expect("the power is on")
}

#[test]
fn a_preallocated_file_and_its_clone_do_not_write_over_each_other() {
    assert!(both_are_sound(None));
}

#[test]
fn r10_writing_in_place_what_others_refer_to_is_noticed() {
    assert!(!both_are_sound(Some(Sabotage::AlwaysInPlace)));
}
