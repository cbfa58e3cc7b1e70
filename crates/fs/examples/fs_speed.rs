//! What the filesystem costs without a mount: creates, overwrites, syncs, streams.
//!
//! `cargo run --release -p copyhold-fs --example fs_speed [FILE [names|data]]`

#![allow(clippy::disallowed_methods)] // it measures

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use copyhold_device::{DynDevice, FileDevice};
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags, Options};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::{Buf, DeviceId, Purpose};

const BYTES: u64 = 8 << 30;
const FILE_BYTES: u64 = 512 << 20;

fn scatter(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

async fn create(fs: &Arc<Filesystem>, dir: NodeId, name: &str) -> NodeId {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, true).await;
    made.expect("created").0.node
}

fn report(what: &str, count: u64, begin: Instant) {
    let nanos = begin.elapsed().as_nanos() as u64;
    println!("{what}: {} ns each, {} a second", nanos / count, count * 1_000_000_000 / nanos);
}

async fn names(fs: &Arc<Filesystem>) {
    let dir = fs.mkdir(&Caller::ROOT, NodeId::ROOT, b"names", 0o755).await.expect("made").node;
    let count = 100_000;
    let begin = Instant::now();
    for n in 0..count {
        let node = create(fs, dir, &format!("file{n}")).await;
        fs.release(node);
        fs.forget(node, 1);
    }
    report("create", count, begin);
    let begin = Instant::now();
    for n in 0..count {
        let name = format!("file{}", scatter(n) % count);
        let node = fs.lookup(dir, name.as_bytes()).await.expect("there").node;
        fs.forget(node, 1);
    }
    report("lookup", count, begin);
    let missing: Vec<String> = (0..count).map(|n| format!("no-such-name-{n:012}")).collect();
    for what in ["lookup of a new name that does not exist", "the same again"] {
        let begin = Instant::now();
        for name in &missing {
            assert!(fs.lookup(dir, name.as_bytes()).await.is_err());
        }
        report(what, count, begin);
    }
    let begin = Instant::now();
    let (mut after, mut seen) = (0, 0);
    while seen < count + 2 {
        let mut room = 128;
        fs.readdir(dir, after, &mut |entry| {
            room -= 1;
            if room < 0 {
                return false;
            }
            (after, seen) = (entry.cookie, seen + 1);
            true
        })
        .await
        .expect("listed");
    }
    report("readdir", count, begin);
    let begin = Instant::now();
    for n in 0..count {
        fs.unlink(dir, format!("file{n}").as_bytes()).await.expect("unlinked");
    }
    fs.sync().await.expect("synced");
    report("unlink", count, begin);
}

async fn data(fs: &Arc<Filesystem>, device: &DynDevice) {
    let node = create(fs, NodeId::ROOT, "data").await;
    let piece = 256 << 10;
    let begin = Instant::now();
    for at in (0..FILE_BYTES).step_by(piece) {
        let buf = Buf::zeroed(piece / 4096);
        fs.write_buf(node, at, buf, piece, Default::default()).await.expect("written");
    }
    fs.fsync(node, true).await.expect("synced");
    let seconds = begin.elapsed().as_secs_f64();
    println!("stream: {:.0} MB/s", FILE_BYTES as f64 / 1e6 / seconds);

    let blocks = FILE_BYTES / 4096;
    let count = 200_000;
    let before = device.counters().snapshot();
    let begin = Instant::now();
    let block = [7; 4096];
    for n in 0..count {
        let at = scatter(n) % blocks * 4096;
        fs.write(node, at, &block, Default::default()).await.expect("written");
    }
    report("overwrite 4 KiB, accepted", count, begin);
    fs.fsync(node, true).await.expect("synced");
    report("overwrite 4 KiB, to the fsync", count, begin);
    let after = device.counters().snapshot();
    for why in Purpose::ALL {
        let (old, new) = (before.purposes[why as usize], after.purposes[why as usize]);
        let bytes = (new.written_bytes - old.written_bytes) as f64 / (count * 4096) as f64;
        println!("  {}: {} writes, {bytes:.3} B/B", why.name(), new.writes - old.writes);
    }

    let count = 3000;
    let before = device.counters().snapshot();
    let begin = Instant::now();
    for n in 0..count {
        let at = scatter(n) % blocks * 4096;
        fs.write(node, at, &block, Default::default()).await.expect("written");
        fs.fsync(node, true).await.expect("synced");
    }
    report("overwrite 4 KiB and fsync", count, begin);
    let after = device.counters().snapshot();
    println!("  {:.2} flushes each", (after.flushes - before.flushes) as f64 / count as f64);

    let count = 50_000;
    let begin = Instant::now();
    for n in 0..count {
        fs.read(node, scatter(n) % blocks * 4096, 4096).await.expect("read");
    }
    report("read 4 KiB", count, begin);
    let begin = Instant::now();
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        fs.read(node, at, 1 << 20).await.expect("read");
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("stream read: {:.0} MB/s", FILE_BYTES as f64 / 1e6 / seconds);
}

fn main() {
    let path: PathBuf =
        std::env::args_os().nth(1).map_or_else(|| "fs-speed.img".into(), PathBuf::from);
    let part = std::env::args().nth(2).unwrap_or_default();
    let executors = Executors::start(Config::default()).expect("executors start");
    let rt: Rt = executors.clone();
    let device: DynDevice =
        FileDevice::create(executors.reactor(), DeviceId(0), &path, BYTES, false)
            .expect("a new file");
    let (one, two) = (rt.clone(), device.clone());
    // On an executor, as a mount's operations are.
    let (done, wait) = std::sync::mpsc::channel();
    rt.spawn(Box::pin(async move {
        Pool::create(&one, &two, &CreateOptions::default()).await.expect("created");
        let pool =
            Pool::open(one, two.clone(), OpenOptions { tenants: true, ..Default::default() })
                .await
                .expect("opened");
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await.expect("formatted");
        let fs = Filesystem::open(pool.clone(), Options::default()).await.expect("opened");
        if part != "data" {
            names(&fs).await;
        }
        if part != "names" {
            data(&fs, &two).await;
        }
        fs.close().await.expect("closed");
        pool.close().await.expect("closed");
        done.send(()).expect("main waits");
    }));
    wait.recv().expect("done");
    std::fs::remove_file(&path).expect("removed");
}
