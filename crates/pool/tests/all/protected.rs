//! Pools on a device with protection information.

use std::sync::Arc;

use copyhold_device::pi::{self, DriveFault, Emulated, Format};
use copyhold_device::sim::{Fault, Lasting, SimImage, Trigger, make_namespace};
use copyhold_device::{Device, DynDevice, OpenMode};
use copyhold_format::item::ChecksumMode;
use copyhold_format::label::{Features, Label, NeededNamespace};
use copyhold_pool::{
    CreateOptions, Failure, LaneClass, OpenOptions, Pool, PoolError, Tier, Transaction, block_mode,
    cancel_written, leave_trace, read_labels,
};
use copyhold_runtime::Rt;
use copyhold_types::{Buf, DeviceId, Purpose};
use futures_util::future::{Either, select};

use crate::machine::Machine;

const BLOCKS: u64 = 4096;
const EIO: i32 = 5;
const EILSEQ: i32 = 84;
/// Features of a pool that may be written.
const IN_USE: u64 = Features::FRAGMENTS | Features::MAP_DELTAS;

struct World {
    machine: Machine,
    device: Arc<Emulated>,
    label: Label,
}

impl World {
    fn new(format: &str) -> World {
        let machine = Machine::on(&SimImage::empty(BLOCKS));
        let rt: Rt = machine.rt.clone();
        let device = make_namespace(&machine.rt, &machine.disk, format);
        let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
        let namespace: DynDevice = device.clone();
        let label = machine.rt.block_on(Pool::create(&rt, &namespace, &options)).unwrap();
        World { machine, device, label }
    }

    /// The pool, with the trace that a file with checksum mode guard leaves.
    async fn open_with_trace(&self) -> Arc<Pool> {
        let (rt, device): (Rt, DynDevice) = (self.machine.rt.clone(), self.device.clone());
        let pool = Pool::open(rt, device, OpenOptions::default()).await.unwrap();
        leave_trace(&pool, ChecksumMode::Guard).await.unwrap();
        pool
    }
}

#[test]
fn a_bad_block_of_tuples_fails_no_write_of_log_labels_or_nodes() {
    let world = World::new("4096+16:64b");
    let rt: Rt = world.machine.rt.clone();
    let fixed = Label::areas(world.label.blocks).into_iter().chain(world.label.log);
    let bad = fixed.map(|block| world.device.place_of_metadata(block).0).collect::<Vec<u64>>();
    for errno in [EIO, EILSEQ] {
        for block in &bad {
            world.machine.disk.break_block(*block, errno, Lasting::Forever);
        }
        world.machine.rt.block_on(async {
            for _ in 0..3 {
                let found = Emulated::find(rt.clone(), world.machine.device(), OpenMode::ReadWrite);
                let device = found.await.unwrap().unwrap();
                let pool = Pool::open(rt.clone(), device, OpenOptions::default()).await.unwrap();
                pool.commit(pool.open_txg()).await.unwrap();
                pool.flush_all().await.unwrap();
                pool.close().await.unwrap();
            }
        });
    }
}

/// Opens the pool on a disk with this content, as a program does.
fn open(image: &SimImage) -> (Result<Arc<Pool>, PoolError>, Machine) {
    let machine = Machine::on(image);
    let rt: Rt = machine.rt.clone();
    let opened = machine.rt.block_on(async {
        let device = pi::open(rt.clone(), machine.device(), OpenMode::ReadWrite).await?;
        Pool::open(rt, device, OpenOptions::default()).await
    });
    (opened, machine)
}

/// The text of the refusal; nothing was written.
#[track_caller]
fn refusal(image: &SimImage) -> String {
    let (opened, machine) = open(image);
    let refused = opened.err().expect("it is refused").to_string();
    assert!(machine.disk.image() == *image, "NEEDS-P1: nothing is written");
    let read = machine.rt.block_on(read_labels(&machine.device()));
    let _is_refused_too = read.expect_err("the views of other programs refuse it, too");
    refused
}

/// The first `blocks` blocks, and zeros behind them if there are more.
fn resized(image: &SimImage, blocks: u64) -> SimImage {
    let mut resized = SimImage::empty(blocks);
    for at in 0..blocks.min(image.blocks()) {
        let content = image.read_block(at);
        resized.corrupt(at, |block| *block = content);
    }
    resized
}

#[test]
fn the_label_names_the_protection_of_the_device() {
    for format in ["4096+16:64b", "512+8:16b", "4096+64:64b:type3:first:sts=48"] {
        let world = World::new(format);
        let needed = world.label.namespace.unwrap();
        assert_eq!(Format::of_bytes(needed.format), format.parse());
        assert_eq!(Some(needed.identity), world.device.identity());
        assert!(world.label.features.incompat & Features::PROTECTED != 0);
        let (opened, _) = open(&world.machine.disk.image());
        let pool = opened.unwrap();
        assert_eq!(pool.devices().protection(), format.parse().ok());
    }
    let (machine, _) = Machine::new_pool(1 << 20);
    let label = machine.rt.block_on(read_labels(&machine.device())).unwrap().label;
    assert_eq!((label.namespace, label.features.incompat), (None, IN_USE));
}

#[test]
fn a_pool_is_refused_without_the_protection_that_it_needs() {
    let world = World::new("4096+16:64b");
    let image = world.machine.disk.image();
    let data_blocks = world.device.geometry().blocks;

    let copy = refusal(&resized(&image, data_blocks));
    assert!(copy.contains("the file was cut, or is a copy of the data alone; use"), "{copy}");
    let cut = refusal(&resized(&image, BLOCKS - 2));
    assert!(cut.contains("4096 blocks of 4 KiB with it, and there are 4094"), "{cut}");
    let extended = refusal(&resized(&image, BLOCKS + 100));
    assert!(extended.contains("if the file was extended, restore its size"), "{extended}");
    let mut bare = image.clone();
    [BLOCKS - 2, BLOCKS - 1].into_iter().for_each(|at| bare.corrupt(at, |block| block.fill(0)));
    assert!(refusal(&bare).contains("no header of it can be read in the last two blocks"));
}

#[test]
fn a_pool_is_refused_on_a_namespace_that_was_made_anew() {
    for (format, says) in [
        ("4096+8:16b", "the device was formatted with 4096+8:16b:type1:last since"),
        ("4096+16:64b", "was made anew since: its tuples are lost"),
    ] {
        let world = World::new("4096+16:64b");
        make_namespace(&world.machine.rt, &world.machine.disk, format);
        let refused = refusal(&world.machine.disk.image());
        assert!(refused.contains(says), "{refused}");
    }
}

/// The image with this label at both ends; the tuples stay.
fn labelled(mut image: SimImage, label: &Label) -> SimImage {
    let bytes: [u8; 4096] = label.encode().try_into().unwrap();
    for at in Label::areas(label.blocks) {
        image.corrupt(at, |block| *block = bytes);
    }
    image
}

#[test]
fn a_label_of_a_drive_without_an_identity_is_refused_on_a_namespace_that_has_one() {
    let world = World::new("4096+16:64b");
    let needed = world.label.namespace.map(|it| NeededNamespace { identity: [0; 16], ..it });
    let label = Label { namespace: needed, ..world.label.clone() };
    let refused = refusal(&labelled(world.machine.disk.image(), &label));
    assert!(refused.contains("the blocks are a copy on another device"), "NEEDS-P1: {refused}");
}

#[test]
fn bad_blocks_at_the_end_of_a_plain_pool_do_not_keep_it_closed() {
    let (machine, pool) = Machine::new_pool(1 << 20);
    machine.rt.block_on(pool.close()).unwrap();
    machine.break_blocks(&[4094, 4095], Lasting::Forever);
    let rt: Rt = machine.rt.clone();
    machine.rt.block_on(async {
        let device = pi::open(rt.clone(), machine.device(), OpenMode::ReadWrite).await.unwrap();
        Pool::open(rt, device, OpenOptions::default()).await.unwrap();
    });
}

/// NEEDS-P2, for a pool that an older program made on such a device.
#[test]
fn a_label_names_the_protection_from_the_first_mount_that_may_write() {
    let world = World::new("4096+16:64b");
    let incompat = IN_USE;
    let features = Features { incompat, ..world.label.features };
    let old = Label { features, namespace: None, ..world.label.clone() };
    let image = labelled(world.machine.disk.image(), &old);
    let mut writes = 0;
    loop {
        let machine = Machine::on(&image);
        let rt: Rt = machine.rt.clone();
        machine.disk.arm(Trigger::Write { nth: writes, why: None }, Fault::PowerOff);
        let opened = async {
            let device = pi::open(rt.clone(), machine.device(), OpenMode::ReadWrite).await.unwrap();
            Pool::open(rt, device, OpenOptions::default()).await
        };
        let first = select(Box::pin(opened), machine.disk.until_off());
        let is_open =
            machine.rt.block_on(async { matches!(first.await, Either::Left((Ok(_), _))) });
        let after = machine.disk.crash(1);
        let (opened, machine) = open(&after);
        let pool = opened.unwrap();
        assert_eq!(pool.label().namespace, world.label.namespace);
        drop((pool, machine));
        if is_open {
            break;
        }
        writes += 1;
    }
    assert!(writes > 2, "{writes}");
}

/// GUARD-G1, GUARD-G3.
#[test]
fn a_write_that_changed_on_its_way_is_refused_and_counted() {
    let world = World::new("4096+16:64b");
    world.machine.rt.block_on(async {
        let pool = world.open_with_trace().await;
        let counted = || {
            let failures = pool.devices().failures();
            Failure::REFUSED_GUARDS.map(|kind| failures.get(DeviceId(0), kind))
        };
        for (fault, refused) in [(None, 0), (Some(DriveFault::FlipToDrive), 1)] {
            let mut reserved = pool.reserve(4, Tier::Write).await.unwrap();
            let claim = pool.claim(LaneClass::Data, 4, &mut reserved).unwrap().remove(0);
            let mut claims = [claim];
            let mode = block_mode(&pool, ChecksumMode::Guard, &mut claims);
            let [claim] = claims;
            assert!(mode.has_tags());
            fault.into_iter().for_each(|fault| world.device.arm(Purpose::Data, 0, fault));
            let data = Buf::from_bytes(&[7; 4 * 4096]).into();
            let written = pool.write(claim.run(), data, Purpose::Data, mode).await;
            assert_eq!(written.is_err_and(|error| error.is_refused_guard()), refused == 1);
            assert_eq!(counted(), [refused, 0]);
            drop(claim);
        }
    });
}

/// BIRTH-B2: the place is free at once, so nothing gets this birth any more.
#[test]
fn a_write_that_fails_spoils_its_birth() {
    let world = World::new("4096+16:64b");
    world.machine.rt.block_on(async {
        let pool = world.open_with_trace().await;
        let mut reserved = pool.reserve(4, Tier::Write).await.unwrap();
        let before = pool.space();
        let mut mode = || {
            let mut claim = pool.claim(LaneClass::Data, 4, &mut reserved).unwrap().remove(0);
            let mode = block_mode(&pool, ChecksumMode::Guard, [&mut claim]);
            cancel_written(&pool, claim, &mut reserved);
            mode.checksums
        };
        assert_eq!((mode(), mode()), (ChecksumMode::Guard, ChecksumMode::Item));
        assert_eq!(pool.space(), before, "its blocks stay reserved");
    });
}

/// BIRTH-B1: the next content of the place has another birth.
#[test]
fn a_transaction_that_fails_leaves_its_blocks_with_tags_to_a_later_birth() {
    let world = World::new("4096+16:64b");
    world.machine.rt.block_on(async {
        let pool = world.open_with_trace().await;
        let before = pool.space();
        for (mode, deferred) in [(ChecksumMode::Item, 0), (ChecksumMode::Guard, 4)] {
            let mut reserved = pool.reserve(4, Tier::Write).await.unwrap();
            let mut claims = pool.claim(LaneClass::Data, 4, &mut reserved).unwrap();
            block_mode(&pool, mode, &mut claims);
            let mut failed = Transaction::new();
            claims.into_iter().for_each(|claim| failed.allocate(claim));
            drop((failed, reserved));
            assert_eq!(pool.space().freeing - before.freeing, deferred, "{mode:?}");
        }
    });
}
