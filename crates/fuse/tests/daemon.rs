//! The mount as a process of its own: going into the background, signals, death, ordinary users.
//!
//! Started with arguments this program is the daemon; without, it is the test.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use copyhold_fuse::daemon::{self, Launch, Outcome, Side};
use copyhold_fuse::mount::{self, Mount, MountOptions};
use copyhold_fuse::protocol::Settings;
use copyhold_fuse::{Session, Signals, ThreadPerTask};
use copyhold_memfs::{Contents, MemoryFs};
use tempfile::TempDir;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(&arguments[1], arguments.get(2).map_or("", String::as_str)),
        _ if copyhold_harness::needs::are_met() => {
            let tests: [(&str, fn()); 6] = [
                ("returns_when_the_mount_can_be_used", returns_when_the_mount_can_be_used),
                ("reports_what_went_wrong_before", reports_what_went_wrong_before),
                ("a_child_that_dies_is_a_failure", a_child_that_dies_is_a_failure),
                ("a_signal_unmounts", a_signal_unmounts),
                ("a_killed_daemon_is_mounted_over", a_killed_daemon_is_mounted_over),
                ("an_ordinary_user_mounts", an_ordinary_user_mounts),
            ];
            for (name, test) in tests {
                test();
                println!("test {name} ... ok");
            }
        }
        _ => {}
    }
}

// The daemon.

fn serve(dir: &str, options: &str) {
    let outcome = match daemon::fork(None).unwrap() {
        Side::Parent(outcome) => outcome,
        Side::Child(launch) => return child(dir, options, launch),
    };
    match outcome {
        Outcome::Ready(text) => assert_eq!(text, "by the way"),
        Outcome::Failed(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
        Outcome::Died(code) => std::process::exit(code),
    }
}

fn child(dir: &str, text: &str, launch: Launch) {
    if text == "die" {
        std::process::exit(42);
    }
    let signals = Signals::watch().unwrap();
    let mut options = MountOptions::default();
    let started = options.add(text, |_, _| Ok(false)).map_err(|error| error.to_string());
    let started = started.and_then(|()| {
        Mount::new(Path::new("daemon"), Path::new(dir), &options).map_err(|error| error.to_string())
    });
    let mount = match started {
        Ok(mount) => mount,
        Err(text) => return launch.failed(&text),
    };
    let fs = Arc::new(MemoryFs::new(Contents::Kept));
    let spawner = Arc::new(ThreadPerTask);
    let settings = Settings::default();
    let session = Session::start(mount, fs, spawner, &settings, common::options()).unwrap();
    signals.unmount_on_arrival(Arc::clone(session.mount()));
    // For who wants to send a signal: beside the mount point.
    let _ = fs::write(Path::new(dir).with_extension("pid"), std::process::id().to_string());
    launch.ready("by the way").unwrap();
    session.wait();
}

// The tests.

fn start(dir: &Path, options: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).arg("serve").arg(dir).arg(options).output().unwrap()
}

fn daemon_of(dir: &Path) -> rustix::process::Pid {
    let number = fs::read_to_string(dir.with_extension("pid")).unwrap();
    rustix::process::Pid::from_raw(number.parse().unwrap()).unwrap()
}

fn wait_for_end(dir: &Path) {
    while rustix::process::test_kill_process(daemon_of(dir)).is_ok() {
        std::thread::yield_now();
    }
    fs::remove_file(dir.with_extension("pid")).unwrap();
}

fn send(dir: &Path, signal: rustix::process::Signal) {
    rustix::process::kill_process(daemon_of(dir), signal).unwrap();
}

fn is_mounted(dir: &Path) -> bool {
    mount::mounted_at(dir).unwrap().is_some()
}

fn returns_when_the_mount_can_be_used() {
    let dir = TempDir::new().unwrap();
    let run = start(dir.path(), "");
    assert!(run.status.success(), "{run:?}");
    assert!(run.stdout.is_empty() && run.stderr.is_empty(), "says nothing: {run:?}");
    fs::write(dir.path().join("file"), b"usable").unwrap();
    mount::unmount(dir.path(), false).unwrap();
    wait_for_end(dir.path());
}

fn reports_what_went_wrong_before() {
    let dir = TempDir::new().unwrap();
    let run = start(&dir.path().join("missing"), "");
    assert_eq!(run.status.code(), Some(1));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("does not exist; create the directory first"), "{said}");
    let run = start(dir.path(), "ro,nonsense");
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("`nonsense` is not known"));
}

fn a_child_that_dies_is_a_failure() {
    let dir = TempDir::new().unwrap();
    let run = start(dir.path(), "die");
    assert_eq!(run.status.code(), Some(42));
    assert_eq!(run.status.signal(), None);
}

fn a_signal_unmounts() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let dir = TempDir::new().unwrap();
        assert!(start(dir.path(), "").status.success());
        send(dir.path(), signal);
        wait_for_end(dir.path());
        assert!(!is_mounted(dir.path()));
    }
}

fn a_killed_daemon_is_mounted_over() {
    let dir = TempDir::new().unwrap();
    assert!(start(dir.path(), "").status.success());
    fs::write(dir.path().join("file"), b"gone with the daemon").unwrap();
    send(dir.path(), rustix::process::Signal::KILL);
    wait_for_end(dir.path());
    let error = loop {
        // The connection ends when the last descriptor of the dead process is closed.
        match fs::metadata(dir.path().join("other")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => break error,
            _ => std::thread::yield_now(),
        }
    };
    assert!(copyhold_fuse::mount::means_dead(&error), "{error}");
    let run = start(dir.path(), "");
    assert!(run.status.success(), "{run:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    mount::unmount(dir.path(), false).unwrap();
    assert!(!is_mounted(dir.path()), "the dead mount is not below");
    wait_for_end(dir.path());
}

/// In a mount namespace of its own, where everybody may open `/dev/fuse`.
fn an_ordinary_user_mounts() {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    for path in [dir.path(), &point] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    let program = readable_copy(dir.path());
    let script = format!(
        "set -e\n\
         mknod {dir}/fuse c 10 229\n\
         chmod 666 {dir}/fuse\n\
         mount --bind {dir}/fuse /dev/fuse\n\
         cat > {dir}/script <<'END'\n\
         set -e\n\
         {program} serve {point} ''\n\
         grep -q '{point} fuse.copyhold.*user_id=65534' /proc/mounts\n\
         echo hello > {point}/file\n\
         test \"$(cat {point}/file)\" = hello\n\
         fusermount3 -u {point}\n\
         ! {program} serve {point} allow_other 2> {point}/said\n\
         grep -q user_allow_other {point}/said\n\
         {program} serve {point} ''\n\
         kill -TERM $(cat {point}.pid)\n\
         while grep -q {point} /proc/mounts; do :; done\n\
         END\n\
         setpriv --reuid=65534 --regid=65534 --clear-groups sh {dir}/script\n",
        dir = dir.path().display(),
        program = program.display(),
        point = point.display(),
    );
    let run = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    assert!(run.status.success(), "{run:?}");
}

/// This program where anybody can run it; the directory it was built in may be private.
fn readable_copy(dir: &Path) -> PathBuf {
    let copy = dir.join("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}
