//! A device, a store of data, and bare caches beside plain models.

use std::collections::BTreeMap;
use std::ops::Range;

use copyhold_device::sim::Lasting;
use copyhold_device::{Device, DynDevice, Protect, SimDevice};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_table::NodeCache;
use copyhold_types::{Bufs, DeviceId, Purpose};
use futures_util::future::{join, join_all};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::balance::{Balance, Bounds};
use crate::data::DataStore;
use crate::devices::Devices;
use crate::verified::{Condition, Problem, Reader};

const EIO: i32 = 5;
const BLOCKS: u64 = 512;

struct World {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    devices: Devices,
    data: DataStore,
}

fn run(block: u64, blocks: u32) -> Run {
    Run::new(BlockAddr::new(DeviceId(0), block), blocks)
}

/// As written by the `version`th write.
fn content(run: Run, version: u8) -> Buf {
    let mut content = Buf::zeroed(run.blocks as usize);
    for (n, block) in content.make_mut().chunks_mut(BLOCK_BYTES).enumerate() {
        block.fill((run.addr.block() + n as u64) as u8 ^ version.wrapping_mul(85));
    }
    content
}

fn sums(content: &Buf) -> Vec<u32> {
    content.chunks(BLOCK_BYTES).map(block_checksum).collect()
}

impl World {
    fn new(bytes: usize, broken: Broken) -> World {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::new(rt.clone() as Rt, DeviceId(0), BLOCKS, 1);
        let bounds = Bounds::new(bytes * 2, bytes, 0);
        let clean = Arc::new(CleanData::new(Arc::default(), bounds.data_max, broken));
        let device: DynDevice = disk.clone();
        let devices = Devices::one(DeviceId(0), device, clean.clone());
        let reader = Arc::new(Reader::new(devices.clone(), None));
        let nodes = Arc::new(NodeCache::new(clean.memory().clone(), 0, 1));
        let balance = Balance::new(nodes, clean.clone(), bounds);
        clean.set_bytes_max(bounds.data_max);
        let data = DataStore::new(reader, Arc::new(balance));
        World { rt, disk, devices, data }
    }

    fn clean(&self) -> &CleanData {
        self.devices.clean()
    }

    fn write(&self, run: Run, version: u8) {
        let data = Bufs::from(content(run, version));
        self.rt.block_on(self.devices.write(run, data, Purpose::Data, Protect::Plain)).unwrap();
    }

    async fn reading(&self, run: Run, version: u8) -> Result<Buf, Problem> {
        let sums = sums(&content(run, version));
        let owner = self.clean().memory().shared().clone();
        self.data.read(run, Condition::Sums(&sums), Purpose::Data, Some(&owner), false).await
    }

    fn read(&self, run: Run, version: u8) -> Buf {
        self.rt.block_on(self.reading(run, version)).expect("it is as written")
    }

    /// Requests so far.
    fn reads(&self) -> u64 {
        self.disk.counters().snapshot().purposes[Purpose::Data as usize].reads
    }
}

#[test]
fn a_second_read_is_from_memory_and_one_block_is_not_copied() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(10, 100), 1);
    let whole = world.read(run(10, 100), 1);
    assert_eq!((whole[..] == content(run(10, 100), 1)[..], world.reads()), (true, 1));
    for part in [run(10, 100), run(60, 9), run(109, 1)] {
        assert_eq!(world.read(part, 1)[..], content(part, 1)[..]);
    }
    let (one, again) = (world.read(run(64, 1), 1), world.read(run(64, 1), 1));
    assert_eq!((one.as_ptr(), world.reads()), (again.as_ptr(), 1));
    let stats = world.clean().stats();
    assert_eq!((stats.hits, stats.misses, stats.blocks), (112, 100, 100));
    assert_eq!(stats.bytes, 100 * block_bytes());
    assert_eq!(world.clean().memory().charged(MemoryClass::Data), stats.bytes as i64);
}

/// A run of which only a part is here is read from the device: none of its blocks is a hit. A
/// reader that waits for another one has no misses of its own.
#[test]
fn a_block_is_a_hit_or_a_miss() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(0, 64), 1);
    let _ = world.read(run(0, 40), 1);
    let _ = world.read(run(0, 64), 1);
    let stats = world.clean().stats();
    assert_eq!((stats.hits, stats.misses), (0, 104));
    let same = world.rt.block_on(join_all((0..5).map(|_| world.reading(run(100, 20), 0))));
    assert!(same.iter().all(Result::is_err));
    world.write(run(100, 20), 1);
    let before = world.clean().stats();
    let same = world.rt.block_on(join_all((0..5).map(|_| world.reading(run(100, 20), 1))));
    assert!(same.iter().all(Result::is_ok));
    let stats = world.clean().stats();
    assert_eq!((stats.hits - before.hits, stats.misses - before.misses), (80, 20));
    world.clean().flip(BlockAddr::new(DeviceId(0), 110));
    let _ = world.read(run(100, 20), 1);
    assert_eq!(world.clean().stats().hits, stats.hits, "it was read from the device");
}

/// CLEAN-D1.
#[test]
fn bad_memory_reaches_no_reader() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(10, 4), 1);
    for wanted in [run(10, 4), run(12, 1)] {
        let _ = world.read(run(10, 4), 1);
        world.clean().flip(BlockAddr::new(DeviceId(0), 12));
        let before = world.reads();
        assert_eq!(world.read(wanted, 1)[..], content(wanted, 1)[..]);
        assert_eq!(world.reads(), before + 1);
        assert_eq!(world.read(wanted, 1)[..], content(wanted, 1)[..]);
        assert_eq!(world.reads(), before + 1, "the next one is from memory again");
    }
    assert_eq!(world.clean().stats().mismatches, 2);
}

/// CLEAN-D4.
#[test]
fn many_readers_are_one_fetch() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(100, 40), 1);
    let readers = (0..20).map(|n| world.reading(run(100 + n % 3, 30 + n as u32 % 2), 1));
    let read = world.rt.block_on(join_all(readers));
    assert!(read.iter().all(Result::is_ok));
    // As many as there are different runs.
    assert!(world.reads() <= 6, "{} requests", world.reads());
    let before = world.reads();
    let same = world.rt.block_on(join_all((0..20).map(|_| world.reading(run(200, 8), 0))));
    assert!(same.iter().all(Result::is_err), "nothing is written there");
    assert_eq!(world.reads() - before, 20, "each reader has an error of its own");
    world.write(run(200, 8), 1);
    let before = world.reads();
    let same = world.rt.block_on(join_all((0..20).map(|_| world.reading(run(200, 8), 1))));
    assert!(same.iter().all(Result::is_ok));
    assert_eq!((world.reads() - before, world.clean().stats().waits >= 19), (1, true));
}

#[test]
fn an_error_is_of_those_that_read_there_and_passes() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(0, 64), 1);
    world.disk.break_block(3, EIO, Lasting::UntilWritten);
    let (bad, good) =
        world.rt.block_on(join(world.reading(run(0, 8), 1), world.reading(run(8, 8), 1)));
    assert_eq!((bad.expect_err("it cannot be read").block, good.is_ok()), (3, true));
    world.write(run(0, 8), 2);
    assert_eq!(world.read(run(0, 8), 2)[..], content(run(0, 8), 2)[..]);
}

/// A reader that is dropped in the middle of its fetch leaves no other waiting (CLEAN-D4).
#[test]
fn a_fetch_that_is_given_up_wakes_the_others() {
    let world = World::new(1 << 20, Broken::default());
    world.write(run(0, 8), 1);
    let read = world.rt.block_on(async {
        let mut first = Box::pin(world.reading(run(0, 8), 1));
        let second = world.reading(run(0, 8), 1);
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        let mut second = Box::pin(second);
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop(first);
        second.await
    });
    assert!(read.is_ok());
    assert_eq!(world.clean().stats().waits, 1);
}

/// A write between the device's answer and the end of the fetch, without the pin that excludes it
/// (CLEAN-D3); without that rule, old content stays, and only its checksum protects the reader.
#[test]
fn a_fetch_that_a_write_overtakes_is_not_kept() {
    for keep_overtaken in [false, true] {
        let world = World::new(1 << 20, Broken { keep_overtaken, ..Broken::default() });
        world.write(run(60, 8), 1);
        let fetch = world.clean().begin(run(60, 8), true).expect("it is the first");
        let device = world.devices.read(run(60, 8), Purpose::Data);
        let old = world.rt.block_on(device).unwrap();
        world.write(run(66, 1), 2);
        let owner = world.clean().memory().shared().clone();
        let _ = fetch.keep(&old, &owner);
        let stale = world.clean().peek(BlockAddr::new(DeviceId(0), 66)).is_some();
        assert_eq!(stale, keep_overtaken);
        assert_eq!(world.read(run(66, 1), 2)[..], content(run(66, 1), 2)[..], "CLEAN-D1");
        let stats = world.clean().stats();
        assert_eq!(stats.mismatches, u64::from(keep_overtaken));
        assert_eq!(stats.overtaken > 0, !keep_overtaken);
    }
}

/// CLEAN-D5.
#[test]
fn without_room_everything_is_read_all_the_same() {
    let world = World::new(2 * block_bytes(), Broken::default());
    world.write(run(0, 200), 1);
    for _ in 0..3 {
        assert_eq!(world.read(run(0, 200), 1)[..], content(run(0, 200), 1)[..]);
    }
    assert!(world.clean().stats().blocks <= 2);
}

/// CLEAN-D6: of twice as much as fits, read in turn, a part is found; all of it would push all of
/// it out.
#[test]
fn a_part_of_a_large_loop_stays() {
    let world = World::new(256 * block_bytes(), Broken::default());
    world.write(run(0, 256), 1);
    world.write(run(256, 256), 1);
    let mut hits = Vec::new();
    for _ in 0..12 {
        let before = world.clean().stats().hits;
        for at in (0..BLOCKS).step_by(16) {
            assert_eq!(world.read(run(at, 16), 1)[..], content(run(at, 16), 1)[..]);
        }
        hits.push(world.clean().stats().hits - before);
    }
    assert!(hits[6..].iter().all(|hits| *hits >= BLOCKS / 10), "{hits:?}");
}

#[test]
fn runs_are_cut_at_chunks() {
    let cut = |run| chunks(run).map(|run| (run.addr.block(), run.blocks)).collect::<Vec<_>>();
    assert_eq!(cut(run(0, 16)), [(0, 16)]);
    assert_eq!(cut(run(15, 2)), [(15, 1), (16, 1)]);
    assert_eq!(cut(run(10, 40)), [(10, 6), (16, 16), (32, 16), (48, 2)]);
}

#[derive(Clone, Debug)]
enum Step {
    /// Of blocks that nothing may read meanwhile, or that are freed.
    Write(Range<u64>),
    /// Begins a fetch: the device answers with the content of this moment.
    Begin(Range<u64>),
    /// Ends one of the fetches, and keeps what it has read, or does not.
    End(usize, bool),
    Read(Range<u64>),
    Bound(usize),
}

fn blocks_of_step() -> impl Strategy<Value = Range<u64>> {
    (40..140_u64, 1..40_u64).prop_map(|(from, blocks)| from..from + blocks)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => blocks_of_step().prop_map(Step::Write),
        6 => blocks_of_step().prop_map(Step::Begin),
        6 => (0..4_usize, prop::bool::weighted(0.8)).prop_map(|(n, keeps)| Step::End(n, keeps)),
        4 => blocks_of_step().prop_map(Step::Read),
        1 => (0..200_usize).prop_map(|blocks| Step::Bound(blocks * block_bytes())),
    ]
}

/// Plays steps. Returns whether all that is in memory was always as on the device.
fn is_coherent(steps: Vec<Step>, broken: Broken) -> bool {
    let clean = CleanData::new(Arc::default(), 9 << 20, broken);
    let owners = [clean.memory().shared().clone(), clean.memory().add_owner()];
    clean.set_bytes_max(60 * block_bytes());
    // Each address by the number of its writes.
    let mut disk: BTreeMap<u64, u8> = BTreeMap::new();
    let read = |disk: &BTreeMap<u64, u8>, range: &Range<u64>| {
        let mut whole = Buf::zeroed((range.end - range.start) as usize);
        for (block, part) in range.clone().zip(whole.make_mut().chunks_mut(BLOCK_BYTES)) {
            let version = disk.get(&block).copied().unwrap_or_default();
            part.copy_from_slice(&content(run(block, 1), version));
        }
        whole
    };
    let as_run = |range: &Range<u64>| run(range.start, (range.end - range.start) as u32);
    let mut fetches: Vec<(Fetch<'_>, Buf)> = Vec::new();
    for (n, step) in steps.into_iter().enumerate() {
        match step {
            Step::Write(range) => {
                clean.remove(as_run(&range));
                range.for_each(|block| *disk.entry(block).or_default() += 1);
            }
            Step::Begin(range) => {
                if let Ok(fetch) = clean.begin(as_run(&range), n % 2 == 0) {
                    fetches.push((fetch, read(&disk, &range)));
                }
            }
            Step::End(of, keeps) if !fetches.is_empty() => {
                let (fetch, content) = fetches.remove(of % fetches.len());
                if keeps {
                    let _ = fetch.keep(&content, &owners[n % 2]);
                }
            }
            Step::End(..) => {}
            Step::Read(range) => {
                let now = read(&disk, &range);
                if let Some(found) = clean.find(as_run(&range), &sums(&now)) {
                    assert_eq!(found[..], now[..], "CLEAN-D1");
                }
            }
            Step::Bound(bytes) => clean.set_bytes_max(bytes),
        }
        let kept = (0..180).filter_map(|block| Some((block, clean.peek(run(block, 1).addr)?)));
        for (block, found) in kept {
            if found[..] != read(&disk, &(block..block + 1))[..] {
                return false;
            }
        }
    }
    drop(fetches);
    assert!(clean.shards.iter().all(|shard| shard.lock().fetches.is_empty()));
    let charged = clean.memory().charged(MemoryClass::Data);
    assert_eq!(charged, clean.stats().bytes as i64);
    assert_eq!(clean.stats().mismatches, 0);
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Beside a plain disk: whatever is in memory is on the disk at its address, also if fetches
    /// begin and end beside writes (CLEAN-D2, CLEAN-D3).
    #[test]
    fn memory_is_as_the_disk(steps in prop::collection::vec(step(), 0..80)) {
        prop_assert!(is_coherent(steps, Broken::default()));
    }
}

/// Without one of the two rules the model notices.
#[test]
fn each_rule_is_needed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = prop::collection::vec(step(), 80);
    for (keep_overwritten, keep_overtaken) in [(true, false), (false, true)] {
        let broken = Broken { keep_overwritten, keep_overtaken };
        let noticed = (0..64).any(|_| {
            let steps = steps.new_tree(&mut runner).expect("a history").current();
            // A stale block is found, or its checksum fails at a read.
            !std::panic::catch_unwind(|| is_coherent(steps, broken)).unwrap_or(false)
        });
        assert!(noticed, "{broken:?}");
    }
}
