//! copy_file_range, by reading and writing.

use std::sync::Arc;

use crate::{Filesystem, FsError, NodeId, Result, WriteFlags};

/// Bytes of one step.
const STEP: u64 = 1 << 20;

impl Filesystem {
    /// Bytes copied: fewer than `len` only at the source's end, or where a later step failed.
    pub async fn copy_file_range(
        self: &Arc<Self>,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let overlap = from_offset.abs_diff(to_offset) < len;
        if from == to && overlap && len > 0 {
            return Err(FsError::Invalid("source and target overlap"));
        }
        let mut copied = 0;
        while copied < len {
            let step = (len - copied).min(STEP) as usize;
            let done = self.copy_step(from, from_offset + copied, to, to_offset + copied, step);
            match done.await {
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
        to: NodeId,
        to_offset: u64,
        len: usize,
    ) -> Result<u64> {
        let data = self.read(from, from_offset, len).await?;
        let mut at = to_offset;
        for slice in data.slices() {
            self.write(to, at, slice, WriteFlags::default()).await?;
            at += slice.len() as u64;
        }
        Ok(at - to_offset)
    }
}
