//! Files, names and attributes on a real mount of the filesystem in memory.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

#[path = "../../fuse/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;

use common::Mounted;
use copyhold_fuse::End;
use copyhold_harness::needs;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, StatxFlags, XattrFlags, copy_file_range, fallocate,
    getxattr, listxattr, removexattr, renameat_with, setxattr, statx,
};

#[test]
fn files_are_written_read_renamed_and_removed() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let file = mounted.path("file");
    fs::write(&file, b"hello").unwrap();
    fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(b" world").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"hello world");
    fs::write(&file, b"short").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"short", "opening with O_TRUNC truncates");

    fs::create_dir(mounted.path("dir")).unwrap();
    fs::rename(&file, mounted.path("dir/moved")).unwrap();
    assert!(!file.exists());
    symlink("dir/moved", mounted.path("link")).unwrap();
    assert_eq!(fs::read(mounted.path("link")).unwrap(), b"short");
    fs::hard_link(mounted.path("dir/moved"), mounted.path("hard")).unwrap();
    assert_eq!(fs::metadata(mounted.path("hard")).unwrap().nlink(), 2);
    assert!(fs::remove_dir(mounted.path("dir")).is_err(), "not empty");
    fs::remove_dir_all(mounted.path("dir")).unwrap();
    assert_eq!(fs::metadata(mounted.path("hard")).unwrap().nlink(), 1);
    assert!(matches!(mounted.end(), End::Unmounted));
}

#[test]
fn attributes_are_set_and_shown() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    file.set_len(10_000).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4751);
    std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid(), found.size()), (7, 8, 10_000));
    assert_eq!(found.mode() & 0o7777, 0o751, "a change of owner takes setuid away");
    let long_ago = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    file.set_modified(long_ago).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec()), (-2, 500_000_000));
    let born = statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert_ne!(born.stx_mask & StatxFlags::BTIME.bits(), 0, "statx gives the time of birth");
    assert!(born.stx_btime.tv_sec > 1_000_000_000);
}

#[test]
fn a_mebibyte_is_written_at_once_and_comes_back() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 / 3) as u8).collect();
    let path = mounted.path("buffered");
    fs::write(&path, &data).unwrap();
    assert_eq!(fs::read(&path).unwrap(), data);

    let direct = mounted.path("direct");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let file = options.open(&direct).unwrap();
    // O_DIRECT wants an aligned place in memory only on devices; FUSE takes any.
    assert_eq!(file.write_at(&data, 4096).unwrap(), data.len());
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 4096).unwrap();
    assert_eq!(back, data);
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    let counters = mounted.counters();
    assert_eq!(counters.parked, 0, "nothing had to wait");
    assert!(counters.requests > 8);
}

#[test]
fn a_large_directory_is_read_whole_with_and_without_attributes() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let names: BTreeSet<String> =
        (0..5000).map(|n| format!("{n:05}{}", "x".repeat(n % 200))).collect();
    for name in &names {
        File::create(mounted.path(name)).unwrap();
    }
    for _ in 0..2 {
        let entries = fs::read_dir(mounted.dir.path()).unwrap();
        let found: BTreeSet<String> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                assert!(entry.metadata().unwrap().is_file());
                entry.file_name().into_string().unwrap()
            })
            .collect();
        assert_eq!(found, names);
    }
    // Removing what was read, while reading on, neither skips nor repeats.
    let mut count = 0;
    for entry in fs::read_dir(mounted.dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        count += 1;
    }
    assert_eq!(count, names.len());
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 0);
}

#[test]
fn extended_attributes_come_and_go() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    File::create(&path).unwrap();
    let large = vec![9u8; 60_000];
    setxattr(&path, "user.small", b"v", XattrFlags::CREATE).unwrap();
    setxattr(&path, "user.large", &large, XattrFlags::empty()).unwrap();
    setxattr(&path, "trusted.t", b"", XattrFlags::empty()).unwrap();
    assert!(setxattr(&path, "user.small", b"w", XattrFlags::CREATE).is_err());
    let mut value = vec![0; 65_536];
    assert_eq!(getxattr(&path, "user.large", &mut value).unwrap(), large.len());
    assert_eq!(value[..large.len()], large);
    let error = getxattr(&path, "user.large", &mut [0u8; 100][..]).unwrap_err();
    assert_eq!(error, rustix::io::Errno::RANGE);
    let mut names = [0u8; 100];
    let len = listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(&names[..len], b"trusted.t\0user.large\0user.small\0");
    removexattr(&path, "user.small").unwrap();
    let error = getxattr(&path, "user.small", &mut value).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NODATA);
}

#[test]
fn rename_exchanges_and_refuses_as_asked() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::write(&a, b"1").unwrap();
    fs::create_dir(&b).unwrap();
    let error = renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE).unwrap_err();
    assert_eq!(error, rustix::io::Errno::EXIST);
    renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert!(a.is_dir());
    assert_eq!(fs::read(&b).unwrap(), b"1");
    renameat_with(CWD, &b, CWD, mounted.path("c"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().rdev(), 0, "a whiteout is a device 0:0");
}

#[test]
fn a_nameless_file_gets_its_name_later() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE);
    let mut file = options.open(mounted.dir.path()).unwrap();
    file.write_all(b"secret").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let shown = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let named = mounted.path("named");
    rustix::fs::linkat(CWD, shown, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(&named).unwrap(), b"secret");
    assert_eq!(fs::metadata(&named).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn an_unlinked_open_file_can_be_used_until_it_is_closed() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn ranges_are_allocated_punched_copied_and_sought() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = options.open(mounted.path("file")).unwrap();
    file.write_all_at(&[7; 8192], 0).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_000);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 0, 4096).unwrap();
    let mut start = [1u8; 5000];
    file.read_exact_at(&mut start, 0).unwrap();
    assert!(start[..4096].iter().all(|&byte| byte == 0) && start[4096..].iter().all(|&b| b == 7));

    let target = options.open(mounted.path("target")).unwrap();
    let (mut from, mut to) = (4096, 10);
    let copied =
        copy_file_range(file.as_fd(), Some(&mut from), target.as_fd(), Some(&mut to), 4096)
            .unwrap();
    assert_eq!(copied, 4096);
    let mut back = vec![0; 4106];
    target.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..10].iter().all(|&byte| byte == 0) && back[10..].iter().all(|&byte| byte == 7));
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert_eq!(hole, 20_000);
}

#[test]
fn statfs_and_flags_reach_the_caller() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let found = rustix::fs::statvfs(mounted.dir.path()).unwrap();
    assert_eq!((found.f_blocks, found.f_namemax, found.f_frsize), (1 << 30, 255, 4096));
    let file = File::create(mounted.path("file")).unwrap();
    let wanted = rustix::fs::IFlags::NOATIME;
    rustix::fs::ioctl_setflags(&file, wanted).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap(), wanted);
}

#[test]
fn a_running_program_is_neither_written_nor_truncated() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("program");
    fs::copy("/bin/sleep", &path).unwrap();
    let len = fs::metadata(&path).unwrap().len();
    let mut running = std::process::Command::new(&path).arg("1000").spawn().unwrap();
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
        let error = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap_err();
        assert_eq!(error, rustix::io::Errno::TXTBSY);
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), len);
    assert!(running.try_wait().unwrap().is_none(), "it still runs");
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(File::options().write(true).open(&path).is_ok());
}

#[test]
fn names_of_any_bytes_and_255_of_them_are_fine() {
    use std::os::unix::ffi::OsStrExt;
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let odd: Vec<u8> = (1..=255u8).filter(|&byte| byte != b'/').collect();
    let odd = mounted.dir.path().join(std::ffi::OsStr::from_bytes(&odd));
    fs::write(&odd, b"odd").unwrap();
    assert_eq!(fs::read(&odd).unwrap(), b"odd");
    assert!(File::create(mounted.path(&"n".repeat(255))).is_ok());
    let error = File::create(mounted.path(&"n".repeat(256))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 2);
}

#[test]
fn many_threads_see_their_own_work_and_no_other() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let work = |root: &Path, number: usize| {
        let dir = root.join(format!("dir{number}"));
        fs::create_dir(&dir).unwrap();
        for n in 0..60usize {
            let path = dir.join(n.to_string());
            let data = vec![(n + number) as u8; 1000 * n];
            fs::write(&path, &data).unwrap();
            assert_eq!(fs::read(&path).unwrap(), data);
            if n % 3 == 0 {
                fs::rename(&path, dir.join(format!("renamed{n}"))).unwrap();
            }
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 60);
        fs::remove_dir_all(&dir).unwrap();
    };
    thread::scope(|scope| {
        for number in 0..8 {
            let root = mounted.dir.path();
            scope.spawn(move || work(root, number));
        }
    });
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 0);
    assert!(matches!(mounted.end(), End::Unmounted));
}

#[test]
fn many_large_direct_writes_at_once_are_all_taken_whole() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let write = &|name: String| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let file = options.open(mounted.path(&name)).unwrap();
        let mut data = vec![0; (1 << 20) + 4096];
        let start = data.as_ptr().align_offset(4096);
        let data = &mut data[start..start + (1 << 20)];
        for round in 1..=40 {
            data.fill(round);
            assert_eq!(file.write_at(data, 0).unwrap(), data.len(), "{name}");
            file.read_exact_at(data, 0).unwrap();
            assert!(data.iter().all(|byte| *byte == round), "{name} {round}");
        }
    };
    thread::scope(|scope| {
        for number in 0..24 {
            scope.spawn(move || write(format!("file{number}")));
        }
    });
}
