//! Writing into memory: room, reservation, the blocks that are only changed in part.
//!
//! The data lock is held throughout, so the blocks that a write has looked at stay as they are,
//! but for batches that take blocks meanwhile: then those need another reservation. Whole blocks
//! within the file need nothing looked at but its end, so writes of them share the lock: none
//! waits for another.
//!
//! Where there is no room for all blocks of a step, a partial write takes the first ones that there
//! is room for, and ends there: the count returned to the caller is the length that was promised
//! room.

use std::sync::Arc;

use copyhold_memory::MemoryClass;
use copyhold_types::{BLOCK_BYTES, Buf};
use copyhold_volume::quota::{Hold, Request, Tier};
use smallvec::SmallVec;

use super::extent_map::extent_bytes;
use super::slot::Slot;
use crate::dirty_pace::Paced;
use crate::dirty_room::wait_for_write_back;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::KEY_BYTES;
use crate::permit::Way;
use crate::promise::{Promise, Take, promise_now_to};
use crate::throttle::{before_change, slow_above_high};
use crate::{FileFlags, Filesystem, FsError, NodeId, Result, Sabotage};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Largest size of a file.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64 & !(BLOCK - 1);
/// The length of one step, so that a huge write can be throttled.
const STEP_BYTES: usize = 1 << 20;
/// Buffers of this many blocks are kept, smaller ones copied block by block.
const KEEP_BLOCKS: usize = 16;

/// Flags of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Clear set-user-id, set-group-id and capabilities first (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_priv: bool,
    /// The descriptor was opened to append: the offset is ignored, the data goes to the end.
    pub append: bool,
    /// Where there is no room for all, the first blocks are taken that there is room for.
    pub partial: bool,
    /// A cache in front took the bytes earlier, from a descriptor that may write. Flags that the
    /// file got since, immutable or append-only, do not refuse them.
    pub accepted: bool,
}

/// The data of a write.
#[derive(Debug)]
pub enum WriteData<'a> {
    /// Bytes that are copied.
    Bytes(&'a [u8]),
    /// The first bytes, so many, of a buffer that is kept instead of copied where that is cheaper.
    Buffer(Buf, usize),
}

/// The part of a write that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) bytes: usize,
    /// Blocks that were not in memory before.
    pub(super) fresh: usize,
}

/// The bytes of a write.
#[derive(Clone, Copy)]
enum Input<'a> {
    Copied(&'a [u8]),
    /// Bytes of whole blocks of a buffer, which may be kept.
    Kept(&'a Buf, &'a [u8], usize),
}

impl<'a> Input<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Input::Copied(bytes) | Input::Kept(_, bytes, _) => bytes,
        }
    }

    fn split(self, at: usize) -> (Input<'a>, Input<'a>) {
        let (head, tail) = self.bytes().split_at(at);
        match self {
            Input::Copied(_) => (Input::Copied(head), Input::Copied(tail)),
            Input::Kept(buf, _, skip) => {
                (Input::Kept(buf, head, skip), Input::Kept(buf, tail, skip + at / BLOCK_BYTES))
            }
        }
    }

    /// An input of exactly one block.
    fn whole_block(&self) -> Slot {
        match self {
            Input::Kept(buf, _, skip) => Slot { buf: (*buf).clone(), index: *skip as u32 },
            Input::Copied(bytes) => Slot { buf: Buf::from_bytes(bytes), index: 0 },
        }
    }
}

/// The items that preallocated space gets when these blocks are content: each stretch may cut an
/// extent in three, and each block has a checksum. The space itself counts already.
fn items_in_place(slots: &[(u64, Slot)]) -> Request {
    let gaps = slots.windows(2).filter(|pair| pair[0].0 + 1 != pair[1].0).count();
    let items = 2 * (gaps + 1);
    let sums = extent_bytes(slots.len() as u32) - extent_bytes(0);
    Request::for_edits(items, items * (KEY_BYTES + extent_bytes(0)) + sums)
}

/// Adds a further promise.
fn add(held: &mut Option<Promise>, more: Option<Promise>) {
    match (held, more) {
        (_, None) => {}
        (Some(held), Some(more)) => held.join(more),
        (held @ None, more) => *held = more,
    }
}

/// Writes `data`, as [`Filesystem::write`] or, with [`WriteFlags::partial`],
/// [`Filesystem::write_some`]. Returns how many bytes were taken, and the wait for write-back,
/// which a front end makes behind the request (DIRTYPACE-D5).
pub async fn write_paced(
    fs: &Arc<Filesystem>,
    node: NodeId,
    offset: u64,
    data: WriteData<'_>,
    flags: WriteFlags,
) -> Result<Paced<usize>> {
    let accepted = flags.accepted && !fs.breaks(Sabotage::JudgeAgain);
    let flags = WriteFlags { accepted, ..flags };
    let input = match &data {
        WriteData::Bytes(bytes) => Input::Copied(bytes),
        WriteData::Buffer(buf, len) => kept_or_copied(buf, *len, offset, flags)?,
    };
    let inode = fs.inode(node).await?;
    let taken = fs.take_input(&inode, offset, input, flags).await?;
    let mut wait = None;
    // THROTTLE-T3, DIRTYPACE-D1.
    if !flags.accepted {
        wait = wait_for_write_back(fs, &inode, taken.fresh);
        slow_above_high(fs, &inode.subvol, taken.bytes).await;
    }
    fs.content_changed(&inode).await?;
    Ok(Paced::new(taken.bytes, wait))
}

fn kept_or_copied(buf: &Buf, len: usize, offset: u64, flags: WriteFlags) -> Result<Input<'_>> {
    let bytes = buf.get(..len).ok_or(FsError::Invalid("more bytes than the buffer has"))?;
    let keep = offset.is_multiple_of(BLOCK)
        && !flags.append
        && (buf.blocks() == 1 || buf.blocks() >= KEEP_BLOCKS);
    Ok(if keep { Input::Kept(buf, bytes, 0) } else { Input::Copied(bytes) })
}

impl Filesystem {
    /// Takes all bytes or fails. They are safe after an fsync, and will not fail for lack of space.
    pub async fn write(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<()> {
        let flags = WriteFlags { partial: false, ..flags };
        Ok(_ = write_paced(self, node, offset, WriteData::Bytes(data), flags).await?.wait().await)
    }

    /// As [`Self::write`], but takes the blocks that there is room for, in whole blocks from the
    /// first byte on, and says how many bytes that is. Fails if there is room for none.
    pub async fn write_some(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let flags = WriteFlags { partial: true, ..flags };
        Ok(write_paced(self, node, offset, WriteData::Bytes(data), flags).await?.wait().await)
    }

    /// Writes the first `len` bytes of `data`, which is kept instead of copied where that is
    /// cheaper: all of them, or those that there is room for, as the flags say. How many.
    pub async fn write_buf(
        self: &Arc<Self>,
        node: NodeId,
        offset: u64,
        data: Buf,
        len: usize,
        flags: WriteFlags,
    ) -> Result<usize> {
        Ok(write_paced(self, node, offset, WriteData::Buffer(data, len), flags).await?.wait().await)
    }

    /// One of several writes that [`Self::content_changed`] ends.
    pub(super) async fn write_part(
        self: &Arc<Self>,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<Taken> {
        self.take_input(inode, offset, Input::Copied(data), flags).await
    }

    async fn take_input(
        self: &Arc<Self>,
        inode: &InodeRef,
        offset: u64,
        input: Input<'_>,
        flags: WriteFlags,
    ) -> Result<Taken> {
        self.permit_in(&inode.subvol)?;
        self.pool_runs()?;
        inode.expect_file()?;
        let len = input.bytes().len();
        if len == 0 {
            return Ok(Taken::default());
        }
        before_change(self, inode.subvol.volume.owner()).await?;
        self.wait_for_room(&inode.subvol).await?;
        if let Some(fresh) = self.overwrite(inode, offset, input, flags).await {
            return Ok(Taken { bytes: len, fresh });
        }
        let _data = inode.lock.write().await;
        let size = inode.state().shown.size;
        let offset = if flags.append { size } else { offset };
        self.may_write(inode, offset, len, flags.accepted)?;
        if flags.kill_priv {
            Box::pin(self.strip_privileges(inode, None)).await?;
        }
        let cut = self.cut_in_steps(inode).await;
        cut.inspect_err(|refused| self.report_refusal(&inode.subvol, refused))?;
        let taken = self.write_steps(inode, offset, input, flags.partial).await;
        taken.inspect_err(|refused| self.report_refusal(&inode.subvol, refused))
    }

    async fn write_steps(
        self: &Arc<Self>,
        inode: &InodeRef,
        offset: u64,
        input: Input<'_>,
        partial: bool,
    ) -> Result<Taken> {
        let (mut at, mut rest, mut fresh) = (offset, input, 0);
        while !rest.bytes().is_empty() {
            if at > offset {
                self.wait_for_room(&inode.subvol).await?;
            }
            let step = (STEP_BYTES - (at % BLOCK) as usize).min(rest.bytes().len());
            let (head, tail) = rest.split(step);
            let (reached, added) = match self.write_step(inode, at, head, partial).await {
                // A call that continues from there gets the error.
                Err(refused) if partial && at > offset && refused.is_full() => break,
                reached => reached?,
            };
            fresh += added;
            let is_whole = reached == at + step as u64;
            (at, rest) = (reached, tail);
            if !is_whole {
                break;
            }
        }
        Ok(Taken { bytes: (at - offset) as usize, fresh })
    }

    /// Content or size of a file has changed, by any operation: the change is made durable now if
    /// the file is to be written synchronously.
    pub(crate) async fn content_changed(self: &Arc<Self>, inode: &Inode) -> Result<()> {
        if inode.state().has_flag(FileFlags::SYNC) {
            self.fsync(inode.node, false).await?;
        }
        Ok(())
    }

    /// Takes whole blocks within the file, if there is room for them at once, while others read and
    /// overwrite it, too. Returns how many of them were not in memory before; `None`: nothing has
    /// happened.
    async fn overwrite(
        self: &Arc<Self>,
        inode: &InodeRef,
        offset: u64,
        input: Input<'_>,
        flags: WriteFlags,
    ) -> Option<usize> {
        let len = input.bytes().len();
        let whole = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK_BYTES);
        if !whole || len > STEP_BYTES || flags.append || flags.kill_priv {
            return None;
        }
        let blocks = (len / BLOCK_BYTES) as u64;
        let mut reserved = self.promise_now(&inode.subvol, blocks).ok()?;
        let mut slots: SmallVec<[(u64, Slot); 1]> = SmallVec::with_capacity(blocks as usize);
        let mut rest = input;
        for block in offset / BLOCK..offset / BLOCK + blocks {
            let (head, tail) = rest.split(BLOCK_BYTES);
            slots.push((block, head.whole_block()));
            rest = tail;
        }
        let _shared = inode.lock.read().await;
        let (fresh, dirt) = {
            let mut state = inode.state();
            let end = offset.saturating_add(len as u64);
            let way = if flags.accepted { Way::Accepted } else { Way::Overwrite };
            let may = state.permit(way).is_ok() && inode.subvol.writable().is_ok();
            if state.gone || end > state.shown.size || !may || state.data.cut.wants_steps() {
                return None;
            }
            let wanted = slots.iter().map(|(block, _)| state.data.unreserved(*block)).sum();
            state.data.add_reserved(reserved.split(wanted));
            let fresh = self.put_dirty(inode, &mut state, slots, end, false);
            self.has_written(inode, &mut state);
            (fresh, self.list_file(inode, &mut state))
        };
        self.schedule_writeback(inode, dirt);
        Some(fresh)
    }

    fn may_write(&self, inode: &Inode, offset: u64, len: usize, accepted: bool) -> Result<()> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= FILE_BYTES_MAX);
        if end.is_none() {
            return Err(FsError::FileTooBig { max: FILE_BYTES_MAX });
        }
        let state = inode.state();
        let way = Way::content(offset, state.shown.size);
        state.permit(if accepted { Way::Accepted } else { way })
    }

    /// The end in the file of the blocks taken, and how many of them were not in memory before.
    async fn write_step(
        self: &Arc<Self>,
        inode: &InodeRef,
        at: u64,
        input: Input<'_>,
        partial: bool,
    ) -> Result<(u64, usize)> {
        let end = at + input.bytes().len() as u64;
        let size = inode.state().shown.size;
        let mut slots = Vec::with_capacity((end.div_ceil(BLOCK) - at / BLOCK) as usize + 1);
        if !size.is_multiple_of(BLOCK) && size / BLOCK < at / BLOCK {
            slots.extend(self.stale_tail(inode, size).await?);
        }
        let old = slots.len();
        let mut rest = input;
        let mut at = at;
        while at < end {
            let (block, skip) = (at / BLOCK, (at % BLOCK) as usize);
            let len = (BLOCK_BYTES - skip).min(rest.bytes().len());
            let (head, tail) = rest.split(len);
            let slot = match len {
                BLOCK_BYTES => head.whole_block(),
                _ => self.changed_block(inode, block, skip, head.bytes(), size).await?,
            };
            slots.push((block, slot));
            (at, rest) = (at + len as u64, tail);
        }
        let take = if partial { Take::Some } else { Take::All };
        self.insert(inode, slots, old, end, take).await
    }

    /// A block in which `bytes` from `skip` on are new.
    async fn changed_block(
        &self,
        inode: &Inode,
        block: u64,
        skip: usize,
        bytes: &[u8],
        size: u64,
    ) -> Result<Slot> {
        let end = block * BLOCK + (skip + bytes.len()) as u64;
        let mut slot = if skip == 0 && end >= size {
            Slot { buf: Buf::zeroed(1), index: 0 }
        } else {
            self.block_to_change(inode, block, size).await?
        };
        slot.bytes_mut()[skip..skip + bytes.len()].copy_from_slice(bytes);
        Ok(slot)
    }

    /// A block's content, with zeros behind the end of the file.
    pub(super) async fn block_to_change(
        &self,
        inode: &Inode,
        block: u64,
        size: u64,
    ) -> Result<Slot> {
        if block * BLOCK >= size {
            return Ok(Slot { buf: Buf::zeroed(1), index: 0 });
        }
        let mut slot = Box::pin(self.read_block(inode, block)).await?;
        let valid = (size - block * BLOCK).min(BLOCK) as usize;
        if slot.bytes()[valid..].iter().any(|byte| *byte != 0) {
            slot.bytes_mut()[valid..].fill(0);
        }
        Ok(slot)
    }

    /// The last block, with zeros behind the end at `size`, if it must be written again because
    /// the stored block has, or will have, other bytes there, which would show when the file grows
    /// (R36).
    pub(super) async fn stale_tail(&self, inode: &Inode, size: u64) -> Result<Option<(u64, Slot)>> {
        let (block, valid) = (size / BLOCK, (size % BLOCK) as usize);
        let in_memory = {
            let state = inode.state();
            state.data.blocks.get(&block).map(|entry| (entry.since.is_some(), entry.slot.clone()))
        };
        match in_memory {
            // It will be written as it is, and is zero there.
            Some((true, _)) => Ok(None),
            Some((false, slot)) => Ok(Some((block, slot))),
            // A tiny file that grows gets blocks of its own, beginning with this.
            None if inode.state().is_inline() => {
                Ok(Some((block, self.block_to_change(inode, block, size).await?)))
            }
            None if self.breaks(Sabotage::KeepTails) => Ok(None),
            None => {
                let mut slot = Box::pin(self.read_block(inode, block)).await?;
                if slot.bytes()[valid..].iter().all(|byte| *byte == 0) {
                    return Ok(None);
                }
                slot.bytes_mut()[valid..].fill(0);
                Ok(Some((block, slot)))
            }
        }
    }

    /// Makes blocks dirty that have no new content, with reservations for them; the file is at
    /// least `end` long then.
    pub(super) async fn insert_blocks(
        self: &Arc<Self>,
        inode: &InodeRef,
        slots: Vec<(u64, Slot)>,
        end: u64,
        take: Take,
    ) -> Result<()> {
        let old = slots.len();
        let inserted = self.insert(inode, slots, old, end, take).await;
        inserted.inspect_err(|refused| self.report_refusal(&inode.subvol, refused)).map(drop)
    }

    /// As [`Self::insert_blocks`], but those behind the first `old` have new content; with
    /// [`Take::Some`] perhaps not all, but one of these. Returns the end of the blocks taken, and
    /// how many of them were not in memory before.
    async fn insert(
        self: &Arc<Self>,
        inode: &InodeRef,
        mut slots: Vec<(u64, Slot)>,
        old: usize,
        mut end: u64,
        take: Take,
    ) -> Result<(u64, usize)> {
        let mut held: Option<Promise> = None;
        // Preallocated space is not shared before the data put there is dirty.
        let mut in_place: Option<(_, Hold)> = None;
        let fresh = loop {
            let have = held.as_ref().map_or(0, Promise::blocks);
            let missing = {
                let mut state = inode.state();
                state.expect_present()?;
                inode.subvol.writable()?;
                let wanted = slots.iter().map(|(block, _)| state.data.unreserved(*block)).sum();
                if have >= wanted || in_place.is_some() {
                    if let Some(mut reserved) = held.filter(|_| in_place.is_none()) {
                        state.data.add_reserved(reserved.split(wanted));
                    }
                    if let Some((_, items)) = &mut in_place {
                        items.spend_metadata();
                    }
                    let has_new = slots.len() > old;
                    let fresh = self.put_dirty(inode, &mut state, slots, end, in_place.is_some());
                    if has_new {
                        self.has_written(inode, &mut state);
                    }
                    break fresh;
                }
                wanted - have
            };
            // A batch may take blocks while this waits: then they need more.
            let Ok(more) = promise_now_to(self, &inode.subvol, missing, take) else {
                // Space preallocated by fallocate is available, if the items that it is cut into
                // have room.
                let items = self.hold(&inode.subvol, items_in_place(&slots), Tier::Change).await;
                let unshared = inode.subvol.in_place.read().await;
                let ready = match items.is_ok() && self.has_room_to_convert(slots.len() as u64) {
                    true => self.preallocated(inode, &slots).await?,
                    false => 0,
                };
                if ready == slots.len() {
                    in_place = Some((unshared, items?));
                    continue;
                }
                drop((unshared, items));
                let (more, refused) = self.promise(&inode.subvol, missing, take).await?;
                add(&mut held, more);
                if let Some(refused) = refused {
                    let have = held.as_ref().map_or(0, Promise::blocks);
                    let fit = inode.state().data.fitting(&slots, have);
                    let taken = if fit > old { fit } else { ready };
                    if taken <= old {
                        return Err(refused);
                    }
                    slots.truncate(taken);
                    end = end.min((slots[taken - 1].0 + 1) * BLOCK);
                }
                continue;
            };
            add(&mut held, Some(more));
        };
        self.note_dirty(inode);
        Ok((end, fresh))
    }

    /// Returns how many of the blocks were not in memory before.
    fn put_dirty(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        slots: impl IntoIterator<Item = (u64, Slot)>,
        end: u64,
        in_place: bool,
    ) -> usize {
        debug_assert_eq!(inode.kind, crate::FileKind::Regular);
        let now = self.now();
        let logged = state.item.size;
        let mut fresh = 0;
        for (block, slot) in slots {
            fresh += usize::from(state.data.put(block, slot, logged, in_place));
        }
        state.shown.size = state.shown.size.max(end);
        state.content_changes(now);
        self.flusher.room.add(inode, fresh);
        if self.breaks(Sabotage::ChargeTwice) {
            inode.owner().add(MemoryClass::Dirty, (fresh * BLOCK_BYTES) as i64);
        }
        if self.breaks(Sabotage::LeakCharge) {
            std::mem::forget(inode.owner().charge(MemoryClass::Dirty, 1));
        }
        fresh
    }
}
