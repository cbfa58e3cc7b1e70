//! The job: many empty files, from their creation to their end.
//!
//! Each phase does one thing to every file, in directories that are there before: `create`; `stat`;
//! `negative`, the first question for a name that is not there; `readdir_stat`, a listing with a
//! stat of each entry; `rename` within the directory; `unlink`. All but `create` and the listing
//! take the files in random order.
//!
//! `stat_uncached`, `stat_birth`, `negative` and `readdir_stat` begin when the kernel has forgotten
//! its names, the filesystem not what it keeps itself; `stat_cold` begins behind a remount. The
//! first shows the way of a request, the last what a lookup reads. `stat_birth` asks for the time
//! of birth as well, which Linux has FUSE send as a request of its own. A variant is named after
//! the number of directories: `d1`, `d1000`.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use copyhold_harness::Interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rustix::fs::{AtFlags, lstat, statat};

use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::meter::{self, Bounds, Measured, Meter};
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};

/// Room for a file's metadata, generously.
const BYTES_A_FILE: u64 = 4096;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Files {
    /// How many files
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// Over how many directories; of several numbers each is run
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    directories: Vec<u32>,
}

impl Files {
    /// For the core list.
    pub(crate) fn bounded(files: u32) -> Files {
        Files { files, directories: vec![1, 1000] }
    }
}

impl Job for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.files) * BYTES_A_FILE
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for &directories in &self.directories {
            samples.extend(on_fresh(site, kind, |target| {
                let forest = Forest::new(target.directory(), self.files, directories);
                Phases { job: self.name(), target, forest, interrupt }.run()
            })?);
        }
        Ok(samples)
    }
}

/// Files spread over directories.
pub(crate) struct Forest {
    root: PathBuf,
    files: u32,
    directories: u32,
    /// The order in which files are asked for.
    shuffled: Vec<u32>,
}

impl Forest {
    pub(crate) fn new(root: PathBuf, files: u32, directories: u32) -> Forest {
        Forest { root, files, directories, shuffled: shuffled(files) }
    }

    pub(crate) fn make_directories(&self) -> Result<(), BenchError> {
        self.all_directories().try_for_each(|path| fs::create_dir(&path).on(path.display()))
    }

    pub(crate) fn create(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |_, index| {
            let path = self.path("f", index);
            File::create_new(&path).on(path.display()).map(drop)
        })
    }

    /// As most programs do it, without the time of birth.
    pub(crate) fn stat(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |shuffled, _| self.stat_file(shuffled))
    }

    /// Stats the file that is number `index` in random order; behind the last comes the first.
    pub(crate) fn stat_next(&self, index: u64) -> Result<(), BenchError> {
        self.stat_file(self.shuffled[(index % u64::from(self.files)) as usize])
    }

    fn stat_file(&self, number: u32) -> Result<(), BenchError> {
        let path = self.path("f", number);
        lstat(&path).map_err(io::Error::from).on(path.display()).map(drop)
    }

    /// With the time of birth, as those in Rust and in Node do.
    fn stat_birth(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |shuffled, _| {
            let path = self.path("f", shuffled);
            fs::symlink_metadata(&path).on(path.display()).map(drop)
        })
    }

    fn negative(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |shuffled, _| {
            let path = self.path("no", shuffled);
            match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error).on(path.display()),
                Ok(_) => Err(io::Error::from(io::ErrorKind::AlreadyExists)).on(path.display()),
            }
        })
    }

    /// Each entry counts, with its share of the listing.
    fn list(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        let mut meter = Meter::start(Bounds::ops(u64::from(self.files)), interrupt);
        for directory in self.all_directories() {
            let mut began = Instant::now();
            let opened = File::open(&directory).on(directory.display())?;
            for entry in fs::read_dir(&directory).on(directory.display())? {
                let name = entry.on(directory.display())?.file_name();
                let looked = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW);
                looked.map_err(io::Error::from).on(directory.display())?;
                meter.done(began);
                began = Instant::now();
            }
            interrupt.check()?;
        }
        meter.end()
    }

    fn rename(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |shuffled, _| {
            let (from, to) = (self.path("f", shuffled), self.path("renamed", shuffled));
            fs::rename(&from, to).on(from.display())
        })
    }

    fn unlink(&self, interrupt: &Interrupt) -> Result<Measured, BenchError> {
        self.each(interrupt, |shuffled, _| {
            let path = self.path("renamed", shuffled);
            fs::remove_file(&path).on(path.display())
        })
    }

    /// Does it to each file, telling a file in random order and one in order.
    fn each(
        &self,
        interrupt: &Interrupt,
        mut operation: impl FnMut(u32, u32) -> Result<(), BenchError>,
    ) -> Result<Measured, BenchError> {
        meter::each(u64::from(self.files), interrupt, |index| {
            operation(self.shuffled[index as usize], index as u32)
        })
    }

    fn all_directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..self.directories).map(|number| self.directory(number))
    }

    fn directory(&self, number: u32) -> PathBuf {
        self.root.join(format!("d{number:04}"))
    }

    fn path(&self, prefix: &str, index: u32) -> PathBuf {
        self.directory(index % self.directories).join(format!("{prefix}{index:07}"))
    }
}

/// The numbers below `files`, in an order that is the same each time.
fn shuffled(files: u32) -> Vec<u32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut order: Vec<u32> = (0..files).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
    }
    order
}

struct Phases<'a> {
    job: &'a str,
    target: &'a Target<'a>,
    forest: Forest,
    interrupt: &'a Interrupt,
}

impl Phases<'_> {
    fn run(&self) -> Result<Vec<Sample>, BenchError> {
        let (forest, interrupt) = (&self.forest, self.interrupt);
        forest.make_directories()?;
        let mut samples = self.told("create", forest.create(interrupt)?);
        if self.forget()? {
            samples.extend(self.told("stat_uncached", forest.stat(interrupt)?));
            self.forget()?;
            samples.extend(self.told("stat_birth", forest.stat_birth(interrupt)?));
        }
        if self.target.kind().keeps_data() {
            self.target.cool()?;
            samples.extend(self.told("stat_cold", forest.stat(interrupt)?));
        }
        self.forget()?;
        samples.extend(self.told("negative", forest.negative(interrupt)?));
        self.forget()?;
        samples.extend(self.told("readdir_stat", forest.list(interrupt)?));
        samples.extend(self.told("rename", forest.rename(interrupt)?));
        samples.extend(self.told("unlink", forest.unlink(interrupt)?));
        Ok(samples)
    }

    fn told(&self, phase: &str, measured: Measured) -> Vec<Sample> {
        measured.samples(&format!("d{}.{phase}", self.forest.directories))
    }

    fn forget(&self) -> Result<bool, BenchError> {
        let forgotten = self.target.forget_names()?;
        if !forgotten {
            let what = "only root can have the kernel forget names, so some may be cached";
            self.target.site().note(self.job, self.target.kind(), what);
        }
        Ok(forgotten)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn names(directory: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn each_file_is_asked_for_once() {
        let order = shuffled(1000);
        assert_ne!(order, (0..1000).collect::<Vec<u32>>());
        assert_eq!(order.into_iter().collect::<BTreeSet<u32>>().len(), 1000);
    }

    #[test]
    fn files_go_through_all_phases_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::never();
        let forest = Forest::new(directory.path().to_owned(), 10, 3);
        forest.make_directories().unwrap();
        assert_eq!(forest.create(&interrupt).unwrap().ops(), 10);
        assert_eq!(names(&forest.directory(1)).len(), 3);
        assert_eq!(forest.stat(&interrupt).unwrap().ops(), 10);
        assert_eq!(forest.negative(&interrupt).unwrap().ops(), 10);
        assert_eq!(forest.list(&interrupt).unwrap().ops(), 10);
        assert_eq!(forest.rename(&interrupt).unwrap().ops(), 10);
        assert!(names(&forest.directory(0)).contains("renamed0000009"));
        assert!(forest.stat(&interrupt).is_err(), "they have other names now");
        assert_eq!(forest.unlink(&interrupt).unwrap().ops(), 10);
        assert_eq!(names(&forest.directory(0)), BTreeSet::new());
    }
}
