//! A filesystem on a simulated device, under a seeded runtime.
#![allow(dead_code)] // each test binary uses a part
#![allow(unreachable_pub)] // a module of several test programs

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_fs::{Caller, Entry, Filesystem, NodeId, OpenFlags, Options, Result};
use copyhold_pool::{CreateOptions, OpenOptions, Pool};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::DeviceId;

pub struct World {
    pub rt: Arc<SeededRuntime>,
    pub device: Arc<SimDevice>,
}

impl World {
    /// A new pool of `blocks` blocks with an empty filesystem.
    pub fn new(seed: u64, blocks: u64) -> World {
        let world = World::on(seed, SimImage::empty(blocks));
        world.run(async {
            let rt: Rt = world.rt.clone();
            let device: DynDevice = world.device.clone();
            let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
            Pool::create(&rt, &device, &options).await.unwrap();
            let pool = world.pool(false).await;
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
            pool.close().await.unwrap();
        });
        world
    }

    pub fn on(seed: u64, image: SimImage) -> World {
        let rt = SeededRuntime::new(seed);
        let device =
            SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(seed));
        World { rt, device }
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.rt.block_on(future)
    }

    pub async fn pool(&self, read_only: bool) -> Arc<Pool> {
        let device: DynDevice = self.device.clone();
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        Pool::open(self.rt.clone() as Rt, device, options).await.unwrap()
    }

    pub async fn open(&self) -> Arc<Filesystem> {
        self.open_with(Options::default()).await
    }

    pub async fn open_with(&self, options: Options) -> Arc<Filesystem> {
        Filesystem::open(self.pool(false).await, options).await.unwrap()
    }

    pub async fn close(&self, fs: Arc<Filesystem>) {
        fs.close().await.unwrap();
        fs.pool().close().await.unwrap();
    }
}

pub const ROOT: NodeId = NodeId::ROOT;

/// Makes a file and leaves it open.
pub async fn create(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    let made =
        fs.create(&Caller::ROOT, ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE, true).await;
    made.unwrap().0.node
}

pub async fn mkdir(fs: &Arc<Filesystem>, parent: NodeId, name: &str) -> NodeId {
    fs.mkdir(&Caller::ROOT, parent, name.as_bytes(), 0o755).await.unwrap().node
}

pub async fn lookup(fs: &Filesystem, name: &str) -> Result<Entry> {
    fs.lookup(ROOT, name.as_bytes()).await
}

pub async fn write(fs: &Arc<Filesystem>, node: NodeId, at: u64, data: &[u8]) {
    fs.write(node, at, data, Default::default()).await.unwrap();
}

pub async fn read(fs: &Filesystem, node: NodeId, at: u64, len: usize) -> Vec<u8> {
    fs.read(node, at, len).await.unwrap().to_vec()
}

pub async fn names(fs: &Filesystem, dir: NodeId) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .await
    .unwrap();
    names.sort();
    names
}

/// Bytes that differ from block to block.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ (n / 4096) as u8 ^ seed.wrapping_mul(31)).collect()
}
