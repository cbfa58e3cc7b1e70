//! Punch: holes of one block, each punched into data and filled again later.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

use super::setting::{Setting, Step, threads};
use super::writes::content;
use crate::error::{BenchError, On};
use crate::places::BLOCK;

/// Blocks of a file: 4 MiB.
const BLOCKS: u64 = 1024;

pub(super) fn punched<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    threads(setting.sizes.workers, |number| {
        let file = setting.file(&format!("holes.{number}"))?;
        let all = content(BLOCKS as usize * BLOCK);
        file.write_all_at(&all, 0).on("write")?;
        let mut turn = 0;
        Ok(move || {
            let block = turn % BLOCKS;
            punch(&file, block)?;
            // The block half a file behind becomes data again.
            let behind = (block + BLOCKS / 2) % BLOCKS * BLOCK as u64;
            file.write_all_at(&all[..BLOCK], behind).on("write")?;
            turn += 1;
            Ok(2)
        })
    })
}

fn punch(file: &File, block: u64) -> Result<(), BenchError> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, flags, block * BLOCK as u64, BLOCK as u64).on("punching a hole")
}
