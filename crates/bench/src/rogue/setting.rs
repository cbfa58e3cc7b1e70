//! Where a rogue works, and the threads that do its calls.

use std::fs::File;
use std::path::{Path, PathBuf};

use copyhold_harness::Interrupt;

use super::sizes::Sizes;
use crate::error::{BenchError, On};
use crate::target::Kind;

/// Makes one or a few system calls, and returns how many. A thread repeats it until the end.
pub(super) type Step<'a> = Box<dyn FnMut() -> Result<u64, BenchError> + Send + 'a>;

pub(super) struct Setting<'a> {
    /// The root of the rogue's subvolume.
    pub(super) directory: &'a Path,
    pub(super) sizes: &'a Sizes,
    /// Of the ioctls for snapshots: Copyhold or btrfs.
    pub(super) kind: Kind,
    /// Set at the end. A step that takes long looks at it.
    pub(super) stop: &'a Interrupt,
}

impl Setting<'_> {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A new file to read and write.
    pub(super) fn file(&self, name: &str) -> Result<File, BenchError> {
        let path = self.path(name);
        let mut options = File::options();
        options.read(true).write(true).create_new(true).open(&path).on(path.display())
    }
}

/// The steps of `count` threads; `make` is called once for each.
pub(super) fn threads<'a, S>(
    count: u32,
    mut make: impl FnMut(u32) -> Result<S, BenchError>,
) -> Result<Vec<Step<'a>>, BenchError>
where
    S: FnMut() -> Result<u64, BenchError> + Send + 'a,
{
    (0..count).map(|number| Ok(Box::new(make(number)?) as Step<'a>)).collect()
}
