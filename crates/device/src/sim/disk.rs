//! A simulated device between two processes that use it.

use std::collections::VecDeque;

use super::image::{Content, SimImage};

/// Contents that go to the medium together.
pub(super) type Write = Vec<(u64, Content)>;

/// The durable content of a device, and the writes that only its volatile cache holds.
#[derive(Clone, Debug)]
pub struct SimDisk {
    pub(super) durable: SimImage,
    /// Writes that no flush has covered, in completion order.
    pub(super) cached: VecDeque<Write>,
    /// `durable` with `cached` applied.
    pub(super) current: SimImage,
}

impl SimDisk {
    /// The content that reads return.
    pub fn image(&self) -> &SimImage {
        &self.current
    }

    /// Whether the cache holds nothing.
    pub fn is_flushed(&self) -> bool {
        self.cached.is_empty()
    }
}

impl From<SimImage> for SimDisk {
    /// A disk whose cache is empty.
    fn from(image: SimImage) -> SimDisk {
        SimDisk { durable: image.clone(), cached: VecDeque::new(), current: image }
    }
}
