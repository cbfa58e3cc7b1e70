//! Memory groups in questions and answers.
//!
//! The rows are also the JSON that `copyhold memory` prints: bytes, `"max"` for no limit, counters
//! that only rise. In an answer, fields are left out that are those of a new group ([`Brief`]): so
//! the rows of many idle groups fit into one page.

use std::collections::BTreeMap;

use copyhold_memory::{Counts, Event, Figures, GroupLimits, MemoryClass, Pressure, Promise, Stat};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// A number of bytes, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound(pub u64);

impl Bound {
    pub const NONE: Bound = Bound(u64::MAX);
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            Bound::NONE => to.serialize_str("max"),
            Bound(bytes) => to.serialize_u64(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bound, D::Error> {
        let value = Value::deserialize(from)?;
        match value.as_u64() {
            Some(bytes) => Ok(Bound(bytes)),
            None if value == "max" => Ok(Bound::NONE),
            None => Err(serde::de::Error::custom("neither bytes nor \"max\"")),
        }
    }
}

/// The limits to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryChange {
    pub min: Option<Bound>,
    pub low: Option<Bound>,
    pub high: Option<Bound>,
    pub max: Option<Bound>,
    pub weight: Option<u32>,
}

impl MemoryChange {
    pub fn apply(&self, to: &GroupLimits) -> GroupLimits {
        let bytes = |new: Option<Bound>, old: u64| new.map_or(old, |Bound(bytes)| bytes);
        GroupLimits {
            promise: Promise {
                min: bytes(self.min, to.promise.min),
                low: bytes(self.low, to.promise.low),
            },
            high: bytes(self.high, to.high),
            max: bytes(self.max, to.max),
            weight: self.weight.unwrap_or(to.weight),
        }
    }
}

/// Evicted bytes by class.
pub type Freed = BTreeMap<String, u64>;

/// A memory group with all that it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryRow {
    /// The subvolume; 0 for the shared group.
    pub id: u32,
    /// From the root of the mount.
    pub path: Option<String>,
    /// The group that holds it; none for those beside the root subvolume's.
    pub parent: Option<u32>,
    pub current: u64,
    pub min: Bound,
    pub low: Bound,
    pub high: Bound,
    pub max: Bound,
    pub weight: u32,
    pub peak: u64,
    /// Bytes by class.
    pub class: Map<String, Value>,
    /// The protection at the next walk of reclaim.
    pub effective: Effective,
    pub events: Map<String, Value>,
    pub stat: Map<String, Value>,
    pub pressure: PressureRow,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    pub min: u64,
    pub low: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PressureRow {
    /// Time in which at least one request waited.
    pub some: Averages,
}

/// Hundredths of the time, and the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Averages {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_us: u64,
}

impl MemoryRow {
    pub fn new(limits: &GroupLimits, figures: &Figures, pressure: &Pressure) -> MemoryRow {
        let GroupLimits { promise, high, max, weight } = *limits;
        let classes = MemoryClass::ALL.iter().zip(figures.classes);
        let Pressure { avg10, avg60, avg300, total } = *pressure;
        // As the kernel prints them.
        let [avg10, avg60, avg300] =
            [avg10, avg60, avg300].map(|average| (average * 100.0).round() / 100.0);
        MemoryRow {
            id: 0,
            path: None,
            parent: None,
            current: figures.current(),
            min: Bound(promise.min),
            low: Bound(promise.low),
            high: Bound(high),
            max: Bound(max),
            weight,
            peak: figures.peak,
            class: classes.map(|(class, bytes)| (class.name().into(), json!(bytes))).collect(),
            effective: Effective { min: figures.effective.min, low: figures.effective.low },
            events: events(&figures.counts),
            stat: stats(&figures.counts),
            pressure: PressureRow {
                some: Averages { avg10, avg60, avg300, total_us: total.as_micros() as u64 },
            },
        }
    }
}

/// In the order of cgroup v2, with two keys that its readers expect: nothing here fails for want of
/// memory, or is killed.
fn events(counts: &Counts) -> Map<String, Value> {
    let mut events = Map::new();
    for event in Event::ALL {
        events.insert(event.name().into(), json!(counts.event(event)));
        if event == Event::Max {
            events.insert("oom".into(), json!(0));
            events.insert("oom_kill".into(), json!(0));
        }
    }
    events
}

fn stats(counts: &Counts) -> Map<String, Value> {
    Stat::ALL.iter().map(|stat| (stat.name().into(), json!(counts.stat(*stat)))).collect()
}

/// That of a new group.
impl Default for MemoryRow {
    fn default() -> MemoryRow {
        MemoryRow::new(&GroupLimits::default(), &Figures::default(), &Pressure::default())
    }
}

/// A row without the fields that a new group has, too.
#[derive(Debug)]
pub struct Brief(pub MemoryRow);

impl Serialize for Brief {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (own, new) = (json!(self.0), json!(MemoryRow::default()));
        let Value::Object(fields) = own else { unreachable!("a row has fields") };
        let told: Map<_, _> = fields.into_iter().filter(|(name, own)| new[name] != *own).collect();
        told.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> MemoryRow {
        let promise = Promise { min: 1, low: 2 };
        let limits = GroupLimits { promise, max: 4, weight: 5, ..GroupLimits::default() };
        let mut figures = Figures::default();
        figures.classes.iter_mut().zip(10..).for_each(|(bytes, n)| *bytes = n);
        figures.peak = 1000;
        let pressure = Pressure { avg10: 1.23456, ..Pressure::default() };
        let row = MemoryRow::new(&limits, &figures, &pressure);
        MemoryRow { id: 7, path: Some("a/b".into()), parent: Some(3), ..row }
    }

    #[test]
    fn the_json_of_a_group_is_a_contract() {
        let shown = json!(row());
        let fields: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
        let wanted = "id path parent current min low high max weight peak class effective events \
                      stat pressure";
        assert_eq!(fields, wanted.split_whitespace().collect::<Vec<_>>());
        let of = |name: &str| shown[name].clone();
        assert_eq!(["id", "parent", "min", "low", "weight", "peak"].map(of), [7, 3, 1, 2, 5, 1000]);
        assert_eq!([of("high"), of("max"), of("path")], [json!("max"), json!(4), json!("a/b")]);
        let class = shown["class"].as_object().unwrap();
        let sum: u64 = class.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!((sum, class["node"].as_u64()), (shown["current"].as_u64().unwrap(), Some(10)));
        let events: Vec<&String> = shown["events"].as_object().unwrap().keys().collect();
        assert_eq!(events, ["low", "high", "max", "oom", "oom_kill", "bypass", "forced"]);
        let stat: Vec<&String> = shown["stat"].as_object().unwrap().keys().collect();
        let names = ["pgscan", "pgsteal", "workingset_refault", "pgscan_direct", "throttle_us"];
        assert_eq!(stat, names);
        assert_eq!(shown["effective"], json!({"min": 0, "low": 0}));
        let some = json!({"avg10": 1.23, "avg60": 0.0, "avg300": 0.0, "total_us": 0});
        assert_eq!(shown["pressure"], json!({ "some": some }));
    }

    #[test]
    fn a_brief_row_is_the_whole_row_to_its_reader() {
        for row in [row(), MemoryRow::default(), MemoryRow { id: 9, ..MemoryRow::default() }] {
            let text = serde_json::to_vec(&Brief(row.clone())).unwrap();
            assert_eq!(serde_json::from_slice::<MemoryRow>(&text).unwrap(), row);
        }
        let idle = Brief(MemoryRow { id: 9, path: Some("tenant".into()), ..MemoryRow::default() });
        assert_eq!(json!(idle), json!({"id": 9, "path": "tenant"}));
    }

    #[test]
    fn a_change_keeps_the_limits_that_it_does_not_name() {
        let old = GroupLimits { high: 9, ..GroupLimits::default() };
        let change = json!({"low": 340, "max": "max", "weight": 7});
        let change: MemoryChange = serde_json::from_value(change).unwrap();
        let promise = Promise { min: 0, low: 340 };
        let new = GroupLimits { promise, high: 9, max: u64::MAX, weight: 7 };
        assert_eq!(change.apply(&old), new);
        for bad in [json!({"low": -1}), json!({"low": "none"}), json!({"low": 1.5})] {
            assert!(serde_json::from_value::<MemoryChange>(bad).is_err());
        }
    }
}
