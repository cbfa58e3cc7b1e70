//! Records of 4 KiB in a few files: written in order, freed at random, overwritten at random.
//!
//! Which records are freed follows from a seed, so a copy of the image needs no list of them. All
//! writes are direct, of one record: a filesystem that shares an extent among records could not
//! free one of them alone.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_harness::Interrupt;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::clients;
use crate::direct::{self, Way};
use crate::error::{BenchError, On};
use crate::meter::{Bounds, Measured, Meter};
use crate::places::{BLOCK, Kept, Places};
use crate::random_overwrite::DEPTH;
use crate::target::Target;

/// The space is looked at when this part of it has been filled.
const STRETCHES: u64 = 256;

pub(super) struct Records<'a> {
    directory: PathBuf,
    shape: Shape,
    seed: AtomicU64,
    interrupt: &'a Interrupt,
}

/// The records of an aged filesystem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) files: u32,
    /// Records of each file.
    pub(super) per_file: u64,
    pub(super) freed_percent: u32,
}

impl Shape {
    pub(super) fn records(&self) -> u64 {
        u64::from(self.files) * self.per_file
    }

    fn kept(&self, file: u32) -> Kept {
        Kept { freed_percent: self.freed_percent, seed: u64::from(file) }
    }
}

impl<'a> Records<'a> {
    /// Those that a filesystem has. `seed`: of the overwrites.
    pub(super) fn of(
        target: &Target<'_>,
        shape: Shape,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> Records<'a> {
        let seed = AtomicU64::new(seed << 32);
        Records { directory: target.directory(), shape, seed, interrupt }
    }

    /// Fills an empty filesystem to so many percent of its space.
    pub(super) fn fill(
        target: &Target<'_>,
        shape: Shape,
        percent: u32,
        interrupt: &'a Interrupt,
    ) -> Result<Records<'a>, BenchError> {
        let mut records = Records::of(target, Shape { per_file: 0, ..shape }, 1, interrupt);
        for file in 0..shape.files {
            let path = records.path(file);
            fs::File::create(&path).on(path.display())?;
        }
        let empty = available(target)?;
        let stretch = (empty / STRETCHES / u64::from(shape.files)).max(1);
        while used_percent(available(target)?, empty) < f64::from(percent) {
            let from = records.shape.per_file;
            let written = clients::together(shape.files, |file| {
                let places = Places::blocks_from(from, from + stretch, u64::from(file));
                records.write(file, places, Bounds::ops(stretch))
            });
            written?;
            records.shape.per_file += stretch;
            target.sync()?;
        }
        Ok(records)
    }

    /// Frees the records that are not kept, by holes in their files.
    pub(super) fn free(&self) -> Result<(), BenchError> {
        clients::together(self.shape.files, |file| {
            let (path, kept) = (self.path(file), self.shape.kept(file));
            let opened = OpenOptions::new().write(true).open(&path).on(path.display())?;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for record in (0..self.shape.per_file).filter(|&record| !kept.has(record)) {
                self.interrupt.check()?;
                let freed = fallocate(&opened, hole, record * BLOCK as u64, BLOCK as u64);
                freed.map_err(io::Error::from).on(path.display())?;
            }
            Ok(Measured::default())
        })
        .map(drop)
    }

    /// Overwrites kept records at random, with 32 in flight, until `bounds` are reached.
    pub(super) fn overwrite(&self, bounds: Bounds) -> Result<Measured, BenchError> {
        let files = self.shape.files;
        let seed = self.seed.fetch_add(u64::from(files), Relaxed);
        let ops = bounds.ops.div_ceil(u64::from(files));
        clients::together(files, |file| {
            let seed = seed + u64::from(file);
            let places = Places::kept(self.shape.per_file, self.shape.kept(file), seed);
            self.write(file, places, Bounds { ops, ..bounds })
        })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    fn write(&self, file: u32, mut places: Places, bounds: Bounds) -> Result<Measured, BenchError> {
        let opened = direct::open(&self.path(file), Way::Write)?;
        let depth = (DEPTH / self.shape.files as usize).max(1);
        let mut meter = Meter::start(bounds, self.interrupt);
        direct::transfer(&opened, Way::Write, depth, &mut places, &mut meter)?;
        meter.end()
    }

    fn path(&self, file: u32) -> PathBuf {
        clients::path(&self.directory, self.shape.files, file)
    }
}

/// Records for which a filesystem has space.
fn available(target: &Target<'_>) -> Result<u64, BenchError> {
    let found = statvfs(target.directory()).map_err(io::Error::from).on("statvfs")?;
    Ok(found.f_bavail * found.f_frsize / BLOCK as u64)
}

/// The share that is in use where `empty` records had space at first.
fn used_percent(available: u64, empty: u64) -> f64 {
    100.0 * (1.0 - available as f64 / empty.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_used_share_follows_from_the_space_that_is_left() {
        assert_eq!(used_percent(1000, 1000), 0.0);
        assert_eq!(used_percent(50, 1000), 95.0);
        assert_eq!(used_percent(0, 0), 100.0);
    }

    #[test]
    fn all_files_together_have_the_records() {
        let shape = Shape { files: 3, per_file: 1000, freed_percent: 20 };
        assert_eq!(shape.records(), 3000);
        let freed: Vec<bool> = (0..1000).map(|record| shape.kept(0).has(record)).collect();
        let other: Vec<bool> = (0..1000).map(|record| shape.kept(1).has(record)).collect();
        assert_ne!(freed, other, "each file has holes of its own");
    }
}
