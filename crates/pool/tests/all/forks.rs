//! Forked tables through flushes, handovers and crashes, against plain copies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_pool::{
    CreateOptions, Edit, Limits, NodeTurnover, OpenOptions, Pool, Tenancy, Tier, Transaction,
    free_node,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, EpochId, Key, Kind, NodePtr, TableId, Txg};
use proptest::prelude::*;

const FIRST: TableId = TableId(100);
const BLOCKS: u64 = 16384;

/// Keeps what trees of forked tables give up: another may have it.
struct Hoarder;

impl Tenancy for Hoarder {
    fn epoch(&self, table: TableId) -> EpochId {
        EpochId(table.0)
    }

    fn own_from(&self, table: TableId) -> EpochId {
        EpochId(table.0)
    }

    fn with_families_locked(&self, _: &[TableId], apply: &mut dyn FnMut(&mut dyn NodeTurnover)) {
        apply(&mut Hoarder);
    }

    fn closing(&self, txg: Txg) -> Vec<(TableId, Key, Edit)> {
        vec![(Pool::SYSTEM, Key::new(77, Kind(99), 0), Edit::put(&txg.get().to_le_bytes()))]
    }
}

impl NodeTurnover for Hoarder {
    fn turned_over(
        &mut self,
        table: TableId,
        _: &[NodePtr],
        replaced: &[NodePtr],
        tx: &mut Transaction,
    ) {
        if table < FIRST {
            replaced.iter().for_each(|ptr| free_node(tx, ptr));
        }
    }
}

type Content = BTreeMap<u64, u8>;

#[derive(Clone, Debug)]
enum Op {
    Put(usize, u64, u8),
    Fill(usize, u64, u8),
    Delete(usize, u64),
    Fork(usize),
    Forget(usize),
    Commit,
    FlushAll,
    Settle(usize),
    /// Power is lost with so much of what was not flushed.
    Crash,
}

fn ops() -> impl Strategy<Value = Op> {
    let table = || any::<usize>();
    prop_oneof![
        8 => (table(), 0..300u64, any::<u8>()).prop_map(|(t, n, byte)| Op::Put(t, n, byte)),
        2 => (table(), 0..300u64, any::<u8>()).prop_map(|(t, n, byte)| Op::Fill(t, n, byte)),
        4 => (table(), 0..300u64).prop_map(|(t, n)| Op::Delete(t, n)),
        3 => table().prop_map(Op::Fork),
        1 => table().prop_map(Op::Forget),
        1 => Just(Op::Commit),
        2 => Just(Op::FlushAll),
        2 => table().prop_map(Op::Settle),
        2 => Just(Op::Crash),
    ]
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

struct World {
    pool: Arc<Pool>,
    live: Vec<(TableId, Content)>,
    next: u64,
}

impl World {
    async fn apply(&self, tx: Transaction) -> Txg {
        let credit = self.pool.admit(Tier::Write, tx.len(), 64 * tx.len()).await.unwrap();
        self.pool.apply(credit, tx).unwrap()
    }

    async fn put(&mut self, at: usize, keys: impl Iterator<Item = u64>, byte: Option<u8>) {
        let at = at % self.live.len();
        let mut tx = Transaction::new();
        let (table, content) = &mut self.live[at];
        for n in keys {
            match byte {
                Some(byte) => {
                    tx.put(*table, key(n), vec![byte; 60]);
                    content.insert(n, byte);
                }
                None => {
                    tx.delete(*table, key(n));
                    content.remove(&n);
                }
            }
        }
        self.apply(tx).await;
    }

    async fn play(&mut self, op: Op) {
        match op {
            Op::Put(at, n, byte) => self.put(at, n..n + 1, Some(byte)).await,
            Op::Fill(at, n, byte) => self.put(at, (n..n + 120).step_by(3), Some(byte)).await,
            Op::Delete(at, n) => self.put(at, n..n + 1, None).await,
            Op::Fork(at) if self.live.len() < 7 => {
                let at = at % self.live.len();
                let (from, content) = self.live.remove(at);
                let children = [TableId(self.next), TableId(self.next + 1)];
                self.next += 2;
                let mut tx = Transaction::new();
                tx.fork(from, children);
                self.apply(tx).await;
                self.live.extend(children.map(|child| (child, content.clone())));
            }
            // What others may lie over is not forgotten, nor what lies over something.
            Op::Forget(at) if self.live.len() > 1 => {
                let (table, _) = self.live.remove(at % self.live.len());
                self.pool.settle(table).await.unwrap();
                let mut tx = Transaction::new();
                tx.forget(table);
                self.apply(tx).await;
            }
            Op::Fork(_) | Op::Forget(_) | Op::Crash => {}
            Op::Commit => self.pool.commit(self.pool.open_txg()).await.unwrap(),
            Op::FlushAll => self.flush_all().await,
            Op::Settle(at) => {
                self.pool.settle(self.live[at % self.live.len()].0).await.unwrap();
            }
        }
    }

    /// Nothing that was there before is in memory only, however many tables lie over each other.
    async fn flush_all(&self) {
        let before = self.pool.open_txg();
        self.pool.flush_all().await.unwrap();
        let left = self.pool.oldest_pin().filter(|pin| *pin < before);
        assert_eq!(left, None, "there are edits of before txg {before}");
    }

    async fn compare(&self) {
        let counted = self.pool.tables().iter().map(|table| table.weight()).sum();
        assert_eq!(self.pool.unflushed(), counted, "what is in memory is counted exactly");
        for (table, wanted) in &self.live {
            let found = self.pool.range(*table, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
            let found: Content = found.iter().map(|(key, v)| (key.offset, v[0])).collect();
            assert_eq!(&found, wanted, "table {table}");
        }
        let mut known: BTreeSet<TableId> = self.live.iter().map(|(table, _)| *table).collect();
        for (table, _) in &self.live {
            let mut lower = self.pool.table(*table).under();
            while let Some(under) = lower {
                known.insert(under.id());
                lower = under.under();
            }
        }
        let there = self.pool.tables().into_iter().map(|table| table.id());
        let astray: Vec<_> = there.filter(|id| *id >= FIRST && !known.contains(id)).collect();
        assert!(astray.is_empty(), "{astray:?} should be gone");
    }
}

fn open(rt: &Arc<SeededRuntime>, disk: &Arc<SimDevice>) -> Arc<Pool> {
    let options = OpenOptions {
        tenants: true,
        limits: Limits { delta_bytes: 96 << 10, open_tables: 1, ..Limits::default() },
        ..OpenOptions::default()
    };
    let device: DynDevice = disk.clone();
    let pool = rt.block_on(Pool::open(rt.clone() as Rt, device, options)).expect("it opens");
    pool.set_tenancy(Arc::new(Hoarder));
    pool
}

fn history(seed: u64, ops: Vec<Op>) {
    let rt = SeededRuntime::new(seed);
    let config = SimConfig::new(seed);
    let image = SimImage::empty(BLOCKS);
    let mut disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config.clone());
    let options = CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(4),
        ..CreateOptions::default()
    };
    let device: DynDevice = disk.clone();
    rt.block_on(Pool::create(&(rt.clone() as Rt), &device, &options)).expect("a pool is made");
    let mut world =
        World { pool: open(&rt, &disk), live: vec![(FIRST, Content::new())], next: FIRST.0 + 1 };
    for op in ops {
        if let Op::Crash = op {
            rt.block_on(world.pool.commit(world.pool.open_txg())).unwrap();
            let image = disk.crash(seed);
            rt.drop_tasks();
            disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config.clone());
            world.pool = open(&rt, &disk);
            rt.block_on(world.compare());
        } else {
            rt.block_on(world.play(op));
        }
    }
    rt.block_on(world.compare());
    rt.block_on(world.pool.close()).unwrap();
    rt.drop_tasks();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn forked_tables_live_on_by_themselves_through_crashes(
        seed in 0..1000u64,
        ops in prop::collection::vec(ops(), 1..60),
    ) {
        history(seed, ops);
    }
}
