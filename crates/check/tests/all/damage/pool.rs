//! A small pool with a few files of every kind, made item by item, and images of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use copyhold_check::{Options, Problem, Report, check_device};
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_device::{Device, DynDevice};
use copyhold_format::block_checksum;
use copyhold_format::item::{
    self, ChecksumMode, DIRENT, DirBucket, EPOCH, EpochItem, Extent, ExtentState, HashKey,
    InodeFlags, InodeItem, SUBVOL, SubvolItem, XATTR, XATTR_VALUE_PIECE, XattrBucket, XattrValue,
    dirent_bucket, xattr_bucket, xattr_piece,
};
use copyhold_pool::{
    BlockMode, CreateOptions, IdSpace, LaneClass, Limits, OpenOptions, Pool, PoolError, Tier,
    Transaction,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{
    BLOCK_BYTES, Buf, DeviceId, EpochId, InodeNo, Key, Pointer, Purpose, SubvolId, TableId,
    Timestamp,
};

pub(crate) const BLOCKS: u64 = 16384;
pub(crate) const HASH: HashKey = HashKey([7; 16]);
pub(crate) const DIR: InodeNo = InodeNo(2);
pub(crate) const LONG: InodeNo = InodeNo(3);
pub(crate) const SHORT: InodeNo = InodeNo(4);
pub(crate) const LINK: InodeNo = InodeNo(5);
pub(crate) const TINY: InodeNo = InodeNo(6);
pub(crate) const ATTRIBUTES: InodeNo = InodeNo(7);
pub(crate) const ORPHAN: InodeNo = InodeNo(8);
pub(crate) const RESERVED: InodeNo = InodeNo(9);
pub(crate) const MANY: InodeNo = InodeNo(10);
pub(crate) const FIRST_OF_MANY: u64 = 11;
pub(crate) const HOW_MANY: u64 = 400;

/// A device that is switched on.
pub(crate) struct Power {
    pub(crate) rt: Arc<SeededRuntime>,
    pub(crate) device: Arc<SimDevice>,
}

impl Power {
    pub(crate) fn on(image: &SimImage) -> Power {
        Power::seeded(image, 1)
    }

    pub(crate) fn seeded(image: &SimImage, seed: u64) -> Power {
        let rt = SeededRuntime::new(seed);
        let config = SimConfig::new(seed);
        let device = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image.clone(), config);
        Power { rt, device }
    }

    pub(crate) fn device(&self) -> DynDevice {
        self.device.clone()
    }

    pub(crate) fn open(&self, read_only: bool) -> Result<Arc<Pool>, PoolError> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        self.rt.block_on(Pool::open(self.rt.clone() as Rt, self.device(), options))
    }

    pub(crate) fn check(&self) -> Result<Report, PoolError> {
        let rt = self.rt.clone() as Rt;
        self.rt.block_on(check_device(rt, self.device(), Options::default()))
    }
}

/// What a check of this image finds.
pub(crate) fn report(image: &SimImage) -> Report {
    Power::on(image).check().unwrap()
}

/// The kinds of damage in an image, each once, in order.
pub(crate) fn kinds(image: &SimImage) -> Vec<&'static str> {
    let report = report(image);
    for finding in &report.findings {
        assert!(finding.what.len() > 20 && finding.meaning.len() > 20, "{finding:?}");
    }
    let mut kinds: Vec<_> = report.problems().map(Problem::kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Opens the pool to write, lets `change` happen, and closes it.
pub(crate) fn changed(image: &SimImage, change: impl AsyncFnOnce(&Files)) -> SimImage {
    let power = Power::on(image);
    let pool = power.open(false).unwrap();
    let files = Files { pool: pool.clone() };
    power.rt.block_on(async {
        change(&files).await;
        pool.close().await.unwrap();
    });
    power.rt.drop_tasks();
    power.device.image()
}

/// Items of the root subvolume, put by hand.
pub(crate) struct Files {
    pub(crate) pool: Arc<Pool>,
}

pub(crate) const TABLE: TableId = TableId(16);

pub(crate) fn inode(kind: u16, links: u32) -> InodeItem {
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    InodeItem {
        mode: kind << 12 | 0o644,
        has: InodeFlags::default(),
        nlink: links,
        uid: 0,
        gid: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        flags: 0,
        project: 0,
        rdev: 0,
        generation: 0,
        parent: InodeNo(0),
        xattrs: 0,
        checksum_mode: ChecksumMode::Item,
    }
}

pub(crate) fn content(ino: InodeNo, block: u64) -> Vec<u8> {
    let seed = ino.0 * 1000 + block;
    (0..BLOCK_BYTES as u64).map(|n| (seed * 31 + n * n) as u8).collect()
}

impl Files {
    pub(crate) async fn apply(&self, tx: Transaction) {
        let credit = self.pool.admit(Tier::Write, tx.len(), 1 << 16).await.unwrap();
        let txg = self.pool.apply(credit, tx).unwrap();
        self.pool.commit(txg).await.unwrap();
    }

    pub(crate) async fn put(&self, key: Key, value: &[u8]) {
        let mut tx = Transaction::new();
        tx.put(TABLE, key, value);
        self.apply(tx).await;
    }

    pub(crate) async fn delete(&self, key: Key) {
        let mut tx = Transaction::new();
        tx.delete(TABLE, key);
        self.apply(tx).await;
    }

    pub(crate) async fn get(&self, key: Key) -> Vec<u8> {
        self.pool.get(TABLE, key).await.unwrap().expect("the item is there").to_vec()
    }

    pub(crate) async fn change_inode(&self, ino: InodeNo, change: impl FnOnce(&mut InodeItem)) {
        let key = item::inode_key(ino);
        let mut item = InodeItem::parse(&self.get(key).await).unwrap();
        change(&mut item);
        self.put(key, &item.encode()).await;
    }

    /// An entry, without counting it anywhere.
    pub(crate) async fn put_name(&self, dir: InodeNo, name: &[u8], kind: u8, to: InodeNo) {
        let bucket = DirBucket::EMPTY.with(kind, to, name).unwrap();
        self.put(Key::new(dir.0, DIRENT, dirent_bucket(&HASH, name)), &bucket).await;
    }

    /// A new directory with these entries.
    fn directory(&self, tx: &mut Transaction, ino: InodeNo, parent: InodeNo, names: &Names) {
        let subdirs = names.values().filter(|(kind, _)| *kind == 4).count() as u32;
        let item = InodeItem { parent, size: names.len() as u64, ..inode(4, 2 + subdirs) };
        tx.put(TABLE, item::inode_key(ino), &item.encode()[..]);
        for (name, (kind, to)) in names {
            let bucket = DirBucket::EMPTY.with(*kind, *to, name.as_bytes()).unwrap();
            let key = Key::new(ino.0, DIRENT, dirent_bucket(&HASH, name.as_bytes()));
            tx.put(TABLE, key, bucket);
        }
    }

    /// Extents of `blocks` blocks of content from file block `from` on.
    async fn extents(&self, tx: &mut Transaction, ino: InodeNo, from: u64, blocks: u32) {
        let mut reservation = self.pool.reserve(u64::from(blocks), Tier::Write).await.unwrap();
        let claims = self.pool.claim(LaneClass::Data, blocks.into(), &mut reservation).unwrap();
        let mut at = from;
        for claim in claims {
            let run = claim.run();
            let data: Vec<Vec<u8>> =
                (at..at + u64::from(run.blocks)).map(|block| content(ino, block)).collect();
            let sums = data.iter().map(|block| block_checksum(block)).collect();
            let bufs = data.iter().map(|block| Buf::from_bytes(block)).collect();
            self.pool.write(run, bufs, Purpose::Data, BlockMode::PLAIN).await.unwrap();
            let pointer = Pointer { run, epoch: EpochId(1), origin: EpochId(1) };
            let extent = Extent { pointer, state: ExtentState::Written(sums) };
            tx.put(TABLE, item::extent_key(ino, at), &extent.encode()[..]);
            tx.allocate(claim);
            at += u64::from(run.blocks);
        }
    }

    /// A file with content.
    async fn file(&self, ino: InodeNo, links: u32, blocks: u32) {
        let mut tx = Transaction::new();
        for from in (0..blocks).step_by(32) {
            self.extents(&mut tx, ino, from.into(), 32.min(blocks - from)).await;
        }
        let bytes = u64::from(blocks) * BLOCK_BYTES as u64;
        let item = InodeItem { size: bytes, allocated: bytes, ..inode(8, links) };
        tx.put(TABLE, item::inode_key(ino), &item.encode()[..]);
        self.apply(tx).await;
    }

    async fn special_files(&self) {
        let mut tx = Transaction::new();
        let link = InodeItem { size: 3, ..inode(10, 1) };
        tx.put(TABLE, item::inode_key(LINK), &link.encode()[..]);
        tx.put(TABLE, item::symlink_key(LINK), &b"any"[..]);
        let tiny = InodeItem { size: 5, has: InodeFlags(InodeFlags::INLINE), ..inode(8, 1) };
        tx.put(TABLE, item::inode_key(TINY), &tiny.encode()[..]);
        tx.put(TABLE, item::inline_key(TINY), &b"hello"[..]);
        let attributes = InodeItem { xattrs: 2, ..inode(8, 1) };
        tx.put(TABLE, item::inode_key(ATTRIBUTES), &attributes.encode()[..]);
        for (name, value) in
            [(&b"user.a"[..], XattrValue::Here(b"1")), (b"user.long", XattrValue::Pieces(5000))]
        {
            let bucket = xattr_bucket(&HASH, name);
            let (bytes, index) = XattrBucket::EMPTY.with(name, value).unwrap();
            tx.put(TABLE, Key::new(ATTRIBUTES.0, XATTR, bucket), bytes);
            for n in 0..value.pieces() {
                let len = (5000 - n * XATTR_VALUE_PIECE).min(XATTR_VALUE_PIECE);
                let piece = vec![9; len];
                tx.put(TABLE, xattr_piece(ATTRIBUTES, bucket, index, n), piece);
            }
        }
        let mut reservation = self.pool.reserve(4, Tier::Write).await.unwrap();
        let claim = self.pool.claim(LaneClass::Data, 4, &mut reservation).unwrap().remove(0);
        let pointer = Pointer { run: claim.run(), epoch: EpochId(1), origin: EpochId(1) };
        let extent = Extent { pointer, state: ExtentState::Unwritten };
        let bytes = 4 * BLOCK_BYTES as u64;
        let item = InodeItem { allocated: bytes, ..inode(8, 1) };
        tx.put(TABLE, item::inode_key(RESERVED), &item.encode()[..]);
        tx.put(TABLE, item::extent_key(RESERVED, 0), &extent.encode()[..]);
        tx.allocate(claim);
        tx.put(TABLE, item::orphan_key(ORPHAN), &[][..]);
        self.apply(tx).await;
    }

    async fn format(&self) {
        let pool = &self.pool;
        assert_eq!(pool.new_table().await.unwrap(), TABLE);
        let epoch = pool.next_id(IdSpace::Epoch).await.unwrap().max(1);
        let space = IdSpace::Inode(SubvolId::ROOT);
        assert_eq!(pool.next_id(space).await.unwrap(), DIR.0);
        let place = item::ParentDirectory { subvol: SubvolId::ROOT, directory: InodeNo::ROOT };
        let (created, identity, first) = (Timestamp::default(), [3; 16], EpochId(epoch));
        let subvol = SubvolItem::new(TABLE, first, place, HASH, created, identity);
        let record = EpochItem::root(SubvolId::ROOT, TABLE, first);
        let mut tx = Transaction::new();
        let key = Key::new(SubvolId::ROOT.0.into(), SUBVOL, 0);
        tx.put(Pool::SYSTEM, key, &subvol.encode()[..]);
        tx.put(Pool::SYSTEM, Key::new(epoch, EPOCH, 0), &record.encode()[..]);
        self.apply(tx).await;
    }

    async fn fill(&self) {
        self.format().await;
        let names = |list: &[(&str, u8, InodeNo)]| -> Names {
            list.iter().map(|(name, kind, ino)| ((*name).to_owned(), (*kind, *ino))).collect()
        };
        let mut tx = Transaction::new();
        let root = names(&[
            ("dir", 4, DIR),
            ("long", 8, LONG),
            ("link", 10, LINK),
            ("tiny", 8, TINY),
            ("attributes", 8, ATTRIBUTES),
            ("reserved", 8, RESERVED),
            ("many", 4, MANY),
        ]);
        self.directory(&mut tx, InodeNo::ROOT, InodeNo::ROOT, &root);
        let dir = names(&[("b", 8, SHORT), ("c", 8, SHORT)]);
        self.directory(&mut tx, DIR, InodeNo::ROOT, &dir);
        self.apply(tx).await;
        self.file(LONG, 1, 70).await;
        self.file(SHORT, 2, 1).await;
        self.file(ORPHAN, 0, 2).await;
        self.special_files().await;
        self.many().await;
    }

    async fn many(&self) {
        let inos = FIRST_OF_MANY..FIRST_OF_MANY + HOW_MANY;
        let names: Names =
            inos.clone().map(|n| (format!("file{n:060}"), (8, InodeNo(n)))).collect();
        let mut tx = Transaction::new();
        self.directory(&mut tx, MANY, InodeNo::ROOT, &names);
        self.apply(tx).await;
        for ino in inos {
            self.file(InodeNo(ino), 1, 1).await;
        }
    }
}

type Names = BTreeMap<String, (u8, InodeNo)>;

/// A pool as it is after a clean close: all in bases, nearly nothing in the log.
pub(crate) fn sound() -> SimImage {
    sound_with(4096, None)
}

/// As [`sound`], with leaves of this size, and free space in runs that are as short as that.
pub(crate) fn sound_with(node_bytes: u32, run_max: Option<u32>) -> SimImage {
    let power = Power::on(&SimImage::empty(BLOCKS));
    let options = CreateOptions {
        log_bytes: Some(4 << 20),
        metaslab_blocks: Some(1024),
        node_bytes: Some(node_bytes),
        partition_leaves: Some(4),
        ..CreateOptions::default()
    };
    let rt: Rt = power.rt.clone();
    power.rt.block_on(Pool::create(&rt, &power.device(), &options)).unwrap();
    let limits = Limits { run_max, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let pool = power.rt.block_on(Pool::open(rt, power.device(), options)).unwrap();
    let files = Files { pool: pool.clone() };
    power.rt.block_on(async {
        files.fill().await;
        pool.flush_all().await.unwrap();
        pool.close().await.unwrap();
    });
    power.rt.drop_tasks();
    assert!(power.device.counters().snapshot().flushes > 0);
    power.device.image()
}

/// Flips a bit of a block.
pub(crate) fn rot(image: &mut SimImage, block: u64) {
    image.corrupt(block, |bytes| bytes[77] ^= 4);
}
