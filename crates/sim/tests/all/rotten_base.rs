//! Both copies of a base's node rot, and stay so through several lives (R20 iii): clients go on,
//! the log turns over, the power fails, and what was synced is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_device::Device;
use copyhold_device::sim::SimImage;
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::BoxFuture;
use copyhold_sim::{Dice, Machine};
use copyhold_types::{Buf, Key, Kind, NodePtr, Purpose, TableId};
use parking_lot::Mutex;

const TABLE: TableId = TableId(100);
const CLIENTS: u64 = 3;
/// In the base before it rots; each has the value 0.
const OLD: u64 = 500;
/// Each second key is written afterwards; the others are in the base only.
const KEYS: u64 = 1200;
const LIVES: u64 = 4;

/// Values of a key only grow: the last that is surely durable, and the last that was written.
type Model = Arc<Mutex<BTreeMap<u64, (u64, u64)>>>;

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

fn options() -> OpenOptions {
    let limits = Limits { delta_bytes: 48 << 10, node_cache_bytes: 0, ..Limits::default() };
    OpenOptions { limits, ..OpenOptions::default() }
}

async fn put(pool: &Arc<Pool>, keys: &[u64], value: u64) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    keys.iter().for_each(|n| tx.put(TABLE, key(*n), [&value.to_le_bytes()[..], &[7; 30]].concat()));
    let credit = pool.admit(Tier::Write, keys.len(), keys.len() * 64).await?;
    pool.apply(credit, tx).map(drop)
}

async fn get(pool: &Pool, n: u64) -> Result<Option<u64>, PoolError> {
    let number = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().expect("as it was put"));
    Ok(pool.get(TABLE, key(n)).await?.map(|value| number(&value)))
}

/// Writes its keys, odd ones, until it is done or the power fails.
async fn client(pool: Arc<Pool>, model: Model, id: u64, mut dice: Dice, from: u64) {
    for step in from..from + 300 {
        let some = (0..=dice.below(3)).map(|_| (dice.below(KEYS / 6) * 3 + id) * 2 + 1);
        let keys: Vec<u64> = some.collect();
        keys.iter().for_each(|n| model.lock().entry(*n).or_default().1 = step);
        put(&pool, &keys, step).await.expect("a broken partition keeps nobody waiting");
        if dice.one_in(2) {
            pool.commit(pool.open_txg()).await.expect("it is committed");
            keys.iter().for_each(|n| model.lock().entry(*n).or_default().0 = step);
        }
    }
}

/// What was written is known as far as it was synced; what is in the bad node only is EIO.
async fn verify(pool: &Pool, model: &Model, is_broken: bool) {
    let known = model.lock().clone();
    for (n, (synced, written)) in known {
        let found = get(pool, n).await;
        let value = match found {
            Ok(found) => found.unwrap_or(0),
            // It never became durable, so only the base could say that it is not there.
            Err(_) if is_broken && synced == 0 => 0,
            Err(error) => panic!("{n}: {error}"),
        };
        assert!((synced..=written).contains(&value), "{n}: {synced} <= {value} <= {written}");
        model.lock().insert(n, (value, value));
    }
    let mut lost = 0;
    for n in (0..OLD).map(|n| n * 2) {
        match get(pool, n).await {
            Ok(value) => assert_eq!(value, Some(0)),
            Err(_) => lost += 1,
        }
    }
    assert_eq!(lost > 0, is_broken, "{lost} keys are lost");
}

async fn nodes(pool: &Pool) -> Vec<(TableId, bool, NodePtr)> {
    let mut found = Vec::new();
    for table in pool.tables() {
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| {
            found.push((table.id(), visit.layer.is_some(), visit.ptr));
        };
        table.for_each_node(pool.node_source(), false, &mut visit).await;
    }
    found
}

/// Blocks of nodes and maps are the allocated ones: this pool has no data.
async fn check_space(pool: &Pool) {
    let mut blocks: u64 = nodes(pool).await.iter().map(|(_, _, ptr)| size(ptr)).sum();
    let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await.expect("whole");
    for (_, value) in items.iter().filter(|(key, _)| key.kind == METASLAB) {
        let descriptor = Descriptor::parse(value).expect("the pool's own");
        blocks += descriptor.parts().map(|part| size(&part)).sum::<u64>();
    }
    let space = pool.space_map();
    let runs = space.metaslabs().flat_map(|id| space.allocated_runs(id));
    assert_eq!(runs.map(|run| u64::from(run.blocks)).sum::<u64>(), blocks);
    space.check();
}

fn size(ptr: &NodePtr) -> u64 {
    ptr.runs().map(|run| u64::from(run.blocks)).sum()
}

/// A pool with all old keys in its base, one of whose nodes has rotted; its blocks as they were.
fn broken_pool(dice: &mut Dice) -> (SimImage, Vec<(u64, Buf)>) {
    let machine = Machine::on(dice.number(), SimImage::empty(8192));
    let create = CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(16),
        ..CreateOptions::default()
    };
    let bad = machine.run(async {
        Pool::create(&machine.rt(), &machine.device(), &create).await.expect("a pool is made");
        let pool = Pool::open(machine.rt(), machine.device(), options()).await.expect("it opens");
        for n in 0..OLD {
            put(&pool, &[n * 2], 0).await.expect("there is room");
        }
        pool.flush_all().await.expect("it flushes");
        let nodes = nodes(&pool).await;
        pool.close().await.expect("it closes");
        let own = nodes.into_iter().filter(|(table, layer, _)| *table == TABLE && !layer);
        dice.pick(&own.map(|(_, _, ptr)| ptr).collect::<Vec<_>>())
    });
    let bad = bad.expect("the power is on");
    let mut image = machine.rest();
    let blocks: Vec<u64> = bad.runs().map(|run| run.addr.block()).collect();
    let good = blocks.iter().map(|block| (*block, Buf::from_bytes(&image.read_block(*block))));
    let good = good.collect();
    blocks.iter().for_each(|block| image.corrupt(*block, |bytes| bytes[200] ^= 1));
    (image, good)
}

fn history(seed: u64) {
    let mut dice = Dice::new(seed);
    let (mut image, good) = broken_pool(&mut dice);
    let model = Model::default();
    for life in 0..LIVES {
        let machine = Machine::on(dice.number(), image);
        let pool = machine.run(async {
            let pool = Pool::open(machine.rt(), machine.device(), options()).await;
            let pool = pool.expect("it opens");
            verify(&pool, &model, true).await;
            pool
        });
        let pool = pool.expect("the power is on");
        if dice.one_in(2) {
            machine.fail_power_in(dice.magnitude(27));
        }
        let clients = (0..CLIENTS).map(|id| {
            let life = client(pool.clone(), model.clone(), id, dice.fork(), life * 1000 + 1);
            Box::pin(life) as BoxFuture<'static, ()>
        });
        machine.run_all(clients.collect());
        image = machine.crash(dice.number());
    }
    let machine = Machine::on(dice.number(), image);
    machine.run(async {
        let pool = Pool::open(machine.rt(), machine.device(), options()).await.expect("it opens");
        verify(&pool, &model, true).await;
        for (block, content) in good {
            let written = machine.disk.write(block, content.into(), Purpose::Leaf).await;
            written.expect("the disk works");
        }
        pool.flush_all().await.expect("it flushes");
        assert!(nodes(&pool).await.iter().all(|(_, layer, _)| !layer), "all is merged");
        verify(&pool, &model, false).await;
        check_space(&pool).await;
        pool.close().await.expect("it closes");
    });
}

#[test]
fn a_rotten_base_loses_what_it_has_and_keeps_nobody_waiting() {
    (0..12).for_each(history);
}
