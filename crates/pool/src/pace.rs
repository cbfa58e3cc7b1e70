//! The units that are due: the pace of [`plan`](crate::plan), followed as limits fill.
//!
//! Problem.  A plan needs the units of all tables by age. To collect them is too much work for each
//!           of thousands of commits a second. Between two plans, units must become due evenly; but
//!           commits do not measure time: one adds a block to the log, the next a gigabyte.
//! Idea.     A step is the time in which one of the resources fills a 64th of its limit. A plan
//!           holds for one step; the next plan uses the rates of that step. Each part of a step
//!           adds its part of the pace to the units that are due. A round flushes them when they
//!           are enough.
//! Rounds.   A round flushes the device twice. If a commit adds a third of a unit or more, a round
//!           follows each commit that completes a unit. If it adds less, a round waits until an
//!           eighth of the units that have edits is due: a storm of fsyncs pays few rounds.
//!
//! DUE-E1   Between two plans, the units that are due grow in proportion to the resource that fills
//!          fastest. A commit that adds little to each resource adds little to them.
//! DUE-E2   At most as many units are due as the last plan found.
//! DUE-E3   If commits bring the same each time, and a third of a unit or more, then between two
//!          commits at most three times the mean is flushed.

use crate::plan::{Resource, Rows, pace};
use crate::units::SMALL_UNITS_PER_ROUND;

/// Steps in which a limit fills.
const STEPS: u64 = 64;
/// The rounds that flush all units once, where units gather.
const ROUNDS: u64 = 8;
/// The units per commit below which units gather to a round.
const GATHERED_BELOW: f64 = 1.0 / 3.0;
/// The commits over which the units per commit are averaged.
const COMMITS: f64 = 8.0;

/// Blocks of the log, edits to replay, and bytes of edits in memory.
pub(crate) const RESOURCES: usize = 3;

/// A resource: its limit, its use, and the sum of all additions to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) came: u64,
}

/// Sums of all additions, by resource.
type Came = [u64; RESOURCES];

#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The sums at the last plan, and at the last call.
    planned: Option<Came>,
    last: Came,
    /// Units per step, and the additions of a step, by the last plan.
    pace: f64,
    incoming: Came,
    due: f64,
    /// Units that the last plan found, and whether memory requires them more than the log.
    units: u64,
    by_size: bool,
    /// Units that became due since the last commit, and per commit on average.
    gained: f64,
    per_commit: f64,
    flushed: Flushed,
}

/// The rounds since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Commits, less the one that each round makes.
    pub(crate) commits: u64,
    pub(crate) rounds: u64,
    pub(crate) units: u64,
    /// Units since the last commit, and the most between two commits.
    since_commit: u64,
    pub(crate) most: u64,
}

/// The plan at work, for figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paced {
    pub(crate) pace: f64,
    pub(crate) incoming: Came,
    pub(crate) due: f64,
    pub(crate) flushed: Flushed,
}

impl Pace {
    /// Adds the units for all additions since the last call. Returns the units of the round that is
    /// due, or 0. `rows` is called when a new plan is made.
    pub(crate) fn advance(
        &mut self,
        levels: [Level; RESOURCES],
        rows: impl FnOnce() -> Rows,
    ) -> u64 {
        let came = levels.map(|level| level.came);
        let last = std::mem::replace(&mut self.last, came);
        match self.planned {
            // The second call is the first that knows a rate.
            None => self.planned = Some(came),
            Some(planned) => {
                let more = self.pace * steps(&levels, &last);
                self.due += more;
                self.gained += more;
                let since = steps(&levels, &planned);
                if since >= 1.0 {
                    self.plan(since, &planned, &levels, rows());
                    self.planned = Some(came);
                }
            }
        }
        self.due = self.due.min(self.units as f64);
        if self.due >= self.round() { self.due as u64 } else { 0 }
    }

    /// `all`: the commits since the pool was opened, of rounds, too.
    pub(crate) fn note_commits(&mut self, all: u64) {
        let Flushed { commits, rounds, since_commit, .. } = &mut self.flushed;
        let new = all.saturating_sub(*rounds).saturating_sub(*commits);
        if new > 0 {
            *commits += new;
            *since_commit = 0;
            let share = (new as f64 / COMMITS).min(1.0);
            self.per_commit += (self.gained / new as f64 - self.per_commit) * share;
            self.gained = 0.0;
        }
    }

    /// A round has flushed so many units. After a round that flushed none, units become due anew:
    /// no commit repeats it at once.
    pub(crate) fn note_round(&mut self, units: u64) {
        self.due = if units == 0 { 0.0 } else { (self.due - units as f64).max(0.0) };
        let Flushed { rounds, units: all, since_commit, most, .. } = &mut self.flushed;
        *rounds += u64::from(units > 0);
        *all += units;
        *since_commit += units;
        *most = (*most).max(*since_commit);
    }

    /// Whether the units that are due are those with the most edits, and not the oldest: the plan
    /// counts on this order (PLAN-L1).
    pub(crate) fn is_by_size(&self) -> bool {
        self.by_size
    }

    pub(crate) fn paced(&self) -> Paced {
        let Pace { pace, incoming, due, flushed, .. } = *self;
        Paced { pace, incoming, due, flushed }
    }

    /// The units that make a round.
    fn round(&self) -> f64 {
        let gathered = (self.units / ROUNDS).clamp(1, SMALL_UNITS_PER_ROUND as u64) as f64;
        match self.per_commit < GATHERED_BELOW {
            true => gathered,
            false => self.per_commit.floor().clamp(1.0, gathered),
        }
    }

    /// `planned`: the sums at the last plan, so many steps ago.
    fn plan(&mut self, since: f64, planned: &Came, levels: &[Level; RESOURCES], rows: Rows) {
        self.incoming = std::array::from_fn(|at| {
            ((levels[at].came - planned[at]) as f64 / since).ceil() as u64
        });
        let resource = |at: usize| Resource {
            room: levels[at].limit as i64 - levels[at].used as i64,
            incoming: self.incoming[at],
        };
        let log = pace([resource(0), resource(1)], &rows.by_age);
        let memory = pace([resource(2)], &rows.by_size);
        (self.pace, self.by_size) = (log.max(memory), memory > log);
        self.units = rows.units;
    }
}

/// Steps of the resource that has filled fastest since `before`.
fn steps(levels: &[Level; RESOURCES], before: &Came) -> f64 {
    let filled = |(level, before): (&Level, &u64)| {
        (level.came - before) as f64 / (level.limit.max(STEPS) / STEPS) as f64
    };
    levels.iter().zip(before).map(filled).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Row;

    const LIMIT: u64 = 64_000;

    /// A log that is half full; each tenth of it is pinned by eight units.
    fn rows() -> Rows {
        let row = Row { units: 8, returns: [LIMIT / 20, 0] };
        Rows { by_age: vec![row; 10], by_size: Vec::new(), units: 80 }
    }

    /// Only the log's blocks fill.
    fn levels(used: u64, came: u64) -> [Level; RESOURCES] {
        let idle = Level { limit: LIMIT, ..Level::default() };
        [Level { limit: LIMIT, used, came }, idle, idle]
    }

    /// The rounds that are due while a limit fills in so many parts, each with a commit.
    fn rounds(pace: &mut Pace, parts: u64) -> Vec<u64> {
        let part = LIMIT / parts;
        let mut commits = 0;
        let due = (1..=parts).map(|number| {
            commits += 1;
            pace.note_commits(commits);
            let due = pace.advance(levels(LIMIT / 2, number * part), rows);
            if due > 0 {
                pace.note_round(due);
                commits += 1;
            }
            due
        });
        due.filter(|&due| due > 0).collect()
    }

    #[test]
    fn rounds_are_even_and_do_not_depend_on_the_size_of_commits() {
        let mut found = Vec::new();
        for parts in [64, 1000, 16_000] {
            let rounds = rounds(&mut Pace::default(), parts);
            let (most, sum) = (rounds.iter().max().unwrap(), rounds.iter().sum::<u64>());
            assert!(*most <= 10, "{parts}: {rounds:?}");
            found.push(sum);
        }
        // Half of the limit is left, and all rows return as much: 80 units in about 64 steps.
        assert!(found.iter().all(|sum| (75..=90).contains(sum)), "{found:?}");
    }

    #[test]
    fn a_storm_of_fsyncs_gathers_units_to_rounds() {
        let rounds = rounds(&mut Pace::default(), 16_000);
        assert!(rounds.len() <= 20, "{rounds:?}");
        assert!(rounds.iter().all(|&units| units >= 10), "{rounds:?}");
    }

    #[test]
    fn no_more_is_due_than_there_is() {
        let mut pace = Pace::default();
        rounds(&mut pace, 64);
        assert_eq!(pace.advance(levels(LIMIT, 100 * LIMIT), rows), 80);
    }

    #[test]
    fn nothing_is_due_before_the_rate_is_known() {
        let mut pace = Pace::default();
        assert_eq!(pace.advance(levels(LIMIT, 100 * LIMIT), || panic!("no plan")), 0);
        assert_eq!(pace.advance(levels(LIMIT, 100 * LIMIT), || panic!("no plan")), 0);
    }

    #[test]
    fn a_round_that_flushed_nothing_is_not_due_again_at_once() {
        let mut pace = Pace::default();
        rounds(&mut pace, 64);
        assert!(pace.advance(levels(LIMIT, 2 * LIMIT), rows) > 0);
        pace.note_round(0);
        assert_eq!(pace.advance(levels(LIMIT, 2 * LIMIT + LIMIT / 1000), rows), 0);
    }

    /// Its partition, say, lies on a bad block, and each round flushes nothing.
    #[test]
    fn a_unit_that_cannot_be_flushed_does_not_make_more_units_due() {
        let mut pace = Pace::default();
        let stuck = || Rows {
            by_age: vec![Row { units: 1, returns: [LIMIT, 0] }],
            by_size: Vec::new(),
            units: 3,
        };
        let mut rounds = 0;
        for step in 0..100 * STEPS {
            let due = pace.advance(levels(2 * LIMIT, step * LIMIT / STEPS), stuck);
            assert!(due <= 3, "{due}");
            if due > 0 {
                rounds += 1;
                pace.note_round(0);
            }
        }
        assert!(rounds > 0 && rounds <= 100 * STEPS, "{rounds}");
    }

    #[test]
    fn a_plan_is_made_once_a_step() {
        let (mut pace, mut plans) = (Pace::default(), 0);
        for number in 0..=1000 {
            pace.advance(levels(0, number * LIMIT / 1000), || {
                plans += 1;
                rows()
            });
        }
        assert!((60..=64).contains(&plans), "{plans}");
    }

    /// A log, and units that are written again with each commit: a plain model of a pool.
    struct Model {
        /// By unit, the position in the log of its oldest edit.
        pins: Vec<u64>,
        limits: Came,
        end: u64,
        edits_per_block: u64,
        /// Edits of a unit in memory take so many bytes for each block since its flush.
        bytes_per_block: u64,
    }

    impl Model {
        fn used(&self) -> Came {
            let oldest = self.pins.iter().min().copied().unwrap_or(self.end);
            let blocks = self.end - oldest;
            let bytes = self.pins.iter().map(|pin| self.end - pin).sum::<u64>();
            let bytes = bytes * self.bytes_per_block / self.pins.len() as u64;
            [blocks, blocks * self.edits_per_block, bytes]
        }

        fn levels(&self) -> [Level; RESOURCES] {
            let bytes = self.bytes_per_block;
            let came = [self.end, self.end * self.edits_per_block, self.end * bytes];
            let used = self.used();
            std::array::from_fn(|at| Level {
                limit: self.limits[at],
                used: used[at],
                came: came[at],
            })
        }

        fn rows(&self) -> Rows {
            let oldest = self.pins.iter().min().copied().unwrap_or(self.end);
            let width = (self.limits[0] / 10).max(1);
            let rows = (self.end - oldest).div_ceil(width).max(1);
            let row = |at: u64| {
                let from = oldest + at * width;
                let blocks = width.min(self.end - from.min(self.end));
                let units = self.pins.iter().filter(|&&pin| (pin - oldest) / width == at);
                let returns = [blocks, blocks * self.edits_per_block];
                Row { units: units.count() as u64, returns }
            };
            let mut sizes: Vec<u64> = self.pins.iter().map(|pin| self.end - pin).collect();
            sizes.sort_by_key(|size| std::cmp::Reverse(*size));
            let size = |size: &u64| Row {
                units: 1,
                returns: [size * self.bytes_per_block / self.pins.len() as u64],
            };
            Rows {
                by_age: (0..rows).map(row).collect(),
                by_size: sizes.iter().map(size).collect(),
                units: self.pins.len() as u64,
            }
        }

        fn flush(&mut self, units: u64) {
            self.pins.sort();
            let end = self.end;
            self.pins.iter_mut().take(units as usize).for_each(|pin| *pin = end);
        }
    }

    proptest! {
        /// Neither blocks, edits nor memory pass their limit, at any rate and any size of commits
        /// up to a step; the hundredth part of a limit covers the parts of units and of rows.
        #[test]
        fn no_resource_passes_its_limit(
            units in 1_usize..60,
            limit in 20_000_u64..200_000,
            per_block in (1_u64..20, 1_u64..50),
            room in (1_u64..30, 1_u64..60),
            commit in 1_u64..250,
        ) {
            let limits = [limit, limit * room.0 / 2, limit * room.1 / 2];
            let step = |limit: u64, per_block: u64| (limit / STEPS / per_block).max(1);
            let commit = commit.min(step(limits[1], per_block.0)).min(step(limits[2], per_block.1));
            let mut model = Model {
                pins: vec![0; units],
                limits,
                end: 0,
                edits_per_block: per_block.0,
                bytes_per_block: per_block.1,
            };
            let (mut pace, mut commits) = (Pace::default(), 0);
            while model.end < 4 * limit {
                model.end += commit;
                commits += 1;
                pace.note_commits(commits);
                let due = pace.advance(model.levels(), || model.rows());
                if due > 0 {
                    model.flush(due);
                    pace.note_round(due);
                    commits += 1;
                }
                for (used, limit) in model.used().iter().zip(limits) {
                    prop_assert!(used * 20 <= limit * 23, "{used} of {limit}, {pace:?}");
                }
            }
        }
    }
}
