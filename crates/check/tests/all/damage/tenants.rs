//! What subvolumes share, and what they pay for.
//!
//! The pool: subvolume `a` with a file of three extents; its snapshot `b`; then `a` has overwritten
//! the first, which `b` alone holds since; and a snapshot of the root, where their entries do not
//! count.

use std::sync::Arc;

use copyhold_check::{Problem, Report, Severity};
use copyhold_device::sim::SimImage;
use copyhold_format::item::{
    Content, DEAD, DIRENT, DeadItem, EXTENT, EpochItem, Extent, GroupId, GroupItem, InodesItem,
    ParentDirectory, PendingItem, QuotaItem, SHARE, SubvolItem, UsageItem, dead_key, epoch_key,
    group_key, inodes_key, member_key, pending_key, quota_key, share_key, subvol_key, usage_key,
};
use copyhold_fs::{Caller, Filesystem, NodeId, OpenFlags};
use copyhold_pool::{CreateOptions, OpenOptions, Pool, Transaction};
use copyhold_runtime::Rt;
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, TableId};

use super::pool::{BLOCKS, Files, Power, changed, kinds, report};

const EXTENT_BYTES: usize = 32 * 4096;

async fn mounted(power: &Power) -> Arc<Filesystem> {
    let options = OpenOptions { tenants: true, ..OpenOptions::default() };
    let pool = Pool::open(power.rt.clone() as Rt, power.device(), options).await.unwrap();
    Filesystem::open(pool, Default::default()).await.unwrap()
}

async fn write(fs: &Arc<Filesystem>, subvol: SubvolId, extents: u8) {
    let dir = NodeId { subvol, ino: InodeNo::ROOT };
    let flags = OpenFlags::READ_WRITE;
    let (entry, _) = fs.create(&Caller::ROOT, dir, b"file", 0o644, flags, false).await.unwrap();
    for n in 0..extents {
        let data = vec![n + extents; EXTENT_BYTES];
        let at = u64::from(n) * EXTENT_BYTES as u64;
        fs.write(entry.node, at, &data, Default::default()).await.unwrap();
        fs.fsync(entry.node, false).await.unwrap();
    }
    fs.release(entry.node);
}

/// The image, and the ids of `a` and `b`.
fn sound() -> (SimImage, SubvolId, SubvolId) {
    let power = Power::on(&SimImage::empty(BLOCKS));
    let options = CreateOptions {
        log_bytes: Some(4 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(4096),
        partition_leaves: Some(4),
        ..CreateOptions::default()
    };
    let ids = power.rt.block_on(async {
        let rt: Rt = power.rt.clone();
        Pool::create(&rt, &power.device(), &options).await.unwrap();
        let options = OpenOptions { tenants: true, ..OpenOptions::default() };
        let pool = Pool::open(rt, power.device(), options).await.unwrap();
        Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
        pool.close().await.unwrap();
        let fs = mounted(&power).await;
        let a = fs.create_subvolume(&Caller::ROOT, NodeId::ROOT, b"a", None).await.unwrap();
        write(&fs, a, 3).await;
        let b = fs.snapshot(a, NodeId::ROOT, b"b", false, None).await.unwrap();
        write(&fs, a, 1).await;
        fs.snapshot(SubvolId::ROOT, NodeId::ROOT, b"all", true, None).await.unwrap();
        fs.pool().flush_all().await.unwrap();
        fs.close().await.unwrap();
        fs.pool().close().await.unwrap();
        (a, b)
    });
    power.rt.drop_tasks();
    let image = power.device.image();
    assert!(report(&image).findings.is_empty(), "{:#?}", report(&image).findings);
    (image, ids.0, ids.1)
}

/// The records of a subvolume and of its epoch.
async fn records(pool: &Arc<Pool>, subvol: SubvolId) -> (SubvolItem, EpochItem) {
    let item = pool.get(Pool::SYSTEM, subvol_key(subvol)).await.unwrap().unwrap();
    let item = SubvolItem::parse(&item).unwrap();
    let key = epoch_key(item.epoch);
    let epoch = pool.get(Pool::SYSTEM, key).await.unwrap().unwrap();
    (item, EpochItem::parse(key, &epoch).unwrap())
}

/// The first item of a kind.
async fn first(pool: &Arc<Pool>, table: TableId, kind: copyhold_types::Kind) -> (Key, Vec<u8>) {
    let items = pool.range(table, Key::MIN, Key::MAX, 10_000).await.unwrap();
    let (key, value) = items.iter().find(|(key, _)| key.kind == kind).expect("there is one");
    (*key, value.to_vec())
}

/// The extent of a subvolume's file that begins at this block.
async fn extent(pool: &Arc<Pool>, table: TableId, block: u64) -> (Key, Extent) {
    let items = pool.range(table, Key::MIN, Key::MAX, 10_000).await.unwrap();
    let is_it = |(key, _): &&(Key, _)| key.kind == EXTENT && key.offset == block;
    let (key, value) = items.iter().find(is_it).expect("there is one");
    (*key, Extent::parse(value).unwrap())
}

async fn put(files: &Files, table: TableId, key: Key, value: &[u8]) {
    let mut tx = Transaction::new();
    tx.put(table, key, value);
    files.apply(tx).await;
}

async fn delete(files: &Files, table: TableId, key: Key) {
    let mut tx = Transaction::new();
    tx.delete(table, key);
    files.apply(tx).await;
}

/// What a check finds after a change: kinds, and the report.
fn after(
    change: impl AsyncFnOnce(&Files, (SubvolItem, EpochItem), (SubvolItem, EpochItem)),
) -> (Vec<&'static str>, Report) {
    let (image, a, b) = sound();
    let image = changed(&image, async |files| {
        let (a, b) = (records(&files.pool, a).await, records(&files.pool, b).await);
        change(files, a, b).await;
    });
    (kinds(&image), report(&image))
}

#[test]
fn epochs_that_make_up_no_family_are_told() {
    let (kinds, report) = after(async |files, _, (_, epoch)| {
        let parent = epoch.parent.expect("it is a snapshot");
        delete(files, Pool::SYSTEM, epoch_key(parent)).await;
    });
    assert!(kinds.contains(&"family"), "{kinds:?}");
    assert_eq!(report.worst(), Some(Severity::Fatal));
}

#[test]
fn items_of_the_pools_own_tables_that_mean_nothing_are_told() {
    let (kinds, report) = after(async |files, a, _| {
        let (_, extent) = extent(&files.pool, a.0.table, 32).await;
        put(files, Pool::SHARES, share_key(extent.pointer.run.addr), b"?").await;
    });
    assert_eq!((kinds, report.worst()), (vec!["record"], Some(Severity::AtRisk)));
}

#[test]
fn a_block_that_a_deadlist_lacks_would_never_be_free() {
    let (kinds, report) = after(async |files, (_, a), _| {
        let set = a.deadlist.expect("it has a sibling");
        let (key, _) = first(&files.pool, set, DEAD).await;
        delete(files, set, key).await;
    });
    assert_eq!((kinds, report.worst()), (vec!["deadlist"], Some(Severity::Leak)));
}

#[test]
fn a_block_that_a_deadlist_has_too_much_would_be_free_too_soon() {
    let (kinds, report) = after(async |files, (a, epoch), _| {
        let (_, extent) = extent(&files.pool, a.table, 64).await;
        let pointer = extent.pointer;
        let item = DeadItem { blocks: 1, content: Content::Data, count: 1, origin: pointer.origin };
        let key = dead_key(pointer.epoch, pointer.run.addr);
        put(files, epoch.deadlist.unwrap(), key, &item.encode()).await;
    });
    assert_eq!((kinds, report.worst()), (vec!["deadlist"], Some(Severity::AtRisk)));
    let Some(Problem::Deadlist { run, said, found, .. }) = report.problems().next() else {
        panic!("{report:?}");
    };
    assert_eq!((run.blocks, *said, *found), (1, 1, 0));
}

#[test]
fn a_pending_release_of_nobody_is_told() {
    let (kinds, report) = after(async |files, (a, _), _| {
        let (_, extent) = extent(&files.pool, a.table, 64).await;
        let (pointer, content) = (extent.pointer, Content::Data);
        let item = PendingItem { pointer, content, count: 1 };
        put(files, Pool::PENDING, pending_key(EpochId(9999), 1), &item.encode()).await;
    });
    assert_eq!((kinds, report.worst()), (vec!["pending"], Some(Severity::Leak)));
}

#[test]
fn shares_that_nobody_has_keep_blocks_for_ever() {
    let (kinds, report) = after(async |files, (a, _), _| {
        let (_, extent) = extent(&files.pool, a.table, 64).await;
        let item = copyhold_format::item::ShareItem { blocks: 1, count: 1 };
        put(files, Pool::SHARES, share_key(extent.pointer.run.addr), &item.encode()).await;
        assert_eq!(first(&files.pool, Pool::SHARES, SHARE).await.1.len(), item.encode().len());
    });
    assert_eq!((kinds, report.worst()), (vec!["shares"], Some(Severity::Leak)));
}

#[test]
fn a_second_reference_without_a_share_is_told() {
    let (kinds, report) = after(async |files, (a, epoch), _| {
        let (key, extent) = extent(&files.pool, a.table, 0).await;
        let again = Key { offset: 96, ..key };
        let pointer = copyhold_types::Pointer { epoch: epoch.current, ..extent.pointer };
        put(files, a.table, again, &Extent { pointer, ..extent }.encode()).await;
    });
    assert_eq!(kinds, ["field", "shares"]);
    assert_eq!(report.worst(), Some(Severity::AtRisk));
}

#[test]
fn a_block_with_two_payers_is_told() {
    let (kinds, _) = after(async |files, _, (b, _)| {
        let (key, extent) = extent(&files.pool, b.table, 64).await;
        let pointer = copyhold_types::Pointer { origin: EpochId(1), ..extent.pointer };
        put(files, b.table, key, &Extent { pointer, ..extent }.encode()).await;
    });
    assert!(kinds.contains(&"origin"), "{kinds:?}");
}

#[test]
fn usage_that_nobody_has_and_relations_of_nobody_are_told() {
    let on = QuotaItem { counted_from: Some(EpochId(1 << 40)), generation: 1 };
    let (kinds, report) = after(async |files, _, _| {
        put(files, Pool::SYSTEM, quota_key(), &on.encode()).await;
        let row = UsageItem { owner: SubvolId::ROOT, data: 4096, metadata: 0 };
        put(files, Pool::SYSTEM, usage_key(EpochId(1 << 41)), &row.encode()).await;
    });
    assert_eq!((kinds, report.worst()), (vec!["usage"], Some(Severity::Leak)));

    let (kinds, report) = after(async |files, _, _| {
        put(files, Pool::SYSTEM, quota_key(), &on.encode()).await;
        let [child, parent] = [1, 2].map(|level| GroupId::new(level, 7).unwrap());
        put(files, Pool::SYSTEM, member_key(child, parent), b"").await;
    });
    assert_eq!((kinds, report.worst()), (vec!["quota"], Some(Severity::Leak)));
}

#[test]
fn inodes_that_are_counted_wrong_or_not_at_all_are_told() {
    let on = QuotaItem { counted_from: Some(EpochId(1 << 40)), generation: 1 };
    let said = |count, from| {
        after(async move |files, (_, epoch), _| {
            put(files, Pool::SYSTEM, quota_key(), &on.encode()).await;
            let item = InodesItem { counted_from: InodeNo(from), count };
            put(files, Pool::SYSTEM, inodes_key(epoch.subvol), &item.encode()).await;
        })
    };
    assert_eq!(said(2, 1).0, Vec::<&str>::new(), "the root directory and the file");
    assert_eq!(said(1, 2).0, Vec::<&str>::new());
    assert_eq!(said(0, 1 << 20).0, Vec::<&str>::new());
    let (kinds, report) = said(3, 1);
    assert_eq!((kinds, report.worst()), (vec!["inodes"], Some(Severity::Leak)));
    let Some(Problem::Inodes { said, found, .. }) = report.problems().next() else {
        panic!("{report:?}");
    };
    assert_eq!((*said, *found), (3, 2));

    // Everybody's epochs count, and nobody's inodes do.
    let on = QuotaItem { counted_from: Some(EpochId(1)), generation: 1 };
    let (kinds, _) = after(async |files, _, _| {
        put(files, Pool::SYSTEM, quota_key(), &on.encode()).await;
    });
    assert!(kinds.contains(&"quota"), "{kinds:?}");
}

#[test]
fn a_subvolume_whose_record_names_another_place_is_told() {
    let (kinds, report) = after(async |files, (mut a, epoch), _| {
        a.place = ParentDirectory { directory: InodeNo(77), ..a.place };
        put(files, Pool::SYSTEM, subvol_key(epoch.subvol), &a.encode()).await;
    });
    assert_eq!((kinds, report.worst()), (vec!["subvolume-entry"], Some(Severity::DataLost)));
}

#[test]
fn a_subvolume_without_an_entry_is_told() {
    let (kinds, report) = after(async |files, (a, _), _| {
        let (root, _) = records(&files.pool, a.place.subvol).await;
        let (key, _) = first(&files.pool, root.table, DIRENT).await;
        delete(files, root.table, key).await;
    });
    assert!(kinds.contains(&"subvolume-entry"), "{kinds:?}");
    assert_eq!(report.worst(), Some(Severity::DataLost));
}

/// The sound pool with quotas, in which `a` has written more and the subvolume `gone`, made in it,
/// was deleted.
fn with_quotas() -> (SimImage, SubvolId, SubvolId, SubvolId) {
    let (image, a, b) = sound();
    let power = Power::on(&image);
    let gone = power.rt.block_on(async {
        let fs = mounted(&power).await;
        fs.enable_quotas().await.unwrap();
        write(&fs, a, 2).await;
        let dir = NodeId { subvol: a, ino: InodeNo::ROOT };
        let gone = fs.create_subvolume(&Caller::ROOT, dir, b"gone", None).await.unwrap();
        write(&fs, gone, 2).await;
        fs.snapshot(gone, NodeId::ROOT, b"kept", true, None).await.unwrap();
        fs.delete_subvolume(dir, b"gone", None).await.unwrap();
        fs.sync_subvolumes(&[]).await.unwrap();
        fs.close().await.unwrap();
        fs.pool().close().await.unwrap();
        gone
    });
    power.rt.drop_tasks();
    let image = power.device.image();
    assert!(report(&image).findings.is_empty(), "{:#?}", report(&image).findings);
    (image, a, b, gone)
}

#[test]
fn usage_that_names_another_payer_is_told() {
    let (image, a, b, _) = with_quotas();
    let image = changed(&image, async |files| {
        let items = files.pool.range(Pool::SYSTEM, Key::MIN, Key::MAX, 10_000).await.unwrap();
        let usage = items.iter().filter(|(key, _)| *key == usage_key(EpochId(key.object)));
        let mut changed = 0;
        for (key, value) in usage {
            let row = UsageItem::parse(value).unwrap();
            if row.owner == a {
                let row = UsageItem { owner: b, ..row };
                put(files, Pool::SYSTEM, *key, &row.encode()).await;
                changed += 1;
            }
        }
        assert!(changed > 0, "a pays for something");
    });
    assert_eq!(kinds(&image), ["quota"]);
    assert!(report(&image).findings[0].what.contains("but its usage item names"));
}

#[test]
fn a_tombstone_inside_a_subvolume_that_does_not_exist_is_told() {
    let (image, a, _, gone) = with_quotas();
    let image = changed(&image, async |files| {
        let key = group_key(GroupId::of(gone));
        let item = files.pool.get(Pool::SYSTEM, key).await.unwrap().expect("a tombstone");
        let mut item = GroupItem::parse(&item).unwrap();
        let tombstone = item.tombstone.as_mut().expect("a tombstone");
        assert_eq!(tombstone.holder, Some(a));
        tombstone.holder = Some(SubvolId(4711));
        put(files, Pool::SYSTEM, key, &item.encode()).await;
    });
    assert_eq!(kinds(&image), ["quota"]);
    assert!(report(&image).findings[0].what.contains("inside subvolume 4711"));
}
