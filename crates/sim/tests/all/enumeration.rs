//! Every workload of one operation with every crash, and some of those of two; `make enumerate`
//! runs all. And rules that are broken on purpose, so that this is seen to notice.

use copyhold_format::item::ChecksumMode;
use copyhold_pool::Sabotage as OfPool;
use copyhold_sim::{Enumeration, Sabotage, Tally};
use copyhold_volume::Sabotage as OfTenants;

#[track_caller]
fn holds(plan: Enumeration) -> Tally {
    let tally = plan.run(|_| ());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
    tally
}

#[test]
fn every_workload_of_one_operation_survives_every_crash() {
    let tally = holds(Enumeration::of_length(1));
    assert_eq!((tally.families, tally.workloads), (45, 296));
    assert!(tally.states > 5000, "{tally:?}");
}

#[test]
fn some_workloads_of_two_operations_survive_every_crash() {
    let tally = holds(Enumeration { part: (1, 400), ..Enumeration::of_length(2) });
    assert!(tally.states > 1000, "{tally:?}");
}

/// Each mode with some workloads of one operation that write data; a crash tears data and tuples
/// apart.
#[test]
fn workloads_on_a_device_with_protection_information_survive_every_crash() {
    let protection = Some("4096+16:64b".parse().expect("a format"));
    for mode in ChecksumMode::ALL {
        let plan = Enumeration { protection, mode, ..Enumeration::of_length(1) };
        let tally = holds(Enumeration { part: (8, 20), ..plan });
        assert!(tally.states > 100, "{mode}: {tally:?}");
        assert!(tally.by_mode[usize::from(mode.code())] > 0, "{mode}: {tally:?}");
    }
}

/// No batch is there without its data: with guards, and without any checksums on any device.
#[test]
fn r8_data_that_is_not_flushed_before_its_batch_is_noticed() {
    let format = "4096+16:64b".parse().expect("a format");
    for (protection, mode) in [(Some(format), ChecksumMode::Guard), (None, ChecksumMode::None)] {
        let plan = Enumeration { protection, mode, ..Enumeration::of_length(1) };
        is_noticed_in(plan, OfPool::NoFlushBeforeGuard);
    }
}

#[test]
fn the_same_is_seen_each_time() {
    let plan = Enumeration { part: (4, 9), ..Enumeration::of_length(1) };
    assert_eq!(holds(plan), holds(plan));
}

/// A rule that is broken is noticed by workloads of one operation.
#[track_caller]
fn is_noticed(rule: impl Into<Sabotage>) {
    is_noticed_in(Enumeration::of_length(1), rule);
}

#[track_caller]
fn is_noticed_in(plan: Enumeration, rule: impl Into<Sabotage>) {
    let rule = rule.into();
    let tally = Enumeration { broken: Some(rule), until_failure: true, ..plan }.run(|_| ());
    let noticed = tally.failures.first();
    println!("{}: {}", rule.name(), noticed.expect("it can be broken, and nobody notices"));
}

#[test]
fn acknowledging_without_a_flush_is_noticed() {
    is_noticed(OfPool::NoFlushBeforeAcknowledgement);
}

#[test]
fn r31_joining_before_the_data_is_there_is_noticed() {
    is_noticed(OfPool::JoinBeforeData);
}

#[test]
fn recording_a_root_before_its_nodes_are_flushed_is_noticed() {
    is_noticed(OfPool::NoFlushBeforeRoot);
}

#[test]
fn r6_a_head_ahead_of_the_record_is_noticed() {
    is_noticed(OfPool::HeadAheadOfRecord);
}

#[test]
fn r15_discarding_what_is_freed_at_once_is_noticed() {
    is_noticed(OfPool::DiscardEarly);
}

#[test]
fn not_verifying_the_tail_is_noticed() {
    is_noticed(OfPool::TailNotVerified);
}

#[test]
fn r44_a_reflink_that_is_not_counted_is_noticed() {
    is_noticed(OfTenants::UncountedShares);
}
