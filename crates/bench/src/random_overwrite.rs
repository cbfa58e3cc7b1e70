//! The job: 4 KiB writes at uniformly random places of a file that is fully written before.
//!
//! Three variants, each on the same file: direct with 32 in flight; buffered, one writer, with one
//! fsync that counts at the end; an fsync after each write. A variant ends after a number of writes
//! or a time, whichever is first. Then everything is synced, so that the bytes counted are all that
//! the writes caused so far.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rustix::fs::OFlags;

use crate::direct;
use crate::error::{BenchError, On};
use crate::interrupt::Interrupt;
use crate::summary::Sample;
use crate::target::Target;

pub(crate) const BLOCK: usize = 4096;
const DEPTH: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Variant {
    /// O_DIRECT, 32 in flight
    Direct,
    /// Through the page cache, with one fsync at the end
    Buffered,
    /// An fsync after each write
    Fsync,
}

impl Variant {
    pub(crate) const ALL: [Variant; 3] = [Variant::Direct, Variant::Buffered, Variant::Fsync];

    fn name(self) -> &'static str {
        match self {
            Variant::Direct => "direct",
            Variant::Buffered => "buffered",
            Variant::Fsync => "fsync",
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How much a variant does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Size of the file.
    pub(crate) blocks: u64,
    pub(crate) ops: u64,
    pub(crate) time: Duration,
}

/// Runs the variants one after another on a new file.
pub(crate) fn run(
    target: &Target<'_>,
    bounds: Bounds,
    variants: &[Variant],
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, BenchError> {
    let path = target.directory().join("data");
    let mut places = Places::new(bounds.blocks);
    fill(&path, bounds.blocks, &mut places, interrupt)?;
    target.sync()?;
    let mut samples = Vec::new();
    for &variant in variants {
        let before = target.traffic()?;
        let mut meter = Meter::start(bounds, interrupt);
        let mut file = OpenOptions::new();
        file.write(true);
        if variant == Variant::Direct {
            file.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        let file = file.open(&path).on(path.display())?;
        match variant {
            Variant::Direct => direct::overwrite(&file, DEPTH, &mut places, &mut meter)?,
            Variant::Buffered => {
                one_by_one(&file, &mut places, &mut meter, |_| Ok(()))?;
                file.sync_data().on("fsync")?;
            }
            Variant::Fsync => one_by_one(&file, &mut places, &mut meter, File::sync_data)?,
        }
        let measured = meter.end()?;
        target.sync()?;
        let traffic = target.traffic()?.since(&before);
        samples.extend(measured.samples(variant.name()));
        samples.extend(traffic.samples(variant.name(), measured.ops));
    }
    Ok(samples)
}

fn one_by_one(
    file: &File,
    places: &mut Places,
    meter: &mut Meter<'_>,
    after_each: impl Fn(&File) -> std::io::Result<()>,
) -> Result<(), BenchError> {
    let mut block = [0; BLOCK];
    while meter.go_on(0) {
        places.fill(&mut block);
        let began = Instant::now();
        file.write_all_at(&block, places.next_offset()).on("write")?;
        after_each(file).on("fsync")?;
        meter.done(began);
    }
    Ok(())
}

fn fill(
    path: &std::path::Path,
    blocks: u64,
    places: &mut Places,
    interrupt: &Interrupt,
) -> Result<(), BenchError> {
    const CHUNK: usize = 256;
    let file = File::create(path).on(path.display())?;
    let mut chunk = vec![0; CHUNK * BLOCK];
    let mut block = 0;
    while block < blocks {
        interrupt.check()?;
        for part in chunk.chunks_exact_mut(BLOCK) {
            places.fill(part);
        }
        let now = (blocks - block).min(CHUNK as u64);
        let bytes = &chunk[..now as usize * BLOCK];
        file.write_all_at(bytes, block * BLOCK as u64).on("filling the file")?;
        block += now;
    }
    file.sync_all().on("filling the file")
}

/// Where to write next and what: the same history on each target.
pub(crate) struct Places {
    rng: Xoshiro256PlusPlus,
    blocks: u64,
}

impl Places {
    fn new(blocks: u64) -> Places {
        Places { rng: Xoshiro256PlusPlus::seed_from_u64(1), blocks }
    }

    pub(crate) fn next_offset(&mut self) -> u64 {
        let wide = u128::from(self.rng.next_u64()) * u128::from(self.blocks);
        (wide >> 64) as u64 * BLOCK as u64
    }

    /// No block is like another, and that costs little: each 64 bytes begin with a random word.
    pub(crate) fn fill(&mut self, block: &mut [u8]) {
        for line in block.chunks_exact_mut(64) {
            line[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
    }
}

/// Counts and times writes, and says when it is enough.
pub(crate) struct Meter<'a> {
    bounds: Bounds,
    interrupt: &'a Interrupt,
    began: Instant,
    latencies_ns: Vec<u32>,
}

impl<'a> Meter<'a> {
    fn start(bounds: Bounds, interrupt: &'a Interrupt) -> Meter<'a> {
        let latencies_ns = Vec::with_capacity(bounds.ops.min(1 << 24) as usize);
        Meter { bounds, interrupt, began: Instant::now(), latencies_ns }
    }

    /// Whether another write may begin, with `in_flight` of them not done yet.
    pub(crate) fn go_on(&self, in_flight: usize) -> bool {
        (self.latencies_ns.len() + in_flight) < self.bounds.ops as usize
            && self.began.elapsed() < self.bounds.time
            && self.interrupt.check().is_ok()
    }

    pub(crate) fn done(&mut self, began: Instant) {
        self.latencies_ns.push(began.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
    }

    fn end(mut self) -> Result<Measured, BenchError> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.interrupt.check()?;
        self.latencies_ns.sort_unstable();
        Ok(Measured {
            ops: self.latencies_ns.len() as u64,
            seconds,
            latencies_ns: self.latencies_ns,
        })
    }
}

struct Measured {
    ops: u64,
    seconds: f64,
    latencies_ns: Vec<u32>,
}

impl Measured {
    fn samples(&self, variant: &str) -> Vec<Sample> {
        let at = |share: f64| {
            let index = (self.latencies_ns.len() as f64 * share) as usize;
            f64::from(self.latencies_ns.get(index).copied().unwrap_or_default()) / 1000.0
        };
        vec![
            Sample::new(variant, "iops", "ops/s", self.ops as f64 / self.seconds),
            Sample::new(variant, "p50", "us", at(0.50)),
            Sample::new(variant, "p99", "us", at(0.99)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_the_file_and_stay_in_it() {
        let mut places = Places::new(10);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            let offset = places.next_offset();
            assert_eq!(offset % BLOCK as u64, 0);
            seen[(offset / BLOCK as u64) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
    }

    #[test]
    fn both_ways_of_writing_do_as_many_writes_as_asked() {
        let file = tempfile::tempfile().unwrap();
        let bounds = Bounds { blocks: 64, ops: 100, time: Duration::from_secs(600) };
        let interrupt = Interrupt::never();
        let mut places = Places::new(64);
        let mut meter = Meter::start(bounds, &interrupt);
        one_by_one(&file, &mut places, &mut meter, |_| Ok(())).unwrap();
        assert_eq!(meter.end().unwrap().ops, 100);
        let mut meter = Meter::start(bounds, &interrupt);
        match direct::overwrite(&file, 32, &mut places, &mut meter) {
            Ok(()) => assert_eq!(meter.end().unwrap().ops, 100),
            // Containers may refuse io_uring.
            Err(error) => assert!(error.to_string().starts_with("io_uring"), "{error}"),
        }
    }
}
