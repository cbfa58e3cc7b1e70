//! `copyhold-torture`: threads that do everything at once, on a mount whose daemon is killed, again
//! and again.
//!
//! Problem.  The simulation plays every crash, but in one thread, without the kernel, and with the
//!           engine alone. What goes wrong only between threads, requests and a real kill, it does
//!           not see.
//! Idea.     Threads work on names and files of their own, in one directory and in subvolumes that
//!           they snapshot and delete, at once; so each knows, without asking another, what it did
//!           and what it was promised. Stamps of one clock put all of it into one order, and hold
//!           what one thread finds against what another was promised. Beside them some threads
//!           share one file, each page of which says what it must show (`mixed.rs`).
//! Order.    A round: the threads work, the daemon is killed while they do, the pool is checked as
//!           the kill left it, mounted, and each thread verifies what is there (`thread.rs`,
//!           THREAD-T1 to THREAD-T4; `file.rs`, CRASHED-F1 to CRASHED-F3). The verified state is
//!           the beginning of the next round. In the last, the daemon is not killed but unmounted,
//!           and everything is there.
//!
//! The seed fixes what each thread chooses among what it has, not which thread comes first.

// Except in `map`, which asks for mappings and touches none.
#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it is threads and time that it is about")]

mod clock;
mod file;
mod found;
mod map;
mod mixed;
mod names;
mod thread;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{scope, sleep};
use std::time::{Duration, SystemTime};

use clap::Parser;
use copyhold_harness::{HarnessError, Interrupt, Pool};
use copyhold_torture::dice::Dice;
use copyhold_torture::error::{On, TortureError};
use copyhold_torture::pool;

use clock::Clock;
use mixed::Mixed;
use thread::{COMMON, Thread};
use worker::Worker;

/// Let many threads work on a pool whose daemon is killed, and verify what was promised
#[derive(Debug, Parser)]
#[command(name = "copyhold-torture", version, max_term_width = 100)]
struct CommandLine {
    /// How often the daemon is killed
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Threads that work at once
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Milliseconds before a kill, at most
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..))]
    millis: u64,
    /// What the threads choose depends on it [default: of the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// What to mount with, as for `copyhold mount -o`
    #[arg(long)]
    options: Option<String>,
    /// The pool's size, as for `copyhold create`
    #[arg(long, default_value = "4G")]
    size: String,
    /// More arguments of `copyhold create`, separated by spaces
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    create: Option<String>,
    /// The pool is on a loop device, not in a file
    #[arg(long)]
    device: bool,
    /// The checksum mode of all files
    #[arg(long, value_name = "MODE")]
    checksum: Option<String>,
    /// Where the pool goes [default: the system's directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The program [default: `copyhold` beside this one]
    #[arg(long)]
    program: Option<PathBuf>,
}

impl CommandLine {
    /// A pool on a device takes all of it.
    fn create_arguments(&self) -> Vec<&str> {
        let size = ["--size", &self.size].into_iter().filter(|_| !self.device);
        size.chain(self.create.iter().flat_map(|given| given.split_whitespace())).collect()
    }
}

fn main() -> ExitCode {
    let given = CommandLine::parse();
    let seed = given.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64)
    });
    println!("torture: seed {seed}, {} threads, {} kills", given.threads, given.rounds);
    match run(&given, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torture: FAILED with seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The pool is kept if it fails.
fn run(given: &CommandLine, seed: u64) -> Result<(), TortureError> {
    let interrupt = Interrupt::watch()?;
    let (dir, program, options) = (given.dir.clone(), given.program.clone(), given.options.clone());
    let pool = pool::in_new_directory(dir, "copyhold-torture-", program, options)?;
    let pool = if given.device { pool::on_loop_device(pool, &given.size)? } else { pool };
    let result = pool::create_and_mount(&pool, &given.create_arguments()).and_then(|()| {
        if let Some(mode) = &given.checksum {
            pool.run(
                &["property", "set"],
                &[&pool.mount_point(), "checksum".as_ref(), mode.as_ref()],
            )?;
        }
        let mut torture = Torture::new(&pool, given, seed, &interrupt)?;
        let ended = torture.run().inspect_err(|_| drop(pool.unmount()));
        // The signal may have been for the programs that it has run, too.
        interrupt.check()?;
        ended
    });
    if !matches!(result, Ok(()) | Err(TortureError::Harness(HarnessError::Interrupted))) {
        eprintln!("torture: kept: {}", pool.keep().display());
    }
    result
}

/// Dice of threads that share a file are numbered from here on.
const SHARING: u64 = 1 << 16;

struct Torture<'a> {
    pool: &'a Pool,
    clock: Clock,
    mixed: Mixed,
    threads: Vec<Thread>,
    seed: u64,
    rounds: u64,
    millis: u64,
    interrupt: &'a Interrupt,
}

impl<'a> Torture<'a> {
    fn new(
        pool: &'a Pool,
        given: &CommandLine,
        seed: u64,
        interrupt: &'a Interrupt,
    ) -> Result<Torture<'a>, TortureError> {
        let threads: Vec<Thread> = (0..given.threads as usize).map(Thread::new).collect();
        std::fs::create_dir(pool.mount_point().join(COMMON)).on(COMMON)?;
        for thread in &threads {
            for tree in thread.trees.keys().filter(|tree| *tree != COMMON) {
                pool.run(&["subvolume", "create"], &[&pool.mount_point().join(tree)])?;
            }
        }
        pool.run(&["sync"], &[&pool.mount_point()])?;
        let (rounds, millis) = (given.rounds, given.millis);
        let (clock, mixed) = (Clock::default(), Mixed::default());
        Ok(Torture { pool, clock, mixed, threads, seed, rounds, millis, interrupt })
    }

    fn run(&mut self) -> Result<(), TortureError> {
        let mut dice = Dice::new(self.seed, 0, u64::MAX);
        for round in 0..=self.rounds {
            self.interrupt.check()?;
            let is_last = round == self.rounds;
            let time = Duration::from_millis(1 + dice.below(self.millis as usize) as u64);
            let operations = self.work(round, time, is_last)?;
            self.pool.unmount()?;
            self.pool.check()?;
            self.pool.mount()?;
            self.verify()?;
            let end = if is_last { "unmounted" } else { "killed" };
            println!("torture: {end} after {time:.1?} and {operations} operations; all is well");
        }
        self.pool.unmount()?;
        Ok(self.pool.check()?)
    }

    /// All threads work, until the end that this round has. How many operations they did.
    fn work(&mut self, round: u64, time: Duration, is_last: bool) -> Result<u64, TortureError> {
        let (pool, clock, seed) = (self.pool, &self.clock, self.seed);
        self.mixed.begin(&pool.mount_point()).on("the file that all share")?;
        clock.begin_round();
        let (mixed, root) = (&self.mixed, pool.mount_point());
        let (killed, worked) = scope(|scope| {
            let work = |thread| move || Worker::new(pool, clock, thread, seed, round).run();
            let workers: Vec<_> =
                self.threads.iter_mut().map(|thread| scope.spawn(work(thread))).collect();
            let mix = |number| {
                let (root, dice) = (&root, Dice::new(seed, round, SHARING + number));
                move || mixed.mix(root, clock, dice)
            };
            let mixers: Vec<_> = (0..mixed::THREADS).map(|n| scope.spawn(mix(n))).collect();
            sleep(time);
            clock.end_round();
            let killed =
                if is_last { Ok(()) } else { pool.daemon().and_then(|daemon| daemon.kill()) };
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
                worker.join().expect("a worker does not panic")
            };
            let workers = workers.into_iter().chain(mixers);
            (killed, workers.map(join).collect::<Vec<Result<u64, String>>>())
        });
        killed?;
        let mut operations = 0;
        for (thread, worked) in worked.into_iter().enumerate() {
            operations += worked.map_err(|what| TortureError::Broken { thread, what })?;
        }
        if is_last {
            let start = self.clock.stamp();
            self.clock.synced_at(start);
            self.threads.iter_mut().for_each(Thread::settle_all);
            self.mixed.settle();
        }
        Ok(operations)
    }

    fn verify(&mut self) -> Result<(), TortureError> {
        let (root, clock) = (self.pool.mount_point(), &self.clock);
        let mut cuts = Vec::new();
        for (number, thread) in self.threads.iter_mut().enumerate() {
            let cut = thread.verify(&root, clock);
            cuts.push(cut.map_err(|what| TortureError::Broken { thread: number, what })?);
        }
        let shared = self.mixed.verify(&root);
        shared.map_err(|what| TortureError::Broken { thread: self.threads.len(), what })?;
        let order = thread::verify_order(&cuts);
        order.map_err(|what| TortureError::Broken { thread: 0, what })
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

    #[test]
    fn the_shape_of_the_pool_is_given_as_for_create() {
        let parse = |given: &[&str]| CommandLine::try_parse_from([&["x"], given].concat()).unwrap();
        assert_eq!(parse(&[]).create_arguments(), ["--size", "4G"]);
        let shape = ["--size", "1G", "--create", "--metaslab 1M --pi 4096+16:64b"];
        let expected = ["--size", "1G", "--metaslab", "1M", "--pi", "4096+16:64b"];
        assert_eq!(parse(&shape).create_arguments(), expected);
        let on_device = parse(&[&shape[..], &["--device"]].concat());
        assert_eq!(on_device.create_arguments(), expected[2..]);
    }
}
