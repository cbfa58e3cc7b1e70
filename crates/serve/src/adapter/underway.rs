//! READs and WRITEs of pages that are under way, and the drops that wait for them.
//!
//! Problem.  The kernel keeps the page of a READ or WRITE locked until the answer, and a drop waits
//!           for that lock in a way that SIGKILL does not end. If the daemon is killed meanwhile,
//!           the waiting thread keeps the connection open. So the kernel never fails the READ: the
//!           daemon does not end, its pool stays locked, and every call on the mount waits.
//! Idea.     The daemon knows which READs and WRITEs it has not answered. A drop of their pages is
//!           sent when they have ended.
//!
//! UNDERWAY-B1  A drop waits here as long as a READ or WRITE under way overlaps it, counted in the
//!              largest folios that the kernel may lock. When the last one ends, the drop is sent.
//! UNDERWAY-B2  A drop lets [`OVERTAKERS_MAX`] READs and WRITEs begin before it, and is sent with
//!              the next one. So a program that reads the same pages again and again delays no drop
//!              for ever.
//!
//! A drop still waits in the kernel for a READ that the daemon has not begun yet, for an answer
//! on its way, and for the write-back that the drop itself begins. `copyhold mount` and `umount`
//! abort the connection of a daemon that is killed during such a wait.

use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use copyhold_fuse::protocol::NodeId;
use copyhold_sync::{Mutex, of};

const SHARDS: usize = 16;
/// Bytes of the largest folio.
const FOLIO_BYTES: u64 = 2 << 20;
/// How many READs and WRITEs may begin before a drop that waits.
const OVERTAKERS_MAX: u32 = 64;

/// `D`: a drop.
pub(super) struct Underway<D> {
    shards: [Mutex<HashMap<NodeId, File<D>>, of::PageDrops>; SHARDS],
}

/// A file some of whose pages are under way.
struct File<D> {
    /// Ranges of folios, one of each READ and WRITE.
    transfers: Vec<Range<u64>>,
    waiting: Vec<Waiting<D>>,
}

struct Waiting<D> {
    drop: D,
    folios: Range<u64>,
    overtakers: u32,
}

impl<D> Default for Underway<D> {
    fn default() -> Underway<D> {
        Underway { shards: Default::default() }
    }
}

impl<D> Default for File<D> {
    fn default() -> File<D> {
        File { transfers: Vec::new(), waiting: Vec::new() }
    }
}

impl<D> Underway<D> {
    fn shard(&self, node: NodeId) -> &Mutex<HashMap<NodeId, File<D>>, of::PageDrops> {
        &self.shards[(node.0 % SHARDS as u64) as usize]
    }

    /// Notes a READ or WRITE. Returns the drops that are to be sent although it overlaps them
    /// (UNDERWAY-B2).
    pub(super) fn begin(&self, node: NodeId, bytes: &Range<u64>) -> Vec<D> {
        let folios = folios(bytes);
        let mut shard = self.shard(node).lock();
        let file = shard.entry(node).or_default();
        for one in file.waiting.iter_mut().filter(|one| overlap(&one.folios, &folios)) {
            one.overtakers += 1;
        }
        file.transfers.push(folios);
        file.take(|one, _| one.overtakers > OVERTAKERS_MAX)
    }

    /// Forgets a READ or WRITE that began. Returns the drops that nothing delays any more
    /// (UNDERWAY-B1).
    pub(super) fn end(&self, node: NodeId, bytes: &Range<u64>) -> Vec<D> {
        let folios = folios(bytes);
        let mut shard = self.shard(node).lock();
        let Some(file) = shard.get_mut(&node) else { return Vec::new() };
        if let Some(at) = file.transfers.iter().position(|one| *one == folios) {
            file.transfers.swap_remove(at);
        }
        let free = file.take(|one, transfers| !any_overlaps(transfers, &one.folios));
        if file.transfers.is_empty() {
            shard.remove(&node);
        }
        free
    }

    /// Returns `drop` if it may be sent; else it waits here.
    pub(super) fn admit(&self, node: NodeId, bytes: &Range<u64>, drop: D) -> Option<D> {
        let folios = folios(bytes);
        match self.shard(node).lock().get_mut(&node) {
            Some(file) if any_overlaps(&file.transfers, &folios) => {
                file.waiting.push(Waiting { drop, folios, overtakers: 0 });
                None
            }
            _ => Some(drop),
        }
    }
}

impl<D> File<D> {
    fn take(&mut self, is_free: impl Fn(&Waiting<D>, &[Range<u64>]) -> bool) -> Vec<D> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let waiting = mem::take(&mut self.waiting).into_iter();
        let (free, rest) = waiting.partition::<Vec<_>, _>(|one| is_free(one, &self.transfers));
        self.waiting = rest;
        free.into_iter().map(|one| one.drop).collect()
    }
}

fn folios(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / FOLIO_BYTES..bytes.end.div_ceil(FOLIO_BYTES)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn any_overlaps(transfers: &[Range<u64>], folios: &Range<u64>) -> bool {
    transfers.iter().any(|one| overlap(one, folios))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: NodeId = NodeId(7);
    const NONE: [u32; 0] = [];

    fn folio(number: u64) -> Range<u64> {
        let first = number * FOLIO_BYTES + 4096;
        first..first + 4096
    }

    #[test]
    fn a_drop_waits_for_the_last_transfer_of_its_range_alone() {
        let underway = Underway::default();
        for number in [1, 2, 2, 9] {
            assert_eq!(underway.begin(FILE, &folio(number)), NONE);
        }
        let both = folio(1).start..folio(2).end;
        assert_eq!(underway.admit(FILE, &both, 12), None);
        assert_eq!(underway.admit(FILE, &(0..u64::MAX), 0), None);
        assert_eq!(underway.admit(FILE, &folio(3), 3), Some(3));
        assert_eq!(underway.admit(NodeId(8), &both, 8), Some(8));
        assert_eq!(underway.end(FILE, &folio(2)), NONE);
        assert_eq!(underway.end(FILE, &folio(1)), NONE);
        assert_eq!(underway.end(FILE, &folio(2)), [12]);
        assert_eq!(underway.end(FILE, &folio(9)), [0]);
        assert_eq!(underway.admit(FILE, &both, 12), Some(12));
        assert!(underway.shards.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn transfers_without_end_do_not_delay_a_drop_for_ever() {
        let underway = Underway::default();
        underway.begin(FILE, &folio(1));
        assert_eq!(underway.admit(FILE, &folio(1), 1), None);
        for _ in 0..OVERTAKERS_MAX {
            assert_eq!(underway.begin(FILE, &folio(1)), NONE);
            assert_eq!(underway.begin(FILE, &folio(2)), NONE);
            assert_eq!(underway.end(FILE, &folio(1)), NONE);
        }
        assert_eq!(underway.begin(FILE, &folio(1)), [1]);
    }
}
