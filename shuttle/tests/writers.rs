//! Two programs overwrite blocks of one clean file, and one of them syncs: its block is durable,
//! whichever of the two has put the file on the list of dirty files.

mod common;

use std::sync::Arc;

use copyhold_fs::{Filesystem, NodeId, OpenFlags, Options};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::BLOCK_BYTES;

use common::{CALLER, ROOT, device, empty, pool, times};

const BLOCK: u64 = BLOCK_BYTES as u64;

async fn write(fs: &Arc<Filesystem>, file: NodeId, at: u64, byte: u8) {
    fs.write(file, at, &[byte; BLOCK_BYTES], Default::default()).await.unwrap();
}

async fn history(rt: Arc<ShuttleRuntime>) {
    let rt: Rt = rt;
    let before = device(&rt, empty(&rt).await);
    let fs = Filesystem::open(pool(&rt, before.clone(), None).await, Options::default());
    let fs = fs.await.unwrap();
    let flags = OpenFlags::READ_WRITE;
    let file = fs.create(&CALLER, ROOT, b"f", 0o644, flags, true).await.unwrap().0.node;
    write(&fs, file, 0, 1).await;
    write(&fs, file, BLOCK, 1).await;
    fs.sync().await.unwrap();
    let other = fs.clone();
    rt.spawn(Box::pin(async move { write(&other, file, 0, 2).await }));
    write(&fs, file, BLOCK, 2).await;
    fs.sync().await.unwrap();

    let after = device(&rt, before.crash(3));
    let fs = Filesystem::open(pool(&rt, after, None).await, Options::default()).await.unwrap();
    let found = fs.lookup(ROOT, b"f").await.unwrap().node;
    let read = fs.read(found, BLOCK, BLOCK_BYTES).await.unwrap().to_vec();
    assert!(read == [2; BLOCK_BYTES], "a sync has left out what its caller wrote");
}

#[test]
fn a_sync_has_what_its_caller_wrote_beside_another_writer_of_the_file() {
    explore(Order::Random, 1, times(1000), history);
    explore(Order::Priorities, 2, times(100), history);
}
