//! A directory with room for an image and a mount point.
//!
//! The lock of the directory separates a place in use from one whose program was killed.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::error::{HarnessError, On};
use crate::{LoopDevice, detach, mount_table};

/// Dropping it detaches all mounts in the directory, and removes the directory.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
    /// Locked as long as the place exists.
    in_use: File,
}

/// A new directory may seem to be left over until it is locked.
const TRIES: usize = 10;

impl Place {
    /// A new directory in `parent` whose name begins with `prefix`, with an empty mount point.
    pub fn new(parent: &Path, prefix: &str) -> Result<Place, HarnessError> {
        let canonical = parent.canonicalize().on(parent.display())?;
        for _ in 0..TRIES {
            let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(&canonical);
            let directory = directory.on(parent.display())?;
            // It may have been removed until here, or be removed while this waits.
            let Some(in_use) = opened(directory.path())? else { continue };
            flock(&in_use, FlockOperation::LockShared).on(directory.path().display())?;
            if directory.path().is_dir() {
                let place = Place { directory, in_use };
                fs::create_dir(place.mount_point()).on("the mount point")?;
                return Ok(place);
            }
        }
        Err(io::Error::from(ErrorKind::NotFound)).on(parent.display())
    }

    /// Removes places in `parent` whose program was killed, with mounts in them and loop devices
    /// over their files. Returns their directories.
    pub fn remove_left_over(parent: &Path, prefix: &str) -> Result<Vec<PathBuf>, HarnessError> {
        let parent = parent.canonicalize().on(parent.display())?;
        let mut removed = Vec::new();
        for entry in fs::read_dir(&parent).on(parent.display())? {
            let directory = entry.on(parent.display())?.path();
            let name = directory.file_name().unwrap_or_default().to_string_lossy();
            // Not through a link: it may lead anywhere.
            let is_place =
                name.starts_with(prefix) && !directory.is_symlink() && directory.is_dir();
            let Some(_left) = locked(&directory).filter(|_| is_place) else { continue };
            detach_all(&directory)?;
            LoopDevice::detach_below(&directory)?;
            fs::remove_dir_all(&directory).on(directory.display())?;
            removed.push(directory);
        }
        Ok(removed)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Other users may enter it.
    pub fn open_to_all(&self) -> Result<(), HarnessError> {
        fs::set_permissions(self.path(), Permissions::from_mode(0o755)).on(self.path().display())
    }

    pub fn mount_point(&self) -> PathBuf {
        self.path().join("mnt")
    }

    pub fn image(&self) -> PathBuf {
        self.path().join("pool.img")
    }

    /// Makes the image, a sparse file of `bytes`.
    pub fn make_image(&self, bytes: u64) -> Result<(), HarnessError> {
        let image = File::create_new(self.image());
        image.and_then(|image| image.set_len(bytes)).on(self.image().display())
    }

    /// Detaches all mounts, and leaves the directory.
    pub fn keep(mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.path().to_owned()
    }

    /// Closing it is not enough: a process that is being started may have a copy.
    fn unlock(&self) {
        flock(&self.in_use, FlockOperation::Unlock).expect("it is locked");
    }
}

/// Newest first: a mount may be in another. A daemon may have unmounted one meanwhile.
fn detach_all(directory: &Path) -> Result<(), HarnessError> {
    let points = mount_table::below(directory)?;
    let detached = points.iter().rev().map(|point| detach(point));
    let detached = detached.fold(Ok(()), Result::and);
    if mount_table::below(directory)?.is_empty() { Ok(()) } else { detached }
}

/// The directory, unless it is gone.
fn opened(directory: &Path) -> Result<Option<File>, HarnessError> {
    match File::open(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).on(directory.display()),
    }
}

/// The directory, locked, if no program uses it: none begins to while it is held.
fn locked(directory: &Path) -> Option<File> {
    let file = File::open(directory).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    directory.is_dir().then_some(file)
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = detach_all(self.path()) {
            // Removal would go through the mount.
            self.directory.disable_cleanup(true);
            eprintln!("{error}; unmount it, and remove {}", self.path().display());
        }
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_place_is_removed_unless_it_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let place = Place::new(parent.path(), "harness-").unwrap();
        place.make_image(1 << 20).unwrap();
        assert_eq!(place.image().metadata().unwrap().len(), 1 << 20);
        place.make_image(1).expect_err("it is there");
        drop(place);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        let kept = Place::new(parent.path(), "harness-").unwrap().keep();
        assert!(kept.join("mnt").is_dir());
    }

    #[test]
    fn places_of_killed_programs_are_removed_and_those_in_use_stay() {
        let parent = tempfile::tempdir().unwrap();
        let in_use = Place::new(parent.path(), "harness-").unwrap();
        let left = Place::new(parent.path(), "harness-").unwrap().keep();
        let other = Place::new(parent.path(), "other-").unwrap().keep();
        let link = parent.path().join("harness-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let removed = Place::remove_left_over(parent.path(), "harness-").unwrap();
        assert_eq!(removed, [left.as_path()]);
        assert!(!left.exists());
        assert!(in_use.path().is_dir() && other.is_dir() && link.is_symlink());
    }

    #[test]
    fn a_mount_in_use_is_gone_with_its_place_where_a_test_panics() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let failed = std::panic::catch_unwind(|| {
            // Dropped after the place.
            let _open;
            let place = Place::new(parent.path(), "harness-").unwrap();
            let mut mount = Command::new("mount");
            crate::run(mount.args(["-t", "tmpfs", "none"]).arg(place.mount_point())).unwrap();
            _open = File::create(place.mount_point().join("file")).unwrap();
            panic!("a test that fails");
        });
        assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"a test that fails"));
        assert!(mount_table::below(parent.path()).unwrap().is_empty());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
