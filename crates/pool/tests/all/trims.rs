//! Trims of a device that fails some discards.

use copyhold_device::sim::{Fault, SimImage, Trigger};
use copyhold_device::{Device, DeviceError};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, PoolError};
use copyhold_runtime::Rt;

use crate::machine::Machine;

/// Some discards of 64 MiB, the most of one.
const BLOCKS: u64 = 100_000;
const EIO: i32 = 5;
const MOST: u64 = (64 << 20) / 4096;

fn world() -> (Machine, std::sync::Arc<Pool>) {
    let machine = Machine::on(&SimImage::empty(BLOCKS));
    let rt: Rt = machine.rt.clone();
    let pool = machine.rt.block_on(async {
        let device = machine.device();
        Pool::create(&rt, &device, &CreateOptions::default()).await.unwrap();
        Pool::open(rt, device, OpenOptions::default()).await.unwrap()
    });
    (machine, pool)
}

fn trim(machine: &Machine, pool: &std::sync::Arc<Pool>) -> Result<u64, PoolError> {
    machine.rt.block_on(pool.trim(0..u64::MAX, 1))
}

#[test]
fn a_run_that_is_not_discarded_does_not_keep_others_from_it() {
    let (machine, pool) = world();
    let all = trim(&machine, &pool).unwrap();
    assert!(all > 3 * MOST, "{all}");
    for nth in [0, 1] {
        let (machine, pool) = world();
        machine.disk.arm(Trigger::Discard { nth }, Fault::Error(EIO));
        let failed = trim(&machine, &pool).expect_err("one has failed");
        assert!(matches!(failed, PoolError::Device(DeviceError::Discard { .. })), "{failed}");
        let rest = trim(&machine, &pool).unwrap();
        assert!(rest > 0 && rest <= MOST, "{rest} blocks were left");
        assert_eq!(trim(&machine, &pool).unwrap(), 0);
        pool.space_map().check();
    }
}

#[test]
fn a_device_that_fails_all_discards_ends_a_trim() {
    let (machine, pool) = world();
    machine.disk.arm_for_good(Trigger::Discard { nth: 0 }, Fault::Error(EIO));
    trim(&machine, &pool).expect_err("all have failed");
    let discards = || machine.disk.counters().snapshot().discards;
    let before = discards();
    trim(&machine, &pool).expect_err("all have failed again");
    assert!(discards() >= 2 * before, "each run is tried in each trim");
    machine.disk.disarm();
    assert!(trim(&machine, &pool).unwrap() > 3 * MOST);
}
