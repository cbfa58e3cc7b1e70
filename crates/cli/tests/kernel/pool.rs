//! The pool under the mount: its space, its device, its end.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{FlockOperation, statvfs, syncfs};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::observer::{as_nobody, number, tool};
use crate::site::Site;

#[test]
fn a_trim_takes_all_that_is_free_and_no_nonsense() {
    let Some(site) = Site::on_a_device() else { return };
    let trim = |arguments: &[&str]| {
        let run = Command::new("fstrim").args(["-v"]).args(arguments).arg(site.mnt()).output();
        let run = run.unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        let bytes = text.split(['(', ' ']).filter_map(|word| word.parse::<u64>().ok()).next_back();
        run.status.success().then(|| bytes.expect("a number of bytes"))
    };
    assert_eq!(trim(&["-o", "1G"]), None);
    assert_eq!(trim(&["-l", "100"]), None);
    let some = trim(&["-o", "64M", "-l", "32M"]).unwrap();
    assert!((1..=32 << 20).contains(&some), "{some}");
    let rest = trim(&[]).unwrap();
    assert!((128 << 20..256 << 20).contains(&rest), "{rest}");
    assert_eq!(trim(&[]), Some(0));
}

#[test]
fn statfs_tells_the_pools_space() {
    let Some(site) = Site::sized("256M", &[]) else { return };
    let found = statvfs(site.mnt()).unwrap();
    let bytes = |blocks: u64| blocks * found.f_frsize;
    assert!(bytes(found.f_blocks) > 200 << 20 && bytes(found.f_blocks) <= 256 << 20);
    assert!(found.f_bavail <= found.f_bfree && found.f_bfree <= found.f_blocks);
    fs::write(site.path("file"), vec![1; 32 << 20]).unwrap();
    File::open(site.path("file")).unwrap().sync_all().unwrap();
    let after = statvfs(site.mnt()).unwrap();
    assert!(bytes(found.f_bavail) - bytes(after.f_bavail) >= 32 << 20);
    assert_eq!(after.f_namemax, 255);
}

#[test]
fn a_preallocated_pool_stays_so() {
    let created = ["--size", "256M", "--preallocate", "written"];
    let Some(site) = Site::made(&created, &[]) else { return };
    let allocated = || fs::metadata(site.pool()).unwrap().blocks() * 512;
    let size = fs::metadata(site.pool()).unwrap().len();
    assert!(allocated() >= size);
    fs::write(site.path("large"), vec![1; 32 << 20]).unwrap();
    fs::remove_file(site.path("large")).unwrap();
    for _ in 0..3 {
        tool("fstrim", &["-v"], &site.mnt());
    }
    site.unmount();
    assert!(allocated() >= size, "{} of {size}", allocated());
}

#[test]
fn trimming_gives_space_back_and_is_roots() {
    let Some(site) = Site::mounted(&[]) else { return };
    let run = tool("fstrim", &["-v"], &site.mnt());
    assert!(run.status.success(), "{run:?}");
    assert!(String::from_utf8_lossy(&run.stdout).contains("trimmed"), "{run:?}");
    assert!(!as_nobody(&site, "fstrim ."));
}

/// FS_IOC_SHUTDOWN from a program; no other sends it here.
fn shut_down(site: &Site) -> bool {
    let script = "import fcntl,os,struct,sys\n\
                  fcntl.ioctl(os.open(sys.argv[1],0),0x8004587d,struct.pack('I',2))\n";
    Command::new("python3").args(["-c", script]).arg(site.mnt()).status().unwrap().success()
}

#[test]
fn going_down_commits_everything_and_stops() {
    let Some(site) = Site::mounted(&[]) else { return };
    let synced = site.create("synced");
    synced.write_all_at(b"kept", 0).unwrap();
    synced.sync_all().unwrap();
    fs::write(site.path("unsynced"), "committed by going down").unwrap();
    assert!(shut_down(&site));
    assert_eq!(number(File::create(site.path("new")).unwrap_err()), Errno::IO);
    assert_eq!(number(synced.sync_all().map(drop).and(synced.set_len(0)).unwrap_err()), Errno::IO);
    drop(synced);
    site.again();
    assert_eq!(fs::read(site.path("synced")).unwrap(), b"kept");
    assert_eq!(fs::read(site.path("unsynced")).unwrap(), b"committed by going down");
    File::create(site.path("new")).unwrap();
}

#[test]
fn on_a_block_device_sync_reaches_the_pool_and_umount_waits_for_it() {
    let Some(site) = Site::on_a_device() else { return };
    assert_eq!(site.kind(), "fuseblk.copyhold");
    fs::write(site.path("file"), "synced").unwrap();
    syncfs(File::open(site.mnt()).unwrap()).unwrap();
    site.kill();
    plainly_unmount(&site);
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"synced");
    fs::write(site.path("file"), "closed").unwrap();
    plainly_unmount(&site);
    // Not even copyhold's own waiting is needed.
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"closed");
    let create = site.run(&["create", "--force", &site.pool()]);
    assert!(!create.status.success(), "a mounted device is in use");
    site.unmount();
}

/// With umount(8). Busy: a child that another test has forked has our files until it runs its
/// program.
fn plainly_unmount(site: &Site) {
    let is_busy =
        |unmounted: &Output| String::from_utf8_lossy(&unmounted.stderr).contains("target is busy");
    let unmount = || tool("umount", &[], &site.mnt());
    let unmounted = std::iter::repeat_with(unmount).find(|unmounted| !is_busy(unmounted));
    assert!(unmounted.as_ref().is_some_and(|it| it.status.success()), "{unmounted:?}");
}

/// umount(2) says that the pool is closed, so the device can be had at once.
#[test]
fn a_device_is_nobodys_as_soon_as_it_is_unmounted() {
    let Some(site) = Site::on_a_device() else { return };
    for round in 0..5 {
        fs::write(site.path("file"), vec![round; 3 << 20]).unwrap();
        assert_eq!(holders(&site.pool()).len(), 1, "the daemon of the mount");
        // Busy: a child that another test has forked has our files until it runs its program. What
        // umount(2) promises is judged when it has unmounted.
        let unmount = || rustix::mount::unmount(site.mnt(), UnmountFlags::empty());
        let unmounted = std::iter::repeat_with(unmount).find(|it| *it != Err(Errno::BUSY));
        assert_eq!(unmounted, Some(Ok(())));
        let device = File::options().read(true).write(true).open(site.pool()).unwrap();
        let alone = rustix::fs::flock(&device, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(alone, Ok(()), "round {round}");
        let holders = holders(&site.pool());
        assert!(holders.is_empty(), "round {round}: still open in {holders:?}");
        // Not by closing it: such a child would keep the lock.
        rustix::fs::flock(&device, FlockOperation::Unlock).unwrap();
        drop(device);
        site.mount(&[]);
        assert_eq!(fs::read(site.path("file")).unwrap(), vec![round; 3 << 20]);
    }
}

/// Daemons that have it open.
fn holders(path: &str) -> Vec<String> {
    let others = fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        fs::read(process.path().join("comm")).is_ok_and(|name| name == b"copyhold\n")
    });
    let has_it = |process: &fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|target| target == Path::new(path))
    };
    others.filter(has_it).map(|process| process.path().display().to_string()).collect()
}

#[test]
fn a_pool_may_be_smaller_than_its_device() {
    let Some(site) = Site::on_a_device() else { return };
    site.unmount();
    site.done(&["create", "--force", "--size", "32M", &site.pool()]);
    site.mount(&[]);
    let found = rustix::fs::statvfs(site.mnt()).unwrap();
    let bytes = found.f_blocks * found.f_frsize;
    assert!((20 << 20..32 << 20).contains(&bytes), "{bytes}");
    site.checked();
    site.mount(&[]);
}
