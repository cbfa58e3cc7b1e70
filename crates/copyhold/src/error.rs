//! Errors of the library, for a program that embeds it.

use std::io;
use std::path::PathBuf;

use copyhold_device::DeviceError;
use copyhold_fs::FsError;
use copyhold_fuse::mount::{MountError, OptionError};
use copyhold_memory::SharesError;
use copyhold_pool::PoolError;
use copyhold_serve::{
    ServeError, errno_of, errno_of_device, errno_of_mount, errno_of_pool, errno_of_serving,
};

/// The refusal or failure of a call. As an [`io::Error`] it keeps its text and its causes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device of the pool.
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A call on one path.
    #[error("{}: {source}", path.display())]
    File {
        /// As the caller gave it.
        path: PathBuf,
        #[source]
        source: FsError,
    },
    /// A call on a subvolume or on the pool.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    #[error("{}: more than {max} symbolic links in a row; there may be a loop", path.display())]
    TooManySymlinks { path: PathBuf, max: usize },
    #[error("{} is not open to {to}; open it with `FileOptions` that allow that", path.display())]
    NotOpen { path: PathBuf, to: &'static str },
    /// [`crate::Pool::create`] found data in the first or last MiB of its path.
    #[error("{} holds {found}; `CreateOptions::force` overwrites it", path.display())]
    Occupied { path: PathBuf, found: &'static str },
    #[error("{} has protection information of its own, and needs no other", path.display())]
    ProtectedAlready { path: PathBuf },
    /// [`crate::CreateOptions::preallocate`] of a pool on a namespace.
    #[error(
        "{} is an NVMe namespace, whose blocks are not allocated in advance; create the pool \
         without `CreateOptions::preallocate`",
        path.display()
    )]
    NotAllocated { path: PathBuf },
    #[error("{} does not exist; give its size in `CreateOptions::bytes`", path.display())]
    NoSize { path: PathBuf },
    #[error("{} does not exist; `lsblk` lists block devices", path.display())]
    NoDevice { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Path {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the volume of subvolume {0} belongs to another pool")]
    OtherPool(copyhold_types::SubvolId),
    #[error("the pool's name has {bytes} bytes; at most {max} are allowed")]
    LongName { bytes: usize, max: usize },
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Budget(#[from] SharesError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{} is covered by another mount; unmount that first", path.display())]
    Covered { path: PathBuf },
    #[error(transparent)]
    Serve(ServeError),
    #[error("a thread could not be started: {0}")]
    Start(#[source] io::Error),
}

impl Error {
    /// The error number that a system call would have set.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Device(error) => errno_of_device(error).code(),
            Error::Pool(error) => errno_of_pool(error).code(),
            Error::File { source, .. } | Error::Filesystem(source) => errno_of(source).code(),
            Error::TooManySymlinks { .. } => libc::ELOOP,
            Error::NotOpen { .. } => libc::EBADF,
            Error::Occupied { .. } => libc::EEXIST,
            Error::NoSize { .. } | Error::NoDevice { .. } => libc::ENOENT,
            Error::OtherPool(_) => libc::EXDEV,
            Error::LongName { .. } => libc::ENAMETOOLONG,
            Error::Option(_) | Error::Budget(_) => libc::EINVAL,
            Error::ProtectedAlready { .. } | Error::NotAllocated { .. } => libc::EINVAL,
            Error::Mount(error) => errno_of_mount(error).code(),
            Error::Covered { .. } => libc::EBUSY,
            Error::Serve(error) => errno_of_serving(error).code(),
            Error::Path { source: error, .. } | Error::Start(error) => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }

    /// The kind that `std` has for [`Self::errno`].
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno()).kind()
    }
}

impl From<ServeError> for Error {
    fn from(error: ServeError) -> Error {
        match error {
            ServeError::Pool(error) => Error::Pool(error),
            ServeError::Filesystem(error) => Error::Filesystem(error),
            error => Error::Serve(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
