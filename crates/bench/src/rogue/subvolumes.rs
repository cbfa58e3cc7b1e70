//! Snapshots: a rogue that makes snapshots of its subvolume, writes between them, and deletes them.

use std::os::unix::fs::FileExt;

use super::setting::{Setting, Step, threads};
use super::writes::content;
use crate::error::{BenchError, On};
use crate::places::BLOCK;
use crate::snapshots::ioctl::Control;

/// Blocks of the file that differs in each snapshot.
const BLOCKS: u64 = 256;

pub(super) fn made_and_deleted<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    threads(setting.sizes.workers, |number| {
        let file = setting.file(&format!("changed.{number}"))?;
        file.write_all_at(&content(BLOCKS as usize * BLOCK), 0).on("write")?;
        let control = Control::open(setting.kind, setting.directory)?;
        let (source, block) = (setting.directory.to_owned(), content(BLOCK));
        let mut turn = 0;
        Ok(move || {
            // A name of its own each time: after a failed deletion the next snapshot succeeds.
            let name = format!("snapshot.{number}.{turn}");
            file.write_all_at(&block, turn % BLOCKS * BLOCK as u64).on("write")?;
            turn += 1;
            control.snapshot(&source, &name)?;
            control.delete(&name)?;
            Ok(3)
        })
    })
}
