//! The workload: a little of everything that reaches the device, by one client who goes on
//! whatever fails.

use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::ChecksumMode;
use copyhold_fs::{
    Caller, FallocateMode, Filesystem, FsError, NodeId, OpenFlags, RenameFlags, SetAttr, XattrSet,
    set_checksum_mode,
};
use copyhold_pool::{PoolError, Tier};
use copyhold_types::{BLOCK_BYTES, InodeNo};

use super::model::{Content, Model, Versions, cut, may_be, written};
use super::{Fate, Kind, Point};
use crate::fs_level::modes::{self, ByMode, count_by_mode};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// More than any file has.
const ALL: usize = 4 << 20;

pub(super) struct Player<'a> {
    fs: &'a Arc<Filesystem>,
    model: &'a mut Model,
    /// Data that a failed flush lost may be missing: data that is not durable cannot be read then.
    forgetful: bool,
    failed: u64,
}

/// FAULTS-V1: every error contains the device's error.
pub(super) fn expect_reported(what: &str, error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    let is_reported = text.contains("os error 5");
    assert!(is_reported, "FAULTS-V1: {what} does not name the cause: {text}");
}

fn bytes(salt: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ (n / BLOCK_BYTES) as u8 ^ salt.wrapping_mul(31) | 1).collect()
}

async fn find(fs: &Arc<Filesystem>, path: &str) -> Result<NodeId, FsError> {
    let mut node = fs.root();
    for name in path.split('/') {
        node = fs.lookup(node, name.as_bytes()).await?.node;
    }
    Ok(node)
}

/// The directory and the last name of a path.
async fn place<'p>(fs: &Arc<Filesystem>, path: &'p str) -> Result<(NodeId, &'p [u8]), FsError> {
    Ok(match path.rsplit_once('/') {
        Some((dir, name)) => (find(fs, dir).await?, name.as_bytes()),
        None => (fs.root(), path.as_bytes()),
    })
}

async fn content(fs: &Arc<Filesystem>, path: &str) -> Result<Content, FsError> {
    let node = match find(fs, path).await {
        Err(FsError::NotFound) => return Ok(None),
        node => node?,
    };
    Ok(Some(fs.read(node, 0, ALL).await?.to_vec()))
}

/// FAULTS-V4: each file is what it may be after a crash. Counts the extents of all.
pub(super) async fn verify(fs: &Arc<Filesystem>, model: &Model) -> ByMode {
    let mut by_mode = ByMode::default();
    for (path, versions) in &model.files {
        let found = content(fs, path).await;
        let found =
            found.unwrap_or_else(|error| panic!("FAULTS-V4: {path} after a crash: {error}"));
        let fits = may_be(&found, versions.after_crash());
        assert!(fits, "FAULTS-V4: {path}, {}, is not what was synced", told(&found));
        if let Ok(node) = find(fs, path).await {
            let found = modes::extents(fs, node).await.expect("it has just been read");
            modes::add(&mut by_mode, &count_by_mode(found.iter().map(|(_, extent)| extent)));
        }
    }
    by_mode
}

/// The checksum mode of a new file, on a device with protection information.
fn mode_of(path: &str) -> ChecksumMode {
    match path {
        "cut" => ChecksumMode::None,
        "logged" => ChecksumMode::Item,
        path if path.ends_with("/f") => ChecksumMode::Offload,
        _ => ChecksumMode::Guard,
    }
}

fn told(content: &Content) -> String {
    content.as_ref().map_or("which is not there".into(), |of| format!("of {} bytes", of.len()))
}

impl<'a> Player<'a> {
    pub(super) fn new(
        fs: &'a Arc<Filesystem>,
        model: &'a mut Model,
        point: Option<Point>,
    ) -> Player<'a> {
        let forgetful = point.is_some_and(|point| point.kind == Kind::Flush);
        Player { fs, model, forgetful, failed: 0 }
    }

    /// Before faults: some of it in bases, some in the log only.
    pub(super) async fn prepare(mut self) {
        for (n, name) in ["old", "tiny", "gone", "cut"].into_iter().enumerate() {
            self.create(name).await;
            let len = if name == "tiny" { 100 } else { 9 * BLOCK_BYTES + 100 };
            self.write(name, 0, bytes(n as u8, len)).await;
        }
        let made = self.fs.create_subvolume(&Caller::ROOT, self.fs.root(), b"s", None).await;
        self.note("subvolume", made.map(drop));
        self.create("s/f").await;
        self.write("s/f", 0, bytes(20, 6 * BLOCK_BYTES)).await;
        // So much that there is something to discard when it is gone.
        self.create("big").await;
        self.write("big", 0, bytes(8, 768 * BLOCK_BYTES)).await;
        for n in 0..40 {
            self.create(&format!("many{n}")).await;
        }
        self.sync().await;
        let settled = self.fs.pool().flush_all().await;
        self.note("settle", settled.map_err(FsError::from));
        self.create("logged").await;
        self.write("logged", 0, bytes(5, 3 * BLOCK_BYTES)).await;
        self.write("old", BLOCK, bytes(6, BLOCK_BYTES)).await;
        self.sync().await;
        assert_eq!(self.failed, 0, "nothing fails");
    }

    pub(super) async fn play(&mut self) {
        self.read("old").await;
        self.create("new").await;
        self.write("new", 0, bytes(30, 5 * BLOCK_BYTES + 7)).await;
        self.fsync("new").await;
        // Little: beside the batch.
        self.write("old", 2 * BLOCK, bytes(31, BLOCK_BYTES)).await;
        self.fsync("old").await;
        self.rename("tiny", "moved").await;
        self.write("moved", 50, bytes(32, 100)).await;
        self.fsync("moved").await;
        // Much: before its transaction, by itself.
        self.write("old", 0, bytes(33, 9 * BLOCK_BYTES)).await;
        self.write("s/f", BLOCK, bytes(34, 2 * BLOCK_BYTES)).await;
        self.rest(200).await;
        self.snapshot("s", "s1", &["f"]).await;
        self.write("s/f", 0, bytes(35, 4 * BLOCK_BYTES)).await;
        self.write("s1/f", 3 * BLOCK, bytes(36, BLOCK_BYTES)).await;
        self.fsync("s1/f").await;
        self.unlink("gone").await;
        self.unlink("big").await;
        self.truncate("cut", 3 * BLOCK_BYTES + 11).await;
        self.punch("new", 1, 2).await;
        self.attribute("logged").await;
        self.sync().await;
        self.settle().await;
        self.share("old", "new").await;
        self.write("many7", 0, bytes(37, 30 * BLOCK_BYTES)).await;
        self.rest(200).await;
        self.trim().await;
        self.write("cut", 0, bytes(38, 12 * BLOCK_BYTES)).await;
        self.fsync("cut").await;
        self.delete("s1", &["f"]).await;
        self.read("s/f").await;
        self.settle().await;
        self.write("logged", BLOCK, bytes(39, BLOCK_BYTES)).await;
        self.write("moved", 0, bytes(40, 3 * BLOCK_BYTES)).await;
        self.sync().await;
        for path in ["new", "old", "cut", "logged", "many7"] {
            self.read(path).await;
        }
        // A promise is not repeated, and must hold then.
        for path in ["new", "old", "moved", "s/f", "cut", "logged"] {
            self.fsync(path).await;
        }
    }

    /// FAULTS-V2: all files exist, with their types. After a failed flush the device may lack any
    /// of the last writes; a read of those must return an error.
    pub(super) async fn look(&mut self) {
        for (path, versions) in &self.model.files {
            match content(self.fs, path).await {
                Ok(found) => {
                    let fits = may_be(&found, versions.now()) || self.may_be_lost(path, versions);
                    assert!(fits, "FAULTS-V2: {path}, {}, is not what it is", told(&found));
                }
                Err(_) if self.forgetful && !versions.is_durable() => {}
                Err(error) => panic!("FAULTS-V2: {path} cannot be read: {error}"),
            }
        }
    }

    /// Whether a failed flush may have lost data that no side verifies, or the device alone.
    fn may_be_lost(&self, path: &str, versions: &Versions) -> bool {
        let is_verified = matches!(mode_of(path), ChecksumMode::Item | ChecksumMode::Guard);
        self.forgetful && self.has_modes() && !versions.is_durable() && !is_verified
    }

    fn has_modes(&self) -> bool {
        self.fs.pool().devices().protection().is_some()
    }

    /// FAULTS-V3, now that the device works again.
    pub(super) async fn last_words(&mut self) {
        let stopped = self.has_stopped();
        let before = self.failed;
        self.create("last").await;
        assert!((self.failed > before) == stopped, "FAULTS-V3: create, stopped: {stopped}");
        let Ok(node) = find(self.fs, "old").await else { return };
        let data = bytes(50, BLOCK_BYTES);
        let wrote = self.fs.write(node, 4 * BLOCK, &data, Default::default()).await;
        assert!(wrote.is_err() == stopped, "FAULTS-V3: stopped: {stopped}, a write: {wrote:?}");
        let change = |of: &Content| written(of, 4 * BLOCK_BYTES, &data);
        self.model.change("old", wrote.is_ok(), change);
        // An error of before may be told now, once.
        for _ in 0..2 {
            self.fsync("old").await;
        }
        let before = self.failed;
        self.fsync("old").await;
        self.sync().await;
        assert!((self.failed > before) == stopped, "FAULTS-V3: the pool goes on, or has stopped");
    }

    pub(super) fn fate(&self) -> Fate {
        match self.failed {
            _ if self.has_stopped() => Fate::Stopped,
            0 => Fate::Unseen,
            _ => Fate::Reported,
        }
    }

    fn has_stopped(&self) -> bool {
        let reserved = self.fs.pool().reserve_now(0, Tier::Internal);
        matches!(reserved, Err(PoolError::Stopped { .. }))
    }

    /// Whether it was done.
    fn note(&mut self, what: &str, result: Result<(), FsError>) -> bool {
        let done = result.is_ok();
        if let Err(error) = result {
            // An object that could not be made, or was not deleted, may be in the way later.
            let follows = matches!(error, FsError::NotFound | FsError::Exists);
            if !(follows && self.failed > 0) {
                expect_reported(what, &error);
            }
            self.failed += 1;
        }
        done
    }

    async fn create(&mut self, path: &str) {
        let flags = OpenFlags::READ_WRITE;
        let made = async {
            let (dir, name) = place(self.fs, path).await?;
            let made = self.fs.create(&Caller::ROOT, dir, name, 0o600, flags, true).await?;
            self.fs.release(made.0.node);
            Ok(made.0.node)
        };
        let made: Result<NodeId, FsError> = made.await;
        let node = made.as_ref().ok().copied();
        let done = self.note("create", made.map(drop));
        self.model.change(path, done, |_| Some(Vec::new()));
        if let Some(node) = node.filter(|_| self.has_modes()) {
            let set = set_checksum_mode(self.fs, &Caller::ROOT, node, mode_of(path)).await;
            self.note("set checksum mode", set);
        }
    }

    async fn write(&mut self, path: &str, at: u64, data: Vec<u8>) {
        let wrote = async {
            let node = find(self.fs, path).await?;
            self.fs.write(node, at, &data, Default::default()).await
        };
        let wrote = wrote.await;
        let done = self.note("write", wrote);
        self.model.change(path, done, |of| written(of, at as usize, &data));
    }

    async fn truncate(&mut self, path: &str, len: usize) {
        let set = SetAttr { size: Some(len as u64), ..SetAttr::default() };
        let result = async {
            let node = find(self.fs, path).await?;
            self.fs.setattr(&Caller::ROOT, node, &set).await.map(drop)
        };
        let result = result.await;
        let done = self.note("truncate", result);
        self.model.change(path, done, |of| cut(of, len));
    }

    async fn punch(&mut self, path: &str, block: usize, blocks: usize) {
        let (at, len) = (block as u64 * BLOCK, blocks as u64 * BLOCK);
        let result = async {
            let node = find(self.fs, path).await?;
            self.fs.fallocate(node, at, len, FallocateMode::Punch).await
        };
        let result = result.await;
        let done = self.note("punch", result);
        let zeros = vec![0; len as usize];
        self.model.change(path, done, |of| written(of, at as usize, &zeros));
    }

    /// The second file's first three blocks become the first's.
    async fn share(&mut self, from: &str, to: &str) {
        let len = 3 * BLOCK;
        let result = async {
            let (source, target) = (find(self.fs, from).await?, find(self.fs, to).await?);
            let copied = self.fs.copy_file_range(source, 0, target, 0, len).await?;
            assert!(copied <= len, "no more than was asked for");
            Ok(copied == len)
        };
        let result = result.await;
        let whole = matches!(result, Ok(true));
        self.note("copy", result.map(drop));
        let sources = self.model.files[from].now().to_vec();
        for (n, source) in sources.iter().flatten().enumerate() {
            let part = cut(&Some(source.clone()), len as usize).expect("some content");
            let done = whole && n == 0;
            self.model.change(to, done, |of| written(of, 0, &part));
        }
    }

    async fn rename(&mut self, from: &str, to: &str) {
        let result = async {
            let ((dir, name), (new_dir, new_name)) =
                (place(self.fs, from).await?, place(self.fs, to).await?);
            let flags = RenameFlags::default();
            self.fs.rename(&Caller::ROOT, dir, name, new_dir, new_name, flags).await
        };
        let result = result.await;
        let done = self.note("rename", result);
        self.model.copy(from, to, done);
        self.model.change(from, done, |_| None);
    }

    async fn unlink(&mut self, path: &str) {
        let result = async {
            let (dir, name) = place(self.fs, path).await?;
            self.fs.unlink(dir, name).await
        };
        let result = result.await;
        let done = self.note("unlink", result);
        self.model.change(path, done, |_| None);
    }

    async fn attribute(&mut self, path: &str) {
        let result = async {
            let node = find(self.fs, path).await?;
            let value = bytes(60, 5000);
            self.fs.set_xattr(&Caller::ROOT, node, b"user.a", &value, XattrSet::Any, false).await
        };
        let result = result.await;
        self.note("attribute", result);
    }

    async fn snapshot(&mut self, from: &str, to: &str, files: &[&str]) {
        let result = async {
            let source = find(self.fs, from).await?.subvol;
            self.fs.snapshot(source, self.fs.root(), to.as_bytes(), false, None).await.map(drop)
        };
        let result = result.await;
        let done = self.note("snapshot", result);
        for file in files {
            self.model.copy(&format!("{from}/{file}"), &format!("{to}/{file}"), done);
        }
    }

    async fn delete(&mut self, subvol: &str, files: &[&str]) {
        let fs = self.fs;
        let deleted = fs.delete_subvolume(fs.root(), subvol.as_bytes(), None).await;
        let done = self.note("delete", deleted.map(drop));
        for file in files {
            self.model.change(&format!("{subvol}/{file}"), done, |_| None);
        }
        let ended = fs.sync_subvolumes(&[]).await;
        self.note("sync of subvolumes", ended);
    }

    async fn read(&mut self, path: &str) {
        let found = content(self.fs, path).await;
        if let Ok(found) = &found {
            let versions = &self.model.files[path];
            let fits = may_be(found, versions.now()) || self.may_be_lost(path, versions);
            assert!(fits, "FAULTS-V2: {path}, {}, is not what it is", told(found));
        }
        let is_durable = self.model.files[path].is_durable();
        match found {
            Err(_) if self.forgetful && !is_durable => self.failed += 1,
            found => drop(self.note("read", found.map(drop))),
        }
    }

    async fn fsync(&mut self, path: &str) {
        let synced = async {
            let node = find(self.fs, path).await?;
            assert_ne!(node.ino, InodeNo::ROOT, "a file");
            self.fs.fsync(node, false).await
        };
        let synced = synced.await;
        if self.note("fsync", synced) {
            self.model.is_synced(path);
        }
    }

    async fn sync(&mut self) {
        let synced = self.fs.sync().await;
        if self.note("sync", synced) {
            self.model.all_is_synced();
        }
    }

    async fn settle(&mut self) {
        let settled = self.fs.pool().flush_all().await;
        self.note("settle", settled.map_err(FsError::from));
    }

    async fn trim(&mut self) {
        let trimmed = self.fs.trim(0, u64::MAX, BLOCK).await;
        self.note("trim", trimmed.map(drop));
    }

    async fn rest(&mut self, millis: u64) {
        self.fs.pool().runtime().sleep(Duration::from_millis(millis)).await;
    }
}
