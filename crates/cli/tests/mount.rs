//! The program with a real mount: what it promises to whoever types the verbs.
//!
//! Each test has a pool and a directory of its own and takes them down again. They need /dev/fuse;
//! where there is none they say so and pass, except under CI.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wait::wait_until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");

#[path = "site/transport.rs"]
mod transport;
#[path = "site/wait.rs"]
mod wait;

/// A pool file and a mount point, both gone at the end.
struct Site {
    place: tempfile::TempDir,
}

impl Site {
    /// `None` where nothing can be mounted.
    fn new() -> Option<Site> {
        if !transport::is_there() {
            return None;
        }
        if File::options().read(true).write(true).open("/dev/fuse").is_err() {
            assert!(std::env::var_os("CI").is_none(), "CI needs /dev/fuse");
            eprintln!("skipped: no /dev/fuse here");
            return None;
        }
        let site = Site { place: tempfile::tempdir().unwrap() };
        fs::create_dir(site.mnt()).unwrap();
        done(&["create".as_ref(), site.pool().as_os_str(), "--size".as_ref(), "256M".as_ref()]);
        Some(site)
    }

    fn pool(&self) -> PathBuf {
        self.place.path().join("pool.img")
    }

    fn mnt(&self) -> PathBuf {
        self.place.path().join("mnt")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mnt().join(name)
    }

    fn verb(&self, verb: &str, more: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg(verb).args(more);
        if verb == "mount" || verb == "check" {
            command.arg(self.pool());
        }
        if verb == "mount" {
            command.args(transport::options());
        }
        if verb != "check" {
            command.arg(self.mnt());
        }
        command.output().unwrap()
    }

    #[track_caller]
    fn does(&self, verb: &str, more: &[&str]) {
        let output = self.verb(verb, more);
        assert!(output.status.success(), "{verb}: {}", says(&output));
    }

    #[track_caller]
    fn mounted() -> Option<Site> {
        let site = Site::new()?;
        site.does("mount", &[]);
        Some(site)
    }

    fn info(&self) -> Value {
        let output = self.verb("info", &["--json"]);
        assert!(output.status.success(), "{}", says(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn daemon(&self) -> Pid {
        let pid = self.info()["pid"].as_i64().expect("a mounted pool has a daemon");
        Pid::from_raw(pid as i32).unwrap()
    }

    /// Kills the daemon; returns when it is gone.
    fn kill(&self) {
        let daemon = self.daemon();
        kill_process(daemon, Signal::KILL).unwrap();
        wait_until(|| !Path::new(&format!("/proc/{}", daemon.as_raw_nonzero())).exists());
    }

    fn is_mounted(&self) -> bool {
        is_mount_point(&self.mnt())
    }

    /// Nobody has the pool open.
    fn is_closed(&self) -> bool {
        let file = File::open(self.pool()).unwrap();
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, operation).is_ok()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        while self.is_mounted() {
            let output = self.verb("umount", &["--lazy"]);
            if !output.status.success() {
                break;
            }
        }
    }
}

fn is_mount_point(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn done(arguments: &[&OsStr]) {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", says(&output));
}

#[track_caller]
fn refused(output: &Output, status: i32, text: &str) {
    assert_eq!(output.status.code(), Some(status), "{}", says(output));
    assert!(says(output).contains(text), "{}", says(output));
}

fn write_synced(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn mount_returns_when_usable_and_umount_when_closed() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir(site.path("dir")).unwrap();
    fs::write(site.path("dir/file"), b"hello").unwrap();
    site.does("umount", &[]);
    assert!(site.is_closed(), "umount returned before the pool was closed");
    assert!(fs::read_dir(site.mnt()).unwrap().next().is_none());
    site.does("mount", &[]);
    assert_eq!(fs::read(site.path("dir/file")).unwrap(), b"hello");
    site.does("umount", &[]);
    site.does("check", &[]);
}

#[test]
fn a_pool_can_be_unmounted_by_its_own_name() {
    let Some(site) = Site::mounted() else { return };
    done(&["umount".as_ref(), site.pool().as_os_str()]);
    assert!(!site.is_mounted() && site.is_closed());
    refused(&site.verb("umount", &[]), 1, "no pool is mounted");
}

#[test]
fn a_killed_daemon_leaves_a_pool_that_simply_mounts_again() {
    let Some(site) = Site::mounted() else { return };
    for round in 0..3 {
        let name = format!("file{round}");
        write_synced(&site.path(&name), name.as_bytes());
        fs::write(site.path("unsynced"), b"old or new or absent").unwrap();
        site.kill();
        assert!(fs::read(site.path(&name)).is_err());
        site.does("mount", &[]);
        for earlier in 0..=round {
            let name = format!("file{earlier}");
            assert_eq!(fs::read(site.path(&name)).unwrap(), name.as_bytes());
        }
    }
    site.does("umount", &[]);
    site.does("check", &[]);
}

#[test]
fn a_mount_right_behind_a_kill_waits_for_the_daemon_to_be_gone() {
    let Some(site) = Site::mounted() else { return };
    for round in 0..10u8 {
        // Memory takes a dying process longer than anything else.
        fs::write(site.path("file"), vec![round; 96 << 20]).unwrap();
        kill_process(site.daemon(), Signal::KILL).unwrap();
        site.does("mount", &[]);
    }
    site.does("umount", &[]);
    site.does("check", &[]);
}

#[test]
fn umount_removes_the_mount_of_a_dead_daemon() {
    let Some(site) = Site::mounted() else { return };
    site.kill();
    refused(&site.verb("sync", &[]), 1, "the daemon of");
    site.does("umount", &[]);
    assert!(!site.is_mounted());
}

#[test]
fn sync_makes_everything_durable() {
    let Some(site) = Site::mounted() else { return };
    for number in 0..50 {
        fs::write(site.path(&format!("file{number}")), vec![number; 5000]).unwrap();
    }
    site.does("sync", &[]);
    site.kill();
    site.does("mount", &[]);
    for number in 0..50 {
        assert_eq!(fs::read(site.path(&format!("file{number}"))).unwrap(), vec![number; 5000]);
    }
}

/// The view `debug NAME` of the pool.
fn debug(site: &Site, name: &str) -> Value {
    let pool = site.pool();
    let mut command = Command::new(PROGRAM);
    let output = command.args(["debug", name, "--json"]).arg(pool).output().unwrap();
    assert!(output.status.success(), "{}", says(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_log_damaged_in_its_middle_is_cut_on_demand_only() {
    let Some(site) = Site::mounted() else { return };
    for number in 0..8 {
        write_synced(&site.path(&format!("file{number}")), &[number; 5000]);
    }
    site.kill();
    site.does("umount", &[]);
    let (labels, log) = (debug(&site, "labels"), debug(&site, "log"));
    let batches = log["batches"].as_array().unwrap();
    let lost = batches[batches.len() - 4]["position"].as_u64().unwrap();
    let file = File::options().write(true).open(site.pool()).unwrap();
    for copy in labels["log_at"].as_array().unwrap() {
        let block = copy.as_u64().unwrap() + lost % labels["log_blocks"].as_u64().unwrap();
        file.write_all_at(&[0xa5; 100], block * 4096 + 60).unwrap();
    }
    refused(&site.verb("mount", &[]), 3, "-o cut-tail");
    let there = || (0..8).filter(|number| site.path(&format!("file{number}")).exists()).count();
    site.does("mount", &["-o", "ro"]);
    let beginning = there();
    assert!((1..8).contains(&beginning), "{beginning}");
    site.does("umount", &[]);
    let output = site.verb("mount", &["-o", "cut-tail"]);
    assert!(output.status.success() && says(&output).contains("goes on without what txgs"));
    assert_eq!(there(), beginning);
    fs::write(site.path("after"), b"1").unwrap();
    site.does("umount", &[]);
    site.does("check", &[]);
    site.does("mount", &[]);
    assert_eq!((there(), site.path("after").exists()), (beginning, true));
}

#[test]
fn a_mount_in_use_is_not_unmounted_unless_lazily() {
    let Some(site) = Site::mounted() else { return };
    let mut file = File::create(site.path("open")).unwrap();
    refused(&site.verb("umount", &[]), 4, "is busy");
    file.write_all(b"still there").unwrap();
    site.does("umount", &["--lazy"]);
    assert!(!site.is_mounted());
    file.write_all(b", and still open").unwrap();
    drop(file);
    wait_until(|| site.is_closed());
    site.does("mount", &[]);
    assert_eq!(fs::read(site.path("open")).unwrap(), b"still there, and still open");
}

#[test]
fn a_mounted_pool_is_not_mounted_over_itself_nor_made_anew() {
    let Some(site) = Site::mounted() else { return };
    fs::write(site.path("file"), b"here").unwrap();
    refused(&site.verb("mount", &[]), 4, "");
    let over = Command::new(PROGRAM).args(["create", "--force"]).arg(site.pool()).output();
    refused(&over.unwrap(), 4, "in use");
    assert_eq!(fs::read(site.path("file")).unwrap(), b"here");
}

#[test]
fn where_births_are_not_told_nothing_else_is_missing() {
    let Some(site) = Site::new() else { return };
    site.does("mount", &["-o", "nobtime"]);
    fs::write(site.path("file"), [1; 10_000]).unwrap();
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, site.path("file"), AtFlags::empty(), wanted).unwrap();
    assert_eq!(found.stx_mask & wanted.bits(), StatxFlags::BASIC_STATS.bits());
    assert_eq!((found.stx_size, found.stx_nlink), (10_000, 1));
    assert_eq!(fs::metadata(site.path("file")).unwrap().len(), 10_000);
    assert!(fs::metadata(site.path("file")).unwrap().created().is_err());
}

#[test]
fn mount_points_that_will_not_do_are_told_apart() {
    let Some(site) = Site::new() else { return };
    let on = |path: &Path| {
        Command::new(PROGRAM).arg("mount").arg(site.pool()).arg(path).output().unwrap()
    };
    refused(&on(&site.path("missing")), 1, "does not exist");
    let file = site.place.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&on(&file), 2, "not a directory");
    let options = site.verb("mount", &["-o", "nonsense"]);
    refused(&options, 2, "nonsense");
    let other = site.place.path().join("other.img");
    fs::write(&other, vec![1; 1 << 20]).unwrap();
    let no_pool = Command::new(PROGRAM).arg("mount").arg(&other).arg(site.mnt()).output().unwrap();
    refused(&no_pool, 1, "not a Copyhold pool");
    assert!(!site.is_mounted() && site.is_closed());
}

#[test]
fn sigterm_and_ctrl_c_unmount_cleanly() {
    let Some(site) = Site::new() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").arg("-f").arg(site.pool()).arg(site.mnt());
        command.args(transport::options());
        let mut daemon: Child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_until(|| site.is_mounted() && site.verb("info", &[]).status.success());
        fs::write(site.path("file"), format!("{signal:?}")).unwrap();
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        let status = daemon.wait().unwrap();
        let mut log = String::new();
        daemon.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(status.success(), "{status}: {log}");
        assert!(!site.is_mounted() && site.is_closed());
        site.does("mount", &[]);
        assert_eq!(fs::read_to_string(site.path("file")).unwrap(), format!("{signal:?}"));
        site.does("umount", &[]);
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(site) = Site::mounted() else { return };
    fs::write(site.path("file"), b"as it was").unwrap();
    site.does("sync", &[]);
    site.kill();
    site.does("umount", &[]);
    let before = fs::read(site.pool()).unwrap();
    site.does("mount", &["-o", "ro"]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"as it was");
    let denied = fs::write(site.path("other"), b"").unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::ReadOnlyFilesystem);
    site.does("umount", &[]);
    assert!(fs::read(site.pool()).unwrap() == before, "a read-only mount wrote");
}

#[test]
fn info_of_a_mount_counts_what_the_device_did() {
    let Some(site) = Site::mounted() else { return };
    write_synced(&site.path("file"), &[7; 1 << 20]);
    let info = site.info();
    assert_eq!(info["mounted_at"], site.mnt().to_str().unwrap());
    assert!(info["counters"]["data"]["written_bytes"].as_u64().unwrap() >= 1 << 20, "{info}");
    assert!(info["counters"]["log"]["writes"].as_u64().unwrap() > 0, "{info}");
    assert!(info["flushes"].as_u64().unwrap() > 0, "{info}");
}

#[test]
fn a_full_pool_refuses_writes_keeps_what_it_has_and_can_be_emptied() {
    let Some(site) = Site::mounted() else { return };
    let mut kept = Vec::new();
    let error = loop {
        let name = format!("file{}", kept.len());
        let content = vec![kept.len() as u8; 4 << 20];
        match fs::write(site.path(&name), &content) {
            Ok(()) => kept.push((name, content)),
            Err(error) => break error,
        }
        assert!(kept.len() < 64, "256 MiB never fill up");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    site.does("sync", &[]);
    site.does("umount", &[]);
    site.does("mount", &[]);
    for (name, content) in &kept {
        assert!(fs::read(site.path(name)).unwrap() == *content, "{name}");
    }
    for (name, _) in &kept {
        fs::remove_file(site.path(name)).unwrap();
    }
    fs::write(site.path("again"), vec![1; 64 << 20]).unwrap();
    site.does("umount", &[]);
    site.does("check", &[]);
}

#[test]
fn names_are_bytes_and_255_of_them_at_most() {
    let Some(site) = Site::mounted() else { return };
    let longest = "n".repeat(255);
    fs::write(site.path(&longest), b"long").unwrap();
    let error = fs::write(site.path(&"n".repeat(256)), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()));
    let bytes = OsStr::from_bytes(b"\xff\xfe \n\t\\\x01");
    fs::write(site.mnt().join(bytes), b"bytes").unwrap();
    site.does("umount", &[]);
    site.does("mount", &[]);
    assert_eq!(fs::read(site.path(&longest)).unwrap(), b"long");
    let names: Vec<_> = fs::read_dir(site.mnt()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name == bytes), "{names:?}");
}

#[test]
fn the_mount_helper_does_as_mount_8_expects() {
    let Some(site) = Site::new() else { return };
    let helper = site.place.path().join("mount.fuse.copyhold");
    symlink(PROGRAM, &helper).unwrap();
    let output = Command::new(&helper)
        .arg(site.pool())
        .arg(site.mnt())
        .args(["-n", "-s", "-o", "rw,noatime,x-mine=1,unheard-of"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", says(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", says(&output));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(site.mnt().to_str().unwrap())).unwrap();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields[0], site.pool().to_str().unwrap());
    assert_eq!(fields[2], "fuse.copyhold");
    assert!(fields[3].contains("noatime"), "{line}");
    if is_root() {
        assert!(!fields[3].contains("nosuid") && !fields[3].contains("nodev"), "{line}");
        assert!(fields[3].contains("allow_other"), "{line}");
        let remount = Command::new(&helper)
            .arg(site.pool())
            .arg(site.mnt())
            .args(["-o", "remount,ro"])
            .output()
            .unwrap();
        assert!(remount.status.success(), "{}", says(&remount));
        assert!(fs::write(site.path("file"), b"").is_err());
    }
}

/// Root lets a pool and a directory go to `nobody`, who then does everything by himself.
#[test]
fn an_ordinary_user_mounts_what_is_his() {
    if !is_root() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if mode & 0o006 != 0o006 {
        assert!(std::env::var_os("CI").is_none(), "CI needs a /dev/fuse that all may open");
        eprintln!("skipped: /dev/fuse is root's alone; scripts/setup.sh opens it");
        return;
    }
    let nobody = 65534;
    for path in [site.place.path().to_owned(), site.pool(), site.mnt()] {
        std::os::unix::fs::chown(&path, Some(nobody), Some(nobody)).unwrap();
    }
    let program = site.place.path().join("copyhold");
    fs::copy(PROGRAM, &program).unwrap();
    let line = "set -e\n\
        ./copyhold create mine.img --size 64M\n\
        ./copyhold mount mine.img mnt --log-file log\n\
        echo hello > mnt/file\n\
        sync mnt/file\n\
        ./copyhold sync mnt\n\
        ./copyhold info mnt\n\
        ./copyhold umount mnt\n\
        ./copyhold mount mine.img mnt --log-file log\n\
        grep hello mnt/file\n\
        ./copyhold umount mine.img\n";
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", line])
        .current_dir(site.place.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", says(&output));
}

/// A loop device over a file, gone at the end.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Loop {
        let attach = ["--find", "--show"];
        let output = Command::new("losetup").args(attach).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", says(&output));
        Loop(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn on_a_block_device_sync_2_reaches_the_pool() {
    if !is_root() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let device = Loop::over(&site.pool());
    let mount = || done(&["mount".as_ref(), device.0.as_ref(), site.mnt().as_os_str()]);
    mount();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(site.mnt().to_str().unwrap())).unwrap();
    assert_eq!(line.split(' ').nth(2), Some("fuseblk.copyhold"));
    fs::write(site.path("file"), b"synced by sync(2)").unwrap();
    rustix::fs::syncfs(File::open(site.mnt()).unwrap()).unwrap();
    site.kill();
    site.does("umount", &[]);
    mount();
    assert_eq!(fs::read(site.path("file")).unwrap(), b"synced by sync(2)");
    site.does("umount", &[]);
    let output = Command::new(PROGRAM).args(["create", &device.0]).output().unwrap();
    refused(&output, 1, "a pool already");
}

/// A pool in a file that its host cannot keep: writers wait for room, and nothing is lost.
#[test]
fn a_host_that_fills_up_loses_nothing() {
    if !is_root() {
        return;
    }
    let Some(site) = Site::new() else { return };
    let host = site.place.path().join("host");
    fs::create_dir(&host).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=48M", "none"];
    assert!(Command::new("mount").args(options).arg(&host).status().unwrap().success());
    let result = std::panic::catch_unwind(|| fill_the_host(&site, &host));
    make_room(&host);
    let _ = Command::new(PROGRAM).arg("umount").arg(site.mnt()).output();
    let _ = Command::new("umount").arg("-l").arg(&host).status();
    result.unwrap();
}

fn make_room(host: &Path) {
    let larger = ["-o", "remount,size=512M"];
    assert!(Command::new("mount").args(larger).arg(host).status().unwrap().success());
}

fn fill_the_host(site: &Site, host: &Path) {
    let pool = host.join("pool.img");
    done(&["create".as_ref(), pool.as_os_str(), "--size".as_ref(), "1G".as_ref()]);
    done(&["mount".as_ref(), pool.as_os_str(), site.mnt().as_os_str()]);
    write_synced(&site.path("kept"), &[1; 1 << 20]);
    let growing = site.path("growing");
    let writer = thread::spawn(move || write_synced(&growing, &vec![2; 64 << 20]));
    wait_until(|| rustix::fs::statvfs(host).unwrap().f_bavail == 0);
    assert!(!writer.is_finished(), "64 MiB do not fit a host of 48");
    assert_eq!(fs::read(site.path("kept")).unwrap(), [1; 1 << 20], "reading does not wait");
    make_room(host);
    writer.join().unwrap();
    site.kill();
    done(&["mount".as_ref(), pool.as_os_str(), site.mnt().as_os_str()]);
    assert_eq!(fs::read(site.path("kept")).unwrap(), [1; 1 << 20]);
    assert!(fs::read(site.path("growing")).unwrap() == vec![2; 64 << 20]);
    done(&["umount".as_ref(), site.mnt().as_os_str()]);
    done(&["check".as_ref(), pool.as_os_str()]);
}
