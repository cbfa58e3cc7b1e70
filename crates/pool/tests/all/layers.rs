//! Rule R20 (iii): a partition whose base cannot be read keeps nobody else waiting.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::Device;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_format::node::Level;
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::{Rt, Runtime, SeededRuntime};
use copyhold_types::{Buf, DeviceId, Key, Kind, NodePtr, Purpose, TableId};
use futures_util::future::{Either, select};

const TABLE: TableId = TableId(100);
const OTHER: TableId = TableId(101);
const BLOCKS: u64 = 8192;
/// Keys of the table that is to break, all in its base.
const OLD: u64 = 600;

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn on(image: SimImage) -> Machine {
        Machine::with(image, SimConfig::new(1))
    }

    fn with(image: SimImage, config: SimConfig) -> Machine {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        Machine { rt, disk }
    }

    fn create(&self) {
        let options = CreateOptions {
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(1024),
            node_bytes: Some(4096),
            partition_leaves: Some(64),
            ..CreateOptions::default()
        };
        let (rt, device) = (self.rt.clone() as Rt, self.disk.clone() as _);
        self.rt.block_on(Pool::create(&rt, &device, &options)).expect("a pool is made");
    }

    /// Nodes are always read from the disk.
    fn open(&self) -> Arc<Pool> {
        let limits = Limits { delta_bytes: 64 << 10, node_cache_bytes: 0, ..Limits::default() };
        let options = OpenOptions { limits, ..OpenOptions::default() };
        let (rt, device) = (self.rt.clone() as Rt, self.disk.clone() as _);
        self.rt.block_on(Pool::open(rt, device, options)).expect("it opens")
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.rt.block_on(async {
            match select(pin!(future), self.rt.sleep(Duration::from_secs(3600))).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => panic!("stuck: everybody waits for the broken partition"),
            }
        })
    }

    /// Both copies of a node rot; what they were before.
    fn rot(&self, ptr: &NodePtr) -> Vec<(u64, Buf)> {
        let image = self.disk.image();
        let first = ptr.runs().map(|run| run.addr.block());
        first
            .map(|block| {
                self.disk.rot(block);
                (block, Buf::from_bytes(&image.read_block(block)))
            })
            .collect()
    }

    async fn heal(&self, blocks: Vec<(u64, Buf)>) {
        for (block, content) in blocks {
            let written = self.disk.write(block, content.into(), Purpose::Leaf).await;
            written.expect("the disk works");
        }
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

async fn put(pool: &Arc<Pool>, table: TableId, n: u64, byte: u8) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    tx.put(table, key(n), vec![byte; 40]);
    let credit = pool.admit(Tier::Write, 1, 64).await?;
    let txg = pool.apply(credit, tx)?;
    pool.commit(txg).await
}

async fn get(pool: &Arc<Pool>, table: TableId, n: u64) -> Result<Option<u8>, PoolError> {
    Ok(pool.get(table, key(n)).await?.map(|value| value[0]))
}

async fn nodes(pool: &Arc<Pool>, wanted: Level) -> Vec<NodePtr> {
    let mut found = Vec::new();
    let mut visit = |visit: copyhold_table::NodeVisit<'_>| {
        if visit.layer.is_none() && visit.level == wanted {
            found.push(visit.ptr);
        }
    };
    let table = pool.tables().into_iter().find(|table| table.id() == TABLE).expect("it has items");
    table.for_each_node(pool.node_source(), false, &mut visit).await;
    found
}

fn layers(pool: &Arc<Pool>) -> usize {
    let table = pool.tables().into_iter().find(|table| table.id() == TABLE).expect("it has items");
    table.stats().iter().map(|stats| stats.layers).sum()
}

/// Fills a table and breaks a node of it, writes on until the log has turned over several times,
/// crashes, and heals the node.
fn writers_go_on(level: Level) {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    machine.create();
    let pool = machine.open();
    let good = machine.run(async {
        for n in 0..OLD {
            put(&pool, TABLE, n * 10, 1).await.expect("there is room");
        }
        pool.flush_all().await.expect("it flushes");
        assert_eq!(layers(&pool), 0);
        let bad = nodes(&pool, level).await[0];
        let bad = machine.rot(&bad);
        // Each put is a batch of a block at least: the log turns over six times.
        let ring = pool.log_use().ring_blocks;
        for n in 0..3 * ring {
            put(&pool, OTHER, n % 500, n as u8).await.expect("the others go on");
            put(&pool, TABLE, n % 700 * 10 + 5, n as u8).await.expect("and the broken one, too");
        }
        assert!(layers(&pool) > 0);
        known_and_unknown(&pool, level).await;
        bad
    });
    drop(pool);
    machine.rt.drop_tasks();
    let machine = Machine::on(machine.disk.crash(7));
    let pool = machine.open();
    machine.run(async {
        known_and_unknown(&pool, level).await;
        for n in 0..2 * pool.log_use().ring_blocks {
            put(&pool, TABLE, 6005 + n % 100, 9).await.expect("it goes on after a crash");
        }
        machine.heal(good).await;
        assert_eq!(get(&pool, TABLE, 0).await.expect("it is whole again"), Some(1));
        pool.flush_all().await.expect("it flushes");
        assert_eq!(layers(&pool), 0, "what was kept beside the base is merged");
        for n in 0..OLD {
            assert_eq!(get(&pool, TABLE, n * 10).await.expect("it is whole"), Some(1));
        }
        assert_eq!(get(&pool, TABLE, 6050).await.expect("it is whole"), Some(9));
        pool.space_map().check();
        pool.close().await.expect("it closes");
    });
}

/// What was written since is known; what only the bad node has is not.
async fn known_and_unknown(pool: &Arc<Pool>, level: Level) {
    for n in 0..700 {
        let found = get(pool, TABLE, n * 10 + 5).await.expect("an edit or a layer has it");
        assert!(found.is_some(), "{n}");
    }
    assert!(get(pool, TABLE, 0).await.is_err(), "only the bad node has it");
    let last = get(pool, TABLE, (OLD - 1) * 10).await;
    assert_eq!(last.is_err(), level == Level::Inner, "{last:?}");
    for n in 0..500 {
        assert!(get(pool, OTHER, n).await.expect("it is whole").is_some());
    }
}

#[test]
fn an_unreadable_leaf_keeps_nobody_waiting() {
    writers_go_on(Level::Leaf);
}

#[test]
fn an_unreadable_inner_node_keeps_nobody_waiting() {
    writers_go_on(Level::Inner);
}

/// A table with a layer and nothing else to flush. The merge of that is begun, and given up, since
/// there is no room for it; meanwhile the table is forked. What lies over it must get its bases.
#[test]
fn a_table_that_is_forked_while_a_merge_is_given_up_is_handed_over() {
    // Reading takes longer than several commits.
    let config =
        SimConfig { read_latency: 5_000_000..6_000_000, one_slow_in: 0, ..SimConfig::new(1) };
    for delay in 0..20 {
        let machine = Machine::with(SimImage::empty(BLOCKS), config.clone());
        machine.create();
        let pool = machine.open();
        machine.run(async {
            for n in 0..OLD {
                put(&pool, TABLE, n * 10, 1).await.expect("there is room");
            }
            pool.flush_all().await.expect("it flushes");
            put(&pool, TABLE, 5, 2).await.expect("there is room");
            let space = pool.space();
            let everything = space.free - space.reserved;
            let hoard = pool.reserve(everything, Tier::Internal).await.expect("it is there");
            pool.flush_all().await.expect("a layer was promised");
            assert!(layers(&pool) > 0);
            let fork = async {
                let mut tx = Transaction::new();
                tx.fork(TABLE, [OTHER, TableId(102)]);
                let credit = pool.admit(Tier::Internal, 2, 128).await?;
                machine.rt.sleep(Duration::from_micros(500 * delay)).await;
                pool.apply(credit, tx)?;
                // Each commit has the flusher look for what can be handed over.
                for _ in 0..10 {
                    let mut tx = Transaction::new();
                    tx.put(TableId(103), key(1), vec![1; 40]);
                    let credit = pool.admit(Tier::Internal, 1, 64).await?;
                    pool.commit(pool.apply(credit, tx)?).await?;
                }
                Ok(())
            };
            let (flushed, forked) = futures_util::join!(pool.flush_all(), fork);
            flushed.and(forked).expect("both are done");
            drop(hoard);
            // The log turns over.
            for n in 0..2 * pool.log_use().ring_blocks {
                put(&pool, OTHER, n % 500, 3).await.expect("the log can be trimmed");
            }
            assert_eq!(pool.fork_depth(OTHER), 0, "it lies over nothing ({delay})");
        });
    }
}
