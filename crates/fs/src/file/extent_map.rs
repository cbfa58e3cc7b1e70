//! A stretch of a file's extents, changed in memory and turned into edits.
//!
//! Load the extents that overlap what is to change; remove ranges, add new extents; then
//! [`MapEdit::finish`] says which items change and which pointers are given back. An extent that is
//! cut keeps its pointer for what is left of it, and gives back exactly the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use copyhold_format::item::{EXTENT_BLOCKS_MAX, Extent};
use copyhold_types::Pointer;

use crate::filesystem::KEY_BYTES;

#[derive(Default)]
pub(crate) struct MapEdit {
    /// By first file block; they do not overlap.
    now: BTreeMap<u64, Extent>,
    changed: BTreeSet<u64>,
    released: Vec<Pointer>,
    blocks_added: u64,
    blocks_removed: u64,
}

/// Bytes of the item of an extent of so many blocks.
pub(crate) fn extent_bytes(blocks: u32) -> usize {
    30 + 4 * blocks as usize
}

/// What [`MapEdit::finish`] found.
pub(crate) struct MapChange {
    /// Items to put, or to delete.
    pub(crate) items: Vec<(u64, Option<Extent>)>,
    pub(crate) released: Vec<Pointer>,
    pub(crate) blocks_added: u64,
    pub(crate) blocks_removed: u64,
}

impl MapEdit {
    /// Adds `extents` as they are in the table, before anything is changed; some may be known.
    pub(crate) fn load(&mut self, extents: impl IntoIterator<Item = (u64, Extent)>) {
        assert!(self.changed.is_empty(), "a map is loaded before it is changed");
        self.now.extend(extents);
    }

    /// Gives back whatever the blocks of `range` have.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        let first = self.now.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        let hit: Vec<u64> = self
            .now
            .range(first..range.end)
            .filter(|(at, extent)| **at + u64::from(extent.blocks()) > range.start)
            .map(|(&at, _)| at)
            .collect();
        for at in hit {
            self.cut(at, &range);
        }
    }

    fn cut(&mut self, at: u64, range: &Range<u64>) {
        let old = self.now.remove(&at).expect("listed by remove");
        let end = at + u64::from(old.blocks());
        let (from, to) = (range.start.max(at), range.end.min(end));
        let (skip, gone) = ((from - at) as u32, (to - from) as u32);
        self.released.push(old.slice(skip, gone).pointer);
        self.blocks_removed += u64::from(gone);
        self.changed.insert(at);
        if skip > 0 {
            self.now.insert(at, old.slice(0, skip));
        }
        if to < end {
            self.now.insert(to, old.slice(skip + gone, (end - to) as u32));
            self.changed.insert(to);
        }
    }

    /// Adds an extent where nothing is.
    pub(crate) fn add(&mut self, at: u64, extent: Extent) {
        let max = u64::from(EXTENT_BLOCKS_MAX);
        let blocks = u64::from(extent.blocks());
        assert_eq!(at / max, (at + blocks - 1) / max, "an extent stays within its 128 KiB");
        self.blocks_added += blocks;
        self.changed.insert(at);
        let before = self.now.insert(at, extent);
        assert!(before.is_none(), "nothing is where an extent is added");
    }

    /// How many extents there are.
    pub(crate) fn len(&self) -> usize {
        self.now.len()
    }

    /// Bytes of the edits that cutting each extent once takes, at most.
    pub(crate) fn edit_bytes(&self) -> usize {
        let cut =
            |extent: &Extent| 2 * (KEY_BYTES + extent_bytes(0)) + 4 * extent.blocks() as usize;
        self.now.values().map(cut).sum()
    }

    pub(crate) fn finish(mut self) -> MapChange {
        let items = self.changed.iter().map(|&at| (at, self.now.remove(&at))).collect();
        MapChange {
            items,
            released: self.released,
            blocks_added: self.blocks_added,
            blocks_removed: self.blocks_removed,
        }
    }
}
