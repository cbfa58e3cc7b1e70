//! Renaming: the transaction over up to two directories and two files.
//!
//! A file that replaces an existing name is written first, so that the name never leads to less
//! than it did (R35). Locks: between directories the subvolume's rename lock, or between
//! subvolumes that of moves; then both entry locks by number.
//!
//! The entry of a subvolume can go to any directory, also of another subvolume, and its record says
//! so in the same transaction (R39). Nothing else leaves its subvolume.

use std::sync::Arc;

use copyhold_format::item::{InodeItem, SubvolItem, inode_key, orphan_key};
use copyhold_pool::{Tier, Transaction};
use copyhold_sync::MutexGuard;
use copyhold_types::{InodeNo, TableId, Timestamp};
use copyhold_volume::quota::{self, Hold, Request};
use copyhold_volume::{self as volume, InodeChange, Volumes};
use smallvec::SmallVec;

use super::make::{New, item_of};
use super::{Bucket, Found, Name};
use crate::file::WriteReason;
use crate::filesystem::FIRST_PLACEHOLDER;
use crate::inode::{Inode, InodeRef, InodeState};
use crate::item_bytes::{INODE_BYTES, KEY_BYTES};
use crate::permit::Way;
use crate::promise::{Charge, credit_for, quota_tier};
use crate::room::Room;
use crate::subvol::FILES;
use crate::tenants::place_in;
use crate::throttle::before_change;
use crate::xattr_edit::XattrEdit;
use crate::{Caller, FileKind, Filesystem, FsError, NameEvent, NodeId, Result, Sabotage};

/// Levels above a directory that another is moved to: the walk to the root is under the lock of
/// renames, and visits so many inodes at most. A path of 4096 bytes has no more levels.
const DEPTH_MAX: usize = 2048;
/// Bytes by which a name may grow without being an addition, such as `.1` or `.old`.
const SUFFIX: usize = 8;

/// Flags of rename, as `renameat2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
    pub whiteout: bool,
}

/// Both ends, looked up under their directories' locks.
struct Ends<'a> {
    from: LockedName<'a>,
    to: LockedName<'a>,
    source: InodeRef,
    target: Option<InodeRef>,
    flags: RenameFlags,
}

struct LockedName<'a> {
    dir: &'a InodeRef,
    name: Name<'a>,
    bucket: Bucket,
}

/// Room for the owners of both directories: of the change, and of an entry that comes from another
/// subvolume.
#[derive(Default)]
struct Rooms {
    here: Room,
    there: Room,
}

/// A whiteout to be made in the old directory, as mknod would make it.
struct Whiteout {
    ino: InodeNo,
    mode: u32,
    acls: XattrEdit<'static>,
}

/// How a directory's counts change.
#[derive(Clone, Copy, Default)]
struct Delta {
    entries: i64,
    dirs: i64,
}

impl Filesystem {
    /// A file that takes over an existing name has its data in the same or an earlier txg (R35).
    #[allow(clippy::too_many_arguments)] // as renameat2(2) has them
    pub async fn rename(
        self: &Arc<Self>,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.writable()?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(FsError::Invalid("these flags of rename exclude each other"));
        }
        let (name, new_name) = (Name::parse(name)?, Name::parse(new_name)?);
        if name.is_dots() || new_name.is_dots() {
            return Err(FsError::Busy("the directory itself"));
        }
        let dir = self.inode(parent).await?;
        let new_dir = self.inode(new_parent).await?;
        dir.expect_dir()?;
        new_dir.expect_dir()?;
        self.permit_in(&dir.subvol)?;
        self.permit_in(&new_dir.subvol)?;
        // The kernel lets no other rename between directories begin meanwhile, of any tenant.
        if parent == new_parent {
            before_change(self, dir.subvol.volume.owner()).await?;
        }
        let mut written: SmallVec<[NodeId; 2]> = SmallVec::new();
        let mut rooms = Rooms::default();
        loop {
            let ends = ((&dir, name), (&new_dir, new_name));
            match self.try_rename(caller, ends.0, ends.1, flags, &written, &mut rooms).await {
                Ok(None) => return Ok(()),
                Ok(Some(file)) => {
                    if !self.breaks(Sabotage::RenameFirst) {
                        self.write_through(&file, WriteReason::UnderSharedLock).await?;
                    }
                    written.push(file.node);
                }
                Err(refused) if rooms.there.is_refused() => {
                    Box::pin(rooms.there.wait(self, &new_dir.subvol, refused)).await?;
                }
                Err(refused) => Box::pin(rooms.here.wait(self, &dir.subvol, refused)).await?,
            }
        }
    }

    /// Renames, or returns the file whose data must be written first; `written` was. One attempt
    /// (ROOM-W1).
    async fn try_rename(
        self: &Arc<Self>,
        caller: &Caller,
        (dir, name): (&InodeRef, Name<'_>),
        (new_dir, new_name): (&InodeRef, Name<'_>),
        flags: RenameFlags,
        written: &[NodeId],
        rooms: &mut Rooms,
    ) -> Result<Option<InodeRef>> {
        let across = dir.node != new_dir.node;
        let _tree = match () {
            () if !across => None,
            () if dir.node.subvol != new_dir.node.subvol => Some(self.moves.lock().await),
            () => Some(dir.subvol.rename.lock().await),
        };
        let (low, high) = if dir.node <= new_dir.node { (dir, new_dir) } else { (new_dir, dir) };
        let _low = low.lock.write().await;
        let _high = if across { Some(high.lock.write().await) } else { None };

        let from = self.bucket(dir, name.bytes()).await?;
        let to = self.bucket(new_dir, new_name.bytes()).await?;
        let found = from.find(self, dir, name.bytes()).ok_or(FsError::NotFound)?;
        let target = to.find(self, new_dir, new_name.bytes());
        if flags.no_replace && target.is_some() {
            return Err(FsError::Exists);
        }
        let is_same = target.is_some_and(|target| target.node == found.node);
        if is_same && found.node.ino.0 < FIRST_PLACEHOLDER {
            return Ok(None);
        }
        let source = self.inode_of_entry(dir, found.node).await?;
        let target = match target {
            Some(target) => Some(self.inode_of_entry(new_dir, target.node).await?),
            None if flags.exchange => return Err(FsError::NotFound),
            None => None,
        };
        let ends = Ends {
            from: LockedName { dir, name, bucket: from },
            to: LockedName { dir: new_dir, name: new_name, bucket: to },
            source,
            target,
            flags,
        };
        ends.check_subvols()?;
        if ends.from.dir.node.subvol != ends.to.dir.node.subvol {
            Box::pin(ends.check_receivers(self, caller)).await?;
        }
        self.check_entries(&ends).await?;
        self.check_tree(&ends).await?;
        if let Some(target) = &ends.target {
            let moved = [Some(&ends.source), flags.exchange.then_some(target)];
            let dirty = |file: &&InodeRef| {
                !file.is_dir() && !written.contains(&file.node) && !file.state().data.is_clean()
            };
            if let Some(file) = moved.into_iter().flatten().find(dirty) {
                return Ok(Some(file.clone()));
            }
        }
        if ends.target.is_none() && self.names().refuses(new_dir, new_name.bytes()) {
            return Err(FsError::Stale);
        }
        self.apply_rename(caller, &ends, rooms).await?;
        if !flags.exchange && !flags.whiteout {
            self.names().insert(dir, name.bytes(), Some(NameEvent::Retained));
        }
        Ok(None)
    }

    /// A subvolume's placeholder is not where the subvolume is.
    async fn check_entries(&self, ends: &Ends<'_>) -> Result<()> {
        let exchanged = ends.target.as_ref().filter(|_| ends.flags.exchange);
        let comes = [Some((&ends.source, &ends.to)), exchanged.map(|other| (other, &ends.from))];
        if ends.from.dir.node != ends.to.dir.node {
            for (inode, place) in comes.into_iter().flatten() {
                self.expect_sole_entry(inode, place.dir, place.name.bytes()).await?;
            }
        }
        Ok(())
    }

    /// Kinds that can replace each other, and no directory under itself.
    async fn check_tree(&self, ends: &Ends<'_>) -> Result<()> {
        let across = ends.from.dir.node != ends.to.dir.node;
        if ends.source.is_dir() && across {
            self.expect_outside(ends.to.dir, &ends.source).await?;
        }
        let Some(target) = &ends.target else { return Ok(()) };
        if ends.flags.exchange {
            if target.is_dir() && across {
                self.expect_outside(ends.from.dir, target).await?;
            }
            return Ok(());
        }
        match (ends.source.is_dir(), target.is_dir()) {
            (false, true) => Err(FsError::IsDirectory),
            (true, false) => Err(FsError::NotDirectory),
            // The directory that holds the source is not empty.
            _ if target.node == ends.from.dir.node => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// `dir` must not be `top` or under it, nor below too many levels. The caller holds the rename
    /// lock.
    pub(crate) async fn expect_outside(&self, dir: &InodeRef, top: &Inode) -> Result<()> {
        let mut at = dir.clone();
        for _ in 0..=DEPTH_MAX {
            if at.node == top.node {
                return Err(FsError::Invalid("a directory cannot be moved under itself"));
            }
            let parent = self.parent(&at);
            if parent == at.node {
                return Ok(());
            }
            at = self.inode(parent).await?;
        }
        Err(FsError::TooDeep { max: DEPTH_MAX })
    }

    async fn new_whiteout(&self, dir: &InodeRef) -> Result<Box<Whiteout>> {
        let inherited = self.inherited_acl(dir, FileKind::CharDevice, 0, 0).await?;
        let ino = self.next_ino(&dir.subvol).await?;
        let acls = match self.breaks(Sabotage::BareWhiteouts) {
            true => XattrEdit::new(&dir.subvol, ino, None),
            false => inherited.xattrs(&dir.subvol, ino)?,
        };
        Ok(Box::new(Whiteout { ino, mode: inherited.mode, acls }))
    }

    async fn apply_rename(
        self: &Arc<Self>,
        caller: &Caller,
        ends: &Ends<'_>,
        rooms: &mut Rooms,
    ) -> Result<()> {
        let mut white = match ends.flags.whiteout {
            true => Some(Box::pin(self.new_whiteout(ends.from.dir)).await?),
            false => None,
        };
        let whiteout = white.as_ref().map(|white| white.ino);
        let acls = white.as_ref().map_or((0, 0), |white| (white.acls.edits(), white.acls.bytes()));
        let names = [&ends.from, &ends.to].map(|place| place.bucket.edit_bytes(place.name.bytes()));
        let records = ends.moves().len();
        let bytes = 5 * INODE_BYTES + KEY_BYTES + names[0] + names[1];
        let bytes = bytes + records * (KEY_BYTES + SubvolItem::BYTES) + acls.1;
        let inodes = u64::from(whiteout.is_some());
        let subvol = &ends.from.dir.subvol;
        // A whiteout is a file more. A longer name adds, unless it replaces one; a suffix does not
        // count, so that logs are rotated at a limit.
        let is_longer = ends.to.name.bytes().len() > ends.from.name.bytes().len() + SUFFIX;
        let adds = whiteout.is_some() || (is_longer && ends.target.is_none());
        let tier = if adds { Tier::Write } else { Tier::Change };
        let weight = (8 + records + acls.0, bytes);
        let wanted = Request { inodes, ..Request::for_edits(weight.0, weight.1) };
        let hold = rooms.here.hold(self, subvol, wanted, quota_tier(tier))?;
        let mut entry = hold_entry(self, ends, &mut rooms.there)?;
        let charge = Charge { credit: credit_for(self, subvol, tier, weight, inodes).await?, hold };
        let now = self.now();
        let (txg, sync) = {
            let mut states = States::lock(ends);
            ends.check_states(&states)?;

            let mut tx = Transaction::new();
            self.rename_buckets(&mut tx, ends, whiteout)?;
            let mut items = states.items(ends, now, whiteout.is_some());
            for (inode, item) in &items {
                let files = ends.files(inode);
                tx.put(files, inode_key(inode.node.ino), &item.encode()[..]);
                if item.nlink == 0 {
                    tx.put(files, orphan_key(inode.node.ino), &[][..]);
                }
            }
            let white_item = white.as_mut().map(|white| {
                let dir = states.get(ends.from.dir);
                let mut item = item_of(New::WHITEOUT, caller, dir, white.mode, now);
                item.parent = ends.from.dir.node.ino;
                white.acls.put(&mut tx, &mut item);
                self.put_inode(&mut tx, white.ino, &item);
                (white.ino, item)
            });
            let moves = ends.moves();
            let txg = match (moves.is_empty(), whiteout) {
                (true, Some(ino)) => {
                    self.apply_inode(subvol, charge, tx, InodeChange::Born(ino))?
                }
                (true, None) => self.apply(subvol, charge, tx)?,
                (false, _) => {
                    let holders = [&ends.from, &ends.to].map(|end| &*end.dir.subvol.volume);
                    self.volumes.moved(
                        &moves,
                        holders,
                        whiteout,
                        !caller.is_administrator,
                        (charge.credit, charge.hold),
                        tx,
                    )?
                }
            };
            entry.spend_metadata();
            for (inode, item) in items.drain(..) {
                states.of(inode).logged_and_shown(item, txg, inode.is_dir());
            }
            if let Some((ino, item)) = white_item {
                let white = Inode::new(&ends.from.dir.subvol, ino, item, Some(txg));
                self.inodes.insert_new(Arc::new(white));
            }
            let mut is_sync = |dir| states.of(dir).is_sync_dir();
            (txg, is_sync(ends.from.dir) || is_sync(ends.to.dir))
        };
        if let Some(target) = ends.target.as_ref().filter(|target| !target.is_placeholder()) {
            self.reap_if_unused(target);
        }
        if sync {
            self.pool.commit(txg).await?;
        }
        Ok(())
    }

    fn rename_buckets(
        &self,
        tx: &mut Transaction,
        ends: &Ends<'_>,
        whiteout: Option<InodeNo>,
    ) -> Result<()> {
        let source = Found { node: ends.source.node, kind: ends.source.kind };
        let (name, new_name) = (ends.from.name.bytes(), ends.to.name.bytes());
        let in_old_place = match (&ends.target, whiteout) {
            (Some(target), _) if ends.flags.exchange => {
                Some(Found { node: target.node, kind: target.kind })
            }
            (_, Some(ino)) => {
                let node = ends.from.dir.subvol.node(ino);
                Some(Found { node, kind: FileKind::CharDevice })
            }
            _ => None,
        };
        let from = &ends.from.bucket;
        let from = from.changed(match in_old_place {
            Some(other) => Some(from.replaced(name, other)),
            None => from.without(name),
        });
        let (here, there) = (ends.from.dir.node.subvol, ends.to.dir.node.subvol);
        let one_bucket = here == there && ends.to.bucket.key() == from.key();
        let to = if one_bucket { &from } else { &ends.to.bucket };
        let to = to.changed(Some(match ends.target {
            Some(_) => to.replaced(new_name, source),
            None => to.with(self, ends.to.dir, new_name, source)?,
        }));
        if !one_bucket {
            from.put(tx, FILES);
        }
        to.put(tx, ends.files(ends.to.dir));
        Ok(())
    }
}

/// For the entry that comes into a directory of another subvolume, whose table has it then.
fn hold_entry(fs: &Filesystem, ends: &Ends<'_>, room: &mut Room) -> Result<Hold> {
    let there = &ends.to.dir.subvol;
    if there.id() == ends.from.dir.subvol.id() {
        return Ok(Hold::nothing());
    }
    let bytes = INODE_BYTES + ends.to.bucket.edit_bytes(ends.to.name.bytes());
    room.hold(fs, there, Request::for_edits(2, bytes), quota::Tier::Write)
}

impl Ends<'_> {
    /// Only subvolumes go to other subvolumes, and they are not replaced.
    fn check_subvols(&self) -> Result<()> {
        let target = self.target.as_ref();
        let exchanged = target.filter(|_| self.flags.exchange);
        let is_across = self.from.dir.node.subvol != self.to.dir.node.subvol;
        let mut moved = [Some(&self.source), exchanged].into_iter().flatten();
        if is_across && !moved.all(|inode| inode.is_subvol_root()) {
            return Err(FsError::CrossSubvolume);
        }
        if self.source.is_subvol_root() && self.flags.whiteout {
            return Err(FsError::Invalid("a subvolume leaves no whiteout"));
        }
        match target.is_some_and(|target| target.is_subvol_root()) && !self.flags.exchange {
            true => Err(FsError::NotEmpty),
            false => Ok(()),
        }
    }

    /// Both subvolumes of an exchange get one (RIGHT-G3).
    async fn check_receivers(&self, fs: &Filesystem, caller: &Caller) -> Result<()> {
        let exchanged = self.flags.exchange.then_some(self.from.dir);
        for dir in [Some(self.to.dir), exchanged].into_iter().flatten() {
            caller.right().permit_receiving(fs, dir).await?;
        }
        Ok(())
    }

    /// Whose records name another directory afterwards.
    fn moves(&self) -> SmallVec<[(&volume::Subvol, copyhold_format::item::ParentDirectory); 2]> {
        let mut moves = SmallVec::new();
        let (from, to) = (self.from.dir, self.to.dir);
        let exchanged = self.target.as_ref().filter(|_| self.flags.exchange);
        let ends = [Some((&self.source, to)), exchanged.map(|target| (target, from))];
        for (inode, into) in ends.into_iter().flatten() {
            if inode.is_subvol_root() && from.node != to.node {
                moves.push((&*inode.subvol.volume, place_in(into)));
            }
        }
        moves
    }

    /// The table that edits of this inode, or of its entries, belong to.
    fn files(&self, inode: &Inode) -> TableId {
        if inode.node.subvol == self.from.dir.node.subvol { FILES } else { Volumes::THERE }
    }

    fn check_states(&self, states: &States<'_>) -> Result<()> {
        let from = states.get(self.from.dir);
        let to = states.get(self.to.dir);
        from.expect_removable_from()?;
        if self.target.is_some() {
            to.expect_removable_from()?;
        } else {
            to.expect_addable_to()?;
        }
        if !self.source.is_placeholder() {
            states.get(&self.source).permit(Way::Name)?;
        }
        if let Some(target) = &self.target {
            let state = states.get(target);
            if !target.is_placeholder() {
                state.permit(Way::Name)?;
            }
            if !self.flags.exchange && target.is_dir() && state.item.size > 0 {
                return Err(FsError::NotEmpty);
            }
        }
        Ok(())
    }

    /// The changes in the counts of the old and the new directory; added up if they are one.
    fn deltas(&self, whiteout: bool) -> [Delta; 2] {
        let source = i64::from(self.source.is_dir());
        let target = self.target.as_ref().map(|target| i64::from(target.is_dir()));
        match target {
            Some(target) if self.flags.exchange => [
                Delta { entries: 0, dirs: target - source },
                Delta { entries: 0, dirs: source - target },
            ],
            _ => [
                Delta { entries: i64::from(whiteout) - 1, dirs: -source },
                Delta { entries: i64::from(target.is_none()), dirs: source - target.unwrap_or(0) },
            ],
        }
    }
}

/// The states of all that a rename touches, each locked once, by number.
struct States<'a>(SmallVec<[(NodeId, MutexGuard<'a, InodeState>); 4]>);

impl<'a> States<'a> {
    fn lock(ends: &'a Ends<'_>) -> States<'a> {
        let mut inodes: SmallVec<[&'a Inode; 4]> = SmallVec::new();
        inodes.extend([&**ends.from.dir, &**ends.to.dir, &*ends.source]);
        inodes.extend(ends.target.as_deref());
        inodes.sort_unstable_by_key(|inode| inode.node);
        inodes.dedup_by_key(|inode| inode.node);
        States(inodes.into_iter().map(|inode| (inode.node, inode.state())).collect())
    }

    fn at(&self, inode: &Inode) -> usize {
        let place = self.0.iter().position(|(node, _)| *node == inode.node);
        place.expect("every inode of a rename is locked")
    }

    fn get(&self, inode: &Inode) -> &InodeState {
        &self.0[self.at(inode)].1
    }

    fn of(&mut self, inode: &Inode) -> &mut InodeState {
        let at = self.at(inode);
        &mut self.0[at].1
    }

    /// The items as they will be.
    fn items<'e>(
        &self,
        ends: &'e Ends<'_>,
        now: Timestamp,
        whiteout: bool,
    ) -> SmallVec<[(&'e Inode, InodeItem); 4]> {
        let [from, to] = ends.deltas(whiteout);
        let (dir, new_dir): (&'e Inode, &'e Inode) = (ends.from.dir, ends.to.dir);
        let mut items = SmallVec::new();
        if dir.node == new_dir.node {
            let item = self.get(dir).dir_item(from.entries + to.entries, from.dirs + to.dirs, now);
            items.push((dir, item));
        } else {
            items.push((dir, self.get(dir).dir_item(from.entries, from.dirs, now)));
            items.push((new_dir, self.get(new_dir).dir_item(to.entries, to.dirs, now)));
        }
        let source: &'e Inode = &ends.source;
        // Of others there is only the entry.
        let has_item = |inode: &Inode| !inode.is_subvol_root() && !inode.is_placeholder();
        if has_item(source) {
            items.push((source, moved(self.get(source), new_dir, now)));
        }
        if let Some(target) = ends.target.as_deref().filter(|target| has_item(target)) {
            let state = self.get(target);
            items.push((
                target,
                match ends.flags.exchange {
                    true => moved(state, dir, now),
                    false => replaced(state, target, now),
                },
            ));
        }
        items
    }
}

fn moved(state: &InodeState, into: &Inode, now: Timestamp) -> InodeItem {
    InodeItem { ctime: now, parent: into.node.ino, ..state.next_item() }
}

fn replaced(state: &InodeState, inode: &Inode, now: Timestamp) -> InodeItem {
    let mut item = state.next_item();
    item.ctime = now;
    item.nlink = if inode.is_dir() { 0 } else { item.nlink.saturating_sub(1) };
    item
}
