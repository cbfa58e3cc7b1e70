//! A table that many others lie over is handed over to them in steps, and the power fails between
//! any two of them.
//!
//! Edits that replay brings back change nothing in bases, so these stay. But the next layer takes
//! in the one that has them already, and gives it up: so items are many and small here, and an edit
//! becomes a layer.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimImage, Trigger};
use copyhold_pool::{
    CreateOptions, Edit, Limits, NodeTurnover, OpenOptions, Pool, Sabotage, Tenancy, Tier,
    Transaction, free_node,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, EpochId, Key, Kind, NodePtr, TableId, Txg};
use futures_util::future::{Either, select};
use futures_util::pin_mut;

const FIRST: TableId = TableId(100);
const BLOCKS: u64 = 1 << 16;
const KEYS: u64 = 6000;

/// Each table owns the nodes that were written for it, and frees those that it replaces.
struct Owners;

impl Tenancy for Owners {
    fn epoch(&self, table: TableId) -> EpochId {
        EpochId(table.0)
    }

    fn own_from(&self, _: TableId) -> EpochId {
        EpochId::POOL
    }
    fn with_families_locked(&self, _: &[TableId], apply: &mut dyn FnMut(&mut dyn NodeTurnover)) {
        apply(&mut Owners);
    }
    fn closing(&self, _: Txg) -> Vec<(TableId, Key, Edit)> {
        Vec::new()
    }
}

impl NodeTurnover for Owners {
    fn turned_over(
        &mut self,
        table: TableId,
        _: &[NodePtr],
        replaced: &[NodePtr],
        tx: &mut Transaction,
    ) {
        let own = |ptr: &&NodePtr| table < FIRST || ptr.epoch == EpochId(table.0);
        replaced.iter().filter(own).for_each(|ptr| free_node(tx, ptr));
    }
}

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    pool: Arc<Pool>,
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

async fn apply(pool: &Arc<Pool>, tx: Transaction, bytes: usize) {
    let credit = pool.admit(Tier::Write, tx.len(), bytes).await.unwrap();
    pool.apply(credit, tx).unwrap();
}

impl Machine {
    fn on(image: SimImage, handover_edits: usize) -> Machine {
        Machine::breaking(None, image, handover_edits)
    }

    fn breaking(sabotage: Option<Sabotage>, image: SimImage, handover_edits: usize) -> Machine {
        let rt = SeededRuntime::new(1);
        let config = SimConfig::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        let limits = Limits { handover_edits, sabotage, ..Limits::default() };
        let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
        let opened = Pool::open(rt.clone() as Rt, disk.clone() as DynDevice, options);
        let pool = rt.block_on(opened).unwrap();
        pool.set_tenancy(Arc::new(Owners));
        Machine { rt, disk, pool }
    }

    fn crash(self) -> SimImage {
        self.disk.power_off();
        self.rt.drop_tasks();
        self.disk.crash(7)
    }

    /// Forks the table again and again, the newest child each time; the names of all children.
    fn fork(&self, clones: u64) -> Vec<TableId> {
        self.rt.block_on(async {
            // In the txg that is open when the table is flushed: replay brings it back.
            let mut tx = Transaction::new();
            tx.put(FIRST, key(0), vec![7; 10]);
            apply(&self.pool, tx, 64).await;
            let (mut at, mut next, mut leaves) = (FIRST, FIRST.0 + 1, Vec::new());
            for _ in 0..clones {
                let children = [TableId(next), TableId(next + 1)];
                let mut tx = Transaction::new();
                tx.fork(at, children);
                apply(&self.pool, tx, 256).await;
                leaves.push(children[1]);
                (at, next) = (children[0], next + 2);
            }
            leaves.push(at);
            leaves
        })
    }

    fn has_taken_over(&self, table: TableId) -> bool {
        self.pool.table(table).under().is_none()
    }

    /// All have the content of the first table, in nodes that are allocated.
    fn verify(&self, tables: &[TableId]) {
        for table in tables {
            let items = self.pool.range(*table, Key::MIN, Key::MAX, usize::MAX);
            let items = self.rt.block_on(items).unwrap();
            assert_eq!(items.len(), KEYS as usize, "{table}");
            assert_eq!(&*items[0].1, &[7; 10][..], "{table}");
            let table = self.pool.table(*table);
            let mut visit = |visit: copyhold_table::NodeVisit<'_>| {
                for run in visit.ptr.runs() {
                    self.pool.space_map().check_allocated(run).unwrap();
                }
            };
            let walk = table.for_each_node(self.pool.node_source(), true, &mut visit);
            self.rt.block_on(walk);
        }
        self.pool.space_map().check();
    }
}

/// A pool with one table of several partitions, settled.
fn one_table() -> SimImage {
    let rt = SeededRuntime::new(1);
    let image = SimImage::empty(BLOCKS);
    let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1));
    let options = CreateOptions {
        node_bytes: Some(4096),
        partition_leaves: Some(4),
        log_bytes: Some(1 << 20),
        ..CreateOptions::default()
    };
    let device: DynDevice = disk.clone();
    rt.block_on(Pool::create(&(rt.clone() as Rt), &device, &options)).unwrap();
    let machine = Machine::on(disk.crash(1), 1024);
    machine.rt.block_on(async {
        for n in 0..KEYS {
            let mut tx = Transaction::new();
            tx.put(FIRST, key(n), vec![n as u8; 8]);
            apply(&machine.pool, tx, 128).await;
        }
        machine.pool.flush_all().await.unwrap();
    });
    assert!(machine.pool.table(FIRST).stats().len() > 2, "there are several partitions");
    machine.crash()
}

/// Until the power is off.
async fn settle(pool: &Arc<Pool>, disk: &Arc<SimDevice>, table: TableId) -> bool {
    let off = disk.until_off();
    let settle = async { pool.settle_under(&pool.table(table)).await };
    pin_mut!(off, settle);
    match select(settle, off).await {
        Either::Left((settled, _)) => settled.is_ok(),
        Either::Right(_) => false,
    }
}

/// A table with so many clones, and a handover in steps of so many edits.
#[derive(Clone, Copy)]
struct Handover {
    clones: u64,
    edits: usize,
    broken: Option<Sabotage>,
}

/// How a handover came through a power cut.
struct Cut {
    /// The handover ended before the power cut.
    done: bool,
    /// Some clones had taken over the table, and others had not.
    in_part: bool,
}

impl Handover {
    fn machine(&self, image: SimImage) -> Machine {
        Machine::breaking(self.broken, image, self.edits)
    }

    /// The power fails at the nth flush; then the handover goes on to its end.
    fn cut_at(&self, nth: u64, image: SimImage) -> Cut {
        let machine = self.machine(image);
        let tables = machine.fork(self.clones);
        machine.disk.arm(Trigger::Flush { nth }, Fault::PowerOff);
        let last = *tables.last().unwrap();
        let done = machine.rt.block_on(settle(&machine.pool, &machine.disk, last));
        let image = machine.crash();

        let machine = self.machine(image);
        // What was not committed is no more.
        let made: BTreeSet<TableId> = machine.pool.tables().iter().map(|of| of.id()).collect();
        let tables: Vec<TableId> = tables.iter().filter(|id| made.contains(id)).copied().collect();
        let taken = tables.iter().filter(|table| machine.has_taken_over(**table)).count();
        let has_layers =
            |id: &TableId| machine.pool.table(*id).stats().iter().any(|stats| stats.layers > 0);
        assert!(taken == 0 || tables.iter().any(has_layers), "the edit became a layer");
        let sample: Vec<TableId> = tables.iter().step_by(tables.len() / 24 + 1).copied().collect();
        machine.verify(&sample);
        // As a settled table has layers, so has each that took them over.
        if let Some(last) = tables.last() {
            machine.rt.block_on(settle(&machine.pool, &machine.disk, *last));
        }
        machine.verify(&sample);
        machine.rt.block_on(machine.pool.flush_all()).unwrap();
        machine.verify(&sample);
        assert!(tables.iter().all(|table| machine.has_taken_over(*table)));
        Cut { done, in_part: 0 < taken && taken < tables.len() }
    }
}

/// A handover in steps, with the power failing at each of its flushes.
fn between_any_two_steps(broken: Option<Sabotage>) {
    let handover = Handover { clones: 24, edits: 20, broken };
    let image = one_table();
    let mut in_part = 0;
    for nth in 0.. {
        let cut = handover.cut_at(nth, image.clone());
        in_part += usize::from(cut.in_part);
        if cut.done {
            break;
        }
    }
    assert!(in_part > 3, "the power failed in the midst of it {in_part} times");
}

#[test]
fn the_power_fails_between_any_two_steps() {
    between_any_two_steps(None);
}

#[test]
fn g3_handing_over_what_is_not_sealed_is_noticed() {
    let broken = || between_any_two_steps(Some(Sabotage::HandOverUnsealed));
    assert!(catch_unwind(broken).is_err(), "FORK-G3 can be broken, and nobody notices");
}

/// One transaction would be larger than what the log takes in one piece.
#[test]
fn the_power_fails_while_a_table_is_handed_over_to_thousands_with_a_small_log() {
    let handover = Handover { clones: 3000, edits: 100, broken: None };
    let image = one_table();
    let cuts = [2, 10, 40, u64::MAX].map(|nth| handover.cut_at(nth, image.clone()));
    let in_part = cuts.iter().filter(|cut| cut.in_part).count();
    assert!(in_part > 1, "the power failed in the midst of it {in_part} times");
    assert!(cuts.last().unwrap().done);
}
