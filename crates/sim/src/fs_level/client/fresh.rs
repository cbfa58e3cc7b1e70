//! A client's operations on subvolumes while data is being written: it reads snapshots and
//! rollbacks as soon as they are made, while an fsync of their source has not ended; and it sets
//! properties, also to the present value, while a file without a name is open.

use copyhold_fs::OpenFlags;
use futures_util::future::join;

use super::{Client, Done, Stopped};
use crate::fs_level::tree::{Kind, ObjectId, Place, Tree};

impl Client {
    /// Writes a little to a file of the subvolume, and makes and reads snapshots while the fsync is
    /// under way.
    pub(super) async fn snapshot_in_flight(&mut self, tree: Tree, source: ObjectId) -> Done {
        let Some(id) = self.a_file_in(&tree, source) else {
            return self.snapshot(tree, source).await;
        };
        let len = 4096 * (1 + self.dice.below(3));
        let at = 4096 * self.dice.below(4);
        let node = self.world().nodes[&id];
        self.write_at((id, node), at, len).await?;
        let tree = self.tree();
        if !tree.objects.contains_key(&id) || !tree.objects.contains_key(&source) {
            return Ok(());
        }
        let fsync = self.world().before_fsync(id);
        let fs = self.fs.clone();
        let (synced, done) = join(fs.fsync(node, false), self.make_fresh(tree, source)).await;
        done?;
        self.fsynced(synced, &fsync)
    }

    async fn make_fresh(&mut self, tree: Tree, source: ObjectId) -> Done {
        match self.snapshot_and_read(tree, source).await? {
            Some(made) if self.dice.one_in(2) => self.use_fresh(made).await,
            _ => Ok(()),
        }
    }

    /// Snapshots a snapshot that was just made, or rolls its source back to it.
    async fn use_fresh(&mut self, made: ObjectId) -> Done {
        let tree = self.tree();
        let Some(&source) = tree.origins.get(&made) else { return Ok(()) };
        let place = tree.subvols().into_iter().find(|(_, id)| *id == source);
        let Some((place, _)) = place.filter(|(place, _)| {
            tree.is_loose(place) && !self.exact && !tree.read_only.contains(&source)
        }) else {
            return self.snapshot_and_read(tree, made).await.map(drop);
        };
        match self.dice.one_in(2) {
            true => self.snapshot_and_read(tree, made).await.map(drop),
            false => self.roll_back_and_read(tree, place, made).await,
        }
    }

    /// The snapshot, if it was made.
    async fn snapshot_and_read(
        &mut self,
        tree: Tree,
        source: ObjectId,
    ) -> Result<Option<ObjectId>, Stopped> {
        let before = tree.clone();
        self.snapshot(tree, source).await?;
        self.read_new(&before).await?;
        let subvols = self.tree().subvols().into_iter().map(|(_, id)| id);
        Ok(subvols.into_iter().find(|id| !before.objects.contains_key(id)))
    }

    async fn roll_back_and_read(&mut self, tree: Tree, place: Place, to: ObjectId) -> Done {
        let before = tree.clone();
        self.roll_back_to(tree, place, to, None).await?;
        self.read_new(&before).await
    }

    /// Reads each file that has come into being.
    async fn read_new(&mut self, before: &Tree) -> Done {
        let tree = self.tree();
        let is_new = |id: &ObjectId| !before.objects.contains_key(id);
        let files = tree.objects.iter().filter(|(_, object)| object.kind == Kind::File);
        let files: Vec<ObjectId> = files.map(|(id, _)| *id).filter(is_new).collect();
        for id in files {
            let node = self.world().nodes[&id];
            let expected = self.world().data[&id].now().clone();
            let len = expected.size();
            let read = self.fs.read(node, 0, len as usize).await;
            let Some(read) = self.given("read", read)? else { panic!("a read needs no space") };
            let same = read.to_vec() == expected.read(0, len);
            assert!(same || self.forgiving, "object {id}: a fresh snapshot has other content");
        }
        Ok(())
    }

    /// A file of the subvolume that may be changed.
    fn a_file_in(&mut self, tree: &Tree, subvol: ObjectId) -> Option<ObjectId> {
        let files = tree.within(subvol).into_iter();
        let files = files.filter(|id| tree.objects[id].kind == Kind::File && tree.may_change(*id));
        let files: Vec<ObjectId> = files.collect();
        (!files.is_empty()).then(|| self.dice.pick(&files))
    }

    /// Sets a property to what it is.
    pub(super) async fn set_nothing(&mut self, tree: &Tree, subvol: ObjectId) -> Done {
        let on = tree.read_only.contains(&subvol);
        let id = self.world().nodes[&subvol].subvol;
        let set = self.fs.set_subvolume_read_only(id, on).await;
        self.given("property set to what it is", set).map(drop)
    }

    /// A file that loses its last name while it is open is read after properties were set.
    pub(super) async fn keep_open_over_properties(&mut self, tree: Tree, subvol: ObjectId) -> Done {
        let Some(id) = self.a_file_in(&tree, subvol) else {
            return self.set_nothing(&tree, subvol).await;
        };
        let is_meant = |place: &Place, other: ObjectId| other == id && tree.is_loose(place);
        let Some(place) = tree.entries.iter().find(|(place, other)| is_meant(place, **other))
        else {
            return Ok(());
        };
        let place = place.0.clone();
        let node = self.world().nodes[&id];
        let expected = self.world().data[&id].now().clone();
        let opened = self.fs.open_node(node, OpenFlags::READ).await;
        self.given("open", opened)?;
        self.remove_entry(tree, place, id).await?;
        for _ in 0..1 + self.dice.below(3) {
            let tree = self.tree();
            if !tree.objects.contains_key(&subvol) {
                break;
            }
            // After a crash, no task would remove files without a name from a read-only subvolume
            // (R38).
            match self.exact || self.dice.one_in(2) {
                true => self.set_nothing(&tree, subvol).await?,
                false => self.set_read_only(tree, subvol).await?,
            }
            self.pause(22).await;
        }
        let read = self.fs.read(node, 0, expected.size() as usize).await;
        let Some(read) = self.given("read", read)? else { panic!("a read needs no space") };
        let same = read.to_vec() == expected.read(0, expected.size());
        assert!(same || self.forgiving, "object {id}: open, without a name, and other content");
        self.fs.release(node);
        Ok(())
    }
}
