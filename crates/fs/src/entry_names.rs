//! The names of subvolumes, and of directories on the way to them, in the directories above.
//!
//! Problem.  The record of a subvolume names the directory of its entry, but not the name, so a
//!           path needs a read of that directory, and of each above. A list in pages would read a
//!           directory of 100,000 subvolumes, or of as many directories with one each, once for
//!           each page.
//! Idea.     The names that a read finds are kept for the rest of the list. A name that was kept is
//!           looked up before it is returned: so changes of the directory need not be followed
//!           (`find_name`).
//!
//! ENTRYNAME-E1  A kept name is returned only if the directory has the entry now.
//! ENTRYNAME-E2  At most [`KEPT_MAX`] names are kept until a list ends, those of subvolumes before
//!               others. Where there is no room, those of the directory that was read last take the
//!               place of all others.
//! ENTRYNAME-E3  A look at a single subvolume neither keeps names nor drops those of a list.
//!
//! A list of n subvolumes costs a look-up for each name in their paths. A page reads a directory
//! once at most, for subvolumes made since.

use copyhold_sync::{Mutex, of};
use rustc_hash::FxHashMap;

use crate::NodeId;

/// Names in memory: some 60 bytes each.
const KEPT_MAX: usize = 1 << 18;

/// Names that reads of directories have found.
#[derive(Default)]
pub struct EntryNames {
    kept: Mutex<FxHashMap<NodeId, Box<[u8]>>, of::EntryNames>,
}

impl EntryNames {
    pub(crate) fn get(&self, node: NodeId) -> Option<Box<[u8]>> {
        self.kept.lock().get(&node).cloned()
    }

    pub(crate) fn keep(&self, names: impl Iterator<Item = (NodeId, Box<[u8]>)>) {
        let found: Vec<_> = names.take(KEPT_MAX).collect();
        let mut kept = self.kept.lock();
        let others = match kept.len() + found.len() > KEPT_MAX {
            true => std::mem::take(&mut *kept),
            false => FxHashMap::default(),
        };
        kept.extend(found);
        drop(kept);
        drop(others);
    }

    /// A list has ended.
    pub fn drop_all(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        // Without the lock: there may be very many.
        drop(kept);
    }
}
