//! Makes each metadata node unreadable in both copies, one at a time: leaves and inner nodes, bases
//! and layers, deadlists, runs and fragments. Every operation returns correct data or an error, and
//! all data is there once the node is readable again (R13).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::node::Level;
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, Options, Result};
use copyhold_pool::{CreateOptions, Limits, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_table::NodeVisit;
use copyhold_types::{NodePtr, TableId};

use crate::common::tenants::{file, root_of, snapshot, subvolume};
use crate::common::{self, World};

const BLOCKS: u64 = 8192;
const FILES: usize = 150;
const SNAPSHOTS: usize = 4;
const EIO: i32 = 5;

/// By snapshot, or the subvolume, and name.
type Content = BTreeMap<(String, String), Vec<u8>>;

fn bytes(n: usize, version: usize) -> Vec<u8> {
    let len = if n.is_multiple_of(3) { 100 } else { 6000 };
    (0..len).map(|at| (n * 31 + version * 7 + at * at % 251) as u8).collect()
}

/// Little fits into a delta, so that edits become layers; free space is in single blocks.
async fn open(world: &World, read_only: bool) -> Result<Arc<Filesystem>> {
    let limits = Limits {
        delta_bytes: 48 << 10,
        node_cache_bytes: 0,
        run_max: Some(1),
        ..Limits::default()
    };
    let options = OpenOptions { read_only, tenants: true, limits, ..OpenOptions::default() };
    let device: DynDevice = world.device.clone();
    let pool = Pool::open(world.rt.clone() as Rt, device, options).await?;
    Filesystem::open(pool, Options::default()).await
}

async fn fill(world: &World) -> Content {
    let options = CreateOptions {
        log_bytes: Some(1 << 20),
        node_bytes: Some(8192),
        partition_leaves: Some(4),
        ..CreateOptions::default()
    };
    let device: DynDevice = world.device.clone();
    Pool::create(&(world.rt.clone() as Rt), &device, &options).await.unwrap();
    let pool = world.pool(false).await;
    Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
    pool.close().await.unwrap();
    let fs = open(world, false).await.unwrap();
    let subvol = subvolume(&fs, "tenant").await;
    let mut content = Content::new();
    let mut nodes = Vec::new();
    for n in 0..FILES {
        nodes.push(file(&fs, root_of(subvol), &format!("f{n}")).await);
    }
    let mut now = vec![Vec::new(); FILES];
    for version in 0..=SNAPSHOTS {
        for n in (version..FILES).step_by(version + 1) {
            now[n] = bytes(n, version);
            common::write(&fs, nodes[n], 0, &now[n]).await;
        }
        fs.sync().await.unwrap();
        if version < 2 {
            fs.pool().flush_all().await.unwrap();
        }
        let name = match version {
            SNAPSHOTS => "tenant".to_owned(),
            _ => format!("snapshot{version}"),
        };
        if version < SNAPSHOTS {
            snapshot(&fs, subvol, &name, true).await;
        }
        let files = now.iter().enumerate();
        content.extend(files.map(|(n, data)| ((name.clone(), format!("f{n}")), data.clone())));
    }
    nodes.into_iter().for_each(|node| fs.release(node));
    fs.close().await.unwrap();
    fs.pool().close().await.unwrap();
    content
}

/// Compares each file with its expected content. A read may fail, but only with a device error.
/// Returns the number of files that failed.
async fn verify(fs: &Arc<Filesystem>, content: &Content) -> usize {
    let mut unreadable = 0;
    for ((dir, name), wanted) in content {
        match read(fs, dir, name).await {
            Ok(found) => assert!(found == *wanted, "{dir}/{name} is another"),
            Err(error) => {
                assert!(is_read_error(&error), "{dir}/{name}: {error}");
                unreadable += 1;
            }
        }
    }
    unreadable
}

fn is_read_error(error: &FsError) -> bool {
    let text = error.to_string();
    text.contains("Input/output error") || text.contains("cannot be read")
}

async fn read(fs: &Arc<Filesystem>, dir: &str, name: &str) -> Result<Vec<u8>> {
    let dir = fs.lookup(NodeId::ROOT, dir.as_bytes()).await?.node;
    let node = fs.lookup(dir, name.as_bytes()).await?.node;
    let found = fs.read(node, 0, 1 << 20).await.map(|found| found.to_vec());
    fs.forget(node, 1);
    found
}

/// All nodes, and the kinds that there are.
async fn nodes(fs: &Arc<Filesystem>) -> (Vec<NodePtr>, BTreeSet<&'static str>) {
    let (mut nodes, mut kinds) = (BTreeMap::new(), BTreeSet::new());
    let own = fs.volumes().list().iter().map(|subvol| subvol.files()).collect::<BTreeSet<_>>();
    for table in fs.pool().tables() {
        let is_deadlist = table.id() > TableId(99) && !own.contains(&table.id());
        let mut visit = |visit: NodeVisit<'_>| {
            let ptr = visit.ptr;
            nodes.insert(ptr.runs().next().expect("a copy").addr, ptr);
            let is_inner = visit.level == Level::Inner;
            kinds.insert(if is_inner { "inner node" } else { "leaf" });
            kinds.insert(if visit.layer.is_some() { "layer" } else { "base" });
            kinds.insert(if ptr.fragmented { "fragments" } else { "run" });
            kinds.extend(is_deadlist.then_some("deadlist"));
        };
        table.for_each_node(fs.pool().node_source(), true, &mut visit).await;
    }
    (nodes.into_values().collect(), kinds)
}

/// Creates, writes and syncs one more file.
async fn write_one_more(fs: &Arc<Filesystem>) -> Result<()> {
    let flags = OpenFlags::READ_WRITE;
    let made = fs.create(&Caller::ROOT, NodeId::ROOT, b"more", 0o644, flags, true).await?;
    let node = made.0.node;
    let written = async {
        fs.write(node, 0, b"acknowledged", Default::default()).await?;
        fs.fsync(node, false).await
    };
    let written = written.await;
    fs.release(node);
    written
}

/// Mounts without this node, and then with it. Returns the operations that reported an error.
fn mount_without(image: &SimImage, ptr: &NodePtr, read_only: bool, content: &Content) -> usize {
    let world = World::on(1, image.clone());
    for run in ptr.runs() {
        (0..u64::from(run.blocks))
            .for_each(|n| world.device.break_block(run.addr.block() + n, EIO, Lasting::Forever));
    }
    let (reported, acknowledged) = world.run(async {
        let fs = match open(&world, read_only).await {
            Ok(fs) => fs,
            Err(error) => {
                assert!(is_read_error(&error), "{error}");
                return (1, false);
            }
        };
        let reported = verify(&fs, content).await;
        if read_only {
            return (reported, false);
        }
        let written = write_one_more(&fs).await;
        written
            .as_ref()
            .err()
            .into_iter()
            .for_each(|error| assert!(is_read_error(error), "{error}"));
        // Edits of an unreadable node become a layer, or stay in the log.
        let flushed = fs.pool().flush_all().await;
        let reported = reported + usize::from(written.is_err()) + usize::from(flushed.is_err());
        (reported, written.is_ok())
    });
    world.rt.drop_tasks();
    let world = World::on(2, world.device.crash(1));
    world.run(async {
        let fs = open(&world, false).await.expect("all can be read again");
        assert_eq!(verify(&fs, content).await, 0);
        if acknowledged {
            let node = fs.lookup(NodeId::ROOT, b"more").await.expect("it is there").node;
            assert_eq!(common::read(&fs, node, 0, 100).await, b"acknowledged");
        }
        world.close(fs).await;
    });
    reported
}

#[test]
fn an_unreadable_node_is_reported_and_its_data_returns_when_it_is_readable() {
    let world = World::on(1, SimImage::empty(BLOCKS));
    let content = world.run(fill(&world));
    let image = world.device.image();
    let world = World::on(1, image.clone());
    let (nodes, kinds) = world.run(async {
        let fs = open(&world, true).await.unwrap();
        assert_eq!(verify(&fs, &content).await, 0);
        nodes(&fs).await
    });
    let all = ["base", "deadlist", "fragments", "inner node", "layer", "leaf"];
    assert!(all.iter().all(|kind| kinds.contains(kind)), "{kinds:?} of {} nodes", nodes.len());
    let modes = nodes.iter().flat_map(|ptr| [(ptr, false), (ptr, true)]);
    let reported = modes.map(|(ptr, read_only)| mount_without(&image, ptr, read_only, &content));
    let reported = reported.filter(|errors| *errors > 0).count();
    assert!(reported > nodes.len(), "{reported} mounts of {} nodes report an error", nodes.len());
}
