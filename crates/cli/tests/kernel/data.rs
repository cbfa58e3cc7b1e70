//! What files hold: read, written, mapped, allocated, copied, locked.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::process::Command;

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use crate::observer::number;
use crate::site::Site;

#[test]
fn direct_and_buffered_data_agree() {
    let Some(site) = Site::mounted(&[]) else { return };
    let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 / 3) as u8).collect();
    let path = site.path("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(0o40000);
    let direct = options.open(&path).unwrap();
    direct.write_all_at(&data, 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);
    direct.write_all_at(&[9; 5000], 3000).unwrap();
    let mut back = vec![0; 10_000];
    File::open(&path).unwrap().read_exact(&mut back).unwrap();
    assert!(back[..3000] == data[..3000] && back[8000..] == data[8000..10_000]);
    assert!(back[3000..8000].iter().all(|&byte| byte == 9));
    drop(direct);
    site.again();
    let mut back = vec![0; data.len()];
    options.truncate(false).open(&path).unwrap().read_exact_at(&mut back, 0).unwrap();
    assert!(back[8000..] == data[8000..] && back[..3000] == data[..3000]);
}

#[test]
fn mapped_memory_is_the_file() {
    let Some(site) = Site::mounted(&[]) else { return };
    // A program that maps: no map of ours is needed to see that it works.
    let script = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
                  os.ftruncate(f,100000)\nm=mmap.mmap(f,100000)\nm[5000:5005]=b'hello'\n\
                  m.flush()\nassert os.pread(f,5,5000)==b'hello'\nos.pwrite(f,b'world',5000)\n\
                  assert m[5000:5005]==b'world'\nm[6000:6003]=b'end'\nm.close()\nos.fsync(f)\n";
    let path = site.path("file");
    let run = Command::new("python3").args(["-c", script]).arg(&path).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    site.again();
    let found = fs::read(&path).unwrap();
    assert_eq!((&found[5000..5005], &found[6000..6003]), (&b"world"[..], &b"end"[..]));
}

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = site.create("file");
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let found = file.metadata().unwrap();
    assert_eq!((found.size(), found.blocks()), (1 << 20, 2048));
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 1 << 20);
    file.write_all_at(&[7; 1 << 16], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 4096, 8192).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 20_000, 100).unwrap();
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    drop(file);
    site.again();
    let found = fs::read(site.path("file")).unwrap();
    let zeros = |n: usize| (4096..12_288).contains(&n) || (20_000..20_100).contains(&n);
    assert!(found[..1 << 16].iter().enumerate().all(|(n, &b)| b == if zeros(n) { 0 } else { 7 }));
    assert!(found[1 << 16..].iter().all(|&byte| byte == 0));
}

#[test]
fn data_and_holes_are_found_before_and_after_they_are_written() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = site.create("file");
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[2; 4096], 1 << 20).unwrap();
    for _ in 0..2 {
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(4096));
        assert_eq!(seek(&file, SeekFrom::Data(4096)), Ok(1 << 20));
        assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
        assert_eq!(seek(&file, SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
        file.sync_all().unwrap();
    }
    assert!(file.metadata().unwrap().blocks() < 100);
    file.set_len(1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 1 << 40);
}

#[test]
fn ranges_are_copied_within_and_between_files() {
    let Some(site) = Site::mounted(&[]) else { return };
    let (from, to) = (site.create("from"), site.create("to"));
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 11) as u8).collect();
    from.write_all_at(&data, 0).unwrap();
    let (mut at, mut target) = (100, 50);
    let copied =
        copy_file_range(from.as_fd(), Some(&mut at), to.as_fd(), Some(&mut target), 9 << 20);
    assert_eq!(copied, Ok(data.len() - 100), "to the end of the source");
    let mut back = vec![0; data.len() - 50];
    to.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..50].iter().all(|&byte| byte == 0) && back[50..] == data[100..]);
    let (mut at, mut target) = (0, 10);
    let overlap = copy_file_range(from.as_fd(), Some(&mut at), from.as_fd(), Some(&mut target), 20);
    assert_eq!(overlap, Err(Errno::INVAL));
}

#[test]
fn locks_exclude_other_processes_until_they_are_let_go() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    let file = site.create("file");
    let flock_is_free = || {
        let run = Command::new("flock").arg("--nonblock").arg(&path).arg("true").status();
        run.unwrap().success()
    };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(!flock_is_free());
    rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
    assert!(flock_is_free());
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
                  try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(3)\n";
    let posix_is_free = || {
        let run = Command::new("python3").args(["-c", script]).arg(&path).status();
        run.unwrap().success()
    };
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&file, exclusive).unwrap();
    assert!(!posix_is_free());
    drop(file);
    assert!(posix_is_free());
}

#[test]
fn appends_of_two_descriptors_do_not_overwrite_each_other() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    let mut one = options.open(site.path("log")).unwrap();
    let mut two = options.open(site.path("log")).unwrap();
    for _ in 0..50 {
        one.write_all(b"a").unwrap();
        two.write_all(b"b").unwrap();
    }
    assert_eq!(fs::read_to_string(site.path("log")).unwrap(), "ab".repeat(50));
}

#[test]
fn what_is_too_large_is_refused() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = site.create("file");
    let error = file.write_all_at(b"x", i64::MAX as u64 - 10).unwrap_err();
    assert!(matches!(number(error), Errno::FBIG | Errno::INVAL));
    let error = symlink("x".repeat(5000), site.path("link")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidFilename);
}
