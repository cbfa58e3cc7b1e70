//! The arms on a mount.
//!
//! - `positive` and `negative`: look-ups of `--hot` names that exist, and that do not, over and
//!   over.
//! - `below`: look-ups of new names that do not exist, a third of the limit.
//! - `create`: look-ups of `--create` such names, beyond the limit (`--limit`).
//! - `alone` and `beside`: a neighbour that looks up as many hot names in turn, about a thousand a
//!   second, before another process creates, and meanwhile. `neighbour.rate` is its rate beside for
//!   that alone; `neighbour.hits` are the look-ups beside, in hundredths, that made no entry.
//!
//! `above_limit` is the most by which the limit was passed, in hundredths of it, as `copyhold
//! info` saw it during `create`; `sum` is 1 if the names created are those that live and those
//! that have ended; `replaced` are those among them that the kernel may keep. `unmount` is the time
//! of that with all names of `create`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;
use rustix::fs::lstat;
use serde_json::Value;

use crate::error::{BenchError, On};
use crate::job::on_fresh;
use crate::meter::{self, Bounds, Measured, Meter};
use crate::sample::{Sample, compared};
use crate::target::{Kind, Site, Target, run};

/// The neighbour looks names up for so long before the other process creates.
const ALONE: Duration = Duration::from_secs(3);
/// Between two of its look-ups.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Mounted {
    /// Names that are looked up over and over
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    hot: u32,
    /// Look-ups of each of these
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// New names that are looked up once; a third of the limit is looked up before. 0: no mount
    #[arg(long, default_value_t = 200_000)]
    create: u64,
    /// The limit of the arm `on`
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1000..))]
    limit: u64,
}

impl Mounted {
    pub(super) fn data_bytes(&self) -> u64 {
        u64::from(self.hot) * 4096
    }

    pub(super) fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        if self.create == 0 {
            return Ok(Vec::new());
        }
        let mut arms = [("on", format!("names={}", self.limit)), ("off", "names=off".to_owned())];
        if round.is_multiple_of(2) {
            arms.reverse();
        }
        let mut samples = Vec::new();
        for (arm, option) in arms {
            let site = site.with_options([option]);
            samples.extend(on_fresh(&site, kind, |target| {
                Arm { names: self, arm, target, interrupt }.run()
            })?);
        }
        let ratios = compared(&samples, "on", "off");
        samples.extend(ratios);
        Ok(samples)
    }
}

struct Arm<'a> {
    names: &'a Mounted,
    arm: &'a str,
    target: &'a Target<'a>,
    interrupt: &'a Interrupt,
}

impl Arm<'_> {
    fn run(&self) -> Result<Vec<Sample>, BenchError> {
        let [hot, rogue] = ["hot", "rogue"].map(|name| self.target.directory().join(name));
        for subvolume in [&hot, &rogue] {
            run(self.target.copyhold().args(["subvolume", "create"]).arg(subvolume))?;
        }
        for number in 0..self.names.hot {
            let path = hot.join(format!("f{number}"));
            fs::write(&path, "").on(path.display())?;
        }
        let (count, times) = (u64::from(self.names.hot), u64::from(self.names.times));
        let mut samples = Vec::new();
        for (phase, prefix) in [("positive", "f"), ("negative", "no")] {
            self.each(&hot, prefix, count)?;
            let measured = meter::each(count * times, self.interrupt, |number| {
                look(&hot.join(format!("{prefix}{}", number % count)))
            })?;
            samples.extend(self.told(phase, &measured));
        }
        let below = self.each(&rogue, "below", self.names.limit / 3)?;
        samples.extend(self.told("below", &below));
        let alone = neighbour(self.interrupt, &hot, count, ALONE, &AtomicBool::new(false))?;
        let made_before = self.count("hot", "created")?;
        let (created, beside, most) = self.create(&hot, &rogue)?;
        let missed = self.count("hot", "created")? - made_before;
        for (phase, measured) in [("alone", &alone), ("create", &created), ("beside", &beside)] {
            samples.extend(self.told(phase, measured));
        }
        let rate = beside.per_second() / alone.per_second();
        samples.push(self.sample("neighbour", "rate", "ratio", rate));
        let info = self.target.info()?["names"].clone();
        if let Some(limit) = info["limit"].as_u64().filter(|limit| *limit > 0) {
            let above = most.saturating_sub(limit) as f64 * 100.0 / limit as f64;
            samples.push(Sample::new(self.arm, "above_limit", "%", above));
            let hits = 100.0 - missed as f64 * 100.0 / beside.ops().max(1) as f64;
            samples.push(self.sample("neighbour", "hits", "%", hits));
            let sum = f64::from(u8::from(self.adds_up()?));
            samples.push(Sample::new(self.arm, "sum", "holds", sum));
            let replaced = self.count("rogue", "replaced")? as f64;
            samples.push(Sample::new(self.arm, "replaced", "names", replaced));
        }
        let (unmounted, _) = self.target.remount()?;
        samples.push(Sample::seconds(&format!("{}.unmount", self.arm), unmounted));
        Ok(samples)
    }

    fn sample(&self, phase: &str, metric: &str, unit: &'static str, value: f64) -> Sample {
        Sample::new(&format!("{}.{phase}", self.arm), metric, unit, value)
    }

    fn told(&self, phase: &str, measured: &Measured) -> Vec<Sample> {
        measured.samples(&format!("{}.{phase}", self.arm))
    }

    fn each(&self, dir: &Path, prefix: &str, count: u64) -> Result<Measured, BenchError> {
        each(self.interrupt, dir, prefix, count)
    }

    /// The rates of the rogue and of its neighbour, and the most names that there were.
    fn create(&self, hot: &Path, rogue: &Path) -> Result<(Measured, Measured, u64), BenchError> {
        let (ends, interrupt) = (AtomicBool::new(false), self.interrupt);
        let count = u64::from(self.names.hot);
        let new = self.names.create;
        std::thread::scope(|threads| {
            let neighbour =
                threads.spawn(|| neighbour(interrupt, hot, count, Duration::MAX, &ends));
            let created = threads.spawn(|| {
                let created = each(interrupt, rogue, "none", new);
                ends.store(true, Ordering::Relaxed);
                created
            });
            let mut most = 0;
            while !ends.load(Ordering::Relaxed) {
                let info = self.target.info()?;
                most = most.max(info["names"]["live"].as_u64().unwrap_or(0));
                std::thread::sleep(Duration::from_millis(100));
            }
            let created = created.join().expect("it does not panic")?;
            let beside = neighbour.join().expect("it does not panic")?;
            Ok((created, beside, most))
        })
    }

    /// Whether all names that were created are accounted for.
    fn adds_up(&self) -> Result<bool, BenchError> {
        let rows = self.shown()?;
        let adds_up = |row: &Value| {
            let ended = ["pruned", "forced", "turned_positive", "dropped", "replaced"];
            let ended: u64 = ended.iter().map(|name| event(row, name)).sum();
            Some(event(row, "created")) == row["live"].as_u64().map(|live| live + ended)
        };
        Ok(!rows.is_empty() && rows.iter().all(adds_up))
    }

    /// How often this event was in this subvolume.
    fn count(&self, path: &str, name: &str) -> Result<u64, BenchError> {
        let rows = self.shown()?;
        let row = rows.iter().find(|row| row["path"] == path);
        Ok(row.map_or(0, |row| event(row, name)))
    }

    /// The names by subvolume.
    fn shown(&self) -> Result<Vec<Value>, BenchError> {
        let mut show = self.target.copyhold();
        let text = run(show.args(["names", "show", "--json"]).arg(self.target.directory()))?;
        let shown: Value = serde_json::from_str(&text).map_err(io::Error::from).on("names show")?;
        Ok(shown["subvolumes"].as_array().cloned().unwrap_or_default())
    }
}

fn event(row: &Value, name: &str) -> u64 {
    row["events"][name].as_u64().unwrap_or(0)
}

/// Looks `count` hot names up in turn, for some time or until it `ends`.
fn neighbour(
    interrupt: &Interrupt,
    hot: &Path,
    count: u64,
    time: Duration,
    ends: &AtomicBool,
) -> Result<Measured, BenchError> {
    let mut meter = Meter::start(Bounds { ops: u64::MAX, time }, interrupt);
    while !ends.load(Ordering::Relaxed) && meter.go_on(0) {
        let began = Instant::now();
        look(&hot.join(format!("no{}", meter.ops() % count)))?;
        meter.done(began);
        std::thread::sleep(PAUSE);
    }
    meter.end()
}

/// Looks up names with numbers up to `count`.
fn each(
    interrupt: &Interrupt,
    dir: &Path,
    prefix: &str,
    count: u64,
) -> Result<Measured, BenchError> {
    meter::each(count, interrupt, |number| look(&dir.join(format!("{prefix}{number}"))))
}

/// Looks a name up, whether it exists or not.
fn look(path: &PathBuf) -> Result<(), BenchError> {
    match lstat(path) {
        Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(io::Error::from(error)).on(path.display()),
    }
}
