//! The job: 4 KiB reads at uniformly random places of a file that is fully written before.
//!
//! `direct`: with 32 in flight past the kernel's cache, behind a remount, so that the filesystem
//! begins without what it kept. `cached`: one reader, when the whole file was read before: what the
//! page cache gives where the filesystem lets it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use copyhold_harness::Interrupt;

use crate::clients::{self, Clients};
use crate::direct::{self, Way};
use crate::error::{BenchError, On};
use crate::job::Job;
use crate::meter::{Bounds, Measured, Meter};
use crate::places::{BLOCK, Places, fill_file};
use crate::random_overwrite::DEPTH;
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RandomRead {
    /// Size of what is read: a number with K, M or G
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// A variant ends after this many seconds …
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// … or this many reads [default: as many as there are blocks]
    #[arg(long)]
    ops: Option<u64>,
    #[command(flatten)]
    clients: Clients,
}

impl Job for RandomRead {
    fn name(&self) -> &'static str {
        "random-read"
    }

    fn data_bytes(&self) -> u64 {
        self.clients.data_bytes(self.size)
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        self.clients.round(site, kind, |target, clients| self.run(target, clients, interrupt))
    }
}

impl RandomRead {
    /// For the core list.
    pub(crate) fn bounded(size: u64, seconds: u64) -> RandomRead {
        RandomRead { size, seconds, ops: None, clients: Clients::of(1) }
    }

    fn run(
        &self,
        target: &Target<'_>,
        clients: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let directory = target.directory();
        let path = |client| clients::path(&directory, clients, client);
        let blocks = self.size / BLOCK as u64 / u64::from(clients);
        for client in 0..clients {
            fill_file(&path(client), blocks, u64::from(client), interrupt)?;
        }
        target.cool()?;
        let ops = self.ops.map_or(blocks, |ops| ops.div_ceil(u64::from(clients)));
        let bounds = Bounds { ops, time: Duration::from_secs(self.seconds) };
        let places = |client| Places::random(blocks, 1 + u64::from(client));
        let direct = clients::together(clients, |client| {
            let file = direct::open(&path(client), Way::Read)?;
            let mut meter = Meter::start(bounds, interrupt);
            direct::transfer(&file, Way::Read, DEPTH, &mut places(client), &mut meter)?;
            meter.end()
        })?;
        // Opened once and kept: opening again may empty the cache.
        let files = (0..clients)
            .map(|client| warm(&path(client), blocks, interrupt))
            .collect::<Result<Vec<File>, BenchError>>()?;
        let cached = clients::together(clients, |client| {
            one_by_one(&files[client as usize], places(client), bounds, interrupt)
        })?;
        let mut samples = direct.samples(&clients::variant("direct", clients));
        samples.extend(cached.samples(&clients::variant("cached", clients)));
        Ok(samples)
    }
}

/// Opens a file and reads all of it.
fn warm(path: &Path, blocks: u64, interrupt: &Interrupt) -> Result<File, BenchError> {
    const CHUNK: usize = 256;
    let file = File::open(path).on(path.display())?;
    let mut chunk = vec![0; CHUNK * BLOCK];
    for start in (0..blocks).step_by(CHUNK) {
        interrupt.check()?;
        let bytes = (blocks - start).min(CHUNK as u64) as usize * BLOCK;
        file.read_exact_at(&mut chunk[..bytes], start * BLOCK as u64).on("reading the file")?;
    }
    Ok(file)
}

fn one_by_one(
    file: &File,
    mut places: Places,
    bounds: Bounds,
    interrupt: &Interrupt,
) -> Result<Measured, BenchError> {
    let mut block = [0; BLOCK];
    let mut meter = Meter::start(bounds, interrupt);
    meter.each(|_| file.read_exact_at(&mut block, places.next_offset()).on("read"))?;
    meter.end()
}
