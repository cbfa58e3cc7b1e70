//! A client's references to files beside their names: look-ups that it releases some time later,
//! files that it has open, also after the removal of their last name, files that have none yet.

use copyhold_fs::{Caller, Entry, FsError, NodeId, OpenFlags, SetAttr, WriteFlags};

use super::{Client, Done};
use crate::dice::Dice;
use crate::fs_level::content::{Content, Versions};
use crate::fs_level::span::Span;
use crate::fs_level::tree::{Kind, Object, ObjectId, Place, Tree};

/// Files that a client has open at the same time.
const OPEN_MAX: usize = 3;
/// Look-ups that it does not give back at once.
const LOOKUPS_MAX: usize = 8;

/// A client's operations beside the common ones, chosen by separate dice.
pub(crate) struct Habits {
    pub(crate) dice: Dice,
    /// It cares for owners, ACLs and flags, and keeps files open.
    pub(crate) careful: bool,
    open: Vec<(ObjectId, NodeId)>,
    /// Nodes that it has looked up, each once for each time.
    met: Vec<NodeId>,
}

impl Habits {
    pub(crate) fn new(dice: Dice, careful: bool) -> Habits {
        Habits { dice, careful, open: Vec::new(), met: Vec::new() }
    }
}

impl Client {
    /// Mostly nothing.
    pub(super) async fn follow_habits(&mut self) -> Done {
        if !self.habits.careful || !self.habits.dice.one_in(3) {
            return Ok(());
        }
        std::mem::swap(&mut self.dice, &mut self.habits.dice);
        let done = match self.dice.below(13) {
            0..7 => self.mind_rights().await,
            7 => self.append().await,
            8 => self.open_and_truncate().await,
            9 => self.make_unnamed().await,
            10 => self.copy_durably().await,
            _ => self.use_open_files().await,
        };
        std::mem::swap(&mut self.dice, &mut self.habits.dice);
        done
    }

    // -- look-ups -----------------------------------------------------------

    /// An entry counts as a look-up, which is given back sooner or later.
    pub(super) fn meet(&mut self, entry: Entry) -> NodeId {
        let Habits { dice, careful, met, .. } = &mut self.habits;
        if *careful && dice.one_in(4) && met.len() < LOOKUPS_MAX {
            met.push(entry.node);
        } else {
            self.fs.forget(entry.node, 1);
        }
        entry.node
    }

    pub(super) fn forget_some(&mut self) {
        let Habits { dice, met, .. } = &mut self.habits;
        if !met.is_empty() && dice.one_in(4) {
            let node = met.swap_remove(dice.below(met.len() as u64) as usize);
            self.fs.forget(node, 1);
        }
    }

    /// Whatever is held is given back.
    pub(super) fn let_go(&mut self) {
        self.habits.open.drain(..).for_each(|(_, node)| self.fs.release(node));
        self.habits.met.drain(..).for_each(|node| self.fs.forget(node, 1));
    }

    // -- open files ---------------------------------------------------------

    async fn use_open_files(&mut self) -> Done {
        let count = self.habits.open.len();
        if count < OPEN_MAX && (count == 0 || self.dice.one_in(2)) {
            let Some((id, node)) = self.a_file() else { return Ok(()) };
            let opened = self.fs.open_node(node, OpenFlags::READ).await;
            self.given("open", opened)?;
            self.habits.open.push((id, node));
            return Ok(());
        }
        let nth = self.dice.below(count as u64) as usize;
        let (id, node) = self.habits.open[nth];
        if self.dice.one_in(4) {
            self.habits.open.swap_remove(nth);
            self.fs.release(node);
            return Ok(());
        }
        self.use_open_file(id, node).await
    }

    /// A file that is open is what it is, whether it has a name or not, as long as its subvolume is
    /// there.
    async fn use_open_file(&mut self, id: ObjectId, node: NodeId) -> Done {
        let tree = self.tree();
        let is_there = self.has_subvol_of(&tree, node);
        let (offset, len) = self.a_range();
        let read = self.fs.read(node, offset, len as usize).await;
        if !is_there {
            let is_gone = matches!(read, Err(FsError::Stale));
            assert!(self.forgiving || is_gone, "object {id}: read after its subvolume's end");
            return Ok(());
        }
        let Some(read) = self.given("read", read)? else { panic!("a read needs no space") };
        let same = read.to_vec() == self.world().data[&id].now().read(offset, len);
        let state = if tree.objects.contains_key(&id) { "open" } else { "open and unlinked" };
        assert!(same || self.forgiving, "object {id}, {state}: wrong bytes at {offset}");
        // The model does not follow the owners of files without a name.
        let is_nameless = !tree.objects.contains_key(&id);
        if is_nameless && !self.exact && self.is_writable(&tree, node) && self.dice.one_in(2) {
            self.write_at((id, node), offset, len).await?;
        }
        Ok(())
    }

    fn subvol_of(&self, tree: &Tree, node: NodeId) -> Option<ObjectId> {
        let world = self.world();
        let mut subvols = tree.subvols().into_iter().map(|(_, id)| id);
        subvols.find(|id| world.nodes.get(id).is_some_and(|root| root.subvol == node.subvol))
    }

    fn has_subvol_of(&self, tree: &Tree, node: NodeId) -> bool {
        node.subvol == copyhold_types::SubvolId::ROOT || self.subvol_of(tree, node).is_some()
    }

    fn is_writable(&self, tree: &Tree, node: NodeId) -> bool {
        let subvol = self.subvol_of(tree, node);
        subvol.is_none_or(|subvol| !tree.read_only.contains(&subvol))
    }

    // -- ways to write ------------------------------------------------------

    /// Appends to a file, append-only or not.
    async fn append(&mut self) -> Done {
        let may_grow = |tree: &Tree, id: ObjectId| {
            tree.is_in_writable(id) && !tree.objects[&id].is_immutable()
        };
        let Some((id, node)) = self.a_file_that(may_grow) else { return Ok(()) };
        let (_, len) = self.a_range();
        let size = self.world().data[&id].now().size();
        let kill_priv = self.dice.one_in(2);
        let flags = WriteFlags { append: true, kill_priv, ..WriteFlags::default() };
        self.write_by((id, node), size, len, flags).await
    }

    /// The client opens a file with O_TRUNC, and writes to it or closes it empty.
    async fn open_and_truncate(&mut self) -> Done {
        let Some((id, node)) = self.a_pliable_file() else { return Ok(()) };
        let kill_priv = self.dice.one_in(2);
        let flags = OpenFlags { truncate: true, kill_priv, ..OpenFlags::READ_WRITE };
        let left = if kill_priv { self.begin_kill(id, None) } else { None };
        self.begin_data("open to truncate", id, |content| content.set_size(0));
        let opened = self.fs.open_node(node, flags).await;
        let opened = self.given("open to truncate", opened)?.is_some();
        self.end_kill(node, left, opened).await?;
        self.end_data(id, node, opened).await?;
        if !opened {
            return Ok(());
        }
        let is_there = self.tree().objects.contains_key(&id);
        let done = match is_there && self.dice.one_in(2) {
            true => {
                let (_, len) = self.a_range();
                self.write_at((id, node), 0, len).await
            }
            false => self.close_emptied(id, node).await,
        };
        self.fs.release(node);
        done
    }

    async fn close_emptied(&mut self, id: ObjectId, node: NodeId) -> Done {
        let version = self.world().data.get(&id).map(Versions::done);
        match self.fs.flush(node).await {
            // Another client has removed its subvolume meanwhile.
            Err(FsError::Stale) => return Ok(()),
            result => self.given("close", result)?,
        };
        if let Some(version) = version {
            self.world().after_close(id, version);
        }
        Ok(())
    }

    /// A file without a name gets one, or goes. Some are made as overlayfs makes a copy.
    async fn make_unnamed(&mut self) -> Done {
        let tree = self.tree();
        let Some(place) = self.a_free_place(&tree) else { return Ok(()) };
        let (mode, caller) = (self.dice.below(0o1000) as u32, self.a_caller());
        let mut object = Object::made_in(tree.own(place.0), Kind::File, mode, &caller);
        let room = self.room_for_inode(&tree, place.0);
        let id = {
            let mut world = self.world();
            let id = world.make_nameless();
            object.begin(world.now);
            id
        };
        let parent = self.node(place.0);
        let copies_up = self.dice.one_in(3);
        let made = match copies_up {
            true => self.fs.tmpfile_for_copy_up(&caller, parent, mode).await,
            false => self.fs.tmpfile(&caller, parent, mode).await,
        };
        self.check_room(room, &made);
        let Some(entry) = self.given("make", made)? else { return self.make_room().await };
        let node = self.meet(entry);
        {
            let mut world = self.world();
            object.end(world.now);
            world.born(id, node);
            world.data.insert(id, Versions::of(Content::default(), object.born));
        }
        let mut done = Ok(());
        if !self.exact && self.dice.one_in(2) {
            let (offset, len) = self.a_range();
            done = self.write_at((id, node), offset, len).await;
        }
        if copies_up && done.is_ok() {
            done = self.copy_rights(node, &mut object).await;
        }
        if done.is_ok() {
            done = self.name_unnamed((id, node), place, object).await;
        }
        let tree = self.tree();
        // From now on its owner changes like that of any file.
        if copies_up && done.is_ok() && tree.objects.contains_key(&id) && self.dice.one_in(2) {
            done = self.set_owner_of(tree, id).await;
        }
        self.fs.release(node);
        done
    }

    /// The change of the owner is a part of the copy: it takes no privileges.
    async fn copy_rights(&mut self, node: NodeId, object: &mut Object) -> Done {
        let (root, mode) = (&Caller::ROOT, self.dice.below(0o10000) as u32);
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let done = self.fs.setattr(root, node, &set).await;
        if self.given("chmod", done)?.is_some() {
            object.chmod(mode, root);
        }
        let (uid, gid) = (self.an_id(), self.an_id());
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        let done = self.fs.setattr(root, node, &set).await;
        if self.given("chown", done)?.is_some() {
            (object.uid, object.gid) = (uid, gid);
        }
        Ok(())
    }

    async fn name_unnamed(
        &mut self,
        (id, node): (ObjectId, NodeId),
        place: Place,
        mut object: Object,
    ) -> Done {
        // Where there was no room to write, some was made.
        let mut tree = self.tree();
        let is_free = tree.is_there(place.0) && !tree.entries.contains_key(&place);
        if !is_free || self.dice.one_in(4) {
            return Ok(());
        }
        object.ctime = Span::Now;
        tree.put(place.clone(), id, object);
        let parent = self.node(place.0);
        self.begin("link what has no name", tree, &[id]);
        let linked = self.fs.link(node, parent, &place.1).await;
        let linked = self.given("link", linked)?.map(|entry| self.meet(entry));
        self.end(linked.is_some());
        Ok(())
    }
}
