//! What a pool promises beyond surviving crashes, which is `copyhold-sim`'s business.

use std::sync::Arc;
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuard};
use copyhold_device::pi::Format;
use copyhold_device::sim::{Lasting, SimDevice, SimImage};
use copyhold_device::{Counters, Device, DeviceError, DynDevice, Expect, Geometry, Protect};
use copyhold_pool::{
    BlockMode, Cached, CreateOptions, KeptNodes, LaneClass, Limits, OpenOptions, Pool, PoolError,
    Tier, Transaction,
};
use copyhold_runtime::{BoxFuture, Rt, Runtime, SeededRuntime};
use copyhold_types::{
    Buf, Bufs, DeviceId, EpochId, Key, Kind, NodePtr, Pointer, Purpose, Run, TableId,
};
use futures_util::future::Either;

const TABLE: TableId = TableId(100);
const BLOCKS: u64 = 4096;

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn new() -> Machine {
        Machine::on(SimImage::empty(BLOCKS))
    }

    fn on(image: SimImage) -> Machine {
        let rt = SeededRuntime::new(1);
        let config = copyhold_device::sim::SimConfig::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        Machine { rt, disk }
    }

    fn new_pool(&self, limits: Limits) -> Arc<Pool> {
        self.new_pool_on(self.disk.clone(), limits)
    }

    fn new_pool_on(&self, device: DynDevice, limits: Limits) -> Arc<Pool> {
        let options = CreateOptions {
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(1024),
            node_bytes: Some(4096),
            partition_leaves: Some(8),
            ..CreateOptions::default()
        };
        let rt: Rt = self.rt.clone();
        self.rt.block_on(Pool::create(&rt, &device, &options)).expect("a pool is made");
        let options = OpenOptions { limits, ..OpenOptions::default() };
        self.rt.block_on(Pool::open(rt, device, options)).expect("it opens")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

async fn put(pool: &Arc<Pool>, n: u64) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    tx.put(TABLE, key(n), vec![n as u8; 40]);
    let credit = pool.admit(Tier::Write, 1, 64).await?;
    let txg = pool.apply(credit, tx)?;
    pool.commit(txg).await
}

/// Allocates `blocks` blocks under an item, and says where.
async fn allocate(pool: &Arc<Pool>, n: u64, blocks: u64) -> Result<Vec<Run>, PoolError> {
    let mut reserved = pool.reserve(blocks, Tier::Write).await?;
    let claims = pool.claim(LaneClass::Data, blocks, &mut reserved)?;
    let mut tx = Transaction::new();
    tx.put(TABLE, key(n), vec![1; 8]);
    let runs = claims.iter().map(|claim| claim.run()).collect();
    claims.into_iter().for_each(|claim| tx.allocate(claim));
    let credit = pool.admit(Tier::Write, tx.len(), 64).await?;
    pool.apply(credit, tx)?;
    Ok(runs)
}

async fn release(pool: &Arc<Pool>, n: u64, runs: Vec<Run>) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    tx.delete(TABLE, key(n));
    for run in runs {
        tx.release(Pointer { run, epoch: EpochId(1), origin: EpochId(1) });
    }
    let credit = pool.admit(Tier::Delete, tx.len(), 64).await?;
    pool.apply(credit, tx).map(drop)
}

async fn leaves(pool: &Arc<Pool>, table: TableId) -> Vec<NodePtr> {
    let mut found = Vec::new();
    for of in pool.tables().into_iter().filter(|of| of.id() == table) {
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| found.push(visit.ptr);
        of.for_each_node(pool.node_source(), true, &mut visit).await;
    }
    found
}

#[test]
fn flushing_everything_leaves_next_to_no_log() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits { delta_bytes: 64 << 10, ..Limits::default() });
    machine.rt.block_on(async {
        for n in 0..200 {
            put(&pool, n).await.expect("there is room");
        }
        pool.flush_all().await.expect("it flushes");
        assert!(pool.log_use().edits < 60, "{:?}", pool.log_use());
        for n in 0..200 {
            let found = pool.get(TABLE, key(n)).await.expect("it can be read");
            assert_eq!(found.as_deref(), Some(&[n as u8; 40][..]));
        }
        pool.close().await.expect("it closes");
    });
}

#[test]
fn an_idle_pool_marks_its_last_batch_once_and_writes_no_more() {
    let machine = Machine::new();
    let interval = Duration::from_millis(20);
    let limits = Limits { txg_interval: interval, mark_after: interval / 4, ..Limits::default() };
    let pool = machine.new_pool(limits);
    machine.rt.block_on(async {
        put(&pool, 1).await.expect("there is room");
        machine.rt.sleep(interval * 4).await;
        let before = pool.devices().counters();
        machine.rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(pool.devices().counters(), before);
    });
}

/// A disk that holds back some writes until it is told otherwise.
struct Slow {
    disk: DynDevice,
    holds: fn(Purpose) -> bool,
    gate: Arc<Semaphore>,
}

impl Device for Slow {
    fn id(&self) -> DeviceId {
        self.disk.id()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.disk.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.disk.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.disk.read_expecting(block, blocks, why, expect)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let (disk, gate) = (self.disk.clone(), self.gate.clone());
        if !(self.holds)(why) {
            return disk.write_protected(block, data, why, protect);
        }
        Box::pin(async move {
            gate.acquire().await.forget();
            disk.write_protected(block, data, why, protect).await
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.disk.flush()
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.disk.discard(block, blocks)
    }

    fn counters(&self) -> &Counters {
        self.disk.counters()
    }
}

/// R31: what a neighbour writes enters a txg when it is there, not before.
#[test]
fn a_commit_waits_for_nobody_elses_data() {
    let machine = Machine::new();
    let gate = Arc::new(Semaphore::new(0));
    let holds = |why| why == Purpose::Data;
    let slow = Arc::new(Slow { disk: machine.disk.clone(), holds, gate: gate.clone() });
    let pool = machine.new_pool_on(slow, Limits::default());
    let neighbour = pool.clone();
    machine.rt.block_on(async {
        let mut reserved = pool.reserve(8, Tier::Write).await.expect("there is room");
        let claims = pool.claim(LaneClass::Data, 8, &mut reserved).expect("it was reserved");
        let run = claims[0].run();
        let data = Buf::zeroed(run.blocks as usize).into();
        let written = Arc::new(Semaphore::new(0));
        let told = written.clone();
        machine.rt.spawn(Box::pin(async move {
            neighbour
                .write(run, data, Purpose::Data, BlockMode::PLAIN)
                .await
                .expect("it is written at last");
            told.add_permits(1);
        }));
        put(&pool, 1).await.expect("the commit went through");
        assert!(written.try_acquire().is_none(), "the neighbour still waits");
        gate.add_permits(1);
        written.acquire().await.forget();
    });
}

/// R19: where a node cannot be read, what had been placed already is given back.
#[test]
fn a_flush_that_fails_leaks_nothing() {
    let machine = Machine::new();
    let limits = Limits { node_cache_bytes: 0, ..Limits::default() };
    let pool = machine.new_pool(limits);
    machine.rt.block_on(async {
        for n in 0..600 {
            put(&pool, n).await.expect("there is room");
        }
        pool.flush_all().await.expect("it flushes");
        let nodes = leaves(&pool, TABLE).await;
        assert!(nodes.len() > 4);
        for run in nodes.last().expect("a leaf").runs() {
            machine.disk.rot(run.addr.block());
        }
        let before = pool.space().allocated;
        for n in 0..600 {
            put(&pool, n).await.expect("there is room");
        }
        let flushed = pool.flush_all().await;
        assert!(flushed.is_ok(), "one bad node is one bad table: {flushed:?}");
        machine.rt.sleep(Duration::from_secs(5)).await;
        let after = pool.space();
        // Some nodes of the other tables came and went.
        assert!(after.allocated <= before + 32, "{before} before, {after:?} after");
        assert_eq!(after.claimed, 0);
        pool.space_map().check();
    });
}

/// R20: a flush adds a few edits itself; what is promised for those does not pile up.
#[test]
fn flushing_what_is_flushed_keeps_no_more_and_more_space() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    machine.rt.block_on(async {
        put(&pool, 1).await.expect("there is room");
        for _ in 0..5 {
            pool.flush_all().await.expect("it flushes");
        }
        let before = pool.space().reserved;
        for _ in 0..50 {
            pool.flush_all().await.expect("it flushes");
        }
        let after = pool.space().reserved;
        assert!(after <= before + 8, "{before} blocks are promised before, {after} after");
    });
}

/// An idle pool flushes nothing, and must not seem full.
#[test]
fn a_commit_gives_back_what_was_promised_to_edits_that_were_replaced() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    machine.rt.block_on(async {
        let mut last = None;
        for _ in 0..2000 {
            let mut tx = Transaction::new();
            tx.put(TABLE, key(1), vec![1; 40]);
            let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
            last = Some(pool.apply(credit, tx).unwrap());
        }
        let before = pool.space().reserved;
        pool.commit(last.unwrap()).await.unwrap();
        let after = pool.space().reserved;
        assert!(before > 200 && after < 20, "{after} blocks of {before} are still promised");
    });
}

/// Deletions are edits like any other until they are flushed. A pool in use gathers them; an idle
/// one flushes, and then writes no more.
#[test]
fn an_idle_pool_flushes_until_little_is_promised() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    machine.rt.block_on(async {
        let most = pool.space().total / 64;
        for n in 0..3000 {
            let mut tx = Transaction::new();
            tx.put(TABLE, key(n), vec![1; 40]);
            let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
            pool.apply(credit, tx).unwrap();
            let mut tx = Transaction::new();
            tx.delete(TABLE, key(n));
            let credit = pool.admit(Tier::Delete, 1, 64).await.unwrap();
            pool.apply(credit, tx).unwrap();
        }
        pool.commit(pool.open_txg()).await.unwrap();
        let before = pool.space().reserved;
        machine.rt.sleep(Duration::from_secs(20)).await;
        let after = pool.space().reserved;
        assert!(before > 2 * most && after <= most, "{after} of {before} blocks, {most} at most");
        let written = pool.devices().counters().purposes;
        machine.rt.sleep(Duration::from_secs(600)).await;
        assert_eq!(pool.devices().counters().purposes, written, "it is at rest");
    });
}

/// A table that cannot be dropped keeps its promise: nothing that an idle pool does reduces that,
/// and its edits do not keep the log.
#[test]
fn an_idle_pool_rests_where_a_promise_cannot_be_reduced() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits { node_cache_bytes: 0, ..Limits::default() });
    let put = |n: u64| {
        let mut tx = Transaction::new();
        tx.put(TABLE, key(n), vec![1; 40]);
        tx
    };
    machine.rt.block_on(async {
        for round in 0..2 {
            for n in 0..2000 {
                let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
                pool.apply(credit, put(n)).unwrap();
            }
            if round == 0 {
                pool.flush_all().await.unwrap();
            }
        }
        for (_, descriptor) in pool.table(TABLE).descriptors() {
            for run in descriptor.root.unwrap().runs() {
                machine.disk.break_block(run.addr.block(), 5, Lasting::Forever);
            }
        }
        pool.drop_table(TABLE).await.expect_err("its root cannot be read");
        machine.rt.sleep(Duration::from_secs(20)).await;
        let written = pool.devices().counters().purposes;
        machine.rt.sleep(Duration::from_secs(600)).await;
        assert_eq!(pool.devices().counters().purposes, written, "it is at rest");
        // The log is not kept for it: many laps of the ring.
        for n in 0..20_000 {
            let mut tx = Transaction::new();
            tx.put(TableId(101), key(n % 100), vec![n as u8; 2000]);
            let credit = pool.admit(Tier::Write, 1, 2100).await.unwrap();
            pool.apply(credit, tx).unwrap();
        }
    });
}

#[test]
fn what_was_promised_to_edits_that_were_replaced_is_given_back() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    machine.rt.block_on(async {
        for _ in 0..2000 {
            let mut tx = Transaction::new();
            tx.put(TABLE, key(1), vec![1; 40]);
            let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
            pool.apply(credit, tx).unwrap();
        }
        let before = pool.space().reserved;
        pool.flush_all().await.unwrap();
        let after = pool.space().reserved;
        // 2,000 edits were promised 480 bytes each, and one of them has reached a base.
        assert!(before > 200 && after < 20, "{after} blocks of {before} are still promised");
    });
}

/// R22: space that a reader holds back is on its way, too.
#[test]
fn a_full_pool_waits_for_its_readers() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    let reader = pool.clone();
    let rt = machine.rt.clone();
    machine.rt.block_on(async {
        let most = pool.space().available() - 64;
        let runs = allocate(&pool, 1, most).await.expect("there is room");
        let pin = reader.pin();
        release(&pool, 1, runs).await.expect("deleting works");
        let sleep = rt.sleep(Duration::from_millis(500));
        machine.rt.spawn(Box::pin(async move {
            sleep.await;
            drop(pin);
        }));
        let reserved = pool.reserve(most / 2, Tier::Write).await;
        assert!(reserved.is_ok(), "{:?}", reserved.err());
    });
}

/// R22: a flush that waits, since the host is full, keeps nothing that others free meanwhile.
#[test]
fn a_flush_that_waits_for_the_host_keeps_nobodys_space() {
    let machine = Machine::new();
    let holds = |why| !matches!(why, Purpose::Data | Purpose::Log | Purpose::Label);
    let gate = Arc::new(Semaphore::new(1000));
    let slow = Arc::new(Slow { disk: machine.disk.clone(), holds, gate: gate.clone() });
    let pool = machine.new_pool_on(slow, Limits::default());
    let rt = machine.rt.clone();
    machine.rt.block_on(async {
        let most = pool.space().available() - 64;
        let runs = allocate(&pool, 1, most).await.expect("there is room");
        while gate.try_acquire().map(SemaphoreGuard::forget).is_some() {}
        let flushing = pool.clone();
        machine.rt.spawn(Box::pin(async move { drop(flushing.flush_all().await) }));
        rt.sleep(Duration::from_millis(100)).await;
        release(&pool, 1, runs).await.expect("deleting works");
        let reserved = pool.reserve(most / 2, Tier::Write);
        let long = rt.sleep(Duration::from_secs(60));
        futures_util::pin_mut!(reserved, long);
        match futures_util::future::select(reserved, long).await {
            Either::Left((reserved, _)) => drop(reserved.expect("it has been freed")),
            Either::Right(_) => panic!("it waits for the flush"),
        }
    });
}

/// R22: space that a txg frees while the host is full is waited for as long as the host is full.
#[test]
fn nobody_is_refused_for_space_that_waits_for_the_host() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    let rt = machine.rt.clone();
    machine.rt.block_on(async {
        let most = pool.space().available() - 64;
        let runs = allocate(&pool, 1, most).await.expect("there is room");
        let never_written = *runs.iter().max_by_key(|run| run.blocks).expect("a run");
        let blocks = never_written.blocks;
        // Enough for a flush.
        machine.disk.set_host_free(Some(u64::from(blocks) - 1));
        let (writer, pin) = (pool.clone(), pool.pin());
        machine.rt.spawn(Box::pin(async move {
            let data = Buf::zeroed(blocks as usize).into();
            let written = writer.write(never_written, data, Purpose::Data, BlockMode::PLAIN).await;
            written.expect("the host has room again");
            drop(pin);
        }));
        let disk = machine.disk.clone();
        machine.rt.spawn(Box::pin(async move {
            rt.sleep(Duration::from_secs(20)).await;
            disk.set_host_free(None);
        }));
        release(&pool, 1, runs).await.expect("deleting works");
        let reserved = pool.reserve(most / 2, Tier::Write).await;
        assert!(reserved.is_ok(), "{:?}", reserved.err());
    });
}

#[test]
fn joins_are_counted_and_those_that_have_to_wait_are_timed() {
    let calm = Machine::new();
    let pool = calm.new_pool(Limits::default());
    let before = pool.join_wait();
    calm.rt.block_on(async {
        for n in 0..10 {
            put(&pool, n).await.unwrap();
        }
    });
    let waits = pool.join_wait();
    assert!(waits.count >= before.count + 10, "{waits:?}");
    assert_eq!((waits.waited, waits.total, waits.max, waits.p99), (0, 0, 0, 0));

    let busy = Machine::new();
    let pool = busy.new_pool(Limits { delta_bytes: 16 << 10, ..Limits::default() });
    busy.rt.block_on(async {
        for n in 0..3000 {
            let mut tx = Transaction::new();
            tx.put(TABLE, key(n), vec![n as u8; 40]);
            let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
            pool.apply(credit, tx).unwrap();
        }
    });
    let waits = pool.join_wait();
    assert!(waits.count >= 3000 && (1..3000).contains(&waits.waited), "{waits:?}");
    assert!(waits.max > 0 && waits.max <= waits.total, "{waits:?}");
    assert!(waits.p50 <= waits.p99 && waits.p99 <= waits.max, "{waits:?}");
}

/// Waits between admission and joining, as writers do whose data is on its way.
async fn put_late(pool: &Arc<Pool>, n: u64) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    let value: Vec<u8> = (0..2000_u64).map(|at| (n * 31 + at * at / 7) as u8).collect();
    tx.put(TABLE, key(n % 50), value);
    let credit = pool.admit(Tier::Write, 1, 2048).await?;
    pool.runtime().sleep(Duration::from_millis(1)).await;
    pool.apply(credit, tx).map(drop)
}

#[test]
fn as_many_are_admitted_at_once_as_the_log_has_room_for() {
    let machine = Machine::on(SimImage::empty(8 * BLOCKS));
    let pool = machine.new_pool(Limits::default());
    machine.rt.block_on(async {
        // The ring has 1 MiB.
        let puts = (0..2000).map(|n| put_late(&pool, n));
        for put in futures_util::future::join_all(puts).await {
            put.expect("it waits for room in the log");
        }
        pool.close().await.expect("it closes");
    });
}

#[test]
fn a_table_that_cannot_be_flushed_makes_writers_wait_and_does_not_fill_the_log() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits::default());
    let stuck = TableId(101);
    machine.rt.block_on(async {
        let mut tx = Transaction::new();
        tx.put(stuck, key(1), vec![1; 40]);
        let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
        pool.apply(credit, tx).unwrap();
        pool.table(stuck).retire();
        let waits = async {
            for n in 0.. {
                put(&pool, n % 50).await.expect("the pool goes on");
            }
        };
        let long = machine.rt.sleep(Duration::from_secs(600));
        futures_util::pin_mut!(waits, long);
        futures_util::future::select(waits, long).await;
        let log = pool.log_use();
        assert!(log.live_blocks >= log.ring_blocks / 2, "writers waited for nothing: {log:?}");
        assert!(log.live_blocks < log.ring_blocks * 3 / 4, "{log:?}");
        drop(pool.reserve(1, Tier::Internal).await.expect("it has not stopped"));
    });
}

/// A decision that must not wait ends, though the cache forgets each node at once.
#[test]
fn kept_nodes_answer_look_ups_without_a_cache() {
    let machine = Machine::new();
    let pool = machine.new_pool(Limits { node_cache_bytes: 0, ..Limits::default() });
    machine.rt.block_on(async {
        for n in 0..600 {
            put(&pool, n).await.expect("there is room");
        }
        pool.flush_all().await.expect("it flushes");
        assert!(leaves(&pool, TABLE).await.len() > 4);
        let (range, kept) = ((Key::MIN, Key::MAX), KeptNodes::default());
        assert_eq!(kept.range_cached(&pool, TABLE, range, 600), Cached::Unknown);
        kept.range(&pool, TABLE, range, 600).await.unwrap();
        let Cached::Known(items) = kept.range_cached(&pool, TABLE, range, 600) else {
            panic!("all nodes have been read");
        };
        assert_eq!(items.len(), 600);
        assert_eq!(pool.range_cached(TABLE, Key::MIN, Key::MAX, 600), Cached::Unknown);
    });
}
