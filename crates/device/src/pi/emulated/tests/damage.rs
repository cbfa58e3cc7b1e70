//! Faults of the disk below: each is reported at the block that it hit, or costs nothing.

use super::*;

/// A world with guarded content in blocks 100 to 139.
fn written(format: &str) -> World {
    let world = World::new(format, 1);
    world.put(100, &content(3, 40), BIRTH);
    world
}

/// Blocks 100 to 139 without one of them are as they were.
fn assert_others_read(world: &World, bad: u64) {
    for block in (100..140).filter(|block| *block != bad) {
        let read = world.read_guarded(block, 1).unwrap();
        let at = (block - 100) as usize * BLOCK_BYTES;
        assert!(*read == content(3, 40)[at..at + BLOCK_BYTES]);
    }
}

#[test]
fn rot_of_data_is_found_at_its_block_and_nowhere_else() {
    for format in FORMATS {
        let world = written(format);
        world.disk.rot(117);
        let found = (117, Kind::Guard, Verifier::Device);
        assert_eq!(mismatch(world.read_guarded(110, 20)), found, "{format}");
        let offload = world.read(110, 20, Expect::Offload { birth: BIRTH });
        assert_eq!(mismatch(offload), found, "{format}");
        assert!(world.read(110, 20, Expect::Plain).is_ok());
        assert_others_read(&world, 117);
    }
}

#[test]
fn rot_of_any_byte_of_a_tuple_is_found() {
    for format in FORMATS {
        let world = written(format);
        let format = *world.device.shared.format();
        for at in format.tuple_range() {
            world.corrupt_metadata(117, |metadata| metadata[at] ^= 0x10);
            let (block, _, _) = mismatch(world.read_guarded(110, 20));
            assert_eq!(block, 117, "byte {at} of {format}");
            world.corrupt_metadata(117, |metadata| metadata[at] ^= 0x10);
        }
        // The guard covers metadata before the tuple.
        if format.place() == Place::Last && !format.is_tuple_only() {
            world.corrupt_metadata(117, |metadata| metadata[0] ^= 1);
            assert_eq!(mismatch(world.read_guarded(117, 1)).1, Kind::Guard, "{format}");
        }
        assert_others_read(&world, 117);
    }
}

#[test]
fn an_old_block_with_its_own_tuple_is_found_by_its_birth() {
    for (format, apart, kind) in [
        ("4096+16:64b", 1, Some(Kind::App)),
        ("4096+16:64b", 65_534, Some(Kind::Reference)),
        ("4096+16:64b:type1:sts=16", 65_534, Some(Kind::Storage)),
        ("4096+8:16b", 1, Some(Kind::App)),
        ("4096+8:16b", 65_534, None),
        ("512+8:16b", 65_535, Some(Kind::App)),
    ] {
        let world = World::new(format, 1);
        world.put(117, &content(1, 1), BIRTH - apart);
        let old = world.halves(117);
        world.put(117, &content(2, 1), BIRTH);
        world.set_halves(117, &old);
        for expect in [Expect::Guard { birth: BIRTH }, Expect::Offload { birth: BIRTH }] {
            let answer = world.read(117, 1, expect);
            match kind {
                Some(kind) => assert_eq!(mismatch(answer), (117, kind, Verifier::Device)),
                None => assert!(*answer.unwrap() == *content(1, 1), "the limit of {format}"),
            }
        }
    }
}

#[test]
fn a_block_that_belongs_elsewhere_is_found_by_its_place() {
    for format in FORMATS {
        let world = written(format);
        world.set_halves(117, &world.halves(103));
        let is_named = world.device.shared.format().reference_bits() > 0;
        let answer = world.read_guarded(117, 1);
        match is_named {
            true => assert_eq!(mismatch(answer).1, Kind::Reference, "{format}"),
            false => assert!(answer.is_ok(), "{format} has no reference tag"),
        }
        // Type 3 leaves the reference tag to the host.
        let by = mismatch_by(&world, 117);
        let is_host = world.device.shared.format().kind() == super::super::super::Type::Three;
        assert_eq!(by, is_named.then_some(if is_host { Verifier::Host } else { Verifier::Device }));
    }
}

fn mismatch_by(world: &World, block: u64) -> Option<Verifier> {
    world.read_guarded(block, 1).is_err().then(|| mismatch(world.read_guarded(block, 1)).2)
}

#[test]
fn content_that_is_gone_is_an_escape_that_only_the_host_reports() {
    for format in FORMATS {
        let world = written(format);
        let (data, entry) = world.halves(117);
        world.set_halves(117, &(vec![0; data.len()], vec![0; entry.len()]));
        let found = (117, Kind::Escape, Verifier::Host);
        assert_eq!(mismatch(world.read_guarded(110, 20)), found, "{format}");
        let offload = world.read(117, 1, Expect::Offload { birth: BIRTH });
        assert!(*offload.unwrap() == *Buf::zeroed(1), "{format}: a device believes an escape");
    }
}

#[test]
fn zeros_in_both_halves_are_found() {
    for (format, kind) in [("4096+16:64b", Kind::Guard), ("4096+8:16b", Kind::App)] {
        let world = written(format);
        world.disk.corrupt(117, |data| data.fill(0));
        world.corrupt_metadata(117, |metadata| metadata.fill(0));
        assert_eq!(mismatch(world.read_guarded(110, 20)), (117, kind, Verifier::Device));
    }
}

#[test]
fn small_blocks_are_judged_each_by_itself() {
    let world = written("512+8:16b");
    let old = world.halves(117);
    world.put(117, &content(9, 1), BIRTH);
    // The third of eight has its old content in one half; then in both: that is no mismatch.
    world.disk.corrupt(117, |data| data[1024..1536].copy_from_slice(&old.0[1024..1536]));
    assert_eq!(mismatch(world.read_guarded(110, 20)).0, 117);
    let (at, bytes) = world.device.place_of_metadata(117);
    let third = bytes.start + 16..bytes.start + 24;
    world.disk.corrupt(at, |content| content[third].copy_from_slice(&old.1[16..24]));
    assert!(world.read_guarded(117, 1).is_ok(), "same birth, same place");
}

#[test]
fn a_half_that_the_disk_loses_or_puts_elsewhere_is_found() {
    for (why, fault) in [
        (WHY, Fault::Lose),
        (Purpose::Guard, Fault::Lose),
        (WHY, Fault::Misdirect { to: 300 }),
        (Purpose::Guard, Fault::Misdirect { to: 300 }),
    ] {
        let world = written("4096+16:64b");
        world.disk.arm(Trigger::Write { nth: 0, why: Some(why) }, fault);
        world.put(117, &content(7, 1), BIRTH + 1);
        let answer = world.read(117, 1, Expect::Guard { birth: BIRTH + 1 });
        assert_eq!(mismatch(answer).0, 117, "{why:?}, {fault:?}");
        assert_others_read(&world, 117);
    }
}

#[test]
fn a_failed_half_fails_the_write_and_leaves_the_neighbours() {
    for why in [WHY, Purpose::Guard] {
        let world = written("4096+16:64b");
        let trigger = Trigger::Write { nth: 0, why: Some(why) };
        world.disk.arm(trigger, Fault::Error(libc::ENOSPC));
        let data = content(7, 1);
        let answer = world.write(117, &data, world.guarded(&data, BIRTH + 1));
        let error = answer.unwrap_err();
        assert!(error.is_host_full(), "{error}");
        let text = error.to_string();
        assert!(text.contains("writing 1 blocks at 117 for Data"), "{text}");
        assert_others_read(&world, 117);
    }
}

#[test]
fn an_unreadable_block_of_entries_fails_requests_that_need_it() {
    let world = written("4096+16:64b");
    let (entries, _) = world.device.place_of_metadata(117);
    world.disk.break_block(entries, libc::EIO, Lasting::UntilWritten);
    let error = world.read_guarded(110, 20).unwrap_err().to_string();
    assert!(error.contains("reading 20 blocks at 110 for Data failed"), "{error}");
    assert!(world.read(110, 20, Expect::Plain).is_ok());
    let data = content(4, 1);
    let error = world.write(117, &data, world.guarded(&data, BIRTH)).unwrap_err().to_string();
    assert!(error.contains("writing 1 blocks at 117 for Data failed"), "{error}");
    let error = world.rt.block_on(world.device.discard(117, 1)).unwrap_err().to_string();
    assert!(error.contains("discarding 1 blocks at 117 failed"), "{error}");
    // A write of all its entries needs nothing of it.
    world.put(0, &content(5, 256), BIRTH);
    assert!(*world.read_guarded(0, 256).unwrap() == *content(5, 256));
}

#[test]
fn a_write_without_protection_needs_no_entries() {
    for errno in [libc::EIO, libc::EILSEQ] {
        let world = written("4096+16:64b");
        let (entries, _) = world.device.place_of_metadata(117);
        world.disk.break_block(entries, errno, Lasting::Forever);
        world.write(117, &content(4, 2), Protect::Plain).unwrap();
        assert!(*world.read(117, 2, Expect::Plain).unwrap() == *content(4, 2));
        for protect in [Protect::Offload { birth: 1 }, world.guarded(&content(4, 2), 1)] {
            let error = world.write(117, &content(4, 2), protect).unwrap_err();
            assert!(matches!(error, DeviceError::Write { source: IoError(libc::EIO), .. }));
        }
        // Its tuple is the old one, so the block does not pass for the old content.
        world.disk.heal();
        assert_eq!(mismatch(world.read_guarded(117, 1)).1, Kind::Guard);
        assert!(world.read_guarded(116, 1).is_ok());
    }
}

#[test]
fn a_write_that_the_disk_below_refuses_as_damaged_is_reported_so() {
    let world = written("4096+16:64b");
    let trigger = Trigger::Write { nth: 0, why: Some(WHY) };
    world.disk.arm(trigger, Fault::Error(libc::EILSEQ));
    let data = content(7, 1);
    let answer = world.write(117, &data, world.guarded(&data, BIRTH));
    assert!(matches!(answer, Err(DeviceError::Integrity { access: Access::Write, .. })));
    assert_eq!(mismatch(answer), (117, Kind::Unknown, Verifier::Device));
}

#[test]
fn a_mismatch_that_the_disk_below_reports_is_one_of_the_namespace() {
    let world = written("4096+16:64b");
    let (entries, _) = world.device.place_of_metadata(117);
    for below in [117, entries] {
        world.disk.break_block(below, libc::EILSEQ, Lasting::Once);
        let found = mismatch(world.read_guarded(117, 1));
        assert_eq!(found, (117, Kind::Unknown, Verifier::Device));
    }
}
