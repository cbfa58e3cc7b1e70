//! Making and removing mounts.
//!
//! Three ways to the same end, an open `/dev/fuse` connected to a mount point: root calls mount(2);
//! root on a block device makes it a `fuseblk` mount, so that sync(2) and the end of umount(2)
//! reach us; all other users ask fusermount3. The source is shown exactly as it was given, the
//! type is `fuse.copyhold` or `fuseblk.copyhold`.
//!
//! A filesystem may be mounted in more places (`tree.rs`); it ends with the last of them.
//!
//! A mount of a daemon that was killed stays as a dead mount point; making a new one at the same
//! place removes it first. Where the daemon cannot end, its connection is aborted (`orphan.rs`).

mod dead;
mod error;
mod fusermount;
mod options;
mod orphan;
mod table;
mod tree;
mod which;

use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use crate::device::Device;

use dead::is_dead;
use error::refused;
use which::Which;

pub use dead::{means_dead, remove_if_dead};
pub use error::MountError;
pub use options::{MountOptions, OptionError};
pub use orphan::abort_orphans;
pub use table::{MountEntry, mounted_at, mounts, unescape};
pub use tree::{DetachedMount, connection_of};

/// How a mount was made, and so how it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// `fuse`, by mount(2).
    Plain,
    /// `fuseblk`: sync(2) arrives, and umount(2) waits for us.
    Block,
    /// `fuse`, by fusermount3.
    Helper,
}

/// A mount of ours, connected to a device. Dropping it does not unmount.
#[derive(Debug)]
pub struct Mount {
    mount_point: PathBuf,
    kind: MountKind,
    /// The mounted filesystem, to know it again.
    which: OnceLock<Which>,
    fd: OwnedFd,
    /// With `allow_root`: the only user beside root.
    only: Option<u32>,
    /// No process serves it any more.
    ended: AtomicBool,
    /// We broke the connection. The kernel does not always say so itself: after a forced umount
    /// that took the mount down, readers hear only that it is gone.
    aborted: AtomicBool,
}

impl Mount {
    /// Mounts `source` on `mount_point`. Nothing answers there until a session serves it.
    pub fn new(
        source: &Path,
        mount_point: &Path,
        options: &MountOptions,
    ) -> Result<Mount, MountError> {
        let mount_point = checked_mount_point(mount_point)?;
        let fsname = options.fsname.clone().unwrap_or_else(|| source.display().to_string());
        let uid = rustix::process::geteuid();
        let (fd, kind) = if uid.is_root() {
            as_root(source, &fsname, |source, block| {
                mount_kernel(source, &mount_point, options, block)
            })?
        } else {
            (fusermount::mount(&mount_point, &fsname, options)?, MountKind::Helper)
        };
        let mount = Mount::of(mount_point, kind, fd, options);
        match mounted_at(&mount.mount_point) {
            Ok(Some(entry)) => mount.which.set(entry.which()).expect("set once"),
            // Gone again; the session finds that out.
            Ok(None) => {}
            Err(source) => {
                // Without its number it could not be found later.
                take_out(std::slice::from_ref(&mount.mount_point));
                return Err(MountError::Io { what: "reading the table of mounts", source });
            }
        }
        Ok(mount)
    }

    /// As [`Mount::new`], but at no place: when the session serves it, [`Mount::attach`] shows the
    /// wanted part of the tree at `mount_point`. Root only.
    pub fn unattached(
        source: &Path,
        mount_point: &Path,
        options: &MountOptions,
    ) -> Result<(Mount, DetachedMount), MountError> {
        let mount_point = checked_mount_point(mount_point)?;
        if !rustix::process::geteuid().is_root() {
            let reason = "only root may mount a part of a filesystem".to_owned();
            return Err(MountError::Permission { path: mount_point, reason });
        }
        let fsname = options.fsname.clone().unwrap_or_else(|| source.display().to_string());
        let make = |source: &str, block| tree_of(source, &mount_point, options, block);
        let ((fd, tree), kind) = as_root(source, &fsname, make)?;
        let mount = Mount::of(mount_point, kind, fd, options);
        let number = tree.number().map_err(|source| MountError::Io { what: "a mount", source })?;
        let _first = mount.which.set(Which::now(number, kind == MountKind::Block));
        Ok((mount, tree))
    }

    fn of(mount_point: PathBuf, kind: MountKind, fd: OwnedFd, options: &MountOptions) -> Mount {
        let only = options.allow_root.then(|| rustix::process::geteuid().as_raw());
        let (ended, aborted) = (AtomicBool::new(false), AtomicBool::new(false));
        Mount { mount_point, kind, which: OnceLock::new(), fd, only, ended, aborted }
    }

    /// Shows `part` of `tree` at the mount point.
    pub fn attach(&self, tree: DetachedMount, part: OwnedFd) -> Result<(), MountError> {
        tree.attach(Some(part), &self.mount_point)
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    pub fn kind(&self) -> MountKind {
        self.kind
    }

    /// Number of the mounted filesystem, as tables of mounts have it.
    pub fn number(&self) -> Option<(u32, u32)> {
        self.which.get().map(|which| which.number)
    }

    pub(crate) fn device(&self) -> io::Result<Device> {
        Ok(Device::new(self.fd.try_clone()?))
    }

    pub(crate) fn only_owner(&self) -> Option<u32> {
        self.only
    }

    /// Whether the filesystem is still mounted here or elsewhere; others may have unmounted it.
    pub fn is_mounted(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && !self.places().is_empty()
    }

    /// Whether the filesystem is still in the tree, if only below another mount, where it cannot be
    /// reached.
    pub fn is_in_tree(&self) -> bool {
        !self.all_places().is_empty()
    }

    /// Where the filesystem is mounted and no other mount is on top, newest first.
    fn places(&self) -> Vec<PathBuf> {
        let mut seen = HashSet::new();
        let mut all = self.entries();
        all.retain(|(_, entry)| seen.insert(entry.mount_point.clone()));
        let ours = all.into_iter().filter(|(is_ours, _)| *is_ours);
        ours.map(|(_, entry)| entry.mount_point).collect()
    }

    /// Every place where the filesystem is mounted, newest first, whether or not it can be reached.
    pub(crate) fn all_places(&self) -> Vec<PathBuf> {
        if self.ended.load(Ordering::Acquire) {
            return Vec::new();
        }
        let ours = self.entries().into_iter().filter(|(is_ours, _)| *is_ours);
        ours.map(|(_, entry)| entry.mount_point).collect()
    }

    /// All mounts, newest first, each with whether it is one of this filesystem.
    fn entries(&self) -> Vec<(bool, MountEntry)> {
        let all = mounts().unwrap_or_default();
        // After the look at the table (WHICH-W1).
        let which = self.which.get().filter(|which| which.exists());
        let is_ours = |entry: &MountEntry| which.is_some_and(|which| entry.shows(which));
        let judged = |entry| (is_ours(&entry), entry);
        all.into_iter().rev().map(judged).collect()
    }

    /// No process serves this mount any more. Where it is still in the tree, dead, it is taken
    /// out; `true` then.
    pub(crate) fn end(&self) -> bool {
        if self.ended.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut was_left = false;
        loop {
            let mut left = self.places();
            left.retain(|place| is_dead(place));
            was_left |= !left.is_empty();
            // Below one of its mounts there may be another.
            if !take_out(&left) {
                return was_left;
            }
        }
    }

    /// Unmounts every place that can be reached. An error at one place does not keep the others;
    /// `Busy` is reported before other errors. Succeeds if nothing is mounted.
    pub fn unmount(&self) -> Result<(), MountError> {
        loop {
            let (mut is_removed, mut failed) = (false, None);
            for place in self.served_places() {
                match unmount(&place, false) {
                    Ok(()) => is_removed = true,
                    // With one of several, which propagated.
                    Err(MountError::NotMounted { .. }) => {}
                    Err(busy @ MountError::Busy { .. }) => failed = Some(busy),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            // Below one of its mounts there may be another.
            if !is_removed {
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// Takes the mount out of the tree, busy or not; it ends when its last user leaves.
    pub fn detach(&self) {
        while take_out(&self.served_places()) {}
    }

    fn served_places(&self) -> Vec<PathBuf> {
        if self.ended.load(Ordering::Acquire) { Vec::new() } else { self.places() }
    }

    /// Breaks the connection: every call on the mount fails from now on, also waiting ones. Root
    /// may do that, and the user who mounted if `/sys/fs/fuse/connections` exists. Succeeds if
    /// there is no connection any more.
    pub fn abort(&self) -> io::Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        // Before it is broken: waiters for the end ask right after.
        let before = self.aborted.swap(true, Ordering::AcqRel);
        let broken = self.break_connection();
        if !matches!(broken, Ok(true)) {
            self.aborted.store(before, Ordering::Release);
        }
        broken.map(drop)
    }

    pub(crate) fn was_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// `false`: there is none.
    fn break_connection(&self) -> io::Result<bool> {
        let which = self.which.get().ok_or(io::ErrorKind::NotFound)?;
        orphan::abort(which, self.places().last().map(PathBuf::as_path))
    }

    /// Sets the read-ahead of the mount (root only). The kernel starts with 128 KiB.
    pub fn set_read_ahead(&self, kib: u32) -> io::Result<()> {
        let which = self.which.get().ok_or(io::ErrorKind::NotFound)?;
        fs::write(which.shown().join("read_ahead_kb"), kib.to_string())
    }
}

/// Whether any was there to be taken out.
fn take_out(places: &[PathBuf]) -> bool {
    let mut is_removed = false;
    for place in places {
        match unmount(place, true) {
            Ok(()) => is_removed = true,
            Err(MountError::NotMounted { .. }) => {}
            Err(error) => tracing::warn!(%error, "the mount point could not be removed"),
        }
    }
    is_removed
}

/// How long a busy mount is tried again. Many users are gone in a moment: a program that just
/// ended, one that looks at every new file, a child that holds all files of its parent until it
/// runs its own program.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

/// Unmounts the topmost mount at `mount_point`, as root through umount2(2), else by fusermount3.
/// Retries for a second while it is busy. `lazy`: unmounts also a busy mount, which disappears from
/// the tree and ends with its last user.
pub fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match unmount_once(mount_point, lazy) {
            Err(MountError::Busy { .. }) if begin.elapsed() < BUSY_PATIENCE => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

fn unmount_once(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    if !rustix::process::geteuid().is_root() {
        return fusermount::unmount(mount_point, lazy);
    }
    let detach = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let path = mount_point.to_owned();
    rustix::mount::unmount(mount_point, detach | UnmountFlags::NOFOLLOW).map_err(
        |error| match error {
            Os::BUSY => MountError::Busy { path },
            Os::INVAL => MountError::NotMounted { path },
            Os::NOENT => MountError::Missing { path },
            Os::PERM => MountError::Permission { path, reason: "only root may unmount".into() },
            error => MountError::Refused { path, source: error.into() },
        },
    )
}

/// Changes the flags of the mount at `mount_point`, such as `ro` (root only). The daemon behind it
/// is not notified.
pub fn remount(mount_point: &Path, options: &MountOptions) -> Result<(), MountError> {
    let path = mount_point.to_owned();
    rustix::mount::mount_remount(mount_point, options.flags, c"").map_err(|error| match error {
        Os::INVAL => MountError::NotMounted { path },
        Os::NOENT => MountError::Missing { path },
        Os::BUSY => MountError::Busy { path },
        Os::PERM => MountError::Permission { path, reason: "only root may remount".into() },
        error => MountError::Refused { path, source: error.into() },
    })
}

/// How often a dead mount may change while it is removed.
const DEAD_MAX: usize = 8;

/// The mount point without links; dead mounts of ours that cover it are removed.
pub fn checked_mount_point(given: &Path) -> Result<PathBuf, MountError> {
    let path = absolute(given)?;
    let mut tries = 0..DEAD_MAX;
    while let Some(entry) = ours_on_top(&path) {
        match remove_if_dead(&entry) {
            Ok(true) => {
                tracing::info!(path = %path.display(), "removed the mount of a daemon that is gone");
            }
            Ok(false) => {
                let source_name = entry.source.to_string_lossy().into_owned();
                return Err(MountError::AlreadyMounted { path, source_name });
            }
            // Another process has changed it: judged once more. Or it cannot be removed.
            Err(MountError::NotMounted { .. }) => {
                if tries.next().is_none() {
                    break;
                }
            }
            Err(error) => return Err(error),
        }
    }
    match fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) => Err(MountError::NotADirectory { path }),
        Err(error) => Err(not_usable(path, error)),
    }
}

/// The mount at `path` if it is one of ours. The table may list it before one that it covers.
fn ours_on_top(path: &Path) -> Option<MountEntry> {
    let (_, number) = which::opened(path).ok()?;
    let is_top = |entry: &MountEntry| entry.mount_point == path && entry.device == number;
    mounts().ok()?.into_iter().rfind(|entry| is_top(entry) && entry.is_copyhold())
}

/// Links are followed in the parents only, since the place itself may be a dead mount.
fn absolute(given: &Path) -> Result<PathBuf, MountError> {
    match given.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if means_dead(&error) => {
            let (parent, name) = match (given.parent(), given.file_name()) {
                (Some(parent), Some(name)) => (parent, name),
                _ => return Err(not_usable(given.to_owned(), error)),
            };
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let parent = parent.canonicalize();
            Ok(parent.map_err(|error| not_usable(given.to_owned(), error))?.join(name))
        }
        Err(error) => Err(not_usable(given.to_owned(), error)),
    }
}

fn not_usable(path: PathBuf, error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing { path },
        io::ErrorKind::NotADirectory => MountError::NotADirectory { path },
        io::ErrorKind::PermissionDenied => {
            MountError::Permission { path, reason: "the directory cannot be reached".into() }
        }
        _ => MountError::Refused { path, source: error },
    }
}

/// Makes a mount of a block device with `make`, as `fuseblk`, or one of anything else.
fn as_root<T>(
    source: &Path,
    fsname: &str,
    make: impl Fn(&str, bool) -> Result<T, MountError>,
) -> Result<(T, MountKind), MountError> {
    let is_block = fs::metadata(source).is_ok_and(|found| found.file_type().is_block_device());
    if is_block {
        match make(&source.to_string_lossy(), true) {
            // The kernel wants the device for itself, or has no `fuseblk`.
            Err(MountError::SourceBusy { .. } | MountError::NoDevice) => tracing::warn!(
                source = %source.display(),
                "the kernel does not let the device be mounted as fuseblk; `sync` will not wait \
                 for this mount"
            ),
            result => return Ok((result?, MountKind::Block)),
        }
    }
    Ok((make(fsname, false)?, MountKind::Plain))
}

/// A new connection, and the options by which the kernel mounts it.
fn connection(options: &MountOptions, block: bool) -> Result<(OwnedFd, Vec<String>), MountError> {
    let device = Device::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        Some(libc::EACCES | libc::EPERM) => MountError::DeviceForbidden { user: "root" },
        _ => MountError::Io { what: "opening /dev/fuse", source: error },
    })?;
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut kernel_options = options.for_kernel(device.as_raw_fd(), libc::S_IFDIR, user.0, user.1);
    if block {
        kernel_options.push(format!("blksize={}", options.block_size));
    }
    Ok((device.into(), kernel_options))
}

fn mount_kernel(
    source: &str,
    mount_point: &Path,
    options: &MountOptions,
    block: bool,
) -> Result<OwnedFd, MountError> {
    let (device, kernel_options) = connection(options, block)?;
    let invalid = |_| MountError::Io { what: "a name with a NUL byte", source: Os::INVAL.into() };
    let data = CString::new(kernel_options.join(",")).map_err(invalid)?;
    let name = CString::new(source).map_err(invalid)?;
    let kind = if block { c"fuseblk.copyhold" } else { c"fuse.copyhold" };
    rustix::mount::mount(&name, mount_point, kind, options.flags, data.as_c_str())
        .map_err(|error| refused(error, mount_point, block.then_some(source)))?;
    Ok(device)
}

fn tree_of(
    source: &str,
    mount_point: &Path,
    options: &MountOptions,
    block: bool,
) -> Result<(OwnedFd, DetachedMount), MountError> {
    let (device, mut kernel_options) = connection(options, block)?;
    kernel_options.extend(options.filesystem_flags().map(str::to_owned));
    tree::check_source(source)?;
    let tree = DetachedMount::new(block, source, &kernel_options, options)
        .map_err(|error| refused(error, mount_point, block.then_some(source)))?;
    Ok((device, tree))
}
