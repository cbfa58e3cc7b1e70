//! A pool that the embedding program mounts: by blocking calls and by futures.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use copyhold::{CreateOptions, Error, MountFlags, MountOptions, OpenOptions, Pool, nonblocking};
use copyhold_harness::{Place, needs, run};
use futures_executor::block_on;

/// A place with a pool, on a machine that can mount.
fn place() -> Option<Place> {
    let place =
        needs::are_met().then(|| Place::new(&std::env::temp_dir(), "copyhold-").unwrap())?;
    Pool::create(place.image(), &CreateOptions::sized(64 << 20)).unwrap();
    Some(place)
}

fn file(place: &Place) -> PathBuf {
    place.mount_point().join("file")
}

#[test]
fn a_mounted_pool_is_used_by_the_kernel_and_by_its_own_process() {
    let Some(place) = place() else { return };
    let options = MountOptions::parse("nosuid,nodev").unwrap();
    let mut mounted = Pool::mount(place.image(), place.mount_point(), &options).unwrap();
    assert!(format!("{mounted:?}").contains("mnt"), "{mounted:?}");
    fs::write(file(&place), b"by the kernel").unwrap();
    let second = Pool::open(place.image(), OpenOptions::default()).expect_err("it is locked");
    assert_eq!(second.errno(), libc::EBUSY);
    let again = Pool::mount(place.image(), place.mount_point(), &options).expect_err("the same");
    assert_eq!(again.errno(), libc::EBUSY);
    mounted.unmount().unwrap();
    mounted.unmount().expect("later calls do nothing");
    assert!(mounted.kernel().is_none() && !file(&place).exists());
    drop(mounted);
    let pool = Pool::open(place.image(), OpenOptions::default()).unwrap();
    assert_eq!(pool.root().read("file").unwrap(), b"by the kernel");
    pool.close().unwrap();
}

#[test]
fn a_busy_or_covered_mount_stays() {
    let Some(place) = place() else { return };
    let options = MountOptions::default();
    let mut mounted = Pool::mount(place.image(), place.mount_point(), &options).unwrap();
    let open = fs::File::create(file(&place)).unwrap();
    assert_eq!(mounted.unmount().expect_err("a file is open").errno(), libc::EBUSY);
    drop(open);
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place.mount_point())).unwrap();
    let covered = mounted.unmount().expect_err("another mount is on top");
    assert!(matches!(covered, Error::Covered { .. }), "{covered}");
    assert_eq!(covered.errno(), libc::EBUSY);
    run(Command::new("umount").arg(place.mount_point())).unwrap();
    assert!(file(&place).exists(), "it is still mounted");
    mounted.unmount().unwrap();
}

#[test]
fn dropping_a_mount_writes_everything() {
    let Some(place) = place() else { return };
    let options = MountOptions::default();
    let mounted = Pool::mount(place.image(), place.mount_point(), &options).unwrap();
    fs::write(file(&place), b"kept").unwrap();
    drop(mounted);
    assert!(!file(&place).exists());
    let pool = Pool::open(place.image(), OpenOptions::default()).unwrap();
    assert_eq!(pool.root().read("file").unwrap(), b"kept");
    pool.close().unwrap();
}

#[test]
fn futures_mount_and_hand_a_mount_back_that_stays() {
    let Some(place) = place() else { return };
    block_on(async {
        let options = MountOptions::default();
        let mounted = nonblocking::Pool::mount(place.image(), place.mount_point(), options);
        let mounted = mounted.await.unwrap();
        let open = fs::File::create(file(&place)).unwrap();
        let (error, mounted) = mounted.unmount().await.expect_err("a file is open");
        assert_eq!(error.errno(), libc::EBUSY);
        drop(open);
        let mounted = mounted.expect("it is mounted");
        let root = mounted.filesystem().getattr(copyhold::NodeId::ROOT).await.unwrap();
        assert_eq!(root.node, copyhold::NodeId::ROOT);
        assert!(mounted.kernel().is_some_and(|mount| mount.is_in_tree()));
        mounted.unmount().await.unwrap();
        assert!(!file(&place).exists());
    });
}

#[test]
fn options_are_those_of_mount_and_nonsense_is_refused() {
    let options = MountOptions::parse("ro,nosuid,allow_other").unwrap();
    assert!(options.kernel.flags.contains(MountFlags::RDONLY | MountFlags::NOSUID));
    assert!(options.kernel.allow_other);
    for nonsense in ["remount", "no-such-option", "max_read=x"] {
        let refused = MountOptions::parse(nonsense).expect_err(nonsense);
        assert!(refused.to_string().contains(nonsense.split('=').next().unwrap()), "{refused}");
        assert_eq!(refused.errno(), libc::EINVAL);
    }
}
