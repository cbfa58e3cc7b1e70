//! Every fault that a device can have, one after the other.
//!
//! Problem.  Random histories meet few faults each, and a run of them says nothing of the request
//!           that none has hit.
//! Idea.     One short workload (`script`) is the same each time, request by request, until
//!           something goes wrong. So it is played once to count its reads, writes, flushes and
//!           discards, and then once for each of them that fails: that one only, or it and all of
//!           its kind from there on.
//!
//! On a device with protection information the files have different checksum modes, and
//! the requests are those of the disk below, for data and for tuples.
//!
//! Each play must have these properties, by the plain model of `model`:
//!
//! FAULTS-V1  No task panics or waits for ever; an error names the answer of the device.
//! FAULTS-V2  Reads return right content, also while no write succeeds. Durable content, and
//!            content that a failed read could not return, is there once the device works again.
//! FAULTS-V3  A pool that has stopped accepts no write; one that goes on keeps what it accepts.
//! FAULTS-V4  Content that a successful fsync, sync or close has covered, before or after the
//!            fault, is there after a crash, and `check` finds the pool whole.

mod model;
mod script;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use copyhold_check::{Severity, check_device};
use copyhold_device::pi::Format;
use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_device::{CounterSnapshot, Device};
use copyhold_fs::{Caller, Filesystem, FsError, Options};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, Sabotage};

use crate::Machine;
use crate::fs_level::modes::{self, ByMode};
use crate::machine::blank;
use model::Model;
use script::Player;

const EIO: i32 = 5;
const BLOCKS: u64 = 4096;
/// Of the machine that the workload runs on; its reads are fast.
const SEED: u64 = 0x101;
/// Crashes that each play ends in, side by side.
const CRASHES: u64 = 2;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];

    fn count(self, seen: &CounterSnapshot) -> u64 {
        match self {
            Kind::Read => seen.purposes.iter().map(|purpose| purpose.reads).sum(),
            Kind::Write => seen.purposes.iter().map(|purpose| purpose.writes).sum(),
            Kind::Flush => seen.flushes,
            Kind::Discard => seen.discards,
        }
    }
}

/// Which request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub kind: Kind,
    pub nth: u64,
    /// All of its kind from there on do.
    pub for_good: bool,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { kind, nth, for_good } = self;
        let kind = format!("{kind:?}").to_lowercase();
        write!(f, "{kind}:{nth}:{}", if *for_good { "for-good" } else { "once" })
    }
}

impl std::str::FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Point, String> {
        let wrong = || format!("{text} is no fault, as write:7:once or flush:0:for-good is");
        let parts: Vec<&str> = text.split(':').collect();
        let [kind, nth, how] = parts[..] else { return Err(wrong()) };
        let named = |of: &&Kind| format!("{of:?}").eq_ignore_ascii_case(kind);
        let kind = *Kind::ALL.iter().find(named).ok_or_else(wrong)?;
        let nth = nth.parse().map_err(|_| wrong())?;
        let for_good = match how {
            "once" => false,
            "for-good" => true,
            _ => return Err(wrong()),
        };
        Ok(Point { kind, nth, for_good })
    }
}

/// The effect of a fault on the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No operation failed: it was tried again, or another copy was read.
    Unseen,
    /// Some failed, and the pool went on.
    Reported,
    /// The pool stopped writing.
    Stopped,
    /// The pool could not be opened while it lasted.
    NotOpened,
}

impl Fate {
    pub const ALL: [Fate; 4] = [Fate::Unseen, Fate::Reported, Fate::Stopped, Fate::NotOpened];
}

/// The workload, ready to be played.
pub struct Faults {
    image: SimImage,
    model: Model,
    requests: [u64; Kind::ALL.len()],
    broken: Option<Sabotage>,
    by_mode: ByMode,
}

impl Faults {
    /// Makes the pool that each play begins with, and counts the requests of one that nothing
    /// happens to.
    pub fn new() -> Faults {
        Faults::of_engine(None, None)
    }

    /// On a namespace of this format.
    pub fn on(format: Format) -> Faults {
        Faults::of_engine(Some(format), None)
    }

    /// With a rule that the engine breaks on purpose.
    pub fn breaking(rule: Sabotage) -> Faults {
        Faults::of_engine(None, Some(rule))
    }

    fn of_engine(protection: Option<Format>, broken: Option<Sabotage>) -> Faults {
        let (image, model) = prepare(protection);
        let requests = [0; Kind::ALL.len()];
        let by_mode = ByMode::default();
        let mut faults = Faults { image, model, requests, broken, by_mode };
        // Opening a namespace takes requests, which are before all faults.
        let before = Machine::on(SEED, faults.image.clone()).disk.counters().snapshot();
        let (machine, fate, by_mode) = faults.run(None);
        assert_eq!(fate, Fate::Unseen, "nothing has failed");
        let seen = machine.disk.counters().snapshot();
        faults.requests = Kind::ALL.map(|kind| kind.count(&seen) - kind.count(&before));
        faults.by_mode = by_mode;
        faults
    }

    /// Extents that crashes of a play without a fault leave, by their checksum mode.
    pub fn by_mode(&self) -> ByMode {
        self.by_mode
    }

    /// How many requests of a kind there are.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.requests[kind as usize]
    }

    /// Everything that can fail: each request once, and each for good.
    pub fn points(&self) -> impl Iterator<Item = Point> + '_ {
        Kind::ALL.into_iter().flat_map(move |kind| {
            let each = 0..self.requests(kind);
            each.flat_map(move |nth| [false, true].map(|for_good| Point { kind, nth, for_good }))
        })
    }

    /// Plays the workload with one fault.
    ///
    /// # Errors
    /// The property that was violated.
    pub fn play(&self, point: Point) -> Result<Fate, String> {
        let play = || self.run(Some(point)).1;
        catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            format!("{point}: {}", text.unwrap_or_else(|| "it panicked".into()))
        })
    }

    fn run(&self, point: Option<Point>) -> (Machine, Fate, ByMode) {
        let machine = Machine::on(SEED, self.image.clone());
        if let Some(Point { kind, nth, for_good }) = point {
            let trigger = match kind {
                Kind::Read => Trigger::Read { nth },
                Kind::Write => Trigger::Write { nth, why: None },
                Kind::Flush => Trigger::Flush { nth },
                Kind::Discard => Trigger::Discard { nth },
            };
            match for_good {
                false => machine.disk.arm(trigger, Fault::Error(EIO)),
                true => machine.disk.arm_for_good(trigger, Fault::Error(EIO)),
            }
        }
        let mut model = self.model.clone();
        let fate =
            machine.run(live(&machine, &mut model, point, self.broken)).expect("the power is on");
        let mut by_mode = ByMode::default();
        for seed in 0..CRASHES {
            let image = machine.crash(seed);
            check(&image);
            modes::add(&mut by_mode, &verify(image, &model));
        }
        (machine, fate, by_mode)
    }
}

impl Default for Faults {
    fn default() -> Faults {
        Faults::new()
    }
}

async fn live(
    machine: &Machine,
    model: &mut Model,
    point: Option<Point>,
    broken: Option<Sabotage>,
) -> Fate {
    let fs = match open(machine, broken).await {
        Ok(fs) => fs,
        Err(error) => {
            script::expect_reported("open", &error);
            return Fate::NotOpened;
        }
    };
    let mut player = Player::new(&fs, model, point);
    player.play().await;
    // Reads of a device that can only not be written go on (FAULTS-V2).
    if point.is_none_or(|point| point.kind != Kind::Read) {
        player.look().await;
    }
    machine.disk.disarm();
    player.look().await;
    player.last_words().await;
    player.fate()
}

fn limits(broken: Option<Sabotage>) -> Limits {
    Limits {
        sabotage: broken,
        txg_interval: Duration::from_millis(20),
        mark_after: Duration::from_millis(5),
        delta_bytes: 32 << 10,
        node_cache_bytes: 0,
        ..Limits::default()
    }
}

async fn open(machine: &Machine, broken: Option<Sabotage>) -> Result<Arc<Filesystem>, FsError> {
    let options = OpenOptions { tenants: true, limits: limits(broken), ..OpenOptions::default() };
    let pool = Pool::open(machine.rt(), machine.device(), options).await?;
    let options = Options {
        writeback_interval: Duration::from_millis(50),
        attach_bytes_max: 8 << 10,
        ..Options::default()
    };
    Filesystem::open(pool, options).await
}

/// A pool with something in bases, something in the log only, and a subvolume.
fn prepare(protection: Option<Format>) -> (SimImage, Model) {
    let machine = Machine::on(SEED, blank(BLOCKS, protection));
    let create = CreateOptions {
        log_bytes: Some(512 << 10),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(8),
        ..CreateOptions::default()
    };
    let mut model = Model::default();
    let made = machine.run(async {
        Pool::create(&machine.rt(), &machine.device(), &create).await?;
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        let pool = Pool::open(machine.rt(), machine.device(), options).await?;
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await?;
        pool.close().await?;
        let fs = open(&machine, None).await?;
        Player::new(&fs, &mut model, None).prepare().await;
        Ok::<(), FsError>(())
    });
    made.expect("the power is on").expect("nothing fails");
    (machine.crash(0), model)
}

/// After a crash the device works, and all that must be there is. Counts the extents.
fn verify(image: SimImage, model: &Model) -> ByMode {
    let machine = Machine::on(SEED, image);
    let verified = async {
        let fs = open(&machine, None)
            .await
            .unwrap_or_else(|error| panic!("FAULTS-V4: not recovered: {error}"));
        let by_mode = script::verify(&fs, model).await;
        fs.close().await.unwrap_or_else(|error| panic!("FAULTS-V4: after recovery: {error}"));
        by_mode
    };
    machine.run(verified).expect("the power is on")
}

/// Recovery rewrites the rest of a copy that could not be written.
fn check(image: &SimImage) {
    let machine = Machine::on(SEED, image.clone());
    let checked = check_device(machine.rt(), machine.device(), Default::default());
    let report = machine.run(checked).expect("the power is on");
    let report = report.unwrap_or_else(|error| panic!("FAULTS-V4: check: {error}"));
    let grave = |severity| !matches!(severity, Severity::Cosmetic | Severity::Repairable);
    let found = report.findings.iter().filter(|finding| grave(finding.severity));
    let found: Vec<String> = found.take(5).map(|of| of.problem.to_string()).collect();
    assert!(found.is_empty(), "FAULTS-V4: check: {}", found.join("; "));
}
