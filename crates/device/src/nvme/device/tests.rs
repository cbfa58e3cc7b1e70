//! The device over a drive in memory, with the threads of the machine.

#![allow(clippy::disallowed_methods, reason = "a test of the machine's threads")]

use copyhold_runtime::executors::Config;
use copyhold_runtime::{Executors, ReactorKind};

use super::super::identify::MOST_BLOCKS;
use super::super::model::Model;
use super::*;

const WHY: Purpose = Purpose::Data;
const BLOCKS: u64 = 1000;

fn drive_of(model: &Arc<Model>) -> Drive {
    Drive::identify(Box::new(model.clone()), 1, MOST_BLOCKS, "ng0n1").unwrap()
}

fn device(executors: &Executors, mode: OpenMode) -> (Arc<Model>, Arc<NvmeDevice>) {
    let model = Model::new("4096+16:64b".parse().unwrap(), BLOCKS, 7);
    let device = NvmeDevice::over(executors.reactor(), DeviceId(3), drive_of(&model), mode);
    (model, device)
}

fn with_executors(test: impl FnOnce(&Arc<Executors>)) {
    let reactor = ReactorKind::Threads;
    let executors = Executors::start(Config { cpus: Some(1), reactor, ..Config::default() });
    let executors = executors.unwrap();
    test(&executors);
    executors.shutdown();
}

fn data(blocks: usize) -> Buf {
    Buf::from_bytes(&(0..blocks * 4096).map(|n| (n >> 6) as u8).collect::<Vec<u8>>())
}

#[test]
fn content_is_read_as_it_was_written_and_requests_are_counted() {
    with_executors(|executors| {
        let (_, device) = device(executors, OpenMode::ReadWrite);
        let (format, data) = (device.protection().unwrap(), data(300));
        let protect = Protect::Guard { birth: 9, guards: format.guards(&data) };
        let write = device.write_protected(7, data.clone().into(), WHY, protect);
        executors.block_on(write).unwrap();
        executors.block_on(device.flush()).unwrap();
        let read = device.read_expecting(7, 300, WHY, Expect::Guard { birth: 9 });
        let read = executors.block_on(read).unwrap();
        assert!(*read == *data);
        assert!(!read.is_shared());
        executors.block_on(device.discard(7, 100)).unwrap();
        let counted = device.counters().snapshot();
        let of_data = counted.purposes[WHY as usize];
        assert_eq!((of_data.reads, of_data.writes, of_data.written_bytes), (1, 1, 300 * 4096));
        assert_eq!((counted.flushes, counted.discards), (1, 1));
        let Geometry { blocks, can_discard, name } = device.geometry();
        assert_eq!((blocks, can_discard, name.as_str()), (BLOCKS, true, "ng0n1"));
    });
}

#[test]
fn requests_past_the_end_and_for_nothing_are_answered() {
    with_executors(|executors| {
        let (model, device) = device(executors, OpenMode::ReadWrite);
        let answers = [
            executors.block_on(device.read(BLOCKS, 1, WHY)).map(drop),
            executors.block_on(device.write(BLOCKS - 1, data(2).into(), WHY)),
            executors.block_on(device.discard(u64::MAX, 1)),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(DeviceError::OutOfBounds { size: BLOCKS, .. })));
        }
        assert_eq!(executors.block_on(device.read(BLOCKS, 0, WHY)).unwrap().blocks(), 0);
        executors.block_on(device.write(BLOCKS, Bufs::new(), WHY)).unwrap();
        executors.block_on(device.discard(BLOCKS, 0)).unwrap();
        assert!(model.state.lock().commands.is_empty());
    });
}

#[test]
fn a_reader_changes_nothing() {
    with_executors(|executors| {
        let (model, device) = device(executors, OpenMode::ReadOnly);
        let written = executors.block_on(device.write(3, data(1).into(), WHY));
        let is_refused =
            matches!(written, Err(DeviceError::Write { source: IoError(libc::EROFS), .. }));
        assert!(is_refused, "{written:?}");
        executors.block_on(device.discard(3, 1)).unwrap();
        executors.block_on(device.flush()).unwrap();
        assert!(!device.geometry().can_discard);
        assert!(model.state.lock().commands.is_empty());
        executors.block_on(device.read(3, 1, WHY)).unwrap();
    });
}

#[test]
fn a_released_device_closes_the_node_and_refuses_requests() {
    with_executors(|executors| {
        let (model, device) = device(executors, OpenMode::ReadWrite);
        // One request that has ended, and one whose future is dropped at once.
        executors.block_on(device.write(3, data(1).into(), WHY)).unwrap();
        drop(device.write(4, data(1).into(), WHY));
        device.release();
        let read = executors.block_on(device.read(3, 1, WHY));
        assert!(matches!(read, Err(DeviceError::Read { source: IoError(libc::EBADF), .. })));
        assert!(executors.block_on(device.flush()).is_err());
        executors.shutdown();
        assert_eq!(Arc::strong_count(&model), 1, "NVME-N2");
        assert_eq!(model.state.lock().commands.len(), 2, "NVME-N2");
    });
}

#[test]
fn a_namespace_with_data_is_recognised() {
    let model = Model::new("512+8:16b".parse().unwrap(), 8 * BLOCKS, 7);
    let drive = drive_of(&model);
    assert_eq!(find_data(&drive).unwrap(), None);
    model.state.lock().data[..4].copy_from_slice(b"XFSB");
    assert_eq!(find_data(&drive).unwrap(), Some("an XFS filesystem"));
    model.state.lock().data[..4].fill(0);
    *model.state.lock().data.last_mut().unwrap() = 1;
    assert_eq!(find_data(&drive).unwrap(), Some("data of an unknown kind"));
}

#[test]
fn deallocated_blocks_are_empty_and_hide_no_data() {
    let model = Model::new("512+8:16b".parse().unwrap(), 8 * BLOCKS, 7);
    let drive = drive_of(&model);
    model.state.lock().deallocated.extend((0..8 * BLOCKS).filter(|block| block % 16 < 8));
    assert_eq!(find_data(&drive).unwrap(), None);
    *model.state.lock().data.last_mut().unwrap() = 1;
    assert_eq!(find_data(&drive).unwrap(), Some("data of an unknown kind"));
    model.state.lock().deallocated.extend(0..8 * BLOCKS);
    assert_eq!(find_data(&drive).unwrap(), None);
}

#[test]
fn a_forced_creation_does_not_read_the_content_that_it_overwrites() {
    let model = Model::new("512+8:16b".parse().unwrap(), 8 * BLOCKS, 7);
    let drive = drive_of(&model);
    model.state.lock().data[..4].copy_from_slice(b"XFSB");
    assert!(matches!(expect_room(&drive, false), Err(DeviceError::Occupied { .. })));
    model.state.lock().unreadable.insert(0);
    assert!(matches!(expect_room(&drive, false), Err(DeviceError::Read { .. })));
    model.state.lock().commands.clear();
    expect_room(&drive, true).unwrap();
    assert!(model.state.lock().commands.is_empty());
}
