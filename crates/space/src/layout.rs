//! How devices are cut into metaslabs, and which metaslab an address is in.
//!
//! A metaslab is a power of two of blocks; the first begins at block 0 of its device, the last may
//! be partial. The size is chosen once, when the device joins the pool, and then kept with it: a
//! device that grows gets more metaslabs of the same size.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use copyhold_types::{BlockAddr, DeviceId, Run};

/// Blocks of a chunk, the piece of a metaslab that a lane takes at a time (1 MiB).
pub const CHUNK_BLOCKS: u32 = 256;

const METASLABS_WANTED: u64 = 200;
const METASLAB_BLOCKS_MIN: u64 = 16 << 8; // 16 MiB
const METASLAB_BLOCKS_MAX: u64 = 16 << 18; // 16 GiB

/// A metaslab, named as its descriptor's key names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetaslabId {
    pub device: DeviceId,
    pub index: u32,
}

impl fmt::Display for MetaslabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metaslab {} of device {}", self.index, self.device.0)
    }
}

/// How one device is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabLayout {
    pub device: DeviceId,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks of each metaslab but perhaps the last; a power of two.
    pub metaslab_blocks: u32,
}

impl MetaslabLayout {
    /// `metaslab_blocks`: the number from the device's label, or `None` to choose: 100 to 200
    /// metaslabs of 16 MiB to 16 GiB. A given number is a power of two, from one chunk to 16 GiB.
    pub fn for_device(
        device: DeviceId,
        blocks: u64,
        metaslab_blocks: Option<u32>,
    ) -> MetaslabLayout {
        let wanted = (blocks / METASLABS_WANTED).next_power_of_two();
        let chosen = wanted.clamp(METASLAB_BLOCKS_MIN, METASLAB_BLOCKS_MAX) as u32;
        let metaslab_blocks = metaslab_blocks.unwrap_or(chosen);
        assert!(metaslab_blocks.is_power_of_two(), "{metaslab_blocks} blocks to a metaslab");
        assert!(metaslab_blocks >= CHUNK_BLOCKS, "{metaslab_blocks} blocks are below a chunk");
        assert!(u64::from(metaslab_blocks) <= METASLAB_BLOCKS_MAX, "{metaslab_blocks} blocks");
        assert!(blocks <= BlockAddr::MAX_BLOCK, "{device:?} is too large to address");
        MetaslabLayout { device, blocks, metaslab_blocks }
    }

    pub fn metaslabs(&self) -> u32 {
        self.blocks.div_ceil(self.metaslab_blocks.into()) as u32
    }

    /// First block of metaslab `index`.
    pub(crate) fn first_block(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.metaslab_blocks)
    }

    /// Blocks of metaslab `index`.
    pub(crate) fn blocks_of(&self, index: u32) -> u32 {
        (self.blocks - self.first_block(index)).min(self.metaslab_blocks.into()) as u32
    }
}

/// A run that no metaslab covers: its device is unknown or ends before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outside;

/// All devices; metaslabs are numbered through, in the order of the devices.
#[derive(Debug)]
pub(crate) struct Geometry {
    devices: Vec<DeviceLayout>,
}

/// A device, whose blocks may become more.
#[derive(Debug)]
struct DeviceLayout {
    opened: MetaslabLayout,
    blocks: AtomicU64,
    /// Number of its first metaslab.
    base: usize,
}

impl DeviceLayout {
    fn now(&self) -> MetaslabLayout {
        MetaslabLayout { blocks: self.blocks.load(Acquire), ..self.opened }
    }
}

/// The part of a run that lies in one metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of the metaslab in the pool.
    pub(crate) metaslab: usize,
    /// First block, counted within the metaslab.
    pub(crate) first: u32,
    pub(crate) blocks: u32,
}

impl Geometry {
    pub(crate) fn new(layouts: &[MetaslabLayout]) -> Geometry {
        let mut metaslabs = 0;
        let mut devices = Vec::with_capacity(layouts.len());
        for layout in layouts {
            let is_same = |known: &DeviceLayout| known.opened.device == layout.device;
            assert!(!devices.iter().any(is_same), "{:?} is there twice", layout.device);
            let blocks = AtomicU64::new(layout.blocks);
            devices.push(DeviceLayout { opened: *layout, blocks, base: metaslabs });
            metaslabs += layout.metaslabs() as usize;
        }
        Geometry { devices }
    }

    /// Every metaslab in order: its name, its layout.
    pub(crate) fn metaslabs(&self) -> impl Iterator<Item = (MetaslabId, MetaslabLayout)> + '_ {
        self.devices.iter().map(DeviceLayout::now).flat_map(|layout| {
            (0..layout.metaslabs())
                .map(move |index| (MetaslabId { device: layout.device, index }, layout))
        })
    }

    fn device(&self, device: DeviceId) -> Option<&DeviceLayout> {
        self.devices.iter().find(|layout| layout.opened.device == device)
    }

    /// How the last device is cut: the only one that may grow, since the numbers of metaslabs
    /// stay.
    pub(crate) fn last(&self) -> Option<MetaslabLayout> {
        self.devices.last().map(DeviceLayout::now)
    }

    /// The last device has so many blocks from now on.
    pub(crate) fn grow_last(&self, blocks: u64) {
        let last = self.devices.last().expect("a pool has a device");
        let before = last.blocks.swap(blocks, Release);
        assert!(before <= blocks, "{:?} becomes smaller", last.opened.device);
    }

    pub(crate) fn index_of(&self, id: MetaslabId) -> Option<usize> {
        let device = self.device(id.device)?;
        (id.index < device.now().metaslabs()).then_some(device.base + id.index as usize)
    }

    /// Cuts `run` at the borders of metaslabs.
    pub(crate) fn pieces(&self, run: Run) -> Result<impl Iterator<Item = Piece> + use<>, Outside> {
        let device = self.device(run.addr.device()).ok_or(Outside)?;
        let (layout, base) = (device.now(), device.base);
        if run.end() > layout.blocks {
            return Err(Outside);
        }
        let size = u64::from(layout.metaslab_blocks);
        let mut at = run.addr.block();
        Ok(std::iter::from_fn(move || {
            let left = run.end() - at;
            let first = at % size;
            let blocks = left.min(size - first);
            let metaslab = base + (at / size) as usize;
            at += blocks;
            (blocks > 0).then_some(Piece { metaslab, first: first as u32, blocks: blocks as u32 })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(blocks: u64, size: Option<u32>) -> MetaslabLayout {
        MetaslabLayout::for_device(DeviceId(0), blocks, size)
    }

    #[test]
    fn a_device_has_one_to_two_hundred_metaslabs_within_bounds() {
        let gib = 1 << 18;
        assert_eq!(layout(gib / 8, None).metaslabs(), 8);
        assert_eq!(layout(10 * gib, None).metaslab_blocks, 64 << 8);
        assert_eq!(layout(10 * gib, None).metaslabs(), 160);
        assert_eq!(layout(10_000 * gib, None).metaslabs(), 625);
    }

    #[test]
    fn the_last_metaslab_may_be_partial() {
        let cut = layout(1000, Some(256));
        assert_eq!((cut.metaslabs(), cut.blocks_of(3)), (4, 232));
    }

    #[test]
    fn a_run_is_cut_at_the_borders_of_metaslabs() {
        let other = MetaslabLayout::for_device(DeviceId(9), 600, Some(256));
        let geometry = Geometry::new(&[layout(1000, Some(256)), other]);
        let run = Run::new(BlockAddr::new(DeviceId(9), 200), 400);
        let pieces: Vec<Piece> = geometry.pieces(run).unwrap().collect();
        let piece = |metaslab, first, blocks| Piece { metaslab, first, blocks };
        assert_eq!(pieces, [piece(4, 200, 56), piece(5, 0, 256), piece(6, 0, 88)]);
        assert!(geometry.pieces(Run::new(run.addr, 401)).is_err());
        assert!(geometry.pieces(Run::new(BlockAddr::new(DeviceId(1), 0), 1)).is_err());
    }
}
