//! What a client does with subvolumes: made, snapshotted, deleted in any order, among all else.
//!
//! A snapshot is one operation: it gives each object of its source a second one, which has the data
//! that the first had when the operation began. Nobody but this client writes there, so if the
//! snapshot is there after a crash, that data is.

use std::collections::BTreeMap;

use copyhold_fs::{Caller, FsError, NodeId};
use copyhold_types::{InodeNo, SubvolId};

use super::{Client, Done};
use crate::fs_level::tree::{Kind, Object, ObjectId, Place, Tree};

/// Subvolumes that a client has at the same time.
const SUBVOLS_MAX: usize = 4;

impl Client {
    pub(crate) async fn live_in_subvolumes(&mut self) -> Done {
        let tree = self.tree();
        let subvols = tree.subvols();
        let full = subvols.len() >= SUBVOLS_MAX;
        match (subvols.is_empty(), self.dice.below(3)) {
            (true, _) => self.make_subvol(tree).await,
            (false, 0) if !full => self.make_subvol(tree).await,
            (false, n) if n < 2 && !full => {
                let nth = self.dice.below(subvols.len() as u64) as usize;
                self.snapshot(tree, subvols[nth].1).await
            }
            _ => {
                let nth = self.dice.below(subvols.len() as u64) as usize;
                self.delete_subvol(tree, subvols[nth].0.clone()).await
            }
        }
    }

    /// Entries of subvolumes are in the root subvolume only, so that no snapshot holds any.
    fn a_place_for_subvol(&mut self, tree: &Tree) -> Option<Place> {
        let place = self.a_free_place(tree)?;
        tree.subvol_of(place.0).is_none().then_some(place)
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
        let copies: Vec<ObjectId> = ids.values().copied().collect();
        self.begin("snapshot", tree, &copies);
        self.world().brings(self.id, &copies);
        let made = self.fs.snapshot(of, parent, &place.1, false, None).await;
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

    /// An inode's number means the same file in both.
    fn name_copies(&self, ids: &BTreeMap<ObjectId, ObjectId>, subvol: SubvolId) {
        let mut world = self.world();
        for (old, new) in ids {
            let node = NodeId { subvol, ..world.nodes[old] };
            assert_eq!(world.nodes.insert(*new, node), None);
        }
    }

    /// Deleting a subvolume works on a full pool, too (rule R21).
    pub(crate) async fn delete_subvol(&mut self, mut tree: Tree, place: Place) -> Done {
        let parent = self.node(place.0);
        let gone = tree.within(tree.entries[&place]);
        tree.delete(&place);
        self.begin("delete subvolume", tree, &gone);
        let deleted = self.fs.delete_subvolume(parent, &place.1, None).await;
        if self.given("delete subvolume", deleted)?.is_none() {
            panic!("R21: no subvolume can be deleted on a full pool: {:?}", self.fs.pool().space());
        }
        self.end(true);
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
