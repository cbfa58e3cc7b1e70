//! The one table of error numbers: of answers to the kernel, and of the library's errors.

use std::io;

use copyhold_device::DeviceError;
use copyhold_device::nvme::IdentifyProblem;
use copyhold_device::pi::HeaderProblem;
use copyhold_fs::FsError;
use copyhold_fuse::Errno;
use copyhold_fuse::mount::MountError;
use copyhold_pool::{GrowProblem, PoolError};
use copyhold_volume::VolumeError;

use crate::ServeError;

/// The answer to a request that failed. Damage, and the reason why a pool has stopped, were logged
/// where they were found, once.
pub(crate) fn errno(error: FsError) -> Errno {
    let errno = errno_of(&error);
    if errno == Errno::EIO {
        let stopped = matches!(error, FsError::Pool(PoolError::Stopped { .. }));
        let logged = matches!(error, FsError::Damaged { .. } | FsError::Record { .. });
        if stopped || logged || matches!(error, FsError::ShutDown) {
            tracing::debug!(%error, "answered EIO");
        } else {
            tracing::warn!(%error, "answered EIO");
        }
    }
    errno
}

/// The error number of a call on the filesystem.
pub fn errno_of(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong { .. } | FsError::TooDeep { .. } => Errno::ENAMETOOLONG,
        FsError::TooManyLinks { .. } => Errno::EMLINK,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NotPermitted(_) => Errno::EPERM,
        FsError::AccessDenied => Errno::EACCES,
        FsError::ReadOnly { .. } => Errno::EROFS,
        FsError::NoSpace(_) | FsError::Kept { .. } | FsError::Crowded { .. } => Errno::ENOSPC,
        FsError::FileTooBig { .. } => Errno::EFBIG,
        FsError::AttributeTooBig { .. } | FsError::AttributeListTooBig { .. } => Errno::E2BIG,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::NotSupported(_) => Errno::EOPNOTSUPP,
        FsError::PastEnd => Errno::ENXIO,
        FsError::CrossSubvolume => Errno::EXDEV,
        FsError::Busy(_) | FsError::IsSubvolume(_) => Errno::EBUSY,
        FsError::Stale => Errno::ESTALE,
        FsError::Quota(error) => Errno::named(error.code()).unwrap_or(Errno::EIO),
        FsError::Volume(error) => match &**error {
            VolumeError::Holds(..) => Errno::EBUSY,
            VolumeError::TooDeep(_) => Errno::EMLINK,
            VolumeError::MemoryLimits(_)
            | VolumeError::Root(_)
            | VolumeError::Unrelated { .. }
            | VolumeError::Incomparable(..) => Errno::EINVAL,
            _ => Errno::EIO,
        },
        _ => Errno::EIO,
    }
}

/// The error number of opening or making a pool.
pub fn errno_of_pool(error: &PoolError) -> Errno {
    match error {
        PoolError::Full { .. } | PoolError::LogFull => Errno::ENOSPC,
        PoolError::Device(error) => errno_of_device(error),
        PoolError::ReadOnly { .. } => Errno::EROFS,
        PoolError::Newer { .. } => Errno::EOPNOTSUPP,
        PoolError::Grow { problem: GrowProblem::Busy, .. } => Errno::EBUSY,
        PoolError::NotAPool { .. }
        | PoolError::TooSmall { .. }
        | PoolError::Layout(_)
        | PoolError::Grow { .. } => Errno::EINVAL,
        // The device is whole, and not the one of this pool.
        PoolError::Protection { .. } => Errno::EMEDIUMTYPE,
        _ => Errno::EIO,
    }
}

/// The error number of a device.
pub fn errno_of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Read { source, .. }
        | DeviceError::Write { source, .. }
        | DeviceError::ThinFull { source, .. }
        | DeviceError::Flush { source, .. }
        | DeviceError::Discard { source, .. }
        | DeviceError::Open { source, .. }
        | DeviceError::Grow { source, .. } => Errno::new(source.0),
        DeviceError::Locked { .. } => Errno::EBUSY,
        DeviceError::Occupied { .. } => Errno::EEXIST,
        DeviceError::NotADevice { .. }
        | DeviceError::SectorTooLarge { .. }
        | DeviceError::Short { .. }
        | DeviceError::FixedSize { .. } => Errno::EINVAL,
        DeviceError::Missing(_) => Errno::ENXIO,
        DeviceError::NoBlockDevice { .. } => Errno::ENODEV,
        DeviceError::Namespace { problem, .. } => errno_of_header(problem),
        DeviceError::Identify { problem, .. } => errno_of_identify(problem),
        _ => Errno::EIO,
    }
}

/// The error number of a file or disk whose header of protection information cannot be used.
fn errno_of_header(problem: &HeaderProblem) -> Errno {
    match problem {
        HeaderProblem::Version(_) | HeaderProblem::Features(_) => Errno::EOPNOTSUPP,
        HeaderProblem::ReadOnlyFeatures(_) => Errno::EROFS,
        HeaderProblem::Size { .. } | HeaderProblem::TooSmall { .. } => Errno::EINVAL,
        HeaderProblem::Damaged
        | HeaderProblem::Different
        | HeaderProblem::Room { .. }
        | HeaderProblem::Format(_) => Errno::EIO,
    }
}

/// The error number of an NVMe namespace that cannot be used.
fn errno_of_identify(problem: &IdentifyProblem) -> Errno {
    match problem {
        IdentifyProblem::Absent => Errno::ENXIO,
        IdentifyProblem::NoMetadata
        | IdentifyProblem::NoProtection(_)
        | IdentifyProblem::Interleaved
        | IdentifyProblem::Format(_)
        | IdentifyProblem::Guard(_)
        | IdentifyProblem::NoTransfer(_) => Errno::EOPNOTSUPP,
        IdentifyProblem::Small { .. } | IdentifyProblem::Size { .. } => Errno::EINVAL,
        IdentifyProblem::WriteProtected => Errno::EROFS,
        IdentifyProblem::Lie(_) => Errno::EIO,
    }
}

/// The error number of mounting and unmounting.
pub fn errno_of_mount(error: &MountError) -> Errno {
    match error {
        MountError::Missing { .. } => Errno::ENOENT,
        MountError::NotADirectory { .. } => Errno::ENOTDIR,
        MountError::AlreadyMounted { .. }
        | MountError::Busy { .. }
        | MountError::SourceBusy { .. } => Errno::EBUSY,
        MountError::NotMounted { .. } => Errno::EINVAL,
        MountError::NoDevice | MountError::NoHelper => Errno::ENODEV,
        MountError::DeviceForbidden { .. }
        | MountError::Permission { .. }
        | MountError::AllowOther => Errno::EPERM,
        MountError::LongSource { .. } => Errno::ENAMETOOLONG,
        MountError::Refused { source, .. } | MountError::Io { source, .. } => number_of(source),
        _ => Errno::EIO,
    }
}

/// The error number of serving a pool.
pub fn errno_of_serving(error: &ServeError) -> Errno {
    match error {
        ServeError::Pool(error) => errno_of_pool(error),
        ServeError::Filesystem(error) => errno_of(error),
        ServeError::Connection(error) => number_of(error),
        ServeError::Session(_) => Errno::EIO,
    }
}

fn number_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::new)
}

#[cfg(test)]
mod tests {
    use copyhold_device::IoError;
    use copyhold_pool::ProtectionProblem;
    use copyhold_types::SubvolId;
    use copyhold_volume::quota::QuotaError;

    use super::*;

    #[test]
    fn refusals_of_quotas_and_subvolumes_have_their_numbers() {
        let number = |error: FsError| errno_of(&error);
        assert_eq!(number(QuotaError::Nonsense(u64::MAX).into()), Errno::EINVAL);
        assert_eq!(number(QuotaError::Off.into()), Errno::ENOTCONN);
        assert_eq!(number(VolumeError::Holds(SubvolId(2), SubvolId(3)).into()), Errno::EBUSY);
        assert_eq!(number(VolumeError::Root(SubvolId(1)).into()), Errno::EINVAL);
        assert_eq!(errno(FsError::ShutDown), Errno::EIO);
    }

    #[test]
    fn a_second_growth_finds_the_pool_busy_and_a_wrong_size_is_invalid() {
        let number = |problem| errno_of_pool(&PoolError::Grow { name: "disk".into(), problem });
        assert_eq!(number(GrowProblem::Busy), Errno::EBUSY);
        assert_eq!(number(GrowProblem::NoMultiple { wanted: 1 }), Errno::EINVAL);
    }

    #[test]
    fn a_device_has_the_number_that_the_system_gave() {
        let name = "disk".to_owned();
        let open = DeviceError::Open { name: name.clone(), source: IoError(Errno::EACCES.code()) };
        assert_eq!(errno_of_pool(&PoolError::Device(open)), Errno::EACCES);
        assert_eq!(errno_of_device(&DeviceError::Locked { name }), Errno::EBUSY);
    }

    #[test]
    fn a_namespace_that_cannot_be_used_has_a_number_by_its_problem() {
        let identify = |problem: IdentifyProblem| {
            errno_of_device(&DeviceError::Identify {
                name: "ng0n1".into(),
                problem: problem.into(),
            })
        };
        assert_eq!(identify(IdentifyProblem::WriteProtected), Errno::EROFS);
        assert_eq!(identify(IdentifyProblem::NoMetadata), Errno::EOPNOTSUPP);
        assert_eq!(identify(IdentifyProblem::Absent), Errno::ENXIO);
        let header = |problem: HeaderProblem| {
            errno_of_device(&DeviceError::Namespace {
                name: "file".into(),
                problem: problem.into(),
            })
        };
        assert_eq!(header(HeaderProblem::Features(4)), Errno::EOPNOTSUPP);
        assert_eq!(header(HeaderProblem::Damaged), Errno::EIO);
        let problem = ProtectionProblem::Missing { format: "4096+8:16b".parse().unwrap() };
        let lost = PoolError::Protection { name: "file".into(), problem };
        assert_eq!(errno_of_pool(&lost), Errno::EMEDIUMTYPE);
    }
}
