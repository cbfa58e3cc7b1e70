//! A mounted pool through the kernel's calls: what programs expect of a Linux filesystem.
//!
//! One mount for each test, as in `mount.rs`; they need root and /dev/fuse, and say so and pass
//! where there is none, except under CI.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, RenameFlags, SeekFrom, StatxFlags,
    XattrFlags, copy_file_range, fallocate, getxattr, ioctl_getflags, ioctl_setflags, linkat,
    listxattr, makedev, mknodat, renameat_with, seek, setxattr, statvfs, statx, syncfs,
};
use rustix::io::Errno;

const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");
const NOBODY: u32 = 65534;

#[path = "site/transport.rs"]
mod transport;

struct Site {
    place: tempfile::TempDir,
    pool: PathBuf,
    loop_device: bool,
}

impl Site {
    fn possible() -> bool {
        let possible = rustix::process::geteuid().is_root()
            && File::options().read(true).write(true).open("/dev/fuse").is_ok();
        assert!(possible || std::env::var_os("CI").is_none(), "CI needs root and /dev/fuse");
        if !possible {
            eprintln!("skipped: needs root and /dev/fuse");
        }
        possible && transport::is_there()
    }

    fn mounted() -> Option<Site> {
        Site::of(&[])
    }

    /// `options`: how the pool is made.
    fn of(options: &[&str]) -> Option<Site> {
        Site::possible().then(|| {
            let place = tempfile::tempdir().unwrap();
            let pool = place.path().join("pool.img");
            Site { place, pool, loop_device: false }.begun(options)
        })
    }

    /// On a loop device, so that the kernel makes it a `fuseblk` mount.
    fn on_a_device() -> Option<Site> {
        if !Site::possible() {
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        if !made.status.success() {
            eprintln!("skipped: no loop devices here");
            return None;
        }
        let pool = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        Some(Site { place, pool, loop_device: true }.begun(&[]))
    }

    fn begun(self, options: &[&str]) -> Site {
        fs::create_dir(self.mnt()).unwrap();
        let mut create = Command::new(PROGRAM);
        create.arg("create").arg(&self.pool).args(options);
        if !self.loop_device {
            create.args(["--size", "256M"]);
        }
        let created = create.output().unwrap();
        assert!(created.status.success(), "{created:?}");
        self.mount();
        self
    }

    fn mnt(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mnt().join(name)
    }

    #[track_caller]
    fn mount(&self) {
        let mut mount = Command::new(PROGRAM);
        mount.arg("mount").arg(&self.pool).arg(self.mnt()).args(transport::options());
        let run = mount.output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    #[track_caller]
    fn unmount(&self) {
        let run = Command::new(PROGRAM).arg("umount").arg(self.mnt()).output().unwrap();
        assert!(run.status.success(), "{run:?}");
    }

    fn again(&self) {
        self.unmount();
        self.mount();
    }

    fn kind(&self) -> String {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let mnt = self.mnt();
        let mut lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.find(|line| Path::new(line[1]) == mnt).map_or("", |line| line[2]).to_owned()
    }

    fn create(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let mnt = self.mnt();
        let _ = Command::new("umount").arg("--lazy").arg(&mnt).stderr(Stdio::null()).status();
        if self.loop_device {
            let _ = Command::new("losetup").arg("--detach").arg(&self.pool).status();
        }
    }
}

/// What a shell of an ordinary user answers.
fn as_nobody(site: &Site, script: &str) -> bool {
    let mut shell = Command::new("setpriv");
    shell.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
    fs::set_permissions(site.place.path(), Permissions::from_mode(0o755)).unwrap();
    shell.current_dir(site.mnt()).stderr(Stdio::null()).status().unwrap().success()
}

fn number(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap())
}

#[test]
fn direct_and_buffered_data_agree() {
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
fn attributes_survive_and_times_may_be_before_1970() {
    let Some(site) = Site::mounted() else { return };
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
fn a_change_of_owner_and_a_write_by_a_stranger_take_setuid_away() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("program");
    fs::write(&path, "x").unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!(mode(), 0o755);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    assert!(as_nobody(&site, "echo longer > program"));
    assert_eq!(mode(), 0o777);
    for write in [
        "echo more >> program",
        "dd if=/dev/zero bs=4k count=1 oflag=direct conv=notrunc of=program",
    ] {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert!(as_nobody(&site, write));
        assert_eq!(mode(), 0o777, "behind `{write}`");
    }
}

#[test]
fn a_trim_takes_all_that_is_free_and_no_nonsense() {
    let Some(site) = Site::on_a_device() else { return };
    let trim = |arguments: &[&str]| {
        let run = Command::new("fstrim").args(["-v"]).args(arguments).arg(site.mnt()).output();
        let run = run.unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        let bytes = text.split(['(', ' ']).filter_map(|word| word.parse::<u64>().ok()).next_back();
        run.status.success().then(|| bytes.expect("a number of bytes"))
    };
    assert_eq!(trim(&["-o", "1G"]), None);
    assert_eq!(trim(&["-l", "100"]), None);
    let some = trim(&["-o", "64M", "-l", "32M"]).unwrap();
    assert!((1..=32 << 20).contains(&some), "{some}");
    let rest = trim(&[]).unwrap();
    assert!((128 << 20..256 << 20).contains(&rest), "{rest}");
    assert_eq!(trim(&[]), Some(0));
}

#[test]
fn umask_and_the_group_of_a_setgid_directory_are_applied() {
    let Some(site) = Site::mounted() else { return };
    let dir = site.path("dir");
    fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(77)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o2777)).unwrap();
    assert!(as_nobody(&site, "umask 027; mkdir dir/sub; touch dir/file"));
    let sub = fs::metadata(dir.join("sub")).unwrap();
    assert_eq!((sub.mode() & 0o7777, sub.gid(), sub.uid()), (0o2750, 77, NOBODY));
    let file = fs::metadata(dir.join("file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.gid()), (0o640, 77));
}

#[test]
fn permissions_and_the_sticky_bit_hold_against_others() {
    let Some(site) = Site::mounted() else { return };
    fs::write(site.path("secret"), "mine").unwrap();
    fs::set_permissions(site.path("secret"), Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&site, "cat secret"));
    assert!(!as_nobody(&site, "touch new"));
    assert!(!as_nobody(&site, "chown 65534 secret"));
    fs::create_dir(site.path("tmp")).unwrap();
    fs::set_permissions(site.path("tmp"), Permissions::from_mode(0o1777)).unwrap();
    fs::write(site.path("tmp/mine"), "").unwrap();
    assert!(as_nobody(&site, "touch tmp/his && rm tmp/his"));
    assert!(!as_nobody(&site, "rm -f tmp/mine"));
}

/// An ACL as the kernel has it.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn acls_grant_deny_are_inherited_and_follow_chmod() {
    const ANY: u32 = u32::MAX;
    let Some(site) = Site::mounted() else { return };
    let path = site.path("file");
    fs::write(&path, "secret").unwrap();
    let granting = acl(&[(1, 6, ANY), (2, 4, NOBODY), (4, 0, ANY), (0x10, 4, ANY), (0x20, 0, ANY)]);
    setxattr(&path, "system.posix_acl_access", &granting, XattrFlags::empty()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "the mask is the group's");
    assert!(as_nobody(&site, "cat file > /dev/null"));
    assert!(!as_nobody(&site, "echo > file"));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&site, "cat file > /dev/null"), "chmod sets the mask");

    fs::create_dir(site.path("dir")).unwrap();
    let inherited =
        acl(&[(1, 7, ANY), (2, 7, NOBODY), (4, 5, ANY), (0x10, 7, ANY), (0x20, 0, ANY)]);
    let name = "system.posix_acl_default";
    setxattr(site.path("dir"), name, &inherited, XattrFlags::empty()).unwrap();
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o666).open(site.path("dir/file"));
    assert_eq!(file.unwrap().metadata().unwrap().mode() & 0o777, 0o660, "no umask here");
    fs::create_dir(site.path("dir/sub")).unwrap();
    site.again();
    let mut value = [0; 100];
    let len = getxattr(site.path("dir/sub"), name, &mut value).unwrap();
    assert_eq!(value[..len], inherited);
}

#[test]
fn extended_attributes_of_every_size_survive() {
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    let Some(site) = Site::mounted() else { return };
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

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
fn immutable_and_append_only_files_are_guarded() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("file");
    fs::write(&path, "abc").unwrap();
    let file = File::open(&path).unwrap();
    let denied = |result: std::io::Result<()>| number(result.unwrap_err()) == Errno::PERM;
    ioctl_setflags(&file, IFlags::APPEND).unwrap();
    assert!(denied(OpenOptions::new().write(true).open(&path).map(drop)));
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"d").unwrap();
    assert!(denied(fs::remove_file(&path)));
    ioctl_setflags(&file, IFlags::IMMUTABLE | IFlags::NOATIME).unwrap();
    drop(file);
    site.again();
    let file = File::open(&path).unwrap();
    assert_eq!(ioctl_getflags(&file).unwrap(), IFlags::IMMUTABLE | IFlags::NOATIME);
    assert!(denied(OpenOptions::new().append(true).open(&path).map(drop)));
    assert!(denied(fs::rename(&path, site.path("other"))));
    assert!(denied(fs::hard_link(&path, site.path("other"))));
    assert!(denied(fs::set_permissions(&path, Permissions::from_mode(0o600))));
    assert!(!as_nobody(&site, "chattr -i file"));
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"abcd");
    fs::remove_file(&path).unwrap();
}

#[test]
fn locks_exclude_other_processes_until_they_are_let_go() {
    let Some(site) = Site::mounted() else { return };
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
    let Some(site) = Site::mounted() else { return };
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
fn a_large_directory_is_listed_whole_and_emptied() {
    let Some(site) = Site::mounted() else { return };
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
fn statfs_tells_the_pools_space() {
    let Some(site) = Site::mounted() else { return };
    let found = statvfs(site.mnt()).unwrap();
    let bytes = |blocks: u64| blocks * found.f_frsize;
    assert!(bytes(found.f_blocks) > 200 << 20 && bytes(found.f_blocks) <= 256 << 20);
    assert!(found.f_bavail <= found.f_bfree && found.f_bfree <= found.f_blocks);
    fs::write(site.path("file"), vec![1; 32 << 20]).unwrap();
    File::open(site.path("file")).unwrap().sync_all().unwrap();
    let after = statvfs(site.mnt()).unwrap();
    assert!(bytes(found.f_bavail) - bytes(after.f_bavail) >= 32 << 20);
    assert_eq!(after.f_namemax, 255);
}

fn tool(name: &str, arguments: &[&str], at: &Path) -> std::process::Output {
    Command::new(name).args(arguments).arg(at).output().unwrap()
}

#[test]
fn a_change_of_flags_shows_in_ctime_at_once() {
    let Some(site) = Site::mounted() else { return };
    fs::write(site.path("file"), b"1").unwrap();
    let changed = || {
        let found = fs::metadata(site.path("file")).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let before = changed();
    assert!(tool("chattr", &["+d"], &site.path("file")).status.success());
    assert!(changed() > before, "{before:?}");
}

#[test]
fn a_preallocated_pool_stays_so() {
    let Some(site) = Site::of(&["--preallocate", "written"]) else { return };
    let allocated = || fs::metadata(&site.pool).unwrap().blocks() * 512;
    let size = fs::metadata(&site.pool).unwrap().len();
    assert!(allocated() >= size);
    fs::write(site.path("large"), vec![1; 32 << 20]).unwrap();
    fs::remove_file(site.path("large")).unwrap();
    for _ in 0..3 {
        tool("fstrim", &["-v"], &site.mnt());
    }
    site.unmount();
    assert!(allocated() >= size, "{} of {size}", allocated());
}

#[test]
fn trimming_gives_space_back_and_is_roots() {
    let Some(site) = Site::mounted() else { return };
    let run = tool("fstrim", &["-v"], &site.mnt());
    assert!(run.status.success(), "{run:?}");
    assert!(String::from_utf8_lossy(&run.stdout).contains("trimmed"), "{run:?}");
    assert!(!as_nobody(&site, "fstrim ."));
}

/// FS_IOC_SHUTDOWN from a program; no other sends it here.
fn shut_down(site: &Site) -> bool {
    let script = "import fcntl,os,struct,sys\n\
                  fcntl.ioctl(os.open(sys.argv[1],0),0x8004587d,struct.pack('I',2))\n";
    Command::new("python3").args(["-c", script]).arg(site.mnt()).status().unwrap().success()
}

#[test]
fn going_down_stops_everything_and_keeps_what_was_synced() {
    let Some(site) = Site::mounted() else { return };
    let synced = site.create("synced");
    synced.write_all_at(b"kept", 0).unwrap();
    synced.sync_all().unwrap();
    fs::write(site.path("unsynced"), "old, new or absent").unwrap();
    assert!(shut_down(&site));
    assert_eq!(number(File::create(site.path("new")).unwrap_err()), Errno::IO);
    assert_eq!(number(synced.sync_all().map(drop).and(synced.set_len(0)).unwrap_err()), Errno::IO);
    drop(synced);
    site.again();
    assert_eq!(fs::read(site.path("synced")).unwrap(), b"kept");
    File::create(site.path("new")).unwrap();
}

#[test]
fn on_a_block_device_sync_reaches_the_pool_and_umount_waits_for_it() {
    let Some(site) = Site::on_a_device() else { return };
    assert_eq!(site.kind(), "fuseblk.copyhold");
    fs::write(site.path("file"), "synced").unwrap();
    syncfs(File::open(site.mnt()).unwrap()).unwrap();
    assert!(shut_down(&site), "as if the power had gone: nothing is written any more");
    let plain = tool("umount", &[], &site.mnt());
    assert!(plain.status.success(), "{plain:?}");
    site.mount();
    assert_eq!(fs::read(site.path("file")).unwrap(), b"synced");
    fs::write(site.path("file"), "closed").unwrap();
    let plain = tool("umount", &[], &site.mnt());
    assert!(plain.status.success(), "{plain:?}");
    // Not even copyhold's own waiting is needed.
    let mut mount = Command::new(PROGRAM);
    mount.arg("mount").arg(&site.pool).arg(site.mnt()).args(transport::options());
    let mounted = mount.output();
    assert!(mounted.unwrap().status.success());
    assert_eq!(fs::read(site.path("file")).unwrap(), b"closed");
    let twice = Command::new(PROGRAM).arg("mount").arg(&site.pool).arg(site.place.path()).output();
    assert!(!twice.unwrap().status.success(), "a mounted device is in use");
    site.unmount();
}

#[test]
fn a_pool_may_be_smaller_than_its_device() {
    let Some(site) = Site::on_a_device() else { return };
    site.unmount();
    let mut create = Command::new(PROGRAM);
    create.args(["create", "--force", "--size", "32M"]).arg(&site.pool);
    assert!(create.status().unwrap().success());
    site.mount();
    let found = rustix::fs::statvfs(site.mnt()).unwrap();
    let bytes = found.f_blocks * found.f_frsize;
    assert!((20 << 20..32 << 20).contains(&bytes), "{bytes}");
    site.unmount();
    let checked = Command::new(PROGRAM).arg("check").arg(&site.pool).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    site.mount();
}

#[test]
fn a_handle_of_a_file_outlives_the_kernels_caches() {
    let Some(site) = Site::mounted() else { return };
    fs::write(site.path("file"), "by its handle").unwrap();
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
fn what_is_too_large_is_refused() {
    let Some(site) = Site::mounted() else { return };
    let file = site.create("file");
    let error = file.write_all_at(b"x", i64::MAX as u64 - 10).unwrap_err();
    assert!(matches!(number(error), Errno::FBIG | Errno::INVAL));
    let error = symlink("x".repeat(5000), site.path("link")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidFilename);
}
