//! One way into a connection: an open `/dev/fuse`.
//!
//! Each reader has a descriptor of its own, cloned from the one that was mounted, so that readers
//! do not share a queue of requests in progress. An answer must go back through the descriptor
//! that its request came from.
//!
//! A request is read into two places: the first 80 bytes, and the rest, which starts on a page. For
//! a WRITE, whose header and arguments are just 80 bytes, the rest is the data.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno as Os;

use crate::protocol::{Answer, Notification, wire};
use crate::{Errno, sys};

const PATH: &str = "/dev/fuse";

/// The first bytes of a request, as they were read.
pub(crate) type Head = [u8; wire::WRITE_PREFIX];

/// The result of a read of the device.
#[derive(Debug)]
pub(crate) enum Got {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing this time.
    Again,
    Ended(End),
}

/// Why a connection ended.
#[derive(Debug)]
pub enum End {
    /// The filesystem was unmounted.
    Unmounted,
    /// The connection was aborted: by [`crate::mount::Mount::abort`], through
    /// `/sys/fs/fuse/connections/…/abort`, or by a forced umount that could not remove the mount.
    /// One by others that could looks like any umount.
    Aborted,
    /// The device failed in a way that it should not.
    Failed(io::Error),
}

#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Device {
        Device { fd }
    }

    /// Opens `/dev/fuse`, not connected yet.
    pub(crate) fn open() -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(PATH)
    }

    /// Another way into the same connection, or the same one where the kernel refuses.
    fn clone_device(&self) -> io::Result<Device> {
        let device = Device::open()?;
        sys::clone_device(&device, &self.fd)?;
        Ok(Device::new(device.into()))
    }

    /// The same descriptor once more.
    fn duplicate(&self) -> io::Result<Device> {
        Ok(Device::new(self.fd.try_clone()?))
    }

    /// Another way into the connection.
    pub(crate) fn another(&self) -> io::Result<Device> {
        // Old or restricted kernels refuse to clone; sharing the descriptor works, too.
        self.clone_device().or_else(|_| self.duplicate())
    }

    /// A way into the connection whose reads never wait.
    pub(crate) fn without_waiting(&self) -> io::Result<Device> {
        let device = self.clone_device()?;
        rustix::io::ioctl_fionbio(&device.fd, true)?;
        Ok(device)
    }

    pub(crate) fn read(&self, head: &mut Head, rest: &mut [u8]) -> Got {
        match self.receive(head, rest) {
            Ok(0) => Got::Ended(End::Unmounted),
            Ok(len) => Got::Request(len),
            // ENOENT: the request was taken back by a signal before we had it.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => Got::Again,
            Err(Os::NODEV) => Got::Ended(End::Unmounted),
            Err(Os::CONNABORTED) => match self.receive(head, rest) {
                // A reader that was just being given a request when the connection ended gets an
                // abort, however it ended; a further read shows whether it was one.
                Err(Os::NODEV) => Got::Ended(End::Unmounted),
                _ => Got::Ended(End::Aborted),
            },
            Err(error) => Got::Ended(End::Failed(error.into())),
        }
    }

    fn receive(&self, head: &mut Head, rest: &mut [u8]) -> Result<usize, Os> {
        let mut pieces = [IoSliceMut::new(head), IoSliceMut::new(rest)];
        rustix::io::readv(self.fd.as_fd(), &mut pieces)
    }

    /// Sends `answer`; the caller may have been interrupted, then the kernel drops it.
    pub(crate) fn reply(&self, unique: u64, answer: &Answer) {
        match answer.with_message(unique, |pieces| self.send(pieces)) {
            // ENOENT: interrupted or aborted meanwhile. Ended: no caller is left.
            Ok(()) | Err(Os::NOENT | Os::NODEV | Os::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(%error, unique, ?answer, "the kernel refused an answer; sent EIO");
                let _ = Answer::error(Errno::EIO).with_message(unique, |pieces| self.send(pieces));
            }
        }
    }

    /// ENOENT when the kernel has nothing cached that it would concern.
    pub(crate) fn notify(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        Ok(notification.with_message(|pieces| self.send(pieces))?)
    }

    fn send(&self, pieces: &[IoSlice<'_>]) -> Result<(), Os> {
        loop {
            match rustix::io::writev(self.fd.as_fd(), pieces) {
                Err(Os::INTR | Os::AGAIN) => {}
                result => return result.map(drop),
            }
        }
    }
}
