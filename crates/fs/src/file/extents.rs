//! Extent items in the table: looked up, and changed by transactions.

use std::ops::Range;

use copyhold_format::item::{EXTENT_BLOCKS_MAX, Extent, extent_key};
use copyhold_pool::Transaction;
use copyhold_types::InodeNo;

use super::extent_map::MapChange;
use crate::inode::Inode;
use crate::{Filesystem, Result};

/// File blocks of one chunk, which no extent crosses.
pub(crate) const CHUNK: u64 = EXTENT_BLOCKS_MAX as u64;

impl Filesystem {
    /// Extents that overlap `range`, at most `limit`, in order. The caller holds the map lock.
    pub(crate) async fn extents(
        &self,
        inode: &Inode,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<(u64, Extent)>> {
        let ino = inode.node.ino;
        // One that overlaps the start begins in the same chunk.
        let from = extent_key(ino, range.start / CHUNK * CHUNK);
        let to = extent_key(ino, range.end);
        let slack = (range.start % CHUNK) as usize;
        let items =
            self.pool.range(self.subvol.table, from, to, limit.saturating_add(slack)).await?;
        let mut extents = Vec::with_capacity(items.len());
        for (key, value) in &items {
            let extent = Extent::parse(value).map_err(|source| {
                self.damaged_record(
                    &format!("the extent at block {}", key.offset),
                    inode.node,
                    source,
                )
            })?;
            if key.offset + u64::from(extent.blocks()) > range.start && extents.len() < limit {
                extents.push((key.offset, extent));
            }
        }
        Ok(extents)
    }

    /// Adds a change of the map to a transaction.
    pub(crate) fn put_extents(&self, tx: &mut Transaction, ino: InodeNo, change: &MapChange) {
        for (at, extent) in &change.items {
            match extent {
                Some(extent) => {
                    tx.put(self.subvol.table, extent_key(ino, *at), &extent.encode()[..]);
                }
                None => tx.delete(self.subvol.table, extent_key(ino, *at)),
            }
        }
        change.released.iter().for_each(|pointer| tx.release(*pointer));
    }
}
