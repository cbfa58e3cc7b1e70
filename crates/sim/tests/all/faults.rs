//! Each request of a short workload fails, once or for good; and an engine that takes a failure
//! lightly is noticed.

use std::collections::BTreeMap;

use copyhold_pool::Sabotage;
use copyhold_sim::faults::{Fate, Faults, Kind};

#[test]
fn whatever_request_fails_nothing_is_lost_that_was_promised() {
    let faults = Faults::new();
    for kind in Kind::ALL {
        assert!(faults.requests(kind) > 0, "there is no {kind:?}");
    }
    let mut rows = BTreeMap::<(u8, bool), [u64; Fate::ALL.len()]>::new();
    let mut failed = Vec::new();
    for point in faults.points() {
        let row = rows.entry((point.kind as u8, point.for_good)).or_default();
        match faults.play(point) {
            Ok(fate) => row[fate as usize] += 1,
            Err(failure) => failed.push(failure),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let page = include_str!("../../../../docs/testing.md");
    for ((kind, for_good), fates) in rows {
        let kind = format!("{:?}", Kind::ALL[kind as usize]).to_lowercase();
        let how = if for_good { "for good" } else { "once" };
        let [unseen, reported, stopped, closed] = fates;
        let row = format!("| {kind} | {how} | {unseen} | {reported} | {stopped} | {closed} |");
        assert!(page.contains(&row), "docs/testing.md, Faults, does not say {row}");
    }
}

/// Requests for tuples fail, too, and files have different checksum modes. These are some
/// of all requests: `copyhold-simulate --faults --pi 4096+16:64b` plays the others.
#[test]
fn on_a_device_with_protection_information_nothing_is_lost_either() {
    let faults = Faults::on("4096+16:64b".parse().expect("a format"));
    let by_mode = faults.by_mode();
    assert!(by_mode.iter().all(|count| *count > 0), "extents by mode: {by_mode:?}");
    for point in faults.points().step_by(5) {
        faults.play(point).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Rule R12: a flush that fails may have lost what the next one does not bring back.
#[test]
fn a_pool_that_flushes_again_and_goes_on_is_noticed() {
    let faults = Faults::breaking(Sabotage::TrustSecondFlush);
    assert!(faults.points().any(|point| faults.play(point).is_err()));
}
