//! Mmap: a shared mapping of a file, of which each page is written before an msync.
#![allow(unsafe_code)]

use std::fs::File;
use std::ptr;

use copyhold_harness::Interrupt;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};
use crate::places::BLOCK;

pub(super) fn dirtied<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let (bytes, stop) = (setting.sizes.mapping as usize, setting.stop);
    threads(1, |_| {
        let file = setting.file("mapped")?;
        file.set_len(bytes as u64).on("truncate")?;
        let mut mapping = Mapping::of(&file, bytes)?;
        let mut turn = 0_u8;
        Ok(move || {
            turn = turn.wrapping_add(1);
            mapping.dirty(turn, stop);
            mapping.sync()?;
            Ok(1)
        })
    })
}

/// `bytes` of a file, from its beginning. No other process has the file.
struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, and one thread at a time has the value.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(file: &File, bytes: usize) -> Result<Mapping, BenchError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses free addresses.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, 0) }.on("mmap")?;
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// Writes a byte of each page.
    fn dirty(&mut self, value: u8, stop: &Interrupt) {
        for at in (0..self.bytes).step_by(BLOCK) {
            if stop.is_set() {
                return;
            }
            // SAFETY: `at` is within the mapping, which lasts as long as `self`, and the file has
            // that size.
            unsafe { self.start.add(at).write_volatile(value) };
        }
    }

    fn sync(&self) -> Result<(), BenchError> {
        // SAFETY: these are the addresses of the mapping.
        unsafe { msync(self.start.cast(), self.bytes, MsyncFlags::SYNC) }.on("msync")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these are the addresses of the mapping, and no reference to them exists.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
