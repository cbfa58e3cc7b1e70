//! A deletion goes in bounded steps, however much there is to delete (R28); and what this is seen
//! by sees it when it does not.

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options, WriteFlags};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, Tier, Transaction};
use copyhold_sim::Machine;
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId, Timestamp};
use copyhold_volume::{Leaving, Sabotage, Volumes};

const EXTENTS: u64 = 1200;
/// Extents that a step may release, with nodes.
const BLOCKS_PER_STEP: u64 = 400;

/// A subvolume with a file of many extents of one block.
async fn fill(machine: &Machine) -> SubvolId {
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(machine.rt(), machine.device(), options).await.expect("it opens");
    let root = &Caller::ROOT;
    Filesystem::format(&pool, root, 0o755).await.expect("an empty pool");
    let fs = Filesystem::open(pool.clone(), Options::default()).await.expect("it opens");
    let subvol = fs.create_subvolume(root, fs.root(), b"a", None).await.expect("it is made");
    let dir = NodeId { subvol, ino: InodeNo::ROOT };
    let made = fs.create(root, dir, b"f", 0o600, OpenFlags::READ_WRITE, true).await;
    let node = made.expect("it is made").0.node;
    for n in 0..EXTENTS {
        let at = 2 * n * BLOCK_BYTES as u64;
        let wrote = fs.write(node, at, &[7; BLOCK_BYTES], WriteFlags::default()).await;
        wrote.expect("there is room");
    }
    fs.release(node);
    fs.close().await.expect("it closes");
    pool.close().await.expect("it closes");
    subvol
}

/// Deletes it without anything beside; the blocks that the largest step gave back, and all.
async fn delete(machine: &Machine, subvol: SubvolId, broken: Option<Sabotage>) -> (u64, u64) {
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(machine.rt(), machine.device(), options).await.expect("it opens");
    let volumes = Volumes::open(pool.clone()).await.expect("it opens");
    broken.into_iter().for_each(|rule| volumes.break_rule(rule));
    let gone = volumes.subvol(subvol).expect("it is there");
    let (edits, bytes) = (Volumes::LIFE_EDITS, Volumes::LIFE_BYTES);
    let credit = pool.admit(Tier::DeleteSubvolume, edits, bytes).await.expect("there is room");
    let leaving = Leaving { since: Timestamp::default(), name: b"a", heir: None };
    volumes.delete(&gone, &leaving, credit, Transaction::new()).expect("nothing holds it");
    drop(gone);
    let (first, mut largest, mut before) = (pool.space().allocated, 0, pool.space().allocated);
    while volumes.background_step().await.expect("the disk works") {
        let now = pool.space().allocated;
        largest = largest.max(before.saturating_sub(now));
        before = now;
    }
    pool.close().await.expect("it closes");
    (largest, first.saturating_sub(before))
}

fn largest_step(broken: Option<Sabotage>) -> u64 {
    let machine = Machine::on(28, SimImage::empty(32768));
    let deleted = machine.run(async {
        let create = CreateOptions { log_bytes: Some(4 << 20), ..CreateOptions::default() };
        Pool::create(&machine.rt(), &machine.device(), &create).await.expect("a pool is made");
        let subvol = fill(&machine).await;
        delete(&machine, subvol, broken).await
    });
    let (largest, all) = deleted.expect("the power is on");
    assert!(all >= EXTENTS, "only {all} blocks came back");
    largest
}

#[test]
fn a_step_of_a_deletion_is_bounded() {
    let largest = largest_step(None);
    assert!(largest <= BLOCKS_PER_STEP, "R28: {largest} blocks in one step");
}

#[test]
fn r28_a_deletion_in_one_step_is_noticed() {
    assert!(largest_step(Some(Sabotage::OneStep)) > BLOCKS_PER_STEP);
}
