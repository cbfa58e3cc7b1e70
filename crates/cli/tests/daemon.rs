//! The daemon's own life: what its log, its limits and its signals do to it.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{PipeWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use copyhold_harness::mount_table::is_mounted;
use copyhold_harness::wait::wait_until;
use copyhold_harness::{Mounted, transport};
use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use rustix::process::{Pid, Signal, kill_process};
use site::*;

/// A daemon in the foreground. A shell ignores SIGINT in what it starts with `&`; `env` resets
/// that, and keeps the pid.
fn foreground(site: &Site, stderr: impl Into<Stdio>) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM", PROGRAM]);
    command.args(["--log", "debug", "mount", "-f"]).args([site.pool(), site.at("")]);
    let daemon = command.stderr(stderr).spawn().unwrap();
    // Before that a signal may be ignored still.
    let exe = format!("/proc/{}/exe", daemon.id());
    let program = Path::new(PROGRAM).file_name();
    wait_until(|| fs::read_link(&exe).map_or(true, |exe| exe.file_name() == program));
    daemon
}

/// Serves with a log that fails or blocks, works, and ends in good order at the first SIGTERM.
#[track_caller]
fn works_whatever_its_log_does(stderr: impl Into<Stdio>) {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let mut daemon = foreground(&site, stderr);
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    fs::write(site.path("file"), "content").unwrap();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
    site.checked();
}

#[test]
fn a_log_on_a_full_filesystem_ends_nothing() {
    works_whatever_its_log_does(File::options().write(true).open("/dev/full").unwrap());
}

#[test]
fn a_log_whose_reader_is_gone_ends_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    works_whatever_its_log_does(writer);
}

/// A pipe takes so much and then blocks.
fn fill(mut pipe: &PipeWriter) {
    fcntl_setfl(pipe, OFlags::NONBLOCK).unwrap();
    while pipe.write(b".").is_ok() {}
    fcntl_setfl(pipe, OFlags::empty()).unwrap();
}

#[test]
fn a_log_that_nobody_reads_delays_nothing() {
    let (reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    works_whatever_its_log_does(writer);
    drop(reader);
}

#[test]
fn a_log_that_is_read_late_has_all_that_fits() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    let mut daemon = foreground(&site, writer);
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    // Lines wait for their reader.
    let mut log = Vec::new();
    reader.read_to_end(&mut log).unwrap();
    assert!(daemon.wait().unwrap().success());
    let log = String::from_utf8_lossy(&log);
    assert!(log.contains("is mounted on"), "{log}");
    site.mount(&[]);
    site.checked();
}

/// The limits of descriptors of the daemon: soft and hard.
fn descriptors(site: &Site) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", site.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut fields = line.split_whitespace().skip(3).map(str::to_owned);
    (fields.next().unwrap(), fields.next().unwrap())
}

/// Mounts under a limit of descriptors, which `ulimit` sets by these arguments; whether it could.
#[track_caller]
fn mounted_under(site: &Site, ulimit: &str) -> bool {
    let script = format!("ulimit {ulimit} && exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh", PROGRAM, "mount"]).args([site.pool(), site.at("")]);
    // A file: the end of a pipe would come with the daemon's.
    let said = tempfile::NamedTempFile::new().unwrap();
    shell.stdout(Stdio::null()).stderr(said.reopen().unwrap());
    let mut mount = shell.spawn().unwrap();
    let worked = ended(&mut mount).success();
    let said = fs::read_to_string(said.path()).unwrap();
    assert!(!said.contains("another program"), "{said}");
    worked
}

/// Waits for a process that ends by itself.
#[track_caller]
fn ended(process: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until(|| {
        status = process.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn a_mount_takes_all_descriptors_that_it_may_have() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    assert!(mounted_under(&site, "-Sn 18"));
    let (soft, hard) = descriptors(&site);
    assert_eq!(soft, hard);
    site.checked();
}

#[test]
fn with_few_descriptors_a_mount_works_or_fails_and_returns() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let (mut worked, mut transports) = (0, Vec::new());
    for limit in 6..48 {
        if mounted_under(&site, &format!("-n {limit}")) {
            fs::write(site.path("file"), limit.to_string()).unwrap();
            let info = site.done(&["info", &site.at("")]);
            transports.push(info["transport"].as_str().unwrap().to_owned());
            site.done(&["umount", &site.at("")]);
            worked += 1;
        } else {
            assert!(!is_mounted(&site.path("")).unwrap(), "{limit}: it has failed");
        }
    }
    assert!((1..42).contains(&worked), "the limits are not where it matters: {worked}");
    if transport::has_ring() {
        let falls_back = |said: &String| said.contains("the ring is refused: Too many open files");
        assert!(transports.iter().any(falls_back), "{transports:?}");
        assert_eq!(transports.last().unwrap(), "io_uring");
    }
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"47");
    site.checked();
}

#[test]
fn a_signal_ends_a_daemon_that_still_opens_its_pool() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    // Opening waits for a lock as long as it may be that of a daemon that leaves.
    let pool = File::open(site.pool()).unwrap();
    flock(&pool, FlockOperation::LockExclusive).unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = foreground(&site, Stdio::null());
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        assert_eq!(daemon.wait().unwrap().signal(), Some(signal.as_raw()));
    }
    drop(pool);
    site.mount(&[]);
    site.checked();
}

/// SIGTERM after several delays from the start, which are meant to fall before, within and after
/// the replay. The daemon must end in each case, and no file may be lost.
#[test]
fn a_signal_soon_after_the_start_ends_the_daemon_and_loses_nothing() {
    const FILES: usize = 3000;
    let Some(site) = Site::mounted(&[]) else { return };
    (0..FILES).for_each(|n| fs::write(site.path(&n.to_string()), n.to_string()).unwrap());
    File::open(site.path("")).unwrap().sync_all().unwrap();
    site.kill();
    site.done(&["umount", &site.at("")]);
    for millis in [0, 3, 6, 10, 15, 20, 30, 50] {
        let mut daemon = foreground(&site, Stdio::null());
        thread::sleep(Duration::from_millis(millis));
        kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        let status = ended(&mut daemon);
        let is_well = status.success() || status.signal() == Some(Signal::TERM.as_raw());
        assert!(is_well, "after {millis} ms: {status}");
    }
    site.mount(&[]);
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), FILES);
    site.checked();
}

/// A filesystem over another, gone at the end.
fn cover(path: &Path) -> Mounted {
    worked(Mounted::new(&["-t", "tmpfs"], Path::new("cover"), path))
}

#[test]
fn a_mount_below_another_ends_when_that_is_gone() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut daemon = foreground(&site, log.reopen().unwrap());
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    fs::write(site.path("file"), "content").unwrap();
    let cover = cover(&site.path(""));
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    wait_until(|| fs::read_to_string(log.path()).unwrap().contains("mounted over"));
    assert!(daemon.try_wait().unwrap().is_none(), "it is still mounted");
    drop(cover);
    assert!(ended(&mut daemon).success());
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
    site.checked();
}

#[test]
fn a_second_signal_ends_a_mount_below_another() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut daemon = foreground(&site, log.reopen().unwrap());
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    let cover = cover(&site.path(""));
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    wait_until(|| fs::read_to_string(log.path()).unwrap().contains("mounted over"));
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    ended(&mut daemon);
    drop(cover);
    site.mount(&[]);
    site.checked();
}

/// A daemon in the foreground, which serves, and its log.
fn served(site: &Site) -> (Child, tempfile::NamedTempFile) {
    site.done(&["umount", &site.at("")]);
    let log = tempfile::NamedTempFile::new().unwrap();
    let daemon = foreground(site, log.reopen().unwrap());
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    fs::write(site.path("file"), "content").unwrap();
    (daemon, log)
}

fn bind(from: &Path, to: &Path) {
    let status = Command::new("mount").arg("--bind").args([from, to]).status().unwrap();
    assert!(status.success());
}

/// No path leads to the mount: its place is gone, or is a directory of the cover.
#[test]
fn a_mount_below_a_covered_directory_ends_when_that_is_gone() {
    for has_same_directory in [false, true] {
        let Some(site) = Site::mounted(&[]) else { return };
        let (mut daemon, log) = served(&site);
        let cover = cover(site.path("").parent().unwrap());
        if has_same_directory {
            fs::create_dir(site.path("")).unwrap();
        }
        kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
        wait_until(|| fs::read_to_string(log.path()).unwrap().contains("mounted over"));
        assert!(daemon.try_wait().unwrap().is_none(), "it is still mounted");
        drop(cover);
        assert!(ended(&mut daemon).success());
        site.mount(&[]);
        assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
        site.checked();
    }
}

#[test]
fn a_place_that_cannot_be_reached_keeps_no_other_place() {
    let Some(site) = Site::mounted(&[]) else { return };
    let (mut daemon, log) = served(&site);
    let elsewhere = tempfile::tempdir().unwrap();
    let place = elsewhere.path().join("place");
    fs::create_dir(&place).unwrap();
    // The newest is the first to be unmounted.
    bind(&site.path(""), &place);
    let cover = cover(elsewhere.path());
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    wait_until(|| fs::read_to_string(log.path()).unwrap().contains("mounted over"));
    assert!(!is_mounted(&site.path("")).unwrap());
    assert!(daemon.try_wait().unwrap().is_none(), "it is still mounted");
    drop(cover);
    assert!(ended(&mut daemon).success());
    assert!(!is_mounted(&place).unwrap());
    site.mount(&[]);
    site.checked();
}

#[test]
fn a_mount_that_is_bound_over_itself_ends_at_the_first_signal() {
    let Some(site) = Site::mounted(&[]) else { return };
    let (mut daemon, _log) = served(&site);
    for _ in 0..2 {
        bind(&site.path(""), &site.path(""));
    }
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(ended(&mut daemon).success());
    assert!(!is_mounted(&site.path("")).unwrap());
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
    site.checked();
}

/// What `nohup` does.
#[test]
fn an_ignored_hangup_ends_nothing() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP && exec \"$@\"", "sh", PROGRAM, "mount", "-f"]);
    let mut daemon = shell.args([site.pool(), site.at("")]).stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| site.run(&["info", &site.at("")]).status.success());
    let has_hangup = |mask: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(mask)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() & 1 != 0
    };
    // So the kernel drops it. Blocked, it would be kept for whoever reads it; for a moment it
    // is, because a thread that starts another one blocks all signals meanwhile.
    assert!(has_hangup("SigIgn:"));
    wait_until(|| !has_hangup("SigBlk:"));
    kill_process(Pid::from_child(&daemon), Signal::HUP).unwrap();
    fs::write(site.path("file"), "content").unwrap();
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(ended(&mut daemon).success());
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
    site.checked();
}

#[test]
fn a_log_beyond_the_limit_on_file_sizes_ends_nothing() {
    let Some(site) = Site::sized("64M", &[]) else { return };
    site.done(&["umount", &site.at("")]);
    let log = tempfile::NamedTempFile::new().unwrap();
    log.as_file().set_len(1 << 30).unwrap();
    // Blocks of 512 bytes or of a kilobyte: the pool is below the limit, the log is not.
    let script = "ulimit -f 500000 && exec \"$@\"";
    let mut mount = Command::new("sh");
    mount.args(["-c", script, "sh", PROGRAM, "--log", "debug", "mount", "--log-file"]);
    mount.arg(log.path()).args([site.pool(), site.at("")]);
    assert!(mount.status().unwrap().success());
    fs::write(site.path("file"), "content").unwrap();
    site.done(&["umount", &site.at("")]);
    assert_eq!(log.as_file().metadata().unwrap().len(), 1 << 30, "no line was written");
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"content");
    site.checked();
}

#[test]
fn a_pool_beyond_the_limit_on_file_sizes_is_an_error() {
    let Some(site) = Site::mounted(&[]) else { return };
    // A mount writes to a log that ends in something.
    let file = fs::File::create(site.path("f")).unwrap();
    file.sync_all().unwrap();
    site.kill();
    drop(file);
    site.done(&["umount", &site.at("")]);
    let refusal = tempfile::NamedTempFile::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 1 && exec \"$@\"", "sh", PROGRAM, "mount"]);
    shell.args([site.pool(), site.at("")]).stderr(refusal.reopen().unwrap());
    assert_eq!(shell.status().unwrap().code(), Some(1));
    let refusal = fs::read_to_string(refusal.path()).unwrap();
    assert!(refusal.contains("File too large"), "{refusal}");
    site.mount(&[]);
    site.checked();
}

#[test]
fn a_log_file_that_cannot_be_opened_is_named() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let log = site.at("missing/log");
    let mount = ["mount", "--log-file", &log, &site.pool(), &site.at("")];
    site.refused(&mount, "not-found", &log);
}

/// A group with a limit of memory, in a hierarchy of version 1 or 2; none where that is not to be
/// had.
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Option<Group> {
        let places =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let name = format!("copyhold-test-{}-{bytes}", std::process::id());
        places.iter().find_map(|(place, file)| {
            let group = Group(Path::new(place).join(&name));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(file), bytes.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Mounts in a group that is allowed so many bytes; what `mount` says, and the budget.
#[track_caller]
fn mounted_in_a_group(site: &Site, bytes: u64) -> Option<(String, u64)> {
    let Some(group) = Group::new(bytes) else {
        eprintln!("skipped: needs control groups of memory");
        return None;
    };
    site.done(&["umount", &site.at("")]);
    let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(&group.0).args([PROGRAM, "mount"]);
    shell.args([site.pool(), site.at("")]).stderr(said.reopen().unwrap());
    assert!(shell.status().unwrap().success());
    let info = site.done(&["info", &site.at("")]);
    let budget = info["memory"]["budget_bytes"].as_u64().unwrap();
    site.checked();
    Some((fs::read_to_string(said.path()).unwrap(), budget))
}

#[test]
fn the_usual_budget_fits_into_a_group_with_less_than_the_machine() {
    let Some(site) = Site::mounted(&[]) else { return };
    let Some((said, budget)) = mounted_in_a_group(&site, 1600 << 20) else { return };
    assert_eq!((said.as_str(), budget), ("", 200 << 20));
}

#[test]
fn a_group_that_is_too_small_for_the_pool_is_told_at_the_mount() {
    let Some(site) = Site::mounted(&[]) else { return };
    let Some((said, budget)) = mounted_in_a_group(&site, 160 << 20) else { return };
    assert!(budget > 80 << 20, "{budget}");
    assert!(said.starts_with("copyhold: the control group limits memory to 160.0 MiB"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
