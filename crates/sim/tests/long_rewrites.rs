//! A file that is emptied by an open and rewritten by more than one batch is never empty after a
//! crash (R35, D9); and this notices where batches are taken beside the one that logs the cut. The
//! model of random histories allows the empty file, since a timer may log the cut alone.

use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, Filesystem, FsError, OpenFlags, Options, Sabotage, WriteFlags};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_sim::Machine;
use copyhold_types::BLOCK_BYTES;

/// More than one batch has.
const REWRITTEN: usize = (4 << 20) + 16 * BLOCK_BYTES;
const SEEDS: u64 = 40;

/// Until the first data of the rewrite is installed, and durable.
async fn rewrite(machine: &Machine, sabotage: Option<Sabotage>) -> Result<(), FsError> {
    let create = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    Pool::create(&machine.rt(), &machine.device(), &create).await?;
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(machine.rt(), machine.device(), options).await?;
    let root = &Caller::ROOT;
    Filesystem::format(&pool, root, 0o755).await?;
    let options = Options { sabotage, ..Options::default() };
    let fs = Filesystem::open(pool.clone(), options).await?;
    let (made, _) = fs.create(root, fs.root(), b"f", 0o600, OpenFlags::READ_WRITE, true).await?;
    fs.write(made.node, 0, &[1; 8 * BLOCK_BYTES], WriteFlags::default()).await?;
    fs.fsync(made.node, false).await?;
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    fs.open_node(made.node, flags).await?;
    fs.write(made.node, 0, &vec![2; REWRITTEN], WriteFlags::default()).await?;
    let full = fs.dirty_bytes();
    while fs.dirty_bytes() == full {
        machine.rt().sleep(Duration::from_micros(50)).await;
    }
    Ok(pool.commit(pool.open_txg()).await?)
}

async fn size(machine: &Machine) -> Result<u64, FsError> {
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(machine.rt(), machine.device(), options).await?;
    let fs = Filesystem::open(pool, Options::default()).await?;
    Ok(fs.lookup(fs.root(), b"f").await?.attr.size)
}

fn is_empty_after_a_crash(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let machine = Machine::on(seed, SimImage::empty(8192));
    let rewritten = machine.run(rewrite(&machine, sabotage)).expect("the power is on");
    rewritten.expect("nothing fails");
    let machine = Machine::on(seed, machine.crash(seed));
    let size = machine.run(size(&machine)).expect("the power is on");
    size.expect("it is there") == 0
}

#[test]
fn a_long_rewrite_never_leaves_the_file_empty() {
    for seed in 1..=SEEDS {
        assert!(!is_empty_after_a_crash(seed, None), "seed {seed}");
    }
}

#[test]
fn batches_beside_the_one_that_logs_the_cut_are_noticed() {
    let broken = Some(Sabotage::TakeBesideCut);
    let noticed = (1..=SEEDS).find(|&seed| is_empty_after_a_crash(seed, broken));
    println!("TakeBesideCut: noticed at seed {}", noticed.expect("a seed that notices"));
}
