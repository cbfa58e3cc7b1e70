//! The original and its snapshots, or what stands for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use crate::error::{BenchError, On};
use crate::sample::Sample;
use crate::target::{Kind, Target, run};
use crate::tenant;

/// Seed of the timed writer; background writers count up from the next.
pub(super) const SEED: u64 = 12345;

/// The snapshot of a background writer.
pub(super) fn snapshot(mount_point: &Path, number: u32) -> PathBuf {
    mount_point.join(format!("snap.{number}"))
}

pub(crate) fn make_original(target: &Target<'_>, path: &Path) -> Result<(), BenchError> {
    match program(target) {
        Some(mut program) => run(program.args(["subvolume", "create"]).arg(path)).map(drop),
        None => fs::create_dir(path).on(path.display()),
    }
}

/// Makes copies; how long each took.
pub(super) fn make(
    target: &Target<'_>,
    original: &Path,
    copies: &[PathBuf],
    interrupt: &Interrupt,
) -> Result<Vec<Duration>, BenchError> {
    let mut took = Vec::with_capacity(copies.len());
    for path in copies {
        interrupt.check()?;
        let began = Instant::now();
        match program(target) {
            Some(mut program) => {
                run(program.args(["subvolume", "snapshot"]).arg(original).arg(path))?;
            }
            None => {
                fs::create_dir(path).on(path.display())?;
                tenant::copy(original, path)?;
            }
        }
        took.push(began.elapsed());
    }
    Ok(took)
}

/// What makes snapshots, where there are any.
fn program(target: &Target<'_>) -> Option<Command> {
    match target.kind() {
        Kind::Copyhold => Some(target.copyhold()),
        Kind::Btrfs => Some(Command::new("btrfs")),
        Kind::Ext4 | Kind::Xfs | Kind::Null | Kind::Plain => None,
    }
}

/// The first one writes the original out; the figures are of those after it.
pub(super) fn samples(variant: &str, mut took: Vec<Duration>) -> Vec<Sample> {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let first = ms(took.remove(0));
    let mut samples = vec![Sample::new(variant, "first_copy", "ms", first)];
    took.sort_unstable();
    if let Some(&max) = took.last() {
        let median = took[took.len() / 2];
        samples.push(Sample::new(variant, "copy_p50", "ms", ms(median)));
        samples.push(Sample::new(variant, "copy_max", "ms", ms(max)));
    }
    samples
}
