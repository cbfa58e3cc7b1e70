//! A disk image in a file, and the versions that each of its blocks may show.
//!
//! SOAKDISK-V1  `promised` <= `newest`. Without a crash a block shows exactly `newest`; behind one,
//!              any version from `promised` on, but none that was never written there.
//! SOAKDISK-V2  A block reads as zeros only if it was punched, at the version `hole`; 0 is where
//!              all begin.
//! SOAKDISK-V3  A clone is a copy of both: the snapshot has all that its source had accepted, so
//!              behind a crash it shows `newest`, or is not there at all.
//! SOAKDISK-V4  A write that is refused may have been done in part: the block says what it shows.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use copyhold_torture::content::{BLOCK, Token, block, token};
use rustix::fs::{FallocateFlags, fallocate};

/// Blocks that one read of a verification takes.
const AT_ONCE: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
struct LoopDiskState {
    promised: u32,
    newest: u32,
    hole: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// Of the tenant: its clones show what it wrote.
    family: u8,
    blocks: Vec<LoopDiskState>,
    /// Blocks with something newer than what is promised.
    pending: Vec<u32>,
}

impl Disk {
    pub(crate) fn new(family: u8, blocks: usize) -> Disk {
        Disk { family, blocks: vec![LoopDiskState::default(); blocks], pending: Vec::new() }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    }

    /// SOAKDISK-V3.
    pub(crate) fn cloned(&self) -> Disk {
        let mut clone = self.clone();
        clone.promise();
        clone
    }

    /// After a successful fsync a crash keeps the newest version of each block.
    pub(crate) fn promise(&mut self) {
        for number in self.pending.drain(..) {
            let state = &mut self.blocks[number as usize];
            state.promised = state.newest;
        }
    }

    pub(crate) fn write(
        &mut self,
        file: &File,
        range: Range<usize>,
        version: u32,
    ) -> io::Result<()> {
        let bytes = range.clone().flat_map(|number| block(self.token(number, version)));
        let bytes: Vec<u8> = bytes.collect();
        let before = self.note(range.clone(), version);
        let written = file.write_all_at(&bytes, (range.start * BLOCK) as u64);
        written.or_else(|error| self.refused(file, range, &before, error))
    }

    pub(crate) fn punch(
        &mut self,
        file: &File,
        range: Range<usize>,
        version: u32,
    ) -> io::Result<()> {
        let before = self.note(range.clone(), version);
        self.blocks[range.clone()].iter_mut().for_each(|state| state.hole = version);
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = ((range.start * BLOCK) as u64, (range.len() * BLOCK) as u64);
        let punched = fallocate(file.as_fd(), how, start, len).map_err(io::Error::from);
        punched.or_else(|error| self.refused(file, range, &before, error))
    }

    /// Without a crash a block shows what was written last.
    pub(crate) fn read(&self, file: &File, range: Range<usize>) -> io::Result<()> {
        let shown = tokens(file, range.clone())?;
        for (number, shown) in range.zip(shown) {
            let state = self.blocks[number];
            self.expect(number, shown, LoopDiskState { promised: state.newest, ..state })?;
        }
        Ok(())
    }

    /// Behind a crash: what each block shows is what it has from now on.
    pub(crate) fn verify(&mut self, file: &File) -> io::Result<()> {
        self.pending.clear();
        for start in (0..self.blocks.len()).step_by(AT_ONCE) {
            let range = start..self.blocks.len().min(start + AT_ONCE);
            let shown = tokens(file, range.clone())?;
            for (number, shown) in range.zip(shown) {
                let version = self.expect(number, shown, self.blocks[number])?;
                let state = &mut self.blocks[number];
                (state.promised, state.newest) = (version, version);
            }
        }
        Ok(())
    }

    fn token(&self, number: usize, version: u32) -> Token {
        u64::from(self.family) << 56 | (number as u64) << 32 | u64::from(version)
    }

    /// The version that `shown` is, if `state` allows it.
    fn expect(&self, number: usize, shown: Option<Token>, state: LoopDiskState) -> io::Result<u32> {
        let version = match shown {
            Some(0) => Some(state.hole),
            Some(token) if token >> 32 == self.token(number, 0) >> 32 => Some(token as u32),
            _ => None,
        };
        let allowed = state.promised..=state.newest;
        version.filter(|version| allowed.contains(version)).ok_or_else(|| {
            let token = shown.map_or("a mixture".into(), |token| format!("{token:#x}"));
            io::Error::other(format!(
                "block {number} of family {} shows {token}; versions {allowed:?} are allowed, and \
                 zeros of version {}",
                self.family, state.hole
            ))
        })
    }

    /// The states before `version`.
    fn note(&mut self, range: Range<usize>, version: u32) -> Vec<LoopDiskState> {
        let before = self.blocks[range.clone()].to_vec();
        self.pending.extend(range.clone().map(|number| number as u32));
        self.blocks[range].iter_mut().for_each(|state| state.newest = version);
        before
    }

    /// SOAKDISK-V4. Passes the error on.
    fn refused(
        &mut self,
        file: &File,
        range: Range<usize>,
        before: &[LoopDiskState],
        error: io::Error,
    ) -> io::Result<()> {
        if !is_full(&error) {
            return Err(error);
        }
        let shown = tokens(file, range.clone())?;
        for ((number, shown), before) in range.zip(shown).zip(before) {
            let now = self.blocks[number];
            let done = self.expect(number, shown, LoopDiskState { promised: now.newest, ..now });
            if done.is_err() {
                self.expect(number, shown, LoopDiskState { promised: before.newest, ..*before })?;
                self.blocks[number] = *before;
            }
        }
        Err(error)
    }
}

/// Whether there was no space for it.
pub(crate) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

/// The token of each block; blocks behind the file's end are zeros.
fn tokens(file: &File, range: Range<usize>) -> io::Result<Vec<Option<Token>>> {
    let mut bytes = vec![0; range.len() * BLOCK];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], (range.start * BLOCK + filled) as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    Ok(bytes.chunks(BLOCK).map(token).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (File, Disk) {
        (tempfile::tempfile().unwrap(), Disk::new(7, 8))
    }

    #[test]
    fn a_block_shows_what_was_promised_or_anything_later() {
        let (file, mut disk) = disk();
        disk.write(&file, 0..4, 1).unwrap();
        disk.promise();
        let mut crashed = disk.clone();
        crashed.note(1..2, 5);
        crashed.clone().verify(&file).expect("the write of version 5 was lost");
        crashed.promise();
        crashed.verify(&file).expect_err("it was promised");
    }

    #[test]
    fn a_block_never_shows_another_block_nor_zeros_that_were_not_punched() {
        let (file, mut disk) = disk();
        disk.write(&file, 0..4, 1).unwrap();
        disk.promise();
        file.write_all_at(&block(disk.token(2, 1)), 3 * BLOCK as u64).unwrap();
        disk.clone().verify(&file).expect_err("block 3 shows block 2");
        disk.write(&file, 3..4, 2).unwrap();
        disk.read(&file, 0..8).unwrap();
        file.write_all_at(&block(0), 0).unwrap();
        disk.clone().verify(&file).expect_err("zeros");
        disk.punch(&file, 0..1, 3).unwrap();
        disk.verify(&file).unwrap();
    }

    #[test]
    fn a_clone_shows_all_that_its_source_had() {
        let (file, mut disk) = disk();
        disk.write(&file, 0..8, 1).unwrap();
        let mut clone = disk.cloned();
        file.set_len(0).unwrap();
        disk.verify(&file).expect("nothing was promised");
        clone.verify(&file).expect_err("a snapshot has everything");
    }
}
