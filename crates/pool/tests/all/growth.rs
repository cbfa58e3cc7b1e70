//! Pools that become larger: in use, through crashes at each write, and with damaged labels.

use std::sync::Arc;

use copyhold_device::DeviceError;
use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_format::label::{AREA_BLOCKS, Label, METASLABS_MAX};
use copyhold_pool::{
    BlockMode, Condition, CreateOptions, GrowProblem, Grown, LaneClass, Limits, NewSize,
    OpenOptions, Pool, PoolError, Tier, Transaction, grow, read_labels,
};
use copyhold_runtime::Rt;
use copyhold_types::{Buf, Bufs, Key, Kind, Purpose, Run, TableId};
use futures_util::future::{Either, select};

use crate::machine::{Machine, READ_ONLY, WRITING};

const TABLE: TableId = TableId(100);
const BLOCK: u64 = 4096;
/// The last metaslab is partial.
const OLD: u64 = 3500;
const NEW: u64 = 9000;
/// Blocks of one item's data.
const DATA: u32 = 150;

fn options() -> CreateOptions {
    CreateOptions {
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        ..CreateOptions::default()
    }
}

fn key(n: u64) -> Key {
    Key::new(n, Kind(40), 0)
}

/// An item with data: its place is the value.
async fn put(pool: &Arc<Pool>, n: u64) -> Result<Run, PoolError> {
    let mut reserved = pool.reserve(u64::from(DATA), Tier::Write).await?;
    let mut claims = pool.claim(LaneClass::Data, DATA.into(), &mut reserved)?;
    let claim = claims.remove(0);
    let run = claim.run();
    let data: Bufs = Buf::from_bytes(&vec![n as u8; run.blocks as usize * BLOCK as usize]).into();
    pool.write(run, data, Purpose::Data, BlockMode::PLAIN).await?;
    let mut tx = Transaction::new();
    tx.allocate(claim);
    let place = [run.addr.raw(), run.blocks.into()];
    tx.put(TABLE, key(n), place.map(u64::to_le_bytes).concat());
    let credit = pool.admit(Tier::Write, 2, 1000).await?;
    let txg = pool.apply(credit, tx)?;
    pool.commit(txg).await?;
    Ok(run)
}

/// Whether all of these items are there, with their data.
async fn expect(pool: &Arc<Pool>, items: u64) {
    for n in 0..items {
        let value = pool.get(TABLE, key(n)).await.unwrap().expect("the item was durable");
        let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
        let run = Run::new(copyhold_types::BlockAddr::from_raw(number(0)), number(8) as u32);
        let data = pool.read(run, Condition::Nothing, Purpose::Data, None).await.unwrap();
        assert!(data.iter().all(|byte| *byte == n as u8), "item {n} at {run:?}");
    }
    pool.space_map().check();
}

/// A pool of the old size with a few items, which was switched off at rest.
fn old_pool() -> SimImage {
    let machine = Machine::on(&SimImage::empty(OLD));
    let rt = machine.rt.clone() as Rt;
    machine.rt.block_on(async {
        Pool::create(&rt, &machine.device(), &options()).await.unwrap();
        let pool = machine.opening(WRITING).await.unwrap();
        for n in 0..3 {
            put(&pool, n).await.unwrap();
        }
        pool.flush_all().await.unwrap();
    });
    machine.disk.crash(1)
}

fn grown() -> Grown {
    Grown { before: OLD * BLOCK, now: NEW * BLOCK }
}

#[test]
fn a_pool_in_use_has_the_new_blocks_at_once_and_after_a_crash() {
    let machine = Machine::on(&old_pool());
    let pool = machine.open(WRITING).unwrap();
    let before = pool.space_map().figures();
    let items = machine.rt.block_on(async {
        assert_eq!(grow(&pool, NewSize::To(NEW * BLOCK)).await.unwrap(), grown());
        let now = pool.space_map().figures();
        assert_eq!((now.total, now.free), (before.total + NEW - OLD, before.free + NEW - OLD));
        assert!(now.reserve >= before.reserve);
        assert_eq!(pool.label().blocks, NEW);
        let mut items = 3;
        let mut last = 0;
        while let Ok(run) = put(&pool, items).await {
            (items, last) = (items + 1, last.max(run.end()));
        }
        assert!(last > NEW - 1024, "the last block that was used is {last}");
        pool.flush_all().await.unwrap();
        expect(&pool, items).await;
        items
    });
    drop(pool);
    let machine = Machine::on(&machine.disk.crash(2));
    let pool = machine.open(WRITING).unwrap();
    machine.rt.block_on(expect(&pool, items));
    assert_eq!(pool.label().blocks, NEW);
}

/// Everything is found in one of both sizes, also with one damaged label.
#[test]
fn the_power_may_fail_at_any_request_of_a_growth() {
    let image = old_pool();
    let mut sizes = [0, 0];
    for of_kind in [|nth| Trigger::Write { nth, why: None }, |nth| Trigger::Flush { nth }] {
        for nth in 0.. {
            let trigger = of_kind(nth);
            let machine = Machine::seeded(&image, nth + 1);
            let pool = machine.open(WRITING).unwrap();
            machine.disk.arm(trigger, Fault::PowerOff);
            let work = Box::pin(async {
                grow(&pool, NewSize::To(NEW * BLOCK)).await.unwrap();
                put(&pool, 3).await.unwrap();
            });
            let worked = machine.rt.block_on(select(work, machine.disk.until_off()));
            let has_grown = matches!(worked, Either::Left(_));
            drop(worked);
            drop(pool);
            // The first flush of the growth has ended.
            let is_prepared = nth > 0;
            for seed in 0..4 {
                let after = machine.disk.crash(seed);
                for damaged in [None, Some(0), Some(1)] {
                    let size = opens(&after, damaged, is_prepared, 3 + u64::from(has_grown));
                    assert!(size == NEW || !has_grown, "it had grown");
                    sizes[usize::from(size == NEW)] += 1;
                }
            }
            if has_grown {
                break;
            }
        }
    }
    assert!(sizes.iter().all(|count| *count > 10), "{sizes:?}");
}

/// Opens the pool with a damaged label, grows it and looks at it once more. Of a growth that is
/// prepared, the other label is good, wherever the power failed (GROW-G1).
fn opens(image: &SimImage, damaged: Option<usize>, is_prepared: bool, items: u64) -> u64 {
    let mut image = image.clone();
    let first = Label::parse(&image.read_block(0));
    if let Some(area) = damaged {
        // Of a growth that has gone as far as its last label, the first may be torn already.
        let blocks = first.map_or(image.blocks(), |label| label.blocks);
        image.corrupt(Label::areas(blocks)[area], |bytes| bytes[20] ^= 1);
    }
    let machine = Machine::on(&image);
    if let Err(error) = machine.rt.block_on(read_labels(&machine.device())) {
        // The crash has come before the first flush of the growth.
        assert!(!is_prepared, "{damaged:?}: {error}");
        let end = image.read_block(image.blocks() - AREA_BLOCKS);
        let is_torn = |block: &[u8]| Label::parse(block).is_err();
        assert!(is_torn(&image.read_block(0)) && is_torn(&end) && damaged.is_some(), "{error}");
        return OLD;
    }
    let pool = machine.open(WRITING).unwrap();
    let size = pool.label().blocks;
    assert!([OLD, NEW].contains(&size), "{size} blocks");
    machine.rt.block_on(async {
        expect(&pool, items).await;
        let labels = read_labels(&machine.device()).await.unwrap();
        assert_eq!(labels.problems, [None, None], "opening repairs labels");
        grow(&pool, NewSize::By((NEW + 500 - size) * BLOCK)).await.unwrap();
        put(&pool, items).await.unwrap();
        pool.close().await.unwrap();
    });
    drop(pool);
    let pool = machine.open(READ_ONLY).unwrap();
    machine.rt.block_on(expect(&pool, items + 1));
    assert_eq!(pool.label().blocks, NEW + 500);
    size
}

/// A label of the larger pool at the end of the device, which an interrupted growth has left, does
/// not count when the pool was used in its old size since.
#[test]
fn an_interrupted_growth_is_forgotten_by_the_next_mount_that_writes() {
    let image = old_pool();
    let machine = Machine::on(&image);
    let pool = machine.open(WRITING).unwrap();
    // The last write of a growth is the first label.
    let labels = 2; // After the area, and the label at the end.
    machine.disk.arm(Trigger::Write { nth: labels, why: Some(Purpose::Label) }, Fault::PowerOff);
    let growth = Box::pin(grow(&pool, NewSize::To(NEW * BLOCK)));
    let off = machine.rt.block_on(select(growth, machine.disk.until_off()));
    assert!(matches!(off, Either::Right(_)));
    drop(off);
    drop(pool);
    let mut after = (0..99).map(|seed| machine.disk.crash(seed)).find(|image| {
        let first = Label::parse(&image.read_block(0)).map(|label| label.blocks);
        image.blocks() == NEW && first == Ok(OLD)
    });
    let after = after.as_mut().unwrap();
    assert_eq!(Label::parse(&after.read_block(NEW - AREA_BLOCKS)).unwrap().blocks, NEW);
    let machine = Machine::on(after);
    let pool = machine.open(WRITING).unwrap();
    machine.rt.block_on(pool.close()).unwrap();
    let copy = Label::parse(&machine.disk.read_block_now(NEW - AREA_BLOCKS)).unwrap();
    assert_eq!((copy, first_label(&machine)), (pool.label(), pool.label()));
}

fn first_label(machine: &Machine) -> Label {
    Label::parse(&machine.disk.read_block_now(0)).unwrap()
}

#[test]
fn a_label_that_cannot_be_written_stops_the_pool_and_loses_nothing() {
    let image = old_pool();
    for (nth, stops) in [(0, false), (1, false), (2, true)] {
        let machine = Machine::on(&image);
        let pool = machine.open(WRITING).unwrap();
        let write = Trigger::Write { nth, why: Some(Purpose::Label) };
        machine.disk.arm(write, Fault::Error(5));
        machine.rt.block_on(async {
            let failed = grow(&pool, NewSize::Max).await.unwrap();
            assert_eq!(failed.before, failed.now, "all of the device is used already");
            let failed = grow(&pool, NewSize::To(NEW * BLOCK)).await;
            assert!(matches!(failed, Err(PoolError::Device(DeviceError::Write { .. }))));
            assert_eq!(put(&pool, 3).await.is_err(), stops, "write {nth}");
            expect(&pool, 3).await;
        });
        let label = pool.label();
        drop(pool);
        let after = machine.disk.image();
        if !stops {
            let end = Label::parse(&after.read_block(after.blocks() - AREA_BLOCKS)).unwrap();
            assert_eq!((end, label.blocks), (label, OLD), "the end leads to the pool again");
        }
        for damaged in [None, Some(0)] {
            opens(&after, damaged, true, if stops { 3 } else { 4 });
        }
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_and_nothing_changes() {
    let image = old_pool();
    let machine = Machine::on(&image);
    let pool = machine.open(WRITING).unwrap();
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    let image = machine.disk.image();
    let machine = Machine::on(&image);
    let pool = machine.open(WRITING).unwrap();
    let before = OLD * BLOCK;
    let metaslab = 1024 * BLOCK;
    let most = METASLABS_MAX * metaslab;
    let of = |to| machine.rt.block_on(grow(&pool, to));
    for (to, wanted) in [
        (NewSize::To(before - BLOCK), GrowProblem::Smaller { before, wanted: before - BLOCK }),
        (NewSize::To(before + 1), GrowProblem::NoMultiple { wanted: before + 1 }),
        (NewSize::By(100), GrowProblem::NoMultiple { wanted: before + 100 }),
        (NewSize::By(63 * BLOCK), GrowProblem::TooLittle { before }),
        (NewSize::To(most + BLOCK), GrowProblem::TooLarge { metaslab, most }),
        (NewSize::By(u64::MAX), GrowProblem::NoMultiple { wanted: u64::MAX }),
    ] {
        let refused = of(to);
        assert!(
            matches!(&refused, Err(PoolError::Grow { problem, .. }) if *problem == wanted),
            "{to:?}: {refused:?}"
        );
    }
    machine.disk.set_host_free(Some(20));
    let refused = of(NewSize::By(1 << 20)).unwrap_err();
    assert!(matches!(&refused, PoolError::Device(error) if error.is_host_full()), "{refused}");
    machine.disk.set_host_free(None);
    assert_eq!(pool.label().blocks, OLD);
    let same = of(NewSize::To(before)).unwrap();
    assert_eq!(same, Grown { before, now: before });
    assert_eq!(of(NewSize::To(NEW * BLOCK)).unwrap(), grown());
    drop(pool);
    let pool = machine.open(READ_ONLY).unwrap();
    let refused = machine.rt.block_on(grow(&pool, NewSize::By(1 << 20)));
    assert!(matches!(refused, Err(PoolError::ReadOnly { .. })), "{refused:?}");
}

/// A device that is longer than its pool keeps a copy of the label at its end.
#[test]
fn a_pool_may_use_a_part_of_its_longer_device() {
    let machine = Machine::on(&SimImage::empty(2 * NEW));
    let create = CreateOptions { blocks: Some(OLD), ..options() };
    let (rt, device) = (machine.rt.clone() as Rt, machine.device());
    machine.rt.block_on(Pool::create(&rt, &device, &create)).unwrap();
    let pool = machine.open(WRITING).unwrap();
    let size = 2 * NEW;
    let refused = machine.rt.block_on(grow(&pool, NewSize::To((size - 1) * BLOCK)));
    let wanted = GrowProblem::NoRoomBehind { device: size * BLOCK };
    assert!(matches!(refused, Err(PoolError::Grow { problem, .. }) if problem == wanted));
    for (to, blocks) in [(NewSize::To(NEW * BLOCK), NEW), (NewSize::Max, size)] {
        machine.rt.block_on(grow(&pool, to)).unwrap();
        for at in [0, blocks - AREA_BLOCKS, size - AREA_BLOCKS] {
            let label = Label::parse(&machine.disk.read_block_now(at)).unwrap();
            assert_eq!(label, pool.label(), "at {at}");
        }
        assert_eq!(pool.label().blocks, blocks);
        machine.rt.block_on(put(&pool, 0)).unwrap();
    }
}

#[test]
fn a_growth_beyond_the_budget_of_memory_is_refused() {
    let machine = Machine::on(&old_pool());
    let limits = Limits { blocks_max: NEW, ..Limits::default() };
    let (rt, options) = (machine.rt.clone() as Rt, OpenOptions { limits, ..Default::default() });
    let pool = machine.rt.block_on(Pool::open(rt, machine.device(), options)).unwrap();
    let refused = machine.rt.block_on(grow(&pool, NewSize::To((NEW + 1) * BLOCK)));
    let most = GrowProblem::OverBudget { most: NEW * BLOCK };
    assert!(matches!(refused, Err(PoolError::Grow { problem, .. }) if problem == most));
    assert_eq!(machine.disk.image().blocks(), OLD, "the device is as long as it was");
    assert_eq!(machine.rt.block_on(grow(&pool, NewSize::To(NEW * BLOCK))).unwrap(), grown());
}

/// The host is full, and the file has a hole where the copy of the label belongs.
#[test]
fn a_pool_opens_although_the_copy_of_its_label_finds_no_room() {
    let longer = Machine::on(&old_pool());
    longer.rt.block_on(longer.device().grow(NEW, OLD..OLD)).unwrap();
    let mut image = longer.disk.image();
    let machine = Machine::on(&image);
    machine.disk.set_host_free(Some(0));
    let pool = machine.open(WRITING).unwrap();
    machine.rt.block_on(expect(&pool, 3));
    drop(pool);
    // A label of an interrupted growth must not stay.
    let later = Label { blocks: NEW, generation: 2, ..first_label(&machine) };
    let at = NEW - AREA_BLOCKS;
    image.corrupt(at, |block| block.copy_from_slice(&later.encode()));
    for (nth, opens) in [(0, false), (99, true)] {
        let machine = Machine::on(&image);
        let write = Trigger::Write { nth, why: Some(Purpose::Label) };
        machine.disk.arm(write, Fault::Error(5));
        assert_eq!(machine.open(WRITING).is_ok(), opens, "write {nth}");
    }
}
