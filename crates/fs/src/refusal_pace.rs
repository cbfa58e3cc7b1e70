//! Work before a limit refuses a request: at a bounded rate for each quota group, each tenant, and
//! the pool.
//!
//! Problem.  Unflushed edits count by an estimate that is too high, and write-back frees replaced
//!           blocks. So before a limit refuses a request, the edits of its owner are flushed, and
//!           before it refuses a write, all dirty data is written (R22). A tenant at its limit that
//!           tries again and again repeats this work, and all tenants share the device. A tenant
//!           may have thousands of subvolumes.
//! Idea.     Work that makes room has its use. Work that makes none is counted for the group that
//!           refuses, and beyond [`FUTILE_MAX`] times in a [`PERIOD`] the sums decide as they are.
//!           A rollback copies the limit of a subvolume, so a tenant may have thousands of groups
//!           that refuse, too: the work for all groups of a tenant is counted as well, and that of
//!           all tenants together. Of [`POOL_MAX`], [`FIRST_MAX`] are for tenants without futile
//!           work in their period: such a tenant is refused early only if more than that many
//!           tenants are in one period. A tenant is the outermost subvolume (`tenant_of`)
//!           below the root subvolume, with all inside.
//! In core.  A count for the pool, and one for each of the last [`REMEMBERED`] groups and tenants
//!           that were refused. One that is forgotten has a new allowance; the count of the pool
//!           remains.
//!
//! SETTLE-P1  One request of a group works at a time. The others look again at the limit when
//!            their turn comes, so none is refused while work makes room for it.
//! SETTLE-P2  A deletion may make more room than its work costs: each one of an owner takes one
//!            futile work off the counts of its group, its tenant and the pool. So beyond the
//!            bound, a work costs its owner a deletion.
//! SETTLE-P3  All work of a request is counted: each further flush or write-back for the same
//!            request begins with a turn, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use copyhold_runtime::{FifoMutex, FifoMutexGuard};
use copyhold_sync::{Mutex, of};
use copyhold_types::{Nanos, SubvolId};
use copyhold_volume::quota::GroupId;

/// How often in a period work for a group may make no room.
const FUTILE_MAX: u64 = 4;
const PERIOD: Duration = Duration::from_secs(1);
/// As [`FUTILE_MAX`], for all groups of a tenant together.
const TENANT_MAX: u64 = 16;
/// As [`FUTILE_MAX`], for all tenants together: a part of a disk's time.
const POOL_MAX: u64 = 64;
/// The part of [`POOL_MAX`] that only the first futile works of tenants in their periods may take.
const FIRST_MAX: u64 = 32;
/// Groups, and tenants, that are remembered.
const REMEMBERED: usize = 256;

/// The paces of a pool's groups and tenants.
#[derive(Default)]
pub(crate) struct RefusalPaces {
    remembered: Mutex<Remembered, of::Refusals>,
    pool: PerKind<Arc<Count>>,
}

#[derive(Default)]
struct Remembered {
    groups: Recent<GroupId, PerKind<Arc<GroupWork>>>,
    tenants: Recent<SubvolId, PerKind<Arc<Count>>>,
}

/// One for each kind of work.
#[derive(Clone, Default)]
pub(crate) struct PerKind<T> {
    pub(crate) flush: T,
    pub(crate) write_back: T,
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
    /// The paces of `group` for requests of `tenant`. The owner that it refuses had these deletions
    /// (SETTLE-P2).
    pub(crate) fn of(
        &self,
        group: GroupId,
        tenant: SubvolId,
        deletions: &Deletions,
        now: Nanos,
    ) -> PerKind<Pace> {
        let (group, tenant) = {
            let mut remembered = self.remembered.lock();
            (remembered.groups.of(group), remembered.tenants.of(tenant))
        };
        let PerKind { flush, write_back } = self.pool.clone();
        let flush = Pace { group: group.flush, tenant: tenant.flush, pool: flush };
        let write_back =
            Pace { group: group.write_back, tenant: tenant.write_back, pool: write_back };
        let more = deletions.0.swap(0, Relaxed);
        flush.allow(more, now);
        write_back.allow(more, now);
        PerKind { flush, write_back }
    }
}

/// A map that keeps the [`REMEMBERED`] keys that were used last.
struct Recent<K, V> {
    /// With the number of the last use.
    values: BTreeMap<K, (u64, V)>,
    uses: u64,
}

impl<K: Copy + Ord, V: Clone + Default> Recent<K, V> {
    fn of(&mut self, key: K) -> V {
        if self.values.len() == REMEMBERED && !self.values.contains_key(&key) {
            let oldest = self.values.iter().min_by_key(|(_, (used, _))| *used);
            let oldest = *oldest.expect("there are many").0;
            self.values.remove(&oldest);
        }
        self.uses += 1;
        let (used, value) = self.values.entry(key).or_default();
        *used = self.uses;
        value.clone()
    }
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent { values: BTreeMap::new(), uses: 0 }
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

    fn add(&self) {
        self.futile.fetch_add(1, Relaxed);
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

/// One kind of work for a group.
#[derive(Default)]
struct GroupWork {
    turn: FifoMutex,
    count: Count,
}

/// One kind of work for a group, by requests of a tenant.
pub(crate) struct Pace {
    group: Arc<GroupWork>,
    /// Of this tenant for all groups.
    tenant: Arc<Count>,
    /// Of all tenants.
    pool: Arc<Count>,
}

/// The right to work (SETTLE-P1).
pub(crate) struct Turn<'p> {
    pace: &'p Pace,
    _turn: FifoMutexGuard<'p>,
}

impl Pace {
    pub(crate) async fn turn(&self) -> Turn<'_> {
        Turn { pace: self, _turn: self.group.turn.lock().await }
    }

    fn allow(&self, works: u64, now: Nanos) {
        for count in [&self.group.count, &*self.tenant, &*self.pool] {
            count.at(now);
        }
        let of_group = self.group.count.subtract(works);
        let of_tenant = self.tenant.subtract(works);
        self.pool.subtract(of_group.max(of_tenant));
    }
}

impl Turn<'_> {
    /// Whether the group may work now; the work counts until [`Self::note_room`].
    pub(crate) fn begin(&self, now: Nanos) -> bool {
        let Pace { group, tenant, pool } = self.pace;
        let [group_count, tenant_count, _] =
            [&group.count, &**tenant, &**pool].map(|count| count.at(now));
        let pool_max = if tenant_count == 0 { POOL_MAX } else { POOL_MAX - FIRST_MAX };
        let may = group_count < FUTILE_MAX && tenant_count < TENANT_MAX && pool.add_below(pool_max);
        if may {
            // This turn is the only one of the group. Requests of the tenant for other groups that
            // begin at this moment may each pass its bound by one, or count as its first.
            group.count.add();
            tenant.add();
        }
        may
    }

    /// The work made room for the request.
    pub(crate) fn note_room(&self, now: Nanos) {
        self.pace.allow(1, now);
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

    /// Futile works of this tenant for this group that are begun, of 100 that are wanted.
    async fn works(paces: &RefusalPaces, tenant: u32, id: u64, now: Nanos) -> u64 {
        let pace = paces.of(group(id), SubvolId(tenant), &Deletions::default(), now);
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
            let pace = paces.of(group(1), SubvolId(1), &deletions, SECOND);
            for now in 0..100 {
                let turn = pace.flush.turn().await;
                assert!(turn.begin(SECOND + now), "it makes room");
                turn.note_room(SECOND);
            }
            assert_eq!(works(&paces, 1, 1, SECOND).await, FUTILE_MAX);
            deletions.note_one();
            let pace = paces.of(group(1), SubvolId(1), &deletions, SECOND);
            assert!(pace.flush.turn().await.begin(SECOND), "SETTLE-P2");
            assert_eq!(works(&paces, 1, 1, SECOND + 1).await, 0);
            assert_eq!(works(&paces, 1, 1, 3 * SECOND).await, FUTILE_MAX);
        });
    }

    #[test]
    fn many_groups_of_a_tenant_have_the_allowance_of_a_tenant() {
        SeededRuntime::new(1).block_on(async {
            let paces = RefusalPaces::default();
            let mut begun = 0;
            for id in 1..1000 {
                begun += works(&paces, 1, id, SECOND).await;
            }
            assert_eq!(begun, TENANT_MAX);
            let deletions = Deletions::default();
            deletions.note_one();
            let other = paces.of(group(1000), SubvolId(1), &deletions, SECOND);
            assert!(other.flush.turn().await.begin(SECOND), "SETTLE-P2");
            assert!(!other.flush.turn().await.begin(SECOND));
            assert_eq!(works(&paces, 2, 1001, SECOND).await, FUTILE_MAX, "another one has its own");
            assert!(paces.remembered.lock().groups.values.len() <= REMEMBERED);
            assert_eq!(works(&paces, 1, 999, 2 * SECOND).await, FUTILE_MAX);
        });
    }

    #[test]
    fn the_first_work_of_a_tenant_has_a_share_of_the_pool() {
        SeededRuntime::new(1).block_on(async {
            let paces = RefusalPaces::default();
            let mut begun = 0;
            for tenant in 1..17 {
                begun += works(&paces, tenant, u64::from(tenant), SECOND).await;
            }
            assert!(begun < POOL_MAX - 16, "{begun}");
            assert_eq!(works(&paces, 99, 99, SECOND).await, 1, "it has done none");
            for tenant in 100..1000 {
                begun += works(&paces, tenant, u64::from(tenant), SECOND).await;
            }
            assert_eq!(begun + 1, POOL_MAX);
            assert_eq!(works(&paces, 99, 99, 2 * SECOND).await, FUTILE_MAX);
        });
    }
}
