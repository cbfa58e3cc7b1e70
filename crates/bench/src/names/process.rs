//! The experiment `--process N`: look-ups of names that do not exist, without a mount.
//!
//! One thread looks up `N` new names in an empty directory, with a limit (`process.on`) and with
//! one above all names (`process.off`). `above_limit` is the most by which the names passed the
//! limit, in hundredths of it, read after each chunk of names; `sum` is 1 if the names created are
//! `N`, and those that live and those that have ended. `hits` are look-ups of names that are known.
//! `below` are those of as many new names as fill the limit of `on`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use copyhold_device::{DynDevice, FileDevice};
use copyhold_fs::{Caller, Filesystem, FsError, Looked, NodeId, Options};
use copyhold_harness::Interrupt;
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::DeviceId;

use crate::error::BenchError;
use crate::sample::{Sample, compared};
use crate::target::Site;

/// Names between two looks at the table.
const CHUNK: u64 = 50_000;
/// Names that are looked up again.
const HOT: u64 = 10_000;
const DEVICE_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Process {
    /// New names that are looked up without a mount
    #[arg(long, default_value_t = 0, value_name = "N")]
    process: u64,
    /// Their limit in the arm `on`
    #[arg(long, default_value_t = 1_600_000, value_name = "NAMES")]
    process_limit: u64,
}

impl Process {
    pub(super) fn round(
        &self,
        site: &Site,
        round: u32,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        if self.process == 0 {
            return Ok(Vec::new());
        }
        let mut arms = [("process.on", self.process_limit), ("process.off", 2 * self.process)];
        if round.is_multiple_of(2) {
            arms.reverse();
        }
        let mut samples = Vec::new();
        for (arm, limit) in arms {
            samples.extend(self.arm(site, arm, limit, interrupt)?);
        }
        let ratios = compared(&samples, "process.on", "process.off");
        samples.extend(ratios);
        Ok(samples)
    }

    fn arm(
        &self,
        site: &Site,
        arm: &str,
        limit: u64,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let place = site.new_place()?;
        let executors = Executors::start(Config::default()).map_err(BenchError::engine)?;
        let rt: Rt = executors.clone();
        let image = place.image();
        let device: DynDevice =
            FileDevice::create(executors.reactor(), DeviceId(0), &image, DEVICE_BYTES, false)
                .map_err(BenchError::engine)?;
        let samples = executors.block_on(async {
            Pool::create(&rt, &device, &CreateOptions::default())
                .await
                .map_err(BenchError::engine)?;
            let options = OpenOptions { tenants: true, ..OpenOptions::default() };
            let pool = Pool::open(rt, device, options).await.map_err(BenchError::engine)?;
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.map_err(BenchError::engine)?;
            let options = Options { names_max: limit, ..Options::default() };
            let fs = Filesystem::open(pool.clone(), options).await.map_err(BenchError::engine)?;
            let samples = self.looks(&fs, arm, limit, interrupt).await;
            fs.close().await.map_err(BenchError::engine)?;
            drop(fs);
            pool.close().await.map_err(BenchError::engine)?;
            samples
        });
        executors.shutdown();
        samples
    }

    async fn looks(
        &self,
        fs: &Arc<Filesystem>,
        arm: &str,
        limit: u64,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = Vec::new();
        let mut rate = |phase: &str, count: u64, time: Duration| {
            let value = count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
            samples.push(Sample::new(&format!("{arm}.{phase}"), "iops", "ops/s", value));
        };
        look_all(fs, 0..HOT).await?;
        let mut time = Duration::ZERO;
        for _ in 0..100 {
            time += look_all(fs, 0..HOT).await?;
        }
        rate("hits", 100 * HOT, time);
        let below = self.process_limit.min(self.process);
        let (mut most, mut next, mut time) = (0, HOT, Duration::ZERO);
        while next < self.process {
            interrupt.check()?;
            let end = (next + CHUNK).min(self.process);
            time += look_all(fs, next..end).await?;
            if (next..end).contains(&(below - 1)) {
                rate("below", end - HOT, time);
            }
            most = most.max(fs.names().live());
            next = end;
        }
        rate("create", self.process - HOT, time);
        let above = most.saturating_sub(limit) as f64 * 100.0 / limit as f64;
        samples.push(Sample::new(arm, "above_limit", "%", above));
        let (counts, live) = (fs.names().totals(), fs.names().live());
        let adds_up = counts.live() == live && fs.names().created() == self.process;
        samples.push(Sample::new(arm, "sum", "holds", f64::from(u8::from(adds_up))));
        Ok(samples)
    }
}

/// The time of all look-ups, without that of writing the names.
async fn look_all(
    fs: &Arc<Filesystem>,
    numbers: std::ops::Range<u64>,
) -> Result<Duration, BenchError> {
    let names: Vec<[u8; 25]> = numbers.map(name).collect();
    let began = Instant::now();
    for name in &names {
        match fs.look(NodeId::ROOT, name).await {
            Ok(Looked::Absent(_)) => {}
            Ok(Looked::Found(_)) => return Err(BenchError::engine(FsError::Exists)),
            Err(error) => return Err(BenchError::engine(error)),
        }
    }
    Ok(began.elapsed())
}

/// As `no-such-name-000000000017`.
fn name(number: u64) -> [u8; 25] {
    let mut name = *b"no-such-name-000000000000";
    let mut left = number;
    for digit in name.iter_mut().rev().take(12) {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        assert_eq!(&name(17), b"no-such-name-000000000017");
    }
}
