//! Damage to a disk that is switched off.

use std::collections::BTreeMap;

use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::label::{Label, RING_SLOTS, RING_START};
use copyhold_format::log::HEADER_BYTES;
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Found, Ring};
use copyhold_types::BLOCK_BYTES;

use crate::dice::Dice;
use crate::machine::Machine;
use crate::weather::Weather;

/// Applies the damage of a weather after a power failure; newly unreadable blocks are added to the
/// unreadable ones.
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

/// The log rots in several places, and no block in both copies.
fn rot_log(dice: &mut Dice, label: &Label, image: &mut SimImage) {
    let frames = frames(dice, label, image);
    let blocks: Vec<u64> = frames.iter().flatten().copied().collect();
    let mut copies = BTreeMap::new();
    for _ in 0..1 + dice.below(6) {
        copies.insert(dice.pick(&blocks), dice.below(2) as usize);
    }
    // Of one frame no copy is whole.
    let frame = pick_frame(dice, &frames);
    for copy in 0..2 {
        copies.insert(dice.pick(frame), copy);
    }
    for (at, copy) in copies {
        rot(dice, image, label.log[copy] + at);
    }
}

/// Blocks of the log that cannot be read: in one copy, the same in both, different ones of a frame,
/// or the first one of a frame, which is rotten in the other copy.
fn unreadable_log(dice: &mut Dice, label: &Label, image: &mut SimImage) -> Vec<(u64, Lasting)> {
    let frames = frames(dice, label, image);
    let frame = pick_frame(dice, &frames);
    let at = dice.pick(frame);
    let lasting = dice.pick(&[Lasting::Once, Lasting::UntilWritten, Lasting::Forever]);
    let other = dice.pick(frame);
    let bad = match dice.below(6) {
        0 => vec![label.log[0] + at],
        1 => vec![label.log[1] + at],
        2 => vec![label.log[0] + at, label.log[1] + at],
        3 => vec![label.log[0] + at, label.log[1] + other],
        _ => {
            // Mostly the last frame: a later frame shows that an earlier one is missing.
            let frames = &frames[..frames.len() - 1];
            let last = frames.last().filter(|_| !dice.one_in(4));
            let head = last.map_or(frame, |frame| frame)[0];
            let copy = dice.below(2) as usize;
            rot_head(dice, image, label.log[1 - copy] + head);
            vec![label.log[copy] + head]
        }
    };
    bad.into_iter().map(|block| (block, lasting)).collect()
}

/// The head of a frame rots: a bit of it, or all.
fn rot_head(dice: &mut Dice, image: &mut SimImage, block: u64) {
    let byte = dice.below(HEADER_BYTES as u64) as usize;
    let is_wiped = dice.one_in(2);
    image.corrupt(block, |bytes| match is_wiped {
        true => bytes.fill(0),
        false => bytes[byte] ^= 1,
    });
}

/// The newest one or two of the uberblocks rot, on both labels; of these one, where the power has
/// torn the next. The log of older ones is kept (rule R6).
fn rot_uberblocks(dice: &mut Dice, label: &Label, image: &mut SimImage) {
    let found = uberblocks(label, image);
    let newest = found.last().map_or(0, |(uberblock, _)| uberblock.number);
    let is_torn = slots(label, newest + 1).iter().all(|block| {
        let bytes = image.read_block(*block);
        bytes != [0; BLOCK_BYTES] && Uberblock::parse(&bytes, label.pool).is_err()
    });
    let second = dice.below(2).min(u64::from(!is_torn));
    let oldest_lost = newest.saturating_sub(second).max(2);
    for (_, block) in found.iter().filter(|(found, _)| found.number >= oldest_lost) {
        rot(dice, image, *block);
    }
}

/// Both places of an uberblock.
fn slots(label: &Label, number: u64) -> [u64; 2] {
    Label::areas(label.blocks).map(|area| area + RING_START + number % RING_SLOTS)
}

/// One of the blocks of the ring that recovery reads.
pub(crate) fn log_block(dice: &mut Dice, label: &Label, image: &SimImage) -> u64 {
    let frames = frames(dice, label, image);
    frames[dice.below(frames.len() as u64) as usize][0]
}

/// The log that the last three uberblocks need has not been overwritten (R6).
pub(crate) fn check_kept_log(label: &Label, image: &SimImage) {
    let found = uberblocks(label, image);
    let Some((newest, _)) = found.last() else { return };
    let machine = Machine::on(0, image.clone());
    let ring = Ring::new(machine.device(), label.log, label.log_blocks, label.pool, label.secret);
    let end = machine.run(ring.scan(newest.head)).expect("the power is on").end;
    for (uberblock, _) in found.iter().filter(|(found, _)| found.number + 3 > newest.number) {
        let (number, head) = (uberblock.number, uberblock.head);
        let kept = end <= head + label.log_blocks;
        assert!(kept, "R6: uberblock {number} needs the log from {head}, but it goes on to {end}");
    }
}

/// Mostly one of several blocks.
fn pick_frame<'f>(dice: &mut Dice, frames: &'f [Vec<u64>]) -> &'f [u64] {
    let long: Vec<&'f [u64]> = frames.iter().map(|f| &f[..]).filter(|f| f.len() > 1).collect();
    match long.is_empty() || dice.one_in(4) {
        true => &frames[dice.below(frames.len() as u64) as usize],
        false => dice.pick(&long),
    }
}

/// The blocks of each frame of the live log, and one other block.
fn frames(dice: &mut Dice, label: &Label, image: &SimImage) -> Vec<Vec<u64>> {
    let head = uberblocks(label, image).last().map_or(0, |(uberblock, _)| uberblock.head);
    let machine = Machine::on(0, image.clone());
    let ring = Ring::new(machine.device(), label.log, label.log_blocks, label.pool, label.secret);
    let scan = machine.run(ring.scan(head)).expect("the power is on");
    let blocks = |(position, found): (&u64, &Found)| {
        let at = position % label.log_blocks;
        (at..at + found.frame.blocks).collect()
    };
    let live = scan.frames.iter().map(blocks);
    live.chain([vec![dice.below(label.log_blocks)]]).collect()
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
