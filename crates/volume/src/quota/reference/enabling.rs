//! Section 4: enabling, disabling, and data from before.

use std::collections::BTreeMap;

use super::*;

#[test]
fn enabling_counts_nothing_that_is_there_and_all_that_is_written_from_then_on() {
    let mut pool = Pool::off();
    let old = pool.write(A, MIB);
    pool.enable();
    assert_eq!(pool.data(A), 0);
    // Dirty in memory when quotas were enabled, written after: counted.
    let new = pool.write(A, 64 << 10);
    pool.free(old);
    assert_eq!(pool.data(A), 64 << 10);
    pool.free(new);
    assert_eq!(pool.data(A), 0);
}

#[test]
fn enabling_writes_one_record_however_many_subvolumes_there_are() {
    let pool = Pool::off();
    let many = (1..1000).map(|id| Resident { subvol: SubvolId(id), holder: None, origin: None });
    assert_eq!(pool.ledger.enable(EpochId(9), many).unwrap().len(), 1);
}

#[test]
fn what_is_old_stays_uncounted_when_it_is_reflinked_or_moved() {
    let mut pool = Pool::off();
    let old = pool.write(A, MIB);
    pool.enable();
    // The pointer is of a new epoch; its origin decides (R25).
    assert!(!pool.ledger.counts(EpochId(old.origin)));
    pool.free(old);
    assert_eq!(pool.ledger.usage(), BTreeMap::new());
}

#[test]
fn disabling_forgets_groups_limits_and_relations_and_leaves_no_record() {
    let mut pool = Pool::on();
    pool.group("1/100", &["0/2"]);
    pool.limit(at(A), MIB);
    let extent = pool.write(A, MIB);
    pool.sync();
    pool.disable();
    assert_eq!(pool.disk.len(), 1, "the status");
    assert_eq!(code(pool.ledger.show()), "ENOTCONN");
    pool.write(A, 100 * MIB);
    pool.enable();
    assert_eq!(pool.ledger.status().generation, 2);
    assert_eq!(code(pool.ledger.show_group(group("1/100"))), "ENOENT");
    // Counted in the first time, and never again.
    pool.free(extent);
    assert_eq!(pool.data(A), 0);
    pool.write(A, 4096);
    assert_eq!(pool.data(A), 4096);
}

#[test]
fn a_second_enabling_changes_nothing() {
    let mut pool = Pool::on();
    pool.write(A, MIB);
    assert_eq!(pool.ledger.enable(EpochId(pool.next_epoch), []), Ok(vec![]));
    assert_eq!(pool.data(A), MIB);
    assert_eq!(pool.ledger.disable().len(), 1);
}

#[test]
fn full_mode_and_rescan_are_refused_with_the_reason() {
    let pool = Pool::on();
    assert_eq!(code(pool.ledger.rescan()), "EINVAL");
    let full = pool.ledger.enable_full().unwrap_err();
    assert!(full.to_string().contains("--simple"));
}

#[test]
fn without_quotas_everything_about_groups_says_so_and_writing_costs_nothing() {
    let mut pool = Pool::off();
    let one = group("1/1");
    assert_eq!(code(pool.ledger.create(one)), "ENOTCONN");
    assert_eq!(code(pool.ledger.destroy(one)), "ENOTCONN");
    assert_eq!(code(pool.ledger.assign(at(A), one)), "ENOTCONN");
    assert_eq!(code(pool.ledger.remove(at(A), one)), "ENOTCONN");
    assert_eq!(code(pool.ledger.limit(one, LimitKind::Referenced, None)), "ENOTCONN");
    assert_eq!(code(pool.ledger.rescan()), "ENOTCONN");
    assert_eq!(code(pool.ledger.sweep_all()), "ENOTCONN");
    assert_eq!(pool.ledger.disable(), vec![]);
    pool.create(S, A);
    pool.write(S, MIB);
    pool.delete(S, Some(A)).unwrap();
    assert_eq!((pool.ledger.available(SubvolId(A)), pool.disk.len()), (None, 0));
    assert_eq!(pool.ledger.closing(pool.txg), vec![]);
}

#[test]
fn a_crash_between_what_enabling_counted_and_its_record_leaves_quotas_off() {
    let mut pool = Pool::off();
    let rows = pool.ledger.enable(EpochId(pool.next_epoch), pool.residents.clone()).unwrap();
    assert_eq!(rows.len(), 1);
    pool.write(A, MIB);
    pool.sync();
    assert_eq!(pool.crash(), vec![]);
    assert!(!pool.ledger.is_on());
    assert_eq!(code(pool.ledger.enable(EpochId(99), [])), "EBUSY", "usage is yet to be swept");
    pool.sync();
    assert!(pool.disk.is_empty());
    pool.enable();
    assert_eq!(pool.data(A), 0);
}
