//! A client's renames: files, directories, subvolumes, and their placeholders in snapshots.
//!
//! Subvolumes go to any directory, also of another subvolume; all else stays in its own (R39).

use copyhold_fs::{Caller, FsError, RenameFlags};

use super::{Client, Done};
use crate::fs_level::tree::{Kind, ObjectId, Place, Tree};

impl Client {
    pub(super) async fn rename(&mut self) -> Done {
        let tree = self.tree();
        let Some((from, id)) = self.a_loose_entry(&tree) else { return Ok(()) };
        self.rename_entry(tree, from, id).await
    }

    pub(super) async fn rename_entry(&mut self, mut tree: Tree, from: Place, id: ObjectId) -> Done {
        let to = self.a_place(&tree);
        let takes = match tree.entries.contains_key(&to) {
            true => tree.is_loose(&to),
            false => tree.takes_names(to.0),
        };
        if from == to || !takes || contains(&tree, id, to.0) {
            return Ok(());
        }
        let target = tree.entries.get(&to).copied();
        let exchange = target.is_some() && self.dice.one_in(3);
        let mut flags = RenameFlags { exchange, ..RenameFlags::default() };
        if let Some(is_as_it_must) = refusal(&tree, (&from, id), (&to, target), exchange) {
            return self.expect_no_rename(&from, &to, flags, is_as_it_must).await;
        }
        let name = match target {
            None => {
                flags.no_replace = self.dice.one_in(4);
                tree.rename(&from, to.clone());
                "rename"
            }
            Some(other) if exchange => {
                if contains(&tree, other, from.0) {
                    return Ok(());
                }
                // Two names of one file: nothing happens.
                if other != id {
                    tree.exchange(&from, &to);
                }
                "exchange"
            }
            Some(other) => {
                let is_dir = |id: ObjectId| tree.objects[&id].kind.is_dir();
                if is_dir(other) != is_dir(id) || (is_dir(other) && !tree.is_empty(other)) {
                    return Ok(());
                }
                if other != id {
                    tree.rename(&from, to.clone());
                }
                "rename over"
            }
        };
        if tree.has_twins() {
            return self.expect_no_rename(&from, &to, flags, is_busy).await;
        }
        let [from_dir, to_dir] = [from.0, to.0].map(|dir| self.node(dir));
        let touched: Vec<ObjectId> = [Some(id), target].into_iter().flatten().collect();
        let same = target == Some(id);
        self.begin(name, tree, if same { &[] } else { &touched });
        if target.is_some() && !same {
            let mut world = self.world();
            world.brings(self.id, if exchange { &touched } else { &touched[..1] });
        }
        let root = &Caller::ROOT;
        let renamed = loop {
            let tried = self.fs.rename(root, from_dir, &from.1, to_dir, &to.1, flags).await;
            if !matches!(tried, Err(FsError::Stale)) || !self.may_be_in_flight() {
                break tried;
            }
            self.pause(16).await;
        };
        let renamed = self.given(name, renamed)?;
        self.end(renamed.is_some());
        Ok(())
    }

    async fn expect_no_rename(
        &mut self,
        from: &Place,
        to: &Place,
        flags: RenameFlags,
        is_as_it_must: fn(&FsError) -> bool,
    ) -> Done {
        let [from_dir, to_dir] = [from.0, to.0].map(|dir| self.node(dir));
        let refused = self.fs.rename(&Caller::ROOT, from_dir, &from.1, to_dir, &to.1, flags).await;
        let as_it_must = refused.as_ref().is_err_and(is_as_it_must);
        assert!(self.forgiving || as_it_must, "{refused:?}");
        Ok(())
    }
}

fn is_busy(error: &FsError) -> bool {
    matches!(error, FsError::Busy(_))
}

/// Whether `dir` is the object, or is below it.
fn contains(tree: &Tree, id: ObjectId, dir: crate::fs_level::tree::Dir) -> bool {
    tree.objects[&id].kind.is_dir() && tree.is_within(dir, id)
}

/// How this must be refused, for what is among subvolumes.
fn refusal(
    tree: &Tree,
    (from, id): (&Place, ObjectId),
    (to, target): (&Place, Option<ObjectId>),
    exchange: bool,
) -> Option<fn(&FsError) -> bool> {
    let is_subvol = |id: ObjectId| tree.objects[&id].kind == Kind::Subvol;
    let stays = |id: ObjectId| !is_subvol(id);
    let goes_across = tree.subvol_of(from.0) != tree.subvol_of(to.0);
    if goes_across && (stays(id) || (exchange && target.is_some_and(stays))) {
        return Some(|error| matches!(error, FsError::CrossSubvolume));
    }
    match target.is_some_and(is_subvol) && !exchange {
        true => Some(|error| matches!(error, FsError::NotEmpty)),
        false => None,
    }
}
