//! Copy: copy_file_range of all of a huge sparse file, with a little data in it.
//!
//! Each call asks for all that is left, and the filesystem decides how much it does at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::copy_file_range;

use super::setting::{Setting, Step, threads};
use super::writes::content;
use crate::error::{BenchError, On};
use crate::places::BLOCK;

/// Blocks of data, evenly spread.
const BLOCKS: u64 = 1024;

pub(super) fn of_a_sparse_file<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let size = setting.sizes.copy;
    let source = setting.file("sparse")?;
    fill(&source, size)?;
    let source = Arc::new(source);
    threads(setting.sizes.workers, |number| {
        let (source, target) = (Arc::clone(&source), setting.file(&format!("copy.{number}"))?);
        let mut done = 0;
        Ok(move || {
            if done == size {
                target.set_len(0).on("truncate")?;
                done = 0;
            }
            done += copy_rest(&source, &target, done, size)?;
            Ok(1)
        })
    })
}

fn fill(source: &File, size: u64) -> Result<(), BenchError> {
    let block = content(BLOCK);
    let apart = (size / BLOCKS).next_multiple_of(BLOCK as u64);
    source.set_len(size).on("truncate")?;
    for at in (0..size).step_by(apart as usize) {
        source.write_all_at(&block, at).on("write")?;
    }
    source.sync_all().on("fsync")
}

/// Copies from `done` on; how many bytes the filesystem did.
fn copy_rest(source: &File, target: &File, done: u64, size: u64) -> Result<u64, BenchError> {
    let (mut from, mut to, left) = (done, done, size - done);
    let copied = copy_file_range(source, Some(&mut from), target, Some(&mut to), left as usize);
    match copied.on("copy_file_range")? {
        0 => Err(BenchError::Wrong { what: "bytes copied", expected: left, found: 0 }),
        copied => Ok(copied as u64),
    }
}
