//! Running one seed, and what came of it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use copyhold_device::pi::Format;
use copyhold_device::sim::SimImage;
use copyhold_pool::FlushPolicy;

use crate::fs_level::modes::{self, ByMode};
use crate::machine::blank;
use crate::{Sabotage, Weather, fs_level, full, pool_level, rogue};

/// The level of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Pool,
    Fs,
    /// Pools that are run full; they have no weather.
    Full,
    /// A tenant at its limit; no weather either.
    Rogue,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Pool, Level::Fs, Level::Full, Level::Rogue];

    pub fn name(self) -> &'static str {
        match self {
            Level::Pool => "pool",
            Level::Fs => "fs",
            Level::Full => "full",
            Level::Rogue => "rogue",
        }
    }
}

/// One history: everything else follows from this.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub level: Level,
    pub seed: u64,
    /// The same weather in every life, instead of what the seed says.
    pub weather: Option<Weather>,
    /// A rule of the engine that is broken on purpose.
    pub broken: Option<Sabotage>,
    /// After each recovery of a filesystem another reader must find what the engine shows.
    pub second_opinion: bool,
    /// The device has protection information of this format: the namespace lies on the disk, whose
    /// faults hit data and tuples, each by itself.
    pub protection: Option<Format>,
    /// Clients of filesystems change checksum modes, or not, instead of what the seed says.
    pub modes: Option<bool>,
    /// The pool becomes larger while clients use it. A namespace cannot.
    pub grows: bool,
    /// When edits and maps are flushed.
    pub flush: FlushPolicy,
    /// Each txg writes the space maps that it changed.
    pub stock: bool,
    /// Few space maps fit in memory: they are loaded and evicted all the time.
    pub few_maps: bool,
    /// Say on standard error what happens.
    pub tell: bool,
}

/// A history that went well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub operations: u64,
    pub crashes: u64,
    pub recoveries: u64,
    /// Histories that reached the state that their level is about: they deleted data on a full pool
    /// and wrote the freed space again, or used nine tenths of a limit.
    pub reached: u64,
    /// Histories whose pool was larger in the end ([`Plan::grows`]).
    pub grown: u64,
    /// Space maps that pools wrote whole, and deltas of such.
    pub whole_maps: u64,
    pub map_deltas: u64,
    /// Extents of files that the last recovery found, by their checksum mode.
    pub by_mode: ByMode,
    /// Blocks that a bad drive did not write and a read refused, by the mode of their extent.
    pub lost_writes: ByMode,
    /// Blocks that a bad drive forgot and a read refused.
    pub forgotten: u64,
    /// A number for all that happened, on every disk and in every task.
    pub digest: u64,
}

impl Outcome {
    pub(crate) fn note(&mut self, digest: u64) {
        self.digest = (self.digest ^ digest).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    }

    pub fn add(&mut self, other: &Outcome) {
        self.operations += other.operations;
        self.crashes += other.crashes;
        self.recoveries += other.recoveries;
        self.reached += other.reached;
        self.grown += other.grown;
        self.whole_maps += other.whole_maps;
        self.map_deltas += other.map_deltas;
        modes::add(&mut self.by_mode, &other.by_mode);
        modes::add(&mut self.lost_writes, &other.lost_writes);
        self.forgotten += other.forgotten;
        self.note(other.digest);
    }
}

/// A history that ended in what must not be.
#[derive(Clone, Debug)]
pub struct Failure {
    pub plan: Plan,
    pub why: String,
}

impl Plan {
    pub fn new(level: Level, seed: u64) -> Plan {
        Plan {
            level,
            seed,
            weather: None,
            broken: None,
            second_opinion: true,
            protection: None,
            modes: None,
            grows: false,
            flush: FlushPolicy::Threshold,
            stock: false,
            few_maps: false,
            tell: false,
        }
    }

    /// A disk that nothing has been written to, for a pool of so many blocks.
    pub(crate) fn blank(&self, blocks: u64) -> SimImage {
        blank(blocks, self.protection)
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.tell {
            eprintln!("  {}", what());
        }
    }

    pub fn run(&self) -> Result<Outcome, Failure> {
        let history = || match self.level {
            Level::Pool => pool_level::history(self),
            Level::Fs => fs_level::history(self),
            Level::Full => full::history(self),
            Level::Rogue => rogue::history(self),
        };
        catch_unwind(AssertUnwindSafe(history))
            .map_err(|panic| Failure { plan: *self, why: reason(&*panic) })
    }
}

/// The message of a panic.
pub(crate) fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
    text.unwrap_or_else(|| "it panicked".into())
}

impl fmt::Display for Plan {
    /// The command that replays it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, seed) = (self.level.name(), self.seed);
        write!(f, "cargo run --release -p copyhold-sim -- --level {level} --seed {seed}")?;
        if let Some(weather) = self.weather {
            write!(f, " --weather {weather:?}")?;
        }
        if let Some(rule) = self.broken {
            write!(f, " --break {}", rule.name())?;
        }
        if let Some(format) = self.protection {
            write!(f, " --pi {format}")?;
        }
        if let Some(modes) = self.modes {
            write!(f, " --modes {}", if modes { "yes" } else { "no" })?;
        }
        if self.grows {
            write!(f, " --grow")?;
        }
        if self.flush != FlushPolicy::Threshold {
            write!(f, " --flush {}", self.flush)?;
        }
        if self.stock {
            write!(f, " --stock")?;
        }
        if self.few_maps {
            write!(f, " --maps")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seed {}: {}\n  replay: {}",
            self.plan.level.name(),
            self.plan.seed,
            self.why,
            self.plan
        )
    }
}
