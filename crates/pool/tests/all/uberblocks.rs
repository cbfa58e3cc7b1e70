//! Uberblocks that are lost, in both areas or in one: a pool is opened with the newest that is
//! left, if its log is there for certain (R6), and refused otherwise.

use std::sync::Arc;

use copyhold_device::sim::{Fault, Lasting, SimImage, Trigger};
use copyhold_format::label::{Label, RING_SLOTS, RING_START};
use copyhold_format::uberblock::Uberblock;
use copyhold_pool::{Pool, read_labels, read_uberblocks};
use copyhold_types::Purpose;
use futures_util::future::{Either, select};

use crate::extents;
use crate::machine::{CUT_TAIL, Machine, READ_ONLY, WRITING};

const LOG_BLOCKS: u64 = 128;
const FILES: u64 = 8;
const EIO: &str = "Input/output error";
/// How the blocks of a slot are lost: they rot, or cannot be read.
const LOSSES: [Option<Lasting>; 3] = [None, Some(Lasting::UntilWritten), Some(Lasting::Forever)];

fn label(machine: &Machine) -> Label {
    machine.rt.block_on(read_labels(&machine.device())).unwrap().label
}

fn found(image: &SimImage) -> Vec<Uberblock> {
    let machine = Machine::on(image);
    let label = label(&machine);
    machine.rt.block_on(read_uberblocks(&machine.device(), &label)).unwrap()
}

/// Both places of an uberblock.
fn places(number: u64) -> [u64; 2] {
    Label::areas(4096).map(|area| area + RING_START + number % RING_SLOTS)
}

/// Files that hold `version`, each acknowledged, and as many uberblocks.
fn write(machine: &Machine, pool: &Arc<Pool>, version: u8, files: u64) {
    machine.rt.block_on(async {
        for n in 0..files {
            extents::commit(pool, n, version, 1).await;
            pool.flush_all().await.unwrap();
        }
    });
}

fn versions(machine: &Machine, pool: &Arc<Pool>) -> Vec<u8> {
    let read = |n| machine.rt.block_on(extents::read(pool, n)).unwrap().unwrap();
    (0..FILES).map(read).collect()
}

/// A pool whose log has come round several times: it has what the last three uberblocks need, and
/// not what the others do.
fn with_wrapped_log() -> SimImage {
    let (machine, pool) = Machine::new_pool(LOG_BLOCKS << 12);
    for version in 1..=10 {
        write(&machine, &pool, version, FILES);
    }
    drop(pool);
    let image = machine.disk.crash(1);
    let found = found(&image);
    let [.., fourth, _, _, newest] = &found[..] else { panic!("{} uberblocks", found.len()) };
    assert!(newest.number > 2 * RING_SLOTS);
    assert!(fourth.head < newest.head);
    image
}

fn lose(image: &SimImage, numbers: impl Iterator<Item = u64>, loss: Option<Lasting>) -> Machine {
    let blocks: Vec<u64> = numbers.flat_map(places).collect();
    let mut image = image.clone();
    if loss.is_none() {
        blocks.iter().for_each(|block| image.corrupt(*block, |bytes| bytes[9] ^= 1));
    }
    let machine = Machine::on(&image);
    if let Some(lasting) = loss {
        machine.break_blocks(&blocks, lasting);
    }
    machine
}

#[test]
fn the_two_newest_may_be_lost_in_every_mode() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for loss in LOSSES {
        for lost in 0..=2 {
            for mode in [WRITING, READ_ONLY, CUT_TAIL] {
                let what = format!("{lost} lost, {loss:?}, {mode:?}");
                let machine = lose(&image, newest + 1 - lost..=newest, loss);
                let pool = machine.open(mode).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(pool.cut(), None, "{what}");
                assert_eq!(versions(&machine, &pool), [10; 8], "{what}");
                let version = if mode == READ_ONLY { 10 } else { 11 };
                if mode != READ_ONLY {
                    write(&machine, &pool, version, FILES);
                }
                drop(pool);
                machine.rt.drop_tasks();
                // All can be read again.
                let machine = Machine::on(&machine.disk.crash(1));
                let pool = machine.open(WRITING).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(versions(&machine, &pool), vec![version; 8], "{what}");
            }
        }
    }
}

#[test]
fn a_pool_that_may_have_lost_more_than_two_is_refused_in_every_mode() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for loss in LOSSES {
        for lost in 3..=5 {
            for mode in [WRITING, READ_ONLY, CUT_TAIL] {
                let machine = lose(&image, newest + 1 - lost..=newest, loss);
                let text = machine.open(mode).err().expect("it is refused").to_string();
                let wanted = if loss.is_some() { EIO } else { "copyhold debug export" };
                assert!(text.contains(wanted), "{lost} lost, {loss:?}, {mode:?}: {text}");
            }
        }
    }
}

/// UBER-U1: an uberblock that could not be read for one mount has no say any more.
#[test]
fn none_that_was_lost_comes_back() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for lost in 1..=2 {
        for loss in &LOSSES[1..] {
            let machine = lose(&image, newest + 1 - lost..=newest, *loss);
            drop(machine.open(WRITING).unwrap());
            let left = found(&machine.disk.crash(1));
            let heads: Vec<u64> = left.iter().rev().take(3).map(|u| u.head).collect();
            let number = left.last().unwrap().number;
            assert_eq!(number, newest, "{lost} lost, {loss:?}");
            assert!(heads[..=lost as usize].iter().all(|head| *head == heads[0]), "{heads:?}");
        }
    }
}

/// Losses at one mount after the other do not add up, and nothing that was acknowledged is lost.
#[test]
fn losses_at_each_of_many_mounts_lose_nothing() {
    let wrapped = with_wrapped_log();
    for seed in 1..=60 {
        let (mut image, mut wanted) = (wrapped.clone(), vec![10; FILES as usize]);
        for version in 11..17 {
            let mut dice = seed * 1000 + u64::from(version);
            let mut below = |limit: u64| {
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (dice >> 33) % limit
            };
            let newest = found(&image).pop().unwrap().number;
            // The next one was torn in both areas when the power failed.
            let torn = below(2);
            if torn == 1 {
                for block in places(newest + 1) {
                    image.corrupt(block, |bytes| bytes[9] ^= 1);
                }
            }
            let (lost, loss) = (below(3 - torn), LOSSES[below(3) as usize]);
            let machine = lose(&image, newest + 1 - lost..=newest, loss);
            let what = format!("seed {seed}, {lost} lost, {loss:?}");
            let pool = machine.open(WRITING).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(versions(&machine, &pool), wanted, "{what}");
            let files = below(4);
            write(&machine, &pool, version, files);
            wanted[..files as usize].fill(version);
            drop(pool);
            image = machine.disk.crash(seed);
        }
    }
}

/// One that is missing among older ones is written again, too: it would count as lost behind them.
#[test]
fn a_hole_is_filled_by_the_next_mount() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for hole in [newest - 2, newest - 1] {
        let machine = lose(&image, hole..=hole, None);
        drop(machine.open(WRITING).unwrap());
        let found = found(&machine.disk.crash(1));
        let [.., one, two, three] = &found[..] else { panic!("{} uberblocks", found.len()) };
        assert_eq!([one.number, two.number, three.number], [newest - 2, newest - 1, newest]);
        assert!(one.head <= two.head && two.head <= three.head, "the log of each is kept (R6)");
    }
    let machine = lose(&image, newest - 1..=newest - 1, None);
    drop(machine.open(WRITING).unwrap());
    let image = machine.disk.crash(1);
    let mut others = image.clone();
    for block in [newest - 2, newest].into_iter().flat_map(places) {
        others.corrupt(block, |bytes| bytes[9] ^= 1);
    }
    let machine = Machine::on(&others);
    assert_eq!(versions(&machine, &machine.open(WRITING).unwrap()), [10; 8]);
}

/// The power fails at each write of the repair, and the two newest of what that leaves are lost.
#[test]
fn a_crash_in_the_midst_of_the_repair_loses_nothing() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for seed in 1..=40 {
        let machine = lose(&image, newest - 1..=newest, None);
        let nth = seed % 6;
        machine.disk.arm(Trigger::Write { nth, why: Some(Purpose::Label) }, Fault::PowerOff);
        let opened = machine.rt.block_on(async {
            let off = std::pin::pin!(machine.disk.until_off());
            let opening = std::pin::pin!(machine.opening(WRITING));
            matches!(select(opening, off).await, Either::Left(_))
        });
        assert!(!opened || nth > 3, "seed {seed}: the power fails");
        machine.rt.drop_tasks();
        let image = machine.disk.crash(seed);
        let machine = Machine::on(&image);
        let pool = machine.open(WRITING).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        write(&machine, &pool, 11, 1);
        drop(pool);
        let image = machine.disk.crash(seed);
        let newest = found(&image).pop().unwrap().number;
        let machine = lose(&image, newest - 1..=newest, None);
        let pool = machine.open(WRITING).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(versions(&machine, &pool), [11, 10, 10, 10, 10, 10, 10, 10], "seed {seed}");
    }
}

/// The other area has it.
#[test]
fn an_area_that_takes_no_writes_keeps_nobody_out() {
    let mut image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    image.corrupt(places(newest)[1], |bytes| bytes[9] ^= 1);
    let machine = Machine::on(&image);
    let first = Trigger::Write { nth: 0, why: Some(Purpose::Label) };
    machine.disk.arm(first, Fault::Error(5));
    assert_eq!(versions(&machine, &machine.open(WRITING).unwrap()), [10; 8]);
}

/// A mount makes both areas whole: one of them alone leads to all that is durable.
#[test]
fn what_one_area_lacks_is_written_there_by_the_next_mount() {
    let image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for lacking in 0..2 {
        let mut image = image.clone();
        for number in newest - 2..=newest {
            image.corrupt(places(number)[lacking], |bytes| bytes[9] ^= 1);
        }
        let machine = Machine::on(&image);
        drop(machine.open(WRITING).unwrap());
        let image = machine.disk.crash(1);
        let machine = Machine::on(&image);
        let other = (0..RING_SLOTS).map(|number| places(number)[1 - lacking]);
        machine.break_blocks(&other.collect::<Vec<_>>(), Lasting::Forever);
        let label = label(&machine);
        let left = machine.rt.block_on(read_uberblocks(&machine.device(), &label)).unwrap();
        assert_eq!(left.last().unwrap().number, newest);
        let pool = machine.open(WRITING).unwrap();
        assert_eq!(versions(&machine, &pool), [10; 8]);
    }
}

/// Zeros say that a slot was never used only where the ring has not come round.
#[test]
fn zeros_in_one_area_prove_nothing_in_a_pool_that_is_not_new() {
    let mut image = with_wrapped_log();
    let newest = found(&image).pop().unwrap().number;
    for number in 0..RING_SLOTS {
        image.corrupt(places(number)[1], |bytes| bytes.fill(0));
    }
    for mode in [WRITING, READ_ONLY, CUT_TAIL] {
        let machine = lose(&image, newest..=newest, None);
        assert_eq!(versions(&machine, &machine.open(mode).unwrap()), [10; 8]);
        let machine = lose(&image, newest - 2..=newest, None);
        let text = machine.open(mode).err().expect("it is refused").to_string();
        assert!(text.contains("may be lost"), "{mode:?}: {text}");
    }
}

/// Nor where the area has lost the newest, too.
#[test]
fn zeros_in_an_area_that_was_wiped_prove_nothing_in_a_new_pool() {
    let (machine, pool) = Machine::new_pool(LOG_BLOCKS << 12);
    write(&machine, &pool, 1, FILES);
    drop(pool);
    let mut image = machine.disk.crash(1);
    let newest = found(&image).pop().unwrap().number;
    assert!(newest < RING_SLOTS);
    for number in 0..RING_SLOTS {
        image.corrupt(places(number)[1], |bytes| bytes.fill(0));
    }
    for lost in 0..5 {
        let machine = lose(&image, newest + 1 - lost..=newest, None);
        assert_eq!(machine.open(READ_ONLY).is_ok(), lost < 3, "{lost} lost");
    }
}

#[test]
fn one_area_of_a_new_pool_may_be_unreadable() {
    let (machine, pool) = Machine::new_pool(LOG_BLOCKS << 12);
    write(&machine, &pool, 1, FILES);
    drop(pool);
    let image = machine.disk.crash(1);
    assert!(found(&image).pop().unwrap().number < RING_SLOTS);
    for area in 0..2 {
        let machine = Machine::on(&image);
        let ring = (0..RING_SLOTS).map(|number| places(number)[area]);
        machine.break_blocks(&ring.collect::<Vec<_>>(), Lasting::Forever);
        assert_eq!(versions(&machine, &machine.open(WRITING).unwrap()), [1; 8]);
    }
}
