//! A machine with one disk of 16 MiB, and pools on it.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimConfig, SimDevice, SimImage};
use copyhold_pool::{CreateOptions, LaneClass, OpenOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, EpochId, Pointer, Run};

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

/// Allocates blocks that nothing refers to.
pub(crate) async fn allocate(pool: &Arc<Pool>, blocks: u64) -> Vec<Run> {
    let mut reserved = pool.reserve(blocks, Tier::Write).await.unwrap();
    let claims = pool.claim(LaneClass::Data, blocks, &mut reserved).unwrap();
    let mut tx = Transaction::new();
    let runs = claims.iter().map(|claim| claim.run()).collect();
    claims.into_iter().for_each(|claim| tx.allocate(claim));
    let credit = pool.admit(Tier::Write, tx.len(), 64).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
    runs
}

/// Frees such runs.
pub(crate) async fn free(pool: &Arc<Pool>, runs: &[Run]) {
    let mut tx = Transaction::new();
    runs.iter().for_each(|run| {
        tx.release(Pointer { run: *run, epoch: EpochId::POOL, origin: EpochId::POOL })
    });
    let credit = pool.admit(Tier::Delete, tx.len(), 64).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
}
