//! A client's rollbacks: a subvolume gets the content of a relative.

use copyhold_fs::{FsError, NodeId};
use copyhold_volume::VolumeError;
use copyhold_volume::quota::{QuotaError, Resource};

use super::{Client, Done};
use crate::fs_level::tree::{ObjectId, Place, Tree};

impl Client {
    /// The subvolume at `place` gets the content of another; its old state is deleted, or kept
    /// elsewhere.
    pub(super) async fn roll_back(&mut self, tree: Tree, place: Place) -> Done {
        let old = tree.entries[&place];
        if self.manager.promises && self.manager.dice.one_in(2) {
            // The replacement must have this promise, too.
            self.promise_to(old).await?;
        }
        let tree = self.tree();
        let relatives = tree.subvols().into_iter().map(|(_, id)| id);
        let relatives: Vec<ObjectId> =
            relatives.filter(|id| *id != old || tree.subvols().len() == 1).collect();
        let source = self.dice.pick(&relatives);
        let keep = if self.dice.one_in(2) { self.a_free_place(&tree) } else { None };
        let keep = keep.filter(|keep| tree.gives_names(keep.0));
        self.roll_back_to(tree, place, source, keep).await
    }

    pub(super) async fn roll_back_to(
        &mut self,
        mut tree: Tree,
        place: Place,
        source: ObjectId,
        keep: Option<Place>,
    ) -> Done {
        let old = tree.entries[&place];
        if let Some(is_as_it_must) = refusal(&tree, old, source, keep.as_ref()) {
            return self.expect_no_rollback(&place, source, keep, is_as_it_must).await;
        }
        let gone = if keep.is_some() { vec![] } else { tree.within(old) };
        let (of, ids) = self.copies(&tree, source);
        tree.roll_back(&place, source, keep.as_ref(), &ids);
        let copies: Vec<ObjectId> = ids.values().copied().collect();
        if tree.has_twins() {
            copies.iter().for_each(|id| drop(self.world().data.remove(id)));
            let is_busy = |error: &FsError| matches!(error, FsError::Busy(_));
            return self.expect_no_rollback(&place, source, keep, is_busy).await;
        }
        self.begin("rollback", tree, &[&copies[..], &gone].concat());
        {
            let mut world = self.world();
            world.brings(self.id, &copies);
            let old = world.nodes[&old].subvol;
            if keep.is_none() {
                world.usage.eras.inherits_to_come(old, ids[&source]);
            }
        }
        let parent = self.node(place.0);
        let kept = keep.as_ref().map(|keep| (self.node(keep.0), &keep.1[..]));
        let made = self.fs.roll_back_subvolume(parent, &place.1, of, kept).await;
        // The source may have more inodes than the old state has.
        let brings_inodes = matches!(
            &made,
            Err(FsError::Quota(QuotaError::Exceeded(of))) if of.resource == Resource::Inodes
        );
        match self.given("rollback", made)? {
            Some(made) => {
                self.name_copies(&ids, made.subvol);
                let mut world = self.world();
                let made = ids[&source];
                let number = world.nodes[&made].subvol;
                world.usage.eras.has_come(made, Some(number));
                drop(world);
                self.end(true);
                Ok(())
            }
            None if keep.is_some() || brings_inodes => {
                self.world().usage.eras.has_come(ids[&source], None);
                copies.iter().for_each(|id| drop(self.world().data.remove(id)));
                self.end(false);
                self.make_room().await
            }
            None => panic!("R21: no way back on a full pool: {:?}", self.fs.pool().space()),
        }
    }

    async fn expect_no_rollback(
        &mut self,
        place: &Place,
        source: ObjectId,
        keep: Option<Place>,
        is_as_it_must: fn(&FsError) -> bool,
    ) -> Done {
        let (parent, of): (NodeId, _) = (self.node(place.0), self.world().nodes[&source].subvol);
        let kept = keep.as_ref().map(|keep| (self.node(keep.0), &keep.1[..]));
        let refused = self.fs.roll_back_subvolume(parent, &place.1, of, kept).await;
        // The place where it is to be kept is looked at first.
        let is_no_place = matches!(
            refused,
            Err(FsError::NoSpace(_)
                | FsError::Busy(_)
                | FsError::Quota(QuotaError::Exceeded(_))
                | FsError::Kept { .. })
        );
        let as_it_must = refused.as_ref().is_err_and(is_as_it_must);
        let as_it_must = as_it_must || (keep.is_some() && is_no_place);
        assert!(self.forgiving || as_it_must, "{refused:?}");
        Ok(())
    }
}

/// How this must be refused.
fn refusal(
    tree: &Tree,
    old: ObjectId,
    source: ObjectId,
    keep: Option<&Place>,
) -> Option<fn(&FsError) -> bool> {
    if tree.read_only.contains(&old) {
        return Some(|error| matches!(error, FsError::ReadOnly { .. }));
    }
    if keep.is_some_and(|keep| tree.is_within(keep.0, old)) {
        return Some(|error| matches!(error, FsError::Invalid(_)));
    }
    if old == source || tree.family_of(old) != tree.family_of(source) {
        return Some(|error| {
            is_volume(error, |error| matches!(error, VolumeError::Unrelated { .. }))
        });
    }
    match keep.is_none() && tree.holds_any(old) {
        true => Some(|error| is_volume(error, |error| matches!(error, VolumeError::Holds(..)))),
        false => None,
    }
}

fn is_volume(error: &FsError, is_meant: fn(&VolumeError) -> bool) -> bool {
    matches!(error, FsError::Volume(error) if is_meant(error))
}
