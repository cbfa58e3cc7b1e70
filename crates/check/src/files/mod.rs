//! The files of a subvolume.
//!
//! One pass over its items in order: those of an inode follow each other, so that rules of one
//! file alone are judged when the next begins (`inode`). Rules of several (names and the inodes
//! they lead to) are noted in two sorted lists of 16 bytes an entry, and judged at the end
//! (`links`). Contents are read page by page beside it (`data`).

mod data;
mod index;
mod inode;
mod links;
mod paths;

use std::collections::BTreeSet;

use copyhold_format::item::{LISTS, ORPHAN, SubvolItem, TRUNCATE, parse_truncate};
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, TableId};

use crate::checker::Checker;
use crate::problem::{FileId, Problem};
use crate::refs::Ref;

pub(crate) use index::FileIndex;

use data::DataJob;
use inode::Current;

/// The state of a pass over a subvolume.
pub(super) struct Walk<'a> {
    subvol: SubvolId,
    item: &'a SubvolItem,
    bounds: Bounds,
    index: FileIndex,
    /// Directories with entries of subvolumes, one for each.
    holders: Vec<InodeNo>,
    /// The references of extents, if they are counted.
    refs: Vec<Ref<1>>,
    /// Inode items that count for quotas.
    inodes: u64,
    /// The inode whose items are being read.
    current: Option<Current>,
    orphans: BTreeSet<u64>,
    truncates: BTreeSet<u64>,
    /// Contents to be read.
    jobs: Vec<DataJob>,
}

/// The bounds of numbers in a subvolume's items.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Inode numbers from here on were never given out.
    pub(crate) mark: u64,
    /// The number that its epoch stamps, or stamped last.
    pub(crate) newest: EpochId,
    /// Inodes with numbers from here on count for quotas.
    pub(crate) counted_from: InodeNo,
}

/// Returns the references of its extents, if references are counted; and how many inodes count.
pub(crate) async fn check(
    checker: &mut Checker,
    subvol: SubvolId,
    item: &SubvolItem,
    bounds: Bounds,
) -> (Vec<Ref<1>>, u64) {
    let before = checker.report.problems.len();
    let mut walk = Walk {
        subvol,
        item,
        bounds,
        index: FileIndex::new(subvol, item.table),
        holders: Vec::new(),
        refs: Vec::new(),
        inodes: 0,
        current: None,
        orphans: BTreeSet::new(),
        truncates: BTreeSet::new(),
        jobs: Vec::new(),
    };
    if let Some(table) = checker.table(item.table) {
        let mut items = checker.items(&table, Key::MIN..Key::MAX);
        while let Some(page) = items.next(&mut checker.report).await {
            page.iter().for_each(|(key, value)| walk.item(checker, *key, value));
            data::verify(checker, std::mem::take(&mut walk.jobs)).await;
        }
    }
    walk.finish_inode(checker);
    walk.index.sort();
    walk.check_links(checker).await;
    let has_findings = checker.report.problems.len() > before
        || checker.report.problems.iter().any(|found| found.is_about(subvol, item.table));
    checker.keep(walk.index, has_findings);
    (walk.refs, walk.inodes)
}

impl Walk<'_> {
    fn table(&self) -> TableId {
        self.item.table
    }

    fn file(&self, ino: u64) -> FileId {
        FileId { subvol: self.subvol, ino: InodeNo(ino) }
    }

    fn item(&mut self, checker: &mut Checker, key: Key, value: &[u8]) {
        checker.report.verified.items += 1;
        if key.object == LISTS {
            return self.list_item(checker, key, value);
        }
        if self.current.as_ref().is_none_or(|current| current.ino() != key.object) {
            self.finish_inode(checker);
            if key.object >> InodeNo::BITS != 0 {
                checker.report.add(Problem::UnknownItem { table: self.table(), key });
                return;
            }
            self.current = Some(Current::new(self.file(key.object)));
        }
        let mut current = self.current.take().expect("it was begun");
        current.item(self, checker, key, value);
        self.current = Some(current);
    }

    fn list_item(&mut self, checker: &mut Checker, key: Key, value: &[u8]) {
        match key.kind {
            ORPHAN => drop(self.orphans.insert(key.offset)),
            TRUNCATE if parse_truncate(value).is_ok() => drop(self.truncates.insert(key.offset)),
            _ => checker.report.add(Problem::UnknownItem { table: self.table(), key }),
        }
    }

    fn finish_inode(&mut self, checker: &mut Checker) {
        if let Some(current) = self.current.take() {
            current.finish(self, checker);
        }
    }

    /// Whether any item of an inode may be among those that cannot be read.
    fn is_partly_lost(&self, checker: &Checker, ino: u64) -> bool {
        let from = Key::new(ino, copyhold_types::Kind(0), 0);
        let to = Key::new(ino + 1, copyhold_types::Kind(0), 0);
        let lost = checker.lost_of(self.table());
        lost.iter().any(|range| range.start < to && from < range.end)
    }
}
