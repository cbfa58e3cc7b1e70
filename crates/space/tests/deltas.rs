//! Scattered frees over the maps of a large pool: what a lap of the log writes of maps.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::space_map::{DELTAS_MAX, Descriptor, MapRange, SpaceMap};
use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Digest, EpochId, NodePtr, Run, Txg};

const DEVICE: DeviceId = DeviceId(0);
const BLOCK: u64 = 4096;
/// A metaslab of 16 GiB.
const METASLAB: u32 = 1 << 22;
const COPIES: u64 = 2;
const MIB: f64 = (1 << 20) as f64;

fn txg(n: u64) -> Txg {
    Txg::new(n).unwrap()
}

fn ptr(blocks: u64) -> NodePtr {
    NodePtr {
        copies: [Some(BlockAddr::new(DEVICE, 1)), Some(BlockAddr::new(DEVICE, 2))],
        blocks: blocks as u32,
        fragmented: false,
        epoch: EpochId::POOL,
        digest: Digest(0),
    }
}

fn blocks_of(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).div_ceil(BLOCK)
}

/// Metaslabs in each of which every other block is allocated, as their maps on disk say. None of
/// the maps is in memory.
struct World {
    space: Space,
    metaslabs: u64,
    /// The parts of maps that are not as they were at first.
    parts: BTreeMap<MetaslabId, Vec<Vec<u8>>>,
    freed: BTreeSet<u64>,
    now: u64,
    random: u64,
}

/// Bytes of maps that one lap has written and read.
#[derive(Clone, Copy, Debug, Default)]
struct Lap {
    deltas: u64,
    wholes: u64,
    bytes: u64,
    bytes_read: u64,
}

impl World {
    fn new(metaslabs: u64) -> World {
        let size = metaslabs * u64::from(METASLAB);
        let layout = MetaslabLayout::for_device(DEVICE, size, Some(METASLAB));
        let config = Config { maps_bytes: Some(64 << 20), ..Config::default() };
        let mut restore = Restore::new(&[layout], &[], 1, config).unwrap();
        let first = first_map(MetaslabId { device: DEVICE, index: 0 });
        let blocks = blocks_of(&first.encode());
        for index in 0..metaslabs as u32 {
            let descriptor = Descriptor {
                map: Some(ptr(blocks)),
                deltas: Vec::new(),
                allocated: first.allocated(),
                complete_to: txg(1),
                longest_free: 1,
                is_lost: false,
            };
            restore.leave(MetaslabId { device: DEVICE, index }, descriptor).unwrap();
        }
        let space = restore.finish(Some(txg(1))).unwrap();
        World {
            space,
            metaslabs,
            parts: BTreeMap::new(),
            freed: BTreeSet::new(),
            now: 2,
            random: 1,
        }
    }

    fn random_block(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e);
        // The allocated blocks have even numbers.
        ((self.random >> 20) % (self.metaslabs * u64::from(METASLAB))) & !1
    }

    /// Frees so many blocks, wherever they are, and then flushes each metaslab.
    fn lap(&mut self, frees: usize) -> Lap {
        let end = self.freed.len() + frees;
        while self.freed.len() < end {
            let block = self.random_block();
            if self.freed.insert(block) {
                let run = Run::new(BlockAddr::new(DEVICE, block), 1);
                self.space.log_free(txg(self.now), run).unwrap();
            }
        }
        self.now += 1;
        let mut lap = Lap::default();
        let pins: Vec<MetaslabId> = self.space.pins().map(|pin| pin.metaslab).collect();
        pins.into_iter().for_each(|id| self.flush(id, &mut lap));
        self.space.release_deferred(txg(self.now));
        self.now += 1;
        lap
    }

    fn flush(&mut self, id: MetaslabId, lap: &mut Lap) {
        let closed = txg(self.now);
        let mut job = self.space.freeze(id, closed);
        if job.is_none() {
            assert!(self.space.wants_load(id));
            let parts = self.parts.entry(id).or_insert_with(|| vec![first_map(id).encode()]);
            lap.bytes_read += parts.iter().map(|part| blocks_of(part) * BLOCK).sum::<u64>();
            let map = SpaceMap::parse_parts(&parts[0], &parts[1..]).unwrap();
            assert_eq!(self.space.load(id, Some(&map)), Ok(true));
            job = self.space.freeze(id, closed);
        }
        let job = job.unwrap();
        let bytes = job.encode().unwrap();
        let parts = self.parts.entry(id).or_insert_with(|| vec![first_map(id).encode()]);
        match job.is_delta() {
            true => lap.deltas += 1,
            false => {
                lap.wholes += 1;
                parts.clear();
            }
        }
        let written = ptr(blocks_of(&bytes));
        lap.bytes += COPIES * u64::from(written.blocks) * BLOCK;
        parts.push(bytes);
        self.space.installed(job, Some(written));
        self.space.evict(0);
    }
}

fn first_map(id: MetaslabId) -> SpaceMap {
    let first_block = u64::from(id.index) * u64::from(METASLAB);
    let place = MapRange { device: DEVICE, index: id.index, first_block, blocks: METASLAB };
    SpaceMap::new(place, txg(1), vec![0x5555_5555_5555_5555; METASLAB as usize / 64])
}

/// 1.5 million frees are as many edits as a lap of the log has at most.
#[test]
fn scattered_frees_over_ten_terabytes_write_a_few_megabytes_of_deltas_a_lap() {
    const METASLABS: u64 = 655;
    let mut world = World::new(METASLABS);
    let lap = world.lap(1_500_000);
    let whole = blocks_of(&first_map(MetaslabId { device: DEVICE, index: 0 }).encode());
    let before = METASLABS * whole * BLOCK;
    println!(
        "655 maps of 16 GiB, 1,500,000 frees: {} deltas, {:.1} MiB written, {:.1} MiB read; as \
         whole maps {:.1} MiB written, {:.1} MiB read",
        lap.deltas,
        lap.bytes as f64 / MIB,
        lap.bytes_read as f64 / MIB,
        (COPIES * before) as f64 / MIB,
        before as f64 / MIB,
    );
    assert_eq!((lap.deltas, lap.wholes, lap.bytes_read), (METASLABS, 0, 0));
    assert!(lap.bytes < 12 << 20, "{lap:?}");
    assert!(COPIES * before > 640 << 20);
}

/// A sixteenth of that, over many laps, in which maps are written whole, too.
#[test]
fn many_laps_write_a_small_part_of_whole_maps() {
    const METASLABS: u64 = 41;
    const LAPS: u64 = DELTAS_MAX as u64 + 1;
    let mut world = World::new(METASLABS);
    let mut sum = Lap::default();
    for _ in 0..LAPS {
        let lap = world.lap(1_500_000 / 16);
        sum.deltas += lap.deltas;
        sum.wholes += lap.wholes;
        sum.bytes += lap.bytes;
        sum.bytes_read += lap.bytes_read;
    }
    let whole = blocks_of(&first_map(MetaslabId { device: DEVICE, index: 0 }).encode());
    let before = LAPS * METASLABS * COPIES * whole * BLOCK;
    println!(
        "41 maps of 16 GiB, {LAPS} laps of 93,750 frees: {} deltas, {} whole maps, {:.1} MiB \
         written and {:.1} MiB read; as whole maps {:.1} MiB written",
        sum.deltas,
        sum.wholes,
        sum.bytes as f64 / MIB,
        sum.bytes_read as f64 / MIB,
        before as f64 / MIB,
    );
    assert_eq!(sum.wholes, METASLABS);
    assert!(sum.bytes < before / 10, "{sum:?}");
    world.space.check();
}
