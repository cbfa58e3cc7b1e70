//! Counts and times what a job does over and over, and says when it is enough.
//!
//! A job asks `go_on` before each operation and tells `done` behind it; what comes out are rate and
//! percentiles. Several clients have a meter each, and what they measured is added up.

use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;

use crate::error::BenchError;
use crate::sample::Sample;

/// When it is enough: at so many operations or behind so much time, whichever is first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) ops: u64,
    pub(crate) time: Duration,
}

impl Bounds {
    pub(crate) fn ops(ops: u64) -> Bounds {
        Bounds { ops, time: Duration::MAX }
    }
}

pub(crate) struct Meter<'a> {
    bounds: Bounds,
    interrupt: &'a Interrupt,
    began: Instant,
    latencies_ns: Vec<u64>,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(bounds: Bounds, interrupt: &'a Interrupt) -> Meter<'a> {
        let latencies_ns = Vec::with_capacity(bounds.ops.min(1 << 22) as usize);
        Meter { bounds, interrupt, began: Instant::now(), latencies_ns }
    }

    /// Does one operation after the other; each is told how many there were before.
    pub(crate) fn each(
        &mut self,
        mut operation: impl FnMut(u64) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        while self.go_on(0) {
            let began = Instant::now();
            operation(self.ops())?;
            self.done(began);
        }
        Ok(())
    }

    /// Whether another operation may begin, with `in_flight` of them not done yet.
    pub(crate) fn go_on(&self, in_flight: usize) -> bool {
        self.ops() + (in_flight as u64) < self.bounds.ops
            && self.began.elapsed() < self.bounds.time
            && self.interrupt.check().is_ok()
    }

    pub(crate) fn done(&mut self, began: Instant) {
        self.latencies_ns.push(began.elapsed().as_nanos() as u64);
    }

    /// How many operations are done.
    pub(crate) fn ops(&self) -> u64 {
        self.latencies_ns.len() as u64
    }

    pub(crate) fn end(mut self) -> Result<Measured, BenchError> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.interrupt.check()?;
        self.latencies_ns.sort_unstable();
        Ok(Measured { seconds, latencies_ns: self.latencies_ns })
    }
}

/// Times each of `ops` operations.
pub(crate) fn each(
    ops: u64,
    interrupt: &Interrupt,
    operation: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Measured, BenchError> {
    let mut meter = Meter::start(Bounds::ops(ops), interrupt);
    meter.each(operation)?;
    meter.end()
}

/// What a meter saw.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    seconds: f64,
    /// Ascending.
    latencies_ns: Vec<u64>,
}

impl Measured {
    /// One operation of this time.
    #[cfg(test)]
    pub(crate) fn example(time: Duration) -> Measured {
        Measured { seconds: time.as_secs_f64(), latencies_ns: vec![time.as_nanos() as u64] }
    }

    pub(crate) fn ops(&self) -> u64 {
        self.latencies_ns.len() as u64
    }

    /// What clients did at the same time.
    pub(crate) fn beside(mut self, other: Measured) -> Measured {
        self.seconds = self.seconds.max(other.seconds);
        self.latencies_ns.extend(other.latencies_ns);
        self.latencies_ns.sort_unstable();
        self
    }

    /// This and a later measurement of the same client.
    pub(crate) fn then(self, later: Measured) -> Measured {
        let seconds = self.seconds + later.seconds;
        Measured { seconds, ..self.beside(later) }
    }

    /// Operations a second, and how long one took.
    pub(crate) fn samples(&self, variant: &str) -> Vec<Sample> {
        let mut samples = vec![Sample::new(variant, "iops", "ops/s", self.per_second())];
        samples.extend(self.percentiles(variant));
        samples
    }

    /// MiB a second, when each operation moved `unit` bytes, and how long one took.
    pub(crate) fn throughput(&self, variant: &str, unit: usize) -> Vec<Sample> {
        let mib = self.per_second() * unit as f64 / f64::from(1 << 20);
        let mut samples = vec![Sample::new(variant, "rate", "MiB/s", mib)];
        samples.extend(self.percentiles(variant));
        samples
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.ops() as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    pub(crate) fn percentiles(&self, variant: &str) -> [Sample; 2] {
        [("p50", 0.50), ("p99", 0.99)].map(|(name, share)| self.percentile(variant, name, share))
    }

    /// The time that this share of the operations stays below.
    pub(crate) fn percentile(&self, variant: &str, name: &str, share: f64) -> Sample {
        let index = (self.latencies_ns.len() as f64 * share) as usize;
        let ns = self.latencies_ns.get(index).copied().unwrap_or_default();
        Sample::new(variant, name, "us", ns as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_enough_at_the_number_asked_for() {
        let mut seen = Vec::new();
        let measured = each(3, &Interrupt::never(), |index| {
            seen.push(index);
            Ok(())
        });
        assert_eq!((measured.unwrap().ops(), seen), (3, vec![0, 1, 2]));
        let never = Interrupt::never();
        let meter = Meter::start(Bounds { ops: 3, time: Duration::ZERO }, &never);
        assert!(!meter.go_on(0), "no time is enough at once");
    }

    #[test]
    fn clients_add_up_in_the_time_of_the_slowest() {
        let one = Measured { seconds: 2.0, latencies_ns: vec![1000, 3000] };
        let other = Measured { seconds: 1.0, latencies_ns: vec![2000, 4000] };
        let both = one.beside(other);
        let expected = [
            Sample::new("x", "iops", "ops/s", 2.0),
            Sample::new("x", "p50", "us", 3.0),
            Sample::new("x", "p99", "us", 4.0),
        ];
        assert_eq!(both.samples("x"), expected);
        assert_eq!(both.throughput("x", 1 << 20)[0], Sample::new("x", "rate", "MiB/s", 2.0));
    }

    #[test]
    fn turns_of_one_client_add_up_their_time() {
        let first = Measured { seconds: 2.0, latencies_ns: vec![5000] };
        let later = Measured { seconds: 2.0, latencies_ns: vec![1000, 3000, 4000] };
        let all = first.then(later);
        let expected = [
            Sample::new("x", "iops", "ops/s", 1.0),
            Sample::new("x", "p50", "us", 4.0),
            Sample::new("x", "p99", "us", 5.0),
        ];
        assert_eq!(all.samples("x"), expected);
    }
}
