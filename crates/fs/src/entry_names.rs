//! The names of directories and subvolumes in the directories that have their entries.
//!
//! Problem.  The record of a subvolume names the directory of its entry, but not the name, so a
//!           path needs a read of that directory. A list in pages would read a directory of 100,000
//!           subvolumes once for each page.
//! Idea.     The names that a read finds are kept for the rest of the list. A name that was kept is
//!           looked up before it is returned: so changes of the directory need not be followed
//!           (`find_name`).
//!
//! ENTRYNAME-E1  A name is returned only if the directory has the entry now.
//! ENTRYNAME-E2  At most [`KEPT_MAX`] names are kept, until the list ends.
//!
//! A subvolume that is made during the list is found by one more read of its directory. So a list
//! of n subvolumes costs n look-ups, and one read of a directory that does not change.

use copyhold_sync::{Mutex, of};
use rustc_hash::FxHashMap;

use crate::NodeId;

/// Names in memory: some 60 bytes each.
pub(crate) const KEPT_MAX: usize = 1 << 18;

/// Names that reads of directories have found.
#[derive(Default)]
pub struct EntryNames {
    kept: Mutex<FxHashMap<NodeId, Box<[u8]>>, of::EntryNames>,
}

impl EntryNames {
    pub(crate) fn get(&self, node: NodeId) -> Option<Box<[u8]>> {
        self.kept.lock().get(&node).cloned()
    }

    pub(crate) fn keep(&self, names: Vec<(NodeId, Box<[u8]>)>) {
        let mut kept = self.kept.lock();
        for (node, name) in names {
            if kept.len() < KEPT_MAX || kept.contains_key(&node) {
                kept.insert(node, name);
            }
        }
    }

    /// The list has ended.
    pub fn drop_all(&self) {
        drop(std::mem::take(&mut *self.kept.lock()));
    }
}
