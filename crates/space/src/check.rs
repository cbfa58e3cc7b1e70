//! All invariants of a space at once.

use copyhold_format::space_map::SpaceMap;

use crate::bits::Bits;
use crate::layout::MetaslabId;
use crate::space::Space;

impl Space {
    /// Panics when a loaded map differs from the one on disk by other blocks than it knows
    /// (CHANGED-C1). `map`: on disk ([`crate::MetaslabInfo::map`]); `None`: there is none. Returns
    /// whether it is loaded and knows any.
    pub fn check_changed(&self, id: MetaslabId, map: Option<&SpaceMap>) -> bool {
        let Some(index) = self.shared.geometry.index_of(id) else { return false };
        let metaslab = &self.shared.metaslabs[index];
        let state = metaslab.lock();
        let Some(loaded) = state.map.loaded() else { return false };
        let words = map.map_or(&[][..], SpaceMap::words);
        let mut on_disk = Bits::from_words((words.len() as u32 * 64).min(metaslab.blocks()), words);
        on_disk.lengthen(metaslab.blocks());
        let Some(known) = loaded.changed.apply_to(on_disk) else { return false };
        assert_eq!(known.to_words(), loaded.logged.to_words(), "CHANGED-C1: {id}");
        true
    }

    /// Panics when an invariant of this crate does not hold (BUDGET-B1, BUDGET-B4, META-K1 to
    /// META-K4, LANE-L1, FREE-M1 to FREE-M4). Walks everything; no other task may allocate or free
    /// meanwhile.
    pub fn check(&self) {
        let shared = &self.shared;
        let held = shared.held_runs();
        let (mut free, mut allocated, mut freeing, mut discarding) = (0, 0, 0, 0);
        let (mut open, mut good_chunks, mut away) = (0, 0, 0);
        let mut bytes = 0;
        for (index, metaslab) in shared.metaslabs.iter().enumerate() {
            let state = metaslab.lock();
            metaslab.check(&state);
            good_chunks += metaslab.good_chunks();
            freeing += state.deferred_blocks;
            allocated += state.allocated;
            bytes += metaslab.bytes();
            away += metaslab.away_free(&state);
            let Some(map) = state.map.loaded() else {
                assert!(held.iter().all(|held| held.0 != index), "LANE-L1: {}", metaslab.id);
                continue;
            };
            free += i64::from(map.free.free_blocks());
            let (aside, chunks) = map.free.set_aside();
            discarding += aside;
            open += chunks;
            for &(_, run) in held.iter().filter(|held| held.0 == index) {
                let first = (run.addr.block() - metaslab.first_block) as u32;
                assert!(map.free.all_used(first, run.blocks), "LANE-L1: {run:?} is free");
                assert!(map.logged.all_clear(first, run.blocks), "LANE-L1: {run:?} is allocated");
            }
        }
        let lanes = shared.lanes.iter().filter(|lane| lane.lock().open.is_some()).count();
        assert_eq!(open, lanes, "FREE-M2: chunks that are held, and lanes that hold one");
        assert_eq!(good_chunks, shared.good_chunks(), "good chunks of all metaslabs");
        free += held.iter().map(|(_, run)| i64::from(run.blocks)).sum::<i64>();
        let figures = self.figures();
        assert_eq!(shared.budget.away(), away, "BUDGET-B4: away");
        assert_eq!(self.maps_bytes(), bytes, "memory of maps");
        free += away;
        assert_eq!(figures.free as i64, free.max(0), "BUDGET-B1: free");
        assert_eq!(figures.freeing, freeing, "freeing");
        assert_eq!(figures.discarding, discarding, "discarding");
        assert_eq!(figures.allocated as i64, allocated.max(0), "allocated");
        let moving = figures.claimed + freeing + discarding;
        let sum = free + allocated + moving as i64;
        assert_eq!(figures.total as i64, sum, "every block is in one state");
    }
}
