//! Section 6: limits, reservations, counts of inodes and snapshots, reserves. Refusals name the
//! group that refuses; a refused call has reserved nothing.

use super::*;

#[test]
fn a_limit_can_be_used_to_its_last_byte_and_below_what_is_used_gives_nothing() {
    let mut pool = Pool::on();
    pool.limit(at(A), 16 * MIB);
    pool.write(A, 16 * MIB - 4096);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(4096));
    let extent = pool.write(A, 4096);
    pool.refused(A, 1);
    pool.limit(at(A), MIB);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(0));
    pool.free(extent);
    pool.refused(A, 1);
    pool.done(pool.ledger.limit(at(A), LimitKind::Referenced, None));
    pool.write(A, MIB);
}

#[test]
fn exclusive_limits_mean_the_same_and_the_smaller_one_counts() {
    let mut pool = Pool::on();
    pool.limit(at(A), 2 * MIB);
    pool.done(pool.ledger.limit(at(A), LimitKind::Exclusive, Some(MIB)));
    assert_eq!(pool.refused(A, 2 * MIB).limit, MIB);
    pool.done(pool.ledger.limit(at(A), LimitKind::Exclusive, None));
    pool.write(A, 2 * MIB);
}

#[test]
fn metadata_counts_without_any_data() {
    let mut pool = Pool::on();
    pool.limit(at(A), 4 * MIB);
    let one_file = Request::for_edits(3, 300);
    let mut files = 0;
    while let Ok(mut hold) = pool.ledger.hold(SubvolId(A), one_file, Tier::Write) {
        hold.spend_metadata();
        files += 1;
    }
    // Unflushed edits are counted at their most; flushing reports their real size.
    assert_eq!(files, 4 * MIB / one_file.metadata);
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().unflushed, files * one_file.metadata);
    pool.write_after_flush();
}

impl Pool {
    fn write_after_flush(&mut self) {
        self.new_epoch(A);
        let nodes = Amount::metadata(128 << 10);
        self.ledger.charge(EpochId(self.epochs[&A]), nodes, None).unwrap();
        self.ledger.flushed(SubvolId(A), 1000, 1000);
        assert!(self.ledger.available(SubvolId(A)).unwrap() > MIB);
        self.ledger.flushed(SubvolId(A), 1000, 0);
        assert_eq!(self.ledger.available(SubvolId(A)), Some(4 * MIB - (128 << 10)));
        self.write(A, 3 * MIB);
    }
}

#[test]
fn a_refusal_names_the_group_its_use_its_reservations_and_its_limit() {
    let mut pool = Pool::on();
    let one = pool.group("1/5", &["0/2", "0/3"]);
    pool.limit(one, 10 * MIB);
    pool.limit(at(A), 100 * MIB);
    pool.write(B, 6 * MIB);
    let wanted = Request { data: 2 * MIB, metadata: MIB, ..Request::default() };
    let hold = pool.ledger.hold(SubvolId(B), wanted, Tier::Write).unwrap();
    let refused = pool.refused(A, 2 * MIB);
    assert_eq!((refused.group, refused.used, refused.reserved), (one, 6 * MIB, 3 * MIB));
    assert_eq!((refused.limit, refused.wanted), (10 * MIB, 2 * MIB));
    let text = QuotaError::Exceeded(refused).to_string();
    assert!(text.contains("1/5") && text.contains("3145728 reserved"), "{text}");
    assert_eq!(QuotaError::Exceeded(refused).code(), "EDQUOT");
    drop(hold);
    pool.write(A, 2 * MIB);
}

#[test]
fn a_hold_that_one_group_refuses_reserves_nothing_anywhere() {
    let mut pool = Pool::on();
    let one = pool.group("1/1", &["0/2"]);
    let two = pool.group("2/1", &["1/1"]);
    pool.limit(two, MIB);
    pool.refused(A, 2 * MIB);
    for id in [at(A), one, two] {
        assert_eq!(pool.ledger.show_group(id).unwrap().reserved, 0);
    }
}

#[test]
fn a_reserved_byte_has_one_holder_from_the_hold_to_the_charge() {
    let pool = &mut Pool::on();
    pool.new_epoch(A);
    pool.limit(at(A), MIB);
    let wanted = Request { data: MIB / 2, metadata: MIB / 2, ..Request::default() };
    let mut hold = pool.ledger.hold(SubvolId(A), wanted, Tier::Write).unwrap();
    let half = Request { data: MIB / 4, ..Request::default() };
    let mut part = hold.split(half);
    let left = |pool: &Pool| {
        let shown = pool.ledger.show_group(at(A)).unwrap();
        assert_eq!(pool.ledger.available(SubvolId(A)), Some(0));
        (shown.data, shown.reserved, shown.unflushed)
    };
    assert_eq!(left(pool), (0, MIB, 0));
    let epoch = EpochId(pool.epochs[&A]);
    pool.ledger.charge(epoch, Amount::data(MIB / 4), Some(&mut part)).unwrap();
    assert_eq!(left(pool), (MIB / 4, MIB * 3 / 4, 0));
    drop(part);
    hold.spend_metadata();
    assert_eq!(left(pool), (MIB / 4, MIB / 4, MIB / 2));
    // An operation fails: its hold goes back, once.
    drop(hold);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(MIB / 4));
}

#[test]
fn holds_of_one_owner_join_and_those_of_two_do_not() {
    let pool = Pool::on();
    let hold = |subvol| {
        let wanted = Request { data: 4096, ..Request::default() };
        pool.ledger.hold(SubvolId(subvol), wanted, Tier::Write).unwrap()
    };
    let mut mine = hold(A);
    assert!(mine.join(hold(A)).is_none());
    assert_eq!(mine.left().data, 8192);
    assert_eq!(mine.join(hold(B)).expect("is somebody else's").left().data, 4096);
    let mut empty = Hold::nothing();
    assert!(empty.join(mine).is_none());
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().reserved, 8192);
}

#[test]
fn tidying_up_works_at_the_limit_by_a_bounded_amount() {
    let mut pool = Pool::on();
    pool.limit(at(A), 64 * MIB);
    pool.write(A, 64 * MIB);
    let unlink = Request::for_edits(4, 200);
    assert!(pool.ledger.hold(SubvolId(A), unlink, Tier::Write).is_err());
    let mut bytes = 0;
    let change = |pool: &Pool| pool.ledger.hold(SubvolId(A), unlink, Tier::Change).is_ok();
    assert!(change(&pool));
    while let Ok(mut hold) = pool.ledger.hold(SubvolId(A), unlink, Tier::Delete) {
        hold.spend_metadata();
        bytes += unlink.metadata;
    }
    let most = 64 * MIB + 2 * MIB;
    assert!((most - MIB..=most).contains(&bytes), "the limit, 1 MiB and a 64th of it: {bytes}");
    assert!(!change(&pool), "changes may take less");
    // Its edits become nodes: the overdraft does not follow them.
    pool.new_epoch(A);
    let epoch = EpochId(pool.epochs[&A]);
    pool.ledger.charge(epoch, Amount::metadata(bytes), None).unwrap();
    pool.ledger.flushed(SubvolId(A), 1, 0);
    assert!(pool.ledger.hold(SubvolId(A), unlink, Tier::Delete).is_err());
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert!(pool.ledger.hold(SubvolId(A), unlink, Tier::Delete).is_err(), "nor a mount");
    // A request for nothing is never refused.
    assert!(pool.ledger.hold(SubvolId(A), Request::default(), Tier::Write).is_ok());
}

#[test]
fn an_owner_over_its_limit_by_no_work_of_its_own_can_remove_files() {
    let mut pool = Pool::on();
    let young = pool.write(A, 100 * MIB);
    pool.limit(at(A), 64 * MIB);
    let unlink = Request::for_edits(4, 200);
    let can = |pool: &Pool| pool.ledger.hold(SubvolId(A), unlink, Tier::Delete).is_ok();
    assert!(can(&pool), "the limit was set below its usage");
    pool.free(young);
    assert!(can(&pool));
    pool.write(B, 80 * MIB);
    pool.delete(B, Some(A)).unwrap();
    assert!(can(&pool), "it inherited");
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert!(can(&pool));
}

impl Pool {
    /// Takes requests of 64 KiB until one is refused, which become nodes.
    fn spend(&mut self, tier: Tier) -> u64 {
        let wanted = Request { metadata: 64 << 10, ..Request::default() };
        let mut taken = 0;
        while let Ok(mut hold) = self.ledger.hold(SubvolId(A), wanted, tier) {
            hold.spend_metadata();
            taken += wanted.metadata;
        }
        self.new_epoch(A);
        let epoch = EpochId(self.epochs[&A]);
        self.ledger.charge(epoch, Amount::metadata(taken), None).unwrap();
        self.ledger.flushed(SubvolId(A), 1, 0);
        taken
    }
}

#[test]
fn a_mount_gives_a_quarter_of_the_overdraft_and_to_removals_only() {
    let mut pool = Pool::on();
    pool.write(A, 4096 * MIB);
    pool.limit(at(A), MIB);
    pool.spend(Tier::Delete);
    let quarter = (MIB + MIB / 64) / 4;
    let mut most = 0;
    for _ in 0..10 {
        pool.sync();
        assert_eq!(pool.crash(), vec![]);
        assert_eq!(pool.spend(Tier::Change), 0, "changes are refused beyond half of the overdraft");
        let removals = pool.spend(Tier::Delete);
        assert!(removals >= quarter - (64 << 10), "{removals}: files can be removed");
        most += removals;
    }
    assert!(most <= 10 * quarter, "{most} in ten mounts");
}

#[test]
fn usage_that_goes_to_and_fro_excuses_nothing() {
    let mut pool = Pool::on();
    let all = pool.group("1/1", &["0/2"]);
    pool.limit(all, 16 * MIB);
    pool.write(A, 16 * MIB);
    pool.write(B, 8 * MIB);
    let mut taken = 0;
    for _ in 0..8 {
        taken += pool.spend(Tier::Change);
        pool.done(pool.ledger.assign(at(B), all));
        pool.done(pool.ledger.remove(at(B), all));
    }
    assert!(taken <= MIB + MIB / 4, "{taken}");
}

#[test]
fn disabling_with_writes_in_flight_and_enabling_again_finds_no_stray_reservation() {
    let mut pool = Pool::on();
    let wanted = Request { data: MIB, ..Request::default() };
    let hold = pool.ledger.hold(SubvolId(A), wanted, Tier::Write).unwrap();
    pool.disable();
    pool.enable();
    pool.limit(at(A), MIB);
    drop(hold);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(MIB));
    pool.write(A, MIB);
}

#[test]
fn reservations_begin_at_nothing_after_a_crash_and_usage_at_the_last_closing() {
    let mut pool = Pool::on();
    pool.limit(at(A), 10 * MIB);
    pool.write(A, MIB);
    let wanted = Request { data: 3 * MIB, ..Request::default() };
    let _hold = pool.ledger.hold(SubvolId(A), wanted, Tier::Write).unwrap();
    pool.sync();
    pool.write(A, MIB);
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(pool.ledger.available(SubvolId(A)), Some(9 * MIB));
}

#[test]
fn data_leave_room_for_nodes_and_names_use_it() {
    let mut pool = Pool::on();
    for (limit, room) in [(16 * MIB, 64 << 10), (MIB, 16 << 10)] {
        pool.limit(at(A), limit);
        let held = |bytes, tier| {
            let wanted = Request { metadata: bytes, ..Request::default() };
            pool.ledger.hold(SubvolId(A), wanted, tier).is_ok()
        };
        assert!(held(limit - room, Tier::Data) && !held(limit - room + 1, Tier::Data));
        assert!(held(limit, Tier::Write) && !held(limit + 1, Tier::Write));
    }
}

#[test]
fn inodes_are_limited_and_old_ones_are_not_counted() {
    let mut pool = Pool::on();
    let one = pool.group("1/1", &["0/2"]);
    pool.ledger.begin_epoch(EpochId(50), SubvolId(A), InodeNo(100)).unwrap();
    pool.done(pool.ledger.limit(one, LimitKind::Inodes, Some(2)));
    pool.ledger.removed(SubvolId(A), InodeNo(99)).unwrap();
    let wanted = Request { inodes: 1, ..Request::default() };
    for ino in [100, 101] {
        let mut hold = pool.ledger.hold(SubvolId(A), wanted, Tier::Write).unwrap();
        pool.ledger.created(SubvolId(A), InodeNo(ino), Some(&mut hold)).unwrap();
    }
    let refused = pool.ledger.hold(SubvolId(A), wanted, Tier::Delete).unwrap_err();
    assert!(refused.to_string().contains("2 used of 2"), "{refused}");
    assert_eq!(pool.ledger.available_inodes(SubvolId(A)), Some(0));
    // A snapshot has as many, and would pass the limit of the group that it would join.
    assert_eq!(code(pool.snapshot(A, S, A)), "EDQUOT");
    assert_eq!(code(pool.ledger.show_group(at(S))), "ENOENT");
    pool.snapshot(A, S, ROOT).unwrap();
    assert_eq!(pool.ledger.show_group(at(S)).unwrap().inodes, 2);
    pool.ledger.removed(SubvolId(A), InodeNo(100)).unwrap();
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(pool.ledger.available_inodes(SubvolId(A)), Some(1));
    pool.ledger.removed(SubvolId(A), InodeNo(101)).unwrap();
    let none = pool.ledger.removed(SubvolId(A), InodeNo(102));
    assert_eq!(none, Err(Miscount::Inodes(SubvolId(A))));
}

#[test]
fn snapshots_are_limited_by_what_they_are_snapshots_of() {
    let mut pool = Pool::on();
    pool.done(pool.ledger.limit(at(A), LimitKind::Snapshots, Some(1)));
    pool.snapshot(A, S, ROOT).unwrap();
    assert_eq!(code(pool.snapshot(A, T, ROOT)), "EDQUOT");
    pool.delete(S, None).unwrap();
    pool.snapshot(A, T, ROOT).unwrap();
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().snapshots, 1);
}

#[test]
fn a_reserve_is_kept_from_others_until_it_is_used() {
    let mut pool = Pool::on();
    let free = 100 * MIB;
    pool.done(pool.ledger.reserve(at(A), 60 * MIB, free));
    assert_eq!(code(pool.ledger.reserve(at(B), 60 * MIB, free)), "ENOSPC");
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 60 * MIB);
    assert_eq!(pool.ledger.kept_for_others(SubvolId(A)), 0);
    pool.write(A, 20 * MIB);
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 40 * MIB);
    pool.write(A, 50 * MIB);
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 0);
    pool.limit(at(A), 60 * MIB);
    assert_eq!(code(pool.ledger.limit(at(A), LimitKind::Referenced, Some(MIB))), "EINVAL");
    assert_eq!(code(pool.ledger.reserve(at(A), 61 * MIB, free)), "EINVAL");
    assert_eq!(code(pool.ledger.reserve(group("1/1"), MIB, free)), "ENOENT");
    pool.group("1/1", &[]);
    assert_eq!(code(pool.ledger.reserve(group("1/1"), MIB, free)), "EINVAL");
    pool.sync();
    pool.crash();
    pool.free_part(Extent { origin: pool.epochs[&A], amount: Amount::data(70 * MIB) }, 30 * MIB);
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 20 * MIB);
    pool.delete(A, None).unwrap();
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 0);
}

#[test]
fn many_clones_with_one_change_each_stay_under_the_limit() {
    let mut pool = Pool::on();
    let all = pool.group("1/1", &["0/2"]);
    pool.write_amount(A, Amount::metadata(MIB)).unwrap();
    (100..300).for_each(|id| {
        pool.snapshot(A, id, ROOT).unwrap();
        pool.done(pool.ledger.assign(at(id), all));
    });
    pool.limit(all, 2 * MIB);
    let change = Request::for_edits(1, 200);
    let mut changed = 0;
    for id in 100..300 {
        // Each copies a path of 64 KiB, in two copies.
        let Ok(mut hold) = pool.ledger.hold(SubvolId(id), change, Tier::Write) else { continue };
        hold.spend_metadata();
        changed += 1;
        // The next change of the clone is in the same nodes.
        pool.ledger.hold(SubvolId(id), change, Tier::Write).unwrap().spend_metadata();
    }
    assert_eq!(changed, 7);
    for id in 100..107 {
        let epoch = EpochId(pool.epochs[&id]);
        pool.ledger.charge(epoch, Amount::metadata(128 << 10), None).unwrap();
        pool.ledger.flushed(SubvolId(id), 1, 0);
    }
    assert!(pool.used(all) <= 2 * MIB, "{}", pool.used(all));
    assert_eq!(pool.ledger.show_group(all).unwrap().unflushed, 0);
    // A clone with nodes of its own holds its edits only, also after a mount; others hold a path.
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    pool.limit(all, pool.used(all) + (64 << 10));
    pool.ledger.hold(SubvolId(100), change, Tier::Write).unwrap().spend_metadata();
    pool.ledger.hold(SubvolId(200), change, Tier::Write).unwrap_err();
}
