//! `copyhold memory` on a mounted pool: limits last, figures add up, bad input is refused.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::process::Command;

use serde_json::{Value, json};
use site::*;

fn rows(site: &Site, name: &str) -> Vec<Value> {
    site.done(&["memory", "show", &site.at(name)]).as_array().unwrap().clone()
}

/// The row of a path, or of the shared group.
#[track_caller]
fn row(site: &Site, path: Option<&str>) -> Value {
    let rows = rows(site, "");
    let found = rows.iter().find(|row| row["path"].as_str() == path);
    found.unwrap_or_else(|| panic!("no {path:?} in {rows:?}")).clone()
}

fn limits(site: &Site, path: Option<&str>) -> Value {
    let row = row(site, path);
    json!(["min", "low", "high", "max", "weight"].map(|key| row[key].clone()))
}

fn make(site: &Site, names: &[&str]) {
    for name in names {
        site.subvolume(name);
    }
}

fn set(site: &Site, name: &str, settings: &[&str]) {
    let at = site.at(name);
    site.done(&[&["memory", "set", &at], settings].concat());
}

/// What a verb prints for people.
fn text(site: &Site, arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(site.mnt().is_dir());
    String::from_utf8(output.stdout).unwrap()
}

const NONE: [&str; 2] = ["max", "max"];

#[test]
fn limits_last_and_follow_the_subvolume() {
    let Some(site) = Site::mounted(&[]) else { return };
    make(&site, &["a", "b", "a/in"]);
    let new = json!([0, 0, "max", "max", 100]);
    assert_eq!(limits(&site, Some("a")), new);
    set(&site, "a", &["low=340M", "max=1G", "min=4K"]);
    set(&site, "a", &["weight=7", "high=900M"]);
    let wanted = json!([4096, 340 << 20, 900 << 20, 1 << 30, 7]);
    assert_eq!(limits(&site, Some("a")), wanted);
    set(&site, "a/in", &["low=1M"]);
    site.done(&["memory", "set", "--shared", &site.at("b"), "low=8M"]);
    fs::write(site.path("a/in/file"), "content").unwrap();
    site.done(&["sync", &site.at("")]);
    // A set is durable when it returns: the daemon is killed.
    site.crash();
    // The independent reader passes over the records.
    let copies = site.directory().join("copies");
    let found = site.done(&["debug", "export", &site.pool(), copies.to_str().unwrap()]);
    assert_eq!(fs::read(copies.join("a/in/file")).unwrap(), b"content", "{found}");
    site.mount(&[]);
    assert_eq!(limits(&site, Some("a")), wanted);
    assert_eq!(limits(&site, Some("a/in"))[1], 1 << 20);
    assert_eq!(limits(&site, None), json!([0, 8 << 20, NONE[0], NONE[1], 100]));
    assert_eq!(limits(&site, Some("/")), new);
    // Moves, snapshots and rollbacks.
    let inner = row(&site, Some("a/in"));
    assert_eq!(inner["parent"], row(&site, Some("a"))["id"]);
    fs::rename(site.path("a/in"), site.path("b/in")).unwrap();
    assert_eq!(limits(&site, Some("b/in"))[1], 1 << 20);
    assert_eq!(row(&site, Some("b/in"))["parent"], row(&site, Some("b"))["id"]);
    site.snapshot("a", "s");
    assert_eq!(limits(&site, Some("s")), new, "LIMITS-M2");
    site.done(&["subvolume", "rollback", &site.at("a"), &site.at("s")]);
    assert_eq!(limits(&site, Some("a")), wanted, "LIMITS-M2");
    site.delete("b/in");
    set(&site, "a", &["min=0", "low=0", "high=max", "max=max", "weight=100"]);
    site.again();
    assert_eq!(limits(&site, Some("a")), new);
    site.checked();
}

#[test]
fn figures_are_those_of_the_groups_and_of_all_that_they_hold() {
    let Some(site) = Site::mounted(&[]) else { return };
    make(&site, &["a", "a/in", "b"]);
    for (name, files) in [("a", 50), ("a/in", 300), ("b", 20)] {
        (0..files).for_each(|n| drop(File::create(site.path(&format!("{name}/f{n}"))).unwrap()));
    }
    let all = rows(&site, "");
    let of = |path: &str| all.iter().find(|row| row["path"] == path).unwrap();
    for row in &all {
        let class = row["class"].as_object().unwrap();
        let sum: u64 = class.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(row["current"], sum, "{row}");
        assert!(row["peak"].as_u64() >= row["current"].as_u64(), "{row}");
        assert!(row["stat"]["pgscan"].as_u64() >= row["stat"]["pgsteal"].as_u64());
    }
    let inodes = |path: &str| of(path)["class"]["inode"].as_u64().unwrap() / 512;
    // The root directories are inodes, too.
    assert_eq!([inodes("a/in"), inodes("b"), inodes("a")], [301, 21, 301 + 51]);
    let below = rows(&site, "a/in");
    assert_eq!(below.len(), 1);
    assert_eq!(below[0]["path"], "a/in");
    assert_eq!(rows(&site, "a").len(), 2);
    let info = site.done(&["info", &site.at("")]);
    assert_eq!(info["memory"]["groups"], all.len());
    let events = text(&site, &["memory", "events", &site.at("a")]);
    assert_eq!(events, "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\nbypass 0\nforced 0\n");
    let stat = text(&site, &["memory", "stat", &site.at("a")]);
    assert!(stat.starts_with("node ") && stat.contains("\npgscan 0\npgsteal 0\n"), "{stat}");
    let pressure = text(&site, &["memory", "pressure", &site.at("a")]);
    assert_eq!(pressure, "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    let pressure = site.done(&["memory", "pressure", "--shared", &site.at("a")]);
    assert_eq!(pressure["some"]["total_us"], 0);
    let table = text(&site, &["memory", "show", &site.at("")]);
    assert!(table.lines().any(|line| line.starts_with("  a/in")), "{table}");
    assert!(table.lines().any(|line| line.starts_with("shared")), "{table}");
    site.checked();
}

#[test]
fn nodes_of_a_group_are_evicted_on_demand() {
    let Some(site) = Site::mounted(&["-o", "delta=2M"]) else { return };
    make(&site, &["a", "b"]);
    // More changes than stay in memory: so tables have nodes.
    for n in 0..6000 {
        drop(File::create(site.path(&format!("{}/file-{n}", ["a", "b"][n % 2]))).unwrap());
    }
    site.done(&["sync", &site.at("")]);
    for name in ["a", "b"] {
        assert_eq!(fs::read_dir(site.path(name)).unwrap().count(), 3000);
    }
    let nodes = |name| row(&site, Some(name))["class"]["node"].as_u64().unwrap();
    let before = [nodes("a"), nodes("b")];
    assert!(before[0] > 64 << 10, "{before:?}");
    set(&site, "a", &["low=1G"]);
    let freed = site.done(&["memory", "reclaim", "32K", &site.at("a")])["freed"].as_u64().unwrap();
    assert!(freed >= 32 << 10);
    let stat = site.done(&["memory", "stat", &site.at("a")]);
    assert_eq!(stat["pgsteal"], freed);
    assert_eq!(stat["pgscan_direct"], 0);
    site.refused(&["memory", "reclaim", "1G", &site.at("a")], "EAGAIN", "of 1.0 GiB");
    let steal = |name| site.done(&["memory", "stat", &site.at(name)])["pgsteal"].as_u64().unwrap();
    assert!(steal("a") > freed);
    assert_eq!(steal("b"), 0, "the neighbour's nodes stay");
    assert_eq!(fs::read_dir(site.path("a")).unwrap().count(), 3000);
    site.checked();
}

#[test]
fn nonsense_is_refused_and_says_why() {
    let Some(site) = Site::mounted(&["-o", "memory=256M"]) else { return };
    make(&site, &["a", "a/in", "a/more", "b"]);
    let at = |name: &str| site.at(name);
    let refused = |name: &str, setting: &str, code: &str, says: &str| {
        site.refused(&["memory", "set", &at(name), setting], code, says);
    };
    set(&site, "b", &["min=200M"]);
    refused("a", "min=57M", "EINVAL", "the 256M of the daemon's budget");
    set(&site, "a", &["min=50M", "max=60M"]);
    refused("a", "min=61M", "EINVAL", "min=61M is above max=60M");
    set(&site, "a/in", &["min=40M"]);
    refused("a/more", "min=21M", "EINVAL", "promised 61M");
    refused("a", "max=39M", "EINVAL", "min=50M is above max=39M");
    site.done(&["memory", "set", &at("a"), "min=0", "max=40M"]);
    refused("a", "max=39M", "EINVAL", "40M that are promised");
    std::fs::create_dir(site.path("a/dir")).unwrap();
    refused("a/dir", "low=1M", "EINVAL", "is not a subvolume");
    refused("gone", "low=1M", "ENOENT", "No such file");
    for settings in [&["low=1Q"][..], &["swap=1M"], &["low=1M", "low=2M"], &["weight=0"]] {
        let path = at("a");
        let output = site.run(&[&["memory", "set", &path], settings].concat());
        assert_eq!(output.status.code(), Some(2), "{settings:?}: {output:?}");
    }
    // A limit of nothing: all works.
    set(&site, "b", &["min=0", "low=0", "high=0", "max=0"]);
    fs::write(site.path("b/file"), "content").unwrap();
    assert_eq!(fs::read(site.path("b/file")).unwrap(), b"content");
    for verb in [
        &["memory", "set", &at("b"), "low=1M"][..],
        &["memory", "reclaim", "1M", &at("b")],
        &["memory", "show", &at("b")],
        &["memory", "events", &at("b")],
        &["memory", "set", "--shared", &at("b"), "low=1M"],
    ] {
        let output = site.nobody(verb);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("EPERM"), "{verb:?}: {said}");
    }
    site.unmount();
    site.mount(&["-o", "ro"]);
    site.refused(&["memory", "set", &at("b"), "low=1M"], "EROFS", "read-only");
    assert_eq!(limits(&site, Some("b")), json!([0, 0, 0, 0, 100]));
    site.checked();
}

#[test]
fn many_groups_are_shown_each_once() {
    let Some(site) = Site::mounted(&[]) else { return };
    let mut ids: Vec<u64> = (0..300).map(|n| site.subvolume(&format!("tenant-{n}"))).collect();
    (0..300).step_by(10).for_each(|n| set(&site, &format!("tenant-{n}"), &["low=1M"]));
    ids.extend([0, 1]);
    ids.sort_unstable();
    let shown = rows(&site, "");
    assert_eq!(shown.iter().map(|row| row["id"].as_u64().unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(shown.iter().filter(|row| row["low"] == 1 << 20).count(), 30);
    let complete = |row: &&Value| row["class"].is_object() && row["events"]["low"] == 0;
    assert_eq!(shown.iter().filter(complete).count(), 302);
    site.checked();
}
