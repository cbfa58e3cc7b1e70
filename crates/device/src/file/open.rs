//! Opening: kind, lock, direct I/O, size.
//!
//! Where direct I/O is refused, the page cache may hold pages that were written before and never
//! reached the disk: when a flush fails, the kernel takes them for clean and keeps them. So the
//! cache is written out and dropped before the first read, which then returns the same as a later
//! one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use copyhold_types::{BLOCK_BYTES, Buf};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::block_device;
use crate::{DeviceError, IoError};

/// The mode in which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Alone: no other open of it through this library is allowed.
    ReadWrite,
    /// With other readers, but not with a writer.
    ReadOnly,
}

/// A locked descriptor. It unlocks when it goes, and does not leave that to the last close: the
/// kernel may hold the file a moment longer for a request that has completed, and a child that was
/// just forked until it executes its program.
pub(crate) struct Locked(OwnedFd);

impl AsFd for Locked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the close that follows does the same.
        let _unlocked_by_close = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// An open and locked file or block device.
pub(crate) struct Opened {
    pub(super) fd: Locked,
    pub(super) is_block_device: bool,
    pub(super) is_direct: bool,
    pub(super) bytes: u64,
}

pub(crate) fn name_of(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn io_error(error: &io::Error) -> IoError {
    IoError(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Turns an errno of opening into an error.
pub(crate) fn failed(path: &Path) -> impl Fn(Errno) -> DeviceError + use<> {
    let name = name_of(path);
    move |errno| DeviceError::Open { name: name.clone(), source: IoError(errno.raw_os_error()) }
}

/// Opens an existing file or block device.
pub(crate) fn open(path: &Path, mode: OpenMode) -> Result<Opened, DeviceError> {
    let mut opened = open_locked(path, mode)?;
    opened.expect_at(path)?;
    opened.measure(path)?;
    opened.check_direct(path)?;
    Ok(opened)
}

/// Opens and locks an existing file or block device, of which no more is known then.
pub(super) fn open_locked(path: &Path, mode: OpenMode) -> Result<Opened, DeviceError> {
    let is_block_device = is_block_device(path)?;
    let flags = match mode {
        OpenMode::ReadWrite => OFlags::RDWR,
        OpenMode::ReadOnly => OFlags::RDONLY,
    };
    if is_block_device && mode == OpenMode::ReadWrite {
        // Not while it is mounted, or part of something. The claim is not kept: a `fuseblk` mount
        // of this very pool makes the kernel claim the device for itself.
        drop(open_file(path, flags | OFlags::EXCL)?);
    }
    Ok(Opened::new(lock(open_file(path, flags)?, path, mode)?, is_block_device))
}

fn open_file(path: &Path, flags: OFlags) -> Result<OwnedFd, DeviceError> {
    open_patiently(path, flags | OFlags::CLOEXEC).map_err(|errno| match errno {
        Errno::BUSY => DeviceError::Locked { name: name_of(path) },
        errno => failed(path)(errno),
    })
}

/// Whether it is a block device; an error unless it is that or a regular file. Opening others
/// might wait, or do things.
pub(super) fn is_block_device(path: &Path) -> Result<bool, DeviceError> {
    let stat = rustix::fs::stat(path).map_err(failed(path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        _ => Err(DeviceError::NotADevice { name: name_of(path) }),
    }
}

/// A block device that was just closed can be busy for a moment, see [`Locked`].
#[allow(clippy::disallowed_methods, reason = "opening happens before there are tasks")]
pub(crate) fn open_patiently(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

pub(crate) fn lock(fd: OwnedFd, path: &Path, mode: OpenMode) -> Result<Locked, DeviceError> {
    let operation = match mode {
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    rustix::fs::flock(&fd, operation).map(|()| Locked(fd)).map_err(|errno| match errno {
        Errno::WOULDBLOCK => DeviceError::Locked { name: name_of(path) },
        errno => failed(path)(errno),
    })
}

/// Lets later reads return the content of the disk.
fn drop_cached_pages(file: impl AsFd) -> rustix::io::Result<()> {
    // An error is of pages that did not get there. They are clean now, and go with the others.
    let _told_to_the_writer = rustix::fs::fsync(&file);
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
}

impl Opened {
    pub(super) fn new(fd: Locked, is_block_device: bool) -> Opened {
        Opened { fd, is_block_device, is_direct: false, bytes: 0 }
    }

    pub(super) fn measure(&mut self, path: &Path) -> Result<(), DeviceError> {
        let failed_io = |error| DeviceError::Open { name: name_of(path), source: io_error(&error) };
        if !self.is_block_device {
            let stat = rustix::fs::fstat(&self.fd).map_err(failed(path))?;
            self.bytes = stat.st_size.try_into().unwrap_or(0);
            return Ok(());
        }
        let sector = block_device::sector_bytes(&self.fd).map_err(failed_io)?;
        if sector as usize > BLOCK_BYTES {
            return Err(DeviceError::SectorTooLarge { name: name_of(path), bytes: sector });
        }
        self.bytes = block_device::size(&self.fd).map_err(failed_io)?;
        Ok(())
    }

    /// Refuses a file that `path` does not name any more: its creation has failed and removed it
    /// before this opening had the lock.
    pub(super) fn expect_at(&self, path: &Path) -> Result<(), DeviceError> {
        let ours = rustix::fs::fstat(&self.fd).map_err(failed(path))?;
        let named = rustix::fs::stat(path).map_err(failed(path))?;
        match (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino) {
            true => Ok(()),
            false => Err(DeviceError::Locked { name: name_of(path) }),
        }
    }

    /// Uses direct I/O where a trial read of one block succeeds with it.
    pub(super) fn check_direct(&mut self, path: &Path) -> Result<(), DeviceError> {
        let flags = rustix::fs::fcntl_getfl(&self.fd).map_err(failed(path))?;
        let accepted = rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT).is_ok();
        self.is_direct = accepted && self.reads_a_block();
        if accepted && !self.is_direct {
            rustix::fs::fcntl_setfl(&self.fd, flags - OFlags::DIRECT).map_err(failed(path))?;
        }
        if !self.is_direct {
            drop_cached_pages(&self.fd).map_err(failed(path))?;
        }
        Ok(())
    }

    /// Whether a block can be read, unless for another reason than its alignment.
    fn reads_a_block(&self) -> bool {
        let mut block = Buf::zeroed(1);
        !matches!(rustix::io::pread(&self.fd, block.make_mut(), 0), Err(Errno::INVAL))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::io::ReadWriteFlags;

    use super::*;

    #[test]
    fn a_file_that_has_lost_its_name_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("a"), dir.path().join("b"));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let file = open(&path, OpenMode::ReadOnly).unwrap();
        file.expect_at(&path).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        assert!(matches!(file.expect_at(&path), Err(DeviceError::Open { .. })));
        File::create(&path).unwrap();
        assert!(matches!(file.expect_at(&path), Err(DeviceError::Locked { .. })));
        file.expect_at(&moved).unwrap();
    }

    /// Whether the first block is in the page cache. `None`, if the filesystem cannot report it.
    fn is_cached(file: &File) -> Option<bool> {
        let mut block = Buf::zeroed(1);
        let mut bufs = [io::IoSliceMut::new(block.make_mut())];
        match rustix::io::preadv2(file, &mut bufs, 0, ReadWriteFlags::NOWAIT) {
            Ok(_) => Some(true),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    #[test]
    fn pages_that_were_written_before_are_read_from_the_disk() {
        // Beside the program: a temporary directory may have no disk.
        let dir = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let path = dir.join(format!("cached-pages-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&[7; 4 * BLOCK_BYTES]).unwrap();
        if is_cached(&file) != Some(true) {
            return;
        }
        drop_cached_pages(&file).unwrap();
        assert_eq!(is_cached(&file), Some(false));
    }
}
