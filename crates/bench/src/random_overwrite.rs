//! The job: 4 KiB writes at uniformly random places of a file that is fully written before.
//!
//! Three variants, each on the same file: direct with 32 in flight; buffered, one writer, with one
//! fsync that counts at the end; an fsync after each write. A variant ends after a number of writes
//! or a time, whichever is first. Then everything is synced, so that the bytes counted are all that
//! the writes caused so far. `cpu` is the time of all processors per write, of this program, too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use copyhold_harness::Interrupt;

use crate::busy::Busy;
use crate::clients::{self, Clients};
use crate::direct::{self, Way};
use crate::error::{BenchError, On};
use crate::job::Job;
use crate::meter::{Bounds, Measured, Meter};
use crate::places::{BLOCK, Places, fill_file};
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target};

/// Requests in flight of direct random jobs.
pub(crate) const DEPTH: usize = 32;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RandomOverwrite {
    /// Size of what is overwritten: a number with K, M or G
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// A variant ends after this many seconds …
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// … or this many writes [default: as many as there are blocks]
    #[arg(long)]
    ops: Option<u64>,
    /// Which of the job's variants
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Variant::ALL)]
    variants: Vec<Variant>,
    #[command(flatten)]
    clients: Clients,
}

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
    const ALL: [Variant; 3] = [Variant::Direct, Variant::Buffered, Variant::Fsync];

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

impl Job for RandomOverwrite {
    fn name(&self) -> &'static str {
        "random-overwrite"
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

impl RandomOverwrite {
    /// For the core list.
    pub(crate) fn bounded(size: u64, seconds: u64) -> RandomOverwrite {
        RandomOverwrite::of(size, Clients::of(1), seconds, None, Variant::ALL.to_vec())
    }

    pub(crate) fn of(
        size: u64,
        clients: Clients,
        seconds: u64,
        ops: Option<u64>,
        variants: Vec<Variant>,
    ) -> RandomOverwrite {
        RandomOverwrite { size, seconds, ops, variants, clients }
    }

    /// The variants one after another, on new files.
    pub(crate) fn run(
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
        target.sync()?;
        let ops = self.ops.map_or(blocks, |ops| ops.div_ceil(u64::from(clients)));
        let bounds = Bounds { ops, time: Duration::from_secs(self.seconds) };
        let mut samples = Vec::new();
        for (number, &variant) in self.variants.iter().enumerate() {
            let (before, busy) = (target.traffic()?, Busy::now()?);
            let seed = |client| 1 + u64::from(client) + 1000 * number as u64;
            let measured = clients::together(clients, |client| {
                let mut places = Places::random(blocks, seed(client));
                overwrite(&path(client), variant, bounds, &mut places, interrupt)
            })?;
            target.sync()?;
            let busy = Busy::now()?.since(busy);
            let traffic = target.traffic()?.since(&before);
            let name = clients::variant(variant.name(), clients);
            samples.extend(measured.samples(&name));
            samples.push(busy.sample(&name, measured.ops()));
            samples.extend(traffic.samples(&name, measured.ops(), BLOCK));
        }
        Ok(samples)
    }
}

fn overwrite(
    path: &Path,
    variant: Variant,
    bounds: Bounds,
    places: &mut Places,
    interrupt: &Interrupt,
) -> Result<Measured, BenchError> {
    let buffered = || OpenOptions::new().write(true).open(path).on(path.display());
    let mut meter = Meter::start(bounds, interrupt);
    match variant {
        Variant::Direct => {
            let file = direct::open(path, Way::Write)?;
            direct::transfer(&file, Way::Write, DEPTH, places, &mut meter)?;
        }
        Variant::Buffered => {
            let file = buffered()?;
            one_by_one(&file, places, &mut meter, |_| Ok(()))?;
            file.sync_data().on("fsync")?;
        }
        Variant::Fsync => one_by_one(&buffered()?, places, &mut meter, File::sync_data)?,
    }
    meter.end()
}

fn one_by_one(
    file: &File,
    places: &mut Places,
    meter: &mut Meter<'_>,
    after_each: impl Fn(&File) -> std::io::Result<()>,
) -> Result<(), BenchError> {
    let mut block = [0; BLOCK];
    meter.each(|_| {
        places.fill(&mut block);
        file.write_all_at(&block, places.next_offset()).on("write")?;
        after_each(file).on("fsync")
    })
}
