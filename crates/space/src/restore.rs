//! Opening a pool: maps from disk, edits from the log, and the resulting state.
//!
//! Replay comes before any map is read, since reading one needs the table that replay restores
//! (R5). So edits are gathered per metaslab and applied at the end, over the map, from the first
//! txg on that it is not complete up to.
//!
//! RESTORE-O1  Within a txg allocations are applied before frees, in any order of arrival: blocks
//!             that a txg frees are not allocatable before it is durable, so no block is first
//!             freed and then allocated in one.
//! RESTORE-O2  Frees of a txg that is not known to be durable stay deferred: a second crash may
//!             yet take that txg away (R3, R13).

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_format::space_map::{Descriptor, SpaceMap};
use copyhold_types::{BlockAddr, Run, Txg};

use crate::aside::Aside;
use crate::bits::Bits;
use crate::budget::Budget;
use crate::changes::Changes;
use crate::error::SpaceError;
use crate::free::FreeMap;
use crate::layout::{Geometry, MetaslabId, MetaslabLayout};
use crate::metaslab::MetaslabState;
use crate::range_set::RangeSet;
use crate::space::{Config, Shared, Space};

#[derive(Clone, Copy, Debug)]
struct Edit {
    txg: Txg,
    first: u32,
    blocks: u32,
    free: bool,
}

#[derive(Debug, Default)]
struct Restored {
    /// Blocks of labels and log rings.
    fixed: RangeSet,
    descriptor: Option<Descriptor>,
    logged: Option<Bits>,
    edits: Vec<Edit>,
    is_aside: bool,
}

/// The space of a pool that is being opened: replay, load, then [`Restore::finish`].
#[derive(Debug)]
pub struct Restore {
    geometry: Geometry,
    metaslabs: Vec<Restored>,
    cpus: usize,
    config: Config,
}

impl Restore {
    /// As [`Space::new`]; fails when a fixed area lies outside of all devices.
    pub fn new(
        layouts: &[MetaslabLayout],
        fixed: &[Run],
        cpus: usize,
        config: Config,
    ) -> Result<Restore, SpaceError> {
        let geometry = Geometry::new(layouts);
        let metaslabs = geometry.metaslabs().map(|_| Restored::default()).collect();
        let mut restore = Restore { geometry, metaslabs, cpus, config };
        for &run in fixed {
            let outside = |_| SpaceError::Outside { run };
            for piece in restore.geometry.pieces(run).map_err(outside)? {
                let end = piece.first + piece.blocks;
                restore.metaslabs[piece.metaslab].fixed.add(piece.first.into()..end.into());
            }
        }
        Ok(restore)
    }

    /// `run` was allocated in `txg`. In any order with the other edits.
    pub fn replay_alloc(&mut self, txg: Txg, run: Run) -> Result<(), SpaceError> {
        self.replay(txg, run, false)
    }

    /// `run` was freed in `txg`.
    pub fn replay_free(&mut self, txg: Txg, run: Run) -> Result<(), SpaceError> {
        self.replay(txg, run, true)
    }

    fn replay(&mut self, txg: Txg, run: Run, free: bool) -> Result<(), SpaceError> {
        for piece in self.geometry.pieces(run).map_err(|_| SpaceError::Outside { run })? {
            let edit = Edit { txg, first: piece.first, blocks: piece.blocks, free };
            self.metaslabs[piece.metaslab].edits.push(edit);
        }
        Ok(())
    }

    /// The descriptor of a metaslab, and the map that it names. A metaslab that is not loaded has
    /// no descriptor: nothing of it has ever been flushed.
    pub fn load(
        &mut self,
        id: MetaslabId,
        descriptor: Descriptor,
        map: Option<&SpaceMap>,
    ) -> Result<(), SpaceError> {
        let index = self.geometry.index_of(id);
        let index = index.ok_or(SpaceError::NoMetaslab { metaslab: id })?;
        let layout = self.geometry.metaslabs().nth(index).expect("the index is known").1;
        if let Some(map) = map {
            let place = map.place();
            let wrong = |what, found, wanted| match found == wanted {
                true => Ok(()),
                false => Err(SpaceError::Mismatch { metaslab: id, what, found, wanted }),
            };
            wrong("device", place.device.0.into(), id.device.0.into())?;
            wrong("index", place.index.into(), id.index.into())?;
            wrong("first_block", place.first_block, layout.first_block(id.index))?;
            // A map that was written before the device grew has fewer blocks.
            let blocks = u64::from(layout.blocks_of(id.index));
            wrong("blocks", place.blocks.into(), blocks.min(place.blocks.into()))?;
            wrong("complete_to", map.complete_to().get(), descriptor.complete_to.get())?;
            wrong("allocated", map.allocated().into(), descriptor.allocated.into())?;
        }
        assert_eq!(map.is_some(), descriptor.map.is_some(), "the map that the descriptor names");
        let metaslab = &mut self.metaslabs[index];
        metaslab.logged = map.map(|map| {
            let mut logged = Bits::from_words(map.words().to_vec());
            logged.lengthen(layout.blocks_of(id.index));
            logged
        });
        metaslab.descriptor = Some(descriptor);
        Ok(())
    }

    /// The map of a metaslab cannot be read now, from any copy. Nothing is allocated from the
    /// metaslab until [`Space::supply`]; all else works.
    pub fn set_aside(&mut self, id: MetaslabId, descriptor: Descriptor) -> Result<(), SpaceError> {
        let index = self.geometry.index_of(id);
        let index = index.ok_or(SpaceError::NoMetaslab { metaslab: id })?;
        let metaslab = &mut self.metaslabs[index];
        (metaslab.descriptor, metaslab.is_aside) = (Some(descriptor), true);
        Ok(())
    }

    /// Everything is loaded and replayed. `durable`: the last txg whose frees are allocatable, as
    /// for [`Space::release_deferred`]; `None` if there is none.
    ///
    /// Fails when a map or an edit allocates a fixed area.
    pub fn finish(self, durable: Option<Txg>) -> Result<Space, SpaceError> {
        let mut states = Vec::with_capacity(self.metaslabs.len());
        let (mut total, mut free, mut allocated, mut freeing) = (0, 0, 0, 0);
        for ((id, layout), restored) in self.geometry.metaslabs().zip(self.metaslabs) {
            let size = layout.blocks_of(id.index);
            let usable = u64::from(size) - restored.fixed.blocks();
            let state = settle(id, &layout, restored, durable, self.config.all_warm)?;
            total += usable;
            free += u64::from(state.free.free_blocks());
            let deferred: u64 = state.deferred.values().flatten().map(|run| u64::from(run.1)).sum();
            freeing += deferred;
            allocated += u64::from(state.logged.count());
            allocated += state.aside.as_ref().map_or(0, |aside| aside.usable);
            states.push(state);
        }
        let reserve = self.config.reserve(total);
        let budget = Budget::new(reserve, free, allocated, freeing, total);
        let shared = Shared::new(self.geometry, states, self.cpus, budget, &self.config);
        Ok(Space { shared: Arc::new(shared) })
    }
}

/// The state of one metaslab after replay.
fn settle(
    id: MetaslabId,
    layout: &MetaslabLayout,
    restored: Restored,
    durable: Option<Txg>,
    all_warm: bool,
) -> Result<MetaslabState, SpaceError> {
    let Restored { fixed, descriptor, logged, mut edits, is_aside } = restored;
    let size = layout.blocks_of(id.index);
    let complete_to = descriptor.map(|descriptor| descriptor.complete_to);
    edits.sort_by_key(|edit| (edit.txg, edit.free)); // RESTORE-O1
    let mut logged = logged.unwrap_or_else(|| Bits::new(size));
    let mut live = Changes::default();
    let mut aside = is_aside.then(|| Box::new(Aside::new(size, fixed.clone())));
    for edit in edits.iter().filter(|edit| Some(edit.txg) > complete_to) {
        match (&mut aside, edit.free) {
            (None, true) => logged.clear(edit.first, edit.blocks),
            (None, false) => logged.set(edit.first, edit.blocks),
            (Some(aside), free) => aside.note(edit.txg, edit.first, edit.blocks, free),
        }
        live.note(edit.txg);
    }
    let mut used = logged.clone();
    for range in fixed.iter() {
        let (first, blocks) = (range.start as u32, (range.end - range.start) as u32);
        if !logged.all_clear(first, blocks) {
            let addr = layout.first_block(id.index) + range.start;
            let run = Run::new(BlockAddr::new(id.device, addr), blocks);
            return Err(SpaceError::Fixed { run, metaslab: id });
        }
        used.set(first, blocks);
    }
    if aside.is_some() {
        used.set(0, size);
    }
    let deferred = defer(&edits, durable, &mut used);
    let mut free = Bits::new(size);
    free.set(0, size);
    free.words_mut().iter_mut().zip(used.words()).for_each(|(free, used)| *free &= !used);
    let mut free = FreeMap::new(free, size);
    if all_warm {
        free.mark_warm(0, size);
    }
    let map = descriptor.and_then(|descriptor| descriptor.map);
    let frozen = None;
    Ok(MetaslabState { logged, free, deferred, live, frozen, map, complete_to, aside })
}

/// The frees that are not allocatable yet, RESTORE-O2; they count as used.
fn defer(edits: &[Edit], durable: Option<Txg>, used: &mut Bits) -> BTreeMap<Txg, Vec<(u32, u32)>> {
    let mut deferred: BTreeMap<Txg, Vec<(u32, u32)>> = BTreeMap::new();
    // The newest first: it is the one that a block waits for.
    for edit in edits.iter().rev().filter(|edit| edit.free && Some(edit.txg) > durable) {
        for block in edit.first..edit.first + edit.blocks {
            if !used.all_clear(block, 1) {
                continue;
            }
            used.set(block, 1);
            let runs = deferred.entry(edit.txg).or_default();
            match runs.last_mut() {
                Some(last) if last.0 + last.1 == block => last.1 += 1,
                _ => runs.push((block, 1)),
            }
        }
    }
    deferred
}
