//! Creating: a place that is empty, or may be emptied, becomes a file of the wanted size.
//!
//! Problem.  A check of the place, its opening and its emptying are steps, and other programs
//!           create, move and remove files between them. And many errors are found only by trying.
//! Idea.     All steps behind the lock go by its descriptor, not by the path. The steps that can be
//!           refused come before the removal of the content: the probe, the sync of the directory,
//!           and the growth of the file.
//!
//! MAKE-M1  A file that existed, or got content since it was made, is emptied only by `force`, and
//!          behind all steps that can be refused.
//! MAKE-M2  The file that is removed after a failure is the one that was made: it is locked, and
//!          the name is compared with the descriptor.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::open::{OpenMode, Opened, failed, lock, name_of, open_locked};
use super::signature::probe;
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
    let (mut file, mut made) = match make(path)? {
        Some((file, made)) => (file, Some(made)),
        None => (open_locked(path, OpenMode::ReadWrite)?, None),
    };
    let ready = make_ready(&mut file, &mut made, path, bytes, force);
    if let (Err(_), Some(made)) = (&ready, &made) {
        made.remove(&file.fd);
    }
    ready.map(|()| (file, made))
}

/// Makes and locks a file. None, if the name exists.
fn make(path: &Path) -> Result<Option<(Opened, Made)>, DeviceError> {
    let bytes = path.as_os_str().as_bytes();
    let (Some(name), false) = (path.file_name(), bytes.ends_with(b"/") || bytes.ends_with(b"/."))
    else {
        return Ok(None);
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent.unwrap_or(Path::new(".")), flags, Mode::empty());
    let made = Made { parent: parent.map_err(failed(path))?, name: name.to_owned() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::openat(&made.parent, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => {
            interlude(path);
            // Another creation may have opened it since, and be the one that has it.
            Ok(Some((Opened::new(lock(fd, path, OpenMode::ReadWrite)?, false), made)))
        }
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(failed(path)(errno)),
    }
}

/// `made` is none behind this where another creation has used the file since it was made.
fn make_ready(
    file: &mut Opened,
    made: &mut Option<Made>,
    path: &Path,
    bytes: u64,
    force: bool,
) -> Result<(), DeviceError> {
    file.measure(path)?;
    if made.is_some() && file.bytes != 0 {
        *made = None;
    }
    file.expect_at(path)?;
    if !force && let Some(found) = probe(&file.fd).map_err(failed(path))? {
        return Err(DeviceError::Occupied { name: name_of(path), found });
    }
    if !file.is_block_device {
        sync_parent(made.as_ref(), path).map_err(failed(path))?;
        resize(file, bytes).map_err(failed(path))?;
        rustix::fs::fsync(&file.fd).map_err(failed(path))?;
        file.bytes = bytes;
    }
    file.check_direct(path)
}

/// Makes the name durable. That of a file that existed may be so already: then its directory need
/// not be readable.
fn sync_parent(made: Option<&Made>, path: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced = match made {
        Some(made) => rustix::fs::openat(&made.parent, ".", flags, Mode::empty()),
        None => {
            let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            let parent = path.parent().unwrap_or(Path::new("."));
            rustix::fs::open(parent, flags, Mode::empty())
        }
    };
    match (synced.and_then(rustix::fs::fsync), made) {
        // Some filesystems have no fsync of directories.
        (Err(Errno::INVAL), _) | (Err(Errno::ACCESS | Errno::PERM), None) => Ok(()),
        (synced, _) => synced,
    }
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

/// Other programs may run between the making of a file and its lock; in tests one does.
fn interlude(_path: &Path) {
    #[cfg(test)]
    if let Some(program) = tests::INTERLUDE.take() {
        program(_path);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    thread_local! {
        /// Runs once between the making of a file and its lock.
        pub(super) static INTERLUDE: Cell<Option<fn(&Path)>> = const { Cell::new(None) };
    }

    const BYTES: u64 = 1 << 20;

    #[test]
    fn a_file_that_gets_content_before_it_is_locked_is_another_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        INTERLUDE.set(Some(|path| fs::write(path, b"a letter").unwrap()));
        assert!(matches!(create(&path, BYTES, false), Err(DeviceError::Occupied { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
        fs::remove_file(&path).unwrap();
        INTERLUDE.set(Some(|path| drop(create(path, BYTES, false).unwrap())));
        let (_, made) = create(&path, BYTES, false).unwrap();
        assert!(made.is_none(), "the other creation has made it, and may remove it");
    }

    #[test]
    fn a_file_that_loses_its_name_before_it_is_locked_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        INTERLUDE.set(Some(|path| {
            fs::remove_file(path).unwrap();
            fs::write(path, b"a letter").unwrap();
        }));
        assert!(matches!(create(&path, BYTES, true), Err(DeviceError::Locked { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"a letter");
    }

    #[test]
    fn a_directory_is_not_made_into_a_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["new/", "new/.", ".", ".."] {
            assert!(create(&dir.path().join(name), BYTES, true).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
