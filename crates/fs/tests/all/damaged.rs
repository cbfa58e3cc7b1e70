//! Records that mean nothing, with right digests around them: what a wrong program would write.
//! Found by fuzzing whole pools; each was a panic.

use copyhold_device::DynDevice;
use copyhold_format::item::{Content, Extent, PendingItem, extent_key, pending_key};
use copyhold_fs::{Caller, FsError};
use copyhold_pool::{IdSpace, OpenOptions, Pool, PoolError, Tier, Transaction};
use copyhold_runtime::Rt;
use copyhold_types::{BlockAddr, DeviceId, EpochId, Key, Pointer, Run, SubvolId, TableId};
use copyhold_volume::quota::{GroupId, LimitKind};

use crate::common::*;

/// The table of the root subvolume's files.
const FILES: TableId = TableId(16);

/// Puts an item as it is told, behind the filesystem's back.
async fn put(world: &World, table: TableId, key: Key, value: Vec<u8>) {
    let (rt, device) = (world.rt.clone() as Rt, world.device.clone() as DynDevice);
    let pool = Pool::open(rt, device, OpenOptions::default()).await.unwrap();
    let mut tx = Transaction::new();
    tx.put(table, key, value);
    let credit = pool.admit(Tier::Write, 1, 1 << 16).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
    pool.close().await.unwrap();
}

/// A closed pool with two files of ten blocks.
fn world() -> World {
    let world = World::new(1, 16384);
    world.run(async {
        let fs = world.open().await;
        for name in ["a", "b"] {
            let node = create(&fs, name).await;
            write(&fs, node, 0, &pattern(3, 40_960)).await;
        }
        world.close(fs).await;
    });
    world
}

#[test]
fn a_number_that_a_file_has_already_is_refused() {
    let world = world();
    world.run(async {
        let inodes = IdSpace::Inode(SubvolId::ROOT).key();
        put(&world, Pool::SYSTEM, inodes, 2u64.to_le_bytes().to_vec()).await;
        let fs = world.open().await;
        let node = lookup(&fs, "a").await.unwrap().node;
        let made = fs.mkdir(&Caller::ROOT, ROOT, b"new", 0o755).await;
        assert!(matches!(made, Err(FsError::Record { .. })), "{made:?}");
        assert_eq!(read(&fs, node, 0, 40_960).await, pattern(3, 40_960));
        world.close(fs).await;
    });
}

#[test]
fn a_number_that_a_table_has_already_is_refused() {
    let world = world();
    world.run(async {
        let first = FILES.0.to_le_bytes().to_vec();
        put(&world, Pool::SYSTEM, IdSpace::Table.key(), first).await;
        let fs = world.open().await;
        let made = fs.create_subvolume(&Caller::ROOT, ROOT, b"sub", None).await;
        assert!(matches!(made, Err(FsError::Pool(PoolError::Damaged { .. }))), "{made:?}");
        world.close(fs).await;
    });
}

#[test]
fn a_number_that_a_subvolume_or_an_epoch_has_already_is_refused() {
    for (space, what) in [(IdSpace::Subvol, "subvolume 1 "), (IdSpace::Epoch, "epoch 1 ")] {
        let world = world();
        world.run(async {
            let fs = world.open().await;
            fs.enable_quotas().await.unwrap();
            world.close(fs).await;
            put(&world, Pool::SYSTEM, space.key(), 1u64.to_le_bytes().to_vec()).await;
            let fs = world.open().await;
            let made = fs.snapshot(SubvolId::ROOT, ROOT, b"snap", true, None).await;
            let error = made.unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("high-water mark"), "{error}");
            assert!(lookup(&fs, "snap").await.is_err());
            world.close(fs).await;
        });
    }
}

#[test]
fn blocks_that_two_extents_claim_are_damage() {
    let world = world();
    world.run(async {
        let fs = world.open().await;
        let node = lookup(&fs, "a").await.unwrap().node;
        let key = extent_key(node.ino, 0);
        let value = fs.pool().get(FILES, key).await.unwrap().unwrap().to_vec();
        assert_eq!(Extent::parse(&value).unwrap().blocks(), 10);
        world.close(fs).await;
        put(&world, FILES, extent_key(node.ino, 5), value).await;
        let fs = world.open().await;
        let read = fs.read(node, 0, 60_000).await;
        assert!(
            matches!(read, Err(FsError::Record { .. })),
            "{:?}",
            read.map(|data| data.to_vec())
        );
        world.close(fs).await;
    });
}

#[test]
fn a_limit_refuses_with_edquot_though_a_pending_release_means_nothing() {
    let world = world();
    world.run(async {
        let run = Run::new(BlockAddr::new(DeviceId(0), 5000), 1);
        let pointer = Pointer { run, epoch: EpochId(1), origin: EpochId(1) };
        let item = PendingItem { pointer, content: Content::Data, count: 1 };
        put(&world, Pool::PENDING, pending_key(EpochId(9999), 1), item.encode().to_vec()).await;
        let fs = world.open().await;
        fs.enable_quotas().await.unwrap();
        let group = GroupId::of(SubvolId::ROOT);
        let limit = Some(1 << 20);
        fs.change_quotas(|ledger| ledger.limit(group, LimitKind::Referenced, limit)).await.unwrap();
        let node = create(&fs, "c").await;
        let refused = fs.write(node, 0, &vec![1; 4 << 20], Default::default()).await;
        assert!(matches!(refused, Err(FsError::Quota(_))), "{refused:?}");
        world.close(fs).await;
    });
}
