//! What a device was asked to write, as the filesystem or the kernel counts it.

use serde_json::Value;

use crate::sample::Sample;

/// What a device was asked to write, by purpose where the filesystem says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    written_bytes: Vec<(String, u64)>,
    flushes: u64,
}

impl Traffic {
    /// From `copyhold info --json`: `counters: {purpose: {written_bytes, …}}` and `flushes`.
    pub(crate) fn of_info(info: &Value) -> Option<Traffic> {
        let purposes = info.get("counters")?.as_object()?.iter();
        let written_bytes = purposes
            .map(|(purpose, counts)| {
                Some((purpose.clone(), counts.get("written_bytes")?.as_u64()?))
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Traffic { written_bytes, flushes: info.get("flushes")?.as_u64()? })
    }

    /// From `/sys/block/…/stat`: the seventh number is sectors written, the sixteenth flushes.
    pub(crate) fn of_block_stat(stat: &str) -> Traffic {
        let numbers: Vec<u64> =
            stat.split_whitespace().map(|number| number.parse().unwrap_or_default()).collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
        Traffic { written_bytes: vec![("all".into(), at(6) * 512)], flushes: at(15) }
    }

    pub(crate) fn since(&self, before: &Traffic) -> Traffic {
        let earlier = |purpose: &str| {
            before.written_bytes.iter().find(|(name, _)| name == purpose).map_or(0, |found| found.1)
        };
        Traffic {
            written_bytes: self
                .written_bytes
                .iter()
                .map(|(name, bytes)| (name.clone(), bytes - earlier(name)))
                .collect(),
            flushes: self.flushes - before.flushes,
        }
    }

    /// Per byte that the job wrote, in `ops` writes of `unit` bytes.
    pub(crate) fn samples(&self, variant: &str, ops: u64, unit: usize) -> Vec<Sample> {
        if self.written_bytes.is_empty() {
            return Vec::new();
        }
        let asked = (ops.max(1) * unit as u64) as f64;
        let per_byte =
            |name: &str, bytes: u64| Sample::new(variant, name, "bytes/byte", bytes as f64 / asked);
        let total = self.written_bytes.iter().map(|(_, bytes)| bytes).sum();
        let mut samples = vec![
            per_byte("device_bytes", total),
            Sample::new(variant, "flushes", "per op", self.flushes as f64 / ops.max(1) as f64),
        ];
        let by_purpose = self.written_bytes.iter().filter(|(name, _)| name != "all");
        samples.extend(
            by_purpose.map(|(name, bytes)| per_byte(&format!("device_bytes.{name}"), *bytes)),
        );
        samples
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
        assert_eq!(since.written_bytes, traffic.written_bytes);
        let samples = since.samples("direct", 2, 4096);
        assert_eq!(samples[0], Sample::new("direct", "device_bytes", "bytes/byte", 1.5));
        assert_eq!(Traffic::of_info(&Value::Null), None);

        let stat = "1 0 8 0 5 0 24 0 0 0 0 0 0 0 0 3 0";
        let expected = Traffic { written_bytes: vec![("all".into(), 24 * 512)], flushes: 3 };
        assert_eq!(Traffic::of_block_stat(stat), expected);
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_said() {
        assert_eq!(Traffic::default().samples("direct", 2, 4096), []);
    }
}
