//! From the first file to the next mount.

use copyhold_fs::Caller;

use crate::common::*;

#[test]
fn a_file_is_there_after_fsync_close_and_reopen() {
    let world = World::new(1, 16384);
    let data = pattern(3, 300_000);
    let node = world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "hello").await;
        write(&fs, node, 0, &data).await;
        assert_eq!(read(&fs, node, 0, 400_000).await, data);
        fs.fsync(node, false).await.unwrap();
        assert_eq!(read(&fs, node, 4000, 5000).await, data[4000..9000]);
        assert_eq!(names(&fs, ROOT).await, [".", "..", "hello"]);
        fs.release(node);
        world.close(fs).await;
        node
    });
    world.run(async {
        let fs = world.open().await;
        let entry = lookup(&fs, "hello").await.unwrap();
        assert_eq!((entry.node, entry.attr.size), (node, 300_000));
        assert_eq!(read(&fs, node, 0, 400_000).await, data);
        fs.unlink(ROOT, b"hello").await.unwrap();
        assert!(lookup(&fs, "hello").await.is_err());
        fs.forget(node, 1);
        world.close(fs).await;
    });
    world.run(async {
        let fs = world.open().await;
        assert_eq!(names(&fs, ROOT).await, [".", ".."]);
        assert!(fs.getattr(node).await.is_err());
        world.close(fs).await;
    });
}

#[test]
fn small_and_empty_files_live_in_their_items() {
    let world = World::new(2, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "tiny").await;
        write(&fs, node, 0, b"some bytes").await;
        fs.fsync(node, false).await.unwrap();
        assert_eq!(read(&fs, node, 0, 100).await, b"some bytes");
        assert_eq!(fs.dirty_bytes(), 0);
        write(&fs, node, 5000, b"far").await;
        fs.fsync(node, false).await.unwrap();
        let mut expected = vec![0; 5003];
        expected[..10].copy_from_slice(b"some bytes");
        expected[5000..].copy_from_slice(b"far");
        assert_eq!(read(&fs, node, 0, 9999).await, expected);
        world.close(fs).await;
        let fs = world.open().await;
        assert_eq!(read(&fs, node, 0, 9999).await, expected);
        world.close(fs).await;
    });
}

#[test]
fn background_writeback_leaves_nothing_dirty() {
    let world = World::new(3, 32768);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "big").await;
        let data = pattern(9, 20 << 20);
        for (n, chunk) in data.chunks(256 << 10).enumerate() {
            write(&fs, node, (n * (256 << 10)) as u64, chunk).await;
        }
        fs.sync().await.unwrap();
        assert_eq!(fs.dirty_bytes(), 0);
        let read = read(&fs, node, 0, data.len()).await;
        assert!(read == data);
        write(&fs, node, 12345, b"again").await;
        fs.pool().runtime().sleep(std::time::Duration::from_secs(20)).await;
        assert_eq!(fs.dirty_bytes(), 0);
        fs.mkdir(&Caller::ROOT, ROOT, b"dir", 0o700).await.unwrap();
        world.close(fs).await;
    });
}
