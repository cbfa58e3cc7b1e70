//! `copyhold sync`: everything that was written to a mounted pool is durable when it returns.
//!
//! sync(2) and syncfs(2) never reach the daemon of a plain FUSE mount. So the kernel's dirty pages
//! are written with syncfs, and then the daemon is asked, by an ioctl on the mount's root, to
//! commit.

use std::path::PathBuf;

use crate::control::Control;
use crate::failure::Failure;
use crate::mount_table;

/// Make everything written to a mounted pool durable
///
/// On a plain FUSE mount the kernel does not forward sync(2) to the daemon; this verb has the
/// effect that sync(2) promises. fsync(2) of a file is exact on every mount. See docs/semantics.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold sync /mnt && echo safe")]
pub(crate) struct Sync {
    /// The mounted directory, or any file or directory on it
    directory: PathBuf,
}

impl Sync {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mount = mount_table::holding(&self.directory)?;
        Control::open(&mount.mount_point)?.sync()
    }
}
