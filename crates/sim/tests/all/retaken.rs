//! Blocks that are rewritten while a batch writes them, and taken again by a batch of another
//! caller that begins behind an fsync: what was accepted before the fsync is durable behind it
//! (R34). In random histories fsyncs of one file seldom come so close.

use std::time::Duration;

use copyhold_device::sim::SimImage;
use copyhold_fs::{Caller, FsError, OpenFlags, Options, Sabotage, WriteFlags};
use copyhold_sim::Machine;

const BYTES: usize = 300_000;
const WHILE: u64 = 60_000;
const LAST: u8 = 3;
const SEEDS: u64 = 40;

/// Each content is written, and another caller syncs, before the last one is made durable.
async fn rewrite(machine: &Machine, sabotage: Option<Sabotage>) -> Result<(), FsError> {
    let fs = machine.mount_new(Options { sabotage, ..Options::default() }).await?;
    let (root, flags) = (&Caller::ROOT, OpenFlags::READ_WRITE);
    let (file, _) = fs.create(root, fs.root(), b"f", 0o600, flags, true).await?;
    let rt = machine.rt();
    for content in 1..=LAST {
        fs.write(file.node, 0, &vec![content; BYTES], WriteFlags::default()).await?;
        let other = fs.clone();
        rt.spawn(Box::pin(async move { drop(other.sync().await) }));
        rt.sleep(Duration::from_nanos(rt.random() % WHILE)).await;
    }
    fs.fsync(file.node, false).await
}

fn is_durable(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let machine = Machine::on(seed, SimImage::empty(16_384));
    let rewritten = machine.run(rewrite(&machine, sabotage)).expect("the power is on");
    rewritten.expect("nothing fails");
    let machine = Machine::on(seed, machine.crash(seed));
    let found = machine.run(async {
        let fs = machine.mount(Options::default()).await?;
        let file = fs.lookup(fs.root(), b"f").await?.node;
        Ok::<_, FsError>(fs.read(file, 0, BYTES).await?.to_vec())
    });
    found.expect("the power is on").expect("it can be read") == vec![LAST; BYTES]
}

#[test]
fn what_a_later_batch_of_another_caller_takes_is_durable_behind_fsync() {
    for seed in 1..=SEEDS {
        assert!(is_durable(seed, None), "seed {seed}");
    }
}

#[test]
fn r34_an_fsync_that_forgets_what_another_has_taken_is_noticed() {
    let broken = Some(Sabotage::ForgetTaken);
    let noticed = (1..=SEEDS).find(|&seed| !is_durable(seed, broken));
    println!("ForgetTaken: noticed at seed {}", noticed.expect("a seed that notices"));
}
