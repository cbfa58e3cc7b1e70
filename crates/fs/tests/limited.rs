//! The waits of writers on a device that does few operations a second, in virtual time: the same
//! with each run, on any machine.
//!
//! Free space is in holes of a block, so that each block that leaves memory is an operation of the
//! device. Another file is overwritten at random by writers with one write in flight each. They are
//! faster than the device, so memory is full of dirty data.
//!
//! `WRITES=100000 cargo test --release -p copyhold-fs --test limited -- --nocapture` prints them.

#![allow(clippy::disallowed_methods)] // it has arguments

#[path = "all/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod common;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use common::tenants::{file as file_of, root_of, subvolume};
use common::*;
use copyhold_device::DynDevice;
use copyhold_fs::{
    Caller, FallocateMode, FileFlags, Filesystem, NodeId, Options, WriteData, WriteFlags,
    copy_paced, write_paced,
};
use copyhold_pool::{FlushPolicy, Limits};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::Nanos;
use futures_util::future::{join, join_all};

const BLOCKS: u64 = 1 << 17;
/// Blocks of the file that is overwritten, and of the one that is full of holes.
const FILE_BLOCKS: u64 = 150 << 8;
const HOLEY_BLOCKS: u64 = 300 << 8;
const DIRTY_BYTES: u64 = 16 << 20;
const WRITERS: u64 = 32;
/// Of a device that does 4,000 operations a second.
const INTERVAL: Nanos = 250_000;
const MS: f64 = 1e6;

/// Of a linear congruential generator; its upper bits are used.
fn drawn(state: &Cell<u64>) -> u64 {
    let next = state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    state.set(next);
    next >> 33
}

/// Waits of writes, in order of length.
struct Waits(Vec<Nanos>);

impl Waits {
    fn of(mut waits: Vec<Nanos>) -> Waits {
        waits.sort_unstable();
        Waits(waits)
    }

    fn at(&self, share: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * share) as usize] as f64 / MS
    }

    /// Of a writer whose turn comes when all others have written.
    fn fair(&self) -> f64 {
        self.0.iter().sum::<Nanos>() as f64 / self.0.len() as f64 / MS
    }

    fn print(&self, name: &str) {
        let [half, most, nearly, all] = [0.5, 0.99, 0.999, 1.0].map(|share| self.at(share));
        let fair = self.fair();
        println!(
            "{name}: mean {fair:.1} ms, p50 {half:.1}, p99 {most:.1}, p99.9 {nearly:.1}, max {all:.1}"
        );
    }
}

/// Files that leave the pool full and its free space in holes; the first is to be overwritten.
async fn aged(fs: &Arc<Filesystem>) -> NodeId {
    let (file, holey) = (create(fs, "file").await, create(fs, "holey").await);
    for (file, blocks) in [(file, FILE_BLOCKS), (holey, HOLEY_BLOCKS)] {
        for n in 0..blocks / 256 {
            write(fs, file, n << 20, &pattern(n as u8, 1 << 20)).await;
        }
    }
    fs.sync().await.unwrap();
    let draw = Cell::new(1);
    for n in (0..HOLEY_BLOCKS).filter(|_| drawn(&draw).is_multiple_of(4)) {
        fs.fallocate(holey, n * 4096, 4096, FallocateMode::Punch).await.unwrap();
    }
    fs.sync().await.unwrap();
    file
}

async fn overwrite(world: &World, fs: &Arc<Filesystem>, file: NodeId, writes: u64) -> Waits {
    let left = Cell::new(writes);
    let go_on = || left.replace(left.get().saturating_sub(1)) > 0;
    overwrite_while(world, fs, file, go_on).await
}

async fn overwrite_while(
    world: &World,
    fs: &Arc<Filesystem>,
    file: NodeId,
    go_on: impl Fn() -> bool,
) -> Waits {
    let (waits, draw) = (RefCell::new(Vec::new()), Cell::new(2));
    let writer = |writer: u64| {
        let (go_on, waits, draw) = (&go_on, &waits, &draw);
        async move {
            let data = pattern(writer as u8, 4096);
            while go_on() {
                let before = world.rt.now();
                write(fs, file, drawn(draw) % FILE_BLOCKS * 4096, &data).await;
                waits.borrow_mut().push(world.rt.now() - before);
                world.rt.sleep(Duration::from_micros(30)).await;
            }
        }
    };
    join_all((0..WRITERS).map(writer)).await;
    Waits::of(waits.into_inner())
}

/// The waits once memory is full.
fn measured(flush: FlushPolicy, writes: u64) -> Waits {
    once_full(flush, async |world, fs, file| overwrite(world, fs, file, writes).await)
}

/// The result of `work` once memory is full of dirty data of the file.
fn once_full<T>(
    flush: FlushPolicy,
    work: impl AsyncFnOnce(&World, &Arc<Filesystem>, NodeId) -> T,
) -> T {
    let world = World::with_log(3, BLOCKS, 8 << 20);
    world.run(async {
        let limits = Limits { delta_bytes: 8 << 20, flush, ..Limits::default() };
        let options = Options { dirty_bytes_max: DIRTY_BYTES, ..Options::default() };
        let device: DynDevice = world.device.clone();
        let fs = mount(&(world.rt.clone() as Rt), &device, limits, options).await;
        let file = aged(&fs).await;
        world.device.set_interval(INTERVAL);
        overwrite(&world, &fs, file, 2 * DIRTY_BYTES / 4096).await;
        let done = work(&world, &fs, file).await;
        world.device.set_interval(0);
        world.close(fs).await;
        done
    })
}

/// The waits of `write` for so many times, one in every `pause`, beside writers that overwrite the
/// file without end.
async fn beside_writers(
    (world, fs, file): (&World, &Arc<Filesystem>, NodeId),
    (times, pause): (u64, Duration),
    write: impl AsyncFn(u64),
) -> Waits {
    let (is_done, waits) = (Cell::new(false), RefCell::new(Vec::new()));
    let timed = async {
        for n in 0..times {
            let before = world.rt.now();
            write(n).await;
            waits.borrow_mut().push(world.rt.now() - before);
            world.rt.sleep(pause).await;
        }
        is_done.set(true);
    };
    join(timed, overwrite_while(world, fs, file, || !is_done.get())).await;
    Waits::of(waits.into_inner())
}

/// DIRTYPACE: a write waits about as long as another one; with even flushes, also while metadata
/// is written.
#[test]
fn writers_wait_alike_on_a_slow_device() {
    let writes = std::env::var("WRITES").map_or(60_000, |n| n.parse().expect("a number"));
    let waits = [FlushPolicy::Threshold, FlushPolicy::Even].map(|flush| measured(flush, writes));
    let [threshold, even] = &waits;
    threshold.print("threshold");
    even.print("even");
    for waits in &waits {
        let most = waits.at(0.99);
        assert!(most <= 8.0 * waits.fair(), "{most} ms");
    }
    assert!(even.at(1.0) <= 20.0 * even.fair(), "{} ms", even.at(1.0));
    assert!(even.at(0.999) < threshold.at(0.999));
}

/// DIRTYPACE-D4: a block that is dirty already adds nothing to memory.
#[test]
fn a_write_over_dirty_blocks_waits_for_nothing() {
    let waits = once_full(FlushPolicy::Even, async |world, fs, file| {
        let pause = Duration::from_millis(1);
        beside_writers((world, fs, file), (2000, pause), async |n| {
            write(fs, file, 0, &pattern(n as u8, 4096)).await;
        })
        .await
    });
    waits.print("one block");
    assert!(waits.at(0.9) < 0.1, "{} ms", waits.at(0.9));
}

/// DIRTYPACE-D5: the call itself takes no time, and its wait is as long as in other calls.
#[test]
fn a_front_end_gets_the_wait_of_a_write() {
    let (calls, waits) = once_full(FlushPolicy::Even, async |world, fs, file| {
        let (calls, draw) = (RefCell::new(Vec::new()), Cell::new(3));
        let pause = Duration::from_millis(1);
        let waits = beside_writers((world, fs, file), (2000, pause), async |n| {
            let (before, data) = (world.rt.now(), pattern(n as u8, 4096));
            let (data, at) = (WriteData::Bytes(&data), drawn(&draw) % FILE_BLOCKS * 4096);
            let written = write_paced(fs, file, at, data, WriteFlags::default()).await.unwrap();
            calls.borrow_mut().push(world.rt.now() - before);
            assert_eq!(written.wait().await, 4096);
        })
        .await;
        (Waits::of(calls.into_inner()), waits)
    });
    calls.print("calls");
    waits.print("calls and waits");
    assert!(calls.at(0.9) < 0.1 && waits.at(0.5) > 1.0);
}

/// DIRTYPACE-D4: the blocks of a file with the flag SYNC are not in memory behind a write.
#[test]
fn a_write_that_is_durable_waits_for_no_write_back() {
    once_full(FlushPolicy::Even, async |world, fs, file| {
        let synced = create(fs, "synced").await;
        fs.set_flags(&Caller::ROOT, synced, FileFlags::SYNC, None).await.unwrap();
        let pause = Duration::from_millis(1);
        beside_writers((world, fs, file), (50, pause), async |n| {
            let data = pattern(n as u8, 4096);
            let (data, flags) = (WriteData::Bytes(&data), WriteFlags::default());
            let written = write_paced(fs, synced, n * 4096, data, flags).await.unwrap();
            assert!(!written.waits(), "write {n}");
            assert_eq!(written.wait().await, 4096);
        })
        .await;
    });
}

/// DIRTYPACE-D4.
#[test]
fn a_copy_of_many_steps_ends_behind_the_first_one_that_waits() {
    const BYTES: u64 = 8 << 20;
    let short = once_full(FlushPolicy::Even, async |world, fs, file| {
        let (target, short) = (create(fs, "copy").await, Cell::new(0));
        let pause = Duration::from_millis(1);
        beside_writers((world, fs, file), (10, pause), async |n| {
            // Bytes that cannot be shared.
            let (from, to) = ((file, 1), (target, n * BYTES));
            let copied = copy_paced(fs, &Caller::ROOT, from, to, BYTES).await.unwrap();
            let waits = copied.waits();
            let bytes = copied.wait().await;
            assert!(bytes > 0 && (!waits || bytes < BYTES), "copy {n}: {bytes}");
            short.set(short.get() + u32::from(waits));
        })
        .await;
        short.get()
    });
    assert!(short >= 5, "{short} of 10 copies wait");
}

/// DIRTYPACE: a tenant that writes ten blocks a second does not wait for writers without end.
#[test]
fn a_tenant_that_writes_little_does_not_wait_for_one_that_writes_without_end() {
    let waits = once_full(FlushPolicy::Even, async |world, fs, file| {
        let tenant = subvolume(fs, "tenant").await;
        let quiet = file_of(fs, root_of(tenant), "file").await;
        let draw = Cell::new(4);
        let pause = Duration::from_millis(100);
        beside_writers((world, fs, file), (200, pause), async |n| {
            write(fs, quiet, drawn(&draw) % 256 * 4096, &pattern(n as u8, 4096)).await;
        })
        .await
    });
    waits.print("ten writes a second");
    assert!(waits.at(0.99) < 1.0, "{} ms", waits.at(0.99));
}
