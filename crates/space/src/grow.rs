//! A device of a pool in use becomes longer.
//!
//! Problem.  The last metaslab of the device may be partial, the area behind it was that of labels
//!           until now, and allocations, frees and flushes go on meanwhile.
//! Idea.     The last metaslab becomes longer, further ones follow, and none of the new blocks is
//!           free at first. Then runs become free in them, as at the end of a txg: that is all
//!           that an allocation notices. A map on disk with fewer blocks than its metaslab was
//!           written before a growth: the blocks that it does not have are free.
//!
//! GROWSPACE-G1  Each block that becomes free can be found by its address already: the geometry
//!               has it before any metaslab does.
//! GROWSPACE-G2  Blocks count as free only when metaslabs offer them (BUDGET-B1).
//!               The reserve takes no more than these: a growth leaves each tenant the space that
//!               it had.
//! GROWSPACE-G3  In a metaslab that is set aside the new blocks count as allocated, as all others.
//! GROWSPACE-G4  A set or the geometry leads to a metaslab only behind its entry in the list of
//!               all.

use copyhold_types::{BlockAddr, Run};

use crate::layout::{MetaslabId, MetaslabLayout, Piece};
use crate::metaslab::{Map, Metaslab, MetaslabState};
use crate::noted::Why;
use crate::space::Space;

/// New usable blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Added {
    free: u64,
    /// Of these in maps that are cold.
    away: u64,
    /// In metaslabs that are set aside.
    aside: u64,
}

impl Space {
    /// The last device has `blocks` blocks from now on. The `usable` ones become free: new ones,
    /// and those of fixed areas that have moved. One call at a time.
    ///
    /// # Panics
    /// The device becomes smaller, or a run was usable before.
    pub fn grow(&self, blocks: u64, usable: &[(u64, u64)]) {
        let shared = &self.shared;
        let before = shared.geometry.last().expect("a pool has a device");
        let layout = MetaslabLayout { blocks, ..before };
        self.lengthen_last(&before, &layout);
        let had = shared.metaslabs.iter().count();
        let metaslab = |index| {
            let (id, blocks) =
                (MetaslabId { device: layout.device, index }, layout.blocks_of(index));
            let number = had + (index - before.metaslabs()) as usize;
            let place = (layout.first_block(index), blocks);
            let state = MetaslabState::unused(blocks, &shared.config);
            Metaslab::new(id, number, place, &shared.sets, state)
        };
        shared.metaslabs.append((before.metaslabs()..layout.metaslabs()).map(metaslab).collect());
        shared.geometry.grow_last(blocks); // GROWSPACE-G1, G4
        let new = shared.metaslabs.iter().enumerate().skip(had);
        new.for_each(|(number, metaslab)| shared.publish(number, &metaslab.lock())); // GROWSPACE-G4
        let mut added = Added::default();
        for &(first, blocks) in usable {
            let most = u64::from(u32::MAX / 2);
            for at in (0..blocks).step_by(most as usize) {
                let addr = BlockAddr::new(layout.device, first + at);
                let run = Run::new(addr, (blocks - at).min(most) as u32);
                let pieces = shared.geometry.pieces(run).expect("GROWSPACE-G1");
                pieces.for_each(|piece| self.make_usable(piece, &mut added));
            }
        }
        let total = shared.budget.total() + added.free + added.aside;
        let before = shared.budget.reserve_blocks();
        let reserve = shared.config.reserve(total).clamp(before, before + added.free);
        shared.budget.grow(added.free, added.away, added.aside, reserve); // GROWSPACE-G2
    }

    fn lengthen_last(&self, before: &MetaslabLayout, layout: &MetaslabLayout) {
        let last = before.metaslabs() - 1;
        let id = MetaslabId { device: layout.device, index: last };
        let index = self.shared.geometry.index_of(id).expect("the device has it");
        let metaslab = &self.shared.metaslabs[index];
        let mut state = metaslab.lock();
        metaslab.lengthen(&mut state, layout.blocks_of(last));
    }

    fn make_usable(&self, piece: Piece, added: &mut Added) {
        let Piece { metaslab, first, blocks } = piece;
        let mut state = self.shared.metaslabs[metaslab].lock();
        let range = u64::from(first)..u64::from(first) + u64::from(blocks);
        state.fixed.remove(range);
        let blocks_more = u64::from(blocks);
        match &mut state.map {
            Map::Loaded(map) => {
                map.free.vacate(first, blocks, None);
                if self.shared.config.all_warm {
                    map.free.mark_warm(first, blocks);
                }
                added.free += blocks_more;
            }
            Map::Away(away) if away.why == Why::Cold => {
                added.free += blocks_more;
                added.away += blocks_more;
            }
            Map::Away(_) => {
                state.allocated += i64::from(blocks);
                added.aside += blocks_more; // GROWSPACE-G3
            }
        }
        self.shared.publish(metaslab, &state);
    }
}
