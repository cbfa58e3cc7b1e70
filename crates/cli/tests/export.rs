//! `copyhold debug export`: what comes out of sound pools and of damaged ones.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use copyhold::{CreateOptions, OpenOptions, Pool};
use copyhold_device::{FileDevice, OpenMode};
use copyhold_fs::{Caller, SetAttr, XattrSet};
use copyhold_runtime::executors::{Config, Executors};
use copyhold_types::DeviceId;
use serde_json::Value;

const BLOCK: u64 = 4096;
const POOL_BYTES: u64 = 64 << 20;
/// Files of one directory; so many that its tables have inner nodes.
const MANY: u64 = 400;

/// A content that says which file and block it is.
fn content(number: u64, blocks: u64) -> Vec<u8> {
    let line = |n: u64| format!("file {number:>6} line {:>6}\n", n).into_bytes();
    (0..blocks * BLOCK / 24 + 1).flat_map(line).take((blocks * BLOCK) as usize + 7).collect()
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pool(&self) -> PathBuf {
        self.path("pool.img")
    }

    /// A pool with something of everything; what is in the log only is not settled in tables.
    fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        let options = CreateOptions {
            node_bytes: Some(4096),
            name: "rescue".into(),
            ..CreateOptions::sized(POOL_BYTES)
        };
        Pool::create(place.pool(), &options).unwrap();
        let executors = Executors::start(Config { cpus: Some(1), ..Config::default() }).unwrap();
        let device =
            FileDevice::open(executors.reactor(), DeviceId(0), &place.pool(), OpenMode::ReadWrite);
        let pool = Pool::open_device(executors.clone(), device.unwrap(), OpenOptions::default());
        let pool = pool.unwrap();
        fill(&executors, &pool);
        pool.close().unwrap();
        place
    }

    fn export(&self, to: &str) -> Output {
        export(&[text(&self.pool()), text(&self.path(to))])
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.pool()).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    /// Where the copies of the log begin, and how long they are, in bytes.
    fn log(&self) -> ([u64; 2], u64) {
        let shown = copyhold(&["--json", "debug", "labels", text(&self.pool())]);
        let label: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let bytes = |blocks: &Value| blocks.as_u64().unwrap() * BLOCK;
        ([0, 1].map(|copy| bytes(&label["log_at"][copy])), bytes(&label["log_blocks"]))
    }

    /// Blocks of the nodes that this is true of, in all their copies.
    fn nodes(&self, which: impl Fn(&Value) -> bool) -> Vec<Vec<u64>> {
        let output = copyhold(&["--json", "debug", "nodes", text(&self.pool())]);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let nodes = shown["nodes"].as_array().unwrap().iter().filter(|node| which(node));
        let block = |copy: &str| copy.rsplit(':').next().unwrap().parse().unwrap();
        let copies = |node: &Value| {
            let (places, _) = node["at"].as_str().unwrap().split_once('+').unwrap();
            places.split(' ').map(block).collect()
        };
        nodes.map(copies).collect()
    }
}

fn fill(executors: &Arc<Executors>, pool: &Pool) {
    let root = pool.root();
    root.create_dir("many").unwrap();
    for number in 0..MANY {
        root.write(format!("many/{number}"), &content(number, number % 3)).unwrap();
    }
    root.write("sparse", b"begin").unwrap();
    root.write_at("sparse", 10 << 20, b"end").unwrap();
    root.symlink("many/7", "symlink").unwrap();
    let tenant = root.create_subvolume("tenant").unwrap();
    tenant.write("its", b"of the tenant").unwrap();
    root.snapshot_read_only("tenant", "snapshot").unwrap();
    tenant.write("its", b"changed since").unwrap();
    let fs = pool.filesystem();
    executors.block_on(async {
        let sparse = fs.lookup(fs.root(), b"sparse").await.unwrap().node;
        fs.link(sparse, fs.root(), b"linked").await.unwrap();
        let (name, value, how) = (b"user.color", b"green", XattrSet::Any);
        fs.set_xattr(&Caller::ROOT, sparse, name, value, how, false).await.unwrap();
        let nobody_writes = SetAttr { mode: Some(0o444), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, sparse, &nobody_writes).await.unwrap();
        fs.sync().await.unwrap();
        fs.pool().flush_all().await.unwrap();
    });
    root.write("late", b"in the log only").unwrap();
    root.sync().unwrap();
}

fn copyhold(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_copyhold")).args(arguments).output().unwrap()
}

fn export(arguments: &[&str]) -> Output {
    copyhold(&[&["debug", "export"], arguments].concat())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn ended(output: &Output, status: i32) -> String {
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{shown}{errors}");
    shown
}

/// All of it is there.
#[track_caller]
fn is_whole(dir: &Path) {
    for number in 0..MANY {
        let found = fs::read(dir.join(format!("many/{number}"))).unwrap();
        assert!(found == content(number, number % 3), "file {number}");
    }
    let sparse = fs::read(dir.join("sparse")).unwrap();
    assert_eq!(sparse.len(), (10 << 20) + 3);
    assert_eq!((&sparse[..5], &sparse[10 << 20..]), (&b"begin"[..], &b"end"[..]));
    let metadata = fs::metadata(dir.join("sparse")).unwrap();
    assert!(metadata.blocks() * 512 < 1 << 20, "holes stay holes");
    assert_eq!(metadata.nlink(), 2);
    assert_eq!(metadata.ino(), fs::metadata(dir.join("linked")).unwrap().ino());
    assert_eq!(fs::read_link(dir.join("symlink")).unwrap(), Path::new("many/7"));
    assert_eq!(fs::read(dir.join("tenant/its")).unwrap(), b"changed since");
    assert_eq!(fs::read(dir.join("snapshot/its")).unwrap(), b"of the tenant");
    assert_eq!(fs::read(dir.join("late")).unwrap(), b"in the log only");
}

#[test]
fn a_sound_pool_comes_out_as_it_is() {
    let place = Place::new();
    let before = fs::read(place.pool()).unwrap();
    let shown = ended(&place.export("out"), 0);
    assert!(shown.ends_with("; 0 losses, 0 not restored\n"), "{shown}");
    is_whole(&place.path("out"));
    assert!(fs::read(place.pool()).unwrap() == before, "the pool is only read");
    let many = fs::metadata(place.path("out/many")).unwrap();
    let pool = Pool::open(place.pool(), OpenOptions::default()).unwrap();
    let attr = pool.root().metadata("many").unwrap();
    assert_eq!(many.permissions().mode() & 0o7777, attr.mode);
    assert_eq!((many.mtime(), many.mtime_nsec()), (attr.mtime.secs, attr.mtime.nanos.into()));
    pool.close().unwrap();
}

#[test]
fn an_ordinary_user_restores_attributes_of_a_file_that_nobody_may_write() {
    let place = Place::new();
    let (pool, out, copy) = (place.pool(), place.path("out"), place.path("copyhold"));
    let program = env!("CARGO_BIN_EXE_copyhold");
    let mut export = Command::new(program);
    if rustix::process::geteuid().is_root() {
        // The program may be where only root can go.
        fs::copy(program, &copy).unwrap();
        for path in [place.dir.path(), &pool] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        export = Command::new("setpriv");
        export.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    }
    let run = export.args(["debug", "export", text(&pool), text(&out)]).output().unwrap();
    let shown = ended(&run, 0);
    assert!(shown.ends_with("; 0 losses, 0 not restored\n"), "{shown}");
    is_whole(&out);
    let sparse = out.join("sparse");
    assert_eq!(fs::metadata(&sparse).unwrap().mode() & 0o7777, 0o444);
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&sparse, "user.color", &mut value).unwrap();
    assert_eq!(&value[..len], b"green");
}

#[test]
fn a_directory_with_something_in_it_is_refused_unless_asked() {
    let place = Place::new();
    fs::create_dir(place.path("out")).unwrap();
    fs::write(place.path("out/late"), "mine").unwrap();
    // What stands there leads elsewhere.
    fs::create_dir(place.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", place.path("out/many")).unwrap();
    fs::create_dir(place.path("out/tenant")).unwrap();
    fs::set_permissions(place.path("out/tenant"), fs::Permissions::from_mode(0o700)).unwrap();
    ended(&place.export("out"), 1);
    let (pool, out) = (place.pool(), place.path("out"));
    let shown = ended(&export(&[text(&pool), text(&out), "--force"]), 1);
    assert!(shown.contains("not restored: late: ") && !shown.contains("lost: "), "{shown}");
    let mode = |name| fs::metadata(place.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("out/tenant"), mode("out/snapshot"), "as it is in the pool");
    assert_ne!(mode("out/tenant") & 0o7777, 0o700);
    assert_eq!(fs::read(place.path("out/late")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(place.path("elsewhere")).unwrap().count(), 0, "{shown}");
    assert_eq!(fs::read(place.path("out/tenant/its")).unwrap(), b"changed since");
}

#[test]
fn one_subvolume_comes_alone() {
    let place = Place::new();
    let (pool, out) = (place.pool(), place.path("out"));
    ended(&export(&[text(&pool), text(&out), "--subvolume", "2"]), 0);
    assert_eq!(fs::read(place.path("out/its")).unwrap(), b"changed since");
    assert!(!place.path("out/many").exists());
    ended(&export(&[text(&pool), text(&place.path("none")), "--subvolume", "77"]), 1);
}

#[test]
fn a_torn_label_and_a_missing_copy_of_the_log_cost_nothing() {
    let place = Place::new();
    let ([_, log], bytes) = place.log();
    // Half of the first label, all uberblocks behind it, and a whole copy of the log.
    place.write(2048, &[0xff; 2048]);
    place.write(16 * BLOCK, &[0xff; 32 * BLOCK as usize]);
    place.write(log, &vec![0; bytes as usize]);
    let shown = ended(&place.export("out"), 0);
    assert_eq!(shown.matches("damaged: the pool: the label").count(), 1, "{shown}");
    assert!(!shown.contains("lost: "), "{shown}");
    is_whole(&place.path("out"));
}

#[test]
fn without_a_log_files_come_as_the_tables_have_them() {
    let place = Place::new();
    let (copies, bytes) = place.log();
    copies.iter().for_each(|log| place.write(*log, &vec![0; bytes as usize]));
    let shown = ended(&place.export("out"), 3);
    assert!(shown.contains("damaged: the pool: the log: it can be followed to"), "{shown}");
    assert_eq!(survivors(&place.path("out"), &shown), MANY, "{shown}");
    assert!(!place.path("out/late").exists(), "it was in the log only");
}

#[test]
fn a_log_that_cannot_be_read_is_reported_in_whole_stretches() {
    let place = Place::new();
    let (copies, _) = place.log();
    let file = File::options().write(true).open(place.pool()).unwrap();
    file.set_len(copies[0].min(copies[1])).unwrap();
    let shown = ended(&place.export("out"), 3);
    let stretches = shown.matches("of the log: neither copy can be read").count();
    // The lap begins in the midst of the ring.
    assert!((1..=2).contains(&stretches), "{shown}");
}

#[test]
fn data_that_rots_is_zeros_and_is_told() {
    let place = Place::new();
    let image = fs::read(place.pool()).unwrap();
    let wanted = &content(5, 2)[..100];
    let at = image.chunks(BLOCK as usize).position(|block| block.starts_with(wanted)).unwrap();
    place.write(at as u64 * BLOCK + 50, b"rot");
    let shown = ended(&place.export("out"), 3);
    assert!(shown.contains("lost: many/5: up to 4096 bytes are lost"), "{shown}");
    let found = fs::read(place.path("out/many/5")).unwrap();
    let mut wanted = content(5, 2);
    wanted[..BLOCK as usize].fill(0);
    assert!(found == wanted);
    assert_eq!(fs::read(place.path("out/many/6")).unwrap(), content(6, 0));
}

/// Files that are there are as they were, or are told.
fn survivors(dir: &Path, shown: &str) -> u64 {
    let mut whole = 0;
    for number in 0..MANY {
        match fs::read(dir.join(format!("many/{number}"))) {
            Ok(found) if found == content(number, number % 3) => whole += 1,
            Ok(_) => assert!(shown.contains(&format!("lost: many/{number}: ")), "file {number}"),
            Err(_) => {}
        }
    }
    whole
}

#[test]
fn rotten_nodes_cost_what_is_in_them_and_no_more() {
    let place = Place::new();
    let is_files = |node: &Value| node["table"].as_u64().unwrap() >= 16;
    let leaves = place.nodes(|node| is_files(node) && node["level"] == "leaf");
    assert!(leaves.len() > 5, "{} leaves", leaves.len());
    // One copy of each costs nothing.
    for copies in &leaves {
        place.write(copies[0] * BLOCK + 200, b"rot");
    }
    ended(&place.export("one"), 0);
    is_whole(&place.path("one"));
    // Both of a leaf in the middle: most of the rest is there, and what is not is told.
    place.write(leaves[leaves.len() / 2][1] * BLOCK + 200, b"rot");
    let shown = ended(&place.export("both"), 3);
    let whole = survivors(&place.path("both"), &shown);
    assert!(whole > MANY / 2 && shown.contains("lost: "), "{whole} of {MANY}: {shown}");
}

#[test]
fn a_rotten_inner_node_costs_its_partition_and_what_the_log_has_is_there() {
    let place = Place::new();
    let is_files = |node: &Value| node["table"].as_u64().unwrap() >= 16;
    let inner = place.nodes(|node| is_files(node) && node["level"] == "inner");
    assert!(!inner.is_empty());
    for copies in &inner {
        copies.iter().for_each(|copy| place.write(copy * BLOCK + 200, b"rot"));
    }
    let shown = ended(&place.export("out"), 3);
    survivors(&place.path("out"), &shown);
    // Its tables are one leaf each.
    assert_eq!(
        fs::read(place.path("out/tenant/its"))
            .or_else(|_| { fs::read(place.path("out/subvolume-2/its")) })
            .unwrap(),
        b"changed since"
    );
}

#[test]
fn a_listing_has_all_names_with_digests_of_contents() {
    let place = Place::new();
    let output = export(&[text(&place.pool()), "--list", "--json"]);
    let shown = ended(&output, 0);
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, files) = lines.split_last().unwrap();
    assert_eq!(summary["summary"]["losses"], 0);
    let by_path: BTreeMap<&str, &Value> =
        files.iter().map(|file| (file["path"].as_str().unwrap(), file)).collect();
    assert_eq!(by_path["sparse"]["digest"], by_path["linked"]["digest"]);
    assert_eq!(by_path["sparse"]["xattrs"]["user.color"], "677265656e");
    assert_ne!(by_path["tenant/its"]["digest"], by_path["snapshot/its"]["digest"]);
    assert_eq!(by_path["symlink"]["target"], "many/7");
    assert_eq!(by_path["many/3"]["kind"], "file");
}

#[test]
fn what_is_no_pool_gives_nothing() {
    let place = Place { dir: tempfile::tempdir().unwrap() };
    File::create(place.pool()).unwrap().set_len(POOL_BYTES).unwrap();
    ended(&place.export("out"), 1);
    assert!(!place.path("out").exists());
}
