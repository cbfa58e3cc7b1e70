//! The guarantees of a simulated device, as examples and against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_runtime::{Runtime, SeededRuntime};
use parking_lot::Mutex;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::*;

const LOG: Purpose = Purpose::Log;

fn filled(byte: u8) -> Bufs {
    Buf::from_bytes(&[byte; BLOCK_BYTES]).into()
}

fn setup(seed: u64) -> (Arc<SeededRuntime>, Arc<SimDevice>) {
    let rt = SeededRuntime::new(seed);
    let device = SimDevice::new(rt.clone(), DeviceId(0), 1 << 20, seed);
    (rt, device)
}

fn write(rt: &SeededRuntime, device: &SimDevice, block: u64, byte: u8) -> Result<(), DeviceError> {
    rt.block_on(device.write(block, filled(byte), LOG))
}

/// First bytes of all sectors of a block.
fn sectors(image: &SimImage, block: u64) -> BTreeSet<u8> {
    image.read_block(block).chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
}

#[test]
fn what_was_flushed_survives_every_crash() {
    let (rt, device) = setup(1);
    write(&rt, &device, 7, 1).unwrap();
    rt.block_on(device.flush()).unwrap();
    write(&rt, &device, 8, 2).unwrap();
    for seed in 0..200 {
        let image = device.crash(seed);
        assert_eq!(sectors(&image, 7), BTreeSet::from([1]));
        assert!(sectors(&image, 8).is_subset(&BTreeSet::from([0, 2])));
    }
}

#[test]
fn what_was_only_written_is_kept_lost_or_torn() {
    let (rt, device) = setup(2);
    write(&rt, &device, 3, 5).unwrap();
    let found: BTreeSet<_> = (0..200).map(|seed| sectors(&device.crash(seed), 3)).collect();
    assert!(found.contains(&BTreeSet::from([0])));
    assert!(found.contains(&BTreeSet::from([5])));
    assert!(found.contains(&BTreeSet::from([0, 5])));
}

#[test]
fn writes_to_different_blocks_survive_in_any_order() {
    let (rt, device) = setup(3);
    write(&rt, &device, 1, 1).unwrap();
    write(&rt, &device, 2, 1).unwrap();
    let found: BTreeSet<_> = (0..200)
        .map(|seed| device.crash(seed))
        .map(|image| (sectors(&image, 1).contains(&1), sectors(&image, 2).contains(&1)))
        .collect();
    assert_eq!(found.len(), 4);
}

#[test]
fn a_flush_covers_only_what_had_completed_before_it_began() {
    let mut lost = false;
    for seed in 0..50 {
        let (rt, device) = setup(seed);
        let write = device.write(4, filled(9), LOG);
        let flush = device.flush();
        rt.block_on(async {
            write.await.unwrap();
            flush.await.unwrap();
        });
        assert_eq!(device.unflushed_writes(), 1);
        lost |= sectors(&device.crash(seed), 4) == BTreeSet::from([0]);
    }
    assert!(lost);
}

#[test]
fn what_is_in_flight_at_a_crash_may_be_there_in_part() {
    let (_, device) = setup(4);
    let _write = device.write(4, filled(9), LOG);
    let found: BTreeSet<_> = (0..200).map(|seed| sectors(&device.crash(seed), 4)).collect();
    assert_eq!(found.len(), 3);
}

#[test]
fn concurrent_writes_complete_in_any_order() {
    let orders: BTreeSet<Vec<u64>> = (0..50)
        .map(|seed| {
            let (rt, device) = setup(seed);
            let order = Arc::new(Mutex::new(Vec::new()));
            for block in 0..4 {
                let (order, write) = (order.clone(), device.write(block, filled(1), LOG));
                rt.spawn(Box::pin(async move {
                    write.await.unwrap();
                    order.lock().push(block);
                }));
            }
            while rt.step() {}
            order.lock().clone()
        })
        .collect();
    assert!(orders.len() > 10, "{orders:?}");
}

#[test]
fn the_same_seed_makes_the_same_history() {
    let run = |seed| {
        let (rt, device) = setup(seed);
        for block in 0..20 {
            let device = device.clone();
            rt.spawn(Box::pin(async move {
                device.write(block, filled(block as u8), LOG).await.unwrap();
                device.flush().await.unwrap();
                device.write(block + 1, filled(7), LOG).await.unwrap();
            }));
        }
        rt.run_for(Duration::from_micros(300));
        (rt.history(), device.digest(), device.crash(seed))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).1, run(2).1);
}

#[test]
fn nothing_completes_after_the_power_is_off() {
    let (rt, device) = setup(5);
    let done = Arc::new(Mutex::new(0));
    let begun = device.write(1, filled(1), LOG);
    device.power_off();
    let (device2, done2) = (device.clone(), done.clone());
    rt.spawn(Box::pin(async move {
        begun.await.unwrap();
        *done2.lock() += 1;
    }));
    let done2 = done.clone();
    rt.spawn(Box::pin(async move {
        device2.write(2, filled(1), LOG).await.unwrap();
        *done2.lock() += 1;
    }));
    rt.block_on(device.until_off());
    while rt.step() {}
    rt.drop_tasks();
    assert_eq!((*done.lock(), device.image().held_blocks()), (0, 0));
    assert_eq!((0..50).map(|seed| device.crash(seed).held_blocks()).max(), Some(1));
}

#[test]
fn the_power_fails_at_the_write_that_was_named() {
    let (rt, device) = setup(6);
    device.arm(Trigger::Write { nth: 1, why: Some(LOG) }, Fault::PowerOff);
    write(&rt, &device, 1, 1).unwrap();
    rt.block_on(device.write(2, filled(1), Purpose::Data)).unwrap();
    let device2 = device.clone();
    rt.spawn(Box::pin(async move { device2.write(3, filled(1), LOG).await.unwrap() }));
    rt.block_on(device.until_off());
    assert_eq!(device.image().held_blocks(), 2);
}

#[test]
fn a_lost_write_is_acknowledged_and_never_there() {
    let (rt, device) = setup(7);
    device.arm(Trigger::Write { nth: 0, why: None }, Fault::Lose);
    write(&rt, &device, 1, 1).unwrap();
    rt.block_on(device.flush()).unwrap();
    assert_eq!(device.read_block_now(1)[0], 0);
}

#[test]
fn a_misdirected_write_destroys_another_block() {
    let (rt, device) = setup(8);
    write(&rt, &device, 1, 1).unwrap();
    device.arm(Trigger::Write { nth: 0, why: None }, Fault::Misdirect { to: 1 });
    write(&rt, &device, 5, 2).unwrap();
    assert_eq!((device.read_block_now(1)[0], device.read_block_now(5)[0]), (2, 0));
}

#[test]
fn a_failed_flush_loses_part_and_the_next_one_succeeds() {
    let mut kept = BTreeSet::new();
    for seed in 0..50 {
        let (rt, device) = setup(seed);
        write(&rt, &device, 1, 1).unwrap();
        device.arm(Trigger::Flush { nth: 0 }, Fault::Error(libc::EIO));
        assert!(matches!(rt.block_on(device.flush()), Err(DeviceError::Flush { .. })));
        rt.block_on(device.flush()).unwrap();
        kept.insert(sectors(&device.crash(0), 1).contains(&1));
    }
    assert_eq!(kept.len(), 2);
}

#[test]
fn a_bad_block_fails_until_it_is_written() {
    let (rt, device) = setup(9);
    device.break_block(3, libc::EIO, Lasting::UntilWritten);
    device.break_block(9, libc::EIO, Lasting::Once);
    for _ in 0..2 {
        assert!(rt.block_on(device.read(2, 4, LOG)).is_err());
    }
    write(&rt, &device, 3, 1).unwrap();
    assert!(rt.block_on(device.read(2, 4, LOG)).is_ok());
    assert!(rt.block_on(device.read(9, 1, LOG)).is_err());
    assert!(rt.block_on(device.read(9, 1, LOG)).is_ok());
}

#[test]
fn a_full_host_refuses_holes_but_not_what_is_written_already() {
    let (rt, device) = setup(10);
    write(&rt, &device, 1, 1).unwrap();
    device.set_host_free(Some(1));
    write(&rt, &device, 2, 1).unwrap();
    write(&rt, &device, 1, 2).unwrap();
    assert!(write(&rt, &device, 3, 1).unwrap_err().is_host_full());
}

#[test]
fn a_full_host_that_copies_refuses_what_is_written_already_too() {
    let (rt, device) = setup(10);
    write(&rt, &device, 1, 1).unwrap();
    write(&rt, &device, 2, 1).unwrap();
    device.set_host_copies(true);
    device.set_host_free(Some(1));
    write(&rt, &device, 1, 2).unwrap();
    write(&rt, &device, 1, 3).unwrap();
    device.set_host_free(Some(0));
    assert!(write(&rt, &device, 1, 4).unwrap_err().is_host_full());
    device.set_host_free(None);
    write(&rt, &device, 1, 5).unwrap();
}

#[test]
fn a_device_that_shrank_fails_beyond_its_end() {
    let (rt, device) = setup(11);
    device.shrink(100);
    assert!(rt.block_on(device.read(99, 1, LOG)).is_ok());
    assert!(rt.block_on(device.read(99, 2, LOG)).is_err());
    assert!(write(&rt, &device, 100, 1).is_err());
    assert_eq!(device.geometry().blocks, 1 << 20);
}

#[test]
fn a_request_past_the_end_is_refused() {
    let (rt, device) = setup(12);
    let past = rt.block_on(device.read((1 << 20) - 1, 2, LOG));
    assert!(matches!(past, Err(DeviceError::OutOfBounds { .. })));
    assert!(rt.block_on(device.discard(u64::MAX, 2)).is_err());
}

#[test]
fn discarded_blocks_hold_anything() {
    let (rt, device) = setup(13);
    let bufs = (0..64).flat_map(|_| filled(1)).collect();
    rt.block_on(device.write(0, bufs, LOG)).unwrap();
    rt.block_on(device.discard(0, 64)).unwrap();
    let image = device.image();
    assert!((1..64).contains(&image.held_blocks()));
    assert!((0..64).any(|block| sectors(&image, block) == BTreeSet::from([1])));
    assert!((0..64).any(|block| !sectors(&image, block).is_subset(&BTreeSet::from([0, 1]))));
}

#[test]
fn a_discard_in_flight_may_destroy_what_is_written_meanwhile() {
    let destroyed = (0..50).any(|seed| {
        let (rt, device) = setup(seed);
        let discard = device.discard(5, 1);
        write(&rt, &device, 5, 1).unwrap();
        rt.block_on(discard).unwrap();
        sectors(&device.image(), 5) != BTreeSet::from([1])
    });
    assert!(destroyed);
}

#[test]
fn an_abandoned_write_lands_later_or_never() {
    let (rt, device) = setup(14);
    drop(device.write(5, filled(1), LOG));
    assert_eq!(device.read_block_now(5)[0], 0);
    for block in 100..140 {
        write(&rt, &device, block, 1).unwrap();
    }
    assert_eq!(device.read_block_now(5)[0], 1);
}

#[test]
fn rot_changes_one_bit_on_the_medium_and_for_readers() {
    let (rt, device) = setup(15);
    write(&rt, &device, 5, 0).unwrap();
    rt.block_on(device.flush()).unwrap();
    let byte = device.rot(5);
    let read = rt.block_on(device.read(5, 1, LOG)).unwrap();
    assert_eq!(read[byte].count_ones(), 1);
    assert_eq!(device.crash(1).read_block(5)[..], read[..]);
}

#[test]
fn counters_and_memory_follow_what_was_done() {
    let (rt, device) = setup(16);
    let bufs = Bufs::from([Buf::zeroed(3), Buf::zeroed(1)]);
    rt.block_on(device.write(1 << 19, bufs, Purpose::Leaf)).unwrap();
    let counts = device.counters().snapshot().purposes[Purpose::Leaf as usize];
    assert_eq!((counts.writes, counts.written_bytes), (1, 4 * 4096));
    assert_eq!(device.image().held_blocks(), 4);
}

#[test]
fn against_a_model_each_sector_holds_a_value_it_may_hold() {
    for seed in 0..100 {
        let (rt, device) = setup(seed);
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        // Per block, the possible contents after a crash now: the flushed value and all since.
        let mut may = BTreeMap::<u64, BTreeSet<u8>>::new();
        let mut now = BTreeMap::<u64, u8>::new();
        for _ in 0..100 {
            let (block, byte) = (rng.next_u64() % 8, rng.next_u64() as u8);
            if rng.next_u64().is_multiple_of(5) {
                rt.block_on(device.flush()).unwrap();
                may = now.iter().map(|(block, byte)| (*block, BTreeSet::from([*byte]))).collect();
            } else {
                write(&rt, &device, block, byte).unwrap();
                may.entry(block).or_insert_with(|| BTreeSet::from([0])).insert(byte);
                now.insert(block, byte);
            }
            let read = rt.block_on(device.read(block, 1, LOG)).unwrap();
            assert_eq!(read[0], now.get(&block).copied().unwrap_or(0));
        }
        for crash in 0..20 {
            let image = device.crash(crash);
            for (block, may) in &may {
                assert!(sectors(&image, *block).is_subset(may), "seed {seed} crash {crash}");
            }
        }
    }
}
