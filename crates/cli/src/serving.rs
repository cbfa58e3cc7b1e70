//! A filesystem as a mount serves it, without one.

use std::sync::Arc;

use copyhold_fs::Filesystem;
use copyhold_fuse::Operations;
use copyhold_fuse::protocol::Settings;

use crate::adapter::{self, Adapter, Rules};
use crate::engine::in_process;

/// Answers the kernel's requests, and the questions that come by ioctl(2), for a pool that root
/// has mounted and whose owners of directories may make subvolumes. There are no processes to look
/// up: user 0 is root.
pub fn operations(fs: Arc<Filesystem>) -> impl Operations {
    let described = fs.pool().clone();
    let describe = move || in_process(&described);
    let rules = Rules { mounted_by: Some(0), owners_may: true, sees_callers: false };
    Adapter::new(fs, Box::new(describe), rules)
}

/// The requests of a mount to the kernel, unless its options say otherwise.
pub fn settings() -> Settings {
    adapter::settings(false)
}
