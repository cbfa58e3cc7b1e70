//! A client of a filesystem: its operations under its own names, and its checks while it lives.

mod absent;
mod data;
mod fresh;
mod handles;
mod limits;
mod looking;
mod memory;
mod modes;
mod quotas;
mod renames;
mod rights;
mod rollback;
mod subvols;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{Caller, Filesystem, FsError, NodeId, OpenFlags, SetAttr, XattrSet};
use copyhold_pool::PoolError;
use copyhold_volume::quota::QuotaError;
use futures_util::future::{Either, select};
use futures_util::pin_mut;
use parking_lot::MutexGuard;

pub(crate) use self::absent::{FrontEnd, Looker, prune};
pub(crate) use self::handles::Habits;
pub(crate) use self::memory::Operator;
pub(crate) use self::modes::ModeHabits;
pub(crate) use self::quotas::Manager;
use super::collisions;
use super::content::{Content, Versions};
use super::span::Span;
use super::tree::{Dir, Kind, Object, ObjectId, Place, SHARED_DIRS, Tree};
use super::world::{Fsync, Shared, World};
use crate::dice::Dice;

const NAMES: u64 = 12;
/// Files end below this, mostly: a little more than the longest extent.
const FILE_BYTES: u64 = 160 << 10;

/// The client goes on no longer: the filesystem has stopped.
pub(crate) struct Stopped;

pub(crate) type Done = Result<(), Stopped>;

pub(crate) struct Client {
    pub(crate) id: usize,
    pub(crate) fs: Arc<Filesystem>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) dice: Dice,
    /// Errors are part of this life.
    pub(crate) forgiving: bool,
    /// It writes whole blocks, so that who pays for what is known to the byte.
    pub(crate) exact: bool,
    /// How many of a hundred things that it does are about subvolumes.
    pub(crate) tenancy: u64,
    pub(crate) manager: Manager,
    pub(crate) habits: Habits,
    pub(crate) operator: Operator,
    pub(crate) looker: Looker,
    pub(crate) modes: ModeHabits,
}

impl Client {
    /// Does `operations` things, or fewer if the filesystem stops.
    pub(crate) async fn live(mut self, operations: u64) {
        for _ in 0..operations {
            if self.do_something().await.is_err() {
                break;
            }
            self.forget_some();
        }
        self.let_go();
    }

    async fn do_something(&mut self) -> Done {
        self.manage_quotas().await?;
        self.manage_memory().await?;
        self.follow_habits().await?;
        self.look_at_names().await?;
        self.change_checksum_modes().await?;
        match self.dice.below(100) {
            n if n < self.tenancy => self.live_in_subvolumes().await,
            92..100 if self.exact => self.copy().await,
            _ => self.do_anything().await,
        }
    }

    async fn do_anything(&mut self) -> Done {
        match self.dice.below(100) {
            0..13 => self.make(Kind::File).await,
            13..18 => self.make(Kind::Dir).await,
            18..20 => self.make(Kind::Fifo).await,
            20..23 => self.make_symlink().await,
            23..27 => self.link().await,
            27..34 => self.remove().await,
            34..42 => self.rename().await,
            42..47 => self.change_xattr().await,
            47..50 => self.change_mode().await,
            50..69 => self.write().await,
            69..71 | 98 => self.live_in_subvolumes().await,
            71..76 => self.truncate().await,
            76..80 => self.fallocate().await,
            80..82 => self.copy().await,
            82..86 => self.read().await,
            86..89 => self.read_anothers().await,
            89..91 => self.list().await,
            91..96 => self.fsync_any().await,
            96..97 => self.sync().await,
            97..98 => self.expect_refusals().await,
            _ => self.rest().await,
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.shared.world.lock();
        world.now = self.fs.pool().runtime().wall_clock();
        world
    }

    fn tree(&self) -> Tree {
        self.world().logs[self.id].now().clone()
    }

    /// The result of an operation: none when the pool is full, or a limit is reached.
    fn given<T>(&self, what: &str, result: Result<T, FsError>) -> Result<Option<T>, Stopped> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoSpace(full)) => {
                let PoolError::Full { wanted, free, reserve, on_the_way } = full else {
                    panic!("{what} is refused for no space: {full}");
                };
                // An operation that frees space may take half of the reserve (R21).
                let kept = match what {
                    "remove" | "delete subvolume" => reserve / 2,
                    "chmod" | "chown" | "set checksum mode" => reserve - reserve / 4,
                    _ => reserve,
                };
                let has_room = free + on_the_way >= wanted + kept;
                assert!(!has_room, "R22: {what} is refused, though space is on its way: {full:?}");
                Ok(None)
            }
            Err(refused @ (FsError::Quota(QuotaError::Exceeded(_)) | FsError::Kept { .. })) => {
                assert!(!matches!(what, "chmod" | "chown"), "{what} at a limit: {refused}");
                Ok(None)
            }
            Err(_) if self.forgiving => {
                self.world().troubled = true;
                Err(Stopped)
            }
            Err(error) => panic!("client {}: {what}: {error}", self.id),
        }
    }

    // -- names --------------------------------------------------------------

    fn a_dir(&mut self, tree: &Tree) -> Dir {
        let is_real = |object: &Object| object.kind.is_dir() && object.kind != Kind::Placeholder;
        let own = tree.objects.iter().filter(|(_, object)| is_real(object));
        let own: Vec<ObjectId> = own.map(|(id, _)| *id).collect();
        if own.is_empty() || self.dice.one_in(3) {
            return Dir::Shared(self.dice.below(SHARED_DIRS as u64) as usize);
        }
        Dir::Own(self.dice.pick(&own))
    }

    fn a_place(&mut self, tree: &Tree) -> Place {
        (self.a_dir(tree), self.a_name())
    }

    /// A name that only this client uses.
    fn a_name(&mut self) -> Vec<u8> {
        let nth = self.dice.below(NAMES);
        let name = collisions::names(self.id).into_iter().nth(nth as usize);
        name.unwrap_or_else(|| format!("c{}-{nth}", self.id).into_bytes())
    }

    fn a_free_place(&mut self, tree: &Tree) -> Option<Place> {
        let place = self.a_place(tree);
        let is_free = !tree.entries.contains_key(&place) && tree.takes_names(place.0);
        is_free.then_some(place)
    }

    fn an_entry(&mut self, tree: &Tree) -> Option<(Place, ObjectId)> {
        let count = tree.entries.len() as u64;
        let nth = (count > 0).then(|| self.dice.below(count) as usize)?;
        tree.entries.iter().nth(nth).map(|(place, id)| (place.clone(), *id))
    }

    /// An entry that may be renamed or removed.
    fn a_loose_entry(&mut self, tree: &Tree) -> Option<(Place, ObjectId)> {
        self.an_entry(tree).filter(|(place, _)| tree.is_loose(place))
    }

    /// An object that may be changed, by one of its names.
    fn a_pliable_entry(&mut self, tree: &Tree) -> Option<(Place, ObjectId)> {
        self.an_entry(tree).filter(|(_, id)| tree.may_change(*id))
    }

    fn a_file(&mut self) -> Option<(ObjectId, NodeId)> {
        self.a_file_that(|_, _| true)
    }

    /// A file that may be changed.
    fn a_pliable_file(&mut self) -> Option<(ObjectId, NodeId)> {
        self.a_file_that(Tree::may_change)
    }

    fn a_file_that(&mut self, is_meant: fn(&Tree, ObjectId) -> bool) -> Option<(ObjectId, NodeId)> {
        let world = self.shared.world.lock();
        let tree = world.logs[self.id].now();
        let files = tree.objects.iter().filter(|(_, object)| object.kind == Kind::File);
        let files = files.map(|(id, _)| *id).filter(|id| is_meant(tree, *id));
        let files: Vec<ObjectId> = files.collect();
        let id = (!files.is_empty()).then(|| self.dice.pick(&files))?;
        Some((id, world.nodes[&id]))
    }

    /// A step begins that makes this of the client's tree, and touches these objects.
    fn begin(&self, name: &'static str, tree: Tree, touched: &[ObjectId]) {
        let mut world = self.world();
        world.begin(self.id, name, tree);
        world.touch(self.id, touched);
    }

    fn end(&self, done: bool) {
        let mut world = self.world();
        if done { world.end(self.id) } else { world.take_back(self.id) }
    }

    fn node(&self, dir: Dir) -> NodeId {
        self.world().node(dir)
    }

    async fn make(&mut self, kind: Kind) -> Done {
        let mut tree = self.tree();
        let Some(place) = self.a_free_place(&tree) else { return Ok(()) };
        let parent = self.node(place.0);
        let id = self.world().new_object();
        let mut mode = match kind {
            Kind::Symlink(_) => 0o777,
            _ => self.dice.pick(&[0o644, 0o600, 0o755]),
        };
        let mut caller = Caller::ROOT;
        if self.habits.careful {
            (mode, caller) = self.somebodys(mode);
        }
        let object = Object::made_in(tree.own(place.0), kind.clone(), mode, &caller);
        let room = self.room_for_inode(&tree, place.0);
        tree.put(place.clone(), id, object);
        self.world().usage.eras.make(id);
        self.begin("make", tree, &[id]);
        let (fs, caller, name) = (&self.fs, &caller, &place.1);
        let made = match &kind {
            Kind::File => {
                let flags = OpenFlags::READ_WRITE;
                let made = fs.create(caller, parent, name, mode, flags, true).await;
                made.map(|(entry, _)| {
                    fs.release(entry.node);
                    entry
                })
            }
            Kind::Dir => fs.mkdir(caller, parent, name, mode).await,
            Kind::Subvol | Kind::Placeholder => unreachable!("made by `subvols`"),
            Kind::Fifo => fs.mknod(caller, parent, name, 0o010000 | mode, 0).await,
            Kind::Symlink(target) => fs.symlink(caller, parent, name, target).await,
        };
        self.check_room(room, &made);
        match self.given("make", made)? {
            Some(entry) => {
                let mut world = self.world();
                world.born(id, entry.node);
                world.end(self.id);
                let born = world.logs[self.id].now().objects[&id].born;
                world.data.insert(id, Versions::of(Content::default(), born));
                drop(world);
                self.meet(entry);
                Ok(())
            }
            None => {
                self.end(false);
                self.make_room().await
            }
        }
    }

    async fn make_symlink(&mut self) -> Done {
        let len = 1 + self.dice.magnitude(8) as usize;
        let target = self.dice.bytes(len).into_iter().map(|byte| byte | 1).collect();
        self.make(Kind::Symlink(target)).await
    }

    async fn link(&mut self) -> Done {
        let mut tree = self.tree();
        let (Some(place), Some((id, node))) = (self.a_free_place(&tree), self.a_pliable_file())
        else {
            return Ok(());
        };
        if tree.home_of(id) != tree.subvol_of(place.0) {
            let refused = self.fs.link(node, self.node(place.0), &place.1).await;
            assert!(
                self.forgiving || matches!(refused, Err(FsError::CrossSubvolume)),
                "{refused:?}"
            );
            return Ok(());
        }
        tree.link(place.clone(), id);
        let parent = self.node(place.0);
        self.begin("link", tree, &[id]);
        let linked = self.fs.link(node, parent, &place.1).await;
        let linked = self.given("link", linked)?.map(|entry| self.meet(entry));
        self.end(linked.is_some());
        Ok(())
    }

    async fn remove(&mut self) -> Done {
        let tree = self.tree();
        let Some((place, id)) = self.a_loose_entry(&tree) else { return Ok(()) };
        self.remove_entry(tree, place, id).await
    }

    /// Deleting works on a full pool, too (rule R21).
    async fn remove_entry(&mut self, mut tree: Tree, place: Place, id: ObjectId) -> Done {
        if tree.objects[&id].kind == Kind::Subvol {
            return self.delete_subvol(tree, place).await;
        }
        let is_dir = tree.objects[&id].kind.is_dir();
        let parent = self.node(place.0);
        if is_dir && !tree.is_empty(id) {
            let refused = self.fs.rmdir(parent, &place.1).await;
            assert!(self.forgiving || matches!(refused, Err(FsError::NotEmpty)), "{refused:?}");
            return Ok(());
        }
        let open = !is_dir && self.dice.one_in(4);
        let node = open.then(|| self.world().nodes[&id]);
        if let Some(node) = node {
            let opened = self.fs.open_node(node, OpenFlags::READ).await;
            self.given("open", opened)?;
        }
        tree.remove(&place);
        self.begin("remove", tree, &[id]);
        let removed = match is_dir {
            true => self.fs.rmdir(parent, &place.1).await,
            false => self.fs.unlink(parent, &place.1).await,
        };
        if self.given("remove", removed)?.is_none() {
            panic!("R21: nothing can be deleted on a full pool: {:?}", self.fs.pool().space());
        }
        self.end(true);
        if let Some(node) = node {
            self.pause(20).await;
            self.fs.release(node);
        }
        Ok(())
    }

    async fn change_xattr(&mut self) -> Done {
        let mut tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        let object = tree.objects.get_mut(&id).expect("it has a name");
        if !matches!(object.kind, Kind::File | Kind::Dir) {
            return Ok(());
        }
        let name = format!("user.{}", self.dice.below(5)).into_bytes();
        let node = self.world().nodes[&id];
        let done = if object.xattrs.contains_key(&name) && self.dice.one_in(3) {
            object.xattrs.remove(&name);
            object.ctime = Span::Now;
            self.begin("remove xattr", tree, &[id]);
            self.fs.remove_xattr(node, &name).await
        } else {
            let len = self.dice.magnitude(if self.dice.clone().one_in(8) { 12 } else { 7 });
            let value = self.dice.bytes(len as usize);
            object.xattrs.insert(name.clone(), value.clone());
            object.ctime = Span::Now;
            self.begin("set xattr", tree, &[id]);
            let root = &Caller::ROOT;
            self.fs.set_xattr(root, node, &name, &value, XattrSet::Any, false).await
        };
        let done = self.given("xattr", done)?;
        self.end(done.is_some());
        Ok(())
    }

    async fn change_mode(&mut self) -> Done {
        let tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        self.change_mode_of(tree, id).await
    }

    async fn change_mode_of(&mut self, mut tree: Tree, id: ObjectId) -> Done {
        let object = tree.objects.get_mut(&id).expect("it has a name");
        if matches!(object.kind, Kind::Symlink(_)) {
            return Ok(());
        }
        let mode = self.dice.below(0o1000) as u32;
        object.chmod(mode, &Caller::ROOT);
        object.ctime = Span::Now;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let node = self.world().nodes[&id];
        self.begin("chmod", tree, &[id]);
        let done = self.fs.setattr(&Caller::ROOT, node, &set).await;
        let done = self.given("chmod", done)?;
        self.end(done.is_some());
        Ok(())
    }

    // -- making durable -----------------------------------------------------

    /// Of this client or of another.
    fn anybodys_file(&mut self) -> Option<(ObjectId, NodeId)> {
        let world = self.shared.world.lock();
        let of = self.dice.below(world.logs.len() as u64) as usize;
        let objects = &world.logs[of].now().objects;
        let files = objects
            .iter()
            .filter(|(id, object)| object.kind == Kind::File && world.nodes.contains_key(id));
        let files: Vec<ObjectId> = files.map(|(id, _)| *id).collect();
        let id = (!files.is_empty()).then(|| self.dice.pick(&files))?;
        Some((id, world.nodes[&id]))
    }

    /// The result of an operation, unless this client cancels it before.
    async fn with_patience<T>(&mut self, operation: impl Future<Output = T>) -> Option<T> {
        if !self.dice.one_in(8) {
            return Some(operation.await);
        }
        let patience = Duration::from_nanos(self.dice.magnitude(21));
        let over = self.fs.pool().runtime().sleep(patience);
        pin_mut!(operation);
        match select(operation, over).await {
            Either::Left((given, _)) => Some(given),
            Either::Right(_) => None,
        }
    }

    async fn fsync_any(&mut self) -> Done {
        match self.anybodys_file() {
            Some((id, _)) => self.fsync(id).await,
            None => Ok(()),
        }
    }

    async fn fsync(&mut self, id: ObjectId) -> Done {
        let (node, fsync) = {
            let world = self.world();
            (world.nodes[&id], world.before_fsync(id))
        };
        let (fs, data_only) = (self.fs.clone(), self.dice.one_in(2));
        match self.with_patience(fs.fsync(node, data_only)).await {
            // Given up.
            None => Ok(()),
            Some(result) => self.fsynced(result, &fsync),
        }
    }

    fn fsynced(&self, result: Result<(), FsError>, fsync: &Fsync) -> Done {
        match result {
            // Another client has removed it meanwhile.
            Err(FsError::Stale) => return Ok(()),
            Err(FsError::NoSpace(error)) => panic!("R22: accepted, but not written: {error}"),
            result => self.given("fsync", result)?,
        };
        self.world().after_fsync(fsync);
        Ok(())
    }

    async fn sync(&mut self) -> Done {
        let (moment, versions) = self.world().before_sync();
        let fs = self.fs.clone();
        let Some(result) = self.with_patience(fs.sync()).await else { return Ok(()) };
        if let Err(FsError::NoSpace(error)) = &result {
            panic!("R22: accepted, but not written: {error}");
        }
        self.given("sync", result)?;
        self.world().after_sync(moment, &versions);
        Ok(())
    }

    /// The pool is full, or a limit is reached: deletes one of its names.
    async fn make_room(&mut self) -> Done {
        let tree = self.tree();
        let Some((place, id)) = self.a_loose_entry(&tree) else { return Ok(()) };
        self.remove_entry(tree, place, id).await
    }

    async fn rest(&mut self) -> Done {
        let bits = self.dice.pick(&[20, 26, 33]);
        self.pause(bits).await;
        Ok(())
    }

    async fn pause(&mut self, bits: u64) {
        let nanos = self.dice.magnitude(bits);
        self.fs.pool().runtime().sleep(Duration::from_nanos(nanos)).await;
    }
}
