//! Times of the timed writer.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::sample::Sample;
use crate::tenant::{Tenant, Times};

#[derive(Debug, Default)]
pub(crate) struct Writes {
    elapsed: Duration,
    times: Vec<Times>,
}

impl Writes {
    /// Writes while `go_on`, which is told how many there were and in what time, says so. They
    /// begin `every` so often, or one after the other when they take longer.
    pub(crate) fn measure(
        tenant: &mut Tenant,
        every: Duration,
        mut go_on: impl FnMut(u64, Duration) -> Result<bool, BenchError>,
    ) -> Result<Writes, BenchError> {
        let mut writes = Writes::default();
        let began = Instant::now();
        let mut due = began;
        while go_on(writes.ops(), began.elapsed())? {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            writes.times.push(tenant.write_and_sync()?);
            due = (due + every).max(Instant::now());
        }
        writes.elapsed = began.elapsed();
        Ok(writes)
    }

    pub(crate) fn ops(&self) -> u64 {
        self.times.len() as u64
    }

    /// What two of them are together.
    pub(crate) fn and(mut self, other: Writes) -> Writes {
        self.elapsed += other.elapsed;
        self.times.extend(other.times);
        self
    }

    pub(crate) fn samples(&self, variant: &str) -> Vec<Sample> {
        let seconds = self.elapsed.as_secs_f64();
        let mut samples = vec![
            Sample::new(variant, "elapsed", "s", seconds),
            Sample::new(variant, "writes", "ops", self.ops() as f64),
            Sample::new(variant, "iops", "ops/s", self.ops() as f64 / seconds),
        ];
        samples.extend(self.percentiles(variant, "write", |times| times.write));
        samples.extend(self.percentiles(variant, "fsync", |times| times.fsync));
        samples
    }

    /// Of a write and its fsync together.
    pub(crate) fn samples_of_both(&self, variant: &str) -> Vec<Sample> {
        let mut samples = vec![Sample::new(variant, "writes", "ops", self.ops() as f64)];
        samples.extend(self.percentiles(variant, "write_and_fsync", |it| it.write + it.fsync));
        samples
    }

    fn percentiles(
        &self,
        variant: &str,
        call: &str,
        of: impl FnMut(&Times) -> Duration,
    ) -> Vec<Sample> {
        let mut times: Vec<Duration> = self.times.iter().map(of).collect();
        times.sort_unstable();
        let us = |(name, share)| {
            let us = at(&times, share).as_secs_f64() * 1e6;
            Sample::new(variant, &format!("{call}_{name}"), "us", us)
        };
        [("p50", 0.50), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)].map(us).to_vec()
    }
}

/// The value that a share of all is not above; `sorted` may be empty.
pub(crate) fn at(sorted: &[Duration], share: f64) -> Duration {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let us = Duration::from_micros;
        let times = (1..=100).map(|time| Times { write: us(101 - time), fsync: us(2 * time) });
        let writes = Writes { elapsed: Duration::from_secs(2), times: times.collect() };
        let samples = writes.samples("off.next");
        let of = |name: &str, unit, value| Sample::new("off.next", name, unit, value);
        assert!(samples.contains(&of("iops", "ops/s", 50.0)));
        assert!(samples.contains(&of("write_max", "us", 100.0)));
        let both = writes.samples_of_both("off.next");
        assert!(both.contains(&of("write_and_fsync_max", "us", 201.0)));
        let write_p50 = samples.iter().find(|sample| sample.metric().ends_with("write_p50"));
        assert!((write_p50.unwrap().value() - 51.0).abs() < 0.01);
        assert_eq!(at(&[], 0.5), Duration::ZERO);
    }
}
