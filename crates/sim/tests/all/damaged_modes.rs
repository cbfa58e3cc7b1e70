//! Files of all checksum modes against a plain model: the bytes of each file, and the modes that
//! each of its blocks may have.
//!
//! After each step all content is as the model has it. Then one written block is damaged, in one of
//! the ways that hit a block alone, and the damage is found exactly where the page says so
//! (`docs/integrity.md`, section 2), by every file that shares the block; and it is undone.

use std::collections::BTreeSet;
use std::sync::Arc;

use copyhold_format::item::{ChecksumMode, Extent};
use copyhold_fs::{
    Caller, Filesystem, FsError, NodeId, OpenFlags, SetAttr, WriteFlags, checksum_mode_of,
    set_checksum_mode,
};
use copyhold_sim::Dice;
use copyhold_sim::fs_level::modes::extents;
use copyhold_types::{BLOCK_BYTES, InodeNo};

use crate::namespace::{STALE, World};

const FILES: u64 = 6;
/// Blocks of a file at most; half of that travels with an fsync.
const BLOCKS: u64 = 32;
const STEPS: u64 = 40;
const SEEDS: u64 = 40;

/// The model of a file.
#[derive(Clone, Default)]
struct File {
    name: Vec<u8>,
    bytes: Vec<u8>,
    mode: ChecksumMode,
    /// The modes that the property had since the block was written last; empty: nothing is there.
    blocks: Vec<BTreeSet<ChecksumMode>>,
    /// Blocks that may be read from memory: they were not written back, or with an fsync lately.
    dirty: BTreeSet<usize>,
}

impl File {
    fn resize(&mut self, len: usize) {
        self.bytes.resize(len, 0);
        let blocks = len.div_ceil(BLOCK_BYTES);
        self.blocks.resize(blocks, BTreeSet::new());
        self.dirty.retain(|block| *block < blocks);
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        if self.bytes.len() < at + data.len() {
            self.resize(at + data.len());
        }
        self.bytes[at..at + data.len()].copy_from_slice(data);
        for block in at / BLOCK_BYTES..(at + data.len()).div_ceil(BLOCK_BYTES) {
            self.touch(block);
        }
    }

    /// A block gets a new address on the device.
    fn touch(&mut self, block: usize) {
        self.blocks[block] = BTreeSet::from([self.mode]);
        self.dirty.insert(block);
    }

    fn set_mode(&mut self, mode: ChecksumMode) {
        self.mode = mode;
        for block in &self.dirty {
            self.blocks[*block].insert(mode);
        }
    }

    /// The content of a block, with zeros behind the end.
    fn block(&self, block: usize) -> Vec<u8> {
        let bytes = self.bytes.iter().skip(block * BLOCK_BYTES).take(BLOCK_BYTES);
        let mut bytes: Vec<u8> = bytes.copied().collect();
        bytes.resize(BLOCK_BYTES, 0);
        bytes
    }
}

/// Damage of one block that its neighbours do not see.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Data,
    Tuple,
    /// Both halves of an older time.
    Stale,
    Zeros,
    /// Zeros, and the tuple that makes the drive check nothing.
    Escape,
}

impl Damage {
    const ALL: [Damage; 5] =
        [Damage::Data, Damage::Tuple, Damage::Stale, Damage::Zeros, Damage::Escape];

    /// Whether a read of a block with this mode reports it.
    fn is_found(self, mode: ChecksumMode) -> bool {
        let is_missed = match self {
            Damage::Tuple => mode == ChecksumMode::Item,
            Damage::Escape => mode == ChecksumMode::Offload,
            Damage::Data | Damage::Stale | Damage::Zeros => false,
        };
        !is_missed && mode != ChecksumMode::None
    }

    fn changes_data(self) -> bool {
        !matches!(self, Damage::Tuple)
    }
}

/// How often each damage hit each mode.
type Counts = [[u64; ChecksumMode::ALL.len()]; Damage::ALL.len()];

struct Played {
    world: World,
    fs: Arc<Filesystem>,
    dice: Dice,
    files: Vec<(NodeId, File)>,
    /// Subvolumes.
    homes: Vec<NodeId>,
    next: u64,
    counts: Counts,
}

impl Played {
    async fn step(&mut self) -> Result<(), FsError> {
        match self.dice.below(20) {
            0..2 => self.make().await,
            2..9 => self.write().await,
            9..11 => self.truncate().await,
            11..13 => self.share().await,
            13..14 => self.snapshot().await,
            14..16 => self.change_mode().await,
            16..17 => self.fsync().await,
            17..18 => self.sync().await,
            _ => self.remount().await,
        }
    }

    fn pick(&mut self) -> Option<usize> {
        let count = self.files.len() as u64;
        (count > 0).then(|| self.dice.below(count) as usize)
    }

    fn name(&mut self) -> Vec<u8> {
        self.next += 1;
        format!("n{}", self.next).into_bytes()
    }

    async fn make(&mut self) -> Result<(), FsError> {
        if self.files.len() as u64 >= FILES {
            return Ok(());
        }
        let (home, name) = (self.dice.pick(&self.homes), self.name());
        let mode = checksum_mode_of(&self.fs, home).await?;
        let flags = OpenFlags::READ_WRITE;
        let made = self.fs.create(&Caller::ROOT, home, &name, 0o600, flags, true).await?;
        self.fs.release(made.0.node);
        self.files.push((made.0.node, File { name, mode, ..File::default() }));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), FsError> {
        let Some(nth) = self.pick() else { return Ok(()) };
        let at = self.dice.below(BLOCKS * BLOCK_BYTES as u64);
        let len = 1 + self.dice.magnitude(17).min(BLOCKS * BLOCK_BYTES as u64 - at);
        let is_whole = self.dice.one_in(2);
        let at = if is_whole { at - at % BLOCK_BYTES as u64 } else { at };
        let data = self.dice.bytes(len as usize);
        let (node, file) = &mut self.files[nth];
        self.fs.write(*node, at, &data, WriteFlags::default()).await?;
        file.write(at as usize, &data);
        Ok(())
    }

    async fn truncate(&mut self) -> Result<(), FsError> {
        let Some(nth) = self.pick() else { return Ok(()) };
        let size = self.dice.below(BLOCKS * BLOCK_BYTES as u64);
        let (node, file) = &mut self.files[nth];
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&Caller::ROOT, *node, &set).await?;
        let (len, before) = (size as usize, file.bytes.len());
        file.resize(len);
        // The end of a block that is cut is written as zeros.
        for end in [len, before].into_iter().filter(|end| end % BLOCK_BYTES != 0) {
            let block = end / BLOCK_BYTES;
            if file.blocks.get(block).is_some_and(|modes| !modes.is_empty()) {
                file.blocks[block].insert(file.mode);
                file.dirty.insert(block);
            }
        }
        Ok(())
    }

    /// Whole blocks of one file become those of another.
    async fn share(&mut self) -> Result<(), FsError> {
        let (Some(from), Some(to)) = (self.pick(), self.pick()) else { return Ok(()) };
        let source = self.files[from].clone();
        if from == to || source.1.bytes.is_empty() {
            return Ok(());
        }
        let blocks = source.1.bytes.len().div_ceil(BLOCK_BYTES);
        let first = self.dice.below(blocks as u64) as usize;
        let at = first * BLOCK_BYTES;
        let data = source.1.bytes[at..].to_vec();
        let (node, file) = &mut self.files[to];
        let copied =
            self.fs.copy_file_range(source.0, at as u64, *node, at as u64, data.len() as u64);
        assert_eq!(copied.await?, data.len() as u64);
        file.write(at, &data);
        // It shares, or copies: then it is like any other write.
        for block in first..blocks {
            file.blocks[block].extend(source.1.blocks[block].iter().copied());
            file.blocks[block].insert(source.1.mode);
        }
        Ok(())
    }

    /// A snapshot has the files of its source.
    async fn snapshot(&mut self) -> Result<(), FsError> {
        if self.homes.len() > 2 {
            return Ok(());
        }
        let (source, name) = (self.dice.pick(&self.homes), self.name());
        let root = self.fs.root();
        let made = self.fs.snapshot(source.subvol, root, &name, false, None).await?;
        self.homes.push(NodeId { subvol: made, ino: source.ino });
        let copies = self.files.iter().filter(|(node, _)| node.subvol == source.subvol);
        let copies = copies.map(|(node, file)| (NodeId { subvol: made, ..*node }, file.clone()));
        let copies: Vec<_> = copies.collect();
        self.files.extend(copies);
        Ok(())
    }

    /// Of a file, or of the new files of a subvolume.
    async fn change_mode(&mut self) -> Result<(), FsError> {
        let mode = self.dice.pick(&ChecksumMode::ALL);
        if self.dice.one_in(3) {
            let home = self.dice.pick(&self.homes);
            return set_checksum_mode(&self.fs, &Caller::ROOT, home, mode).await;
        }
        let Some(nth) = self.pick() else { return Ok(()) };
        let (node, file) = &mut self.files[nth];
        set_checksum_mode(&self.fs, &Caller::ROOT, *node, mode).await?;
        file.set_mode(mode);
        Ok(())
    }

    async fn fsync(&mut self) -> Result<(), FsError> {
        let Some(nth) = self.pick() else { return Ok(()) };
        self.fs.fsync(self.files[nth].0, false).await
    }

    async fn sync(&mut self) -> Result<(), FsError> {
        self.fs.sync().await
    }

    async fn remount(&mut self) -> Result<(), FsError> {
        self.fs.close().await?;
        self.fs.pool().close().await?;
        self.fs = self.world.open(None).await;
        self.files.iter_mut().for_each(|(_, file)| file.dirty.clear());
        Ok(())
    }

    // -- looking ------------------------------------------------------------

    async fn check(&self) -> Result<(), FsError> {
        for (node, file) in &self.files {
            let found = self.fs.read(*node, 0, 2 * file.bytes.len() + 1).await?.to_vec();
            assert!(found == file.bytes, "{:?} has other bytes", file.name);
            assert_eq!(checksum_mode_of(&self.fs, *node).await?, file.mode);
            for (first, extent) in self.extents_within(*node, file).await? {
                let Some(mode) = extent.state.checksum_mode() else { continue };
                for block in first..first + u64::from(extent.blocks()) {
                    // A cut that is only in memory leaves extents where the file has a hole.
                    let allowed = file.blocks.get(block as usize).filter(|of| !of.is_empty());
                    let Some(allowed) = allowed else { continue };
                    let is_allowed = mode == ChecksumMode::Item || allowed.contains(&mode);
                    let is_dirty = file.dirty.contains(&(block as usize));
                    assert!(is_allowed || is_dirty, "block {block}: {mode}, not {allowed:?}");
                }
            }
        }
        Ok(())
    }

    async fn extents_within(
        &self,
        node: NodeId,
        file: &File,
    ) -> Result<Vec<(u64, Extent)>, FsError> {
        let mut found = extents(&self.fs, node).await?;
        let end = file.bytes.len().div_ceil(BLOCK_BYTES) as u64;
        found.retain(|(first, _)| *first < end);
        Ok(found)
    }

    /// Damages a written block, and looks at all files that have it.
    async fn damage(&mut self) -> Result<(), FsError> {
        let mut written = Vec::new();
        for (node, file) in &self.files {
            for (first, extent) in self.extents_within(*node, file).await? {
                let Some(mode) = extent.state.checksum_mode() else { continue };
                for nth in 0..u64::from(extent.blocks()) {
                    let block = (first + nth) as usize;
                    let content = file.block(block);
                    // Zeros would not be damaged by some of it.
                    let has_content = content.iter().any(|byte| *byte != 0);
                    if has_content && !file.dirty.contains(&block) {
                        let at = extent.pointer.run.addr.block() + nth;
                        written.push((at, mode, *node, block, content));
                    }
                }
            }
        }
        if written.is_empty() {
            return Ok(());
        }
        let at = self.dice.pick_ref(&written).0;
        let damage = self.dice.pick(&Damage::ALL);
        let good = self.world.disk.image();
        self.hit(at, damage);
        for (_, mode, node, block, expected) in written.iter().filter(|of| of.0 == at) {
            let found = self.fs.read(*node, (block * BLOCK_BYTES) as u64, BLOCK_BYTES).await;
            let what = format!("{damage:?} in {mode}, block {block} at {at}");
            match (damage.is_found(*mode), found) {
                (true, found) => assert!(found.is_err(), "{what} is not found"),
                (false, Ok(found)) => {
                    let found = found.to_vec();
                    let is_same = found == expected[..found.len()];
                    assert_eq!(is_same, !damage.changes_data(), "{what}");
                }
                (false, Err(error)) => panic!("{what} is found: {error}"),
            }
            self.counts[damage as usize][usize::from(mode.code())] += 1;
        }
        self.world.put_back(at, &good);
        Ok(())
    }

    fn hit(&mut self, at: u64, damage: Damage) {
        // The first byte is within the file, however short it is.
        let bit = 1 << self.dice.below(8);
        match damage {
            Damage::Data => self.world.damage(at, |data| data[0] ^= bit, |_| {}),
            Damage::Tuple => self.world.damage(at, |_| {}, |entry| entry[0] ^= bit),
            Damage::Stale => self.world.put_back(at, &self.world.stale),
            Damage::Zeros => {
                self.world.damage(at, |data| data.fill(0), |entry| entry.fill(0));
            }
            Damage::Escape => {
                self.world.damage(at, |data| data.fill(0), |entry| entry.fill(0xff));
            }
        }
    }
}

fn play(seed: u64) -> Counts {
    let world = World::new(seed, STALE);
    let rt = world.rt.clone();
    rt.block_on(async {
        let fs = world.open(None).await;
        let home = fs.create_subvolume(&Caller::ROOT, fs.root(), b"home", None).await.unwrap();
        let homes = vec![NodeId { subvol: home, ino: InodeNo::ROOT }];
        let dice = Dice::new(seed);
        let mut played =
            Played { world, fs, dice, files: vec![], homes, next: 0, counts: Counts::default() };
        for _ in 0..STEPS {
            played.step().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            played.check().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            played.damage().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        played.counts
    })
}

#[test]
fn files_are_as_written_and_damage_is_found_where_the_page_says_so() {
    let mut sum = Counts::default();
    for seed in 0..SEEDS {
        let played = play(seed);
        let pairs = sum.iter_mut().flatten().zip(played.iter().flatten());
        pairs.for_each(|(sum, more)| *sum += more);
    }
    assert!(sum.iter().flatten().all(|count| *count > 0), "some damage of some mode: {sum:?}");
}
