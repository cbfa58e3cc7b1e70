//! Making a pool on a device.
//!
//! Order: the labels of an older pool are erased, durably, then the log ring is really written
//! (rule R32, P6), then the label areas are wiped, then uberblock and labels are written and
//! flushed, labels last. A creation that is interrupted leaves the older pool whole, or no pool.
//! A pool that has other protection information than this device is erased before (`erase`).

use copyhold_device::DynDevice;
use copyhold_format::label::{AREA_BLOCKS, Features, Label, NAME_MAX};
use copyhold_format::node::PartitionDescriptor;
use copyhold_format::uberblock::Uberblock;
use copyhold_runtime::Rt;
use copyhold_types::{BLOCK_BYTES, Buf, DeviceId, Digest, Incarnation, Key, PoolId, Purpose, Txg};
use futures_util::future::join_all;

use crate::PoolError;
use crate::config::CreateOptions;
use crate::{labels, protection, uberblocks};

/// The smallest device that can be a pool: labels, two small rings, and room to work.
const BLOCKS_MIN: u64 = 2048;
/// Room for the largest transaction when users have filled their half, with the skip at the end of
/// the ring, and for flushes (LOGROOM-A3).
const LOG_BYTES_MIN: u64 = 512 << 10;
const LOG_BYTES_LEAST: u64 = 4 << 20;
/// One copy of the ring takes this share of the device (P9): each fsync takes a block of it, and
/// the fewer there are, the sooner tables must be flushed for a few edits.
const LOG_SHARE: u64 = 64;
/// From this size on the ring grows more slowly: the more metaslabs and partitions there are, the
/// more edits must gather for one write to settle many.
const LOG_BYTES_SLOW: u64 = 64 << 20;
const LOG_SHARE_SLOW: u64 = 16 << 10;
/// In half of it as many edits of extents have room as a recovery may replay, so only larger
/// records and many fsyncs would fill a larger ring. Recovery has the records in memory, so a small
/// budget uses less of it (`Limits::log_bytes`).
const LOG_BYTES_MAX: u64 = 128 << 20;
const NODE_BYTES: u32 = 32 << 10;
const PARTITION_LEAVES: u32 = 256;
/// Metaslabs of a device: about this many, within these sizes (log-spacemap.md, 2.1).
const METASLABS: u64 = 200;
const METASLAB_BLOCKS_MIN: u64 = (16 << 20) / BLOCK_BYTES as u64;
const METASLAB_BLOCKS_MAX: u64 = (16 << 30) / BLOCK_BYTES as u64;
/// Zeros are written this much at a time, and so many at once.
const ZERO_BLOCKS: u64 = 256;
const ZERO_WRITES: usize = 4;

/// Writes an empty pool. The previous content of the device is lost; the caller asks for consent.
pub(crate) async fn create(
    rt: &Rt,
    device: &DynDevice,
    options: &CreateOptions,
) -> Result<Label, PoolError> {
    let geometry = device.geometry();
    let mut label = Label {
        pool: options.id.unwrap_or_else(|| random_id(rt)),
        secret: rt.random(),
        created: rt.wall_clock(),
        ..layout(geometry.name, geometry.blocks, options)?
    };
    if let Some(needed) = protection::of(device) {
        label = label.needing(needed);
    }
    if options.replaces {
        labels::erase(device, device.geometry().blocks).await?;
        device.flush().await?;
    }
    for start in label.log {
        write_zeros(device, start, label.log_blocks).await?;
    }
    labels::wipe_areas(device, label.blocks).await?;
    if device.geometry().blocks > label.blocks {
        labels::wipe_areas(device, device.geometry().blocks).await?;
    }
    uberblocks::write_uberblock(device, label.blocks, &first_uberblock(&label)).await?;
    device.flush().await?;
    labels::write_labels(device, &label).await?;
    device.flush().await?;
    Ok(label)
}

impl CreateOptions {
    /// Refuses a shape that a device `name` of `blocks` cannot have, before it is touched.
    pub fn check(&self, name: String, blocks: u64) -> Result<(), PoolError> {
        layout(name, blocks, self).map(drop)
    }
}

/// The label of a pool on a device of `has` blocks, without its identity.
fn layout(name: String, has: u64, options: &CreateOptions) -> Result<Label, PoolError> {
    let blocks = match options.blocks {
        // Behind it there is room for a copy of the label.
        Some(blocks) if blocks < has => blocks.min(has.saturating_sub(AREA_BLOCKS)),
        Some(blocks) => blocks,
        None => has,
    };
    for (found, wanted) in [(has, blocks), (blocks, BLOCKS_MIN)] {
        if found < wanted {
            return Err(PoolError::TooSmall { name, wanted, found });
        }
    }
    assert!(options.name.len() <= NAME_MAX, "names are checked where they are given");
    let bytes = blocks * BLOCK_BYTES as u64;
    let log_bytes =
        options.log_bytes.unwrap_or(log_bytes_by_size(bytes)).min(bytes / 16).max(LOG_BYTES_MIN);
    let log_blocks = log_bytes / BLOCK_BYTES as u64;
    let metaslab = (blocks / METASLABS).next_power_of_two();
    let label = Label {
        pool: PoolId([0; 16]),
        secret: 0,
        device: DeviceId(0),
        devices: 1,
        generation: 1,
        features: Features {
            compat: if options.preallocated { Features::PREALLOCATED } else { 0 },
            ..Features::default().in_use()
        },
        created: Default::default(),
        blocks,
        log: [AREA_BLOCKS, blocks - AREA_BLOCKS - log_blocks],
        log_blocks,
        metaslab_blocks: options
            .metaslab_blocks
            .unwrap_or(metaslab.clamp(METASLAB_BLOCKS_MIN, METASLAB_BLOCKS_MAX)),
        node_bytes: options.node_bytes.unwrap_or(NODE_BYTES),
        partition_leaves: options.partition_leaves.unwrap_or(PARTITION_LEAVES),
        name: options.name.clone(),
        namespace: None,
    };
    label.check().map_err(PoolError::Layout)?;
    Ok(label)
}

/// Bytes of one copy of the ring, for a pool of so many bytes.
fn log_bytes_by_size(bytes: u64) -> u64 {
    let small = (bytes / LOG_SHARE).clamp(LOG_BYTES_LEAST, LOG_BYTES_SLOW);
    small.max(bytes / LOG_SHARE_SLOW).min(LOG_BYTES_MAX)
}

/// A version 4 UUID from the runtime's randomness.
fn random_id(rt: &Rt) -> PoolId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&rt.random().to_le_bytes());
    id[8..].copy_from_slice(&rt.random().to_le_bytes());
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    PoolId(id)
}

fn first_uberblock(label: &Label) -> Uberblock {
    Uberblock {
        pool: label.pool,
        number: 1,
        incarnation: Incarnation(0),
        durable: Txg::FIRST,
        head: 0,
        before_head: Digest(0),
        before_head_txg: Txg::FIRST.get(),
        tables: PartitionDescriptor::empty(Key::MIN).encode(),
    }
}

async fn write_zeros(device: &DynDevice, start: u64, blocks: u64) -> Result<(), PoolError> {
    let zeros = Buf::zeroed(ZERO_BLOCKS.min(blocks) as usize);
    let places: Vec<u64> = (0..blocks).step_by(ZERO_BLOCKS as usize).collect();
    for places in places.chunks(ZERO_WRITES) {
        let writes = places.iter().map(|at| {
            let count = ZERO_BLOCKS.min(blocks - at);
            let whole = count == ZERO_BLOCKS;
            let buf = if whole { zeros.clone() } else { Buf::zeroed(count as usize) };
            device.write(start + at, buf.into(), Purpose::Log)
        });
        for written in join_all(writes).await {
            written?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_grows_with_the_pool_up_to_a_limit() {
        const MIB: u64 = 1 << 20;
        let log = |gib: u64| log_bytes_by_size(gib << 30) / MIB;
        assert_eq!(log_bytes_by_size(64 * MIB), 4 * MIB);
        assert_eq!([1, 2, 4, 100, 1024].map(log), [16, 32, 64, 64, 64]);
        assert_eq!([1536, 2048, 10 << 10, 100 << 10].map(log), [96, 128, 128, 128]);
    }
}
