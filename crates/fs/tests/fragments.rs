//! Nodes in fragments, as free space in short runs makes them, below files and subvolumes.

mod common;

use std::sync::Arc;

use common::tenants::*;
use common::*;
use copyhold_device::sim::Lasting;
use copyhold_fs::{Filesystem, Options};
use copyhold_pool::{Limits, OpenOptions, Pool};
use copyhold_runtime::Rt;
use copyhold_types::{NodePtr, SubvolId};

const EIO: i32 = 5;

/// Free space is in runs of at most two blocks.
async fn open(world: &World) -> Arc<Filesystem> {
    let limits = Limits { run_max: Some(2), ..Limits::default() };
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let pool = Pool::open(world.rt.clone() as Rt, world.device.clone(), options).await.unwrap();
    Filesystem::open(pool, Options::default()).await.unwrap()
}

async fn files(fs: &Arc<Filesystem>, name: &str, count: usize) -> SubvolId {
    let subvol = subvolume(fs, name).await;
    for n in 0..count {
        file(fs, root_of(subvol), &format!("f{n}")).await;
    }
    subvol
}

/// The nodes of a subvolume's files that are in fragments.
async fn lists(fs: &Filesystem, subvol: SubvolId) -> Vec<NodePtr> {
    let table = fs.pool().table(fs.volumes().subvol(subvol).unwrap().files());
    let mut nodes = Vec::new();
    table.for_each_node(fs.pool().node_source(), false, &mut |v| nodes.push(v.ptr)).await;
    nodes.retain(|ptr| ptr.fragmented);
    nodes
}

#[test]
fn a_deletion_stops_where_a_list_cannot_be_read_and_loses_nothing() {
    let world = World::new(5, 16384);
    world.run(async {
        let fs = open(&world).await;
        let [a, b] = [files(&fs, "a", 2000).await, files(&fs, "b", 300).await];
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let hidden = lists(&fs, a).await;
        assert!(!hidden.is_empty(), "nothing is in fragments");
        for run in hidden.iter().flat_map(NodePtr::runs) {
            world.device.break_block(run.addr.block(), EIO, Lasting::Forever);
        }
        for name in ["a", "b"] {
            fs.delete_subvolume(ROOT, name.as_bytes(), None).await.unwrap();
        }
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(fs.volumes().unfreeable(), Some(a));
        assert_eq!(fs.volumes().dying(), [a], "{b} does not wait for it");
        world.close(fs).await;
        world.device.heal();
        let fs = open(&world).await;
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(fs.volumes().dying(), []);
        check_space(&fs).await;
        world.close(fs).await;
    });
}
