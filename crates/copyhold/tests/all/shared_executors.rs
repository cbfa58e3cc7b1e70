//! A pool on executors that others use, too: when it is dropped, nothing of it goes on there.

#![allow(clippy::disallowed_methods, reason = "it waits for tasks on the machine's threads")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use copyhold::{
    CreateOptions, DeviceId, DynDevice, Executors, ExecutorsConfig, FileDevice, OpenMode,
    OpenOptions, Pool,
};

const ROUNDS: u8 = 20;

#[test]
fn a_dropped_pool_lets_go_of_its_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    Pool::create(&path, &CreateOptions::sized(64 << 20)).unwrap();
    let executors =
        Executors::start(ExecutorsConfig { cpus: Some(2), ..Default::default() }).unwrap();
    let mut devices = Vec::new();
    for round in 0..ROUNDS {
        let device: DynDevice =
            FileDevice::open(executors.reactor(), DeviceId(0), &path, OpenMode::ReadWrite).unwrap();
        devices.push(Arc::downgrade(&device));
        let pool = Pool::open_device(executors.clone(), device, OpenOptions::default()).unwrap();
        pool.root().write("file", &[round]).unwrap();
        if round % 2 == 0 {
            pool.root().sync().unwrap();
        }
        drop(pool);
    }
    // A task that was about to end may hold it for a moment.
    for _ in 0..3000 {
        if devices.iter().all(|device| device.strong_count() == 0) {
            return executors.shutdown();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let left = devices.iter().filter(|device| device.strong_count() > 0).count();
    panic!("{left} of {ROUNDS} devices are still held");
}

#[test]
fn a_pool_is_made_and_opened_on_a_device_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    let executors =
        Executors::start(ExecutorsConfig { cpus: Some(1), ..Default::default() }).unwrap();
    let device: DynDevice =
        FileDevice::create(executors.reactor(), DeviceId(0), &path, 64 << 20, false).unwrap();
    let long = CreateOptions { name: "n".repeat(65), ..Default::default() };
    assert!(Pool::create_on(&executors, device.clone(), &long).is_err());
    let id = Pool::create_on(&executors, device.clone(), &CreateOptions::default()).unwrap();
    let pool = Pool::open_device(executors.clone(), device, OpenOptions::default()).unwrap();
    assert_eq!(pool.id(), id);
    pool.close().unwrap();
    executors.shutdown();
}
