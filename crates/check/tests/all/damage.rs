//! Images damaged on purpose, one kind of damage a test: the check finds it, names it, and says
//! what it means; and the pool behaves as is promised.

mod debug;
mod device;
mod files;
mod fragments;
mod headers;
mod layers;
mod log;
mod nodes;
mod pool;
mod random;
mod space;
mod tenants;

use pool::{kinds, report, sound};

#[test]
fn a_sound_pool_has_no_findings_and_everything_was_looked_at() {
    let image = sound();
    let report = report(&image);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let verified = report.verified;
    assert_eq!((verified.labels, verified.subvolumes, verified.orphans), (2, 1, 1));
    assert_eq!(verified.inodes, 10 + pool::HOW_MANY);
    assert_eq!(verified.data_blocks, 70 + 1 + 2 + pool::HOW_MANY);
    assert!(verified.partitions > 4 && verified.node_copies > 30, "{verified:?}");
    assert!(kinds(&image).is_empty());
}

#[test]
fn a_check_changes_nothing() {
    let power = pool::Power::on(&sound());
    let before = power.device.image();
    power.check().unwrap();
    assert_eq!(power.device.image(), before);
}

#[test]
fn a_report_is_an_object_for_programs() {
    let mut image = sound();
    pool::rot(&mut image, 0);
    let json = serde_json::to_value(report(&image)).unwrap();
    assert_eq!(json["findings"][0]["kind"], "label");
    assert_eq!(json["findings"][0]["severity"], "repairable");
    assert!(json["verified"]["node_copies"].as_u64().unwrap() > 0);
}
