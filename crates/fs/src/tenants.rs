//! Subvolumes as a user of the mount meets them: made, snapshotted, deleted.
//!
//! A subvolume's entry is an entry of a directory like any other, of a type of its own; the record
//! of the subvolume names the directory, and only there the entry counts (R39). Elsewhere, in a
//! snapshot of its holder, it is a placeholder that can be removed.
//!
//! SNAPSHOT-S1  Data that a snapshot shares was written before its record joins: dirty data of the
//!              source is installed first, while writers continue; data written meanwhile is the
//!              source's alone.
//! SNAPSHOT-S2  No lock of an inode is held across the volume layer's locks but those of the
//!              directory that gets or loses the entry; its state is held while the transaction is
//!              applied.

use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::{HashKey, ParentDirectory, SubvolState};
use copyhold_pool::{Credit, IdSpace, Tier, Transaction};
use copyhold_runtime::WriteGuard;
use copyhold_types::{InodeNo, SubvolId, Timestamp};
use copyhold_volume::quota::{self, GroupId, Hold, Inherit, Ledger, QuotaError, Request, Rows};
use copyhold_volume::{Leaving, NewSubvol, VolumeError, Volumes, is_freeing};
use futures_util::future::join_all;

use crate::dir::{Bucket, Found, Name, put_bucket};
use crate::file::WriteReason;
use crate::filesystem::{new_item, random_bytes};
use crate::inode::{Inode, InodeRef, InodeState, lock_states};
use crate::item_bytes::INODE_BYTES;
use crate::permit::Way;
use crate::promise::owe;
use crate::right::{Right, SubvolumeCalls};
use crate::subvol::{FILES, Subvol};
use crate::throttle::before_change;
use crate::{Caller, FileKind, Filesystem, FsError, NameEvent, NodeId, Result, Sabotage};

/// Files whose dirty data is installed at a time before a snapshot.
pub(crate) const FILES_AT_ONCE: usize = 16;
/// Rounds of installing data that writers keep dirtying, before the rest is left to the source.
const ROUNDS: usize = 3;

/// How often a deletion that others work at is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A subvolume, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolInfo {
    pub id: SubvolId,
    /// The directory that holds its entry; of the root its own.
    pub parent: NodeId,
    pub read_only: bool,
    /// The subvolume that it is a snapshot of.
    pub origin: Option<SubvolId>,
    pub created: Timestamp,
    /// Its space is being freed.
    pub is_dying: bool,
    /// How much of its tree the deletion has gone through.
    pub walked_percent: Option<u8>,
    /// A random UUID.
    pub identity: [u8; 16],
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    pub subvol: SubvolId,
    /// Removed nodes whose content or attributes a front end may have: open files, and directories,
    /// which may be working directories of processes.
    pub stale: Vec<NodeId>,
}

impl Filesystem {
    /// The interface to subvolumes as such, and to quotas.
    pub fn volumes(&self) -> &Arc<Volumes> {
        &self.volumes
    }

    /// All subvolumes by id, those that are being deleted, too.
    pub fn subvolumes(&self) -> Vec<SubvolInfo> {
        self.subvolumes_behind(SubvolId(0), usize::MAX)
    }

    /// At most `most` of them, with ids behind `after`.
    pub fn subvolumes_behind(&self, after: SubvolId, most: usize) -> Vec<SubvolInfo> {
        let info = |subvol: Arc<copyhold_volume::Subvol>| {
            let item = subvol.item();
            SubvolInfo {
                id: subvol.id(),
                parent: NodeId { subvol: item.place.subvol, ino: item.place.directory },
                read_only: item.flags.read_only(),
                origin: item.origin,
                created: item.created,
                is_dying: item.state != SubvolState::Live,
                walked_percent: self.volumes.walked_percent(&subvol),
                identity: item.identity,
            }
        };
        self.volumes.list_behind(after, most).into_iter().map(info).collect()
    }

    /// Makes an empty subvolume under `name` in `parent`; it joins the quota groups of the
    /// subvolume that holds it, or those given.
    pub async fn create_subvolume(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        groups: Option<Vec<GroupId>>,
    ) -> Result<SubvolId> {
        let calls = SubvolumeCalls::new(self, Right::Administrator);
        calls.create(caller, parent, name, groups).await
    }

    /// Makes a subvolume under `name` in `parent` that shows the present state of the subvolume
    /// `source`.
    pub async fn snapshot(
        self: &Arc<Self>,
        source: SubvolId,
        parent: NodeId,
        name: &[u8],
        read_only: bool,
        groups: Option<Vec<GroupId>>,
    ) -> Result<SubvolId> {
        let calls = SubvolumeCalls::new(self, Right::Administrator);
        calls.snapshot(source, parent, name, read_only, groups).await
    }

    /// Deletes a subvolume by its entry: it is gone when this returns, and its space is freed in
    /// the background. An heir can take over the charges that remain.
    pub async fn delete_subvolume(
        self: &Arc<Self>,
        parent: NodeId,
        name: &[u8],
        heir: Option<SubvolId>,
    ) -> Result<Deleted> {
        SubvolumeCalls::new(self, Right::Administrator).delete(parent, name, heir).await
    }

    /// As [`Self::delete_subvolume`], of a subvolume that has no files.
    pub async fn remove_empty_subvolume(
        self: &Arc<Self>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Deleted> {
        SubvolumeCalls::new(self, Right::Administrator).remove_empty(parent, name).await
    }

    /// Turns simple quotas on: all data written from now on counts, in older subvolumes too (R25).
    pub async fn enable_quotas(self: &Arc<Self>) -> Result<()> {
        self.writable()?;
        loop {
            let credit = quota_credit(self).await?;
            match self.volumes.enable_quotas(credit).await {
                // Records of the time before are being swept: that is soon done.
                Err(VolumeError::Quota(QuotaError::Clearing)) => {
                    self.writable()?;
                    if !self.volumes.background_step().await? {
                        self.rt.sleep(LOOK_AGAIN).await;
                    }
                }
                done => break done.map(drop)?,
            }
        }
        for subvol in self.volumes.list() {
            if !subvol.is_dying() && self.volumes.is_outdated(&subvol) {
                match self.renew(&subvol).await {
                    // Deleted meanwhile: it writes nothing any more.
                    Err(FsError::Stale) => {}
                    renewed => renewed?,
                }
            }
        }
        Ok(())
    }

    /// Turns quotas off; groups, limits and relations are lost.
    pub async fn disable_quotas(self: &Arc<Self>) -> Result<()> {
        self.writable()?;
        self.volumes.disable_quotas(quota_credit(self).await?)?;
        Ok(())
    }

    /// Makes a change of groups or limits.
    pub async fn change_quotas(
        self: &Arc<Self>,
        change: impl FnOnce(&Ledger) -> std::result::Result<Rows, QuotaError>,
    ) -> Result<()> {
        self.writable()?;
        self.volumes.change_quotas(quota_credit(self).await?, change)?;
        Ok(())
    }

    /// Lets a subvolume stamp an epoch that quotas count.
    pub(crate) async fn renew(&self, subvol: &copyhold_volume::Subvol) -> Result<()> {
        // Every user of the subvolume waits for this, also its deletion.
        let (edits, bytes) = (Volumes::LIFE_EDITS, Volumes::LIFE_BYTES);
        let credit = self.credit_to_end(edits, bytes).await?;
        Ok(self.volumes.renew(subvol, credit).await?)
    }

    /// Credit for a transaction that ends a subvolume, or lets it be ended.
    pub(crate) async fn credit_to_end(&self, edits: usize, bytes: usize) -> Result<Credit> {
        self.credit(Tier::DeleteSubvolume, edits, bytes).await
    }

    /// Waits until nothing of these subvolumes, or of all, is left to be given back.
    ///
    /// # Errors
    /// Damage prevents the deletion, so it would not end.
    pub async fn sync_subvolumes(self: &Arc<Self>, ids: &[SubvolId]) -> Result<()> {
        let mut is_told = false;
        loop {
            self.usable()?;
            // Releases that are pending and rows of the dead, too.
            let worked = self.volumes.background_step().await?;
            if is_freeing(&self.volumes, ids) {
                match self.volumes.unfreeable() {
                    _ if worked => {}
                    Some(id) => return Err(VolumeError::Unfreeable(id).into()),
                    None => self.rt.sleep(LOOK_AGAIN).await,
                }
            } else if !worked && std::mem::replace(&mut is_told, true) {
                return Ok(());
            } else if !worked {
                // Freed space counts with the txg; then rows of the dead can go.
                self.pool.commit(self.pool.open_txg()).await?;
            }
        }
    }

    /// Work ahead of the locks of a snapshot.
    pub(crate) async fn ready_for_snapshot(self: &Arc<Self>, id: SubvolId) -> Result<()> {
        self.write_subvol(id).await?;
        match self.volumes.subvol(id) {
            Some(subvol) => Ok(self.pool.compact(subvol.files()).await?),
            None => Ok(()),
        }
    }

    /// Installs the dirty data of a subvolume; a few times, if writers continue (SNAPSHOT-S1).
    pub(crate) async fn write_subvol(self: &Arc<Self>, id: SubvolId) -> Result<()> {
        for _ in 0..ROUNDS {
            let files = self.flusher.files_of(id);
            if files.is_empty() {
                break;
            }
            for files in files.chunks(FILES_AT_ONCE) {
                let writes =
                    files.iter().map(|inode| self.write_through(inode, WriteReason::Other));
                join_all(writes).await.into_iter().collect::<Result<()>>()?;
            }
        }
        Ok(())
    }

    /// Writes the data accepted for preallocated space; until the guard goes, nothing else is
    /// accepted for it (R10).
    pub(crate) async fn end_in_place<'a>(
        self: &Arc<Self>,
        subvol: &'a Subvol,
    ) -> Result<WriteGuard<'a>> {
        let guard = subvol.in_place.write().await;
        let files = self.flusher.files_of(subvol.id()).into_iter();
        for inode in files.filter(|inode| inode.state().data.has_in_place()) {
            self.write_through(&inode, WriteReason::Other).await?;
        }
        Ok(guard)
    }

    /// Inodes of a deleted subvolume are stale, and their dirty blocks are dropped. Returns those
    /// of whose content a front end may know: open files, and directories.
    pub(crate) fn forget_subvol(&self, id: SubvolId) -> Vec<NodeId> {
        // A subvolume that was never requested has no inodes.
        let Some(subvol) = self.subvols.write().remove(&id) else { return Vec::new() };
        self.names().end_tenant(id, subvol.volume.owner());
        self.names().drop_later(&self.rt);
        let inodes = self.inodes.of_subvol(&subvol).into_iter();
        let is_known = |inode: &InodeRef| inode.is_dir() || self.inodes.is_open(inode.node);
        let forgotten = inodes.filter_map(|inode| {
            self.forget_inode(&inode);
            is_known(&inode).then_some(inode.node)
        });
        let mut stale: Vec<NodeId> = forgotten.collect();
        stale.extend(self.inodes.away_of(id));
        stale
    }

    pub(crate) fn forget_inode(&self, inode: &InodeRef) {
        self.end_inode(inode, inode.state());
        self.inodes.remove(inode.node);
    }

    pub(crate) async fn dir_to_change(&self, parent: NodeId) -> Result<InodeRef> {
        self.writable()?;
        let dir = self.inode(parent).await?;
        dir.expect_dir()?;
        self.permit_in(&dir.subvol)?;
        before_change(self, dir.subvol.volume.owner()).await?;
        Ok(dir)
    }

    /// Where the entry of a new subvolume goes. The caller holds the directory's entry lock.
    pub(crate) async fn free_place(&self, dir: &InodeRef, name: Name<'_>) -> Result<Bucket> {
        let bucket = self.bucket(dir, name.bytes()).await?;
        match bucket.find(self, dir, name.bytes()) {
            Some(_) => Err(FsError::Exists),
            None => Ok(bucket),
        }
    }

    pub(crate) fn new_subvol(
        &self,
        dir: &Inode,
        hash_key: HashKey,
        read_only: bool,
        groups: Option<Vec<GroupId>>,
    ) -> NewSubvol {
        NewSubvol {
            place: place_in(dir),
            read_only,
            hash_key,
            created: self.now(),
            identity: random_bytes(&self.rt),
            inherit: groups.map_or(Inherit::FromHolder, Inherit::Groups),
        }
    }
}

async fn quota_credit(fs: &Filesystem) -> Result<Credit> {
    fs.credit(Tier::Delete, Volumes::LIFE_EDITS, Volumes::LIFE_BYTES).await
}

/// Where an entry in this directory is.
pub(crate) fn place_in(dir: &Inode) -> ParentDirectory {
    ParentDirectory { subvol: dir.node.subvol, directory: dir.node.ino }
}

/// The needs of the entry that a subvolume gets in a directory, under the limits of its holder.
pub(crate) fn entry_needs(bucket: &Bucket, name: Name<'_>) -> Request {
    Request::for_edits(2, INODE_BYTES + bucket.edit_bytes(name.bytes()))
}

/// For the entry that a subvolume gets in a directory of `holder`.
async fn hold_entry(
    fs: &Arc<Filesystem>,
    holder: &Subvol,
    bucket: &Bucket,
    name: Name<'_>,
) -> Result<Hold> {
    fs.hold(holder, entry_needs(bucket, name), quota::Tier::Write).await
}

impl SubvolumeCalls<'_> {
    /// See [`Filesystem::create_subvolume`].
    pub async fn create(
        self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        groups: Option<Vec<GroupId>>,
    ) -> Result<SubvolId> {
        let (fs, right) = (self.fs, self.right);
        let dir = fs.dir_to_change(parent).await?;
        let name = Name::to_make(name)?;
        let _entries = dir.lock.write().await;
        right.permit(&dir.state())?;
        right.permit_receiving(fs, &dir).await?;
        let bucket = fs.free_place(&dir, name).await?;
        let numbers = fs.volumes.numbers(None).await?;
        let now = fs.now();
        let root = new_item(FileKind::Directory.mode_bits() | (0o777 & !caller.umask), caller, now);
        let checksum_mode = dir.state().item.checksum_mode;
        let parent = InodeNo::ROOT;
        let root = copyhold_format::item::InodeItem { nlink: 2, parent, checksum_mode, ..root };
        let mut entry = hold_entry(fs, &dir.subvol, &bucket, name).await?;
        let credit = self.life_credit(Tier::Write, &bucket, name).await?;

        let mut state = dir.state();
        right.permit(&state)?;
        let mut tx = add_entry(fs, &dir, &state, (&bucket, name), numbers.subvol)?;
        let key = copyhold_format::item::inode_key(InodeNo::ROOT);
        tx.put(numbers.table(), key, &root.encode()[..]);
        let item = state.dir_item(1, 1, now);
        fs.put_inode(&mut tx, dir.node.ino, &item);
        let new = fs.new_subvol(&dir, HashKey(random_bytes(&fs.rt)), false, groups);
        let (subvol, txg) = fs.volumes.create(&numbers, &new, credit, tx)?;
        entry.spend_metadata();
        state.logged_and_shown(item, txg, true);
        Ok(subvol.id())
    }

    /// See [`Filesystem::snapshot`].
    pub async fn snapshot(
        self,
        source: SubvolId,
        parent: NodeId,
        name: &[u8],
        read_only: bool,
        groups: Option<Vec<GroupId>>,
    ) -> Result<SubvolId> {
        let (fs, right) = (self.fs, self.right);
        let from = fs.subvol(source).await?;
        self.permit(from.node(InodeNo::ROOT)).await?;
        self.permit(parent).await?;
        if !fs.breaks(Sabotage::SnapshotFirst) {
            fs.ready_for_snapshot(source).await?;
        }
        let dir = fs.dir_to_change(parent).await?;
        let name = Name::to_make(name)?;
        let _entries = dir.lock.write().await;
        right.permit(&dir.state())?;
        right.permit_receiving(fs, &dir).await?;
        let bucket = fs.free_place(&dir, name).await?;
        loop {
            let groups = groups.clone();
            match self.try_snapshot(&from, (&dir, &bucket, name), read_only, groups).await {
                Err(error) if error.is_overtaken() => {}
                made => return made,
            }
        }
    }

    /// The entry lock of the directory is held.
    async fn try_snapshot(
        self,
        from: &Subvol,
        (dir, bucket, name): (&InodeRef, &Bucket, Name<'_>),
        read_only: bool,
        groups: Option<Vec<GroupId>>,
    ) -> Result<SubvolId> {
        let (fs, right, source) = (self.fs, self.right, from.id());
        let root = fs.inode(from.node(InodeNo::ROOT)).await?;
        // Waited for before the lock of preallocated space: the source may have another owner.
        let mut entry = hold_entry(fs, &dir.subvol, bucket, name).await?;
        let _unshared = fs.end_in_place(from).await?;
        let numbers = fs.volumes.numbers(Some(&from.volume)).await?;
        let mark = fs.pool.next_id(IdSpace::Inode(source)).await?;
        let credit = self.life_credit(Tier::Write, bucket, name).await?;
        let one = Request { snapshots: 1, ..Request::default() };
        let mut hold = fs.volumes.ledger().hold(source, one, quota::Tier::Write)?;

        // Nothing waits from here on.
        right.permit(&root.state())?;
        let mut state = dir.state();
        right.permit(&state)?;
        let mut tx = add_entry(fs, dir, &state, (bucket, name), numbers.subvol)?;
        let item = state.dir_item(1, 1, fs.now());
        fs.put_inode(&mut tx, dir.node.ino, &item);
        // All numbers that the source has given out lie below its mark (R9).
        let mark = fs.pool.id_mark(IdSpace::Inode(source), mark);
        let key = IdSpace::Inode(numbers.subvol).key();
        tx.put(copyhold_pool::Pool::SYSTEM, key, &mark.to_le_bytes());
        let new = fs.new_subvol(dir, from.hash_key, read_only, groups);
        let next = InodeNo(mark);
        let (subvol, txg) = fs.volumes.snapshot(
            &from.volume,
            &numbers,
            &new,
            next,
            (credit, Some(&mut hold)),
            tx,
        )?;
        entry.spend_metadata();
        state.logged_and_shown(item, txg, true);
        Ok(subvol.id())
    }

    /// See [`Filesystem::delete_subvolume`].
    pub async fn delete(
        self,
        parent: NodeId,
        name: &[u8],
        heir: Option<SubvolId>,
    ) -> Result<Deleted> {
        self.end_subvolume(parent, name, heir, false).await
    }

    /// See [`Filesystem::remove_empty_subvolume`].
    pub async fn remove_empty(self, parent: NodeId, name: &[u8]) -> Result<Deleted> {
        self.end_subvolume(parent, name, None, true).await
    }

    async fn end_subvolume(
        self,
        parent: NodeId,
        name: &[u8],
        heir: Option<SubvolId>,
        only_empty: bool,
    ) -> Result<Deleted> {
        let (fs, right) = (self.fs, self.right);
        let dir = fs.dir_to_change(parent).await?;
        let name = Name::parse(name)?;
        let _entries = dir.lock.write().await;
        right.permit(&dir.state())?;
        let bucket = fs.bucket(&dir, name.bytes()).await?;
        let found = bucket.find(fs, &dir, name.bytes()).ok_or(FsError::NotFound)?;
        if found.node.ino != InodeNo::ROOT {
            return Err(FsError::Invalid("not a subvolume"));
        }
        let subvol = fs.subvol(found.node.subvol).await?;
        let root = fs.inode(found.node).await?;
        right.permit(&root.state())?;
        let (edits, bytes) = life_weight(&bucket, name);
        let credit = fs.credit_to_end(edits, bytes).await?;
        let is_writable = subvol.writable().is_ok();
        {
            let [mut state, root] = lock_states([&dir, &root]);
            right.permit(&state)?;
            right.permit(&root)?;
            state.expect_removable_from()?;
            // In a read-only subvolume the flag could not be cleared.
            if is_writable {
                root.permit(Way::Name)?;
            }
            // Under its state lock no call adds a name, and later it is dying.
            if only_empty && root.item.size > 0 {
                return Err(FsError::NotEmpty);
            }
            let mut tx = Transaction::new();
            let left = bucket.without(name.bytes());
            put_bucket(&mut tx, bucket.changed(left));
            let item = state.dir_item(-1, -1, fs.now());
            fs.put_inode(&mut tx, dir.node.ino, &item);
            let leaving = Leaving { since: fs.now(), name: name.bytes(), heir };
            let txg = fs.volumes.delete(&subvol.volume, &leaving, credit, tx)?;
            state.logged_and_shown(item, txg, true);
            fs.names().insert(&dir, name.bytes(), Some(NameEvent::Retained));
            owe(fs, &dir.subvol, entry_needs(&bucket, name));
        }
        let stale = fs.forget_subvol(subvol.id());
        Ok(Deleted { subvol: subvol.id(), stale })
    }

    async fn life_credit(self, tier: Tier, bucket: &Bucket, name: Name<'_>) -> Result<Credit> {
        let (edits, bytes) = life_weight(bucket, name);
        self.fs.credit(tier, edits, bytes).await
    }
}

/// Edits and bytes of a transaction that makes or ends a subvolume, its entry included.
fn life_weight(bucket: &Bucket, name: Name<'_>) -> (usize, usize) {
    let bytes = Volumes::LIFE_BYTES + 2 * INODE_BYTES + bucket.edit_bytes(name.bytes());
    (Volumes::LIFE_EDITS + 3, bytes)
}

/// The edit that adds the entry of a subvolume to a directory.
fn add_entry(
    fs: &Filesystem,
    dir: &Inode,
    state: &InodeState,
    (bucket, name): (&Bucket, Name<'_>),
    subvol: SubvolId,
) -> Result<Transaction> {
    state.expect_addable_to()?;
    let node = NodeId { subvol, ino: InodeNo::ROOT };
    let found = Found { node, kind: FileKind::Directory };
    let mut tx = Transaction::new();
    tx.put(FILES, bucket.key(), bucket.with(fs, dir, name.bytes(), found)?);
    Ok(tx)
}
