//! Installs the blocks of a batch: extents, size and times in one transaction.
//!
//! Under the file's map lock: replaced extents are looked up, credit is obtained, and then, with
//! the state held, only blocks that still are the batch's go into the transaction (R33). A pending
//! cut goes with it, so a file that was truncated and rewritten is never empty after a crash
//! (R35); one with more extents than a transaction takes is cut in steps before, announced by a
//! TRUNCATE item.

use std::collections::VecDeque;
use std::ops::Range;

use copyhold_format::item::{
    ChecksumMode, Extent, InodeFlags, InodeItem, encode_truncate, inline_key, truncate_key,
};
use copyhold_pool::{Claim, Credit, PoolError, Tier, Transaction};
use copyhold_types::{BLOCK_BYTES, EpochId, Pointer, Txg};
use copyhold_volume::{SnapshotGuard, quota};
use smallvec::SmallVec;

use super::batch::{Content, Placed, WritebackJob};
use super::extent_map::{MapChange, MapEdit, extent_bytes};
use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::promise::owe;
use crate::subvol::FILES;
use crate::{Filesystem, Result, Sabotage};

/// Extents that a transaction removes beside those it adds.
pub(super) const CUT_MAX: usize = 100;
/// Edits of the map in one transaction; each may come with an allocation and a release.
const EDITS_MAX: usize = 400;
/// Of the edits that announce a cut, and delete an announced one and inline data.
pub(super) const ANNOUNCE_BYTES: usize = KEY_BYTES + 8 + 2 * KEY_BYTES;
/// Pieces whose old extents are looked up at once.
const STRETCH_MAX: usize = 8;

impl WritebackJob {
    pub(super) async fn install(&self, content: Content<'_>) -> Result<()> {
        match content {
            Content::Nothing => self.install_some(&[], &mut VecDeque::new(), None).await.map(drop),
            Content::Inline(bytes) => {
                self.install_some(&[], &mut VecDeque::new(), Some(bytes)).await.map(drop)
            }
            Content::Placed(placed, claims) => {
                let mut rest = placed;
                while !rest.is_empty() {
                    let done = self.install_some(rest, claims, None).await?;
                    rest = &rest[done..];
                }
                Ok(())
            }
        }
    }

    /// Installs as many of `placed` as fit one transaction. How many.
    pub(super) async fn install_some(
        &self,
        placed: &[Placed],
        claims: &mut VecDeque<Claim>,
        inline: Option<Vec<u8>>,
    ) -> Result<usize> {
        let (fs, inode) = (&self.fs, &self.inode);
        while !fs.cut_step(inode, self.taken.id).await? {}
        let _map = inode.map.write().await;

        let (cut_from, cut) = {
            let state = inode.state();
            if state.data.is_overtaken(self.taken.id) {
                return Ok(placed.len());
            }
            (state.data.cut.from(), state.data.cut.size().is_some())
        };
        let mut old = MapEdit::default();
        if cut {
            old.load(fs.extents(inode, cut_from..u64::MAX, CUT_MAX + 1).await?);
        }
        let count = self.load_replaced(placed, &mut old).await?;
        let placed = &placed[..count];
        let inline_bytes = inline.as_ref().map_or(0, |bytes| KEY_BYTES + bytes.len());
        let bytes = old.edit_bytes() + new_bytes(placed) + INODE_BYTES + inline_bytes;
        let wanted = (2 * old.len() + count + 4, bytes + ANNOUNCE_BYTES);
        let tier = Tier::Internal;
        let credit = fs.credit_to_release(&inode.subvol, tier, wanted, old.len() + count).await?;

        let mut state = inode.state();
        if state.gone {
            return Ok(count);
        }
        let guard = fs.volumes.snapshot_guard(&inode.subvol.volume)?;
        let mut tx = Transaction::new();
        let mut item = state.next_item();
        if cut && !fs.breaks(Sabotage::KeepCuts) {
            old.remove(cut_from..u64::MAX);
        }
        self.stamp(placed, claims, &mut old, &mut tx, &state, guard.epoch());
        let change = old.finish();
        fs.put_extents(&mut tx, inode.node.ino, &change);
        count_blocks(&mut item, &change);

        let inline = inline.filter(|_| state.data.is_current(0, self.taken.id));
        let is_inline = inline.is_some();
        let blocks = self.installed_blocks(placed, &state, is_inline);
        let inline_goes = blocks.first() == Some(&0) || (cut && state.data.cut.block() == 0);
        fs.put_inline(&mut tx, inode, &mut item, inline, inline_goes);
        if state.data.cut.is_announced() {
            tx.delete(FILES, truncate_key(inode.node.ino));
        }
        if cut {
            state.data.cut.goes();
        }
        self.log(&mut state, guard, credit, tx, item, &blocks)?;
        if is_inline {
            self.hold.lock().spend_all();
        }
        if cut {
            state.data.cut_is_logged();
        }
        state.note_logged();
        Ok(count)
    }

    /// Applies the transaction that installs `blocks`, with size and times that belong to them.
    #[allow(clippy::too_many_arguments)] // a transaction and what it changes
    pub(super) fn log(
        &self,
        state: &mut InodeState,
        guard: SnapshotGuard<'_>,
        credit: Credit,
        mut tx: Transaction,
        mut item: InodeItem,
        blocks: &[u64],
    ) -> Result<()> {
        item.size = state.data.loggable_size(state.shown.size, item.size, self.taken, blocks);
        item.mtime = state.shown.mtime;
        item.ctime = state.shown.ctime;
        let list = truncate_key(self.inode.node.ino);
        match state.data.cut.announce(item.size, blocks) {
            Some(Some(first)) => tx.put(FILES, list, &encode_truncate(first)[..]),
            Some(None) => tx.delete(FILES, list),
            None => {}
        }
        self.fs.put_inode(&mut tx, self.inode.node.ino, &item);
        let txg = guard.apply(credit, tx, Some(&mut *self.hold.lock()))?;
        let attached = self.attach.then_some(txg);
        let mut left = 0;
        for &block in blocks {
            left += usize::from(state.data.installed(block, self.taken, attached));
        }
        state.logged(item, txg);
        self.fs.flusher.room.forget(&self.inode, left);
        Ok(())
    }

    pub(super) fn installed_blocks(
        &self,
        placed: &[Placed],
        state: &InodeState,
        inline: bool,
    ) -> Vec<u64> {
        if inline {
            return vec![0];
        }
        let all = placed.iter().flat_map(|piece| piece.at..piece.at + u64::from(piece.run.blocks));
        all.filter(|block| state.data.is_current(*block, self.taken.id)).collect()
    }

    /// Looks up the extents that `placed` replaces, for as many as fit. Returns how many.
    async fn load_replaced(&self, placed: &[Placed], old: &mut MapEdit) -> Result<usize> {
        let mut count = 0;
        let mut bound = old.len();
        let mut rest = placed;
        while let Some(first) = rest.first() {
            let (stretch, range) = stretch(rest, first);
            let extents = self.fs.extents(&self.inode, range, usize::MAX >> 1).await?;
            bound += extents.len() + 2 * stretch;
            if count > 0 && bound > EDITS_MAX {
                break;
            }
            old.load(extents);
            count += stretch;
            rest = &rest[stretch..];
        }
        Ok(count)
    }

    /// Puts the pieces that are still current in place of the old extents. Claims of the others
    /// are dropped.
    fn stamp(
        &self,
        placed: &[Placed],
        claims: &mut VecDeque<Claim>,
        old: &mut MapEdit,
        tx: &mut Transaction,
        state: &InodeState,
        epoch: EpochId,
    ) {
        // Consecutive blocks that are all current, or all not.
        let (mut blocks, mut kept) = (0, true);
        for piece in placed {
            for (skip, count, current) in self.parts(piece, state) {
                if current != kept {
                    self.take_claims(claims, blocks, tx, kept);
                    (blocks, kept) = (0, current);
                }
                blocks += count;
                if !current {
                    continue;
                }
                let at = piece.at + u64::from(skip);
                let run = piece.run.slice(skip, count);
                old.remove(at..at + u64::from(count));
                old.add(
                    at,
                    Extent {
                        pointer: Pointer { run, epoch, origin: epoch },
                        state: piece.content(skip, count),
                    },
                );
                if piece.mode.checksums != ChecksumMode::Item {
                    tx.introduce_unverifiable();
                }
                if self.attach {
                    tx.attach(run, self.data_of(piece, skip, count));
                }
            }
        }
        self.take_claims(claims, blocks, tx, kept);
    }

    /// Cuts the next `blocks` blocks off the claims: into the transaction, or dropped.
    fn take_claims(
        &self,
        claims: &mut VecDeque<Claim>,
        blocks: u32,
        tx: &mut Transaction,
        keep: bool,
    ) {
        let mut wanted = blocks;
        while wanted > 0 {
            let claim = claims.pop_front().expect("every piece was claimed");
            let has = claim.run().blocks;
            let taken = if has <= wanted {
                claim
            } else {
                let (head, tail) = claim.split(wanted);
                claims.push_front(tail);
                head
            };
            wanted -= taken.run().blocks;
            if keep {
                tx.allocate(taken);
            }
        }
    }

    /// The piece cut where its blocks cease, or begin, to be the batch's: first block, count,
    /// whether they are.
    pub(super) fn parts(
        &self,
        piece: &Placed,
        state: &InodeState,
    ) -> SmallVec<[(u32, u32, bool); 2]> {
        let mut parts: SmallVec<[(u32, u32, bool); 2]> = SmallVec::new();
        for skip in 0..piece.run.blocks {
            let current = state.data.is_current(piece.at + u64::from(skip), self.taken.id)
                || self.fs.breaks(Sabotage::InstallStale);
            match parts.last_mut() {
                Some((_, count, same)) if *same == current => *count += 1,
                _ => parts.push((skip, 1, current)),
            }
        }
        parts
    }
}

impl InodeState {
    /// A batch has logged the times, and as much of the size as may be (DIRTY-D4).
    pub(super) fn note_logged(&mut self) {
        let (item, shown) = (&self.item, &self.shown);
        debug_assert_eq!((item.mtime, item.ctime), (shown.mtime, shown.ctime), "both were logged");
        let with_size = item.size == shown.size;
        self.data.change_is_logged(with_size);
    }
}

impl Filesystem {
    /// Removes some of a cut's extents if they are too many for one transaction. Whether one
    /// transaction removes the rest. A step is refused like a delete (R21), and the rest stays
    /// announced. An overtaken batch makes no step (DIRTY-D8).
    pub(crate) async fn cut_step(&self, inode: &InodeRef, batch: u64) -> Result<bool> {
        if !inode.state().data.cut.wants_steps() {
            return Ok(true);
        }
        let _map = inode.map.write().await;
        let (from, first) = {
            let state = inode.state();
            if state.data.is_overtaken(batch) {
                return Ok(true);
            }
            (state.data.cut.from(), state.data.cut.block())
        };
        let extents = self.extents(inode, from..u64::MAX, CUT_MAX + 1).await?;
        if extents.len() <= CUT_MAX {
            inode.state().data.cut.wants_no_steps();
            return Ok(true);
        }
        let (last, extent) = &extents[CUT_MAX - 1];
        let to = last + u64::from(extent.blocks());
        let mut edit = MapEdit::default();
        edit.load(extents.into_iter().take(CUT_MAX));
        edit.remove(from..to);

        let wanted = (CUT_MAX + 4, CUT_MAX * KEY_BYTES + INODE_BYTES + 256);
        let credit = self.credit_to_release(&inode.subvol, Tier::Delete, wanted, CUT_MAX).await?;
        let mut state = inode.state();
        if state.gone {
            return Ok(true);
        }
        let mut tx = Transaction::new();
        let mut item = state.next_item();
        let change = edit.finish();
        self.put_extents(&mut tx, inode.node.ino, &change);
        count_blocks(&mut item, &change);
        item.size = item.size.min(state.data.cut.size().unwrap_or(u64::MAX));
        self.put_inline(&mut tx, inode, &mut item, None, first == 0);
        tx.put(FILES, truncate_key(inode.node.ino), &encode_truncate(first)[..]);
        self.put_inode(&mut tx, inode.node.ino, &item);
        let txg = self.apply(&inode.subvol, credit, tx)?;
        owe(self, &inode.subvol, quota::Request::for_edits(2, INODE_BYTES + KEY_BYTES));
        state.data.cut.is_removed_to(to);
        state.logged(item, txg);
        Ok(false)
    }

    /// Puts the content of a tiny file, or deletes it if it `goes`.
    pub(super) fn put_inline(
        &self,
        tx: &mut Transaction,
        inode: &Inode,
        item: &mut InodeItem,
        content: Option<Vec<u8>>,
        goes: bool,
    ) {
        let key = inline_key(inode.node.ino);
        if let Some(bytes) = content {
            tx.put(FILES, key, &bytes[..]);
            item.has.set(InodeFlags::INLINE, true);
        } else if goes && item.has.has(InodeFlags::INLINE) {
            tx.delete(FILES, key);
            item.has.set(InodeFlags::INLINE, false);
        }
    }

    pub(crate) fn full(&self, wanted: u64) -> PoolError {
        let space = self.pool.space();
        PoolError::Full { wanted, free: space.free, reserve: space.reserve, on_the_way: 0 }
    }

    /// The txg after which all of `inode` that is logged is durable.
    pub(crate) fn last_txg(&self, inode: &Inode) -> Option<Txg> {
        inode.state().last_txg
    }
}

/// How many of `placed` continue `first` without a gap, and their file blocks.
fn stretch(placed: &[Placed], first: &Placed) -> (usize, Range<u64>) {
    let mut end = first.at;
    let mut count = 0;
    for piece in placed {
        if piece.at != end || count == STRETCH_MAX {
            break;
        }
        end += u64::from(piece.run.blocks);
        count += 1;
    }
    (count, first.at..end)
}

/// Bytes of edits that put `placed`.
fn new_bytes(placed: &[Placed]) -> usize {
    placed.iter().map(|piece| KEY_BYTES + extent_bytes(piece.run.blocks)).sum()
}

pub(super) fn count_blocks(item: &mut InodeItem, change: &MapChange) {
    let bytes = BLOCK_BYTES as u64;
    item.allocated = (item.allocated + change.blocks_added * bytes)
        .saturating_sub(change.blocks_removed * bytes);
}
