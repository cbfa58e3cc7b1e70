//! The daemon's budget of memory ([`Shares`]), put into the options of each layer.

use copyhold_device::DynDevice;
use copyhold_fs::{DataCache, Options};
use copyhold_fuse::protocol::Settings;
use copyhold_memory::{AvailableMemory, PoolSize, Shares};
use copyhold_pool::{Limits, PoolError, find_labels};

use crate::{NamesLimit, cgroup};

/// The memory that there is for this process.
pub fn machine() -> AvailableMemory {
    let info = rustix::system::sysinfo();
    let memory = info.totalram as u64 * u64::from(info.mem_unit);
    AvailableMemory { memory, group: cgroup::memory_limit() }
}

/// The size of the pool on a device, by its label.
///
/// # Errors
/// No label can be read.
pub async fn pool_size(device: &DynDevice) -> Result<PoolSize, PoolError> {
    let metaslab_blocks = find_labels(device).await?.label.metaslab_blocks;
    Ok(PoolSize { blocks: device.geometry().blocks, metaslab_blocks })
}

pub(crate) fn limit_kernel(shares: &Shares, settings: &mut Settings) {
    settings.max_background = shares.background() as u16;
}

/// Limits of a pool that keep its shares.
pub fn limit_pool(shares: &Shares, data_cache: DataCache, limits: &mut Limits) {
    limits.delta_bytes = shares.delta;
    limits.blocks_max = shares.blocks_max;
    limits.maps_bytes = shares.maps;
    limits.node_cache_bytes = shares.nodes as usize;
    limits.clean_data_bytes = match data_cache {
        DataCache::Off => 0,
        // The boundary moves; nodes keep their part (BALANCE-B2).
        _ => shares.nodes as usize,
    };
    // The rate of recovery gives another limit, if a time is stated.
    let most = if limits.replay.is_some() { u64::MAX } else { limits.replay_edits };
    limits.replay_edits = most.min(shares.replay_edits());
    limits.log_bytes = shares.log_bytes();
}

/// Limits of a filesystem that keep its shares.
pub fn limit_files(shares: &Shares, names: NamesLimit, options: &mut Options) {
    options.dirty_bytes_max = shares.dirty_data();
    options.file_dirty_bytes_start =
        options.file_dirty_bytes_start.min(options.dirty_bytes_max / 8);
    options.inodes_max = shares.inodes_max() as usize;
    options.lookups_max = shares.lookups_max() as usize;
    options.names_room = shares.names_max();
    options.names_max = names.entries(machine());
}
