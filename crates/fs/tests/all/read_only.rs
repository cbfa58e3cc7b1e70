//! A subvolume that is set read-only does not change any more, and has all that was accepted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, FallocateMode, Filesystem, FsError, NodeId, SetAttr};
use copyhold_runtime::Runtime;
use copyhold_types::{InodeNo, SubvolId};
use parking_lot::Mutex;

use crate::common::tenants::*;
use crate::common::*;

const CLIENTS: u64 = 6;

/// Changes a file in many ways until that is refused. What it is then.
async fn change_until_refused(fs: Arc<Filesystem>, node: NodeId, client: u64) -> Vec<u8> {
    let mut model: Vec<u8> = Vec::new();
    let rt = fs.pool().runtime().clone();
    for step in 0_u64.. {
        rt.sleep(Duration::from_micros(100)).await;
        let number = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ client;
        let (at, len) = (number % 90_000, 1 + (number >> 20) % 40_000);
        let data = pattern(step as u8, len as usize);
        let end = (at + len) as usize;
        let changed = match step % 5 {
            0..3 => fs.write(node, at, &data, Default::default()).await,
            3 => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                fs.setattr(&Caller::ROOT, node, &set).await.map(drop)
            }
            _ => fs.fallocate(node, at, len, FallocateMode::Punch).await,
        };
        match changed {
            Err(FsError::ReadOnly { .. }) => return model,
            changed => changed.unwrap(),
        }
        match step % 5 {
            0..3 => {
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&data);
            }
            3 => model.resize(at as usize, 0),
            _ => {
                let (from, to) = (model.len().min(at as usize), model.len().min(end));
                model[from..to].fill(0);
            }
        }
    }
    unreachable!("steps have no end")
}

async fn contents(fs: &Filesystem, a: SubvolId) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for name in names(fs, root_of(a)).await.into_iter().filter(|name| !name.starts_with('.')) {
        let content = content(fs, root_of(a), &name).await;
        contents.insert(name, content);
    }
    contents
}

#[test]
fn what_was_accepted_is_there_and_what_comes_later_is_refused() {
    for seed in 1..20 {
        let world = World::new(3000 + seed, 65536);
        let crashed = world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            let models = Arc::new(Mutex::new(BTreeMap::new()));
            for client in 0..CLIENTS {
                let name = format!("f{client}");
                let node = file(&fs, root_of(a), &name).await;
                let (fs, models) = (fs.clone(), models.clone());
                world.rt.spawn(Box::pin(async move {
                    let model = change_until_refused(fs, node, client).await;
                    models.lock().insert(name, model);
                }));
            }
            world.rt.sleep(Duration::from_millis(2 * seed)).await;
            fs.set_subvolume_read_only(a, true).await.unwrap();
            let attrs = |fs: Arc<Filesystem>| async move {
                let mut attrs = Vec::new();
                for client in 0..CLIENTS {
                    let name = format!("f{client}");
                    attrs.push(fs.lookup(root_of(a), name.as_bytes()).await.unwrap().attr);
                }
                attrs
            };
            let (then, shown) = (contents(&fs, a).await, attrs(fs.clone()).await);
            // Metadata only: data that was not installed would be missing.
            fs.pool().commit(fs.pool().open_txg()).await.unwrap();
            world.rt.sleep(Duration::from_secs(60)).await;
            assert!(contents(&fs, a).await == then, "seed {seed}: it has changed since");
            let times = |attrs: Vec<copyhold_fs::Attr>| -> Vec<_> {
                attrs.into_iter().map(|attr| (attr.size, attr.mtime, attr.ctime)).collect()
            };
            assert_eq!(times(attrs(fs.clone()).await), times(shown), "seed {seed}");
            assert!(*models.lock() == then, "seed {seed}: it is not what was accepted");
            (fs, models)
        });
        let (fs, models) = crashed;
        let world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let a = fs.lookup(ROOT, b"a").await.unwrap().node.subvol;
            assert!(contents(&fs, a).await == *models.lock(), "seed {seed}: after a crash");
            world.close(fs).await;
        });
    }
}

/// Names and attributes: each change is done before the subvolume is read-only, or is refused.
#[test]
fn names_do_not_change_either() {
    for seed in 1..20 {
        let world = World::new(3100 + seed, 65536);
        world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            for client in 0..CLIENTS {
                let fs = fs.clone();
                world.rt.spawn(Box::pin(async move {
                    for n in 0_u64.. {
                        let name = format!("c{client}n{n}");
                        let made =
                            fs.mkdir(&Caller::ROOT, root_of(a), name.as_bytes(), 0o755).await;
                        let done = match made {
                            Ok(_) if n % 3 == 0 => fs.rmdir(root_of(a), name.as_bytes()).await,
                            made => made.map(drop),
                        };
                        match done {
                            Err(FsError::ReadOnly { .. }) => return,
                            done => done.unwrap(),
                        }
                    }
                }));
            }
            world.rt.sleep(Duration::from_millis(seed)).await;
            fs.set_subvolume_read_only(a, true).await.unwrap();
            let then = names(&fs, root_of(a)).await;
            world.rt.sleep(Duration::from_secs(1)).await;
            assert_eq!(names(&fs, root_of(a)).await, then, "seed {seed}");
            world.close(fs).await;
        });
    }
}

/// When it cannot be set read-only, it is what it was.
#[test]
fn a_subvolume_whose_data_cannot_be_written_stays_writable() {
    use copyhold_device::sim::{Fault, Trigger};
    use copyhold_types::Purpose;
    let world = World::new(3200, 16384);
    world.run(async {
        let fs = world.open().await;
        let a = subvolume(&fs, "a").await;
        let node = file(&fs, root_of(a), "f").await;
        write(&fs, node, 0, &pattern(1, 1 << 20)).await;
        let data = Trigger::Write { nth: 0, why: Some(Purpose::Data) };
        world.device.arm_for_good(data, Fault::Error(5));
        assert!(fs.set_subvolume_read_only(a, true).await.is_err());
        world.device.disarm();
        write(&fs, node, 0, &pattern(2, 1 << 20)).await;
        fs.set_subvolume_read_only(a, true).await.unwrap();
        fs.set_subvolume_read_only(a, true).await.unwrap();
        assert!(content(&fs, root_of(a), "f").await == pattern(2, 1 << 20));
        let root = NodeId { subvol: a, ino: InodeNo::ROOT };
        let made = fs.mkdir(&Caller::ROOT, root, b"new", 0o755).await;
        assert!(matches!(made, Err(FsError::ReadOnly { .. })), "{made:?}");
        world.close(fs).await;
    });
}
