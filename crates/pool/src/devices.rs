//! The devices of a pool, by id.
//!
//! A block address names its device. A pool has one device so far; nothing outside this file and
//! the fixed areas (labels, log) knows that.
//!
//! DEV-D1  A request is sent to the device that its address names. An address of a device that the
//!         pool does not have, as in a damaged image, is an error.
//! DEV-D2  A flush of the pool is a flush of each device; the first error counts.
//! DEV-D3  Each read that a device fails, and each write whose guards it refuses, is counted
//!         (`failures`).
//! DEV-D4  A write or discard of blocks removes them from clean data before it begins (CLEAN-D2).
//!         All writes to allocated blocks are sent here; only labels, uberblocks and log, in their
//!         fixed areas, are not.

use std::future::ready;
use std::sync::Arc;

use copyhold_device::pi::Format;
use copyhold_device::{CounterSnapshot, DeviceError, DynDevice, Expect, Protect};
use copyhold_runtime::BoxFuture;
use copyhold_types::{Buf, Bufs, DeviceId, Purpose, Run};
use futures_util::future::join_all;

use crate::clean::CleanData;
use crate::failures::{Failure, Failures};

type Request<T> = BoxFuture<'static, Result<T, DeviceError>>;

/// The devices of a pool.
#[derive(Clone)]
pub struct Devices {
    all: Arc<[(DeviceId, DynDevice)]>,
    failures: Arc<Failures>,
    clean: Arc<CleanData>,
}

impl Devices {
    pub(crate) fn of(all: Vec<(DeviceId, DynDevice)>, clean: Arc<CleanData>) -> Devices {
        let failures = Arc::new(Failures::of(all.iter().map(|(id, _)| *id)));
        Devices { all: all.into(), failures, clean }
    }

    /// Of a pool with one device, which its label calls by this id.
    pub(crate) fn one(id: DeviceId, device: DynDevice, clean: Arc<CleanData>) -> Devices {
        Devices::of(vec![(id, device)], clean)
    }

    /// The device with the labels and the log.
    pub(crate) fn home(&self) -> &DynDevice {
        &self.all[0].1
    }

    /// The format of the protection information of the device with the labels and the log, if it
    /// has any.
    pub fn protection(&self) -> Option<Format> {
        self.home().protection()
    }

    /// Reads that failed, copies that were repaired and guards that were refused since the pool was
    /// opened.
    pub fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// The blocks of file data that are in memory.
    pub fn clean(&self) -> &Arc<CleanData> {
        &self.clean
    }

    pub(crate) fn get(&self, id: DeviceId) -> Result<&DynDevice, DeviceError> {
        let found = self.all.iter().find(|(of, _)| *of == id);
        found.map(|(_, device)| device).ok_or(DeviceError::Missing(id))
    }

    pub(crate) async fn read(&self, run: Run, why: Purpose) -> Result<Buf, DeviceError> {
        self.read_expecting(run, why, Expect::Plain).await
    }

    pub(crate) async fn read_expecting(
        &self,
        run: Run,
        why: Purpose,
        expect: Expect,
    ) -> Result<Buf, DeviceError> {
        let id = run.addr.device();
        let (block, blocks) = (run.addr.block(), run.blocks);
        let read = self.get(id)?.read_expecting(block, blocks, why, expect).await;
        read.inspect_err(|error| {
            let is_integrity = matches!(error, DeviceError::Integrity { .. });
            let kind = if is_integrity { Failure::Integrity } else { Failure::Unreadable };
            self.failures.count(id, kind);
        })
    }

    pub(crate) fn write(
        &self,
        run: Run,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> Request<()> {
        self.clean.remove(run);
        match self.get(run.addr.device()) {
            Ok(device) => device.write_protected(run.addr.block(), data, why, protect),
            Err(missing) => Box::pin(ready(Err(missing))),
        }
    }

    pub(crate) fn discard(&self, run: Run) -> Request<()> {
        self.clean.remove(run);
        match self.get(run.addr.device()) {
            Ok(device) => device.discard(run.addr.block(), run.blocks.into()),
            Err(missing) => Box::pin(ready(Err(missing))),
        }
    }

    /// The protection information of a device's blocks.
    pub(crate) fn protection_of(&self, id: DeviceId) -> Option<Format> {
        self.get(id).ok()?.protection()
    }

    pub(crate) fn can_discard(&self) -> bool {
        self.all.iter().any(|(_, device)| device.geometry().can_discard)
    }

    pub(crate) async fn flush(&self) -> Result<(), DeviceError> {
        if let [(_, only)] = &*self.all {
            return only.flush().await;
        }
        join_all(self.all.iter().map(|(_, device)| device.flush())).await.into_iter().collect()
    }

    /// Requests of all devices.
    pub fn counters(&self) -> CounterSnapshot {
        let all = self.all.iter().map(|(_, device)| device.counters().snapshot());
        all.reduce(|sum, more| sum + more).expect("a pool has a device")
    }
}

#[cfg(test)]
mod tests {
    use copyhold_device::{Device, SimDevice};
    use copyhold_runtime::{Rt, SeededRuntime};
    use copyhold_types::{BLOCK_BYTES, BlockAddr};

    use super::*;

    #[test]
    fn a_request_goes_to_the_device_of_its_address() {
        let rt = SeededRuntime::new(1);
        let device = |id| SimDevice::new(rt.clone() as Rt, DeviceId(id), 16, 1);
        let (three, seven) = (device(3), device(7));
        let all: [(_, DynDevice); 2] = [(DeviceId(3), three.clone()), (DeviceId(7), seven.clone())];
        let devices = Devices::of(all.into(), CleanData::none());
        rt.block_on(async {
            let run = |id| Run::new(BlockAddr::new(DeviceId(id), 5), 1);
            for (id, byte) in [(3, 30), (7, 70)] {
                let data = Buf::from_bytes(&[byte; BLOCK_BYTES]);
                devices.write(run(id), data.into(), Purpose::Data, Protect::Plain).await.unwrap();
                assert_eq!(devices.read(run(id), Purpose::Data).await.unwrap()[0], byte);
            }
            assert_eq!(three.read(5, 1, Purpose::Data).await.unwrap()[0], 30);
            let missing = devices.read(run(4), Purpose::Data).await.expect_err("there is none");
            assert!(matches!(missing, DeviceError::Missing(DeviceId(4))), "{missing}");
            devices.flush().await.unwrap();
        });
        let counted = devices.counters();
        assert_eq!((counted.flushes, counted.purposes[Purpose::Data as usize].writes), (2, 2));
    }
}
