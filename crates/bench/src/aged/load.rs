//! The measurement of one arm, on a copy of the aged image.

use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use crate::aged::flushes::Flushes;
use crate::aged::records::Records;
use crate::counters::peak_memory;
use crate::device_limit::DeviceLimit;
use crate::error::BenchError;
use crate::measured::at;
use crate::meter::Bounds;
use crate::places::BLOCK;
use crate::sample::Sample;
use crate::target::{Kind, Site, Target};
use crate::traffic::Traffic;

/// Overwrites between two looks at the log.
const STRETCH: u64 = 8192;
/// Each frame of the log is written to both copies of the ring.
const RINGS: u64 = 2;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Load {
    /// How often the log is written over before a measurement
    #[arg(long, default_value_t = 2)]
    log_laps: u64,
    /// Overwrites before each sync …
    #[arg(long, default_value_t = 4000)]
    ops_per_txg: u64,
    /// … and how many times that
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    txgs: u32,
    /// How long records are overwritten without a sync
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Operations a second that the limited device does; 0: no measurement with a limit
    #[arg(long, default_value_t = 2000)]
    device_iops: u32,
}

/// The counters of a filesystem at one moment.
struct Moment {
    traffic: Traffic,
    device: Traffic,
    flushes: Option<Flushes>,
}

impl Moment {
    fn now(target: &Target<'_>) -> Result<Moment, BenchError> {
        let flushes = flushes(target)?;
        let (traffic, device) = (target.traffic()?, target.traffic_of_device()?);
        Ok(Moment { traffic, device, flushes })
    }

    /// Requests and bytes since then: by purpose, and as the device has counted them.
    fn samples(
        &self,
        target: &Target<'_>,
        variant: &str,
        ops: u64,
        (what, count): (&'static str, u64),
    ) -> Result<Vec<Sample>, BenchError> {
        let now = Moment::now(target)?;
        let traffic = now.traffic.since(&self.traffic);
        let mut samples = traffic.requests(variant, what, count);
        samples.extend(traffic.samples(variant, ops, BLOCK));
        let device = now.device.since(&self.device);
        samples.extend(device.requests(&format!("{variant}.device"), what, count));
        if let (Some(before), Some(after)) = (&self.flushes, &now.flushes) {
            samples.extend(after.samples(before, variant));
        }
        Ok(samples)
    }
}

/// Counters of the flusher, of a filesystem that has one.
fn flushes(target: &Target<'_>) -> Result<Option<Flushes>, BenchError> {
    match target.kind() {
        Kind::Copyhold => Ok(Flushes::of_info(&target.info()?)),
        _ => Ok(None),
    }
}

impl Load {
    pub(super) fn run(
        &self,
        site: &Site,
        target: &Target<'_>,
        records: &Records<'_>,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        self.warm_up(target, records)?;
        let mut samples = self.measure(target, records, "free", interrupt)?;
        match DeviceLimit::missing() {
            _ if self.device_iops == 0 => {}
            Some(why) => site.note("aged", target.kind(), &why),
            None => {
                let _limit = DeviceLimit::set(target, self.device_iops)?;
                samples.extend(self.measure(target, records, "limited", interrupt)?);
            }
        }
        samples.extend(peak_memory(target, "end")?);
        Ok(samples)
    }

    /// Overwrites until the log was written over `log_laps` times; where no log is counted, half of
    /// the records.
    fn warm_up(&self, target: &Target<'_>, records: &Records<'_>) -> Result<(), BenchError> {
        let logged = || Ok::<u64, BenchError>(target.traffic()?.written_bytes("log"));
        let (before, mut ops) = (logged()?, 0);
        let lap = match target.kind() {
            Kind::Copyhold => {
                let ring = target.info()?["log_size_bytes"].as_u64();
                Some(RINGS * ring.ok_or_else(|| target.no_counters())?)
            }
            _ => None,
        };
        loop {
            let is_warm = match lap {
                Some(lap) => logged()? - before >= self.log_laps * lap,
                None => ops >= records.shape().records() / 2,
            };
            if is_warm {
                return target.sync();
            }
            ops += records.overwrite(Bounds::ops(STRETCH))?.ops();
        }
    }

    /// Both loads, with a limit or without.
    fn measure(
        &self,
        target: &Target<'_>,
        records: &Records<'_>,
        setting: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        let mut samples = self.txgs(target, records, &format!("{setting}.txg"), interrupt)?;
        samples.extend(self.overwrites(target, records, &format!("{setting}.loop"))?);
        Ok(samples)
    }

    /// A number of overwrites and a sync, several times.
    fn txgs(
        &self,
        target: &Target<'_>,
        records: &Records<'_>,
        variant: &str,
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>, BenchError> {
        target.sync()?;
        let before = Moment::now(target)?;
        let (mut ops, mut syncs) = (0, Vec::new());
        let mut moments = Vec::from_iter(before.flushes);
        let began_all = Instant::now();
        for _ in 0..self.txgs {
            interrupt.check()?;
            ops += records.overwrite(Bounds::ops(self.ops_per_txg))?.ops();
            let began = Instant::now();
            target.sync()?;
            syncs.push(began.elapsed());
            moments.extend(flushes(target)?);
        }
        let iops = ops as f64 / began_all.elapsed().as_secs_f64();
        let mut samples = vec![Sample::new(variant, "iops", "ops/s", iops)];
        samples.extend(times_of_syncs(variant, syncs));
        samples.extend(Flushes::units_between(&moments, variant));
        samples.extend(before.samples(target, variant, ops, ("per txg", self.txgs.into()))?);
        Ok(samples)
    }

    /// Overwrites, as many as there is time for, and a sync: `durable_iops` has its time, too,
    /// since the memory of a filesystem may take more than the device.
    fn overwrites(
        &self,
        target: &Target<'_>,
        records: &Records<'_>,
        variant: &str,
    ) -> Result<Vec<Sample>, BenchError> {
        let before = Moment::now(target)?;
        let (began, time) = (Instant::now(), Duration::from_secs(self.seconds));
        let measured = records.overwrite(Bounds { ops: u64::MAX, time })?;
        target.sync()?;
        let ops = measured.ops();
        let durable = ops as f64 / began.elapsed().as_secs_f64();
        let mut samples = vec![Sample::new(variant, "durable_iops", "ops/s", durable)];
        samples.extend(measured.samples(variant));
        samples.push(measured.percentile(variant, "p999", 0.999));
        samples.extend(before.samples(target, variant, ops, ("per op", ops))?);
        Ok(samples)
    }
}

fn times_of_syncs(variant: &str, mut syncs: Vec<Duration>) -> Vec<Sample> {
    syncs.sort_unstable();
    let ms = |name, time: Duration| Sample::new(variant, name, "ms", time.as_secs_f64() * 1000.0);
    let mean = syncs.iter().sum::<Duration>() / syncs.len().max(1) as u32;
    vec![ms("sync_mean", mean), ms("sync_p50", at(&syncs, 0.5)), ms("sync_max", at(&syncs, 1.0))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_syncs_the_mean_the_median_and_the_longest_are_reported() {
        let syncs = [30, 10, 20, 100].map(Duration::from_millis).to_vec();
        let expected = [
            Sample::new("free.txg", "sync_mean", "ms", 40.0),
            Sample::new("free.txg", "sync_p50", "ms", 30.0),
            Sample::new("free.txg", "sync_max", "ms", 100.0),
        ];
        assert_eq!(times_of_syncs("free.txg", syncs), expected);
    }
}
