//! A filesystem on a simulated device, under a seeded runtime.

pub(crate) mod births;
pub(crate) mod queued;
pub(crate) mod tenants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_format::{item, space_map};
use copyhold_fs::{Caller, DataCache, Entry, Filesystem, NodeId, OpenFlags, Options, Result};
use copyhold_memory::{MemoryClass, MemoryOwner};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Run};

pub(crate) struct World {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) device: Arc<SimDevice>,
}

impl World {
    /// A new pool of `blocks` blocks with an empty filesystem.
    pub(crate) fn new(seed: u64, blocks: u64) -> World {
        World::with_log(seed, blocks, 1 << 20)
    }

    /// As [`Self::new`], with so large a log.
    pub(crate) fn with_log(seed: u64, blocks: u64, log_bytes: u64) -> World {
        let world = World::on(seed, SimImage::empty(blocks));
        world.run(async {
            let rt: Rt = world.rt.clone();
            let device: DynDevice = world.device.clone();
            make_pool(&rt, &device, log_bytes).await;
        });
        world
    }

    pub(crate) fn on(seed: u64, image: SimImage) -> World {
        let rt = SeededRuntime::new(seed);
        let device =
            SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(seed));
        World { rt, device }
    }

    /// Loses power now; what the device kept is the next world.
    pub(crate) fn crash(&self, fs: Arc<Filesystem>, seed: u64) -> World {
        self.rt.drop_tasks();
        let image = self.device.crash(seed);
        drop(fs);
        World::on(seed ^ 0x5eed, image)
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.rt.block_on(future)
    }

    pub(crate) async fn pool(&self, read_only: bool) -> Arc<Pool> {
        let device: DynDevice = self.device.clone();
        let options = OpenOptions { read_only, tenants: true, ..OpenOptions::default() };
        Pool::open(self.rt.clone() as Rt, device, options).await.unwrap()
    }

    pub(crate) async fn open(&self) -> Arc<Filesystem> {
        self.open_with(Options::default()).await
    }

    pub(crate) async fn open_with(&self, options: Options) -> Arc<Filesystem> {
        Filesystem::open(self.pool(false).await, options).await.unwrap()
    }

    /// With room for clean data in memory.
    pub(crate) async fn open_clean(&self, data_cache: DataCache) -> Arc<Filesystem> {
        let limits = Limits { clean_data_bytes: 64 << 20, ..Limits::default() };
        self.open_limited(limits, data_cache).await
    }

    pub(crate) async fn open_limited(
        &self,
        limits: Limits,
        data_cache: DataCache,
    ) -> Arc<Filesystem> {
        let device: DynDevice = self.device.clone();
        let options = Options { data_cache, ..Options::default() };
        mount(&(self.rt.clone() as Rt), &device, limits, options).await
    }

    pub(crate) async fn close(&self, fs: Arc<Filesystem>) {
        fs.close().await.unwrap();
        fs.pool().close().await.unwrap();
    }

    /// As [`Self::close`]. Nothing is in memory then, so no owner is charged with anything
    /// (CHARGE-C1).
    pub(crate) async fn close_uncharged(&self, fs: Arc<Filesystem>) {
        let memory = fs.pool().memory().clone();
        self.close(fs).await;
        self.rt.drop_tasks();
        let bytes = |of: &MemoryOwner| MemoryClass::ALL.map(|class| of.charged(class));
        let charged: Vec<_> = memory.owners().iter().map(bytes).collect();
        assert!(charged.iter().flatten().all(|bytes| *bytes == 0), "{charged:?}");
    }
}

/// A pool of all of a device, with an empty filesystem.
pub(crate) async fn make_pool(rt: &Rt, device: &DynDevice, log_bytes: u64) {
    let options = CreateOptions { log_bytes: Some(log_bytes), ..CreateOptions::default() };
    Pool::create(rt, device, &options).await.unwrap();
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device.clone(), options).await.unwrap();
    Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
    pool.close().await.unwrap();
}

pub(crate) async fn mount(
    rt: &Rt,
    device: &DynDevice,
    limits: Limits,
    options: Options,
) -> Arc<Filesystem> {
    let open = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let pool = Pool::open(rt.clone(), device.clone(), open).await.unwrap();
    Filesystem::open(pool, options).await.unwrap()
}

/// Space that extents, nodes and maps refer to is exactly what is allocated, and each file's item
/// counts its own.
pub(crate) async fn check_space(fs: &Filesystem) {
    let pool = fs.pool();
    let mut referenced = BTreeSet::new();
    let mut refer = |run: Run| {
        for block in run.addr.block()..run.end() {
            assert!(referenced.insert(block), "block {block} is referred to twice");
        }
    };
    for table in pool.tables() {
        let mut nodes = Vec::new();
        table.for_each_node(pool.node_source(), true, &mut |visit| nodes.push(visit.ptr)).await;
        let nodes = pool.pieces_of(&nodes).await.unwrap();
        nodes.iter().flat_map(|ptr| ptr.runs()).for_each(&mut refer);
    }
    let maps = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    for (_, value) in maps.iter().filter(|(key, _)| key.kind == space_map::METASLAB) {
        let map = space_map::Descriptor::parse(value).unwrap();
        let map = pool.pieces_of(&map.parts().collect::<Vec<_>>()).await.unwrap();
        map.iter().flat_map(|ptr| ptr.runs()).for_each(&mut refer);
    }
    let system = pool.range(Pool::SYSTEM, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let (_, subvol) = system.iter().find(|(key, _)| key.kind == item::SUBVOL).unwrap();
    let table = item::SubvolItem::parse(subvol).unwrap().table;
    let items = pool.range(table, Key::MIN, Key::MAX, usize::MAX).await.unwrap();
    let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
    let mut free_from = (0, 0);
    for (key, value) in items.iter().filter(|(key, _)| key.kind == item::EXTENT) {
        let extent = item::Extent::parse(value).unwrap();
        refer(extent.pointer.run);
        assert!((key.object, key.offset) >= free_from, "extents overlap at {key}");
        free_from = (key.object, key.offset + u64::from(extent.blocks()));
        *counted.entry(key.object).or_default() += extent.pointer.run.bytes();
    }
    for (key, value) in items.iter().filter(|(key, _)| key.kind == item::INODE) {
        let inode = item::InodeItem::parse(value).unwrap();
        assert_eq!(inode.allocated, counted.remove(&key.object).unwrap_or(0), "inode {key}");
    }
    assert!(counted.is_empty(), "extents without an inode: {counted:?}");
    let space = pool.space_map();
    let allocated: BTreeSet<u64> = space
        .metaslabs()
        .flat_map(|id| space.allocated_runs(id))
        .flat_map(|run| run.addr.block()..run.end())
        .collect();
    let leaked: Vec<_> = allocated.difference(&referenced).collect();
    let dangling: Vec<_> = referenced.difference(&allocated).collect();
    assert!(leaked.is_empty() && dangling.is_empty(), "leaked {leaked:?}, dangling {dangling:?}");
}

pub(crate) const ROOT: NodeId = NodeId::ROOT;

/// Makes a file and leaves it open.
pub(crate) async fn create(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    let made =
        fs.create(&Caller::ROOT, ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE, true).await;
    made.unwrap().0.node
}

pub(crate) async fn mkdir(fs: &Arc<Filesystem>, parent: NodeId, name: &str) -> NodeId {
    fs.mkdir(&Caller::ROOT, parent, name.as_bytes(), 0o755).await.unwrap().node
}

pub(crate) async fn lookup(fs: &Filesystem, name: &str) -> Result<Entry> {
    fs.lookup(ROOT, name.as_bytes()).await
}

pub(crate) async fn write(fs: &Arc<Filesystem>, node: NodeId, at: u64, data: &[u8]) {
    fs.write(node, at, data, Default::default()).await.unwrap();
}

pub(crate) async fn read(fs: &Filesystem, node: NodeId, at: u64, len: usize) -> Vec<u8> {
    fs.read(node, at, len).await.unwrap().to_vec()
}

pub(crate) async fn names(fs: &Filesystem, dir: NodeId) -> Vec<String> {
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
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ (n / 4096) as u8 ^ seed.wrapping_mul(31)).collect()
}

/// The seeds of a test of random histories: `count` from 1, or SEEDS from SEED.
#[allow(clippy::disallowed_methods)] // a test program's arguments
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("SEED").unwrap_or(1);
    first..first + number("SEEDS").unwrap_or(count)
}
