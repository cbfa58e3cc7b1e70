//! Work before a limit refuses a request: at a bounded rate for each quota group, and for all.
//!
//! Problem.  Unflushed edits count by an estimate that is too high, and write-back frees replaced
//!           blocks. So before a limit refuses a request, the edits of its owner are flushed, and
//!           before it refuses a write, all dirty data is written (R22). A tenant at its limit that
//!           tries again and again repeats this work, and all tenants share the device. A tenant
//!           may have thousands of subvolumes.
//! Idea.     Work that makes room has its use. Work that makes none is counted for the group that
//!           refuses, and beyond [`FUTILE_MAX`] times in a [`PERIOD`] the sums decide as they are.
//!           A rollback copies the limit of a subvolume, so a tenant may have thousands of groups
//!           that refuse, too: the work of all groups together is counted as well.
//!           If few groups repeat futile work, they leave [`FIRST_MAX`] of [`POOL_MAX`] to the
//!           others: a group without futile work in its period is refused early only if many
//!           groups work at once.
//! In core.  A count for the pool, and one for each of the last [`GROUPS`] groups that refused. A
//!           group that is forgotten has a new allowance; the count of the pool remains.
//!
//! SETTLE-P1  One request of a group works at a time. The others look again at the limit when
//!            their turn comes, so none is refused while work makes room for it.
//! SETTLE-P2  A deletion may make more room than its work costs: each one of an owner allows one
//!            work more after the works that were futile before it. So beyond the bound, a work
//!            costs its owner a deletion.
//! SETTLE-P3  All work of a request is counted: each further flush or write-back for the same
//!            request begins with a turn, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_sync::{Mutex, of};
use copyhold_types::Nanos;
use copyhold_volume::quota::GroupId;

/// How often in a period work for a group may make no room.
const FUTILE_MAX: u64 = 4;
const PERIOD: Duration = Duration::from_secs(1);
/// As [`FUTILE_MAX`], for all groups together: a part of a disk's time.
const POOL_MAX: u64 = 64;
/// The part of [`POOL_MAX`] that only the first futile works of groups in their periods may take.
const FIRST_MAX: u64 = 32;
/// Groups that are remembered.
const GROUPS: usize = 256;

/// The paces of a pool's groups.
#[derive(Default)]
pub(crate) struct RefusalPaces {
    groups: Mutex<Groups, of::Refusals>,
    flush: Arc<Count>,
    write_back: Arc<Count>,
}

#[derive(Default)]
struct Groups {
    paces: BTreeMap<GroupId, (u64, Arc<RefusalPace>)>,
    /// The number of the last use of any.
    uses: u64,
}

/// The work of one group.
pub(crate) struct RefusalPace {
    pub(crate) flush: Pace,
    pub(crate) write_back: Pace,
}

/// Deletions of an owner since a limit refused it last.
#[derive(Default)]
pub(crate) struct Deletions(AtomicU64);

impl Deletions {
    pub(crate) fn note_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl RefusalPaces {
    /// That of `group`, which refuses a request of an owner with these deletions (SETTLE-P2).
    pub(crate) fn of(&self, group: GroupId, deletions: &Deletions) -> Arc<RefusalPace> {
        let pace = self.pace(group);
        let more = deletions.0.swap(0, Relaxed);
        pace.flush.allow(more);
        pace.write_back.allow(more);
        pace
    }

    fn pace(&self, group: GroupId) -> Arc<RefusalPace> {
        let mut groups = self.groups.lock();
        groups.uses += 1;
        let now = groups.uses;
        if let Some((used, pace)) = groups.paces.get_mut(&group) {
            *used = now;
            return pace.clone();
        }
        if groups.paces.len() == GROUPS {
            let oldest = groups.paces.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = *oldest.expect("there are many").0;
            groups.paces.remove(&oldest);
        }
        let [flush, write_back] = [&self.flush, &self.write_back].map(Pace::new);
        let pace = Arc::new(RefusalPace { flush, write_back });
        groups.paces.insert(group, (now, pace.clone()));
        pace
    }
}

/// Work of a period, without the work that made room.
#[derive(Default)]
struct Count {
    /// When the period began.
    since: AtomicU64,
    futile: AtomicU64,
}

impl Count {
    fn at(&self, now: Nanos) -> u64 {
        if now.saturating_sub(self.since.load(Relaxed)) >= PERIOD.as_nanos() as Nanos {
            self.since.store(now, Relaxed);
            self.futile.store(0, Relaxed);
        }
        self.futile.load(Relaxed)
    }

    /// Counts one more, unless there are `most`.
    fn add_below(&self, most: u64) -> bool {
        let more = |count: u64| (count < most).then_some(count + 1);
        self.futile.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// How many there were of these.
    fn subtract(&self, works: u64) -> u64 {
        let less = |count: u64| Some(count.saturating_sub(works));
        let was = self.futile.fetch_update(Relaxed, Relaxed, less).unwrap_or_default();
        was.min(works)
    }
}

/// One kind of work of a group.
pub(crate) struct Pace {
    turn: FifoMutex,
    count: Count,
    /// Of all groups.
    pool: Arc<Count>,
}

/// The right to work (SETTLE-P1).
pub(crate) struct Turn<'p> {
    pace: &'p Pace,
    _turn: FifoMutexGuard<'p>,
}

impl Pace {
    fn new(pool: &Arc<Count>) -> Pace {
        Pace { turn: FifoMutex::new(), count: Count::default(), pool: pool.clone() }
    }

    pub(crate) async fn turn(&self) -> Turn<'_> {
        Turn { pace: self, _turn: self.turn.lock().await }
    }

    fn allow(&self, works: u64) {
        self.pool.subtract(self.count.subtract(works));
    }
}

impl Turn<'_> {
    /// Whether the group may work now; the work counts until [`Self::note_room`].
    pub(crate) fn begin(&self, now: Nanos) -> bool {
        let Pace { count, pool, .. } = self.pace;
        let done = count.at(now);
        pool.at(now);
        let most = if done == 0 { POOL_MAX } else { POOL_MAX - FIRST_MAX };
        done < FUTILE_MAX && pool.add_below(most) && count.add_below(FUTILE_MAX)
    }

    /// The work made room for the request.
    pub(crate) fn note_room(&self) {
        self.pace.allow(1);
    }
}

#[cfg(test)]
mod tests {
    use copyhold_runtime::SeededRuntime;

    use super::*;

    const SECOND: Nanos = PERIOD.as_nanos() as Nanos;

    fn group(id: u64) -> GroupId {
        GroupId::new(1, id).unwrap()
    }

    /// Futile works of this group that are begun, of 100 that are wanted.
    async fn works(paces: &RefusalPaces, id: u64, now: Nanos) -> u64 {
        let pace = paces.of(group(id), &Deletions::default());
        let mut works = 0;
        for _ in 0..100 {
            works += u64::from(pace.flush.turn().await.begin(now));
        }
        works
    }

    #[test]
    fn work_that_makes_no_room_is_bounded() {
        SeededRuntime::new(1).block_on(async {
            let paces = RefusalPaces::default();
            let deletions = Deletions::default();
            let pace = paces.of(group(1), &deletions);
            for now in 0..100 {
                let turn = pace.flush.turn().await;
                assert!(turn.begin(SECOND + now), "it makes room");
                turn.note_room();
            }
            assert_eq!(works(&paces, 1, SECOND).await, FUTILE_MAX);
            deletions.note_one();
            assert!(paces.of(group(1), &deletions).flush.turn().await.begin(SECOND), "SETTLE-P2");
            assert_eq!(works(&paces, 1, SECOND + 1).await, 0);
            assert_eq!(works(&paces, 1, 3 * SECOND).await, FUTILE_MAX);
        });
    }

    #[test]
    fn the_first_work_of_a_group_has_a_share_of_the_pool() {
        SeededRuntime::new(1).block_on(async {
            let paces = RefusalPaces::default();
            let mut begun = 0;
            for id in 1..17 {
                begun += works(&paces, id, SECOND).await;
            }
            assert!(begun < POOL_MAX - 16, "{begun}");
            assert_eq!(works(&paces, 99, SECOND).await, 1, "it has done none");
            for id in 100..1000 {
                begun += works(&paces, id, SECOND).await;
            }
            assert_eq!(begun + 1, POOL_MAX);
            assert!(paces.groups.lock().paces.len() <= GROUPS);
            assert_eq!(works(&paces, 99, 2 * SECOND).await, FUTILE_MAX);
        });
    }
}
