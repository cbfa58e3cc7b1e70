//! Set-up that unit tests share: a filesystem on a simulated device, and tenants with dirty files.

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_types::{BLOCK_BYTES, DeviceId, InodeNo, SubvolId};

use crate::{Caller, Filesystem, NodeId, OpenFlags, Options, WriteFlags};

/// A new filesystem with this limit of dirty data. No file is written because it is old or large.
pub(crate) async fn open(rt: &Rt, dirty_bytes_max: u64) -> Arc<Filesystem> {
    open_limited(rt, dirty_bytes_max, Limits::default()).await
}

/// As [`open`], with these limits of the pool.
pub(crate) async fn open_limited(rt: &Rt, dirty_bytes_max: u64, limits: Limits) -> Arc<Filesystem> {
    let image = SimImage::empty(65_536);
    let device: DynDevice =
        SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(1));
    Pool::create(rt, &device, &CreateOptions::default()).await.unwrap();
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device, options).await.unwrap();
    Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
    let (file_dirty_bytes_start, writeback_interval) = (1 << 30, Duration::from_secs(3600));
    let options = Options {
        dirty_bytes_max,
        file_dirty_bytes_start,
        writeback_interval,
        ..Options::default()
    };
    Filesystem::open(pool, options).await.unwrap()
}

pub(crate) async fn tenant(fs: &Arc<Filesystem>, name: &str) -> SubvolId {
    fs.create_subvolume(&Caller::ROOT, NodeId::ROOT, name.as_bytes(), None).await.unwrap()
}

/// A file with so many dirty blocks, each of them a stretch.
pub(crate) async fn dirty_file(
    fs: &Arc<Filesystem>,
    of: SubvolId,
    name: &str,
    blocks: usize,
) -> NodeId {
    let (root, flags) = (NodeId { subvol: of, ino: InodeNo::ROOT }, OpenFlags::READ_WRITE);
    let made = fs.create(&Caller::ROOT, root, name.as_bytes(), 0o644, flags, false).await;
    let node = made.unwrap().0.node;
    for block in 0..blocks {
        let at = (block * 2 * BLOCK_BYTES) as u64;
        fs.write(node, at, &[7; BLOCK_BYTES], WriteFlags::default()).await.unwrap();
    }
    fs.rt.sleep(Duration::from_micros(1)).await;
    node
}
