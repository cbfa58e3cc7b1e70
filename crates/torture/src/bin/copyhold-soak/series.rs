//! Measurements of the soak: latencies by kind of operation, and samples over time.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Write,
    Fsync,
    Punch,
    SmallFile,
    Unlink,
    Snapshot,
    DeleteSubvolume,
    Read,
}

/// Latencies since the last sample, by kind, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    micros: BTreeMap<Kind, Vec<u32>>,
    refused: u64,
}

impl Latencies {
    /// Runs one operation, and notes how long it took.
    pub(crate) fn time<T>(
        &self,
        kind: Kind,
        action: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let start = Instant::now();
        let answer = action();
        let took = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
        self.0.lock().unwrap().micros.entry(kind).or_default().push(took);
        answer
    }

    /// An operation was refused for lack of space.
    pub(crate) fn refused(&self) {
        self.0.lock().unwrap().refused += 1;
    }

    fn take(&self) -> Noted {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Of one kind, within one sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) p50_us: u32,
    pub(crate) p99_us: u32,
    pub(crate) max_us: u32,
}

impl Spread {
    fn of(micros: &mut [u32]) -> Option<Spread> {
        micros.sort_unstable();
        let at =
            |hundredths: usize| micros.get((micros.len() * hundredths / 100).min(micros.len() - 1));
        let max_us = *micros.last()?;
        Some(Spread { count: micros.len(), p50_us: *at(50)?, p99_us: *at(99)?, max_us })
    }
}

/// One interval of the time that threads work.
#[derive(Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) used_percent: f64,
    /// Operations that were refused for lack of space.
    pub(crate) refused: u64,
    pub(crate) spreads: BTreeMap<Kind, Spread>,
}

/// Free space as a kill left it.
#[derive(Debug, Serialize)]
pub(crate) struct Fragments {
    pub(crate) seconds: f64,
    pub(crate) longest_free_blocks: u64,
    /// Of the free blocks, those in runs shorter than a leaf.
    pub(crate) short_percent: f64,
}

/// Everything measured, each line also written to a file as it comes.
pub(crate) struct Series {
    start: Instant,
    pub(crate) samples: Vec<Sample>,
    pub(crate) fragments: Vec<Fragments>,
    lines: Option<Box<dyn Write>>,
}

impl Series {
    pub(crate) fn new(lines: Option<Box<dyn Write>>) -> Series {
        Series { start: Instant::now(), samples: Vec::new(), fragments: Vec::new(), lines }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn sample(&mut self, used_percent: f64, latencies: &Latencies) -> io::Result<()> {
        let Noted { mut micros, refused } = latencies.take();
        let spread = |(&kind, micros): (&Kind, &mut Vec<u32>)| Some((kind, Spread::of(micros)?));
        let spreads = micros.iter_mut().filter_map(spread).collect();
        let seconds = self.elapsed().as_secs_f64();
        let sample = Sample { seconds, used_percent, refused, spreads };
        self.line(&sample)?;
        self.samples.push(sample);
        Ok(())
    }

    pub(crate) fn fragments(&mut self, longest: u64, short_percent: f64) -> io::Result<()> {
        let seconds = self.elapsed().as_secs_f64();
        let fragments = Fragments { seconds, longest_free_blocks: longest, short_percent };
        self.line(&fragments)?;
        self.fragments.push(fragments);
        Ok(())
    }

    fn line(&mut self, of: &impl Serialize) -> io::Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        writeln!(lines, "{}", serde_json::to_string(of)?)?;
        lines.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_what_came_since_the_last_one() {
        let latencies = Latencies::default();
        let mut series = Series::new(None);
        for _ in 0..3 {
            latencies.time(Kind::Write, || Ok(())).unwrap();
        }
        latencies.refused();
        series.sample(90.0, &latencies).unwrap();
        series.sample(91.0, &latencies).unwrap();
        assert_eq!(series.samples[0].spreads[&Kind::Write].count, 3);
        assert_eq!((series.samples[0].refused, series.samples[1].refused), (1, 0));
        assert!(series.samples[1].spreads.is_empty());
    }

    #[test]
    fn a_spread_is_of_the_sorted() {
        let mut micros: Vec<u32> = (1..=200).rev().collect();
        let spread = Spread::of(&mut micros).unwrap();
        assert_eq!((spread.p50_us, spread.p99_us, spread.max_us), (101, 199, 200));
        assert!(Spread::of(&mut []).is_none());
    }
}
