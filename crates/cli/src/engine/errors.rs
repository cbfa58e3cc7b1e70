//! The engine's errors, in words for a person at a terminal.

use copyhold_device::DeviceError;
use copyhold_device::pi::HeaderProblem;
use copyhold_fs::FsError;
use copyhold_fuse::SessionError;
use copyhold_pool::PoolError;
use copyhold_serve::{ServeError, chain};

use crate::failure::{Failure, Kind};

impl From<copyhold::Error> for Failure {
    fn from(error: copyhold::Error) -> Failure {
        use copyhold::Error;
        match error {
            Error::Device(error) => error.into(),
            Error::Pool(error) => error.into(),
            Error::Filesystem(error) => error.into(),
            Error::Mount(error) => error.into(),
            Error::Serve(error) => error.into(),
            Error::Budget(error) => super::budget::refusal(error),
            Error::Option(error) => Failure::usage(error.to_string()),
            Error::Start(error) => Failure::system("starting threads", &error),
            Error::Occupied { path, found } => Failure::new(
                Kind::Exists,
                format!("{} holds {found}; --force overwrites it", path.display()),
            ),
            Error::NoSize { path } => Failure::usage(format!(
                "{} does not exist; give the size of the new pool with --size",
                path.display()
            )),
            Error::NotAllocated { path } => Failure::usage(format!(
                "{} is an NVMe namespace, whose blocks are not allocated in advance; create the \
                 pool without --preallocate written",
                path.display()
            )),
            error @ Error::NoDevice { .. } => Failure::new(Kind::NotFound, error.to_string()),
            error @ Error::Covered { .. } => Failure::new(Kind::InUse, error.to_string()),
            Error::Path { path, source } => Failure::system(path.display(), &source),
            error @ (Error::LongName { .. } | Error::ProtectedAlready { .. }) => {
                Failure::usage(error.to_string())
            }
            error => Failure::new(Kind::Failed, chain(&error)),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        let kind = match &error {
            error if error.is_host_full() || error.is_thin_full() => Kind::Full,
            DeviceError::Locked { .. } => Kind::InUse,
            DeviceError::Occupied { .. } => Kind::Exists,
            DeviceError::NotADevice { .. }
            | DeviceError::Short { .. }
            | DeviceError::FixedSize { .. } => Kind::Usage,
            DeviceError::Open { source, .. } => match source.0 {
                code if code == rustix::io::Errno::NOENT.raw_os_error() => Kind::NotFound,
                code if code == rustix::io::Errno::ACCESS.raw_os_error() => Kind::Permission,
                code if code == rustix::io::Errno::PERM.raw_os_error() => Kind::Permission,
                _ => Kind::Device,
            },
            DeviceError::Namespace { problem, .. } => match **problem {
                HeaderProblem::Version(_) | HeaderProblem::Features(_) => Kind::NewerFormat,
                HeaderProblem::Damaged | HeaderProblem::Different => Kind::Damaged,
                _ => Kind::Device,
            },
            _ => Kind::Device,
        };
        Failure::new(kind, chain(&error))
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let kind = match error {
            PoolError::Device(error) => return error.into(),
            PoolError::Full { .. } => Kind::Full,
            PoolError::Damaged { .. } | PoolError::Log(_) => Kind::Damaged,
            PoolError::NotAPool { .. } => Kind::NotAPool,
            PoolError::Newer { .. } => Kind::NewerFormat,
            PoolError::TooSmall { .. } | PoolError::Grow { .. } => Kind::Usage,
            PoolError::Protection { .. } => Kind::Device,
            PoolError::Shrunk { .. } | PoolError::Stopped { .. } | PoolError::Unreadable { .. } => {
                Kind::Device
            }
            _ => Kind::Failed,
        };
        Failure::new(kind, chain(&error))
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        let kind = match error {
            FsError::Pool(error) | FsError::NoSpace(error) => return error.into(),
            FsError::Damaged { .. } | FsError::Record { .. } => Kind::Damaged,
            _ => Kind::Failed,
        };
        Failure::new(kind, chain(&error))
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        match error {
            ServeError::Pool(error) => error.into(),
            ServeError::Filesystem(error) => error.into(),
            ServeError::Session(error) => error.into(),
            ServeError::Connection(error) => Failure::system("/dev/fuse", &error),
            error => Failure::new(Kind::Failed, chain(&error)),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        Failure::new(Kind::Failed, chain(&error))
    }
}
