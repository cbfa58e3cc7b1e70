//! One writer on the files of one snapshot.
//!
//! The order is that of fio with one job and a directory of files: a cursor goes round over the
//! files that are not through, and every call, write or fsync, takes the next one. So the fsync
//! after a write is mostly of a file that nobody touched (`Fsync::Next`); `Fsync::Strict` is of the
//! file just written. Within a file each block is written once, in random order. When all files are
//! through it begins again.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use copyhold_harness::Interrupt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::error::{BenchError, On};
use crate::places::BLOCK;

pub(crate) const FILE_BYTES: u64 = 128 << 10;
const BLOCKS: usize = FILE_BYTES as usize / BLOCK;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fsync {
    Next,
    Strict,
}

impl Fsync {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fsync::Next => "next",
            Fsync::Strict => "strict",
        }
    }
}

pub(crate) struct Tenant {
    files: Vec<Kept>,
    /// Files that are not through.
    left: Vec<usize>,
    /// Behind the place in `left` that the last call took.
    cursor: usize,
    fsync: Fsync,
    rng: Xoshiro256PlusPlus,
}

/// A file, open all the time.
struct Kept {
    file: File,
    /// Blocks not yet written, a bit each.
    blocks: u32,
}

const _: () = assert!(BLOCKS == u32::BITS as usize);

/// How long a write and its fsync took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) write: Duration,
    pub(crate) fsync: Duration,
}

impl Tenant {
    pub(crate) fn new(
        directory: &Path,
        files: u32,
        seed: u64,
        fsync: Fsync,
    ) -> Result<Tenant, BenchError> {
        let kept = |index: u32| {
            let path = path_of(directory, index);
            let file = OpenOptions::new().write(true).open(&path).on(path.display())?;
            Ok(Kept { file, blocks: u32::MAX })
        };
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let kept = (0..files).map(kept).collect::<Result<Vec<_>, BenchError>>()?;
        let left = (0..kept.len()).collect();
        Ok(Tenant { files: kept, left, cursor: 0, fsync, rng })
    }

    pub(crate) fn write_and_sync(&mut self) -> Result<Times, BenchError> {
        let mut block = [0; BLOCK];
        for line in block.chunks_exact_mut(64) {
            line[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        }
        let index = self.next_file().unwrap_or_else(|| self.begin_again());
        let at = self.take_block(index) * BLOCK as u64;
        let began = Instant::now();
        self.files[index].file.write_all_at(&block, at).on("write")?;
        let written = Instant::now();
        let synced = match self.fsync {
            Fsync::Strict => index,
            Fsync::Next => self.next_file().unwrap_or(index),
        };
        self.files[synced].file.sync_all().on("fsync")?;
        Ok(Times { write: written - began, fsync: written.elapsed() })
    }

    /// The file of the next call; `None` when all are through.
    fn next_file(&mut self) -> Option<usize> {
        self.cursor = if self.cursor < self.left.len() { self.cursor } else { 0 };
        let next = self.left.get(self.cursor).copied();
        self.cursor += 1;
        next
    }

    fn begin_again(&mut self) -> usize {
        self.files.iter_mut().for_each(|file| file.blocks = u32::MAX);
        self.left = (0..self.files.len()).collect();
        self.cursor = 1;
        0
    }

    /// A random one of the blocks that the file under the cursor has left.
    fn take_block(&mut self, index: usize) -> u64 {
        let blocks = &mut self.files[index].blocks;
        let skip = self.rng.next_u64() % u64::from(blocks.count_ones());
        let mut left = *blocks;
        for _ in 0..skip {
            left &= left - 1;
        }
        let block = left.trailing_zeros();
        *blocks &= !(1 << block);
        if *blocks == 0 {
            self.cursor -= 1;
            self.left.remove(self.cursor);
        }
        u64::from(block)
    }
}

/// Makes the files of the original: 4 KiB writes one after another, no fsync.
pub(crate) fn fill(directory: &Path, files: u32, interrupt: &Interrupt) -> Result<(), BenchError> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut block = [0; BLOCK];
    for index in 0..files {
        interrupt.check()?;
        let path = path_of(directory, index);
        let file = File::create_new(&path).on(path.display())?;
        for number in 0..BLOCKS as u64 {
            rng.fill_bytes(&mut block);
            file.write_all_at(&block, number * BLOCK as u64).on("filling the files")?;
        }
    }
    Ok(())
}

/// Copies all files; where the filesystem can, they share their data.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    for entry in fs::read_dir(from).on(from.display())? {
        let entry = entry.on(from.display())?;
        fs::copy(entry.path(), to.join(entry.file_name())).on("copying")?;
    }
    Ok(())
}

fn path_of(directory: &Path, index: u32) -> PathBuf {
    directory.join(format!("file.{index:06}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(directory: &Path, fsync: Fsync) -> Tenant {
        fill(directory, 4, &Interrupt::never()).unwrap();
        Tenant::new(directory, 4, 1, fsync).unwrap()
    }

    #[test]
    fn every_block_is_written_once_and_then_it_begins_again() {
        for fsync in [Fsync::Next, Fsync::Strict] {
            let directory = tempfile::tempdir().unwrap();
            let mut tenant = tenant(directory.path(), fsync);
            let before: Vec<_> =
                (0..4).map(|index| fs::read(path_of(directory.path(), index)).unwrap()).collect();
            for _ in 0..4 * BLOCKS {
                tenant.write_and_sync().unwrap();
            }
            for (index, before) in before.iter().enumerate() {
                assert_eq!(tenant.files[index].blocks, 0);
                let after = fs::read(path_of(directory.path(), index as u32)).unwrap();
                let mut blocks = before.chunks(BLOCK).zip(after.chunks(BLOCK));
                assert!(blocks.all(|(before, after)| before != after));
            }
            tenant.write_and_sync().unwrap();
        }
    }

    #[test]
    fn calls_go_round_over_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let mut next = tenant(directory.path(), Fsync::Next);
        // Writes go to files 0 and 2 until they are through, fsyncs to the others.
        for _ in 0..2 * BLOCKS {
            next.write_and_sync().unwrap();
        }
        let left: Vec<_> = next.files.iter().map(|file| file.blocks.count_ones()).collect();
        assert_eq!(left, [0, 32, 0, 32]);
    }
}
