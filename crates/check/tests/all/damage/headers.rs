//! Headers of protection information: written again with a label's consent, or left as they are.

use std::sync::Arc;

use copyhold_check::{Options, Problem, check_device, repair_headers};
use copyhold_device::pi::{self, Emulated};
use copyhold_device::sim::{Lasting, SimImage};
use copyhold_device::{DynDevice, OpenMode};
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_pool::{CreateOptions, Pool, PoolError, ProtectionProblem};
use copyhold_runtime::Rt;

use super::pool::Power;

const BLOCKS: u64 = 4096;
const EIO: i32 = 5;
const HEADERS: [u64; 2] = [BLOCKS - 2, BLOCKS - 1];

/// A disk with a pool of so many blocks on a namespace that `seed` gives its identity.
fn pool(seed: u64, format: &str, blocks: Option<u64>) -> SimImage {
    let power = Power::seeded(&SimImage::empty(BLOCKS), seed);
    let rt = || power.rt.clone() as Rt;
    power.rt.block_on(async {
        let format = format.parse().unwrap();
        let device: DynDevice = Emulated::create(rt(), power.device(), format).await.unwrap();
        let options = CreateOptions { blocks, ..CreateOptions::default() };
        Pool::create(&rt(), &device, &options).await.unwrap();
    });
    power.device.image()
}

fn repair_on(power: &Power) -> Result<Vec<u64>, PoolError> {
    power.rt.block_on(repair_headers(power.rt.clone() as Rt, &power.device()))
}

/// The disk after a repair of the headers, and its answer.
fn repaired(image: &SimImage) -> (SimImage, Result<Vec<u64>, PoolError>) {
    let power = Power::on(image);
    let answer = repair_on(&power);
    (power.device.image(), answer)
}

fn zero(image: &mut SimImage, block: u64) {
    image.corrupt(block, |content| content.fill(0));
}

fn lose_headers(image: &SimImage) -> SimImage {
    let mut lost = image.clone();
    HEADERS.iter().for_each(|at| zero(&mut lost, *at));
    lost
}

/// Changes both labels of a pool on all of its namespace.
fn relabel(image: &mut SimImage, change: impl FnOnce(&mut Label)) {
    let mut label = Label::parse(&image.read_block(0)).unwrap();
    change(&mut label);
    for at in Label::areas(label.blocks) {
        image.corrupt(at, |content| content.copy_from_slice(&label.encode()));
    }
}

#[test]
fn a_header_of_another_namespace_is_not_copied_over_the_own_damaged_one() {
    for format in ["4096+8:16b", "4096+16:64b"] {
        let (mut image, other) = (pool(1, "4096+8:16b", None), pool(2, format, None));
        zero(&mut image, HEADERS[0]);
        let strange = other.read_block(HEADERS[1]);
        image.corrupt(HEADERS[1], |content| *content = strange);
        let (after, answer) = repaired(&image);
        assert_eq!(answer.unwrap(), [0; 0], "{format}");
        assert!(after == image, "{format}");
        // The check shows the bad copy beside the cause why the pool is not opened.
        let power = Power::on(&image);
        let rt = || power.rt.clone() as Rt;
        let report = power.rt.block_on(async {
            let opened = pi::open(rt(), power.device(), OpenMode::ReadOnly).await.unwrap();
            check_device(rt(), opened, Options::default()).await.unwrap()
        });
        let problems: Vec<_> = report.problems().collect();
        let is_shown = problems.iter().any(|found| matches!(found, Problem::HeaderCopy { .. }));
        let is_closed = problems.iter().any(|found| matches!(found, Problem::CannotOpen { .. }));
        assert!(is_shown && is_closed, "{problems:?}");
    }
}

#[test]
fn the_own_header_is_copied_over_a_damaged_one_with_a_label_at_either_end() {
    let whole = pool(1, "4096+8:16b", None);
    let second = Label::parse(&whole.read_block(0)).unwrap().blocks - AREA_BLOCKS;
    for lost in [None, Some(0), Some(second)] {
        for bad in HEADERS {
            let mut image = whole.clone();
            lost.iter().for_each(|at| zero(&mut image, *at));
            let expected = image.clone();
            image.corrupt(bad, |content| content[99] ^= 1);
            let (after, answer) = repaired(&image);
            assert_eq!(answer.unwrap(), [bad]);
            assert!(after == expected);
        }
    }
    let mut image = whole;
    [0, second, HEADERS[0]].into_iter().for_each(|at| zero(&mut image, at));
    let (after, answer) = repaired(&image);
    assert_eq!(answer.unwrap(), [0; 0], "no label agrees with it");
    assert!(after == image);
}

#[test]
fn a_pool_that_this_program_can_only_read_gets_no_header() {
    let mut image = pool(1, "4096+8:16b", None);
    relabel(&mut image, |label| label.features.ro_compat |= 1 << 63);
    assert_eq!(repaired(&image).1.unwrap(), [0; 0], "nothing is to be done");
    let mut one = image.clone();
    zero(&mut one, HEADERS[1]);
    for image in [one, lose_headers(&image)] {
        let (after, answer) = repaired(&image);
        assert!(matches!(answer, Err(PoolError::ReadOnly { .. })), "{answer:?}");
        assert!(after == image);
    }
}

#[test]
fn lost_headers_are_made_only_if_each_label_has_its_tuple() {
    for (format, blocks) in [
        ("4096+8:16b", None),
        ("4096+8:16b", Some(3000)),
        ("4096+64:32b:type3", None),
        ("4096+64:32b:type3", Some(3000)),
    ] {
        let whole = pool(1, format, blocks);
        let lost = lose_headers(&whole);
        let (after, answer) = repaired(&lost);
        assert_eq!(answer.unwrap(), HEADERS, "{format}");
        assert!(after == whole, "{format}");
        let power = Power::on(&whole);
        let found = Emulated::find(power.rt.clone(), power.device(), OpenMode::ReadOnly);
        let namespace: Arc<Emulated> = power.rt.block_on(found).unwrap().unwrap();
        let label = Label::parse(&whole.read_block(0)).unwrap();
        let copy = namespace.header().data_blocks - AREA_BLOCKS;
        for at in Label::areas(label.blocks).into_iter().chain([copy]) {
            let (block, bytes) = namespace.place_of_metadata(at);
            let mut erased = lost.clone();
            erased.corrupt(block, |content| content[bytes].fill(0));
            let (after, answer) = repaired(&erased);
            let refused = answer.unwrap_err().to_string();
            assert!(refused.contains(&format!("the label in block {at} is not")), "{refused}");
            assert!(after == erased, "{format}");
        }
    }
}

#[test]
fn headers_that_cannot_be_read_now_are_not_written_over() {
    let image = pool(1, "4096+8:16b", None);
    let power = Power::on(&image);
    HEADERS.iter().for_each(|at| power.device.break_block(*at, EIO, Lasting::Forever));
    let refused = repair_on(&power).unwrap_err().to_string();
    assert!(refused.contains("it is not made anew"), "{refused}");
    assert!(power.device.image() == image);
}

#[test]
fn a_file_that_was_cut_is_explained_by_its_opening() {
    let whole = pool(1, "4096+8:16b", None);
    let mut cut = SimImage::empty(BLOCKS - 2);
    (0..BLOCKS - 2).for_each(|at| cut.put(at, Some(Arc::new(whole.read_block(at)))));
    let (after, answer) = repaired(&cut);
    assert_eq!(answer.unwrap(), [0; 0]);
    assert!(after == cut);
    let power = Power::on(&cut);
    let error = power.open(true).err().unwrap();
    let is_cut = |problem: &ProtectionProblem| matches!(problem, ProtectionProblem::Cut { .. });
    assert!(matches!(&error, PoolError::Protection { problem, .. } if is_cut(problem)), "{error}");
}
