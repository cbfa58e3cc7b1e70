//! Writing a metaslab's map: the log pin, and its release.
//!
//! Order.    1. [`Space::freeze`] copies the logged allocations.
//!           2. The pool claims space for the map, writes and flushes it.
//!           3. One transaction, which joins only now, puts the new descriptor, logs the claims,
//!              and frees the old map.
//!           4. When the txg of that transaction is *durable*: [`Space::installed`].
//!           A crash before 3 is durable costs nothing: claims vanish, the old map and the log
//!           still contain everything (R19).
//!
//! MAPFLUSH-F1  A frozen map has every edit that was applied before the freeze, also those of txgs
//!              that are not closed. So it pins none of them; and it is complete up to the newest
//!              *closed* txg, since nothing of that can come any more. Replaying later edits again
//!              does no harm: they are absolute (R5).
//! MAPFLUSH-F2  The batch that brings the new descriptor is not older than any edit in the map: its
//!              transaction joins the txg that is open after the freeze, never one that was
//!              closing.
//! MAPFLUSH-F3  Until `installed`, the pin stays where it was: log positions that the old map
//!              needs are never released for a descriptor that may not survive (R6).

use copyhold_format::space_map::{Descriptor, MapRange, SpaceMap};
use copyhold_types::{Key, NodePtr, Txg};

use crate::layout::MetaslabId;
use crate::space::Space;

/// The part of the log that a metaslab pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub metaslab: MetaslabId,
    /// The oldest txg with an edit that is not in an installed map.
    pub oldest: Txg,
    /// Edits that are in no map, and that a flush would retire.
    pub edits: u64,
    /// A map is being written already.
    pub flushing: bool,
}

/// A map to be written. Ends in [`Space::installed`] or [`Space::abort`]; dropping it aborts.
#[must_use = "a frozen map is installed or aborted"]
#[derive(Debug)]
pub struct MapJob {
    space: Space,
    index: usize,
    complete_to: Txg,
    /// `None`: the metaslab is set aside, and its edits are logged again ([`Space::carry`]).
    map: Option<SpaceMap>,
    replaces: Option<NodePtr>,
    done: bool,
}

impl MapJob {
    pub fn metaslab(&self) -> MetaslabId {
        self.space.shared.metaslabs[self.index].id
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Whether the metaslab is set aside: then its edits are logged again, and its descriptor
    /// stays.
    pub fn is_set_aside(&self) -> bool {
        self.map.is_none()
    }

    /// Edits that are to be retired.
    pub fn edits(&self) -> u64 {
        let state = self.space.shared.metaslabs[self.index].lock();
        state.frozen.map_or(0, |frozen| frozen.edits)
    }

    /// The map, if one is needed.
    fn needed(&self) -> Option<&SpaceMap> {
        self.map.as_ref().filter(|map| map.allocated() > 0)
    }

    /// Encodes the map, without the zeros up to the end of the last block. `None`: no map is
    /// needed, since nothing is allocated, or the metaslab is set aside.
    pub fn encode(&self) -> Option<Vec<u8>> {
        self.needed().map(SpaceMap::encode)
    }

    /// Where the descriptor goes.
    pub fn key(&self) -> Key {
        let MetaslabId { device, index } = self.metaslab();
        Descriptor::key(device, index)
    }

    /// The descriptor to put, once the map has been written to `map` (`None` if there is none).
    pub fn descriptor(&self, map: Option<NodePtr>) -> Descriptor {
        assert_eq!(map.is_some(), self.needed().is_some(), "a map is there iff it is needed");
        Descriptor {
            map,
            allocated: self.needed().map_or(0, SpaceMap::allocated),
            complete_to: self.complete_to,
            longest_free: self.map.as_ref().map_or(0, SpaceMap::longest_free),
            is_lost: false,
        }
    }

    /// The map that this one takes the place of, to be freed in the same transaction.
    pub fn replaces(&self) -> Option<NodePtr> {
        self.replaces
    }

    /// Every edit of a txg up to this one is in the map.
    pub fn complete_to(&self) -> Txg {
        self.complete_to
    }
}

impl Drop for MapJob {
    fn drop(&mut self) {
        if !self.done {
            let mut state = self.space.shared.metaslabs[self.index].lock();
            let frozen = state.frozen.take().expect("MAPFLUSH-F3: a job has frozen changes");
            state.live = state.live.and(frozen);
        }
    }
}

impl Space {
    /// Freezes the map of a metaslab. `closed`: the newest txg whose transactions have all left,
    /// read before this call.
    ///
    /// `None`: there is nothing to retire, or a map of this metaslab is being written already, or
    /// its map is cold, or it does not exist.
    pub fn freeze(&self, id: MetaslabId, closed: Txg) -> Option<MapJob> {
        let index = self.shared.geometry.index_of(id)?;
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        if state.frozen.is_some() || state.live.edits == 0 || state.map.is_cold() {
            return None;
        }
        assert!(state.complete_to <= Some(closed), "{id} is complete beyond {closed} already");
        state.frozen = Some(std::mem::take(&mut state.live));
        let words = state.map.loaded().map(|map| map.logged.to_words());
        let (replaces, blocks) = (state.installed, metaslab.blocks());
        drop(state);
        let MetaslabId { device, index: number } = id;
        let first_block = metaslab.first_block;
        let place = MapRange { device, index: number, first_block, blocks };
        let map = words.map(|words| SpaceMap::new(place, closed, words));
        let (space, complete_to) = (self.clone(), closed);
        Some(MapJob { space, index, complete_to, map, replaces, done: false })
    }

    /// The transaction that put the job's descriptor is durable: its edits do not pin the log any
    /// more.
    pub fn installed(&self, mut job: MapJob, map: Option<NodePtr>) {
        let metaslab = &self.shared.metaslabs[job.index];
        let mut state = metaslab.lock();
        state.frozen.take().expect("MAPFLUSH-F3: a job has frozen changes");
        if !job.is_set_aside() {
            state.installed = map;
            state.complete_to = Some(job.complete_to);
        }
        job.done = true;
        metaslab.publish_edits(&state);
    }

    /// The map could not be written or its descriptor not be put: its edits stay pinned.
    pub fn abort(&self, job: MapJob) {
        drop(job);
    }

    /// The metaslabs that pin the log, in no order of age. Takes the lock of each in turn.
    pub fn pins(&self) -> impl Iterator<Item = Pin> + '_ {
        self.shared.sets.pinning.iter().filter_map(|index| {
            let metaslab = &self.shared.metaslabs[index];
            let state = metaslab.lock();
            let oldest = state.oldest_pin()?;
            let (edits, flushing) = (state.live.edits, state.frozen.is_some());
            Some(Pin { metaslab: metaslab.id, oldest, edits, flushing })
        })
    }

    /// The pin of one metaslab.
    pub fn pin_of(&self, id: MetaslabId) -> Option<Txg> {
        self.shared.metaslabs[self.shared.geometry.index_of(id)?].lock().oldest_pin()
    }

    /// The oldest txg that any metaslab needs the log for.
    pub fn oldest_pin(&self) -> Option<Txg> {
        self.pins().map(|pin| pin.oldest).min()
    }
}
