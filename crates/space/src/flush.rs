//! Writing a metaslab's map: the log pin, and its release.
//!
//! Order.    1. [`Space::freeze`] copies the logged allocations, or what has changed of them
//!              (`stored`).
//!           2. The pool claims space for the map or delta, writes and flushes it.
//!           3. One transaction, which joins only now, puts the new descriptor, logs the claims,
//!              and frees the old map and its deltas if a whole map replaces them.
//!           4. When the txg of that transaction is *durable*: [`Space::installed`].
//!           A crash before 3 is durable costs nothing: claims vanish, the old map and the log
//!           still contain everything (R19).
//!
//! MAPFLUSH-F1  A frozen map or delta has every edit that was applied before the freeze, also those
//!              of txgs that are not closed. So it pins none of them; and it is complete up to the
//!              newest *closed* txg, since nothing of that can come any more. Replaying later edits
//!              again does no harm: they are absolute (R5).
//! MAPFLUSH-F2  The batch that brings the new descriptor is not older than any edit in the map: its
//!              transaction joins the txg that is open after the freeze, never one that was
//!              closing.
//! MAPFLUSH-F3  Until `installed`, the pin stays where it was: log positions that the old map
//!              needs are never released for a descriptor that may not survive (R6).

use copyhold_format::space_map::{Descriptor, MapDelta, SpaceMap};
use copyhold_types::{BLOCK_BYTES, Key, NodePtr, Txg};

use crate::budget::Tier;
use crate::layout::{CHUNK_BLOCKS, MetaslabId};
use crate::metaslab::{Map, Metaslab, MetaslabState};
use crate::space::Space;
use crate::stored::StoredMap;

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

#[derive(Debug)]
enum Content {
    Whole(SpaceMap),
    Delta(MapDelta),
    /// None: the metaslab is set aside, and its edits are logged again ([`Space::carry`]).
    SetAside,
}

/// A map or a delta to be written. Ends in [`Space::installed`] or [`Space::abort`]; dropping it
/// aborts.
#[must_use = "a frozen map is installed or aborted"]
#[derive(Debug)]
pub struct MapJob {
    space: Space,
    index: usize,
    complete_to: Txg,
    content: Content,
    /// The map on disk.
    stored: Option<StoredMap>,
    /// Blocks of chunks with a free run of 64 KiB.
    good_blocks: u32,
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
        matches!(self.content, Content::SetAside)
    }

    /// Whether its metaslab was set aside since the freeze. Then it may free blocks that the map on
    /// disk does not have (AWAY-A5), and is to be aborted.
    pub fn was_set_aside(&self) -> bool {
        let state = self.space.shared.metaslabs[self.index].lock();
        !self.is_set_aside() && state.map.is_aside()
    }

    /// Whether it becomes a delta of the map on disk, and does not replace it.
    pub fn is_delta(&self) -> bool {
        matches!(self.content, Content::Delta(_))
    }

    /// Edits that are to be retired.
    pub fn edits(&self) -> u64 {
        let state = self.space.shared.metaslabs[self.index].lock();
        state.frozen.map_or(0, |frozen| frozen.edits)
    }

    /// Encodes the map or delta, without the zeros up to the end of the last block. `None`: no map
    /// is needed, since nothing is allocated, or the metaslab is set aside.
    pub fn encode(&self) -> Option<Vec<u8>> {
        match &self.content {
            Content::Whole(map) => (map.allocated() > 0).then(|| map.encode()),
            Content::Delta(delta) => Some(delta.encode()),
            Content::SetAside => None,
        }
    }

    /// Where the descriptor goes.
    pub fn key(&self) -> Key {
        let MetaslabId { device, index } = self.metaslab();
        Descriptor::key(device, index)
    }

    /// The map that is on disk, once this one has been written to `written` (`None` if there is
    /// none).
    fn stored_with(&self, written: Option<NodePtr>) -> Option<StoredMap> {
        match &self.content {
            Content::Delta(_) => Some(self.stored.clone()?.with(written.expect("a delta"))),
            _ => written.map(StoredMap::whole),
        }
    }

    /// The descriptor to put, once the map has been written to `written` (`None` if there is none).
    pub fn descriptor(&self, written: Option<NodePtr>) -> Descriptor {
        let (allocated, longest_free) = match &self.content {
            Content::Whole(map) => (map.allocated(), map.longest_free()),
            Content::Delta(delta) => (delta.allocated(), self.good_blocks),
            Content::SetAside => (0, 0),
        };
        assert_eq!(written.is_some(), allocated > 0, "a map is there iff it is needed");
        let stored = self.stored_with(written);
        Descriptor {
            map: stored.as_ref().map(StoredMap::base),
            deltas: stored.map_or(Vec::new(), |stored| stored.deltas().to_vec()),
            allocated,
            complete_to: self.complete_to,
            longest_free,
            is_lost: false,
        }
    }

    /// The base and the deltas that this map takes the place of, to be freed in the same
    /// transaction.
    pub fn replaces(&self) -> impl Iterator<Item = NodePtr> + '_ {
        let is_whole = matches!(self.content, Content::Whole(_));
        self.stored.iter().filter(move |_| is_whole).flat_map(StoredMap::parts)
    }

    /// Every edit of a txg up to this one is in the map then.
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
            state.map.thaw();
            self.space.shared.metaslabs[self.index].publish_edits(&state);
        }
    }
}

impl Space {
    /// Freezes the map of a metaslab, or its changes. `closed`: the newest txg whose transactions
    /// have all left, read before this call.
    ///
    /// `None`: there is nothing to retire, or a map of this metaslab is being written already, or
    /// its map is cold and must be written whole (STORED-D4), or it does not exist.
    pub fn freeze(&self, id: MetaslabId, closed: Txg) -> Option<MapJob> {
        let index = self.shared.geometry.index_of(id)?;
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        if state.frozen.is_some() || state.live.edits == 0 {
            return None;
        }
        let delta = self.delta_of(metaslab, &state, closed);
        if state.map.is_cold() && delta.is_none() {
            return None;
        }
        assert!(state.complete_to <= Some(closed), "{id} is complete beyond {closed} already");
        state.frozen = Some(std::mem::take(&mut state.live));
        state.map.freeze();
        let place = metaslab.range();
        let loaded = state.map.loaded().filter(|_| delta.is_none());
        let words = loaded.map(|map| map.logged.to_words());
        let (stored, good_blocks) = (state.installed.clone(), good_blocks(&state.map));
        drop(state);
        let content = match (delta, words) {
            (Some(delta), _) => Content::Delta(delta),
            (None, Some(words)) => Content::Whole(SpaceMap::new(place, closed, words)),
            (None, None) => Content::SetAside,
        };
        let (space, complete_to) = (self.clone(), closed);
        Some(MapJob { space, index, complete_to, content, stored, good_blocks, done: false })
    }

    /// The changes since the map on disk, if writing them is worth less than the whole.
    fn delta_of(
        &self,
        metaslab: &Metaslab,
        state: &MetaslabState,
        closed: Txg,
    ) -> Option<MapDelta> {
        let stored = state.installed.as_ref().filter(|stored| stored.has_room())?;
        if self.missing(0, Tier::Write) > 0 {
            return None; // STORED-D5
        }
        let follows = state.complete_to.filter(|txg| *txg < closed)?; // STORED-D3
        let allocated = u32::try_from(state.allocated).ok().filter(|count| *count > 0)?;
        let saves_read = state.map.is_cold() || self.shared.config.prefer_deltas;
        // The metaslab is locked, and many changes are not put together in vain.
        let runs = match &state.map {
            Map::Loaded(map) => map.changed.runs(),
            Map::Away(away) => away.change_runs(),
        };
        let least = (runs * MapDelta::RUN_BYTES_MIN).div_ceil(BLOCK_BYTES).max(1);
        if !stored.admits(u32::try_from(least).unwrap_or(u32::MAX / 2), saves_read) {
            return None;
        }
        let changes = match &state.map {
            Map::Loaded(map) => map.changed.changes(&map.logged)?,
            Map::Away(away) if state.map.is_cold() => away.changes()?,
            Map::Away(_) => return None,
        };
        let delta = MapDelta::new(metaslab.range(), follows, closed, allocated, changes);
        let blocks = delta.encode().len().div_ceil(BLOCK_BYTES) as u32;
        stored.admits(blocks, saves_read).then_some(delta)
    }

    /// Whether [`Self::freeze`] returns nothing because the map of a metaslab is cold: there are
    /// edits to retire, and no map is being written.
    pub fn wants_load(&self, id: MetaslabId) -> bool {
        let Some(index) = self.shared.geometry.index_of(id) else { return false };
        let state = self.shared.metaslabs[index].lock();
        state.map.is_cold() && state.frozen.is_none() && state.live.edits > 0
    }

    /// The transaction that put the job's descriptor is durable: its edits do not pin the log any
    /// more. `map`: where the map or delta was written.
    pub fn installed(&self, mut job: MapJob, map: Option<NodePtr>) {
        let metaslab = &self.shared.metaslabs[job.index];
        let mut state = metaslab.lock();
        state.frozen.take().expect("MAPFLUSH-F3: a job has frozen changes");
        if !job.is_set_aside() {
            state.installed = job.stored_with(map);
            state.complete_to = Some(job.complete_to);
            state.map.settle();
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

/// Blocks of the chunks with a free run of 64 KiB, as far as that is known.
fn good_blocks(map: &Map) -> u32 {
    CHUNK_BLOCKS
        * match map {
            Map::Loaded(map) => map.free.good_chunks(),
            Map::Away(away) => away.worth.good_chunks,
        }
}
