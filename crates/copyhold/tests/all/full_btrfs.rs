//! A pool on a host that copies on write: where btrfs is full, nothing can be written, not even
//! again to the ring of the log, whose blocks are there (R32).

#![allow(clippy::disallowed_methods, reason = "the machine's threads wait for the machine's host")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use copyhold::{CreateOptions, OpenOptions, Pool};

/// The least that btrfs wants, and room for the pool.
const HOST_BYTES: u64 = 256 << 20;
const POOL_BYTES: u64 = 64 << 20;
/// Rounds behind the last that the full host took, if there was one: some fit into what is left.
const ROUNDS_BEHIND: u64 = 20;

/// btrfs in a file, on a loop device; unmounted at the end.
struct Btrfs {
    dir: tempfile::TempDir,
}

impl Btrfs {
    /// None without root, loop devices or btrfs.
    fn new() -> Option<Btrfs> {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(HOST_BYTES).unwrap();
        let made = run(Command::new("mkfs.btrfs").args(["-q", "-m", "single"]).arg(&image));
        let mnt = dir.path().join("mnt");
        fs::create_dir(&mnt).unwrap();
        let mounted = made && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mnt));
        mounted.then_some(Btrfs { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }

    /// Takes all space, and gives the file that has it.
    fn fill(&self) -> PathBuf {
        let path = self.path("filler");
        let mut file = File::create(&path).unwrap();
        for bytes in [1 << 20, 64 << 10, 4096] {
            let data = vec![7; bytes];
            while file.write_all(&data).is_ok() && file.sync_data().is_ok() {}
        }
        path
    }

    fn is_full(&self) -> bool {
        let probe = File::create(self.path("probe")).and_then(|mut file| {
            file.write_all(&[1; 4096])?;
            file.sync_data()
        });
        probe.is_err()
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.dir.path().join("mnt")));
    }
}

/// Whether it is there and succeeds.
fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Whether the kernel has registered btrfs. A module is loaded by the first mount.
fn has_btrfs() -> bool {
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    kinds.lines().any(|kind| kind.trim() == "btrfs")
}

#[test]
fn commits_wait_for_a_full_btrfs_and_go_on() {
    let Some(host) = Btrfs::new() else {
        // `scripts/setup.sh test` installs mkfs.btrfs: in CI only a kernel without btrfs may skip.
        if std::env::var_os("CI").is_some() {
            assert!(run(Command::new("mkfs.btrfs").arg("--version")), "mkfs.btrfs is missing");
            assert!(!has_btrfs(), "the kernel has btrfs, but it could not be made or mounted");
        }
        eprintln!("skipped: needs root, loop devices, mkfs.btrfs and a kernel that has btrfs");
        return;
    };
    let path = host.path("pool.img");
    Pool::create(&path, &CreateOptions::sized(POOL_BYTES)).unwrap();
    let pool = Pool::open(&path, OpenOptions::default()).unwrap();
    let volume = pool.root();
    volume.write("counter", &0u64.to_le_bytes()).unwrap();
    volume.sync_file("counter").unwrap();
    let filler = host.fill();

    let (rounds, has_space) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = ROUNDS_BEHIND;
            while left > 0 {
                left -= u64::from(has_space.load(SeqCst));
                let round = rounds.load(SeqCst) + 1;
                // A commit each: a block of the ring, written again lap by lap.
                volume.write_at("counter", 0, &round.to_le_bytes()).expect("it waits");
                volume.sync_file("counter").expect("it waits");
                rounds.store(round, SeqCst);
            }
        });
        wait_until_it_stands(&rounds);
        assert!(host.is_full(), "the host still takes writes");
        fs::remove_file(&filler).unwrap();
        run(Command::new("sync").arg("-f").arg(host.path("")));
        has_space.store(true, SeqCst);
    });
    pool.close().unwrap();
    assert_eq!(counter(&path), rounds.load(SeqCst));
}

/// Until no round has ended for some time: the host is full for good.
fn wait_until_it_stands(rounds: &AtomicU64) {
    let mut last = u64::MAX;
    for _ in 0..100 {
        if last == rounds.load(SeqCst) {
            return;
        }
        last = rounds.load(SeqCst);
        std::thread::sleep(Duration::from_secs(3));
    }
    panic!("the host is never full");
}

fn counter(path: &Path) -> u64 {
    let pool = Pool::open(path, OpenOptions::default()).unwrap();
    let bytes = pool.root().read("counter").unwrap();
    pool.close().unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}
