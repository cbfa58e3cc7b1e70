//! copy_file_range: whole blocks are shared, the rest is read and written.
//!
//! Sharing adds a further reference to the source's extents (a reflink), within a subvolume and
//! across: nothing is copied, and the payer of an extent stays the same. Only installed extents
//! can be shared, so dirty data of the range is installed first; where it is dirty again, where a
//! block is not whole, or where content lives in an item, bytes are copied.
//!
//! COPY-Y1  The source's map is held from the look-up of its extents until the shares are applied:
//!          they cannot go meanwhile (R44). Locks of the two files are taken in the order of their
//!          numbers.
//! COPY-Y2  The block at the source's end may be shared if it becomes the target's end: bytes
//!          behind the end mean nothing on disk (R36).

use std::sync::Arc;

use copyhold_format::item::{Extent, ExtentState};
use copyhold_pool::{Tier, Transaction};
use copyhold_types::{BLOCK_BYTES, Pointer, Run};

use super::extent_map::{MapEdit, extent_bytes};
use super::extents::{CHUNK, Extents};
use super::install::count_blocks;
use crate::inode::InodeRef;
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::{Caller, Filesystem, FsError, NodeId, Result, Sabotage, WriteFlags};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of one step that copies.
const STEP: u64 = 1 << 20;
/// Blocks of one step that shares (R28).
const SHARE_BLOCKS: u64 = 2048;
/// Extents of one step that shares.
const SHARE_EXTENTS: usize = 96;

/// An extent of the source where the target is to have it.
struct Piece {
    at: u64,
    extent: Extent,
}

impl Filesystem {
    /// Bytes copied: fewer than `len` only at the source's end, or where a later step failed. For a
    /// caller that may leave privileges on the files it changes.
    pub async fn copy_file_range(
        self: &Arc<Self>,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let (from, to) = ((from, from_offset), (to, to_offset));
        self.copy_file_range_by(&Caller::ROOT, from, to, len).await
    }

    /// As [`Self::copy_file_range`], between nodes and offsets in them; takes setuid, setgid and
    /// capabilities away from the target unless `caller` is privileged.
    pub async fn copy_file_range_by(
        self: &Arc<Self>,
        caller: &Caller,
        (from, from_offset): (NodeId, u64),
        (to, to_offset): (NodeId, u64),
        len: u64,
    ) -> Result<u64> {
        self.writable()?;
        let (source, target) = (self.inode(from).await?, self.inode(to).await?);
        source.expect_file()?;
        target.expect_file()?;
        let way = self.way_of_copy(to_offset, target.state().shown.size);
        self.permit(&target, way)?;
        let overlap = from_offset.abs_diff(to_offset) < len;
        if from == to && overlap && len > 0 {
            return Err(FsError::Invalid("source and target overlap"));
        }
        if len > 0 && !caller.is_privileged() {
            Box::pin(self.strip_privileges(&target, Some(caller))).await?;
        }
        let copied = self.copy_steps(&source, from_offset, &target, to_offset, len).await?;
        if copied > 0 && !self.breaks(Sabotage::CopyUnsynced) {
            self.content_changed(&target).await?;
        }
        Ok(copied)
    }

    /// The permission that a copy to `offset` in a file of `size` bytes needs.
    fn way_of_copy(&self, offset: u64, size: u64) -> Way {
        match self.breaks(Sabotage::CopyUnasked) {
            true => Way::Accepted,
            false => Way::content(offset, size),
        }
    }

    async fn copy_steps(
        self: &Arc<Self>,
        source: &InodeRef,
        from_offset: u64,
        target: &InodeRef,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let mut copied = 0;
        while copied < len {
            let (at, to_at, rest) = (from_offset + copied, to_offset + copied, len - copied);
            let shared = match self.share_step(source, at, target, to_at, rest).await {
                Ok(0) => {
                    let step = rest.min(STEP - at % BLOCK) as usize;
                    Box::pin(self.copy_step(source.node, at, target, to_at, step)).await
                }
                other => other,
            };
            match shared {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(copied)
    }

    async fn copy_step(
        self: &Arc<Self>,
        from: NodeId,
        from_offset: u64,
        target: &InodeRef,
        to_offset: u64,
        len: usize,
    ) -> Result<u64> {
        let data = self.read(from, from_offset, len).await?;
        let mut at = to_offset;
        for slice in data.slices() {
            let flags = WriteFlags { partial: true, ..WriteFlags::default() };
            let taken = self.write_part(target, at, slice, flags).await;
            let taken = match taken {
                Err(refused) if at > to_offset && refused.is_full() => break,
                taken => taken?,
            };
            at += taken as u64;
            if taken < slice.len() {
                break;
            }
        }
        Ok(at - to_offset)
    }

    /// Bytes that could be shared; 0: the next ones are to be copied.
    async fn share_step(
        self: &Arc<Self>,
        source: &InodeRef,
        from_offset: u64,
        target: &InodeRef,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let (from, to) = (source.node, target.node);
        if from == to || !from_offset.is_multiple_of(BLOCK) || !to_offset.is_multiple_of(BLOCK) {
            return Ok(0);
        }
        self.permit_in(&target.subvol)?;
        if shareable(source, from_offset, target, to_offset, len) < BLOCK {
            return Ok(0);
        }
        self.write_through(source, false).await?;
        self.write_through(target, false).await?;
        let (low, high) = if from < to { (source, target) } else { (target, source) };
        let is_source = |inode: &InodeRef| inode.node == from;
        let _low = match is_source(low) {
            true => (Some(low.lock.read().await), None),
            false => (None, Some(low.lock.write().await)),
        };
        let _high = match is_source(high) {
            true => (Some(high.lock.read().await), None),
            false => (None, Some(high.lock.write().await)),
        };
        let _low_map = match is_source(low) {
            true => (Some(low.map.read().await), None),
            false => (None, Some(low.map.write().await)),
        };
        let _high_map = match is_source(high) {
            true => (Some(high.map.read().await), None),
            false => (None, Some(high.map.write().await)),
        };
        let bytes = shareable(source, from_offset, target, to_offset, len);
        self.share(source, from_offset / BLOCK, target, to_offset, bytes).await
    }

    /// Shares the source's extents in `bytes` bytes from `first` on. The caller holds all locks of
    /// both files.
    async fn share(
        self: &Arc<Self>,
        source: &InodeRef,
        first: u64,
        target: &InodeRef,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        let mut blocks = bytes.div_ceil(BLOCK);
        let found = self.extents(source, first..first + blocks, SHARE_EXTENTS + 1).await?;
        if found.len() > SHARE_EXTENTS {
            blocks = found[SHARE_EXTENTS].0 - first;
        }
        let bytes = bytes.min(blocks * BLOCK);
        let to = to_offset / BLOCK;
        let clean = |inode: &InodeRef, from: u64| {
            let state = inode.state();
            let dirty = state.data.blocks.range(from..from + blocks).next().is_some();
            !dirty && state.data.cut.size().is_none() && !state.is_inline()
        };
        if bytes == 0 || !clean(source, first) || !clean(target, to) || !reaches(target, to) {
            return Ok(0);
        }
        let pieces = pieces(found, first, blocks, to);
        let mut edit = MapEdit::default();
        edit.load(self.extents(target, to..to + blocks, usize::MAX >> 1).await?);
        let runs: Vec<Run> = pieces.iter().map(|piece| piece.extent.pointer.run).collect();
        let items: usize = pieces.iter().map(|p| KEY_BYTES + extent_bytes(p.extent.blocks())).sum();
        let edits = 2 * edit.len() + 5 * pieces.len() + 1;
        let cost = edit.edit_bytes() + items + pieces.len() * 160 + INODE_BYTES;
        let (wanted, releases) = ((edits, cost), edit.len());
        let credit = self.credit_to_release(&target.subvol, Tier::Write, wanted, releases).await?;
        let mut credit = Some(credit);
        let mut work = Some((edit, pieces));
        loop {
            let unread = {
                let mut state = target.state();
                state.expect_present()?;
                state.permit(self.way_of_copy(to_offset, state.shown.size))?;
                let now = self.now();
                let mut item = state.next_item();
                let build = |epoch| {
                    let (mut edit, pieces) = work.take().expect("it is built once");
                    edit.remove(to..to + blocks);
                    for Piece { at, extent } in pieces {
                        let pointer = Pointer { epoch, ..extent.pointer };
                        edit.add(at, Extent { pointer, ..extent });
                    }
                    let change = edit.finish();
                    let mut tx = Transaction::new();
                    self.put_extents(&mut tx, target.node.ino, &change);
                    count_blocks(&mut item, &change);
                    item.size = item.size.max(to_offset + bytes);
                    (item.mtime, item.ctime) = (now, now);
                    self.put_inode(&mut tx, target.node.ino, &item);
                    tx
                };
                let (from, into) = (&source.subvol.volume, &target.subvol.volume);
                match self.volumes.try_reflink(from, into, &runs, (&mut credit, None), build)? {
                    Ok(txg) => {
                        state.shown.size = state.shown.size.max(item.size);
                        self.has_written(target, &mut state);
                        (state.shown.mtime, state.shown.ctime) = (now, now);
                        state.logged(item, txg);
                        return Ok(bytes);
                    }
                    Err(unread) => unread,
                }
            };
            self.volumes.read_shares(unread).await?;
        }
    }
}

/// Whether all before block `to` is logged, so that a size behind it may be (FILES-F1).
fn reaches(target: &InodeRef, to: u64) -> bool {
    let state = target.state();
    !state.data.has_pending_block(state.item.size / BLOCK..to)
}

/// How many of `len` bytes are whole blocks, or end both files (COPY-Y2).
fn shareable(
    source: &InodeRef,
    from_offset: u64,
    target: &InodeRef,
    to_offset: u64,
    len: u64,
) -> u64 {
    // One after the other: a guard in a tuple would be held while the second is waited for.
    let end = source.state().shown.size;
    let target_size = target.state().shown.size;
    let has = len.min(end.saturating_sub(from_offset)).min(SHARE_BLOCKS * BLOCK);
    // The bytes behind the target's old end would have to be zeroed.
    if to_offset > target_size && !target_size.is_multiple_of(BLOCK) {
        return 0;
    }
    let is_end = from_offset + has == end && to_offset + has >= target_size;
    if is_end { has } else { has / BLOCK * BLOCK }
}

/// The source's content in `blocks` blocks from `first` on as extents of the target from `to` on:
/// cut at the range and at chunks of the target. Space without content is a hole.
fn pieces(found: Extents, first: u64, blocks: u64, to: u64) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(found.len() + found.len() / 2);
    for (start, extent) in found {
        if extent.state == ExtentState::Unwritten {
            continue;
        }
        let end = (start + u64::from(extent.blocks())).min(first + blocks);
        let mut from = start.max(first);
        while from < end {
            let at = to + (from - first);
            let stop = end.min(from + (CHUNK - at % CHUNK));
            let part = extent.slice((from - start) as u32, (stop - from) as u32);
            pieces.push(Piece { at, extent: part });
            from = stop;
        }
    }
    pieces
}
