//! Errors of mounts.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno as Os;
use thiserror::Error;

/// Most bytes of a source by fsconfig(2). mount(2) takes a page.
pub(super) const SOURCE_BYTES_MAX: usize = 255;

/// Why a mount could not be made, changed or removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    #[error("mount point {} does not exist; create the directory first", path.display())]
    Missing { path: PathBuf },
    #[error("mount point {} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} is already mounted on {}; unmount it first, or choose another directory",
            source_name, path.display())]
    AlreadyMounted { path: PathBuf, source_name: String },
    #[error("{} is busy: a process has an open file or its working directory on it; `fuser -vm {}` \
             lists the processes", path.display(), path.display())]
    Busy { path: PathBuf },
    #[error("{} is not mounted", path.display())]
    NotMounted { path: PathBuf },
    #[error(
        "/dev/fuse is missing; load the kernel module with `modprobe fuse`, \
             or give the container the device"
    )]
    NoDevice,
    #[error(
        "{user} may not open /dev/fuse; the administrator can allow it with \
             `chmod 666 /dev/fuse`, which is usual"
    )]
    DeviceForbidden { user: &'static str },
    #[error("no permission to mount on {}: {reason}", path.display())]
    Permission { path: PathBuf, reason: String },
    #[error("fusermount3 is not installed; install the package fuse3, or mount as root")]
    NoHelper,
    #[error(
        "`allow_other` and `allow_root` need the line `user_allow_other` in /etc/fuse.conf \
             when an ordinary user mounts"
    )]
    AllowOther,
    #[error("the block device {} is in use by another mount or program", path.display())]
    SourceBusy { path: PathBuf },
    #[error(
        "{source_name} has {} bytes, but Linux accepts at most {}; only the first mount, of the \
             whole filesystem, accepts more",
        source_name.len(),
        SOURCE_BYTES_MAX
    )]
    LongSource { source_name: String },
    #[error("fusermount3 refused: {reason}")]
    Helper { reason: String },
    #[error("the kernel refused the mount on {}", path.display())]
    Refused { path: PathBuf, source: io::Error },
    #[error("{what} failed")]
    Io { what: &'static str, source: io::Error },
}

/// The kernel's refusal to mount at `path`; `device`: the one it was to mount as `fuseblk`.
pub(super) fn refused(error: Os, path: &Path, device: Option<&str>) -> MountError {
    let path = path.to_owned();
    match error {
        Os::NODEV => MountError::NoDevice,
        Os::PERM | Os::ACCESS => {
            let reason = io::Error::from(error).to_string();
            MountError::Permission { path, reason }
        }
        Os::BUSY => match device {
            Some(device) => MountError::SourceBusy { path: device.into() },
            None => MountError::Busy { path },
        },
        Os::NOENT => MountError::Missing { path },
        Os::NOTDIR => MountError::NotADirectory { path },
        error => MountError::Refused { path, source: error.into() },
    }
}
