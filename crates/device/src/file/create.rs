//! Creating: a place that is empty, or may be emptied, becomes a file of the wanted size.
//!
//! Problem.  A check of the place, its opening and its emptying are steps, and other programs
//!           create, move and remove files between them. And many errors are found only by trying.
//! Idea.     All steps behind the lock go by its descriptor, not by the path. The steps that the
//!           host can refuse come before the removal of the content: the parent directory is
//!           opened, and the file grown.
//!
//! MAKE-M1  A file that existed has its content until nothing but an I/O error can stop the
//!          creation.
//! MAKE-M2  The file that is removed after a failure is the one that was made: the name is compared
//!          with the descriptor.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::open::{OpenMode, Opened, failed, name_of, open, opened};
use super::signature::probe_signature;
use crate::DeviceError;

/// The name of a file that a creation has made, in its directory.
pub(super) struct Made {
    parent: OwnedFd,
    name: OsString,
}

/// Opens and locks the file or block device at `path`, or makes a file there, and gives a file its
/// size. Refuses data, unless `force`.
pub(super) fn create(
    path: &Path,
    bytes: u64,
    force: bool,
) -> Result<(Opened, Option<Made>), DeviceError> {
    let parent = parent_of(path)?;
    let (mut file, made) = open_or_make(path, &parent)?;
    let ready = make_ready(&mut file, path, &parent, bytes, force || made.is_some());
    match (ready, made) {
        (Ok(()), made) => Ok((file, made)),
        (Err(error), Some(made)) => {
            made.remove(&file.fd);
            Err(error)
        }
        (Err(error), None) => Err(error),
    }
}

/// The directory of `path`, open.
fn parent_of(path: &Path) -> Result<OwnedFd, DeviceError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty()).map_err(failed(path))
}

fn open_or_make(path: &Path, parent: &OwnedFd) -> Result<(Opened, Option<Made>), DeviceError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let name = path.file_name().unwrap_or_default();
    let fd = match rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => fd,
        // A link, or `..`, has its target opened.
        Err(Errno::EXIST | Errno::ISDIR | Errno::NOENT) => {
            return Ok((open(path, OpenMode::ReadWrite)?, None));
        }
        Err(errno) => return Err(failed(path)(errno)),
    };
    let again = |fd: &OwnedFd| fcntl_dupfd_cloexec(fd, 0).map_err(failed(path));
    let made = Made { parent: again(parent)?, name: name.to_owned() };
    let new = again(&fd)?;
    match opened(fd, path, OpenMode::ReadWrite, false) {
        Ok(file) => Ok((file, Some(made))),
        // Another creation has opened it since, and has it now.
        Err(error @ DeviceError::Locked { .. }) => Err(error),
        Err(error) => {
            made.remove(new);
            Err(error)
        }
    }
}

fn make_ready(
    file: &mut Opened,
    path: &Path,
    parent: &OwnedFd,
    bytes: u64,
    force: bool,
) -> Result<(), DeviceError> {
    // Opened anew, without direct I/O.
    let by_descriptor = format!("/proc/self/fd/{}", file.fd.as_fd().as_raw_fd());
    if !force && let Some(found) = probe_signature(by_descriptor.as_ref())? {
        return Err(DeviceError::Occupied { name: name_of(path), found });
    }
    if file.is_block_device {
        return Ok(());
    }
    resize(file, bytes).map_err(failed(path))?;
    rustix::fs::fsync(&file.fd).map_err(failed(path))?;
    rustix::fs::fsync(parent).map_err(failed(path))?;
    file.bytes = bytes;
    file.check_direct(path)
}

/// Empties the file, and makes it `bytes` long (MAKE-M1).
fn resize(file: &Opened, bytes: u64) -> rustix::io::Result<()> {
    if bytes > file.bytes {
        rustix::fs::ftruncate(&file.fd, bytes)?;
    }
    let kept = bytes.min(file.bytes);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if kept > 0 && rustix::fs::fallocate(&file.fd, punch, 0, kept).is_err() {
        // This filesystem has no holes.
        rustix::fs::ftruncate(&file.fd, 0)?;
    }
    rustix::fs::ftruncate(&file.fd, bytes)
}

impl Made {
    /// Removes the file, of which `fd` is a descriptor, if it still has its name (MAKE-M2). An
    /// error of the removal is dropped: the creation has one already.
    pub(super) fn remove(&self, fd: impl AsFd) {
        let named = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if let (Ok(ours), Ok(named)) = (rustix::fs::fstat(fd), named)
            && (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
        {
            let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::empty());
        }
    }
}
