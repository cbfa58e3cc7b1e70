//! The pool against a plain map, with crashes: what is committed is there, what is there is a
//! prefix of what was applied, and space is what items refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_device::{Device, DynDevice};
use copyhold_pool::{
    CreateOptions, LaneClass, Limits, OpenOptions, Pool, PoolError, Tier, Transaction,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{
    BlockAddr, Buf, DeviceId, EpochId, Key, Kind, Pointer, Purpose, Run, TableId,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

const ITEM: Kind = Kind(40);
const COUNTER: Key = Key { object: 0, kind: Kind(41), offset: 0 };
const TABLE: TableId = TableId(100);
const BLOCKS: u64 = 8192;

type Model = BTreeMap<Key, Vec<u8>>;

fn small() -> CreateOptions {
    CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(8),
        ..CreateOptions::default()
    }
}

fn limits() -> Limits {
    Limits { delta_bytes: 64 << 10, replay_edits: 4000, ..Limits::default() }
}

struct Power {
    rt: Arc<SeededRuntime>,
    device: Arc<SimDevice>,
}

impl Power {
    fn on(seed: u64, image: SimImage) -> Power {
        let rt = SeededRuntime::new(seed);
        let device =
            SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(seed));
        Power { rt, device }
    }

    fn open(&self) -> Result<Arc<Pool>, PoolError> {
        let device: DynDevice = self.device.clone();
        let options = OpenOptions { limits: limits(), ..OpenOptions::default() };
        self.rt.block_on(Pool::open(self.rt.clone() as Rt, device, options))
    }
}

fn new_pool(seed: u64) -> Power {
    let power = Power::on(seed, SimImage::empty(BLOCKS));
    let device: DynDevice = power.device.clone();
    let rt: Rt = power.rt.clone();
    power.rt.block_on(Pool::create(&rt, &device, &small())).unwrap();
    power
}

fn run_of(value: &[u8]) -> Run {
    let raw = u64::from_le_bytes(value[..8].try_into().unwrap());
    Run::new(BlockAddr::from_raw(raw), u32::from(value[8]))
}

/// One random transaction; the counter tells how many there have been.
async fn step(pool: &Arc<Pool>, rng: &mut Xoshiro256PlusPlus, model: &mut Model, n: u64) {
    let mut tx = Transaction::new();
    let edits = 1 + rng.next_u64() % 12;
    let mut touched = BTreeSet::new();
    for _ in 0..edits {
        let key = Key::new(rng.next_u64() % 8, ITEM, rng.next_u64() % 400);
        if !touched.insert(key) {
            continue;
        }
        let old = model.get(&key).cloned();
        if let Some(old) = &old {
            let pointer = Pointer { run: run_of(old), epoch: EpochId(1), origin: EpochId(1) };
            tx.release(pointer);
        }
        if old.is_some() && rng.next_u64() % 3 == 0 {
            tx.delete(TABLE, key);
            model.remove(&key);
            continue;
        }
        let mut reservation = pool.reserve(1, Tier::Write).await.unwrap();
        let claim = pool.claim(LaneClass::Data, 1, &mut reservation).unwrap().pop().unwrap();
        let run = claim.run();
        let mut block = Buf::zeroed(1);
        block.make_mut()[..8].copy_from_slice(&run.addr.raw().to_le_bytes());
        pool.write(run, vec![block], Purpose::Data).await.unwrap();
        let mut value = run.addr.raw().to_le_bytes().to_vec();
        value.push(1);
        value.extend(std::iter::repeat_n(n as u8, (rng.next_u64() % 40) as usize));
        tx.allocate(claim);
        tx.put(TABLE, key, value.clone());
        model.insert(key, value);
    }
    tx.put(TABLE, COUNTER, n.to_le_bytes().to_vec());
    model.insert(COUNTER, n.to_le_bytes().to_vec());
    let credit = pool.admit(Tier::Write, tx.len(), 600).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    if rng.next_u64() % 8 == 0 {
        pool.commit(txg).await.unwrap();
    }
}

async fn contents(pool: &Pool) -> Model {
    pool.range(TABLE, Key::MIN, Key::MAX, usize::MAX)
        .await
        .unwrap()
        .into_iter()
        .map(|(key, value)| (key, value.to_vec()))
        .collect()
}

/// Space that items, nodes and maps refer to is exactly what is allocated.
async fn check_space(pool: &Pool) {
    let mut referenced = BTreeSet::new();
    let mut refer = |run: Run| {
        for block in run.addr.block()..run.end() {
            assert!(referenced.insert(block), "block {block} is referred to twice");
        }
    };
    for value in contents(pool).await.iter().filter(|(key, _)| key.kind == ITEM).map(|(_, v)| v) {
        refer(run_of(value));
    }
    for table in pool.tables() {
        let mut nodes = Vec::new();
        table.for_each_node(pool.node_source(), true, &mut |visit| nodes.push(visit.ptr)).await;
        nodes.iter().flat_map(|ptr| ptr.runs()).for_each(&mut refer);
    }
    let maps = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    for (key, value) in maps {
        if key.kind == copyhold_format::space_map::METASLAB {
            let map = copyhold_format::space_map::Descriptor::parse(&value).unwrap().map;
            map.iter().flat_map(|ptr| ptr.runs()).for_each(&mut refer);
        }
    }
    let space = pool.space_map();
    let allocated: BTreeSet<u64> = space
        .metaslabs()
        .flat_map(|id| space.allocated_runs(id))
        .flat_map(|run| run.addr.block()..run.end())
        .collect();
    let leaked: Vec<_> = allocated.difference(&referenced).collect();
    let dangling: Vec<_> = referenced.difference(&allocated).collect();
    assert!(leaked.is_empty() && dangling.is_empty(), "leaked {leaked:?}, dangling {dangling:?}");
}

/// Lives several incarnations, each ended by a crash at a random moment.
fn history(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut power = new_pool(seed);
    let mut models = vec![Model::new()];
    for life in 0..4 {
        let pool = power.open().unwrap_or_else(|e| panic!("seed {seed} life {life}: {e}"));
        let found = power.rt.block_on(contents(&pool));
        let count =
            found.get(&COUNTER).map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
        assert_eq!(&found, &models[count as usize], "seed {seed} life {life}: not a prefix");
        power.rt.block_on(check_space(&pool));
        models.truncate(count as usize + 1);
        let mut model = found;
        let steps = rng.next_u64() % 150;
        let crash_after = rng.next_u64() % 40;
        let rt = power.rt.clone();
        let synced = rt.block_on(async {
            for _ in 0..steps {
                let n = models.len() as u64;
                step(&pool, &mut rng, &mut model, n).await;
                models.push(model.clone());
            }
            pool.commit(pool.open_txg()).await.unwrap();
            let synced = models.len() as u64 - 1;
            for _ in 0..crash_after {
                let n = models.len() as u64;
                step(&pool, &mut rng, &mut model, n).await;
                models.push(model.clone());
            }
            synced
        });
        rt.drop_tasks();
        let image = power.device.crash(rng.next_u64());
        drop(pool);
        power = Power::on(rng.next_u64(), image);
        let pool = power.open().unwrap_or_else(|e| panic!("seed {seed} life {life}: {e}"));
        let found = power.rt.block_on(contents(&pool));
        let count =
            found.get(&COUNTER).map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
        assert!(count >= synced, "seed {seed} life {life}: {count} of {synced} synced are there");
        if life % 2 == 0 {
            power.rt.block_on(pool.close()).unwrap();
        }
        power.rt.drop_tasks();
        let image = power.device.crash(rng.next_u64());
        power = Power::on(rng.next_u64(), image);
    }
}

#[test]
fn what_was_committed_survives_crashes_and_the_rest_is_a_prefix() {
    let seeds = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(20);
    (0..seeds).for_each(history);
}

#[test]
fn flushing_everything_leaves_next_to_no_log() {
    let power = new_pool(1);
    let pool = power.open().unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut model = Model::new();
    let rt = power.rt.clone();
    rt.block_on(async {
        for n in 0..200 {
            step(&pool, &mut rng, &mut model, n).await;
        }
        pool.flush_all().await.unwrap();
        assert!(pool.log_use().edits < 300, "{:?}", pool.log_use());
        assert_eq!(contents(&pool).await, model);
        check_space(&pool).await;
        pool.close().await.unwrap();
    });
    assert!(power.device.counters().snapshot().flushes > 0);
}
