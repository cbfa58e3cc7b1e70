//! Maps that are not in memory.
//!
//! Problem.  The maps of a large pool do not fit in memory; most of its metaslabs are not allocated
//!           from for hours, but blocks are freed in all of them.
//! Idea.     A map is in memory while its metaslab is allocated from. Of any other there are the
//!           edits that the map does not have, as runs, and the count of its free blocks. Frees are
//!           noted there, so they never wait for a read. When the map is loaded, the edits are
//!           applied to it.
//!
//! AWAY-A1  Nothing is allocated in a metaslab whose map is away. So each of its edits since then
//!          is a free.
//! AWAY-A2  Reservations of every tier but the internal one are at most the free blocks of loaded
//!          maps. So a claim of reserved blocks waits for no read, and an eviction leaves enough.
//! AWAY-A3  A map is evicted only if it is on disk as it is in memory: no edit is live or frozen,
//!          and each block is allocated, free or deferred. Blocks of lanes, claims and discards
//!          are none of these. Nor does a lane hold a chunk there, even if it has taken all blocks
//!          of it: it returns the chunk later.
//! AWAY-A4  The count of free blocks is exact, except after a recovery: a map may have edits of
//!          txgs that it is not complete up to, and those are counted twice. The load corrects it.
//! AWAY-A5  A block that is freed while its map is away, and has no earlier edit here, must be
//!          allocated by the map. If it is not, a pointer or the map is damaged, and the metaslab
//!          is set aside.
//!
//! The layer above reads the maps: [`Space::best_cold`] names the next one, [`Space::cold_map`]
//! its place, [`Space::load`] takes its content, and [`Space::evict`] keeps the memory limit.
//! `worth` chooses the maps; `noted` has the edits; a map that cannot be read is `aside`'s subject.

use copyhold_format::space_map::SpaceMap;
use copyhold_types::Txg;

use crate::bits::Bits;
use crate::budget::{Loading, Tier, Wanted};
use crate::changed::Changed;
use crate::error::SpaceError;
use crate::layout::MetaslabId;
use crate::metaslab::{Loaded, Map, Metaslab, MetaslabState};
use crate::noted::{Away, Why, Worth, runs};
use crate::space::Space;
use crate::stored::StoredMap;
use crate::view::MapView;

impl Metaslab {
    /// Checks that a map is the installed one of this metaslab.
    pub(crate) fn check_map(
        &self,
        map: &SpaceMap,
        complete_to: Option<Txg>,
    ) -> Result<(), SpaceError> {
        let wrong = |what, found, wanted| match found == wanted {
            true => Ok(()),
            false => Err(SpaceError::Mismatch { metaslab: self.id, what, found, wanted }),
        };
        let place = map.place();
        wrong("device", place.device.0.into(), self.id.device.0.into())?;
        wrong("index", place.index.into(), self.id.index.into())?;
        wrong("first_block", place.first_block, self.first_block)?;
        // A map that was written before the device grew has fewer blocks.
        wrong("blocks", place.blocks.into(), place.blocks.min(self.blocks()).into())?;
        wrong("complete_to", map.complete_to().get(), complete_to.map_or(0, Txg::get))
    }

    /// The blocks that are allocated now, given the installed map (`None`: there is none) of a
    /// metaslab whose map is away. Notes in `changed` where they differ from that.
    pub(crate) fn logged_with(
        &self,
        state: &MetaslabState,
        map: Option<&[u64]>,
        changed: &mut Changed,
    ) -> Result<Bits, SpaceError> {
        let away = state.map.away().expect("AWAY-A1: a map that is away");
        let map = map.unwrap_or_default();
        let mut bits = Bits::from_words((map.len() as u32 * 64).min(self.blocks()), map);
        // A map that was written before the device grew has fewer blocks.
        bits.lengthen(self.blocks());
        let logged = away.apply_to(bits, changed).map_err(|(first, blocks)| {
            SpaceError::NotAllocated { run: self.run(first, blocks), metaslab: self.id }
        })?;
        match runs(&state.fixed).find(|(first, blocks)| !logged.all_clear(*first, *blocks)) {
            Some((first, blocks)) => {
                Err(SpaceError::Fixed { run: self.run(first, blocks), metaslab: self.id })
            }
            None => Ok(logged),
        }
    }

    /// The blocks that are allocated, fixed or deferred.
    pub(crate) fn used(&self, logged: &Bits, state: &MetaslabState) -> Bits {
        let mut used = logged.clone();
        let deferred = state.deferred.values().flatten().copied();
        runs(&state.fixed).chain(deferred).for_each(|(first, blocks)| used.set(first, blocks));
        used
    }
}

impl Space {
    /// The installed map of a cold metaslab; `Some(None)`: nothing is allocated there but by edits,
    /// so that it is loaded without a map. `None`: it is loaded or set aside.
    pub fn cold_map(&self, id: MetaslabId) -> Option<Option<StoredMap>> {
        let index = self.shared.geometry.index_of(id)?;
        let state = self.shared.metaslabs[index].lock();
        state.map.is_cold().then(|| state.installed.clone())
    }

    /// Puts the map of a cold metaslab into memory; `map`: as [`Self::cold_map`] names it, with its
    /// deltas. Returns whether it was cold.
    ///
    /// # Errors
    /// The map is that of another metaslab or time, contradicts a free (AWAY-A5), or allocates a
    /// fixed area. The metaslab is as before. If [`Self::cold_map`] names another map by now, a
    /// flush has added a delta meanwhile, and the map is to be read again.
    pub fn load(&self, id: MetaslabId, map: Option<&SpaceMap>) -> Result<bool, SpaceError> {
        let index = self.shared.geometry.index_of(id);
        let index = index.ok_or(SpaceError::NoMetaslab { metaslab: id })?;
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        if !state.map.is_cold() {
            return Ok(false);
        }
        assert_eq!(map.is_some(), state.installed.is_some(), "the map that the metaslab has");
        if let Some(map) = map {
            metaslab.check_map(map, state.complete_to)?;
        }
        let mut changed = Changed::none(metaslab.blocks(), self.shared.config.prefer_deltas);
        let logged = metaslab.logged_with(&state, map.map(SpaceMap::words), &mut changed)?;
        let used = metaslab.used(&logged, &state);
        let (estimate, allocated) = (state.allocated, i64::from(logged.count()));
        let counted_free = metaslab.away_free(&state);
        state.map = Map::Loaded(Loaded::new(logged, &used, changed, &self.shared.config));
        state.allocated = allocated;
        self.shared.publish(index, &state);
        // Behind the offer: reservations count on what is offered (AWAY-A2).
        self.shared.budget.load(counted_free, allocated - estimate);
        Ok(true)
    }

    /// A rule broken on purpose: the frees that are noted beside a cold map are forgotten.
    pub fn forget_noted_frees(&self, id: MetaslabId) {
        let Some(index) = self.shared.geometry.index_of(id) else { return };
        let mut state = self.shared.metaslabs[index].lock();
        if let Map::Away(away) = &mut state.map {
            away.forget_frees();
        }
        self.shared.publish(index, &state);
    }

    /// A rule broken on purpose: when a map or a delta is installed, the changes that came while it
    /// was written are forgotten, too, so that no delta will have them.
    pub fn forget_late_changes(&self, id: MetaslabId) {
        let Some(index) = self.shared.geometry.index_of(id) else { return };
        let mut state = self.shared.metaslabs[index].lock();
        match &mut state.map {
            Map::Loaded(map) => map.changed.forget(),
            Map::Away(away) => away.forget_frees(),
        }
        self.shared.publish(index, &state);
    }

    /// The map of a cold metaslab cannot be read: it is set aside.
    pub fn set_unreadable(&self, id: MetaslabId) {
        let Some(index) = self.shared.geometry.index_of(id) else { return };
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        let counted_free = metaslab.away_free(&state);
        let Map::Away(away) = &mut state.map else { return };
        if away.why == Why::Unreadable {
            return;
        }
        away.why = Why::Unreadable;
        // Blocks that are deferred wait for the map like all others.
        let freeing = std::mem::take(&mut state.deferred_blocks) as i64;
        state.deferred.clear();
        state.allocated = metaslab.usable(&state) as i64;
        self.shared.budget.set_aside(counted_free, freeing);
        self.shared.publish(index, &state);
    }

    /// Evicts one map, if AWAY-A2 and AWAY-A3 permit it. Returns whether they do.
    pub(crate) fn evict_one(&self, index: usize) -> bool {
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        let Map::Loaded(map) = &state.map else { return false };
        let free = u64::from(map.free.free_blocks());
        let known = state.allocated as u64 + free + state.deferred_blocks;
        let is_written = state.live.edits == 0 && state.frozen.is_none();
        let is_known = known == metaslab.usable(&state) && !map.free.is_busy();
        if !is_written || !is_known || !self.shared.budget.unload(free) {
            return false;
        }
        let worth = Worth { good_chunks: map.free.good_chunks(), bytes: map.bytes() };
        state.map = Map::Away(Box::new(Away::new(Why::Cold, worth)));
        self.shared.publish(index, &state);
        true
    }

    /// Whether maps must be loaded for a reservation, which the pool as a whole has room for.
    pub fn wants_map(&self, wanted: impl Into<Wanted>, tier: Tier) -> bool {
        self.shared.budget.wants_map(wanted.into(), tier)
    }

    /// Maps are loaded for a request ([`Self::wants_map`]): the blocks they offer stay loaded until
    /// the result is dropped, behind the reservation.
    pub fn begin_loads(&self, blocks: u64) -> Loading {
        Loading::begin(&self.shared, blocks)
    }

    /// The runs of a metaslab whose map is cold: of `map`, as [`Self::cold_map`] names it, and of
    /// the edits. Leaves the metaslab as it is. If it is not cold, `map` does not matter.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn view_with(&self, id: MetaslabId, map: Option<&SpaceMap>) -> Result<MapView, SpaceError> {
        let index = self.shared.geometry.index_of(id);
        let metaslab =
            &self.shared.metaslabs[index.ok_or(SpaceError::NoMetaslab { metaslab: id })?];
        let state = metaslab.lock();
        if !state.map.is_cold() {
            drop(state);
            return Ok(self.view(id));
        }
        if let Some(map) = map {
            metaslab.check_map(map, state.complete_to)?;
        }
        let mut changed = Changed::none(metaslab.blocks(), false).unknown();
        let logged = metaslab.logged_with(&state, map.map(SpaceMap::words), &mut changed)?;
        let free = metaslab.used(&logged, &state).complement();
        Ok(MapView::of(metaslab, &state, &logged, &free))
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;

    use super::*;
    use crate::lane::{Lane, LaneClass};
    use crate::layout::MetaslabLayout;
    use crate::space::Config;

    const LANE: Lane = Lane { cpu: 0, class: LaneClass::Data };

    /// 32 metaslabs of one chunk.
    fn space(reserve: u64) -> Space {
        let layout = MetaslabLayout::for_device(DeviceId(0), 32 << 8, Some(256));
        let config = Config { reserve_blocks: Some(reserve), ..Config::default() };
        Space::new(&[layout], &[], 1, config)
    }

    #[test]
    fn a_map_stays_while_a_lane_holds_an_emptied_chunk_of_it() {
        let space = space(0);
        let mut reserved = space.reserve(256, Tier::Write).unwrap();
        let most = space.claim_run(LANE, 255, &mut reserved).unwrap();
        let last = space.claim_run(LANE, 1, &mut reserved).unwrap();
        assert_eq!(most.run().end(), last.run().addr.block(), "both are of the lane's chunk");
        let index = most.run().addr.block() as usize / 256;
        drop((most, last));
        assert!(!space.evict_one(index), "AWAY-A3: the lane still holds the chunk");
        space.check();
        space.shared.close_lanes();
        assert!(space.evict_one(index));
        space.check();
    }

    #[test]
    fn an_eviction_leaves_what_is_reserved_kept_for_rounds_or_waited_for() {
        let space = space(3 << 8);
        let loaded_free = |space: &Space| space.shared.budget.loaded_free();
        let reserved = space.reserve(5 << 8, Tier::Write).unwrap();
        let loading = space.begin_loads(4 << 8);
        assert_eq!(space.evict(0), 32 - 12);
        assert_eq!(loaded_free(&space), 12 << 8, "AWAY-A2, BUDGET-B5");
        assert_eq!(space.loaded_left(), 7 << 8, "without what is reserved");
        assert!(!space.wants_map(4 << 8, Tier::Write), "BUDGET-B5: it need not load them again");
        drop(loading);
        assert_eq!((space.evict(0), loaded_free(&space)), (4, 8 << 8));
        drop(reserved);
        assert_eq!((space.evict(0), loaded_free(&space)), (5, 3 << 8));
    }
}
