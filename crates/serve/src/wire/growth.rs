//! The size of a pool, in a question and its answer; the answer is also what `copyhold resize`
//! prints.

use copyhold_pool::{Grown, NewSize};
use serde::{Deserialize, Serialize};

/// The wanted size of a pool in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolSize {
    To(u64),
    By(u64),
    /// All of the file or device.
    Max,
}

impl From<PoolSize> for NewSize {
    fn from(size: PoolSize) -> NewSize {
        match size {
            PoolSize::To(bytes) => NewSize::To(bytes),
            PoolSize::By(bytes) => NewSize::By(bytes),
            PoolSize::Max => NewSize::Max,
        }
    }
}

/// The sizes of a pool before and after; they may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resized {
    pub before_bytes: u64,
    pub size_bytes: u64,
}

impl From<Grown> for Resized {
    fn from(grown: Grown) -> Resized {
        Resized { before_bytes: grown.before, size_bytes: grown.now }
    }
}
