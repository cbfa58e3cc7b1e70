//! A drive in memory beside the emulated namespace: the same requests, damage and answers.

use std::sync::Arc;

use copyhold_runtime::SeededRuntime;
use copyhold_types::{DeviceId, Purpose};
use proptest::prelude::*;

use super::super::identify::MOST_BLOCKS;
use super::super::model::Model;
use super::*;
use crate::pi::{Emulated, Guards, Kind, Type, formats};
use crate::sim::{SimConfig, SimDevice, SimImage};
use crate::{Device, Verifier};

const WHY: Purpose = Purpose::Data;
/// Blocks of 4 KiB.
const BLOCKS: u64 = 40;
const BIRTH: u32 = 70_000;

fn drive_of(model: &Arc<Model>) -> Drive {
    Drive::identify(Box::new(model.clone()), 1, MOST_BLOCKS, "ng0n1").unwrap()
}

fn drive(format: &str, limit: u8) -> (Arc<Model>, Drive) {
    let format: Format = format.parse().unwrap();
    let model = Model::new(format, BLOCKS * format.parts() as u64, limit);
    let drive = drive_of(&model);
    (model, drive)
}

fn request(block: u64, blocks: u32, access: Access) -> Request {
    Request { block, blocks, why: WHY, access }
}

fn content(seed: u8, blocks: usize) -> Buf {
    let bytes = (0..blocks * BLOCK_BYTES).map(|n| seed ^ (n >> 12) as u8 ^ (n >> 4) as u8);
    Buf::from_bytes(&bytes.collect::<Vec<u8>>())
}

fn write(drive: &Drive, block: u64, data: &Buf, protect: &Protect) -> Result<(), DeviceError> {
    let request = request(block, data.blocks() as u32, Access::Write);
    drive.write(request, &data.clone().into(), protect)
}

fn read(drive: &Drive, block: u64, blocks: u32, expect: Expect) -> Result<Buf, DeviceError> {
    drive.read(request(block, blocks, Access::Read), expect)
}

fn guarded(format: &Format, data: &Buf, birth: u32) -> Protect {
    Protect::Guard { birth, guards: format.guards(data) }
}

/// Both namespaces, empty, of one format.
struct Pair {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    emulated: Arc<Emulated>,
    model: Arc<Model>,
    drive: Drive,
    format: Format,
}

impl Pair {
    fn new(format: Format, limit: u8) -> Pair {
        let rt = SeededRuntime::new(1);
        let (image, config) = (SimImage::empty(2 * BLOCKS + 2), SimConfig::new(1));
        let disk = SimDevice::from_image(rt.clone(), DeviceId(0), image, config);
        let emulated = rt.block_on(Emulated::create(rt.clone(), disk.clone(), format)).unwrap();
        let model = Model::new(format, BLOCKS * format.parts() as u64, limit);
        let drive = drive_of(&model);
        Pair { rt, disk, emulated, model, drive, format }
    }

    fn write(&self, block: u64, data: &Buf, protect: &Protect) {
        let bufs: Bufs = data.chunks(2 * BLOCK_BYTES).map(Buf::from_bytes).collect();
        let request = request(block, data.blocks() as u32, Access::Write);
        let answer = self.drive.write(request, &bufs, protect);
        let wanted = self.emulated.write_protected(block, bufs, WHY, protect.clone());
        let wanted = self.rt.block_on(wanted);
        assert_eq!(said(&answer), said(&wanted));
        if wanted.is_err() {
            // The drive has stored the commands before the one that it refused (NVMECMD-D3).
            self.write(block, data, &Protect::Plain);
        }
    }

    /// The drive answers as the emulated namespace does to reads of one block after the other.
    fn read(&self, block: u64, blocks: u32, expect: Expect) {
        let one = |at| self.rt.block_on(self.emulated.read_expecting(at, 1, WHY, expect));
        let wanted: Result<Vec<Buf>, _> = (block..block + u64::from(blocks)).map(one).collect();
        let answer = read(&self.drive, block, blocks, expect);
        assert_eq!(said(&answer), said(&wanted));
        if let (Ok(answer), Ok(wanted)) = (answer, wanted) {
            let wanted: Vec<&[u8]> = wanted.iter().map(|buf| &**buf).collect();
            assert!(*answer == *wanted.concat(), "other content at {block}");
        }
    }

    fn discard(&self, block: u64, blocks: u64) {
        self.rt.block_on(self.emulated.discard(block, blocks)).unwrap();
        self.drive.discard(block, blocks).unwrap();
        // The content is undefined now, and so can differ.
        for at in block..block + blocks {
            self.set_data(at, 0, &[0; BLOCK_BYTES]);
        }
    }

    fn set_data(&self, block: u64, at: usize, bytes: &[u8]) {
        let set = |place: &mut [u8]| place[at..at + bytes.len()].copy_from_slice(bytes);
        self.disk.corrupt(block, |content| set(content));
        set(&mut self.model.state.lock().data[block as usize * BLOCK_BYTES..]);
    }

    fn flip_data(&self, block: u64, bit: usize) {
        let flip = |place: &mut [u8]| place[bit / 8] ^= 1 << (bit % 8);
        self.disk.corrupt(block, |content| flip(content));
        flip(&mut self.model.state.lock().data[block as usize * BLOCK_BYTES..]);
    }

    fn flip_metadata(&self, block: u64, bit: usize) {
        let entry = self.format.entry_bytes();
        let bit = bit % (8 * entry);
        let (at, range) = self.emulated.place_of_metadata(block);
        let flip = |place: &mut [u8]| place[bit / 8] ^= 1 << (bit % 8);
        // It is stored as its complement, whose bits flip alike.
        self.disk.corrupt(at, |content| flip(&mut content[range]));
        flip(&mut self.model.state.lock().metadata[block as usize * entry..]);
    }
}

/// The parts of an answer that both devices share.
fn said<T>(answer: &Result<T, DeviceError>) -> Option<(u64, Access, Kind, Verifier)> {
    match answer {
        Ok(_) => None,
        Err(DeviceError::Integrity { block, access, kind, by, .. }) => {
            Some((*block, *access, *kind, *by))
        }
        Err(error) => panic!("{error}"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Offload,
    Guard,
}

#[derive(Clone, Debug)]
enum Step {
    Write { way: Way, birth: u32, seed: u8 },
    WriteWrongGuard { nth: prop::sample::Index },
    Read { way: Way, birth: u32 },
    Discard,
    FlipData { bit: usize },
    FlipMetadata { bit: usize },
}

fn steps() -> impl Strategy<Value = Vec<(u64, u32, Step)>> {
    let way = prop::sample::select(vec![Way::Plain, Way::Offload, Way::Guard]);
    let birth = prop::sample::select(vec![BIRTH, BIRTH, BIRTH + 1]);
    let write = (way.clone(), birth.clone(), any::<u8>());
    let step = prop_oneof![
        4 => write.prop_map(|(way, birth, seed)| Step::Write { way, birth, seed }),
        1 => any::<prop::sample::Index>().prop_map(|nth| Step::WriteWrongGuard { nth }),
        4 => (way, birth).prop_map(|(way, birth)| Step::Read { way, birth }),
        1 => Just(Step::Discard),
        1 => (0..8 * BLOCK_BYTES).prop_map(|bit| Step::FlipData { bit }),
        1 => (0..8 * BLOCK_BYTES).prop_map(|bit| Step::FlipMetadata { bit }),
    ];
    let range = (0..BLOCKS - 1).prop_flat_map(|block| (Just(block), 1..=(BLOCKS - block) as u32));
    let step = (range, step).prop_map(|((block, blocks), step)| (block, blocks, step));
    prop::collection::vec(step, 1..12)
}

fn play(pair: &Pair, (block, blocks, step): (u64, u32, Step)) {
    let data = |seed| content(seed, blocks as usize);
    match step {
        Step::Write { way, birth, seed } => {
            let data = data(seed);
            let protect = match way {
                Way::Plain => Protect::Plain,
                // The reference tags of type 3 that a drive makes depend on its commands.
                Way::Offload if pair.format.kind() != Type::Three => Protect::Offload { birth },
                Way::Offload | Way::Guard => guarded(&pair.format, &data, birth),
            };
            pair.write(block, &data, &protect);
        }
        Step::WriteWrongGuard { nth } => {
            let data = data(7);
            let mut guards: Guards = pair.format.guards(&data);
            let nth = nth.index(guards.len());
            guards[nth] ^= 1;
            pair.write(block, &data, &Protect::Guard { birth: BIRTH, guards });
        }
        Step::Read { way, birth } => pair.read(
            block,
            blocks,
            match way {
                Way::Plain => Expect::Plain,
                Way::Offload => Expect::Offload { birth },
                Way::Guard => Expect::Guard { birth },
            },
        ),
        Step::Discard => pair.discard(block, blocks.into()),
        Step::FlipData { bit } => pair.flip_data(block, bit),
        Step::FlipMetadata { bit } => pair.flip_metadata(block, bit),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_drive_answers_as_the_emulated_namespace(
        format in formats(),
        limit in prop::sample::select(vec![1, 2, 3, 0]),
        steps in steps(),
    ) {
        let pair = Pair::new(format, limit);
        for step in steps {
            play(&pair, step);
        }
        pair.read(0, BLOCKS as u32, Expect::Plain);
    }

    #[test]
    fn the_parts_of_a_request_are_the_request(
        block in 0..1_u64 << 40,
        blocks in 0..1_000_u32,
        most in 1..=70_u32,
    ) {
        let mut next = (block, 0);
        for (part, place) in parts(request(block, blocks, Access::Read), most) {
            prop_assert_eq!((part.block, place.start), next, "NVMECMD-D1");
            prop_assert!((1..=most).contains(&part.blocks), "NVMECMD-D1");
            prop_assert_eq!(place.len(), part.blocks as usize * BLOCK_BYTES);
            next = (part.block + u64::from(part.blocks), place.end);
        }
        let bytes = blocks as usize * BLOCK_BYTES;
        prop_assert_eq!(next, (block + u64::from(blocks), bytes), "NVMECMD-D1");
    }
}

#[test]
fn commands_have_the_size_that_drive_and_format_allow() {
    // The format, the drive's limit, and the commands for 40 blocks.
    let cases =
        [("4096+16:64b", 0, 1), ("4096+16:64b", 3, 6), ("512+64:64b", 0, 5), ("4096+8:16b", 1, 40)];
    for (format, limit, commands) in cases {
        let (model, drive) = drive(format, limit);
        let data = content(1, BLOCKS as usize);
        write(&drive, 0, &data, &guarded(drive.format(), &data, BIRTH)).unwrap();
        assert_eq!(model.state.lock().commands.len(), commands, "{format}");
        read(&drive, 0, BLOCKS as u32, Expect::Guard { birth: BIRTH }).unwrap();
        assert_eq!(model.state.lock().commands.len(), 2 * commands, "{format}");
    }
}

#[test]
fn commands_have_the_size_that_the_kernel_allows() {
    for (most, commands) in [(64, 1), (32, 2), (7, 6), (1, 40)] {
        let format: Format = "4096+16:64b".parse().unwrap();
        let model = Model::new(format, BLOCKS, 0);
        let drive = Drive::identify(Box::new(model.clone()), 1, most, "ng0n1").unwrap();
        write(&drive, 0, &content(1, BLOCKS as usize), &Protect::Plain).unwrap();
        let state = model.state.lock();
        assert_eq!(state.commands.len(), commands, "NVMECMD-D1");
        assert!(state.commands.iter().all(|fields| fields.high[2] & 0xffff < most), "NVMECMD-D1");
    }
}

#[test]
fn a_damaged_block_is_named_and_its_neighbours_read() {
    let (model, drive) = drive("4096+64:64b", 0);
    let data = content(1, BLOCKS as usize);
    write(&drive, 0, &data, &guarded(drive.format(), &data, BIRTH)).unwrap();
    model.state.lock().data[17 * BLOCK_BYTES + 5] ^= 1;
    let error = read(&drive, 0, BLOCKS as u32, Expect::Guard { birth: BIRTH }).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("read of 1 blocks at 17 for Data: the device finds another guard"));
    assert!(
        *read(&drive, 18, 22, Expect::Guard { birth: BIRTH }).unwrap() == data[18 * BLOCK_BYTES..]
    );
}

#[test]
fn damage_on_the_way_from_the_drive_is_read_again() {
    let (model, drive) = drive("4096+16:64b", 0);
    let data = content(1, 4);
    write(&drive, 0, &data, &guarded(drive.format(), &data, BIRTH)).unwrap();
    model.state.lock().answer = Some(0x282);
    assert!(*read(&drive, 0, 4, Expect::Guard { birth: BIRTH }).unwrap() == *data);
    // One write, one read in vain, and one for each block.
    assert_eq!(model.state.lock().commands.len(), 6);
}

#[test]
fn a_guard_refused_on_the_way_to_the_drive_is_of_any_block() {
    let (model, drive) = drive("4096+16:64b", 0);
    let data = content(1, 4);
    model.state.lock().answer = Some(0x4282);
    let error = write(&drive, 3, &data, &guarded(drive.format(), &data, BIRTH)).unwrap_err();
    let is_of_all = matches!(
        error,
        DeviceError::Integrity { block: 3, blocks: 4, kind: Kind::Guard, by: Verifier::Device, .. }
    );
    assert!(is_of_all, "{error}");
}

#[test]
fn each_status_has_its_error() {
    let (model, drive) = drive("4096+16:64b", 0);
    let data = content(1, 1);
    let answer = |code| {
        model.state.lock().answer = Some(code);
        let read = read(&drive, 3, 1, Expect::Offload { birth: BIRTH }).unwrap_err();
        model.state.lock().answer = Some(code);
        let write = write(&drive, 3, &data, &Protect::Offload { birth: BIRTH }).unwrap_err();
        (read, write)
    };
    for (code, wanted) in [
        (0x282, Kind::Guard),
        (0x4283, Kind::App),
        (0x284, Kind::Reference),
        (0x288, Kind::Storage),
        (0x287, Kind::Escape),
    ] {
        let (read, write) = answer(code);
        for error in [read, write] {
            assert!(
                matches!(error, DeviceError::Integrity { kind, .. } if kind == wanted),
                "{error}"
            );
        }
    }
    for code in [0x181, 0x4181, 0x002] {
        let (read, write) = answer(code);
        for error in [read, write] {
            assert!(matches!(error, DeviceError::Contradiction { block: 3, .. }), "{error}");
        }
    }
    for (code, errno) in [(0x281, libc::ENODATA), (0x4006, libc::EIO), (0x020, libc::EROFS)] {
        let (read, write) = answer(code);
        let is_read = matches!(&read, DeviceError::Read { source, .. } if source.0 == errno);
        let is_write = matches!(&write, DeviceError::Write { source, .. } if source.0 == errno);
        assert!(is_read && is_write, "{read}, {write}");
    }
    assert!(answer(0x081).1.is_thin_full());
}

#[test]
fn an_unreadable_block_is_an_error_of_the_medium() {
    let (model, drive) = drive("4096+16:64b", 0);
    model.state.lock().unreadable.insert(5);
    let error = read(&drive, 5, 1, Expect::Plain).unwrap_err();
    assert!(matches!(error, DeviceError::Read { source: IoError(libc::ENODATA), .. }), "{error}");
    read(&drive, 6, 3, Expect::Plain).unwrap();
    let error = read(&drive, 0, 40, Expect::Plain).unwrap_err();
    let is_named = matches!(
        error,
        DeviceError::Read { block: 5, blocks: 1, source: IoError(libc::ENODATA), .. }
    );
    assert!(is_named, "NVMECMD-D3: {error}");
}

#[test]
fn requests_outlast_a_command_that_the_controller_has_aborted() {
    let (model, drive) = drive("4096+16:64b", 0);
    let data = content(1, 3);
    let abort = || model.state.lock().answer = Some(0x007);
    abort();
    write(&drive, 5, &data, &guarded(drive.format(), &data, BIRTH)).unwrap();
    abort();
    drive.flush().unwrap();
    abort();
    assert!(*read(&drive, 5, 3, Expect::Guard { birth: BIRTH }).unwrap() == *data);
    abort();
    drive.discard(5, 3).unwrap();
    let state = model.state.lock();
    let is_pair = |pair: &[Fields]| pair[0] == pair[1];
    assert!(state.commands.len() == 8 && state.commands.chunks(2).all(is_pair), "NVMERE-R1");
}

#[test]
fn guards_of_other_blocks_than_those_written_contradict_the_request() {
    let (model, drive) = drive("4096+16:64b", 0);
    for guards in [Guards::new(), Guards::from_elem(0, 3)] {
        let answer = write(&drive, 10, &content(1, 2), &Protect::Guard { birth: 1, guards });
        assert!(matches!(answer, Err(DeviceError::Contradiction { block: 10, .. })));
    }
    assert!(model.state.lock().commands.is_empty());
}

#[test]
fn a_drive_that_cannot_deallocate_keeps_its_blocks() {
    let (model, drive) = drive("4096+16:64b", 0);
    model.state.lock().answer = Some(0x4001);
    drive.discard(0, 10).unwrap();
    assert!(!drive.can_discard());
    model.state.lock().answer = Some(0x4006);
    assert!(matches!(drive.discard(0, 10), Err(DeviceError::Discard { .. })));
    model.state.lock().answer = Some(0x280);
    assert!(matches!(
        drive.flush(),
        Err(DeviceError::Flush { source: IoError(libc::ENODATA), .. })
    ));
}

#[test]
fn a_discard_is_cut_to_the_size_that_the_drive_takes() {
    let (model, drive) = drive("512+8:16b", 0);
    write(&drive, 0, &content(1, BLOCKS as usize), &Protect::Plain).unwrap();
    // Two and a half blocks of 4 KiB.
    model.state.lock().most_deallocated = 20;
    let is_zero = |block: usize| {
        let data = &model.state.lock().data;
        data[block * BLOCK_BYTES..][..BLOCK_BYTES].iter().all(|byte| *byte == 0)
    };
    model.state.lock().commands.clear();
    drive.discard(3, 30).unwrap();
    // Commands of 30, 15, 7 and 3 blocks are refused, and then each has one.
    assert_eq!(model.state.lock().commands.len(), 34);
    for block in 0..BLOCKS as usize {
        assert_eq!(is_zero(block), (3..33).contains(&block), "{block}");
    }
    // The drive's limit is known now.
    model.state.lock().commands.clear();
    drive.discard(33, 4).unwrap();
    assert_eq!(model.state.lock().commands.len(), 4);
    model.state.lock().most_deallocated = 7;
    assert!(matches!(
        drive.discard(0, 4),
        Err(DeviceError::Discard { block: 0, blocks: 4, source: IoError(libc::EIO), .. })
    ));
}

#[test]
fn a_drive_that_lies_is_not_opened() {
    let format: Format = "4096+16:64b".parse().unwrap();
    let mut model = Model::new(format, BLOCKS, 0);
    Arc::get_mut(&mut model).unwrap().pages.namespace[29] = 0;
    let Err(error) = Drive::identify(Box::new(model), 1, MOST_BLOCKS, "/dev/ng0n1") else {
        panic!()
    };
    assert!(error.to_string().starts_with("/dev/ng0n1: the namespace has 16 bytes of metadata"));
}

#[test]
fn a_namespace_whose_metadata_cannot_be_transferred_is_refused_before_it_is_written() {
    for format in ["4096+8:16b", "4096+64:64b:type3", "512+16:32b:first"] {
        let (model, drive) = drive(format, 0);
        drive.probe().unwrap();
        let refused = || drive.probe().unwrap_err().to_string();
        let expect = |said: String| assert!(said.contains("no metadata can be read"), "{said}");
        for answer in [0x4001, 0x4002] {
            model.state.lock().answer = Some(answer);
            expect(refused());
        }
        for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
            model.state.lock().errno = Some(errno);
            expect(refused());
        }
        model.state.lock().transfers_no_metadata = true;
        expect(refused());
        let commands = &model.state.lock().commands;
        assert!(commands.iter().all(|command| command.opcode == 0x02), "{commands:?}");
    }
}

#[test]
fn a_first_block_that_cannot_be_read_is_no_reason_to_refuse_a_namespace() {
    let (model, drive) = drive("4096+16:64b", 0);
    for answer in [0x004, 0x006, 0x280, 0x281, 0x282, 0x284, 0x287] {
        model.state.lock().answer = Some(answer);
        drive.probe().unwrap();
    }
    for errno in [libc::EIO, libc::ENODATA, libc::EILSEQ, libc::ETIMEDOUT] {
        model.state.lock().errno = Some(errno);
        drive.probe().unwrap();
    }
}

#[test]
fn metadata_are_read_as_they_are_stored() {
    for format in ["4096+8:16b", "4096+64:64b:type3", "512+16:32b:first"] {
        let (model, drive) = drive(format, 0);
        let data = content(3, 40);
        let protect = guarded(drive.format(), &data, BIRTH);
        write(&drive, 0, &data, &protect).unwrap();
        let read = drive.read_metadata(request(2, 38, Access::Read)).unwrap();
        let entry = drive.format().entry_bytes();
        assert!(read == model.state.lock().metadata[2 * entry..], "{format}");
        model.state.lock().unreadable.insert(2 * drive.format().parts() as u64);
        assert!(drive.read_metadata(request(2, 38, Access::Read)).is_err());
    }
}
