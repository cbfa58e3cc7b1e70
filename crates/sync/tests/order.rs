//! The order of locks is asserted where two of them are held, without another thread.

#![cfg(debug_assertions)]
#![allow(clippy::disallowed_methods, reason = "the order is kept for each thread of the machine")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use copyhold_sync::{Condvar, Mutex, RwLock, of};

type Outer = Mutex<u32, of::InodeState>;
type Inner = Mutex<u32, of::InodeCache>;

#[track_caller]
fn is_refused(lock: impl FnOnce()) {
    let refused = catch_unwind(AssertUnwindSafe(lock)).expect_err("the order is wrong");
    let text = refused.downcast_ref::<String>().expect("an assertion with values");
    assert!(text.starts_with("RANK-L1: waits for"), "{text}");
}

#[test]
fn locks_are_taken_in_the_order_of_their_ranks() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let (_first, _second) = (outer.lock(), inner.lock());
}

#[test]
fn a_lock_of_an_earlier_rank_is_refused() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let held = inner.lock();
    is_refused(|| drop(outer.lock()));
    drop(held);
    drop(outer.lock());
}

#[test]
fn locks_of_one_rank_are_taken_by_ascending_key() {
    let (one, two) = (Outer::default(), Outer::default());
    let first = one.lock_at(1);
    drop(two.lock_at(2));
    is_refused(|| drop(two.lock_at(1)));
    is_refused(|| drop(two.lock()));
    drop(first);
}

#[test]
fn a_thread_that_reads_may_not_read_again() {
    let lock: RwLock<(), of::TxgGate> = RwLock::default();
    let _reads = lock.read();
    is_refused(|| drop(lock.read()));
}

#[test]
fn trying_may_come_in_any_order_and_counts_as_holding() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let (later, tried) = (inner.lock(), outer.try_lock());
    assert!(tried.is_some());
    drop(later);
    let another = Outer::default();
    is_refused(|| drop(another.lock()));
    drop(tried);
    drop(another.lock());
}

#[test]
fn a_thread_that_waits_for_a_change_holds_no_later_lock() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let change = Condvar::new();
    let mut guard = outer.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *outer.lock() = 1;
            change.notify_one();
        });
        let later = inner.lock();
        is_refused(|| change.wait(&mut guard));
        drop(later);
        while *guard == 0 {
            change.wait(&mut guard);
        }
        drop(guard);
    });
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let (first, second) = (outer.lock(), inner.lock());
    drop(first);
    is_refused(|| drop(outer.lock()));
    drop(second);
    drop(outer.lock());
}

#[test]
fn each_thread_has_a_list_of_its_own() {
    let (outer, inner) = (Outer::default(), Inner::default());
    let _held = inner.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(outer.lock()));
    });
}
