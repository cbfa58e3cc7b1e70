//! Random operations against the model, with writeback, syncs and remounts in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, FallocateMode, FileKind, Filesystem, FsError, NodeId, OpenFlags, Options, RenameFlags,
    Seek, SetAttr, XattrSet,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::common::{World, check_space, pattern, seeds};
use crate::model::{self, Answer, Body, Fail, Id, Model};

/// Files stay below this.
const SIZE_MAX: u64 = 600_000;

struct Player {
    fs: Arc<Filesystem>,
    rng: Xoshiro256PlusPlus,
    model: Model,
    ids: BTreeMap<Id, NodeId>,
    log: Vec<String>,
}

fn options() -> Options {
    Options {
        count_lookups: false,
        dirty_bytes_max: 1 << 20,
        file_dirty_bytes_start: 256 << 10,
        inodes_max: 64,
        ..Options::default()
    }
}

fn fail_of(error: &FsError) -> Fail {
    match error {
        FsError::NotFound => Fail::NotFound,
        FsError::Exists => Fail::Exists,
        FsError::NotDirectory => Fail::NotDirectory,
        FsError::IsDirectory => Fail::IsDirectory,
        FsError::NotEmpty => Fail::NotEmpty,
        FsError::Invalid(_) => Fail::Invalid,
        FsError::NoAttribute => Fail::NoAttribute,
        FsError::NotPermitted(_) => Fail::NotPermitted,
        other => panic!("unexpected: {other}"),
    }
}

impl Player {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn name(&mut self) -> Vec<u8> {
        let n = self.below(12);
        if n == 0 { vec![b'x'; 255] } else { format!("n{n}").into_bytes() }
    }

    fn any(&mut self) -> Id {
        let n = self.below(self.model.nodes.len() as u64) as usize;
        *self.model.nodes.keys().nth(n).unwrap()
    }

    fn dir(&mut self) -> Id {
        let dirs: Vec<Id> =
            self.model.nodes.keys().copied().filter(|id| self.model.is_dir(*id)).collect();
        if self.below(20) == 0 { self.any() } else { dirs[self.below(dirs.len() as u64) as usize] }
    }

    fn file(&mut self) -> Id {
        let files: Vec<Id> = self
            .model
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node.body, Body::File(_)))
            .map(|(id, _)| *id)
            .collect();
        if files.is_empty() { self.any() } else { files[self.below(files.len() as u64) as usize] }
    }

    fn offset(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(5000),
            1 => self.below(SIZE_MAX / 4096) * 4096,
            _ => self.below(SIZE_MAX),
        }
    }

    fn length(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(100),
            1 => 4096 * (1 + self.below(8)),
            2 => self.below(200_000),
            _ => self.below(9000),
        }
    }

    fn compare<T, U>(&mut self, real: Result<T, FsError>, wanted: Answer<U>) -> Option<(T, U)> {
        match (real, wanted) {
            (Ok(real), Ok(wanted)) => Some((real, wanted)),
            (Err(error), Err(fail)) => {
                assert_eq!(fail_of(&error), fail, "{:#?}", self.tail());
                None
            }
            (real, wanted) => {
                panic!("fs {:?}, model {:?}: {:#?}", real.map(drop), wanted.map(drop), self.tail())
            }
        }
    }

    fn tail(&self) -> &[String] {
        &self.log[self.log.len().saturating_sub(30)..]
    }

    async fn step(&mut self) {
        let fs = self.fs.clone();
        let root = Caller::ROOT;
        match self.below(100) {
            0..12 => {
                let (dir, name) = (self.dir(), self.name());
                self.log.push(format!("create {dir} {}", name.len()));
                let real = fs
                    .create(&root, self.ids[&dir], &name, 0o644, OpenFlags::READ_WRITE, true)
                    .await;
                let wanted = self.model.make(dir, &name, Body::File(vec![]), 0o644);
                if let Some(((entry, made), id)) = self.compare(real, wanted) {
                    assert!(made);
                    fs.release(entry.node);
                    self.ids.insert(id, entry.node);
                }
            }
            12..18 => {
                let (dir, name) = (self.dir(), self.name());
                self.log.push(format!("mkdir {dir} {}", name.len()));
                let real = fs.mkdir(&root, self.ids[&dir], &name, 0o700).await;
                let wanted = self.model.make(dir, &name, Body::Dir(BTreeMap::new()), 0o700);
                if let Some((entry, id)) = self.compare(real, wanted) {
                    self.ids.insert(id, entry.node);
                }
            }
            18..21 => {
                let (dir, name) = (self.dir(), self.name());
                self.log.push(format!("symlink {dir}"));
                let target = vec![b't'; 1 + self.below(500) as usize];
                let real = fs.symlink(&root, self.ids[&dir], &name, &target).await;
                let wanted = self.model.make(dir, &name, Body::Link(target), 0o777);
                if let Some((entry, id)) = self.compare(real, wanted) {
                    self.ids.insert(id, entry.node);
                }
            }
            21..23 => {
                let (dir, name) = (self.dir(), self.name());
                let real = fs.mknod(&root, self.ids[&dir], &name, 0o010600, 0).await;
                let wanted = self.model.make(dir, &name, Body::Other, 0o600);
                if let Some((entry, id)) = self.compare(real, wanted) {
                    self.ids.insert(id, entry.node);
                }
            }
            23..27 => {
                let (id, dir, name) = (self.any(), self.dir(), self.name());
                self.log.push(format!("link {id} {dir}"));
                let real = fs.link(self.ids[&id], self.ids[&dir], &name).await;
                let wanted = self.model.link(id, dir, &name);
                self.compare(real, wanted);
            }
            27..35 => {
                let (dir, name) = (self.dir(), self.name());
                self.log.push(format!("unlink {dir} {}", name.len()));
                let real = fs.unlink(self.ids[&dir], &name).await;
                let wanted = self.model.remove(dir, &name, false);
                self.compare(real, wanted);
            }
            35..38 => {
                let (dir, name) = (self.dir(), self.name());
                self.log.push(format!("rmdir {dir}"));
                let real = fs.rmdir(self.ids[&dir], &name).await;
                let wanted = self.model.remove(dir, &name, true);
                self.compare(real, wanted);
            }
            38..50 => {
                let (dir, name, to, new) = (self.dir(), self.name(), self.dir(), self.name());
                let flags = match self.below(6) {
                    0 => RenameFlags { no_replace: true, ..Default::default() },
                    1 => RenameFlags { exchange: true, ..Default::default() },
                    _ => RenameFlags::default(),
                };
                self.log.push(format!("rename {dir} {to} {flags:?}"));
                let (from, into) = (self.ids[&dir], self.ids[&to]);
                let real = fs.rename(&root, from, &name, into, &new, flags).await;
                let wanted =
                    self.model.rename((dir, &name), (to, &new), flags.no_replace, flags.exchange);
                self.compare(real, wanted);
            }
            50..68 => {
                let (id, at, len) = (self.file(), self.offset(), self.length());
                self.log.push(format!("write {id} {at}+{len}"));
                let data = pattern(self.below(256) as u8, len as usize);
                let real = fs.write(self.ids[&id], at, &data, Default::default()).await;
                let wanted = self.model.write(id, at as usize, &data);
                self.compare(real, wanted);
            }
            68..74 => {
                let id = self.file();
                let size = if self.below(3) == 0 { 0 } else { self.offset() };
                self.log.push(format!("truncate {id} {size}"));
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let real = fs.setattr(&root, self.ids[&id], &set).await;
                let wanted = self.model.truncate(id, size as usize);
                self.compare(real, wanted);
            }
            74..80 => {
                let (id, at, len) = (self.file(), self.offset(), 1 + self.length());
                let (real, wanted) = match self.below(5) {
                    0 | 1 => {
                        self.log.push(format!("punch {id} {at}+{len}"));
                        let real = fs.fallocate(self.ids[&id], at, len, FallocateMode::Punch).await;
                        (real, self.model.zero(id, at as usize, len as usize, false))
                    }
                    2 => {
                        let keep_size = self.below(2) == 0;
                        self.log.push(format!("zero {id} {at}+{len} {keep_size}"));
                        let mode = FallocateMode::Zero { keep_size };
                        let real = fs.fallocate(self.ids[&id], at, len, mode).await;
                        (real, self.model.zero(id, at as usize, len as usize, !keep_size))
                    }
                    _ => {
                        let keep_size = self.below(2) == 0;
                        self.log.push(format!("allocate {id} {at}+{len} {keep_size}"));
                        let mode = FallocateMode::Allocate { keep_size };
                        let real = fs.fallocate(self.ids[&id], at, len, mode).await;
                        (real, self.model.allocate(id, (at + len) as usize, !keep_size))
                    }
                };
                self.compare(real, wanted);
            }
            80..87 => {
                let (id, at, len) = (self.file(), self.offset(), self.length());
                let real = fs.read(self.ids[&id], at, len as usize).await.map(|data| data.to_vec());
                let wanted = self.model.file(id).cloned();
                if let Some((real, wanted)) = self.compare(real, wanted) {
                    let end = wanted.len().min((at + len) as usize);
                    let wanted = wanted.get(at as usize..end).unwrap_or_default();
                    assert!(real == wanted, "read {id} {at}+{len}: {:#?}", self.tail());
                }
            }
            87..90 => {
                let (from, to) = (self.file(), self.file());
                let (at, into, len) = (self.offset(), self.offset(), self.length());
                if from == to {
                    return;
                }
                self.log.push(format!("copy {from} {at} {to} {into} {len}"));
                let wanted = self.model.file(from).cloned();
                let Ok(source) = wanted else { return };
                let end = source.len().min((at + len) as usize);
                let bytes = source.get(at as usize..end).unwrap_or_default();
                let wanted = self.model.write(to, into as usize, bytes);
                let real = fs.copy_file_range(self.ids[&from], at, self.ids[&to], into, len).await;
                self.compare(real, wanted);
            }
            90..92 => {
                let (id, n) = (self.any(), self.below(4));
                let name = format!("user.{n}").into_bytes();
                let value = pattern(n as u8, self.below(5000) as usize);
                self.log.push(format!("setxattr {id} {n} {}", value.len()));
                let how = XattrSet::Any;
                fs.set_xattr(&root, self.ids[&id], &name, &value, how, false).await.unwrap();
                self.model.set_xattr(id, &name, &value);
            }
            92 => {
                let (id, n) = (self.any(), self.below(4));
                self.log.push(format!("removexattr {id} {n}"));
                let name = format!("user.{n}").into_bytes();
                let real = fs.remove_xattr(self.ids[&id], &name).await;
                let wanted = self.model.remove_xattr(id, &name);
                self.compare(real, wanted);
            }
            93 => {
                let (id, mode) = (self.any(), self.below(0o1000) as u32);
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                fs.setattr(&root, self.ids[&id], &set).await.unwrap();
                self.model.chmod(id, mode);
            }
            94..97 => {
                let id = self.any();
                self.log.push(format!("fsync {id}"));
                fs.fsync(self.ids[&id], false).await.unwrap();
            }
            97 => fs.sync().await.unwrap(),
            98 => {
                let id = self.file();
                self.seek(id).await;
            }
            _ => {
                self.log.push("sleep".into());
                let pause = Duration::from_millis(self.below(9000));
                fs.pool().runtime().sleep(pause).await;
            }
        }
    }

    /// What is called a hole reads as zeros, and every byte that is not zero is called data.
    async fn seek(&mut self, id: Id) {
        let Ok(data) = self.model.file(id).cloned() else { return };
        let node = self.ids[&id];
        let mut at = 0;
        while at < data.len() {
            let next = match self.fs.seek(node, at as u64, Seek::Data).await {
                Ok(next) => next as usize,
                Err(FsError::PastEnd) => data.len(),
                Err(error) => panic!("{error}"),
            };
            assert!(data[at..next].iter().all(|byte| *byte == 0), "{:#?}", self.tail());
            if next == data.len() {
                return;
            }
            at = self.fs.seek(node, next as u64, Seek::Hole).await.unwrap() as usize;
            assert!(at > next);
        }
    }

    /// Everything that can be seen, compared.
    async fn verify(&self) {
        for (&id, node) in &self.model.nodes {
            let real = self.ids[&id];
            let attr = self.fs.getattr(real).await.unwrap();
            assert_eq!((attr.nlink, attr.mode), (node.nlink, node.mode), "node {id}");
            match &node.body {
                Body::Dir(entries) => {
                    assert_eq!(attr.kind, FileKind::Directory);
                    assert_eq!(attr.size, entries.len() as u64);
                    self.verify_dir(real, node.parent, entries).await;
                }
                Body::File(data) => {
                    assert_eq!(attr.size, data.len() as u64, "node {id}: {:#?}", self.tail());
                    let read = self.fs.read(real, 0, data.len() + 10).await.unwrap().to_vec();
                    if let Some(at) = read.iter().zip(data).position(|(a, b)| a != b) {
                        panic!("node {id} ({real}) differs at {at}: {:#?}", self.tail());
                    }
                    assert_eq!(read.len(), data.len());
                }
                Body::Link(target) => {
                    assert_eq!(&self.fs.readlink(real).await.unwrap(), target);
                }
                Body::Other => assert_eq!(attr.kind, FileKind::Fifo),
            }
            let mut listed = self.fs.list_xattr(real).await.unwrap();
            let mut wanted: Vec<u8> = Vec::new();
            for (name, value) in &node.xattrs {
                wanted.extend_from_slice(name);
                wanted.push(0);
                assert_eq!(&self.fs.get_xattr(real, name).await.unwrap(), value);
            }
            listed.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(listed, wanted);
        }
    }

    async fn verify_dir(&self, dir: NodeId, parent: Id, entries: &BTreeMap<Vec<u8>, Id>) {
        let mut listed = BTreeMap::new();
        let mut after = 0;
        // In small pieces, as a small buffer of getdents has it.
        loop {
            let mut room = 3;
            let before = after;
            self.fs
                .readdir(dir, after, &mut |entry| {
                    if room == 0 {
                        return false;
                    }
                    room -= 1;
                    assert!(entry.cookie > after && entry.cookie < 1 << 63);
                    after = entry.cookie;
                    assert!(listed.insert(entry.name.to_vec(), entry.node).is_none());
                    true
                })
                .await
                .unwrap();
            if after == before {
                break;
            }
        }
        assert_eq!(listed.remove(&b"."[..]), Some(dir));
        assert_eq!(listed.remove(&b".."[..]), Some(self.ids[&parent]));
        let wanted: BTreeMap<Vec<u8>, NodeId> =
            entries.iter().map(|(name, id)| (name.clone(), self.ids[id])).collect();
        assert_eq!(listed, wanted);
    }
}

fn play(seed: u64, steps: usize) {
    let world = World::new(seed, 65_536);
    let mut player = world.run(async {
        Player {
            fs: world.open_with(options()).await,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            model: Model::new(),
            ids: BTreeMap::from([(model::ROOT, NodeId::ROOT)]),
            log: Vec::new(),
        }
    });
    for n in 1..=steps {
        world.run(async {
            player.step().await;
            if n % 50 == 0 {
                player.verify().await;
            }
            if n % 200 == 0 {
                player.log.push("remount".into());
                world.close(player.fs.clone()).await;
                player.fs = world.open_with(options()).await;
                player.verify().await;
                check_space(&player.fs).await;
            }
        });
    }
    world.run(async {
        let Player { fs, .. } = player;
        world.close(fs).await;
    });
}

#[test]
fn random_operations_do_what_the_model_does() {
    for seed in seeds(12) {
        println!("seed {seed}");
        play(seed, 800);
    }
}
