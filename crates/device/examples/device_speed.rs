//! How fast a device answers through each reactor: latency of a small durable write, and random
//! reads at depth 32.
//!
//! `cargo run --release -p copyhold-device --example device_speed [DIRECTORY]`
//!
//! Writes a file of 256 MiB there (default: here), which is removed at the end.

#![allow(clippy::disallowed_methods, reason = "a measurement")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use copyhold_device::{Device, FileDevice};
use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, ReactorKind, Runtime};
use copyhold_types::{Buf, DeviceId, Nanos, Purpose};

const FILE_BYTES: u64 = 256 << 20;
const BLOCKS: u64 = FILE_BYTES / 4096;
const ROUNDS: usize = 2_000;
const DEPTH: usize = 32;
const READS: usize = 60_000;
const WHY: Purpose = Purpose::Data;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let path = directory.join("device_speed.tmp");
    for reactor in [ReactorKind::Ring, ReactorKind::Threads] {
        let executors = match Executors::start(Config { reactor, ..Config::default() }) {
            Ok(executors) => executors,
            Err(error) => {
                println!("{reactor:?}: not here: {error}");
                continue;
            }
        };
        let measured = measure(&executors, &path, reactor);
        executors.shutdown();
        std::fs::remove_file(&path)?;
        measured?;
    }
    Ok(())
}

fn measure(
    executors: &Arc<Executors>,
    path: &Path,
    reactor: ReactorKind,
) -> Result<(), Box<dyn Error>> {
    let device = FileDevice::create(executors.reactor(), DeviceId(0), path, FILE_BYTES, true)?;
    executors.block_on(device.preallocate(0, BLOCKS, WHY))?;
    executors.block_on(device.flush())?;
    let direct = if device.is_direct() { "direct" } else { "through the page cache" };
    println!("{reactor:?} reactor, {} CPUs, {direct}", executors.cpus());

    show("hop to another executor and back", in_task(executors, hops));
    let (d, e) = (device.clone(), executors.clone());
    show("write 4 KiB, from a task", in_task(&e, move |e| writes(e, d, 1, false)));
    let (d, e) = (device.clone(), executors.clone());
    show("write 4 KiB + flush, from a task", in_task(&e, move |e| writes(e, d, 1, true)));
    let (d, e) = (device.clone(), executors.clone());
    show("2 writes at once + flush, from a task", in_task(&e, move |e| writes(e, d, 2, true)));
    let foreign = executors.block_on(writes(executors.clone(), device.clone(), 1, true));
    show("write 4 KiB + flush, from outside", foreign);
    let foreign = executors.block_on(reads_one_by_one(executors.clone(), device.clone()));
    show("read 4 KiB, from outside", foreign);
    let (d, e) = (device.clone(), executors.clone());
    show("read 4 KiB, from a task", in_task(&e, move |e| reads_one_by_one(e, d)));
    random_reads(executors, &device);
    Ok(())
}

fn show(what: &str, mut times: Vec<Nanos>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / 1000.0;
    println!("  {what:40} median {:7.1} us   p99 {:8.1} us", at(50), at(99));
}

/// Runs a measurement as a task of the executors.
fn in_task<F>(executors: &Arc<Executors>, job: impl FnOnce(Arc<Executors>) -> F) -> Vec<Nanos>
where
    F: Future<Output = Vec<Nanos>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let job = job(executors.clone());
    executors.spawn(Box::pin(async move {
        let times = job.await;
        sender.send(times).expect("main waits");
    }));
    receiver.recv().expect("the task ends")
}

async fn writes(
    executors: Arc<Executors>,
    device: Arc<FileDevice>,
    parallel: u64,
    flush: bool,
) -> Vec<Nanos> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = executors.now();
        let writes: Vec<_> = (0..parallel)
            .map(|_| device.write(executors.random() % BLOCKS, Buf::zeroed(1).into(), WHY))
            .collect();
        for write in writes {
            write.await.expect("a sound device");
        }
        if flush {
            device.flush().await.expect("a sound device");
        }
        times.push(executors.now() - start);
    }
    times
}

async fn reads_one_by_one(executors: Arc<Executors>, device: Arc<FileDevice>) -> Vec<Nanos> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = executors.now();
        device.read(executors.random() % BLOCKS, 1, WHY).await.expect("a sound device");
        times.push(executors.now() - start);
    }
    times
}

/// How long a task waits for another one that it wakes.
async fn hops(executors: Arc<Executors>) -> Vec<Nanos> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = executors.now();
        let event = Arc::new(async_event::Event::default());
        let event2 = event.clone();
        executors.spawn(Box::pin(async move { event2.set() }));
        event.wait().await;
        times.push(executors.now() - start);
    }
    times
}

fn random_reads(executors: &Arc<Executors>, device: &Arc<FileDevice>) {
    let (done, left) = (Arc::new(async_event::Event::default()), Arc::new(AtomicUsize::new(DEPTH)));
    let start = executors.now();
    for _ in 0..DEPTH {
        let (executors2, device) = (executors.clone(), device.clone());
        let (done, left) = (done.clone(), left.clone());
        executors.spawn(Box::pin(async move {
            for _ in 0..READS / DEPTH {
                let block = executors2.random() % BLOCKS;
                device.read(block, 1, WHY).await.expect("a sound device");
            }
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                done.set();
            }
        }));
    }
    executors.block_on(done.wait());
    let seconds = (executors.now() - start) as f64 / 1e9;
    let rate = (READS / DEPTH * DEPTH) as f64 / seconds / 1000.0;
    println!("  random 4 KiB reads at depth {DEPTH:<13} {rate:7.1} k a second");
}

/// Something that happens once.
mod async_event {
    use std::future::poll_fn;
    use std::sync::Mutex;
    use std::task::{Poll, Waker};

    #[derive(Default)]
    pub(crate) struct Event(Mutex<(bool, Option<Waker>)>);

    impl Event {
        pub(crate) fn set(&self) {
            let mut state = self.0.lock().expect("no panics");
            state.0 = true;
            if let Some(waker) = state.1.take() {
                waker.wake();
            }
        }

        pub(crate) async fn wait(&self) {
            poll_fn(|cx| {
                let mut state = self.0.lock().expect("no panics");
                if state.0 {
                    return Poll::Ready(());
                }
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }
}
