//! Faults of the drive itself, by ways of writing and reading: the side that finds each.

use super::*;

const PLACE: u64 = 117;

/// The pair of protection and expectation that a file's data has.
#[derive(Clone, Copy, Debug)]
enum Way {
    Guard,
    Offload,
    Plain,
}

const WAYS: [Way; 3] = [Way::Guard, Way::Offload, Way::Plain];

impl Way {
    fn protect(self, world: &World, data: &Buf, birth: u32) -> Protect {
        match self {
            Way::Guard => world.guarded(data, birth),
            Way::Offload => Protect::Offload { birth },
            Way::Plain => Protect::Plain,
        }
    }

    fn expect(self, birth: u32) -> Expect {
        match self {
            Way::Guard => Expect::Guard { birth },
            Way::Offload => Expect::Offload { birth },
            Way::Plain => Expect::Plain,
        }
    }
}

/// The end of a story: content as it was written, other content, or a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Right,
    Wrong,
    At(Access, Kind, Verifier),
}

const ON_READ: fn(Kind, Verifier) -> End = |kind, by| End::At(Access::Read, kind, by);

fn end_of(error: DeviceError) -> End {
    match error {
        DeviceError::Integrity { access, kind, by, block: PLACE, .. } => End::At(access, kind, by),
        other => panic!("{other}"),
    }
}

/// Of a read in the place where `written` should be.
fn end_of_read(world: &World, way: Way, written: &Buf) -> End {
    match world.read(PLACE, 1, way.expect(BIRTH)) {
        Err(error) => end_of(error),
        Ok(read) if *read == **written => End::Right,
        Ok(_) => End::Wrong,
    }
}

/// Old content, then new content that the fault may hit, then a read that it may hit.
fn play(way: Way, fault: DriveFault, format: &str) -> End {
    let world = World::new(format, 1);
    let (old, new) = (content(1, 1), content(2, 1));
    world.write(PLACE, &old, way.protect(&world, &old, BIRTH - 1)).unwrap();
    world.write(300, &old, way.protect(&world, &old, BIRTH)).unwrap();
    world.device.arm(WHY, 0, fault);
    if let Err(error) = world.write(PLACE, &new, way.protect(&world, &new, BIRTH)) {
        return end_of(error);
    }
    end_of_read(&world, way, &new)
}

fn ends(fault: DriveFault, format: &str) -> [End; 3] {
    WAYS.map(|way| play(way, fault, format))
}

#[test]
fn bytes_that_change_before_the_drive_are_refused_with_guards_only() {
    let refused = End::At(Access::Write, Kind::Guard, Verifier::Device);
    for format in FORMATS {
        let ends = ends(DriveFault::FlipToDrive, format);
        assert_eq!(ends, [refused, End::Wrong, End::Wrong], "{format}");
    }
}

#[test]
fn bytes_that_change_behind_the_drive_are_found_by_the_host_only() {
    for format in FORMATS {
        let found = ON_READ(Kind::Guard, Verifier::Host);
        let ends = ends(DriveFault::FlipToHost, format);
        assert_eq!(ends, [found, End::Wrong, End::Wrong], "{format}");
    }
}

#[test]
fn a_lost_write_is_found_by_the_birth_of_the_old_block() {
    for format in FORMATS {
        let found = ON_READ(Kind::App, Verifier::Device);
        assert_eq!(ends(DriveFault::LoseWrite, format), [found, found, End::Wrong], "{format}");
        // So is the block that a write did not reach.
        let elsewhere = DriveFault::MisdirectWrite { to: 400 };
        assert_eq!(ends(elsewhere, format), [found, found, End::Wrong], "{format}");
    }
}

#[test]
fn a_read_from_elsewhere_is_found_by_its_place() {
    let found = ON_READ(Kind::Reference, Verifier::Device);
    let fault = DriveFault::MisdirectRead { from: 300 };
    for format in ["4096+16:64b", "4096+8:16b", "512+8:16b"] {
        assert_eq!(ends(fault, format), [found, found, End::Wrong], "{format}");
    }
    // A drive does not check this tag of type 3.
    let by_host = ON_READ(Kind::Reference, Verifier::Host);
    assert_eq!(ends(fault, "4096+16:64b:type3"), [by_host, End::Wrong, End::Wrong]);
}

#[test]
fn the_victim_of_a_misdirected_write_is_found_by_its_place() {
    let world = World::new("4096+16:64b", 1);
    world.put(PLACE, &content(1, 1), BIRTH);
    world.device.arm(WHY, 1, DriveFault::MisdirectWrite { to: PLACE });
    world.put(200, &content(2, 1), BIRTH);
    world.put(201, &content(2, 1), BIRTH);
    let found = (PLACE, Kind::Reference, Verifier::Device);
    assert_eq!(mismatch(world.read_guarded(PLACE, 1)), found);
    world.read_guarded(200, 1).unwrap();
}

#[test]
fn a_drive_that_checks_nothing_is_found_out_by_the_host() {
    for format in FORMATS {
        for (way, found) in
            [(Way::Guard, ON_READ(Kind::Guard, Verifier::Host)), (Way::Offload, End::Wrong)]
        {
            let world = World::new(format, 1);
            let data = content(1, 1);
            world.write(PLACE, &data, way.protect(&world, &data, BIRTH)).unwrap();
            world.disk.rot(PLACE);
            world.device.arm(WHY, 0, DriveFault::SkipChecks);
            assert_eq!(end_of_read(&world, way, &data), found, "{format}");
        }
    }
}

#[test]
fn a_fault_hits_one_request_of_its_purpose_and_direction() {
    let world = World::new("4096+16:64b", 1);
    world.device.arm(WHY, 1, DriveFault::FlipToHost);
    let log = world.device.write(5, content(1, 1).into(), Purpose::Log);
    world.rt.block_on(log).unwrap();
    world.put(6, &content(1, 1), BIRTH);
    world.put(7, &content(1, 1), BIRTH);
    let kinds = [6, 6, 6].map(|block| world.read_guarded(block, 1).is_ok());
    assert_eq!(kinds, [true, false, true]);
    assert_eq!(play(Way::Guard, DriveFault::SkipChecks, "4096+16:64b"), End::Right);
}
