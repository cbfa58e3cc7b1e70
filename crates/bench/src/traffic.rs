//! Requests to a device, as the filesystem or the kernel counts it.

use serde_json::Value;

use crate::sample::Sample;

/// Requests to a device since its start, by purpose where the filesystem counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    purposes: Vec<(String, Requests)>,
    flushes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Requests {
    writes: u64,
    written_bytes: u64,
    reads: u64,
    read_bytes: u64,
}

/// The purpose of a device that has no others.
const ALL: &str = "all";

impl Traffic {
    /// From `copyhold info --json`: `counters: {purpose: {written_bytes, …}}` and `flushes`.
    pub(crate) fn of_info(info: &Value) -> Option<Traffic> {
        let purposes = info.get("counters")?.as_object()?.iter();
        let purposes = purposes
            .map(|(purpose, counts)| Some((purpose.clone(), Requests::of_counts(counts)?)))
            .collect::<Option<Vec<_>>>()?;
        Some(Traffic { purposes, flushes: info.get("flushes")?.as_u64()? })
    }

    /// From `/sys/block/…/stat`: for reads, then for writes, requests, merged ones, sectors and
    /// milliseconds; the sixteenth number is flushes. A request that was merged counts as well.
    pub(crate) fn of_block_stat(stat: &str) -> Traffic {
        let numbers: Vec<u64> =
            stat.split_whitespace().map(|number| number.parse().unwrap_or_default()).collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        let all = Requests {
            writes: at(4) + at(5),
            written_bytes: at(6) * 512,
            reads: at(0) + at(1),
            read_bytes: at(2) * 512,
        };
        Traffic { purposes: vec![(ALL.into(), all)], flushes: at(15) }
    }

    pub(crate) fn since(&self, before: &Traffic) -> Traffic {
        let earlier = |purpose: &str| {
            let found = before.purposes.iter().find(|(name, _)| name == purpose);
            found.map_or(Requests::default(), |found| found.1)
        };
        let purposes = self.purposes.iter();
        Traffic {
            purposes: purposes
                .map(|(name, requests)| (name.clone(), requests.since(earlier(name))))
                .collect(),
            flushes: self.flushes - before.flushes,
        }
    }

    /// Bytes written for this purpose.
    pub(crate) fn written_bytes(&self, purpose: &str) -> u64 {
        let found = self.purposes.iter().find(|(name, _)| name == purpose);
        found.map_or(0, |(_, requests)| requests.written_bytes)
    }

    /// Per byte that the job wrote, in `ops` writes of `unit` bytes.
    pub(crate) fn samples(&self, variant: &str, ops: u64, unit: usize) -> Vec<Sample> {
        if self.purposes.is_empty() {
            return Vec::new();
        }
        let asked = (ops.max(1) * unit as u64) as f64;
        let per_byte =
            |name: &str, bytes: u64| Sample::new(variant, name, "bytes/byte", bytes as f64 / asked);
        let total = self.purposes.iter().map(|(_, requests)| requests.written_bytes).sum();
        let mut samples = vec![
            per_byte("device_bytes", total),
            Sample::new(variant, "flushes", "per op", self.flushes as f64 / ops.max(1) as f64),
        ];
        let by_purpose = self.purposes.iter().filter(|(name, _)| name != ALL);
        samples.extend(by_purpose.map(|(name, requests)| {
            per_byte(&format!("device_bytes.{name}"), requests.written_bytes)
        }));
        samples
    }

    /// Requests per `what`, of which there were `count`: writes by purpose, and all reads.
    pub(crate) fn requests(&self, variant: &str, what: &'static str, count: u64) -> Vec<Sample> {
        let per = |name: &str, requests: u64| {
            Sample::new(variant, name, what, requests as f64 / count.max(1) as f64)
        };
        let sum = |of: fn(&Requests) -> u64| self.purposes.iter().map(|(_, it)| of(it)).sum();
        let mut samples =
            vec![per("writes", sum(|it| it.writes)), per("reads", sum(|it| it.reads))];
        let by_purpose = self.purposes.iter().filter(|(name, _)| name != ALL);
        samples.extend(by_purpose.map(|(name, it)| per(&format!("writes.{name}"), it.writes)));
        samples
    }
}

impl Requests {
    fn of_counts(counts: &Value) -> Option<Requests> {
        let count = |name: &str| counts.get(name)?.as_u64();
        Some(Requests {
            writes: count("writes")?,
            written_bytes: count("written_bytes")?,
            reads: count("reads")?,
            read_bytes: count("read_bytes")?,
        })
    }

    fn since(self, before: Requests) -> Requests {
        Requests {
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_from_both_sources_and_subtracted() {
        let info = r#"{"pool":"x","flushes":7,"counters":{
            "data":{"writes":1,"written_bytes":8192,"reads":0,"read_bytes":0},
            "log":{"writes":1,"written_bytes":4096,"reads":0,"read_bytes":0}}}"#;
        let traffic = Traffic::of_info(&serde_json::from_str(info).unwrap()).unwrap();
        let since = traffic.since(&Traffic { flushes: 5, ..Traffic::default() });
        assert_eq!(since.flushes, 2);
        assert_eq!(since.purposes, traffic.purposes);
        assert_eq!(since.written_bytes("log"), 4096);
        let samples = since.samples("direct", 2, 4096);
        assert_eq!(samples[0], Sample::new("direct", "device_bytes", "bytes/byte", 1.5));
        let requests = since.requests("direct", "per op", 4);
        assert_eq!(requests[0], Sample::new("direct", "writes", "per op", 0.5));
        assert_eq!(requests[3], Sample::new("direct", "writes.log", "per op", 0.25));
        assert_eq!(Traffic::of_info(&Value::Null), None);

        let stat = "1 2 8 0 5 7 24 0 0 0 0 0 0 0 0 3 0";
        let all = Requests { writes: 12, written_bytes: 24 * 512, reads: 3, read_bytes: 8 * 512 };
        let expected = Traffic { purposes: vec![("all".into(), all)], flushes: 3 };
        assert_eq!(Traffic::of_block_stat(stat), expected);
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_said() {
        assert_eq!(Traffic::default().samples("direct", 2, 4096), []);
    }
}
