//! Each request of a short workload fails, once or for good; and an engine that takes a failure
//! lightly is noticed.

use copyhold_pool::Sabotage;
use copyhold_sim::faults::{Faults, Kind};

#[test]
fn whatever_request_fails_nothing_is_lost_that_was_promised() {
    let faults = Faults::new();
    for kind in Kind::ALL {
        assert!(faults.requests(kind) > 0, "there is no {kind:?}");
    }
    let failed: Vec<String> =
        faults.points().filter_map(|point| faults.play(point).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Rule R12: a flush that fails may have lost what the next one does not bring back.
#[test]
fn a_pool_that_flushes_again_and_goes_on_is_noticed() {
    let faults = Faults::breaking(Sabotage::TrustSecondFlush);
    assert!(faults.points().any(|point| faults.play(point).is_err()));
}
