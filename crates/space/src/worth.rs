//! Which maps are in memory: those that offer the most.
//!
//! Problem.  Memory has room for few maps. Maps with free blocks in short holes fill it as well as
//!           others, and then all data goes out in single blocks, though most of the pool is free
//!           in large runs.
//! Idea.     The stock of loaded maps is counted in blocks and in good chunks. A map that is away
//!           is known by its free blocks and by the good chunks that it last had, so that no map is
//!           read to be compared.
//!
//! WORTH-W1  While good chunks are few and a map that is away has some, that map is loaded: if it
//!           fits into the memory or loaded maps with less than half as many give way.
//! WORTH-W2  An exchange leaves loaded maps with more good chunks than before, so exchanges end.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use crate::budget::Stock;
use crate::layout::{CHUNK_BLOCKS, MetaslabId};
use crate::metaslab::Metaslab;
use crate::space::Space;

impl Space {
    /// The cold metaslab that is best to load for blocks; good chunks count twice. `None`: no cold
    /// one has any. Looks at each metaslab.
    pub fn best_cold(&self) -> Option<MetaslabId> {
        self.most(|metaslab| {
            let runs = u64::from(metaslab.cold_good_chunks()) * u64::from(CHUNK_BLOCKS);
            u64::from(metaslab.cold_free()) + runs
        })
    }

    /// The metaslab with most of it, if any has some; the first of equal ones.
    fn most(&self, worth: impl Fn(&Metaslab) -> u64) -> Option<MetaslabId> {
        let some = self.shared.metaslabs.iter().map(|metaslab| (worth(metaslab), metaslab.id));
        let (_, id) = some.filter(|some| some.0 > 0).min_by_key(|some| Reverse(some.0))?;
        Some(id)
    }

    /// How much loaded maps have beside the reservations.
    pub fn stock(&self) -> Stock {
        self.shared.budget.stock()
    }

    /// Free blocks of loaded maps beside the reservations.
    pub fn loaded_left(&self) -> u64 {
        self.shared.budget.loaded_left().max(0) as u64
    }

    /// The map to load next for the stock, if one is due. Beyond `limit` bytes of maps only what
    /// rounds need is.
    pub fn next_for_stock(&self, limit: u64) -> Option<MetaslabId> {
        let runs = || self.next_for_runs(limit);
        match self.stock() {
            Stock::Short => self.best_cold(),
            Stock::Low => runs().or_else(|| self.best_cold().filter(|id| self.fits(*id, limit))),
            Stock::Enough => runs(),
        }
    }

    /// WORTH-W1
    fn next_for_runs(&self, limit: u64) -> Option<MetaslabId> {
        if self.shared.budget.is_all_loaded() || !self.shared.has_few_runs() {
            return None;
        }
        let best = self.most(|metaslab| metaslab.cold_good_chunks().into())?;
        let offer = self.shared.metaslabs[self.shared.geometry.index_of(best)?].cold_good_chunks();
        if !self.fits(best, limit) {
            // WORTH-W2
            self.evict_until(|| self.fits(best, limit), |good| 2 * good < offer.into());
        }
        self.fits(best, limit).then_some(best)
    }

    /// Whether maps take at most `limit` bytes when that of a cold metaslab is loaded, too.
    pub fn fits(&self, id: MetaslabId, limit: u64) -> bool {
        let Some(index) = self.shared.geometry.index_of(id) else { return false };
        let state = self.shared.metaslabs[index].lock();
        let more = state.map.away().map_or(0, |away| away.worth.bytes as u64);
        self.maps_bytes() + more <= limit
    }

    /// Evicts maps until they take at most `limit` bytes, and leaves in loaded maps what rounds may
    /// need ([`Stock::Low`]). Returns how many.
    pub fn evict(&self, limit: u64) -> usize {
        self.evict_until(|| self.maps_bytes() <= limit, |_| true)
    }

    /// Evicts maps, first those with the fewest good chunks, then those with the fewest free
    /// blocks, of the ones that `may` give way by their good chunks.
    fn evict_until(&self, is_enough: impl Fn() -> bool, may: impl Fn(i64) -> bool) -> usize {
        let offer = |index: usize| {
            let metaslab = &self.shared.metaslabs[index];
            (metaslab.good_chunks(), metaslab.free_blocks(), index)
        };
        // Where none can go, lanes keep their chunks.
        let may_go = |offer: &(i64, u32, usize)| {
            let is_clean = !self.shared.sets.pinning.contains(offer.2);
            is_clean && may(offer.0) && self.shared.budget.may_unload(offer.1.into())
        };
        let offers = || self.shared.sets.loaded.iter().map(offer).filter(may_go);
        if is_enough() || offers().next().is_none() {
            return 0;
        }
        self.shared.close_lanes();
        let mut loaded: Vec<_> = offers().collect();
        loaded.sort_unstable();
        let mut evicted = 0;
        for (_, _, index) in loaded {
            if is_enough() {
                break;
            }
            evicted += usize::from(self.evict_one(index));
        }
        evicted
    }

    /// Memory of the maps that are loaded, and of the edits of all others.
    pub fn maps_bytes(&self) -> u64 {
        self.shared.sets.bytes.load(Relaxed).max(0) as u64
    }

    /// How many maps are loaded.
    pub fn loaded_maps(&self) -> u64 {
        self.shared.sets.loaded.iter().count() as u64
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, NodePtr, Txg};

    use super::*;
    use crate::budget::Tier;
    use crate::lane::{Lane, LaneClass};
    use crate::layout::MetaslabLayout;
    use crate::space::Config;

    /// Of maps that no test reads.
    fn map() -> NodePtr {
        let copies = [Some(BlockAddr::new(DeviceId(0), 0)), None];
        let (epoch, digest) = (EpochId::POOL, Digest(0));
        NodePtr { copies, blocks: 1, fragmented: false, epoch, digest }
    }

    /// 32 metaslabs of one chunk; the maps of the first 16 are loaded and on disk, and have every
    /// second block free. The others are wholly free, and their maps are away.
    fn space_with_holes() -> Space {
        let layout = MetaslabLayout::for_device(DeviceId(0), 32 << 8, Some(256));
        // One good chunk is kept for nodes.
        let config = Config { reserve_blocks: Some(512), ..Config::default() };
        let space = Space::new(&[layout], &[], 1, config);
        let mut reserved = space.reserve(16 << 8, Tier::Write).unwrap();
        let lane = Lane { cpu: 0, class: LaneClass::Data };
        let claims = space.claim(lane, 16 << 8, &mut reserved).unwrap();
        let (first, second) = (Txg::FIRST, Txg::FIRST.next());
        for claim in claims {
            let run = space.log_alloc(first, claim);
            assert!(run.end() <= 16 << 8);
            (0..run.blocks)
                .step_by(2)
                .for_each(|at| space.log_free(second, run.slice(at, 1)).unwrap());
        }
        space.release_deferred(second);
        for id in space.metaslabs().take(16).collect::<Vec<_>>() {
            let job = space.freeze(id, second).unwrap();
            space.installed(job, Some(map()));
        }
        space.shared.close_lanes();
        assert!((16..32).all(|index| space.evict_one(index)));
        assert_eq!((space.shared.good_chunks(), space.stock()), (0, Stock::Enough));
        space
    }

    fn load_next(space: &Space, limit: u64) -> bool {
        let Some(next) = space.next_for_stock(limit) else { return false };
        assert_eq!(space.load(next, None), Ok(true), "one that is wholly free");
        true
    }

    #[test]
    fn lanes_keep_their_chunks_where_no_map_can_go() {
        let layout = MetaslabLayout::for_device(DeviceId(0), 32 << 8, Some(256));
        let config = Config { reserve_blocks: Some(4096), ..Config::default() };
        let space = Space::new(&[layout], &[], 1, config);
        let is_open = || space.shared.lanes.iter().any(|lane| lane.lock().open.is_some());
        let allocate = || {
            let mut reserved = space.reserve(1, Tier::Write).unwrap();
            let lane = Lane { cpu: 0, class: LaneClass::Data };
            for claim in space.claim(lane, 1, &mut reserved).unwrap() {
                space.log_alloc(Txg::FIRST, claim);
            }
        };
        allocate();
        assert!(is_open());
        assert!(space.evict(0) > 0 && !is_open());
        // One map has edits, and rounds may need the free blocks of the others.
        allocate();
        assert!(is_open());
        assert_eq!(space.evict(0), 0);
        assert!(is_open());
    }

    #[test]
    fn large_runs_are_loaded_though_holes_have_blocks_enough() {
        let space = space_with_holes();
        while load_next(&space, u64::MAX) {}
        assert_eq!((space.shared.good_chunks(), space.loaded_maps()), (2, 18), "WORTH-W1");
        space.check();
    }

    #[test]
    fn maps_with_holes_give_way_to_those_with_large_runs() {
        let space = space_with_holes();
        let limit = space.maps_bytes();
        while load_next(&space, limit) {}
        assert_eq!(space.shared.good_chunks(), 2, "WORTH-W1");
        assert!(space.maps_bytes() <= limit && space.loaded_maps() <= 17, "WORTH-W2");
        space.check();
        // The last that remain have the runs.
        space.evict(0);
        assert_eq!((space.shared.good_chunks(), space.loaded_maps()), (2, 2));
    }
}
