//! Several clients at once, interleaved by the seed: each knows its own files, all share names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags, SetAttr,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::*;

const SIZE_MAX: u64 = 400_000;

/// A file and what it must hold.
struct Known {
    node: NodeId,
    data: Vec<u8>,
    /// As it was at the last fsync, if nothing has changed since.
    synced: Option<Vec<u8>>,
    /// What was done to it.
    log: Vec<String>,
}

struct Client {
    fs: Arc<Filesystem>,
    rng: Xoshiro256PlusPlus,
    files: Vec<Known>,
    steps: usize,
}

impl Client {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    async fn run(mut self) -> Vec<Known> {
        for _ in 0..self.steps {
            match self.below(10) {
                0..8 => self.change_own().await,
                8 => self.change_shared().await,
                _ => {
                    let pause = Duration::from_micros(self.below(3_000_000));
                    self.fs.pool().runtime().sleep(pause).await;
                }
            }
        }
        self.files
    }

    async fn change_own(&mut self) {
        let n = self.below(self.files.len() as u64) as usize;
        let (at, len) = (self.below(SIZE_MAX) as usize, 1 + self.below(40_000) as usize);
        let (what, byte) = (self.below(12), self.below(256) as u8);
        let fs = self.fs.clone();
        let file = &mut self.files[n];
        let node = file.node;
        file.log.push(format!("{what}: {at}+{len} ({byte})"));
        match what {
            0..5 => {
                let at = if byte % 2 == 0 { at / 4096 * 4096 } else { at };
                let bytes = pattern(byte, len);
                let end = at + len;
                if is_full(fs.write(node, at as u64, &bytes, Default::default()).await) {
                    return;
                }
                if file.data.len() < end {
                    file.data.resize(end, 0);
                }
                file.data[at..end].copy_from_slice(&bytes);
                file.synced = None;
            }
            5 => {
                let size = if byte < 100 { 0 } else { at };
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                if is_full(fs.setattr(&Caller::ROOT, node, &set).await.map(drop)) {
                    return;
                }
                file.data.resize(size, 0);
                file.synced = None;
            }
            6 => {
                let punch = FallocateMode::Punch;
                if is_full(fs.fallocate(node, at as u64, len as u64, punch).await) {
                    return;
                }
                let end = file.data.len().min(at + len);
                if at < end {
                    file.data[at..end].fill(0);
                }
                file.synced = None;
            }
            7 => {
                let keep = FallocateMode::Allocate { keep_size: true };
                is_full(fs.fallocate(node, at as u64, len as u64, keep).await);
            }
            8 | 9 => {
                fs.fsync(node, false).await.unwrap();
                file.synced = Some(file.data.clone());
            }
            _ => {
                let end = file.data.len().min(at + len);
                let found = read(&fs, node, at as u64, len).await;
                let wanted = file.data.get(at..end).unwrap_or_default();
                assert!(found == wanted, "{node} at {at}+{len}");
                assert_eq!(fs.getattr(node).await.unwrap().size, file.data.len() as u64);
            }
        }
    }

    async fn change_shared(&mut self) {
        let fs = self.fs.clone();
        let dirs = [ROOT, self.shared(0).await, self.shared(1).await];
        let (dir, to) = (dirs[self.below(3) as usize], dirs[self.below(3) as usize]);
        let name = format!("s{}", self.below(6)).into_bytes();
        let new = format!("s{}", self.below(6)).into_bytes();
        let flags = RenameFlags { exchange: self.below(4) == 0, ..RenameFlags::default() };
        let root = Caller::ROOT;
        let result = match self.below(7) {
            0 => fs.mkdir(&root, dir, &name, 0o700).await.map(drop),
            1 => fs.mknod(&root, dir, &name, 0o100600, 0).await.map(drop),
            2 => fs.unlink(dir, &name).await,
            3 => fs.rmdir(dir, &name).await,
            4 => match fs.lookup(dir, &name).await {
                Ok(entry) => fs.link(entry.node, to, &new).await.map(drop),
                Err(error) => Err(error),
            },
            5 => match fs.create(&root, dir, &name, 0o600, OpenFlags::READ_WRITE, false).await {
                Ok((entry, _)) => {
                    let result = fs.write(entry.node, 10, b"shared", Default::default()).await;
                    fs.release(entry.node);
                    result
                }
                Err(error) => Err(error),
            },
            _ => fs.rename(&root, dir, &name, to, &new, flags).await,
        };
        use FsError::*;
        match result {
            Ok(()) | Err(NotFound | Exists | NotDirectory | IsDirectory | NotEmpty) => {}
            Err(Invalid(_) | NotPermitted(_) | Stale | NoSpace(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn shared(&self, n: u32) -> NodeId {
        lookup(&self.fs, &format!("shared{n}")).await.unwrap().node
    }
}

/// Whether there was no space, and so nothing was changed.
fn is_full(result: Result<(), FsError>) -> bool {
    match result {
        Ok(()) => false,
        Err(FsError::NoSpace(_)) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Counts of every directory and file against the entries there are.
async fn check_names(fs: &Filesystem) {
    let mut links: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.node, entry.kind));
            true
        })
        .await
        .unwrap();
        let entries: Vec<_> = entries.split_off(2);
        let attr = fs.getattr(dir).await.unwrap();
        let subdirs =
            entries.iter().filter(|(_, _, kind)| *kind == copyhold_fs::FileKind::Directory);
        assert_eq!(attr.nlink as usize, 2 + subdirs.clone().count(), "{dir}");
        assert_eq!(attr.size as usize, entries.len(), "{dir}");
        for (_, node, _) in subdirs {
            assert_eq!(fs.lookup(*node, b"..").await.unwrap().node, dir);
            dirs.push(*node);
        }
        for (_, node, kind) in &entries {
            if *kind != copyhold_fs::FileKind::Directory {
                *links.entry(*node).or_default() += 1;
            }
        }
    }
    for (node, count) in links {
        assert_eq!(fs.getattr(node).await.unwrap().nlink, count, "{node}");
    }
}

/// `spare`: blocks that another file leaves free.
fn play(seed: u64, crash: bool, spare: Option<u64>) {
    let options = Options {
        count_lookups: false,
        dirty_bytes_max: 1 << 20,
        file_dirty_bytes_start: 64 << 10,
        inodes_max: 64,
        ..Options::default()
    };
    let mut world = World::new(seed, if spare.is_some() { 4096 } else { 65_536 });
    let rt = world.rt.clone();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (fs, known) = rt.block_on(async {
        let fs = world.open_with(options.clone()).await;
        let mut clients = Vec::new();
        mkdir(&fs, ROOT, "shared0").await;
        mkdir(&fs, ROOT, "shared1").await;
        for c in 0..4 {
            let mut files = Vec::new();
            for n in 0..2 {
                let node = create(&fs, &format!("own{c}.{n}")).await;
                files.push(Known { node, data: vec![], synced: None, log: vec![] });
            }
            let rng = Xoshiro256PlusPlus::seed_from_u64(rng.next_u64());
            clients.push(Client { fs: fs.clone(), rng, files, steps: 150 }.run());
        }
        if let Some(spare) = spare {
            let filler = create(&fs, "filler").await;
            fs.sync().await.unwrap();
            let blocks = fs.statfs().blocks_available.saturating_sub(spare);
            let all = FallocateMode::Allocate { keep_size: false };
            fs.fallocate(filler, 0, blocks * 4096, all).await.unwrap();
        }
        // What survives a crash is what was synced; names must have been, too.
        fs.sync().await.unwrap();
        let known: Vec<Known> =
            futures_util::future::join_all(clients).await.into_iter().flatten().collect();
        (fs, known)
    });
    if crash {
        world = world.crash(fs, rng.next_u64());
    } else {
        rt.block_on(world.close(fs));
    }
    world.run(async {
        let fs = world.open_with(options).await;
        fs.pool().runtime().sleep(Duration::from_secs(1)).await;
        for file in &known {
            let wanted = if crash { file.synced.as_ref() } else { Some(&file.data) };
            let Some(wanted) = wanted else { continue };
            let found = read(&fs, file.node, 0, SIZE_MAX as usize * 2).await;
            assert_eq!(found.len(), wanted.len(), "seed {seed}: {}", file.node);
            let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
            assert_eq!(differs, None, "seed {seed}: {}, {:#?}", file.node, file.log);
        }
        check_names(&fs).await;
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn clients_do_not_disturb_each_other() {
    for seed in seeds(10) {
        println!("seed {seed}");
        play(seed, false, None);
        play(seed, true, None);
    }
}

#[test]
fn clients_do_not_disturb_each_other_in_a_crowded_pool() {
    for seed in seeds(10) {
        println!("seed {seed}");
        let spare = 50 + seed % 8 * 100;
        play(seed, false, Some(spare));
        play(seed, true, Some(spare));
    }
}
