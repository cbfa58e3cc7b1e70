//! Protection information on a regular file, through both reactors.

#![allow(clippy::disallowed_methods, reason = "tests of the machine's own devices")]

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use copyhold_device::pi::{Emulated, Format, Guards, Kind, open};
use copyhold_device::{Device, DeviceError, DynDevice, Expect, FileDevice, OpenMode, Protect};
use copyhold_runtime::Executors;
use copyhold_types::{Buf, DeviceId, Purpose};

const BYTES: u64 = 16 << 20;
const WHY: Purpose = Purpose::Data;
const EXPECT: Expect = Expect::Guard { birth: 9 };

fn on_each(test: impl Fn(&Arc<Executors>, &Path)) {
    common::on_each(|executors| {
        let dir = tempfile::tempdir().unwrap();
        test(executors, &dir.path().join("pool"));
    });
}

fn format() -> Format {
    "4096+16:64b".parse().unwrap()
}

fn create(executors: &Arc<Executors>, path: &Path) -> Arc<Emulated> {
    let file = FileDevice::create(executors.reactor(), DeviceId(0), path, BYTES, false).unwrap();
    let made = Emulated::create(executors.clone(), file, format());
    executors.block_on(made).unwrap()
}

fn found(executors: &Arc<Executors>, path: &Path) -> Result<DynDevice, DeviceError> {
    let mode = OpenMode::ReadWrite;
    let file = FileDevice::open(executors.reactor(), DeviceId(0), path, mode).unwrap();
    executors.block_on(open(executors.clone(), file, mode))
}

fn data() -> Buf {
    Buf::from_bytes(&(0..3 * 4096).map(|n| (n >> 5) as u8).collect::<Vec<u8>>())
}

fn write(executors: &Arc<Executors>, device: &dyn Device, block: u64) {
    let guards: Guards = format().guards(&data());
    let protect = Protect::Guard { birth: 9, guards };
    let write = device.write_protected(block, data().into(), WHY, protect);
    executors.block_on(write).unwrap();
    executors.block_on(device.flush()).unwrap();
}

#[test]
fn a_file_has_its_tuples_when_it_is_opened_again() {
    on_each(|executors, path| {
        let device = create(executors, path);
        write(executors, &*device, 254);
        let (entries, _) = device.place_of_metadata(0);
        device.release();
        drop(device);

        let device = found(executors, path).unwrap();
        assert_eq!(device.protection(), Some(format()));
        let read = executors.block_on(device.read_expecting(254, 3, WHY, EXPECT)).unwrap();
        assert!(*read == *data());
        let unwritten = executors.block_on(device.read_expecting(7, 1, WHY, EXPECT));
        let is_escape = |answer: &Result<Buf, DeviceError>| {
            matches!(answer, Err(DeviceError::Integrity { kind: Kind::Escape, .. }))
        };
        assert!(is_escape(&unwritten), "{unwritten:?}");
        executors.block_on(device.discard(255, 1)).unwrap();
        assert!(is_escape(&executors.block_on(device.read_expecting(254, 3, WHY, EXPECT))));

        // A byte of the file changes.
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(b"\xee", 256 * 4096 + 5).unwrap();
        let answer = executors.block_on(device.read_expecting(256, 1, WHY, EXPECT));
        let text = answer.unwrap_err().to_string();
        assert!(text.contains("read of 1 blocks at 256 for Data: the device finds another guard"));
        // The entries have their space from the start; data takes it when it is written.
        let taken = file.metadata().unwrap().blocks() * 512;
        assert!(taken < BYTES / 2, "{taken}");
        assert!(entries > 4000);
    });
}

#[test]
fn a_block_device_has_tuples_as_a_file_does() {
    on_each(|executors, path| {
        File::create(path).unwrap().set_len(BYTES).unwrap();
        let Some(disk) = common::Loop::over(path) else { return };
        write(executors, &*create(executors, &disk.0), 254);
        let device = found(executors, &disk.0).unwrap();
        let read = executors.block_on(device.read_expecting(254, 3, WHY, EXPECT)).unwrap();
        assert!(*read == *data());
        device.release();
    });
}

#[test]
fn a_file_of_another_size_has_no_header_at_its_end() {
    on_each(|executors, path| {
        write(executors, &*create(executors, path), 5);
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(BYTES + (4 << 20)).unwrap();
        assert_eq!(found(executors, path).unwrap().protection(), None);
        file.set_len(BYTES).unwrap();
        assert_eq!(found(executors, path).unwrap().protection(), Some(format()));
    });
}

#[test]
fn a_header_that_was_moved_to_another_end_is_refused() {
    on_each(|executors, path| {
        drop(create(executors, path));
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut headers = vec![0; 2 * 4096];
        file.read_exact_at(&mut headers, BYTES - 2 * 4096).unwrap();
        file.set_len(BYTES / 2).unwrap();
        file.write_all_at(&headers, BYTES / 2 - 2 * 4096).unwrap();
        let error = found(executors, path).err().unwrap().to_string();
        assert!(error.contains("is of a device of 4096 blocks, and this one has 2048"), "{error}");
    });
}
