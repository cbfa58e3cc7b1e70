//! Deep: directories renamed between two others at the bottom of a deep tree.
//!
//! A filesystem must find out that a directory does not move into itself, for which it may walk up
//! to the root. Paths are shorter than such a tree, so each level is made from the one above.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, mkdirat, openat, renameat};

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

pub(super) fn renames<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let root = File::open(setting.directory).on(setting.directory.display())?;
    let mut bottom = OwnedFd::from(root);
    for _ in 0..setting.sizes.levels {
        bottom = make(&bottom, "d")?;
    }
    let left_and_right = Arc::new([make(&bottom, "left")?, make(&bottom, "right")?]);
    threads(setting.sizes.workers, |number| {
        let both = Arc::clone(&left_and_right);
        let name = format!("moved.{number}");
        make(&both[0], &name)?;
        let mut from = 0;
        Ok(move || {
            renameat(&both[from], &name, &both[1 - from], &name).on("rename")?;
            from = 1 - from;
            Ok(1)
        })
    })
}

/// Makes and opens a directory.
fn make(within: impl AsFd, name: &str) -> Result<OwnedFd, BenchError> {
    mkdirat(&within, name, Mode::RWXU).on("mkdir")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&within, name, flags, Mode::empty()).on("opening a directory")
}
