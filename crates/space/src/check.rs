//! All invariants of a space at once.

use crate::space::Space;

impl Space {
    /// Panics when an invariant of this crate does not hold (BUDGET-B1, META-K1 to META-K3,
    /// LANE-L1, FREE-M1 to FREE-M4). Walks everything; no other task may allocate or free
    /// meanwhile.
    pub fn check(&self) {
        let shared = &self.shared;
        let held = shared.held_runs();
        let (mut free, mut allocated, mut freeing, mut discarding) = (0, 0, 0, 0);
        let (mut open, mut good_chunks) = (0, 0);
        for (index, metaslab) in shared.metaslabs.iter().enumerate() {
            let state = metaslab.lock();
            metaslab.check(&state);
            good_chunks += metaslab.good_chunks();
            free += u64::from(state.free.free_blocks());
            let (aside, chunks) = state.free.set_aside();
            discarding += aside;
            open += chunks;
            freeing += state.deferred.values().flatten().map(|run| u64::from(run.1)).sum::<u64>();
            allocated += u64::from(state.logged.count());
            allocated += state.aside.as_ref().map_or(0, |aside| aside.usable);
            for &(_, run) in held.iter().filter(|held| held.0 == index) {
                let first = (run.addr.block() - metaslab.first_block) as u32;
                assert!(state.free.all_used(first, run.blocks), "LANE-L1: {run:?} is free");
                assert!(state.logged.all_clear(first, run.blocks), "LANE-L1: {run:?} is allocated");
            }
        }
        let lanes = shared.lanes.iter().filter(|lane| lane.lock().open.is_some()).count();
        assert_eq!(open, lanes, "FREE-M2: chunks that are held, and lanes that hold one");
        assert_eq!(good_chunks, shared.good_chunks(), "good chunks of all metaslabs");
        free += held.iter().map(|(_, run)| u64::from(run.blocks)).sum::<u64>();
        let figures = self.figures();
        assert_eq!(figures.free, free, "BUDGET-B1: free");
        assert_eq!(figures.freeing, freeing, "freeing");
        assert_eq!(figures.discarding, discarding, "discarding");
        assert_eq!(figures.allocated, allocated, "allocated");
        let sum = free + figures.allocated + figures.claimed + freeing + discarding;
        assert_eq!(figures.total, sum, "every block is in one state");
    }
}
