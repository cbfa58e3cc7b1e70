//! A pool in more than one place: the same filesystem, as the kernel's own have it, or one
//! subvolume of it.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use copyhold_harness::mount_table;
use copyhold_harness::wait::wait_until;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use site::{PROGRAM, Site, loop_device, number};

/// A directory beside the mount point of `site`, which unmounts it at the end.
struct Place(PathBuf);

impl Place {
    fn of(site: &Site, name: &str) -> Place {
        let path = site.directory().join(name);
        fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn at(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn is_mounted(&self) -> bool {
        options_at(&self.0).is_some()
    }
}

/// What the table of mounts says of the mount at `path`.
fn options_at(path: &Path) -> Option<String> {
    mount_table::at(path).unwrap().map(|entry| entry.options)
}

fn is_closed(pool: &str) -> bool {
    copyhold_harness::is_closed(Path::new(pool)).unwrap()
}

fn daemon(site: &Site, at: &str) -> Pid {
    site.daemon(at).pid()
}

/// It is refused as being in use, and says this.
#[track_caller]
fn in_use(site: &Site, arguments: &[&str], says: &str) {
    let output = site.run(arguments);
    assert_eq!(output.status.code(), Some(4), "{arguments:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(says), "{text}");
}

#[test]
fn a_pool_that_is_mounted_again_is_the_same_filesystem() {
    let Some(site) = Site::mounted(&[]) else { return };
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    fs::create_dir(site.path("dir")).unwrap();
    fs::write(site.path("dir/file"), b"once").unwrap();
    assert_eq!(fs::read(second.path("dir/file")).unwrap(), b"once");
    let [one, other] = [site.path("dir/file"), second.path("dir/file")].map(fs::metadata);
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.dev(), one.ino()), (other.dev(), other.ino()));
    fs::rename(second.path("dir/file"), second.path("renamed")).unwrap();
    assert_eq!(fs::read(site.path("renamed")).unwrap(), b"once");
    let info = site.done(&["info", second.at()]);
    assert_eq!(
        info["mounted_at"],
        format!("{}, {}", site.at("").trim_end_matches('/'), second.at())
    );
    assert_eq!(daemon(&site, second.at()), daemon(&site, &site.at("")));
}

#[test]
fn the_pool_is_closed_with_its_last_mount_and_no_umount_waits_for_another() {
    let Some(site) = Site::mounted(&[]) else { return };
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    fs::write(site.path("file"), b"kept").unwrap();
    site.done(&["umount", &site.at("")]);
    assert!(!is_closed(&site.pool()));
    assert_eq!(fs::read(second.path("file")).unwrap(), b"kept");
    site.mount(&[]);
    site.done(&["umount", second.at()]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"kept");
    site.done(&["umount", &site.at("")]);
    assert!(is_closed(&site.pool()), "the last umount returned before the pool was closed");
}

#[test]
fn flags_belong_to_each_mount_and_what_a_daemon_has_once_must_agree() {
    let Some(site) = Site::mounted(&["-o", "commit=1,nobtime,noexec"]) else { return };
    let second = Place::of(&site, "second");
    let pool = site.pool();
    let again = |options| ["mount", "-o", options, &pool, second.at()];
    for (options, says) in [
        ("commit=7", "without `commit=7`"),
        ("writeback_cache", "without `writeback_cache`"),
        ("noatime", "without `noatime`"),
        ("sync", "without `sync`"),
    ] {
        in_use(&site, &again(options), says);
        assert!(!second.is_mounted());
    }
    site.done(&again("commit=1,ro,nosuid,nodev"));
    let shown = options_at(&second.0).unwrap();
    assert!(shown.starts_with("ro,nosuid,nodev,relatime"), "{shown}");
    let first = options_at(&site.mnt()).unwrap();
    assert!(first.starts_with("rw,noexec"), "{first}");
    fs::write(site.path("file"), b"1").unwrap();
    assert_eq!(number(fs::write(second.path("file"), b"2")), Some(Errno::ROFS));
    in_use(&site, &["mount", &site.pool(), second.at()], "already mounted on");
    in_use(&site, &["mount", "-f", &site.pool(), second.at()], "leave out -f");
}

#[test]
fn a_pool_that_is_mounted_read_only_cannot_be_written_through_another_mount() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    site.mount(&["-o", "ro"]);
    let second = Place::of(&site, "second");
    in_use(&site, &["mount", &site.pool(), second.at()], "read-only");
    site.done(&["mount", "-o", "ro", &site.pool(), second.at()]);
    assert_eq!(daemon(&site, second.at()), daemon(&site, &site.at("")));
}

#[test]
fn a_mount_may_show_one_subvolume() {
    let Some(site) = Site::mounted(&[]) else { return };
    let inner = site.subvolume("a");
    fs::create_dir(site.path("dir")).unwrap();
    let other = site.subvolume("dir/b").to_string();
    fs::write(site.path("a/in-a"), b"a").unwrap();
    fs::write(site.path("dir/b/in-b"), b"b").unwrap();
    symlink("a", site.path("link")).unwrap();
    let second = Place::of(&site, "second");
    for (options, code, says) in [
        ("subvol=c", "not-found", "has no subvol=c"),
        ("subvolid=77", "not-found", "has no subvolid=77"),
        ("subvol=dir", "failed", "not a subvolume"),
        ("subvol=link", "failed", "a symbolic link"),
        ("subvol=../a", "failed", "subvol=../a"),
        (&format!("subvol=a,subvolid={other}"), "failed", "not subvolid="),
    ] {
        site.refused(&["mount", "-o", options, &site.pool(), second.at()], code, says);
        assert!(!second.is_mounted());
    }
    // First with the whole pool mounted, then by themselves.
    for first in [false, true] {
        if first {
            site.done(&["umount", &site.at("")]);
            let missing = ["mount", "-o", "subvol=c", &site.pool(), second.at()];
            site.refused(&missing, "not-found", "has no subvol=c");
            assert!(!second.is_mounted());
            wait_until(|| is_closed(&site.pool()));
        }
        site.done(&["mount", "-o", "subvol=/a", &site.pool(), second.at()]);
        assert_eq!(second.names(), ["in-a"]);
        assert_eq!(site.done(&["subvolume", "show", second.at()])["id"], inner);
        let third = Place::of(&site, if first { "third" } else { "fourth" });
        let id = format!("subvolid={other}");
        site.done(&["mount", "-o", &id, &site.pool(), third.at()]);
        assert_eq!(third.names(), ["in-b"]);
        assert_eq!(daemon(&site, third.at()), daemon(&site, second.at()));
        site.done(&["umount", second.at()]);
        site.done(&["umount", third.at()]);
    }
    assert!(is_closed(&site.pool()));
    site.mount(&["-o", "subvol=/"]);
    assert!(site.path("dir/b/in-b").exists());
}

#[test]
fn the_mount_of_a_subvolume_that_is_deleted_can_be_unmounted() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    let second = Place::of(&site, "second");
    site.done(&["mount", "-o", "subvol=a", &site.pool(), second.at()]);
    site.delete("a");
    assert_eq!(number(fs::write(second.path("file"), b"")), Some(Errno::STALE));
    site.done(&["umount", second.at()]);
    site.checked();
}

#[test]
fn umount_of_the_pool_takes_down_all_of_its_mounts_also_one_in_another() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::create_dir(site.path("inner")).unwrap();
    site.done(&["mount", &site.pool(), &site.at("inner")]);
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    site.done(&["umount", &site.pool()]);
    assert!(!second.is_mounted() && is_closed(&site.pool()));
}

#[test]
fn a_signal_to_the_daemon_takes_down_all_of_its_mounts() {
    let Some(site) = Site::mounted(&[]) else { return };
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    let daemon = site.daemon(second.at());
    site.done(&["umount", &site.at("")]);
    site.mount(&[]);
    fs::write(site.path("file"), b"kept").unwrap();
    daemon.signal(Signal::TERM).unwrap();
    wait_until(|| is_closed(&site.pool()));
    assert!(!second.is_mounted());
    site.mount(&[]);
    assert_eq!(fs::read(site.path("file")).unwrap(), b"kept");
    site.checked();
}

#[test]
fn dead_mounts_of_a_killed_daemon_are_replaced_one_by_one() {
    let Some(site) = Site::mounted(&[]) else { return };
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    site.daemon(second.at()).kill().unwrap();
    wait_until(|| number_of(&second.0) == Some(Errno::NOTCONN));
    site.mount(&[]);
    fs::write(site.path("file"), b"alive").unwrap();
    site.done(&["mount", &site.pool(), second.at()]);
    assert_eq!(fs::read(second.path("file")).unwrap(), b"alive");
    site.done(&["umount", second.at()]);
    site.checked();
}

fn number_of(path: &Path) -> Option<Errno> {
    rustix::fs::statfs(path).err()
}

#[test]
fn mounts_at_the_same_time_share_one_daemon() {
    let Some(site) = Site::mounted(&[]) else { return };
    let places: Vec<_> = (0..6).map(|each| Place::of(&site, &format!("p{each}"))).collect();
    for round in 0..3 {
        // The last round begins with the pool open.
        if round < 2 {
            site.done(&["umount", &site.pool()]);
        }
        let start = |place: &Place| {
            let mut mount = Command::new(PROGRAM);
            mount.arg("mount").arg(site.pool()).arg(&place.0).stderr(Stdio::piped());
            mount.spawn().unwrap()
        };
        let started: Vec<Child> = places.iter().map(start).collect();
        for child in started {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let daemons: Vec<_> = places.iter().map(|place| daemon(&site, place.at())).collect();
        assert!(daemons.iter().all(|one| *one == daemons[0]), "{daemons:?}");
        if round == 1 {
            places.iter().for_each(|place| drop(site.done(&["umount", place.at()])));
            site.mount(&[]);
        }
    }
    site.done(&["umount", &site.pool()]);
    assert!(is_closed(&site.pool()));
}

#[test]
fn another_namespace_keeps_the_pool_and_umount_does_not_wait_for_it() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("file"), b"kept").unwrap();
    let script = "echo ready; read line; cat \"$1\"; echo; read line";
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(site.path("file"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(elsewhere.stdout.take().unwrap());
    let mut read = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        line
    };
    assert_eq!(read(), "ready\n");
    let output = Command::new(PROGRAM).arg("umount").arg(site.path("")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("in use elsewhere"), "{output:?}");
    assert!(!is_closed(&site.pool()));
    let mut stdin = elsewhere.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    assert_eq!(read(), "kept\n");
    drop(stdin);
    elsewhere.wait().unwrap();
    wait_until(|| is_closed(&site.pool()));
}

#[test]
fn a_pool_that_took_the_name_of_a_mounted_one_is_another_pool() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("old"), b"").unwrap();
    let moved = format!("{}.moved", site.pool());
    fs::rename(site.pool(), &moved).unwrap();
    site.done(&["create", &site.pool(), "--size", "256M"]);
    let second = Place::of(&site, "second");
    site.done(&["mount", &site.pool(), second.at()]);
    assert!(second.names().is_empty());
    assert_ne!(daemon(&site, second.at()), daemon(&site, &site.at("")));
    site.done(&["umount", second.at()]);
}

/// The kernel takes a longer one by mount(2) only.
#[test]
fn a_pool_whose_path_is_too_long_for_one_more_mount_says_so() {
    let Some(site) = Site::mounted(&[]) else { return };
    let deep = site.directory().join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    let pool = deep.join("pool.img");
    let pool = pool.to_str().unwrap();
    let [first, second] = ["first", "again"].map(|name| Place::of(&site, name));
    site.done(&["create", pool, "--size", "64M"]);
    site.refused(&["mount", "-o", "subvolid=7", pool, first.at()], "failed", "accepts at most 255");
    site.done(&["mount", pool, first.at()]);
    site.refused(&["mount", pool, second.at()], "failed", "accepts at most 255");
    site.done(&["umount", pool]);
    assert!(is_closed(pool));
}

#[test]
fn a_block_device_is_mounted_again_as_any() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.subvolume("a");
    fs::write(site.path("a/file"), b"kept").unwrap();
    site.done(&["umount", &site.at("")]);
    let Some(device) = loop_device(site.pool()) else { return };
    let device = device.path().to_str().unwrap();
    let [first, second] = ["first", "again"].map(|name| Place::of(&site, name));
    // It is also mounted from the beginning as a part.
    for options in ["subvol=a", "rw"] {
        site.done(&["mount", "-o", options, device, first.at()]);
        site.done(&["mount", "-o", "subvol=a,nosuid", device, second.at()]);
        assert_eq!(fs::read(second.path("file")).unwrap(), b"kept");
        assert!(options_at(&second.0).unwrap().starts_with("rw,nosuid"));
        assert_eq!(daemon(&site, first.at()), daemon(&site, second.at()));
        site.done(&["umount", first.at()]);
        assert_eq!(fs::read(second.path("file")).unwrap(), b"kept");
        site.done(&["umount", device]);
        assert!(!second.is_mounted());
    }
}

/// A dead mount keeps its device from all others.
#[test]
fn dead_mounts_of_a_block_device_make_room_for_a_new_one() {
    let Some(site) = Site::mounted(&[]) else { return };
    site.done(&["umount", &site.at("")]);
    let Some(device) = loop_device(site.pool()) else { return };
    let device = device.path().to_str().unwrap();
    let [first, second] = ["first", "again"].map(|name| Place::of(&site, name));
    // One place, two, and those of a subvolume; then the other one is taken.
    for (options, places) in [("rw", 1), ("rw", 2), ("subvolid=1", 2), ("ro", 2)] {
        site.done(&["mount", "-o", options, device, first.at()]);
        if places == 2 {
            site.done(&["mount", "-o", options, device, second.at()]);
        }
        site.daemon(first.at()).kill().unwrap();
        wait_until(|| number_of(&first.0) == Some(Errno::NOTCONN));
        site.done(&["mount", device, first.at()]);
        assert!(!second.is_mounted(), "{options} {places}");
        fs::write(first.path("file"), options).unwrap();
        site.done(&["mount", device, second.at()]);
        assert_eq!(fs::read_to_string(second.path("file")).unwrap(), options);
        site.done(&["umount", device]);
    }
}
