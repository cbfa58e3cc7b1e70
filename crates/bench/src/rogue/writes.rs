//! Writers: at a full limit, in large pieces through the page cache, and directly in small ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::Errno;

use super::setting::{Setting, Step, threads};
use crate::direct::{self, Page, Way};
use crate::error::{BenchError, On};
use crate::places::{BLOCK, Places};

/// Unit of the buffered writes.
const LARGE: usize = 256 << 10;
/// Pieces of a file that is overwritten in turn.
const PIECES: u64 = 4;

/// Each thread appends to a file of its own, and the limit refuses each write.
pub(super) fn at_the_limit<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    // At the limit no file can be made.
    let all = setting.file("fill")?;
    let steps = threads(setting.sizes.threads, |number| {
        let file = setting.file(&format!("limit.{number}"))?;
        let (block, mut end) = (content(BLOCK), 0);
        Ok(move || {
            file.write_all_at(&block, end).on("write")?;
            end += BLOCK as u64;
            Ok(1)
        })
    })?;
    fill_to_the_limit(&all, setting.sizes.limit)?;
    Ok(steps)
}

/// Writes large pieces, then small ones, until the limit refuses both.
fn fill_to_the_limit(file: &File, limit: u64) -> Result<(), BenchError> {
    let mut end = 0;
    for unit in [LARGE, BLOCK] {
        let piece = content(unit);
        while !is_refused(file.write_all_at(&piece, end)).on("filling up to the limit")? {
            end += unit as u64;
            if end > 2 * limit {
                let what = "bytes under the limit";
                return Err(BenchError::Wrong { what, expected: limit, found: end });
            }
        }
    }
    Ok(())
}

fn is_refused(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::DQUOT) => Ok(true),
        other => other.map(|()| false),
    }
}

/// More payload than the daemon may keep dirty, from many threads at once.
pub(super) fn large_and_buffered<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let piece: Arc<[u8]> = content(LARGE).into();
    threads(setting.sizes.writers, |number| {
        let file = setting.file(&format!("dirty.{number}"))?;
        let (piece, mut turn) = (Arc::clone(&piece), 0);
        Ok(move || {
            file.write_all_at(&piece, turn % PIECES * LARGE as u64).on("write")?;
            turn += 1;
            Ok(1)
        })
    })
}

/// Each thread overwrites the blocks of a file of its own.
pub(super) fn small_and_direct<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    threads(setting.sizes.writers, |number| {
        let name = format!("direct.{number}");
        setting.file(&name)?.set_len(PIECES * BLOCK as u64).on("truncate")?;
        let file = direct::open(&setting.path(&name), Way::Write)?;
        let mut page = Box::new(Page([0; BLOCK]));
        let mut places = Places::random(PIECES, number.into());
        Ok(move || {
            places.fill(&mut page.0);
            file.write_all_at(&page.0, places.next_offset()).on("direct write")?;
            Ok(1)
        })
    })
}

/// Bytes without a pattern.
pub(super) fn content(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    Places::random(1, 1).fill(&mut content);
    content
}
