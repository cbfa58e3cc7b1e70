//! SEEK_DATA and SEEK_HOLE: dirty blocks and written extents are data, the rest is a hole.

use copyhold_format::item::ExtentState;
use copyhold_types::BLOCK_BYTES;

use super::extents::CHUNK;
use crate::inode::Inode;
use crate::{Filesystem, FsError, NodeId, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are looked at in one step.
const STEP: u64 = 64 * CHUNK;

/// `SEEK_DATA` and `SEEK_HOLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

impl Filesystem {
    /// The first offset from `offset` on that is data, or a hole; the end of the file is a hole.
    /// [`FsError::PastEnd`] where there is none.
    pub async fn seek(&self, node: NodeId, offset: u64, whence: Seek) -> Result<u64> {
        let inode = self.inode(node).await?;
        inode.expect_file()?;
        let _shared = inode.lock.read().await;
        let size = inode.state().shown.size;
        if offset >= size {
            return Err(FsError::PastEnd);
        }
        let wanted = whence == Seek::Data;
        let (mut at, end) = (offset / BLOCK, size.div_ceil(BLOCK));
        while at < end {
            let to = end.min(at + STEP);
            let data = self.data_blocks(&inode, at, to).await?;
            if let Some(n) = data.iter().position(|is_data| *is_data == wanted) {
                let found = ((at + n as u64) * BLOCK).max(offset);
                return Ok(found.min(size));
            }
            at = match data.is_empty() || wanted {
                // Long holes are not walked block by block.
                true => self.next_data(&inode, to, end).await?,
                false => to,
            };
        }
        match whence {
            Seek::Data => Err(FsError::PastEnd),
            Seek::Hole => Ok(size),
        }
    }

    /// Which of the blocks `from..to` are data. The caller holds the data lock.
    pub(super) async fn data_blocks(&self, inode: &Inode, from: u64, to: u64) -> Result<Vec<bool>> {
        let mut data = vec![false; (to - from) as usize];
        let cut = {
            let state = inode.state();
            for (&block, _) in state.data.blocks.range(from..to) {
                data[(block - from) as usize] = true;
            }
            if from == 0 && state.is_inline() && state.data.cut.block() > 0 {
                data[0] = true;
            }
            state.data.cut.block()
        };
        let _map = inode.map.read().await;
        let limit = (to - from) as usize;
        for (start, extent) in self.extents(inode, from..to.min(cut).max(from), limit).await? {
            if matches!(extent.state, ExtentState::Unwritten) {
                continue;
            }
            let last = (start + u64::from(extent.blocks())).min(to).min(cut);
            for block in start.max(from)..last {
                data[(block - from) as usize] = true;
            }
        }
        Ok(data)
    }

    /// The first block from `from` on where data may be, or `end`.
    async fn next_data(&self, inode: &Inode, from: u64, end: u64) -> Result<u64> {
        let dirty = inode.state().data.blocks.range(from..).next().map(|(&block, _)| block);
        let _map = inode.map.read().await;
        let stored = self.extents(inode, from..end.max(from), 1).await?;
        let stored = stored.first().map(|(start, _)| (*start).max(from));
        Ok(dirty.into_iter().chain(stored).min().unwrap_or(end).min(end))
    }
}
