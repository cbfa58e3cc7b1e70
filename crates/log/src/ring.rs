//! The ring's two copies on a device.

use copyhold_device::{DeviceError, DynDevice};
use copyhold_types::{Buf, PoolId, Purpose};

/// Where a pool's log lies.
#[derive(Clone)]
pub struct Ring {
    device: DynDevice,
    starts: [u64; 2],
    blocks: u64,
    pool: PoolId,
    secret: u64,
    broken: Option<Broken>,
}

/// A rule of recovery that a test breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// R2: frames count only if one copy has them whole.
    WholeCopiesOnly,
    /// R13: the log ends where no frame verifies, whether both copies could be read there or not.
    ErrorIsEnd,
}

impl Ring {
    /// `starts`: first blocks of the two copies of `blocks` blocks each.
    pub fn new(
        device: DynDevice,
        starts: [u64; 2],
        blocks: u64,
        pool: PoolId,
        secret: u64,
    ) -> Ring {
        Ring { device, starts, blocks, pool, secret, broken: None }
    }

    /// Recovery breaks a rule. Only for tests of the simulation.
    pub fn break_rule(&mut self, rule: Broken) {
        self.broken = Some(rule);
    }

    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn pool(&self) -> PoolId {
        self.pool
    }

    pub fn secret(&self) -> u64 {
        self.secret
    }

    fn block(&self, copy: usize, position: u64) -> u64 {
        self.starts[copy] + position % self.blocks
    }

    /// Writes an encoded frame to both copies at once. Durable after the next flush.
    pub async fn write(&self, position: u64, frame: &Buf) -> Result<(), DeviceError> {
        assert!(position % self.blocks + frame.blocks() as u64 <= self.blocks, "LOG-K1: wraps");
        let first = self.write_copy(0, position, frame);
        let second = self.write_copy(1, position, frame);
        let (first, second) = futures_util::join!(first, second);
        first.and(second)
    }

    /// Writes one copy alone: the repair of a damaged one.
    pub fn write_copy(
        &self,
        copy: usize,
        position: u64,
        frame: &Buf,
    ) -> copyhold_runtime::BoxFuture<'static, Result<(), DeviceError>> {
        self.device.write(self.block(copy, position), frame.clone().into(), Purpose::Log)
    }

    /// Reads `blocks` blocks of one copy from `position` on.
    pub async fn read_copy(
        &self,
        copy: usize,
        position: u64,
        blocks: u64,
    ) -> Result<Buf, DeviceError> {
        self.device.read(self.block(copy, position), blocks as u32, Purpose::Log).await
    }
}
