//! Names that do not exist on a mounted pool: their bound, and a mount on a name that is made
//! while the kernel forgets it.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use copyhold_harness::wait::wait_until;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use site::*;

fn names(site: &Site) -> Value {
    site.done(&["names", "show", &site.at("")])
}

fn count(of: &Value, name: &str) -> u64 {
    of["events"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

/// NAMES-N2.
fn live(of: &Value) -> u64 {
    let ended =
        ["pruned", "forced", "turned_positive", "dropped", "replaced"].map(|name| count(of, name));
    count(of, "created") - ended.iter().sum::<u64>()
}

/// NAMES-N2 holds for each subvolume: figures of a moment in which no name is removed.
fn that_add_up(site: &Site) -> Value {
    let mut shown = Value::Null;
    wait_until(|| {
        shown = names(site);
        let mut rows = shown["subvolumes"].as_array().unwrap().iter();
        rows.all(|row| json!(live(row)) == row["live"])
    });
    shown
}

/// NAMES-N5 and NAMES-N6: the most names that there are with a limit.
fn most(limit: u64) -> u64 {
    limit + (limit / 128).max(256) + 16 * 32
}

#[test]
fn a_rogue_that_looks_up_random_names_is_bounded_and_its_names_add_up() {
    const LIMIT: u64 = 2000;
    let Some(site) = Site::mounted(&["-o", "names=2000"]) else { return };
    site.subvolume("a");
    site.subvolume("b");
    for number in 0..100 {
        assert!(fs::metadata(site.path(&format!("b/{number}"))).is_err());
    }
    for number in 0..5 * LIMIT {
        assert!(fs::metadata(site.path(&format!("a/no-such-name-{number:012}"))).is_err());
    }
    assert!(names(&site)["live"].as_u64().unwrap() <= most(LIMIT), "NAMES-N5");
    let shown = that_add_up(&site);
    let subvolumes = shown["subvolumes"].as_array().unwrap();
    let of = |path: &str| subvolumes.iter().find(|row| row["path"] == path).unwrap();
    // Each look-up made an entry, however fast the kernel forgot the others.
    assert_eq!(count(of("a"), "created"), 5 * LIMIT, "{shown}");
    // The thread would wait for 256 times 50 ms before.
    assert_eq!(count(of("a"), "replaced"), 0, "PRUNE-P5: {shown}");
    assert_eq!(of("b")["live"], 100, "NAMES-N4: {shown}");
    assert_eq!(count(of("b"), "delayed"), 0, "{shown}");

    // Names that were removed are names that do not exist.
    fs::write(site.path("b/file"), "").unwrap();
    fs::remove_file(site.path("b/file")).unwrap();
    assert_eq!(site.done(&["names", "drop", &site.at("b")]), json!({ "dropped": 101 }));
    let shown = names(&site);
    let rows = shown["subvolumes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["path"] == "b").unwrap();
    assert_eq!((&row["live"], count(row, "retained")), (&json!(0), 1), "{row}");

    let info = site.done(&["info", &site.at("")]);
    assert_eq!(
        (&info["names"]["limit"], &info["names"]["bound_by"]),
        (&json!(LIMIT), &json!("setting"))
    );
    let fields = info["names"]["dentry_state"].as_str().unwrap().split(' ').count();
    assert_eq!(fields, 6, "{info}");
    let set = |limit: &str| site.done(&["names", "set", &site.at(""), limit]);
    assert_eq!(set("limit=off")["bound_by"], "off");
    // Those that the kernel is forgetting at this moment end by themselves.
    wait_until(|| names(&site)["live"] == 0);
    assert!(fs::metadata(site.path("a/x")).is_err());
    assert_eq!(set("limit=5000")["limit"], 5000);
    site.refused(&["names", "drop", &site.at("a/none")], "ENOENT", "none");
    site.checked();
}

/// PRUNE-P4 and PRUNE-P5: their look-ups share the lock that the notifications need alone.
#[test]
fn many_threads_in_one_directory_are_held_back() {
    const LIMIT: u64 = 4000;
    const THREADS: u64 = 64;
    let Some(site) = Site::mounted(&["-o", "names=4000"]) else { return };
    site.subvolume("a");
    site.subvolume("b");
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let site = &site;
            threads.spawn(move || {
                for number in 0..4 * LIMIT / THREADS {
                    let path = site.path(&format!("a/name-{thread}-{number}"));
                    assert!(fs::metadata(path).is_err());
                }
            });
        }
        for number in 0..100 {
            fs::write(site.path("b/file"), format!("{number}")).unwrap();
            fs::remove_file(site.path("b/file")).unwrap();
        }
    });
    assert!(names(&site)["live"].as_u64().unwrap() <= most(LIMIT), "NAMES-N5");
    let shown = that_add_up(&site);
    let subvolumes = shown["subvolumes"].as_array().unwrap();
    let of = |path: &str| subvolumes.iter().find(|row| row["path"] == path).unwrap();
    assert_eq!(count(of("b"), "delayed"), 0, "{shown}");
    assert_eq!(count(of("a"), "created"), 4 * LIMIT, "{shown}");
    site.checked();
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

/// A removal adds a name, too: paths are held back before it (PRUNE-P4).
#[test]
fn removals_at_the_limit_are_held_back() {
    const LIMIT: u64 = 300;
    let Some(site) = Site::mounted(&["-o", "names=300"]) else { return };
    site.subvolume("a");
    let path = |number: u64| site.path(&format!("a/{number}"));
    for number in 0..4 * LIMIT {
        fs::write(path(number), "").unwrap();
    }
    for number in 0..4 * LIMIT {
        fs::remove_file(path(number)).unwrap();
    }
    let shown = names(&site);
    assert_eq!(count(&shown, "retained"), 4 * LIMIT, "{shown}");
    assert!(shown["live"].as_u64().unwrap() <= most(LIMIT), "NAMES-N5: {shown}");
    site.checked();
}

/// Nothing is written, and names come and go; they are not kept by the pool.
#[test]
fn names_are_bounded_on_a_mount_that_is_read_only_and_none_is_left_after_it() {
    const LIMIT: u64 = 300;
    let Some(site) = Site::mounted(&["-o", "names=300"]) else { return };
    site.subvolume("a");
    let fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let missing = fs::metadata(site.path(&format!("a/{number}"))).unwrap_err();
            assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        }
    };
    fill(0..LIMIT / 2);
    site.unmount();
    site.mount(&["-o", "ro,names=300"]);
    let shown = names(&site);
    assert_eq!((&shown["live"], &shown["subvolumes"]), (&json!(0), &json!([])), "{shown}");
    fill(0..4 * LIMIT);
    assert!(names(&site)["live"].as_u64().unwrap() <= most(LIMIT), "NAMES-N5");
    assert_eq!(count(&that_add_up(&site)["subvolumes"][0], "created"), 4 * LIMIT);
    site.done(&["names", "drop", &site.at("a")]);
    assert_eq!(names(&site)["live"], 0);
    fill(0..10);
    site.unmount();
    site.mount(&[]);
    assert_eq!(names(&site)["live"], 0);
    site.checked();
}

/// The threads that remove names end with the mount, and with the subvolume of the names.
#[test]
fn an_unmount_or_a_deletion_while_names_are_removed_ends_with_no_name() {
    let options = ["-o", "names=300"];
    let Some(site) = Site::mounted(&options) else { return };
    let fill = || {
        site.subvolume("a");
        for number in 0..600 {
            assert!(fs::metadata(site.path(&format!("a/{number}"))).is_err());
        }
    };
    for _ in 0..3 {
        fill();
        site.delete("a");
        let shown = names(&site);
        let rows = shown["subvolumes"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["path"] != "a"), "{shown}");
        fill();
        site.unmount();
        site.mount(&options);
        assert_eq!(names(&site)["live"], 0);
        site.delete("a");
    }
    site.checked();
}
