//! The tenant that is measured: four calls that programs wait for.
//!
//! `write_fsync` overwrites 4 KiB and makes them durable. `stat` looks up a path whose name and
//! attributes the kernel has forgotten, so each file is used once between two of its lapses of
//! memory. `read_cold` reads 4 KiB at random through the page cache, which drops the block at once;
//! such a read is a request of the background for FUSE. `read_direct` reads 4 KiB past the page
//! cache, in a request with a waiting caller.
//!
//! The calls take turns of a part of the time each, one after the other and never at the same time:
//! a rogue whose work changes meets all of them, and none waits for another call of the neighbour.

use std::fs::{self, File};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;
use rustix::fs::{Advice, fadvise};

use crate::direct::{self, Page, Way};
use crate::error::{BenchError, On};
use crate::files::Forest;
use crate::meter::{Bounds, Measured, Meter};
use crate::places::{BLOCK, Places, fill_file};
use crate::sample::Sample;
use crate::size;
use crate::target::Target;
use crate::tenant::{self, FILE_BYTES, Fsync, Tenant};

const SEED: u64 = 777;
const TURNS: u32 = 5;
/// Files that `write_fsync` overwrites, of 128 KiB each.
const WRITTEN_FILES: u32 = 100;
const FILES_A_DIRECTORY: u32 = 1000;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct NeighbourSizes {
    /// Files that the neighbour looks up, each once in a measurement
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Size of the file that the neighbour reads: a number with K, M or G
    #[arg(long, default_value = "256M", value_parser = size::parse)]
    size: u64,
}

impl NeighbourSizes {
    pub(super) fn data_bytes(&self) -> u64 {
        let names = u64::from(self.files) * BLOCK as u64;
        names + self.size + u64::from(WRITTEN_FILES) * FILE_BYTES
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    WriteFsync,
    Stat,
    ReadCold,
    ReadDirect,
}

impl Call {
    const ALL: [Call; 4] = [Call::WriteFsync, Call::Stat, Call::ReadCold, Call::ReadDirect];

    fn name(self) -> &'static str {
        match self {
            Call::WriteFsync => "write_fsync",
            Call::Stat => "stat",
            Call::ReadCold => "read_cold",
            Call::ReadDirect => "read_direct",
        }
    }
}

/// The times of each call, in the order of `Call::ALL`.
#[derive(Debug, Default)]
pub(super) struct Figures([Measured; Call::ALL.len()]);

impl Figures {
    /// These and those of a later measurement.
    pub(super) fn then(self, later: Figures) -> Figures {
        let mut later = later.0.into_iter();
        Figures(self.0.map(|call| call.then(later.next().unwrap_or_default())))
    }

    pub(super) fn percentiles(&self, variant: &str) -> Vec<Sample> {
        self.each(variant, |name, measured| measured.percentiles(name).to_vec())
    }

    pub(super) fn counts(&self, variant: &str) -> Vec<Sample> {
        self.each(variant, |name, measured| {
            vec![Sample::new(name, "calls", "calls", measured.ops() as f64)]
        })
    }

    /// Of the calls that were made; without names in the cache to forget there is no `stat`.
    fn each(&self, variant: &str, of: impl Fn(&str, &Measured) -> Vec<Sample>) -> Vec<Sample> {
        let calls = Call::ALL.into_iter().zip(&self.0).filter(|(_, measured)| measured.ops() > 0);
        calls.flat_map(|(call, it)| of(&format!("{variant}.{}", call.name()), it)).collect()
    }

    /// One `stat` of so many milliseconds.
    #[cfg(test)]
    pub(super) fn example(ms: u64) -> Figures {
        let mut figures = Figures::default();
        figures.0[1] = Measured::example(Duration::from_millis(ms));
        figures
    }
}

pub(super) struct Neighbour<'a> {
    target: &'a Target<'a>,
    interrupt: &'a Interrupt,
    writer: Tenant,
    forest: Forest,
    files: u64,
    /// The next file to look up, and how many are left that the kernel has not seen.
    next: u64,
    unseen: u64,
    cached: File,
    direct: File,
    places: Places,
}

impl<'a> Neighbour<'a> {
    /// Makes its files under `home`, durably.
    pub(super) fn new(
        target: &'a Target<'a>,
        home: &Path,
        sizes: &NeighbourSizes,
        interrupt: &'a Interrupt,
    ) -> Result<Neighbour<'a>, BenchError> {
        let [written, named, read] = ["written", "named", "read"].map(|name| home.join(name));
        fs::create_dir(&written).on(written.display())?;
        tenant::fill(&written, WRITTEN_FILES, interrupt)?;
        fs::create_dir(&named).on(named.display())?;
        let directories = sizes.files.div_ceil(FILES_A_DIRECTORY);
        let forest = Forest::new(named, sizes.files, directories);
        forest.make_directories()?;
        forest.create(interrupt)?;
        let blocks = sizes.size / BLOCK as u64;
        fill_file(&read, blocks, SEED, interrupt)?;
        target.sync()?;

        let cached = File::open(&read).on(read.display())?;
        // Without it the kernel reads ahead.
        fadvise(&cached, 0, None, Advice::Random).on("fadvise")?;
        drop_pages(&cached, 0, sizes.size)?;
        Ok(Neighbour {
            target,
            interrupt,
            writer: Tenant::new(&written, WRITTEN_FILES, SEED, Fsync::Strict)?,
            forest,
            files: sizes.files.into(),
            next: 0,
            unseen: 0,
            cached,
            direct: direct::open(&read, Way::Read)?,
            places: Places::random(blocks, SEED),
        })
    }

    /// Makes everything durable, and lets the kernel forget its names: before a measurement.
    pub(super) fn forget_names(&mut self) -> Result<(), BenchError> {
        match self.target.forget_names()? {
            true => self.unseen = self.files,
            false => {
                let why = "only root can have the kernel forget names, so there is no stat";
                self.target.site().note("rogue", self.target.kind(), why);
            }
        }
        Ok(())
    }

    /// Measures all calls, in `time` together.
    pub(super) fn measure(&mut self, time: Duration) -> Result<Figures, BenchError> {
        let turn = time / (TURNS * Call::ALL.len() as u32);
        let mut figures = Figures::default();
        for _ in 0..TURNS {
            let mut all = Figures::default();
            for (place, call) in all.0.iter_mut().zip(Call::ALL) {
                *place = self.turn(call, turn)?;
            }
            figures = figures.then(all);
        }
        Ok(figures)
    }

    fn turn(&mut self, call: Call, time: Duration) -> Result<Measured, BenchError> {
        let ops = match call {
            Call::Stat => self.unseen,
            Call::WriteFsync | Call::ReadCold | Call::ReadDirect => u64::MAX,
        };
        let mut meter = Meter::start(Bounds { ops, time }, self.interrupt);
        match call {
            Call::WriteFsync => meter.each(|_| self.writer.write_and_sync().map(drop))?,
            Call::Stat => self.stat(&mut meter)?,
            Call::ReadCold => self.read_cold(&mut meter)?,
            Call::ReadDirect => self.read_direct(&mut meter)?,
        }
        meter.end()
    }

    fn stat(&mut self, meter: &mut Meter<'_>) -> Result<(), BenchError> {
        meter.each(|done| self.forest.stat_next(self.next + done))?;
        self.next += meter.ops();
        self.unseen -= meter.ops();
        Ok(())
    }

    fn read_cold(&mut self, meter: &mut Meter<'_>) -> Result<(), BenchError> {
        let mut block = [0; BLOCK];
        while meter.go_on(0) {
            let at = self.places.next_offset();
            let began = Instant::now();
            self.cached.read_exact_at(&mut block, at).on("read")?;
            meter.done(began);
            drop_pages(&self.cached, at, BLOCK as u64)?;
        }
        Ok(())
    }

    fn read_direct(&mut self, meter: &mut Meter<'_>) -> Result<(), BenchError> {
        let mut page = Page([0; BLOCK]);
        let read = |_| {
            let at = self.places.next_offset();
            self.direct.read_exact_at(&mut page.0, at).on("direct read")
        };
        meter.each(read)
    }
}

/// Drops clean pages of a file from the page cache.
fn drop_pages(file: &File, at: u64, bytes: u64) -> Result<(), BenchError> {
    fadvise(file, at, NonZeroU64::new(bytes), Advice::DontNeed).on("fadvise")
}
