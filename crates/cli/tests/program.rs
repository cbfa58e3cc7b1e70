//! The program as a user meets it, without a mount: answers, refusals, exit codes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_copyhold");

fn copyhold(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = copyhold(&[&["--json"], arguments].concat());
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// It fails with this exit code, for a reason whose `--json` code is `code`, and says `says`.
#[track_caller]
fn refused(arguments: &[&str], status: i32, code: &str, says: &str) {
    let output = copyhold(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty() || status == 3, "{arguments:?} printed results");
    let text = stderr(&output);
    assert!(text.starts_with("copyhold: "), "{text}");
    assert!(text.contains(says), "{arguments:?} says: {text}");
    let output = copyhold(&[&["--json"], arguments].concat());
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], code, "{error}");
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A pool of 64 MiB.
    fn pool(&self) -> PathBuf {
        let pool = self.path("pool.img");
        let output = copyhold(&["create", text(&pool), "--size", "64M", "-L", "tests"]);
        assert!(output.status.success(), "{}", stderr(&output));
        pool
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_new_pool_is_sparse_and_tells_what_it_is() {
    let place = Place::new();
    let pool = place.pool();
    let metadata = fs::metadata(&pool).unwrap();
    assert_eq!(metadata.len(), 64 << 20);
    assert!(metadata.blocks() * 512 < 32 << 20, "{} blocks", metadata.blocks());
    let info = json(&["info", text(&pool)]);
    assert_eq!(info["label"], "tests");
    assert_eq!(info["size_bytes"], 64 << 20);
    assert!(info["available_bytes"].as_u64().unwrap() > 32 << 20, "{info}");
    assert_eq!(json(&["debug", "labels", text(&pool)])["label_at_end"], "good");
    for view in ["log", "tables", "nodes", "space"] {
        assert!(json(&["debug", view, text(&pool)]).is_object(), "{view}");
    }
}

#[test]
fn a_preallocated_pool_takes_its_room_at_once() {
    let place = Place::new();
    let pool = place.path("pool.img");
    let output = copyhold(&["create", text(&pool), "--size", "16M", "--preallocate", "written"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(fs::metadata(&pool).unwrap().blocks() * 512 >= 16 << 20);
}

#[test]
fn metaslabs_and_log_have_the_sizes_that_create_is_given() {
    let place = Place::new();
    let pool = place.path("pool.img");
    let sizes = ["--size", "64M", "--metaslab", "2M", "--log-size", "1M"];
    let output = copyhold(&[&["create", text(&pool)], &sizes[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let labels = json(&["debug", "labels", text(&pool)]);
    assert_eq!((&labels["metaslab_blocks"], &labels["log_blocks"]), (&512.into(), &256.into()));
    let space = json(&["debug", "space", text(&pool)]);
    assert_eq!(space["metaslabs"].as_array().unwrap().len(), 32);
    assert!(space["fragmentation"].as_u64().unwrap() < 50, "{}", space["fragmentation"]);
}

#[test]
fn what_is_there_is_overwritten_only_by_force() {
    let place = Place::new();
    let pool = place.pool();
    let before = json(&["info", text(&pool)])["id"].clone();
    refused(&["create", text(&pool)], 1, "exists", "holds a pool already; --force");
    assert_eq!(json(&["info", text(&pool)])["id"], before);
    assert!(copyhold(&["create", text(&pool), "--force"]).status.success());
    assert_ne!(json(&["info", text(&pool)])["id"], before);

    let other = place.path("other.img");
    let file = File::create(&other).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(b"\x53\xef", 0x438).unwrap();
    refused(&["create", text(&other)], 1, "exists", "ext4 filesystem; --force");
    file.write_all_at(&[0, 0], 0x438).unwrap();
    assert!(copyhold(&["create", text(&other)]).status.success(), "a blank file is nobody's");
}

#[test]
fn pools_that_cannot_be_made_leave_nothing_behind() {
    let place = Place::new();
    let pool = place.path("pool.img");
    let name = text(&pool);
    refused(&["create", name], 2, "usage", "--size");
    refused(&["create", name, "--size", "10Q"], 2, "usage", "K, M, G or T");
    refused(&["create", name, "--size", "64K"], 2, "usage", "too small");
    refused(&["create", "/dev/no-such-disk", "--size", "1G"], 1, "not-found", "/dev/no-such-disk");
    refused(&["create", "/dev/null", "--force"], 2, "usage", "is no regular file, block device or");
    let missing = place.path("missing/pool.img");
    refused(&["create", text(&missing), "--size", "64M"], 1, "not-found", "missing/pool.img");
    assert!(!pool.exists());
}

#[test]
fn what_is_no_pool_is_told_apart() {
    let place = Place::new();
    refused(&["info", "/no/such/pool"], 1, "not-found", "/no/such/pool");
    let small = place.path("small");
    fs::write(&small, "hello").unwrap();
    refused(&["info", text(&small)], 1, "not-a-pool", "too small");
    let blank = place.path("blank");
    File::create(&blank).unwrap().set_len(64 << 20).unwrap();
    refused(&["info", text(&blank)], 1, "not-a-pool", "not a Copyhold pool");
    refused(&["umount", text(&blank)], 1, "not-mounted", "neither a mounted pool");
    refused(&["sync", text(place.0.path())], 1, "not-mounted", "not on a mounted pool");
}

#[test]
fn one_damaged_label_is_survived_and_two_are_told() {
    let place = Place::new();
    let pool = place.pool();
    let file = File::options().write(true).open(&pool).unwrap();
    file.write_all_at(&[0xff; 4096], 0).unwrap();
    let labels = json(&["debug", "labels", text(&pool)]);
    assert_ne!(labels["label_at_start"], "good");
    assert_eq!(labels["label_at_end"], "good");
    let end = (64 << 20) - 64 * 4096;
    // Still a label by its magic, with another content.
    file.write_all_at(&[0xff; 100], end + 512).unwrap();
    let output = copyhold(&["info", text(&pool)]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("label"), "{}", stderr(&output));
}

#[test]
fn a_pool_that_is_in_use_is_left_alone() {
    let place = Place::new();
    let pool = place.pool();
    let held = File::open(&pool).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refused(&["info", text(&pool)], 4, "in-use", "in use by another process");
    refused(&["create", text(&pool), "--force"], 4, "in-use", "in use by another process");
    refused(&["check", text(&pool)], 4, "in-use", "in use by another process");
}

#[test]
fn a_shrunk_pool_file_is_refused_and_not_changed() {
    let place = Place::new();
    let pool = place.pool();
    let before = fs::read(&pool).unwrap();
    File::options().write(true).open(&pool).unwrap().set_len(32 << 20).unwrap();
    refused(&["info", text(&pool)], 1, "device", "shrunk");
    File::options().write(true).open(&pool).unwrap().set_len(64 << 20).unwrap();
    assert!(fs::read(&pool).unwrap()[..32 << 20] == before[..32 << 20]);
}

#[test]
fn nonsense_on_the_command_line_is_a_usage_failure() {
    refused(&["frob"], 2, "usage", "frob");
    refused(&["mount", "/x"], 2, "usage", "DIRECTORY");
    refused(&["mount", "/no/pool", "/mnt"], 1, "not-found", "copyhold create /no/pool");
    let help = copyhold(&["help", "exit-codes"]);
    assert!(String::from_utf8(help.stdout).unwrap().contains("3  damage was found"));
    assert_eq!(json(&["version"])["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_helpers_answer_under_their_names() {
    let place = Place::new();
    let named = |name: &str| {
        let link = place.path(name);
        std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
        Command::new(link)
    };
    let pool = place.path("pool.img");
    let made = named("mkfs.fuse.copyhold").arg("-q").arg(&pool).arg("64M").output().unwrap();
    assert!(made.status.success() && made.stdout.is_empty(), "{}", stderr(&made));
    let holds = fs::read(&pool).unwrap();
    let refused = Command::new(place.path("mkfs.fuse.copyhold")).arg(&pool).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("holds a pool already; --force"), "{}", stderr(&refused));
    assert!(fs::read(&pool).unwrap() == holds, "a refusal changes nothing");
    for force in ["-f", "-F", "--force"] {
        let mut mkfs = Command::new(place.path("mkfs.fuse.copyhold"));
        let again = mkfs.arg(force).arg(&pool).output().unwrap();
        assert!(again.status.success(), "{force}: {}", stderr(&again));
    }
    let mut mkfs = Command::new(place.path("mkfs.fuse.copyhold"));
    let made = mkfs.args(["-f", "--pi", "4096+16:64b"]).arg(&pool).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let shown = json(&["info", pool.to_str().unwrap()]);
    assert_eq!(shown["protection"], "4096+16:64b:type2:last");
    assert_eq!(named("fsck.fuseblk.copyhold").output().unwrap().status.code(), Some(16));
    assert_eq!(named("fsck.copyhold").arg("/no/pool").output().unwrap().status.code(), Some(8));
    let mount = named("mount.fuse.copyhold").arg("/no/pool").arg("/mnt").output().unwrap();
    assert_eq!(mount.status.code(), Some(32));
    assert_eq!(named("mount.fuseblk.copyhold").output().unwrap().status.code(), Some(1));
}

/// As fsck(8) and mkfs(8) right behind umount(8) find it.
#[test]
#[allow(clippy::disallowed_methods, reason = "another program waits meanwhile")]
fn the_helpers_wait_for_a_daemon_that_is_leaving() {
    let place = Place::new();
    let pool = place.pool();
    for name in ["fsck.copyhold", "mkfs.copyhold"] {
        let link = place.path(name);
        std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
        let held = File::open(&pool).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let force = name.starts_with("mkfs").then_some("-f");
        let helper = Command::new(link).args(force).arg(&pool).stdout(Stdio::null()).spawn();
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(held);
        assert!(helper.unwrap().wait().unwrap().success(), "{name}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let place = Place::new();
    let pool = place.pool();
    let line = format!("{PROGRAM} debug space {} | head -n 1", text(&pool));
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_repair_without_a_lost_space_map_writes_nothing_and_says_so() {
    let place = Place::new();
    let pool = place.pool();
    let before = fs::read(&pool).unwrap();
    let found = json(&["check", text(&pool), "--repair"]);
    assert_eq!((&found["repaired"], &found["refused"]), (&serde_json::json!([]), &Value::Null));
    assert!(found.as_object().unwrap().contains_key("refused"));
    assert_eq!(found["findings"], serde_json::json!([]));
    assert!(json(&["check", text(&pool)]).get("repaired").is_none());
    assert!(fs::read(&pool).unwrap() == before);
}
