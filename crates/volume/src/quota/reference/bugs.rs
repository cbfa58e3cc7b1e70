//! Section 9: bugs that others had, damaged records, and many threads at once.

use copyhold_types::{Key, Timestamp};

use proptest::prelude::*;

use super::*;

#[test]
fn a_living_subvolume_that_uses_nothing_cannot_be_destroyed_as_a_group() {
    let pool = Pool::on();
    assert_eq!(pool.data(A), 0);
    assert_eq!(code(pool.ledger.destroy(at(A))), "EBUSY");
}

#[test]
fn giving_back_too_much_is_told_and_changes_nothing() {
    let mut pool = Pool::on();
    let one = pool.group("1/1", &["0/2"]);
    let extent = pool.write(A, 4096);
    let twice = Amount { data: 4096, metadata: 1 };
    let told = pool.ledger.refund(EpochId(extent.origin), twice).unwrap_err();
    assert!(matches!(told, Miscount::Underflow { data: 4096, metadata: 1, .. }), "{told}");
    assert_eq!((pool.data(A), pool.used(one)), (4096, 4096));
    pool.free(extent);
    pool.delete(A, None).unwrap();
    pool.sync();
    pool.done(pool.ledger.destroy(one));
}

#[test]
fn an_epoch_that_nobody_pays_for_is_told_and_nothing_stops() {
    let pool = Pool::on();
    let nobodys = EpochId(1000);
    let told = Err(Miscount::UnknownEpoch(nobodys));
    assert_eq!(pool.ledger.charge(nobodys, Amount::data(1), None), told);
    assert_eq!(pool.ledger.refund(nobodys, Amount::data(1)), told);
    let unknown = pool.ledger.begin_epoch(nobodys, SubvolId(99), InodeNo(1));
    assert_eq!(unknown, Err(Miscount::UnknownSubvolume(SubvolId(99))));
}

#[test]
fn rows_are_logged_when_they_change_and_go_when_they_are_over() {
    let mut pool = Pool::on();
    pool.sync();
    let extent = pool.write(A, MIB);
    assert_eq!(pool.ledger.closing(pool.txg).len(), 2, "usage, and where inodes begin");
    assert_eq!(pool.ledger.closing(pool.txg), vec![], "nothing has changed");
    // Born and dead in one txg: nothing is left of it but the row as it was.
    let more = pool.write(A, MIB);
    pool.free(more);
    assert_eq!(pool.ledger.closing(pool.txg).len(), 1);
    pool.snapshot(A, S, ROOT).unwrap();
    pool.free(extent);
    let rows = pool.ledger.closing(pool.txg);
    let usage = copyhold_format::item::usage_key(EpochId(extent.origin));
    assert!(rows.contains(&(usage, copyhold_pool::Edit::Delete)), "R26");
}

#[test]
fn a_stale_subvolume_waits_for_its_last_epoch_and_clear_stale_does_not_hurry_it() {
    let mut pool = Pool::on();
    let extent = pool.write(A, MIB);
    let since = Timestamp::default();
    pool.done(pool.ledger.delete_subvolume(SubvolId(A), since, b"", None));
    pool.free(extent);
    pool.sync();
    // Its last epoch may still be charged for nodes.
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().state, GroupState::Stale);
    pool.ledger.sweep_all().unwrap();
    pool.done(Ok(pool.ledger.sweep(100)));
    assert_eq!(code(pool.ledger.destroy(at(A))), "EBUSY");
    pool.ledger.end_epoch(EpochId(pool.epochs[&A]));
    pool.close();
    pool.done(pool.ledger.destroy(at(A)));
    assert_eq!(code(pool.ledger.show_group(at(A))), "ENOENT");
}

#[test]
fn records_that_fit_nothing_are_told_and_the_rest_is_loaded() {
    use copyhold_format::item::*;
    let mut pool = Pool::on();
    pool.write(B, MIB);
    pool.sync();
    let mut put = |key: Key, value: &[u8]| drop(pool.disk.insert(key, value.into()));
    let usage = |owner| UsageItem { owner: SubvolId(owner), data: 5, metadata: 0 }.encode();
    put(usage_key(EpochId(90)), &usage(77));
    put(usage_key(EpochId(2)), &usage(A));
    // Harmless, and cleared away: a row that says nothing.
    let nothing = UsageItem { owner: SubvolId(B), data: 0, metadata: 0 };
    put(usage_key(EpochId(91)), &nothing.encode());
    put(group_key(at(88)), &GroupItem::default().encode());
    let dead = GroupItem { tombstone: Some(Tombstone::default()), ..GroupItem::default() };
    put(group_key(at(A)), &dead.encode());
    put(member_key(at(A), group("1/9")), &[]);
    put(heir_key(SubvolId(60)), &encode_heir(SubvolId(61)));
    put(heir_key(SubvolId(61)), &encode_heir(SubvolId(60)));
    put(inodes_key(SubvolId(55)), &InodesItem { counted_from: InodeNo(1), count: 1 }.encode());
    let strays = pool.crash();
    assert_eq!(strays.len(), 8, "{strays:?}");
    assert!(strays.iter().all(|stray| !stray.to_string().is_empty()));
    assert_eq!(pool.data(B), MIB);
    assert_eq!(pool.ledger.show_group(at(77)).unwrap().state, GroupState::Tombstone);
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().state, GroupState::Live);
    pool.write(A, MIB);
    pool.close();
    assert!(!pool.disk.contains_key(&usage_key(EpochId(91))));
}

#[test]
fn keys_that_cannot_be_are_refused() {
    use copyhold_format::item::*;
    let mut loader = Loader::new();
    let usage = UsageItem { owner: SubvolId(1), data: 5, metadata: 0 }.encode();
    assert!(loader.row(Key::new(5, USAGE, 1), &usage).is_err());
    assert!(loader.row(Key::new(0, GROUP, 0), &GroupItem::default().encode()).is_err());
    assert!(loader.row(Key::new(1 << 50, HEIR, 0), &encode_heir(SubvolId(1))).is_err());
    assert!(loader.row(Key::new(5, USAGE, 0), &usage[..20]).is_err());
    assert_eq!(loader.row(Key::new(5, SUBVOL, 0), &[]), Ok(false));
}

fn record() -> impl Strategy<Value = (Key, Vec<u8>)> {
    use copyhold_format::item::*;
    let subvol = || (1..6u32).prop_map(SubvolId);
    let id = || {
        let level = prop_oneof![3 => Just(0u16), 2 => 1..3u16];
        (level, 1..6u64).prop_map(|(level, id)| GroupId::new(level, id).unwrap())
    };
    let usage =
        (1..9u64, subvol(), 0..1u64 << 60, 0..9u64).prop_map(|(epoch, owner, data, metadata)| {
            let item = UsageItem { owner, data, metadata };
            (usage_key(EpochId(epoch)), item.encode().to_vec())
        });
    let tombstone = proptest::option::of(proptest::option::of(subvol()));
    let group = (id(), tombstone, 0..9u64).prop_map(|(id, dead, reserve)| {
        let tombstone = dead.map(|holder| Tombstone { holder, ..Tombstone::default() });
        (group_key(id), GroupItem { reserve, tombstone, ..GroupItem::default() }.encode())
    });
    let member = (id(), id()).prop_map(|(child, parent)| (member_key(child, parent), vec![]));
    let heir = (subvol(), subvol())
        .prop_map(|(owner, heir)| (heir_key(owner), encode_heir(heir).to_vec()));
    let inodes = (subvol(), 0..9u64).prop_map(|(subvol, count)| {
        let item = InodesItem { counted_from: InodeNo(3), count };
        (inodes_key(subvol), item.encode().to_vec())
    });
    prop_oneof![2 => usage, 3 => group, 2 => member, 3 => heir, 1 => inodes]
}

proptest! {
    #[test]
    fn any_records_make_a_ledger_that_works(
        records in proptest::collection::vec(record(), 0..40),
        is_on in proptest::bool::weighted(0.9),
    ) {
        let mut pool = Pool::on();
        if !is_on {
            pool.disk.clear();
        }
        for (key, value) in records {
            pool.disk.insert(key, value.into());
        }
        pool.epochs.insert(A, 7);
        pool.next_epoch = 20;
        pool.crash();
        pool.sync();
        pool.sync();
        prop_assert!(!pool.ledger.wants_sweep());
        if !is_on {
            prop_assert!(pool.disk.is_empty());
            pool.enable();
        }
        pool.new_epoch(A);
        let before = pool.data(A);
        let extent = pool.write(A, 4096);
        prop_assert_eq!(pool.data(A), before + 4096);
        pool.free(extent);
        pool.delete(A, Some(B)).unwrap();
        pool.sync();
        prop_assert!(pool.ledger.show_group(at(A)).is_err());
        prop_assert!(pool.data(B) >= before);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test of threads")]
fn charges_of_many_threads_while_groups_are_rearranged_add_up() {
    let mut pool = Pool::on();
    let (one, two) = (pool.group("1/1", &["0/2", "0/3"]), pool.group("2/1", &[]));
    pool.limit(two, 1 << 40);
    pool.new_epoch(A);
    pool.new_epoch(B);
    let (ledger, epochs) = (&pool.ledger, &pool.epochs);
    let writer = |subvol: u32| {
        move || {
            for round in 0..3000u64 {
                let wanted = Request { data: 8192, metadata: 4096, ..Request::default() };
                let mut hold = ledger.hold(SubvolId(subvol), wanted, Tier::Write).unwrap();
                let origin = EpochId(epochs[&subvol]);
                ledger.charge(origin, Amount::data(4096), Some(&mut hold)).unwrap();
                hold.spend_metadata();
                ledger.flushed(SubvolId(subvol), 1, round % 2);
                if round % 3 == 0 {
                    ledger.refund(origin, Amount::data(4096)).unwrap();
                }
            }
            ledger.flushed(SubvolId(subvol), 1, 0);
        }
    };
    std::thread::scope(|scope| {
        for subvol in [A, A, B, B] {
            scope.spawn(writer(subvol));
        }
        scope.spawn(|| {
            for _ in 0..300 {
                ledger.assign(one, two).unwrap();
                ledger.reserve(at(A), 1 << 30, 1 << 40).unwrap();
                ledger.remove(at(B), one).unwrap();
                ledger.assign(at(B), one).unwrap();
                ledger.remove(one, two).unwrap();
                ledger.reserve(at(A), 0, 0).unwrap();
            }
            ledger.assign(one, two).unwrap();
        });
    });
    let each = 2 * 2000 * 4096;
    assert_eq!((pool.data(A), pool.data(B)), (each, each));
    for id in [one, two] {
        let shown = pool.ledger.show_group(id).unwrap();
        assert_eq!((shown.data, shown.metadata), (2 * each, 0));
        assert_eq!((shown.reserved, shown.unflushed), (0, 0));
    }
    let left = pool.ledger.available(SubvolId(A));
    assert_eq!(left, Some((1 << 40) - 2 * each), "COUNTER-N2: the load is the sum");
    assert_eq!(pool.ledger.kept_for_others(SubvolId(B)), 0, "COUNTER-N3");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test of threads")]
fn holds_of_many_threads_at_a_limit_never_pass_it_and_leave_nothing_behind() {
    let mut pool = Pool::on();
    let one = pool.group("1/1", &["0/2", "0/3"]);
    let room = 5 * 4096;
    pool.limit(one, room);
    pool.limit(at(A), room);
    let ledger = &pool.ledger;
    let taker = |subvol: u32| {
        move || {
            for _ in 0..20_000 {
                let wanted = Request { data: 3 * 4096, ..Request::default() };
                let hold = ledger.hold(SubvolId(subvol), wanted, Tier::Write);
                assert!(ledger.show_group(one).unwrap().reserved <= room);
                drop(hold);
            }
        }
    };
    std::thread::scope(|scope| {
        for subvol in [A, B, A, B] {
            scope.spawn(taker(subvol));
        }
    });
    assert_eq!(ledger.available(SubvolId(A)), Some(room));
    assert_eq!(ledger.available(SubvolId(B)), Some(room));
    pool.write(A, room);
}
