//! A machine with one disk of 16 MiB, and pools on it.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimConfig, SimDevice, SimImage};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, PoolError};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;

const EIO: i32 = 5;
/// Ways to open a pool: read-only, `cut-tail`.
pub(crate) const WRITING: [bool; 2] = [false, false];
pub(crate) const READ_ONLY: [bool; 2] = [true, false];
pub(crate) const CUT_TAIL: [bool; 2] = [false, true];

pub(crate) struct Machine {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) disk: Arc<SimDevice>,
}

impl Machine {
    pub(crate) fn on(image: &SimImage) -> Machine {
        Machine::seeded(image, 1)
    }

    pub(crate) fn seeded(image: &SimImage, seed: u64) -> Machine {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image.clone(), config);
        Machine { rt, disk }
    }

    pub(crate) fn new_pool(log_bytes: u64) -> (Machine, Arc<Pool>) {
        let machine = Machine::on(&SimImage::empty(4096));
        let options = CreateOptions { log_bytes: Some(log_bytes), ..CreateOptions::default() };
        let rt = machine.rt.clone() as Rt;
        machine.rt.block_on(Pool::create(&rt, &machine.device(), &options)).unwrap();
        let pool = machine.open(WRITING).unwrap();
        (machine, pool)
    }

    pub(crate) fn device(&self) -> DynDevice {
        self.disk.clone()
    }

    pub(crate) fn break_blocks(&self, blocks: &[u64], lasting: Lasting) {
        blocks.iter().for_each(|block| self.disk.break_block(*block, EIO, lasting));
    }

    pub(crate) fn open(&self, mode: [bool; 2]) -> Result<Arc<Pool>, PoolError> {
        self.rt.block_on(self.opening(mode))
    }

    pub(crate) async fn opening(
        &self,
        [read_only, cut_tail]: [bool; 2],
    ) -> Result<Arc<Pool>, PoolError> {
        let options = OpenOptions { read_only, cut_tail, ..OpenOptions::default() };
        Pool::open(self.rt.clone() as Rt, self.device(), options).await
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}
