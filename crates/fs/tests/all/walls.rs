//! Ways around a limit that a tenant, or a reader of its files, could take.

use std::sync::Arc;

use copyhold_device::Device;
use copyhold_fs::{Caller, FallocateMode, Filesystem, NodeId, Options, RenameFlags, SetAttr};
use copyhold_runtime::Runtime;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, LimitKind};

use crate::common::*;
use crate::quotas::{is_over_quota, limit, make, root_of, shown, subvolume};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// The most that may be used under a limit: the overdraft, and an error of the estimate.
fn most(limit: u64) -> u64 {
    limit + MIB + limit / 64 + 64 * KIB
}

pub(crate) async fn open(world: &World) -> Arc<Filesystem> {
    let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
    fs.enable_quotas().await.unwrap();
    fs
}

/// Usage once all edits are nodes.
pub(crate) async fn used(fs: &Arc<Filesystem>, subvol: SubvolId) -> u64 {
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    shown(fs, subvol).referenced
}

/// Usage of all subvolumes but the root, once all edits are nodes.
async fn used_by_all(fs: &Arc<Filesystem>) -> u64 {
    fs.sync().await.unwrap();
    fs.pool().flush_all().await.unwrap();
    let groups = fs.volumes().ledger().show().unwrap().into_iter();
    let root = GroupId::of(SubvolId::ROOT);
    let subvolumes = groups.filter(|group| group.id.level() == 0 && group.id != root);
    subvolumes.map(|group| group.referenced).sum()
}

/// Writes a file until its owner is at its limit. Returns its size.
async fn fill(fs: &Arc<Filesystem>, file: NodeId) -> u64 {
    let mut size = 0;
    loop {
        let before = size;
        while fs.write(file, size, &pattern(2, 4096), Default::default()).await.is_ok() {
            size += BLOCK;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        if size == before {
            return size;
        }
    }
}

pub(crate) fn name(n: u64) -> String {
    format!("{n:0200}")
}

#[test]
fn references_to_shared_extents_count() {
    let world = World::with_log(31, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let most_bytes = 6 * MIB;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let source = make(&fs, root_of(a), "source").await.unwrap();
        let blocks = 400u64;
        for n in 0..blocks {
            write(&fs, source, 2 * n * BLOCK, &pattern(n as u8, 4096)).await;
        }
        fs.sync().await.unwrap();
        let target = make(&fs, root_of(a), "target").await.unwrap();
        let len = 2 * blocks * BLOCK;
        let mut copies = 0;
        while let Ok(bytes @ 1..) = fs.copy_file_range(source, 0, target, copies * len, len).await {
            copies += 1;
            assert!(copies < 2000, "no copy of {bytes} bytes is refused");
        }
        let used = used(&fs, a).await;
        assert!(used <= most(most_bytes), "{used} after {copies} copies");
        world.close(fs).await;
    });
}

#[test]
fn whiteouts_count() {
    let world = World::with_log(33, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let (dir, most_bytes) = (root_of(a), 4 * MIB);
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let file = make(&fs, dir, &name(0)).await.unwrap();
        fs.release(file);
        let white = RenameFlags { whiteout: true, ..RenameFlags::default() };
        for n in 0..60_000 {
            let (from, to) = (name(n), name(n + 1));
            let (from, to) = (from.as_bytes(), to.as_bytes());
            if fs.rename(&Caller::ROOT, dir, from, dir, to, white).await.is_err() {
                break;
            }
            assert!(n < 50_000, "no whiteout is refused");
        }
        let used = used(&fs, a).await;
        assert!(used <= most(most_bytes), "{used}");
        world.close(fs).await;
    });
}

/// Renames each of `n` short names to one of 255 bytes, until that is refused.
async fn lengthen(fs: &Arc<Filesystem>, dir: NodeId, names: u64) -> u64 {
    for k in 0..names {
        let long = format!("{}{k}", "L".repeat(249));
        let (from, to) = (k.to_string(), long.as_bytes());
        let flags = RenameFlags::default();
        if fs.rename(&Caller::ROOT, dir, from.as_bytes(), dir, to, flags).await.is_err() {
            return k;
        }
        if k.is_multiple_of(500) {
            fs.pool().flush_all().await.ok();
        }
    }
    names
}

#[test]
fn longer_names_count() {
    let world = World::new(77, 16384);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let (dir, most_bytes) = (root_of(a), 256 * KIB);
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let file = make(&fs, dir, "0").await.unwrap();
        let mut n = 1;
        while fs.link(file, dir, n.to_string().as_bytes()).await.is_ok() {
            n += 1;
        }
        let renamed = lengthen(&fs, dir, n).await;
        assert!(renamed < n, "{n} names");
        let now = used(&fs, a).await;
        assert!(now <= most_bytes + 64 * KIB, "{now}: a longer name adds");
        // A name that is no longer is no addition, and removals make room.
        let rename = async |from: &str, to: &str| {
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, dir, from.as_bytes(), dir, to.as_bytes(), flags).await
        };
        let (last, other) = ((n - 1).to_string(), "x".repeat((n - 1).to_string().len()));
        rename(&last, &other).await.unwrap();
        for k in renamed..n - 1 {
            fs.unlink(dir, k.to_string().as_bytes()).await.unwrap();
        }
        rename(&other, &"L".repeat(255)).await.unwrap();
        world.close(fs).await;
    });
}

#[test]
fn a_full_pool_deletes_after_any_number_of_renames() {
    let world = World::new(78, 16384);
    world.run(async {
        let fs = world.open().await;
        let file = make(&fs, ROOT, "0").await.unwrap();
        let names = 20_000;
        for n in 1..names {
            fs.link(file, ROOT, n.to_string().as_bytes()).await.unwrap();
        }
        for len in [256 << 10, 4096] {
            for n in 0..4000 {
                let Ok(node) = make(&fs, ROOT, &format!("d{len}.{n}")).await else { break };
                let full = fs.write(node, 0, &vec![7; len], Default::default()).await;
                fs.release(node);
                if full.is_err() {
                    break;
                }
            }
        }
        fs.sync().await.unwrap();
        lengthen(&fs, ROOT, names).await;
        fs.sync().await.unwrap();
        for n in 0..5 {
            fs.unlink(ROOT, format!("d4096.{n}").as_bytes()).await.expect("deleting works");
        }
    });
}

#[test]
fn a_reader_brings_no_owner_over_its_limit() {
    let world = World::with_log(35, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let files = 20_000;
        for n in 0..files {
            let file = make(&fs, root_of(a), &name(n)).await.unwrap();
            write(&fs, file, 0, b"content").await;
            fs.release(file);
        }
        fs.sync().await.unwrap();
        let clone = fs.snapshot(a, ROOT, b"clone", false, None).await.unwrap();
        let most_bytes = 256 * KIB;
        limit(&fs, GroupId::of(clone), LimitKind::Referenced, most_bytes).await;
        world.rt.sleep(std::time::Duration::from_secs(2)).await;
        for n in 0..files {
            let node = fs.lookup(root_of(clone), name(n).as_bytes()).await.unwrap().node;
            fs.read(node, 0, 7).await.unwrap();
            if n.is_multiple_of(100) {
                fs.sync().await.unwrap();
            }
        }
        let used = used(&fs, clone).await;
        assert!(used <= most_bytes + 64 * KIB, "{used}");
        world.close(fs).await;
    });
}

#[test]
fn content_in_items_counts() {
    let world = World::with_log(37, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let most_bytes = 4 * MIB;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        'all: for n in 0..20_000 {
            let Ok(file) = make(&fs, root_of(a), &format!("{n}")).await else { break 'all };
            let written = fs.write(file, 0, &pattern(n as u8, 2000), Default::default()).await;
            fs.release(file);
            if written.is_err() {
                break;
            }
        }
        let used = used(&fs, a).await;
        assert!(used <= most_bytes + 64 * KIB, "{used}");
        assert!(used > most_bytes / 2, "{used}: most of the limit can be used");
        world.close(fs).await;
    });
}

/// Snapshots share all leaves, so each change and each removal copies one.
#[test]
fn copies_of_shared_leaves_stay_within_the_overdraft() {
    let world = World::with_log(39, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let dir = root_of(a);
        let files = 8000;
        for n in 0..files {
            let file = make(&fs, dir, &name(n)).await.unwrap();
            fs.release(file);
        }
        let most_bytes = used(&fs, a).await;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        for round in 0..12u32 {
            fs.snapshot(a, ROOT, format!("s{round}").as_bytes(), true, None).await.unwrap();
            for n in 0..files {
                let Ok(found) = fs.lookup(dir, name(n).as_bytes()).await else { continue };
                let mode = SetAttr { mode: Some(0o600 + round % 2), ..SetAttr::default() };
                let done = fs.setattr(&Caller::ROOT, found.node, &mode).await.is_ok();
                if !done || (n + u64::from(round)).is_multiple_of(40) {
                    fs.unlink(dir, name(n).as_bytes()).await.ok();
                }
            }
        }
        let used = used(&fs, a).await;
        // A change of one item may copy its whole leaf, at most once.
        assert!(used <= most(most_bytes) + most_bytes, "{used} of {most_bytes}");
        world.close(fs).await;
    });
}

#[test]
fn holes_with_ends_inside_blocks_are_punched_at_the_limit() {
    let world = World::with_log(49, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let most_bytes = 8 * MIB;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let tiny = make(&fs, root_of(a), "tiny").await.unwrap();
        write(&fs, tiny, 0, &pattern(1, 500)).await;
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let size = fill(&fs, file).await;
        fs.fallocate(tiny, 100, 100, FallocateMode::Punch).await.unwrap();
        assert!(read(&fs, tiny, 100, 100).await.iter().all(|byte| *byte == 0));
        fs.fallocate(file, 100, 5 * BLOCK, FallocateMode::Punch).await.unwrap();
        let kept = read(&fs, file, 0, 100).await;
        assert_eq!(kept, pattern(2, 4096)[..100]);
        assert!(read(&fs, file, 100, 5 * BLOCK as usize).await.iter().all(|byte| *byte == 0));
        // A snapshot keeps the blocks, so each end adds one: to the overdraft, and no further.
        fs.snapshot(a, ROOT, b"s", true, None).await.unwrap();
        for at in (8..size / BLOCK).step_by(2) {
            fs.fallocate(file, at * BLOCK + 1, 1, FallocateMode::Punch).await.ok();
        }
        let used = used(&fs, a).await;
        assert!(used <= most(most_bytes), "{used}");
        world.close(fs).await;
    });
}

/// Each block that is written cuts an extent in three.
#[test]
fn writes_into_preallocated_space_count() {
    let world = World::with_log(51, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let most_bytes = 64 * MIB;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let mode = FallocateMode::Allocate { keep_size: false };
        let size = most_bytes - MIB;
        fs.fallocate(file, 0, size, mode).await.unwrap();
        let rest = make(&fs, root_of(a), "rest").await.unwrap();
        fill(&fs, rest).await;
        for block in (0..size / BLOCK).step_by(2) {
            let before = shown(&fs, a).unflushed;
            let data = pattern(1, 4096);
            fs.write(file, block * BLOCK, &data, Default::default()).await.unwrap();
            assert!(
                block > 0 || shown(&fs, a).unflushed > before,
                "the hold of the first write has its items"
            );
            if block.is_multiple_of(512) {
                fs.sync().await.unwrap();
            }
        }
        let used = used(&fs, a).await;
        let changes = (MIB + most_bytes / 64) / 2;
        assert!(used <= most_bytes + changes + 64 * KIB, "{used}");
        world.close(fs).await;
    });
}

#[test]
fn a_copy_that_waits_at_its_limit_locks_no_file() {
    let world = World::with_log(52, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        let file = async |name: &str| {
            let node = make(&fs, root_of(a), name).await.unwrap();
            write(&fs, node, 0, &pattern(1, 64 << 10)).await;
            node
        };
        let (source, target) = (file("source").await, file("target").await);
        fs.sync().await.unwrap();
        limit(&fs, GroupId::of(a), LimitKind::Referenced, 64 * KIB).await;
        // Their edits may take less than their estimate, so the copy waits for a flush.
        for n in 0..200 {
            let mode = SetAttr { mode: Some(0o600 + n % 2), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, target, &mode).await.unwrap();
        }
        let begun = world.rt.now();
        let copy = async {
            let copied = fs.copy_file_range(source, 0, target, 0, 32 << 10).await;
            (copied, world.rt.now() - begun)
        };
        let read = async {
            world.rt.sleep(std::time::Duration::from_micros(1)).await;
            fs.read(target, 0, 4096).await.unwrap();
            world.rt.now() - begun
        };
        let ((copied, waited), read) = futures_util::join!(copy, read);
        assert!(is_over_quota(copied));
        assert!(read < waited, "the target was read after {read} ns, and copied after {waited} ns");
        world.close(fs).await;
    });
}

#[test]
fn refusals_of_one_group_flush_a_few_times_a_second() {
    let world = World::with_log(53, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let group = GroupId::new(1, 1).unwrap();
        fs.change_quotas(|ledger| ledger.create(group)).await.unwrap();
        let mut members = vec![];
        for n in 0..60 {
            let (name, groups) = (format!("{n}"), Some(vec![group]));
            let made = fs.create_subvolume(&Caller::ROOT, ROOT, name.as_bytes(), groups).await;
            let dir = root_of(made.unwrap());
            members.push((dir, make(&fs, dir, "file").await.unwrap()));
        }
        let first = members[0].0;
        for n in 0..2000 {
            let node = make(&fs, first, &name(n)).await.unwrap();
            fs.release(node);
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let used = fs.volumes().ledger().show_group(group).unwrap().referenced;
        limit(&fs, group, LimitKind::Referenced, used).await;
        let (since, before) = (world.rt.now(), world.device.counters().snapshot().flushes);
        for (dir, file) in &members {
            for mode in [0o600, 0o601] {
                let mode = SetAttr { mode: Some(mode), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, *file, &mode).await.unwrap();
                assert!(is_over_quota(make(&fs, *dir, "more").await));
            }
        }
        let flushes = world.device.counters().snapshot().flushes - before;
        let seconds = 1 + (world.rt.now() - since) / 1_000_000_000;
        assert!(flushes <= 12 * seconds, "{flushes} flushes in {seconds} s");
        // Deleted files make room for the next call.
        for n in 0..2000 {
            fs.unlink(first, name(n).as_bytes()).await.unwrap();
        }
        fs.reaper_idle().await;
        make(&fs, first, "more").await.unwrap();
        world.close(fs).await;
    });
}

/// Each clone has its first change in memory before any of them is written.
#[test]
fn first_changes_of_many_clones_stay_within_the_overdraft() {
    let world = World::with_log(50, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let group = GroupId::new(1, 1).unwrap();
        fs.change_quotas(|ledger| ledger.create(group)).await.unwrap();
        let groups = || Some(vec![group]);
        let a = fs.create_subvolume(&Caller::ROOT, ROOT, b"a", groups()).await.unwrap();
        for n in 0..8000 {
            let file = make(&fs, root_of(a), &name(n)).await.unwrap();
            fs.release(file);
        }
        let mut clones = vec![];
        for n in 0..200 {
            let clone = format!("clone{n}");
            clones.push(fs.snapshot(a, ROOT, clone.as_bytes(), false, groups()).await.unwrap());
        }
        let shown = async || {
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
            fs.volumes().ledger().show_group(group).unwrap().referenced
        };
        let most_bytes = shown().await + 256 * KIB;
        limit(&fs, group, LimitKind::Referenced, most_bytes).await;
        let (mut made, mut changed) = (0, 0);
        for (n, clone) in clones.iter().enumerate() {
            if n.is_multiple_of(2) {
                made += u64::from(make(&fs, root_of(*clone), "new").await.is_ok());
                continue;
            }
            let node = fs.lookup(root_of(*clone), name(77).as_bytes()).await.unwrap().node;
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            changed += u64::from(fs.setattr(&Caller::ROOT, node, &mode).await.is_ok());
        }
        let used = shown().await;
        assert!(made > 0 && changed > 0, "{made} made, {changed} changed");
        assert!(used <= most(most_bytes), "{used} of {most_bytes}: {made} made, {changed} changed");
        world.close(fs).await;
    });
}

/// A snapshot is made between each two changes of one subvolume, and nothing is written meanwhile.
#[test]
fn changes_between_snapshots_stay_within_the_overdraft() {
    let world = World::with_log(51, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        for n in 0..8000 {
            let file = make(&fs, root_of(a), &name(n)).await.unwrap();
            fs.release(file);
        }
        let most_bytes = used_by_all(&fs).await + 256 * KIB;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, most_bytes).await;
        let mut made = 0;
        for n in 0..200 {
            let snapshot = format!("snapshot{n}");
            drop(fs.snapshot(a, root_of(a), snapshot.as_bytes(), false, None).await);
            made += u64::from(make(&fs, root_of(a), &format!("new{n}")).await.is_ok());
        }
        let used = used_by_all(&fs).await;
        assert!(made > 0, "some find room");
        assert!(used <= most(most_bytes), "{used} of {most_bytes}: {made} made");
        world.close(fs).await;
    });
}

/// Each clone begins with the same edits in a layer, which a merge would copy into all leaves.
#[test]
fn clones_over_an_inherited_layer_stay_within_the_overdraft() {
    let world = World::with_log(52, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let a = subvolume(&fs, "a").await;
        for n in 0..8000 {
            let file = make(&fs, root_of(a), &name(n)).await.unwrap();
            fs.release(file);
        }
        fs.pool().flush_all().await.unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        for n in 0..700 {
            let node = fs.lookup(root_of(a), name(n * 11).as_bytes()).await.unwrap().node;
            fs.setattr(&Caller::ROOT, node, &mode).await.unwrap();
        }
        fs.sync().await.unwrap();
        let files = fs.volumes().subvol(a).unwrap().files();
        fs.pool().flush_edits_of(files).await.unwrap();
        let before = shown(&fs, a).referenced;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, before + 5 * MIB).await;
        let mut made = 0;
        for n in 0..24 {
            let clone = format!("clone{n}");
            let clone = fs.snapshot(a, root_of(a), clone.as_bytes(), false, None).await.unwrap();
            made += u64::from(make(&fs, root_of(clone), "new").await.is_ok());
        }
        let used = used_by_all(&fs).await;
        let most = most(before + 5 * MIB);
        assert!(made > 12 && used <= most, "{used} of {most}, {before} before: {made} made");
        world.close(fs).await;
    });
}
