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
//! COPY-Y3  One request takes at most [`STEPS_MAX`] steps of bounded work and yields between them.
//!          It returns a short count then, and callers repeat it, so a signal ends a long copy
//!          between two requests. It also returns behind the first step that is delayed
//!          (THROTTLE-T2, DIRTYPACE-D4).
//! COPY-Y4  Under the locks of the files, a share asks its limit and does not wait for room: that
//!          takes steps of deletions, for up to half a minute. It waits without locks, and then
//!          begins again (ROOM-W1).

use std::sync::Arc;

use copyhold_format::item::{Extent, ExtentState};
use copyhold_pool::{KeptNodes, Tier, Transaction};
use copyhold_runtime::{BoxFuture, yield_now};
use copyhold_types::{BLOCK_BYTES, Pointer, Run};
use copyhold_volume::quota::{self, Request};

use super::WriteReason;
use super::copy_hole::{content_at, copy_hole, hole_at};
use super::extent_map::{MapEdit, extent_bytes};
use super::extents::{CHUNK, Extents};
use super::install::count_blocks;
use crate::dirty_pace::Paced;
use crate::dirty_room::wait_for_write_back;
use crate::inode::InodeRef;
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::way_of_copy;
use crate::room::Room;
use crate::throttle::{before_change, slow_above_high};
use crate::{Caller, Filesystem, FsError, NodeId, Result, Sabotage, WriteFlags};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of one step that copies.
const STEP: u64 = 1 << 20;
/// Blocks of one step that shares (R28).
const SHARE_BLOCKS: u64 = 2048;
/// Extents of one step that shares.
const SHARE_EXTENTS: usize = 96;
/// Steps of one request (COPY-Y3): 32 MiB that are copied take about 0.1 s, and 256 MiB in large
/// extents are shared in less.
const STEPS_MAX: usize = 32;

/// The wait for write-back that a request owes.
type Wait = Option<BoxFuture<'static, ()>>;

/// An extent of the source where the target is to have it.
struct Piece {
    at: u64,
    extent: Extent,
}

impl Filesystem {
    /// Returns the bytes copied: fewer than `len` at the source's end, where a later step failed,
    /// and where the request has taken all its steps (COPY-Y3); 0 only at the source's end. For a
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
        let copied = copy_paced(self, caller, (from, from_offset), (to, to_offset), len).await;
        Ok(copied?.wait().await)
    }
}

/// As [`Filesystem::copy_file_range_by`]. Returns the wait for write-back, too, which a front end
/// makes behind the request.
pub async fn copy_paced(
    fs: &Arc<Filesystem>,
    caller: &Caller,
    (from, from_offset): (NodeId, u64),
    (to, to_offset): (NodeId, u64),
    len: u64,
) -> Result<Paced<u64>> {
    fs.writable()?;
    let (source, target) = (fs.inode(from).await?, fs.inode(to).await?);
    source.expect_file()?;
    target.expect_file()?;
    let way = way_of_copy(fs, to_offset, target.state().shown.size);
    fs.permit(&target, way)?;
    let overlap = from_offset.abs_diff(to_offset) < len;
    if from == to && overlap && len > 0 {
        return Err(FsError::Invalid("source and target overlap"));
    }
    if len > 0 && !caller.is_privileged() {
        Box::pin(fs.strip_privileges(&target, Some(caller))).await?;
    }
    let request = CopyRequest { fs, source: &source, target: &target };
    let (copied, wait) = request.serve(from_offset, to_offset, len).await?;
    if copied > 0 && !fs.breaks(Sabotage::CopyUnsynced) {
        fs.content_changed(&target).await?;
    }
    Ok(Paced::new(copied, wait))
}

/// The bytes that the target has now, the memory that the step took, and the blocks that it has
/// added to dirty data.
struct Step {
    bytes: u64,
    memory: usize,
    fresh: usize,
}

impl Step {
    /// It was not possible.
    const NONE: Step = Step { bytes: 0, memory: 0, fresh: 0 };

    /// Of a hole: the items of extents that it replaces, one for each chunk at the least.
    fn of_hole(bytes: u64) -> Step {
        let items = bytes.div_ceil(CHUNK * BLOCK) as usize;
        Step { bytes, memory: items * (KEY_BYTES + extent_bytes(0)), fresh: 0 }
    }
}

/// A copy between two files.
struct CopyRequest<'r> {
    fs: &'r Arc<Filesystem>,
    source: &'r InodeRef,
    target: &'r InodeRef,
}

impl CopyRequest<'_> {
    /// The bytes copied, and the wait for write-back.
    async fn serve(&self, from_offset: u64, to_offset: u64, len: u64) -> Result<(u64, Wait)> {
        let mut copied = 0;
        for step in 0..STEPS_MAX {
            if copied == len {
                break;
            }
            if step > 0 {
                yield_now().await;
            }
            let (at, to_at) = (from_offset + copied, to_offset + copied);
            match self.step_in_part(at, to_at, len - copied).await {
                Ok(Step { bytes: 0, .. }) => break,
                Ok(step) => {
                    copied += step.bytes;
                    let wait = wait_for_write_back(self.fs, self.target, step.fresh);
                    if slow_above_high(self.fs, &self.target.subvol, step.memory).await
                        || wait.is_some()
                    {
                        return Ok((copied, wait));
                    }
                }
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok((copied, None))
    }

    /// A step, when the target's group has room in its part of unflushed edits.
    async fn step_in_part(&self, at: u64, to_at: u64, rest: u64) -> Result<Step> {
        before_change(self.fs, self.target.subvol.volume.owner()).await?;
        Box::pin(self.step(at, to_at, rest)).await
    }

    /// Skips a hole, shares blocks, or copies bytes.
    async fn step(&self, at: u64, to_at: u64, rest: u64) -> Result<Step> {
        let CopyRequest { fs, source, target } = *self;
        let hole = hole_at(fs, source, at, rest).await?;
        if hole > SHARE_BLOCKS * BLOCK {
            return copy_hole(fs, target, to_at, hole).await.map(Step::of_hole);
        }
        let shared = self.share_step(at, to_at, rest).await?;
        if shared.bytes > 0 {
            return Ok(shared);
        }
        // A shorter hole costs less as zeros than as a step of its own.
        if hole >= CHUNK * BLOCK {
            return copy_hole(fs, target, to_at, hole).await.map(Step::of_hole);
        }
        let step = content_at(fs, source, at, rest.min(STEP - at % BLOCK)).await?;
        self.copy_step(at, to_at, step as usize).await
    }

    async fn copy_step(&self, from_offset: u64, to_offset: u64, len: usize) -> Result<Step> {
        let data = self.fs.read(self.source.node, from_offset, len).await?;
        let (mut at, mut fresh) = (to_offset, 0);
        for slice in data.slices() {
            let flags = WriteFlags { partial: true, ..WriteFlags::default() };
            let taken = self.fs.write_part(self.target, at, slice, flags).await;
            let taken = match taken {
                Err(refused) if at > to_offset && refused.is_full() => break,
                taken => taken?,
            };
            at += taken.bytes as u64;
            fresh += taken.fresh;
            if taken.bytes < slice.len() {
                break;
            }
        }
        let bytes = at - to_offset;
        Ok(Step { bytes, memory: bytes as usize, fresh })
    }

    /// Bytes that could be shared; none: the next ones are to be copied.
    async fn share_step(&self, from_offset: u64, to_offset: u64, len: u64) -> Result<Step> {
        let CopyRequest { fs, source, target } = *self;
        let (from, to) = (source.node, target.node);
        if from == to || !from_offset.is_multiple_of(BLOCK) || !to_offset.is_multiple_of(BLOCK) {
            return Ok(Step::NONE);
        }
        fs.permit_in(&target.subvol)?;
        if shareable(source, from_offset, target, to_offset, len) < BLOCK {
            return Ok(Step::NONE);
        }
        let mut room = Room::default();
        loop {
            match self.try_share(from_offset, to_offset, len, &mut room).await {
                Err(refused) => room.wait(fs, &target.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// Shares at once, or is refused (COPY-Y4).
    async fn try_share(
        &self,
        from_offset: u64,
        to_offset: u64,
        len: u64,
        room: &mut Room,
    ) -> Result<Step> {
        let CopyRequest { fs, source, target } = *self;
        let (from, to) = (source.node, target.node);
        fs.write_through(source, WriteReason::Other).await?;
        fs.write_through(target, WriteReason::Other).await?;
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
        self.share(from_offset / BLOCK, to_offset, bytes, room).await
    }

    /// Shares the source's extents in `bytes` bytes from `first` on. The caller holds all locks of
    /// both files.
    async fn share(&self, first: u64, to_offset: u64, bytes: u64, room: &mut Room) -> Result<Step> {
        let CopyRequest { fs, source, target } = *self;
        let mut blocks = bytes.div_ceil(BLOCK);
        let found = fs.extents(source, first..first + blocks, SHARE_EXTENTS + 1).await?;
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
            return Ok(Step::NONE);
        }
        let pieces = pieces(found, first, blocks, to);
        let mut edit = MapEdit::default();
        edit.load(fs.extents(target, to..to + blocks, usize::MAX >> 1).await?);
        let runs: Vec<Run> = pieces.iter().map(|piece| piece.extent.pointer.run).collect();
        let items: usize = pieces.iter().map(|p| KEY_BYTES + extent_bytes(p.extent.blocks())).sum();
        let edits = 2 * edit.len() + 5 * pieces.len() + 1;
        let cost = edit.edit_bytes() + items + pieces.len() * 160 + INODE_BYTES;
        let wanted = match fs.breaks(Sabotage::ShareUnasked) {
            true => Request::default(),
            false => Request::for_edits(edits, cost),
        };
        let into = &target.subvol;
        let mut hold = room.hold(fs, into, wanted, quota::Tier::Write)?;
        let credit = fs.credit_to_release(into, Tier::Write, (edits, cost), edit.len()).await?;
        let mut credit = Some(credit);
        let mut work = Some((edit, pieces));
        let kept = KeptNodes::default();
        loop {
            let unread = {
                let mut state = target.state();
                state.expect_present()?;
                state.permit(way_of_copy(fs, to_offset, state.shown.size))?;
                let now = fs.now();
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
                    fs.put_extents(&mut tx, target.node.ino, &change);
                    count_blocks(&mut item, &change);
                    item.size = item.size.max(to_offset + bytes);
                    (item.mtime, item.ctime) = (now, now);
                    fs.put_inode(&mut tx, target.node.ino, &item);
                    tx
                };
                let (from, into) = (&source.subvol.volume, &target.subvol.volume);
                let pays = (&mut credit, Some(&mut hold));
                match fs.volumes.try_reflink(from, into, &runs, &kept, pays, build)? {
                    Ok(txg) => {
                        state.shown.size = state.shown.size.max(item.size);
                        fs.has_written(target, &mut state);
                        (state.shown.mtime, state.shown.ctime) = (now, now);
                        state.logged(item, txg);
                        return Ok(Step { bytes, memory: cost, fresh: 0 });
                    }
                    Err(unread) => unread,
                }
            };
            fs.volumes.read_shares(unread, &kept).await?;
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
