//! Both copies of a space map answer EIO, for a moment, for a mount, or until it is read again: no
//! space is lost by that.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimConfig, SimDevice, SimImage};
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, Tier, Transaction, end_txg, flush_figures,
};
use copyhold_runtime::{Rt, Runtime, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, Purpose, Run, TableId};
use futures_util::future::{Either, select};

use crate::machine::{allocate, free};

const BLOCKS: u64 = 8192;

/// A pool, and what is allocated in it.
struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    runs: Vec<Run>,
    /// Where the first map is.
    map: Vec<Run>,
    /// Free blocks.
    free: u64,
}

impl Machine {
    /// 1100 blocks are settled in a map, ten more only in the log.
    fn new() -> Machine {
        let rt = SeededRuntime::new(1);
        let disk = disk(&rt, SimImage::empty(BLOCKS));
        let device: DynDevice = disk.clone();
        let options = CreateOptions {
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(4096),
            ..CreateOptions::default()
        };
        rt.block_on(Pool::create(&(rt.clone() as Rt), &device, &options)).unwrap();
        let mut machine = Machine { rt, disk, runs: Vec::new(), map: Vec::new(), free: 0 };
        let pool = machine.open();
        machine.rt.clone().block_on(async {
            machine.runs = allocate(&pool, 1100).await;
            pool.flush_all().await.unwrap();
            allocate(&pool, 10).await;
            machine.free = pool.space().free;
            let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, 100).await.unwrap();
            let map = items.iter().find(|(key, _)| key.kind == METASLAB).unwrap();
            machine.map = Descriptor::parse(&map.1).unwrap().map.unwrap().runs().collect();
        });
        drop(pool);
        machine
    }

    fn open(&self) -> Arc<Pool> {
        self.open_with(Limits::default())
    }

    fn open_with(&self, limits: Limits) -> Arc<Pool> {
        let device = self.disk.clone() as DynDevice;
        let options = OpenOptions { limits, ..OpenOptions::default() };
        self.rt.block_on(Pool::open(self.rt.clone() as Rt, device, options)).unwrap()
    }

    /// Every second block of them.
    fn holes(&self) -> Vec<Run> {
        let blocks = self.runs.iter().flat_map(|run| (0..run.blocks).map(|n| run.slice(n, 1)));
        blocks.step_by(2).collect()
    }

    /// The power fails. The disk comes back sound.
    fn switch_on_again(&mut self) {
        let image = self.disk.crash(1);
        self.rt.drop_tasks();
        self.disk = disk(&self.rt, image);
    }

    fn break_map(&self, lasting: Lasting) {
        for run in &self.map {
            self.disk.break_block(run.addr.block(), 5, lasting);
        }
    }

    fn settle(&self, pool: &Arc<Pool>) {
        self.rt.block_on(async {
            pool.flush_all().await.unwrap();
            pool.flush_all().await.unwrap();
        });
        pool.space_map().check();
    }

    fn free_all(&self, pool: &Arc<Pool>) {
        self.rt.block_on(free(pool, &self.runs));
        self.settle(pool);
    }

    /// All of the 1100 blocks are free; what else was written took a few.
    fn assert_freed(&self, pool: &Arc<Pool>) {
        let free = pool.space().free;
        assert!(free > self.free + 800, "{} blocks were free, and now {free}", self.free);
    }
}

fn disk(rt: &Arc<SeededRuntime>, image: SimImage) -> Arc<SimDevice> {
    SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1))
}

#[test]
fn an_error_that_passes_costs_nothing() {
    let mut machine = Machine::new();
    machine.switch_on_again();
    machine.break_map(Lasting::Once);
    let pool = machine.open();
    assert_eq!(pool.space_map().set_aside(), []);
    machine.free_all(&pool);
    machine.assert_freed(&pool);
}

/// STOCK-M2: passes write the other maps, and the log does not wait for this one.
#[test]
fn in_stock_mode_a_map_that_cannot_be_read_is_left_out() {
    let mut machine = Machine::new();
    machine.switch_on_again();
    machine.break_map(Lasting::Forever);
    let pool = machine.open_with(Limits { space_log: false, ..Limits::default() });
    machine.rt.block_on(async {
        free(&pool, &machine.runs).await;
        for txg in 1..=100 {
            allocate(&pool, 1).await;
            end_txg(&pool).await;
            let stock = flush_figures(&pool).stock.unwrap();
            // A txg writes no map while the log is full.
            let written = stock.maps + stock.single;
            assert!(stock.txgs == txg && written >= txg && stock.passes < 8 * txg, "{stock:?}");
        }
    });
    assert!(pool.log_use().live_blocks < 50, "{:?}", pool.log_use());
    assert_eq!(pool.space_map().set_aside().len(), 1);
    drop(pool);
    machine.switch_on_again();
    let pool = machine.open();
    machine.settle(&pool);
    machine.assert_freed(&pool);
}

#[test]
fn an_error_that_lasts_for_a_mount_costs_nothing_afterwards() {
    let mut machine = Machine::new();
    machine.switch_on_again();
    machine.break_map(Lasting::Forever);
    let pool = machine.open();
    assert_eq!(pool.space_map().set_aside().len(), 1);
    machine.free_all(&pool);
    // The log does not wait for the map.
    for _ in 0..100 {
        machine.rt.block_on(allocate(&pool, 1));
    }
    machine.settle(&pool);
    assert!(pool.log_use().live_blocks < 50, "{:?}", pool.log_use());
    assert_eq!(pool.space_map().set_aside().len(), 1);
    drop(pool);
    machine.switch_on_again();
    let pool = machine.open();
    assert_eq!(pool.space_map().set_aside(), []);
    machine.settle(&pool);
    machine.assert_freed(&pool);
}

#[test]
fn a_map_is_used_as_soon_as_it_can_be_read() {
    let mut machine = Machine::new();
    machine.switch_on_again();
    machine.break_map(Lasting::Forever);
    let pool = machine.open();
    machine.free_all(&pool);
    assert_eq!(pool.space_map().set_aside().len(), 1);
    machine.break_map(Lasting::Once);
    machine.settle(&pool);
    machine.settle(&pool);
    assert_eq!(pool.space_map().set_aside(), []);
    machine.assert_freed(&pool);
    drop(pool);
    machine.switch_on_again();
    machine.assert_freed(&machine.open());
}

/// Puts and flushes again and again; the blocks of the log that were written meanwhile.
fn flush_often(machine: &Machine, pool: &Arc<Pool>) -> u64 {
    let written = || pool.devices().counters().purposes[Purpose::Log as usize].written_bytes / 4096;
    let before = written();
    for n in 0..100 {
        machine.rt.block_on(async {
            let mut tx = Transaction::new();
            tx.put(TableId(100), Key::new(1, Kind(40), 0), u64::to_le_bytes(n).to_vec());
            let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
            pool.apply(credit, tx).unwrap();
            pool.flush_all().await.unwrap();
        });
    }
    written() - before
}

#[test]
fn edits_without_a_map_are_logged_again_now_and_then_and_not_by_each_flush() {
    let mut written = Vec::new();
    for lasting in [None, Some(Lasting::Forever)] {
        let mut machine = Machine::new();
        machine.switch_on_again();
        lasting.into_iter().for_each(|lasting| machine.break_map(lasting));
        let pool = machine.open();
        // More freed runs than the 512 that one transaction carries.
        let holes = machine.holes();
        assert_eq!(holes.len(), 550);
        machine.rt.block_on(free(&pool, &holes));
        written.push(flush_often(&machine, &pool));
        let live = pool.log_use().live_blocks;
        assert!(live < 100, "the log moves on: {live} blocks");
    }
    let [whole, missing] = written[..] else { unreachable!() };
    assert!(missing < whole + whole / 4, "{missing} blocks of log, {whole} with the map");
}

/// No flush makes them fewer: they count for no limit of the log's edits.
#[test]
fn many_edits_without_a_map_keep_nobody_waiting_and_leave_an_idle_pool_at_rest() {
    for replay_edits in [400, 680, 100_000] {
        let mut machine = Machine::new();
        machine.switch_on_again();
        machine.break_map(Lasting::Forever);
        let pool = machine.open_with(Limits { replay_edits, ..Limits::default() });
        let rt = machine.rt.clone();
        let freed = async {
            for holes in machine.holes().chunks(50) {
                free(&pool, holes).await;
            }
        };
        let freed = rt.block_on(select(Box::pin(freed), rt.sleep(Duration::from_secs(60))));
        assert!(matches!(freed, Either::Left(_)), "{replay_edits}: it waits for ever");
        let written = || pool.devices().counters().purposes[Purpose::Log as usize].written_bytes;
        rt.block_on(rt.sleep(Duration::from_secs(10)));
        let before = written();
        rt.block_on(rt.sleep(Duration::from_secs(100)));
        assert_eq!(written(), before, "{replay_edits}: it is at rest");
    }
}

/// As an older program did where both copies of a map could not be read.
#[test]
fn a_map_that_is_recorded_as_lost_keeps_its_metaslab_aside_and_nobody_out() {
    let mut machine = Machine::new();
    machine.switch_on_again();
    let pool = machine.open();
    machine.rt.block_on(async {
        let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, 100).await.unwrap();
        let (key, map) = items.iter().find(|(key, _)| key.kind == METASLAB).unwrap();
        let sound = Descriptor::parse(map).unwrap();
        let lost = Descriptor { map: None, allocated: 0, is_lost: true, ..sound };
        let mut tx = Transaction::new();
        tx.put(Pool::TABLES, *key, &lost.encode()[..]);
        let credit = pool.admit(Tier::Write, 1, 100).await.unwrap();
        let txg = pool.apply(credit, tx).unwrap();
        pool.commit(txg).await.unwrap();
    });
    drop(pool);
    machine.switch_on_again();
    let image = machine.disk.image();
    for (read_only, cut_tail) in [(true, false), (false, true), (false, false)] {
        machine.disk = disk(&machine.rt, image.clone());
        let options = OpenOptions { read_only, cut_tail, ..OpenOptions::default() };
        let opened =
            Pool::open(machine.rt.clone() as Rt, machine.disk.clone() as DynDevice, options);
        let pool = machine.rt.block_on(opened).unwrap();
        assert_eq!(pool.space_map().set_aside().len(), 1);
        if !read_only {
            machine.free_all(&pool);
            machine.rt.block_on(allocate(&pool, 100));
            machine.settle(&pool);
            assert_eq!(pool.space_map().set_aside().len(), 1);
        }
        machine.rt.drop_tasks();
    }
}
