//! The program with a real mount: what it promises to whoever types the verbs.
//!
//! Each test has a pool and a directory of its own and takes them down again. They need /dev/fuse;
//! where there is none they say so and pass, except under CI.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use copyhold_harness::wait::wait_until;
use copyhold_harness::{mount_table, needs, output, transport};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use site::{PROGRAM, Site, copied_program, worked};

/// A pool of 256 MiB that is not mounted yet. `None` where nothing can be mounted, by root or by an
/// ordinary user.
fn unmounted() -> Option<Site> {
    needs::has_fuse().then(|| Site::unmounted(&["--size", "256M"]))
}

fn mounted() -> Option<Site> {
    let site = unmounted()?;
    site.mount(&[]);
    Some(site)
}

/// The text of a verb about the mount, as a person gets it.
fn tells(site: &Site, verb: &str, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg(verb).args(more);
    if verb == "mount" {
        command.arg(site.pool()).args(transport::arguments());
    }
    worked(output(command.arg(site.mnt())))
}

fn is_mounted(site: &Site) -> bool {
    worked(mount_table::is_mounted(&site.mnt()))
}

/// No process has the pool open.
fn is_closed(site: &Site) -> bool {
    worked(copyhold_harness::is_closed(site.pool().as_ref()))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
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
fn a_mount_right_behind_a_kill_waits_for_the_daemon_to_be_gone() {
    let Some(site) = mounted() else { return };
    for round in 0..10u8 {
        // Memory takes a dying process longer than anything else.
        fs::write(site.path("file"), vec![round; 96 << 20]).unwrap();
        worked(site.daemon(&site.at("")).kill());
        site.mount(&[]);
    }
    site.checked();
}

/// The view `debug NAME` of the pool.
fn debug(site: &Site, name: &str) -> Value {
    site.done(&["debug", name, &site.pool()])
}

#[test]
fn a_log_damaged_in_its_middle_is_cut_on_demand_only() {
    let Some(site) = mounted() else { return };
    for number in 0..8 {
        write_synced(&site.path(&format!("file{number}")), &[number; 5000]);
    }
    site.kill();
    site.unmount();
    let (labels, log) = (debug(&site, "labels"), debug(&site, "log"));
    let batches = log["batches"].as_array().unwrap();
    let lost = batches[batches.len() - 4]["position"].as_u64().unwrap();
    let file = File::options().write(true).open(site.pool()).unwrap();
    for copy in labels["log_at"].as_array().unwrap() {
        let block = copy.as_u64().unwrap() + lost % labels["log_blocks"].as_u64().unwrap();
        file.write_all_at(&[0xa5; 100], block * 4096 + 60).unwrap();
    }
    refused(&tells(&site, "mount", &[]), 3, "-o cut-tail");
    let there = || (0..8).filter(|number| site.path(&format!("file{number}")).exists()).count();
    site.mount(&["-o", "ro"]);
    let beginning = there();
    assert!((1..8).contains(&beginning), "{beginning}");
    site.unmount();
    let output = tells(&site, "mount", &["-o", "cut-tail"]);
    assert!(output.status.success() && says(&output).contains("goes on without what txgs"));
    assert_eq!(there(), beginning);
    fs::write(site.path("after"), b"1").unwrap();
    site.checked();
    site.mount(&[]);
    assert_eq!((there(), site.path("after").exists()), (beginning, true));
}

#[test]
fn where_births_are_not_told_nothing_else_is_missing() {
    let Some(site) = unmounted() else { return };
    site.mount(&["-o", "nobtime"]);
    fs::write(site.path("file"), [1; 10_000]).unwrap();
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, site.path("file"), AtFlags::empty(), wanted).unwrap();
    assert_eq!(found.stx_mask & wanted.bits(), StatxFlags::BASIC_STATS.bits());
    assert_eq!((found.stx_size, found.stx_nlink), (10_000, 1));
    assert_eq!(fs::metadata(site.path("file")).unwrap().len(), 10_000);
    assert!(fs::metadata(site.path("file")).unwrap().created().is_err());
}

#[test]
fn sigterm_and_ctrl_c_unmount_cleanly() {
    let Some(site) = unmounted() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").arg("-f").arg(site.pool()).arg(site.mnt());
        command.args(transport::arguments());
        let mut daemon: Child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_until(|| is_mounted(&site) && tells(&site, "info", &[]).status.success());
        fs::write(site.path("file"), format!("{signal:?}")).unwrap();
        kill_process(Pid::from_child(&daemon), signal).unwrap();
        let status = daemon.wait().unwrap();
        let mut log = String::new();
        daemon.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(status.success(), "{status}: {log}");
        assert!(!is_mounted(&site) && is_closed(&site));
        site.mount(&[]);
        assert_eq!(fs::read_to_string(site.path("file")).unwrap(), format!("{signal:?}"));
        site.unmount();
    }
}

#[test]
fn the_mount_helper_does_as_mount_8_expects() {
    let Some(site) = unmounted() else { return };
    let helper = site.directory().join("mount.fuse.copyhold");
    symlink(PROGRAM, &helper).unwrap();
    let output = Command::new(&helper)
        .arg(site.pool())
        .arg(site.mnt())
        .args(["-n", "-s", "-o", "rw,noatime,x-mine=1,unheard-of"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", says(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", says(&output));
    let entry = mount_table::at(&site.mnt()).unwrap().expect("it is mounted");
    let options = &entry.options;
    assert_eq!((&*entry.kind, entry.source), ("fuse.copyhold", site.pool().into()));
    assert!(options.contains("noatime"), "{options}");
    if is_root() {
        assert!(!options.contains("nosuid") && !options.contains("nodev"), "{options}");
        assert!(options.contains("allow_other"), "{options}");
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
    let Some(site) = unmounted() else { return };
    let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if mode & 0o006 != 0o006 {
        assert!(std::env::var_os("CI").is_none(), "CI needs a /dev/fuse that all may open");
        eprintln!("skipped: /dev/fuse is root's alone; scripts/setup.sh opens it");
        return;
    }
    let nobody = 65534;
    for path in [site.directory().to_owned(), site.pool().into(), site.mnt()] {
        std::os::unix::fs::chown(&path, Some(nobody), Some(nobody)).unwrap();
    }
    copied_program(site.directory());
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
        .current_dir(site.directory())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", says(&output));
}
