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
use crate::config::FlushPolicy;

/// From where rounds follow each other.
pub(crate) const HURRY: f64 = 0.85;
/// The maximum for one round; more if each unit has few edits, as with a thousand tenants that
/// write a little.
pub(crate) const UNITS_PER_ROUND: usize = 8;
pub(crate) const SMALL_UNITS_PER_ROUND: usize = 64;
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

/// A unit as it is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinning {
    pub(crate) unit: Unit,
    pub(crate) pin: Txg,
    pub(crate) edits: u64,
    /// Memory that its flush returns; metaslabs have none.
    pub(crate) bytes: u64,
    /// A table under others, which keeps them from being flushed.
    is_under: bool,
    /// Its group has used up its part of the memory.
    is_over: bool,
}

impl Pinning {
    /// `memory`: the memory of deltas presses more than the log.
    fn urgency(&self, memory: bool) -> impl Ord + use<> {
        let is_map = matches!(self.unit, Unit::Metaslab(_));
        let edits = if memory && is_map { 0 } else { self.edits };
        let size = if memory { (self.is_over, edits) } else { (false, 0) };
        (!self.is_under, Reverse(size), self.pin, Reverse(edits), self.unit)
    }
}

impl Pool {
    /// The units to flush, the most urgent first: those that pin the log longest, or, if memory
    /// presses more than the log, those with most edits.
    pub(crate) fn units(&self, aim: Aim) -> Vec<(Unit, u64)> {
        let memory = is_memory_first(self);
        let mut found = pinning(self, aim, memory);
        found.sort_by_cached_key(|found| found.urgency(memory));
        found.into_iter().map(|found| (found.unit, found.edits)).collect()
    }
}

/// The units that can be flushed, in no order.
pub(crate) fn pinning(pool: &Pool, aim: Aim, memory: bool) -> Vec<Pinning> {
    let broken = pool.flusher.broken.lock().clone();
    let forked = pool.tables.under();
    let mut units = Vec::new();
    let tables =
        if aim == Aim::Settle { pool.tables.to_settle() } else { pool.tables.with_edits() };
    for table in tables {
        if table.under().is_some() {
            continue;
        }
        let is_under = forked.contains(&table.id());
        let parts = &pool.admission.parts;
        let is_over = memory && table.owner().is_some_and(|owner| parts.was_used_up(&owner));
        for stats in table.stats() {
            let unit = (table.id(), stats.start);
            // Layers pin nothing; there is no hurry to merge them.
            let layers = aim == Aim::Settle && stats.layers > 0 && !broken.contains_key(&unit);
            let pin = stats.pin.or(layers.then(|| pool.open_txg()));
            if let Some(pin) = pin.filter(|_| !stats.flushing) {
                let unit = Unit::Partition(unit.0, unit.1);
                let (edits, bytes) = (stats.edits as u64, stats.delta_bytes as u64);
                units.push(Pinning { unit, pin, edits, bytes, is_under, is_over });
            }
        }
    }
    let not_due = pool.not_due();
    let is_due = |pin: &Pin| !pin.flushing && !not_due.contains(&pin.metaslab);
    units.extend(pool.space.pins().filter(is_due).map(|pin| Pinning {
        unit: Unit::Metaslab(pin.metaslab),
        pin: pin.oldest,
        edits: pin.edits,
        bytes: 0,
        is_under: false,
        is_over: false,
    }));
    units
}

/// Whether a round is due though no plan says so.
pub(crate) fn is_urgent(pool: &Pool) -> bool {
    pool.pressure() > HURRY || pool.wants_rounds() && pool.admission.is_waited_for()
}

/// Whether the units with the most edits are flushed first, and not the oldest.
fn is_memory_first(pool: &Pool) -> bool {
    match pool.limits.flush == FlushPolicy::Even && !is_urgent(pool) {
        true => pool.flusher.pace.lock().is_by_size(),
        false => pool.delta_pressure() > pool.journal.pressure(pool.limits.replay_edits),
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
