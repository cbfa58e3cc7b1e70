//! Labels and uberblocks.

use copyhold_check::{End, Problem, Severity};
use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::label::{AREA_BLOCKS, Label, RING_SLOTS, RING_START};
use copyhold_format::uberblock::Uberblock;
use copyhold_pool::PoolError;

use super::pool::{BLOCKS, Power, kinds, report, rot, sound};

const ENDS: [u64; 2] = [0, BLOCKS - AREA_BLOCKS];

fn label(image: &SimImage, end: u64) -> Label {
    Label::parse(&image.read_block(end)).unwrap()
}

/// Slots with an uberblock, the newest first.
fn slots(image: &SimImage) -> Vec<u64> {
    let pool = label(image, 0).pool;
    let mut found: Vec<(u64, u64)> = (0..RING_SLOTS)
        .filter_map(|slot| {
            let block = image.read_block(RING_START + slot);
            Some((Uberblock::parse(&block, pool).ok()?.number, slot))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().rev().map(|(_, slot)| slot).collect()
}

/// Only the label at that end is reported, and opening the pool repairs it.
#[track_caller]
fn assert_label_is_repaired(image: &SimImage, end: End) {
    let report = report(image);
    let [Problem::Label { end: found, .. }] = report.problems().collect::<Vec<_>>()[..] else {
        panic!("{report:?}");
    };
    assert_eq!((*found, report.worst()), (end, Some(Severity::Repairable)));
    let power = Power::on(image);
    let pool = power.open(false).unwrap();
    power.rt.block_on(pool.close()).unwrap();
    assert!(kinds(&power.device.image()).is_empty(), "both labels are whole");
}

#[test]
fn a_damaged_label_is_told_and_repaired_by_the_other() {
    for (damaged, end) in [End::Start, End::End].into_iter().enumerate() {
        let mut image = sound();
        rot(&mut image, ENDS[damaged]);
        assert_label_is_repaired(&image, end);
    }
}

#[test]
fn without_any_label_the_pool_is_known_by_its_uberblocks() {
    let mut image = sound();
    ENDS.iter().for_each(|&end| rot(&mut image, end));
    assert_eq!(kinds(&image), ["cannot-open", "label"]);
    assert!(matches!(Power::on(&image).open(false), Err(PoolError::Damaged { .. })));

    ENDS.iter().for_each(|&end| image.corrupt(end, |block| block.fill(0)));
    assert_eq!(kinds(&image), ["cannot-open", "label"]);
    assert_eq!(report(&image).worst(), Some(Severity::Fatal));
}

#[test]
fn what_never_was_a_pool_is_not_called_damaged() {
    let error = Power::on(&SimImage::empty(BLOCKS)).check().unwrap_err();
    assert!(matches!(error, PoolError::NotAPool { .. }), "{error}");
    let mut newer = sound();
    ENDS.iter().for_each(|&end| newer.corrupt(end, |block| block[8] = 9));
    let error = Power::on(&newer).check().unwrap_err();
    assert!(matches!(error, PoolError::Newer { .. }), "{error}");
}

#[test]
fn labels_that_differ_are_told() {
    let mut image = sound();
    let other = Label { name: "another".into(), ..label(&image, 0) };
    image.corrupt(ENDS[1], |block| block.copy_from_slice(&other.encode()));
    assert_eq!(kinds(&image), ["labels-differ"]);
}

#[test]
fn an_uberblock_that_is_damaged_at_one_end_is_no_loss() {
    let mut image = sound();
    let newest = slots(&image)[0];
    rot(&mut image, ENDS[1] + RING_START + newest);
    let report = report(&image);
    let [Problem::UberblockCopy { end: End::End, slot, .. }] =
        report.problems().collect::<Vec<_>>()[..]
    else {
        panic!("{report:?}");
    };
    assert_eq!((*slot, report.worst()), (newest, Some(Severity::Cosmetic)), "as after a crash");
    assert!(Power::on(&image).open(false).is_ok());
}

#[test]
fn without_the_newest_uberblock_an_older_one_serves() {
    let mut image = sound();
    let newest = slots(&image)[0];
    ENDS.iter().for_each(|&end| rot(&mut image, end + RING_START + newest));
    let report = report(&image);
    assert!(report.is_clean(), "a crash may leave the same: {report:?}");
    assert!(
        matches!(report.findings[0].problem, Problem::Uberblock { slot, .. } if slot == newest)
    );
    assert!(Power::on(&image).open(false).is_ok());
}

#[test]
fn without_any_uberblock_the_pool_does_not_open() {
    let mut image = sound();
    for slot in slots(&image) {
        ENDS.iter().for_each(|&end| rot(&mut image, end + RING_START + slot));
    }
    assert_eq!(kinds(&image), ["cannot-open", "uberblock"]);
    let Err(error) = Power::on(&image).open(false) else { panic!("it opened") };
    assert!(error.to_string().contains("no uberblock verifies"), "{error}");
}

#[test]
fn more_lost_uberblocks_than_the_log_is_kept_for_are_told() {
    let mut image = sound();
    for slot in &slots(&image)[..3] {
        ENDS.iter().for_each(|&end| rot(&mut image, end + RING_START + slot));
    }
    assert_eq!(kinds(&image), ["cannot-open", "uberblock"]);
}

/// A slot that cannot be read hides neither the others nor the log.
#[test]
fn a_slot_at_each_end_that_cannot_be_read_hides_nothing() {
    let mut image = sound();
    let [newest, older, oldest, ..] = slots(&image)[..] else { panic!("too few uberblocks") };
    rot(&mut image, ENDS[1] + RING_START + older);
    let power = Power::on(&image);
    power.device.break_block(ENDS[0] + RING_START + newest, 5, Lasting::Forever);
    power.device.break_block(ENDS[1] + RING_START + oldest, 5, Lasting::Forever);
    let report = power.check().unwrap();
    let copies = report.problems().filter_map(|problem| match problem {
        Problem::UberblockCopy { end, slot, .. } => Some((*end == End::End, *slot)),
        _ => None,
    });
    let mut copies: Vec<_> = copies.collect();
    let mut wanted = vec![(false, newest), (true, older), (true, oldest)];
    copies.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(copies, wanted);
}

/// Features change in one label after the other (FEATURE-F1): the power fails between the two.
#[test]
fn a_label_that_is_out_of_date_is_repaired_by_the_newer_one() {
    for (newer, end) in [End::End, End::Start].into_iter().enumerate() {
        let mut image = sound();
        let old = label(&image, ENDS[newer]);
        let next = Label { generation: old.generation + 1, ..old };
        image.corrupt(ENDS[newer], |block| block.copy_from_slice(&next.encode()));
        assert_label_is_repaired(&image, end);
    }
}
