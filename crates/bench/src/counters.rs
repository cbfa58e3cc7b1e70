//! What a filesystem tells of its commits, and of the time that operations wait for them.
//!
//! Copyhold: `copyhold info --json` has `durable_txg`, which counts commits, and may have
//! `join_wait: {count, total_ns, max_ns}`: how often an operation joined a transaction group, and
//! how long all of them waited for that. btrfs: `commit_stats` in sysfs; what its operations wait
//! is told by kernel probes only. Others tell nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::error::{BenchError, On};
use crate::sample::Sample;
use crate::target::{Kind, Target, run};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    commits: Option<u64>,
    /// Time spent in commits.
    commit_ms: Option<u64>,
    /// The longest commit since the mount.
    commit_max_ms: Option<u64>,
    joins: Option<u64>,
    join_wait_ns: Option<u64>,
    /// The longest wait since the mount.
    join_wait_max_ns: Option<u64>,
}

impl Counters {
    pub(crate) fn read(target: &Target<'_>) -> Result<Counters, BenchError> {
        match target.kind() {
            Kind::Copyhold => {
                let counters = Counters::of_info(&target.info()?);
                if counters.joins.is_none() {
                    eprintln!("time of waiting to join a commit: not offered by `info --json`");
                }
                Ok(counters)
            }
            Kind::Btrfs => Counters::of_btrfs(&target.directory()),
            Kind::Ext4 | Kind::Xfs | Kind::Null | Kind::Plain => Ok(Counters::default()),
        }
    }

    fn of_info(info: &Value) -> Counters {
        let waited = |field: &str| info.get("join_wait")?.get(field)?.as_u64();
        Counters {
            commits: info.get("durable_txg").and_then(Value::as_u64),
            joins: waited("count"),
            join_wait_ns: waited("total_ns"),
            join_wait_max_ns: waited("max_ns"),
            ..Counters::default()
        }
    }

    fn of_btrfs(mount_point: &Path) -> Result<Counters, BenchError> {
        let shown = run(Command::new("btrfs").args(["filesystem", "show"]).arg(mount_point))?;
        let uuid = shown.split_whitespace().skip_while(|word| *word != "uuid:").nth(1);
        let path = Path::new("/sys/fs/btrfs").join(uuid.unwrap_or_default()).join("commit_stats");
        let stats = fs::read_to_string(&path).on(path.display())?;
        Ok(Counters::of_commit_stats(&stats))
    }

    fn of_commit_stats(stats: &str) -> Counters {
        let of = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.trim().parse().ok())
        };
        Counters {
            commits: of("commits"),
            commit_ms: of("total_commit_ms"),
            commit_max_ms: of("max_commit_ms"),
            ..Counters::default()
        }
    }

    pub(crate) fn since(&self, before: &Counters) -> Counters {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Counters {
            commits: less(self.commits, before.commits),
            commit_ms: less(self.commit_ms, before.commit_ms),
            joins: less(self.joins, before.joins),
            join_wait_ns: less(self.join_wait_ns, before.join_wait_ns),
            ..self.clone()
        }
    }

    /// Only what was told.
    pub(crate) fn samples(&self, variant: &str) -> Vec<Sample> {
        let number = |name: &str, unit, value: Option<f64>| {
            value.map(|value| Sample::new(variant, name, unit, value))
        };
        let per = |total: Option<u64>, count: Option<u64>| {
            Some(total? as f64 / count.filter(|count| *count > 0)? as f64)
        };
        let us = |ns: f64| ns / 1000.0;
        let wait = per(self.join_wait_ns, self.joins).map(us);
        let wait_max = self.join_wait_max_ns.map(|ns| us(ns as f64));
        [
            number("commits", "commits", self.commits.map(|count| count as f64)),
            number("commit_mean", "ms", per(self.commit_ms, self.commits)),
            number("commit_max", "ms", self.commit_max_ms.map(|ms| ms as f64)),
            number("joins", "ops", self.joins.map(|count| count as f64)),
            number("join_wait_mean", "us", wait),
            number("join_wait_max", "us", wait_max),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// What memory the daemon has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Resident {
    pub(crate) now: u64,
    /// The most so far.
    pub(crate) peak: u64,
}

impl Resident {
    /// `None` for a filesystem of the kernel.
    pub(crate) fn of(target: &Target<'_>) -> Result<Option<Resident>, BenchError> {
        let Some(pid) = target.daemon()? else { return Ok(None) };
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).on(path)?;
        Ok(Resident::of_status(&status))
    }

    fn of_status(status: &str) -> Option<Resident> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
        };
        Some(Resident { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }
}

/// The most memory that the daemon had.
pub(crate) fn peak_memory(
    target: &Target<'_>,
    variant: &str,
) -> Result<Option<Sample>, BenchError> {
    let resident = Resident::of(target)?;
    Ok(resident.map(|it| Sample::new(variant, "daemon_memory", "MiB", mib(it.peak))))
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_becomes_figures_and_what_is_not_does_not() {
        let info = |json: &str| Counters::of_info(&serde_json::from_str(json).unwrap());
        let before = info(r#"{"durable_txg": 5, "join_wait": {"count": 10, "total_ns": 1000}}"#);
        let after = info(
            r#"{"durable_txg": 9, "join_wait": {"count": 20, "total_ns": 51000, "max_ns": 9000}}"#,
        );
        let samples = after.since(&before).samples("off.next");
        let expected = [
            Sample::new("off.next", "commits", "commits", 4.0),
            Sample::new("off.next", "joins", "ops", 10.0),
            Sample::new("off.next", "join_wait_mean", "us", 5.0),
            Sample::new("off.next", "join_wait_max", "us", 9.0),
        ];
        assert_eq!(samples, expected);
        assert_eq!(Counters::default().samples("off.next"), []);
    }

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        let status = "Name:\tx\nVmHWM:\t    12 kB\nVmRSS:\t     8 kB\n";
        let expected = Resident { now: 8 << 10, peak: 12 << 10 };
        assert_eq!(Resident::of_status(status), Some(expected));
        assert_eq!(Resident::of_status(""), None);
    }

    #[test]
    fn commit_stats_of_the_kernel_are_read() {
        let stats = "commits 4\nlast_commit_ms 3\nmax_commit_ms 20\ntotal_commit_ms 44\n";
        let counters = Counters::of_commit_stats(stats);
        assert_eq!((counters.commits, counters.commit_ms), (Some(4), Some(44)));
        assert_eq!(counters.commit_max_ms, Some(20));
    }
}
