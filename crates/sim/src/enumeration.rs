//! Every short workload, and every state that a crash in it can leave.
//!
//! Problem.  Random histories find what happens often, or what a seed happens upon. Most bugs of
//!           filesystems in crashes need two operations and one fsync, of the right kind.
//! Idea.     So do all of those: each operation on a small tree, each persistence point behind it,
//!           then a second, and at each moment each set of writes that a crash could keep. The
//!           recovered state must be one that the model of the random histories allows. The method
//!           is that of CrashMonkey and ACE (Mohan et al., OSDI 2018).
//!
//! A workload of two is looked at from its second operation on: before that it is one of the
//! workloads of one. States that are the same, of workloads that differ in their last persistence
//! point only, are looked at once.

mod crash;
mod operation;
mod possible;
mod run;
mod stage;
mod symmetry;
mod tape;
mod workload;

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use copyhold_device::pi::Format;
use copyhold_device::sim::SimImage;
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Caller, Filesystem, FsError, OpenFlags, WriteFlags};

use self::run::{Recording, record};
use self::stage::{SEED, Stage};
use self::tape::{Moment, Pace};
use self::workload::Family;
use crate::Sabotage;
use crate::fs_level::modes::{self, ByMode};
use crate::fs_level::second_opinion;
use crate::fs_level::usage::Shown;
use crate::fs_level::verify;
use crate::machine::Machine;
use crate::run::reason;
use crate::soundness::check;

/// Which workloads are run.
#[derive(Clone, Copy, Debug)]
pub struct Enumeration {
    /// Operations of a workload: 1 or 2.
    pub length: usize,
    /// Of so many parts (the second number) this one, from 1 on.
    pub part: (usize, usize),
    /// A rule of the engine that is broken on purpose.
    pub broken: Option<Sabotage>,
    /// The device has protection information of this format.
    pub protection: Option<Format>,
    /// The checksum mode of all files. With another than `item` no data is attached to a batch.
    pub mode: ChecksumMode,
    /// It ends with the first failure.
    pub until_failure: bool,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads, but for their last persistence point: so far, and in all.
    pub families: usize,
    pub families_all: usize,
    pub workloads: u64,
    /// Moments at which the power could fail.
    pub moments: u64,
    /// States that were recovered.
    pub states: u64,
    /// States that had been recovered before.
    pub repeated: u64,
    /// Extents that recoveries have found and the stage did not have, by their checksum mode.
    pub by_mode: ByMode,
    pub failures: Vec<String>,
}

/// A state, and what had been promised.
type Seen = BTreeSet<(u64, Vec<usize>)>;

impl Enumeration {
    pub const LENGTHS: std::ops::RangeInclusive<usize> = 1..=2;

    /// All of a length.
    pub fn of_length(length: usize) -> Enumeration {
        let (protection, mode) = (None, ChecksumMode::Item);
        let part = (1, 1);
        Enumeration { length, part, broken: None, protection, mode, until_failure: false }
    }

    /// Runs them, and tells how far it has come behind each family.
    ///
    /// # Panics
    /// There is no such length or part.
    pub fn run(&self, mut tell: impl FnMut(&Tally)) -> Tally {
        let (part, parts) = self.part;
        assert!(Enumeration::LENGTHS.contains(&self.length), "one operation, or two");
        assert!((1..=parts).contains(&part), "part {part} of {parts}");
        let stage = Stage::set(self.broken, self.protection, self.mode);
        let families = workload::families(self.length);
        let all = families.len();
        let mine: Vec<_> = families.into_iter().enumerate().skip(part - 1).step_by(parts).collect();
        let mut tally = Tally { families_all: mine.len(), ..Tally::default() };
        for (number, family) in mine {
            let before = tally.failures.len();
            run_family(&stage, &family, &mut tally);
            let replay = Replay { plan: *self, number, all };
            for failure in &mut tally.failures[before..] {
                failure.push_str(&format!("\n  replay: {replay}"));
            }
            tally.families += 1;
            tell(&tally);
            if self.until_failure && !tally.failures.is_empty() {
                break;
            }
        }
        tally
    }
}

fn run_family(stage: &Stage, family: &Family, tally: &mut Tally) {
    let mut seen = Seen::new();
    for workload in family.workloads() {
        tally.workloads += 1;
        for pace in Pace::ALL {
            let recorded = catch_unwind(AssertUnwindSafe(|| record(stage, &workload, pace)));
            let failure = match recorded {
                Ok(recording) => look_at(stage, family, &recording, &mut seen, tally),
                Err(panic) => Some(reason(&*panic)),
            };
            if let Some(failure) = failure {
                tally.failures.push(format!("{workload} ({pace:?}): {failure}"));
                // The others of this family mostly say the same.
                return;
            }
        }
    }
}

/// Recovers from every crash; returns the first error, if there is one.
fn look_at(
    stage: &Stage,
    family: &Family,
    recording: &Recording,
    seen: &mut Seen,
    tally: &mut Tally,
) -> Option<String> {
    if !family.known.is_empty() {
        let before = &recording.before;
        seen.extend(states(stage, before).map(|(_, state)| (state.digest(), promised(before))));
    }
    let count = recording.moments.len();
    for (moment, nth) in recording.moments.iter().zip(1..) {
        tally.moments += 1;
        for (choice, state) in states(stage, moment) {
            if !seen.insert((state.digest(), promised(moment))) {
                tally.repeated += 1;
                continue;
            }
            tally.states += 1;
            let image = state.image(&stage.image);
            let recovered = catch_unwind(AssertUnwindSafe(|| recover(stage, moment, image)));
            match recovered {
                Ok(found) => modes::add(&mut tally.by_mode, &found),
                Err(panic) => {
                    let why = reason(&*panic);
                    return Some(format!(
                        "crash at moment {nth} of {count}, writes {choice}: {why}"
                    ));
                }
            }
        }
    }
    None
}

fn promised(moment: &Moment) -> Vec<usize> {
    moment.world.promised()
}

fn states(stage: &Stage, moment: &Moment) -> impl Iterator<Item = (crash::Choice, tape::Overlay)> {
    crash::choices(moment.loose.len()).into_iter().map(|choice| {
        let state = moment.crash(&stage.image, &choice);
        (choice, state)
    })
}

/// The image is sound, can be mounted, holds what it must, can be used, and is sound afterwards.
/// Counts the extents that are new.
fn recover(stage: &Stage, moment: &Moment, image: SimImage) -> ByMode {
    check(SEED, &image, false);
    let machine = Machine::on(SEED, image.clone());
    let opened = machine.run(async {
        let fs = stage.open(&machine, machine.device()).await?;
        let names = verify::look(&fs).await?;
        let root = verify::look_at(&fs, fs.root()).await?;
        Ok::<_, FsError>((fs, root, names))
    });
    let opened = opened.expect("the power is on");
    let opened = opened.unwrap_or_else(|error| panic!("it cannot be recovered: {error}"));
    let (fs, root, names) = opened;
    second_opinion::compare(&image, &root, &names);
    let shown = Shown::of(fs.volumes().ledger());
    let mut world = moment.world.clone();
    verify::settle(&mut world, &names, &shown);
    let checked = machine.run(verify::check_extents(&fs, &world)).expect("the power is on");
    let found = checked.unwrap_or_else(|error| panic!("its extents: {error}"));
    let used = machine.run(use_it(&fs)).expect("the power is on");
    used.unwrap_or_else(|error| panic!("it cannot be used: {error}"));
    drop(fs);
    check(SEED, &machine.rest(), false);
    modes::count_by_mode(found.iter().filter(|extent| stage.is_new(extent)))
}

async fn use_it(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    let (root, flags) = (&Caller::ROOT, OpenFlags::READ_WRITE);
    let (made, _) = fs.create(root, fs.root(), b"used", 0o600, flags, true).await?;
    fs.write(made.node, 0, &[1; 5000], WriteFlags::default()).await?;
    fs.fsync(made.node, false).await?;
    fs.release(made.node);
    fs.close().await?;
    Ok(fs.pool().close().await?)
}

/// The command that runs one family again.
struct Replay {
    plan: Enumeration,
    number: usize,
    all: usize,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, part, all) = (self.plan.length, self.number + 1, self.all);
        write!(
            f,
            "cargo run --release -p copyhold-sim -- --enumerate {length} --part {part}/{all}"
        )?;
        if let Some(rule) = self.plan.broken {
            write!(f, " --break {}", rule.name())?;
        }
        if let Some(format) = self.plan.protection {
            write!(f, " --pi {format}")?;
        }
        if self.plan.mode != ChecksumMode::Item {
            write!(f, " --mode {}", self.plan.mode)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enumeration::workload::{Persistence, Workload, families};

    /// A model that takes whatever it finds would pass as well.
    #[test]
    fn a_promise_that_nobody_keeps_is_noticed_for_every_operation() {
        let stage = Stage::set(None, None, ChecksumMode::Item);
        for family in families(1) {
            let step = (family.last.clone(), Persistence::Nothing);
            let recording = record(&stage, &Workload { steps: vec![step] }, Pace::SlowContent);
            let mut last = recording.moments.into_iter().next_back().expect("its end");
            let image = last.durable.image(&stage.image);
            recover(&stage, &last, image.clone());
            let (moment, versions) = last.world.before_sync();
            last.world.after_sync(moment, &versions);
            let recovered = catch_unwind(AssertUnwindSafe(|| recover(&stage, &last, image)));
            assert!(recovered.is_err(), "{}", family.last);
        }
    }
}
