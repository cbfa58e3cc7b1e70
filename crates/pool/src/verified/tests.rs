//! Two devices with a copy each, and each kind of failure.

mod tuples;

use copyhold_device::sim::Lasting;
use copyhold_device::{Device, DynDevice, SimDevice};
use copyhold_runtime::SeededRuntime;
use copyhold_types::{BlockAddr, DeviceId};
use proptest::prelude::*;

use super::*;
use crate::{CleanData, Pin};

const EIO: i32 = 5;
const EILSEQ: i32 = 84;
const BLOCKS: u32 = 4;
const AT: u64 = 5;
/// The ids of the devices are not their places.
const IDS: [DeviceId; 2] = [DeviceId(3), DeviceId(7)];

struct World {
    rt: std::sync::Arc<SeededRuntime>,
    disks: [std::sync::Arc<SimDevice>; 2],
    reader: Reader,
    /// As of a caller.
    _pin: Pin,
}

fn content() -> Buf {
    let mut content = Buf::zeroed(BLOCKS as usize);
    let bytes = content.make_mut().iter_mut().enumerate();
    bytes.for_each(|(at, byte)| *byte = (at / 7 + at / BLOCK_BYTES) as u8);
    content
}

fn sums() -> Vec<u32> {
    content().chunks(BLOCK_BYTES).map(block_checksum).collect()
}

fn copy(n: usize) -> Copied {
    Copied::Whole(Run::new(BlockAddr::new(IDS[n], AT), BLOCKS))
}

impl World {
    fn new(repairs: bool) -> World {
        let rt = SeededRuntime::new(1);
        let disks = IDS.map(|id| SimDevice::new(rt.clone() as Rt, id, 16, 1));
        let devices = IDS.iter().zip(&disks).map(|(id, disk)| (*id, disk.clone() as DynDevice));
        let pins = Pins::default();
        let pin = pins.pin(copyhold_types::Txg::FIRST);
        let repair = repairs.then(|| Repair { rt: rt.clone() as Rt, pins });
        let reader = Reader::new(Devices::of(devices.collect(), CleanData::none()), repair);
        let world = World { rt, disks, reader, _pin: pin };
        for disk in &world.disks {
            world.rt.block_on(disk.write(AT, content().into(), Purpose::Data)).unwrap();
        }
        world
    }

    fn read(&self, copies: &[Copied], condition: Condition<'_>) -> Result<Buf, Problem> {
        self.rt.block_on(self.reader.read(copies, condition, Purpose::Data))
    }

    fn count(&self, disk: usize, failure: Failure) -> u64 {
        self.reader.failures().get(IDS[disk], failure)
    }

    fn reads(&self) -> u64 {
        let reads = |disk: &std::sync::Arc<SimDevice>| {
            disk.counters().snapshot().purposes[Purpose::Data as usize].reads
        };
        self.disks.iter().map(reads).sum()
    }

    fn is_good(&self, disk: usize, block: u32) -> bool {
        let found = self.disks[disk].read_block_now(AT + u64::from(block));
        found[..] == content()[bytes(block as usize)]
    }
}

#[test]
fn a_good_first_copy_is_all_that_is_read() {
    let world = World::new(true);
    let read = world.read(&[copy(0), copy(1)], Condition::Sums(&sums())).unwrap();
    assert_eq!((&read[..], world.reads()), (&content()[..], 1));
}

#[test]
fn a_bad_copy_is_written_again_from_the_other() {
    for condition in [Condition::Sums(&sums()), Condition::Digest(digest(&content()))] {
        let world = World::new(true);
        world.disks[0].rot(AT + 2);
        let read = world.read(&[copy(0), copy(1)], condition).unwrap();
        assert_eq!(read[..], content()[..]);
        assert!(world.is_good(0, 2), "VERIFY-V2");
        let counted = [Failure::Mismatch, Failure::Repaired, Failure::Lost];
        assert_eq!(counted.map(|failure| world.count(0, failure)), [1, 1, 0], "VERIFY-V3");
    }
}

#[test]
fn without_the_means_to_repair_nothing_is_written() {
    let world = World::new(false);
    world.disks[0].rot(AT);
    assert!(world.read(&[copy(0), copy(1)], Condition::Sums(&sums())).is_ok());
    assert!(!world.is_good(0, 0));
    assert_eq!(world.count(0, Failure::Repaired), 0);
}

#[test]
fn an_error_that_passes_is_no_error_of_the_read() {
    let world = World::new(true);
    world.disks[0].break_block(AT + 1, EIO, Lasting::Once);
    let read = world.read(&[copy(0)], Condition::Sums(&sums())).unwrap();
    assert_eq!(read[..], content()[..]);
    assert_eq!([Failure::Unreadable, Failure::Lost].map(|it| world.count(0, it)), [1, 0]);
}

#[test]
fn content_that_is_bad_everywhere_is_an_error_that_names_the_block() {
    let world = World::new(true);
    world.disks[0].rot(AT + 2);
    let problem = world.read(&[copy(0)], Condition::Sums(&sums())).expect_err("it is rotten");
    assert_eq!(problem.block, 2);
    assert!(problem.to_string().starts_with("block 3:7 has checksum "), "{problem}");
    assert_eq!(world.count(0, Failure::Lost), 1);

    world.disks[1].break_block(AT + 2, EILSEQ, Lasting::Forever);
    let both =
        world.read(&[copy(0), copy(1)], Condition::Sums(&sums())).expect_err("no copy is good");
    assert_eq!(both.block, 2);
    assert!(both.to_string().contains("checksum") && both.to_string().contains("; "), "{both}");
    assert!(world.count(1, Failure::Integrity) > 0);
}

#[test]
fn attached_blocks_are_not_judged_on_the_device() {
    let world = World::new(true);
    world.disks[0].rot(AT + 1);
    let attached = vec![(1, Buf::from_bytes(&content()[bytes(1)]))];
    let (sums, copies) = (sums(), [copy(0)]);
    let read = world.reader.read_beside(&copies, &attached, Condition::Sums(&sums), Purpose::Data);
    assert_eq!(world.rt.block_on(read).unwrap()[..], content()[..]);
    // Also where another block makes the reader look at each.
    world.disks[0].break_block(AT + 2, EIO, Lasting::Once);
    let read = world.reader.read_beside(&copies, &attached, Condition::Sums(&sums), Purpose::Data);
    assert_eq!(world.rt.block_on(read).unwrap()[..], content()[..]);
    assert!(!world.is_good(0, 1));
    // A wrong attached block is an error on either way (VERIFY-V1).
    let wrong = vec![(1, Buf::zeroed(1))];
    for errors in 0..2 {
        if errors > 0 {
            world.disks[0].break_block(AT + 2, EIO, Lasting::Once);
        }
        let read = world.reader.read_beside(&copies, &wrong, Condition::Sums(&sums), Purpose::Data);
        assert_eq!(world.rt.block_on(read).expect_err("it is wrong").block, 1);
    }
}

#[test]
fn a_mismatch_in_the_only_copy_is_no_reason_for_a_second_look() {
    let world = World::new(true);
    world.disks[0].rot(AT + 3);
    assert!(world.read(&[copy(0)], Condition::Sums(&sums())).is_err());
    assert_eq!(world.reads(), 1, "VERIFY-V4");
}

/// The damage of one block of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    None,
    Rot,
    Error,
}

fn harms() -> impl Strategy<Value = [[Harm; BLOCKS as usize]; 2]> {
    let harm = prop_oneof![3 => Just(Harm::None), 1 => Just(Harm::Rot), 1 => Just(Harm::Error)];
    prop::array::uniform2(prop::array::uniform4(harm))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// VERIFY-V1: a read succeeds if each block is good in some copy, and never returns anything
    /// else; VERIFY-V2: then all that can be written is good again.
    #[test]
    fn each_block_may_come_from_another_copy(harms in harms(), copies in 1..=2_usize) {
        let world = World::new(true);
        for (disk, harms) in world.disks.iter().zip(harms) {
            for (block, harm) in (AT..).zip(harms) {
                match harm {
                    Harm::None => {}
                    Harm::Rot => drop(disk.rot(block)),
                    Harm::Error => disk.break_block(block, EIO, Lasting::UntilWritten),
                }
            }
        }
        let wanted = (0..BLOCKS as usize)
            .all(|block| harms[..copies].iter().any(|of| of[block] == Harm::None));
        let names = [copy(0), copy(1)];
        let read = world.read(&names[..copies], Condition::Sums(&sums()));
        prop_assert_eq!(read.is_ok(), wanted);
        if let Ok(read) = read {
            prop_assert_eq!(&read[..], &content()[..]);
            let again = world.reads();
            prop_assert!(world.read(&[copy(0)], Condition::Sums(&sums())).is_ok());
            prop_assert_eq!(world.reads(), again + 1, "the first copy is whole again");
        }
    }

    /// The tail check's view: exactly the harmed blocks, each with its kind.
    #[test]
    fn judging_finds_the_harmed_blocks(harms in harms()) {
        let world = World::new(true);
        for (block, harm) in (AT..).zip(harms[0]) {
            match harm {
                Harm::None => {}
                Harm::Rot => drop(world.disks[0].rot(block)),
                Harm::Error => world.disks[0].break_block(block, EIO, Lasting::Forever),
            }
        }
        let (run, sums) = (Run::new(BlockAddr::new(IDS[0], AT), BLOCKS), sums());
        let problems = world.rt.block_on(world.reader.judge(run, &sums, Purpose::Data));
        let kind = |problem: &Problem| match problem.unreadable() {
            Some(_) => Harm::Error,
            None => Harm::Rot,
        };
        let found: Vec<_> = problems.iter().map(|it| (it.block, kind(it))).collect();
        let harmed = (0..).zip(harms[0]).filter(|(_, harm)| *harm != Harm::None);
        prop_assert_eq!(found, harmed.collect::<Vec<_>>());
    }
}
