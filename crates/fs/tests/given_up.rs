//! Callers that give up: their futures are dropped while the device is at work.

mod common;

use std::time::Duration;

use common::*;
use copyhold_fs::{Caller, Filesystem, SetAttr};
use futures_util::future::{Either, select};
use futures_util::pin_mut;

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
