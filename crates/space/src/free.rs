//! The allocatable blocks of one metaslab, and which of its chunks are worth taking.
//!
//! Idea.     A bitmap (a set bit is free) and a few bytes per chunk of 1 MiB: how many of its
//!           blocks are free, and its [`Grade`]. So finding a chunk for a lane looks at bytes, not
//!           at blocks, and the counts per grade show without a lock whether to look at all (P10).
//!
//! FREE-M1  A chunk's `free` is the number of its free bits.
//! FREE-M2  A chunk that a lane holds has no grade. The bits that the lane holds are not free
//!          here; blocks that become free meanwhile are, and join the grade when the lane returns
//!          the chunk.
//! FREE-M3  No free run is longer than `run_max`: where runs are short, a search for a long one
//!          that was in vain is not made again before something becomes free (R21).
//! FREE-M4  `counts` are the chunks per grade, `busy` those that lanes hold or that are being
//!          discarded; `warm_free` is the free blocks of warm chunks.
//!
//! A chunk is *warm* once it has been taken, until it is discarded: on a sparse pool file, writing
//! where nothing has ever been written halves the rate of fsync (P6).

use std::ops::Range;

use copyhold_types::Txg;

use crate::bits::{Bits, parts};
use crate::chunk::ChunkBits;
use crate::discard::Discardable;
use crate::grouped::Grouped;
use crate::layout::CHUNK_BLOCKS;

/// The space that a chunk offers to a lane that looks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    /// All of it is free and warm.
    WholeWarm,
    /// All of it is free; perhaps a hole in the pool file.
    WholeCold,
    /// It has a free run of 64 KiB, and has been written to.
    LargeWarm,
    LargeCold,
    /// It has free blocks, in shorter runs.
    Small,
}

impl Grade {
    pub(crate) const COUNT: usize = 5;
    /// In the order of their numbers.
    pub(crate) const ALL: [Grade; Self::COUNT] =
        [Grade::WholeWarm, Grade::WholeCold, Grade::LargeWarm, Grade::LargeCold, Grade::Small];

    /// Whether the chunk has a free run of 64 KiB.
    pub(crate) fn is_good(self) -> bool {
        self != Grade::Small
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreeState {
    /// Free blocks are offered under a grade, if there are any.
    Idle(Option<Grade>),
    /// A lane holds it.
    Held,
    /// All of it is being discarded.
    Discarding,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    free: u16,
    warm: bool,
    /// It was discarded, and not taken since.
    hole: bool,
    state: FreeState,
    /// The newest txg whose frees became allocatable here.
    freed: Option<Txg>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FreeMap {
    free: Bits,
    blocks: u32,
    chunks: Grouped<Chunk>,
    counts: [u32; Grade::COUNT],
    /// Chunks that lanes hold or that are being discarded.
    busy: u32,
    warm_free: u64,
    free_blocks: u32,
    run_max: u32,
    /// Where the next search begins (next-fit).
    cursor: usize,
}

impl FreeMap {
    /// `free`: one bit for each of `blocks`. Chunks that are not wholly free have been written to.
    pub(crate) fn new(free: Bits, blocks: u32) -> FreeMap {
        let mut map = FreeMap {
            blocks,
            chunks: Grouped::from_fn(0, |_| unreachable!("there are none")),
            counts: [0; Grade::COUNT],
            busy: 0,
            warm_free: 0,
            free_blocks: free.count(),
            run_max: blocks,
            cursor: 0,
            free,
        };
        let count = blocks.div_ceil(CHUNK_BLOCKS) as usize;
        map.chunks = Grouped::from_fn(count, |at| map.chunk_of(at));
        for chunk in map.chunks.iter() {
            if let FreeState::Idle(Some(grade)) = chunk.state {
                map.counts[grade as usize] += 1;
            }
            map.warm_free += if chunk.warm { u64::from(chunk.free) } else { 0 };
        }
        map
    }

    /// Of blocks that were never written to, none of which is free yet.
    pub(crate) fn unused(blocks: u32) -> FreeMap {
        let mut map = FreeMap::new(Bits::new(0), 0);
        map.lengthen(blocks);
        map
    }

    /// Appends blocks that are not free, up to `blocks` in all.
    pub(crate) fn lengthen(&mut self, blocks: u32) {
        self.free.lengthen(blocks);
        self.blocks = blocks;
        let state = FreeState::Idle(None);
        let chunk = Chunk { free: 0, warm: false, hole: false, state, freed: None };
        let before = self.chunks.len();
        let longer = |at| if at < before { self.chunks.get(at) } else { chunk };
        self.chunks = Grouped::from_fn(blocks.div_ceil(CHUNK_BLOCKS) as usize, longer);
    }

    /// A chunk of a map that was just loaded.
    fn chunk_of(&self, at: usize) -> Chunk {
        let first = at as u32 * CHUNK_BLOCKS;
        let size = (self.blocks - first).min(CHUNK_BLOCKS);
        let count = self.free.count_in(first, size);
        let (free, warm) = (count as u16, count < size);
        let state = FreeState::Idle(None);
        let chunk = Chunk { free, warm, hole: false, state, freed: None };
        Chunk { state: FreeState::Idle(self.grade_of(at, chunk)), ..chunk }
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        self.free.bytes() + self.chunks.bytes()
    }

    /// The most that [`Self::bytes`] can be.
    pub(crate) fn bytes_max(blocks: u32) -> usize {
        Bits::bytes_max(blocks) + FreeMap::chunk_bytes(blocks, blocks)
    }

    /// The memory of the chunks of so many blocks, of which so many are in chunks that differ.
    pub(crate) fn chunk_bytes(blocks: u32, mixed: u32) -> usize {
        let chunks = |blocks: u32| blocks.div_ceil(CHUNK_BLOCKS) as usize;
        Grouped::<Chunk>::bytes_with(chunks(blocks), chunks(mixed.min(blocks)))
    }

    pub(crate) fn counts(&self) -> [u32; Grade::COUNT] {
        self.counts
    }

    /// Free blocks, without those that lanes hold.
    pub(crate) fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    pub(crate) fn warm_free(&self) -> u64 {
        self.warm_free
    }

    /// Whether a lane holds a chunk, though it may have taken all blocks of it, or one is being
    /// discarded.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// The free blocks.
    pub(crate) fn bits(&self) -> &Bits {
        &self.free
    }

    /// Chunks with a free run of 64 KiB.
    pub(crate) fn good_chunks(&self) -> u32 {
        let good = Grade::ALL.into_iter().filter(|grade| grade.is_good());
        good.map(|grade| self.counts[grade as usize]).sum()
    }

    pub(crate) fn all_used(&self, first: u32, blocks: u32) -> bool {
        self.free.all_clear(first, blocks)
    }

    fn chunk_bits(&self, at: usize) -> ChunkBits {
        ChunkBits::new(self.free.chunk(at))
    }

    fn change(&mut self, at: usize, change: impl FnOnce(&mut Chunk)) {
        let mut chunk = self.chunks.get(at);
        change(&mut chunk);
        self.chunks.set(at, chunk);
    }

    fn grade_of(&self, at: usize, chunk: Chunk) -> Option<Grade> {
        let Chunk { free, warm, .. } = chunk;
        let pick = |if_warm, if_cold| Some(if warm { if_warm } else { if_cold });
        match u32::from(free) {
            0 => None,
            CHUNK_BLOCKS => pick(Grade::WholeWarm, Grade::WholeCold),
            _ if self.chunk_bits(at).has_large_run() => pick(Grade::LargeWarm, Grade::LargeCold),
            _ => Some(Grade::Small),
        }
    }

    fn set_state(&mut self, at: usize, state: FreeState) {
        match self.chunks.get(at).state {
            FreeState::Idle(Some(grade)) => self.counts[grade as usize] -= 1,
            FreeState::Idle(None) => {}
            FreeState::Held | FreeState::Discarding => self.busy -= 1,
        }
        match state {
            FreeState::Idle(Some(grade)) => self.counts[grade as usize] += 1,
            FreeState::Idle(None) => {}
            FreeState::Held | FreeState::Discarding => self.busy += 1,
        }
        self.change(at, |chunk| chunk.state = state);
    }

    fn regrade(&mut self, at: usize) {
        let chunk = self.chunks.get(at);
        if let FreeState::Idle(_) = chunk.state {
            self.set_state(at, FreeState::Idle(self.grade_of(at, chunk)));
        }
    }

    fn adjust(&mut self, at: usize, more: i32) {
        self.change(at, |chunk| chunk.free = (i32::from(chunk.free) + more) as u16);
        self.free_blocks = self.free_blocks.wrapping_add_signed(more);
        if self.chunks.get(at).warm {
            self.warm_free = self.warm_free.wrapping_add_signed(more.into());
        }
    }

    fn set_warm(&mut self, at: usize, warm: bool) {
        let before = self.chunks.get(at);
        let hole = before.hole && !warm;
        self.chunks.set(at, Chunk { warm, hole, ..before });
        if before.warm != warm {
            let free = u64::from(before.free);
            self.warm_free = if warm { self.warm_free + free } else { self.warm_free - free };
        }
    }

    /// Makes a run allocatable again. `freed`: the txg that freed it, when that is why.
    pub(crate) fn vacate(&mut self, first: u32, blocks: u32, freed: Option<Txg>) {
        assert!(self.free.all_clear(first, blocks), "{first}+{blocks} is free already");
        self.free.set(first, blocks);
        if self.run_max < self.blocks {
            self.run_max = self.run_max.max(self.run_around(first, blocks));
        }
        for (at, _, count) in parts(first, blocks, CHUNK_BLOCKS) {
            self.adjust(at, count as i32);
            self.change(at, |chunk| chunk.freed = chunk.freed.max(freed));
            self.regrade(at);
        }
    }

    /// Takes a free run out.
    fn occupy(&mut self, first: u32, blocks: u32) {
        assert!(self.free.all_set(first, blocks), "{first}+{blocks} is not free");
        self.free.clear(first, blocks);
        for (at, _, count) in parts(first, blocks, CHUNK_BLOCKS) {
            self.adjust(at, -(count as i32));
            self.set_warm(at, true);
            self.regrade(at);
        }
    }

    /// The chunks that `[first, first + blocks)` covers have been written to.
    pub(crate) fn mark_warm(&mut self, first: u32, blocks: u32) {
        for (at, within, count) in parts(first, blocks, CHUNK_BLOCKS) {
            let size = self.blocks - at as u32 * CHUNK_BLOCKS;
            if within == 0 && count == size.min(CHUNK_BLOCKS) {
                self.set_warm(at, true);
                self.regrade(at);
            }
        }
    }

    /// Chunk numbers, all of them, from the cursor on.
    fn round_from_cursor(&self) -> impl Iterator<Item = usize> + use<> {
        let (cursor, count) = (self.cursor, self.chunks.len());
        (cursor..count).chain(0..cursor)
    }

    /// The first chunk in this state, from the cursor on.
    fn find_in_state(&self, wanted: FreeState) -> Option<usize> {
        let is_wanted = |chunk: &Chunk| chunk.state == wanted;
        let (cursor, count) = (self.cursor, self.chunks.len());
        let found = self.chunks.find(cursor..count, is_wanted);
        found.or_else(|| self.chunks.find(0..cursor, is_wanted))
    }

    /// Hands a chunk of this grade to a lane: its number and the blocks in it that are the lane's.
    pub(crate) fn hold_chunk(&mut self, grade: Grade) -> Option<(u32, ChunkBits)> {
        if self.counts[grade as usize] == 0 {
            return None;
        }
        let wanted = FreeState::Idle(Some(grade));
        let at = self.find_in_state(wanted)?;
        let bits = self.chunk_bits(at);
        self.set_state(at, FreeState::Held);
        for (first, blocks) in bits.runs() {
            self.occupy(at as u32 * CHUNK_BLOCKS + first, blocks);
        }
        self.cursor = (at + 1) % self.chunks.len();
        Some((at as u32, bits))
    }

    /// Takes back a chunk that a lane held, with the rest of its blocks.
    pub(crate) fn give_up_chunk(&mut self, at: u32, rest: ChunkBits) {
        let state = self.chunks.get(at as usize).state;
        assert_eq!(state, FreeState::Held, "FREE-M2: chunk {at}");
        for (first, blocks) in rest.runs() {
            self.vacate(at * CHUNK_BLOCKS + first, blocks, None);
        }
        self.set_state(at as usize, FreeState::Idle(None));
        self.regrade(at as usize);
    }

    /// Takes up to `most` whole chunks that follow each other: the first block, and how many
    /// blocks.
    pub(crate) fn take_whole(&mut self, grade: Grade, most: u32) -> Option<(u32, u32)> {
        if self.counts[grade as usize] == 0 {
            return None;
        }
        let wanted = FreeState::Idle(Some(grade));
        let at = self.find_in_state(wanted)?;
        let end = self.chunks.len().min(at + most as usize);
        let differs = self.chunks.find(at..end, |chunk| chunk.state != wanted);
        let count = differs.unwrap_or(end) - at;
        let (first, blocks) = (at as u32 * CHUNK_BLOCKS, count as u32 * CHUNK_BLOCKS);
        self.occupy(first, blocks);
        self.cursor = (at + count) % self.chunks.len();
        Some((first, blocks))
    }

    /// Takes a free run of up to `want` blocks, as long as one chunk has it: for when lanes are no
    /// longer affordable. `good`: from good chunks; otherwise from any other.
    pub(crate) fn take_some(&mut self, want: u32, good: bool) -> Option<(u32, u32)> {
        let mut best: Option<(usize, u32, u32)> = None;
        for at in self.round_from_cursor() {
            let chunk = self.chunks.get(at);
            let is_good = matches!(chunk.state, FreeState::Idle(Some(grade)) if grade.is_good());
            if chunk.free == 0 || is_good != good {
                continue;
            }
            let bits = self.chunk_bits(at);
            let found = bits.find(0, want).map(|first| (first, want)).or(bits.longest());
            let Some((first, blocks)) = found else { continue };
            if best.is_none_or(|best| blocks > best.2) {
                best = Some((at, first, blocks));
            }
            if blocks == want {
                break;
            }
        }
        let (at, first, blocks) = best?;
        self.cursor = at;
        let first = at as u32 * CHUNK_BLOCKS + first;
        self.occupy(first, blocks);
        Some((first, blocks))
    }

    /// Takes exactly `blocks` blocks in one run, wherever they are; where it begins.
    pub(crate) fn take_run(&mut self, blocks: u32) -> Option<u32> {
        if self.free_blocks < blocks || self.run_max < blocks {
            return None;
        }
        let Some((first, _)) = self.free.runs().find(|&(_, length)| length >= blocks) else {
            self.run_max = blocks - 1;
            return None;
        };
        self.occupy(first, blocks);
        Some(first)
    }

    /// How long the free run is that these free blocks are of, at most: beyond a chunk it is not
    /// looked at.
    fn run_around(&self, first: u32, blocks: u32) -> u32 {
        let is_free = |at: &u32| !self.free.all_clear(*at, 1);
        let most = CHUNK_BLOCKS as usize;
        let before = (0..first).rev().take(most).take_while(is_free).count();
        let behind = (first + blocks..self.blocks).take(most).take_while(is_free).count();
        match before == most || behind == most {
            true => self.blocks,
            false => before as u32 + blocks + behind as u32,
        }
    }

    /// Takes wholly free chunks that follow each other, of those that `chunks` are, out for a
    /// discard, at most `most` blocks. The first block and how many blocks.
    pub(crate) fn take_discardable(
        &mut self,
        which: Discardable,
        most: u32,
        chunks: Range<usize>,
    ) -> Option<(u32, u32)> {
        let old = |chunk: &Chunk| {
            let whole = match chunk.state {
                FreeState::Idle(Some(Grade::WholeWarm)) => true,
                FreeState::Idle(Some(Grade::WholeCold)) => which.unknown && !chunk.hole,
                _ => false,
            };
            let before = |txg| chunk.freed.is_none_or(|freed| freed < txg);
            whole && which.freed_before.is_none_or(before)
        };
        let least = which.least.div_ceil(CHUNK_BLOCKS).max(1) as usize;
        let most = (most / CHUNK_BLOCKS) as usize;
        let end = chunks.end.min(self.chunks.len());
        if least > most {
            return None;
        }
        let mut at = chunks.start;
        while at + least <= end {
            let behind = end.min(at + most);
            let count = self.chunks.find(at..behind, |chunk| !old(chunk)).unwrap_or(behind) - at;
            if count >= least {
                let (first, blocks) = (at as u32 * CHUNK_BLOCKS, count as u32 * CHUNK_BLOCKS);
                self.occupy(first, blocks);
                (at..at + count).for_each(|at| self.set_state(at, FreeState::Discarding));
                return Some((first, blocks));
            }
            at += count + 1;
        }
        None
    }

    /// Returns the run that [`Self::take_discardable`] took; `cold`: it was discarded.
    pub(crate) fn end_discard(&mut self, first: u32, blocks: u32, cold: bool) {
        for (at, _, _) in parts(first, blocks, CHUNK_BLOCKS) {
            let state = self.chunks.get(at).state;
            assert_eq!(state, FreeState::Discarding, "chunk {at} is not in a discard");
            self.set_state(at, FreeState::Idle(None));
            self.set_warm(at, !cold);
            self.change(at, |chunk| chunk.hole = cold);
        }
        self.vacate(first, blocks, None);
    }

    /// Blocks that are being discarded, and chunks that lanes hold.
    pub(crate) fn set_aside(&self) -> (u64, usize) {
        let count = |state| self.chunks.iter().filter(|chunk| chunk.state == state).count();
        let discarding = count(FreeState::Discarding) as u64 * u64::from(CHUNK_BLOCKS);
        (discarding, count(FreeState::Held))
    }

    /// FREE-M1 to FREE-M4.
    pub(crate) fn check(&self) {
        let mut counts = [0; Grade::COUNT];
        let (mut warm_free, mut free_blocks, mut busy) = (0, 0, 0);
        for (at, chunk) in self.chunks.iter().enumerate() {
            let free = self.chunk_bits(at).count();
            assert_eq!(u32::from(chunk.free), free, "FREE-M1: chunk {at}");
            match chunk.state {
                FreeState::Idle(grade) => {
                    assert_eq!(grade, self.grade_of(at, chunk), "FREE-M4: chunk {at}");
                    grade.into_iter().for_each(|grade| counts[grade as usize] += 1);
                }
                FreeState::Held => busy += 1,
                FreeState::Discarding => {
                    assert_eq!(free, 0, "chunk {at} is in a discard");
                    busy += 1;
                }
            }
            warm_free += if chunk.warm { u64::from(free) } else { 0 };
            free_blocks += free;
        }
        assert_eq!((self.counts, self.busy), (counts, busy), "FREE-M4");
        assert_eq!(self.warm_free, warm_free, "FREE-M4");
        let longest = self.free.runs().map(|(_, blocks)| blocks).max();
        assert!(longest.unwrap_or(0) <= self.run_max, "FREE-M3");
        assert_eq!(self.free_blocks, free_blocks, "FREE-M1");
    }
}
