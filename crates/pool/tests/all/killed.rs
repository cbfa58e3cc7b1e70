//! A killed daemon leaves writes in the cache of the device. The next mount relies on them, so they
//! are durable before it writes anything (OPEN-O1).

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimDisk, SimImage, Trigger};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, PoolError};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;
use futures_util::future::{Either, select};
use futures_util::pin_mut;

use crate::extents;

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn on(seed: u64, disk: impl Into<SimDisk>) -> Machine {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let disk = SimDevice::from_disk(rt.clone() as Rt, DeviceId(0), disk.into(), config);
        Machine { rt, disk }
    }

    /// The answer of `future`, unless the power goes first.
    fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.rt.block_on(async {
            let off = self.disk.until_off();
            pin_mut!(future);
            match select(future, off).await {
                Either::Left((done, _)) => Some(done),
                Either::Right(_) => None,
            }
        })
    }

    fn open(&self) -> Option<Result<Arc<Pool>, PoolError>> {
        let device: DynDevice = self.disk.clone();
        self.run(Pool::open(self.rt.clone() as Rt, device, OpenOptions::default()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

/// Block 7 is acknowledged as 1. The batch that makes 2 of it is written and not flushed when the
/// daemon is killed.
fn killed() -> SimDisk {
    let machine = Machine::on(1, SimImage::empty(4096));
    let device: DynDevice = machine.disk.clone();
    let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    let rt = machine.rt.clone() as Rt;
    machine.run(Pool::create(&rt, &device, &options)).unwrap().unwrap();
    let pool = machine.open().unwrap().unwrap();
    machine.run(extents::commit(&pool, 7, 1, 1)).unwrap();
    machine.disk.arm(Trigger::Flush { nth: 0 }, Fault::PowerOff);
    assert!(machine.run(extents::commit(&pool, 7, 2, 1)).is_none(), "it is not acknowledged");
    let disk = machine.disk.kill(1);
    assert!(!disk.is_flushed());
    disk
}

/// Whatever a power cut at this request of the next mount leaves is a pool with block 7. False once
/// the mount has no such request.
fn survives_a_cut_at(killed: &SimDisk, trigger: Trigger) -> bool {
    let machine = Machine::on(2, killed.clone());
    machine.disk.arm(trigger, Fault::PowerOff);
    if machine.open().is_some() {
        return false;
    }
    for seed in 0..200 {
        let machine = Machine::on(seed, machine.disk.crash(seed));
        let opened = machine.open().expect("the power is on");
        let pool = opened.unwrap_or_else(|error| panic!("{trigger:?}, seed {seed}: {error}"));
        let found = machine.run(extents::read(&pool, 7)).expect("the power is on");
        assert!(matches!(found, Ok(Some(1 | 2))), "{trigger:?}, seed {seed}: {found:?}");
    }
    true
}

#[test]
fn a_power_cut_at_any_step_of_the_mount_after_a_kill_loses_nothing() {
    let killed = killed();
    let cuts = |trigger: fn(u64) -> Trigger| {
        (0..).take_while(|nth| survives_a_cut_at(&killed, trigger(*nth))).count()
    };
    assert!(cuts(|nth| Trigger::Flush { nth }) >= 2, "one before the first batch, one behind it");
    assert!(cuts(|nth| Trigger::Write { nth, why: None }) >= 1);
}
