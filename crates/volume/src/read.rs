//! Reading a subvolume's files while snapshots move them from table to table.
//!
//! A snapshot leaves the content in a table that both sides lie over, and soon that table is gone,
//! or was none of its own before. The result of a read is good if the files were not moved
//! meanwhile; else it is read again, from where they are now.

use copyhold_pool::{Cached, Value};
use copyhold_types::{Key, TableId};

use crate::error::Result;
use crate::volumes::{Subvol, Volumes};

impl Subvol {
    /// Where the files are, and how often they were moved before; not while they are being moved.
    pub(crate) async fn place(&self) -> (TableId, u64) {
        loop {
            let moves = self.moves();
            if moves.is_multiple_of(2) {
                return (self.files(), moves);
            }
            copyhold_runtime::yield_now().await;
        }
    }
}

impl Volumes {
    /// The value of a key among a subvolume's files.
    pub async fn get(&self, subvol: &Subvol, key: Key) -> Result<Option<Value>> {
        loop {
            let (files, moves) = subvol.place().await;
            let found = self.pool.get(files, key).await?;
            if subvol.moves() == moves {
                return Ok(found);
            }
        }
    }

    /// Items of a subvolume's files with `from <= key < to`, ascending, at most `limit`.
    pub async fn range(
        &self,
        subvol: &Subvol,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>> {
        loop {
            let (files, moves) = subvol.place().await;
            let found = self.pool.range(files, from, to, limit).await?;
            if subvol.moves() == moves {
                return Ok(found);
            }
        }
    }

    /// The last item of a subvolume's files with `floor <= key < below`.
    pub async fn last_below(
        &self,
        subvol: &Subvol,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>> {
        loop {
            let (files, moves) = subvol.place().await;
            let found = self.pool.last_below(files, below, floor).await?;
            if subvol.moves() == moves {
                return Ok(found);
            }
        }
    }

    /// As [`Self::range`], for where nothing may wait: unknown also while files are being moved.
    pub fn range_cached(
        &self,
        subvol: &Subvol,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Cached<Vec<(Key, Value)>> {
        let moves = subvol.moves();
        let found = self.pool.range_cached(subvol.files(), from, to, limit);
        match moves.is_multiple_of(2) && subvol.moves() == moves {
            true => found,
            false => Cached::Unknown,
        }
    }
}

/// Reads the nodes that look-ups of these keys among a subvolume's files would wait for
/// ([`copyhold_pool::read_together`]).
pub async fn read_together(volumes: &Volumes, subvol: &Subvol, keys: &[Key], most: usize) -> bool {
    let (files, _) = subvol.place().await;
    copyhold_pool::read_together(&volumes.pool, subvol.owner(), files, keys, most).await
}
