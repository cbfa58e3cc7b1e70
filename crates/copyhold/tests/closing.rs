//! A pool that was closed or dropped leaves no thread, descriptor or lock. One test in a program of
//! its own, since it counts what the whole process has.

#![allow(clippy::disallowed_methods, reason = "it waits for threads of the kernel's table")]

use std::fs;
use std::thread;
use std::time::Duration;

use copyhold::{CreateOptions, Error, FsError, OpenOptions, Pool};

fn count(what: &str) -> usize {
    fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

/// A thread that was joined may be in the kernel's table for a moment.
#[track_caller]
fn wait_for(what: &str, expected: usize) {
    for _ in 0..3000 {
        if count(what) <= expected {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{} of {what}, {expected} are expected", count(what));
}

#[test]
fn a_closed_or_dropped_pool_leaves_no_threads_descriptors_or_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    Pool::create(&path, &CreateOptions::sized(64 << 20)).unwrap();
    let options = || OpenOptions { threads: Some(2), ..OpenOptions::default() };
    let (threads, files) = (count("task"), count("fd"));
    let mut volumes = Vec::new();
    for round in 0..30_u8 {
        let pool = Pool::open(&path, options()).unwrap();
        let volume = pool.root();
        volume.write("file", &[round]).unwrap();
        volume.sync().unwrap();
        if round % 2 == 0 {
            pool.close().unwrap();
        } else {
            drop(pool);
        }
        let after = volume.read("file");
        assert!(matches!(after, Err(Error::Filesystem(FsError::ShutDown))), "{after:?}");
        volumes.push(volume);
    }
    assert!(Pool::open(dir.path().join("missing"), options()).is_err());
    let pool = Pool::open(&path, options()).unwrap();
    assert_eq!(pool.root().read("file").unwrap(), [29]);
    // Calls of other threads end before the pool does.
    let volume = pool.root();
    let writer = thread::spawn(move || {
        let mut written = 0_u64;
        loop {
            match volume.write("file", &written.to_le_bytes()) {
                Ok(()) => written += 1,
                Err(Error::Filesystem(FsError::ShutDown)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    });
    drop(pool);
    writer.join().unwrap();
    wait_for("task", threads);
    wait_for("fd", files);
    drop(volumes);
}
