//! Connections of killed daemons that the kernel keeps open.
//!
//! A thread that waits in the kernel for a page or a lock does not notice SIGKILL. If its daemon is
//! killed meanwhile, the thread keeps the daemon's files: its pool stays locked, and its connection
//! stays open without a reader. Every call on the mount then waits for an answer, and so, often,
//! does the thread itself. Aborting the connection ends all of these waits.
//!
//! O1  Only a connection of a process whose first thread has ended is aborted. A daemon that serves
//!     has its first thread until the end.
//! O2  Nothing is asked of the mount: that would wait, too.

use std::collections::HashSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::{fs, io};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno as Os;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};

use super::{MountEntry, mounts};

/// Aborts the connections of mounts of ours whose daemons were killed and cannot end.
pub fn abort_orphans() {
    let mut entries = mounts().unwrap_or_default();
    entries.retain(MountEntry::is_copyhold);
    if entries.is_empty() {
        return;
    }
    let orphans = orphans();
    for entry in entries.iter().filter(|entry| orphans.contains(&connection(entry.device))) {
        let path = entry.mount_point.display();
        // In use, it is not removed by a forced umount: the caller is to find it, dead.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _in_use = rustix::fs::open(&entry.mount_point, flags, Mode::empty());
        match abort(entry.device, Some(&entry.mount_point)) {
            Ok(()) => tracing::info!(%path, "aborted the connection of a daemon that was killed"),
            Err(error) => tracing::warn!(%path, %error, "a killed daemon cannot be made to end"),
        }
    }
}

/// Breaks the connection of the filesystem with this number, which is mounted at `place`.
pub(super) fn abort(number: (u32, u32), place: Option<&Path>) -> io::Result<()> {
    let file = format!("{}/abort", connection(number));
    let usual = Path::new("/sys/fs/fuse/connections").join(&file);
    let control = fs::write(usual, "1").or_else(|_| write_unmounted_control(&file));
    let Some(place) = place.filter(|_| control.is_err()) else { return control };
    // The control filesystem cannot be had. A forced umount breaks the connection, whether or
    // not it can remove the mount, or finds that somebody else just has.
    let force = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(place, force) {
        Ok(()) | Err(Os::BUSY | Os::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Where the control filesystem is not mounted, root can open it without a place.
fn write_unmounted_control(file: &str) -> io::Result<()> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let control = openat(&tree, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    fs::File::from(control).write_all(b"1")
}

/// The number by which the kernel names a connection: that of the filesystem, as the kernel has it.
fn connection((major, minor): (u32, u32)) -> u64 {
    (u64::from(major) << 20) | u64::from(minor)
}

/// The connections of processes whose first thread has ended.
fn orphans() -> HashSet<u64> {
    let mut found = HashSet::new();
    // Processes that end meanwhile have no files any more.
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        if fs::read(path.join("stat")).is_ok_and(|stat| is_zombie(&stat)) {
            // Its threads that live share their files.
            let threads = fs::read_dir(path.join("task")).into_iter().flatten().flatten();
            threads.for_each(|thread| found.extend(connections(&thread.path())));
        }
    }
    found
}

/// The state follows the name, which is in parentheses and may hold some.
fn is_zombie(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|&byte| byte == b')');
    name_end.is_some_and(|at| stat.get(at + 1..).is_some_and(|rest| rest.starts_with(b" Z")))
}

fn connections(thread: &Path) -> Vec<u64> {
    let files = fs::read_dir(thread.join("fdinfo")).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.filter_map(|text| connection_in(&text)).collect()
}

fn connection_in(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_and_a_first_thread_that_ended_are_known_by_their_lines() {
        let fdinfo = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t39\n";
        assert_eq!(connection_in(fdinfo), Some(39));
        assert_eq!(connection_in("pos:\t0\nfuse_conn:\t39\n"), None);
        assert!(is_zombie(b"17 (a) S (b) Z 1 17"));
        assert!(!is_zombie(b"17 (a) Z (b) S 1 17") && !is_zombie(b"17"));
        assert_eq!((connection((0, 39)), connection((7, 1))), (39, 7 * 1_048_576 + 1));
    }
}
