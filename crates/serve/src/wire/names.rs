//! Absent names in answers; the rows are also the JSON that `copyhold names` prints.

use copyhold_fs::{AbsentNames, NameCounts, NameEvent, NameFigures};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Numbered;

/// The names of a tenant that are known to be absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamesRow {
    /// The subvolume.
    pub id: u32,
    /// From the root of the mount; `null` for one that is gone.
    pub path: Option<String>,
    pub live: u64,
    /// Live names that a program looked up again.
    pub hot: u64,
    #[serde(flatten)]
    pub ratios: NameRatios,
    /// How often each event was.
    pub events: Map<String, Value>,
}

/// Figures for each name that became known, since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NameRatios {
    /// Look-ups that were answered.
    pub neg_hit_per_insert: f64,
    /// Those that were known before, and were removed to make room.
    pub neg_reinsert: f64,
}

/// The same of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamesTotals {
    pub live: u64,
    /// The limit now.
    pub limit: u64,
    /// The operator's limit.
    pub setting: u64,
    /// `setting`, `budget` or `off`.
    pub bound_by: String,
    #[serde(flatten)]
    pub ratios: NameRatios,
    pub events: Map<String, Value>,
    /// Six fields, as Linux has them in `fs/dentry-state`.
    pub dentry_state: String,
}

fn events(counts: &NameCounts) -> Map<String, Value> {
    NameEvent::ALL.iter().map(|event| (event.name().into(), json!(counts[*event]))).collect()
}

impl NameRatios {
    fn of(counts: &NameCounts) -> NameRatios {
        let created = counts[NameEvent::Created].max(1);
        let for_each = |event| (counts[event] * 100 / created) as f64 / 100.0;
        NameRatios {
            neg_hit_per_insert: for_each(NameEvent::Hit),
            neg_reinsert: for_each(NameEvent::Returned),
        }
    }
}

impl NamesRow {
    pub fn new(figures: &NameFigures, path: Option<String>) -> NamesRow {
        let NameFigures { subvol, live, hot, counts } = figures;
        let (ratios, events) = (NameRatios::of(counts), events(counts));
        NamesRow { id: subvol.0, path, live: *live, hot: *hot, ratios, events }
    }
}

impl NamesTotals {
    /// `held`: files that the kernel knows.
    pub fn new(names: &AbsentNames, held: u64) -> NamesTotals {
        let counts = names.totals();
        let (live, limit, forced) = (names.live(), names.limit(), counts[NameEvent::Forced]);
        let setting = names.setting();
        let bound_by = match limit {
            0 => "off",
            limit if limit < setting => "budget",
            _ => "setting",
        };
        let (bound_by, total) = (bound_by.to_owned(), held + live);
        let dentry_state = format!("{total} {live} 45 0 {live} {forced}");
        NamesTotals {
            live,
            limit,
            setting,
            bound_by,
            ratios: NameRatios::of(&counts),
            events: events(&counts),
            dentry_state,
        }
    }
}

impl Numbered for NamesRow {
    fn number(&self) -> u64 {
        self.id.into()
    }
}
