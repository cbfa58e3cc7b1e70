//! A client of a pool: its operations, and its checks while it lives.

use std::sync::Arc;
use std::time::Duration;

use copyhold_format::block_checksum;
use copyhold_format::item::{EXTENT, Extent, ExtentState};
use copyhold_pool::{
    BlockMode, Claim, Condition, Credit, IdSpace, LaneClass, Pool, PoolError, Tier, Transaction,
};
use copyhold_runtime::FifoMutexGuard;
use copyhold_types::{Bufs, EpochId, Key, Pointer, Purpose, Run, SubvolId};

use super::model::{Changes, ITEM, OBJECTS, Shared, Stored, TABLE, content, counter};
use crate::dice::Dice;

/// Blocks whose deletion makes room for half as many, with what tables take for both.
const BLOCKS_FREED: u64 = 64;
const EPOCH: EpochId = EpochId(1);
/// Edits of one transaction, at most.
const EDITS: u64 = 12;
/// Bytes that such a transaction may put, and a large one, which takes several blocks of the log.
const EDIT_BYTES: usize = 4096;
const LARGE_EDIT_BYTES: usize = 12 * 4096;
const OFFSETS: u64 = 200;

pub(crate) struct Client {
    id: u64,
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    dice: Dice,
    /// Errors are part of this life.
    forgiving: bool,
    /// The transaction under way is a large one.
    large: bool,
}

impl Client {
    pub(crate) fn new(
        id: u64,
        pool: &Arc<Pool>,
        shared: &Arc<Shared>,
        dice: Dice,
        forgiving: bool,
    ) -> Client {
        let (pool, shared) = (pool.clone(), shared.clone());
        Client { id, pool, shared, dice, forgiving, large: false }
    }

    /// Does `operations` things, or fewer if the pool stops.
    pub(crate) async fn live(mut self, operations: u64) {
        for _ in 0..operations {
            if let Err(error) = self.do_something().await {
                if !self.forgiving {
                    panic!("client {}: {error}; {:?}", self.id, self.pool.space());
                }
                if matches!(error, PoolError::Stopped { .. }) {
                    return;
                }
            }
        }
    }

    async fn do_something(&mut self) -> Result<(), PoolError> {
        match self.dice.below(100) {
            0..60 => self.transact().await,
            60..75 => self.read_slowly().await,
            75..82 => self.look_up().await,
            82..87 => self.scan().await,
            87..91 => self.claim_and_forget().await,
            91..94 => self.rest().await,
            94..96 => self.pool.flush_all().await,
            96..97 => self.pool.trim(0..u64::MAX, 1).await.map(drop),
            _ => self.take_id().await,
        }
    }

    // -- changing -----------------------------------------------------------

    /// Changes some keys of one or two objects, which it locks.
    pub(crate) async fn transact(&mut self) -> Result<(), PoolError> {
        let (pool, shared) = (self.pool.clone(), self.shared.clone());
        self.large = self.dice.one_in(12);
        // The order of the other steps does not matter, as long as joining comes last (rule R1).
        let early = if self.dice.one_in(2) { self.admit(Tier::Write).await? } else { None };
        let (a, b) = (self.dice.below(OBJECTS), self.dice.below(OBJECTS));
        let mut locked: Vec<(u64, FifoMutexGuard<'_>)> = Vec::new();
        for object in [a.min(b), a.max(b)] {
            if locked.last().is_none_or(|(last, _)| *last != object) {
                locked.push((object, shared.objects[object as usize].lock().await));
            }
        }
        let Some((mut tx, mut changes)) = self.collect(&locked).await? else {
            drop(locked);
            return self.make_room().await;
        };
        let credit = match early {
            Some(credit) => Some(credit),
            None => self.admit(Tier::Write).await?,
        };
        let Some(credit) = credit else {
            drop(tx);
            drop(locked);
            return self.make_room().await;
        };
        let (txg, n) = {
            let mut world = shared.world.lock();
            let n = world.next();
            changes.push((counter(self.id), Some(Stored::plain(n.to_le_bytes().to_vec()))));
            tx.put(TABLE, counter(self.id), n.to_le_bytes().to_vec());
            let txg = pool.apply(credit, tx)?;
            assert_eq!(world.push(txg, changes), n);
            (txg, n)
        };
        drop(locked);
        if self.dice.one_in(6) {
            pool.commit(txg).await?;
            shared.world.lock().sync(txg, n);
        }
        Ok(())
    }

    /// Nothing, when the pool is full.
    async fn admit(&self, tier: Tier) -> Result<Option<Credit>, PoolError> {
        let bytes = if self.large { LARGE_EDIT_BYTES } else { EDIT_BYTES };
        full_is_none(self.pool.admit(tier, EDITS as usize * 4, bytes).await)
    }

    /// Edits of keys in locked objects. Nothing, when there was no room, which it has made.
    async fn collect(
        &mut self,
        locked: &[(u64, FifoMutexGuard<'_>)],
    ) -> Result<Option<(Transaction, Changes)>, PoolError> {
        let mut tx = Transaction::new();
        let mut changes = Changes::new();
        for _ in 0..self.dice.within(1..EDITS) {
            let object = 1 + locked[self.dice.below(locked.len() as u64) as usize].0;
            let kind = if self.dice.one_in(3) { ITEM } else { EXTENT };
            // Some keys are changed again and again, in one txg.
            let hot = self.dice.one_in(2);
            let offset = if hot { self.dice.below(4) } else { self.dice.magnitude(8) % OFFSETS };
            let key = Key::new(object, kind, offset);
            if changes.iter().any(|(other, _)| *other == key) {
                continue;
            }
            let old = self.shared.world.lock().now.get(&key).cloned();
            let new = match &old {
                Some(_) if self.dice.one_in(3) => None,
                Some(old) if self.dice.one_in(4) && kind == EXTENT => self.shorten(key, old),
                _ if kind == EXTENT => match self.write_extent(&mut tx).await? {
                    Some(new) => Some(new),
                    None => return Ok(None),
                },
                _ => {
                    let len = self.dice.magnitude(if self.large { 12 } else { 8 }) as usize;
                    Some(Stored::plain(self.dice.bytes(len)))
                }
            };
            release_replaced(&mut tx, key, old.as_ref(), new.as_ref());
            match &new {
                Some(stored) => tx.put(TABLE, key, stored.value.clone()),
                None => tx.delete(TABLE, key),
            }
            changes.push((key, new));
        }
        Ok(Some((tx, changes)))
    }

    /// The first blocks of an extent; the rest is given up.
    fn shorten(&mut self, key: Key, old: &Stored) -> Option<Stored> {
        let extent = old.extent(key).expect("an extent's key");
        let keep = self.dice.below(u64::from(extent.blocks())) as u32;
        (keep > 0)
            .then(|| Stored { value: extent.slice(0, keep).encode().to_vec(), stamp: old.stamp })
    }

    /// New data somewhere: written before, or travelling with the transaction.
    async fn write_extent(&mut self, tx: &mut Transaction) -> Result<Option<Stored>, PoolError> {
        let blocks = 1 + self.dice.magnitude(5) % 32;
        let reserved = full_is_none(self.pool.reserve(blocks, Tier::Write).await)?;
        let Some(mut reserved) = reserved else { return Ok(None) };
        let class = if self.dice.one_in(4) { LaneClass::Sync } else { LaneClass::Data };
        let claims = self.pool.claim(class, blocks, &mut reserved)?;
        let claim = claims.into_iter().next().expect("what was reserved is there");
        let run = claim.run();
        self.unspoil(run);
        let stamp = self.dice.number();
        let unwritten = self.dice.one_in(10);
        let data: Bufs = (0..run.blocks).map(|index| content(stamp, index)).collect();
        let state = match unwritten {
            true => ExtentState::Unwritten,
            false => ExtentState::Written(data.iter().map(|block| block_checksum(block)).collect()),
        };
        if !unwritten && self.dice.one_in(4) {
            tx.attach(run, data);
        } else if !unwritten {
            self.pool.write(run, data, Purpose::Data, BlockMode::PLAIN).await?;
        }
        tx.allocate(claim);
        let extent = Extent { pointer: Pointer { run, epoch: EPOCH, origin: EPOCH }, state };
        Ok(Some(Stored { value: extent.encode().to_vec(), stamp }))
    }

    fn unspoil(&self, run: Run) {
        let mut world = self.shared.world.lock();
        for block in run.addr.block()..run.end() {
            world.spoiled.remove(&block);
        }
    }

    /// Puts extents under unused keys until only so many blocks are left.
    pub(crate) async fn fill(&mut self, left: u64) -> Result<(), PoolError> {
        let ballast = Key::new(OBJECTS + 1, EXTENT, 0)..Key::new(OBJECTS + 1, EXTENT, u64::MAX);
        let last =
            self.shared.world.lock().now.range(ballast).next_back().map(|(key, _)| key.offset);
        for offset in last.map_or(0, |last| last + 1).. {
            if self.pool.space().available() < left {
                return Ok(());
            }
            let mut tx = Transaction::new();
            let Some(credit) = self.admit(Tier::Write).await? else { return Ok(()) };
            let Some(new) = self.write_extent(&mut tx).await? else { return Ok(()) };
            let key = Key::new(OBJECTS + 1, EXTENT, offset);
            tx.put(TABLE, key, new.value.clone());
            let mut world = self.shared.world.lock();
            let n = world.next();
            let stored = Stored::plain(n.to_le_bytes().to_vec());
            tx.put(TABLE, counter(self.id), stored.value.clone());
            let txg = self.pool.apply(credit, tx)?;
            world.push(txg, vec![(key, Some(new)), (counter(self.id), Some(stored))]);
        }
        Ok(())
    }

    /// Deletes a good part of an object, which must always be possible (rule R21).
    async fn make_room(&mut self) -> Result<(), PoolError> {
        let object = self.dice.below(OBJECTS);
        let shared = self.shared.clone();
        let locked = shared.objects[object as usize].lock().await;
        let mut tx = Transaction::new();
        let mut changes = Changes::new();
        let state = shared.world.lock().now.clone();
        for (key, old) in state.iter().filter(|(key, _)| key.object == object + 1).take(40) {
            tx.delete(TABLE, *key);
            release_replaced(&mut tx, *key, Some(old), None);
            changes.push((*key, None));
        }
        changes.push((counter(self.id), None));
        let credit = self.pool.admit(Tier::Delete, 100, 64).await?;
        let mut world = shared.world.lock();
        let n = world.next();
        let stored = Stored::plain(n.to_le_bytes().to_vec());
        tx.put(TABLE, counter(self.id), stored.value.clone());
        *changes.last_mut().expect("the counter") = (counter(self.id), Some(stored));
        let txg = self.pool.apply(credit, tx)?;
        assert_eq!(world.push(txg, changes), n);
        drop(locked);
        Ok(())
    }

    /// From whatever state: the pool is filled, an extent is deleted, and what that frees is
    /// written (R21). Whether there was enough to delete.
    pub(crate) async fn delete_and_write(&mut self) -> Result<bool, PoolError> {
        self.fill(0).await?;
        let filled = |key: &Key| key.object == OBJECTS + 1 && key.kind == EXTENT;
        let state = self.shared.world.lock().now.clone();
        let mut tx = Transaction::new();
        let mut freed = 0;
        for (key, old) in state.iter().filter(|(key, _)| filled(key)) {
            if freed >= BLOCKS_FREED {
                break;
            }
            freed += old.extent(*key).map_or(0, |extent| u64::from(extent.blocks()));
            tx.delete(TABLE, *key);
            release_replaced(&mut tx, *key, Some(old), None);
        }
        if freed < BLOCKS_FREED {
            return Ok(false);
        }
        let credit = self.pool.admit(Tier::Delete, tx.len(), 64).await?;
        self.pool.apply(credit, tx)?;
        let mut reserved = self.pool.reserve(BLOCKS_FREED / 2, Tier::Write).await?;
        let claims = self.pool.claim(LaneClass::Data, BLOCKS_FREED / 2, &mut reserved)?;
        let mut tx = Transaction::new();
        claims.into_iter().for_each(|claim| tx.allocate(claim));
        let credit = self.pool.admit(Tier::Write, tx.len(), 64).await?;
        self.pool.apply(credit, tx).map(|_| true)
    }

    /// Takes space, writes there, and never says what for (rule R19).
    async fn claim_and_forget(&mut self) -> Result<(), PoolError> {
        let blocks = 1 + self.dice.magnitude(5);
        let reserved = full_is_none(self.pool.reserve(blocks, Tier::Write).await)?;
        let Some(mut reserved) = reserved else { return self.make_room().await };
        let claims = self.pool.claim(LaneClass::Data, blocks, &mut reserved)?;
        for run in claims.iter().map(Claim::run) {
            self.unspoil(run);
            let junk = (0..run.blocks).map(|index| content(u64::MAX, index)).collect();
            self.pool.write(run, junk, Purpose::Data, BlockMode::PLAIN).await?;
        }
        self.pause(20).await;
        Ok(())
    }

    /// Numbers are never given out twice (rule R9).
    async fn take_id(&mut self) -> Result<(), PoolError> {
        let id = self.pool.next_id(IdSpace::Inode(SubvolId::ROOT)).await?;
        let fresh = self.shared.world.lock().ids.insert(id);
        assert!(fresh, "R9: number {id} was given out before");
        Ok(())
    }

    // -- looking ------------------------------------------------------------

    /// Looks up a key, waits, and reads the data that it found: under its pin the data is unchanged
    /// (rule R3).
    async fn read_slowly(&mut self) -> Result<(), PoolError> {
        let key = Key::new(1 + self.dice.below(OBJECTS), EXTENT, 0);
        let to = Key::new(key.object, EXTENT, OFFSETS);
        let pin = self.pool.pin();
        let found = self.pool.range(TABLE, key, to, 16).await?;
        let Some((key, value)) = found.get(self.dice.below(16) as usize) else { return Ok(()) };
        let extent = Extent::parse(value).expect("items are what was put");
        let bits = self.dice.pick(&[20, 24, 28]);
        self.pause(bits).await;
        let ExtentState::Written(sums) = &extent.state else { return Ok(()) };
        let run = extent.pointer.run;
        let data = self.pool.read(run, Condition::Nothing, Purpose::Data, None).await?;
        drop(pin);
        let world = self.shared.world.lock();
        let block = run.addr.block();
        // Data that a failed flush has lost may be missing; it was never synced.
        let stopped = self.forgiving && self.pool.reserve_now(0, Tier::Internal).is_err();
        for (i, (bytes, sum)) in data.chunks(copyhold_types::BLOCK_BYTES).zip(sums).enumerate() {
            let right = block_checksum(bytes) == *sum;
            let excused = stopped || world.spoiled.contains(&(block + i as u64));
            assert!(right || excused, "R3: {key} was read from {run:?}, block {i} is another's");
        }
        Ok(())
    }

    /// Under its lock a key has what was last put there.
    async fn look_up(&mut self) -> Result<(), PoolError> {
        let object = self.dice.below(OBJECTS);
        let _lock = self.shared.objects[object as usize].lock().await;
        let kind = self.dice.pick(&[ITEM, EXTENT]);
        let key = Key::new(object + 1, kind, self.dice.magnitude(8) % OFFSETS);
        let found = self.pool.get(TABLE, key).await?;
        let world = self.shared.world.lock();
        let expected = world.now.get(&key).map(|stored| &stored.value[..]);
        assert_eq!(found.as_deref(), expected, "a look-up of {key}");
        Ok(())
    }

    async fn scan(&mut self) -> Result<(), PoolError> {
        let object = self.dice.below(OBJECTS);
        let _lock = self.shared.objects[object as usize].lock().await;
        let [from, to] = [1, 2].map(|next| Key { object: object + next, ..Key::MIN });
        let found = self.pool.range(TABLE, from, to, usize::MAX).await?;
        let world = self.shared.world.lock();
        let expected = world.now.range(from..to);
        let same = found.iter().map(|(key, value)| (key, &value[..]));
        assert!(same.eq(expected.map(|(key, stored)| (key, &stored.value[..]))), "a scan");
        Ok(())
    }

    /// Does nothing for a moment, or for so long that timers fire.
    async fn rest(&mut self) -> Result<(), PoolError> {
        let bits = self.dice.pick(&[20, 26, 33]);
        self.pause(bits).await;
        Ok(())
    }

    async fn pause(&mut self, bits: u64) {
        let nanos = self.dice.magnitude(bits);
        self.pool.runtime().sleep(Duration::from_nanos(nanos)).await;
    }
}

/// Gives up the blocks of an extent that what replaces it does not have.
fn release_replaced(tx: &mut Transaction, key: Key, old: Option<&Stored>, new: Option<&Stored>) {
    let Some(Extent { pointer, .. }) = old.and_then(|old| old.extent(key)) else { return };
    let kept = new.and_then(|new| new.extent(key)).map(|new| new.pointer.run);
    let kept = kept.filter(|run| run.addr == pointer.run.addr).map_or(0, |run| run.blocks);
    if kept < pointer.run.blocks {
        let run = pointer.run.slice(kept, pointer.run.blocks - kept);
        tx.release(Pointer { run, ..pointer });
    }
}

fn full_is_none<T>(result: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(PoolError::Full { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
