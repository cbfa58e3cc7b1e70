//! A directory with room for an image and a mount point.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{HarnessError, On};
use crate::{detach, mount_table};

/// Dropping it detaches all mounts in the directory, and removes the directory.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
}

impl Place {
    /// A new directory in `parent` whose name begins with `prefix`, with an empty mount point.
    pub fn new(parent: &Path, prefix: &str) -> Result<Place, HarnessError> {
        let canonical = parent.canonicalize().on(parent.display())?;
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(canonical);
        let place = Place { directory: directory.on(parent.display())? };
        fs::create_dir(place.mount_point()).on("the mount point")?;
        Ok(place)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
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

    /// Newest first: a mount may be in another. A daemon may have unmounted one meanwhile.
    fn detach_all(&self) -> Result<(), HarnessError> {
        let points = mount_table::below(self.path())?;
        let detached = points.iter().rev().map(|point| detach(point));
        let detached = detached.fold(Ok(()), Result::and);
        if mount_table::below(self.path())?.is_empty() { Ok(()) } else { detached }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.detach_all() {
            // Removal would go through the mount.
            self.directory.disable_cleanup(true);
            eprintln!("{error}; unmount it, and remove {}", self.path().display());
        }
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
