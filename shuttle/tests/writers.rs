//! Two programs that overwrite blocks of one file, and each time take a snapshot of it: what each
//! has written is in its own.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_fs::{Filesystem, NodeId, OpenFlags, Options};
use copyhold_runtime::Rt;
use copyhold_shuttle::{Order, ShuttleRuntime, explore};
use copyhold_types::{BLOCK_BYTES, InodeNo, SubvolId};
use shuttle::future::yield_now;

use common::{CALLER, ROOT, device, empty, pool, times};

const WRITERS: usize = 2;
const STEPS: usize = 3;

async fn write(fs: &Arc<Filesystem>, file: NodeId, block: usize, byte: u8) {
    let at = (block * BLOCK_BYTES) as u64;
    fs.write(file, at, &[byte; BLOCK_BYTES], Default::default()).await.unwrap();
}

/// The snapshot has what its writer wrote before. A lock of the file would wait for the other.
async fn step(fs: &Arc<Filesystem>, subvol: SubvolId, file: NodeId, writer: usize, step: usize) {
    let byte = (1 + step) as u8;
    write(fs, file, writer, byte).await;
    let name = format!("s{writer}-{step}");
    let made = fs.snapshot(subvol, ROOT, name.as_bytes(), true, None).await.unwrap();
    let root = NodeId { subvol: made, ino: InodeNo::ROOT };
    let found = fs.lookup(root, b"f").await.unwrap().node;
    let at = (writer * BLOCK_BYTES) as u64;
    let read = fs.read(found, at, BLOCK_BYTES).await.unwrap().to_vec();
    assert!(read == [byte; BLOCK_BYTES], "{name} has {} and not {byte}", read[0]);
    fs.forget(found, 1);
}

async fn history(rt: Arc<ShuttleRuntime>) {
    let rt: Rt = rt;
    let device = device(&rt, empty(&rt).await);
    let pool = pool(&rt, device, None).await;
    let fs = Filesystem::open(pool, Options::default()).await.unwrap();
    let subvol = fs.create_subvolume(&CALLER, ROOT, b"t", None).await.unwrap();
    let root = NodeId { subvol, ino: InodeNo::ROOT };
    let flags = OpenFlags::READ_WRITE;
    let file = fs.create(&CALLER, root, b"f", 0o644, flags, true).await.unwrap().0.node;
    for block in 0..WRITERS {
        write(&fs, file, block, 0).await;
    }
    fs.sync().await.unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for writer in 0..WRITERS {
        let (fs, done) = (fs.clone(), done.clone());
        rt.spawn(Box::pin(async move {
            for number in 0..STEPS {
                step(&fs, subvol, file, writer, number).await;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }));
    }
    while done.load(Ordering::Relaxed) < WRITERS {
        yield_now().await;
    }
}

#[test]
fn a_snapshot_has_what_was_written_before_beside_another_writer_of_the_file() {
    explore(Order::Random, 1, times(100), history);
    explore(Order::Priorities, 2, times(100), history);
}
