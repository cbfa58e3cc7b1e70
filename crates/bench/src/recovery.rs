//! The job: the daemon is killed when the log is as full as it gets, and the pool mounted again.
//!
//! Random 4 KiB overwrites, direct, fill the log, until it was trimmed at least once and is nine
//! tenths as full as before that, or until the time is over. `log` and `edits` say how full it was
//! at the kill, so what `mount` had to apply. `mount_clean` is a mount behind an unmount, for
//! comparison. Only Copyhold can be killed: the others are of the kernel, or keep nothing.

use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;
use serde_json::Value;

use crate::counters::mib;
use crate::direct::{self, Way};
use crate::error::{BenchError, On};
use crate::job::{Job, on_fresh};
use crate::meter::{Bounds, Meter};
use crate::places::{BLOCK, Places, fill_file};
use crate::random_overwrite::DEPTH;
use crate::sample::Sample;
use crate::size;
use crate::target::{Kind, Site, Target};

/// Writes between two looks at the log.
const STRETCH: u64 = 5000;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Recovery {
    /// Size of the file that is overwritten: a number with K, M or G
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// The log is taken to be full after this many seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

impl Job for Recovery {
    fn name(&self) -> &'static str {
        "recovery"
    }

    fn data_bytes(&self) -> u64 {
        self.size
    }

    fn left_out(&self, kind: Kind) -> Option<&'static str> {
        (kind != Kind::Copyhold).then_some("it has no daemon to be killed and no log of its own")
    }

    fn round(
        &self,
        site: &Site,
        kind: Kind,
        _round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        on_fresh(site, kind, |target| self.run(target, interrupt))
    }
}

impl Recovery {
    /// For the core list.
    pub(crate) fn bounded(size: u64, seconds: u64) -> Recovery {
        Recovery { size, seconds }
    }

    fn run(&self, target: &Target<'_>, interrupt: &Interrupt) -> Result<Vec<Sample>, BenchError> {
        let path = target.directory().join("data");
        let blocks = self.size / BLOCK as u64;
        fill_file(&path, blocks, 1, interrupt)?;
        let (_, clean) = target.remount()?;
        let log = self.fill_log(target, blocks, interrupt)?;
        let mounted = target.crash()?;
        let found = path.metadata().on(path.display())?.len();
        if found != self.size {
            let what = "bytes of the file that was overwritten";
            return Err(BenchError::Wrong { what, expected: self.size, found });
        }
        let s = |name, time: Duration| Sample::new("recovery", name, "s", time.as_secs_f64());
        Ok(vec![
            s("mount", mounted),
            s("mount_clean", clean),
            Sample::new("recovery", "log", "MiB", mib(log.used)),
            Sample::new("recovery", "edits", "edits", log.edits as f64),
        ])
    }

    /// What the log holds then.
    fn fill_log(
        &self,
        target: &Target<'_>,
        blocks: u64,
        interrupt: &Interrupt,
    ) -> Result<Log, BenchError> {
        let file = direct::open(&target.directory().join("data"), Way::Write)?;
        let mut places = Places::random(blocks, 1);
        let (began, mut fullness) = (Instant::now(), Fullness::default());
        loop {
            let mut meter = Meter::start(Bounds::ops(STRETCH), interrupt);
            direct::transfer(&file, Way::Write, DEPTH, &mut places, &mut meter)?;
            meter.end()?;
            let log = Log::of_info(&target.info()?)
                .ok_or(BenchError::NoCounters("copyhold".to_owned()))?;
            if fullness.is_reached(log) || began.elapsed() > Duration::from_secs(self.seconds) {
                return Ok(log);
            }
        }
    }
}

/// How full the log is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Log {
    used: u64,
    edits: u64,
}

impl Log {
    fn of_info(info: &Value) -> Option<Log> {
        let number = |name: &str| info.get(name)?.as_u64();
        Some(Log { used: number("log_used_bytes")?, edits: number("log_edits")? })
    }
}

/// Knows how full the log was before it was trimmed.
#[derive(Debug, Default)]
struct Fullness {
    peak: u64,
    was_trimmed: bool,
}

impl Fullness {
    fn is_reached(&mut self, log: Log) -> bool {
        self.was_trimmed |= log.used < self.peak;
        self.peak = self.peak.max(log.used);
        self.was_trimmed && log.used >= self.peak / 10 * 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_full_when_it_is_again_as_it_was_before_a_trim() {
        let mut fullness = Fullness::default();
        let seen =
            [100, 200, 150, 170, 185].map(|used| fullness.is_reached(Log { used, edits: 1 }));
        assert_eq!(seen, [false, false, false, false, true]);
    }
}
