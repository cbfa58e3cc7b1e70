//! Times of the timed writer.

use std::time::{Duration, Instant};

use super::tenant::{Tenant, Times};
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::summary::Sample;

#[derive(Debug, Default)]
pub(super) struct Writes {
    elapsed: Duration,
    write: Vec<Duration>,
    fsync: Vec<Duration>,
}

impl Writes {
    /// `ops` writes, or as many as `time` allows.
    pub(super) fn measure(
        tenant: &mut Tenant,
        ops: u64,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<Writes, BenchError> {
        let mut writes = Writes::default();
        let began = Instant::now();
        while writes.ops() < ops && began.elapsed() < time {
            interrupt.check()?;
            let Times { write, fsync } = tenant.write_and_sync()?;
            writes.write.push(write);
            writes.fsync.push(fsync);
        }
        writes.elapsed = began.elapsed();
        writes.write.sort_unstable();
        writes.fsync.sort_unstable();
        Ok(writes)
    }

    pub(super) fn ops(&self) -> u64 {
        self.write.len() as u64
    }

    pub(super) fn samples(&self, variant: &str) -> Vec<Sample> {
        let seconds = self.elapsed.as_secs_f64();
        let mut samples = vec![
            Sample::new(variant, "elapsed", "s", seconds),
            Sample::new(variant, "writes", "ops", self.ops() as f64),
            Sample::new(variant, "iops", "ops/s", self.ops() as f64 / seconds),
        ];
        let percentiles = [("p50", 0.50), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)];
        for (call, times) in [("write", &self.write), ("fsync", &self.fsync)] {
            for (name, share) in percentiles {
                if (call, name) != ("fsync", "p95") {
                    let us = at(times, share).as_secs_f64() * 1e6;
                    samples.push(Sample::new(variant, &format!("{call}_{name}"), "us", us));
                }
            }
        }
        samples
    }
}

/// The value that a share of all is not above; `sorted` may be empty.
fn at(sorted: &[Duration], share: f64) -> Duration {
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let times: Vec<_> = (1..=100).map(Duration::from_micros).collect();
        let writes = Writes { elapsed: Duration::from_secs(2), write: times.clone(), fsync: times };
        let samples = writes.samples("off.next");
        let of = |name: &str, unit, value| Sample::new("off.next", name, unit, value);
        assert!(samples.contains(&of("iops", "ops/s", 50.0)));
        assert!(samples.contains(&of("write_max", "us", 100.0)));
        let write_p50 = samples.iter().find(|sample| sample.metric().ends_with("write_p50"));
        assert!((write_p50.unwrap().value() - 51.0).abs() < 0.01);
        assert_eq!(at(&[], 0.5), Duration::ZERO);
    }
}
