//! Damage to a disk that is switched off.

use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::label::{Label, RING_SLOTS, RING_START};
use copyhold_format::uberblock::Uberblock;
use copyhold_log::Ring;
use copyhold_types::BLOCK_BYTES;

use crate::dice::Dice;
use crate::machine::Machine;
use crate::weather::Weather;

/// What a weather does when the power has failed; blocks that it makes unreadable are added to
/// those that are.
pub(crate) fn by_weather(
    weather: Weather,
    dice: &mut Dice,
    label: &Label,
    image: &mut SimImage,
    unreadable: &mut Vec<(u64, Lasting)>,
) {
    match weather {
        Weather::LogRot => rot_log(dice, label, image),
        Weather::LogUnreadable => *unreadable = unreadable_log(dice, label, image),
        Weather::UberblockRot => rot_uberblocks(dice, label, image),
        _ => {}
    }
}

/// A bit flips; in which byte of the block.
pub(crate) fn rot(dice: &mut Dice, image: &mut SimImage, block: u64) -> (u64, usize) {
    let byte = dice.below(BLOCK_BYTES as u64) as usize;
    image.corrupt(block, |bytes| bytes[byte] ^= 0x40);
    (block, byte)
}

/// One copy of the log rots in several places.
fn rot_log(dice: &mut Dice, label: &Label, image: &mut SimImage) {
    let copy = dice.below(2) as usize;
    let blocks = log_blocks(dice, label, image);
    for _ in 0..1 + dice.below(8) {
        let at = dice.pick(&blocks);
        rot(dice, image, label.log[copy] + at);
    }
}

/// Blocks of the log that cannot be read, in one copy or in both.
fn unreadable_log(dice: &mut Dice, label: &Label, image: &SimImage) -> Vec<(u64, Lasting)> {
    let at = log_block(dice, label, image);
    let lasting = dice.pick(&[Lasting::Once, Lasting::UntilWritten, Lasting::Forever]);
    let copies = dice.pick(&[&[0][..], &[1], &[0, 1]]);
    copies.iter().map(|copy| (label.log[*copy] + at, lasting)).collect()
}

/// The newest one or two of the uberblocks rot, on both labels. What older ones need is kept (rule
/// R6).
fn rot_uberblocks(dice: &mut Dice, label: &Label, image: &mut SimImage) {
    let found = uberblocks(label, image);
    let newest = found.last().map_or(0, |(uberblock, _)| uberblock.number);
    let oldest_lost = newest.saturating_sub(dice.below(2)).max(2);
    for (_, block) in found.iter().filter(|(found, _)| found.number >= oldest_lost) {
        rot(dice, image, *block);
    }
}

/// One of the blocks of the ring that recovery reads.
pub(crate) fn log_block(dice: &mut Dice, label: &Label, image: &SimImage) -> u64 {
    let blocks = log_blocks(dice, label, image);
    dice.pick(&blocks)
}

/// Where frames of the live log begin, and one other block.
fn log_blocks(dice: &mut Dice, label: &Label, image: &SimImage) -> Vec<u64> {
    let head = uberblocks(label, image).last().map_or(0, |(uberblock, _)| uberblock.head);
    let machine = Machine::on(0, image.clone());
    let ring = Ring::new(machine.device(), label.log, label.log_blocks, label.pool, label.secret);
    let scan = machine.run(ring.scan(0, head)).expect("the power is on");
    let live = scan.frames.keys().map(|position| position % label.log_blocks);
    live.chain([dice.below(label.log_blocks)]).collect()
}

/// The uberblocks of an image, oldest first, with their blocks.
fn uberblocks(label: &Label, image: &SimImage) -> Vec<(Uberblock, u64)> {
    let slots = |area: u64| (area + RING_START)..(area + RING_START + RING_SLOTS);
    let blocks = Label::areas(label.blocks).into_iter().flat_map(slots);
    let parse = |block: u64| Uberblock::parse(&image.read_block(block), label.pool);
    let mut found: Vec<(Uberblock, u64)> =
        blocks.filter_map(|block| Some((parse(block).ok()?, block))).collect();
    found.sort_by_key(|(uberblock, _)| uberblock.number);
    found
}
