//! What a client does with subvolumes: made, snapshotted, deleted in any order, among all else.
//!
//! A snapshot is one operation: it gives each object of its source a second one, which has the data
//! that the first had when the operation began. Nobody but this client writes there, so if the
//! snapshot is there after a crash, that data is.

use std::collections::BTreeMap;

use copyhold_fs::{Caller, FsError, NodeId};
use copyhold_types::{InodeNo, SubvolId};
use copyhold_volume::VolumeError;

use super::{Client, Done};
use crate::fs_level::tree::{Kind, Object, ObjectId, Place, Tree};

/// Subvolumes that a client has at the same time.
const SUBVOLS_MAX: usize = 6;

impl Client {
    pub(crate) async fn live_in_subvolumes(&mut self) -> Done {
        let tree = self.tree();
        let subvols = tree.subvols();
        let full = subvols.len() >= SUBVOLS_MAX;
        if subvols.is_empty() {
            return self.make_subvol(tree).await;
        }
        let (place, id) = self.dice.pick_ref(&subvols).clone();
        match self.dice.below(12) {
            0..2 if !full => self.make_subvol(tree).await,
            2..5 if !full => self.snapshot(tree, id).await,
            5..7 => self.set_read_only(tree, id).await,
            7..9 => self.set_limit(id).await,
            _ if tree.is_writable(place.0) => self.delete_subvol(tree, place).await,
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
        let id = self.world().new_object();
        let mode = 0o777 & !Caller::ROOT.umask;
        tree.put(
            place.clone(),
            id,
            Object { kind: Kind::Subvol, mode, xattrs: Default::default() },
        );
        self.begin("make subvolume", tree, &[id]);
        let made = self.fs.create_subvolume(&Caller::ROOT, parent, &place.1, None).await;
        match self.given("make subvolume", made)? {
            Some(subvol) => {
                let node = NodeId { subvol, ino: InodeNo::ROOT };
                let mut world = self.world();
                assert_eq!(world.nodes.insert(id, node), None);
                world.end(self.id);
                Ok(())
            }
            None => {
                self.end(false);
                self.make_room().await
            }
        }
    }

    async fn snapshot(&mut self, mut tree: Tree, source: ObjectId) -> Done {
        let Some(place) = self.a_place_for_subvol(&tree) else { return Ok(()) };
        let parent = self.node(place.0);
        let within = tree.within(source);
        let (of, ids) = {
            let mut world = self.world();
            let ids: BTreeMap<ObjectId, ObjectId> =
                within.iter().map(|old| (*old, world.new_object())).collect();
            for (old, new) in &ids {
                if let Some(data) = world.data.get(old).cloned() {
                    world.data.insert(*new, data);
                }
            }
            (world.nodes[&source].subvol, ids)
        };
        tree.snapshot(source, place.clone(), &ids);
        let read_only = self.dice.one_in(3);
        if read_only {
            tree.read_only.insert(ids[&source]);
        }
        let copies: Vec<ObjectId> = ids.values().copied().collect();
        if read_only && self.exact {
            // What has no name any more, nobody would remove there (R38).
            self.fs.reaper_idle().await;
        }
        self.begin("snapshot", tree, &copies);
        self.world().brings(self.id, &copies);
        let made = self.fs.snapshot(of, parent, &place.1, read_only, None).await;
        match self.given("snapshot", made)? {
            Some(subvol) => {
                self.name_copies(&ids, subvol);
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

    /// An inode's number means the same file in both. Subvolumes inside the source are not in the
    /// snapshot.
    fn name_copies(&self, ids: &BTreeMap<ObjectId, ObjectId>, subvol: SubvolId) {
        let mut world = self.world();
        let tree = world.logs[self.id].now().clone();
        for (old, new) in ids {
            if tree.objects[new].kind != Kind::Placeholder {
                let node = NodeId { subvol, ..world.nodes[old] };
                assert_eq!(world.nodes.insert(*new, node), None);
            }
        }
    }

    /// `property set ro`, there and back again.
    async fn set_read_only(&mut self, mut tree: Tree, id: ObjectId) -> Done {
        let on = !tree.read_only.remove(&id);
        if on {
            tree.read_only.insert(id);
        }
        let subvol = self.world().nodes[&id].subvol;
        if on && self.exact {
            self.fs.reaper_idle().await;
        }
        self.begin("property set ro", tree, &[]);
        let set = self.fs.set_subvolume_read_only(subvol, on).await;
        let set = self.given("property set ro", set)?;
        self.end(set.is_some());
        Ok(())
    }

    /// Deleting a subvolume works on a full pool, too (rule R21).
    pub(crate) async fn delete_subvol(&mut self, mut tree: Tree, place: Place) -> Done {
        let parent = self.node(place.0);
        let id = tree.entries[&place];
        if tree.holds_any(id) {
            return self.expect_held(parent, &place.1).await;
        }
        let victim = self.world().nodes[&id].subvol;
        let heir = self.an_heir(&tree, id);
        let gone = tree.within(id);
        tree.delete(&place);
        self.begin("delete subvolume", tree, &gone);
        if let Some(heir) = heir {
            self.world().usage.inherit(victim, heir);
        }
        let deleted = self.fs.delete_subvolume(parent, &place.1, heir).await;
        if self.given("delete subvolume", deleted)?.is_none() {
            panic!("R21: no subvolume can be deleted on a full pool: {:?}", self.fs.pool().space());
        }
        self.end(true);
        Ok(())
    }

    /// Who is to pay for what a subvolume leaves (rule R42).
    fn an_heir(&mut self, tree: &Tree, dead: ObjectId) -> Option<SubvolId> {
        let all = tree.subvols().into_iter().map(|(_, id)| id).filter(|id| *id != dead);
        let all: Vec<ObjectId> = all.collect();
        if !self.world().usage.on || !self.dice.one_in(3) {
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

    pub(crate) async fn expect_other_subvolume(&mut self, from: &Place, to: &Place) -> Done {
        let [from_dir, to_dir] = [from.0, to.0].map(|dir| self.node(dir));
        let flags = Default::default();
        let refused = self.fs.rename(&Caller::ROOT, from_dir, &from.1, to_dir, &to.1, flags).await;
        let as_it_must = matches!(refused, Err(FsError::CrossSubvolume));
        assert!(self.forgiving || as_it_must, "{refused:?}");
        Ok(())
    }
}
