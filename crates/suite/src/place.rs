//! Room for one filesystem: a directory with an image and a mount point, given back whatever
//! happens.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{On, SuiteError};
use crate::outcome::run;

pub(crate) struct Place {
    directory: tempfile::TempDir,
    /// What must be done before the directory can go, newest last.
    undo: RefCell<Vec<Command>>,
}

impl Place {
    /// In `parent`, with a sparse image of `bytes`.
    pub(crate) fn new(parent: &Path, bytes: u64) -> Result<Place, SuiteError> {
        let directory = tempfile::Builder::new()
            .prefix("copyhold-scenario-")
            .tempdir_in(parent)
            .on(parent.display())?;
        let place = Place { directory, undo: RefCell::default() };
        fs::create_dir(place.mount_point()).on("the mount point")?;
        let image = File::create_new(place.image()).on("the image")?;
        image.set_len(bytes).on("the image")?;
        Ok(place)
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn undo_with(&self, command: Command) {
        self.undo.borrow_mut().push(command);
    }

    /// Runs what undoes the newest thing, now.
    pub(crate) fn undo_last(&self) -> Result<(), SuiteError> {
        let last = self.undo.borrow_mut().pop();
        last.map_or(Ok(()), |mut command| run(&mut command).map(drop))
    }

    /// Undoes everything; dropping does the same, but has nobody to tell.
    pub(crate) fn undo_all(&self) -> Result<(), SuiteError> {
        let mut first_failure = Ok(());
        while !self.undo.borrow().is_empty() {
            let undone = self.undo_last();
            first_failure = first_failure.and(undone);
        }
        first_failure
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.undo_all() {
            eprintln!("copyhold-scenarios: cleaning up: {error}");
        }
    }
}
