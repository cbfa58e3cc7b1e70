//! A filesystem on an emulated namespace whose blocks are full of stale content, for tests of
//! checksum modes.

use std::sync::Arc;

use copyhold_device::pi::Emulated;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_device::{Device, DynDevice, OpenMode, Protect};
use copyhold_format::item::ChecksumMode;
use copyhold_fs::{
    Caller, Filesystem, FsError, NodeId, OpenFlags, Options, WriteFlags, set_checksum_mode,
};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool, Sabotage};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{BLOCK_BYTES, Buf, DeviceId, Purpose};

const BLOCKS: u64 = 8192;
/// More than travels with an fsync.
pub(crate) const FILE_BLOCKS: usize = 32;
pub(crate) const LEN: usize = FILE_BLOCKS * BLOCK_BYTES;
/// Birth of the stale blocks that the namespace is full of.
pub(crate) const STALE: u32 = 60_000;

pub(crate) struct World {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) disk: Arc<SimDevice>,
    pub(crate) device: Arc<Emulated>,
    /// The disk with nothing but stale blocks, each with a valid tuple.
    pub(crate) stale: SimImage,
}

/// The namespace of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    pub(crate) format: &'static str,
    /// The birth of the blocks that it is full of.
    pub(crate) stale: u32,
}

impl Drive {
    pub(crate) const USUAL: Drive = Drive { format: "4096+16:64b", stale: STALE };
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Error,
    Wrong,
}

/// Content of which no two blocks, nor two files, are alike.
pub(crate) fn content(of: u8) -> Vec<u8> {
    let byte = |at: usize| (at / BLOCK_BYTES) as u8 ^ (at % 251) as u8 ^ of.rotate_left(3);
    let mut bytes: Vec<u8> = (0..LEN).map(byte).collect();
    bytes.chunks_mut(BLOCK_BYTES).enumerate().for_each(|(n, block)| {
        block[..2].copy_from_slice(&[of, n as u8]);
    });
    bytes
}

impl World {
    /// A new filesystem; each block of its device has stale content with a valid tuple.
    pub(crate) fn new(seed: u64, stale: u32) -> World {
        World::with(seed, Drive { stale, ..Drive::USUAL })
    }

    /// A new filesystem on a namespace.
    pub(crate) fn with(seed: u64, drive: Drive) -> World {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let id = DeviceId(0);
        let disk = SimDevice::from_image(rt.clone() as Rt, id, SimImage::empty(BLOCKS), config);
        let format = drive.format.parse().unwrap();
        let made = Emulated::create(rt.clone() as Rt, disk.clone(), format);
        let device = rt.block_on(made).unwrap();
        let mut world = World { rt, disk, device, stale: SimImage::empty(0) };
        world.rt.block_on(world.fill(drive.stale));
        world.stale = world.disk.image();
        world.rt.block_on(async {
            let rt = world.rt.clone() as Rt;
            let device: DynDevice = world.device.clone();
            let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
            Pool::create(&rt, &device, &options).await.unwrap();
            let pool = Pool::open(rt, device, tenants(Limits::default())).await.unwrap();
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
            pool.close().await.unwrap();
        });
        world
    }

    /// Writes stale content to each block.
    async fn fill(&self, birth: u32) {
        let data = Buf::from_bytes(&[0x5a; 256 * BLOCK_BYTES]);
        for first in (0..self.device.geometry().blocks / 256).map(|n| n * 256) {
            let (data, protect) = (data.clone().into(), Protect::Offload { birth });
            let write = self.device.write_protected(first, data, Purpose::Data, protect);
            write.await.unwrap();
        }
        self.device.flush().await.unwrap();
    }

    /// The namespace on a disk after a crash.
    fn on(seed: u64, image: SimImage, stale: SimImage) -> World {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, config);
        let found = Emulated::find(rt.clone() as Rt, disk.clone(), OpenMode::ReadWrite);
        let device = rt.block_on(found).unwrap().expect("there is a namespace");
        World { rt, disk, device, stale }
    }

    pub(crate) async fn open(&self, sabotage: Option<Sabotage>) -> Arc<Filesystem> {
        let limits = Limits { sabotage, ..Limits::default() };
        let device: DynDevice = self.device.clone();
        let pool = Pool::open(self.rt.clone() as Rt, device, tenants(limits)).await.unwrap();
        Filesystem::open(pool, Options::default()).await.unwrap()
    }

    /// The namespace behind a crash.
    pub(crate) fn crash(self, seed: u64) -> World {
        self.rt.drop_tasks();
        World::on(seed, self.disk.crash(seed), self.stale)
    }

    pub(crate) async fn make(
        &self,
        fs: &Arc<Filesystem>,
        name: &[u8],
        place: ChecksumMode,
    ) -> NodeId {
        let root = &Caller::ROOT;
        let flags = OpenFlags::READ_WRITE;
        let (made, _) = fs.create(root, fs.root(), name, 0o600, flags, true).await.unwrap();
        set_checksum_mode(fs, root, made.node, place).await.unwrap();
        made.node
    }

    /// Where this block is now, on the disk.
    pub(crate) fn place_of(&self, block: &[u8]) -> u64 {
        let blocks = self.device.geometry().blocks;
        let mut all = 0..blocks;
        all.find(|at| self.disk.read_block_now(*at)[..] == *block).expect("it was written")
    }

    /// Changes data and metadata of a block, as the drive sees them.
    pub(crate) fn damage(
        &self,
        at: u64,
        data: impl FnOnce(&mut [u8]),
        metadata: impl FnOnce(&mut [u8]),
    ) {
        copyhold_sim::damage(&self.disk, &self.device, at, data, metadata);
    }

    /// Puts back both halves of a block as they were in an older image of the disk.
    pub(crate) fn put_back(&self, at: u64, old: &SimImage) {
        let (entries, range) = self.device.place_of_metadata(at);
        self.disk.corrupt(at, |block| *block = old.read_block(at));
        let metadata = &old.read_block(entries)[range.clone()];
        self.disk.corrupt(entries, |block| block[range].copy_from_slice(metadata));
    }
}

fn tenants(limits: Limits) -> OpenOptions {
    OpenOptions { tenants: true, limits, ..OpenOptions::default() }
}

pub(crate) async fn write(fs: &Arc<Filesystem>, node: NodeId, of: u8) -> Result<(), FsError> {
    write_bytes(fs, node, &content(of)).await
}

pub(crate) async fn write_bytes(
    fs: &Arc<Filesystem>,
    node: NodeId,
    bytes: &[u8],
) -> Result<(), FsError> {
    fs.write(node, 0, bytes, WriteFlags::default()).await?;
    fs.fsync(node, false).await
}

pub(crate) async fn look(fs: &Arc<Filesystem>, node: NodeId, of: u8) -> Outcome {
    match fs.read(node, 0, LEN).await {
        Ok(read) if read.to_vec() == content(of) => Outcome::Good,
        Ok(_) => Outcome::Wrong,
        Err(_) => Outcome::Error,
    }
}
