//! Amounts that owners pay for.

use super::node::Sums;

/// Bytes that are paid for: whole blocks, nodes in all their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub data: u64,
    pub metadata: u64,
}

impl Amount {
    pub fn data(data: u64) -> Amount {
        Amount { data, metadata: 0 }
    }

    pub fn metadata(metadata: u64) -> Amount {
        Amount { data: 0, metadata }
    }

    pub fn bytes(&self) -> u64 {
        self.data + self.metadata
    }

    pub(super) fn sums(&self) -> Sums {
        Sums { data: self.data as i64, metadata: self.metadata as i64, ..Sums::default() }
    }
}
