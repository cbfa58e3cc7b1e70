//! Names, attributes, and what they lead to.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::process::Command;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, StatxFlags, XattrFlags, getxattr, linkat, listxattr,
    makedev, mknodat, renameat_with, setxattr, statx,
};
use rustix::io::Errno;

use crate::observer::number;
use crate::site::Site;

#[test]
fn extended_attributes_of_every_size_survive() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    fs::write(&path, "").unwrap();
    for size in [0, 1, 3000, 65_536] {
        let name = format!("user.size{size}");
        setxattr(&path, &*name, &vec![7; size], XattrFlags::CREATE).unwrap();
    }
    let again = setxattr(&path, "user.size1", b"", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.none", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    site.again();
    let mut value = vec![0; 65_536];
    for size in [0, 1, 3000, 65_536] {
        let name = format!("user.size{size}");
        assert_eq!(getxattr(&path, &*name, &mut value).unwrap(), size);
        assert!(value[..size].iter().all(|&byte| byte == 7));
    }
    let mut names = vec![0; 1000];
    let len = listxattr(&path, &mut names).unwrap();
    assert_eq!(names[..len].iter().filter(|&&byte| byte == 0).count(), 4);
    assert_eq!(getxattr(&path, "user.size3000", &mut value[..10]), Err(Errno::RANGE));
}

#[test]
fn renames_exchange_refuse_and_leave_whiteouts() {
    let Some(site) = Site::mounted(&[]) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    fs::write(&a, "1").unwrap();
    fs::create_dir(&b).unwrap();
    let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert!(a.is_dir() && fs::read(&b).unwrap() == b"1");
    rename(&b, &site.path("c"), RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::metadata(&b).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    assert_eq!(rename(&a, &b, both), Err(Errno::INVAL));
    fs::create_dir(a.join("sub")).unwrap();
    assert_eq!(number(fs::rename(&a, a.join("sub/loop")).unwrap_err()), Errno::INVAL);
    assert_eq!(number(fs::rename(site.path("c"), &a).unwrap_err()), Errno::ISDIR);
}

#[test]
fn a_nameless_file_gets_a_name_or_goes() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o640).custom_flags(0o20200000);
    let mut file = options.open(site.mnt()).unwrap();
    file.write_all(b"text").unwrap();
    drop(options.open(site.mnt()).unwrap());
    let shown = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    linkat(CWD, &shown, CWD, site.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    site.again();
    assert_eq!(fs::read(site.path("named")).unwrap(), b"text");
    assert_eq!(fs::metadata(site.path("named")).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(site.mnt()).unwrap().count(), 1);
}

#[test]
fn nodes_of_every_kind_survive() {
    let Some(site) = Site::mounted(&[]) else { return };
    let make = |name: &str, kind, device| {
        mknodat(CWD, site.path(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("char", FileType::CharacterDevice, makedev(5, 1));
    make("block", FileType::BlockDevice, makedev(259, 70_000));
    make("plain", FileType::RegularFile, 0);
    symlink("no/where", site.path("link")).unwrap();
    site.again();
    let found = |name: &str| fs::symlink_metadata(site.path(name)).unwrap();
    assert!(found("fifo").file_type().is_fifo() && found("socket").file_type().is_socket());
    assert_eq!(found("char").rdev(), makedev(5, 1));
    assert_eq!(found("block").rdev(), makedev(259, 70_000));
    assert!(found("block").file_type().is_block_device() && found("plain").is_file());
    assert_eq!(fs::read_link(site.path("link")).unwrap(), Path::new("no/where"));
    assert_eq!(fs::read_dir(site.mnt()).unwrap().count(), 6);
}

#[test]
fn attributes_survive_and_times_may_be_before_1970() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = site.create("file");
    file.set_len(10_000).unwrap();
    let long_ago = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    let times = fs::FileTimes::new().set_modified(long_ago).set_accessed(long_ago);
    file.set_times(times).unwrap();
    fs::set_permissions(site.path("file"), Permissions::from_mode(0o4751)).unwrap();
    let born = statx(CWD, site.path("file"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert_ne!(born.stx_mask & StatxFlags::BTIME.bits(), 0);
    drop(file);
    site.again();
    let found = fs::metadata(site.path("file")).unwrap();
    assert_eq!((found.mtime(), found.mtime_nsec(), found.atime()), (-2, 500_000_000, -2));
    assert_eq!((found.mode() & 0o7777, found.size()), (0o4751, 10_000));
    let again = statx(CWD, site.path("file"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert_eq!(again.stx_btime.tv_nsec, born.stx_btime.tv_nsec);
    assert!(born.stx_btime.tv_sec > 1_000_000_000);
}

#[test]
fn a_large_directory_is_listed_whole_and_emptied() {
    let Some(site) = Site::mounted(&[]) else { return };
    for number in 0..3000 {
        File::create(site.path(&format!("file{number}"))).unwrap();
    }
    let count = || {
        let entries = fs::read_dir(site.mnt()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().metadata().is_ok()).count()
    };
    assert_eq!(count(), 3000);
    site.again();
    assert_eq!(count(), 3000);
    for entry in fs::read_dir(site.mnt()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(count(), 0);
}

#[test]
fn a_handle_of_a_file_outlives_the_kernels_caches() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("file"), "by its handle").unwrap();
    site.unmount();
    site.mount(&["-o", "export"]);
    let script = "import ctypes,os,sys\nL=ctypes.CDLL(None,use_errno=True)\n\
                  class H(ctypes.Structure):\n _fields_=[('n',ctypes.c_uint),('t',ctypes.c_int),\
                  ('b',ctypes.c_char*128)]\n\
                  h=H(128,0)\nm=ctypes.c_int()\n\
                  assert L.name_to_handle_at(-100,(sys.argv[1]+'/file').encode(),\
                  ctypes.byref(h),ctypes.byref(m),0)==0\n\
                  open('/proc/sys/vm/drop_caches','w').write('2')\n\
                  f=L.open_by_handle_at(os.open(sys.argv[1],0),ctypes.byref(h),0)\n\
                  assert f>=0,ctypes.get_errno()\nassert os.read(f,99)==b'by its handle'\n";
    let run = Command::new("python3").args(["-c", script]).arg(site.mnt()).output().unwrap();
    assert!(run.status.success(), "{run:?}");
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    let Some(site) = Site::mounted(&[]) else { return };
    let file = site.create("file");
    file.write_all_at(&[5; 100_000], 0).unwrap();
    fs::hard_link(site.path("file"), site.path("other")).unwrap();
    fs::remove_file(site.path("file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    fs::remove_file(site.path("other")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let mut back = vec![0; 100_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back.iter().all(|&byte| byte == 5));
}
