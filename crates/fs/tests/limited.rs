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

use common::*;
use copyhold_device::DynDevice;
use copyhold_fs::{FallocateMode, Filesystem, NodeId, Options};
use copyhold_pool::{FlushPolicy, Limits};
use copyhold_runtime::{Rt, Runtime};
use copyhold_types::Nanos;
use futures_util::future::join_all;

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
    let (left, waits, draw) = (Cell::new(writes), RefCell::new(Vec::new()), Cell::new(2));
    let writer = |writer: u64| {
        let (left, waits, draw) = (&left, &waits, &draw);
        async move {
            let data = pattern(writer as u8, 4096);
            while left.get() > 0 {
                left.set(left.get() - 1);
                let before = world.rt.now();
                write(fs, file, drawn(draw) % FILE_BLOCKS * 4096, &data).await;
                waits.borrow_mut().push(world.rt.now() - before);
                world.rt.sleep(Duration::from_micros(30)).await;
            }
        }
    };
    join_all((0..WRITERS).map(writer)).await;
    let mut waits = waits.into_inner();
    waits.sort_unstable();
    Waits(waits)
}

/// The waits once memory is full.
fn measured(flush: FlushPolicy, writes: u64) -> Waits {
    let world = World::with_log(3, BLOCKS, 8 << 20);
    world.run(async {
        let limits = Limits { delta_bytes: 8 << 20, flush, ..Limits::default() };
        let options = Options { dirty_bytes_max: DIRTY_BYTES, ..Options::default() };
        let device: DynDevice = world.device.clone();
        let fs = mount(&(world.rt.clone() as Rt), &device, limits, options).await;
        let file = aged(&fs).await;
        world.device.set_interval(INTERVAL);
        overwrite(&world, &fs, file, 2 * DIRTY_BYTES / 4096).await;
        let waits = overwrite(&world, &fs, file, writes).await;
        world.device.set_interval(0);
        world.close(fs).await;
        waits
    })
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
