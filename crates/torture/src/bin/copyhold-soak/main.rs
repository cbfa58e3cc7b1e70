//! `copyhold-soak`: a pool that is kept between 85 and 99 % full, for hours, while its daemon is
//! killed now and then.
//!
//! Problem.  Tests begin with young and roomy pools. In use, pools grow old and full: free space
//!           becomes short runs, tables lose their order, and the last percent is fought for.
//! Idea.     Tenants overwrite disk images at random, clone them, punch holes, make and remove
//!           small files. The pool is filled to the brim, emptied a little, and filled again.
//!           Nothing that frees space may ever be refused (`tenant.rs`, SOAK-N1), no operation may
//!           stand still (`watch.rs`), and behind each kill every block shows a version that it may
//!           (`disk.rs`).
//! Order.    A round: tenants work, the daemon is killed, the pool is checked, its free space is
//!           measured, it is mounted, and all tenants verify. `series.rs` has the samples, a line
//!           of JSON each, and `plot.rs` draws them.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it is threads and time that it is about")]

mod disk;
mod plot;
mod pressure;
mod series;
mod tenant;
mod watch;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use clap::Parser;
use copyhold_harness::{Interrupt, Pool};
use copyhold_torture::dice::Dice;
use copyhold_torture::error::{On, TortureError};
use copyhold_torture::pool;
use serde_json::Value;

use pressure::{Pressure, used_percent};
use series::{Latencies, Series};
use tenant::{Context, Tenant};
use watch::Watch;

/// How often the controller looks at how full the pool is.
const LOOK: Duration = Duration::from_millis(200);
/// Blocks of a leaf: free runs that are shorter are counted as short.
const LEAF_BLOCKS_LOG2: usize = 3;

/// Keep a pool nearly full for hours, kill its daemon now and then, and verify everything
#[derive(Debug, Parser)]
#[command(name = "copyhold-soak", version, max_term_width = 100)]
struct CommandLine {
    /// How long
    #[arg(long, default_value_t = 4.0)]
    hours: f64,
    /// The pool's size in GiB
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    gib: u64,
    /// Tenants, each a thread
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    tenants: u64,
    /// Seconds between two kills
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    kill_every: u64,
    /// Seconds of one sample
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,
    /// What the tenants choose depends on it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What to mount with, as for `copyhold mount -o`
    #[arg(long)]
    options: Option<String>,
    /// Where the pool goes [default: the system's directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The program [default: `copyhold` beside this one]
    #[arg(long)]
    program: Option<PathBuf>,
    /// Write each sample to this file, a line of JSON each
    #[arg(long)]
    samples: Option<PathBuf>,
    /// Draw all samples into this file, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    let given = CommandLine::parse();
    println!("soak: seed {}, {} tenants, {} GiB", given.seed, given.tenants, given.gib);
    match run(&given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: FAILED with seed {}: {error}", given.seed);
            ExitCode::FAILURE
        }
    }
}

/// The pool is kept if it fails.
fn run(given: &CommandLine) -> Result<(), TortureError> {
    let interrupt = Interrupt::watch()?;
    let lines: Option<Box<dyn Write>> = match &given.samples {
        Some(path) => Some(Box::new(File::create(path).on(path.display())?)),
        None => None,
    };
    let size = format!("{}G", given.gib);
    let (dir, program, options) = (given.dir.clone(), given.program.clone(), given.options.clone());
    let pool = pool::in_new_directory(dir, "copyhold-soak-", program, options)?;
    let mut series = Series::new(lines);
    let result = pool::create_and_mount(&pool, &["--size", &size]).and_then(|()| {
        let ended = Soak { pool: &pool, given, interrupt: &interrupt, series: &mut series }.run();
        ended.inspect_err(|_| drop(pool.unmount()))
    });
    if let Some(path) = &given.plot {
        plot::draw(&series, path)
            .map_err(|error| io::Error::other(error.to_string()))
            .on(path.display())?;
    }
    if result.is_err() {
        eprintln!("soak: kept: {}", pool.keep().display());
    }
    result
}

struct Soak<'a> {
    pool: &'a Pool,
    given: &'a CommandLine,
    interrupt: &'a Interrupt,
    series: &'a mut Series,
}

impl Soak<'_> {
    /// An interruption ends it early, and is no failure.
    fn run(&mut self) -> Result<(), TortureError> {
        let (pressure, latencies) = (Pressure::default(), Latencies::default());
        let cx = Context { pool: self.pool, pressure: &pressure, latencies: &latencies };
        // Disks take three fifths of the pool.
        let blocks = (self.given.gib << 18) * 3 / 5 / self.given.tenants;
        let tenants = (0..self.given.tenants as usize)
            .map(|number| Tenant::create(number, blocks as usize, &cx));
        let mut tenants: Vec<Tenant> =
            tenants.collect::<io::Result<_>>().on("filling the tenants' disks")?;
        let end = Duration::from_secs_f64(self.given.hours * 3600.0);
        let mut round = 0;
        while self.series.elapsed() < end && !self.interrupt.is_set() {
            let left = end.saturating_sub(self.series.elapsed());
            let time = left.min(Duration::from_secs(self.given.kill_every));
            let operations = self.round(round, time, &mut tenants, &cx)?;
            self.look_at(&mut tenants)?;
            let fragments = self.series.fragments.last().expect("it was measured");
            println!(
                "soak: killed after {:.0?} and {operations} operations; longest free run {} blocks, \
                 {:.0} % of what is free in runs under 32 KiB; all is well",
                self.series.elapsed(),
                fragments.longest_free_blocks,
                fragments.short_percent
            );
            round += 1;
        }
        self.pool.unmount()?;
        Ok(self.pool.check()?)
    }

    /// Tenants work until the daemon is killed, after `time`. The number of operations.
    fn round(
        &mut self,
        round: u64,
        time: Duration,
        tenants: &mut [Tenant],
        cx: &Context<'_>,
    ) -> Result<u64, TortureError> {
        let watch = Watch::new(tenants.len());
        let seed = self.given.seed;
        scope(|scope| {
            let watch = &watch;
            let mut workers = Vec::new();
            for (number, tenant) in tenants.iter_mut().enumerate() {
                let dice = Dice::new(seed, round, number as u64);
                workers.push(scope.spawn(move || tenant.work(cx, watch, dice)));
            }
            let controlled = self.control(time, watch, &workers, cx);
            watch.end_round();
            let killed = self.pool.daemon().and_then(|daemon| daemon.kill());
            let mut operations = 0;
            for (thread, worker) in workers.into_iter().enumerate() {
                let worked = worker.join().expect("a tenant does not panic");
                operations += worked.map_err(|what| TortureError::Broken { thread, what })?;
            }
            controlled?;
            killed?;
            Ok(operations)
        })
    }

    /// Keeps the pool full, and takes samples.
    fn control<T>(
        &mut self,
        time: Duration,
        watch: &Watch,
        workers: &[ScopedJoinHandle<'_, T>],
        cx: &Context<'_>,
    ) -> Result<(), TortureError> {
        let end = Instant::now() + time;
        let mut next = Instant::now() + Duration::from_secs(self.given.sample);
        let root = self.pool.mount_point();
        while Instant::now() < end && !self.interrupt.is_set() {
            sleep(LOOK);
            let used = used_percent(&root).on("statfs")?;
            cx.pressure.note(used);
            if Instant::now() >= next {
                next += Duration::from_secs(self.given.sample);
                self.series.sample(used, cx.latencies).on("writing a sample")?;
            }
            if let Some(what) = watch.stalled(Instant::now()) {
                return Err(io::Error::other(what)).on("the pool stands still");
            }
            if workers.iter().any(ScopedJoinHandle::is_finished) {
                break;
            }
        }
        Ok(())
    }

    /// The pool as the kill left it, and what recovery makes of it.
    fn look_at(&mut self, tenants: &mut [Tenant]) -> Result<(), TortureError> {
        self.pool.unmount()?;
        self.pool.check()?;
        let space = self.pool.run(&["debug", "space"], &[&self.pool.path()])?;
        let space: Value =
            serde_json::from_str(&space).map_err(io::Error::from).on("debug space")?;
        let by_run = space["free_blocks_by_run"].as_array().into_iter().flatten();
        let by_run: Vec<u64> = by_run.filter_map(Value::as_u64).collect();
        let short: u64 = by_run.iter().take(LEAF_BLOCKS_LOG2).sum();
        let all: u64 = by_run.iter().sum();
        let longest = space["longest_free_blocks"].as_u64().unwrap_or(0);
        let percent = 100.0 * short as f64 / all.max(1) as f64;
        self.series.fragments(longest, percent).on("writing a sample")?;
        self.pool.mount()?;
        for (thread, tenant) in tenants.iter_mut().enumerate() {
            let verified = tenant.verify(self.pool);
            verified.map_err(|what| TortureError::Broken { thread, what })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }
}
