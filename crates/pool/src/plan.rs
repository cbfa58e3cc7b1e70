//! How much to flush, so that no limit is passed and no commit carries much more than another.
//!
//! Problem.  A unit that pins the oldest batch of the log pins all batches behind it. A policy that
//!           flushes nothing until a limit is near flushes many units at once then, and every
//!           writer waits for this burst.
//! Idea.     (OpenZFS, log space maps.) The log is a few rows by age. A row says how many units
//!           pin it, and how much of each resource (blocks of the log, edits to replay, memory)
//!           returns when they are flushed. Each resource fills at a known rate. This gives the
//!           step (a commit, say) at which a limit is passed unless the oldest row, the two
//!           oldest, … are flushed by then: `units / steps` of them are due per step. The largest
//!           of these fractions is the pace.
//! Fraction. The pace may be less than a unit per step; the fractions add up. So thousands of
//!           fsyncs a second, each a commit, do not flush a unit each.
//!
//! PLAN-L1   Flushing `pace` units per step, oldest row first, passes no limit while each step adds
//!           as much as the last ones.
//! PLAN-L2   The pace is the least for which PLAN-L1 holds.

/// A part of the log, or of memory, that returns when its units are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row<const R: usize> {
    /// Units that pin it, and are to be flushed.
    pub(crate) units: u64,
    /// The amount of each resource that returns.
    pub(crate) returns: [u64; R],
}

/// The rows of log and memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// By age: the blocks of the log and the edits to replay that return.
    pub(crate) by_age: Vec<Row<2>>,
    /// By size: the bytes that return.
    pub(crate) by_size: Vec<Row<1>>,
    pub(crate) units: u64,
}

/// A resource that fills with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Resource {
    /// The rest up to the limit; negative beyond it.
    pub(crate) room: i64,
    /// The amount that a step adds.
    pub(crate) incoming: u64,
}

impl Resource {
    /// Steps until the room is negative; `None` if the steps add nothing.
    fn lasts(&self) -> Option<u64> {
        (self.incoming > 0).then(|| self.room as u64 / self.incoming + 1)
    }
}

/// Units that are due per step, given rows in the order in which they are flushed.
///
/// The first step is under way: its amount is subtracted from the room first.
pub(crate) fn pace<const R: usize>(mut resources: [Resource; R], rows: &[Row<R>]) -> f64 {
    resources.iter_mut().for_each(|resource| resource.room -= resource.incoming as i64);
    let (mut pace, mut needed, mut steps) = (0.0_f64, 0, 1);
    for row in rows {
        if resources.iter().all(|resource| resource.room >= 0) {
            // If the steps add nothing, nothing is due.
            let Some(lasts) = resources.iter().filter_map(Resource::lasts).min() else { break };
            let taken = |incoming: u64| i64::try_from(lasts * incoming).unwrap_or(i64::MAX);
            resources.iter_mut().for_each(|r| r.room = r.room.saturating_sub(taken(r.incoming)));
            steps += lasts;
        }
        needed += row.units;
        pace = pace.max(needed as f64 / steps as f64);
        for (resource, returns) in resources.iter_mut().zip(row.returns) {
            resource.room = resource.room.saturating_add(returns as i64);
        }
    }
    pace
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Logs, dirty metaslabs and blocks of the reference's rows.
    const ROWS: [(u64, u64, u64); 6] =
        [(1, 1, 2), (1, 2, 6), (1, 2, 2), (1, 2, 4), (1, 10, 6), (1, 2, 4)];

    /// As many as the published heuristic flushes, which counts logs as a second resource.
    fn published(limit: i64, incoming: u64, logs_max: i64) -> u64 {
        let rows: Vec<Row<2>> = ROWS
            .iter()
            .map(|&(logs, units, blocks)| Row { units, returns: [blocks, logs] })
            .collect();
        let blocks = Resource { room: limit - 24, incoming };
        // There, the log that is being written counts among those that are.
        let logs = Resource { room: logs_max - ROWS.len() as i64 + 1, incoming: 1 };
        (pace([blocks, logs], &rows).ceil() as u64).max(1)
    }

    #[test]
    fn the_published_vectors_hold() {
        assert_eq!(published(32, 4, 1000), 3);
        assert_eq!(published(32, 0, 1000), 1);
        assert_eq!(published(16, 4, 1000), 9);
        assert_eq!(published(1000, 4, 6), 3);
    }

    #[test]
    fn nothing_is_due_without_additions_or_without_units() {
        let idle = Resource { room: 10, incoming: 0 };
        assert_eq!(pace([idle], &[Row { units: 5, returns: [3] }]), 0.0);
        assert_eq!(pace([Resource { room: 10, incoming: 1 }], &[]), 0.0);
    }

    #[test]
    fn rows_behind_the_last_unit_add_nothing() {
        let filling = Resource { room: 100, incoming: 10 };
        let pinned = Row { units: 5, returns: [50] };
        let unpinned = Row { units: 0, returns: [50] };
        let alone = pace([filling], &[pinned]);
        assert_eq!(pace([filling], &[pinned, unpinned, unpinned]), alone);
        assert!(pace([filling], &[unpinned, pinned]) < alone);
    }

    #[test]
    fn beyond_a_limit_the_oldest_row_is_due_at_once() {
        let beyond = Resource { room: -5, incoming: 1 };
        assert_eq!(pace([beyond], &[Row { units: 7, returns: [9] }]), 7.0);
    }

    #[test]
    fn a_storm_of_small_commits_does_not_flush_a_unit_for_each() {
        let storm = Resource { room: 10_000, incoming: 1 };
        let pace = pace([storm], &[Row { units: 100, returns: [5_000] }]);
        assert!((0.009..0.011).contains(&pace), "{pace}");
    }

    proptest! {
        /// PLAN-L1, PLAN-L2: flushed at this pace, no limit is passed; at a little less, one is.
        #[test]
        fn the_pace_is_enough_and_no_more_than_that(
            rows in proptest::collection::vec((1_u64..50, 0_u64..200, 0_u64..200), 1..12),
            rooms in (0_i64..1000, 0_i64..1000),
            incoming in (1_u64..50, 1_u64..50),
        ) {
            let rows: Vec<Row<2>> =
                rows.iter().map(|&(units, a, b)| Row { units, returns: [a, b] }).collect();
            let resources = [
                Resource { room: rooms.0 + incoming.0 as i64, incoming: incoming.0 },
                Resource { room: rooms.1 + incoming.1 as i64, incoming: incoming.1 },
            ];
            let pace = pace(resources, &rows);
            prop_assert!(holds(resources, &rows, pace));
            prop_assert!(!holds(resources, &rows, pace * 0.999 - 1e-9));
        }
    }

    /// Whether each row is flushed before a resource is used up, played commit by commit.
    fn holds(mut resources: [Resource; 2], rows: &[Row<2>], pace: f64) -> bool {
        let mut commits = 0;
        let mut commit = |resources: &mut [Resource; 2]| {
            resources.iter_mut().for_each(|resource| resource.room -= resource.incoming as i64);
            commits += 1;
            commits
        };
        let mut gone = commit(&mut resources);
        let mut needed = 0;
        rows.iter().all(|row| {
            while resources.iter().all(|resource| resource.room >= 0) {
                gone = commit(&mut resources);
            }
            needed += row.units;
            let returned = resources.iter_mut().zip(row.returns);
            returned.for_each(|(resource, more)| resource.room += more as i64);
            // Fractions add up with an error.
            pace * f64::from(gone) + 1e-9 >= needed as f64
        })
    }
}
