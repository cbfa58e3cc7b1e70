//! Every way to change a file that is immutable or can only be appended to, on a mount and on ext4
//! beside it: both answer the same.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use copyhold_harness::Mounted;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags, copy_file_range, fallocate, getxattr, ioctl_getflags, ioctl_setflags, linkat,
    openat, removexattr, renameat_with, setxattr, utimensat,
};
use rustix::io::Errno;

use crate::observer::{as_nobody, number};
use crate::site::Site;

/// ext4 on a loop device, unmounted at the end.
fn ext4_beside(site: &Site) -> Option<Mounted> {
    let image = site.directory().join("ext4.img");
    let mnt = site.directory().join("ext4");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&mnt).unwrap();
    let made = copyhold_harness::run(Command::new("mkfs.ext4").arg("-q").arg(&image));
    let mounted = made.and_then(|_| Mounted::new(&["-o", "loop"], &image, &mnt));
    mounted.inspect_err(|error| eprintln!("skipped: no ext4 on a loop device here: {error}")).ok()
}

/// Files to try it with, opened before anything is flagged.
struct Place {
    dir: PathBuf,
    file: File,
    source: File,
}

impl Place {
    fn new(top: &Path, name: &str) -> Place {
        let dir = top.join(name);
        fs::create_dir(&dir).unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        for name in ["file", "source", "other"] {
            fs::write(dir.join(name), vec![name.len() as u8; 12_288]).unwrap();
        }
        let empty = XattrFlags::empty();
        setxattr(dir.join("file"), "user.one", b"1", empty).unwrap();
        setxattr(dir.join("file"), ACCESS, &ACL, empty).unwrap();
        let open = |name| OpenOptions::new().read(true).write(true).open(dir.join(name)).unwrap();
        let (file, source) = (open("file"), open("source"));
        Place { dir, file, source }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

const ACCESS: &str = "system.posix_acl_access";
/// user::rw-, user:7:r--, group::r--, mask::r--, other::---
const ACL: [u8; 44] = acl([(1, 6, !0), (2, 4, 7), (4, 4, !0), (16, 4, !0), (32, 0, !0)]);

const fn acl(entries: [(u8, u8, u32); 5]) -> [u8; 44] {
    let mut bytes = [0; 44];
    bytes[0] = 2;
    let mut n = 0;
    while n < 5 {
        let (tag, permissions, id) = entries[n];
        bytes[4 + n * 8] = tag;
        bytes[6 + n * 8] = permissions;
        let mut byte = 0;
        while byte < 4 {
            bytes[8 + n * 8 + byte] = (id >> (8 * byte)) as u8;
            byte += 1;
        }
        n += 1;
    }
    bytes
}

type Way = fn(&Place) -> std::io::Result<()>;

fn opened(place: &Place, flags: OFlags) -> std::io::Result<()> {
    Ok(openat(CWD, place.path("file"), flags, Mode::empty()).map(drop)?)
}

fn renamed(place: &Place, from: &str, to: &str, flags: RenameFlags) -> std::io::Result<()> {
    Ok(renameat_with(CWD, place.path(from), CWD, place.path(to), flags)?)
}

fn timed(place: &Place, nanos: i64) -> std::io::Result<()> {
    let time = Timespec { tv_sec: 7, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, place.path("file"), &times, AtFlags::empty())?)
}

fn copied(place: &Place, from: u64, to: u64, len: usize) -> std::io::Result<()> {
    let (mut from, mut to) = (from, to);
    let (source, file) = (place.source.as_fd(), place.file.as_fd());
    Ok(copy_file_range(source, Some(&mut from), file, Some(&mut to), len).map(drop)?)
}

fn allocated(place: &Place, flags: FallocateFlags, at: u64) -> std::io::Result<()> {
    Ok(fallocate(&place.file, flags | FallocateFlags::KEEP_SIZE, at, 4096)?)
}

/// What changes the file, asked of the name or of a descriptor from before it was flagged.
const OF_FILE: &[(&str, Way)] = &[
    ("open to write", |at| opened(at, OFlags::WRONLY)),
    ("open to append", |at| opened(at, OFlags::WRONLY | OFlags::APPEND)),
    ("open to truncate", |at| opened(at, OFlags::RDONLY | OFlags::TRUNC)),
    ("truncate", |at| opened(at, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC)),
    ("ftruncate", |at| at.file.set_len(5)),
    ("allocate", |at| allocated(at, FallocateFlags::empty(), 12_288)),
    ("punch", |at| allocated(at, FallocateFlags::PUNCH_HOLE, 0)),
    ("zero", |at| allocated(at, FallocateFlags::ZERO_RANGE, 0)),
    ("copy behind it", |at| copied(at, 0, 12_288, 4096)),
    ("chmod", |at| fs::set_permissions(at.path("file"), Permissions::from_mode(0o600))),
    ("fchmod", |at| at.file.set_permissions(Permissions::from_mode(0o600))),
    ("chown", |at| chown(at.path("file"), Some(7), None)),
    ("set times", |at| timed(at, 7)),
    ("touch", |at| timed(at, rustix::fs::UTIME_NOW)),
    ("setxattr", |at| Ok(setxattr(at.path("file"), "user.two", b"2", XattrFlags::empty())?)),
    ("removexattr", |at| Ok(removexattr(at.path("file"), "user.one")?)),
    ("set an ACL", |at| Ok(setxattr(at.path("file"), ACCESS, &ACL, XattrFlags::empty())?)),
    ("remove an ACL", |at| Ok(removexattr(at.path("file"), ACCESS)?)),
    ("link", |at| {
        let (from, to) = (at.path("file"), at.path("second"));
        Ok(linkat(CWD, from, CWD, to, AtFlags::empty())?)
    }),
    ("unlink", |at| fs::remove_file(at.path("file"))),
    ("rename", |at| renamed(at, "file", "new", RenameFlags::empty())),
    ("rename over it", |at| renamed(at, "other", "file", RenameFlags::empty())),
    ("exchange", |at| renamed(at, "other", "file", RenameFlags::EXCHANGE)),
];

/// What ext4 lets a descriptor from before do to a file that can only be appended to since, and
/// Copyhold does not.
const OF_IMMUTABLE_FILE: &[(&str, Way)] = &[
    ("write", |at| at.file.write_all_at(b"x", 5)),
    ("copy blocks over it", |at| copied(at, 0, 4096, 4096)),
    ("copy bytes over it", |at| copied(at, 1, 2, 3)),
];

const OF_DIRECTORY: &[(&str, Way)] = &[
    ("create", |at| File::create_new(at.path("new")).map(drop)),
    ("mkdir", |at| fs::create_dir(at.path("new"))),
    ("symlink", |at| symlink("file", at.path("new"))),
    ("mknod", |at| {
        let fifo = rustix::fs::FileType::Fifo;
        Ok(rustix::fs::mknodat(CWD, at.path("new"), fifo, Mode::RUSR, 0)?)
    }),
    ("tmpfile", |at| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        Ok(openat(CWD, &at.dir, flags, Mode::RUSR).map(drop)?)
    }),
    ("link into", |at| fs::hard_link(at.path("file"), at.path("new"))),
    ("unlink", |at| fs::remove_file(at.path("other"))),
    ("rmdir", |at| fs::remove_dir(at.path("sub"))),
    ("rename within", |at| renamed(at, "other", "new", RenameFlags::empty())),
    ("rename out of", |at| renamed(at, "other", "../out", RenameFlags::empty())),
    ("rename into", |at| {
        fs::write(at.path("../from"), "").unwrap();
        renamed(at, "../from", "new", RenameFlags::empty())
    }),
    ("whiteout", |at| renamed(at, "other", "new", RenameFlags::WHITEOUT)),
    ("chmod", |at| fs::set_permissions(&at.dir, Permissions::from_mode(0o700))),
    ("setxattr", |at| Ok(setxattr(&at.dir, "user.two", b"2", XattrFlags::empty())?)),
];

/// What a way comes to where this is flagged.
fn outcome(top: &Path, name: &str, way: Way, flags: IFlags, of_file: bool) -> Result<(), Errno> {
    let place = Place::new(top, name);
    let flagged = match of_file {
        true => place.file.try_clone().unwrap(),
        false => File::open(&place.dir).unwrap(),
    };
    let before = ioctl_getflags(&flagged).unwrap();
    ioctl_setflags(&flagged, before | flags).unwrap();
    let went = way(&place).map_err(number);
    ioctl_setflags(&flagged, before).unwrap();
    went
}

#[test]
fn immutable_and_append_only_files_answer_each_way_as_on_ext4() {
    let Some(site) = Site::mounted(&[]) else { return };
    let Some(ext4) = ext4_beside(&site) else { return };
    let both = [IFlags::empty(), IFlags::APPEND, IFlags::IMMUTABLE];
    let groups = [
        (OF_FILE, true, &both[..]),
        (OF_IMMUTABLE_FILE, true, &[IFlags::empty(), IFlags::IMMUTABLE][..]),
        (OF_DIRECTORY, false, &both[..]),
    ];
    let mut n = 0;
    let mut refused = 0;
    let mut differing = Vec::new();
    for (ways, of_file, flags) in groups {
        for (name, way) in ways {
            for flags in flags {
                n += 1;
                let [theirs, ours] = [ext4.path().to_owned(), site.mnt()]
                    .map(|top| outcome(&top, &n.to_string(), *way, *flags, of_file));
                refused += usize::from(theirs == Err(Errno::PERM));
                if ours != theirs {
                    differing.push(format!("{name} {flags:?}: {ours:?}, ext4 {theirs:?}"));
                }
            }
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(refused > 50, "{refused} of {n}");
}

#[test]
fn a_stranger_who_allocates_or_punches_takes_setuid_away_and_the_kernel_knows() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("program");
    fs::write(&path, vec![1; 65_536]).unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    for command in ["fallocate -l 128k", "fallocate -p -l 4k", "fallocate -z -l 4k"] {
        for (before, after) in [(0o6666, 0o666), (0o6676, 0o676), (0o6777, 0o777)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            let mut run = Command::new("sh");
            run.arg("-c").arg(format!("{command} program"));
            assert!(run.current_dir(site.mnt()).status().unwrap().success());
            assert_eq!(mode(), before, "{command} by root");
            assert!(as_nobody(&site, &format!("{command} program")));
            assert_eq!(mode(), after, "{command} by a stranger");
        }
    }
}

#[test]
fn acls_are_as_long_as_the_kernel_passes_them() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    fs::write(&path, "x").unwrap();
    let of = |named: u32| {
        let entry = |tag: u8, permissions: u8, id: u32| {
            [&[tag, 0, permissions, 0][..], &id.to_le_bytes()].concat()
        };
        let mut bytes = [vec![2, 0, 0, 0], entry(1, 6, !0)].concat();
        (0..named).for_each(|id| bytes.extend(entry(2, 4, id + 10)));
        bytes.extend([entry(4, 4, !0), entry(16, 4, !0), entry(32, 0, !0)].concat());
        bytes
    };
    let mut value = vec![0; 65_536];
    for named in [1, 124, 400, 507] {
        setxattr(&path, ACCESS, &of(named), XattrFlags::empty()).unwrap();
        site.again();
        let len = getxattr(&path, ACCESS, &mut value[..]).unwrap();
        assert!(value[..len] == of(named), "{named} users");
    }
    removexattr(&path, ACCESS).unwrap();
    removexattr(&path, ACCESS).expect("it is not there, which is no error");
}

#[test]
fn who_opens_with_o_noatime_leaves_the_access_time() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    File::create(&path).unwrap().write_all(&[1; 9000]).unwrap();
    let old = Timespec { tv_sec: 7, tv_nsec: 7 };
    let times = Timestamps { last_access: old, last_modification: old };
    let read = |flags| {
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        site.again();
        let file = File::from(openat(CWD, &path, OFlags::RDONLY | flags, Mode::empty()).unwrap());
        assert_eq!(std::io::read_to_string(&file).unwrap().len(), 9000);
        fs::metadata(&path).unwrap().atime()
    };
    assert_eq!(read(OFlags::NOATIME), 7);
    assert!(read(OFlags::empty()) > 7);
}
