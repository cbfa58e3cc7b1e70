//! Clones that read their base, one after the other, by buffered reads of its one file.
//!
//! Each clone has inodes and page cache of its own, so the kernel keeps nothing of one for another.
//! `fetched` is the file data that the pool has read from its device, which it opens with O_DIRECT,
//! as a multiple of the file: 1 if the base is fetched once, N if each clone fetches it. `first`
//! is the first clone, behind a remount; `others` is the mean of the next; `next` is one more
//! clone, made when the others have read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use super::experiment::{Experiment, Place};
use crate::error::{BenchError, On};
use crate::places::{BLOCK, fill_file};
use crate::sample::{Sample, compared};
use crate::size;
use crate::snapshots::ioctl::Control;
use crate::target::Target;
use crate::unshare::copies;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Clones {
    /// Clones that read their base; 0: this experiment is left out
    #[arg(long, default_value_t = 0)]
    clones: u32,
    /// Size of the base: a number with K, M or G
    #[arg(long, default_value = "64M", value_parser = size::parse)]
    base: u64,
    /// The arms: values of the mount option `data_cache`
    #[arg(long, value_delimiter = ',', default_value = "off,shared")]
    data_cache: Vec<String>,
}

impl Experiment for Clones {
    fn data_bytes(&self) -> u64 {
        if self.clones > 0 { self.base } else { 0 }
    }

    fn round(&self, place: &Place<'_>) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        for arm in self.data_cache.iter().filter(|_| self.clones > 0) {
            let run = |target: &Target<'_>| self.run(target, arm, place.interrupt);
            samples.extend(place.with([format!("data_cache={arm}")], run)?);
        }
        if let [from, to] = &self.data_cache[..] {
            samples.extend(compared(&samples, to, from));
        }
        Ok(samples)
    }
}

impl Clones {
    fn run(
        &self,
        target: &Target<'_>,
        arm: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let directory = target.directory();
        let base = directory.join("base");
        copies::make_original(target, &base)?;
        fill_file(&base.join("file"), self.base / BLOCK as u64, 1, interrupt)?;
        target.sync()?;
        let clone =
            |number: u32| Control::open(target.kind(), &directory)?.snapshot(&base, &name(number));
        (0..self.clones).try_for_each(clone)?;
        target.cool()?;

        let before = fetched(target)?;
        let mut took = Vec::new();
        for number in 0..self.clones {
            took.push(read(&directory.join(name(number)).join("file"), interrupt)?);
        }
        let by_all = fetched(target)?;
        clone(self.clones)?;
        let next = read(&directory.join(name(self.clones)).join("file"), interrupt)?;
        let by_next = fetched(target)?;

        let times = |bytes: u64| bytes as f64 / self.base as f64;
        let rate = |time: Duration| self.base as f64 / (1 << 20) as f64 / time.as_secs_f64();
        let sample = |metric, unit, value| Sample::new(arm, metric, unit, value);
        let mut samples = vec![
            sample("fetched", "x base", times(by_all - before)),
            sample("first", "MiB/s", rate(took[0])),
            sample("next", "MiB/s", rate(next)),
            sample("next_fetched", "x base", times(by_next - by_all)),
        ];
        if let [_, others @ ..] = &took[..]
            && !others.is_empty()
        {
            let mean = others.iter().sum::<Duration>() / others.len() as u32;
            samples.push(sample("others", "MiB/s", rate(mean)));
        }
        Ok(samples)
    }
}

fn name(number: u32) -> String {
    format!("clone{number}")
}

/// Bytes of file data that the pool has read from its device since the mount.
fn fetched(target: &Target<'_>) -> Result<u64, BenchError> {
    let info = target.info()?;
    let bytes = info.pointer("/counters/data/read_bytes").and_then(|bytes| bytes.as_u64());
    bytes.ok_or_else(|| target.no_counters())
}

/// Reads a file in order; how long that took.
fn read(path: &Path, interrupt: &Interrupt) -> Result<Duration, BenchError> {
    let mut chunk = vec![0; 1 << 20];
    let began = Instant::now();
    let file = File::open(path).on(path.display())?;
    let mut at = 0;
    loop {
        interrupt.check()?;
        match file.read_at(&mut chunk, at).on(path.display())? {
            0 => return Ok(began.elapsed()),
            bytes => at += bytes as u64,
        }
    }
}
