//! Section 7: the payer of each extent, for how long, and the payer after that.

use super::*;

/// A has written 8 MiB, and S is a snapshot of it.
fn shared() -> (Pool, Extent) {
    let mut pool = Pool::on();
    let extent = pool.write(A, 8 * MIB);
    pool.snapshot(A, S, ROOT).unwrap();
    (pool, extent)
}

#[test]
fn a_snapshot_costs_nothing_and_the_last_reference_refunds_whoever_drops_it() {
    let (pool, extent) = shared();
    assert_eq!((pool.data(A), pool.data(S)), (8 * MIB, 0));
    // A removes its files: S refers to the extent, so there is no refund. Then S does.
    pool.free(extent);
    assert_eq!((pool.data(A), pool.data(S)), (0, 0));
}

#[test]
fn overwriting_what_a_snapshot_holds_charges_the_writer_again_each_time() {
    let (mut pool, _) = shared();
    pool.write(A, 8 * MIB);
    assert_eq!(pool.data(A), 16 * MIB);
    pool.snapshot(A, T, ROOT).unwrap();
    pool.write(A, 8 * MIB);
    assert_eq!((pool.data(A), pool.data(S), pool.data(T)), (24 * MIB, 0, 0));
    pool.write(S, 8 * MIB);
    assert_eq!((pool.data(A), pool.data(S)), (24 * MIB, 8 * MIB));
}

#[test]
fn a_deleted_original_is_a_tombstone_that_goes_by_itself_where_btrfs_leaves_a_zero_row() {
    let (mut pool, extent) = shared();
    pool.delete(A, None).unwrap();
    pool.sync();
    let shown = pool.ledger.show_group(at(A)).unwrap();
    assert_eq!((shown.state, shown.referenced), (GroupState::Tombstone, 8 * MIB));
    let tombstone = shown.tombstone.unwrap();
    assert_eq!((tombstone.since.secs, &tombstone.name[..]), (1_700_000_000, &b"gone"[..]));
    assert_eq!(code(pool.ledger.destroy(at(A))), "EBUSY");
    assert_eq!(code(pool.delete(A, None)), "ESTALE");
    // S overwrites everything.
    pool.free(extent);
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().state, GroupState::Stale);
    pool.sync();
    assert_eq!(code(pool.ledger.show_group(at(A))), "ENOENT");
    assert_eq!(code(pool.ledger.destroy(at(A))), "ENOENT");
}

#[test]
fn a_tombstone_eats_its_groups_budget_until_its_last_byte_and_then_gives_it_back() {
    let (mut pool, extent) = shared();
    let one = pool.group("1/100", &["0/2", "0/3"]);
    pool.limit(one, 10 * MIB);
    pool.delete(A, None).unwrap();
    pool.sync();
    assert_eq!(pool.refused(B, 4 * MIB).group, one);
    pool.free(extent);
    pool.sync();
    pool.write(B, 10 * MIB);
    assert_eq!(pool.ledger.show_group(one).unwrap().members, vec![at(B)]);
}

#[test]
fn a_tombstone_can_be_taken_out_of_a_group() {
    let (mut pool, _) = shared();
    let one = pool.group("1/100", &["0/2"]);
    pool.delete(A, None).unwrap();
    pool.done(pool.ledger.remove(at(A), one));
    assert_eq!(pool.used(one), 0);
    assert_eq!(pool.data(A), 8 * MIB);
}

#[test]
fn a_tombstone_of_a_child_still_counts_for_the_subvolume_that_held_it() {
    let mut pool = Pool::on();
    pool.limit(at(A), 10 * MIB);
    pool.create(S, A);
    let extent = pool.write(S, 8 * MIB);
    // A snapshot elsewhere keeps it.
    pool.snapshot(S, T, ROOT).unwrap();
    pool.delete(S, None).unwrap();
    pool.sync();
    assert_eq!(pool.refused(A, 4 * MIB).group, at(A));
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(pool.refused(A, 4 * MIB).group, at(A));
    pool.free(extent);
    pool.write(A, 10 * MIB);
}

#[test]
fn who_is_at_the_limit_and_pinned_by_snapshots_is_not_helped_by_removing_files() {
    let (mut pool, extent) = shared();
    pool.limit(at(A), 8 * MIB);
    pool.refused(A, 4096);
    // The snapshot goes too.
    pool.free(extent);
    pool.write(A, 8 * MIB);
}

#[test]
fn a_reflink_or_dedupe_charges_nobody_and_overwriting_it_charges_the_writer() {
    let mut pool = Pool::on();
    pool.write(A, 16 * MIB);
    pool.limit(at(B), MIB);
    // B has a reflink of it: no extent was born.
    assert_eq!((pool.data(A), pool.data(B)), (16 * MIB, 0));
    assert_eq!(pool.refused(B, 4 * MIB).group, at(B));
    pool.write(B, MIB);
}

#[test]
fn a_relocated_extent_keeps_its_payer() {
    let (mut pool, extent) = shared();
    pool.delete(A, None).unwrap();
    // A copy is born for the same origin, then the original dies, in one transaction.
    pool.ledger.charge(EpochId(extent.origin), extent.amount, None).unwrap();
    pool.free(extent);
    pool.sync();
    assert_eq!(pool.data(A), 8 * MIB);
}

#[test]
fn partial_overwrite_truncate_and_punch_refund_at_once_where_btrfs_keeps_bookends() {
    let mut pool = Pool::on();
    let extent = pool.write(A, MIB);
    pool.write(A, 64 << 10);
    let rest = pool.free_part(extent, 64 << 10);
    assert_eq!(pool.data(A), MIB, "btrfs: 1 MiB and 64 KiB");
    let rest = pool.free_part(rest, 512 << 10);
    assert_eq!(pool.data(A), 512 << 10, "btrfs: 1 MiB");
    pool.free(rest);
    assert_eq!(pool.data(A), 64 << 10);
}

#[test]
fn preallocation_is_charged_at_once_and_all_or_nothing() {
    let mut pool = Pool::on();
    pool.limit(at(A), 8 * MIB);
    pool.refused(A, 8 * MIB + 4096);
    assert_eq!(pool.data(A), 0);
    pool.write(A, 8 * MIB);
    assert_eq!(pool.data(A), 8 * MIB);
}

#[test]
fn an_heir_pays_from_then_on_with_one_record_and_may_end_above_its_limit() {
    let (mut pool, extent) = shared();
    let one = pool.group("1/1", &["0/2"]);
    let two = pool.group("1/2", &["0/4"]);
    pool.limit(at(S), MIB);
    pool.delete(A, None).unwrap();
    let rows = pool.ledger.give_to_heir(SubvolId(A), SubvolId(S)).unwrap();
    assert_eq!(rows.len(), 1);
    pool.log(rows);
    assert_eq!(code(pool.ledger.show_group(at(A))), "ENOENT");
    assert_eq!((pool.data(S), pool.used(one), pool.used(two)), (8 * MIB, 0, 8 * MIB));
    assert_eq!(pool.refused(S, 1).used, 8 * MIB);
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert_eq!((pool.data(S), pool.used(one), pool.used(two)), (8 * MIB, 0, 8 * MIB));
    pool.free(extent);
    assert_eq!(pool.data(S), 0);
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    let heirs = pool.disk.keys().filter(|key| key.kind == copyhold_format::item::HEIR);
    assert_eq!(heirs.count(), 0);
}

#[test]
fn an_heir_that_is_deleted_is_a_tombstone_with_the_sum() {
    let (mut pool, _) = shared();
    pool.write(S, MIB);
    pool.delete(A, Some(S)).unwrap();
    pool.delete(S, None).unwrap();
    pool.sync();
    let shown = pool.ledger.show_group(at(S)).unwrap();
    assert_eq!((shown.state, shown.referenced), (GroupState::Tombstone, 9 * MIB));
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(pool.data(S), 9 * MIB);
}

#[test]
fn an_heirs_heir_pays_for_all_and_records_lead_straight_to_it() {
    let (mut pool, extent) = shared();
    let own = pool.write(S, MIB);
    pool.delete(A, Some(S)).unwrap();
    pool.delete(S, Some(B)).unwrap();
    assert_eq!(pool.data(B), 9 * MIB);
    pool.close();
    // Before and after the records have been brought up to date.
    assert_eq!(pool.crash(), vec![]);
    pool.sync();
    let heir = copyhold_format::item::heir_key(SubvolId(A));
    assert_eq!(copyhold_format::item::parse_heir(&pool.disk[&heir]), Ok(SubvolId(B)));
    pool.crash();
    pool.free(own);
    pool.free(extent);
    pool.sync();
    assert_eq!(pool.data(B), 0);
    let records = pool.disk.keys().filter(|key| key.kind == copyhold_format::item::HEIR);
    assert_eq!(records.count(), 0);
}

#[test]
fn who_was_an_heir_in_between_goes_like_everybody_else() {
    let (mut pool, extent) = shared();
    pool.snapshot(A, T, ROOT).unwrap();
    let group = pool.group("1/1", &["0/2"]);
    // No sweep in between: A's record names S, and T was its last heir before B.
    pool.delete(A, Some(S)).unwrap();
    pool.close();
    assert_eq!(pool.crash(), vec![]);
    assert_eq!(pool.ledger.show_group(group).unwrap().members, vec![]);
    pool.delete(S, Some(T)).unwrap();
    pool.delete(T, Some(B)).unwrap();
    assert_eq!(pool.data(B), 8 * MIB);
    pool.free(extent);
    pool.sync();
    pool.done(pool.ledger.destroy(group));
    pool.delete(B, None).unwrap();
    pool.sync();
    let shown: Vec<_> = pool.ledger.show().unwrap().iter().map(|group| group.id).collect();
    assert_eq!(shown, vec![at(ROOT)]);
    assert_eq!(pool.disk.len(), 1, "the status");
}

#[test]
fn heirs_that_cannot_be_are_refused_and_nothing_happens() {
    let (mut pool, _) = shared();
    let give =
        |pool: &Pool, owner, heir| code(pool.ledger.give_to_heir(SubvolId(owner), SubvolId(heir)));
    assert_eq!(give(&pool, A, S), "EINVAL", "A is alive");
    assert_eq!(code(pool.delete(A, Some(A))), "EINVAL");
    assert_eq!(code(pool.delete(A, Some(77))), "ENOENT");
    assert_eq!(pool.ledger.show_group(at(A)).unwrap().state, GroupState::Live);
    pool.delete(A, None).unwrap();
    pool.delete(B, None).unwrap();
    assert_eq!(give(&pool, A, B), "ESTALE", "so there is no circle");
    assert_eq!(give(&pool, A, A), "EINVAL");
    pool.done(pool.ledger.give_to_heir(SubvolId(A), SubvolId(S)));
    assert_eq!(give(&pool, A, S), "EEXIST");
}
