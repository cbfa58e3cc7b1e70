//! An eviction by command beside changes of the groups that it walks over.

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, DataCache, Filesystem, NodeId, RenameFlags, evict};
use copyhold_memory::MemoryOwner;
use copyhold_types::SubvolId;
use futures_util::future::join;

use crate::common::tenants::{content, file, owner, root_of, subvolume};
use crate::common::{ROOT, World, pattern, seeds, write};

const LEN: usize = 40_000;

/// The subvolume "t" in the holder "from", with its snapshot beside it, and another holder.
struct Groups {
    fs: Arc<Filesystem>,
    from: SubvolId,
    to: SubvolId,
    tenant: SubvolId,
    state: SubvolId,
}

impl Groups {
    async fn make(fs: &Arc<Filesystem>) -> Groups {
        let (from, to) = (subvolume(fs, "from").await, subvolume(fs, "to").await);
        let top = root_of(from);
        let tenant = fs.create_subvolume(&Caller::ROOT, top, b"t", None).await.unwrap();
        for n in 0..10 {
            put(fs, root_of(tenant), n, 1).await;
        }
        fs.sync().await.unwrap();
        let state = fs.snapshot(tenant, top, b"state", true, None).await.unwrap();
        for n in 0..10 {
            put(fs, root_of(tenant), n, 2).await;
        }
        fs.sync().await.unwrap();
        Groups { fs: fs.clone(), from, to, tenant, state }
    }

    /// All files of both, read into the caches.
    async fn expect(&self, subvol: SubvolId, version: u8) {
        for n in 0..10 {
            let found = content(&self.fs, root_of(subvol), &format!("f{n}")).await;
            assert_eq!(found, pattern(n ^ version, LEN), "file {n}");
        }
    }

    fn owners(&self) -> [MemoryOwner; 2] {
        [owner(&self.fs, self.from), owner(&self.fs, self.tenant)]
    }
}

async fn put(fs: &Arc<Filesystem>, dir: NodeId, n: u8, version: u8) {
    let name = format!("f{n}");
    let node = match fs.lookup(dir, name.as_bytes()).await {
        Ok(entry) => entry.node,
        Err(_) => {
            let node = file(fs, dir, &name).await;
            fs.release(node);
            node
        }
    };
    write(fs, node, 0, &pattern(n ^ version, LEN)).await;
}

/// Evicts all of the holder and of the tenant while the change goes on. Returns the subvolume
/// that the change leaves.
fn beside(change: impl AsyncFn(&Groups) -> Option<(SubvolId, u8)>) {
    for seed in seeds(30) {
        let world = World::with_log(seed, 32_768, 8 << 20);
        world.run(async {
            let fs = world.open_clean(DataCache::All).await;
            let groups = Groups::make(&fs).await;
            groups.expect(groups.tenant, 2).await;
            groups.expect(groups.state, 1).await;
            let owners = groups.owners();
            let evictions = async {
                for _ in 0..3 {
                    for owner in &owners {
                        evict(&fs, owner, u64::MAX).await;
                        let nanos = fs.pool().runtime().random() % 5_000;
                        fs.pool().runtime().sleep(Duration::from_nanos(nanos)).await;
                    }
                }
            };
            let ((), left) = join(evictions, change(&groups)).await;
            fs.volumes().finish_background().await.unwrap();
            for round in 0..2 {
                if let Some((subvol, version)) = left {
                    groups.expect(subvol, version).await;
                }
                groups.expect(groups.state, 1).await;
                for owner in owners.iter().filter(|_| round == 0) {
                    evict(&fs, owner, u64::MAX).await;
                }
            }
            drop((groups, owners));
            world.close_uncharged(fs).await;
        });
    }
}

#[test]
fn a_group_is_rolled_back_while_its_caches_are_evicted() {
    beside(async |groups| {
        let (top, state) = (root_of(groups.from), groups.state);
        groups.fs.roll_back_subvolume(top, b"t", state, None).await.unwrap();
        Some((groups.fs.lookup(top, b"t").await.unwrap().node.subvol, 1))
    });
}

#[test]
fn a_group_moves_to_another_holder_while_its_caches_are_evicted() {
    beside(async |groups| {
        let plain = RenameFlags { no_replace: false, exchange: false, whiteout: false };
        let (from, to) = (root_of(groups.from), root_of(groups.to));
        let fs = &groups.fs;
        for (here, there) in [(from, to), (to, ROOT), (ROOT, to)] {
            fs.rename(&Caller::ROOT, here, b"t", there, b"t", plain).await.unwrap();
            groups.expect(groups.tenant, 2).await;
        }
        Some((groups.tenant, 2))
    });
}

#[test]
fn a_group_is_deleted_while_its_caches_are_evicted() {
    beside(async |groups| {
        groups.fs.delete_subvolume(root_of(groups.from), b"t", None).await.unwrap();
        None
    });
}
