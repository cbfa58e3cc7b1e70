//! List: a huge directory, listed again and again with a stat of each entry.
//!
//! The kernel would answer most of these from its caches. Each stat asks for attributes of the
//! filesystem itself (`AT_STATX_FORCE_SYNC`), as a rogue can.

use std::fs::{self, File, ReadDir};
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

pub(super) fn of_a_huge_directory<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let path = setting.path("huge");
    fs::create_dir(&path).on(path.display())?;
    for number in 0..setting.sizes.entries {
        setting.file(&format!("huge/{number:08}"))?;
    }
    threads(setting.sizes.workers, |_| {
        let path = path.clone();
        let opened = File::open(&path).on(path.display())?;
        let mut listing = None;
        Ok(move || stat_next(&path, &opened, &mut listing))
    })
}

/// Stats the next entry. Behind the last one the listing begins again.
fn stat_next(path: &Path, opened: &File, listing: &mut Option<ReadDir>) -> Result<u64, BenchError> {
    let mut entries = match listing.take() {
        Some(entries) => entries,
        None => fs::read_dir(path).on("opendir")?,
    };
    if let Some(entry) = entries.next() {
        let name = entry.on("readdir")?.file_name();
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC;
        statx(opened, &name, flags, StatxFlags::BASIC_STATS).on("statx")?;
        *listing = Some(entries);
    }
    Ok(1)
}
