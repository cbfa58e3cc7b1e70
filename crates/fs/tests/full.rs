//! A pool without a free block: what users may not take is enough for all that is admitted.

mod common;

use std::sync::Arc;

use common::*;
use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, SetAttr};
use copyhold_types::{InodeNo, SubvolId};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

const WRITE: OpenFlags = OpenFlags::READ_WRITE;
const FILES: usize = 2000;
const CLONES: usize = 60;

fn root_of(subvol: SubvolId) -> NodeId {
    NodeId { subvol, ino: InodeNo::ROOT }
}

/// Writes into one file until nothing is free.
async fn fill(fs: &Arc<Filesystem>, name: &str) -> NodeId {
    let node = create(fs, name).await;
    let mut at = 0;
    for len in [1 << 20, 1 << 16, 4096] {
        let data = pattern(at as u8, len);
        while fs.write(node, at, &data, Default::default()).await.is_ok() {
            at += len as u64;
        }
    }
    assert!(matches!(fs.fsync(node, false).await, Ok(()) | Err(FsError::NoSpace(_))));
    node
}

/// Changes files here and there, until it is refused. How many were changed.
async fn touch(fs: &Arc<Filesystem>, clone: SubvolId, every: usize) -> usize {
    let mut changed = 0;
    for n in (0..FILES).step_by(every) {
        let node = fs.lookup(root_of(clone), format!("f{n}").as_bytes()).await.unwrap().node;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        match fs.setattr(&Caller::ROOT, node, &mode).await {
            Ok(_) => changed += 1,
            Err(FsError::NoSpace(_)) => break,
            Err(error) => panic!("after {changed}: {error}"),
        }
    }
    changed
}

#[test]
fn clones_that_are_all_changed_on_a_full_pool_leave_what_deletes_need() {
    let world = World::new(7, 16384);
    world.run(async {
        let fs = world.open().await;
        let origin = fs.create_subvolume(&Caller::ROOT, ROOT, b"origin", None).await.unwrap();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        for n in 0..FILES {
            let name = format!("f{n}");
            let dir = root_of(origin);
            let made = fs.create(&Caller::ROOT, dir, name.as_bytes(), 0o644, WRITE, false).await;
            let mut content = vec![0; 1024];
            random.fill_bytes(&mut content);
            write(&fs, made.unwrap().0.node, 0, &content).await;
        }
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
        let mut clones = Vec::new();
        for n in 0..CLONES {
            let name = format!("c{n}");
            let clone = fs.snapshot(origin, ROOT, name.as_bytes(), false, None).await;
            clones.push(clone.unwrap());
        }
        let full = fill(&fs, "full").await;
        let mut changed = 0;
        for clone in &clones {
            changed += touch(&fs, *clone, 20).await;
        }
        assert!(changed > FILES / 20, "{changed}");
        fs.pool().flush_all().await.unwrap();
        fs.sync().await.unwrap();
        let space = fs.pool().space();
        assert!(space.free >= space.reserve / 4, "{space:?}");
        fs.setattr(&Caller::ROOT, full, &SetAttr { size: Some(0), ..SetAttr::default() })
            .await
            .expect("what frees is never refused");
        for n in 0..CLONES {
            fs.delete_subvolume(ROOT, format!("c{n}").as_bytes(), None).await.unwrap();
        }
        fs.volumes().finish_background().await.unwrap();
        world.close(fs).await;
    });
}
