//! The subvolumes of a pool, and the families that they are in.
//!
//! In core: each subvolume's record, and its family's tree of epochs. All of it is read from the
//! system table when the pool is opened; no tree of files is.
//!
//! ```text
//!   subvolume ──▶ family: tree (lock), burial (lock)      epoch ──▶ family
//!                                                         table ──▶ family, epoch
//! ```
//!
//! Locks, in order: trees of families by their ids (shared by stamps and releases of pointers,
//! exclusive for seal, absorption and a subvolume's end, R4); their burials, by id (R16); the
//! shares; owners and groups; then those of the pool, beginning with the open txg's gate. They are
//! held from a decision until its edits are in the log and in the tables: then the order of
//! decisions is the order of the log. None is held across an await. All of them with all others:
//! `copyhold_sync::Rank`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use copyhold_format::item::{
    EPOCH, EpochItem, MEMORY, MemoryItem, SHARED_MEMORY, SUBVOL, SubvolFlags, SubvolItem,
    SubvolState, subvol_key,
};
use copyhold_memory::{Memory, MemoryOwner};
use copyhold_pool::{
    Credit, EDITS_PER_RELEASE, Pool, RELEASE_EDIT_BYTES, Tier, Transaction, own_table,
};
use copyhold_runtime::FifoMutex;
use copyhold_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, of};
use copyhold_types::{EpochId, Key, SubvolId, TableId, Txg};

use crate::aside::Aside;
use crate::error::{Result, VolumeError};
use crate::family::{Birth, Family, FamilyId};
use crate::index::{Placed, Subvols};
use crate::limits;
use crate::nodes::{Tenants, unflushed_of};
use crate::pace::Freeing;
use crate::queue::Queue;
use crate::quota::{Ledger, Loader, Resident};

/// Items of the system table that are read at a time.
const STEP: usize = 1024;
/// A sequence number is a txg and a count.
const SEQUENCE_BITS: u32 = 24;

/// All subvolumes of an open pool. Cheap to build from its two parts (`nodes::Tenants`).
pub struct Volumes {
    pub(crate) pool: Arc<Pool>,
    pub(crate) state: Arc<VolumesState>,
}

/// All state of [`Volumes`]. It refers to the pool weakly, because the pool's `Tenancy` keeps it.
pub(crate) struct VolumesState {
    pub(crate) pool: Weak<Pool>,
    pub(crate) map: RwLock<Map, of::Volumes>,
    /// Held by changes of the table of shares.
    pub(crate) shares: Mutex<(), of::Shares>,
    /// Whether that table may have anything.
    pub(crate) sharing: AtomicBool,
    /// Pending releases that cannot be taken up.
    pub(crate) aside: Mutex<Aside, of::ReleasesAside>,
    /// Held by changes of owners and groups (`quota`).
    pub(crate) owners: Mutex<(), of::Owners>,
    pub(crate) ledger: Ledger,
    /// The newest epoch number that is stamped; changed with `owners` held.
    pub(crate) newest: AtomicU64,
    sequence: AtomicU64,
    /// One step of background work at a time.
    pub(crate) working: FifoMutex,
    /// The work that the background has done.
    pub(crate) freeing: Freeing,
}

/// The index of subvolumes and epochs. Locked for a moment, after any family.
#[derive(Default)]
pub(crate) struct Map {
    pub(crate) subvols: Subvols<Subvol>,
    /// Those of them that are being deleted.
    pub(crate) dying: Queue,
    pub(crate) epochs: BTreeMap<EpochId, Arc<FamilyCell>>,
    pub(crate) tables: BTreeMap<TableId, (Arc<FamilyCell>, EpochId)>,
}

/// A family and its locks.
pub(crate) struct FamilyCell {
    pub(crate) id: FamilyId,
    tree: RwLock<Family, of::Family>,
    /// Held while a pointer is looked up in a sibling's deadlist and put on its own (R16).
    burial: Mutex<(), of::Burial>,
}

/// A subvolume, live or being deleted.
pub struct Subvol {
    id: SubvolId,
    pub(crate) family: Arc<FamilyCell>,
    /// Of the memory that its files take.
    owner: MemoryOwner,
    item: Mutex<SubvolItem, of::SubvolItem>,
    /// The part of the item that each operation reads: where the files are, and whether it is
    /// being deleted, or is read-only.
    files: AtomicU64,
    dying: AtomicBool,
    read_only: AtomicBool,
    /// Twice the number of times that its files were moved to another table; odd while they are.
    moves: AtomicU64,
    /// The last txg that made, moved or changed it as a whole since the pool was opened; or 0.
    told: AtomicU64,
    /// How much of its tree its deletion has gone through, in percent.
    pub(crate) walked: AtomicU8,
}

impl Subvol {
    pub(crate) fn new(
        id: SubvolId,
        family: Arc<FamilyCell>,
        item: SubvolItem,
        owner: MemoryOwner,
    ) -> Arc<Subvol> {
        let files = AtomicU64::new(item.table.0);
        let dying = AtomicBool::new(item.state != SubvolState::Live);
        let read_only = AtomicBool::new(item.flags.read_only());
        let (moves, told) = (AtomicU64::new(0), AtomicU64::new(0));
        let (item, walked) = (Mutex::new(item), AtomicU8::new(0));
        Arc::new(Subvol { id, family, owner, item, files, dying, read_only, moves, told, walked })
    }

    pub fn id(&self) -> SubvolId {
        self.id
    }

    /// The owner of the memory of its files.
    pub fn owner(&self) -> &MemoryOwner {
        &self.owner
    }

    /// Its record, as of now.
    pub fn item(&self) -> SubvolItem {
        *self.item.lock()
    }

    /// The present table of its files. A snapshot moves them to another table, which begins with
    /// the same content: a task with locks on its earlier reads may continue, because its edits are
    /// applied to that table. But the former table may be dropped: to read, see [`Volumes::get`].
    pub fn files(&self) -> TableId {
        TableId(self.files.load(Ordering::Acquire))
    }

    /// Subvolumes with the same number may share by snapshot.
    pub fn family_number(&self) -> u64 {
        self.family.id.0.0
    }

    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::Acquire)
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// The txg of its existence and of its entry's place: a crash keeps durable changes of its
    /// files only when this txg is durable, too.
    pub fn last_txg(&self) -> Option<Txg> {
        Txg::new(self.told.load(Ordering::Acquire))
    }

    pub(crate) fn set_last_txg(&self, txg: Txg) {
        self.told.fetch_max(txg.get(), Ordering::AcqRel);
    }

    pub(crate) fn set_item(&self, item: SubvolItem) {
        *self.item.lock() = item;
        self.files.store(item.table.0, Ordering::Release);
        self.dying.store(item.state != SubvolState::Live, Ordering::Release);
        self.read_only.store(item.flags.read_only(), Ordering::Release);
    }

    /// Says that the files are being moved, until [`Self::set_moved`]. The family is locked.
    pub(crate) fn begin_move(&self) {
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// The files are where the record says.
    pub(crate) fn set_moved(&self, item: SubvolItem) {
        self.set_item(item);
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    pub(crate) fn check_live(&self) -> Result<()> {
        match self.is_dying() {
            true => Err(VolumeError::Dying(self.id)),
            false => Ok(()),
        }
    }

    /// Its files may be changed. The family does not change.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        self.check_live()?;
        match self.is_read_only() {
            true => Err(VolumeError::ReadOnly(self.id)),
            false => Ok(()),
        }
    }
}

impl Placed for Subvol {
    fn id(&self) -> SubvolId {
        self.id
    }

    fn holder(&self) -> SubvolId {
        self.item().place.subvol
    }

    fn is_dying(&self) -> bool {
        self.is_dying()
    }
}

/// The records of the system table.
#[derive(Default)]
struct Records {
    subvols: BTreeMap<SubvolId, SubvolItem>,
    epochs: BTreeMap<EpochId, EpochItem>,
    memory: BTreeMap<SubvolId, MemoryItem>,
    quotas: Loader,
}

impl Records {
    async fn read(pool: &Arc<Pool>) -> Result<Records> {
        let mut records = Records::default();
        let mut from = Some(Key::MIN);
        while let Some(start) = from {
            let items = pool.range(Pool::SYSTEM, start, Key::MAX, STEP).await?;
            from = (items.len() == STEP).then(|| items[STEP - 1].0.successor()).flatten();
            for (key, value) in items {
                let wrong = |source| VolumeError::Record { key, source };
                records.add(key, &value).map_err(wrong)?;
            }
        }
        Ok(records)
    }

    fn add(
        &mut self,
        key: Key,
        value: &[u8],
    ) -> std::result::Result<(), copyhold_format::FormatError> {
        match key.kind {
            SUBVOL => {
                self.subvols.insert(SubvolId(key.object as u32), SubvolItem::parse(value)?);
            }
            EPOCH => {
                self.epochs.insert(EpochId(key.object), EpochItem::parse(key, value)?);
            }
            MEMORY => {
                let (subvol, item) = MemoryItem::parse(key, value)?;
                self.memory.insert(subvol, item);
            }
            _ => {
                self.quotas.row(key, value)?;
            }
        }
        Ok(())
    }
}

impl Map {
    fn of(
        subvols: BTreeMap<SubvolId, SubvolItem>,
        families: Vec<Family>,
        memory: &Memory,
    ) -> Result<Map> {
        let cells: Vec<_> = families.into_iter().map(FamilyCell::new).collect();
        let mut homes = BTreeMap::new();
        let (mut epochs, mut tables) = (Vec::new(), Vec::new());
        for cell in &cells {
            let family = cell.read_tree();
            homes.extend(family.subvols().map(|subvol| (subvol, cell.clone())));
            epochs.extend(family.epochs().map(|epoch| (epoch.id, cell.clone())));
            tables.extend(family.epochs().map(|epoch| (epoch.table, (cell.clone(), epoch.id))));
        }
        // Maps that are collected at once have full nodes.
        let mut map = Map {
            epochs: epochs.into_iter().collect(),
            tables: tables.into_iter().collect(),
            ..Map::default()
        };
        let mut all = Vec::new();
        for (id, item) in subvols {
            // A deletion that has passed its leaf has no home but its heir's.
            let heir = match item.state {
                SubvolState::Dying(step) => crate::deletion::heir_of(step),
                SubvolState::Live => None,
            };
            let home = homes.get(&id).or_else(|| map.epochs.get(&heir?)).cloned();
            let leaf = home.as_ref().and_then(|home| home.read_tree().leaf(id).copied());
            let is_wrong = match leaf {
                Some(leaf) => {
                    (leaf.id, leaf.first, leaf.table) != (item.epoch, item.first, item.table)
                }
                None => item.state == SubvolState::Live,
            };
            // Of one that is to be forgotten only the record is left.
            let alone = || FamilyCell::new(Family::new(item.epoch, id, item.table));
            let home = home.unwrap_or_else(alone);
            if is_wrong {
                let why = "the item of its subvolume contradicts it";
                return Err(crate::family::BadFamily { epoch: item.epoch, why }.into());
            }
            if let SubvolState::Dying(step) = item.state {
                map.dying.file(id, home.id, step);
            }
            all.push(Subvol::new(id, home, item, memory.add_owner()));
        }
        map.subvols = Subvols::of(all);
        for subvol in map.subvols.all() {
            map.tell_holder(subvol);
            subvol.owner().set_own_from(subvol.item().first);
        }
        cells.iter().for_each(|family| map.set_own_content(&mut family.write_tree()));
        Ok(map)
    }

    pub(crate) fn add_family(&mut self, family: Family) -> Arc<FamilyCell> {
        let epochs: Vec<_> = family.epochs().map(|epoch| (epoch.id, epoch.table)).collect();
        let cell = FamilyCell::new(family);
        for (epoch, table) in epochs {
            self.epochs.insert(epoch, cell.clone());
            self.tables.insert(table, (cell.clone(), epoch));
        }
        cell
    }
}

impl Map {
    /// Adds a subvolume that came into being.
    pub(crate) fn add(&mut self, subvol: &Arc<Subvol>) {
        self.subvols.insert(subvol.clone());
        self.tell_holder(subvol);
    }

    /// A living subvolume that was inside `before` has another place.
    pub(crate) fn has_moved(&mut self, subvol: &Subvol, before: SubvolId) {
        self.subvols.has_moved(subvol, before);
        self.tell_holder(subvol);
    }

    /// Tells the owner of a subvolume's memory the one of its holder. Subvolumes in the root
    /// subvolume are tenants: their groups are beside its own, not below.
    pub(crate) fn tell_holder(&self, subvol: &Subvol) {
        let holder = subvol.item().place.subvol;
        let holder = self.subvols.get(holder).filter(|_| holder != SubvolId::ROOT);
        subvol.owner.set_holder(holder.map(|holder| &holder.owner));
    }

    /// Two epochs begin in a family.
    pub(crate) fn add_births(&mut self, family: &Arc<FamilyCell>, births: [Birth; 2]) {
        for birth in births {
            self.epochs.insert(birth.id, family.clone());
            self.tables.insert(birth.table, (family.clone(), birth.id));
        }
    }
}

impl FamilyCell {
    fn new(family: Family) -> Arc<FamilyCell> {
        let id = family.id();
        Arc::new(FamilyCell { id, tree: RwLock::new(family), burial: Mutex::new(()) })
    }

    pub(crate) fn read_tree(&self) -> RwLockReadGuard<'_, Family> {
        self.tree.read_at(self.id.0.0)
    }

    pub(crate) fn lock_burial(&self) -> MutexGuard<'_, ()> {
        self.burial.lock_at(self.id.0.0)
    }

    pub(crate) fn write_tree(&self) -> RwLockWriteGuard<'_, Family> {
        self.tree.write_at(self.id.0.0)
    }
}

impl VolumesState {
    /// Distinguishes pending releases, across crashes too: a txg with any trace in the log is never
    /// used again (R13).
    pub(crate) fn next_sequence(&self, open: Txg) -> u64 {
        let floor = open.get() << SEQUENCE_BITS;
        let next = |last: u64| Some(floor.max(last + 1));
        let update = self.sequence.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        floor.max(update.expect("there is a next one") + 1)
    }
}

/// Makes each subvolume the owner of the memory of the table that it has its files in, and of the
/// tables under that one that a snapshot has frozen, as far as no other subvolume is.
fn assign_owners(pool: &Pool, subvols: &[Arc<Subvol>]) {
    let by_table: BTreeMap<TableId, &Arc<Subvol>> =
        subvols.iter().map(|subvol| (subvol.files(), subvol)).collect();
    for (table, subvol) in by_table {
        own_table(pool, table, subvol.owner());
    }
}

impl Volumes {
    /// Most edits, and bytes of them, that creating, snapshotting or deleting a subvolume adds to
    /// the caller's transaction; credit has to cover them.
    pub const LIFE_EDITS: usize = 32;
    pub const LIFE_BYTES: usize = 4096;

    /// Reads the records. The pool was opened for tenants (`OpenOptions::tenants`), and begins to
    /// flush now. An interrupted deletion continues with the background work.
    pub async fn open(pool: Arc<Pool>) -> Result<Arc<Volumes>> {
        let Records { subvols, epochs, memory, quotas } = Records::read(&pool).await?;
        let families = Family::restore(&epochs)?;
        let resident = |(&subvol, item): (&SubvolId, &SubvolItem)| resident(subvol, item);
        let live = subvols.iter().filter(|(_, item)| item.state == SubvolState::Live);
        let newest = epochs.values().map(|item| item.current.0).max().unwrap_or(0);
        let payers = epochs.values().map(|item| (item.current, item.subvol));
        let (ledger, strays) = quotas.finish(live.map(resident), payers);
        strays.iter().for_each(|stray| tracing::error!("{stray}; run `copyhold check`"));
        let sharing = may_share(&pool).await?;
        let state = Arc::new(VolumesState {
            pool: Arc::downgrade(&pool),
            map: RwLock::new(Map::of(subvols, families, pool.memory())?),
            shares: Mutex::new(()),
            sharing: AtomicBool::new(sharing),
            aside: Mutex::new(Aside::default()),
            owners: Mutex::new(()),
            ledger,
            newest: AtomicU64::new(newest),
            sequence: AtomicU64::new(0),
            working: FifoMutex::new(),
            freeing: Freeing::default(),
        });
        let subvols: Vec<_> = state.map.read().subvols.all().cloned().collect();
        if let Some(item) = memory.get(&SHARED_MEMORY) {
            pool.memory().shared().set_limits(&limits::limits(item));
        }
        for subvol in &subvols {
            let item = memory.get(&subvol.id).copied().unwrap_or_default();
            subvol.owner().set_limits(&limits::limits(&item));
        }
        assign_owners(&pool, &subvols);
        for subvol in subvols {
            let family = subvol.family.read_tree();
            let unflushed = unflushed_of(&pool, &family, subvol.id, &BTreeSet::new());
            state.ledger.owes(subvol.id, unflushed);
            if let SubvolState::Dying(step) = subvol.item().state
                && crate::deletion::is_retired(step)
            {
                pool.retire_again(subvol.files());
            }
        }
        pool.set_tenancy(Arc::new(Tenants(state.clone())));
        Ok(Arc::new(Volumes { pool, state }))
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn ledger(&self) -> &Ledger {
        &self.state.ledger
    }

    /// A subvolume, live or being deleted.
    pub fn subvol(&self, id: SubvolId) -> Option<Arc<Subvol>> {
        self.state.map.read().subvols.get(id).cloned()
    }

    /// All subvolumes by id, live and being deleted.
    pub fn list(&self) -> Vec<Arc<Subvol>> {
        self.list_behind(SubvolId(0), usize::MAX)
    }

    /// At most `most` of them, with ids behind `after`.
    pub fn list_behind(&self, after: SubvolId, most: usize) -> Vec<Arc<Subvol>> {
        self.state.map.read().subvols.behind(after).take(most).cloned().collect()
    }

    /// Credit for a transaction of a subvolume's files that drops `releases` pointers, with the
    /// credit for the edits of those releases.
    pub async fn admit(
        &self,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
        releases: usize,
    ) -> Result<Credit> {
        loop {
            let alone = self.is_alone(subvol);
            let more = if alone { 0 } else { releases * EDITS_PER_RELEASE };
            let bytes = bytes + more * RELEASE_EDIT_BYTES;
            let credit = self.pool.admit(tier, edits + more, bytes).await?;
            // A snapshot or a reflink may have come during the wait.
            if !alone || self.is_alone(subvol) {
                return Ok(credit);
            }
        }
    }

    /// Whether the files of a subvolume certainly share no extent.
    fn is_alone(&self, subvol: &Subvol) -> bool {
        let is_only = subvol.family.read_tree().epochs().nth(1).is_none();
        is_only && !self.state.sharing.load(Ordering::Acquire)
    }

    /// Changes a live subvolume's record.
    fn rewrite(
        &self,
        subvol: &Subvol,
        credit: Credit,
        mut tx: Transaction,
        change: impl FnOnce(&mut SubvolItem),
    ) -> Result<Txg> {
        let _still = subvol.family.write_tree();
        subvol.check_live()?;
        let mut item = subvol.item();
        change(&mut item);
        tx.put(Pool::SYSTEM, subvol_key(subvol.id), &item.encode()[..]);
        let txg = self.pool.apply(credit, tx)?;
        subvol.set_item(item);
        subvol.set_last_txg(txg);
        Ok(txg)
    }

    /// Forbids transactions of its files, or allows them again: each is applied before this, or
    /// refused.
    pub fn set_read_only(&self, subvol: &Subvol, on: bool, credit: Credit) -> Result<Txg> {
        self.rewrite(subvol, credit, Transaction::new(), |item| {
            let flags = item.flags.0 & !SubvolFlags::READ_ONLY;
            item.flags = SubvolFlags(flags | if on { SubvolFlags::READ_ONLY } else { 0 });
        })
    }
}

/// Whether the table of shares may have anything: also if it cannot be read.
async fn may_share(pool: &Arc<Pool>) -> Result<bool> {
    let shares = pool.range(Pool::SHARES, Key::MIN, Key::MAX, 1).await;
    match shares.map_err(VolumeError::from) {
        Err(error) if error.is_damage() => {
            tracing::error!("the table of shares cannot be read: {error}");
            Ok(true)
        }
        shares => Ok(!shares?.is_empty()),
    }
}

/// How often a walk over subvolumes or epochs looked at one since the pool was opened: a measure
/// of the cost of changes of single ones.
pub fn looks(volumes: &Volumes) -> u64 {
    volumes.state.map.read().subvols.looks()
}

/// The living subvolumes, as quotas get them.
pub fn residents(volumes: &Volumes) -> Vec<Resident> {
    let live = volumes.list().into_iter().filter(|subvol| !subvol.is_dying());
    live.map(|subvol| resident(subvol.id, &subvol.item())).collect()
}

fn resident(subvol: SubvolId, item: &SubvolItem) -> Resident {
    let holder = Some(item.place.subvol).filter(|&holder| holder != subvol);
    Resident { subvol, holder, origin: item.origin }
}
