//! The log and the memory of edits by rows: for the plan, and for `info`.
//!
//! The log's rows are by age, each a tenth of a limit: flushing the units of the oldest returns its
//! blocks and edits. The memory's rows are by size: the units with most edits return most. A unit
//! counts in the row of its oldest edit.

use std::cmp::Reverse;

use copyhold_types::Txg;

use crate::Pool;
use crate::config::FlushPolicy;
use crate::pace::{Level, Paced, RESOURCES};
use crate::plan::{Row, Rows};
use crate::replay_limit::Replay;
use crate::stock::StockFigures;
use crate::units::{Aim, Pinning, pinning};

/// Rows for a limit: the precision of a plan, and its cost.
const ROWS: u64 = 10;
/// Rows for a limit in figures.
const SHOWN: u64 = 5;

/// The flush policy at work, for `info`.
#[derive(Clone, Debug)]
pub struct FlushFigures {
    pub policy: FlushPolicy,
    /// Commits since the pool was opened, less the one that each round makes.
    pub commits: u64,
    pub rounds: u64,
    /// Units that rounds have flushed, and the most between two commits.
    pub units: u64,
    pub most: u64,
    /// Units per step, by the last plan, and units that are due now.
    pub pace: f64,
    pub due: f64,
    /// Additions of a step, by the last plan, in the order of `levels`.
    pub incoming: [u64; RESOURCES],
    /// Blocks of the log, edits to replay, bytes of edits in memory: their use and their limits.
    pub levels: [(u64, u64); RESOURCES],
    /// The log by age.
    pub rows: Vec<FlushRow>,
    /// Metaslabs with changes that their map does not have, and all metaslabs.
    pub metaslabs: (u64, u64),
    /// Partitions with edits that their base does not have.
    pub partitions: u64,
    /// The recovery when the pool was opened.
    pub replay: Replay,
    /// `None`: changes of space gather in the log.
    pub stock: Option<StockFigures>,
}

/// A part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRow {
    /// The last txg in it.
    pub last: Txg,
    pub blocks: u64,
    pub edits: u64,
    /// Units of which the oldest edit is in it.
    pub units: u64,
}

/// The flush policy's figures as they are now: reads each unit once.
pub fn flush_figures(pool: &Pool) -> FlushFigures {
    let levels = levels(pool, 1.0);
    let rows = log_rows(pool, &levels, SHOWN, &pinning(pool, Aim::Trim, false));
    let Paced { pace, incoming, due, flushed } = pool.flusher.pace.lock().paced();
    FlushFigures {
        policy: pool.limits.flush,
        commits: flushed.commits,
        rounds: flushed.rounds,
        units: flushed.units,
        most: flushed.most,
        pace,
        due,
        incoming,
        levels: levels.map(|level| (level.used, level.limit)),
        rows,
        metaslabs: (pool.space.pins().count() as u64, pool.space.metaslabs().count() as u64),
        partitions: pool.unflushed().partitions.max(0) as u64,
        replay: pool.flusher.replay,
        stock: (!pool.limits.space_log).then(|| pool.flusher.stock.figures()),
    }
}

/// The levels of log and memory, with so large a part of their limits.
pub(crate) fn levels(pool: &Pool, part: f64) -> [Level; RESOURCES] {
    let (blocks, edits) = pool.journal.used();
    let came = pool.journal.came();
    [
        (pool.journal.user_blocks(), blocks, came.blocks),
        (pool.limits.replay_edits, edits, came.edits),
        (pool.limits.delta_bytes, pool.flusher.bytes(), pool.flusher.came()),
    ]
    .map(|(whole, used, came)| Level { limit: (whole as f64 * part) as u64, used, came })
}

/// The rows of log and memory as they are now: reads each unit once.
pub(crate) fn rows(pool: &Pool, levels: &[Level; RESOURCES]) -> Rows {
    let units = pinning(pool, Aim::Trim, false);
    let log = log_rows(pool, levels, ROWS, &units);
    let row = |row: &FlushRow| Row { units: row.units, returns: [row.blocks, row.edits] };
    Rows {
        by_age: log.iter().map(row).collect(),
        units: units.len() as u64,
        by_size: memory_rows(units, levels[2].limit.div_ceil(ROWS)),
    }
}

/// The log in rows of a part of a limit each, with the units that pin them.
fn log_rows(
    pool: &Pool,
    levels: &[Level; RESOURCES],
    rows: u64,
    units: &[Pinning],
) -> Vec<FlushRow> {
    let [blocks, edits, _] = levels.map(|level| level.limit.div_ceil(rows));
    let mut rows = pool.journal.rows(blocks, edits);
    for found in units {
        let at = rows.partition_point(|row| row.last < found.pin);
        // Edits of a txg that is not durable pin none of the rows.
        rows.get_mut(at).into_iter().for_each(|row| row.units += 1);
    }
    rows
}

/// Units with edits in rows of at least so many bytes, the largest units first.
fn memory_rows(mut units: Vec<Pinning>, bytes: u64) -> Vec<Row<1>> {
    units.retain(|found| found.bytes > 0);
    units.sort_by_key(|found| Reverse(found.bytes));
    let mut rows: Vec<Row<1>> = Vec::new();
    for found in units {
        match rows.last_mut().filter(|row| row.returns[0] < bytes) {
            Some(row) => {
                row.units += 1;
                row.returns[0] += found.bytes;
            }
            None => rows.push(Row { units: 1, returns: [found.bytes] }),
        }
    }
    rows
}
