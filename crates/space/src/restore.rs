//! Opening a pool: maps from disk, edits from the log, and the resulting state.
//!
//! Replay comes before any map is read, since reading one needs the table that replay restores
//! (R5). So edits are gathered per metaslab and applied at the end, over the map, from the first
//! txg on that it is not complete up to. Maps are loaded until they take the memory that the
//! configuration allows ([`Restore::has_room`]); of other metaslabs the edits are kept (`away`).
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

use crate::bits::Bits;
use crate::budget::{Budget, Counts};
use crate::changed::Changed;
use crate::changes::Changes;
use crate::chunk::LARGE_RUN;
use crate::error::SpaceError;
use crate::layout::{CHUNK_BLOCKS, Geometry, MetaslabId, MetaslabLayout};
use crate::metaslab::{Loaded, Map, MetaslabState};
use crate::noted::{Away, Why, Worth};
use crate::range_set::RangeSet;
use crate::space::{Config, Shared, Space};
use crate::stored::StoredMap;

/// Of metaslabs without a map, which need no read, so many are loaded at once if memory is limited:
/// a pool of up to 3 TiB has no more.
const EMPTY_AT_OPEN: usize = 256;

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
    /// Why there is no map; `None`: there is one, or none is needed.
    why: Option<Why>,
}

/// The space of a pool that is being opened: replay, load, then [`Restore::finish`].
#[derive(Debug)]
pub struct Restore {
    geometry: Geometry,
    metaslabs: Vec<Restored>,
    cpus: usize,
    config: Config,
    /// Memory of the maps that are loaded.
    bytes: u64,
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
        let mut restore = Restore { geometry, metaslabs, cpus, config, bytes: 0 };
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

    /// The descriptor of a metaslab, and the map that it names, with its deltas. A metaslab that is
    /// not loaded has no descriptor: nothing of it has ever been flushed.
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
        let blocks = layout.blocks_of(id.index);
        metaslab.logged = map.map(|map| {
            let mut logged = Bits::from_words(map.place().blocks, map.words());
            logged.lengthen(blocks);
            logged
        });
        self.bytes += metaslab.logged.as_ref().map_or(0, Loaded::bytes_with) as u64;
        metaslab.descriptor = Some(descriptor);
        Ok(())
    }

    /// Whether there is memory for one more map.
    pub fn has_room(&self) -> bool {
        self.config.maps_bytes.is_none_or(|limit| self.bytes < limit)
    }

    /// The map of a metaslab is not read now; [`Space::load`] takes it when it is needed.
    pub fn leave(&mut self, id: MetaslabId, descriptor: Descriptor) -> Result<(), SpaceError> {
        self.put_away(id, descriptor, Why::Cold)
    }

    /// The map of a metaslab cannot be read now, from any copy. Nothing is allocated from the
    /// metaslab until [`Space::supply`]; all else works.
    pub fn set_aside(&mut self, id: MetaslabId, descriptor: Descriptor) -> Result<(), SpaceError> {
        self.put_away(id, descriptor, Why::Unreadable)
    }

    fn put_away(
        &mut self,
        id: MetaslabId,
        descriptor: Descriptor,
        why: Why,
    ) -> Result<(), SpaceError> {
        let index = self.geometry.index_of(id);
        let index = index.ok_or(SpaceError::NoMetaslab { metaslab: id })?;
        let metaslab = &mut self.metaslabs[index];
        (metaslab.descriptor, metaslab.why) = (Some(descriptor), Some(why));
        Ok(())
    }

    /// Everything is loaded and replayed. `durable`: the last txg whose frees are allocatable, as
    /// for [`Space::release_deferred`]; `None` if there is none.
    ///
    /// Fails when a map or an edit allocates a fixed area.
    pub fn finish(mut self, durable: Option<Txg>) -> Result<Space, SpaceError> {
        let mut states = Vec::with_capacity(self.metaslabs.len());
        let (mut total, mut freeing, mut known, mut away) = (0, 0, (0, 0), 0);
        let mut empty = 0;
        let metaslabs = std::mem::take(&mut self.metaslabs);
        for ((id, layout), mut restored) in self.geometry.metaslabs().zip(metaslabs) {
            if restored.logged.is_none()
                && restored.why.is_none()
                && self.config.maps_bytes.is_some()
            {
                let is_late = restored.edits.is_empty() && empty >= EMPTY_AT_OPEN;
                restored.why = (is_late || !self.has_room()).then_some(Why::Cold);
                empty += 1;
            }
            let usable = u64::from(layout.blocks_of(id.index)) - restored.fixed.blocks();
            let site = Site { id, layout, fixed: restored.fixed.clone() };
            let state = settle(&site, restored, durable, &self.config)?;
            let free = usable as i64 - state.allocated - state.deferred_blocks as i64;
            total += usable;
            (known.0, known.1) = (known.0 + state.allocated, known.1 + free);
            freeing += state.deferred_blocks;
            away += if state.map.is_cold() { free } else { 0 };
            states.push(state);
        }
        let (allocated, free) = known;
        let counts =
            Counts { total, reserve: self.config.reserve(total), allocated, free, freeing };
        let budget = Budget::new(counts, away);
        let shared = Shared::new(self.geometry, states, self.cpus, budget, &self.config);
        Ok(Space { shared: Arc::new(shared) })
    }
}

/// A metaslab, and its blocks of labels and log.
struct Site {
    id: MetaslabId,
    layout: MetaslabLayout,
    fixed: RangeSet,
}

impl Site {
    fn blocks(&self) -> u32 {
        self.layout.blocks_of(self.id.index)
    }

    /// Adds the fixed blocks to these, which have none of them.
    fn add_fixed(&self, used: &mut Bits) -> Result<(), SpaceError> {
        for range in self.fixed.iter() {
            let (first, blocks) = (range.start as u32, (range.end - range.start) as u32);
            if !used.all_clear(first, blocks) {
                let addr = self.layout.first_block(self.id.index) + range.start;
                let run = Run::new(BlockAddr::new(self.id.device, addr), blocks);
                return Err(SpaceError::Fixed { run, metaslab: self.id });
            }
            used.set(first, blocks);
        }
        Ok(())
    }
}

/// The state of one metaslab after replay.
fn settle(
    site: &Site,
    restored: Restored,
    durable: Option<Txg>,
    config: &Config,
) -> Result<MetaslabState, SpaceError> {
    let Restored { descriptor, logged, mut edits, why, .. } = restored;
    let complete_to = descriptor.as_ref().map(|descriptor| descriptor.complete_to);
    edits.sort_by_key(|edit| (edit.txg, edit.free)); // RESTORE-O1
    let first_new = edits.partition_point(|edit| Some(edit.txg) <= complete_to);
    let mut live = Changes::default();
    edits[first_new..].iter().for_each(|edit| live.note(edit.txg));
    let (map, allocated, deferred) = match why {
        None => {
            let mut logged = logged.unwrap_or_else(|| Bits::new(site.blocks()));
            let mut changed = Changed::none(site.blocks(), config.prefer_deltas);
            apply(&edits[first_new..], &mut logged, &mut changed);
            let mut used = logged.clone();
            site.add_fixed(&mut used)?;
            let deferred = defer(&edits, durable, &mut used);
            let allocated = logged.count().into();
            (Map::Loaded(Loaded::new(logged, &used, changed, config)), allocated, deferred)
        }
        Some(why) => {
            let known = descriptor.as_ref();
            let longest = known.map_or(site.blocks(), |known| known.longest_free);
            let good_chunks = good_chunks_at_least(longest);
            let worth = Worth { good_chunks, bytes: Loaded::bytes_max(site.blocks()) };
            let mut away = Away::new(why, worth);
            let mut allocated = known.map_or(0, |known| known.allocated.into());
            for &Edit { txg, first, blocks, free } in &edits[first_new..] {
                let new = away.replay(txg, first, blocks, free) as i64;
                allocated += if free { -new } else { new };
            }
            // The log has all later edits of a block that it has an edit of.
            let mut used = Bits::new(site.blocks());
            apply(&edits, &mut used, &mut Changed::none(site.blocks(), false).unknown());
            site.add_fixed(&mut used)?;
            let mut deferred = defer(&edits, durable, &mut used);
            if why == Why::Unreadable {
                // ASIDE-Q4
                allocated = i64::from(site.blocks()) - site.fixed.blocks() as i64;
                deferred.clear();
            }
            (Map::Away(Box::new(away)), allocated, deferred)
        }
    };
    let deferred_blocks = deferred.values().flatten().map(|run| u64::from(run.1)).sum();
    let installed = descriptor.as_ref().and_then(StoredMap::of);
    let frozen = None;
    Ok(MetaslabState {
        fixed: site.fixed.clone(),
        map,
        allocated,
        deferred,
        deferred_blocks,
        live,
        frozen,
        installed,
        complete_to,
    })
}

/// How many chunks a free run is so long in that they are good, wherever it begins.
fn good_chunks_at_least(run: u32) -> u32 {
    let is_in_one = run >= 2 * LARGE_RUN - 1;
    (run / CHUNK_BLOCKS).max(is_in_one.into())
}

fn apply(edits: &[Edit], logged: &mut Bits, changed: &mut Changed) {
    for edit in edits {
        changed.assign(logged, (edit.first, edit.blocks), !edit.free);
    }
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
