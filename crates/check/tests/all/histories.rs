//! What the filesystem writes is sound: after a random history, after a crash at any moment of one,
//! and after everything was settled.

use std::sync::Arc;

use copyhold_check::{Options, Verified, check};
use copyhold_device::sim::SimImage;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, NodeId, OpenFlags, RenameFlags, SetAttr, XattrSet,
};
use copyhold_pool::Limits;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::power::Power;

const ROOT: NodeId = NodeId::ROOT;
const SEEDS: u64 = 40;
const CALLER: Caller = Caller::ROOT;

/// A client that does anything to a few names.
struct Client {
    fs: Arc<Filesystem>,
    rng: Xoshiro256PlusPlus,
    dirs: Vec<NodeId>,
    files: Vec<NodeId>,
}

impl Client {
    fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    fn dir(&mut self) -> NodeId {
        let at = self.pick(self.dirs.len() as u64) as usize;
        self.dirs[at]
    }

    fn file(&mut self) -> NodeId {
        let at = self.pick(self.files.len() as u64) as usize;
        self.files[at]
    }

    fn name(&mut self) -> Vec<u8> {
        format!("name{}", self.pick(12)).into_bytes()
    }

    /// One operation; that many of them are refused is part of it.
    async fn step(&mut self) {
        let (dir, file, name) = (self.dir(), self.file(), self.name());
        let at = self.pick(300 * 1024);
        let len = 1 + self.pick(40 * 1024);
        let fs = self.fs.clone();
        match self.pick(22) {
            0..3 => self.create(dir, &name).await,
            3 => self.made(fs.mkdir(&CALLER, dir, &name, 0o755).await.map(|e| e.node), true),
            4 => drop(fs.symlink(&CALLER, dir, &name, &vec![b't'; at as usize % 4000 + 1]).await),
            5 => drop(fs.mknod(&CALLER, dir, &name, 0o010644, 0).await),
            6 => drop(fs.unlink(dir, &name).await),
            7 => drop(fs.rmdir(dir, &name).await),
            8..10 => self.rename(dir, &name).await,
            10 => drop(fs.link(file, dir, &name).await),
            11..15 => {
                let data: Vec<u8> = (0..len).map(|n| (n * at) as u8).collect();
                drop(fs.write(file, at, &data, Default::default()).await);
            }
            15 => drop(fs.write(file, 0, b"tiny", Default::default()).await),
            16 => {
                let size = Some(at % 100_000);
                drop(fs.setattr(&CALLER, file, &SetAttr { size, ..SetAttr::default() }).await);
            }
            17 => {
                let mode = [
                    FallocateMode::Allocate { keep_size: true },
                    FallocateMode::Punch,
                    FallocateMode::Zero { keep_size: false },
                ][at as usize % 3];
                drop(fs.fallocate(file, at, len, mode).await);
            }
            18 => {
                let value = vec![7; (at % 6000) as usize];
                let name = format!("user.{}", at % 5).into_bytes();
                let how = XattrSet::Any;
                drop(fs.set_xattr(&CALLER, file, &name, &value, how, false).await);
            }
            19 if at.is_multiple_of(3) => {
                let name = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
                let name = name[len as usize % 2];
                let node = [file, dir][len as usize % 2];
                let how = XattrSet::Any;
                drop(fs.set_xattr(&CALLER, node, name, &acl(), how, false).await);
            }
            19 => drop(fs.remove_xattr(file, format!("user.{}", at % 5).as_bytes()).await),
            20 => drop(fs.fsync(file, false).await),
            _ => {
                let made = fs.tmpfile(&CALLER, dir, 0o644).await;
                self.made(made.map(|entry| entry.node), false);
            }
        }
    }

    async fn create(&mut self, dir: NodeId, name: &[u8]) {
        let flags = OpenFlags::READ_WRITE;
        let made = self.fs.create(&CALLER, dir, name, 0o644, flags, true).await;
        self.made(made.map(|(entry, _)| entry.node), false);
    }

    fn made(&mut self, node: copyhold_fs::Result<NodeId>, is_dir: bool) {
        if let Ok(node) = node {
            if is_dir { self.dirs.push(node) } else { self.files.push(node) }
        }
    }

    async fn rename(&mut self, dir: NodeId, name: &[u8]) {
        let (to, new_name) = (self.dir(), self.name());
        let flags = [
            RenameFlags::default(),
            RenameFlags { exchange: true, ..RenameFlags::default() },
            RenameFlags { whiteout: true, ..RenameFlags::default() },
        ][self.pick(3) as usize];
        drop(self.fs.rename(&CALLER, dir, name, to, &new_name, flags).await);
    }
}

/// User rwx, user 1000 r-x, group r--, mask rwx, others none.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, u32::MAX),
        (0x02, 5, 1000),
        (0x04, 4, u32::MAX),
        (0x10, 7, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Some operations, then a loss of power or a clean end; what is left is sound.
fn history(seed: u64) -> Verified {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut power = Power::on(seed, SimImage::empty(32768));
    power.format(8);
    let mut verified = Verified::default();
    for life in 0..3 {
        let steps = rng.next_u64() % 400;
        let crash = life != 1;
        power.rt.block_on(async {
            let pool = power.pool(Limits::default()).await;
            let fs = Filesystem::open(pool, Default::default()).await.unwrap();
            let own = Xoshiro256PlusPlus::seed_from_u64(rng.next_u64());
            let mut client = Client { fs: fs.clone(), rng: own, dirs: vec![ROOT], files: vec![] };
            client.create(ROOT, b"first").await;
            if client.files.is_empty() {
                client.files.push(fs.lookup(ROOT, b"first").await.unwrap().node);
            }
            for _ in 0..steps {
                client.step().await;
            }
            fs.sync().await.unwrap();
            if rng.next_u64() % 2 == 0 {
                fs.pool().flush_all().await.unwrap();
            }
            for _ in 0..rng.next_u64() % 50 {
                client.step().await;
            }
            if !crash {
                fs.close().await.unwrap();
                let live = check(fs.pool(), Options::default()).await;
                assert!(live.findings.is_empty(), "seed {seed}: {:#?}", live.findings);
                fs.pool().close().await.unwrap();
            }
        });
        power.rt.drop_tasks();
        let image = power.device.crash(rng.next_u64());
        power = Power::on(rng.next_u64(), image);
        let report = power.check();
        assert!(report.is_clean(), "seed {seed} life {life}: {:#?}", report.findings);
        assert!(crash || report.findings.is_empty(), "seed {seed}: {:#?}", report.findings);
        verified = report.verified;
    }
    verified
}

#[test]
fn whatever_the_filesystem_did_its_pool_is_sound() {
    let mut busy = 0;
    for seed in 0..SEEDS {
        let seen = history(seed);
        let all = [seen.inodes, seen.names, seen.extents, seen.attributes, seen.log_batches];
        busy += u64::from(all.iter().all(|&count| count > 3));
    }
    assert!(busy > SEEDS / 4, "{busy} of {SEEDS} histories left something to look at");
}
