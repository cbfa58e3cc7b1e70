//! A stretch of a file's extents, changed in memory and turned into edits.
//!
//! Load the extents that overlap the changed range; remove ranges, add new extents; then
//! [`MapEdit::finish`] returns the changed items and the released pointers. An extent that is cut
//! keeps its pointer for the remaining part, and releases exactly the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use copyhold_format::item::{EXTENT_BLOCKS_MAX, Extent, ExtentState};
use copyhold_types::Pointer;

use crate::item_bytes::KEY_BYTES;

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

/// The result of [`MapEdit::finish`].
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

    /// Releases all extents of the blocks of `range`.
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

    /// Gives the blocks of `range`, which lie in one unwritten extent, the checksums of data
    /// written there. The pointer stays, and its epoch.
    pub(crate) fn convert(&mut self, range: Range<u64>, sums: &[u32]) {
        let (&at, _) = self.now.range(..=range.start).next_back().expect("an extent is there");
        let old = self.now.remove(&at).expect("found above");
        assert_eq!(old.state, ExtentState::Unwritten, "only what is unwritten is converted");
        let (skip, count) = ((range.start - at) as u32, sums.len() as u32);
        let rest = old.blocks() - skip - count;
        if skip > 0 {
            self.now.insert(at, old.slice(0, skip));
            self.changed.insert(at);
        }
        if rest > 0 {
            self.now.insert(range.end, old.slice(skip + count, rest));
            self.changed.insert(range.end);
        }
        let written = ExtentState::Written(sums.into());
        self.now.insert(range.start, Extent { state: written, ..old.slice(skip, count) });
        self.changed.insert(range.start);
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

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, EpochId, Run};
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 160;

    fn extent(place: u64, blocks: u32) -> Extent {
        let run = Run::new(BlockAddr::new(DeviceId(0), place), blocks);
        let pointer = Pointer { run, epoch: EpochId(2), origin: EpochId(1) };
        let sums = (0..blocks).map(|n| place as u32 + n).collect();
        Extent { pointer, state: ExtentState::Written(sums) }
    }

    /// The table and a plain array, changed together.
    #[derive(Default)]
    struct Both {
        table: BTreeMap<u64, Extent>,
        model: BTreeMap<u64, u64>,
        next: u64,
        allocated: BTreeSet<u64>,
    }

    impl Both {
        /// Replaces `range` by new extents, or by nothing.
        fn change(&mut self, range: Range<u64>, fill: bool) {
            let mut edit = MapEdit::default();
            let chunk = u64::from(EXTENT_BLOCKS_MAX);
            let around = range.start / chunk * chunk..range.end;
            edit.load(self.table.range(around).map(|(at, extent)| (*at, extent.clone())));
            edit.remove(range.clone());
            self.model.retain(|block, _| !range.contains(block));
            let mut at = range.start;
            while fill && at < range.end {
                let blocks = (chunk - at % chunk).min(range.end - at);
                edit.add(at, extent(self.next, blocks as u32));
                for n in 0..blocks {
                    self.model.insert(at + n, self.next + n);
                    self.allocated.insert(self.next + n);
                }
                (at, self.next) = (at + blocks, self.next + blocks + 1);
            }
            let change = edit.finish();
            let added = if fill { range.end - range.start } else { 0 };
            assert_eq!(change.blocks_added, added);
            let released: u64 = change.released.iter().map(|p| u64::from(p.run.blocks)).sum();
            assert_eq!(change.blocks_removed, released);
            for pointer in change.released {
                for block in pointer.run.addr.block()..pointer.run.end() {
                    assert!(self.allocated.remove(&block), "block {block} is given back once");
                }
            }
            for (at, extent) in change.items {
                match extent {
                    Some(extent) => drop(self.table.insert(at, extent)),
                    None => drop(self.table.remove(&at)),
                }
            }
        }

        fn check(&self) {
            let mut found = BTreeMap::new();
            for (at, extent) in &self.table {
                let ExtentState::Written(sums) = &extent.state else { panic!() };
                for n in 0..extent.blocks() {
                    let place = extent.pointer.run.addr.block() + u64::from(n);
                    assert_eq!(u64::from(sums[n as usize]), place);
                    assert!(found.insert(at + u64::from(n), place).is_none());
                }
            }
            assert_eq!(found, self.model);
            assert_eq!(self.allocated, self.model.values().copied().collect());
        }
    }

    #[test]
    fn converting_keeps_the_run_and_gives_nothing_back() {
        let mut edit = MapEdit::default();
        edit.load([(10, Extent { state: ExtentState::Unwritten, ..extent(100, 8) })]);
        edit.convert(12..15, &[1, 2, 3]);
        let change = edit.finish();
        assert!(change.released.is_empty());
        let runs: Vec<_> = change
            .items
            .into_iter()
            .map(|(at, extent)| (at, extent.unwrap()))
            .map(|(at, extent)| (at, extent.pointer.run.addr.block(), extent.blocks()))
            .collect();
        assert_eq!(runs, [(10, 100, 2), (12, 102, 3), (15, 105, 3)]);
    }

    proptest! {
        #[test]
        fn a_map_of_extents_is_an_array_of_blocks(
            changes in proptest::collection::vec((0..BLOCKS, 1..70u64, any::<bool>()), 1..40)
        ) {
            let mut both = Both::default();
            for (start, len, fill) in changes {
                both.change(start..(start + len).min(BLOCKS), fill);
                both.check();
            }
        }
    }
}
