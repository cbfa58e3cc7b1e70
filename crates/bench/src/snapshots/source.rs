//! The subvolume that is snapshotted, and its changes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use copyhold_harness::Interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::error::{BenchError, On};
use crate::places::BLOCK;

pub(super) const FILE_BYTES: u64 = BLOCK as u64;
const FILES_A_DIRECTORY: u32 = 1000;

pub(super) struct Source {
    root: PathBuf,
    files: u32,
    changes: u32,
    rng: Xoshiro256PlusPlus,
}

impl Source {
    /// `changes`: of how many files a block changes at a time.
    pub(super) fn new(root: &Path, files: u32, changes: u32, seed: u64) -> Source {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Source { root: root.to_owned(), files, changes, rng }
    }

    /// Overwrites random files; durable when it returns.
    pub(super) fn change(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.changes {
            let index = (self.rng.next_u64() % u64::from(self.files)) as u32;
            let path = path_of(&self.root, index);
            let file = OpenOptions::new().write(true).open(&path).on(path.display())?;
            write_block(&file, &mut self.rng)?;
            file.sync_all().on("fsync")?;
        }
        Ok(())
    }
}

/// Makes the files, each of a block.
pub(super) fn fill(root: &Path, files: u32, interrupt: &Interrupt) -> Result<(), BenchError> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for index in 0..files {
        let path = path_of(root, index);
        if index % FILES_A_DIRECTORY == 0 {
            interrupt.check()?;
            let directory = path.parent().expect("it is in a directory");
            fs::create_dir(directory).on(directory.display())?;
        }
        write_block(&File::create_new(&path).on(path.display())?, &mut rng)?;
    }
    Ok(())
}

fn write_block(file: &File, rng: &mut Xoshiro256PlusPlus) -> Result<(), BenchError> {
    let mut block = [0; BLOCK];
    rng.fill_bytes(&mut block);
    file.write_all_at(&block, 0).on("write")
}

fn path_of(root: &Path, index: u32) -> PathBuf {
    let (directory, name) = (index / FILES_A_DIRECTORY, index % FILES_A_DIRECTORY);
    root.join(format!("{directory}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_of_as_many_files_as_were_asked_for_and_of_their_size() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), 1001, &Interrupt::never()).unwrap();
        let contents = || {
            let read = |index| fs::read(path_of(directory.path(), index)).unwrap();
            (0..1001).map(read).collect::<Vec<_>>()
        };
        let before = contents();
        Source::new(directory.path(), 1001, 5, 1).change().unwrap();
        let after = contents();
        assert!(after.iter().all(|content| content.len() == BLOCK));
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!((1..=5).contains(&changed), "{changed}");
    }
}
