//! A tenant that may cache nothing, beside a neighbour with a promise of all: each call of the
//! tenant succeeds, and the neighbour loses nothing.

use std::sync::Arc;

use copyhold_fs::{DataCache, Filesystem, NodeId, ReadFlags};
use copyhold_memory::{Event, GroupLimits, MemoryClass, Promise};
use copyhold_pool::Limits;
use copyhold_types::SubvolId;

use crate::common::tenants::{file, owner, root_of, snapshot, subvolume};
use crate::common::{ROOT, World, names, pattern, read, write};

const FILES: usize = 60;
const CACHED: [MemoryClass; 2] = [MemoryClass::Node, MemoryClass::Data];

fn limits() -> Limits {
    Limits { node_cache_bytes: 2 << 20, clean_data_bytes: 1 << 20, ..Limits::default() }
}

fn name(n: usize) -> String {
    format!("{n:03}{}", "x".repeat(100))
}

fn content(n: usize, version: u8) -> Vec<u8> {
    pattern(n as u8 ^ version, 5000 + 300 * n)
}

async fn make(fs: &Arc<Filesystem>, dir: NodeId, version: u8) {
    for n in 0..FILES {
        let node = file(fs, dir, &name(n)).await;
        write(fs, node, 0, &content(n, version)).await;
        fs.release(node);
    }
    fs.sync().await.unwrap();
}

/// Writes the files anew; their lengths stay.
async fn rewrite(fs: &Arc<Filesystem>, subvol: SubvolId, version: u8) {
    for n in 0..FILES {
        let entry = fs.lookup(root_of(subvol), name(n).as_bytes()).await.unwrap();
        write(fs, entry.node, 0, &content(n, version)).await;
    }
    fs.sync().await.unwrap();
}

async fn expect(fs: &Arc<Filesystem>, subvol: SubvolId, version: u8) {
    assert_eq!(names(fs, root_of(subvol)).await.len(), FILES + 2);
    for n in 0..FILES {
        let node = fs.lookup(root_of(subvol), name(n).as_bytes()).await.unwrap().node;
        let direct = ReadFlags { direct: true, ..ReadFlags::default() };
        assert_eq!(read(fs, node, 0, 1 << 16).await, content(n, version), "file {n}");
        let again = fs.read_with(node, 0, 1 << 16, direct).await.unwrap().to_vec();
        assert_eq!(again, content(n, version), "file {n}");
    }
}

fn neighbours(n: usize) -> String {
    format!("{n}{}", "y".repeat(240))
}

/// Fills both caches with nodes and data of a tenant that is promised all.
async fn fill(fs: &Arc<Filesystem>, subvol: SubvolId) {
    let promise = Promise { min: u64::MAX, low: 0 };
    owner(fs, subvol).set_limits(&GroupLimits { promise, ..GroupLimits::default() });
    let node = file(fs, root_of(subvol), "data").await;
    write(fs, node, 0, &pattern(9, 2 << 20)).await;
    // First, since nodes take the room that clean data does not use.
    fs.sync().await.unwrap();
    assert_eq!(read(fs, node, 0, 2 << 20).await, pattern(9, 2 << 20));
    for n in 0..4000 {
        fs.release(file(fs, root_of(subvol), &neighbours(n)).await);
    }
    // The second flush is that of the access times.
    for _ in 0..2 {
        assert_eq!(read(fs, node, 0, 2 << 20).await, pattern(9, 2 << 20));
        for n in 0..4000 {
            fs.lookup(root_of(subvol), neighbours(n).as_bytes()).await.unwrap();
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
    }
    fs.release(node);
}

#[test]
fn a_tenant_at_a_max_of_zero_works_beside_a_neighbour_with_a_promise_of_all() {
    let world = World::with_log(91, 65_536, 8 << 20);
    world.run(async {
        let fs = world.open_limited(limits(), DataCache::All).await;
        let (neighbour, tenant) = (subvolume(&fs, "n").await, subvolume(&fs, "t").await);
        fill(&fs, neighbour).await;
        let (beside, of) = (owner(&fs, neighbour), owner(&fs, tenant));
        let kept = CACHED.map(|class| beside.charged(class));
        assert!(kept.iter().all(|bytes| *bytes > 200 << 10), "both caches are full: {kept:?}");
        of.set_limits(&GroupLimits { max: 0, ..GroupLimits::default() });

        make(&fs, root_of(tenant), 1).await;
        fs.pool().flush_all().await.unwrap();
        expect(&fs, tenant, 1).await;
        let state = snapshot(&fs, tenant, "state", true).await;
        let clone = snapshot(&fs, state, "clone", false).await;
        rewrite(&fs, clone, 2).await;
        rewrite(&fs, tenant, 3).await;
        fs.pool().flush_all().await.unwrap();
        for (subvol, version) in [(state, 1), (clone, 2), (tenant, 3)] {
            expect(&fs, subvol, version).await;
        }
        assert!(of.counts().event(Event::Bypass) > 0, "no cache refused an object");
        assert_eq!(CACHED.map(|class| of.charged(class)), [0; 2], "above its max");

        fs.roll_back_subvolume(ROOT, b"t", state, None).await.unwrap();
        fs.delete_subvolume(ROOT, b"clone", None).await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let node = fs.lookup(ROOT, b"t").await.unwrap().node;
        expect(&fs, node.subvol, 1).await;
        expect(&fs, state, 1).await;
        assert_eq!(CACHED.map(|class| beside.charged(class)), kept, "the neighbour lost some");
        drop((beside, of));
        world.close_uncharged(fs).await;

        let fs = world.open().await;
        expect(&fs, node.subvol, 1).await;
        world.close_uncharged(fs).await;
    });
}
