//! Copyhold as a library: pools and their files, and mounts of them.
//!
//! ```
//! # fn main() -> Result<(), copyhold::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("pool.img");
//! use copyhold::{CreateOptions, OpenOptions, Pool};
//!
//! Pool::create(&image, &CreateOptions::sized(64 << 20))?;
//! let pool = Pool::open(&image, OpenOptions::default())?;
//! let volume = pool.root();
//! volume.create_dir("letters")?;
//! volume.write("letters/first", b"Dear reader")?;
//! volume.sync()?;
//! assert_eq!(volume.read("letters/first")?, b"Dear reader");
//! pool.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Pool`]: makes, opens and mounts pools; subvolumes and quota groups.
//! - [`Volume`]: the files of a subvolume by path, as `std::fs`; snapshots, rollback, comparison.
//! - [`File`]: an open file, with the traits of `std::io`.
//! - [`nonblocking`]: the same in futures, for any async runtime.
//! - [`Mounted`]: a pool that this process serves at a directory.
//!
//! The calls of the root block their thread, which must not be a thread of the pool's executors.
//! Inside, everything is asynchronous. [`Pool::filesystem`] is the engine itself, in VFS terms.

#![forbid(unsafe_code)]

mod compare;
mod create;
mod engine;
mod error;
mod file;
mod mounted;
pub mod nonblocking;
mod pool;
mod tenants;
mod view;
mod volume;

pub use compare::{Change, ChangeKind};
pub use copyhold_device::pi::{Format as ProtectionFormat, FormatError};
pub use copyhold_device::{
    Counters, Device, DeviceError, DynDevice, FileDevice, Geometry, IoError, OpenMode,
};
pub use copyhold_format::item::Tombstone;
pub use copyhold_fs::{
    Attr, DataCache, FileFlags, FileKind, Filesystem, FsError, NodeId, SetAttr, SetTime, StatFs,
    SubvolInfo,
};
pub use copyhold_fuse::mount::{
    DetachedMount, Mount, MountError, MountOptions as KernelOptions, OptionError,
};
pub use copyhold_fuse::{SessionError, Transport};
pub use copyhold_memory::{AvailableMemory, PoolSize, Shares, SharesError};
pub use copyhold_pool::{GrowProblem, Grown, Limits, NewSize, PoolError};
pub use copyhold_runtime::executors::{Config as ExecutorsConfig, Executors, ReactorKind};
pub use copyhold_serve::{Options as ServingOptions, ServeError};
pub use copyhold_types::{
    Buf, Bufs, DeviceId, EpochId, InodeNo, PoolId, Purpose, SubvolId, Timestamp,
};
pub use copyhold_volume::VolumeError;
pub use copyhold_volume::quota::{
    Exceeded, GroupId, GroupState, GroupUse, LimitKind, Limits as GroupLimits, QuotaError, Resource,
};
pub use create::CreateOptions;
pub use error::Error;
pub use file::{File, FileOptions};
pub use mounted::{MountOptions, Mounted, Mounting};
pub use pool::{OpenOptions, Pool};
pub use rustix::mount::MountFlags;
pub use tenants::Groups;
pub use volume::{DirItem, Volume};

/// The engine in VFS terms, for a front end of its own: the types of [`Pool::filesystem`].
pub mod vfs {
    pub use copyhold_fs::*;
}

/// The example of the page is compiled with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
mod page {}
