//! The job: names that do not exist, with a limit (`on`) and without one (`off`), in turn.
//!
//! - `positive` and `negative`: look-ups of `--hot` names that exist, and that do not, over and
//!   over.
//! - `create`: look-ups of `--create` new names that do not exist, beyond the limit (`--limit`).
//! - `beside`: the look-ups of a neighbour of as many hot names, while another process creates;
//!   `alone` is the same before.
//!
//! `above_limit` is the most by which the limit was passed, in hundredths of it, as `copyhold
//! info` saw it during `create`; `sum` is 1 if the names created are those that live and those
//! that have ended. `unmount` is the time of that with all names of `create`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use copyhold_harness::Interrupt;
use rustix::fs::lstat;
use serde_json::Value;

use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::meter::{self, Bounds, Measured, Meter};
use crate::sample::{Sample, compared};
use crate::target::{Kind, Site, Target, run};

/// Look-ups of each hot name.
const TIMES: u64 = 100;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Names {
    /// Names that are looked up over and over
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    hot: u32,
    /// New names that are looked up once
    #[arg(long, default_value_t = 200_000)]
    create: u64,
    /// The limit of the arm `on`
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1000..))]
    limit: u64,
}

impl Job for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn data_bytes(&self) -> u64 {
        u64::from(self.hot) * 4096
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (kind != Kind::Copyhold).then_some("it has no limit of names")
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut arms = [("on", format!("names={}", self.limit)), ("off", "names=off".to_owned())];
        if round.is_multiple_of(2) {
            arms.reverse();
        }
        let mut samples = Vec::new();
        for (arm, option) in arms {
            let site = site.with_option(option);
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
    names: &'a Names,
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
        let count = u64::from(self.names.hot);
        let mut samples = Vec::new();
        for (phase, prefix) in [("positive", "f"), ("negative", "no")] {
            self.each(&hot, prefix, count)?;
            let measured = meter::each(count * TIMES, self.interrupt, |number| {
                look(&hot.join(format!("{prefix}{}", number % count)))
            })?;
            samples.extend(self.told(phase, &measured));
        }
        let alone = self.each(&hot, "no", count)?;
        samples.extend(self.told("alone", &alone));
        let (created, beside, most) = self.create(&hot, &rogue)?;
        samples.extend(self.told("create", &created));
        samples.extend(self.told("beside", &beside));
        let info = self.target.info()?["names"].clone();
        if let Some(limit) = info["limit"].as_u64().filter(|limit| *limit > 0) {
            let above = most.saturating_sub(limit) as f64 * 100.0 / limit as f64;
            samples.push(Sample::new(self.arm, "above_limit", "%", above));
            let sum = f64::from(u8::from(self.adds_up()?));
            samples.push(Sample::new(self.arm, "sum", "holds", sum));
        }
        let (unmounted, _) = self.target.remount()?;
        samples.push(Sample::seconds(&format!("{}.unmount", self.arm), unmounted));
        Ok(samples)
    }

    fn told(&self, phase: &str, measured: &Measured) -> Vec<Sample> {
        measured.samples(&format!("{}.{phase}", self.arm))
    }

    fn each(&self, dir: &Path, prefix: &str, count: u64) -> Result<Measured, BenchError> {
        each(self.interrupt, dir, prefix, count)
    }

    /// The rates of the rogue and of its neighbour, and the most names that there were.
    fn create(&self, hot: &Path, rogue: &Path) -> Result<(Measured, Measured, u64), BenchError> {
        let (ends, count, interrupt) =
            (AtomicBool::new(false), u64::from(self.names.hot), self.interrupt);
        let new = self.names.create;
        std::thread::scope(|threads| {
            let neighbour = threads.spawn(|| {
                let bounds = Bounds { ops: u64::MAX, time: Duration::MAX };
                let mut meter = Meter::start(bounds, interrupt);
                while !ends.load(Ordering::Relaxed) && meter.go_on(0) {
                    let began = std::time::Instant::now();
                    look(&hot.join(format!("no{}", meter.ops() % count)))?;
                    meter.done(began);
                    // A process that does something else, too.
                    std::thread::sleep(Duration::from_millis(1));
                }
                meter.end()
            });
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
        let mut show = self.target.copyhold();
        let text = run(show.args(["names", "show", "--json"]).arg(self.target.directory()))?;
        let shown: Value = serde_json::from_str(&text).map_err(io::Error::from).on("names show")?;
        let rows = shown["tenants"].as_array().cloned().unwrap_or_default();
        let count = |row: &Value, name: &str| row["events"][name].as_u64().unwrap_or(0);
        Ok(!rows.is_empty()
            && rows.iter().all(|row| {
                let ended = ["pruned", "forced", "turned_positive", "dropped"];
                let ended: u64 = ended.iter().map(|name| count(row, name)).sum();
                Some(count(row, "created")) == row["live"].as_u64().map(|live| live + ended)
            }))
    }
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
