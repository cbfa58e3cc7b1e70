//! Callers that give up: their futures are dropped while the device is at work.

use std::time::Duration;

use copyhold_fs::{Caller, Filesystem, SetAttr};
use futures_util::future::{Either, select};
use futures_util::pin_mut;

use crate::common::*;

/// Drops the operation, unless it is done by then. Whether it was.
async fn give_up_after<T>(fs: &Filesystem, nanos: u64, operation: impl Future<Output = T>) -> bool {
    let sleep = fs.pool().runtime().sleep(Duration::from_nanos(nanos));
    pin_mut!(operation);
    matches!(select(operation, sleep).await, Either::Left(_))
}

#[test]
fn a_pool_that_has_stopped_says_so_and_not_that_it_is_full() {
    let world = World::new(1, 4096);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "a").await;
        write(&fs, node, 0, &pattern(1, 150_000)).await;
        assert!(!give_up_after(&fs, 1_000, fs.fsync(node, false)).await);
        fs.pool().stop("the test wants it");
        fs.pool().runtime().sleep(Duration::from_secs(1)).await;
        for _ in 0..3 {
            let error = fs.fsync(node, false).await.unwrap_err();
            assert!(error.to_string().contains("the test wants it"), "{error}");
        }
        // Also what needs no more space, since it is dirty already.
        let refused = fs.write(node, 0, &pattern(2, 4096), Default::default()).await;
        assert!(refused.is_err(), "nobody would ever write it");
        let shorter = SetAttr { size: Some(10), ..SetAttr::default() };
        assert!(fs.setattr(&Caller::ROOT, node, &shorter).await.is_err());
    });
}

#[test]
fn space_is_nobody_elses_while_the_device_still_writes_there() {
    let mut given_up = 0;
    for seed in 0..60 {
        let world = World::new(seed, 4096);
        world.run(async {
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            for round in 0..12 {
                let left = create(&fs, &format!("left{round}")).await;
                write(&fs, left, 0, &pattern(round, 150_000)).await;
                let nanos = rt.random() % 200_000;
                given_up += u64::from(!give_up_after(&fs, nanos, fs.fsync(left, false)).await);
                let kept = create(&fs, &format!("kept{round}")).await;
                write(&fs, kept, 0, &pattern(100 + round, 150_000)).await;
                fs.fsync(kept, false).await.unwrap();
            }
            rt.sleep(Duration::from_secs(10)).await;
            for round in 0..12 {
                for (name, salt) in [("left", 0), ("kept", 100)] {
                    let name = format!("{name}{round}");
                    let node = lookup(&fs, &name).await.unwrap().node;
                    let found = read(&fs, node, 0, 150_001).await;
                    assert!(found == pattern(salt + round, 150_000), "seed {seed}: {name}");
                }
            }
            check_space(&fs).await;
            assert_eq!(fs.pool().space().claimed, 0);
            world.close(fs).await;
        });
    }
    assert!(given_up > 100, "{given_up}");
}

#[test]
fn a_removal_that_has_begun_is_finished_where_its_caller_gives_up() {
    let mut given_up = 0;
    for seed in seeds(6) {
        let world = World::new(seed, 1 << 16);
        world.run(async {
            let fs = world.open().await;
            create(&fs, "other").await;
            let node = create(&fs, "many extents").await;
            for n in 0..12_000 {
                write(&fs, node, n * 8192, &pattern(n as u8, 4096)).await;
            }
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
            world.close(fs).await;
            // What is to be removed has to be read first.
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            let before = fs.pool().space().free;
            let names = ["other", "many extents"];
            let [other, node] = names.map(|name| lookup(&fs, name));
            let nodes = [other.await.unwrap().node, node.await.unwrap().node];
            for (name, node) in names.into_iter().zip(nodes) {
                // Only whoever waits for the removals works on the second: the task pauses.
                fs.reaper_idle().await;
                rt.sleep(Duration::from_micros(10)).await;
                fs.unlink(ROOT, name.as_bytes()).await.unwrap();
                fs.forget(node, 1);
            }
            let nanos = rt.random() % 100_000;
            given_up += u64::from(!give_up_after(&fs, nanos, fs.reaper_idle()).await);
            fs.reaper_idle().await;
            fs.sync().await.unwrap();
            fs.pool().flush_all().await.unwrap();
            fs.sync().await.unwrap();
            let free = fs.pool().space().free;
            // Less what the log and the tables have taken since.
            assert!(
                free >= before + 10_000,
                "seed {seed}: {before} blocks free before, {free} now"
            );
            world.close(fs).await;
        });
    }
    assert!(given_up > 2, "{given_up}");
}

/// What waits for company needs nobody to wait for it: neither a sync nor the end.
#[test]
fn what_is_unlinked_in_the_pause_is_removed_by_itself_and_at_once_by_a_sync() {
    for hurries in [false, true] {
        let world = World::new(5, 16384);
        world.run(async {
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            let nodes = [create(&fs, "a").await, create(&fs, "b").await];
            let gone = async |node| fs.getattr(node).await.is_err();
            for (name, node) in ["a", "b"].into_iter().zip(nodes) {
                fs.unlink(ROOT, name.as_bytes()).await.unwrap();
                fs.release(node);
                fs.forget(node, 1);
                rt.sleep(Duration::from_millis(1)).await;
            }
            assert!(gone(nodes[0]).await && !gone(nodes[1]).await);
            let wait = if hurries {
                fs.sync().await.unwrap();
                Duration::from_millis(1)
            } else {
                Duration::from_millis(6)
            };
            rt.sleep(wait).await;
            assert!(gone(nodes[1]).await, "hurries: {hurries}");
            world.close(fs).await;
        });
    }
}

/// Access times that a sync has taken off the list are logged, although it gives up.
#[test]
fn access_times_are_not_forgotten_where_a_sync_gives_up() {
    let mut given_up = 0;
    for seed in seeds(20) {
        let world = World::new(seed, 16384);
        let nodes = world.run(async {
            let fs = world.open().await;
            let rt = fs.pool().runtime().clone();
            let mut nodes = Vec::new();
            for n in 0..200 {
                let node = create(&fs, &format!("f{n}")).await;
                write(&fs, node, 0, &pattern(1, 5000)).await;
                nodes.push(node);
            }
            fs.sync().await.unwrap();
            rt.sleep(Duration::from_secs(2)).await;
            for &node in &nodes {
                read(&fs, node, 0, 10).await;
            }
            let nanos = rt.random() % 30_000;
            given_up += u64::from(!give_up_after(&fs, nanos, fs.sync()).await);
            rt.sleep(Duration::from_secs(1)).await;
            world.close(fs).await;
            nodes
        });
        world.run(async {
            let fs = world.open().await;
            for node in nodes {
                let found = fs.getattr(node).await.unwrap();
                assert!(found.atime > found.mtime, "seed {seed}: {node}");
            }
            world.close(fs).await;
        });
    }
    assert!(given_up > 5, "{given_up}");
}

/// docs/semantics.md, access times: they are not in the order of changes, and fsync leaves them.
#[test]
fn an_fsync_writes_no_access_time() {
    let world = World::new(7, 4096);
    let (fs, node) = world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "f").await;
        write(&fs, node, 0, &pattern(1, 5000)).await;
        fs.sync().await.unwrap();
        fs.pool().runtime().sleep(Duration::from_secs(2)).await;
        read(&fs, node, 0, 10).await;
        let found = fs.getattr(node).await.unwrap();
        assert!(found.atime > found.mtime);
        let durable = fs.pool().durable_txg();
        fs.fsync(node, false).await.unwrap();
        assert_eq!(fs.pool().durable_txg(), durable, "nothing new is in the file");
        let other = create(&fs, "other").await;
        fs.fsync(other, false).await.unwrap();
        (fs, node)
    });
    let world = world.crash(fs, 7);
    world.run(async {
        let fs = world.open().await;
        let found = fs.getattr(node).await.unwrap();
        assert!(found.atime <= found.mtime, "the crash has lost it");
        world.close(fs).await;
    });
}
