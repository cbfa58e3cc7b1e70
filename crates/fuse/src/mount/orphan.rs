//! Connections of killed daemons that the kernel keeps open.
//!
//! A thread that waits in the kernel for a page or a lock does not notice SIGKILL. If its daemon is
//! killed meanwhile, the thread keeps the daemon's files: its pool stays locked, and its connection
//! stays open without a reader. Every call on the mount then waits for an answer, and so, often,
//! does the thread itself. Aborting the connection ends all of these waits.
//!
//! ORPHAN-O1  Only a connection of a process whose first thread has ended is aborted. A daemon that
//!            serves has its first thread until the end.
//! ORPHAN-O2  The search sends no request to the mount: such a request would wait, too.
//! ORPHAN-O3  Nor is a connection that a process serves, although an orphan names the same one: the
//!            orphan's filesystem has gone, its device stays open, and the next filesystem got the
//!            number.

use std::collections::HashSet;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::{fs, io};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno as Os;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};

use super::table::{MountEntry, mounts};
use super::which::{self, Which};

/// Aborts the connections of mounts of ours whose daemons were killed and cannot end.
pub fn abort_orphans() {
    let mut entries = mounts().unwrap_or_default();
    entries.retain(MountEntry::is_copyhold);
    if entries.is_empty() {
        return;
    }
    // Before the look at processes: a connection with the number of an orphan then is the orphan.
    let entries: Vec<_> = entries.into_iter().map(|entry| (entry.which(), entry)).collect();
    let orphans = orphans(Path::new("/proc"));
    for (which, entry) in
        entries.iter().filter(|(one, _)| orphans.contains(&connection(one.number)))
    {
        let path = entry.mount_point.display();
        match abort(which, Some(&entry.mount_point)) {
            Ok(_) => tracing::info!(%path, "aborted the connection of a daemon that was killed"),
            Err(error) => tracing::warn!(%path, %error, "the connection of a killed daemon could \
                                                         not be aborted"),
        }
    }
}

/// Breaks the connection of the filesystem, which is mounted at `place`. `false`: it has gone.
pub(super) fn abort(which: &Which, place: Option<&Path>) -> io::Result<bool> {
    let file = format!("{}/abort", connection(which.number));
    let usual = Path::new("/sys/fs/fuse/connections").join(&file);
    let control = fs::File::options().write(true).open(usual).or_else(|_| unmounted_control(&file));
    // WHICH-W1. The kernel ignores the control of a connection that has gone.
    if !which.exists() {
        return Ok(false);
    }
    match (control.and_then(|mut control| control.write_all(b"1")), place) {
        (Ok(()), _) => Ok(true),
        // The control filesystem cannot be had.
        (Err(_), Some(place)) => force(which, place),
        (Err(error), None) => Err(error),
    }
}

/// A forced umount breaks the connection, whether or not it can remove the mount.
fn force(which: &Which, place: &Path) -> io::Result<bool> {
    // Open, the place cannot become that of another filesystem (WHICH-W1), and is not removed: the
    // caller is to find it, dead.
    let (opened, number) = which::opened(place)?;
    if number != which.number || !which.exists() {
        return Ok(false);
    }
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    match rustix::mount::unmount(path, UnmountFlags::FORCE) {
        Ok(()) | Err(Os::BUSY | Os::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Where the control filesystem is not mounted, root can open it without a place.
fn unmounted_control(file: &str) -> io::Result<fs::File> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let control = openat(&tree, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(control.into())
}

/// The number by which the kernel names a connection: that of the filesystem, as the kernel has it.
fn connection((major, minor): (u32, u32)) -> u64 {
    (u64::from(major) << 20) | u64::from(minor)
}

/// The connections of processes whose first thread has ended, without those that others have.
/// `processes` is `/proc`.
fn orphans(processes: &Path) -> HashSet<u64> {
    // Processes that end meanwhile have no files any more.
    let found = fs::read_dir(processes).into_iter().flatten().flatten().map(|entry| entry.path());
    let (ended, serving): (Vec<_>, Vec<_>) = found
        .partition(|process| fs::read(process.join("stat")).is_ok_and(|stat| is_zombie(&stat)));
    // Their threads that live share their files.
    let threads = ended.iter().flat_map(|process| fs::read_dir(process.join("task")));
    let mut orphans: HashSet<u64> =
        threads.flatten().flatten().flat_map(|thread| connections(&thread.path())).collect();
    // ORPHAN-O3. Most machines have no orphan, and then no other process's files are looked at.
    if !orphans.is_empty() {
        for number in serving.iter().flat_map(|process| connections(process)) {
            orphans.remove(&number);
        }
    }
    orphans
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
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::mount::{Mount, MountOptions};
    use crate::protocol::Settings;
    use crate::spawn::ThreadPerTask;
    use crate::stub::StubFs;
    use crate::{End, Session, SessionOptions};

    fn served(place: &Path) -> Option<Session> {
        if !rustix::process::geteuid().is_root() || crate::device::Device::open().is_err() {
            println!("left out: needs root and /dev/fuse");
            return None;
        }
        let mount = Mount::new("stub".as_ref(), place, &MountOptions::default()).unwrap();
        let (fs, spawner) = (Arc::new(StubFs::new()), Arc::new(ThreadPerTask));
        let how = SessionOptions::default();
        Some(Session::start(mount, fs, spawner, &Settings::default(), how).unwrap())
    }

    /// One that has gone had the number before.
    #[test]
    fn the_next_filesystem_with_a_number_is_left_alone() {
        let place = tempfile::TempDir::new().unwrap();
        let Some(session) = served(place.path()) else { return };
        let mount = Arc::clone(session.mount());
        let of_it = *mount.which.get().unwrap();
        let gone = Which::with_identity(of_it.number, 1);
        assert!(of_it.exists() && !gone.exists());
        assert!(!abort(&gone, Some(place.path())).unwrap());
        assert!(!force(&gone, place.path()).unwrap());
        mount.ended.store(true, Ordering::Release);
        mount.abort().unwrap();
        mount.ended.store(false, Ordering::Release);
        assert!(!mount.was_aborted() && mount.is_mounted());
        rustix::fs::statfs(place.path()).unwrap();
        // The other way, which has no control filesystem, knows its own.
        assert!(force(&of_it, place.path()).unwrap());
        assert!(matches!(session.wait(), End::Aborted));
        assert!(!of_it.exists());
    }

    #[test]
    fn a_forced_umount_concerns_no_filesystem_that_took_the_place() {
        let place = tempfile::TempDir::new().unwrap();
        let Some(first) = served(place.path()) else { return };
        let of_first = *first.mount().which.get().unwrap();
        let over = tempfile::TempDir::new().unwrap();
        let Some(second) = served(over.path()) else { return };
        assert!(!force(&of_first, over.path()).unwrap());
        rustix::fs::statfs(over.path()).unwrap();
        for session in [first, second] {
            session.unmount().unwrap();
            assert!(matches!(session.wait(), End::Unmounted));
        }
    }

    /// Connection 39 is of an orphan; 40 was, and is served by a process that lives.
    #[test]
    fn a_connection_that_a_process_serves_is_no_orphans() {
        let proc = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("7/stat", "7 (copyhold) Z 1 7");
        write("7/task/8/fdinfo/3", "fuse_connection:\t39\n");
        write("7/task/8/fdinfo/4", "fuse_connection:\t40\n");
        assert_eq!(orphans(proc.path()), HashSet::from([39, 40]));
        write("9/stat", "9 (copyhold) S 1 9");
        write("9/fdinfo/3", "fuse_connection:\t40\n");
        write("9/fdinfo/4", "fuse_connection:\t41\n");
        assert_eq!(orphans(proc.path()), HashSet::from([39]));
    }

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
