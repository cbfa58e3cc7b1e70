//! The structures of a sound pool, as inputs to begin with.

use std::collections::BTreeMap;

use copyhold_device::sim::SimImage;
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_format::log::{Batch, Frame, FrameKind};
use copyhold_format::node::{FRAGMENTS_MAX, Fragment, Node, encode_fragments};
use copyhold_format::space_map::{Change, MapDelta, MapRange, SpaceMap};
use copyhold_types::{BlockAddr, Buf, DeviceId, Digest, Key, Kind, Txg};

use crate::base::{CRASHED, SETTLED};
use crate::machine::{How, Machine};

/// Inputs of one kind.
const EACH_MAX: usize = 4;

fn image() -> &'static SimImage {
    &CRASHED.image
}

fn blocks(is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let read = CRASHED.used.iter().map(|&block| image().read_block(block).to_vec());
    read.filter(|block| is_wanted(block)).take(EACH_MAX).collect()
}

/// Lists of few and of as many fragments as there may be.
pub(crate) fn fragment_lists() -> Vec<Vec<u8>> {
    let list = |count: usize| {
        let at = |block: u64| Some(BlockAddr::new(DeviceId(0), block));
        let fragment = |n: u64| Fragment { copies: [at(100 + n), at(9000 + n)], blocks: 1 };
        let fragments: Vec<Fragment> = (0..count as u64).map(fragment).collect();
        trimmed(encode_fragments(Digest(77), &fragments).to_vec())
    };
    [1, 8, FRAGMENTS_MAX].map(list).into()
}

fn label() -> (Vec<u8>, Label) {
    let [first, _] = Label::areas(image().blocks());
    let block = image().read_block(first).to_vec();
    let label = Label::parse(&block).expect("a sound pool has a label");
    (block, label)
}

/// Without the zeros at its end.
fn trimmed(mut block: Vec<u8>) -> Vec<u8> {
    let used = block.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    block.truncate(used);
    block
}

pub(crate) fn labels() -> Vec<Vec<u8>> {
    vec![trimmed(label().0)]
}

pub(crate) fn uberblocks() -> Vec<Vec<u8>> {
    let [first, _] = Label::areas(image().blocks());
    let area = (first + 1..first + AREA_BLOCKS).map(|block| image().read_block(block).to_vec());
    area.map(trimmed).filter(|block| !block.is_empty()).take(EACH_MAX).collect()
}

/// The frames of the log, the newest first.
fn log() -> Vec<(Vec<u8>, Frame)> {
    let label = label().1;
    let ring = (0..label.log_blocks).filter_map(|position| {
        let at = label.log[0] + position;
        let blocks = Frame::claim(&image().read_block(at), label.pool, position)?;
        let bytes: Vec<u8> =
            (at..at + blocks).flat_map(|block| image().read_block(block)).collect();
        let frame = Frame::parse(&bytes, label.pool, label.secret, position).ok()?;
        Some((bytes, frame))
    });
    let mut frames: Vec<_> = ring.collect();
    frames.sort_by_key(|(_, frame)| std::cmp::Reverse(frame.txg));
    frames
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut kinds: BTreeMap<u8, usize> = BTreeMap::new();
    let mut is_new = |kind: FrameKind| {
        let count = kinds.entry(kind as u8).or_default();
        *count += 1;
        *count <= 2
    };
    let frames = log().into_iter().filter(|(_, frame)| is_new(frame.kind));
    frames.map(|(bytes, _)| trimmed(bytes)).collect()
}

fn parsed_batches() -> Vec<(Vec<u8>, Batch)> {
    let batches = log().into_iter().filter(|(_, frame)| frame.kind == FrameKind::Batch);
    let parsed = batches.filter_map(|(_, frame)| {
        let batch = Batch::parse(&frame.payload, frame.txg).ok()?;
        Some((frame.payload.to_vec(), batch))
    });
    parsed.filter(|(bytes, _)| bytes.len() < 6000).take(EACH_MAX).collect()
}

pub(crate) fn batches() -> Vec<Vec<u8>> {
    parsed_batches().into_iter().map(|(bytes, _)| bytes).collect()
}

pub(crate) fn record_lists() -> Vec<Vec<u8>> {
    parsed_batches().into_iter().map(|(_, batch)| batch.records).collect()
}

pub(crate) fn node_blocks() -> Vec<Vec<u8>> {
    let mut inputs = blocks(|block| Node::parse(Buf::from_bytes(block)).is_ok());
    inputs.extend([vec![9, 0, 1], (0..=255).collect()]);
    inputs
}

pub(crate) fn space_maps() -> Vec<Vec<u8>> {
    blocks(|block| SpaceMap::parse(block).is_ok()).into_iter().map(trimmed).collect()
}

/// Made up: a small pool has none.
pub(crate) fn map_deltas() -> Vec<Vec<u8>> {
    let delta = |blocks: u32, every: u32| {
        let place = MapRange { device: DeviceId(0), index: 1, first_block: 4096, blocks };
        let change = |first| Change { first, blocks: 1 + first % 3, allocated: first % 2 == 0 };
        let changes: Vec<Change> = (0..blocks - 2).step_by(every as usize).map(change).collect();
        let allocated = changes.iter().filter(|run| run.allocated).map(|run| run.blocks).sum();
        let complete_to = Txg::FIRST.next();
        MapDelta::new(place, Txg::FIRST, complete_to, allocated, changes).encode()
    };
    vec![delta(1024, 7), delta(256, 4), delta(4096, 1000)]
}

/// A few items of each kind, of all tables.
fn items() -> BTreeMap<Kind, Vec<(Key, Vec<u8>)>> {
    let machine = Machine::on(SETTLED.image.clone());
    let pool = machine.open_pool(How::default()).expect("a sound pool opens");
    let mut kinds: BTreeMap<Kind, Vec<(Key, Vec<u8>)>> = BTreeMap::new();
    for table in pool.tables().iter().map(|table| table.id()) {
        let pool = pool.clone();
        let items = machine
            .run("read", async move { pool.range(table, Key::MIN, Key::MAX, usize::MAX).await });
        for (key, value) in items.expect("a sound pool is read") {
            let few = kinds.entry(key.kind).or_default();
            if few.len() < EACH_MAX {
                few.push((key, value.to_vec()));
            }
        }
    }
    kinds
}

/// Values of so many bytes, each once.
fn values(len: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    let mut values: Vec<_> = items().into_values().flatten().map(|(_, value)| value).collect();
    values.retain(|value| len.contains(&value.len()));
    values.sort();
    values.dedup();
    values
}

pub(crate) fn descriptor_list() -> Vec<Vec<u8>> {
    values(20..400)
}

pub(crate) fn item_values() -> Vec<Vec<u8>> {
    values(0..2000)
}

pub(crate) fn quota_values() -> Vec<Vec<u8>> {
    let mut values = values(0..120);
    values.push(b"1/100".to_vec());
    values
}

/// With their keys before them.
pub(crate) fn family_values() -> Vec<Vec<u8>> {
    let with_key = |(key, value): (Key, Vec<u8>)| {
        [&key.object.to_le_bytes()[..], &key.offset.to_le_bytes(), &value].concat()
    };
    items().into_values().flatten().map(with_key).filter(|input| input.len() <= 120).collect()
}
