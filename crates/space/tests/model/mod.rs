//! A pool without tables: its space beside the plainest thing that could be right, a vector with
//! the state of each block, and a log that is a list.
//!
//! As in the pool, transactions apply in the open txg and in the closing one, in any order; a crash
//! keeps a prefix of the txgs that contains the durable ones; a log entry is gone once no metaslab
//! pins it.

use std::collections::BTreeMap;

use copyhold_format::space_map::{Descriptor, SpaceMap};
use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, NodePtr, Run, Txg};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Fixed,
    Free,
    Claimed,
    /// Since a txg.
    Allocated(Txg),
    Deferred(Txg),
    Discarding,
}

#[derive(Clone, Copy, Debug)]
struct Edit {
    txg: Txg,
    run: Run,
    free: bool,
}

/// A map whose descriptor was put in `txg`, and that is installed once that is durable.
struct Put {
    txg: Txg,
    job: MapJob,
    map: Option<NodePtr>,
}

pub(crate) struct World {
    layouts: Vec<MetaslabLayout>,
    fixed: Vec<Run>,
    cpus: usize,
    config: Config,
    pub(crate) space: Space,
    blocks: BTreeMap<DeviceId, Vec<Block>>,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) discards: Vec<Discard>,
    /// Runs that are allocated and may be freed, each once.
    pub(crate) allocated: Vec<Run>,
    open: Txg,
    /// Whether transactions of the txg before the open one are still under way.
    closing: bool,
    durable: Option<Txg>,
    /// All edits that are not lost; the model replays all of them.
    history: Vec<Edit>,
    /// The log before this txg is gone.
    head: Txg,
    /// Descriptors in the order in which they were put.
    descriptors: Vec<(Txg, MetaslabId, Descriptor)>,
    /// What was written to map blocks, by the address of the first.
    maps: BTreeMap<BlockAddr, Vec<u8>>,
    pub(crate) jobs: Vec<MapJob>,
    puts: Vec<Put>,
    /// Maps may be cold since a crash, so that their counts are estimates.
    recovered: bool,
    /// How many deltas were written.
    pub(crate) deltas: u32,
    /// How many of these were given up, or installed, beside a map that could not be read.
    pub(crate) given_up: u32,
    pub(crate) installed_aside: u32,
}

impl World {
    pub(crate) fn new(devices: &[(u64, u32)], fixed: &[Run], cpus: usize, config: Config) -> World {
        let layout = |(number, &(blocks, size)): (usize, &(u64, u32))| {
            MetaslabLayout::for_device(DeviceId(number as u16), blocks, Some(size))
        };
        let layouts: Vec<MetaslabLayout> = devices.iter().enumerate().map(layout).collect();
        let mut world = World {
            space: Space::new(&layouts, fixed, cpus, config),
            blocks: BTreeMap::new(),
            layouts,
            fixed: fixed.to_vec(),
            cpus,
            config,
            reservations: Vec::new(),
            claims: Vec::new(),
            discards: Vec::new(),
            allocated: Vec::new(),
            open: Txg::FIRST.next(),
            closing: false,
            durable: None,
            history: Vec::new(),
            head: Txg::FIRST,
            descriptors: Vec::new(),
            maps: BTreeMap::new(),
            jobs: Vec::new(),
            puts: Vec::new(),
            recovered: false,
            deltas: 0,
            given_up: 0,
            installed_aside: 0,
        };
        world.blocks = world.replay();
        world
    }

    /// The blocks as they are after the whole history: nothing claimed, nothing deferred.
    fn replay(&self) -> BTreeMap<DeviceId, Vec<Block>> {
        let mut blocks: BTreeMap<DeviceId, Vec<Block>> = BTreeMap::new();
        for layout in &self.layouts {
            blocks.insert(layout.device, vec![Block::Free; layout.blocks as usize]);
        }
        let mut set = |run: Run, state| {
            let device = blocks.get_mut(&run.addr.device()).unwrap();
            device[run.addr.block() as usize..run.end() as usize].fill(state);
        };
        for &run in &self.fixed {
            set(run, Block::Fixed);
        }
        let mut history = self.history.clone();
        history.sort_by_key(|edit| (edit.txg, edit.free));
        for edit in history {
            set(edit.run, if edit.free { Block::Free } else { Block::Allocated(edit.txg) });
        }
        blocks
    }

    fn states(&mut self, run: Run) -> &mut [Block] {
        let device = self.blocks.get_mut(&run.addr.device()).unwrap();
        &mut device[run.addr.block() as usize..run.end() as usize]
    }

    /// Moves a run from one state to another, and asserts that all of it was in the first.
    fn change(&mut self, run: Run, from: impl Fn(Block) -> bool, to: Block) {
        for block in self.states(run) {
            assert!(from(*block), "{run:?}: {block:?} cannot become {to:?}");
            *block = to;
        }
    }

    fn count(&self, which: impl Fn(Block) -> bool) -> u64 {
        self.blocks.values().flatten().filter(|block| which(**block)).count() as u64
    }

    fn free(&self) -> u64 {
        self.count(|block| block == Block::Free)
    }

    /// The blocks of each metaslab whose map is loaded.
    fn loaded(&self) -> impl Iterator<Item = &[Block]> {
        let is_loaded = |id: &MetaslabId| self.space.metaslab(*id).unwrap().is_loaded;
        self.space.metaslabs().filter(is_loaded).map(|id| {
            let info = self.space.metaslab(id).unwrap();
            let first = info.first_block as usize;
            &self.blocks[&id.device][first..first + info.blocks as usize]
        })
    }

    fn loaded_free(&self) -> u64 {
        self.loaded().flatten().filter(|block| **block == Block::Free).count() as u64
    }

    /// The longest free run that lies in one metaslab.
    fn longest_free(&self) -> u32 {
        let runs = self.loaded().flat_map(|blocks| blocks.split(|block| *block != Block::Free));
        runs.map(<[Block]>::len).max().unwrap_or(0) as u32
    }

    /// The installed map of a metaslab that is cold, as [`Space::cold_map`] has it.
    fn cold_map(&self, id: MetaslabId) -> Option<Option<SpaceMap>> {
        Some(self.space.cold_map(id)?.map(|stored| self.read(stored.parts())))
    }

    /// The map of these parts, the base first.
    fn read(&self, parts: impl Iterator<Item = NodePtr>) -> SpaceMap {
        let bytes: Vec<&[u8]> = parts.map(|ptr| &self.maps[&ptr.copies[0].unwrap()][..]).collect();
        SpaceMap::parse_parts(&bytes[0], &bytes[1..]).unwrap()
    }

    pub(crate) fn load(&mut self, id: MetaslabId) {
        if let Some(map) = self.cold_map(id) {
            assert_eq!(self.space.load(id, map.as_ref()), Ok(true));
        }
        assert_eq!(self.space.load(id, None), Ok(false), "it is loaded");
    }

    pub(crate) fn load_one(&mut self, pick: usize) {
        let ids: Vec<MetaslabId> = self.space.metaslabs().collect();
        self.load(ids[pick % ids.len()]);
    }

    /// The map of a metaslab that is cold cannot be read for a while. Meanwhile blocks are freed
    /// there, and a flush of it goes on or is given up.
    pub(crate) fn set_aside(&mut self, pick: usize, frees: usize) {
        let has_map = |id: &MetaslabId| self.space.cold_map(*id).is_some_and(|map| map.is_some());
        let mut cold: Vec<MetaslabId> = self.space.metaslabs().filter(has_map).collect();
        let is_flushed =
            |id: &MetaslabId| self.space.pins().any(|p| p.metaslab == *id && p.flushing);
        if cold.iter().any(is_flushed) {
            cold.retain(is_flushed);
        }
        let Some(id) = cold.get(pick % cold.len().max(1)).copied() else { return };
        self.space.set_unreadable(id);
        for run in self.take_allocated_in(id, frees) {
            self.log_free(run, false);
        }
        if let Some(at) = self.jobs.iter().position(|job| job.metaslab() == id) {
            assert!(self.jobs[at].was_set_aside());
            assert!(!self.supply(id), "a delta is being written");
            self.abort(at);
            self.given_up += 1;
        }
        let is_put = |world: &World| world.puts.iter().any(|put| put.job.metaslab() == id);
        self.installed_aside += u32::from(is_put(self));
        while is_put(self) {
            assert!(!self.supply(id), "a delta is being installed");
            self.advance();
        }
        assert!(self.supply(id));
        let open = self.open;
        for block in self.states_of(id) {
            if matches!(block, Block::Free | Block::Deferred(_)) {
                *block = Block::Deferred(open);
            }
        }
    }

    /// Reads the map again; whether that ends the wait for it.
    fn supply(&self, id: MetaslabId) -> bool {
        let (stored, _) = self.space.missing_map(id).unwrap();
        self.space.supply(id, &self.read(stored.parts()), self.open).unwrap()
    }

    fn states_of(&mut self, id: MetaslabId) -> &mut [Block] {
        let info = self.space.metaslab(id).unwrap();
        self.states(Run::new(BlockAddr::new(id.device, info.first_block), info.blocks))
    }

    /// At most `most` runs that may be freed and lie in a metaslab.
    fn take_allocated_in(&mut self, id: MetaslabId, most: usize) -> Vec<Run> {
        let info = self.space.metaslab(id).unwrap();
        let blocks = info.first_block..info.first_block + u64::from(info.blocks);
        let is_inside = |run: &Run| {
            let first = run.addr.block();
            run.addr.device() == id.device && blocks.contains(&first) && run.end() <= blocks.end
        };
        let (mut inside, others): (Vec<Run>, Vec<Run>) =
            std::mem::take(&mut self.allocated).into_iter().partition(is_inside);
        self.allocated = others;
        self.allocated.extend(inside.split_off(most.min(inside.len())));
        inside
    }

    fn load_all(&mut self) {
        for id in self.space.metaslabs().collect::<Vec<_>>() {
            self.load(id);
        }
        self.recovered = false;
    }

    /// Whether the counts of cold maps are exact (AWAY-A4).
    fn is_exact(&self) -> bool {
        let is_loaded = |id| self.space.metaslab(id).unwrap().is_loaded;
        !self.recovered || self.space.metaslabs().all(is_loaded)
    }

    /// The allocated runs of a metaslab, whether its map is loaded or not.
    fn allocated_runs(&self, id: MetaslabId) -> Vec<Run> {
        let map = self.cold_map(id).flatten();
        self.space.view_with(id, map.as_ref()).unwrap().allocated
    }

    /// Evicts maps, and the space keeps what is reserved.
    pub(crate) fn evict(&mut self, limit: u64) {
        let before = self.space.figures();
        let loaded: Vec<u64> = self.loaded().map(|blocks| blocks.len() as u64).collect();
        let evicted = self.space.evict(limit);
        assert!(evicted <= loaded.len());
        assert_eq!(self.space.figures(), before);
        let internal = self.reservations.iter().any(|some| some.tier() == Tier::Internal);
        let free = self.loaded_free();
        let taken = evicted > 0 && free < self.reserved();
        assert!(!taken || internal, "AWAY-A2: {free} of {} reserved blocks", self.reserved());
    }

    fn reserved(&self) -> u64 {
        self.reservations.iter().map(Reservation::blocks).sum()
    }

    pub(crate) fn reserve(&mut self, blocks: u64, tier: Tier) {
        let reserve = self.space.figures().reserve;
        let floor = match tier {
            Tier::Write => reserve,
            Tier::Change => reserve - reserve / 4,
            Tier::Delete => reserve / 2,
            Tier::FinishDelete => reserve / 8 * 3,
            Tier::DeleteSubvolume => reserve / 4,
            Tier::FinishSubvolume => reserve / 8,
            Tier::Internal => 0,
        };
        if !self.is_exact() {
            self.load_all();
        }
        let wanted = (self.reserved() + blocks + floor) as i64;
        let accept = tier == Tier::Internal || wanted <= self.free() as i64;
        // Each map is loaded at most once: none is evicted meanwhile.
        while accept && self.space.wants_map(blocks, tier) {
            assert!(self.space.reserve(blocks, tier).is_err(), "AWAY-A2: {blocks} for {tier:?}");
            let cold = self.space.best_cold().expect("AWAY-A4: a cold map has free blocks");
            self.load(cold);
        }
        match self.space.reserve(blocks, tier) {
            Ok(reservation) => {
                assert!(accept, "{blocks} for {tier:?} were accepted beyond its part");
                self.reservations.push(reservation);
            }
            Err(error) => {
                assert!(!accept, "{blocks} for {tier:?} were refused: {error}");
                let deferred = |block| matches!(block, Block::Deferred(_) | Block::Discarding);
                assert_eq!(error.on_the_way, self.count(deferred));
            }
        }
    }

    pub(crate) fn drop_reservation(&mut self, at: usize) {
        drop(self.reservations.swap_remove(at));
    }

    pub(crate) fn claim(&mut self, at: usize, lane: Lane, blocks: u64) {
        let free = self.loaded_free();
        let reservation = &mut self.reservations[at];
        let blocks = blocks.min(reservation.blocks());
        let before = reservation.blocks();
        match self.space.claim(lane, blocks, reservation) {
            Ok(claims) => {
                assert_eq!(reservation.blocks(), before - blocks);
                let sum: u64 = claims.iter().map(|claim| u64::from(claim.run().blocks)).sum();
                assert_eq!(sum, blocks);
                claims.into_iter().for_each(|claim| self.claimed(claim));
            }
            Err(_) => {
                assert!(free < blocks, "{blocks} of {free} free and loaded blocks were refused");
                assert_eq!(reservation.blocks(), before);
            }
        }
    }

    pub(crate) fn claim_run(&mut self, at: usize, lane: Lane, blocks: u32) {
        let blocks = blocks.min(self.reservations[at].blocks() as u32);
        if blocks == 0 {
            return;
        }
        let longest = self.longest_free();
        match self.space.claim_run(lane, blocks, &mut self.reservations[at]) {
            Ok(claim) => {
                assert_eq!(claim.run().blocks, blocks);
                self.claimed(claim);
            }
            Err(_) => assert!(longest < blocks, "a run of {blocks} is there: {longest}"),
        }
    }

    fn claimed(&mut self, claim: Claim) {
        self.change(claim.run(), |block| block == Block::Free, Block::Claimed);
        self.claims.push(claim);
    }

    pub(crate) fn cancel(&mut self, at: usize, into: Option<usize>) {
        let claim = self.claims.swap_remove(at);
        self.change(claim.run(), |block| block == Block::Claimed, Block::Free);
        match into {
            Some(into) => claim.cancel_into(&mut self.reservations[into]),
            None => claim.cancel(),
        }
    }

    /// Releases a claim like the frees of the open txg, but nothing of it is logged.
    pub(crate) fn defer(&mut self, at: usize) {
        let mut claim = self.claims.swap_remove(at);
        let txg = self.open;
        self.change(claim.run(), |block| block == Block::Claimed, Block::Deferred(txg));
        claim.note_written(txg);
        // Each part of a written claim is one.
        match claim.run().blocks {
            0 | 1 => drop(claim),
            blocks => drop(claim.split(blocks / 2)),
        }
    }

    pub(crate) fn split(&mut self, at: usize, blocks: u32) {
        let claim = self.claims.swap_remove(at);
        let run = claim.run();
        if run.blocks < 2 {
            self.claims.push(claim);
            return;
        }
        let (head, tail) = claim.split(1 + blocks % (run.blocks - 1));
        assert_eq!((head.run().addr, tail.run().end()), (run.addr, run.end()));
        self.claims.extend([head, tail]);
    }

    /// The txg that a transaction is in: the open one, or the one that is closing.
    fn txg(&self, late: bool) -> Txg {
        match self.open.prev() {
            Some(closing) if late && self.closing => closing,
            _ => self.open,
        }
    }

    pub(crate) fn log(&mut self, at: usize, late: bool) {
        let txg = self.txg(late);
        let claim = self.claims.swap_remove(at);
        self.log_claim(claim, txg);
    }

    fn log_claim(&mut self, claim: Claim, txg: Txg) -> Run {
        let run = self.space.log_alloc(txg, claim);
        self.change(run, |block| block == Block::Claimed, Block::Allocated(txg));
        self.history.push(Edit { txg, run, free: false });
        self.allocated.push(run);
        run
    }

    /// Frees part of an allocated run; with `twice` it is then freed again, which is refused.
    pub(crate) fn free_run(&mut self, at: usize, skip: u32, blocks: u32, late: bool, twice: bool) {
        let run = self.allocated.swap_remove(at);
        let skip = skip % run.blocks;
        let part = run.slice(skip, 1 + blocks % (run.blocks - skip));
        if skip > 0 {
            self.allocated.push(run.slice(0, skip));
        }
        if part.end() < run.end() {
            let rest = skip + part.blocks;
            self.allocated.push(run.slice(rest, run.blocks - rest));
        }
        self.log_free(part, late);
        if twice {
            let error = self.space.log_free(self.open, part);
            assert!(matches!(error, Err(SpaceError::NotAllocated { .. })), "{error:?}");
        }
    }

    fn log_free(&mut self, run: Run, late: bool) {
        // A block that was allocated in the open txg is not freed in the one before.
        let mut txg = self.txg(late);
        for block in self.states(run) {
            if let Block::Allocated(since) = block {
                txg = txg.max(*since);
            }
        }
        self.space.log_free(txg, run).unwrap();
        self.change(run, |block| matches!(block, Block::Allocated(_)), Block::Deferred(txg));
        self.history.push(Edit { txg, run, free: true });
    }

    /// The newest txg whose transactions have all left.
    fn closed(&self) -> Txg {
        let closing = self.open.prev().unwrap();
        if self.closing { closing.prev().unwrap_or(closing) } else { closing }
    }

    /// One step towards the next durable txg: close the open one, then let its transactions
    /// leave, then its batch is durable.
    pub(crate) fn advance(&mut self) {
        if self.closing {
            self.closing = false;
        } else if self.durable < Some(self.closed()) {
            self.durable = Some(self.closed());
            let durable = self.durable;
            let (done, waiting) = std::mem::take(&mut self.puts)
                .into_iter()
                .partition::<Vec<Put>, _>(|put| Some(put.txg) <= durable);
            self.puts = waiting;
            done.into_iter().for_each(|put| self.space.installed(put.job, put.map));
        } else {
            self.open = self.open.next();
            self.closing = true;
        }
    }

    /// A batch that names all but the last durable txg has been written; readers pin the last
    /// `pinned` of those.
    pub(crate) fn release(&mut self, pinned: u64) {
        let Some(up_to) =
            self.durable.and_then(|txg| Txg::new(txg.get().saturating_sub(1 + pinned)))
        else {
            return;
        };
        let mut count = 0;
        for block in self.blocks.values_mut().flatten() {
            if matches!(block, Block::Deferred(txg) if *txg <= up_to) {
                *block = Block::Free;
                count += 1;
            }
        }
        assert_eq!(self.space.release_deferred(up_to), count);
    }

    /// An uberblock moves the head of the log.
    pub(crate) fn trim(&mut self) {
        let durable = self.durable.unwrap_or(Txg::FIRST);
        let head = self.space.oldest_pin().unwrap_or(durable).min(durable);
        self.head = self.head.max(head);
    }

    /// Freezes the metaslab with the oldest pin.
    pub(crate) fn freeze(&mut self) {
        let waiting = |pin: &Pin| !pin.flushing;
        let Some(pin) = self.space.pins().filter(waiting).min_by_key(|pin| pin.oldest) else {
            return;
        };
        let mut job = self.space.freeze(pin.metaslab, self.closed());
        if job.is_none() {
            assert!(self.space.wants_load(pin.metaslab), "{pin:?}");
            self.load(pin.metaslab);
            job = self.space.freeze(pin.metaslab, self.closed());
        }
        let Some(job) = job else { panic!("{pin:?} cannot be flushed") };
        self.deltas += u32::from(job.is_delta());
        assert!(self.space.freeze(pin.metaslab, self.closed()).is_none(), "one map at a time");
        self.jobs.push(job);
    }

    /// Writes a frozen map, and puts its descriptor in a transaction that joins now.
    pub(crate) fn put(&mut self, at: usize) {
        let job = self.jobs.swap_remove(at);
        let txg = self.open;
        let map = match job.encode() {
            None => None,
            Some(bytes) => match self.write_map(bytes, txg) {
                Some(map) => Some(map),
                None => return self.space.abort(job),
            },
        };
        let replaced: Vec<NodePtr> = job.replaces().collect();
        replaced.iter().flat_map(NodePtr::runs).for_each(|run| self.log_free(run, false));
        self.descriptors.push((txg, job.metaslab(), job.descriptor(map)));
        self.puts.push(Put { txg, job, map });
    }

    /// A flush that does not get as far as its transaction.
    pub(crate) fn abort(&mut self, at: usize) {
        self.space.abort(self.jobs.swap_remove(at));
    }

    fn write_map(&mut self, bytes: Vec<u8>, txg: Txg) -> Option<NodePtr> {
        let blocks = bytes.len().div_ceil(4096) as u32;
        let lane = Lane { cpu: 0, class: LaneClass::Node };
        let mut reservation = self.space.reserve(u64::from(blocks), Tier::Internal).unwrap();
        let claim = self.space.claim_run(lane, blocks, &mut reservation).ok()?;
        self.change(claim.run(), |block| block == Block::Free, Block::Claimed);
        let run = self.log_claim(claim, txg);
        // The map belongs to the descriptor: nobody else frees it.
        self.allocated.pop();
        self.maps.insert(run.addr, bytes);
        let copies = [Some(run.addr), None];
        Some(NodePtr { copies, blocks, fragmented: false, epoch: EpochId::POOL, digest: Digest(1) })
    }

    pub(crate) fn discard(&mut self, which: Discardable) {
        let (warm, all) = (which.keep_warm, self.space.figures());
        for discard in self.space.take_discardable(which) {
            let run = discard.run();
            assert!(run.blocks >= which.least.max(CHUNK_BLOCKS), "{run:?} is too small");
            self.change(run, |block| block == Block::Free, Block::Discarding);
            self.discards.push(discard);
        }
        let taken = all.free - self.space.figures().free;
        assert!(taken <= all.available(), "a discard took what is promised; keep_warm {warm}");
    }

    pub(crate) fn end_discard(&mut self, at: usize, done: bool) {
        let discard = self.discards.swap_remove(at);
        self.change(discard.run(), |block| block == Block::Discarding, Block::Free);
        match done {
            true => self.space.discard_done(discard),
            false => drop(discard),
        }
    }

    /// The last device becomes longer, and its last fixed area moves to the new end.
    pub(crate) fn grow(&mut self, more: u64, area: u32) {
        let layout = self.layouts.last_mut().unwrap();
        let (device, old) = (layout.device, layout.blocks);
        layout.blocks += more + u64::from(area);
        let last = self.fixed.iter().rposition(|run| run.addr.device() == device).unwrap();
        let run = |block, blocks| Run::new(BlockAddr::new(device, block), blocks);
        let retired = std::mem::replace(&mut self.fixed[last], run(old + more, area));
        let blocks = self.blocks.get_mut(&device).unwrap();
        blocks.resize(layout.blocks as usize, Block::Free);
        self.space
            .grow(layout.blocks, &[(retired.addr.block(), retired.blocks.into()), (old, more)]);
        self.states(retired).fill(Block::Free);
        self.states(run(old + more, area)).fill(Block::Fixed);
    }

    /// Everything after `cut` is lost, and all that was in memory. `all`: what has been closed
    /// survives, too, not only what is durable.
    pub(crate) fn crash(&mut self, all: bool) {
        let cut = match (all, self.durable) {
            (false, Some(durable)) => durable,
            (false, None) => Txg::FIRST,
            (true, _) => self.closed(),
        };
        self.reservations.clear();
        self.claims.clear();
        self.discards.clear();
        self.jobs.clear();
        self.puts.clear();
        self.history.retain(|edit| edit.txg <= cut);
        self.descriptors.retain(|(txg, ..)| *txg <= cut);
        let named = cut.prev();
        self.space = self.restore(named);
        self.recovered = true;
        self.blocks = self.replay();
        let last: Vec<Run> = self
            .history
            .iter()
            .filter(|edit| edit.free && Some(edit.txg) > named)
            .map(|edit| edit.run)
            .collect();
        for run in last {
            for block in self.states(run).iter_mut().filter(|block| **block == Block::Free) {
                *block = Block::Deferred(cut);
            }
        }
        // What was allocated, less the maps that descriptors keep.
        self.open = cut.next().next();
        self.closing = false;
        self.durable = Some(cut);
        self.allocated.clear();
        let kept: Vec<Run> = self.current_maps().iter().flat_map(NodePtr::runs).collect();
        for id in self.space.metaslabs().collect::<Vec<_>>() {
            for run in self.allocated_runs(id) {
                let of_maps = |block: u64| {
                    let addr = run.addr.offset(block);
                    kept.iter().any(|map| {
                        addr.device() == map.addr.device()
                            && (map.addr.block()..map.end()).contains(&addr.block())
                    })
                };
                let singles = (0..u64::from(run.blocks)).filter(|&block| !of_maps(block));
                self.allocated.extend(singles.map(|block| Run::new(run.addr.offset(block), 1)));
            }
        }
    }

    fn latest(&self) -> BTreeMap<MetaslabId, Descriptor> {
        self.descriptors.iter().map(|(_, id, descriptor)| (*id, descriptor.clone())).collect()
    }

    fn current_maps(&self) -> Vec<NodePtr> {
        self.latest().values().flat_map(|found| found.parts().collect::<Vec<_>>()).collect()
    }

    fn restore(&self, named: Option<Txg>) -> Space {
        let mut restore = Restore::new(&self.layouts, &self.fixed, self.cpus, self.config).unwrap();
        for edit in self.history.iter().filter(|edit| edit.txg >= self.head) {
            match edit.free {
                true => restore.replay_free(edit.txg, edit.run).unwrap(),
                false => restore.replay_alloc(edit.txg, edit.run).unwrap(),
            }
        }
        for (id, descriptor) in self.latest() {
            if descriptor.map.is_some() && !restore.has_room() {
                restore.leave(id, descriptor).unwrap();
                continue;
            }
            let map = descriptor.map.map(|_| self.read(descriptor.parts()));
            let descriptor = Descriptor::parse(&descriptor.encode()).unwrap();
            restore.load(id, descriptor, map.as_ref()).unwrap();
        }
        restore.finish(named).unwrap()
    }

    /// The space says what the model says.
    pub(crate) fn check(&self) {
        self.space.check();
        for id in self.space.metaslabs() {
            let stored = self.space.metaslab(id).unwrap().map;
            let map = stored.map(|stored| self.read(stored.parts()));
            self.space.check_changed(id, map.as_ref());
        }
        let figures = self.space.figures();
        assert_eq!(figures.total, self.count(|block| block != Block::Fixed));
        if self.is_exact() {
            assert_eq!(figures.free, self.free());
        }
        assert_eq!(figures.reserved, self.reserved());
        assert_eq!(figures.claimed, self.count(|block| block == Block::Claimed));
        assert_eq!(figures.discarding, self.count(|block| block == Block::Discarding));
        assert_eq!(figures.freeing, self.count(|block| matches!(block, Block::Deferred(_))));
        let mut allocated: BTreeMap<DeviceId, Vec<bool>> = BTreeMap::new();
        for (device, blocks) in &self.blocks {
            allocated.insert(*device, vec![false; blocks.len()]);
        }
        for id in self.space.metaslabs() {
            let runs = self.allocated_runs(id);
            let info = self.space.metaslab(id).unwrap();
            if self.is_exact() {
                assert_eq!(info.allocated, runs.iter().map(|run| run.blocks).sum::<u32>());
            }
            for run in runs {
                let device = allocated.get_mut(&run.addr.device()).unwrap();
                device[run.addr.block() as usize..run.end() as usize].fill(true);
            }
        }
        for (device, blocks) in &self.blocks {
            for (at, block) in blocks.iter().enumerate() {
                let wanted = matches!(block, Block::Allocated(_));
                assert_eq!(allocated[device][at], wanted, "block {at} of {device:?}: {block:?}");
            }
        }
    }
}
