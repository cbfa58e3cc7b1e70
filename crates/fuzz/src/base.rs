//! The pool that inputs damage: small, with something of everything. Made once.

use std::sync::{Arc, LazyLock};

use copyhold_device::sim::SimImage;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, SetAttr, XattrSet,
};
use copyhold_pool::{CreateOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_types::PoolId;

use crate::machine::{How, Machine};

/// Blocks of the device.
const BLOCKS: u64 = 8192;
const ROOT: NodeId = NodeId::ROOT;
const CALLER: Caller = Caller::ROOT;
/// An access list: the owner, a user, the group, a mask, others.
const ACCESS_LIST: [(u16, u16, u32); 5] =
    [(1, 7, u32::MAX), (2, 5, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];

pub(crate) struct Base {
    pub(crate) image: SimImage,
    /// The blocks that are not all zeros.
    pub(crate) used: Vec<u64>,
}

impl Base {
    fn new(image: SimImage) -> Base {
        let is_used = |&block: &u64| image.read_block(block).iter().any(|&byte| byte != 0);
        let used = (0..image.blocks()).filter(is_used).collect();
        Base { image, used }
    }
}

/// Everything settled in tables, and closed.
pub(crate) static SETTLED: LazyLock<Base> = LazyLock::new(|| {
    let machine = filled();
    let fs = machine.open(How::default()).expect("a sound pool opens");
    machine.run("settle", async move {
        fs.pool().flush_all().await.expect("a sound pool is flushed");
        close(&fs).await.expect("a sound pool is closed");
    });
    Base::new(machine.device.image())
});

/// Much of it in the log only, an orphan and a truncated file among it, and never closed.
pub(crate) static CRASHED: LazyLock<Base> = LazyLock::new(|| {
    let machine = Machine::on(SETTLED.image.clone());
    let fs = machine.open(How::default()).expect("a sound pool opens");
    machine.run("more", async move { more(&fs).await.expect("a sound pool can be changed") });
    let image = machine.device.crash(1);
    Base::new(image)
});

pub(crate) async fn close(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    fs.close().await?;
    Ok(fs.pool().close().await?)
}

fn filled() -> Machine {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    let (rt, device) = (machine.rt.clone() as Rt, machine.device());
    machine.run("format", async move {
        let options = CreateOptions {
            id: Some(PoolId([7; 16])),
            name: "fuzz".into(),
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(1024),
            node_bytes: Some(4096),
            partition_leaves: Some(8),
            ..CreateOptions::default()
        };
        Pool::create(&rt, &device, &options).await.expect("a pool is made");
    });
    let pool = Pool::open(machine.rt.clone(), machine.device(), Default::default());
    machine.run("format", async move {
        let pool = pool.await.expect("a new pool opens");
        Filesystem::format(&pool, &CALLER, 0o755).await.expect("a filesystem is made");
        pool.close().await.expect("a new pool is closed");
    });
    let fs = machine.open(How::default()).expect("a sound pool opens");
    machine.run("fill", async move {
        fill(&fs).await.expect("a sound pool is filled");
        close(&fs).await.expect("a sound pool is closed");
    });
    machine
}

pub(crate) async fn file(
    fs: &Arc<Filesystem>,
    dir: NodeId,
    name: &str,
    len: usize,
) -> Result<NodeId, FsError> {
    let flags = OpenFlags::READ_WRITE;
    let (entry, _) = fs.create(&CALLER, dir, name.as_bytes(), 0o644, flags, true).await?;
    let content: Vec<u8> = (0..len).map(|n| (n / 5 + n / 4096) as u8).collect();
    fs.write(entry.node, 0, &content, Default::default()).await?;
    Ok(entry.node)
}

async fn fill(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    fs.enable_quotas().await?;
    let dir = fs.mkdir(&CALLER, ROOT, b"dir", 0o755).await?.node;
    file(fs, dir, "tiny", 20).await?;
    let long = file(fs, dir, "long", 150_000).await?;
    fs.write(long, 400_000, &[5; 9000], Default::default()).await?;
    let reserved = file(fs, dir, "reserved", 5000).await?;
    let mode = FallocateMode::Allocate { keep_size: true };
    fs.fallocate(reserved, 8192, 50_000, mode).await?;
    fs.link(long, ROOT, b"link").await?;
    fs.symlink(&CALLER, dir, b"symlink", b"../link").await?;
    fs.symlink(&CALLER, dir, b"far", &[b'x'; 3000]).await?;
    fs.mknod(&CALLER, dir, b"fifo", 0o010644, 0).await?;
    for n in 0..60 {
        file(fs, dir, &format!("many{n}"), 10 * (n % 3)).await?;
    }
    let how = XattrSet::Any;
    fs.set_xattr(&CALLER, long, b"user.short", b"1", how, false).await?;
    fs.set_xattr(&CALLER, long, b"user.long", &[3; 6000], how, false).await?;
    let access = b"system.posix_acl_access";
    fs.set_xattr(&CALLER, dir, access, &access_list(), how, false).await?;
    let sub = fs.create_subvolume(&CALLER, ROOT, b"sub", None).await?;
    let inside = fs.lookup(ROOT, b"sub").await?.node;
    let shared = file(fs, inside, "shared", 60_000).await?;
    file(fs, inside, "gone", 20_000).await?;
    fs.sync().await?;
    fs.snapshot(sub, ROOT, b"snap", true, None).await?;
    fs.snapshot(sub, ROOT, b"twin", false, None).await?;
    fs.write(shared, 4096, &[9; 12_000], Default::default()).await?;
    fs.unlink(inside, b"gone").await?;
    let copy = file(fs, dir, "copy", 0).await?;
    fs.sync().await?;
    fs.copy_file_range(long, 0, copy, 0, 65_536).await?;
    fs.sync().await
}

fn access_list() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in ACCESS_LIST {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Each step is a commit of its own.
async fn more(fs: &Arc<Filesystem>) -> Result<(), FsError> {
    let orphan = fs.tmpfile(&CALLER, ROOT, 0o644).await?.node;
    fs.write(orphan, 0, &[1; 30_000], Default::default()).await?;
    fs.sync().await?;
    let dir = fs.lookup(ROOT, b"dir").await?.node;
    let long = fs.lookup(dir, b"long").await?.node;
    let set = SetAttr { size: Some(70_001), ..SetAttr::default() };
    fs.setattr(&CALLER, long, &set).await?;
    fs.fsync(long, false).await?;
    file(fs, dir, "late", 30_000).await?;
    fs.sync().await?;
    let twin = fs.lookup(ROOT, b"twin").await?.node.subvol;
    fs.snapshot(twin, dir, b"later", false, None).await?;
    fs.delete_subvolume(ROOT, b"twin", None).await?;
    fs.sync().await
}
