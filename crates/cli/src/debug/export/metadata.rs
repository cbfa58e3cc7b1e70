//! Owner, attributes, mode and times of a file that has been restored, in this order: a change of
//! the owner takes setuid and capabilities away, an ordinary user sets attributes only where the
//! mode lets him write, and all other changes come before the times.
//!
//! Owners are for root; for others they are the restoring user's, which is no loss to report.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use copyhold_rescue::{Attribute, Inode, Time};
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown,
    fsetxattr, futimens, lsetxattr, utimensat,
};
use rustix::io::Errno;

use super::sink::Problem;

/// Problems of one file.
pub(super) type Problems = Vec<Problem>;

fn note(problems: &mut Problems, what: &str, done: Result<(), Errno>) {
    problems.extend(done.err().map(|error| Problem::NotRestored(format!("{what}: {error}"))));
}

fn owner(inode: &Inode) -> Option<(Option<Uid>, Option<Gid>)> {
    let uid = (inode.uid != u32::MAX).then(|| Uid::from_raw(inode.uid));
    let gid = (inode.gid != u32::MAX).then(|| Gid::from_raw(inode.gid));
    rustix::process::geteuid().is_root().then_some((uid, gid))
}

fn mode(inode: &Inode) -> Mode {
    Mode::from_raw_mode(inode.mode.into())
}

fn times(inode: &Inode) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
    Timestamps { last_access: time(inode.accessed), last_modification: time(inode.modified) }
}

/// Of a file or directory that is open.
pub(super) fn of_open(
    file: BorrowedFd<'_>,
    inode: &Inode,
    attributes: &[Attribute],
    problems: &mut Problems,
) {
    if let Some((uid, gid)) = owner(inode) {
        note(problems, "owner", fchown(file, uid, gid));
    }
    for Attribute { name, value } in attributes {
        let set = fsetxattr(file, OsStr::from_bytes(name), value, XattrFlags::empty());
        let what = format!("attribute {}", String::from_utf8_lossy(name));
        note(problems, &what, set);
    }
    note(problems, "mode", fchmod(file, mode(inode)));
    note(problems, "times", futimens(file, &times(inode)));
}

/// Of a file that cannot be opened: a symlink, which has no mode, or a special file.
pub(super) fn of_name(
    parent: &File,
    name: &OsStr,
    inode: &Inode,
    attributes: &[Attribute],
    is_symlink: bool,
    problems: &mut Problems,
) {
    let itself = AtFlags::SYMLINK_NOFOLLOW;
    let fd = parent.as_fd();
    if let Some((uid, gid)) = owner(inode) {
        note(problems, "owner", chownat(fd, name, uid, gid, itself));
    }
    // There is no call that sets an attribute by a directory and a name.
    let path = [format!("/proc/self/fd/{}/", fd.as_raw_fd()).as_bytes(), name.as_bytes()].concat();
    for Attribute { name, value } in attributes {
        let (path, attribute) = (OsStr::from_bytes(&path), OsStr::from_bytes(name));
        let what = format!("attribute {}", String::from_utf8_lossy(name));
        note(problems, &what, lsetxattr(path, attribute, value, XattrFlags::empty()));
    }
    if !is_symlink {
        note(problems, "mode", chmodat(fd, name, mode(inode), AtFlags::empty()));
    }
    note(problems, "times", utimensat(fd, name, &times(inode), itself));
}
