//! Scans of subvolumes' files, in bounded steps that hold nothing in between.
//!
//! Problem.  A search for differences between snapshots, and for newer items, should cost as much
//!           as has changed, not as there is. No work should wait for a scan.
//! Idea.     Snapshots share the nodes that neither has changed (`table::read::part`), and a node
//!           is as new as the newest pointer in it: nodes carry the epoch that wrote them. So a
//!           node that is the same, or older, is skipped with all below it.
//!
//! A step reads some keys and returns the cursor for the next step, which the caller keeps. A step
//! is valid if the files were not moved meanwhile, as any read is (`read`). Changes between two
//! steps may be seen or not; read-only snapshots do not change.
//!
//! The *generation* of a subvolume is the number that it stamps on new pointers: a snapshot gives
//! a new one to both sides. Items of generation *g* or newer were written since the subvolume, or
//! the source of its snapshot, had *g*.

use std::ops::Range;

use copyhold_format::item::{EXTENT, Extent, INLINE};
use copyhold_pool::PoolError;
use copyhold_table::{Differing, PartialItems};
use copyhold_types::{EpochId, Key, NodePtr};

use crate::error::{Result, VolumeError};
use crate::family::Epoch;
use crate::volumes::{Subvol, Volumes};

/// File data that may be newer than some generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fresh {
    Extent(Extent),
    /// Data that lies in its item, which carries no generation: something near it is newer.
    Inline,
}

/// Items of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned<T> {
    pub items: Vec<T>,
    /// The cursor of the next step, if there is more.
    pub next: Option<Key>,
}

impl Volumes {
    /// The number that the subvolume stamps on new pointers.
    pub fn generation(&self, subvol: &Subvol) -> Result<EpochId> {
        self.leaf(subvol).map(|leaf| leaf.current)
    }

    /// Items of files in which two subvolumes of one family differ, about `most` of them.
    ///
    /// # Errors
    /// They are of different families, or one is being deleted.
    pub async fn differing(
        &self,
        one: &Subvol,
        two: &Subvol,
        range: Range<Key>,
        most: usize,
    ) -> Result<Differing> {
        if one.family.id != two.family.id {
            return Err(VolumeError::Incomparable(one.id(), two.id()));
        }
        let _pin = self.pool.pin();
        loop {
            let ((first, moves), (second, other)) = (one.place().await, two.place().await);
            let (first, second) = (self.pool.table(first), self.pool.table(second));
            let nodes = self.pool.node_source();
            let found = first.differing(&second, nodes, range.clone(), most).await;
            one.check_live()?;
            two.check_live()?;
            if (one.moves(), two.moves()) == (moves, other) {
                return Ok(found.map_err(PoolError::from)?);
            }
        }
    }

    /// File data of generation `since` or newer, from `from` on.
    pub async fn fresh(
        &self,
        subvol: &Subvol,
        since: EpochId,
        from: Key,
        most: usize,
    ) -> Result<Scanned<(Key, Fresh)>> {
        if since > self.generation(subvol)? {
            return Ok(Scanned { items: Vec::new(), next: None });
        }
        let wants = |ptr: &NodePtr| ptr.epoch >= since;
        let PartialItems { items, next } = self.partial_items(subvol, from, most, &wants).await?;
        let mut fresh = Vec::new();
        for (key, value) in items {
            let Some(value) = value else { continue };
            match key.kind {
                INLINE => fresh.push((key, Fresh::Inline)),
                EXTENT => {
                    let wrong = |source| VolumeError::Record { key, source };
                    let extent = Extent::parse(&value).map_err(wrong)?;
                    if extent.pointer.epoch >= since {
                        fresh.push((key, Fresh::Extent(extent)));
                    }
                }
                _ => {}
            }
        }
        Ok(Scanned { items: fresh, next })
    }

    /// The items of a live subvolume's files from `from` on, of edits, layers and the wanted leaves
    /// (`Table::partial_items`).
    pub(crate) async fn partial_items(
        &self,
        subvol: &Subvol,
        from: Key,
        most: usize,
        wants: &(dyn Fn(&NodePtr) -> bool + Send + Sync),
    ) -> Result<PartialItems> {
        let _pin = self.pool.pin();
        loop {
            let (files, moves) = subvol.place().await;
            let table = self.pool.table(files);
            let nodes = self.pool.nodes_for(&table);
            let told = table.partial_items(&nodes, from..Key::MAX, most, wants).await;
            subvol.check_live()?;
            if subvol.moves() == moves {
                return Ok(told.map_err(PoolError::from)?);
            }
        }
    }

    /// How many of how many items lie before a key, roughly: for progress reports of a scan.
    pub fn position(&self, subvol: &Subvol, at: Key) -> (u64, u64) {
        let mut table = self.pool.table(subvol.files());
        while let Some(under) = table.under() {
            table = under;
        }
        let stats = table.stats();
        let items = |stats: &[copyhold_table::PartitionStats]| -> u64 {
            stats.iter().map(|part| part.base_items + part.edits as u64).sum()
        };
        let before = stats.partition_point(|part| part.start < at).saturating_sub(1);
        (items(&stats[..before]), items(&stats))
    }

    /// The live epoch of a live subvolume.
    pub(crate) fn leaf(&self, subvol: &Subvol) -> Result<Epoch> {
        let tree = subvol.family.read_tree();
        subvol.check_live()?;
        tree.leaf(subvol.id()).copied().ok_or(VolumeError::NoSubvolume(subvol.id()))
    }
}
