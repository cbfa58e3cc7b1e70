//! A batch of dirty blocks on its way to the device.
//!
//! Its blocks are taken in file order, placed contiguously, summed, written in requests of up to
//! 1 MiB, and only then installed (R31). Small synchronous data is not written here: it travels
//! with the transaction that installs it (P12). A tiny file goes into its INLINE item.
//!
//! A batch that was taken is finished, also if its caller is dropped: the device writes to the
//! space that it has claimed, or, in place, to the space that its map lock covers. An error leaves
//! its blocks as dirty as they were: the space claimed for them is promised to them again, without
//! a new check, so another try finds the space that was theirs when they were accepted (DIRTY-D2).

use std::collections::VecDeque;
use std::sync::Arc;

use copyhold_format::block_checksum;
use copyhold_format::item::{ChecksumMode, ExtentState, INLINE_MAX};
use copyhold_pool::{
    BlockMode, Claim, LaneClass, PoolError, Tier, block_mode, cancel_written, leave_trace,
};
use copyhold_runtime::finishing;
use copyhold_sync::{Mutex, of};
use copyhold_types::{BLOCK_BYTES, Buf, Bufs, Purpose, Run};
use copyhold_volume::quota::Hold;
use futures_util::future::join_all;
use smallvec::SmallVec;

use super::dirty::{Taken, Took};
use super::extents::CHUNK;
use super::slot::Slot;
use crate::flight::{Flying, Lane};
use crate::inode::{Inode, InodeRef};
use crate::promise::Promise;
use crate::{Filesystem, Result, Sabotage};

/// Blocks of one batch: 4 MiB.
const BATCH_BLOCKS: usize = 1024;
/// Stretches of one batch, so that it fits a transaction where every old extent is cut in two.
const PIECES_MAX: usize = 256;
/// Blocks of one request: 1 MiB.
pub(crate) const REQUEST_BLOCKS_MAX: u32 = 256;

pub(crate) struct WritebackJob {
    pub(super) fs: Arc<Filesystem>,
    pub(super) inode: InodeRef,
    pub(super) taken: Taken,
    pub(super) took: Vec<(u64, Slot)>,
    reserved: Option<Promise>,
    /// The hold from which the claimed blocks are charged.
    pub(super) hold: Mutex<Hold, of::BatchHold>,
    /// Everything fits the INLINE item.
    inline: bool,
    pub(super) attach: bool,
    /// There is no reservation: the content goes into preallocated space.
    in_place: bool,
    lane: Lane,
    /// The checksum mode that the file wants, and the one that its claimed blocks get.
    wanted: ChecksumMode,
    mode: BlockMode,
    /// Room that it asked for before its blocks were taken (FLIGHT-L5).
    flying: Option<Flying>,
}

/// The content to install.
pub(super) enum Content<'a> {
    /// Size, times or a cut only.
    Nothing,
    Inline(Vec<u8>),
    /// Claims that are not installed stay there.
    Placed(&'a [Placed], &'a mut VecDeque<Claim>),
}

/// A stretch of the batch in its place on the device; within one chunk of the file.
pub(super) struct Placed {
    pub(super) at: u64,
    pub(super) run: Run,
    /// Of each block, if they are in the item.
    pub(super) sums: SmallVec<[u32; 4]>,
    pub(super) mode: BlockMode,
    /// Of its first block among those taken.
    pub(super) first: usize,
}

impl Filesystem {
    /// Writes and installs a batch of blocks made dirty up to change number `version`; if none is
    /// left at all, logs a pending cut, size or time. Says whether there was anything to do.
    pub(crate) async fn write_batch(
        self: &Arc<Self>,
        inode: &InodeRef,
        version: u64,
        attach: bool,
        lane: Lane,
    ) -> Result<bool> {
        let mut batch = loop {
            let (flying, blocks) = self.room_before_batch(inode, version, attach, lane).await;
            match WritebackJob::take(self, inode, version, attach, blocks, lane) {
                Some(mut batch) => {
                    batch.fly(flying);
                    break batch;
                }
                // DIRTY-D9.
                None if inode.state().data.waits_for_cut() => {
                    drop(flying);
                    self.batches_end(inode).await;
                }
                None => return Ok(false),
            }
        };
        let inode = inode.clone();
        let write = async move {
            // Before the batch has ended: waiters for that check for errors then.
            let result = batch.write().await;
            inode.record_error(result.clone());
            drop(batch);
            result.map(|()| true)
        };
        finishing(&self.rt, write).await
    }

    /// Room for a batch, and how many blocks it may take. While it waits, its blocks are not taken:
    /// they may be rewritten, and an fsync may take them. Without room there are as few blocks as a
    /// transaction carries.
    async fn room_before_batch(
        &self,
        inode: &InodeRef,
        version: u64,
        attach: bool,
        lane: Lane,
    ) -> (Option<Flying>, usize) {
        let ready = {
            let data = &inode.state().data;
            if data.has_dirty_block(version) { data.ready().min(BATCH_BLOCKS) } else { 0 }
        };
        let attached = self.options.attach_bytes_max as usize / BLOCK_BYTES;
        if ready == 0 || (attach && ready <= attached) {
            return (None, attached);
        }
        let flying = lane.take_some(self, ready).await;
        let blocks = flying.blocks();
        (Some(flying), blocks)
    }
}

impl Inode {
    /// Keeps the first error of background writes for the next fsync (R34).
    pub(super) fn record_error(&self, written: Result<()>) {
        if let Err(error) = written {
            self.state().error.get_or_insert_with(|| Box::new(error));
        }
    }
}

impl WritebackJob {
    pub(super) fn take(
        fs: &Arc<Filesystem>,
        inode: &InodeRef,
        version: u64,
        attach: bool,
        blocks_max: usize,
        lane: Lane,
    ) -> Option<WritebackJob> {
        let mut state = inode.state();
        // DIRTY-D9.
        let is_cutting = state.data.is_cutting() && !fs.breaks(Sabotage::TakeBesideCut);
        if state.gone || is_cutting {
            return None;
        }
        let size = state.shown.size;
        let was_ready = state.data.ready();
        let Took { id, blocks: took, in_place } =
            state.data.take(version, blocks_max, PIECES_MAX, CHUNK);
        if took.is_empty() && !state.data.take_nothing(id, version) {
            return None;
        }
        let alone = took.len() == 1 && took[0].0 == 0;
        let no_extents = state.item.allocated == 0 || state.data.cut.block() == 0;
        let small = (took.len() * BLOCK_BYTES) as u64 <= fs.options.attach_bytes_max;
        Some(WritebackJob {
            fs: fs.clone(),
            inode: inode.clone(),
            taken: Taken { id, size },
            reserved: match in_place {
                true => None,
                false => state.data.take_reserved(took.len() as u64),
            },
            hold: Mutex::default(),
            in_place,
            lane,
            wanted: state.item.checksum_mode,
            mode: BlockMode::PLAIN,
            flying: None,
            inline: alone && size <= INLINE_MAX as u64 && no_extents,
            attach: attach && small && took.len() == was_ready && !in_place,
            took,
        })
    }

    /// Keeps the room that its blocks need, if they are sent next (FLIGHT-L5).
    fn fly(&mut self, flying: Option<Flying>) {
        self.flying = flying.filter(|_| self.is_placed() && !self.attach);
        if let Some(flying) = &mut self.flying {
            flying.keep_blocks(self.took.len());
        }
    }

    /// Its blocks get new places on the device.
    pub(super) fn is_placed(&self) -> bool {
        !self.took.is_empty() && !self.inline && !self.in_place
    }

    pub(super) async fn write(&mut self) -> Result<()> {
        if self.took.is_empty() {
            return self.install(Content::Nothing).await;
        }
        if self.inline {
            let bytes = self.took[0].1.bytes()[..self.taken.size as usize].to_vec();
            self.use_hold();
            let result = self.install(Content::Inline(bytes)).await;
            self.unclaim(VecDeque::new(), &result);
            return result;
        }
        if self.in_place {
            return self.write_in_place().await;
        }
        let mut claims = self.claim().await?;
        let placed = self.place(&claims);
        let result = match self.attach {
            true => self.install_placed(&placed, &mut claims).await,
            false => self.send_and_install(&placed, &mut claims).await,
        };
        self.unclaim(claims, &result);
        result
    }

    pub(super) async fn send_and_install(
        &mut self,
        placed: &[Placed],
        claims: &mut VecDeque<Claim>,
    ) -> Result<()> {
        let flying = self.flying.take();
        match self.send(placed, flying).await {
            Ok(()) => self.install_placed(placed, claims).await,
            Err(error) if error.is_refused_guard() && self.has_tags() => {
                tracing::warn!("{error}: the data is written again, to other blocks");
                Box::pin(self.send_elsewhere(claims)).await
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn install_placed(
        &self,
        placed: &[Placed],
        claims: &mut VecDeque<Claim>,
    ) -> Result<()> {
        self.install(Content::Placed(placed, claims)).await
    }

    /// Writes to other places, once: the device has refused guards that match the data in memory,
    /// so the data changed on the way, and the content of its places is unknown. A device that
    /// refuses all takes no space: the first places are free when the others are claimed.
    async fn send_elsewhere(&mut self, claims: &mut VecDeque<Claim>) -> Result<()> {
        let pool = self.fs.pool.clone();
        let blocks = claims.iter().map(|claim| u64::from(claim.run().blocks)).sum();
        let more = pool.reserve_now(blocks, Tier::Internal)?;
        self.reserved.as_mut().expect("a batch with places has a reservation").space.join(more);
        let refused = std::mem::replace(claims, self.claim_again(blocks)?);
        let space = &mut self.reserved.as_mut().expect("it has one").space;
        refused.into_iter().for_each(|claim| cancel_written(&pool, claim, space));
        space.give_back(blocks);
        let placed = self.place(claims);
        self.send(&placed, None).await?;
        self.install_placed(&placed, claims).await
    }

    pub(super) async fn claim(&mut self) -> Result<VecDeque<Claim>> {
        if !self.attach {
            leave_trace(&self.fs.pool, self.wanted).await?;
        }
        let blocks = self.took.len() as u64;
        let held = self.reserved.as_ref().map_or(0, Promise::blocks);
        if held < blocks {
            // Only where the pool has stopped, which this says: DIRTY-D2.
            let more = self.fs.promise_now(&self.inode.subvol, blocks - held)?;
            self.promised_again(more);
        }
        let claims = self.claim_again(blocks)?;
        self.use_hold();
        let placed: u64 = claims.iter().map(|claim| u64::from(claim.run().blocks)).sum();
        assert_eq!(placed, blocks, "FILES-F3: reserved space can be claimed");
        Ok(claims)
    }

    /// Places of reserved blocks, and their mode.
    fn claim_again(&mut self, blocks: u64) -> Result<VecDeque<Claim>> {
        let reserved = self.reserved.as_mut().expect("a batch with places has a reservation");
        let class = if self.attach { LaneClass::Sync } else { LaneClass::Data };
        let mut claims = self.fs.pool.claim(class, blocks, &mut reserved.space)?;
        // Recovery verifies attached data by its checksums: fsync stays at one flush.
        if !self.attach {
            self.mode = block_mode(&self.fs.pool, self.wanted, &mut claims);
        }
        Ok(claims.into())
    }

    /// The installation is charged to the hold of the blocks taken.
    fn use_hold(&mut self) {
        if let Some(reserved) = &mut self.reserved {
            drop(self.hold.lock().join(std::mem::take(&mut reserved.hold)));
        }
    }

    /// Space that could not be installed is promised to its blocks again. Of blocks that need none
    /// any more, space with tags is deferred.
    pub(super) fn unclaim(&mut self, claims: VecDeque<Claim>, written: &Result<()>) {
        let Some(reserved) = &mut self.reserved else { return };
        let pool = &self.fs.pool;
        for claim in claims {
            match (self.mode.has_tags(), written) {
                (false, _) => claim.cancel_into(&mut reserved.space),
                (true, Ok(())) => drop(claim),
                (true, Err(_)) => cancel_written(pool, claim, &mut reserved.space),
            }
        }
        drop(reserved.hold.join(std::mem::take(&mut *self.hold.lock())));
    }

    /// Whether its blocks are written with tags beside them.
    pub(super) fn has_tags(&self) -> bool {
        self.mode.has_tags()
    }

    /// Lays the blocks taken over the claims.
    pub(super) fn place(&self, claims: &VecDeque<Claim>) -> Vec<Placed> {
        place(&self.took, claims, self.mode)
    }

    fn promised_again(&mut self, more: Promise) {
        match &mut self.reserved {
            Some(reserved) => reserved.join(more),
            None => self.reserved = Some(more),
        }
    }

    /// Writes the blocks to their places. Without room they have to be there at once (FLIGHT-L6).
    pub(super) async fn send(&self, placed: &[Placed], flying: Option<Flying>) -> Result<()> {
        let _flying = flying.unwrap_or_else(|| {
            let blocks = placed.iter().map(|piece| piece.run.blocks as usize).sum();
            self.lane.overdraw(&self.fs, blocks)
        });
        let mut requests = Vec::new();
        let mut rest = placed;
        while let Some(first) = rest.first() {
            let mut run = first.run;
            let mut count = 1;
            for next in &rest[1..] {
                let joined = run.blocks + next.run.blocks;
                // On the device and among the blocks taken: a batch in place leaves blocks out.
                let follows = run.addr.offset(run.blocks.into()) == next.run.addr
                    && first.mode == next.mode
                    && first.first + run.blocks as usize == next.first;
                if !follows || joined > REQUEST_BLOCKS_MAX {
                    break;
                }
                run.blocks = joined;
                count += 1;
            }
            let slots = &self.took[first.first..first.first + run.blocks as usize];
            requests.push((run, gather(slots), first.mode));
            rest = &rest[count..];
        }
        let pool = &self.fs.pool;
        if requests.len() == 1 {
            let (run, data, mode) = requests.remove(0);
            return Ok(pool.write(run, data, Purpose::Data, mode).await?);
        }
        let writes = requests
            .into_iter()
            .map(|(run, data, mode)| pool.write(run, data, Purpose::Data, mode));
        let failed = join_all(writes).await.into_iter().filter_map(Result::err);
        gravest(failed).map_or(Ok(()), |error| Err(error.into()))
    }

    /// The bytes of a stretch, for a transaction to carry.
    pub(super) fn data_of(&self, placed: &Placed, skip: u32, blocks: u32) -> Bufs {
        let first = placed.first + skip as usize;
        gather(&self.took[first..first + blocks as usize])
    }
}

impl Drop for WritebackJob {
    fn drop(&mut self) {
        let mut state = self.inode.state();
        let mut wanting = 0;
        for (block, _) in &self.took {
            wanting += state.data.failed(*block, self.taken.id, self.in_place);
        }
        if let Some(mut reserved) = self.reserved.take().filter(|_| wanting > 0) {
            let blocks = wanting.min(reserved.blocks());
            state.data.add_reserved(reserved.split(blocks));
        }
        state.data.end_batch(self.taken.id);
        drop(state);
        self.inode.batch_ended.notify(usize::MAX);
    }
}

/// The error of a batch: that of memory that changed, if there is one, since nothing may make new
/// guards for it; a refused guard only if there is no other, since the batch is sent again then.
fn gravest(errors: impl Iterator<Item = PoolError>) -> Option<PoolError> {
    errors.min_by_key(|error| match error {
        error if !error.changed_blocks().is_empty() => 0,
        error if error.is_refused_guard() => 2,
        _ => 1,
    })
}

/// Lays the blocks taken over the claims, cut at chunks of the file and ends of claims.
fn place(took: &[(u64, Slot)], claims: &VecDeque<Claim>, mode: BlockMode) -> Vec<Placed> {
    let has_sums = mode.checksums == ChecksumMode::Item;
    let mut placed = Vec::with_capacity(took.len().div_ceil(CHUNK as usize) + claims.len());
    let mut first = 0;
    for claim in claims {
        let mut run = Some(claim.run());
        while let Some(left) = run {
            let at = took[first].0;
            let mut blocks = 1;
            while blocks < left.blocks {
                let Some((next, _)) = took.get(first + blocks as usize) else { break };
                if *next != at + u64::from(blocks) || next % CHUNK == 0 {
                    break;
                }
                blocks += 1;
            }
            let slots = &took[first..first + blocks as usize];
            let summed = if has_sums { slots } else { &[] };
            let sums = summed.iter().map(|(_, slot)| block_checksum(slot.bytes())).collect();
            placed.push(Placed { at, run: left.slice(0, blocks), sums, mode, first });
            first += blocks as usize;
            run = (blocks < left.blocks).then(|| left.slice(blocks, left.blocks - blocks));
        }
    }
    assert_eq!(first, took.len(), "every block has its place");
    placed
}

impl Placed {
    /// The content of some of its blocks, as their extent says it.
    pub(super) fn content(&self, skip: u32, blocks: u32) -> ExtentState {
        let birth = self.mode.birth;
        match self.mode.checksums {
            ChecksumMode::Item => {
                ExtentState::Written(self.sums[skip as usize..(skip + blocks) as usize].into())
            }
            ChecksumMode::Guard => ExtentState::Guarded { birth },
            ChecksumMode::Offload => ExtentState::Offloaded { birth },
            ChecksumMode::None => ExtentState::Unverified,
        }
    }
}

/// The buffers of consecutive blocks; whole ones are not copied.
pub(super) fn gather(slots: &[(u64, Slot)]) -> Bufs {
    let mut bufs = Bufs::with_capacity(slots.len());
    let mut rest = slots;
    while let Some((_, slot)) = rest.first() {
        let blocks = slot.buf.blocks();
        let whole = slot.index == 0
            && rest.len() >= blocks
            && rest[..blocks].iter().enumerate().all(|(n, (_, other))| {
                other.index as usize == n && other.buf.as_ptr() == slot.buf.as_ptr()
            });
        if whole {
            bufs.push(slot.buf.clone());
            rest = &rest[blocks..];
        } else {
            bufs.push(Buf::from_bytes(slot.bytes()));
            rest = &rest[1..];
        }
    }
    bufs
}

#[cfg(test)]
mod tests {
    use copyhold_device::pi::Kind;
    use copyhold_device::{Access, DeviceError, Verifier};

    use super::*;

    /// The requests of a batch are in the order of its places on the device, which is chance.
    #[test]
    fn the_error_of_a_batch_does_not_depend_on_the_order_of_its_requests() {
        let (name, block, blocks, why) = (|| "disk".to_string(), 3, 1, Purpose::Data);
        let (access, kind, by) = (Access::Write, Kind::Guard, Verifier::Device);
        let integrity =
            || DeviceError::Integrity { name: name(), block, blocks, why, access, kind, by };
        let refused = || PoolError::Device(integrity());
        let other = || PoolError::Device(DeviceError::Unprotected { name: name() });
        let changed =
            || PoolError::MemoryChanged { blocks: [0].into(), error: Box::new(integrity()) };
        let of = |errors: [PoolError; 3]| gravest(errors.into_iter()).unwrap();
        for errors in [[refused(), other(), changed()], [changed(), other(), refused()]] {
            assert_eq!(of(errors).changed_blocks(), [0]);
        }
        for errors in [[refused(), other(), refused()], [other(), refused(), refused()]] {
            let found = of(errors);
            assert!(matches!(found, PoolError::Device(DeviceError::Unprotected { .. })), "{found}");
        }
        assert!(of([refused(), refused(), refused()]).is_refused_guard());
        assert!(gravest(std::iter::empty()).is_none());
    }

    #[test]
    fn whole_buffers_are_sent_as_they_are() {
        let big = Buf::zeroed(3);
        let slot = |buf: &Buf, index| (0, Slot { buf: buf.clone(), index });
        let one = Buf::zeroed(1);
        let slots = [slot(&one, 0), slot(&big, 0), slot(&big, 1), slot(&big, 2), slot(&big, 1)];
        let bufs = gather(&slots);
        assert_eq!(bufs.iter().map(Buf::blocks).collect::<Vec<_>>(), [1, 3, 1]);
        assert_eq!(bufs[1].as_ptr(), big.as_ptr());
    }
}
