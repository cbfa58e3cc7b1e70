//! A mount on a name that is made while the kernel forgets that it does not exist.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use site::*;

fn names(site: &Site) -> Value {
    site.done(&["names", "show", &site.at("")])
}

fn count(of: &Value, name: &str) -> u64 {
    of["events"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

/// Repeats a call that the kernel refuses because a notification waits for the directory for long
/// (PRUNE-P3).
fn while_stale<T, E: Into<std::io::Error>>(call: impl Fn() -> Result<T, E>) -> T {
    loop {
        match call().map_err(Into::into) {
            Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {}
            result => break result.unwrap(),
        }
    }
}

struct Raises<'a>(&'a AtomicBool);

impl Drop for Raises<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// PRUNE-P3: the thread of the notification may come behind the creation. With a few mounts this
/// holds by chance, too; the tests of `adapter::prune` hold the rule.
#[test]
fn a_mount_on_a_name_that_the_kernel_is_forgetting_stays() {
    const LIMIT: u64 = 300;
    const MOUNTS: u64 = 100;
    let Some(site) = Site::mounted(&["-o", "names=300"]) else { return };
    let (next, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let path = |number: u64| site.path(&format!("name-{number}"));
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    // If this is late, the directory is there.
                    let _absent = fs::metadata(path(number));
                }
            });
        }
        // Also if an assertion fails.
        let _ends = Raises(&ends);
        let outer = fs::metadata(site.mnt()).unwrap().dev();
        for number in 0..MOUNTS {
            // About as old as those that are being forgotten.
            let age = LIMIT * 7 / 8 + number % (LIMIT / 4);
            let at = path(loop {
                if let Some(old) = next.load(Ordering::Relaxed).checked_sub(age) {
                    break old;
                }
            });
            fs::create_dir(&at).unwrap();
            while_stale(|| mount("none", &at, "tmpfs", MountFlags::empty(), None));
            for _ in 0..20 {
                std::thread::yield_now();
                let seen = while_stale(|| fs::metadata(&at));
                assert_ne!(seen.dev(), outer, "the mount is lost");
            }
            while_stale(|| unmount(&at, UnmountFlags::DETACH));
            while_stale(|| fs::remove_dir(&at));
        }
    });
    let shown = names(&site);
    assert!(count(&shown, "pruned") + count(&shown, "forced") > 0, "{shown}");
    site.checked();
}
