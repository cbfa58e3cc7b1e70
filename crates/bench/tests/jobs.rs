//! Each job once, with tiny sizes: it ends, it leaves nothing, and its figures are there.
//!
//! On a plain directory always. On mounts, Copyhold's and the null store's, where there are root
//! and /dev/fuse; Copyhold's where its program was built beside this one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use copyhold_harness::needs;
use serde_json::Value;

const BENCH: &str = env!("CARGO_BIN_EXE_copyhold-bench");

/// Runs a job for one round on each of what it can be run on; its lines.
fn run(job: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Command::new(BENCH);
    bench.args(job).args(["--json", "--rounds", "1", "--dir"]).arg(directory.path());
    bench.args(["--against", &targets().join(",")]);
    if !has_copyhold() {
        bench.arg("--peers-only");
    }
    let output = bench.output().unwrap();
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{job:?}: {says}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{job:?} left something");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn has_copyhold() -> bool {
    needs::are_met() && Path::new(BENCH).with_file_name("copyhold").is_file()
}

fn targets() -> Vec<&'static str> {
    if needs::are_met() { vec!["plain", "null"] } else { vec!["plain"] }
}

/// The metrics that a target has a figure of, above zero.
fn metrics<'a>(lines: &'a [Value], target: &str) -> BTreeSet<&'a str> {
    let of_target = lines.iter().filter(|line| line["target"] == target);
    let above = of_target.filter(|line| line["median"].as_f64().unwrap() > 0.0);
    above.map(|line| line["metric"].as_str().unwrap()).collect()
}

/// Asserts that each target has a figure for each metric.
fn assert_metrics(lines: &[Value], expected: &[&str]) {
    let mut targets = targets();
    targets.extend(has_copyhold().then_some("copyhold"));
    for target in targets {
        let found = metrics(lines, target);
        for metric in expected {
            assert!(found.contains(metric), "{metric} of {target} is not in {found:?}");
        }
    }
}

#[test]
fn a_run_says_where_it_was_made() {
    let lines = run(&["files", "--files", "3", "--directories", "1"]);
    for field in ["command", "kernel", "cpus", "load"] {
        assert!(!lines[0][field].is_null(), "{field} is not in {}", lines[0]);
    }
}

#[test]
fn random_overwrite() {
    let job = ["random-overwrite", "--size", "1M", "--ops", "40", "--clients", "1,2"];
    let expected = ["direct.iops", "buffered.iops", "fsync.iops", "fsync.c2.p50"];
    assert_metrics(&run(&job), &expected);
}

#[test]
fn random_read() {
    let job = ["random-read", "--size", "1M", "--ops", "100", "--clients", "1,2"];
    assert_metrics(&run(&job), &["direct.iops", "cached.iops", "cached.c2.p50"]);
}

#[test]
fn sequential() {
    let lines = run(&["sequential", "--size", "4M", "--clients", "1,4"]);
    let variants = ["write_direct", "write_buffered", "read_direct", "read_cold", "read_warm"];
    let expected =
        variants.map(|variant| [format!("{variant}.rate"), format!("{variant}.c4.rate")]);
    let expected: Vec<&str> = expected.as_flattened().iter().map(String::as_str).collect();
    assert_metrics(&lines, &expected);
}

#[test]
fn files() {
    let lines = run(&["files", "--files", "50", "--directories", "1,7"]);
    let phases = ["create", "negative", "readdir_stat", "rename", "unlink"];
    let expected = phases.map(|phase| [format!("d1.{phase}.iops"), format!("d7.{phase}.iops")]);
    let expected: Vec<&str> = expected.as_flattened().iter().map(String::as_str).collect();
    assert_metrics(&lines, &expected);
}

#[test]
fn tree() {
    let lines = run(&["tree", "--files", "120"]);
    assert_metrics(&lines, &["untar.time", "untar_durable.time", "grep.time", "rm.time"]);
    let left_out =
        lines.iter().any(|line| line["left_out"] == "tree on null: git needs what it wrote");
    assert_eq!(left_out, needs::are_met());
}

#[test]
fn sqlite() {
    let lines = run(&["sqlite", "--commits", "20"]);
    let said = lines.iter().any(|line| line["left_out"].to_string().contains("neither sqlite3"));
    let expected = ["wal.commits", "rollback.commits"].into_iter().collect();
    assert!(said || metrics(&lines, "plain") == expected);
    assert!(said || !has_copyhold() || metrics(&lines, "copyhold") == expected);
}

#[test]
fn recovery_is_of_copyhold_alone() {
    let lines = run(&["recovery", "--size", "16M", "--seconds", "0"]);
    assert_eq!(metrics(&lines, "plain"), BTreeSet::new());
    let expected = ["mount", "mount_clean", "log", "edits"].map(|name| format!("recovery.{name}"));
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    assert!(!has_copyhold() || metrics(&lines, "copyhold") == expected);
}

#[test]
fn memory_is_of_what_has_a_daemon() {
    let lines = run(&["memory", "--files", "1100"]);
    assert_eq!(metrics(&lines, "plain"), BTreeSet::new());
    for target in [(needs::are_met(), "null"), (has_copyhold(), "copyhold")] {
        let (is_there, target) = target;
        assert!(!is_there || metrics(&lines, target).contains("looked_up.memory_peak"));
    }
}

#[test]
fn unshare() {
    let lines = run(&["unshare", "--files", "3", "--snapshots", "2", "--seconds", "1"]);
    assert_metrics(&lines, &["off.next.iops", "off.next.iops_of_all", "off.next.write_p50"]);
}

#[test]
fn snapshots_are_of_what_has_them() {
    let sizes = ["--files", "10", "--snapshots", "100", "--seconds", "1", "--neighbour-files", "2"];
    let lines = run(&[&["snapshots"][..], &sizes].concat());
    assert_eq!(metrics(&lines, "plain"), BTreeSet::new());
    let expected = ["many.snapshot_ioctl_p50", "quiet.write_and_fsync_p50", "deletion.all_freed"];
    let found = metrics(&lines, "copyhold");
    let all = expected.iter().all(|metric| found.contains(metric));
    assert!(all || !has_copyhold(), "{found:?}");
}

#[test]
fn groups_show_the_curve_of_reclaim() {
    let small = ["--curve", "--reclaim", "proportional", "--eagerness", "1", "--files-max", "16M"];
    let lines = run(&[&["groups", "--option", "memory=128M"], &small[..]].concat());
    let expected = ["curve.17.ideal", "curve.0.proportional", "curve.0.proportional.rival_pgscan"];
    let found = metrics(&lines, "copyhold");
    assert!(!has_copyhold() || expected.iter().all(|it| found.contains(it)), "{found:?}");
}

#[test]
fn groups_compare_a_neighbour_with_them_and_without() {
    let small = ["--files", "50", "--size", "1M", "--seconds", "1", "--entries", "40"];
    let rogue = ["groups", "--rogue", "create,read", "--threads", "2", "--mapping", "1M"];
    let lines = run(&[&rogue[..], &small].concat());
    let expected = ["on", "off"].map(|arm| {
        ["create", "read"].map(|kind| format!("{arm}.beside_to_alone.{kind}.read_direct.p99"))
    });
    let found = metrics(&lines, "copyhold");
    let mut expected = expected.as_flattened().iter();
    assert!(!has_copyhold() || expected.all(|it| found.contains(it.as_str())), "{found:?}");
}

#[test]
fn rogue() {
    let neighbour = ["--files", "50", "--size", "1M", "--seconds", "1"];
    let sizes = ["--threads", "4", "--limit", "2M"];
    let kinds = ["rogue", "--kinds", "limit,rename"];
    let lines = run(&[&kinds[..], &neighbour, &sizes].concat());
    let calls = ["write_fsync", "read_cold", "read_direct"];
    let of_rename = calls.map(|call| {
        let names = ["alone.rename", "beside.rename", "beside_to_alone.rename"];
        names.map(|name| format!("{name}.{call}.p99"))
    });
    let mut expected: Vec<&str> = of_rename.as_flattened().iter().map(String::as_str).collect();
    expected.push("rogue.rename.calls");
    assert_metrics(&lines, &expected);
    let found = metrics(&lines, "copyhold");
    let refused = ["rogue.limit.refused", "beside_to_alone.limit.stat.p50"];
    assert!(!has_copyhold() || refused.iter().all(|it| found.contains(it)), "{found:?}");
    assert!(!metrics(&lines, "plain").contains("rogue.limit.refused"), "it has no limits");
}

#[test]
fn aged() {
    let shape =
        ["aged", "--size", "64M", "--metaslab", "1M", "--log-size", "1M", "--arms", "default"];
    let load = ["--log-laps", "1", "--ops-per-txg", "200", "--txgs", "2", "--seconds", "1"];
    let lines = run(&[&shape[..], &load].concat());
    assert_eq!(metrics(&lines, "plain"), BTreeSet::new());
    let expected = ["image.fragmentation", "default.free.txg.sync_mean", "default.free.loop.p999"];
    let found = metrics(&lines, "copyhold");
    assert!(!has_copyhold() || expected.iter().all(|it| found.contains(it)), "{found:?}");
    let judged = lines.iter().any(|line| line["derived"] == "fragmentation");
    assert_eq!(judged, has_copyhold());
}

#[test]
fn listing() {
    let lines = run(&["listing", "--files", "300", "--device-iops", "0"]);
    assert_eq!(metrics(&lines, "plain"), BTreeSet::new());
    let ways = ["names", "as_listed", "names_first"].map(|way| format!("free.{way}.time"));
    let found = metrics(&lines, "copyhold");
    assert!(!has_copyhold() || ways.iter().all(|way| found.contains(way.as_str())), "{found:?}");
}

#[test]
fn figures_are_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("files.svg");
    let plot = ["--plot", path.to_str().unwrap()];
    run(&[&["files", "--files", "3", "--directories", "1"][..], &plot].concat());
    let svg = fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("d1.create.iops"), "{svg}");
}
