//! Extents of each checksum mode on an emulated namespace: each failure of the drive and of
//! the way to it is found, or not, as `docs/integrity.md` says (section 2); and the rules by which
//! they are found are noticed when they are broken.

use copyhold_check::{Options as CheckOptions, Problem, check};
use copyhold_device::pi::DriveFault;
use copyhold_device::sim::{Fault, Trigger};
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Caller, OpenFlags, Options, WriteFlags, set_checksum_mode};
use copyhold_pool::{Failure, Sabotage};
use copyhold_runtime::Runtime;
use copyhold_sim::fs_level::modes::extents;
use copyhold_types::{BLOCK_BYTES, DeviceId, Purpose};

use crate::namespace::Outcome::{self, Error, Good, Wrong};
use crate::namespace::{Drive, FILE_BLOCKS, STALE, World, content, look, write, write_bytes};

/// A failure of the drive, or of the way to it.
#[derive(Clone, Copy, Debug)]
enum Failing {
    MediumChangesData,
    ChangesBeforeChecksum,
    FlipsToDrive,
    FlipsToHost,
    VictimOfMisdirectedWrite,
    NotReachedByMisdirectedWrite,
    MisdirectedRead,
    LostWrite,
    MissedPeriod,
    TornBehindCommit,
    Deallocation,
    Zeros,
    MediumChangesTuple,
    ChecksSkipped,
}

/// The result of a read of a file after a failure.
fn outcome(place: ChecksumMode, failing: Failing, sabotage: Option<Sabotage>) -> Outcome {
    let stale = if sabotage == Some(Sabotage::NoBirth) { 0 } else { STALE };
    outcome_on(Drive { stale, ..Drive::USUAL }, place, failing, sabotage)
}

fn outcome_on(
    drive: Drive,
    place: ChecksumMode,
    failing: Failing,
    sabotage: Option<Sabotage>,
) -> Outcome {
    use Failing::*;
    let world = World::with(7, drive);
    let drive = &world.device;
    world.rt.block_on(async {
        let fs = world.open(sabotage).await;
        let other = world.make(&fs, b"other", place).await;
        write(&fs, other, 1).await.unwrap();
        let at_other = world.place_of(&content(1)[..BLOCK_BYTES]);
        let fault = match failing {
            FlipsToDrive => Some(DriveFault::FlipToDrive),
            LostWrite => Some(DriveFault::LoseWrite),
            VictimOfMisdirectedWrite | NotReachedByMisdirectedWrite => {
                Some(DriveFault::MisdirectWrite { to: at_other })
            }
            _ => None,
        };
        if let Some(fault) = fault {
            drive.arm(Purpose::Data, 0, fault);
        }
        let node = world.make(&fs, b"file", place).await;
        let period = world.disk.image();
        let flip = |bytes: &mut [u8]| bytes[9] ^= 1;
        let mut handed = content(2);
        if matches!(failing, ChangesBeforeChecksum) {
            flip(&mut handed);
        }
        write_bytes(&fs, node, &handed).await.unwrap();
        let put_back = |from: usize| {
            for block in content(2).chunks(BLOCK_BYTES).skip(from) {
                world.put_back(world.place_of(block), &period);
            }
        };
        let at = || world.place_of(&content(2)[..BLOCK_BYTES]);
        match failing {
            MediumChangesData => world.damage(at(), flip, |_| {}),
            MediumChangesTuple => world.damage(at(), |_| {}, |entry| entry[3] ^= 4),
            Zeros => world.damage(at(), |data| data.fill(0), |entry| entry.fill(0)),
            Deallocation => world.damage(at(), |data| data.fill(0), |entry| entry.fill(0xff)),
            MissedPeriod => put_back(0),
            TornBehindCommit => put_back(FILE_BLOCKS / 2),
            FlipsToHost => drive.arm(Purpose::Data, 0, DriveFault::FlipToHost),
            MisdirectedRead => {
                drive.arm(Purpose::Data, 0, DriveFault::MisdirectRead { from: at_other });
            }
            ChecksSkipped => {
                world.damage(at(), flip, |_| {});
                drive.arm(Purpose::Data, 0, DriveFault::SkipChecks);
            }
            _ => {}
        }
        let found = match failing {
            VictimOfMisdirectedWrite => look(&fs, other, 1).await,
            _ => look(&fs, node, 2).await,
        };
        if sabotage.is_some() {
            return found;
        }
        let counted = fs.pool().devices().failures().get(DeviceId(0), Failure::Integrity);
        let has_tuples = matches!(place, ChecksumMode::Guard | ChecksumMode::Offload);
        assert_eq!(counted, u64::from(has_tuples && found == Error), "{place} {failing:?}");
        if !matches!(failing, FlipsToHost | MisdirectedRead | ChecksSkipped) {
            let report = check(fs.pool(), CheckOptions::default()).await;
            let is_data = |problem: &Problem| matches!(problem, Problem::Data { .. });
            let (data, others): (Vec<_>, Vec<_>) = report.problems().partition(|it| is_data(it));
            // The write of the one is found at the place of the other.
            let has_victim = matches!(failing, NotReachedByMisdirectedWrite);
            let is_found = found == Error || has_victim && place != ChecksumMode::None;
            assert_eq!((!data.is_empty(), others.len()), (is_found, 0), "{place} {failing:?}");
        }
        found
    })
}

#[test]
fn each_failure_is_found_as_the_page_says() {
    use Failing::*;
    // In the order of the places: item, guard, offload, none.
    let rows = [
        (MediumChangesData, [Error, Error, Error, Wrong]),
        (ChangesBeforeChecksum, [Wrong; 4]),
        (FlipsToDrive, [Error, Good, Wrong, Wrong]),
        (FlipsToHost, [Error, Error, Wrong, Wrong]),
        (VictimOfMisdirectedWrite, [Error, Error, Error, Wrong]),
        (NotReachedByMisdirectedWrite, [Error, Error, Error, Wrong]),
        (MisdirectedRead, [Error, Error, Error, Wrong]),
        (LostWrite, [Error, Error, Error, Wrong]),
        (MissedPeriod, [Error, Error, Error, Wrong]),
        (TornBehindCommit, [Error, Error, Error, Wrong]),
        (Deallocation, [Error, Error, Wrong, Wrong]),
        (Zeros, [Error, Error, Error, Wrong]),
        (MediumChangesTuple, [Good, Error, Error, Good]),
        (ChecksSkipped, [Error, Error, Wrong, Wrong]),
    ];
    finds(Drive::USUAL, &rows);
}

#[track_caller]
fn finds(drive: Drive, rows: &[(Failing, [Outcome; 4])]) {
    for (failing, expected) in rows {
        let found = ChecksumMode::ALL.map(|place| outcome_on(drive, place, *failing, None));
        assert_eq!(found, *expected, "{failing:?} on {drive:?}");
    }
}

/// Its guard of zeros is zero, so the tags find them.
#[test]
fn zeros_are_found_with_guards_of_16_bits() {
    use Failing::*;
    let expected = [Error, Error, Error, Wrong];
    let rows = [Zeros, VictimOfMisdirectedWrite, MisdirectedRead, LostWrite, MissedPeriod];
    let drive = Drive { format: "512+8:16b", ..Drive::USUAL };
    finds(drive, &rows.map(|row| (row, expected)));
}

/// The device checks no reference tag with type 3; the host does.
#[test]
fn blocks_of_other_places_are_found_with_type_3() {
    use Failing::*;
    let rows = [
        (MediumChangesData, [Error, Error, Error, Wrong]),
        (Zeros, [Error, Error, Error, Wrong]),
        (VictimOfMisdirectedWrite, [Error, Error, Error, Wrong]),
        (MisdirectedRead, [Error, Error, Error, Wrong]),
        (LostWrite, [Error, Error, Error, Wrong]),
    ];
    finds(Drive { format: "4096+16:32b:type3", ..Drive::USUAL }, &rows);
}

/// The device gets other bytes than were summed. With `guard` the sabotage takes the place of the
/// flip, since the memory itself must differ from what was sent.
#[test]
fn memory_that_changes_during_a_write_is_found_as_the_page_says() {
    let found = ChecksumMode::ALL.map(|place| {
        let world = World::new(7, STALE);
        world.rt.block_on(async {
            let is_guarded = place == ChecksumMode::Guard;
            let fs = world.open(is_guarded.then_some(Sabotage::ChangeMemory)).await;
            let node = world.make(&fs, b"file", place).await;
            if !is_guarded {
                world.device.arm(Purpose::Data, 0, DriveFault::FlipToDrive);
            }
            (write(&fs, node, 1).await.is_ok(), look(&fs, node, 1).await)
        })
    });
    // The content of `guard` stays in memory.
    assert_eq!(found, [(true, Error), (false, Good), (true, Wrong), (true, Wrong)]);
}

/// The tuples of nodes and of the log are checked by nothing: their digests are. Where the drive
/// gets one copy wrong, another is read.
#[test]
fn metadata_is_verified_by_its_digests() {
    let mut world = World::new(9, STALE);
    let node = world.rt.block_on(async {
        let fs = world.open(None).await;
        let node = world.make(&fs, b"file", ChecksumMode::Guard).await;
        write(&fs, node, 1).await.unwrap();
        fs.pool().flush_all().await.unwrap();
        world.device.arm(Purpose::Log, 0, DriveFault::LoseWrite);
        write(&fs, node, 2).await.unwrap();
        node
    });
    world = world.crash(9);
    world.rt.block_on(async {
        world.device.arm(Purpose::Leaf, 0, DriveFault::FlipToHost);
        let fs = world.open(None).await;
        assert_eq!(look(&fs, node, 2).await, Good, "the log has a second copy");
        let failures = |of| fs.pool().devices().failures().get(DeviceId(0), of);
        let found = [Failure::Mismatch, Failure::Integrity, Failure::Lost].map(failures);
        assert_eq!(found, [1, 0, 0]);
    });
}

#[test]
fn blocks_without_birth_are_noticed() {
    let lost = |sabotage| outcome(ChecksumMode::Guard, Failing::LostWrite, sabotage);
    assert_eq!((lost(None), lost(Some(Sabotage::NoBirth))), (Error, Wrong));
}

#[test]
fn an_escape_that_is_accepted_is_noticed() {
    let gone = |sabotage| outcome(ChecksumMode::Guard, Failing::Deallocation, sabotage);
    assert_eq!((gone(None), gone(Some(Sabotage::AcceptEscape))), (Error, Wrong));
}

/// Overwrites a file while the power fails, after so many writes. Whether it has its old or its new
/// content then, which must be the new one if the fsync has returned.
fn survives(place: ChecksumMode, seed: u64, sabotage: Option<Sabotage>) -> bool {
    let world = World::new(seed, STALE);
    let (node, is_durable) = world.rt.block_on(async {
        let fs = world.open(sabotage).await;
        let node = world.make(&fs, b"file", place).await;
        write(&fs, node, 1).await.unwrap();
        let nth = seed % 12;
        world.disk.arm(Trigger::Write { nth, why: None }, Fault::PowerOff);
        let overwrite = write(&fs, node, 2);
        let off = world.disk.until_off();
        futures_util::pin_mut!(overwrite, off);
        let both = futures_util::future::select(overwrite, off).await;
        (node, matches!(both, futures_util::future::Either::Left((Ok(()), _))))
    });
    let world = world.crash(seed);
    world.rt.block_on(async {
        let fs = world.open(None).await;
        let is_new = look(&fs, node, 2).await == Good;
        let is_old = look(&fs, node, 1).await == Good;
        is_new || (is_old && !is_durable)
    })
}

const SEEDS: u64 = 60;

#[test]
fn a_crash_leaves_the_old_or_the_new_content() {
    for place in ChecksumMode::ALL {
        for seed in 0..SEEDS {
            assert!(survives(place, seed, None), "{place}, seed {seed}");
        }
    }
}

#[test]
fn r8_data_that_is_not_flushed_before_its_batch_is_noticed() {
    let broken = Some(Sabotage::NoFlushBeforeGuard);
    for place in [ChecksumMode::Guard, ChecksumMode::Offload, ChecksumMode::None] {
        let mut seeds = 0..SEEDS;
        assert!(seeds.any(|seed| !survives(place, seed, broken)), "{place}");
    }
}

/// The content of a write is not known to be that of its file: no guard is made for it again.
#[test]
fn memory_that_changed_is_an_error_of_its_file_alone() {
    let world = World::new(3, STALE);
    world.rt.block_on(async {
        let fs = world.open(Some(Sabotage::ChangeMemory)).await;
        let mut nodes = Vec::new();
        for name in [b"a", b"b"] {
            let node = world.make(&fs, name, ChecksumMode::Guard).await;
            let block = &content(name[0])[..BLOCK_BYTES];
            fs.write(node, 0, block, WriteFlags::default()).await.unwrap();
            nodes.push(node);
        }
        // Both go out in the background, in one request.
        let late = Options::default().writeback_interval * 3;
        world.rt.sleep(late).await;
        let first = [fs.fsync(nodes[0], false).await, fs.fsync(nodes[1], false).await];
        assert_eq!(first.each_ref().map(Result::is_err), [false, true], "{first:?}");
    });
    let world = World::new(4, STALE);
    world.rt.block_on(async {
        let fs = world.open(Some(Sabotage::ChangeMemory)).await;
        let node = world.make(&fs, b"a", ChecksumMode::Guard).await;
        assert!(write(&fs, node, 1).await.is_err(), "alone");
        assert!(fs.fsync(node, false).await.is_ok(), "R34: one error is reported once");
    });
}

#[test]
fn refused_guards_take_no_space() {
    let world = World::new(5, STALE);
    world.rt.block_on(async {
        let fs = world.open(None).await;
        let node = world.make(&fs, b"file", ChecksumMode::Guard).await;
        write(&fs, node, 1).await.unwrap();
        fs.sync().await.unwrap();
        fs.write(node, 0, &content(2), WriteFlags::default()).await.unwrap();
        let before = fs.pool().space();
        for nth in 0..2 {
            world.device.arm(Purpose::Data, nth, DriveFault::FlipToDrive);
        }
        assert!(fs.fsync(node, false).await.is_err(), "both places are refused");
        assert_eq!(fs.pool().space(), before);
        assert!(fs.fsync(node, false).await.is_ok());
        assert_eq!(look(&fs, node, 2).await, Good);
    });
}

/// BIRTH-B1: mounts that are killed at their first write of data.
#[test]
fn each_mount_that_writes_has_births_of_its_own() {
    let mut world = World::new(6, STALE);
    let node = world.rt.block_on(async {
        let fs = world.open(None).await;
        let node = world.make(&fs, b"file", ChecksumMode::Guard).await;
        write(&fs, node, 1).await.unwrap();
        fs.close().await.unwrap();
        fs.pool().close().await.unwrap();
        node
    });
    let mut births = std::collections::BTreeSet::new();
    for seed in 0..3 {
        world = world.crash(seed);
        births.insert(world.rt.block_on(async {
            let fs = world.open(None).await;
            let why = Some(Purpose::Data);
            world.disk.arm(Trigger::Write { nth: 0, why }, Fault::PowerOff);
            let (overwrite, off) = (write(&fs, node, 2), world.disk.until_off());
            futures_util::pin_mut!(overwrite, off);
            futures_util::future::select(overwrite, off).await;
            fs.pool().open_txg()
        }));
    }
    assert_eq!(births.len(), 3, "{births:?}");
}

#[test]
fn a_new_file_has_its_checksums_in_the_item() {
    let world = World::new(10, STALE);
    world.rt.block_on(async {
        let fs = world.open(None).await;
        let flags = OpenFlags::READ_WRITE;
        let made = fs.create(&Caller::ROOT, fs.root(), b"file", 0o600, flags, true).await;
        let node = made.unwrap().0.node;
        write(&fs, node, 1).await.unwrap();
        let found = extents(&fs, node).await.unwrap();
        let modes: Vec<_> = found.iter().map(|(_, extent)| extent.state.checksum_mode()).collect();
        assert!(!modes.is_empty() && modes.iter().all(|of| *of == Some(ChecksumMode::Item)));
    });
}

/// As `docs/semantics.md` says of properties.
#[test]
fn a_place_that_is_set_again_changes_nothing() {
    let world = World::new(8, STALE);
    world.rt.block_on(async {
        let fs = world.open(None).await;
        let node = world.make(&fs, b"file", ChecksumMode::Guard).await;
        let mut times = Vec::new();
        for place in [ChecksumMode::Guard, ChecksumMode::Guard, ChecksumMode::Offload] {
            set_checksum_mode(&fs, &Caller::ROOT, node, place).await.unwrap();
            times.push(fs.getattr(node).await.unwrap().ctime);
            world.rt.sleep(std::time::Duration::from_secs(1)).await;
        }
        assert!(times[0] == times[1] && times[1] != times[2], "{times:?}");
    });
}
