//! The interface in futures: on an executor that knows nothing of the pool's.

#![allow(clippy::disallowed_methods, reason = "another runtime has threads of its own")]

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;

use copyhold::nonblocking::{Pool, Volume};
use copyhold::{CreateOptions, Error, FileOptions, FsError, OpenOptions};
use futures_executor::block_on;
use futures_util::future::join_all;

async fn new_pool(dir: &tempfile::TempDir) -> Pool {
    let path = dir.path().join("pool.img");
    Pool::create(&path, CreateOptions::sized(64 << 20)).await.unwrap();
    Pool::open(&path, OpenOptions::default()).await.unwrap()
}

#[test]
fn files_tenants_and_groups_work_in_futures() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let pool = new_pool(&dir).await;
        let root = pool.root();
        pool.enable_quotas().await.unwrap();
        let base = root.create_subvolume("base").await.unwrap();
        let file = base.create("file").await.unwrap();
        let writes = (0..16_u8).map(|n| file.write_at(u64::from(n) * 10_000, vec![n; 10_000]));
        assert!(join_all(writes).await.into_iter().all(|done| done.is_ok()));
        file.sync_all().await.unwrap();
        assert_eq!(file.read_at(30_000, 5).await.unwrap(), [3; 5]);
        assert_eq!(file.metadata().await.unwrap().size, 160_000);
        let log = FileOptions { append: true, ..FileOptions::reading() };
        let log = base.open_with("file", log).await.unwrap();
        log.write_at(0, b"end".to_vec()).await.unwrap();
        assert_eq!(base.read_at("file", 160_000, 9).await.unwrap(), b"end");

        let clone = root.snapshot("base", "clone").await.unwrap();
        clone.set_limit(Some(1 << 20)).await.unwrap();
        assert!(clone.write("flood", vec![7; 2 << 20]).await.is_err());
        clone.remove_file("file").await.unwrap();
        let names = base.diff(&clone).await.unwrap().into_iter().map(|change| change.path);
        assert_eq!(names.collect::<Vec<_>>(), [Path::new("file"), Path::new("flood")]);
        let back = root.roll_back("clone", &base, None).await.unwrap();
        assert_eq!(back.metadata("file").await.unwrap().size, 160_003);
        root.delete_subvolume("clone").await.unwrap();
        pool.sync_subvolumes().await.unwrap();
        assert_eq!(pool.groups().list().await.unwrap().len(), pool.subvolumes().len());
        pool.close().await.unwrap();
        let gone = root.read("x").await;
        assert!(matches!(gone, Err(Error::Filesystem(FsError::ShutDown))));
    });
}

#[test]
fn threads_of_another_runtime_share_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let pool = block_on(new_pool(&dir));
    let work = |volume: Volume, n: u8| async move {
        let name = format!("file{n}");
        volume.write(&name, vec![n; 50_000]).await?;
        volume.rename(&name, format!("moved{n}")).await?;
        volume.read(format!("moved{n}")).await
    };
    let read = |thread: u8| {
        let files = (0..8).map(|n| work(pool.root(), thread * 8 + n));
        block_on(join_all(files)).into_iter().collect::<Result<Vec<_>, _>>().unwrap()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || read(thread))).collect();
        for (n, data) in threads.into_iter().flat_map(|thread| thread.join().unwrap()).enumerate() {
            assert_eq!(data, vec![n as u8; 50_000]);
        }
    });
    block_on(pool.close()).unwrap();
}

/// Polled once, then dropped.
fn begin<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let _polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(drop);
}

#[test]
fn a_call_whose_future_is_dropped_is_done_when_the_pool_closes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    let pool = block_on(new_pool(&dir));
    let volume = pool.root();
    for n in 0..50_u8 {
        begin(volume.write(format!("file{n}"), vec![n; 20_000]));
        // The caller drops the future, so the file is created and its handle reaches no caller.
        begin(volume.create(format!("open{n}")));
    }
    block_on(pool.close()).unwrap();
    let pool = block_on(Pool::open(&path, OpenOptions::default())).unwrap();
    for n in 0..50_u8 {
        assert_eq!(block_on(pool.root().read(format!("file{n}"))).unwrap(), vec![n; 20_000]);
        assert!(block_on(pool.root().exists(format!("open{n}"))).unwrap());
    }
    block_on(pool.close()).unwrap();
}
