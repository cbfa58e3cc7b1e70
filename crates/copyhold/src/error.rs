//! Errors of the library, for a program that embeds it.

use copyhold_device::DeviceError;
use copyhold_fs::FsError;
use copyhold_fuse::mount::{MountError, OptionError};
use copyhold_memory::SharesError;
use copyhold_pool::PoolError;
use copyhold_serve::ServeError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("{path}: {source}")]
    File {
        /// As the caller gave it, with bytes that are not UTF-8 replaced.
        path: String,
        #[source]
        source: FsError,
    },
    #[error(transparent)]
    Filesystem(#[from] FsError),
    #[error("{path}: more than {max} symbolic links in a row; there may be a loop")]
    TooManySymlinks { path: String, max: usize },
    #[error("{path} holds {what}; wipe it first, if that may be lost")]
    Occupied { path: String, what: &'static str },
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error(transparent)]
    Budget(#[from] SharesError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{path} is covered by another mount; unmount that first")]
    Covered { path: String },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("the executors could not be started: {0}")]
    Start(std::io::Error),
}
