//! A client's operations on subvolumes: made, snapshotted, deleted in any order, among all others.
//!
//! A snapshot is one operation: it gives each object of its source a second one, which has the data
//! that the first had when the operation began. Only this client writes there, so if the snapshot
//! is there after a crash, that data is.

use std::collections::BTreeMap;

use copyhold_fs::{Caller, FsError, NodeId};
use copyhold_pool::FORK_DEPTH_MAX;
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::VolumeError;

use super::{Client, Done};
use crate::fs_level::tree::{Kind, Object, ObjectId, Place, Tree};

/// Subvolumes that a client has at the same time.
pub(super) const SUBVOLS_MAX: usize = 6;

impl Client {
    pub(crate) async fn live_in_subvolumes(&mut self) -> Done {
        let tree = self.tree();
        let subvols = tree.subvols();
        let full = subvols.len() >= SUBVOLS_MAX;
        if subvols.is_empty() {
            return self.make_subvol(tree).await;
        }
        let (place, id) = self.dice.pick_ref(&subvols).clone();
        match self.dice.below(20) {
            0..2 if !full => self.make_subvol(tree).await,
            2..4 if !full => self.snapshot(tree, id).await,
            4..5 if !full => self.snapshot_in_flight(tree, id).await,
            5..6 => self.set_read_only(tree, id).await,
            6..7 => self.keep_open_over_properties(tree, id).await,
            7..9 => self.set_limit(id).await,
            9..12 if tree.is_loose(&place) => self.roll_back(tree, place).await,
            15..17 if !full && !self.exact => self.part_preallocated(tree, id).await,
            17..18 if !full => self.snapshot_often(id).await,
            12..15 if tree.is_loose(&place) => self.rename_entry(tree, place, id).await,
            _ if tree.is_loose(&place) => self.delete_subvol(tree, place).await,
            _ => Ok(()),
        }
    }

    /// In any subvolume that may be changed, also in what is snapshotted.
    fn a_place_for_subvol(&mut self, tree: &Tree) -> Option<Place> {
        self.a_free_place(tree)
    }

    async fn make_subvol(&mut self, mut tree: Tree) -> Done {
        let Some(place) = self.a_place_for_subvol(&tree) else { return Ok(()) };
        let parent = self.node(place.0);
        let room = self.room_for_inode(&tree, place.0);
        let id = self.world().new_object();
        self.world().usage.eras.make(id);
        let mode = 0o777 & !Caller::ROOT.umask;
        let mut object = Object::new(Kind::Subvol, mode);
        object.checksum_mode = tree.own(place.0).map(|dir| dir.checksum_mode).unwrap_or_default();
        tree.make_subvol(place.clone(), id, object);
        self.begin("make subvolume", tree, &[id]);
        let made = self.fs.create_subvolume(&Caller::ROOT, parent, &place.1, None).await;
        self.check_room(room, &made);
        match self.given("make subvolume", made)? {
            Some(subvol) => {
                let node = NodeId { subvol, ino: InodeNo::ROOT };
                let mut world = self.world();
                world.born(id, node);
                world.end(self.id);
                Ok(())
            }
            None => {
                self.end(false);
                self.make_room().await
            }
        }
    }

    pub(super) async fn snapshot(&mut self, mut tree: Tree, source: ObjectId) -> Done {
        let Some(place) = self.a_place_for_subvol(&tree) else { return Ok(()) };
        let parent = self.node(place.0);
        let room = self.room_for_snapshot(&tree, source, place.0);
        let (of, ids) = self.copies(&tree, source);
        tree.snapshot(source, place.clone(), &ids);
        let read_only = self.dice.one_in(3);
        if read_only {
            tree.read_only.insert(ids[&source]);
        }
        let copies: Vec<ObjectId> = ids.values().copied().collect();
        if read_only && self.exact {
            // No task would remove files there that have lost their last name (R38).
            self.let_go();
            self.fs.reaper_idle().await;
        }
        self.begin("snapshot", tree, &copies);
        self.world().brings(self.id, &copies);
        let made = self.fs.snapshot(of, parent, &place.1, read_only, None).await;
        self.check_room(room, &made);
        match self.given("snapshot", made)? {
            Some(subvol) => {
                self.name_copies(&ids, subvol);
                self.check_depth(of);
                self.end(true);
                Ok(())
            }
            None => {
                copies.iter().for_each(|id| drop(self.world().data.remove(id)));
                self.end(false);
                self.make_room().await
            }
        }
    }

    /// Snapshots with a change between each two: many tables to lie over each other.
    async fn snapshot_often(&mut self, id: ObjectId) -> Done {
        for _ in 0..SUBVOLS_MAX {
            self.snapshot(self.tree(), id).await?;
            let tree = self.tree();
            if tree.objects.contains_key(&id) && tree.may_change(id) {
                self.change_mode_of(tree, id).await?;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// R29: however many snapshots are made, a look-up asks few tables.
    pub(super) fn check_depth(&self, of: SubvolId) {
        let subvol = self.fs.volumes().subvol(of).expect("it has just been snapshotted");
        let depth = self.fs.pool().fork_depth(subvol.files());
        assert!(depth <= FORK_DEPTH_MAX, "R29: {depth} unflushed tables lie under {of}");
    }

    /// Objects for a snapshot of a subvolume, with the data that is there now.
    pub(super) fn copies(
        &self,
        tree: &Tree,
        source: ObjectId,
    ) -> (SubvolId, BTreeMap<ObjectId, ObjectId>) {
        let mut world = self.world();
        let within = tree.within(source).into_iter();
        let ids: BTreeMap<_, _> = within.map(|old| (old, world.new_object())).collect();
        for (old, new) in &ids {
            if let Some(data) = world.data.get(old).cloned() {
                world.data.insert(*new, data);
            }
            world.modes.share(*old, *new);
        }
        world.usage.eras.snapshot(&ids);
        (world.nodes[&source].subvol, ids)
    }

    /// An inode's number means the same file in both. Subvolumes inside the source are not in the
    /// snapshot.
    pub(super) fn name_copies(&self, ids: &BTreeMap<ObjectId, ObjectId>, subvol: SubvolId) {
        let mut world = self.world();
        let tree = world.logs[self.id].now().clone();
        for (old, new) in ids {
            if tree.objects[new].kind != Kind::Placeholder {
                let node = NodeId { subvol, ..world.nodes[old] };
                world.born(*new, node);
            }
        }
    }

    /// `property set ro`, there and back again. A read-only subvolume has all its former data.
    pub(super) async fn set_read_only(&mut self, mut tree: Tree, id: ObjectId) -> Done {
        let on = !tree.read_only.remove(&id);
        if on {
            tree.read_only.insert(id);
        }
        let subvol = self.world().nodes[&id].subvol;
        if on && self.exact {
            self.let_go();
            self.fs.reaper_idle().await;
        }
        let files = if on { tree.within(id) } else { Vec::new() };
        self.begin("property set ro", tree, &[]);
        self.world().brings(self.id, &files);
        let set = self.fs.set_subvolume_read_only(subvol, on).await;
        let set = self.given("property set ro", set)?;
        self.end(set.is_some());
        Ok(())
    }

    /// Deleting a subvolume works on a full pool, too (rule R21).
    pub(crate) async fn delete_subvol(&mut self, mut tree: Tree, place: Place) -> Done {
        let parent = self.node(place.0);
        let id = tree.entries[&place];
        let as_dir = self.dice.one_in(3);
        if as_dir && !tree.is_empty(id) {
            let refused = self.fs.remove_empty_subvolume(parent, &place.1).await;
            assert!(self.forgiving || matches!(refused, Err(FsError::NotEmpty)), "{refused:?}");
            return Ok(());
        }
        if tree.holds_any(id) {
            return self.expect_held(parent, &place.1).await;
        }
        let victim = self.world().nodes[&id].subvol;
        let heir = if as_dir { None } else { self.an_heir(&tree, id) };
        let gone = tree.within(id);
        tree.delete(&place);
        self.begin("delete subvolume", tree, &gone);
        if let Some(heir) = heir {
            self.world().usage.eras.inherit(victim, heir);
        }
        let deleted = match as_dir {
            true => self.fs.remove_empty_subvolume(parent, &place.1).await,
            false => self.fs.delete_subvolume(parent, &place.1, heir).await,
        };
        if self.given("delete subvolume", deleted)?.is_none() {
            panic!("R21: no subvolume can be deleted on a full pool: {:?}", self.fs.pool().space());
        }
        self.end(true);
        Ok(())
    }

    /// The subvolume that is to pay for the remaining blocks of a deleted one (rule R42).
    fn an_heir(&mut self, tree: &Tree, dead: ObjectId) -> Option<SubvolId> {
        let all = tree.subvols().into_iter().map(|(_, id)| id).filter(|id| *id != dead);
        let all: Vec<ObjectId> = all.collect();
        if !self.world().usage.eras.is_on() || !self.dice.one_in(3) {
            return None;
        }
        let heir = (!all.is_empty()).then(|| self.dice.pick(&all));
        Some(heir.map_or(SubvolId::ROOT, |heir| self.world().nodes[&heir].subvol))
    }

    async fn expect_held(&mut self, parent: NodeId, name: &[u8]) -> Done {
        let refused = self.fs.delete_subvolume(parent, name, None).await;
        let holds = |error: &FsError| {
            matches!(error, FsError::Volume(error)
            if matches!(**error, VolumeError::Holds(..)))
        };
        let as_it_must = refused.as_ref().is_err_and(holds);
        assert!(self.forgiving || as_it_must, "{refused:?}");
        Ok(())
    }
}
