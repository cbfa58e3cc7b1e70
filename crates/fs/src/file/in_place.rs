//! Writing into preallocated space, where a full pool has no other.
//!
//! Only space that this subvolume owns exclusively may be written in place, and the map lock is
//! held from the look-up until the extents are converted (R10). Recovery verifies the allocations
//! of a batch; this is not among them, so the data is made durable before its transaction. It has
//! its checksums in the item, whatever the file's property says: its place has a birth already.

use std::collections::VecDeque;

use copyhold_format::block_checksum;
use copyhold_format::item::{Extent, ExtentState};
use copyhold_pool::{BlockMode, Cached, Tier, Transaction, expect_room};
use copyhold_runtime::WriteGuard;

use super::batch::{Placed, WritebackJob};
use super::extent_map::{MapEdit, extent_bytes};
use super::install::ANNOUNCE_BYTES;
use super::slot::Slot;
use crate::inode::{Inode, InodeRef};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::{Filesystem, FsError, Result};

impl Filesystem {
    /// Whether there is room for the items that `blocks` blocks add to tables when they become
    /// content: each may cut an extent in three. There is data space, but nothing that was
    /// reserved for this.
    pub(super) fn has_room_to_convert(&self, blocks: u64) -> bool {
        expect_room(&self.pool, blocks.div_ceil(4) + 1, Tier::Change).is_ok()
    }

    /// How many of the blocks, from the first on, are dirty already, or lie in preallocated space
    /// that may be written in place. The caller holds the data lock.
    pub(super) async fn preallocated(
        &self,
        inode: &InodeRef,
        slots: &[(u64, Slot)],
    ) -> Result<usize> {
        let _map = inode.map.read().await;
        for (n, &(block, _)) in slots.iter().enumerate() {
            {
                let state = inode.state();
                match state.data.blocks.get(&block) {
                    Some(entry) if entry.since.is_some() => continue,
                    // Being written: it will be content, and content is not overwritten.
                    Some(_) => return Ok(n),
                    None if block >= state.data.cut.block() => return Ok(n),
                    None => {}
                }
            }
            let extents = self.extents(inode, block..block + 1, 1).await?;
            if !extents.iter().any(|(_, extent)| self.is_writable_in_place(inode, extent)) {
                return Ok(n);
            }
        }
        Ok(slots.len())
    }

    /// Only exclusive space without content (R10).
    fn is_writable_in_place(&self, inode: &Inode, extent: &Extent) -> bool {
        let Ok(guard) = self.volumes.snapshot_guard(&inode.subvol.volume) else { return false };
        let alone = || matches!(guard.is_exclusive(&extent.pointer), Ok(Cached::Known(true)));
        extent.state == ExtentState::Unwritten && alone()
    }

    /// Makes data written before the call durable.
    async fn flush_written(&self, inode: &InodeRef) -> Result<()> {
        // A commit flushes only if it has something to commit.
        let credit = self.credit(Tier::Internal, 1, INODE_BYTES).await?;
        self.change_inode_with(credit.into(), inode, |_, _| Ok(()))?;
        match self.last_txg(inode) {
            Some(txg) => Ok(self.pool.commit(txg).await?),
            None => Ok(()),
        }
    }
}

impl WritebackJob {
    pub(super) async fn write_in_place(&self) -> Result<()> {
        let (fs, inode) = (&self.fs, &self.inode);
        let _map = self.map_behind_cuts().await?;
        let (Some((first, _)), Some((last, _))) = (self.took.first(), self.took.last()) else {
            return Ok(());
        };
        let extents = fs.extents(inode, *first..last + 1, (last - first) as usize + 1).await?;
        let placed = self.place_in(&extents)?;
        if placed.is_empty() {
            return Ok(());
        }
        self.send(&placed, None).await?;
        fs.flush_written(inode).await?;

        let mut edit = MapEdit::default();
        edit.load(extents);
        let new: usize = placed.iter().map(|p| KEY_BYTES + extent_bytes(p.run.blocks)).sum();
        let bytes = edit.edit_bytes() + new + INODE_BYTES + ANNOUNCE_BYTES;
        let edits = edit.len() + 2 * placed.len() + 2;
        let credit = fs.credit(Tier::Internal, edits, bytes).await?;
        let mut state = inode.state();
        state.expect_present()?;
        if state.data.is_overtaken(self.taken.id) {
            return Ok(());
        }
        for piece in &placed {
            for (skip, count, current) in self.parts(piece, &state) {
                if current {
                    let at = piece.at + u64::from(skip);
                    let sums = &piece.sums[skip as usize..(skip + count) as usize];
                    edit.convert(at..at + u64::from(count), sums);
                }
            }
        }
        let mut tx = Transaction::new();
        fs.put_extents(&mut tx, inode.node.ino, &edit.finish());
        let item = state.next_item();
        let blocks = self.installed_blocks(&placed, &state, false);
        let guard = fs.volumes.snapshot_guard(&inode.subvol.volume)?;
        self.log(&mut state, guard, credit, tx, item, &blocks)?;
        state.note_logged();
        Ok(())
    }

    /// The map, when the stored extents hold behind the logged size: a cut goes first, alone
    /// (R36).
    async fn map_behind_cuts(&self) -> Result<WriteGuard<'_>> {
        loop {
            let map = self.inode.map.write().await;
            let is_cut = {
                let state = self.inode.state();
                state.data.cut.size().is_some() && !state.data.is_overtaken(self.taken.id)
            };
            if !is_cut {
                return Ok(map);
            }
            drop(map);
            self.install_some(&[], &mut VecDeque::new(), None).await?;
        }
    }

    /// Lays the blocks that still are the batch's over the preallocated extents that they are in:
    /// others may have been cut or punched, with their space, before the map was locked.
    fn place_in(&self, extents: &[(u64, Extent)]) -> Result<Vec<Placed>> {
        let is_current: Vec<bool> = {
            let state = self.inode.state();
            let current = |(block, _): &(u64, Slot)| state.data.is_current(*block, self.taken.id);
            self.took.iter().map(current).collect()
        };
        let mut placed: Vec<Placed> = Vec::new();
        for (n, (block, slot)) in self.took.iter().enumerate() {
            if !is_current[n] {
                continue;
            }
            let within = |(at, extent): &&(u64, Extent)| {
                (*at..at + u64::from(extent.blocks())).contains(block)
            };
            let (at, extent) = extents
                .iter()
                .find(within)
                .filter(|(_, extent)| self.fs.is_writable_in_place(&self.inode, extent))
                .ok_or_else(|| FsError::NoSpace(self.fs.full(1)))?;
            let sum = block_checksum(slot.bytes());
            let run = extent.pointer.run.slice((block - at) as u32, 1);
            let joins = placed.last().is_some_and(|last| {
                last.at + u64::from(last.run.blocks) == *block && last.at >= *at
            });
            match placed.last_mut().filter(|_| joins) {
                Some(last) => {
                    last.run.blocks += 1;
                    last.sums.push(sum);
                }
                None => {
                    let sums = std::iter::once(sum).collect();
                    let mode = BlockMode::PLAIN;
                    placed.push(Placed { at: *block, run, sums, mode, first: n });
                }
            }
        }
        Ok(placed)
    }
}
