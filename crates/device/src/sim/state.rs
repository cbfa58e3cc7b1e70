//! The state of a simulated device, and the effects of each request on it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use copyhold_types::{BLOCK_BYTES, Buf, Nanos, Purpose};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use super::disk::{SimDisk, Write};
use super::fault::{Armed, Fault, FaultRates, Kind};
use super::image::{SimImage, Survival};

pub(super) type RequestId = u64;

enum Request {
    Write(Write),
    Discard { block: u64, blocks: u64 },
}

struct InFlight {
    request: Request,
    fault: Option<Fault>,
}

pub(super) struct DiskState {
    pub(super) rng: Xoshiro256PlusPlus,
    /// The content that reads return: `durable` with `unflushed` applied in order.
    pub(super) current: SimImage,
    durable: SimImage,
    /// Completed writes that no flush has covered, in completion order.
    unflushed: VecDeque<Write>,
    /// Completion number of the first of `unflushed`.
    first_unflushed: u64,
    in_flight: BTreeMap<RequestId, InFlight>,
    /// Requests in flight without a waiter; they reach the medium sooner or later.
    abandoned: Vec<RequestId>,
    next_request: RequestId,
    pub(super) armed: Armed,
    pub(super) rates: FaultRates,
    pub(super) off: bool,
    pub(super) off_wakers: Vec<Waker>,
    /// Holes that can still be filled, if the host's disk is limited.
    pub(super) host_free: Option<u64>,
    /// The host writes everything to another place: overwritten blocks are free only afterwards.
    pub(super) host_copies: bool,
    /// The time between the beginnings of two requests, and the beginning of the next.
    pub(super) interval: Nanos,
    begins: Nanos,
    /// Where the device really ends.
    pub(super) end: u64,
    /// Where it ended before it grew, and the completion number of the growth, until a flush covers
    /// it.
    grown: Option<(u64, u64)>,
    digest: u64,
}

impl DiskState {
    pub(super) fn new(seed: u64, disk: SimDisk, rates: FaultRates) -> DiskState {
        DiskState {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            interval: 0,
            begins: 0,
            end: disk.current.blocks(),
            grown: None,
            durable: disk.durable,
            current: disk.current,
            unflushed: disk.cached,
            first_unflushed: 0,
            in_flight: BTreeMap::new(),
            abandoned: Vec::new(),
            next_request: 0,
            armed: Armed::default(),
            rates,
            off: false,
            off_wakers: Vec::new(),
            host_free: None,
            host_copies: false,
            digest: seed,
        }
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn note(&mut self, word: u64) {
        self.digest =
            (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(27) ^ word >> 32;
    }

    pub(super) fn unflushed_writes(&self) -> usize {
        self.unflushed.len()
    }

    // Beginning

    pub(super) fn begin_read(&mut self) -> Option<Fault> {
        self.armed.trip(Kind::Read)
    }

    pub(super) fn begin_write(&mut self, block: u64, data: &[Buf], why: Purpose) -> RequestId {
        let mut write = Write::new();
        for bytes in data.iter().flat_map(|buf| buf.chunks_exact(BLOCK_BYTES)) {
            for word in bytes.chunks_exact(8) {
                self.note(u64::from_ne_bytes(word.try_into().expect("eight bytes")));
            }
            let content = Arc::new(bytes.try_into().expect("a whole block"));
            write.push((block + write.len() as u64, Some(content)));
        }
        let fault = self.armed.trip(Kind::Write(why)).or_else(|| self.random_write_fault());
        self.launch(Request::Write(write), fault)
    }

    pub(super) fn begin_discard(&mut self, block: u64, blocks: u64) -> RequestId {
        let fault = self.armed.trip(Kind::Discard);
        self.launch(Request::Discard { block, blocks }, fault)
    }

    /// The time that a request waits for those before it.
    pub(super) fn queued(&mut self, now: Nanos) -> Nanos {
        let begin = self.begins.max(now);
        self.begins = begin + self.interval;
        begin - now
    }

    /// The writes that the flush which begins now covers, and its fault.
    pub(super) fn begin_flush(&mut self) -> (u64, Option<Fault>) {
        let mut fault = self.armed.trip(Kind::Flush);
        if fault.is_none() && FaultRates::hits(self.rates.flush_error, &mut self.rng) {
            fault = Some(Fault::Error(libc::EIO));
        }
        if fault == Some(Fault::PowerOff) {
            self.off = true;
        }
        (self.first_unflushed + self.unflushed.len() as u64, fault)
    }

    /// The device becomes longer. The growth has a place among the completed writes.
    pub(super) fn grow(&mut self, blocks: u64) {
        let before = self.grown.map_or(self.end, |(before, _)| before);
        self.grown = Some((before, self.first_unflushed + self.unflushed.len() as u64));
        self.unflushed.push_back(Write::new());
        self.end = blocks;
        self.current.set_blocks(blocks);
        self.durable.set_blocks(blocks);
    }

    fn random_write_fault(&mut self) -> Option<Fault> {
        if FaultRates::hits(self.rates.write_error, &mut self.rng) {
            return Some(Fault::Error(libc::EIO));
        }
        if FaultRates::hits(self.rates.lost_write, &mut self.rng) {
            return Some(Fault::Lose);
        }
        if FaultRates::hits(self.rates.misdirected_write, &mut self.rng) {
            return Some(Fault::Misdirect { to: self.rng.next_u64() % self.end.max(1) });
        }
        None
    }

    fn launch(&mut self, request: Request, fault: Option<Fault>) -> RequestId {
        if fault == Some(Fault::PowerOff) {
            self.off = true;
        }
        let id = self.next_request;
        self.next_request += 1;
        self.in_flight.insert(id, InFlight { request, fault });
        id
    }

    /// The caller is gone; the request continues.
    pub(super) fn abandon(&mut self, id: RequestId) {
        if self.in_flight.contains_key(&id) {
            self.abandoned.push(id);
        }
    }

    /// Completes some of the abandoned requests.
    pub(super) fn land_abandoned(&mut self) {
        for id in std::mem::take(&mut self.abandoned) {
            if self.rng.next_u64().is_multiple_of(4) {
                let _nobody_listens = self.complete(id);
            } else {
                self.abandoned.push(id);
            }
        }
    }

    // Completing

    /// Completes a write or a discard; the errno of a failed one.
    pub(super) fn complete(&mut self, id: RequestId) -> Result<(), i32> {
        let InFlight { request, fault } = self.in_flight.remove(&id).expect("in flight");
        match (request, fault) {
            (_, Some(Fault::Lose)) => Ok(()),
            (Request::Write(write), Some(Fault::Error(errno))) => {
                let survival = Survival::pick(&mut self.rng);
                self.land_part(&write, survival);
                Err(errno)
            }
            (Request::Write(mut write), Some(Fault::Misdirect { to })) => {
                for (i, (block, _)) in write.iter_mut().enumerate() {
                    *block = (to + i as u64) % self.end.max(1);
                }
                self.land_write(write)
            }
            (Request::Write(write), _) => self.land_write(write),
            (Request::Discard { .. }, Some(Fault::Error(errno))) => Err(errno),
            (Request::Discard { block, blocks }, _) => {
                let effect = discarded(&self.current, block, blocks, &mut self.rng);
                self.land(effect);
                Ok(())
            }
        }
    }

    fn land_write(&mut self, write: Write) -> Result<(), i32> {
        if write.last().is_some_and(|(block, _)| *block >= self.end) {
            self.land_part(&write, Survival::Prefix);
            return Err(libc::EIO);
        }
        let takes = |block: u64| self.host_copies || !self.current.is_held(block);
        let taken = write.iter().filter(|(block, _)| takes(*block)).count() as u64;
        if self.host_free.is_some_and(|free| taken > free) {
            return Err(libc::ENOSPC);
        }
        self.land(write);
        Ok(())
    }

    /// Applies the remains of a failed write.
    fn land_part(&mut self, write: &Write, survival: Survival) {
        let within: Write = write.iter().filter(|(block, _)| *block < self.end).cloned().collect();
        let mut after = self.current.clone();
        survival.apply(&mut after, &within, &mut self.rng);
        let left = within.into_iter().map(|(block, _)| (block, Some(after.read_block(block))));
        self.land(left.map(|(block, content)| (block, content.map(Arc::new))).collect());
    }

    fn land(&mut self, write: Write) {
        for (block, content) in &write {
            let was_held = self.current.is_held(*block);
            if let Some(free) = &mut self.host_free {
                match (was_held, content) {
                    (false, Some(_)) => *free = free.saturating_sub(1),
                    (true, None) => *free += 1,
                    _ => {}
                }
            }
            self.current.put(*block, content.clone());
            self.armed.written(*block);
        }
        self.unflushed.push_back(write);
    }

    /// Makes the requests durable that had completed when the flush began.
    pub(super) fn complete_flush(&mut self, covers: u64, fault: Option<Fault>) -> Result<(), i32> {
        if fault == Some(Fault::Lose) {
            return Ok(());
        }
        let count = covers.saturating_sub(self.first_unflushed) as usize;
        let covered: Vec<Write> = self.unflushed.drain(..count).collect();
        self.first_unflushed += count as u64;
        let Some(Fault::Error(errno)) = fault else {
            self.grown = self.grown.filter(|(_, number)| *number >= covers);
            for (block, content) in covered.into_iter().flatten() {
                self.durable.put(block, content);
            }
            return Ok(());
        };
        for write in &covered {
            Survival::pick(&mut self.rng).apply(&mut self.durable, write, &mut self.rng);
        }
        self.current = self.durable.clone();
        for (block, content) in self.unflushed.iter().flatten() {
            self.current.put(*block, content.clone());
        }
        Err(errno)
    }

    /// The result of a read. Blocks that are being written meanwhile are a mixture of old and new.
    pub(super) fn complete_read(
        &mut self,
        block: u64,
        blocks: u32,
        fault: Option<Fault>,
    ) -> Result<Buf, i32> {
        if let Some(Fault::Error(errno)) = fault {
            return Err(errno);
        }
        if block + u64::from(blocks) > self.end {
            return Err(libc::EIO);
        }
        if let Some(errno) = self.armed.read_error(block, blocks) {
            return Err(errno);
        }
        if FaultRates::hits(self.rates.read_error, &mut self.rng) {
            return Err(libc::EIO);
        }
        if FaultRates::hits(self.rates.bit_rot, &mut self.rng) {
            let place = self.rng.next_u64() % u64::from(blocks.max(1));
            self.rot(block + place);
        }
        let mut buf = Buf::zeroed(blocks as usize);
        let racing = self.racing_with(block, blocks);
        let bytes = buf.make_mut();
        for (i, place) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let block = block + i as u64;
            let image = racing.as_ref().unwrap_or(&self.current);
            image.read_into(block, place);
        }
        Ok(buf)
    }

    /// The image that a read sees whose blocks are being written.
    fn racing_with(&mut self, block: u64, blocks: u32) -> Option<SimImage> {
        let range = block..block + u64::from(blocks);
        let mut racing: Option<SimImage> = None;
        for InFlight { request, .. } in self.in_flight.values() {
            let Request::Write(write) = request else { continue };
            if write.iter().any(|(block, _)| range.contains(block)) {
                let image = racing.get_or_insert_with(|| self.current.clone());
                Survival::Sectors.apply(image, write, &mut self.rng);
            }
        }
        racing
    }

    // Damage and loss of power

    /// Flips one bit, on the medium and for readers. Returns its byte.
    pub(super) fn rot(&mut self, block: u64) -> usize {
        let bit = (self.rng.next_u64() % (BLOCK_BYTES as u64 * 8)) as usize;
        self.corrupt(block, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        bit / 8
    }

    pub(super) fn corrupt(&mut self, block: u64, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        self.current.corrupt(block, change);
        let content = Some(Arc::new(self.current.read_block(block)));
        self.durable.put(block, content.clone());
        for (_, held) in self.unflushed.iter_mut().flatten().filter(|(at, _)| *at == block) {
            held.clone_from(&content);
        }
    }

    /// The content after a loss of power now.
    pub(super) fn after_crash(&self, seed: u64) -> SimImage {
        let mut image = self.writes_after_crash(seed);
        if let Some((before, _)) = self.grown
            && Xoshiro256PlusPlus::seed_from_u64(!seed).next_u64().is_multiple_of(2)
        {
            image.set_blocks(before);
        }
        image
    }

    /// In the length of now.
    fn writes_after_crash(&self, seed: u64) -> SimImage {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut image = self.durable.clone();
        match rng.next_u64() % 8 {
            0 => return image,
            1 => return self.current.clone(),
            2 => {
                let kept = rng.next_u64() as usize % (self.unflushed.len() + 1);
                for (i, write) in self.unflushed.iter().take(kept).enumerate() {
                    let survival = if i + 1 < kept { Survival::All } else { Survival::pick(rng) };
                    survival.apply(&mut image, write, rng);
                }
                return image;
            }
            _ => {}
        }
        let mut writes: Vec<Write> = self.unflushed.iter().cloned().collect();
        writes.extend(self.effects_in_flight(rng));
        for i in (1..writes.len()).rev() {
            writes.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
        }
        for write in &writes {
            Survival::pick(rng).apply(&mut image, write, rng);
        }
        image
    }

    /// The content after a kill of the process now.
    pub(super) fn after_kill(&self, seed: u64) -> SimDisk {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut current = self.current.clone();
        let mut cached = self.unflushed.clone();
        for write in self.effects_in_flight(rng) {
            Survival::pick(rng).apply(&mut current, &write, rng);
            let landed = write.iter().map(|(block, _)| (*block, current.content(*block)));
            cached.push_back(landed.collect());
        }
        SimDisk { durable: self.durable.clone(), cached, current }
    }

    /// The possible effects of requests in flight.
    fn effects_in_flight(&self, rng: &mut Xoshiro256PlusPlus) -> Vec<Write> {
        let effect = |InFlight { request, .. }: &InFlight| match request {
            Request::Write(write) => write.clone(),
            Request::Discard { block, blocks } => discarded(&self.current, *block, *blocks, rng),
        };
        self.in_flight.values().map(effect).collect()
    }
}

/// The effect on discarded blocks: zeros, garbage, or none.
fn discarded(image: &SimImage, block: u64, blocks: u64, rng: &mut Xoshiro256PlusPlus) -> Write {
    let mut effect = Write::new();
    for block in image.held_in(block, blocks) {
        match rng.next_u64() % 4 {
            0 => {}
            1 => {
                let mut garbage = [0; BLOCK_BYTES];
                rng.fill_bytes(&mut garbage);
                effect.push((block, Some(Arc::new(garbage))));
            }
            _ => effect.push((block, None)),
        }
    }
    effect
}
