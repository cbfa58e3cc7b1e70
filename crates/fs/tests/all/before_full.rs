//! Operations on a full pool free the space of deleted snapshots before they are refused (R22).

use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::Lasting;
use copyhold_format::item::{EpochItem, epoch_key};
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, Result, XattrSet,
};
use copyhold_pool::Pool;
use copyhold_runtime::Runtime;
use copyhold_types::{Key, SubvolId};
use copyhold_volume::quota::{GroupId, Ledger, LimitKind};

use crate::common::tenants::{file, root_of, snapshot, subvolume};
use crate::common::*;

const SNAPSHOTS: usize = 30;
/// Blocks of the file that only the snapshots have, each with an extent of its own.
const BLOCKS: u64 = 1500;

/// A subvolume on a full pool.
struct FullPool {
    fs: Arc<Filesystem>,
    subvol: SubvolId,
    /// Its files: one that the snapshots share blocks with, and an empty one.
    old: NodeId,
    other: NodeId,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write,
    Allocate,
    Reflink,
    Create,
    Mkdir,
    Xattr,
    Snapshot,
}

const ALL: [Operation; 7] = [
    Operation::Write,
    Operation::Allocate,
    Operation::Reflink,
    Operation::Create,
    Operation::Mkdir,
    Operation::Xattr,
    Operation::Snapshot,
];

impl FullPool {
    /// A file in scattered blocks, snapshots of it, and the blocks written once more; then nothing
    /// is free.
    async fn fill(fs: Arc<Filesystem>) -> FullPool {
        let subvol = subvolume(&fs, "tenant").await;
        let old = file(&fs, root_of(subvol), "old").await;
        let other = file(&fs, root_of(subvol), "other").await;
        for n in 0..BLOCKS {
            write(&fs, old, n * 8192, &pattern(n as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        for n in 0..SNAPSHOTS {
            snapshot(&fs, subvol, &format!("snapshot{n}"), true).await;
        }
        for n in 0..BLOCKS {
            write(&fs, old, n * 8192, &pattern(!n as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        let full = FullPool { fs, subvol, old, other };
        full.take_the_rest().await;
        full
    }

    /// Writes until not even a name can be added.
    async fn take_the_rest(&self) {
        let ballast = file(&self.fs, root_of(self.subvol), "ballast").await;
        let mut at = 0;
        for len in [1 << 20, 1 << 16, 4096] {
            while self.fs.write(ballast, at, &vec![1; len], Default::default()).await.is_ok() {
                at += len as u64;
            }
        }
        self.fs.fsync(ballast, false).await.unwrap();
        let dir = root_of(self.subvol);
        for n in 0.. {
            let name = format!("a name that takes the last of the pool {n}");
            let flags = OpenFlags::READ_WRITE;
            match self.fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, flags, true).await {
                Ok(_) => {}
                Err(FsError::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn delete_snapshots(&self) {
        for n in 0..SNAPSHOTS {
            let name = format!("snapshot{n}");
            self.fs.delete_subvolume(ROOT, name.as_bytes(), None).await.unwrap();
        }
    }

    async fn add(&self, what: Operation) -> Result<()> {
        let FullPool { fs, subvol, old, other } = self;
        let (root, dir) = (&Caller::ROOT, root_of(*subvol));
        match what {
            Operation::Write => fs.write(*other, 0, &[2; 4 << 20], Default::default()).await,
            Operation::Allocate => {
                let mode = FallocateMode::Allocate { keep_size: false };
                fs.fallocate(*other, 0, 4 << 20, mode).await
            }
            Operation::Reflink => {
                fs.copy_file_range(*old, 0, *other, 0, BLOCKS * 8192).await.map(drop)
            }
            Operation::Create => {
                let flags = OpenFlags::READ_WRITE;
                fs.create(root, dir, b"new", 0o644, flags, true).await.map(drop)
            }
            Operation::Mkdir => fs.mkdir(root, dir, b"directory", 0o755).await.map(drop),
            Operation::Xattr => {
                let value = vec![7; 3000];
                fs.set_xattr(root, *other, b"user.x", &value, XattrSet::Any, false).await
            }
            Operation::Snapshot => {
                fs.snapshot(*subvol, ROOT, b"one more", true, None).await.map(drop)
            }
        }
    }
}

#[test]
fn each_operation_on_a_full_pool_waits_for_deleted_snapshots() {
    for what in ALL {
        let world = World::new(22, 16384);
        world.run(async {
            let full = FullPool::fill(world.open().await).await;
            let refused = full.add(what).await;
            assert!(matches!(refused, Err(FsError::NoSpace(_))), "{what:?}: {refused:?}");
            full.delete_snapshots().await;
            let since = world.rt.now();
            let added = full.add(what).await;
            assert!(added.is_ok(), "{what:?}: {added:?}");
            let took = Duration::from_nanos(world.rt.now() - since);
            assert!(took < Duration::from_secs(10), "{what:?}: {took:?}");
            world.close(full.fs).await;
        });
    }
}

/// A creation holds no lock that the reaper needs, so it may wait for the reaper.
#[test]
fn a_creation_on_a_full_pool_waits_for_an_unlinked_file_that_the_kernel_still_refers_to() {
    let world = World::new(23, 8192);
    world.run(async {
        let fs = world.open().await;
        let large = create(&fs, "large").await;
        write(&fs, large, 0, &vec![1; 8 << 20]).await;
        fs.sync().await.unwrap();
        let subvol = subvolume(&fs, "tenant").await;
        let other = file(&fs, root_of(subvol), "other").await;
        let full = FullPool { fs: fs.clone(), subvol, old: other, other };
        full.take_the_rest().await;
        assert!(matches!(full.add(Operation::Create).await, Err(FsError::NoSpace(_))));
        fs.unlink(ROOT, b"large").await.unwrap();
        let task = fs.clone();
        let sleep = world.rt.sleep(Duration::from_millis(40));
        world.rt.spawn(Box::pin(async move {
            task.release(large);
            sleep.await;
            task.forget(large, 1);
        }));
        full.add(Operation::Create).await.unwrap();
        drop(full);
        world.close(fs).await;
    });
}

/// The space of a deleted snapshot counts for the subvolume that wrote it, wherever the snapshot
/// was, and other deletions are on their way as well.
#[test]
fn a_limit_waits_for_a_deleted_snapshot_outside_its_group() {
    let world = World::new(25, 32768);
    world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let others = subvolume(&fs, "others").await;
        for n in 0..40 {
            snapshot(&fs, others, &format!("other{n}"), true).await;
        }
        let subvol = subvolume(&fs, "tenant").await;
        let old = file(&fs, root_of(subvol), "old").await;
        let scattered = async |byte: u8| {
            for n in 0..BLOCKS {
                write(&fs, old, n * 8192, &pattern(byte, 4096)).await;
            }
            fs.sync().await.unwrap();
        };
        scattered(1).await;
        snapshot(&fs, subvol, "snapshot", true).await;
        scattered(2).await;
        let limit = |ledger: &Ledger| {
            let bytes = ledger.room(subvol).expect("quotas are on").bytes + (1 << 20);
            ledger.limit(GroupId::of(subvol), LimitKind::Referenced, Some(bytes))
        };
        fs.change_quotas(limit).await.unwrap();
        let other = file(&fs, root_of(subvol), "other").await;
        let refused = fs.write(other, 0, &[3; 4 << 20], Default::default()).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "{refused:?}");
        for n in 0..40 {
            fs.delete_subvolume(ROOT, format!("other{n}").as_bytes(), None).await.unwrap();
        }
        fs.delete_subvolume(ROOT, b"snapshot", None).await.unwrap();
        fs.write(other, 0, &[3; 4 << 20], Default::default()).await.unwrap();
        world.close(fs).await;
    });
}

/// A write over its limit gets EDQUOT, not EIO, although a deadlist is unreadable.
#[test]
fn a_limit_returns_edquot_although_a_deadlist_is_unreadable() {
    let world = World::new(24, 16384);
    let (subvol, old) = world.run(async {
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let subvol = subvolume(&fs, "tenant").await;
        let old = file(&fs, root_of(subvol), "old").await;
        write(&fs, old, 0, &vec![1; 4 << 20]).await;
        fs.sync().await.unwrap();
        snapshot(&fs, subvol, "snapshot", true).await;
        write(&fs, old, 0, &vec![2; 1 << 20]).await;
        let limit = |ledger: &Ledger| {
            ledger.limit(GroupId::of(subvol), LimitKind::Referenced, Some(6 << 20))
        };
        fs.change_quotas(limit).await.unwrap();
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        world.close(fs).await;
        (subvol, old)
    });
    world.run(async {
        let fs = world.open().await;
        make_deadlist_unreadable(&world, &fs, subvol).await;
        write(&fs, old, 2 << 20, &vec![3; 1 << 19]).await;
        fs.sync().await.unwrap();
        let pending = fs.pool().range(Pool::PENDING, Key::MIN, Key::MAX, 1).await.unwrap();
        assert!(!pending.is_empty());
        let refused = fs.write(old, 4 << 20, &vec![4; 4 << 20], Default::default()).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "{refused:?}");
    });
}

async fn make_deadlist_unreadable(world: &World, fs: &Filesystem, subvol: SubvolId) {
    const EIO: i32 = 5;
    let key = epoch_key(fs.volumes().subvol(subvol).unwrap().item().epoch);
    let value = fs.pool().get(Pool::SYSTEM, key).await.unwrap().unwrap();
    let deadlist = EpochItem::parse(key, &value).unwrap().deadlist.expect("it has a sibling");
    for (_, partition) in fs.pool().table(deadlist).descriptors() {
        for run in partition.root.iter().flat_map(|root| root.runs()) {
            (0..u64::from(run.blocks)).for_each(|n| {
                world.device.break_block(run.addr.block() + n, EIO, Lasting::Forever);
            });
        }
    }
}
