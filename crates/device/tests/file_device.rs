//! Files and block devices through both reactors. What needs a loop device or a filesystem of its
//! own is tested where that can be made, that is by root.

#![allow(clippy::disallowed_methods, reason = "tests of the machine's own devices")]

mod common;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};

use copyhold_device::file::probe_signature;
use copyhold_device::{Device, DeviceError, FileDevice, OpenMode};
use copyhold_runtime::{Completion, Executors, Op, Reactor};
use copyhold_types::{Buf, Bufs, DeviceId, Purpose};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tempfile::TempDir;

use common::{Loop, run};

const MIB: u64 = 1 << 20;
const WHY: Purpose = Purpose::Data;

fn on_each(test: impl Fn(&Executors, Arc<dyn Reactor>)) {
    common::on_each(|executors| test(executors, executors.reactor()));
}

fn create(reactor: &Arc<dyn Reactor>, path: &Path) -> Arc<FileDevice> {
    FileDevice::create(reactor.clone(), DeviceId(3), path, 16 * MIB, false).unwrap()
}

fn open(
    reactor: &Arc<dyn Reactor>,
    path: &Path,
    mode: OpenMode,
) -> Result<Arc<FileDevice>, DeviceError> {
    FileDevice::open(reactor.clone(), DeviceId(3), path, mode)
}

fn pool_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    (dir, path)
}

fn filled(byte: u8, blocks: usize) -> Buf {
    Buf::from_bytes(&vec![byte; blocks * 4096])
}

/// A small tmpfs, unmounted at the end.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn of(size: &str) -> Option<Tmpfs> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", dir.path().to_str()?]);
        if mounted.is_none() {
            eprintln!("no tmpfs can be mounted here: not tested on a full host");
        }
        mounted.map(|_| Tmpfs(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run("umount", &[self.0.path().to_str().unwrap()]);
    }
}

#[test]
fn what_is_written_is_there_after_reopening() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        assert_eq!((device.geometry().blocks, device.id()), (4096, DeviceId(3)));
        executors.block_on(async {
            let data = Bufs::from([filled(1, 1), filled(2, 2)]);
            device.write(10, data, WHY).await.unwrap();
            device.flush().await.unwrap();
        });
        let counted = device.counters().snapshot();
        let data = counted.purposes[WHY as usize];
        assert_eq!((data.writes, data.written_bytes, counted.flushes), (1, 3 * 4096, 1));
        drop(device);
        let device = open(&reactor, &path, OpenMode::ReadOnly).unwrap();
        let read = executors.block_on(device.read(9, 5, WHY)).unwrap();
        let firsts: Vec<u8> = read.chunks(4096).map(|block| block[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 2, 0]);
        executors.block_on(device.flush()).unwrap();
        assert_eq!(device.counters().snapshot().flushes, 0);
        assert!(executors.block_on(device.write(0, filled(1, 1).into(), WHY)).is_err());
    });
}

#[test]
fn a_new_file_is_sparse_and_durable_zeros_fill_it() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        assert_eq!(fs::metadata(&path).unwrap().len(), 16 * MIB);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 < MIB);
        executors.block_on(device.preallocate(0, 1000, Purpose::Label)).unwrap();
        executors.block_on(device.flush()).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 1000 * 4096);
        assert_eq!(probe_signature(&path).unwrap(), None);
    });
}

#[test]
fn one_writer_keeps_everyone_else_out() {
    on_each(|_, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
            assert!(matches!(open(&reactor, &path, mode), Err(DeviceError::Locked { .. })));
        }
        drop(device);
        let reader = open(&reactor, &path, OpenMode::ReadOnly).unwrap();
        let other = open(&reactor, &path, OpenMode::ReadOnly).unwrap();
        let writer = open(&reactor, &path, OpenMode::ReadWrite);
        assert!(matches!(writer, Err(DeviceError::Locked { .. })));
        drop((reader, other));
        open(&reactor, &path, OpenMode::ReadWrite).unwrap();
    });
}

#[test]
fn creating_refuses_data_unless_forced_and_leaves_it_at_each_refusal() {
    on_each(|_, reactor| {
        let (_dir, path) = pool_file();
        fs::write(&path, b"somebody's data").unwrap();
        let make = |force| FileDevice::create(reactor.clone(), DeviceId(0), &path, MIB, force);
        assert!(matches!(make(false), Err(DeviceError::Occupied { .. })));
        let too_large =
            FileDevice::create(reactor.clone(), DeviceId(0), &path, u64::MAX >> 1, true);
        assert!(matches!(too_large, Err(DeviceError::Open { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"somebody's data");
        let device = make(true).unwrap();
        assert_eq!(device.geometry().blocks, 256);
        assert!(matches!(make(true), Err(DeviceError::Locked { .. })));
        assert_eq!(probe_signature(&path).unwrap(), None);
    });
}

/// MAKE-M2.
#[test]
fn only_the_file_that_was_made_is_removed() {
    on_each(|_, reactor| {
        let (dir, path) = pool_file();
        let moved = dir.path().join("moved");
        let make = || FileDevice::create(reactor.clone(), DeviceId(0), &path, MIB, false).unwrap();
        let device = make();
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, b"another file").unwrap();
        device.remove_if_made();
        assert!(moved.exists() && path.exists(), "the name is that of another file");
        fs::remove_file(&path).unwrap();
        let device = make();
        device.remove_if_made();
        assert!(!path.exists());
        drop(device);
        drop(make());
        let device = make();
        device.remove_if_made();
        assert!(path.exists(), "it existed before");
    });
}

/// Holes, growing and shrinking: the file is zeros of the new size.
#[test]
fn a_file_that_is_replaced_is_emptied_at_any_size() {
    on_each(|_, reactor| {
        for (old, new) in [(MIB, MIB), (MIB + 777, 16 * 4096), (4097, MIB), (0, MIB)] {
            let (_dir, path) = pool_file();
            fs::write(&path, vec![7; old as usize]).unwrap();
            drop(FileDevice::create(reactor.clone(), DeviceId(0), &path, new, true).unwrap());
            assert!(fs::read(&path).unwrap() == vec![0; new as usize], "{old} to {new}");
        }
    });
}

#[test]
fn a_size_that_the_host_cannot_hold_leaves_no_file() {
    on_each(|_, reactor| {
        let (_dir, path) = pool_file();
        let made = FileDevice::create(reactor, DeviceId(0), &path, u64::MAX >> 1, false);
        assert!(matches!(made, Err(DeviceError::Open { .. })));
        assert!(!path.exists());
    });
}

#[test]
fn what_is_not_a_device_is_refused() {
    on_each(|_, reactor| {
        let (dir, path) = pool_file();
        let of = |path: &Path| open(&reactor, path, OpenMode::ReadWrite).err().unwrap();
        assert!(matches!(of(&path), DeviceError::Open { .. }));
        assert!(matches!(of(dir.path()), DeviceError::NotADevice { .. }));
        assert!(matches!(of(Path::new("/dev/zero")), DeviceError::NotADevice { .. }));
    });
}

#[test]
fn a_request_past_the_end_is_refused() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        let past = executors.block_on(device.read(4095, 2, WHY));
        assert!(matches!(past, Err(DeviceError::OutOfBounds { .. })));
        let past = executors.block_on(device.write(u64::MAX, filled(1, 1).into(), WHY));
        assert!(matches!(past, Err(DeviceError::OutOfBounds { .. })));
    });
}

#[test]
fn a_device_that_shrank_gives_errors_and_not_zeros() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        File::options().write(true).open(&path).unwrap().set_len(8 * MIB).unwrap();
        assert!(executors.block_on(device.read(2047, 1, WHY)).is_ok());
        for (block, blocks) in [(2047, 2), (2048, 1), (4095, 1)] {
            let read = executors.block_on(device.read(block, blocks, WHY));
            assert!(matches!(read, Err(DeviceError::Shrunk { .. })), "{block}");
        }
    });
}

#[test]
fn a_discard_gives_space_back_to_the_host() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        executors.block_on(async {
            device.write(0, filled(7, 1024).into(), WHY).await.unwrap();
            device.flush().await.unwrap();
            device.discard(100, 900).await.unwrap();
            device.flush().await.unwrap();
            let kept = device.read(99, 1, WHY).await.unwrap();
            assert_eq!(kept[0], 7);
        });
        if device.geometry().can_discard {
            assert!(fs::metadata(&path).unwrap().blocks() * 512 < 200 * 4096);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), 16 * MIB);
    });
}

#[test]
fn many_requests_are_in_flight_at_once() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        executors.block_on(async {
            let writes: Vec<_> = (0..1000_u64)
                .map(|block| device.write(block, filled(block as u8, 1).into(), WHY))
                .collect();
            for write in writes {
                write.await.unwrap();
            }
            let reads: Vec<_> = (0..1000).map(|block| device.read(block, 1, WHY)).collect();
            for (block, read) in reads.into_iter().enumerate() {
                assert!(read.await.unwrap().iter().all(|byte| *byte == block as u8));
            }
        });
    });
}

#[test]
fn a_write_goes_on_when_its_future_is_dropped_and_holds_the_lock() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        for block in 0..100 {
            drop(device.write(block, filled(9, 1).into(), WHY));
        }
        drop(device);
        executors.shutdown();
        let file = File::open(&path).unwrap();
        let mut found = vec![0; 100 * 4096];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 9));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    });
}

#[test]
fn without_direct_io_everything_works_all_the_same() {
    // procfs and the like aside, what refuses direct I/O depends on the kernel: take what there is.
    on_each(|executors, reactor| {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
        let device = create(&reactor, &dir.path().join("pool"));
        executors.block_on(async {
            device.write(5, filled(1, 3).into(), WHY).await.unwrap();
            device.flush().await.unwrap();
            assert_eq!(device.read(7, 1, WHY).await.unwrap()[4095], 1);
        });
    });
}

#[test]
fn a_full_host_is_told_from_other_errors() {
    let Some(tmpfs) = Tmpfs::of("256k") else { return };
    on_each(|executors, reactor| {
        let path = tmpfs.0.path().join("pool");
        let device = create(&reactor, &path);
        executors.block_on(device.write(0, filled(1, 10).into(), WHY)).unwrap();
        let full = executors.block_on(device.write(100, filled(1, 100).into(), WHY)).unwrap_err();
        assert!(full.is_host_full(), "{full}");
        // What has its blocks can still be written.
        executors.block_on(device.write(0, filled(2, 10).into(), WHY)).unwrap();
        drop(device);
        fs::remove_file(&path).unwrap();
    });
}

#[test]
fn a_block_device_is_a_device() {
    let (_dir, path) = pool_file();
    File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    let Some(device_path) = Loop::over(&path) else { return };
    let device_path = &device_path.0;
    assert_eq!(probe_signature(device_path).unwrap(), None);
    on_each(|executors, reactor| {
        let make = || FileDevice::create(reactor.clone(), DeviceId(0), device_path, MIB, true);
        let device = make().unwrap();
        assert!(device.is_block_device());
        assert_eq!(device.geometry().blocks, 4096);
        assert!(matches!(make(), Err(DeviceError::Locked { .. })));
        let reader = open(&reactor, device_path, OpenMode::ReadOnly);
        assert!(matches!(reader, Err(DeviceError::Locked { .. })));
        executors.block_on(async {
            device.write(4090, filled(5, 6).into(), WHY).await.unwrap();
            device.flush().await.unwrap();
            assert_eq!(device.read(4095, 1, WHY).await.unwrap()[0], 5);
            device.discard(4090, 2).await.unwrap();
            assert_eq!(device.read(4092, 1, WHY).await.unwrap()[0], 5);
        });
    });
    assert_eq!(probe_signature(device_path).unwrap(), Some("data of an unknown kind"));
    on_each(|_, reactor| {
        let refused = FileDevice::create(reactor, DeviceId(0), device_path, MIB, false);
        assert!(matches!(refused, Err(DeviceError::Occupied { .. })));
    });
}

#[test]
fn what_other_programs_make_is_recognised() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("mkfs.ext4", &["-q", "-F"], "an ext2, ext3 or ext4 filesystem"),
        ("mkfs.btrfs", &["-q", "-f"], "a btrfs filesystem"),
        ("mkfs.xfs", &["-q", "-f"], "an XFS filesystem"),
        ("mkfs.vfat", &[], "a FAT filesystem"),
        ("mkswap", &["-q"], "swap space"),
    ];
    for (program, args, what) in cases {
        let (_dir, path) = pool_file();
        File::create(&path).unwrap().set_len(320 * MIB).unwrap();
        let args: Vec<&str> = args.iter().copied().chain([path.to_str().unwrap()]).collect();
        if run(program, &args).is_some() {
            assert_eq!(probe_signature(&path).unwrap(), Some(what), "{program}");
        }
    }
}

/// The growth is refused, and the file stays as it is: a longer one would have zeros for data.
#[test]
fn a_file_that_was_cut_does_not_grow() {
    on_each(|executors, reactor| {
        let (_dir, path) = pool_file();
        let device = create(&reactor, &path);
        let cut = 8 * MIB + 100;
        File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let blocks = 20 * MIB / 4096;
        let refused = executors.block_on(device.grow(blocks, blocks - 64..blocks));
        assert!(matches!(refused, Err(DeviceError::Shrunk { .. })), "{refused:?}");
        assert_eq!(fs::metadata(&path).unwrap().len(), cut);
        assert_eq!(device.geometry().blocks, 16 * MIB / 4096);
    });
}

/// Refuses the first write, and carries out the others when they are let go.
struct Held {
    below: Arc<dyn Reactor>,
    writes: AtomicUsize,
    ended: Arc<AtomicUsize>,
    /// One message lets one write go.
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Reactor for Held {
    fn submit(&self, op: Op) -> Completion {
        let Op::Write { .. } = op else { return self.below.submit(op) };
        let is_first = self.writes.fetch_add(1, SeqCst) == 0;
        let (ended, gate) = (self.ended.clone(), self.gate.clone());
        self.below.submit(Op::Blocking(Box::new(move || {
            if is_first {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            gate.lock().recv().unwrap();
            ended.fetch_add(1, SeqCst);
            Ok(())
        })))
    }
}

/// Zeros that come later would be written over data: LENGTH-L3.
#[test]
fn a_growth_that_fails_waits_for_its_writes() {
    on_each(|executors, below| {
        let (_dir, path) = pool_file();
        let (go, gate) = channel();
        let held = Arc::new(Held {
            below,
            writes: AtomicUsize::new(0),
            ended: Arc::default(),
            gate: Arc::new(Mutex::new(gate)),
        });
        let device = create(&(held.clone() as Arc<dyn Reactor>), &path);
        let (before, blocks) = (16 * MIB / 4096, 32 * MIB / 4096);
        let mut growth = device.grow(blocks, before..blocks);
        let refused = executors.block_on(async move {
            // The others are let go when the first one has failed, and the growth still waits.
            for round in 0..1000 {
                if let Some(early) = growth.as_mut().now_or_never() {
                    return early;
                }
                let nothing = Op::Blocking(Box::new(|| Ok(())));
                held.below.submit(nothing).await.result.unwrap();
                if round == 999 {
                    (0..16).for_each(|_| go.send(()).unwrap());
                }
            }
            let refused = growth.await;
            let (ended, writes) = (held.ended.load(SeqCst), held.writes.load(SeqCst));
            assert_eq!((ended + 1, ended > 0), (writes, true), "all writes have ended");
            refused
        });
        assert!(matches!(&refused, Err(error) if error.is_host_full()), "{refused:?}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 16 * MIB);
        assert_eq!(device.geometry().blocks, before);
    });
}
