//! No copy of the list of a fragmented node can be read, for a while: nothing of what it lists is
//! lost, and nothing else waits for it (FRAGMENT-P1).

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimConfig, SimDevice, SimImage};
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{CreateOptions, LaneClass, Limits, OpenOptions, Pool, Tier, Transaction};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, NodePtr, TableId};

const TABLE: TableId = TableId(100);
const OTHER: TableId = TableId(101);
const BLOCKS: u64 = 1 << 16;
const EIO: i32 = 5;
/// In a table, and in one transaction.
const KEYS: u64 = 320;
const ITEMS: u64 = 16;
const VALUE: usize = 1000;

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

/// Nothing that packs.
fn noise(n: u64) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..VALUE).map(|_| next()).collect()
}

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine::on(SimImage::empty(BLOCKS));
        let (rt, device): (Rt, DynDevice) = (machine.rt.clone(), machine.disk.clone());
        let options = CreateOptions {
            log_bytes: Some(4 << 20),
            metaslab_blocks: Some(BLOCKS),
            ..CreateOptions::default()
        };
        machine.rt.block_on(Pool::create(&rt, &device, &options)).unwrap();
        machine
    }

    fn on(image: SimImage) -> Machine {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1));
        Machine { rt, disk }
    }

    /// Free space is in runs of at most `run_max` blocks.
    fn open(&self, run_max: u32) -> Arc<Pool> {
        let limits = Limits { run_max: Some(run_max), ..Limits::default() };
        let options = OpenOptions { limits, ..OpenOptions::default() };
        self.rt.block_on(Pool::open(self.rt.clone(), self.disk.clone(), options)).unwrap()
    }

    fn restart(self, pool: Arc<Pool>) -> Machine {
        drop(pool);
        let image = self.disk.crash(1);
        self.rt.drop_tasks();
        Machine::on(image)
    }

    fn hide(&self, lists: &[NodePtr]) {
        assert!(!lists.is_empty(), "nothing is in fragments");
        for run in lists.iter().flat_map(NodePtr::runs) {
            self.disk.break_block(run.addr.block(), EIO, Lasting::Forever);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

async fn fill(pool: &Arc<Pool>, table: TableId) {
    for from in (0..KEYS).step_by(ITEMS as usize) {
        let mut tx = Transaction::new();
        (from..from + ITEMS).for_each(|n| tx.put(table, key(n), noise(n)));
        let credit = pool.admit(Tier::Write, tx.len(), tx.len() * (VALUE + 20)).await.unwrap();
        pool.apply(credit, tx).unwrap();
    }
    settle(pool).await;
}

async fn empty(pool: &Arc<Pool>, table: TableId) {
    let mut tx = Transaction::new();
    (0..KEYS).for_each(|n| tx.delete(table, key(n)));
    let credit = pool.admit(Tier::Delete, tx.len(), tx.len() * 20).await.unwrap();
    pool.apply(credit, tx).unwrap();
}

/// Allocates every other of many blocks, so that the map takes some blocks itself.
async fn scatter(pool: &Arc<Pool>) {
    let mut reserved = pool.reserve(12_000, Tier::Write).await.unwrap();
    let claims = pool.claim(LaneClass::Data, 12_000, &mut reserved).unwrap();
    let blocks = claims.into_iter().flat_map(|claim| {
        let (mut rest, mut blocks) = (Some(claim), Vec::new());
        while let Some(claim) = rest.take() {
            let (first, behind) = match claim.run().blocks {
                1 => (claim, None),
                _ => {
                    let (first, behind) = claim.split(1);
                    (first, Some(behind))
                }
            };
            blocks.push(first);
            rest = behind;
        }
        blocks
    });
    let mut tx = Transaction::new();
    blocks.step_by(2).for_each(|claim| tx.allocate(claim));
    let credit = pool.admit(Tier::Write, tx.len(), 64).await.unwrap();
    pool.apply(credit, tx).unwrap();
}

async fn settle(pool: &Arc<Pool>) {
    pool.flush_all().await.unwrap();
    pool.flush_all().await.unwrap();
}

/// The table's nodes that are in fragments.
async fn lists(pool: &Arc<Pool>, table: TableId) -> Vec<NodePtr> {
    let table = pool.tables().into_iter().find(|of| of.id() == table).unwrap();
    let mut found = Vec::new();
    table.for_each_node(pool.node_source(), false, &mut |visit| found.push(visit.ptr)).await;
    found.into_iter().filter(|ptr| ptr.fragmented).collect()
}

async fn maps(pool: &Arc<Pool>) -> Vec<NodePtr> {
    let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, 1000).await.unwrap();
    let maps = items.iter().filter(|(key, _)| key.kind == METASLAB);
    let maps = maps.map(|(_, value)| Descriptor::parse(value).unwrap());
    let parts = maps.flat_map(|map| map.parts().collect::<Vec<_>>());
    parts.filter(|ptr| ptr.fragmented).collect()
}

/// What is allocated once everything has been settled.
async fn allocated(pool: &Arc<Pool>) -> u64 {
    settle(pool).await;
    pool.space().allocated
}

#[test]
fn a_list_that_cannot_be_read_for_a_while_loses_no_space() {
    let machine = Machine::new();
    let pool = machine.open(6);
    machine.rt.block_on(async {
        let before = allocated(&pool).await;
        fill(&pool, TABLE).await;
        machine.hide(&lists(&pool, TABLE).await);
        empty(&pool, TABLE).await;
        let _ = pool.flush_all().await;
        machine.disk.heal();
        let left = allocated(&pool).await;
        assert!(left <= before + 8, "{before} blocks were allocated, and now {left}");
    });
}

#[test]
fn a_list_that_stays_unreadable_keeps_nothing_else_waiting() {
    let machine = Machine::new();
    let pool = machine.open(6);
    let (before, hidden) = machine.rt.block_on(async {
        let before = allocated(&pool).await;
        fill(&pool, OTHER).await;
        fill(&pool, TABLE).await;
        let hidden = lists(&pool, TABLE).await;
        machine.hide(&hidden);
        let full = pool.space().allocated;
        empty(&pool, TABLE).await;
        empty(&pool, OTHER).await;
        let _ = pool.flush_all().await;
        settle(&pool).await;
        assert!(pool.log_use().live_blocks < 50, "{:?}", pool.log_use());
        let left = pool.space().allocated;
        assert!(left < full - KEYS / 4, "the other table's nodes are free: {full}, {left}");
        assert_eq!(pool.get(TABLE, key(7)).await.unwrap(), None);
        (before, hidden)
    });
    let machine = machine.restart(pool);
    machine.hide(&hidden);
    let pool = machine.open(6);
    machine.rt.block_on(async {
        assert_eq!(pool.get(TABLE, key(7)).await.unwrap(), None);
        settle(&pool).await;
        machine.disk.heal();
        let left = allocated(&pool).await;
        assert!(left <= before + 8, "{before} blocks were allocated, and now {left}");
    });
}

#[test]
fn a_table_is_not_dropped_while_what_it_has_is_unknown() {
    let machine = Machine::new();
    let pool = machine.open(6);
    machine.rt.block_on(async {
        let before = allocated(&pool).await;
        fill(&pool, TABLE).await;
        let hidden = lists(&pool, TABLE).await;
        machine.hide(&hidden);
        pool.drop_table(TABLE).await.unwrap_err();
        machine.disk.heal();
        // An error that passes at once is none.
        hidden.iter().flat_map(NodePtr::runs).for_each(|run| {
            machine.disk.break_block(run.addr.block(), EIO, Lasting::Once);
        });
        pool.drop_table(TABLE).await.unwrap();
        let left = allocated(&pool).await;
        assert!(left <= before + 8, "{before} blocks were allocated, and now {left}");
    });
}

/// The map that is replaced is not read for that, and neither is its list.
#[test]
fn a_map_is_replaced_although_its_list_cannot_be_read_any_more() {
    let mut machine = Machine::new();
    let mut pool = machine.open(1);
    machine.rt.clone().block_on(async {
        scatter(&pool).await;
        settle(&pool).await;
    });
    for mounts in 0..2 {
        machine.rt.clone().block_on(async {
            let before = allocated(&pool).await;
            machine.hide(&maps(&pool).await);
            for _ in 0..20 {
                let mut tx = Transaction::new();
                tx.put(OTHER, key(0), noise(mounts));
                let credit = pool.admit(Tier::Write, 1, VALUE + 20).await.unwrap();
                pool.apply(credit, tx).unwrap();
                settle(&pool).await;
            }
            machine.disk.heal();
            let left = allocated(&pool).await;
            assert!(left <= before + 8, "{before} blocks were allocated, and now {left}");
        });
        machine = machine.restart(pool);
        pool = machine.open(1);
    }
}
