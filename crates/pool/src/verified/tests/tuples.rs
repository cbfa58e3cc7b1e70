//! Content with tuples beside its blocks, on two emulated namespaces with a copy each.

use copyhold_device::pi::{DriveFault, Emulated};
use copyhold_device::sim::make_namespace;

use super::*;

const BIRTH: u32 = 7;
const GUARD: Condition<'static> = Condition::Guard { birth: BIRTH };
const OFFLOAD: Condition<'static> = Condition::Offload { birth: BIRTH };

struct Namespaces {
    rt: std::sync::Arc<SeededRuntime>,
    devices: [std::sync::Arc<Emulated>; 2],
    reader: Reader,
    _pin: Pin,
}

impl Namespaces {
    fn new(condition: Condition<'_>) -> Namespaces {
        let rt = SeededRuntime::new(1);
        let devices = IDS.map(|id| {
            let disk = SimDevice::new(rt.clone() as Rt, id, 640, 1);
            make_namespace(&rt, &disk, "4096+16:64b")
        });
        let all = IDS.iter().zip(&devices).map(|(id, one)| (*id, one.clone() as DynDevice));
        let pins = Pins::default();
        let pin = pins.pin(copyhold_types::Txg::FIRST);
        let repair = Some(Repair { rt: rt.clone() as Rt, pins });
        let reader = Reader::new(Devices::of(all.collect(), CleanData::none()), repair);
        let world = Namespaces { rt, devices, reader, _pin: pin };
        (0..IDS.len()).for_each(|copy| world.write(copy, &content(), condition));
        world
    }

    fn write(&self, copy: usize, content: &Buf, condition: Condition<'_>) {
        let run = Run::new(BlockAddr::new(IDS[copy], AT), content.blocks() as u32);
        let data: Bufs = content.clone().into();
        let protect = condition.mode().protect(self.reader.devices(), run, &data);
        let written = self.reader.devices().write(run, data, Purpose::Data, protect);
        self.rt.block_on(written).unwrap();
    }

    fn read(&self, copies: &[Copied], condition: Condition<'_>) -> Result<Buf, Problem> {
        self.rt.block_on(self.reader.read(copies, condition, Purpose::Data))
    }

    fn counts(&self) -> [u64; 4] {
        use Failure::{Integrity, Lost, Repaired, Unreadable};
        [Integrity, Unreadable, Repaired, Lost].map(|it| self.reader.failures().get(IDS[0], it))
    }
}

#[test]
fn content_with_its_birth_is_read() {
    for condition in [GUARD, OFFLOAD] {
        let world = Namespaces::new(condition);
        assert_eq!(world.read(&[copy(0)], condition).unwrap()[..], content()[..]);
        assert_eq!(world.counts(), [0, 0, 0, 0]);
    }
}

#[test]
fn content_of_another_birth_is_a_mismatch_that_names_block_and_kind() {
    for condition in [GUARD, OFFLOAD] {
        let world = Namespaces::new(condition);
        let stale = Buf::from_bytes(&content()[bytes(2)]);
        world.rt.block_on(async {
            let run = Run::new(BlockAddr::new(IDS[0], AT + 2), 1);
            let protect = copyhold_device::Protect::Offload { birth: BIRTH - 1 };
            let devices = world.reader.devices();
            devices.write(run, stale.into(), Purpose::Data, protect).await.unwrap();
        });
        let problem = world.read(&[copy(0)], condition).expect_err("VERIFY-V5");
        assert_eq!((problem.block, problem.causes.len()), (2, 1), "{problem}");
        assert!(problem.unreadable().is_none(), "the device has answered");
        let text = problem.to_string();
        assert!(text.contains("1 blocks at 7") && text.contains("another birth"), "{text}");
        assert_eq!(world.counts(), [1, 0, 0, 1], "VERIFY-V3, VERIFY-V4");
    }
}

#[test]
fn a_bad_copy_gets_its_content_and_its_tuple_again() {
    for (condition, fault) in [(GUARD, DriveFault::FlipToHost), (OFFLOAD, DriveFault::LoseWrite)] {
        let world = Namespaces::new(condition);
        if fault == DriveFault::LoseWrite {
            world.write(0, &Buf::zeroed(BLOCKS as usize), Condition::Offload { birth: BIRTH - 1 });
            world.devices[0].arm(Purpose::Data, 0, fault);
            world.write(0, &content(), condition);
        } else {
            world.devices[0].arm(Purpose::Data, 0, fault);
        }
        let read = world.read(&[copy(0), copy(1)], condition).unwrap();
        assert_eq!(read[..], content()[..]);
        assert_eq!(world.counts(), [1, 0, 1, 0], "VERIFY-V2");
        assert_eq!(world.read(&[copy(0)], condition).unwrap()[..], content()[..], "VERIFY-V5");
    }
}

/// GUARD-G3.
#[test]
fn a_repair_that_changes_on_its_way_is_counted() {
    let world = Namespaces::new(GUARD);
    world.devices[0].arm(Purpose::Data, 0, DriveFault::FlipToHost);
    world.devices[0].arm(Purpose::Data, 0, DriveFault::FlipToDrive);
    let read = world.read(&[copy(0), copy(1)], GUARD).unwrap();
    assert_eq!(read[..], content()[..], "a repair that fails is no failure of the read");
    let counted = [Failure::Unrepaired, Failure::ChangedOnTheWay, Failure::ChangedInMemory]
        .map(|kind| world.reader.failures().get(IDS[0], kind));
    assert_eq!(counted, [1, 1, 0]);
}

#[test]
fn an_escape_is_a_mismatch_for_the_host_only() {
    for (condition, is_found) in [(GUARD, true), (OFFLOAD, false)] {
        let world = Namespaces::new(condition);
        world.rt.block_on(world.devices[0].discard(AT, 1)).unwrap();
        assert_eq!(world.read(&[copy(0)], condition).is_err(), is_found, "{condition:?}");
    }
}

#[test]
fn blocks_with_tuples_come_from_the_copies_in_which_they_are_good() {
    let world = Namespaces::new(GUARD);
    for (device, block) in [(0, AT), (1, AT + 3)] {
        world.rt.block_on(world.devices[device].discard(block, 1)).unwrap();
    }
    assert_eq!(world.read(&[copy(0), copy(1)], GUARD).unwrap()[..], content()[..], "VERIFY-V1");
}
