//! Clean data in memory: which reads find it, which owner pays, and when it ends.

use std::sync::Arc;

use copyhold_fs::{DataCache, FallocateMode, Filesystem, NodeId, ReadFlags};
use copyhold_memory::MemoryClass;
use copyhold_pool::CleanStats;
use copyhold_types::{Purpose, SubvolId};

use crate::common::tenants::*;
use crate::common::*;

const LEN: usize = 1 << 20;

fn reads(fs: &Filesystem) -> u64 {
    fs.pool().devices().counters().purposes[Purpose::Data as usize].reads
}

fn stats(fs: &Filesystem) -> CleanStats {
    fs.pool().devices().clean().stats()
}

/// File `f` of a subvolume, as a direct reader sees it.
async fn read(fs: &Arc<Filesystem>, subvol: SubvolId, direct: bool) -> Vec<u8> {
    let node = fs.lookup(root_of(subvol), b"f").await.unwrap().node;
    read_file(fs, node, direct).await
}

async fn read_file(fs: &Arc<Filesystem>, node: NodeId, direct: bool) -> Vec<u8> {
    let flags = ReadFlags { direct, ..ReadFlags::default() };
    fs.read_with(node, 0, LEN, flags).await.unwrap().to_vec()
}

/// A base with a file that is on the device, and clones of it.
async fn clones(fs: &Arc<Filesystem>, count: usize) -> (SubvolId, Vec<SubvolId>) {
    let base = subvolume(fs, "base").await;
    let node = file(fs, root_of(base), "f").await;
    write(fs, node, 0, &pattern(1, LEN)).await;
    fs.sync().await.unwrap();
    let mut clones = Vec::new();
    for n in 0..count {
        clones.push(snapshot(fs, base, &format!("clone{n}"), false).await);
    }
    fs.sync().await.unwrap();
    (base, clones)
}

#[test]
fn clones_fetch_their_base_once() {
    let fetched = |mode| {
        let world = World::new(1, 16384);
        world.run(async {
            let fs = world.open_clean(mode).await;
            let (_, clones) = clones(&fs, 10).await;
            let before = reads(&fs);
            for clone in &clones {
                assert_eq!(read(&fs, *clone, false).await, pattern(1, LEN));
            }
            let fetched = reads(&fs) - before;
            let shared = fs.pool().memory().shared().charged(MemoryClass::Data);
            assert_eq!(shared, stats(&fs).bytes as i64, "KEEP-S1");
            assert_eq!(shared > 0, mode != DataCache::Off);
            world.close(fs).await;
            fetched
        })
    };
    let (once, each) = (fetched(DataCache::Shared), fetched(DataCache::Off));
    assert_eq!(each, 10 * once);
}

#[test]
fn a_mount_chooses_the_reads_of_which_data_is_kept() {
    for (mode, buffered, direct) in [
        (DataCache::Off, false, false),
        (DataCache::Shared, false, false),
        (DataCache::Direct, false, true),
        (DataCache::All, true, true),
    ] {
        let world = World::new(2, 16384);
        world.run(async {
            let fs = world.open_clean(mode).await;
            let a = subvolume(&fs, "a").await;
            let node = file(&fs, root_of(a), "f").await;
            write(&fs, node, 0, &pattern(1, LEN)).await;
            fs.sync().await.unwrap();
            for (is_direct, kept) in [(false, buffered), (true, direct)] {
                let _ = read_file(&fs, node, is_direct).await;
                let before = reads(&fs);
                assert_eq!(read_file(&fs, node, is_direct).await, pattern(1, LEN));
                assert_eq!(reads(&fs) == before, kept, "{mode}");
            }
            let shared = fs.pool().memory().shared().charged(MemoryClass::Data);
            assert_eq!(shared, 0, "KEEP-S1: the reader pays");
            world.close(fs).await;
        });
    }
}

/// Overwrites, holes and preallocated space, each read before and after it changes.
#[test]
fn content_in_memory_changes_with_the_file() {
    let world = World::new(3, 16384);
    world.run(async {
        let fs = world.open_clean(DataCache::All).await;
        let (base, clones) = clones(&fs, 2).await;
        let node = fs.lookup(root_of(clones[0]), b"f").await.unwrap().node;
        let mut wanted = pattern(1, LEN);
        for round in 0..20 {
            assert_eq!(read(&fs, clones[0], round % 2 == 0).await, wanted);
            assert_eq!(read(&fs, clones[1], false).await, pattern(1, LEN));
            let (at, len) = (round * 40_000, 60_000);
            match round % 3 {
                0 => {
                    write(&fs, node, at as u64, &pattern(round as u8 + 2, len)).await;
                    wanted[at..at + len].copy_from_slice(&pattern(round as u8 + 2, len));
                }
                1 => {
                    let punch = FallocateMode::Punch;
                    fs.fallocate(node, at as u64, len as u64, punch).await.unwrap();
                    wanted[at..at + len].fill(0);
                }
                _ => {
                    let allocate = FallocateMode::Allocate { keep_size: false };
                    fs.fallocate(node, 0, LEN as u64, allocate).await.unwrap();
                }
            }
            fs.sync().await.unwrap();
            fs.sync().await.unwrap();
        }
        assert_eq!(read(&fs, base, false).await, pattern(1, LEN));
        let stats = stats(&fs);
        assert!(stats.hits > 0 && stats.mismatches == 0, "{stats:?}");
        world.close(fs).await;
    });
}

/// Blocks that nothing refers to any more are not kept, and no owner pays for them (CLEAN-D2).
#[test]
fn a_deleted_subvolume_leaves_nothing_in_memory() {
    let world = World::new(4, 16384);
    world.run(async {
        let fs = world.open_clean(DataCache::All).await;
        let (base, clones) = clones(&fs, 1).await;
        let node = file(&fs, root_of(clones[0]), "own").await;
        write(&fs, node, 0, &pattern(7, LEN)).await;
        fs.sync().await.unwrap();
        let (_, own) = (read(&fs, base, false).await, read_file(&fs, node, false).await);
        assert_eq!(own, pattern(7, LEN));
        fs.release(node);
        let data = |fs: &Filesystem| fs.pool().memory().charged(MemoryClass::Data);
        assert_eq!(stats(&fs).evictions, 0, "both files have room");
        let clone = fs.volumes().subvol(clones[0]).unwrap();
        let (before, own) = (data(&fs), clone.owner().charged(MemoryClass::Data));
        assert!(own > 0 && own < before);
        drop(clone);
        fs.delete_subvolume(ROOT, b"clone0", None).await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(data(&fs), before - own);
        fs.delete_subvolume(ROOT, b"base", None).await.unwrap();
        fs.volumes().finish_background().await.unwrap();
        assert_eq!(data(&fs), 0);
        world.close(fs).await;
    });
}
