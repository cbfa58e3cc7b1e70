//! An emulated namespace over the simulated disk: its promises, each with the fault that it meets.

mod crashes;
mod damage;
mod drive;

use copyhold_runtime::{Runtime, SeededRuntime};
use copyhold_types::BLOCK_BYTES;
use futures_util::future::join_all;

use super::super::layout::complement;
use super::super::{Guards, Kind, Place, Type};
use super::*;
use crate::Verifier;
use crate::sim::{Fault, Lasting, SimConfig, SimDevice, SimImage, Trigger, make_namespace};

const WHY: Purpose = Purpose::Data;
const BIRTH: u32 = 70_000;
const BLOCKS: u64 = 640;
/// Nanoseconds.
const LATENCY: u64 = 50_000;

/// A namespace and the disk below it.
struct World {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    device: Arc<Emulated>,
}

fn disk_of(rt: &Arc<SeededRuntime>, image: SimImage, seed: u64) -> Arc<SimDevice> {
    SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(seed))
}

impl World {
    fn new(format: &str, seed: u64) -> World {
        let rt = SeededRuntime::new(seed);
        let disk = disk_of(&rt, SimImage::empty(BLOCKS), seed);
        let device = make_namespace(&rt, &disk, format);
        World { rt, disk, device }
    }

    /// A namespace that is found on a disk with this content.
    fn found(image: SimImage, seed: u64) -> World {
        let rt = SeededRuntime::new(seed);
        let disk = disk_of(&rt, image, seed);
        let found = Emulated::find(rt.clone(), disk.clone(), OpenMode::ReadWrite);
        let device = rt.block_on(found).unwrap().expect("there is a namespace");
        World { rt, disk, device }
    }

    fn guarded(&self, data: &Buf, birth: u32) -> Protect {
        Protect::Guard { birth, guards: self.device.shared.format().guards(data) }
    }

    fn write(&self, block: u64, data: &Buf, protect: Protect) -> Result<(), DeviceError> {
        let write = self.device.write_protected(block, data.clone().into(), WHY, protect);
        self.rt.block_on(write)
    }

    /// Writes with guards, and flushes.
    fn put(&self, block: u64, data: &Buf, birth: u32) {
        self.write(block, data, self.guarded(data, birth)).unwrap();
        self.rt.block_on(self.device.flush()).unwrap();
    }

    fn read(&self, block: u64, blocks: u32, expect: Expect) -> Result<Buf, DeviceError> {
        self.rt.block_on(self.device.read_expecting(block, blocks, WHY, expect))
    }

    fn read_guarded(&self, block: u64, blocks: u32) -> Result<Buf, DeviceError> {
        self.read(block, blocks, Expect::Guard { birth: BIRTH })
    }

    /// Changes the metadata of a block as the drive sees it.
    fn corrupt_metadata(&self, block: u64, change: impl FnOnce(&mut [u8])) {
        let (at, bytes) = self.device.place_of_metadata(block);
        self.disk.corrupt(at, |content| {
            let metadata = &mut content[bytes];
            complement(metadata);
            change(metadata);
            complement(metadata);
        });
    }

    /// Both halves of a block, as they are now.
    fn halves(&self, block: u64) -> (Vec<u8>, Vec<u8>) {
        let (at, bytes) = self.device.place_of_metadata(block);
        let entry = self.disk.read_block_now(at)[bytes].to_vec();
        (self.disk.read_block_now(block).to_vec(), entry)
    }

    fn set_halves(&self, block: u64, (data, entry): &(Vec<u8>, Vec<u8>)) {
        let (at, bytes) = self.device.place_of_metadata(block);
        self.disk.corrupt(block, |content| content.copy_from_slice(data));
        self.disk.corrupt(at, |content| content[bytes].copy_from_slice(entry));
    }

    /// Requests for entries so far: reads, and writes.
    fn entry_requests(&self) -> (u64, u64) {
        let counted = self.device.counters().snapshot().purposes[Purpose::Guard as usize];
        (counted.reads, counted.writes)
    }
}

/// Content that differs from block to block and within each.
fn content(seed: u8, blocks: usize) -> Buf {
    let bytes = (0..blocks * BLOCK_BYTES).map(|n| seed ^ (n >> 12) as u8 ^ (n >> 4) as u8);
    Buf::from_bytes(&bytes.collect::<Vec<u8>>())
}

/// The block, kind and finder of a mismatch.
fn mismatch<T: std::fmt::Debug>(answer: Result<T, DeviceError>) -> (u64, Kind, Verifier) {
    match answer {
        Err(DeviceError::Integrity { block, kind, by, .. }) => (block, kind, by),
        other => panic!("no mismatch, but {other:?}"),
    }
}

const FORMATS: [&str; 10] = [
    "4096+16:64b",
    "4096+16:64b:type1",
    "4096+64:64b:type1:first",
    "4096+64:64b:sts=16",
    "4096+24:32b",
    "4096+8:16b",
    "4096+64:16b:type3:sts=32",
    "512+8:16b",
    "512+64:64b:first",
    "512+40:64b:type3",
];

#[test]
fn content_is_read_as_it_was_written_in_each_format_and_way_also_by_a_later_opening() {
    for format in FORMATS {
        let mut world = World::new(format, 1);
        let data = content(3, 40);
        // A device gives all blocks of a request the same reference tag of type 3.
        let of_offload = match world.device.shared.format().kind() {
            Type::Three => Expect::Offload { birth: BIRTH },
            _ => Expect::Guard { birth: BIRTH },
        };
        // Over the edges of blocks of entries, whatever their number of entries.
        let per_block = world.device.shared.layout.per_block();
        let at = (per_block - 3).min(500);
        let ways = [
            (world.guarded(&data, BIRTH), Expect::Guard { birth: BIRTH }),
            (Protect::Offload { birth: BIRTH }, of_offload),
            (world.guarded(&data, BIRTH), Expect::Offload { birth: BIRTH }),
            (Protect::Plain, Expect::Plain),
        ];
        for (protect, expect) in ways {
            world.write(at, &data, protect.clone()).unwrap();
            world.rt.block_on(world.device.flush()).unwrap();
            world = World::found(world.disk.crash(4), 5);
            assert_eq!(world.device.protection(), format.parse().ok());
            let read = world.read(at, 40, expect).unwrap();
            assert!(*read == *data, "{format}, {protect:?}");
            let one = world.read(at + 7, 1, expect).unwrap();
            assert!(*one == data[7 * BLOCK_BYTES..8 * BLOCK_BYTES], "{format}, {protect:?}");
        }
        let plain = world.read_guarded(at, 1);
        assert_eq!(mismatch(plain), (at, Kind::App, Verifier::Device), "{format}");
    }
}

#[test]
fn a_write_in_pieces_is_one_write() {
    let world = World::new("4096+16:64b", 1);
    let data = content(9, 5);
    let [one, other] = [content(9, 2), Buf::from_bytes(&data[2 * BLOCK_BYTES..])];
    let bufs: Bufs = [one, other].into_iter().collect();
    let write = world.device.write_protected(254, bufs, WHY, world.guarded(&data, BIRTH));
    world.rt.block_on(write).unwrap();
    assert!(*world.read_guarded(254, 5).unwrap() == *data);
}

#[test]
fn requests_past_the_end_and_for_nothing_are_answered() {
    let world = World::new("4096+16:64b", 1);
    let end = world.device.geometry().blocks;
    let answers = [
        world.read_guarded(end, 1).map(drop),
        world.write(end - 1, &content(1, 2), Protect::Plain),
        world.rt.block_on(world.device.discard(end, 1)),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(DeviceError::OutOfBounds { size, .. }) if size == end));
    }
    let nothing = world.guarded(&content(1, 0), 1);
    assert_eq!(world.read_guarded(end, 0).unwrap().blocks(), 0);
    world.write(end, &content(1, 0), nothing).unwrap();
    world.rt.block_on(world.device.discard(end, 0)).unwrap();
}

#[test]
fn wrong_guards_are_refused_before_anything_is_stored() {
    for format in ["4096+16:64b", "512+8:16b", "4096+64:64b"] {
        let world = World::new(format, 1);
        world.put(10, &content(1, 4), BIRTH);
        let before = world.disk.image();
        let data = content(2, 4);
        let Protect::Guard { mut guards, .. } = world.guarded(&data, BIRTH) else { unreachable!() };
        let of_third = 2 * world.device.shared.format().parts();
        guards[of_third] ^= 1;
        let answer = world.write(10, &data, Protect::Guard { birth: BIRTH, guards });
        let text = answer.clone().unwrap_err().to_string();
        assert_eq!(mismatch(answer), (12, Kind::Guard, Verifier::Device), "{text}");
        assert!(text.contains("write of 1 blocks at 12 for Data: the device finds another guard"));
        assert!(world.disk.image() == before, "PIDEV-E1 with {format}");
    }
}

#[test]
fn guards_of_other_blocks_than_those_written_contradict_the_request() {
    let world = World::new("4096+16:64b", 1);
    for guards in [Guards::new(), Guards::from_elem(0, 3)] {
        let answer = world.write(10, &content(1, 2), Protect::Guard { birth: 1, guards });
        let is_contradiction = matches!(answer, Err(DeviceError::Contradiction { block: 10, .. }));
        assert!(is_contradiction, "{answer:?}");
    }
}

#[test]
fn a_device_without_tuples_refuses_protection_and_serves_all_else() {
    let rt = SeededRuntime::new(1);
    let disk = SimDevice::new(rt.clone(), DeviceId(0), 100, 1);
    assert_eq!(disk.protection(), None);
    let write = disk.write_protected(3, content(1, 1).into(), WHY, Protect::Plain);
    rt.block_on(write).unwrap();
    let read = rt.block_on(disk.read_expecting(3, 1, WHY, Expect::Plain)).unwrap();
    assert!(*read == *content(1, 1));
    let read = rt.block_on(disk.read_expecting(3, 1, WHY, Expect::Guard { birth: 1 }));
    assert!(matches!(read, Err(DeviceError::Unprotected { .. })));
    let protect = Protect::Offload { birth: 1 };
    let write = rt.block_on(disk.write_protected(3, content(1, 1).into(), WHY, protect));
    assert!(matches!(write, Err(DeviceError::Unprotected { .. })));
}

/// R32: a discard may be the only way to space on a host that copies what is overwritten.
#[test]
fn a_discard_that_finds_no_space_for_its_tuples_gives_space_back() {
    let world = World::new("4096+16:64b", 9);
    let data = content(3, 8);
    world.put(16, &data, BIRTH);
    world.disk.set_host_copies(true);
    world.disk.set_host_free(Some(0));
    let refused = world.rt.block_on(world.device.discard(16, 8));
    assert!(
        matches!(refused, Err(DeviceError::Discard { block: 16, blocks: 8, .. })),
        "{refused:?}"
    );
    // The space of the data is free again, and takes the tuples.
    world.rt.block_on(world.device.discard(16, 8)).unwrap();
    assert_eq!(mismatch(world.read_guarded(16, 8)), (16, Kind::Escape, Verifier::Host));
}

#[test]
fn discarded_and_unwritten_blocks_are_escapes_and_their_neighbours_are_not() {
    let world = World::new("4096+16:64b", 1);
    world.put(250, &content(1, 20), BIRTH);
    world.rt.block_on(world.device.discard(253, 9)).unwrap();
    let unwritten = [253, 261, 270, 600];
    for block in unwritten {
        let answer = world.read_guarded(block, 1);
        assert_eq!(mismatch(answer), (block, Kind::Escape, Verifier::Host), "PIDEV-E4");
        world.read(block, 1, Expect::Offload { birth: 3 }).unwrap();
    }
    world.read_guarded(250, 3).unwrap();
    world.read_guarded(262, 8).unwrap();
    world.put(255, &content(5, 1), BIRTH);
    assert!(*world.read_guarded(255, 1).unwrap() == *content(5, 1));
    // All blocks, in more than one piece.
    let end = world.device.geometry().blocks;
    world.rt.block_on(world.device.discard(0, end)).unwrap();
    assert_eq!(mismatch(world.read_guarded(262, 1)).1, Kind::Escape);
}

#[test]
fn requests_for_entries_are_few() {
    let world = World::new("4096+16:64b", 1);
    let requests = |work: &dyn Fn()| {
        let (reads, writes) = world.entry_requests();
        work();
        let (reads_now, writes_now) = world.entry_requests();
        (reads_now - reads, writes_now - writes)
    };
    // All entries of two blocks; then one more on both sides.
    let (whole, more) = (content(1, 512), content(1, 258));
    assert_eq!(requests(&|| world.put(0, &whole, BIRTH)), (0, 1));
    assert_eq!(requests(&|| world.put(127, &more, BIRTH)), (2, 2));
    let middle = content(1, 600);
    assert_eq!(requests(&|| world.put(10, &middle, BIRTH)), (2, 3));
    assert_eq!(requests(&|| drop(world.read_guarded(100, 400).unwrap())), (1, 0));
    assert_eq!(requests(&|| drop(world.read(0, 512, Expect::Plain).unwrap())), (0, 0));
    let flushes = world.disk.counters().snapshot().flushes;
    world.rt.block_on(world.device.flush()).unwrap();
    assert_eq!(world.disk.counters().snapshot().flushes, flushes + 1);
}

#[test]
fn changes_that_wait_for_each_other_are_made_together() {
    let world = World::new("4096+16:64b", 1);
    let (reads, writes) = world.entry_requests();
    let all = (0..100).map(|block| {
        let data = content(block as u8, 1);
        let protect = world.guarded(&data, BIRTH);
        world.device.write_protected(block, data.into(), WHY, protect)
    });
    for done in world.rt.block_on(join_all(all)) {
        done.unwrap();
    }
    // The first one alone, and then all others.
    assert_eq!(world.entry_requests(), (reads + 2, writes + 2));
    for block in 0..100 {
        assert!(*world.read_guarded(block, 1).unwrap() == *content(block as u8, 1));
    }
}

#[test]
fn each_change_has_the_outcome_of_its_own_write() {
    let world = World::new("4096+16:64b", 1);
    let why = Some(Purpose::Guard);
    world.disk.arm(Trigger::Write { nth: 1, why }, Fault::Error(libc::EIO));
    let data = content(1, 1);
    let all = (0..10).map(|block| {
        let protect = world.guarded(&data, BIRTH);
        world.device.write_protected(block, data.clone().into(), WHY, protect)
    });
    let outcomes = world.rt.block_on(join_all(all));
    let failed = (0..).zip(&outcomes).filter(|(_, outcome)| outcome.is_err());
    assert_eq!(failed.clone().count(), 9, "the first turn had a write alone");
    for (block, outcome) in failed {
        let text = outcome.clone().unwrap_err().to_string();
        assert!(text.contains(&format!("writing 1 blocks at {block} for Data failed")), "{text}");
    }
}

#[test]
fn a_write_that_is_polled_once_and_set_aside_keeps_no_turn() {
    let world = World::new("4096+16:64b", 1);
    let data = content(4, 1);
    let write = |block| {
        let protect = world.guarded(&data, BIRTH);
        world.device.write_protected(block, data.clone().into(), WHY, protect)
    };
    let mut aside =
        [write(5), world.device.discard(6, 1), world.device.write(7, data.clone().into(), WHY)];
    world.rt.block_on(async {
        for aside in &mut aside {
            assert!(futures_util::poll!(aside).is_pending());
        }
        write(8).await.unwrap();
        world.device.discard(9, 1).await.unwrap();
    });
    assert!(world.read_guarded(5, 1).is_ok(), "PIDEV-E2");
    drop(aside);
}

/// A namespace with entries of 64 blocks in each block, so there are more of those than turns. Each
/// request of the disk takes the same time.
fn many_entries(rt: &Arc<SeededRuntime>) -> Arc<Emulated> {
    let (read_latency, write_latency) = (LATENCY..LATENCY + 1, LATENCY..LATENCY + 1);
    let config =
        SimConfig { read_latency, write_latency, one_slow_in: u64::MAX, ..SimConfig::new(1) };
    let disk = SimDevice::from_image(rt.clone(), DeviceId(0), SimImage::empty(6_000), config);
    let format = "4096+64:64b".parse().unwrap();
    rt.block_on(Emulated::create(rt.clone(), disk, format)).unwrap()
}

#[test]
fn requests_for_different_blocks_of_entries_run_together_although_they_have_one_turn() {
    let rt = SeededRuntime::new(1);
    let device = many_entries(&rt);
    let (first, same_turn) = (0, 64 * 64);
    let places = [first, same_turn].map(|block| device.place_of_metadata(block).0);
    assert_eq!(places[1] - places[0], 64);
    let write = |block| device.write(block, content(1, 1).into(), WHY);
    let since = rt.now();
    // Any one alone, then the others together: a read and a write each time.
    let all = [first, first + 1, same_turn, same_turn + 1].map(write);
    for done in rt.block_on(join_all(all)) {
        done.unwrap();
    }
    assert!(rt.now() - since < 5 * LATENCY, "{} ns", rt.now() - since);
}

#[test]
fn a_discard_of_many_blocks_leaves_turns_to_others() {
    let rt = SeededRuntime::new(1);
    let device = many_entries(&rt);
    // Entries in as many blocks as there are turns, and in one whose turn comes late.
    let (all, other) = (64 * 64, 64 * (64 + 20));
    rt.block_on(async {
        let mut discard = device.discard(0, all);
        assert!(futures_util::poll!(&mut discard).is_pending());
        rt.sleep(std::time::Duration::from_nanos(LATENCY / 10)).await;
        let since = rt.now();
        device.write(other, content(1, 1).into(), WHY).await.unwrap();
        assert!(rt.now() - since < 5 * LATENCY / 2, "it reads and writes its entries at once");
        discard.await.unwrap();
    });
}

#[test]
fn a_namespace_that_is_opened_for_reading_refuses_writes() {
    let world = World::new("4096+16:64b", 1);
    world.put(5, &content(1, 1), BIRTH);
    let before = world.disk.image();
    let found = Emulated::find(world.rt.clone(), world.disk.clone(), OpenMode::ReadOnly);
    let device = world.rt.block_on(found).unwrap().unwrap();
    assert!(!device.geometry().can_discard);
    for protect in [Protect::Plain, world.guarded(&content(2, 1), BIRTH)] {
        let write = device.write_protected(5, content(2, 1).into(), WHY, protect);
        let refused = world.rt.block_on(write).unwrap_err();
        let is_read_only =
            matches!(refused, DeviceError::Write { source: IoError(libc::EROFS), .. });
        assert!(is_read_only, "{refused}");
    }
    world.rt.block_on(device.discard(5, 1)).unwrap();
    assert!(world.disk.image() == before);
    let read = device.read_expecting(5, 1, WHY, Expect::Guard { birth: BIRTH });
    assert!(*world.rt.block_on(read).unwrap() == *content(1, 1));
}

#[test]
fn a_disk_without_a_header_is_opened_as_it_is() {
    let rt = SeededRuntime::new(1);
    for blocks in [0, 1, 2, 100] {
        let disk = disk_of(&rt, SimImage::empty(blocks), 1);
        let opened = rt.block_on(open(rt.clone(), disk.clone(), OpenMode::ReadWrite)).unwrap();
        assert_eq!((opened.protection(), opened.geometry()), (None, disk.geometry()));
    }
    let disk = disk_of(&rt, SimImage::empty(3), 1);
    let made = Emulated::create(rt.clone(), disk, "4096+16:64b".parse().unwrap());
    let error = rt.block_on(made).err().unwrap().to_string();
    assert!(error.contains("sim0: a device of 3 blocks is too small"), "{error}");
}

#[test]
fn one_bad_header_costs_nothing_and_two_damaged_ones_are_an_error() {
    let world = World::new("4096+16:64b", 1);
    world.put(5, &content(1, 1), BIRTH);
    let find = || {
        let found = Emulated::find(world.rt.clone(), world.disk.clone(), OpenMode::ReadOnly);
        world.rt.block_on(found).map(|found| found.is_some())
    };
    world.disk.rot(BLOCKS - 1);
    assert!(find().unwrap());
    world.disk.break_block(BLOCKS - 1, libc::EIO, Lasting::Forever);
    assert!(find().unwrap());
    world.disk.corrupt(BLOCKS - 2, |header| header[3000] = 1);
    world.disk.heal();
    let error = find().unwrap_err().to_string();
    assert!(error.contains("header of protection information is damaged"), "{error}");
    for block in [BLOCKS - 1, BLOCKS - 2] {
        world.disk.break_block(block, libc::EIO, Lasting::Forever);
    }
    assert!(!find().unwrap(), "the label of a pool says whether it needs one");
}

#[test]
fn a_new_namespace_has_nothing_of_the_old_one() {
    let world = World::new("4096+16:64b", 1);
    world.put(5, &content(1, 600), BIRTH);
    let format = world.device.header().format;
    let made = Emulated::create(world.rt.clone(), world.disk.clone(), format);
    let again = world.rt.block_on(made).unwrap();
    assert_ne!(again.header().identity, world.device.header().identity);
    assert_eq!(mismatch(world.read_guarded(5, 1)).1, Kind::Escape);
}

#[test]
fn a_namespace_on_zeros_takes_the_room_of_its_header_alone() {
    let rt = SeededRuntime::new(1);
    let disk = disk_of(&rt, SimImage::empty(BLOCKS), 1);
    let format = "4096+16:64b".parse().unwrap();
    let made = Emulated::create_on_zeros(rt.clone(), disk.clone(), format);
    let device = rt.block_on(made).unwrap();
    let written = disk.counters().snapshot().purposes[Purpose::Guard as usize].written_bytes;
    assert_eq!(written, 2 * HEADERS * BLOCK_BYTES as u64, "zeros, then the header");
    let world = World { rt, disk, device };
    assert_eq!(mismatch(world.read_guarded(5, 1)).1, Kind::Escape);
    world.put(5, &content(1, 1), BIRTH);
    assert!(world.read_guarded(5, 1).is_ok());
}

#[test]
fn a_namespace_is_made_as_a_whole_or_not() {
    for nth in 0..4 {
        for seed in 0..20 {
            let old = World::new("4096+8:16b", seed);
            old.put(0, &content(1, 600), BIRTH);
            old.disk.arm(Trigger::Write { nth, why: Some(Purpose::Guard) }, Fault::PowerOff);
            let format = "4096+16:64b".parse().unwrap();
            let made = Emulated::create(old.rt.clone(), old.disk.clone(), format);
            old.rt.spawn(Box::pin(async move { drop(made.await) }));
            let is_cut = nth < 3;
            if is_cut {
                old.rt.block_on(old.disk.until_off());
            } else {
                old.rt.block_on(old.rt.sleep(std::time::Duration::from_secs(10)));
            }
            let rt = SeededRuntime::new(seed);
            let disk = disk_of(&rt, old.disk.crash(seed), seed);
            let found = Emulated::find(rt.clone(), disk.clone(), OpenMode::ReadWrite);
            let Ok(Some(device)) = rt.block_on(found) else {
                assert!(is_cut);
                continue;
            };
            let read = device.read_expecting(300, 1, WHY, Expect::Guard { birth: BIRTH });
            let read = rt.block_on(read);
            match device.header().format == format {
                true => assert_eq!(mismatch(read).1, Kind::Escape, "write {nth}, seed {seed}"),
                false => assert_eq!(nth, 0, "only the first write may be missing"),
            }
        }
    }
}
