//! The dirty files, and which of them is to be written next.
//!
//! There may be as many as there are blocks in the limit, each with one dirty block: a hundred
//! tenants that write here and there. So each operation of a write takes one step of a tree.
//!
//! DIRTYSET-D1  A file waits in `queue`, under the time since when, exactly while no task writes
//!              it.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::{InodeNo, Nanos, SubvolId};

use crate::NodeId;
use crate::inode::InodeRef;

pub(crate) struct DirtyFiles<T = InodeRef> {
    files: BTreeMap<NodeId, Dirty<T>>,
    queue: BTreeSet<(Nanos, NodeId)>,
}

impl<T> Default for DirtyFiles<T> {
    fn default() -> Self {
        DirtyFiles { files: BTreeMap::new(), queue: BTreeSet::new() }
    }
}

struct Dirty<T> {
    file: T,
    since: Nanos,
    /// A task is writing it.
    writing: bool,
}

impl<T: Clone> DirtyFiles<T> {
    /// The file is dirty since `now`, if it was not before.
    pub(crate) fn insert(&mut self, node: NodeId, file: &T, now: Nanos) {
        self.files.entry(node).or_insert_with(|| {
            self.queue.insert((now, node));
            Dirty { file: file.clone(), since: now, writing: false }
        });
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        if let Some(dirty) = self.files.remove(&node) {
            self.queue.remove(&(dirty.since, node));
        }
    }

    /// The file that has waited longest, if it waits since `due` or longer.
    pub(crate) fn oldest(&self, due: Nanos) -> Option<NodeId> {
        self.queue.first().filter(|(since, _)| *since <= due).map(|(_, node)| *node)
    }

    /// A task begins to write a file that waits; blocks that become dirty meanwhile are so since
    /// `now`.
    pub(crate) fn begin(&mut self, node: NodeId, now: Nanos) -> Option<T> {
        let dirty = self.files.get_mut(&node).filter(|dirty| !dirty.writing)?;
        self.queue.remove(&(dirty.since, node));
        (dirty.since, dirty.writing) = (now, true);
        Some(dirty.file.clone())
    }

    /// The task has ended; the file waits again.
    pub(crate) fn ended(&mut self, node: NodeId) {
        if let Some(dirty) = self.files.get_mut(&node) {
            dirty.writing = false;
            self.queue.insert((dirty.since, node));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// All of them, by number.
    pub(crate) fn all(&self) -> Vec<T> {
        self.files.values().map(|dirty| dirty.file.clone()).collect()
    }

    /// Those of a subvolume, by number.
    pub(crate) fn of(&self, subvol: SubvolId) -> Vec<T> {
        let first = NodeId { subvol, ino: InodeNo::ROOT };
        let own = self.files.range(first..).take_while(|(node, _)| node.subvol == subvol);
        own.map(|(_, dirty)| dirty.file.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(subvol: u32, ino: u64) -> NodeId {
        NodeId { subvol: SubvolId(subvol), ino: InodeNo(ino) }
    }

    #[test]
    fn what_waits_longest_is_next_and_what_is_written_is_not() {
        let mut dirty = DirtyFiles::default();
        let (one, two, three) = (node(1, 7), node(1, 5), node(2, 5));
        for (node, name, now) in [(one, "one", 3), (two, "two", 9), (three, "three", 9)] {
            dirty.insert(node, &name, now);
        }
        dirty.insert(one, &"again", 20);
        assert_eq!((dirty.oldest(2), dirty.oldest(3)), (None, Some(one)));
        assert_eq!(dirty.begin(one, 10), Some("one"));
        assert_eq!(dirty.begin(one, 10), None);
        assert_eq!(dirty.oldest(Nanos::MAX), Some(two));
        dirty.remove(two);
        assert_eq!(dirty.oldest(Nanos::MAX), Some(three));
        dirty.ended(one);
        assert_eq!((dirty.oldest(9), dirty.begin(three, 11)), (Some(three), Some("three")));
        assert_eq!(dirty.oldest(Nanos::MAX), Some(one));
        assert_eq!((dirty.all(), dirty.of(SubvolId::ROOT)), (vec!["one", "three"], vec!["one"]));
    }

    #[test]
    fn a_file_that_is_clean_before_its_task_has_ended_waits_for_nothing() {
        let mut dirty = DirtyFiles::default();
        dirty.insert(node(1, 7), &(), 3);
        dirty.begin(node(1, 7), 4);
        dirty.remove(node(1, 7));
        dirty.ended(node(1, 7));
        assert!(dirty.is_empty() && dirty.oldest(Nanos::MAX).is_none());
    }
}
