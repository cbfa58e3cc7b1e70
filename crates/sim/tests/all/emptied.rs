//! Files that an open empties (O_TRUNC), behind a crash. Random histories seldom come to these
//! cases, or cannot tell the fault: their model allows an empty file, since a timer may log the cut
//! alone. Each fault is also made on purpose, and has to be found.
//!
//! R35, DIRTY-D9: a rewrite longer than one batch never leaves the file empty.
//! R34, DIRTY-D8: where O_TRUNC comes beside the first write-back of a file, fsync still makes its
//! times durable.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{
    Attr, Caller, Filesystem, FsError, NodeId, OpenFlags, Options, Sabotage, WriteFlags,
};
use copyhold_sim::Machine;
use copyhold_types::BLOCK_BYTES;

/// Two files of this size are more than half of [`DIRTY_MAX`]: they are written at once, together.
const WRITTEN: usize = 300_000;
const DIRTY_MAX: u64 = 1 << 20;
/// More than one batch has.
const REWRITTEN: usize = (4 << 20) + 16 * BLOCK_BYTES;
const SEEDS: u64 = 40;

/// A new filesystem, and a file in it.
async fn begin(machine: &Machine, options: Options) -> Result<(Arc<Filesystem>, NodeId), FsError> {
    let fs = machine.mount_new(options).await?;
    let file = create_in_root(&fs, b"f").await?;
    Ok((fs, file))
}

async fn create_in_root(fs: &Arc<Filesystem>, name: &[u8]) -> Result<NodeId, FsError> {
    let flags = OpenFlags::READ_WRITE;
    let (made, _) = fs.create(&Caller::ROOT, fs.root(), name, 0o600, flags, true).await?;
    Ok(made.node)
}

async fn write(fs: &Arc<Filesystem>, file: NodeId, bytes: usize) -> Result<(), FsError> {
    fs.write(file, 0, &vec![1; bytes], WriteFlags::default()).await.map(drop)
}

async fn empty(fs: &Arc<Filesystem>, file: NodeId) -> Result<(), FsError> {
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    fs.open_node(file, flags).await.map(drop)
}

/// What `run` returns, and the attributes that `f` has after a crash.
fn after_a_crash<T>(seed: u64, run: impl AsyncFnOnce(&Machine) -> Result<T, FsError>) -> (T, Attr) {
    let machine = Machine::on(seed, SimImage::empty(8192));
    let said = machine.run(run(&machine)).expect("the power is on").expect("nothing fails");
    let machine = Machine::on(seed, machine.crash(seed));
    let found = machine.run(async {
        let fs = machine.mount(Options::default()).await?;
        Ok::<_, FsError>(fs.lookup(fs.root(), b"f").await?.attr)
    });
    (said, found.expect("the power is on").expect("it is there"))
}

/// Rewrites a durable file behind O_TRUNC, until the first batch of that is durable.
async fn rewrite(machine: &Machine, sabotage: Option<Sabotage>) -> Result<(), FsError> {
    let options = Options { sabotage, ..Options::default() };
    let (fs, file) = begin(machine, options).await?;
    write(&fs, file, 8 * BLOCK_BYTES).await?;
    fs.fsync(file, false).await?;
    empty(&fs, file).await?;
    write(&fs, file, REWRITTEN).await?;
    let full = fs.dirty_bytes();
    while fs.dirty_bytes() == full {
        machine.rt().sleep(Duration::from_micros(50)).await;
    }
    Ok(fs.pool().commit(fs.pool().open_txg()).await?)
}

fn is_empty_after_a_crash(seed: u64, sabotage: Option<Sabotage>) -> bool {
    after_a_crash(seed, async |machine| rewrite(machine, sabotage).await).1.size == 0
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

/// Empties a file that may be in write-back together with another, and makes it durable. The
/// attributes that it showed before.
async fn empty_beside_write_back(
    machine: &Machine,
    sabotage: Option<Sabotage>,
) -> Result<Attr, FsError> {
    let options = Options { sabotage, dirty_bytes_max: DIRTY_MAX, ..Options::default() };
    let (fs, file) = begin(machine, options).await?;
    let other = create_in_root(&fs, b"other").await?;
    fs.sync().await?;
    write(&fs, file, WRITTEN).await?;
    write(&fs, other, WRITTEN).await?;
    let nanos = machine.rt().random() % 150_000;
    machine.rt().sleep(Duration::from_nanos(nanos)).await;
    empty(&fs, file).await?;
    let shown = fs.getattr(file).await?;
    fs.fsync(file, false).await?;
    Ok(shown)
}

fn keeps_size_and_times(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let (shown, left) =
        after_a_crash(seed, async |machine| empty_beside_write_back(machine, sabotage).await);
    (left.size, left.mtime, left.ctime) == (0, shown.mtime, shown.ctime)
}

#[test]
fn fsync_makes_the_times_of_a_truncation_beside_write_back_durable() {
    for seed in 1..=SEEDS {
        assert!(keeps_size_and_times(seed, None), "seed {seed}");
    }
}

#[test]
fn an_fsync_that_forgets_these_times_is_noticed() {
    let broken = Some(Sabotage::ForgetTimes);
    let noticed = (1..=SEEDS).find(|&seed| !keeps_size_and_times(seed, broken));
    println!("ForgetTimes: noticed at seed {}", noticed.expect("a seed that notices"));
}
