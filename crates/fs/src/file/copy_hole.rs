//! Holes in copy_file_range: a step copies a hole of any length.
//!
//! Problem.  A sparse file may have holes of exbibytes. A copy that reads and writes them block by
//!           block takes weeks, and fills the pool with zeros.
//! Idea.     The extent map has the end of the hole. The target's range becomes a hole, too: its
//!           extents are removed, and behind its end only the size changes.
//!
//! The hole is looked up before the target is locked, as data is read before it is written: a copy
//! is not atomic against writes to its source.

use std::ops::Range;
use std::sync::Arc;

use copyhold_format::item::{Extent, ExtentState};
use copyhold_pool::Tier;
use copyhold_types::BLOCK_BYTES;

use super::extents::CHUNK;
use super::write::FILE_BYTES_MAX;
use crate::inode::{Inode, InodeRef};
use crate::permit::way_of_copy;
use crate::promise::Take;
use crate::{Filesystem, FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Preallocated extents that one look-up skips: they are holes, too.
const PREALLOCATED_MAX: usize = 256;

/// The bytes of the hole at `offset`, at most `len`; 0 if the file has content there, or ends.
pub(super) async fn hole_at(fs: &Filesystem, inode: &Inode, offset: u64, len: u64) -> Result<u64> {
    let _shared = inode.lock.read().await;
    let _map = inode.map.read().await;
    let first = offset / BLOCK;
    let (end, pending, cut) = {
        let state = inode.state();
        let end = state.shown.size.min(offset.saturating_add(len));
        let cut = state.data.cut.block();
        let pending = match first == 0 && cut > 0 && state.is_inline() {
            true => Some(0),
            false => state.data.blocks.range(first..).next().map(|(&block, _)| block),
        };
        (end, pending, cut)
    };
    if end <= offset {
        return Ok(0);
    }
    let last = end.div_ceil(BLOCK).min(pending.unwrap_or(u64::MAX));
    let counted = last.min(cut);
    let until = match first < counted {
        true => first_content(fs, inode, first..counted).await?.unwrap_or(last),
        false => last,
    };
    // An extent may reach beyond the range, over a block that is dirty.
    let until = until.min(last);
    Ok((until * BLOCK).min(end).saturating_sub(offset))
}

/// The first block of `range` with content, or the block up to which preallocated extents were
/// skipped; `None` if all of it is a hole.
async fn first_content(fs: &Filesystem, inode: &Inode, range: Range<u64>) -> Result<Option<u64>> {
    for limit in [1, PREALLOCATED_MAX] {
        let extents = fs.extents(inode, range.clone(), limit).await?;
        if let Some((start, _)) = extents.iter().find(|(_, extent)| has_content(extent)) {
            return Ok(Some(range.start.max(*start)));
        }
        match extents.last() {
            Some((start, extent)) if extents.len() == PREALLOCATED_MAX => {
                return Ok(Some(start + u64::from(extent.blocks())));
            }
            Some(_) if limit == 1 => {}
            _ => return Ok(None),
        }
    }
    Ok(None)
}

fn has_content(extent: &Extent) -> bool {
    extent.state != ExtentState::Unwritten
}

/// The bytes from `offset` on before the next hole of a chunk or more, at most `len`, and more than
/// none.
pub(super) async fn content_at(
    fs: &Filesystem,
    inode: &Inode,
    offset: u64,
    len: u64,
) -> Result<u64> {
    let _shared = inode.lock.read().await;
    let first = offset / BLOCK;
    let blocks = fs.data_blocks(inode, first, offset.saturating_add(len).div_ceil(BLOCK)).await?;
    let mut hole = 0;
    for (n, is_data) in blocks.iter().enumerate() {
        hole = if *is_data { 0 } else { hole + 1 };
        let begins = (n + 1 - hole) as u64;
        if begins > 0 && (hole as u64 == CHUNK || (hole > 0 && n + 1 == blocks.len())) {
            return Ok((first + begins) * BLOCK - offset);
        }
    }
    Ok(len)
}

/// Makes the target read as zeros in the `len` bytes from `offset` on. Returns the bytes that one
/// step of bounded work has reached.
pub(super) async fn copy_hole(
    fs: &Arc<Filesystem>,
    target: &InodeRef,
    offset: u64,
    len: u64,
) -> Result<u64> {
    fs.permit_in(&target.subvol)?;
    fs.pool_runs()?;
    if offset >= FILE_BYTES_MAX {
        return Err(FsError::FileTooBig { max: FILE_BYTES_MAX });
    }
    let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
    let _data = target.lock.write().await;
    let size = {
        let state = target.state();
        state.permit(way_of_copy(fs, offset, state.shown.size))?;
        state.shown.size
    };
    fs.settle_cut(target, Take::Zeros).await?;
    let reached = zero_and_extend(fs, target, offset..end, size).await;
    {
        // A refused step may have begun.
        let now = fs.now();
        let mut state = target.state();
        target.subvol.writable()?;
        fs.has_written(target, &mut state);
        state.content_changes(now);
    }
    fs.note_dirty(target);
    Ok(reached? - offset)
}

async fn zero_and_extend(
    fs: &Arc<Filesystem>,
    target: &InodeRef,
    range: Range<u64>,
    size: u64,
) -> Result<u64> {
    let reached = zero_step(fs, target, range, size).await?;
    if reached > size {
        let room = fs.room_for_size(target, 0, Tier::Change).await?;
        fs.extend(target, size, reached).await?;
        target.state().data.keep_room(room);
    }
    Ok(reached)
}

/// Zeros the beginning of `range` in a file of `size` bytes: a part of a block, or whole blocks,
/// which become holes. Returns the position reached.
async fn zero_step(
    fs: &Arc<Filesystem>,
    inode: &InodeRef,
    range: Range<u64>,
    size: u64,
) -> Result<u64> {
    let first = range.start / BLOCK;
    // A block that reaches behind the end of the file is whole if the range covers its bytes.
    let whole_end = match range.end >= size {
        true => range.end.div_ceil(BLOCK),
        false => range.end / BLOCK,
    };
    if range.start.is_multiple_of(BLOCK) && first < whole_end {
        let reached = fs.punch_step(inode, first..whole_end).await?;
        return Ok((reached * BLOCK).min(range.end));
    }
    let part = range.start..range.end.min((first + 1) * BLOCK);
    if part.start < size
        && let Some(slot) = fs.zeroed_part(inode, part.clone(), size).await?
    {
        fs.insert_blocks(inode, vec![slot], 0, Take::Zeros).await?;
    }
    Ok(part.end)
}
