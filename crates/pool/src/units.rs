//! The units of a flush round: those that pin the log, the most urgent first.
//!
//! The unit that pins the oldest part of the log goes first, at equal age the one with most edits;
//! if the memory of deltas presses more than the log, the one with most edits, of groups that have
//! used up their part of it before all others (`edit_parts`). Tables under others go before all
//! else, since they keep the tables over them from being flushed.

use std::cmp::Reverse;

use copyhold_space::{MetaslabId, Pin};
use copyhold_types::{Key, TableId, Txg};

use crate::Pool;

/// The maximum for one round; more if each unit has few edits, as with a thousand tenants that
/// write a little.
pub(crate) const UNITS_PER_ROUND: usize = 8;
const SMALL_UNITS_PER_ROUND: usize = 64;
const EDITS_OF_SMALL_UNITS: usize = 4096;

/// The aim of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// To free log and memory, writing little.
    Trim,
    /// To hand tables over, or to release their nodes; the log does not matter.
    Hand,
    /// To settle everything in bases, but for merges that copy shared leaves before they are due.
    Settle,
    /// To leave few layers to snapshots.
    Compact,
}

impl Aim {
    /// Whether the log is shorter afterwards.
    pub(crate) fn trims(self) -> bool {
        !matches!(self, Aim::Hand | Aim::Compact)
    }
}

/// Something that pins the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unit {
    Partition(TableId, Key),
    Metaslab(MetaslabId),
}

impl Pool {
    /// The units to flush, the most urgent first: those that pin the log longest, or, if memory
    /// presses more than the log, those with most edits; metaslabs hold none.
    pub(crate) fn units(&self, aim: Aim) -> Vec<(Unit, u64)> {
        let memory = self.delta_pressure() > self.journal.pressure(self.limits.replay_edits);
        let urgency = |pin: Txg, edits: u64, is_over: bool| match memory {
            true => (Reverse((is_over, edits)), pin.get(), Reverse(edits)),
            false => (Reverse((false, 0)), pin.get(), Reverse(edits)),
        };
        let broken = self.flusher.broken.lock().clone();
        let forked = self.tables.under();
        let mut units = Vec::new();
        let tables = if aim == Aim::Settle { self.tables.all() } else { self.tables.with_edits() };
        for table in tables {
            if table.under().is_some() {
                continue;
            }
            // A table under others keeps them from being flushed.
            let first = !forked.contains(&table.id());
            let parts = &self.admission.parts;
            let is_over = memory && table.owner().is_some_and(|owner| parts.was_used_up(&owner));
            for stats in table.stats() {
                let unit = (table.id(), stats.start);
                // Layers pin nothing; there is no hurry to merge them.
                let layers = aim == Aim::Settle && stats.layers > 0 && !broken.contains_key(&unit);
                let pin = stats.pin.or(layers.then(|| self.open_txg()));
                if let Some(pin) = pin.filter(|_| !stats.flushing) {
                    let edits = stats.edits as u64;
                    let unit = Unit::Partition(unit.0, unit.1);
                    units.push(((first, urgency(pin, edits, is_over)), unit, edits));
                }
            }
        }
        let not_due = self.not_due();
        let is_due = |pin: &Pin| !pin.flushing && !not_due.contains(&pin.metaslab);
        for pin in self.space.pins().filter(is_due) {
            let edits = if memory { 0 } else { pin.edits };
            let urgency = (true, urgency(pin.oldest, edits, false));
            units.push((urgency, Unit::Metaslab(pin.metaslab), pin.edits));
        }
        units.sort();
        units.into_iter().map(|(_, unit, edits)| (unit, edits)).collect()
    }
}

/// As many of the first units as make one round.
pub(crate) fn one_round(units: Vec<(Unit, u64)>) -> Vec<Unit> {
    let mut round = Vec::new();
    let mut sum = 0;
    for (unit, edits) in units.into_iter().take(SMALL_UNITS_PER_ROUND) {
        sum += edits;
        if round.len() >= UNITS_PER_ROUND && sum > EDITS_OF_SMALL_UNITS as u64 {
            break;
        }
        round.push(unit);
    }
    round
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_eight_units_or_more_of_small_ones() {
        let round = |edits: u64| {
            let unit = |id| (Unit::Partition(TableId(id), Key::MIN), edits);
            one_round((0..100).map(unit).collect()).len()
        };
        assert_eq!((round(0), round(60), round(200), round(100_000)), (64, 64, 20, 8));
    }
}
