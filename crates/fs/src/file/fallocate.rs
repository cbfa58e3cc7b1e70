//! fallocate: space ahead of data, holes, zeros.
//!
//! Whole blocks are changed in the table, in steps of bounded transactions; parts of blocks are
//! zeroed as a write would. A hole in a file that snapshots share gives nothing back, and adds to
//! tables: on a full pool it is refused where other changes are (R21).
//!
//! Preallocated blocks are extents without content. Data written over them goes to new blocks and
//! frees them, and is reserved in full like any other (R10); only where the pool is full it is
//! written into them, see `in_place`.

use std::ops::Range;
use std::sync::Arc;

use copyhold_format::item::{Extent, ExtentState};
use copyhold_pool::{Credit, LaneClass, Tier, Transaction};
use copyhold_types::{BLOCK_BYTES, Pointer, Run};
use copyhold_volume::SnapshotGuard;
use copyhold_volume::quota::{Hold, Request};

use super::WriteReason;
use super::extent_map::{MapEdit, extent_bytes};
use super::extents::CHUNK;
use super::slot::Slot;
use super::write::FILE_BYTES_MAX;
use crate::inode::{Inode, InodeRef};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::promise::{Take, quota_tier};
use crate::room::Room;
use crate::throttle::{before_change, slow_above_high};
use crate::{Caller, Filesystem, FsError, NodeId, Result, Sabotage};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Chunks of the file that one transaction changes.
const STEP_CHUNKS: u64 = 8;

/// The operation of `fallocate`; `keep_size` where the size may stay below the range's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    Allocate { keep_size: bool },
    Punch,
    Zero { keep_size: bool },
}

impl FallocateMode {
    /// Space alone changes nothing that was there.
    fn way(self) -> Way {
        match self {
            FallocateMode::Allocate { .. } => Way::Append,
            FallocateMode::Punch | FallocateMode::Zero { .. } => Way::Overwrite,
        }
    }

    fn take(self) -> Take {
        match self {
            FallocateMode::Allocate { .. } => Take::All,
            FallocateMode::Punch | FallocateMode::Zero { .. } => Take::Zeros,
        }
    }
}

impl Filesystem {
    /// For a caller that may leave privileges on the files it changes.
    pub async fn fallocate(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.fallocate_by(&Caller::ROOT, node, offset, len, mode).await
    }

    /// As [`Self::fallocate`]; takes setuid, setgid and capabilities away unless `caller` is
    /// privileged.
    pub async fn fallocate_by(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.writable()?;
        let inode = self.inode(node).await?;
        inode.expect_file()?;
        self.permit(&inode, mode.way())?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooBig { max: FILE_BYTES_MAX })?;
        if len == 0 {
            return Err(FsError::Invalid("a range without length"));
        }
        before_change(self, inode.subvol.volume.owner()).await?;
        let data = inode.lock.write().await;
        let size = {
            let state = inode.state();
            state.permit(mode.way())?;
            state.shown.size
        };
        if !caller.is_privileged() {
            Box::pin(self.strip_privileges(&inode, Some(caller))).await?;
        }
        // The steps below change the table: a cut, and a tiny file's item, go first.
        self.settle_cut(&inode, mode.take()).await?;
        let changed = self.change_blocks(&inode, offset..end, size, mode).await;
        let grows = match mode {
            FallocateMode::Allocate { keep_size } | FallocateMode::Zero { keep_size } => !keep_size,
            FallocateMode::Punch => false,
        };
        let extends = grows && end > size;
        let changed = match changed {
            Ok(()) if extends => self.extend(&inode, size, end).await,
            changed => changed,
        };
        if changed.is_err() || !extends {
            // A refused operation may have begun.
            let now = self.now();
            let mut state = inode.state();
            inode.subvol.writable()?;
            state.content_changes(now);
        }
        self.note_dirty(&inode);
        drop(data);
        changed?;
        if mode != FallocateMode::Punch {
            // An item for each chunk at the least.
            let items = (end.div_ceil(BLOCK) - offset / BLOCK).div_ceil(CHUNK);
            let bytes = items as usize * (KEY_BYTES + extent_bytes(0));
            slow_above_high(self, &inode.subvol, bytes).await;
        }
        self.content_changed(&inode).await
    }

    /// The work of `mode` within the range, without a change of the size.
    async fn change_blocks(
        self: &Arc<Self>,
        inode: &InodeRef,
        range: Range<u64>,
        size: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        if !matches!(mode, FallocateMode::Allocate { .. }) {
            self.zero_range(inode, range.start, range.end, size).await?;
        }
        if mode != FallocateMode::Punch {
            let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
            let allocated = self.allocate(inode, blocks).await;
            allocated.inspect_err(|refused| self.report_refusal(&inode.subvol, refused))?;
        }
        Ok(())
    }

    /// Logs a pending cut, and gives a tiny file a block.
    pub(super) async fn settle_cut(self: &Arc<Self>, inode: &InodeRef, take: Take) -> Result<()> {
        if inode.state().data.cut.size().is_some() {
            self.write_through(inode, WriteReason::Other).await?;
        }
        let size = inode.state().shown.size;
        if inode.state().is_inline() {
            let slot = self.block_to_change(inode, 0, size).await?;
            self.insert_blocks(inode, vec![(0, slot)], size, take).await?;
        }
        Ok(())
    }

    /// Zeros the bytes `offset..end`: whole blocks become holes. Behind the end of the file all is
    /// zero already, but there may be preallocated blocks, which become holes too.
    async fn zero_range(
        self: &Arc<Self>,
        inode: &InodeRef,
        offset: u64,
        end: u64,
        size: u64,
    ) -> Result<()> {
        // A block that reaches behind the end of the file is whole if the range covers its bytes.
        let whole_end = if end >= size { end.div_ceil(BLOCK) } else { end / BLOCK };
        let whole = offset.div_ceil(BLOCK)..whole_end;
        let mut parts = Vec::new();
        if !offset.is_multiple_of(BLOCK) {
            parts.push(offset..end.min(offset.div_ceil(BLOCK) * BLOCK));
        }
        let tail = (end / BLOCK * BLOCK).max(offset);
        if end < size && !end.is_multiple_of(BLOCK) && tail.is_multiple_of(BLOCK) {
            parts.push(tail..end);
        }
        let mut slots = Vec::new();
        for part in parts.into_iter().filter(|part| part.start < size) {
            slots.extend(self.zeroed_part(inode, part, size).await?);
        }
        if !slots.is_empty() {
            self.insert_blocks(inode, slots, 0, Take::Zeros).await?;
        }
        let mut at = whole.start;
        while at < whole.end {
            at = self.punch_step(inode, at..whole.end).await?;
        }
        Ok(())
    }

    /// The block around `part`, with zeros there; `None` if it has them.
    pub(super) async fn zeroed_part(
        &self,
        inode: &InodeRef,
        part: Range<u64>,
        size: u64,
    ) -> Result<Option<(u64, Slot)>> {
        let block = part.start / BLOCK;
        let mut slot = self.block_to_change(inode, block, size).await?;
        let bytes = (part.start - block * BLOCK) as usize..(part.end - block * BLOCK) as usize;
        if slot.bytes()[bytes.clone()].iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        slot.bytes_mut()[bytes].fill(0);
        Ok(Some((block, slot)))
    }

    /// Makes a hole of the beginning of `range`. Returns the position to continue at.
    pub(super) async fn punch_step(
        self: &Arc<Self>,
        inode: &InodeRef,
        range: Range<u64>,
    ) -> Result<u64> {
        let mut room = Room::default();
        loop {
            match try_punch(self, inode, range.clone(), &mut room).await {
                Err(refused) => room.wait(self, &inode.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// Gives every block of `range` that has none a place on the device.
    async fn allocate(self: &Arc<Self>, inode: &InodeRef, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let to = range.end.min((at / CHUNK + STEP_CHUNKS) * CHUNK);
            let mut promise = self.promise_all(&inode.subvol, to - at).await?;
            let _map = inode.map.write().await;
            let extents = self.extents(inode, at..to, (to - at) as usize).await?;
            let holes = {
                let state = inode.state();
                // A batch that was under way may have made the file tiny again.
                let inline = |block: u64| block == 0 && state.is_inline();
                let dirty = |block: u64| state.data.blocks.contains_key(&block) || inline(block);
                let stored = |block: u64| {
                    extents.iter().any(|(start, extent)| {
                        (*start..start + u64::from(extent.blocks())).contains(&block)
                    })
                };
                (at..to).filter(|block| !dirty(*block) && !stored(*block)).collect::<Vec<_>>()
            };
            if !holes.is_empty() {
                let mut edit = MapEdit::default();
                edit.load(extents);
                let claims =
                    self.pool.claim(LaneClass::Data, holes.len() as u64, &mut promise.space)?;
                let runs: Vec<Run> = claims.iter().map(|claim| claim.run()).collect();
                let tier = Tier::Write;
                let credit = self.map_credit(inode, tier, &edit, holes.len()).await?;
                let mut state = inode.state();
                state.expect_present()?;
                let guard = self.volumes.snapshot_guard(&inode.subvol.volume)?;
                for (start, run) in lay_out(&holes, &runs) {
                    let pointer = Pointer { run, epoch: guard.epoch(), origin: guard.epoch() };
                    edit.add(start, Extent { pointer, state: ExtentState::Unwritten });
                }
                let mut tx = Transaction::new();
                claims.into_iter().for_each(|claim| tx.allocate(claim));
                let hold = &mut promise.hold;
                self.log_map(inode, &mut state, guard, (credit, hold), tx, edit, false)?;
            }
            at = to;
        }
        Ok(())
    }

    /// Credit for cutting each extent of `edit` and adding `added` extents. Call it before the
    /// cuts: it counts the loaded extents.
    async fn map_credit(
        &self,
        inode: &Inode,
        tier: Tier,
        edit: &MapEdit,
        added: usize,
    ) -> Result<Credit> {
        let wanted = map_edits(edit, added);
        self.credit_to_release(&inode.subvol, tier, wanted, edit.len()).await
    }

    #[allow(clippy::too_many_arguments)] // a transaction and what it changes
    fn log_map(
        &self,
        inode: &InodeRef,
        state: &mut crate::inode::InodeState,
        guard: SnapshotGuard<'_>,
        (credit, hold): (Credit, &mut Hold),
        mut tx: Transaction,
        edit: MapEdit,
        first: bool,
    ) -> Result<()> {
        let change = edit.finish();
        let inline_goes = first && state.is_inline();
        if change.items.is_empty() && !inline_goes {
            return Ok(());
        }
        let mut item = state.next_item();
        self.put_inline(&mut tx, inode, &mut item, None, inline_goes);
        super::install::count_blocks(&mut item, &change);
        self.put_extents(&mut tx, inode.node.ino, &change);
        self.put_inode(&mut tx, inode.node.ino, &item);
        let txg = guard.apply(credit, tx, Some(hold))?;
        state.logged(item, txg);
        Ok(())
    }
}

/// One attempt of [`Filesystem::punch_step`] (ROOM-W1).
async fn try_punch(
    fs: &Filesystem,
    inode: &InodeRef,
    range: Range<u64>,
    room: &mut Room,
) -> Result<u64> {
    let limit = (STEP_CHUNKS * CHUNK) as usize;
    let _map = inode.map.write().await;
    let extents = fs.extents(inode, range.clone(), limit + 1).await?;
    let to = match extents.get(limit) {
        Some((next, _)) => *next,
        None => range.end,
    };
    let mut edit = MapEdit::default();
    edit.load(extents.into_iter().filter(|(start, _)| *start < to));
    let tier = if fs.breaks(Sabotage::PunchInternally) { Tier::Internal } else { Tier::Change };
    let (edits, bytes) = map_edits(&edit, 0);
    let wanted = Request::for_edits(edits, bytes);
    let mut hold = room.hold(fs, &inode.subvol, wanted, quota_tier(tier))?;
    let credit = fs.map_credit(inode, tier, &edit, 0).await?;
    edit.remove(range.start..to);
    let mut state = inode.state();
    state.expect_present()?;
    let guard = fs.volumes.snapshot_guard(&inode.subvol.volume)?;
    fs.flusher.room.forget(inode, state.data.drop_blocks(range.start..to));
    // Inline data is dropped with block 0.
    let first = range.start == 0;
    let tx = Transaction::new();
    fs.log_map(inode, &mut state, guard, (credit, &mut hold), tx, edit, first)?;
    Ok(to)
}

/// Edits and bytes for cutting each extent of `edit` and adding `added` extents.
fn map_edits(edit: &MapEdit, added: usize) -> (usize, usize) {
    // The last key is that of inline data, which may be deleted.
    let added_bytes = added * (KEY_BYTES + extent_bytes(1));
    let bytes = edit.edit_bytes() + added_bytes + INODE_BYTES + KEY_BYTES;
    (2 * edit.len() + added + 2, bytes)
}

/// Cuts `blocks` into extents over `runs`: consecutive, within a chunk of the file and a run.
fn lay_out(blocks: &[u64], runs: &[Run]) -> Vec<(u64, Run)> {
    let mut placed = Vec::new();
    let mut rest = blocks;
    for run in runs {
        let mut left = Some(*run);
        while let Some(run) = left {
            let at = rest[0];
            let fits = |n: &usize| rest[*n] == at + *n as u64 && !rest[*n].is_multiple_of(CHUNK);
            let blocks = 1 + (1..rest.len().min(run.blocks as usize)).take_while(fits).count();
            placed.push((at, run.slice(0, blocks as u32)));
            rest = &rest[blocks..];
            let more = run.blocks - blocks as u32;
            left = (more > 0).then(|| run.slice(blocks as u32, more));
        }
    }
    placed
}
