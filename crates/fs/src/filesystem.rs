//! The filesystem as a whole: making, opening, closing, and the needs of every operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use copyhold_format::FormatError;
use copyhold_format::item::{
    self, ChecksumMode, EPOCH, EpochItem, HashKey, InodeFlags, InodeItem, ParentDirectory, SUBVOL,
    SubvolItem,
};
use copyhold_pool::{Credit, IdSpace, Pool, Tier, Transaction, Value};
use copyhold_runtime::{FifoMutex, Rt};
use copyhold_sync::{RwLock, of};
use copyhold_types::{BLOCK_BYTES, Buf, EpochId, InodeNo, Key, SubvolId, Timestamp, Txg};
use copyhold_volume::{InodeChange, Volumes};

use crate::atimes::Atimes;
use crate::cache::InodeCache;
use crate::entry_names::EntryNames;
use crate::inode::{Inode, InodeRef};
use crate::names::AbsentNames;
use crate::promise::Charge;
use crate::reaper::Reaper;
use crate::refusal::Refusals;
use crate::sabotage::Sabotage;
use crate::subvol::{FILES, Subvol};
use crate::throttle::Delays;
use crate::writeback::WritebackScheduler;
use crate::{Caller, FileFlags, FsError, NodeId, Options, Result, StatFs};

/// Numbers from here on are placeholders': the subvolume's number is added.
pub(crate) const FIRST_PLACEHOLDER: u64 = 1 << (InodeNo::BITS - 1);

/// So many blocks of data take up to one more for the map that leads to them: extents of 32 blocks
/// with their checksums, in two copies, in leaves of the worst fill.
const DATA_PER_MAP: u64 = 112;

/// Blocks in the buffer of zeros that holes are read from.
const ZERO_BLOCKS: usize = 32;

/// The files of a pool's root subvolume.
pub struct Filesystem {
    pub(crate) pool: Arc<Pool>,
    pub(crate) rt: Rt,
    pub(crate) options: Options,
    /// For tasks that outlive the call that begins them.
    pub(crate) me: Weak<Filesystem>,
    pub(crate) volumes: Arc<Volumes>,
    /// The subvolumes in use.
    pub(crate) subvols: RwLock<BTreeMap<SubvolId, Arc<Subvol>>, of::Subvols>,
    /// Moves of subvolumes between subvolumes, one at a time: so no subvolume becomes nested inside
    /// itself.
    pub(crate) moves: FifoMutex,
    pub(crate) inodes: InodeCache,
    pub(crate) flusher: WritebackScheduler,
    pub(crate) reaper: Reaper,
    pub(crate) refusals: Refusals,
    pub(crate) atimes: Atimes,
    pub(crate) zeros: Buf,
    names: Arc<AbsentNames>,
    entry_names: EntryNames,
    delays: Delays,
    fsid: u64,
    closed: AtomicBool,
}

/// The free blocks left for data when its map has its share.
fn without_maps(blocks: u64) -> u64 {
    blocks - blocks.div_ceil(DATA_PER_MAP)
}

impl Filesystem {
    /// Makes the root subvolume of a new pool, in one transaction, and commits it. The root
    /// directory belongs to `owner` and has permissions `mode`.
    pub async fn format(pool: &Arc<Pool>, owner: &Caller, mode: u32) -> Result<()> {
        let rt = pool.runtime();
        let table = pool.new_table().await?;
        let epoch = EpochId(pool.next_id(IdSpace::Epoch).await?);
        let now = rt.wall_clock();
        let place = ParentDirectory { subvol: SubvolId::ROOT, directory: InodeNo::ROOT };
        let hash_key = HashKey(random_bytes(rt));
        let subvol = SubvolItem::new(table, epoch, place, hash_key, now, random_bytes(rt));
        let record = EpochItem::root(SubvolId::ROOT, table, epoch);
        let root =
            InodeItem { parent: InodeNo::ROOT, nlink: 2, ..new_item(0o040000 | mode, owner, now) };

        let credit = pool.admit(Tier::Write, 3, 512).await?;
        let mut tx = Transaction::new();
        tx.put(Pool::SYSTEM, subvol_key(SubvolId::ROOT), &subvol.encode()[..]);
        tx.put(Pool::SYSTEM, Key::new(epoch.0, EPOCH, 0), &record.encode()[..]);
        tx.put(table, item::inode_key(InodeNo::ROOT), &root.encode()[..]);
        let txg = pool.apply(credit, tx)?;
        Ok(pool.commit(txg).await?)
    }

    /// Opens the subvolumes of a pool that was opened for tenants
    /// ([`OpenOptions::tenants`](copyhold_pool::OpenOptions)). Files that were unlinked while open
    /// when the pool was last used are removed in the background.
    pub async fn open(pool: Arc<Pool>, options: Options) -> Result<Arc<Filesystem>> {
        let volumes = Volumes::open(pool.clone()).await?;
        let root = volumes.subvol(SubvolId::ROOT).ok_or_else(|| FsError::Record {
            what: format!("the record of subvolume {}", SubvolId::ROOT),
            source: FormatError::Short { what: "subvolume record", len: 0 },
        })?;
        let fsid = u64::from_le_bytes(root.item().identity[..8].try_into().expect("eight bytes"));
        let fs = Arc::new_cyclic(|me| Filesystem {
            me: me.clone(),
            rt: pool.runtime().clone(),
            volumes,
            subvols: RwLock::default(),
            moves: FifoMutex::new(),
            inodes: InodeCache::new(pool.memory().clone(), &options),
            flusher: WritebackScheduler::new(&options, pool.runtime()),
            reaper: Reaper::default(),
            refusals: Refusals::default(),
            atimes: Atimes::new(&options),
            zeros: Buf::zeroed(ZERO_BLOCKS),
            names: Arc::new(AbsentNames::new(pool.memory().clone(), &options)),
            entry_names: EntryNames::default(),
            delays: Delays::default(),
            fsid,
            closed: AtomicBool::new(false),
            options,
            pool,
        });
        if fs.writable().is_ok() {
            fs.volumes.begin_background();
        }
        fs.subvol(SubvolId::ROOT).await?;
        Ok(fs)
    }

    /// Writes everything, removes unreferenced files, and ends background work. The pool stays
    /// open: close it next. Operations after this answer [`FsError::ShutDown`].
    pub async fn close(self: &Arc<Self>) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut result = Ok(());
        if self.writable().is_ok() {
            result = self.sync().await;
            self.orphans_are_closed();
            self.reaper_idle().await;
            if result.is_ok() {
                result = self.sync().await;
            }
        }
        self.closed.store(true, Ordering::Release);
        self.flusher.end();
        result
    }

    /// Stops at once (GOINGDOWN); with `flush` everything is written first. EIO afterwards.
    pub async fn shut_down(self: &Arc<Self>, flush: bool) -> Result<()> {
        let result = if flush { self.sync().await } else { Ok(()) };
        self.closed.store(true, Ordering::Release);
        self.flusher.end();
        self.pool.stop("the filesystem was told to go down");
        result
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The names that are known to be absent.
    pub fn names(&self) -> &Arc<AbsentNames> {
        &self.names
    }

    /// The names of subvolumes, for lists.
    pub fn entry_names(&self) -> &EntryNames {
        &self.entry_names
    }

    /// Where requests of groups above their limits wait.
    pub fn delays(&self) -> &Delays {
        &self.delays
    }

    pub fn root(&self) -> NodeId {
        NodeId::ROOT
    }

    /// The available space is the space for data in files that are not tiny: one file of that
    /// length fits, with its map.
    pub fn statfs(&self) -> StatFs {
        let space = self.pool.space();
        StatFs {
            block_bytes: BLOCK_BYTES as u32,
            blocks: space.total,
            blocks_free: space.free + space.freeing,
            blocks_available: without_maps(space.available() + space.freeing),
            // An inode takes about a quarter of a block of nodes, in two copies.
            files: space.total.saturating_mul(2),
            files_free: space.available().saturating_mul(2),
            name_max: item::NAME_MAX as u32,
            fsid: self.fsid,
        }
    }

    /// As [`Self::statfs`], as the subvolume of `node` sees it: no more than its limits and the
    /// reserves of others leave.
    pub fn statfs_of(&self, node: NodeId) -> StatFs {
        let pool = self.statfs();
        let Some(room) = self.volumes.ledger().room(node.subvol) else { return pool };
        let block = BLOCK_BYTES as u64;
        let kept = self.volumes.ledger().kept_for_others(node.subvol) / block;
        let mut shown = StatFs {
            blocks_free: pool.blocks_free.saturating_sub(kept),
            blocks_available: pool.blocks_available.saturating_sub(kept),
            ..pool
        };
        if let Some(left) = room.bytes_left.map(|bytes| bytes / block) {
            shown.blocks = pool.blocks.min(room.bytes.div_ceil(block) + left);
            shown.blocks_free = shown.blocks_free.min(left);
            shown.blocks_available = shown.blocks_available.min(left);
        }
        if let Some(left) = room.inodes_left {
            shown.files = pool.files.min(room.inodes + left);
            shown.files_free = pool.files_free.min(left);
        }
        shown
    }

    /// Discards the free runs of `len` bytes of the device from `start` on, in runs of at least
    /// `min_bytes`; bytes discarded.
    pub async fn trim(&self, start: u64, len: u64, min_bytes: u64) -> Result<u64> {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        if !self.breaks(Sabotage::TrimReadOnly) {
            self.writable()?;
        }
        if len < BLOCK || start / BLOCK >= self.statfs().blocks {
            return Err(FsError::Invalid("a range to trim"));
        }
        let range = start.div_ceil(BLOCK)..start.saturating_add(len) / BLOCK;
        let blocks = self.pool.trim(range, min_bytes.div_ceil(BLOCK).max(1)).await?;
        Ok(blocks * BLOCK_BYTES as u64)
    }

    // -- the needs of operations ---------------------------------------------------------------

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn usable(&self) -> Result<()> {
        if self.is_closed() { Err(FsError::ShutDown) } else { Ok(()) }
    }

    pub(crate) fn writable(&self) -> Result<()> {
        self.usable()?;
        let why = match () {
            () if self.options.read_only => "it is mounted so",
            () if self.pool.is_read_only() => "the pool is",
            () => return Ok(()),
        };
        Err(FsError::ReadOnly { why: why.into() })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.rt.wall_clock()
    }

    /// An existing subvolume that is not being deleted, with its leftovers known: those of its last
    /// use, or, for a snapshot, of its source (R38).
    pub(crate) async fn subvol(&self, id: SubvolId) -> Result<Arc<Subvol>> {
        let known = self.subvols.read().get(&id).cloned();
        let subvol = match known {
            Some(subvol) => subvol,
            None => {
                let subvol = Arc::new(Subvol::new(self.volumes.subvol(id).ok_or(FsError::Stale)?));
                subvol.present()?;
                self.subvols.write().entry(id).or_insert(subvol).clone()
            }
        };
        subvol.present()?;
        if !subvol.leftovers.are_known() {
            Box::pin(self.await_leftovers(&subvol)).await;
        }
        Ok(subvol)
    }

    /// An inode that exists, loaded if it must be.
    pub(crate) async fn inode(&self, node: NodeId) -> Result<InodeRef> {
        self.usable()?;
        if let Some(inode) = self.inodes.get(node) {
            if !inode.subvol.leftovers.are_known() {
                Box::pin(self.await_leftovers(&inode.subvol)).await;
            }
            return Ok(inode);
        }
        let subvol = self.subvol(node.subvol).await?;
        if node.ino.0 >= FIRST_PLACEHOLDER {
            return Ok(Arc::new(placeholder(&subvol, node.ino)));
        }
        let _loading = self.inodes.loading(node).await;
        if let Some(inode) = self.inodes.get(node) {
            return Ok(inode);
        }
        let evicted_txg = self.inodes.evicted_txg(node);
        let last_txg = evicted_txg.filter(|_| !self.breaks(Sabotage::ForgetEvicted));
        let value = self.get(&subvol, item::inode_key(node.ino)).await?;
        let item = InodeItem::parse(&value.ok_or(FsError::Stale)?)
            .map_err(|source| self.damaged_record("the inode item", node, source))?;
        let inode = Arc::new(Inode::new(&subvol, node.ino, item, last_txg));
        self.remember_emptied(&inode);
        self.take_leftovers(&inode);
        self.inodes.insert(inode.clone());
        if let Err(gone) = subvol.present() {
            // The deletion may have missed this inode.
            self.forget_inode(&inode);
            return Err(gone);
        }
        Ok(inode)
    }

    pub(crate) fn damaged_record(&self, what: &str, node: NodeId, source: FormatError) -> FsError {
        let what = format!("{what} of subvolume {} inode {}", node.subvol, node.ino);
        tracing::error!(subvol = node.subvol.0, ino = node.ino.0, %source, "{what} is damaged");
        FsError::Record { what, source }
    }

    /// Credit for a transaction: the last thing that is waited for. Dirty data that was accepted
    /// asks with the internal tier: it waits for room in the log like everybody, but is never
    /// refused. The estimate should be close: all of it is held until the edits are flushed.
    pub(crate) async fn credit(&self, tier: Tier, edits: usize, bytes: usize) -> Result<Credit> {
        Ok(self.pool.admit(tier, edits, bytes).await?)
    }

    /// As [`Self::credit`], of a transaction of a subvolume's files that drops at most `releases`
    /// pointers: their entries in deadlists and shares take space, too.
    pub(crate) async fn credit_to_release(
        &self,
        subvol: &Subvol,
        tier: Tier,
        (edits, bytes): (usize, usize),
        releases: usize,
    ) -> Result<Credit> {
        Ok(self.volumes.admit(&subvol.volume, tier, edits, bytes, releases).await?)
    }

    /// Applies a transaction that stamps no pointers.
    pub(crate) fn apply(
        &self,
        subvol: &Subvol,
        charge: impl Into<Charge>,
        tx: Transaction,
    ) -> Result<Txg> {
        let Charge { credit, mut hold } = charge.into();
        Ok(self.volumes.apply(&subvol.volume, credit, tx, Some(&mut hold))?)
    }

    /// As [`Self::apply`], of a transaction that adds an inode or takes one away.
    pub(crate) fn apply_inode(
        &self,
        subvol: &Subvol,
        charge: impl Into<Charge>,
        tx: Transaction,
        change: InodeChange,
    ) -> Result<Txg> {
        let Charge { credit, mut hold } = charge.into();
        let guard = self.volumes.snapshot_guard(&subvol.volume)?.with_inode(change);
        Ok(guard.apply(credit, tx, Some(&mut hold))?)
    }

    pub(crate) fn put_inode(&self, tx: &mut Transaction, ino: InodeNo, item: &InodeItem) {
        tx.put(FILES, item::inode_key(ino), &item.encode()[..]);
    }

    /// The value of a key among a subvolume's files. Like the two functions below, it is called
    /// after the check that the subvolume exists: a deleted one has no table, which reads as an
    /// empty one.
    pub(crate) async fn get(&self, subvol: &Subvol, key: Key) -> Result<Option<Value>> {
        let found = self.volumes.get(&subvol.volume, key).await?;
        subvol.present().map(|()| found)
    }

    /// Items of a subvolume's files with `from <= key < to`, ascending, at most `limit`.
    pub(crate) async fn range(
        &self,
        subvol: &Subvol,
        from: Key,
        to: Key,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>> {
        let found = self.volumes.range(&subvol.volume, from, to, limit).await?;
        subvol.present().map(|()| found)
    }

    /// The last item of a subvolume's files with `floor <= key < below`.
    pub(crate) async fn last_below(
        &self,
        subvol: &Subvol,
        below: Key,
        floor: Key,
    ) -> Result<Option<(Key, Value)>> {
        let found = self.volumes.last_below(&subvol.volume, below, floor).await?;
        subvol.present().map(|()| found)
    }

    pub(crate) async fn next_ino(&self, subvol: &Subvol) -> Result<InodeNo> {
        let ino = self.pool.next_id(IdSpace::Inode(subvol.id())).await?;
        if ino >= FIRST_PLACEHOLDER {
            return Err(FsError::Crowded { what: "inode number in this subvolume" });
        }
        let node = subvol.node(InodeNo(ino));
        if self.inodes.get(node).is_some() {
            let source = FormatError::Field { what: "id mark", field: "next", value: ino };
            return Err(self.damaged_record(
                "the high-water mark of inode numbers, at",
                node,
                source,
            ));
        }
        Ok(InodeNo(ino))
    }
}

fn subvol_key(subvol: SubvolId) -> Key {
    Key::new(subvol.0.into(), SUBVOL, 0)
}

pub(crate) fn random_bytes(rt: &Rt) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rt.random().to_le_bytes());
    bytes[8..].copy_from_slice(&rt.random().to_le_bytes());
    bytes
}

/// An immutable empty directory: the target of a subvolume's entry where that subvolume is not.
fn placeholder(subvol: &Arc<Subvol>, ino: InodeNo) -> Inode {
    let born = subvol.volume.item().created;
    let item = InodeItem {
        nlink: 2,
        flags: FileFlags::IMMUTABLE.0,
        parent: InodeNo::ROOT,
        ..new_item(0o040555, &Caller::ROOT, born)
    };
    Inode::new(subvol, ino, item, None)
}

/// The item of a new file without content: one link, all times `now`.
pub(crate) fn new_item(mode: u32, owner: &Caller, now: Timestamp) -> InodeItem {
    InodeItem {
        mode: mode as u16,
        has: InodeFlags::default(),
        nlink: 1,
        uid: owner.uid,
        gid: owner.gid,
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

#[cfg(test)]
mod tests {
    use copyhold_device::DynDevice;
    use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
    use copyhold_pool::{CreateOptions, OpenOptions};
    use copyhold_runtime::SeededRuntime;
    use copyhold_types::DeviceId;

    use super::*;

    #[test]
    fn what_is_read_of_a_subvolume_behind_its_deletion_is_stale_and_not_empty() {
        let runtime = SeededRuntime::new(1);
        let rt: Rt = runtime.clone();
        let image = SimImage::empty(16384);
        let device: DynDevice =
            SimDevice::from_image(rt.clone(), DeviceId(0), image, SimConfig::new(1));
        runtime.block_on(async {
            let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
            Pool::create(&rt, &device, &options).await.unwrap();
            let options = OpenOptions { tenants: true, ..OpenOptions::default() };
            let pool = Pool::open(rt.clone(), device.clone(), options).await.unwrap();
            Filesystem::format(&pool, &Caller::ROOT, 0o755).await.unwrap();
            let fs = Filesystem::open(pool, Options::default()).await.unwrap();
            let by = &Caller::ROOT;
            let id = fs.create_subvolume(by, NodeId::ROOT, b"a", None).await.unwrap();
            let subvol = fs.subvol(id).await.unwrap();
            let key = item::inode_key(InodeNo::ROOT);
            assert!(fs.get(&subvol, key).await.unwrap().is_some());

            fs.delete_subvolume(NodeId::ROOT, b"a", None).await.unwrap();
            fs.volumes().finish_background().await.unwrap();
            let got = fs.get(&subvol, key).await;
            assert!(matches!(got, Err(FsError::Stale)), "{got:?}");
            let listed = fs.range(&subvol, Key::MIN, Key::MAX, 10).await;
            assert!(matches!(listed, Err(FsError::Stale)), "{listed:?}");
            let last = fs.last_below(&subvol, Key::MAX, Key::MIN).await;
            assert!(matches!(last, Err(FsError::Stale)), "{last:?}");
            fs.close().await.unwrap();
            fs.pool().close().await.unwrap();
        });
    }
}
