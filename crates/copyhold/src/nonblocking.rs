//! The interface in futures: the same calls as those of the crate's root, for programs with an
//! async runtime of their own.
//!
//! ```
//! # fn main() -> Result<(), copyhold::Error> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("pool.img");
//! # futures_executor::block_on(async {
//! use copyhold::nonblocking::Pool;
//! use copyhold::{CreateOptions, OpenOptions};
//!
//! Pool::create(&image, CreateOptions::sized(64 << 20)).await?;
//! let pool = Pool::open(&image, OpenOptions::default()).await?;
//! let volume = pool.root();
//! volume.write("letter", b"Dear reader".to_vec()).await?;
//! assert_eq!(volume.read("letter").await?, b"Dear reader");
//! pool.close().await
//! # })
//! # }
//! ```
//!
//! Any runtime can poll the futures: the work goes on in threads of the pool, and polling never
//! blocks. A call that has begun goes on to its end even if its future is dropped, so it takes its
//! data by value.

mod file;
mod pool;
mod volume;

pub use file::File;
pub use pool::{Groups, Mounted, Pool};
pub use volume::Volume;
