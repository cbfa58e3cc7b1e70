//! Requests that would keep the filesystem busy for long, or again and again: each takes bounded
//! work.

use std::sync::Arc;

use copyhold_device::Device;
use copyhold_format::item::{InodeItem, XATTR, XattrBucket, XattrValue, inode_key, xattr_bucket};
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, Options, RenameFlags, Result, SetAttr,
    XattrSet,
};
use copyhold_pool::{Tier, Transaction};
use copyhold_runtime::Runtime;
use copyhold_types::{Key, SubvolId};
use copyhold_volume::quota::{GroupId, LimitKind};

use crate::common::*;
use crate::quotas::{is_over_quota, limit, make, root_of, shown, subvolume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

async fn open(world: &World) -> Arc<Filesystem> {
    world.open_with(Options { count_lookups: false, ..Options::default() }).await
}

async fn resize(fs: &Arc<Filesystem>, node: NodeId, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&Caller::ROOT, node, &set).await.unwrap();
}

/// Copies as a program does, request by request. Returns the number of requests that copied bytes.
async fn copy_all(
    fs: &Arc<Filesystem>,
    (from, at): (NodeId, u64),
    (to, into): (NodeId, u64),
    len: u64,
) -> u32 {
    let (mut copied, mut requests) = (0, 0);
    while copied < len {
        let left = len - copied;
        match fs.copy_file_range(from, at + copied, to, into + copied, left).await.unwrap() {
            0 => break,
            bytes => copied += bytes,
        }
        requests += 1;
    }
    requests
}

#[test]
fn one_request_copies_a_hole_of_any_length() {
    let world = World::with_log(35, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let source = create(&fs, "source").await;
        // An offset within a block, and one at its beginning.
        for (n, into) in [0, 5 * BLOCK, 100].into_iter().enumerate() {
            let len = 1 << (40 + 8 * n);
            let end = pattern(9, 5000);
            resize(&fs, source, 0).await;
            write(&fs, source, 0, &pattern(3, 9000)).await;
            write(&fs, source, len, &end).await;
            let size = len + end.len() as u64;
            let target = create(&fs, &format!("target{n}")).await;
            let old = pattern(7, 3 << 20);
            write(&fs, target, 64 * MIB, &old).await;
            let mode = FallocateMode::Allocate { keep_size: true };
            fs.fallocate(target, 80 * MIB, MIB, mode).await.unwrap();
            assert_eq!(copy_all(&fs, (source, 0), (target, into), size).await, 1);

            assert_eq!(fs.getattr(target).await.unwrap().size, into + size);
            let mut begin = vec![0; 64 << 10];
            begin[into as usize..into as usize + 9000].copy_from_slice(&pattern(3, 9000));
            assert!(read(&fs, target, 0, 64 << 10).await == begin);
            assert!(read(&fs, target, 64 * MIB, 4 << 20).await == vec![0; 4 << 20]);
            let tail = read(&fs, target, into + len - BLOCK, 20_000).await;
            assert!(tail == [vec![0; BLOCK as usize], end].concat());
            fs.fsync(target, false).await.unwrap();
            let blocks = fs.getattr(target).await.unwrap().blocks * 512;
            assert!(blocks <= 64 << 10, "{blocks} bytes are allocated");
        }
        world.close(fs).await;
    });
}

/// The last extent that one step looks at begins before a dirty block, and ends behind it.
#[test]
fn preallocated_space_with_a_dirty_block_is_no_hole() {
    let world = World::with_log(38, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let (source, target) = (create(&fs, "source").await, create(&fs, "target").await);
        let mode = FallocateMode::Allocate { keep_size: false };
        fs.fallocate(source, 0, 40 * MIB, mode).await.unwrap();
        fs.fsync(source, false).await.unwrap();
        for extent in [255, 256] {
            let at = extent * (128 << 10) + BLOCK;
            write(&fs, source, at, &pattern(extent as u8, 4096)).await;
        }
        copy_all(&fs, (source, 0), (target, 0), 40 * MIB).await;
        let all = read(&fs, source, 0, 40 << 20).await;
        assert!(read(&fs, target, 0, 40 << 20).await == all);
        world.close(fs).await;
    });
}

#[test]
fn one_request_copies_the_longest_hole() {
    let world = World::new(36, 8192);
    world.run(async {
        let fs = open(&world).await;
        let (source, target) = (create(&fs, "source").await, create(&fs, "target").await);
        let most = i64::MAX as u64 & !(BLOCK - 1);
        resize(&fs, source, most).await;
        assert_eq!(fs.copy_file_range(source, 0, target, 0, u64::MAX).await.unwrap(), most);
        assert_eq!(fs.getattr(target).await.unwrap().size, most);
        // Within one file, behind its own hole; the second ends at the largest size.
        resize(&fs, source, most / 2).await;
        let copied = fs.copy_file_range(source, BLOCK, source, most - MIB, most / 4).await;
        assert_eq!(copied.unwrap(), MIB);
        let behind = fs.copy_file_range(source, 0, target, most, 1).await;
        assert!(behind.is_err(), "{behind:?}");
        world.close(fs).await;
    });
}

#[test]
fn one_request_copies_a_bounded_amount() {
    let world = World::with_log(37, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let source = create(&fs, "source").await;
        let part = 8 * MIB;
        write(&fs, source, 0, &pattern(1, part as usize)).await;
        for n in 1..6 {
            copy_all(&fs, (source, 0), (source, n * part), part).await;
        }
        let target = create(&fs, "target").await;
        let copied = fs.copy_file_range(source, 0, target, 1, 6 * part).await.unwrap();
        assert!((MIB..=32 * MIB).contains(&copied), "{copied} bytes in one request");
        assert_eq!(fs.getattr(target).await.unwrap().size, copied + 1);
        let len = (copied - part) as usize;
        assert!(read(&fs, target, 1 + part, len).await == read(&fs, source, part, len).await);
        world.close(fs).await;
    });
}

/// Files with holes of all lengths against arrays of bytes.
#[test]
fn copies_of_sparse_files_have_the_bytes_of_their_source() {
    const SIZE: u64 = 24 * MIB;
    for seed in seeds(12) {
        let world = World::with_log(seed, 32768, 4 << 20);
        world.run(async {
            let fs = open(&world).await;
            let nodes = [create(&fs, "a").await, create(&fs, "b").await];
            let mut models = [Vec::new(), Vec::new()];
            let below = |most: u64| world.rt.random() % most;
            let place = || match below(2) {
                0 => below(SIZE / BLOCK) * BLOCK,
                _ => below(SIZE),
            };
            for round in 0..60 {
                let (n, at) = (below(2) as usize, place());
                let len = (1 << below(24)).min(SIZE - at);
                let (node, model): (_, &mut Vec<u8>) = (nodes[n], &mut models[n]);
                let end = (at + len) as usize;
                match below(8) {
                    0 | 1 => {
                        let data = pattern(round, len.min(200_000) as usize);
                        write(&fs, node, at, &data).await;
                        model.resize(model.len().max(at as usize + data.len()), 0);
                        model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                    }
                    2 => {
                        fs.fallocate(node, at, len, FallocateMode::Punch).await.unwrap();
                        let end = end.min(model.len());
                        model.get_mut(at as usize..end).into_iter().for_each(|part| part.fill(0));
                    }
                    3 => {
                        let mode = FallocateMode::Allocate { keep_size: true };
                        fs.fallocate(node, at, len.min(MIB), mode).await.unwrap();
                    }
                    4 => {
                        resize(&fs, node, at).await;
                        model.resize(at as usize, 0);
                    }
                    5 => fs.fsync(node, false).await.unwrap(),
                    _ => {
                        let (to, into) = (below(2) as usize, place());
                        // A copy within a file would find the bytes that it adds behind the end.
                        let there = (models[n].len() as u64).saturating_sub(at);
                        let len = len.min(SIZE - into).min(there);
                        if to == n && at.abs_diff(into) < len {
                            continue;
                        }
                        copy_all(&fs, (node, at), (nodes[to], into), len).await;
                        let end = ((at + len) as usize).min(models[n].len());
                        let Some(bytes) = models[n].get(at as usize..end) else { continue };
                        let (bytes, into) = (bytes.to_vec(), into as usize);
                        if !bytes.is_empty() {
                            let model = &mut models[to];
                            model.resize(model.len().max(into + bytes.len()), 0);
                            model[into..into + bytes.len()].copy_from_slice(&bytes);
                        }
                    }
                }
            }
            for (node, model) in nodes.into_iter().zip(&models) {
                assert_eq!(fs.getattr(node).await.unwrap().size, model.len() as u64);
                let real = read(&fs, node, 0, SIZE as usize).await;
                assert!(real == *model, "seed {seed}: the contents differ");
                fs.release(node);
            }
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
            check_space(&fs).await;
            world.close(fs).await;
        });
    }
}

/// The name of an attribute, of 255 bytes in a list.
fn attribute(n: u64) -> Vec<u8> {
    format!("user.{n:0249}").into_bytes()
}

async fn set(fs: &Arc<Filesystem>, node: NodeId, name: &[u8], value: &[u8]) -> Result<()> {
    fs.set_xattr(&Caller::ROOT, node, name, value, XattrSet::Any, false).await
}

fn is_crowded<T>(refused: &Result<T>) -> bool {
    matches!(refused, Err(FsError::Crowded { .. }))
}

#[test]
fn names_of_attributes_have_64_kib_in_all() {
    let world = World::with_log(43, 65536, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let file = create(&fs, "file").await;
        let mut most = 0;
        while set(&fs, file, &attribute(most), b"").await.is_ok() {
            most += 1;
            assert!(most <= 1000, "no attribute is refused");
        }
        assert_eq!(most, (64 << 10) / 255);
        assert!(is_crowded(&set(&fs, file, &attribute(most), b"").await));
        assert_eq!(fs.list_xattr(file).await.unwrap().len() as u64, most * 255);
        // A name that exists takes a new value, and a shorter one fits still.
        set(&fs, file, &attribute(3), b"new").await.unwrap();
        assert!(is_crowded(&set(&fs, file, b"security.capability", b"").await));
        fs.remove_xattr(file, &attribute(5)).await.unwrap();
        set(&fs, file, &attribute(most), b"").await.unwrap();
        assert!(is_crowded(&set(&fs, file, &attribute(5), b"").await));
        world.close(fs).await;

        let fs = open(&world).await;
        assert!(is_crowded(&set(&fs, file, &attribute(5), b"").await));
        fs.remove_xattr(file, &attribute(7)).await.unwrap();
        set(&fs, file, &attribute(5), b"").await.unwrap();
        assert!(is_crowded(&set(&fs, file, &attribute(7), b"").await));
        assert_eq!(fs.list_xattr(file).await.unwrap().len() as u64, most * 255);
        world.close(fs).await;
    });
}

/// Gives a file more attributes than can be set, as earlier versions of this program did.
async fn add_attributes(world: &World, node: NodeId, count: u64) {
    let fs = open(world).await;
    let subvol = fs.volumes().subvol(SubvolId::ROOT).unwrap();
    let (table, hash_key) = (subvol.files(), subvol.item().hash_key);
    world.close(fs).await;
    let pool = world.pool(false).await;
    let key = inode_key(node.ino);
    let item = InodeItem::parse(&pool.get(table, key).await.unwrap().unwrap()).unwrap();
    let item = InodeItem { xattrs: count as u32, ..item };
    let credit = pool.admit(Tier::Write, count as usize + 1, 128 << 10).await.unwrap();
    let mut tx = Transaction::new();
    tx.put(table, key, &item.encode()[..]);
    for n in 0..count {
        let (bucket, _) = XattrBucket::EMPTY.with(&attribute(n), XattrValue::Here(b"")).unwrap();
        let key = Key::new(node.ino.0, XATTR, xattr_bucket(&hash_key, &attribute(n)));
        tx.put(table, key, bucket);
    }
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
    pool.close().await.unwrap();
}

#[test]
fn more_names_of_an_earlier_version_are_not_listed_and_can_be_removed() {
    let world = World::with_log(44, 65536, 4 << 20);
    world.run(async {
        let (fs, count) = (open(&world).await, 300);
        let file = create(&fs, "file").await;
        world.close(fs).await;
        add_attributes(&world, file, count).await;

        let fs = open(&world).await;
        let listed = fs.list_xattr(file).await;
        assert!(matches!(listed, Err(FsError::AttributeListTooBig { .. })), "{listed:?}");
        assert!(is_crowded(&set(&fs, file, &attribute(count), b"").await));
        set(&fs, file, &attribute(7), b"new").await.unwrap();
        assert_eq!(fs.get_xattr(file, &attribute(7)).await.unwrap(), b"new");
        for n in 256..count {
            fs.remove_xattr(file, &attribute(n)).await.unwrap();
        }
        assert_eq!(fs.list_xattr(file).await.unwrap().len(), 256 * 255);
        set(&fs, file, &attribute(count), b"").await.unwrap();
        assert!(is_crowded(&set(&fs, file, &attribute(count + 1), b"").await));
        world.close(fs).await;
    });
}

#[test]
fn directories_are_not_moved_below_2048_levels() {
    let world = World::with_log(45, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        let mut levels = vec![ROOT];
        for n in 0..2100 {
            let level = mkdir(&fs, levels[n], "d").await;
            levels.push(level);
        }
        let moved = mkdir(&fs, ROOT, "moved").await;
        let rename = async |from: NodeId, name: &str, to: NodeId, new: &str| {
            let flags = RenameFlags::default();
            fs.rename(&Caller::ROOT, from, name.as_bytes(), to, new.as_bytes(), flags).await
        };
        let refused = rename(ROOT, "moved", levels[2049], "moved").await;
        assert!(matches!(refused, Err(FsError::TooDeep { max: 2048 })), "{refused:?}");
        rename(ROOT, "moved", levels[2048], "moved").await.unwrap();
        rename(levels[2048], "moved", ROOT, "moved").await.unwrap();
        // A file has nothing below it, and a name in one directory stays there.
        create(&fs, "file").await;
        rename(ROOT, "file", levels[2100], "file").await.unwrap();
        rename(levels[2099], "d", levels[2099], "e").await.unwrap();
        // The whole tree, and a part of it, can be moved up.
        let under_itself = rename(ROOT, "d", levels[2000], "under").await;
        assert!(matches!(under_itself, Err(FsError::Invalid(_))), "{under_itself:?}");
        rename(levels[1000], "d", moved, "d").await.unwrap();
        assert_eq!(names(&fs, levels[2100]).await.len(), 3);
        world.close(fs).await;
    });
}

/// Changes that are refused at a limit, each after one that is accepted.
#[test]
fn refusals_at_a_limit_flush_a_few_times_a_second() {
    let world = World::with_log(41, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        fs.enable_quotas().await.unwrap();
        let a = subvolume(&fs, "a").await;
        let (dir, file) = (root_of(a), make(&fs, root_of(a), "file").await.unwrap());
        for n in 0..2000 {
            let node = make(&fs, dir, &format!("file{n}")).await.unwrap();
            fs.release(node);
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let used = shown(&fs, a).referenced;
        limit(&fs, GroupId::of(a), LimitKind::Referenced, used).await;
        let (since, before) = (world.rt.now(), world.device.counters().snapshot().flushes);
        for n in 0..200 {
            let mode = SetAttr { mode: Some(0o600 + n % 2), ..SetAttr::default() };
            fs.setattr(&Caller::ROOT, file, &mode).await.unwrap();
            assert!(is_over_quota(make(&fs, dir, "more").await));
        }
        let flushes = world.device.counters().snapshot().flushes - before;
        let seconds = 1 + (world.rt.now() - since) / 1_000_000_000;
        assert!(flushes <= 12 * seconds, "{flushes} flushes in {seconds} s");

        // Deleted files make room for the next call, whatever was refused before.
        for n in 0..1000 {
            fs.unlink(dir, format!("file{n}").as_bytes()).await.unwrap();
        }
        fs.reaper_idle().await;
        make(&fs, dir, "more").await.unwrap();
        world.close(fs).await;
    });
}

/// Writes that are refused at a limit do not write the data of others each time.
#[test]
fn refused_writes_leave_dirty_data_of_others_in_memory() {
    let world = World::with_log(46, 32768, 4 << 20);
    world.run(async {
        let fs = open(&world).await;
        fs.enable_quotas().await.unwrap();
        let (a, b) = (subvolume(&fs, "a").await, subvolume(&fs, "b").await);
        let file = make(&fs, root_of(a), "file").await.unwrap();
        let other = make(&fs, root_of(b), "other").await.unwrap();
        limit(&fs, GroupId::of(a), LimitKind::Referenced, MIB).await;
        let written = || -> u64 {
            world
                .device
                .counters()
                .snapshot()
                .purposes
                .iter()
                .map(|purpose| purpose.written_bytes)
                .sum()
        };
        let (since, mut writes) = (world.rt.now(), 0);
        for n in 0..200 {
            write(&fs, other, n * BLOCK, &pattern(1, 4096)).await;
            let before = written();
            let refused = fs.write(file, 0, &pattern(2, 2 << 20), Default::default()).await;
            assert!(is_over_quota(refused));
            writes += u64::from(written() > before);
        }
        let seconds = 1 + (world.rt.now() - since) / 1_000_000_000;
        assert!(writes <= 12 * seconds, "{writes} refused writes wrote data in {seconds} s");
        // A deleted file makes room for the next write.
        fs.unlink(root_of(a), b"file").await.unwrap();
        fs.release(file);
        let file = make(&fs, root_of(a), "file").await.unwrap();
        write(&fs, file, 0, &pattern(3, 1 << 19)).await;
        world.close(fs).await;
    });
}
