//! An fsync of a file whose inode has left memory waits for what was logged before (R34, CACHE-C2);
//! and this notices where it does not. In random histories few fsyncs come between the two moments.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, Options, Sabotage, WriteFlags};
use copyhold_sim::Machine;
use copyhold_types::BLOCK_BYTES;

static BYTES: [u8; 8 * BLOCK_BYTES] = [7; 8 * BLOCK_BYTES];
/// By then data is installed, and no timer has committed.
const WHILE: Duration = Duration::from_secs(1);
/// As many as make each inode leave that was there before.
const OTHERS: usize = 200;

async fn make(fs: &Arc<Filesystem>, name: &str) -> Result<NodeId, FsError> {
    let (root, flags) = (&Caller::ROOT, OpenFlags::READ_WRITE);
    let (made, _) = fs.create(root, fs.root(), name.as_bytes(), 0o600, flags, true).await?;
    Ok(made.node)
}

/// A file is written back, its inode leaves memory, and it is fsynced.
async fn fsync(machine: &Machine, sabotage: Option<Sabotage>) -> Result<(), FsError> {
    let writeback_interval = Duration::from_millis(5);
    let options = Options { writeback_interval, inodes_max: 1, sabotage, ..Options::default() };
    let fs = machine.mount_new(options).await?;
    let node = make(&fs, "f").await?;
    fs.sync().await?;
    fs.write(node, 0, &BYTES, WriteFlags::default()).await?;
    fs.release(node);
    machine.rt().sleep(WHILE).await;
    assert_eq!(fs.dirty_bytes(), 0, "it is installed");
    for number in 0..OTHERS {
        let other = make(&fs, &format!("other{number}")).await?;
        fs.release(other);
    }
    fs.fsync(node, false).await
}

fn is_there_after_a_crash(sabotage: Option<Sabotage>) -> bool {
    let machine = Machine::on(34, SimImage::empty(8192));
    let synced = machine.run(fsync(&machine, sabotage)).expect("the power is on");
    synced.expect("nothing fails");
    let machine = Machine::on(35, machine.crash(1));
    let found = machine.run(async {
        let fs = machine.mount(Options::default()).await?;
        let node = fs.lookup(fs.root(), b"f").await?.node;
        Ok::<_, FsError>(fs.read(node, 0, BYTES.len()).await?.to_vec())
    });
    found.expect("the power is on").expect("it can be read") == BYTES
}

#[test]
fn an_fsync_waits_for_what_was_logged_before_the_inode_left_memory() {
    assert!(is_there_after_a_crash(None));
}

#[test]
fn r34_an_inode_that_forgets_its_txg_when_it_leaves_memory_is_noticed() {
    assert!(!is_there_after_a_crash(Some(Sabotage::ForgetEvicted)));
}
