//! A pool that is made over another while the power fails: there is the old pool, the new one, or
//! none, and no half of either. Each has protection information of its own, or none.

use std::sync::Arc;

use copyhold_device::pi::{self, Emulated};
use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_device::{DeviceError, DynDevice, OpenMode};
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_pool::{
    CreateOptions, OpenOptions, Pool, PoolError, Tier, Transaction, erase_pools, find_labels,
};
use copyhold_runtime::Rt;
use copyhold_types::{Key, Kind, PoolId, TableId};
use futures_util::future::{Either, select};

use crate::machine::Machine;

const TABLE: TableId = TableId(100);
const ITEMS: u64 = 50;
const BLOCKS: u64 = 4096;
const OLD: PoolId = PoolId([1; 16]);
const NEW: PoolId = PoolId([2; 16]);

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

/// A pool's protection information, and its blocks.
type Shape = (Option<&'static str>, Option<u64>);

async fn make(rt: Rt, disk: DynDevice, id: PoolId, shape: Shape) -> Result<Label, PoolError> {
    let (protection, blocks) = shape;
    let options = CreateOptions {
        id: Some(id),
        blocks,
        log_bytes: Some(1 << 20),
        replaces: true,
        ..CreateOptions::default()
    };
    erase_pools(&disk).await?;
    let device: DynDevice = match protection {
        Some(format) => Emulated::create(rt.clone(), disk, format.parse().unwrap()).await?,
        None => disk,
    };
    Pool::create(&rt, &device, &options).await
}

async fn open(rt: Rt, disk: DynDevice) -> Result<Arc<Pool>, PoolError> {
    let device = pi::open(rt.clone(), disk, OpenMode::ReadWrite).await?;
    Pool::open(rt, device, OpenOptions::default()).await
}

/// A disk with a pool whose items are in the log alone, and the places of its labels.
fn old_pool(shape: Shape) -> (SimImage, Vec<u64>) {
    let machine = Machine::on(&SimImage::empty(BLOCKS));
    let rt = || machine.rt.clone() as Rt;
    let label = machine.rt.block_on(make(rt(), machine.device(), OLD, shape)).unwrap();
    let pool = machine.rt.block_on(open(rt(), machine.device())).unwrap();
    machine.rt.block_on(async {
        for n in 0..ITEMS {
            let mut tx = Transaction::new();
            tx.put(TABLE, key(n), vec![n as u8; 200]);
            let credit = pool.admit(Tier::Write, 1, 300).await.unwrap();
            let txg = pool.apply(credit, tx).unwrap();
            pool.commit(txg).await.unwrap();
        }
    });
    drop(pool);
    let found = pi::open(rt(), machine.device(), OpenMode::ReadOnly);
    let room = machine.rt.block_on(found).unwrap().geometry().blocks;
    let mut labels = Label::areas(label.blocks).to_vec();
    labels.push(room - AREA_BLOCKS);
    (machine.disk.image(), labels)
}

/// The pool that is there now, with all of its content.
fn found(image: &SimImage) -> Option<PoolId> {
    let machine = Machine::on(image);
    let rt = machine.rt.clone() as Rt;
    let pool = match machine.rt.block_on(open(rt, machine.device())) {
        Ok(pool) => pool,
        // A header that is torn.
        Err(PoolError::NotAPool { .. } | PoolError::Device(DeviceError::Namespace { .. })) => {
            let labels = machine.rt.block_on(find_labels(&machine.device()));
            assert!(labels.is_err(), "a repair makes headers from {labels:?}");
            return None;
        }
        Err(error) => panic!("half a pool: {error}"),
    };
    let id = pool.label().pool;
    for n in 0..ITEMS {
        let item = machine.rt.block_on(pool.get(TABLE, key(n))).unwrap();
        assert_eq!(item.is_some(), id == OLD, "item {n} of {id:?}");
    }
    Some(id)
}

/// Makes the new pool over the old one, with each write as the last one before the power fails.
fn interrupt(old: Shape, new: Shape) {
    let (image, labels) = old_pool(old);
    assert_eq!(found(&image), Some(OLD));
    let mut seen = Vec::new();
    for writes in 0.. {
        let mut is_made = false;
        for seed in 1..4 {
            let machine = Machine::on(&image);
            machine.disk.arm(Trigger::Write { nth: writes, why: None }, Fault::PowerOff);
            let made = Box::pin(make(machine.rt.clone() as Rt, machine.device(), NEW, new));
            let made = select(made, machine.disk.until_off());
            let made = machine.rt.block_on(made);
            is_made = matches!(made, Either::Left((Ok(_), _)));
            drop(made);
            let crashed = machine.disk.crash(seed);
            let id = found(&crashed);
            if id == Some(OLD) {
                let is_same = |at: &u64| image.read_block(*at) == crashed.read_block(*at);
                let changed = (0..BLOCKS).filter(|at| !labels.contains(at)).find(|at| !is_same(at));
                assert_eq!(changed, None, "{old:?} to {new:?}, write {writes}: it lost a block");
            }
            seen.push(id);
        }
        if is_made {
            break;
        }
    }
    assert_eq!(seen.last(), Some(&Some(NEW)), "{old:?} to {new:?}");
    for state in [Some(OLD), None] {
        assert!(seen.contains(&state), "{old:?} to {new:?}: {state:?} of {seen:?}");
    }
}

#[test]
fn an_interrupted_creation_leaves_the_old_pool_the_new_one_or_none() {
    for (old, new) in [(None, None), (Some(3000), None), (None, Some(3000))] {
        interrupt((None, old), (None, new));
    }
}

#[test]
fn an_interrupted_creation_leaves_no_half_where_tuples_come_go_or_move() {
    let formats = [None, Some("4096+8:16b"), Some("4096+64:64b")];
    for old in formats {
        for new in formats.into_iter().filter(|new| old.is_some() || new.is_some()) {
            interrupt((old, None), (new, None));
        }
    }
    interrupt((Some("4096+8:16b"), Some(3000)), (None, None));
    interrupt((Some("4096+8:16b"), Some(3000)), (Some("512+64:64b"), None));
    interrupt((None, Some(3000)), (Some("512+64:64b"), Some(2500)));
}
