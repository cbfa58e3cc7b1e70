//! Changes of content: writes, copies and preallocation.
//!
//! A turn ends before the kernel is notified (TURN-Q2), before a delay because of limits of memory,
//! and before a wait for write-back (TURN-Q5).

use copyhold_fs::{
    FallocateMode, NodeId as FsNode, Paced, Uses, WriteData, WriteFlags, copy_paced, write_paced,
};
use copyhold_fuse::protocol::{Caller, CopyRange, Fallocate, NodeId, Write};
use copyhold_fuse::{Errno, Payload, Reply};

use super::convert::{judged, known};
use super::{Adapter, SET_ID, STRANGER, pages};
use crate::errno::errno;

pub(super) const FALLOC_KEEP_SIZE: u32 = 0x01;
pub(super) const FALLOC_PUNCH_HOLE: u32 = 0x02;
const FALLOC_ZERO_RANGE: u32 = 0x10;
/// Data of so many bytes is kept with its buffer; less is copied where it belongs.
const KEEP_BYTES: usize = 64 << 10;

impl Adapter {
    /// The caller of a change of content, and whether the change removes privileges of the file.
    /// The kernel removes most of them itself, by a SETATTR without values; it leaves setgid
    /// without group-execute permission, which a caller outside the group must not keep. An
    /// unidentified caller is in no group.
    async fn writer(&self, by: Caller, node: FsNode) -> Reply<(copyhold_fs::Caller, bool)> {
        let has_any = self.fs.getattr(node).await.map_err(errno)?.mode & SET_ID != 0;
        let caller = if has_any { self.rules.ids(by).unwrap_or(STRANGER) } else { judged(by) };
        let takes = has_any && !caller.is_privileged();
        Ok((caller, takes))
    }

    pub(super) async fn write_data(
        &self,
        node: NodeId,
        write: Write,
        data: &mut Payload,
    ) -> Reply<u32> {
        // The kernel has resolved O_APPEND: it may send the parts of one write in any order.
        // Write-back of its pages is accepted in full or refused: it asks for no count there. Of a
        // short count for a direct write, whose parts are under way together, it makes EIO.
        let is_direct = pages::is_direct(&write);
        let partial = !write.cached && !is_direct;
        let (kill_priv, accepted) = (write.kill_suidgid, write.cached);
        let flags = WriteFlags { kill_priv, append: false, partial, accepted };
        let (inode, length) = (node, data.bytes().len());
        let node = known(node)?;
        let range = pages::range(write.offset, write.size);
        let _transfer = (!is_direct).then(|| {
            self.fs.note_uses(node, Uses::CACHED);
            self.pages.transfer(inode, range.clone())
        });
        let turn = self.turn(node, length).await;
        let was_privileged = write.kill_suidgid
            && Box::pin(self.fs.getattr(node)).await.map_err(errno)?.mode & SET_ID != 0;
        let input = match length >= KEEP_BYTES {
            true => WriteData::Buffer(data.take(), length),
            false => WriteData::Bytes(data.bytes()),
        };
        let written = write_paced(&self.fs, node, write.offset, input, flags).await;
        // The data counts as dirty by now, or was refused (PAYLOAD-M2).
        data.release();
        // TURN-Q2.
        drop(turn);
        if was_privileged {
            self.forget_attributes(inode);
        }
        if is_direct {
            self.pages.written(&self.fs, self.notifier.get(), node, range).await;
        }
        let written = paced(written).await.map(|bytes| bytes as u32);
        // THROTTLE-T3.
        if !accepted {
            self.delay(node).await;
        }
        written
    }

    pub(super) async fn allocate(&self, by: Caller, inode: NodeId, range: Fallocate) -> Reply<()> {
        let keep_size = range.mode & FALLOC_KEEP_SIZE != 0;
        let mode = match range.mode & !FALLOC_KEEP_SIZE {
            0 => FallocateMode::Allocate { keep_size },
            FALLOC_PUNCH_HOLE => FallocateMode::Punch,
            FALLOC_ZERO_RANGE => FallocateMode::Zero { keep_size },
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let node = known(inode)?;
        let (caller, was_privileged) = self.writer(by, node).await?;
        let turn = self.turn(node, range.length as usize).await;
        let done = self.fs.fallocate_by(&caller, node, range.offset, range.length, mode).await;
        drop(turn);
        if was_privileged {
            self.forget_attributes(inode);
        }
        // A punch makes room (THROTTLE-T2).
        if mode != FallocateMode::Punch {
            self.delay(node).await;
        }
        done.map_err(errno)
    }

    pub(super) async fn copy(&self, by: Caller, node: NodeId, copy: CopyRange) -> Reply<u64> {
        let (from, to) = (known(node)?, known(copy.target)?);
        let (caller, was_privileged) = self.writer(by, to).await?;
        let ends = ((from, copy.offset), (to, copy.target_offset));
        let turn = self.turn(to, copy.length as usize).await;
        let copied = copy_paced(&self.fs, &caller, ends.0, ends.1, copy.length).await;
        drop(turn);
        if was_privileged {
            self.forget_attributes(copy.target);
        }
        let copied = paced(copied).await;
        self.delay(to).await;
        copied
    }
}

/// The result of a change, behind its wait for write-back.
async fn paced<T>(changed: copyhold_fs::Result<Paced<T>>) -> Reply<T> {
    Ok(changed.map_err(errno)?.wait().await)
}
