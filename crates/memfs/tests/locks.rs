//! File locks on a real mount of the filesystem in memory.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

#[path = "../../fuse/tests/common/mod.rs"]
mod common;

use std::fs::File;
use std::process::Command;

use common::{Mounted, wait_until};
use copyhold_harness::needs;
use rustix::fs::{FlockOperation, flock};

#[test]
fn a_waiting_lock_is_granted_when_the_holder_lets_go() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let mut child = Command::new("flock").arg(&path).arg("true").spawn().unwrap();
    wait_until(|| mounted.counters().parked == 1);
    flock(&file, FlockOperation::Unlock).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn posix_locks_belong_to_processes_and_go_with_close() {
    if !needs::are_met() {
        return;
    }
    let mounted = Mounted::memory();
    let path = mounted.path("file");
    let file = File::create(&path).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    // POSIX locks of one process do not exclude each other; sqlite3-like programs are others.
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\n\
                  try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(3)\n";
    let try_lock = || {
        let run = Command::new("python3").arg("-c").arg(script).arg(&path).status();
        run.unwrap().code()
    };
    assert_eq!(try_lock(), Some(3));
    drop(file);
    assert_eq!(try_lock(), Some(0));
}
