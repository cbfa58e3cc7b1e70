//! The library as an embedding program sees it, on real files.

use copyhold::{CreateOptions, Error, FsError, OpenOptions, Pool, SubvolId};
use copyhold_harness::LoopDevice;

const SIZE: u64 = 64 << 20;

fn new_pool(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("pool.img");
    Pool::create(&path, &CreateOptions::sized(SIZE)).unwrap();
    path
}

#[test]
fn what_was_written_is_there_after_closing_and_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(&dir);
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let volume = pool.root();
    volume.create_dir("a").unwrap();
    volume.write("a/file", &vec![7; 300_000]).unwrap();
    volume.symlink("a/file", "link").unwrap();
    volume.write_at("link", 299_999, b"end").unwrap();
    volume.rename("a/file", "a/moved").unwrap();
    pool.close().unwrap();

    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let volume = pool.root();
    let data = volume.read("a/moved").unwrap();
    assert_eq!((data.len(), &data[299_998..]), (300_002, &b"\x07end"[..]));
    assert!(matches!(volume.read("link"), Err(Error::File { source: FsError::NotFound, .. })));
    volume.truncate("a/moved", 3).unwrap();
    assert_eq!(volume.read("a/moved").unwrap(), [7; 3]);
    volume.remove_file("a/moved").unwrap();
    volume.remove_dir("a").unwrap();
    assert_eq!(volume.list("").unwrap().len(), 1);
    pool.close().unwrap();
}

#[test]
fn a_volume_of_a_closed_pool_says_so_and_does_not_keep_it_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(&dir);
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let volume = pool.root();
    pool.close().unwrap();
    assert!(matches!(volume.read("x"), Err(Error::Filesystem(FsError::ShutDown))));
    Pool::open(&path, OpenOptions::default()).unwrap().close().unwrap();
}

#[test]
fn a_pool_is_opened_by_one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(&dir);
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let second = Pool::open(&path, OpenOptions::default()).expect_err("it is locked");
    assert!(second.to_string().contains("in use by another process"), "{second}");
    pool.close().unwrap();
}

#[test]
fn an_existing_file_is_not_overwritten_and_what_is_no_pool_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letters");
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    assert!(Pool::create(&path, &CreateOptions::sized(SIZE)).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 1 << 20]);
    let error = Pool::open(&path, OpenOptions::default()).expect_err("no pool");
    assert!(error.to_string().contains("is not a Copyhold pool"), "{error}");
}

/// CREATE-C2.
#[test]
fn a_refused_shape_leaves_a_file_as_it_was_even_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("letters");
    std::fs::write(&path, b"a letter").unwrap();
    let odd_node = CreateOptions { node_bytes: Some(4097), ..CreateOptions::sized(SIZE) };
    for options in [CreateOptions::sized(1 << 20), CreateOptions::sized(u64::MAX), odd_node] {
        let refused = Pool::create(&path, &CreateOptions { force: true, ..options.clone() });
        assert!(refused.is_err(), "{options:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter", "{options:?}");
    }
}

/// CREATE-C1 and CREATE-C2: of creations at the same place at the same time, one succeeds, and its
/// pool is there afterwards.
#[test]
#[allow(clippy::disallowed_methods, reason = "other programs are threads here")]
fn of_two_creations_at_once_one_makes_the_pool() {
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.img");
        if round % 2 == 0 {
            std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        }
        let create = || Pool::create(&path, &CreateOptions::sized(SIZE));
        let made = std::thread::scope(|scope| {
            let both = [scope.spawn(create), scope.spawn(create)];
            both.map(|thread| thread.join().unwrap())
        });
        let made: Vec<_> = made.into_iter().flatten().collect();
        assert_eq!(made.len(), 1);
        let pool = Pool::open(&path, OpenOptions::default()).unwrap();
        assert_eq!(pool.id(), made[0]);
        pool.close().unwrap();
    }
}

#[test]
fn a_loop_of_links_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(new_pool(&dir), OpenOptions::default()).unwrap();
    let volume = pool.root();
    volume.symlink("b", "a").unwrap();
    volume.symlink("a", "b").unwrap();
    assert!(matches!(volume.read("a"), Err(Error::TooManySymlinks { .. })));
    pool.close().unwrap();
}

#[test]
fn a_pool_that_is_too_small_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.img");
    let error = Pool::create(&path, &CreateOptions::sized(1 << 20)).expect_err("too small");
    assert!(error.to_string().contains("too small for a pool"), "{error}");
    assert!(!path.exists());
}

#[test]
fn tenants_have_their_own_view_limits_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(&dir);
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let root = pool.root();
    let base = root.create_subvolume("base").unwrap();
    assert!(matches!(base.usage(), Err(Error::Filesystem(FsError::Quota(_)))), "they are off");
    pool.enable_quotas().unwrap();
    base.write("file", &vec![7; 1 << 20]).unwrap();
    let clone = root.snapshot("base", "clone").unwrap();
    let kept = root.snapshot_read_only("base", "kept").unwrap();
    let refused = kept.write("file", b"x");
    assert!(matches!(refused, Err(Error::File { source: FsError::ReadOnly { .. }, .. })));
    kept.set_read_only(false).unwrap();
    kept.write("file", b"x").unwrap();
    assert_eq!(pool.volume(kept.id()).unwrap().read("file").unwrap(), b"x");
    assert!(pool.volume(SubvolId(999)).is_err_and(|error| error.errno() == libc::ENOENT));
    root.create_dir("plain").unwrap();
    assert!(root.subvolume("plain").is_err());

    // Nothing leads out of a volume.
    root.write("secret", b"root's").unwrap();
    clone.symlink("../../secret", "out").unwrap();
    for outside in ["../secret", "out", "/../secret"] {
        let read = clone.read(outside);
        assert!(matches!(read, Err(Error::File { source: FsError::NotFound, .. })), "{outside}");
    }
    clone.write("secret", b"own").unwrap();
    assert_eq!(clone.read("out").unwrap(), b"own");

    clone.set_limit(Some(2 << 20)).unwrap();
    assert!(clone.write("flood", &vec![7; 4 << 20]).is_err());
    let left = clone.statfs().unwrap();
    assert!(left.blocks * u64::from(left.block_bytes) <= 2 << 20);
    clone.set_limit(None).unwrap();
    clone.write("flood", &vec![7; 4 << 20]).unwrap();

    root.delete_subvolume("base").unwrap();
    assert!(base.read("file").is_err());
    pool.sync_subvolumes().unwrap();
    assert_eq!(clone.read("file").unwrap(), vec![7; 1 << 20]);
    let dead = pool.groups().list().unwrap().into_iter().find(|group| group.tombstone.is_some());
    assert_eq!(dead.unwrap().data, 1 << 20);
    pool.close().unwrap();

    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let root = pool.root();
    assert_eq!(pool.subvolumes().len(), 3);
    assert_eq!(root.subvolume("clone").unwrap().id(), clone.id());
    for name in ["clone", "kept"] {
        root.delete_subvolume(name).unwrap();
    }
    pool.sync_subvolumes().unwrap();
    let groups = pool.groups().list().unwrap();
    assert_eq!((pool.subvolumes().len(), groups.len()), (1, 1), "{groups:?}");
    pool.close().unwrap();
}

#[test]
fn a_block_device_that_holds_anything_is_left_alone_and_never_removed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut bytes = vec![0; 1 << 20];
    bytes[0x438..0x43a].copy_from_slice(b"\x53\xef");
    std::fs::write(&image, &bytes).unwrap();
    let Ok(device) = LoopDevice::over(&image, &[]) else {
        eprintln!("skipped: needs root and loop devices");
        return;
    };
    let error = Pool::create(device.path(), &CreateOptions::sized(SIZE)).unwrap_err();
    assert!(error.to_string().contains("ext4"), "{error}");
    assert_eq!(std::fs::read(&image).unwrap(), bytes);
    drop(device);
    // Nothing is on this one, which is too small.
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let device = LoopDevice::over(&image, &[]).unwrap();
    let error = Pool::create(device.path(), &CreateOptions::sized(SIZE)).unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
    assert!(std::path::Path::new(device.path()).exists());
}

#[test]
fn a_pool_is_opened_within_a_budget_that_suits_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = new_pool(&dir);
    let within = |memory| {
        let options = OpenOptions { memory: Some(memory), ..OpenOptions::default() };
        Pool::open(&path, options)
    };
    let refused = within(1 << 20).expect_err("too little");
    assert_eq!(refused.errno(), libc::EINVAL);
    let pool = within(128 << 20).unwrap();
    pool.root().write("file", &vec![7; 40 << 20]).unwrap();
    pool.root().sync().unwrap();
    pool.close().unwrap();
}
