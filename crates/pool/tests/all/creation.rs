//! A pool that is made over another while the power fails: there is the old pool, the new one, or
//! none, and no half of either.

use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_pool::{CreateOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::Rt;
use copyhold_types::{Key, Kind, PoolId, TableId};
use futures_util::future::{Either, select};

use crate::machine::{Machine, WRITING};

const TABLE: TableId = TableId(100);
const ITEMS: u64 = 50;
const OLD: PoolId = PoolId([1; 16]);
const NEW: PoolId = PoolId([2; 16]);

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

fn options(id: PoolId, blocks: Option<u64>) -> CreateOptions {
    let log_bytes = Some(1 << 20);
    CreateOptions { id: Some(id), blocks, log_bytes, replaces: true, ..CreateOptions::default() }
}

/// A disk with a pool of `blocks` blocks whose items are in the log alone.
fn old_pool(blocks: Option<u64>) -> SimImage {
    let machine = Machine::on(&SimImage::empty(4096));
    let rt = machine.rt.clone() as Rt;
    machine.rt.block_on(Pool::create(&rt, &machine.device(), &options(OLD, blocks))).unwrap();
    let pool = machine.open(WRITING).unwrap();
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
    machine.disk.image()
}

/// The pool that is there now, with all of its content.
fn found(image: &SimImage) -> Option<PoolId> {
    let machine = Machine::on(image);
    let pool = match machine.open(WRITING) {
        Ok(pool) => pool,
        Err(PoolError::NotAPool { .. }) => return None,
        Err(error) => panic!("half a pool: {error}"),
    };
    let id = pool.label().pool;
    for n in 0..ITEMS {
        let item = machine.rt.block_on(pool.get(TABLE, key(n))).unwrap();
        assert_eq!(item.is_some(), id == OLD, "item {n} of {id:?}");
    }
    Some(id)
}

#[test]
fn an_interrupted_creation_leaves_the_old_pool_the_new_one_or_none() {
    for (old, new) in [(None, None), (Some(3000), None), (None, Some(3000))] {
        let image = old_pool(old);
        assert_eq!(found(&image), Some(OLD));
        let mut seen = Vec::new();
        for writes in 0.. {
            let mut is_made = false;
            for seed in 1..4 {
                let machine = Machine::on(&image);
                machine.disk.arm(Trigger::Write { nth: writes, why: None }, Fault::PowerOff);
                let rt = machine.rt.clone() as Rt;
                let (device, options) = (machine.device(), options(NEW, new));
                let made = Box::pin(Pool::create(&rt, &device, &options));
                let made = select(made, machine.disk.until_off());
                let made = machine.rt.block_on(made);
                is_made = matches!(made, Either::Left((Ok(_), _)));
                drop(made);
                seen.push(found(&machine.disk.crash(seed)));
            }
            if is_made {
                break;
            }
        }
        assert_eq!(seen.last(), Some(&Some(NEW)));
        for state in [Some(OLD), None] {
            assert!(seen.contains(&state), "{state:?} of {seen:?}");
        }
    }
}
