//! Small filesystems on simulated devices, and all that is found in one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;

use copyhold_check::{Options as CheckOptions, check_device};
use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Caller, FileKind, Filesystem, NodeId};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, Sabotage};
use copyhold_runtime::Rt;
use copyhold_types::{DeviceId, PoolId};

const BLOCKS: u64 = 4096;
pub const ROOT: NodeId = NodeId::ROOT;
pub const CALLER: Caller = Caller::ROOT;

/// An empty filesystem. Made once: an image has no locks.
static EMPTY: OnceLock<SimImage> = OnceLock::new();

pub fn device(rt: &Rt, image: SimImage) -> Arc<SimDevice> {
    SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(1))
}

pub async fn pool(rt: &Rt, device: DynDevice, sabotage: Option<Sabotage>) -> Arc<Pool> {
    let limits = Limits { sabotage, delta_bytes: 256 << 10, ..Limits::default() };
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    Pool::open(rt.clone(), device, options).await.unwrap()
}

pub async fn empty(rt: &Rt) -> SimImage {
    if let Some(image) = EMPTY.get() {
        return image.clone();
    }
    let device = device(rt, SimImage::empty(BLOCKS));
    let options = CreateOptions {
        id: Some(PoolId([7; 16])),
        log_bytes: Some(1 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(8),
        ..CreateOptions::default()
    };
    Pool::create(rt, &(device.clone() as DynDevice), &options).await.unwrap();
    let pool = pool(rt, device.clone(), None).await;
    Filesystem::format(&pool, &CALLER, 0o755).await.unwrap();
    pool.close().await.unwrap();
    EMPTY.get_or_init(|| device.image()).clone()
}

/// Paths of files with what they lead to: links, and content.
pub type Shown = BTreeMap<Vec<u8>, (u32, Vec<u8>)>;

async fn names(fs: &Arc<Filesystem>, dir: NodeId) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(dir, 0, &mut take).await.unwrap();
    names.retain(|name| name != b"." && name != b"..");
    names
}

pub async fn look(fs: &Arc<Filesystem>) -> Shown {
    let mut found = BTreeMap::new();
    let mut dirs = vec![(Vec::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for name in names(fs, dir).await {
            let Ok(entry) = fs.lookup(dir, &name).await else { continue };
            let path = [&path[..], b"/", &name].concat();
            match entry.attr.kind {
                FileKind::Directory => dirs.push((path, entry.node)),
                FileKind::Regular => {
                    let size = entry.attr.size as usize;
                    let content = fs.read(entry.node, 0, size).await.unwrap().to_vec();
                    found.insert(path, (entry.attr.nlink, content));
                }
                _ => {}
            }
        }
    }
    found
}

/// What was synced is what is found, and nothing is wrong with it.
pub async fn holds(rt: &Rt, image: SimImage, shown: Shown) {
    let device = device(rt, image);
    let fs = Filesystem::open(pool(rt, device.clone(), None).await, Default::default());
    let fs = fs.await.unwrap();
    assert_eq!(look(&fs).await, shown, "what was synced, and what was found");
    fs.close().await.unwrap();
    fs.pool().close().await.unwrap();
    let report = check_device(rt.clone(), device, CheckOptions::default()).await.unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

pub fn times(usual: usize) -> usize {
    std::env::var("TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
