//! Copyhold as a library: pools and their files, and mounts of them.
//!
//! ```
//! # fn main() -> Result<(), copyhold::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("pool.img");
//! use copyhold::{CreateOptions, OpenOptions, Pool};
//!
//! Pool::create(&image, 64 << 20, &CreateOptions::default())?;
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
//! Calls block the calling thread; inside, everything is asynchronous ([`copyhold_runtime`]). Any
//! number of threads may use a [`Volume`] at once. A caller that wants futures instead takes
//! [`Pool::filesystem`] and runs it on a runtime of their own.

#![forbid(unsafe_code)]

mod content;
mod engine;
mod error;
mod mounted;
mod path;
mod pool;
mod tenants;
mod volume;

pub use copyhold_fs::{Attr, FileKind, Filesystem, FsError, StatFs, SubvolInfo};
pub use copyhold_pool::{CreateOptions, Limits, PoolError};
pub use copyhold_serve::Options as ServingOptions;
pub use copyhold_types::SubvolId;
pub use copyhold_volume::quota::{GroupId, GroupState, GroupUse};
pub use error::Error;
pub use mounted::{MountOptions, Mounted};
pub use pool::{OpenOptions, Pool};
pub use volume::{DirItem, Volume};
