//! The job: a file written and read in order, 1 MiB at a time.
//!
//! `write_direct` and `read_direct`: past the page cache, four in flight. `write_buffered`: one
//! writer, with an fsync that counts at the end. `read_cold`: one reader through the page cache
//! behind a remount, so with whatever read-ahead the filesystem has. `read_warm`: the same file
//! once more, opened again as another program would. Writes make a new file each.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use copyhold_harness::Interrupt;

use crate::clients::{self, Clients};
use crate::direct::{self, Way};
use crate::error::{BenchError, On};
use crate::job::Job;
use crate::meter::{Bounds, Measured, Meter};
use crate::places::Places;
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target};

const UNIT: usize = 1 << 20;
const DEPTH: usize = 4;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Sequential {
    /// Size of what is written and read: a number with K, M or G
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    #[command(flatten)]
    clients: Clients,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    WriteDirect,
    WriteBuffered,
    ReadDirect,
    ReadCold,
    ReadWarm,
}

impl Variant {
    /// In this order: reads find what writes left.
    const ALL: [Variant; 5] = [
        Variant::WriteDirect,
        Variant::WriteBuffered,
        Variant::ReadDirect,
        Variant::ReadCold,
        Variant::ReadWarm,
    ];

    fn name(self) -> &'static str {
        match self {
            Variant::WriteDirect => "write_direct",
            Variant::WriteBuffered => "write_buffered",
            Variant::ReadDirect => "read_direct",
            Variant::ReadCold => "read_cold",
            Variant::ReadWarm => "read_warm",
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Variant::WriteDirect | Variant::WriteBuffered)
    }
}

impl Job for Sequential {
    fn name(&self) -> &'static str {
        "sequential"
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
        self.clients.round(site, kind, |target, clients| {
            let mut samples = Vec::new();
            for variant in Variant::ALL {
                samples.extend(self.run(target, variant, clients, interrupt)?);
            }
            Ok(samples)
        })
    }
}

impl Sequential {
    /// For the core list.
    pub(crate) fn bounded(size: u64) -> Sequential {
        Sequential { size, clients: Clients::of(1) }
    }

    fn run(
        &self,
        target: &Target<'_>,
        variant: Variant,
        clients: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let directory = target.directory();
        let path = |client| clients::path(&directory, clients, client);
        let units = (self.size / UNIT as u64 / u64::from(clients)).max(1);
        match variant {
            Variant::WriteDirect | Variant::WriteBuffered => {
                (0..clients).try_for_each(|client| make(&path(client)))?;
                target.sync()?;
            }
            Variant::ReadDirect | Variant::ReadCold => target.cool()?,
            Variant::ReadWarm => {}
        }
        let before = target.traffic()?;
        let measured = clients::together(clients, |client| {
            let places = Places::sequential(UNIT, units, u64::from(client));
            transfer(&path(client), variant, places, units, interrupt)
        })?;
        let name = clients::variant(variant.name(), clients);
        let mut samples = measured.throughput(&name, UNIT);
        if variant.is_write() {
            target.sync()?;
            let traffic = target.traffic()?.since(&before);
            samples.extend(traffic.samples(&name, measured.ops(), UNIT));
        }
        Ok(samples)
    }
}

/// A new, empty file in place of what is there.
fn make(path: &Path) -> Result<(), BenchError> {
    if path.exists() {
        fs::remove_file(path).on(path.display())?;
    }
    File::create_new(path).on(path.display()).map(drop)
}

fn transfer(
    path: &Path,
    variant: Variant,
    mut places: Places,
    units: u64,
    interrupt: &Interrupt,
) -> Result<Measured, BenchError> {
    let mut meter = Meter::start(Bounds::ops(units), interrupt);
    match variant {
        Variant::WriteDirect | Variant::ReadDirect => {
            let way = if variant.is_write() { Way::Write } else { Way::Read };
            let file = direct::open(path, way)?;
            direct::transfer(&file, way, DEPTH, &mut places, &mut meter)?;
        }
        Variant::WriteBuffered => {
            let file = File::options().write(true).open(path).on(path.display())?;
            let mut piece = vec![0; UNIT];
            meter.each(|_| {
                places.fill(&mut piece);
                file.write_all_at(&piece, places.next_offset()).on("write")
            })?;
            file.sync_data().on("fsync")?;
        }
        Variant::ReadCold | Variant::ReadWarm => {
            let file = File::open(path).on(path.display())?;
            let mut piece = vec![0; UNIT];
            meter.each(|_| file.read_exact_at(&mut piece, places.next_offset()).on("read"))?;
        }
    }
    meter.end()
}
