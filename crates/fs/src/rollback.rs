//! A subvolume returns to the state of a snapshot, in one transaction.
//!
//! The entry then names a new subvolume: node ids of the old state lead to nothing, or to the old
//! state where that was kept. So a front end forgets the entry, and with it all that it knows
//! below; it also drops the cached content of open files.

use std::sync::Arc;

use copyhold_format::item::inode_key;
use copyhold_pool::{IdSpace, Pool, Tier, Transaction};
use copyhold_types::{InodeNo, SubvolId, Timestamp, Txg};
use copyhold_volume::quota;
use copyhold_volume::{OldState, Volumes};
use smallvec::SmallVec;

use crate::dir::{Bucket, Found, Name};
use crate::inode::{Inode, InodeRef};
use crate::item_bytes::INODE_BYTES;
use crate::permit::Way;
use crate::right::{Right, SubvolumeCalls};
use crate::room::Room;
use crate::subvol::{FILES, Subvol};
use crate::tenants::{entry_needs, place_in};
use crate::{FileKind, Filesystem, FsError, NodeId, Result};

/// The result of a rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledBack {
    pub subvol: SubvolId,
    /// As of [`Filesystem::delete_subvolume`].
    pub stale: Vec<NodeId>,
}

/// A name in a directory whose entry lock is held.
struct Slot<'a> {
    dir: &'a InodeRef,
    name: Name<'a>,
    bucket: Bucket,
}

/// The changes of a transaction to one directory.
struct Change<'a> {
    dir: &'a Inode,
    /// As they will be.
    buckets: SmallVec<[Bucket; 2]>,
    /// Subvolumes that it gets.
    more: i64,
}

impl Filesystem {
    /// The subvolume under `name` in `parent` returns to the state of `snapshot`: a new, writable
    /// snapshot of that takes its place, with its quota groups, limits and reserve. The old state
    /// is deleted as by [`Self::delete_subvolume`], or is a subvolume under the name `keep` from
    /// then on.
    ///
    /// # Errors
    /// It is the root, is read-only, or shares no history with `snapshot`; it holds other
    /// subvolumes and is not kept; a limit refuses what the rollback adds.
    pub async fn roll_back_subvolume(
        self: &Arc<Self>,
        parent: NodeId,
        name: &[u8],
        snapshot: SubvolId,
        keep: Option<(NodeId, &[u8])>,
    ) -> Result<RolledBack> {
        let calls = SubvolumeCalls::new(self, Right::Administrator);
        calls.roll_back(parent, name, snapshot, keep).await
    }

    /// Applies a transaction that changes directories; the first says which subvolume's [`FILES`]
    /// are.
    fn change_dirs<T>(
        &self,
        right: Right,
        changes: &[Change<'_>],
        now: Timestamp,
        mut tx: Transaction,
        apply: impl FnOnce(Transaction) -> Result<(T, Txg)>,
    ) -> Result<T> {
        let mut order: SmallVec<[&Change<'_>; 2]> = changes.iter().collect();
        order.sort_unstable_by_key(|change| change.dir.node);
        let mut states: SmallVec<[_; 2]> = SmallVec::new();
        for change in order {
            let state = change.dir.state();
            right.permit(&state)?;
            state.expect_removable_from()?;
            let is_here = change.dir.node.subvol == changes[0].dir.node.subvol;
            let files = if is_here { FILES } else { Volumes::THERE };
            for bucket in &change.buckets {
                bucket.put(&mut tx, files);
            }
            let item = state.dir_item(change.more, change.more, now);
            tx.put(files, inode_key(change.dir.node.ino), &item.encode()[..]);
            states.push((state, item));
        }
        let (done, txg) = apply(tx)?;
        for (mut state, item) in states {
            state.logged_and_shown(item, txg, true);
        }
        Ok(done)
    }
}

impl SubvolumeCalls<'_> {
    /// See [`Filesystem::roll_back_subvolume`].
    pub async fn roll_back(
        self,
        parent: NodeId,
        name: &[u8],
        snapshot: SubvolId,
        keep: Option<(NodeId, &[u8])>,
    ) -> Result<RolledBack> {
        let (fs, right) = (self.fs, self.right);
        self.permit(NodeId { subvol: snapshot, ino: InodeNo::ROOT }).await?;
        let dir = fs.dir_to_change(parent).await?;
        right.permit(&dir.state())?;
        let name = Name::parse(name)?;
        let keep = match keep {
            Some((parent, name)) => Some((fs.dir_to_change(parent).await?, Name::to_make(name)?)),
            None => None,
        };
        let from = fs.subvol(snapshot).await?;
        fs.ready_for_snapshot(snapshot).await?;
        let there = keep.as_ref().map_or(&dir, |(there, _)| there);
        let mut room = Room::default();
        loop {
            match self.try_roll_back((&dir, name), &from, keep.as_ref(), &mut room).await {
                Err(refused) => room.wait(fs, &there.subvol, refused).await?,
                done => return done,
            }
        }
    }

    /// One attempt of [`Self::roll_back`] (ROOM-W1).
    async fn try_roll_back(
        self,
        (dir, name): (&InodeRef, Name<'_>),
        from: &Subvol,
        keep: Option<&(InodeRef, Name<'_>)>,
        room: &mut Room,
    ) -> Result<RolledBack> {
        let (fs, right) = (self.fs, self.right);
        // The kept state moves elsewhere: no path to the root changes meanwhile.
        let _moves = fs.moves.lock().await;
        let there = keep.map_or(dir, |(there, _)| there);
        let (low, high) = if dir.node <= there.node { (dir, there) } else { (there, dir) };
        let _low = low.lock.write().await;
        let _high = if low.node != high.node { Some(high.lock.write().await) } else { None };

        right.permit(&dir.state())?;
        right.permit(&there.state())?;
        if keep.is_some() {
            right.permit_receiving(fs, there).await?;
        }
        let slot = Slot { dir, name, bucket: fs.bucket(dir, name.bytes()).await? };
        let found = slot.bucket.find(fs, dir, name.bytes()).ok_or(FsError::NotFound)?;
        if found.node.ino != InodeNo::ROOT {
            return Err(FsError::Invalid("not a subvolume"));
        }
        let old = fs.subvol(found.node.subvol).await?;
        old.expect_read_write()?;
        let root = fs.inode(found.node).await?;
        right.permit(&root.state())?;
        root.state().permit(Way::Name)?;
        let kept = match keep {
            Some((there, name)) => {
                fs.expect_outside(there, &root).await?;
                if there.node != dir.node {
                    fs.expect_sole_entry(&root, there, name.bytes()).await?;
                }
                let bucket = fs.free_place(there, *name).await?;
                Some(Slot { dir: there, name: *name, bucket })
            }
            None => None,
        };
        let made = loop {
            match self.put_in_place(&old, from, &slot, kept.as_ref(), room).await {
                Err(error) if error.is_overtaken() => {}
                made => break made?,
            }
        };
        let stale = match kept {
            Some(_) => Vec::new(),
            None => fs.forget_subvol(old.id()),
        };
        Ok(RolledBack { subvol: made, stale })
    }

    /// The transaction. The entry locks are held.
    async fn put_in_place(
        self,
        old: &Subvol,
        from: &Subvol,
        slot: &Slot<'_>,
        kept: Option<&Slot<'_>>,
        room: &mut Room,
    ) -> Result<SubvolId> {
        let fs = self.fs;
        let _unshared = fs.end_in_place(from).await?;
        let numbers = fs.volumes.numbers(Some(&from.volume)).await?;
        let mark = fs.pool.next_id(IdSpace::Inode(from.id())).await?;
        let slots = [Some(slot), kept].into_iter().flatten();
        let names: usize = slots.map(|slot| slot.bucket.edit_bytes(slot.name.bytes())).sum();
        let bytes = 2 * (Volumes::LIFE_BYTES + INODE_BYTES) + names;
        // At a limit or in a full pool this may be the way out: it is a deletion, too.
        let tier = if kept.is_some() { Tier::Write } else { Tier::DeleteSubvolume };
        let mut entry = match kept {
            Some(kept) => {
                let wanted = entry_needs(&kept.bucket, kept.name);
                room.hold(fs, &kept.dir.subvol, wanted, quota::Tier::Write)?
            }
            // As a removal: it replaces an entry.
            None => {
                let wanted = entry_needs(&slot.bucket, slot.name);
                room.hold(fs, &slot.dir.subvol, wanted, quota::Tier::Delete)?
            }
        };
        let root = fs.inode(from.node(InodeNo::ROOT)).await?;
        let credit = fs.credit(tier, 2 * Volumes::LIFE_EDITS + 4, bytes).await?;

        // Nothing waits from here on.
        self.right.permit(&root.state())?;
        let now = fs.now();
        let mut tx = Transaction::new();
        // All numbers that the snapshot's files have lie below its mark (R9).
        let mark = fs.pool.id_mark(IdSpace::Inode(from.id()), mark);
        let key = IdSpace::Inode(numbers.subvol).key();
        tx.put(Pool::SYSTEM, key, &mark.to_le_bytes());
        let new = fs.new_subvol(slot.dir, from.hash_key, false, None);
        let then = match kept {
            Some(kept) => OldState::Kept(place_in(kept.dir)),
            None => OldState::Deleted { since: now, name: slot.name.bytes() },
        };
        let changes = changes(fs, slot, kept, numbers.subvol, old.id())?;
        fs.change_dirs(self.right, &changes, now, tx, |tx| {
            let (old, from) = (&old.volume, &from.volume);
            let next = InodeNo(mark);
            let (made, txg) =
                fs.volumes.roll_back(old, from, &numbers, &new, next, then, credit, tx)?;
            entry.spend_metadata();
            Ok((made.id(), txg))
        })
    }
}

/// The changes of the directories, that of the entry first.
fn changes<'a>(
    fs: &Filesystem,
    slot: &'a Slot<'_>,
    kept: Option<&'a Slot<'_>>,
    new: SubvolId,
    old: SubvolId,
) -> Result<SmallVec<[Change<'a>; 2]>> {
    let root = |subvol| {
        let node = NodeId { subvol, ino: InodeNo::ROOT };
        Found { node, kind: FileKind::Directory }
    };
    let replaced = slot.bucket.replaced(slot.name.bytes(), root(new));
    let replaced = slot.bucket.changed(Some(replaced));
    let change = |dir, buckets, more| Change { dir, buckets, more };
    let mut changes = SmallVec::new();
    let Some(kept) = kept else {
        changes.push(change(&**slot.dir, SmallVec::from_iter([replaced]), 0));
        return Ok(changes);
    };
    let is_one_dir = kept.dir.node == slot.dir.node;
    let is_one = is_one_dir && kept.bucket.key() == replaced.key();
    let before = if is_one { &replaced } else { &kept.bucket };
    let added = before.with(fs, kept.dir, kept.name.bytes(), root(old))?;
    let after = before.changed(Some(added));
    if is_one {
        changes.push(change(&**slot.dir, SmallVec::from_iter([after]), 1));
    } else if is_one_dir {
        changes.push(change(&**slot.dir, SmallVec::from_iter([replaced, after]), 1));
    } else {
        changes.push(change(&**slot.dir, SmallVec::from_iter([replaced]), 0));
        changes.push(change(&**kept.dir, SmallVec::from_iter([after]), 1));
    }
    Ok(changes)
}
