//! The job: a large directory of small files, listed cold with the attributes of its entries.
//!
//! Three ways, each behind a remount: `names` lists them and nothing else; `as_listed` asks for the
//! attributes of each entry as it comes, as `ls -l` does; `names_first` lists all names, and then
//! asks for their attributes in the same order, as archivers do. An operation of the last two is an
//! entry, of the first one the whole listing. `device.reads` are requests for each entry, as the
//! kernel counts them.
//!
//! Each way is measured on the device as it is (`free`), and with a limit on its operations
//! (`limited`), where the reads themselves are the cost.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use copyhold_harness::Interrupt;
use rustix::fs::{AtFlags, statat};
use rustix::process::geteuid;

use crate::device_limit::DeviceLimit;
use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::meter::{self, Bounds, Measured, Meter};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

/// Of the device for each file: ext4 has an inode for each 16 KiB of it.
const BYTES_A_FILE: u64 = 18 << 10;
const BYTES_MIN: u64 = 1 << 30;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Listing {
    /// Files of the directory
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Bytes of each file
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16))]
    bytes: u16,
    /// Reads a second that the limited device does; 0: only the device as it is
    #[arg(long, default_value_t = 4000)]
    device_iops: u32,
}

impl Job for Listing {
    fn name(&self) -> &'static str {
        "listing"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.files) * (BYTES_A_FILE + u64::from(self.bytes))
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Null | Kind::Plain => Some("it has no device that can be read cold"),
            _ if !geteuid().is_root() => Some("it needs loop devices, and those need root"),
            _ => None,
        }
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let devices = site.on_devices(self.data_bytes() + BYTES_MIN);
        on_fresh(&devices, kind, |target| {
            let directory = Directory::fill(target, self, interrupt)?;
            let mut samples = directory.measure(target, "free", interrupt)?;
            match DeviceLimit::missing() {
                _ if self.device_iops == 0 => {}
                Some(why) => site.note(self.name(), kind, &why),
                None => {
                    let _limit = DeviceLimit::set(target, self.device_iops)?;
                    samples.extend(directory.measure(target, "limited", interrupt)?);
                }
            }
            Ok(samples)
        })
    }
}

/// How a directory is listed.
#[derive(Clone, Copy, Debug)]
enum Way {
    Names,
    AsListed,
    NamesFirst,
}

impl Way {
    const ALL: [Way; 3] = [Way::Names, Way::AsListed, Way::NamesFirst];

    fn name(self) -> &'static str {
        match self {
            Way::Names => "names",
            Way::AsListed => "as_listed",
            Way::NamesFirst => "names_first",
        }
    }
}

struct Directory {
    path: PathBuf,
    files: u32,
}

impl Directory {
    fn fill(
        target: &Target<'_>,
        job: &Listing,
        interrupt: &Interrupt,
    ) -> Result<Directory, BenchError> {
        let content = vec![7; usize::from(job.bytes)];
        let path = target.directory().join("d");
        fs::create_dir(&path).on(path.display())?;
        meter::each(u64::from(job.files), interrupt, |number| {
            let file = path.join(format!("f{number:07}"));
            let made = File::create_new(&file).and_then(|mut file| file.write_all(&content));
            made.on(file.display())
        })?;
        Ok(Directory { path, files: job.files })
    }

    /// All ways, each behind a remount.
    fn measure(
        &self,
        target: &Target<'_>,
        setting: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for way in Way::ALL {
            target.cool()?;
            let variant = format!("{setting}.{}", way.name());
            let (before, began) = (target.traffic_of_device()?, Instant::now());
            let measured = self.list(way, interrupt)?;
            samples.push(Sample::seconds(&variant, began.elapsed()));
            let traffic = target.traffic_of_device()?.since(&before);
            let device = format!("{variant}.device");
            samples.extend(traffic.requests(&device, "per entry", self.files.into()));
            samples.extend(measured.percentiles(&variant));
        }
        Ok(samples)
    }

    fn list(&self, way: Way, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        let mut meter = Meter::start(Bounds::ops(u64::from(self.files)), interrupt);
        let opened = File::open(&self.path).on(self.path.display())?;
        let stat = |name: OsString| {
            let looked = statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW);
            looked.map_err(io::Error::from).on(self.path.join(&name).display())
        };
        let mut began = Instant::now();
        let mut names = Vec::with_capacity(self.files as usize);
        for entry in fs::read_dir(&self.path).on(self.path.display())? {
            interrupt.check()?;
            let name = entry.on(self.path.display())?.file_name();
            match way {
                Way::AsListed => {
                    stat(name)?;
                    meter.done(began);
                    began = Instant::now();
                }
                Way::Names | Way::NamesFirst => names.push(name),
            }
        }
        match way {
            Way::Names => meter.done(began),
            Way::AsListed => {}
            Way::NamesFirst => {
                let mut names = names.into_iter();
                meter.each(|_| names.next().map_or(Ok(()), |name| stat(name).map(drop)))?;
            }
        }
        meter.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_sees_every_file() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..9 {
            File::create_new(directory.path().join(number.to_string())).unwrap();
        }
        let directory = Directory { path: directory.path().to_owned(), files: 9 };
        let interrupt = Interrupt::never();
        let ops = Way::ALL.map(|way| directory.list(way, &interrupt).unwrap().ops());
        assert_eq!(ops, [1, 9, 9]);
    }
}
