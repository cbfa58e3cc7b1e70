//! How a mount begins, waits, is interrupted and ends.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

mod common;

use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use common::{Mounted, wait_until};
use copyhold_fuse::mount::{self, Mount, MountError, MountKind, MountOptions};
use copyhold_fuse::protocol::{
    Attr, AttrReply, Caller, Handle, NodeId, Notification, Settings, Statfs, flags,
};
use copyhold_fuse::{End, Errno, Operations, Reply, Session, SessionOptions};
use copyhold_harness::{LoopDevice, needs};
use copyhold_memfs::{Contents, MemoryFs};
use rustix::fs::{FlockOperation, StatVfs, flock, statvfs};
use tempfile::TempDir;

#[test]
fn the_kernel_agrees_to_what_pays() {
    if !needs::are_met() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let mount = Mount::new(Path::new("a source"), dir.path(), &MountOptions::default()).unwrap();
    let fs = Arc::new(MemoryFs::new(Contents::Kept));
    let spawner = Arc::new(copyhold_fuse::ThreadPerTask);
    let options = SessionOptions { readers: Some(3), ..common::options() };
    let session = Session::start(mount, fs, spawner, &Settings::default(), options).unwrap();
    let agreed = *session.negotiated();
    assert!(agreed.minor >= 31);
    for flag in [flags::init::HANDLE_KILLPRIV_V2, flags::init::PARALLEL_DIROPS] {
        assert_ne!(agreed.flags & flag, 0);
    }
    let entry = mount::mounted_at(dir.path()).unwrap().unwrap();
    assert_eq!((entry.kind.as_str(), entry.source.to_str()), ("fuse.copyhold", Some("a source")));
    assert_eq!(session.mount().kind(), MountKind::Plain);
    session.mount().set_read_ahead(512).unwrap();
    session.unmount().unwrap();
    assert!(matches!(session.wait(), End::Unmounted));
    assert!(mount::mounted_at(dir.path()).unwrap().is_none());
}

#[test]
fn a_waiting_lock_is_given_up_when_its_process_is_killed() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut child = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
    wait_until(|| mounted.counters().parked == 1);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    // The lock is still ours, and is free again once we let go.
    let other = File::open(&path).unwrap();
    let refused = flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::AGAIN);
    drop(file);
    flock(&other, FlockOperation::LockExclusive).unwrap();
    drop(other);
    assert!(matches!(mounted.end(), End::Unmounted));
}

#[test]
fn who_waits_for_a_lock_does_not_delay_the_end() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut child = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
    wait_until(|| mounted.counters().parked == 1);
    mounted.mount.abort().unwrap();
    assert!(!child.wait().unwrap().success(), "the waiting process gets an error");
    assert!(matches!(mounted.wait(), End::Aborted));
}

#[test]
fn a_busy_mount_is_not_unmounted_and_says_so() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let file = File::create(mounted.path("file")).unwrap();
    let error = mounted.mount.unmount().unwrap_err();
    assert!(matches!(error, MountError::Busy { .. }), "{error}");
    assert!(error.to_string().contains("fuser -vm"));
    drop(file);
    assert!(matches!(mounted.end(), End::Unmounted));
}

/// The kernel gives the number of the one to the next.
#[test]
fn a_filesystem_that_has_gone_is_not_taken_for_the_next_one() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let of = |mounted: &Mounted| mount::mounted_at(mounted.mount.mount_point()).unwrap().unwrap();
    let first = of(&mounted);
    let identity = first.identity();
    assert!(identity.is_some());
    assert_eq!(first.identity(), identity);
    assert!(matches!(mounted.end(), End::Unmounted));
    for _ in 0..20 {
        let next = Mounted::memory();
        assert_ne!(first.identity(), identity);
        assert_ne!(of(&next).identity(), identity);
        assert!(matches!(next.end(), End::Unmounted));
    }
}

#[test]
fn a_detached_mount_serves_its_last_user() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let file = File::create(mounted.path("file")).unwrap();
    mounted.mount.detach();
    assert!(!mounted.mount.is_mounted());
    file.set_len(77).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 77);
    drop(file);
    let end = mounted.wait();
    assert!(matches!(end, End::Unmounted), "{end:?}");
}

/// Waits in `statfs` until the gate is opened.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    destroyed: AtomicBool,
}

impl Gate {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
    }
}

impl Operations for Gate {
    async fn destroy(&self) {
        assert!(self.open.load(Ordering::SeqCst), "nothing is in flight any more");
        self.destroyed.store(true, Ordering::SeqCst);
    }

    async fn getattr(&self, _: Caller, node: NodeId, _: Option<Handle>) -> Reply<AttrReply> {
        let time = Default::default();
        let attr = Attr {
            ino: node.0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            attributes: 0,
            attributes_mask: 0,
        };
        Ok(AttrReply { attr, valid: Default::default() })
    }

    async fn statfs(&self, _: Caller, _: NodeId) -> Reply<Statfs> {
        poll_fn(|cx| {
            self.wakers.lock().unwrap().push(cx.waker().clone());
            match self.open.load(Ordering::SeqCst) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        Ok(Statfs { blocks: 5, ..Statfs::default() })
    }
}

#[test]
fn a_waiting_operation_holds_no_reader_and_is_answered_later() {
    if !needs::are_met() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let mounted = Mounted::new(Arc::clone(&gate), &Settings::default());
    let path = mounted.dir.path().to_owned();
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || statvfs(&path))
        })
        .collect();
    wait_until(|| mounted.counters().parked == 40);
    assert!(fs::metadata(&path).unwrap().is_dir(), "others are served meanwhile");
    gate.open();
    let all: io::Result<Vec<StatVfs>> =
        waiting.into_iter().map(|one| Ok(one.join().unwrap()?)).collect();
    assert!(all.unwrap().iter().all(|found| found.f_blocks == 5));
    assert!(matches!(mounted.end(), End::Unmounted));
    assert!(gate.destroyed.load(Ordering::SeqCst));
}

#[test]
fn an_abort_fails_the_callers_and_waits_for_what_is_in_flight() {
    if !needs::are_met() {
        return;
    }
    let gate = Arc::new(Gate::default());
    let mounted = Mounted::new(Arc::clone(&gate), &Settings::default());
    let path = mounted.dir.path().to_owned();
    let caller = thread::spawn({
        let path = path.clone();
        move || statvfs(&path)
    });
    wait_until(|| mounted.counters().parked == 1);
    mounted.mount.abort().unwrap();
    assert!(caller.join().unwrap().is_err(), "the caller does not hang");
    let ended = thread::spawn(move || mounted.wait());
    gate.open();
    assert!(matches!(ended.join().unwrap(), End::Aborted));
    assert!(gate.destroyed.load(Ordering::SeqCst));
    assert!(mount::mounted_at(&path).unwrap().is_none(), "no dead mount point is left");
}

#[test]
fn an_abort_that_takes_an_idle_mount_down_is_still_an_abort() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    mounted.mount.abort().unwrap();
    assert!(matches!(mounted.wait(), End::Aborted));
}

#[test]
fn unsupported_operations_have_a_proper_errno() {
    if !needs::are_met() {
        return;
    }
    let gate = Arc::new(Gate::default());
    gate.open();
    let mounted = Mounted::new(Arc::clone(&gate), &Settings::default());
    let error = fs::create_dir(mounted.path("dir")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSYS.code()));
    assert!(matches!(mounted.end(), End::Unmounted));
}

#[test]
fn a_name_that_is_forgotten_is_asked_for_again() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    File::create(mounted.path("file")).unwrap();
    let requests = || mounted.counters().requests;
    let look = || fs::metadata(mounted.path("file")).unwrap().ino();
    let node = NodeId(look());
    let before = requests();
    look();
    assert_eq!(requests(), before, "names and attributes are cached");
    assert!(mounted.notifier.forget_entry(NodeId::ROOT, b"file").unwrap());
    look();
    assert!(requests() > before);
    assert!(!mounted.notifier.forget_entry(NodeId::ROOT, b"other").unwrap());
    assert!(mounted.notifier.forget_inode(node).unwrap());
}

#[test]
fn what_is_stored_is_read_without_asking_and_what_is_deleted_is_gone() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    fs::write(&path, [1; 4096]).unwrap();
    let node = NodeId(fs::metadata(&path).unwrap().ino());
    let store = Notification::Store { node, offset: 0, data: &[2; 4096] };
    assert!(mounted.notifier.notify(&store).unwrap());
    assert_eq!(fs::read(&path).unwrap(), [2; 4096], "from the page cache, not from us");
    assert!(mounted.notifier.forget_inode(node).unwrap());
    assert_eq!(fs::read(&path).unwrap(), [1; 4096]);
    let delete = Notification::Delete { parent: NodeId::ROOT, child: node, name: b"file" };
    assert!(mounted.notifier.notify(&delete).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().ino(), node.0, "it was still here");
}

#[test]
fn with_allow_root_nobody_else_comes_in() {
    if !needs::are_met() {
        return;
    }
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let list = |path: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "ls"]).arg(path);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    for (text, others) in [("allow_root", false), ("allow_other", true)] {
        let mut options = MountOptions::default();
        options.add(text, |_, _| Ok(false)).unwrap();
        let point = TempDir::new_in(dir.path()).unwrap();
        fs::set_permissions(point.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mount = Mount::new(Path::new("memory"), point.path(), &options).unwrap();
        let fs = Arc::new(MemoryFs::new(Contents::Kept));
        let mounted = Mounted::serve(point, mount, fs, &Settings::default());
        assert_eq!(list(mounted.dir.path()), others, "{text}");
        assert!(mounted.path("").read_dir().is_ok());
        assert!(matches!(mounted.end(), End::Unmounted));
    }
}

#[test]
fn mount_points_that_cannot_be_used_are_refused_with_a_reason() {
    if !needs::are_met() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let try_at = |path: &Path| {
        Mount::new(Path::new("x"), path, &MountOptions::default()).unwrap_err().to_string()
    };
    assert!(try_at(&dir.path().join("missing")).ends_with("create the directory first"));
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    assert!(try_at(&file).ends_with("is not a directory"));
    let mounted = Mounted::memory();
    assert!(try_at(mounted.dir.path()).starts_with("memory is already mounted on"));
    let error = mount::unmount(dir.path(), false).unwrap_err();
    assert!(error.to_string().ends_with("is not mounted"));
}

#[test]
fn remounting_read_only_makes_writes_fail() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    fs::write(mounted.path("file"), b"1").unwrap();
    let mut options = MountOptions::default();
    options.add("remount,ro", |_, _| Ok(false)).unwrap();
    mount::remount(mounted.dir.path(), &options).unwrap();
    let error = fs::write(mounted.path("file"), b"2").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"1");
    mount::remount(mounted.dir.path(), &MountOptions::default()).unwrap();
    fs::write(mounted.path("file"), b"2").unwrap();
}

#[test]
fn on_a_block_device_sync_arrives_and_unmounting_waits_for_the_end() {
    if !needs::are_met() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let Ok(device) = LoopDevice::over(&image, &[]) else {
        println!("left out: no loop devices here");
        return;
    };
    let fs = Arc::new(MemoryFs::new(Contents::Kept));
    let point = TempDir::new().unwrap();
    let made = Mount::new(device.path(), point.path(), &MountOptions::default());
    let mounted = made.map(|mount| {
        assert_eq!(mount.kind(), MountKind::Block);
        Mounted::serve(point, mount, Arc::clone(&fs), &Settings::default())
    });
    let checked = mounted.map(|mounted| {
        let file = File::create(mounted.path("file")).unwrap();
        rustix::fs::syncfs(&file).unwrap();
        assert!(fs.syncs() >= 1, "syncfs reaches the filesystem");
        // The device has a read-ahead of its own, which others may use.
        let (major, minor) = mounted.mount.number().unwrap();
        let shown = format!("/sys/class/bdi/{major}:{minor}");
        let of_device = fs::read_to_string(format!("{shown}/read_ahead_kb")).unwrap();
        mounted.mount.set_read_ahead(4096).unwrap();
        let ours = fs::read_to_string(format!("{shown}-fuseblk/read_ahead_kb")).unwrap();
        assert_eq!(ours.trim(), "4096");
        assert_eq!(fs::read_to_string(format!("{shown}/read_ahead_kb")).unwrap(), of_device);
        drop(file);
        mounted.mount.unmount().unwrap();
        assert!(fs.is_destroyed(), "umount waits for the filesystem");
        mounted.wait()
    });
    assert!(matches!(checked, Ok(End::Unmounted)), "{checked:?}");
    device.detach().unwrap();
}
