//! Extent items in the table: looked up, and changed by transactions.

use std::ops::Range;

use copyhold_format::FormatError;
use copyhold_format::item::{EXTENT_BLOCKS_MAX, Extent, extent_key};
use copyhold_pool::{Transaction, Value};
use copyhold_types::{InodeNo, Key};
use smallvec::SmallVec;

use super::extent_map::MapChange;
use crate::inode::Inode;
use crate::subvol::FILES;
use crate::{Filesystem, Result};

/// Extents and the blocks of the file where they begin, in order.
pub(crate) type Extents = SmallVec<[(u64, Extent); 1]>;

/// File blocks of one chunk, which no extent crosses.
pub(crate) const CHUNK: u64 = EXTENT_BLOCKS_MAX as u64;

impl Filesystem {
    /// Extents that overlap `range`, at most `limit`, in order. The caller holds the map lock.
    pub(crate) async fn extents(
        &self,
        inode: &Inode,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Extents> {
        let ino = inode.node.ino;
        let (from, to) = (extent_key(ino, range.start), extent_key(ino, range.end));
        // One that overlaps the start from before begins in the same chunk.
        let chunk = range.start / CHUNK * CHUNK;
        let floor = extent_key(ino, chunk);
        match range.end.saturating_sub(range.start) {
            0 => return Ok(SmallVec::new()),
            1 => {
                let found = self.last_below(&inode.subvol, to, floor).await?;
                return self
                    .reaching(inode, found, range.start)
                    .map(|one| one.into_iter().collect());
            }
            _ => {}
        }
        let items = self.range(&inode.subvol, from, to, limit).await?;
        let mut extents = Extents::with_capacity(items.len() + 1);
        let starts_there = items.first().is_some_and(|(key, _)| *key == from);
        if chunk < range.start && !starts_there {
            let before = self.last_below(&inode.subvol, from, floor).await?;
            extents.extend(self.reaching(inode, before, range.start)?);
        }
        for (key, value) in &items[..items.len().min(limit - extents.len())] {
            extents.push(self.parse_extent(inode, *key, value)?);
        }
        self.expect_apart(inode, &extents)?;
        Ok(extents)
    }

    /// The extent of `found`, if it has `block` or reaches beyond it.
    fn reaching(
        &self,
        inode: &Inode,
        found: Option<(Key, Value)>,
        block: u64,
    ) -> Result<Option<(u64, Extent)>> {
        let Some((key, value)) = found else { return Ok(None) };
        let (at, extent) = self.parse_extent(inode, key, &value)?;
        Ok((at + u64::from(extent.blocks()) > block).then_some((at, extent)))
    }

    /// A block of a file is in one extent at most.
    fn expect_apart(&self, inode: &Inode, extents: &[(u64, Extent)]) -> Result<()> {
        let overlap = extents.windows(2).find(|two| {
            let [(at, extent), (next, _)] = two else { return false };
            at + u64::from(extent.blocks()) > *next
        });
        let Some([(at, extent), _]) = overlap else { return Ok(()) };
        let source = FormatError::Order {
            what: "extents of a file",
            detail: format!("{} blocks at {at} reach into the next one", extent.blocks()),
        };
        Err(self.damaged_record(&format!("the extent at block {at}"), inode.node, source))
    }

    fn parse_extent(&self, inode: &Inode, key: Key, value: &[u8]) -> Result<(u64, Extent)> {
        let extent = Extent::parse(value).map_err(|source| {
            self.damaged_record(&format!("the extent at block {}", key.offset), inode.node, source)
        })?;
        Ok((key.offset, extent))
    }

    /// Adds a change of the map to a transaction.
    pub(crate) fn put_extents(&self, tx: &mut Transaction, ino: InodeNo, change: &MapChange) {
        for (at, extent) in &change.items {
            match extent {
                Some(extent) => {
                    tx.put(FILES, extent_key(ino, *at), &extent.encode()[..]);
                }
                None => tx.delete(FILES, extent_key(ino, *at)),
            }
        }
        change.released.iter().for_each(|pointer| tx.release(*pointer));
    }
}
