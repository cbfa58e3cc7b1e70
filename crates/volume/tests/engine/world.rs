//! A pool on a simulated device, its subvolumes, and plain copies of their files.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::epochs::Epochs;
use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_format::item::{
    EXTENT, EpochItem, Extent, ExtentState, HashKey, ParentDirectory, SubvolItem, epoch_key,
    extent_key, subvol_key,
};
use copyhold_memory::{GroupLimits, Promise};
use copyhold_pool::{
    BlockMode, CreateOptions, IdSpace, LaneClass, Limits, OpenOptions, Pool, Tier, Transaction,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{
    Buf, DeviceId, EpochId, InodeNo, Key, Pointer, Purpose, Run, SubvolId, TableId, Timestamp,
};
use copyhold_volume::quota::{Hold, Inherit};
use copyhold_volume::{
    Leaving, MemoryGroup, NewSubvol, OldState, Subvol, Volumes, change_memory_limits,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

const BLOCKS: u64 = 32768;
const FILES: u64 = 3;
const FILE_BLOCKS: u64 = 200;
const SUBVOLS: usize = 7;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Bytes of nodes in memory.
    pub(crate) cache: usize,
    /// Background work runs by itself.
    pub(crate) beside: bool,
    pub(crate) quotas: bool,
    /// The plain model of epochs goes along; no crash takes anything back then.
    pub(crate) plain: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { cache: 8 << 20, beside: false, quotas: false, plain: false }
    }
}

pub(crate) const ROOT_PLACE: ParentDirectory =
    ParentDirectory { subvol: SubvolId::ROOT, directory: InodeNo::ROOT };

/// What is in each block: a number that was never written before.
pub(crate) type Files = BTreeMap<(u64, u64), u64>;

/// The object, among the files of a subvolume, whose five blocks are the limits of its memory,
/// unless they are the defaults.
pub(crate) const LIMITS: u64 = u64::MAX;

pub(crate) fn numbers_of(limits: &GroupLimits) -> Vec<((u64, u64), u64)> {
    let GroupLimits { promise: Promise { min, low }, high, max, weight } = *limits;
    let numbers = [min, low, high, max, weight.into()];
    let is_default = *limits == GroupLimits::default();
    let places = numbers.into_iter().zip(0..).map(|(number, at)| ((LIMITS, at), number));
    places.filter(|_| !is_default).collect()
}

/// Takes the limits out of the files.
fn take_limits(files: &mut Files) -> Files {
    files.split_off(&(LIMITS, 0))
}

pub(crate) struct World {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) disk: Arc<SimDevice>,
    pub(crate) volumes: Arc<Volumes>,
    rng: Xoshiro256PlusPlus,
    pub(crate) config: Config,
    pub(crate) model: BTreeMap<SubvolId, Files>,
    /// Who began each epoch, and pays for it.
    pub(crate) owners: BTreeMap<EpochId, SubvolId>,
    /// Who pays for what one leaves that was rolled back.
    heirs: BTreeMap<SubvolId, SubvolId>,
    pub(crate) plain: Option<Epochs>,
    next: u64,
    /// Releases have been seen that wait.
    pub(crate) seen_pending: bool,
    /// What there was after each operation since all was durable.
    history: Vec<BTreeMap<SubvolId, Files>>,
}

fn open(rt: &Arc<SeededRuntime>, disk: &Arc<SimDevice>, config: Config) -> Arc<Volumes> {
    let limits = Limits {
        delta_bytes: 160 << 10,
        node_cache_bytes: config.cache,
        open_tables: 1,
        ..Limits::default()
    };
    let options = OpenOptions { tenants: true, limits, ..OpenOptions::default() };
    let device: DynDevice = disk.clone();
    rt.block_on(async {
        let pool = Pool::open(rt.clone() as Rt, device, options).await.expect("it opens");
        if pool.get(Pool::SYSTEM, subvol_key(SubvolId::ROOT)).await.unwrap().is_none() {
            format(&pool).await;
        }
        let volumes = Volumes::open(pool).await.unwrap();
        if config.beside {
            volumes.begin_background();
        }
        volumes
    })
}

async fn format(pool: &Arc<Pool>) {
    let table = pool.new_table().await.unwrap();
    let epoch = EpochId(pool.next_id(IdSpace::Epoch).await.unwrap());
    let place = ParentDirectory { subvol: SubvolId::ROOT, directory: InodeNo::ROOT };
    let (hash, now) = (HashKey([1; 16]), Timestamp::default());
    let item = SubvolItem::new(table, epoch, place, hash, now, [1; 16]);
    let mut tx = Transaction::new();
    tx.put(Pool::SYSTEM, subvol_key(SubvolId::ROOT), &item.encode()[..]);
    let record = EpochItem::root(SubvolId::ROOT, table, epoch);
    tx.put(Pool::SYSTEM, epoch_key(epoch), &record.encode()[..]);
    let credit = pool.admit(Tier::Write, 2, 512).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
}

impl World {
    pub(crate) fn new(seed: u64, config: Config) -> World {
        let rt = SeededRuntime::new(seed);
        let image = SimImage::empty(BLOCKS);
        let disk =
            SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(seed));
        let options = CreateOptions {
            log_bytes: Some(1 << 20),
            metaslab_blocks: Some(1024),
            node_bytes: Some(4096),
            partition_leaves: Some(4),
            ..CreateOptions::default()
        };
        let device: DynDevice = disk.clone();
        rt.block_on(Pool::create(&(rt.clone() as Rt), &device, &options)).unwrap();
        let volumes = open(&rt, &disk, config);
        let root = volumes.subvol(SubvolId::ROOT).unwrap();
        let heirs = BTreeMap::new();
        let owners = BTreeMap::from([(root.item().epoch, SubvolId::ROOT)]);
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let model = BTreeMap::from([(SubvolId::ROOT, Files::new())]);
        let (next, seen_pending, history) = (1, false, Vec::new());
        let mut world = World {
            rt,
            disk,
            volumes,
            rng,
            config,
            model,
            owners,
            heirs,
            plain: None,
            next,
            seen_pending,
            history,
        };
        if config.quotas {
            world.enable_quotas();
        }
        if config.plain {
            let current = world.volumes.snapshot_guard(&root).unwrap().epoch();
            let plain = world.plain.insert(Epochs::default());
            plain.create(SubvolId::ROOT, root.item().epoch, current);
        }
        world
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        self.volumes.pool()
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn any(&mut self) -> Arc<Subvol> {
        let live: Vec<SubvolId> = self.model.keys().copied().collect();
        let at = self.below(live.len() as u64) as usize;
        self.volumes.subvol(live[at]).expect("a live subvolume")
    }

    pub(crate) fn step(&mut self) {
        self.history.push(self.model.clone());
        match self.below(100) {
            0..40 => self.write(),
            40..50 => self.reflink(),
            50 => self.set_limits(),
            51 => self.move_entry(),
            52..60 => self.drop_range(),
            60..72 if self.model.len() < SUBVOLS => self.snapshot(),
            72..74 if self.model.len() < SUBVOLS => self.create(),
            74..78 => self.roll_back(),
            78..82 => self.delete(),
            82..92 => self.background(),
            92..94 => self.rt.block_on(self.pool().flush_all()).unwrap(),
            94..97 => self.settle(),
            97 => self.crash(),
            98.. if self.config.plain => self.crash(),
            98.. => self.crash_at_once(),
            _ => self.write(),
        }
        self.check_holders();
    }

    /// The memory of each subvolume has the owner that the record of its entry's place says; the
    /// root's children are children of the root of memory.
    fn check_holders(&self) {
        for subvol in self.volumes.list() {
            let holder = subvol.item().place.subvol;
            let holder = self.volumes.subvol(holder).filter(|_| holder != SubvolId::ROOT);
            let is_right = subvol.owner().is_held_by(holder.as_ref().map(|of| of.owner()));
            assert!(is_right, "MEMGROUP-T1: the holder of {}", subvol.id());
        }
    }

    fn range(&mut self) -> (u64, std::ops::Range<u64>) {
        let from = self.below(FILE_BLOCKS);
        let blocks = 1 + self.below(24);
        (1 + self.below(FILES), from..(from + blocks).min(FILE_BLOCKS))
    }

    /// Takes blocks out of a file: extents are cut where they need be.
    async fn take(
        volumes: &Volumes,
        subvol: &Subvol,
        file: u64,
        range: std::ops::Range<u64>,
        tx: &mut Transaction,
    ) {
        let (ino, files) = (InodeNo(file), subvol.files());
        let (from, to) = (extent_key(ino, range.start.saturating_sub(32)), range.end);
        let items = volumes.range(subvol, from, extent_key(ino, to), 10_000).await.unwrap();
        for (key, value) in items {
            let extent = Extent::parse(&value).unwrap();
            let (start, end) = (key.offset, key.offset + u64::from(extent.blocks()));
            if end <= range.start {
                continue;
            }
            let (cut_from, cut_to) = (start.max(range.start), end.min(range.end));
            tx.delete(files, key);
            for (a, b) in [(start, cut_from), (cut_to, end)] {
                if a < b {
                    let part = extent.slice((a - start) as u32, (b - a) as u32);
                    tx.put(files, extent_key(ino, a), &part.encode()[..]);
                }
            }
            let gone = extent.slice((cut_from - start) as u32, (cut_to - cut_from) as u32);
            tx.release(gone.pointer);
        }
    }

    fn put_run(tx: &mut Transaction, table: TableId, file: u64, mut at: u64, pointer: Pointer) {
        // An extent crosses no multiple of 32 blocks of its file.
        let mut done = 0;
        while done < pointer.run.blocks {
            let here = (32 - at % 32).min(u64::from(pointer.run.blocks - done)) as u32;
            let pointer = Pointer { run: pointer.run.slice(done, here), ..pointer };
            let extent = Extent { pointer, state: ExtentState::Unwritten };
            tx.put(table, extent_key(InodeNo(file), at), &extent.encode()[..]);
            (done, at) = (done + here, at + u64::from(here));
        }
    }

    fn write(&mut self) {
        let subvol = self.any();
        self.write_to(&subvol);
    }

    /// Some blocks of some file.
    pub(crate) fn write_to(&mut self, subvol: &Arc<Subvol>) {
        let (file, range) = self.range();
        let blocks = range.end - range.start;
        let tags: Vec<u64> = range.clone().map(|_| self.tag()).collect();
        let volumes = self.volumes.clone();
        self.rt.block_on(async {
            let pool = volumes.pool();
            let mut space = pool.reserve(blocks, Tier::Write).await.unwrap();
            let claims = pool.claim(LaneClass::Data, blocks, &mut space).unwrap();
            let mut left = &tags[..];
            for claim in &claims {
                let run = claim.run();
                let (these, rest) = left.split_at(run.blocks as usize);
                left = rest;
                let bytes: Vec<u8> = these
                    .iter()
                    .flat_map(|tag| tag.to_le_bytes().into_iter().chain([0; 4088]))
                    .collect();
                let bytes = Buf::from_bytes(&bytes).into();
                pool.write(run, bytes, Purpose::Data, BlockMode::PLAIN).await.unwrap();
            }
            let mut tx = Transaction::new();
            Self::take(&volumes, subvol, file, range.clone(), &mut tx).await;
            let credit = volumes.admit(subvol, Tier::Write, 64, 8192, 24).await.unwrap();
            let still = volumes.snapshot_guard(subvol).unwrap();
            let (epoch, mut at) = (still.epoch(), range.start);
            for claim in claims {
                let run = claim.run();
                let pointer = Pointer { run, epoch, origin: epoch };
                Self::put_run(&mut tx, still.files(), file, at, pointer);
                at += u64::from(run.blocks);
                tx.allocate(claim);
            }
            still.apply(credit, tx, None).unwrap();
        });
        for (block, tag) in range.clone().zip(&tags) {
            let plain = self.plain.iter_mut();
            plain.for_each(|plain| plain.write(subvol.id(), (file, block), *tag));
        }
        let files = self.model.get_mut(&subvol.id()).unwrap();
        range.zip(tags).for_each(|(block, tag)| drop_value(files.insert((file, block), tag)));
    }

    fn tag(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn drop_range(&mut self) {
        let subvol = self.any();
        let (file, range) = self.range();
        let volumes = self.volumes.clone();
        self.rt.block_on(async {
            let mut tx = Transaction::new();
            Self::take(&volumes, &subvol, file, range.clone(), &mut tx).await;
            let credit = volumes.admit(&subvol, Tier::Delete, 64, 4096, 24).await.unwrap();
            volumes.apply(&subvol, credit, tx, None).unwrap();
        });
        for block in range.clone() {
            let plain = self.plain.iter_mut();
            plain.for_each(|plain| plain.drop_slot(subvol.id(), (file, block)));
        }
        let files = self.model.get_mut(&subvol.id()).unwrap();
        range.for_each(|block| drop_value(files.remove(&(file, block))));
    }

    fn reflink(&mut self) {
        let (from, to) = (self.any(), self.any());
        let (source, range) = self.range();
        let (target, at) = (1 + self.below(FILES), self.below(FILE_BLOCKS));
        // Of one file, only where the two ranges are apart.
        let blocks = range.end - range.start;
        if (from.id(), source) == (to.id(), target)
            && at < range.end + 32
            && range.start < at + blocks + 32
        {
            return;
        }
        let volumes = self.volumes.clone();
        self.rt.block_on(async {
            let ino = InodeNo(source);
            let (first, last) =
                (extent_key(ino, range.start.saturating_sub(32)), extent_key(ino, range.end));
            let items = volumes.range(&from, first, last, 10_000).await.unwrap();
            let mut found: Vec<(u64, Pointer)> = Vec::new();
            for (key, value) in items {
                let extent = Extent::parse(&value).unwrap();
                let (start, end) = (key.offset, key.offset + u64::from(extent.blocks()));
                let (a, b) = (start.max(range.start), end.min(range.end));
                if a < b {
                    let part = extent.slice((a - start) as u32, (b - a) as u32);
                    found.push((at + a - range.start, part.pointer));
                }
            }
            let mut tx = Transaction::new();
            Self::take(&volumes, &to, target, at..at + blocks, &mut tx).await;
            let runs: Vec<Run> = found.iter().map(|(_, pointer)| pointer.run).collect();
            let credit = volumes.admit(&to, Tier::Write, 128, 8192, 48).await.unwrap();
            let build = |epoch| {
                for (at, pointer) in &found {
                    let pointer = Pointer { epoch, ..*pointer };
                    Self::put_run(&mut tx, to.files(), target, *at, pointer);
                }
                tx
            };
            volumes.reflink(&from, &to, &runs, (credit, None), build).await.unwrap();
        });
        for (block, at) in range.clone().zip(at..) {
            let (from, to) = ((from.id(), (source, block)), (to.id(), (target, at)));
            self.plain.iter_mut().for_each(|plain| plain.reflink(from, to));
        }
        let tags: Vec<Option<u64>> =
            range.map(|block| self.model[&from.id()].get(&(source, block)).copied()).collect();
        let files = self.model.get_mut(&to.id()).unwrap();
        for (block, tag) in (at..).zip(tags) {
            match tag {
                Some(tag) => files.insert((target, block), tag),
                None => files.remove(&(target, block)),
            };
        }
    }

    pub(crate) fn new_subvol(&mut self) -> NewSubvol {
        let live: Vec<SubvolId> = self.model.keys().copied().collect();
        // Mostly in the root, so that many can be deleted.
        let holder = match self.below(4) {
            0 => live[self.below(live.len() as u64) as usize],
            _ => SubvolId::ROOT,
        };
        NewSubvol {
            place: ParentDirectory { subvol: holder, directory: InodeNo::ROOT },
            read_only: false,
            hash_key: HashKey([2; 16]),
            created: Timestamp::default(),
            identity: [2; 16],
            inherit: Inherit::FromHolder,
        }
    }

    fn entry(&mut self, new: &NewSubvol) -> Transaction {
        // Stands for the directory's entry: it must reach the holder's files, and no snapshot.
        let holder = self.volumes.subvol(new.place.subvol).unwrap();
        let mut tx = Transaction::new();
        let key = Key::new(9, copyhold_format::item::DIRENT, self.tag());
        tx.put(holder.files(), key, &b"entry"[..]);
        tx
    }

    fn set_limits(&mut self) {
        let (subvol, which, number) = (self.any(), self.below(6), self.below(3));
        // Promises are never above limits, so that none is refused.
        let limit = [u64::MAX, 10_000, 20_000][number as usize];
        let files = self.model.get_mut(&subvol.id()).expect("it lives");
        let old: Vec<u64> = take_limits(files).into_values().collect();
        let limits = match old[..] {
            [min, low, high, max, weight] => {
                GroupLimits { promise: Promise { min, low }, high, max, weight: weight as u32 }
            }
            _ => GroupLimits::default(),
        };
        let change = |limits: &GroupLimits| {
            let mut new = *limits;
            match which {
                0 => new.promise.min = number,
                1 => new.promise.low = number,
                2 => new.high = limit,
                3 => new.max = limit,
                4 => new.weight = 99 + number as u32,
                _ => new = GroupLimits::default(),
            }
            new
        };
        files.extend(numbers_of(&change(&limits)));
        let group = MemoryGroup::Of(&subvol);
        self.rt.block_on(change_memory_limits(&self.volumes, group, change)).unwrap();
    }

    fn snapshot(&mut self) {
        let (source, new) = (self.any(), self.new_subvol());
        self.snapshot_of(&source, &new);
    }

    /// A snapshot in the root.
    pub(crate) fn snapshot_in_root(&mut self, source: SubvolId) -> SubvolId {
        let new = NewSubvol { place: ROOT_PLACE, ..self.new_subvol() };
        let source = self.volumes.subvol(source).unwrap();
        self.snapshot_of(&source, &new)
    }

    fn snapshot_of(&mut self, source: &Arc<Subvol>, new: &NewSubvol) -> SubvolId {
        let tx = self.entry(new);
        let volumes = self.volumes.clone();
        let (subvol, numbers) = self.rt.block_on(async {
            let numbers = volumes.numbers(Some(source)).await.unwrap();
            let edits = Volumes::LIFE_EDITS + 1;
            let credit = volumes.pool().admit(Tier::Write, edits, 4096).await.unwrap();
            let next = InodeNo(1000);
            let made = volumes.snapshot(source, &numbers, new, next, (credit, None), tx);
            (made.unwrap().0, numbers)
        });
        let mut files = self.model[&source.id()].clone();
        take_limits(&mut files);
        self.model.insert(subvol.id(), files);
        self.owners.insert(numbers.epoch(), subvol.id());
        self.owners.insert(source.item().epoch, source.id());
        let ids = [source.item().epoch, numbers.epoch()];
        self.plain.iter_mut().for_each(|plain| plain.snapshot(source.id(), subvol.id(), ids));
        subvol.id()
    }

    fn create(&mut self) {
        let new = self.new_subvol();
        self.create_as(&new);
    }

    /// An empty subvolume in the root.
    pub(crate) fn create_in_root(&mut self) -> SubvolId {
        let new = NewSubvol { place: ROOT_PLACE, ..self.new_subvol() };
        self.create_as(&new)
    }

    fn create_as(&mut self, new: &NewSubvol) -> SubvolId {
        let tx = self.entry(new);
        let volumes = self.volumes.clone();
        let (subvol, _) = self.rt.block_on(async {
            let numbers = volumes.numbers(None).await.unwrap();
            let edits = Volumes::LIFE_EDITS + 1;
            let credit = volumes.pool().admit(Tier::Write, edits, 4096).await.unwrap();
            volumes.create(&numbers, new, credit, tx).unwrap()
        });
        let epoch = subvol.item().epoch;
        self.owners.insert(epoch, subvol.id());
        self.plain.iter_mut().for_each(|plain| plain.create(subvol.id(), epoch, epoch));
        self.model.insert(subvol.id(), Files::new());
        subvol.id()
    }

    fn delete(&mut self) {
        let subvol = self.any();
        self.delete_one(&subvol);
    }

    /// Whether it is gone: the root stays, and who holds others.
    pub(crate) fn delete_one(&mut self, subvol: &Arc<Subvol>) -> bool {
        let volumes = self.volumes.clone();
        let deleted = self.rt.block_on(async {
            let (edits, bytes) = (Volumes::LIFE_EDITS, Volumes::LIFE_BYTES);
            let credit = volumes.pool().admit(Tier::DeleteSubvolume, edits, bytes).await.unwrap();
            let leaving = Leaving { since: Timestamp::default(), name: b"gone", heir: None };
            volumes.delete(subvol, &leaving, credit, Transaction::new())
        });
        match deleted {
            Ok(_) => {
                self.model.remove(&subvol.id());
                self.plain.iter_mut().for_each(|plain| plain.delete(subvol.id()));
                assert!(
                    volumes.snapshot_guard(subvol).is_err(),
                    "nobody writes to what is deleted"
                );
            }
            Err(refused) => {
                let is_holder = self.holds(subvol.id()) || subvol.id() == SubvolId::ROOT;
                assert!(is_holder, "{refused}");
            }
        }
        !self.model.contains_key(&subvol.id())
    }

    /// One becomes what another is, where they are related; the old state is gone or kept.
    fn roll_back(&mut self) {
        let (old, snapshot, kept) = (self.any(), self.any(), self.new_subvol().place);
        let is_outside = !self.is_inside(kept.subvol, old.id());
        let keep = self.below(2) == 0 && self.model.len() < SUBVOLS && is_outside;
        let new = NewSubvol { place: old.item().place, ..self.new_subvol() };
        let mut tx = self.entry(&new);
        tx.put(Volumes::THERE, Key::new(9, copyhold_format::item::DIRENT, self.tag()), &b"e"[..]);
        let then = match keep {
            true => OldState::Kept(kept),
            false => OldState::Deleted { since: Timestamp::default(), name: b"gone" },
        };
        let volumes = self.volumes.clone();
        let (done, numbers) = self.rt.block_on(async {
            let numbers = volumes.numbers(Some(&snapshot)).await.unwrap();
            let (edits, bytes) = (2 * Volumes::LIFE_EDITS, 2 * Volumes::LIFE_BYTES);
            let credit = volumes.pool().admit(Tier::DeleteSubvolume, edits, bytes).await.unwrap();
            let next = InodeNo(1000);
            let done = volumes.roll_back(&old, &snapshot, &numbers, &new, next, then, credit, tx);
            (done, numbers)
        });
        let (old_id, related) = (old.id(), old.family_number() == snapshot.family_number());
        let may = old_id != SubvolId::ROOT && old_id != snapshot.id() && related;
        assert_eq!(done.is_ok(), may && (keep || !self.holds(old_id)), "{old_id}, keep {keep}");
        let Ok((subvol, _)) = done else { return };
        let mut files = self.model[&snapshot.id()].clone();
        take_limits(&mut files);
        files.extend(self.model[&old_id].range((LIMITS, 0)..));
        self.model.insert(subvol.id(), files);
        self.owners.insert(numbers.epoch(), subvol.id());
        self.owners.insert(snapshot.item().epoch, snapshot.id());
        let ids = [snapshot.item().epoch, numbers.epoch()];
        self.plain.iter_mut().for_each(|plain| plain.snapshot(snapshot.id(), subvol.id(), ids));
        if !keep {
            self.plain.iter_mut().for_each(|plain| plain.delete(old_id));
            self.model.remove(&old_id);
            self.heirs.insert(old_id, subvol.id());
        }
    }

    /// Who pays for what this one began.
    pub(crate) fn payer(&self, mut owner: SubvolId) -> SubvolId {
        while let Some(heir) = self.heirs.get(&owner) {
            owner = *heir;
        }
        owner
    }

    /// An entry goes to another subvolume, if that is not inside.
    fn move_entry(&mut self) {
        let (subvol, to) = (self.any(), self.any());
        if self.is_inside(to.id(), subvol.id()) || subvol.id() == SubvolId::ROOT {
            return;
        }
        let from = self.volumes.subvol(subvol.item().place.subvol).unwrap();
        let mut tx = Transaction::new();
        for (n, table) in [from.files(), Volumes::THERE].into_iter().enumerate() {
            let key = Key::new(9, copyhold_format::item::DIRENT, self.next + n as u64);
            tx.put(table, key, &b"entry"[..]);
        }
        let credit = self.rt.block_on(self.pool().admit(Tier::Write, 4, 1024)).unwrap();
        let place = ParentDirectory { subvol: to.id(), directory: InodeNo::ROOT };
        self.volumes
            .moved(&[(&subvol, place)], [&from, &to], None, false, (credit, Hold::nothing()), tx)
            .unwrap();
    }

    /// Whether it is `top`, or held by it or by what that holds.
    fn is_inside(&self, mut at: SubvolId, top: SubvolId) -> bool {
        while at != top && at != SubvolId::ROOT {
            at = self.volumes.subvol(at).unwrap().item().place.subvol;
        }
        at == top
    }

    fn holds(&self, holder: SubvolId) -> bool {
        let live = self.model.keys().filter(|id| **id != holder);
        let place = |id: &SubvolId| self.volumes.subvol(*id).unwrap().item().place.subvol;
        live.map(place).any(|place| place == holder)
    }

    pub(crate) fn background(&mut self) {
        let volumes = self.volumes.clone();
        let pending = volumes.pool().range(Pool::PENDING, Key::MIN, Key::MAX, 1);
        self.seen_pending |= !self.rt.block_on(pending).unwrap().is_empty();
        self.rt.block_on(volumes.background_step()).unwrap();
    }

    fn settle(&mut self) {
        let subvol = self.any();
        let pool = self.pool().clone();
        self.rt.block_on(pool.settle(subvol.files())).unwrap();
    }

    /// Power is lost some background steps after a commit.
    pub(crate) fn crash(&mut self) {
        let steps = self.below(6);
        self.crash_after(steps);
    }

    pub(crate) fn crash_after(&mut self, steps: u64) {
        self.commit();
        let volumes = self.volumes.clone();
        self.rt.block_on(async {
            for _ in 0..steps {
                volumes.background_step().await.unwrap();
            }
        });
        drop(volumes);
        self.lose_power();
        assert!(self.found() == self.model, "what was durable is there");
    }

    pub(crate) fn commit(&mut self) {
        let pool = self.pool().clone();
        self.rt.block_on(pool.commit(pool.open_txg())).unwrap();
        self.history.clear();
    }

    /// Power is lost with operations that nothing has made durable: what is there afterwards is
    /// what was there after one of them.
    fn crash_at_once(&mut self) {
        self.lose_power();
        let found = self.found();
        let states = self.history.drain(..).chain([self.model.clone()]);
        let state = states.into_iter().find(|state| *state == found);
        self.model = state.expect("a state since the last commit");
        let model = &self.model;
        self.heirs.retain(|old, _| !model.contains_key(old));
    }

    pub(crate) fn lose_power(&mut self) {
        let seed = self.rng.next_u64();
        let image = self.disk.crash(seed);
        self.rt.drop_tasks();
        let config = SimConfig::new(seed);
        self.disk = SimDevice::from_image(self.rt.clone() as Rt, DeviceId(0), image, config);
        self.volumes = open(&self.rt, &self.disk, self.config);
    }

    fn enable_quotas(&mut self) {
        let volumes = self.volumes.clone();
        let renewed = self.rt.block_on(async {
            let pool = volumes.pool();
            let credit = pool.admit(Tier::Write, 8, 1024).await.unwrap();
            volumes.enable_quotas(credit).await.unwrap();
            let root = volumes.subvol(SubvolId::ROOT).unwrap();
            assert!(volumes.is_outdated(&root));
            let credit = pool.admit(Tier::Write, 8, 1024).await.unwrap();
            volumes.renew(&root, credit).await.unwrap();
            assert!(!volumes.is_outdated(&root));
            // No crash undoes it: what follows is about quotas that are on.
            pool.commit(pool.open_txg()).await.unwrap();
            volumes.snapshot_guard(&root).unwrap().epoch()
        });
        self.owners.insert(renewed, SubvolId::ROOT);
    }

    pub(crate) fn finish(&mut self) {
        self.history.clear();
        let volumes = self.volumes.clone();
        self.rt.block_on(async {
            // Flushing gives up nodes, and what is given up may stay pending.
            for _ in 0..3 {
                volumes.finish_background().await.unwrap();
                volumes.pool().flush_all().await.unwrap();
            }
            volumes.finish_background().await.unwrap();
            volumes.pool().commit(volumes.pool().open_txg()).await.unwrap();
        });
    }

    pub(crate) fn delete_everything(&mut self) {
        let mut left: Vec<SubvolId> = self.model.keys().copied().collect();
        left.retain(|id| *id != SubvolId::ROOT);
        while !left.is_empty() {
            let at = self.below(left.len() as u64) as usize;
            let subvol = self.volumes.subvol(left[at]).unwrap();
            if self.delete_one(&subvol) {
                left.remove(at);
            }
        }
        self.finish();
        let all: Vec<SubvolId> = self.volumes.list().iter().map(|subvol| subvol.id()).collect();
        assert_eq!(all, [SubvolId::ROOT], "what was deleted is gone");
        let tables = self.pool().tables();
        let files = self.volumes.subvol(SubvolId::ROOT).unwrap().files();
        let ids: Vec<TableId> =
            tables.iter().map(|table| table.id()).filter(|id| *id > Pool::PENDING).collect();
        assert_eq!(ids, [files], "tables of what is gone are gone");
    }

    pub(crate) fn close(self) {
        self.rt.block_on(self.volumes.pool().close()).unwrap();
        self.rt.drop_tasks();
    }

    /// The extents of a subvolume.
    pub(crate) fn extents(&self, subvol: SubvolId) -> Vec<(Key, Extent)> {
        let subvol = self.volumes.subvol(subvol).unwrap();
        let (from, to) = (Key::MIN, Key::MAX);
        let items = self.rt.block_on(self.volumes.range(&subvol, from, to, usize::MAX));
        let items = items.unwrap().into_iter().filter(|(key, _)| key.kind == EXTENT);
        items.map(|(key, value)| (key, Extent::parse(&value).unwrap())).collect()
    }
}

fn drop_value<T>(_: Option<T>) {}
