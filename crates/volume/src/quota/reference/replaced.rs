//! Subvolumes that are rolled back, and those whose entry goes to another subvolume.

use super::*;
use crate::quota::Replaced;

const DELETED: Replaced<'_> =
    Replaced::Deleted { since: Timestamp { secs: 1_700_000_000, nanos: 0 }, name: b"a" };

impl Pool {
    /// `new`, a snapshot of `snapshot`, comes in the place of `old`.
    fn try_replace(
        &mut self,
        old: u32,
        snapshot: u32,
        new: u32,
        replaced: Replaced<'_>,
    ) -> Result<(), QuotaError> {
        let of_old = self.residents.iter().find(|resident| resident.subvol.0 == old).unwrap();
        let (holder, origin) = (of_old.holder, Some(SubvolId(snapshot)));
        let resident = Resident { subvol: SubvolId(new), holder, origin };
        let rows = self.ledger.replace_subvolume(resident, SubvolId(old), replaced)?;
        self.log(rows);
        self.residents.push(resident);
        match replaced {
            Replaced::Deleted { .. } => {
                self.residents.retain(|resident| resident.subvol.0 != old);
                self.ledger.forget_inodes(SubvolId(old));
                self.ledger.end_epoch(EpochId(self.epochs.remove(&old).unwrap()));
            }
            Replaced::Kept { holder } => {
                let old = self.residents.iter_mut().find(|resident| resident.subvol.0 == old);
                old.unwrap().holder = Some(holder);
            }
        }
        self.new_epoch(snapshot);
        self.new_epoch(new);
        Ok(())
    }

    fn replace(&mut self, old: u32, snapshot: u32, new: u32, replaced: Replaced<'_>) {
        self.try_replace(old, snapshot, new, replaced).unwrap();
    }

    fn both_ways(&mut self, check: impl Fn(&Pool)) {
        check(self);
        self.sync();
        assert_eq!(self.crash(), vec![]);
        check(self);
    }
}

#[test]
fn groups_limits_and_debts_hold_on_when_a_subvolume_is_rolled_back() {
    let mut pool = Pool::on();
    let all = pool.group("1/1", &["0/2"]);
    pool.limit(at(A), 8 * MIB);
    pool.done(pool.ledger.reserve(at(A), 4 * MIB, 100 * MIB));
    let old = pool.write(A, 3 * MIB);
    pool.snapshot(A, S, ROOT).unwrap();
    let young = pool.write(A, 2 * MIB);
    pool.replace(A, S, T, DELETED);
    pool.both_ways(|pool| {
        let shown = pool.ledger.show_group(at(T)).unwrap();
        assert_eq!((shown.referenced, shown.parents), (5 * MIB, vec![all]));
        assert_eq!((shown.limits.referenced, shown.reserve), (Some(8 * MIB), 4 * MIB));
        assert_eq!(pool.used(all), 5 * MIB);
        assert_eq!(code(pool.ledger.show_group(at(A))), "ENOENT", "it has an heir");
        assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 0);
    });
    assert_eq!(pool.refused(T, 4 * MIB).group, at(T));
    pool.free(young);
    assert_eq!((pool.data(T), pool.used(all)), (3 * MIB, 3 * MIB));
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), MIB);
    // And once more.
    pool.replace(T, S, 9, DELETED);
    pool.both_ways(|pool| assert_eq!((pool.data(9), pool.used(all)), (3 * MIB, 3 * MIB)));
    pool.free(old);
    pool.both_ways(|pool| assert_eq!((pool.data(9), pool.used(all)), (0, 0)));
}

#[test]
fn the_old_state_that_is_kept_pays_for_itself() {
    let mut pool = Pool::on();
    let all = pool.group("1/1", &["0/2"]);
    pool.limit(at(A), 8 * MIB);
    pool.done(pool.ledger.reserve(at(A), 6 * MIB, 100 * MIB));
    pool.write(A, 3 * MIB);
    pool.snapshot(A, S, ROOT).unwrap();
    pool.limit(at(B), 10 * MIB);
    pool.write(B, 4 * MIB);
    pool.replace(A, S, T, Replaced::Kept { holder: SubvolId(B) });
    pool.write(T, MIB);
    pool.both_ways(|pool| {
        assert_eq!((pool.data(A), pool.data(T), pool.used(all)), (3 * MIB, MIB, 4 * MIB));
        let limits = |id| pool.ledger.show_group(at(id)).unwrap().limits.referenced;
        assert_eq!([limits(A), limits(T)], [Some(8 * MIB); 2]);
        let reserves = [A, T].map(|id| pool.ledger.show_group(at(id)).unwrap().reserve);
        assert_eq!(reserves, [0, 6 * MIB], "a promise is not doubled");
        let left = Some(3 * MIB - RECORDS);
        assert_eq!(pool.ledger.available(SubvolId(B)), left, "it is inside B now");
    });
}

#[test]
fn a_subvolume_that_is_rolled_back_has_the_inodes_of_the_snapshot() {
    let mut pool = Pool::on();
    pool.ledger.begin_epoch(EpochId(50), SubvolId(A), InodeNo(10)).unwrap();
    let create = |pool: &Pool, ino| pool.ledger.created(SubvolId(A), InodeNo(ino), None).unwrap();
    create(&pool, 10);
    pool.snapshot(A, S, ROOT).unwrap();
    [11, 12].into_iter().for_each(|ino| create(&pool, ino));
    let inodes = |pool: &Pool, id| pool.ledger.show_group(at(id)).unwrap().inodes;
    assert_eq!((inodes(&pool, A), inodes(&pool, S)), (3, 1));
    pool.done(pool.ledger.limit(at(A), LimitKind::Inodes, Some(2)));
    pool.replace(A, S, T, DELETED);
    pool.both_ways(|pool| assert_eq!((inodes(pool, T), inodes(pool, S)), (1, 1)));
    assert_eq!(pool.ledger.available_inodes(SubvolId(T)), Some(1));
}

#[test]
fn what_is_inside_a_subvolume_moves_with_its_entry() {
    let mut pool = Pool::on();
    pool.limit(at(A), 16 * MIB);
    pool.limit(at(B), 4 * MIB + 2 * RECORDS);
    pool.create(S, A);
    pool.create(T, S);
    pool.write(S, 2 * MIB);
    let inner = pool.write(T, 3 * MIB);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(11 * MIB - 2 * RECORDS));
    pool.ledger.move_subvolume(SubvolId(S), SubvolId(B));
    let moved = pool.residents.iter_mut().find(|resident| resident.subvol.0 == S);
    moved.unwrap().holder = Some(SubvolId(B));
    pool.both_ways(|pool| {
        assert_eq!(pool.ledger.available(SubvolId(A)), Some(16 * MIB));
        assert_eq!(pool.ledger.available(SubvolId(B)), Some(0), "above its limit, not refused");
        assert_eq!((pool.data(S), pool.data(T), pool.data(A)), (2 * MIB, 3 * MIB, 0));
    });
    assert_eq!(pool.refused(T, MIB).group, at(B));
    pool.free(inner);
    assert_eq!(pool.refused(T, 3 * MIB).group, at(B));
    pool.write(T, 2 * MIB);
    pool.delete(T, None).unwrap();
    assert_eq!(pool.ledger.available(SubvolId(B)), Some(RECORDS));
}

#[test]
fn what_was_deleted_inside_counts_in_the_subvolume_that_it_is_rolled_back_to() {
    let mut pool = Pool::on();
    pool.limit(at(A), 16 * MIB);
    pool.create(S, A);
    pool.write(S, 10 * MIB);
    pool.delete(S, None).unwrap();
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(6 * MIB), "a tombstone inside counts");
    pool.snapshot(A, T, ROOT).unwrap();
    pool.replace(A, T, 9, DELETED);
    pool.both_ways(|pool| assert_eq!(pool.ledger.available(SubvolId(9)), Some(6 * MIB)));
    // And once more.
    pool.replace(9, T, 10, DELETED);
    pool.both_ways(|pool| assert_eq!(pool.ledger.available(SubvolId(10)), Some(6 * MIB)));
}

#[test]
fn what_was_deleted_inside_counts_in_the_heir() {
    let mut pool = Pool::on();
    pool.limit(at(B), 16 * MIB);
    pool.create(S, A);
    pool.write(S, 10 * MIB);
    pool.delete(S, None).unwrap();
    pool.delete(A, Some(B)).unwrap();
    pool.both_ways(|pool| assert_eq!(pool.ledger.available(SubvolId(B)), Some(6 * MIB)));
}

#[test]
fn a_rollback_excuses_nothing_that_was_not_excused() {
    let mut pool = Pool::on();
    pool.limit(at(A), 16 * MIB);
    pool.write(A, 16 * MIB);
    let change = Request { metadata: 64 << 10, ..Request::default() };
    let spend = |pool: &mut Pool, id: u32| {
        let mut taken = 0;
        while let Ok(mut hold) = pool.ledger.hold(SubvolId(id), change, Tier::Change) {
            hold.spend_metadata();
            taken += change.metadata;
        }
        let nodes = Amount::metadata(taken);
        pool.new_epoch(id);
        pool.ledger.charge(EpochId(pool.epochs[&id]), nodes, None).unwrap();
        pool.ledger.flushed(SubvolId(id), 1, 0);
        taken
    };
    let mut taken = spend(&mut pool, A);
    assert!(taken > 0);
    pool.snapshot(A, S, ROOT).unwrap();
    for (old, new) in [(A, 9), (9, 10), (10, 11)] {
        pool.replace(old, S, new, DELETED);
        taken += spend(&mut pool, new);
    }
    assert!(taken <= MIB, "{taken}: half of the overdraft, once");
}

#[test]
fn a_move_asks_the_limits_that_it_brings_a_subvolume_under() {
    let mut pool = Pool::on();
    pool.limit(at(A), 4 * MIB);
    pool.done(pool.ledger.limit(at(A), LimitKind::Subvolumes, Some(2)));
    pool.create(S, B);
    pool.create(T, S);
    pool.create(9, A);
    pool.write(T, 3 * MIB);
    let moves = |pool: &Pool, to: u32| pool.ledger.check_move(SubvolId(S), SubvolId(to));
    assert_eq!(code(moves(&pool, A)), "EDQUOT", "it brings two subvolumes, and one is there");
    pool.delete(9, None).unwrap();
    moves(&pool, A).unwrap();
    pool.write(T, MIB);
    assert_eq!(code(moves(&pool, A)), "EDQUOT");
    moves(&pool, ROOT).unwrap();
    moves(&pool, B).unwrap();
}

#[test]
fn what_was_deleted_inside_waits_for_an_heir_as_long_as_its_holder_does() {
    let mut pool = Pool::on();
    pool.limit(at(B), 16 * MIB);
    pool.create(S, A);
    pool.write(S, 10 * MIB);
    pool.write(A, MIB);
    pool.delete(S, None).unwrap();
    pool.delete(A, None).unwrap();
    pool.sync();
    let rows = pool.ledger.sweep(100);
    pool.done(Ok(rows));
    pool.done(pool.ledger.give_to_heir(SubvolId(A), SubvolId(B)));
    pool.both_ways(|pool| assert_eq!(pool.ledger.available(SubvolId(B)), Some(5 * MIB)));
}

#[test]
fn a_rollback_asks_the_limits_for_what_it_adds() {
    let mut pool = Pool::on();
    pool.create(S, B);
    pool.ledger.begin_epoch(EpochId(50), SubvolId(S), InodeNo(10)).unwrap();
    let inode = |pool: &Pool, ino| pool.ledger.created(SubvolId(S), InodeNo(ino), None).unwrap();
    [10, 11].into_iter().for_each(|ino| inode(&pool, ino));
    pool.snapshot(S, T, ROOT).unwrap();
    pool.ledger.removed(SubvolId(S), InodeNo(11)).unwrap();
    let kept = Replaced::Kept { holder: SubvolId(B) };
    let limits =
        [(LimitKind::Subvolumes, 1), (LimitKind::Inodes, 2), (LimitKind::Referenced, 5000)];
    for (kind, limit) in limits {
        pool.done(pool.ledger.limit(at(B), kind, Some(limit)));
        assert_eq!(code(pool.try_replace(S, T, 9, kept)), "EDQUOT", "{kind:?}");
        assert_eq!(code(pool.ledger.show_group(at(9))), "ENOENT");
        pool.done(pool.ledger.limit(at(B), kind, None));
    }
    pool.done(pool.ledger.limit(at(T), LimitKind::Snapshots, Some(0)));
    assert_eq!(code(pool.try_replace(S, T, 9, kept)), "EDQUOT");
    // The snapshot has one inode more than the present state.
    pool.done(pool.ledger.limit(at(B), LimitKind::Inodes, Some(2)));
    assert_eq!(code(pool.try_replace(S, T, 9, DELETED)), "EDQUOT");
    inode(&pool, 12);
    for (kind, limit) in limits {
        pool.done(pool.ledger.limit(at(B), kind, Some(limit - 1)));
    }
    pool.replace(S, T, 9, DELETED);
    let shown = pool.ledger.show_group(at(B)).unwrap();
    assert_eq!((shown.subvolumes, shown.inodes, shown.reserved), (1, 3, 0), "it adds nothing");
}
