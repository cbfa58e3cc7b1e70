//! A client's operations on rights: modes, owners, ACLs, flags and times; and the effects of flags.

use std::collections::BTreeMap;

use copyhold_fs::{
    Caller, FallocateMode, FileFlags, FsError, NodeId, RenameFlags, SetAttr, SetTime, WriteFlags,
    XattrSet,
};
use copyhold_types::Timestamp;

use super::{Client, Done, FILE_BYTES};
use crate::fs_level::rights::{ACCESS, Acl, DEFAULT, without_privileges};
use crate::fs_level::span::Span;
use crate::fs_level::tree::{Dir, Kind, ObjectId, Place, Tree};
use crate::fs_level::verify;

impl Client {
    pub(super) async fn mind_rights(&mut self) -> Done {
        match self.dice.below(20) {
            0..3 => self.set_mode().await,
            3..5 => self.set_owner().await,
            5..9 => self.set_acl().await,
            9..12 => self.set_flags().await,
            12..14 => self.set_times().await,
            14..16 => self.stat().await,
            16 => self.write_back().await,
            _ => self.expect_not_permitted().await,
        }
    }

    /// Root, mostly, or one of a few users in one of a few groups.
    pub(super) fn a_caller(&mut self) -> Caller {
        if self.dice.one_in(2) {
            return Caller::ROOT;
        }
        let (uid, gid) = (self.an_id(), self.an_id());
        let groups = if self.dice.one_in(2) { Some(vec![self.an_id()]) } else { None };
        Caller { groups, ..Caller::new(uid, gid, self.dice.pick(&[0, 0o022, 0o077])) }
    }

    /// The caller that creates an object, and the mode: by its habits.
    pub(super) fn somebodys(&mut self, mode: u32) -> (u32, Caller) {
        std::mem::swap(&mut self.dice, &mut self.habits.dice);
        let special = self.dice.pick(&[0, 0, 0o4000, 0o2000, 0o6000]);
        let mode = if mode == 0o777 { mode } else { mode | special };
        let caller = self.a_caller();
        std::mem::swap(&mut self.dice, &mut self.habits.dice);
        (mode, caller)
    }

    pub(super) fn an_id(&mut self) -> u32 {
        1000 + self.dice.below(4) as u32
    }

    async fn set_mode(&mut self) -> Done {
        let mut tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        let (mode, caller) = (self.dice.below(0o10000) as u32, self.a_caller());
        let object = tree.objects.get_mut(&id).expect("it has a name");
        if matches!(object.kind, Kind::Symlink(_)) {
            return Ok(());
        }
        object.chmod(mode, &caller);
        object.ctime = Span::Now;
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.set_attributes("chmod", tree, id, &caller, &set).await
    }

    async fn set_owner(&mut self) -> Done {
        let tree = self.tree();
        match self.a_pliable_entry(&tree) {
            Some((_, id)) => self.set_owner_of(tree, id).await,
            None => Ok(()),
        }
    }

    pub(super) async fn set_owner_of(&mut self, mut tree: Tree, id: ObjectId) -> Done {
        let [uid, gid] = [self.an_id(), self.an_id()];
        let (uid, gid) =
            self.dice.pick(&[(Some(uid), Some(gid)), (Some(uid), None), (None, Some(gid))]);
        let object = tree.objects.get_mut(&id).expect("it has a name");
        object.chown(uid, gid);
        object.ctime = Span::Now;
        let set = SetAttr { uid, gid, ..SetAttr::default() };
        self.set_attributes("chown", tree, id, &Caller::ROOT, &set).await
    }

    async fn set_attributes(
        &mut self,
        name: &'static str,
        tree: Tree,
        id: ObjectId,
        caller: &Caller,
        set: &SetAttr,
    ) -> Done {
        let node = self.world().nodes[&id];
        self.begin(name, tree, &[id]);
        let done = self.fs.setattr(caller, node, set).await;
        let done = self.given(name, done)?;
        self.end(done.is_some());
        Ok(())
    }

    /// Both, so that the access time is logged too; that is not compared, since a read changes it.
    async fn set_times(&mut self) -> Done {
        let mut tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        let secs = self.dice.magnitude(34) as i64;
        let time = Timestamp { secs, nanos: self.dice.below(1_000_000_000) as u32 };
        let object = tree.objects.get_mut(&id).expect("it has a name");
        (object.mtime, object.ctime) = (Span::At(time), Span::Now);
        let is_file = object.kind == Kind::File;
        let at = Some(SetTime::At(time));
        let set = SetAttr { atime: at, mtime: at, ..SetAttr::default() };
        let node = self.world().nodes[&id];
        self.begin("utimes", tree, &[id]);
        if is_file {
            self.world().begin_times(id, time);
        }
        let done = self.fs.setattr(&Caller::ROOT, node, &set).await;
        let done = self.given("utimes", done)?;
        if is_file {
            self.world().end_times(id, done.is_some());
        }
        self.end(done.is_some());
        Ok(())
    }

    fn an_acl(&mut self) -> Acl {
        let mut perm = || self.dice.below(8) as u32;
        let mut acl = Acl { owner: perm(), group: perm(), other: perm(), ..Acl::default() };
        let (user, group) = (perm(), perm());
        if self.dice.one_in(3) {
            return acl;
        }
        acl.mask = Some(self.dice.below(8) as u32);
        if self.dice.one_in(2) {
            // Some have more entries than ACLs of others can have.
            let more = if self.dice.one_in(8) { 120 + self.dice.below(80) as u32 } else { 1 };
            let first = self.an_id();
            acl.users = (first..first + more).map(|id| (id, user)).collect();
        }
        if self.dice.one_in(2) {
            acl.groups = BTreeMap::from([(self.an_id(), group)]);
        }
        acl
    }

    async fn set_acl(&mut self) -> Done {
        let mut tree = self.tree();
        let Some((_, id)) = self.a_pliable_entry(&tree) else { return Ok(()) };
        let object = tree.objects.get_mut(&id).expect("it has a name");
        if matches!(object.kind, Kind::Symlink(_)) {
            return Ok(());
        }
        let name = match object.kind.is_dir() && self.dice.one_in(2) {
            true => DEFAULT,
            false => ACCESS,
        };
        let is_there = object.xattrs.contains_key(name);
        if !is_there && self.dice.one_in(8) {
            let node = self.world().nodes[&id];
            let removed = self.fs.remove_xattr(node, name).await;
            return self.given("remove an ACL that does not exist", removed).map(drop);
        }
        let acl = (!is_there || !self.dice.one_in(3)).then(|| self.an_acl());
        let before = (object.mode, object.xattrs.clone());
        object.set_acl(name, acl.as_ref());
        if before != (object.mode, object.xattrs.clone()) {
            object.ctime = Span::Now;
        } else {
            // A call that sets the present value may have changed something, or nothing.
            return Ok(());
        }
        let node = self.world().nodes[&id];
        self.begin("set ACL", tree, &[id]);
        let done = match acl {
            Some(acl) => {
                let root = &Caller::ROOT;
                self.fs.set_xattr(root, node, name, &acl.encode(), XattrSet::Any, false).await
            }
            None => self.fs.remove_xattr(node, name).await,
        };
        let done = self.given("set ACL", done)?;
        self.end(done.is_some());
        Ok(())
    }

    /// Protected objects soon lose their protection: otherwise there would be nothing left to do.
    async fn set_flags(&mut self) -> Done {
        let tree = self.tree();
        let guarded = self.dice.one_in(2).then(|| self.a_guarded_entry(&tree)).flatten();
        let entry = guarded.or_else(|| self.an_entry(&tree));
        let Some((_, id)) = entry.filter(|(_, id)| tree.is_in_writable(*id)) else {
            return Ok(());
        };
        let object = &tree.objects[&id];
        if !matches!(object.kind, Kind::File | Kind::Dir) {
            return Ok(());
        }
        let guards = [0, 0, FileFlags::IMMUTABLE.0, FileFlags::APPEND.0];
        let guard = if object.is_guarded() { 0 } else { self.dice.pick(&guards) };
        let others = [FileFlags::NODUMP.0, FileFlags::NOATIME.0, FileFlags::SYNC.0];
        let flags = guard | if self.dice.one_in(4) { self.dice.pick(&others) } else { 0 };
        self.set_flags_of(tree, id, flags).await
    }

    pub(super) async fn set_flags_of(&mut self, mut tree: Tree, id: ObjectId, flags: u32) -> Done {
        let object = tree.objects.get_mut(&id).expect("it has a name");
        (object.flags, object.ctime) = (flags, Span::Now);
        let node = self.world().nodes[&id];
        self.begin("set flags", tree, &[id]);
        let done = self.fs.set_flags(&Caller::ROOT, node, FileFlags(flags), None).await;
        let done = self.given("set flags", done)?;
        self.end(done.is_some());
        Ok(())
    }

    fn a_guarded_entry(&mut self, tree: &Tree) -> Option<(Place, ObjectId)> {
        let is_meant = |id: &ObjectId| tree.objects[id].is_guarded() && tree.is_in_writable(*id);
        let guarded = tree.entries.iter().filter(|(_, id)| is_meant(id));
        let guarded: Vec<_> = guarded.map(|(place, id)| (place.clone(), *id)).collect();
        (!guarded.is_empty()).then(|| self.dice.pick_ref(&guarded).clone())
    }

    /// The client's own objects are exactly as it left them.
    async fn stat(&mut self) -> Done {
        let tree = self.tree();
        let Some((_, id)) = self.an_entry(&tree) else { return Ok(()) };
        let Some(node) = self.world().nodes.get(&id).copied() else { return Ok(()) };
        let attr = self.fs.getattr(node).await;
        let Some(attr) = self.given("stat", attr)? else { panic!("a stat needs no space") };
        let wrong = verify::is_otherwise(&self.world(), &tree, id, &attr);
        assert!(self.forgiving || wrong.is_none(), "object {id}, {node}: {wrong:?}");
        Ok(())
    }

    // -- privileges ---------------------------------------------------------

    /// The caller that changes content: by its habits. A privileged caller removes no privileges.
    pub(super) fn a_changer(&mut self) -> Caller {
        if !self.habits.careful {
            return Caller::ROOT;
        }
        self.somebodys(0).1
    }

    /// A change of content begins that removes set-user-id and set-group-id: the remaining mode, if
    /// it differs.
    pub(super) fn begin_kill(&mut self, id: ObjectId, by: Option<&Caller>) -> Option<u32> {
        let mut tree = self.tree();
        let object = tree.objects.get_mut(&id)?;
        let left = without_privileges(object.mode, object.gid, by);
        if left == object.mode {
            return None;
        }
        (object.mode, object.ctime) = (left, Span::Now);
        self.begin("lose privileges", tree, &[id]);
        Some(left)
    }

    /// It has ended. Where it was refused, they may be gone or not.
    pub(super) async fn end_kill(&mut self, node: NodeId, left: Option<u32>, done: bool) -> Done {
        let Some(left) = left else { return Ok(()) };
        let attr = self.fs.getattr(node).await;
        let Some(attr) = self.given("stat", attr)? else { panic!("a stat needs no space") };
        assert!(!done || attr.mode == left, "privileges are left: {:o}, not {left:o}", attr.mode);
        self.end(attr.mode == left);
        Ok(())
    }

    // -- flags --------------------------------------------------------------

    /// A cache writes back pages that it took before the file was guarded: nothing refuses them.
    async fn write_back(&mut self) -> Done {
        let is_guarded =
            |tree: &Tree, id| tree.objects[&id].is_guarded() && tree.is_in_writable(id);
        let Some(file) = self.a_file_that(is_guarded) else { return Ok(()) };
        let (offset, len) = self.a_range();
        let flags = WriteFlags { accepted: true, ..WriteFlags::default() };
        self.write_by(file, offset, len, flags).await
    }

    /// Immutable or append-only files are not changed in any other way.
    async fn expect_not_permitted(&mut self) -> Done {
        let tree = self.tree();
        let Some((place, id)) = self.a_guarded_entry(&tree) else { return Ok(()) };
        let node = self.world().nodes[&id];
        let refused = match tree.objects[&id].kind {
            Kind::Dir if self.dice.one_in(2) => self.try_names(&tree, id, node).await,
            Kind::File if self.dice.one_in(2) => self.try_content(id, node).await,
            _ => self.try_attributes(&place, node).await,
        };
        let Some((what, refused)) = refused else { return Ok(()) };
        // Whether there is room is sometimes looked at first.
        let is_refused = refused.as_ref().is_err_and(|error| {
            use FsError::{Kept, NoSpace, NotPermitted, Quota};
            matches!(error, NotPermitted(_) | NoSpace(_) | Quota(_) | Kept { .. })
        });
        assert!(self.forgiving || is_refused, "{what} of object {id}: {refused:?}");
        Ok(())
    }

    async fn try_attributes(&mut self, place: &Place, node: NodeId) -> Option<Tried> {
        let (fs, root, parent) = (&self.fs, &Caller::ROOT, self.node(place.0));
        Some(match self.dice.below(6) {
            0 => {
                let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
                ("chmod", fs.setattr(root, node, &set).await.map(drop))
            }
            1 => {
                let set = SetAttr { uid: Some(7), ..SetAttr::default() };
                ("chown", fs.setattr(root, node, &set).await.map(drop))
            }
            2 => {
                let set = fs.set_xattr(root, node, b"user.no", b"", XattrSet::Any, false).await;
                ("set xattr", set)
            }
            3 => {
                let (to, flags) = (&b"never"[..], RenameFlags::default());
                ("rename", fs.rename(root, parent, &place.1, parent, to, flags).await)
            }
            4 => {
                let acl = self.an_acl().encode();
                let set = self.fs.set_xattr(root, node, ACCESS, &acl, XattrSet::Any, false).await;
                ("set ACL", set)
            }
            _ => ("link or unlink", self.try_links(place, node, parent).await?),
        })
    }

    async fn try_links(
        &mut self,
        place: &Place,
        node: NodeId,
        parent: NodeId,
    ) -> Option<Result<(), FsError>> {
        let tree = self.tree();
        let id = tree.entries.get(place)?;
        if tree.objects[id].kind != Kind::File {
            return None;
        }
        Some(match self.dice.one_in(2) {
            true => self.fs.link(node, parent, b"never").await.map(drop),
            false => self.fs.unlink(parent, &place.1).await,
        })
    }

    async fn try_content(&mut self, id: ObjectId, node: NodeId) -> Option<Tried> {
        let size = self.world().data[&id].now().size();
        let (source, fs) = (self.a_file().filter(|(source, _)| *source != id), &self.fs);
        Some(match self.dice.below(4) {
            0 if size > 0 => ("write", fs.write(node, 0, b"no", WriteFlags::default()).await),
            1 if size > 0
                && let Some((_, from)) = source =>
            {
                let copied = fs.copy_file_range(from, 0, node, 0, FILE_BYTES).await;
                ("copy", copied.map(drop))
            }
            2 => ("punch", fs.fallocate(node, 0, 4096, FallocateMode::Punch).await),
            _ => {
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                ("truncate", fs.setattr(&Caller::ROOT, node, &set).await.map(drop))
            }
        })
    }

    /// Nothing comes into an immutable directory, and nothing goes out of one that is guarded.
    async fn try_names(&mut self, tree: &Tree, id: ObjectId, node: NodeId) -> Option<Tried> {
        let inside = tree.entries.iter().find(|((dir, _), of)| {
            let is_plain = matches!(tree.objects[of].kind, Kind::File | Kind::Fifo);
            *dir == Dir::Own(id) && is_plain
        });
        match inside {
            Some(((_, name), _)) if self.dice.one_in(2) => {
                Some(("unlink", self.fs.unlink(node, name).await))
            }
            _ if tree.objects[&id].is_immutable() => {
                let made = self.fs.mkdir(&Caller::ROOT, node, b"never", 0o755).await;
                Some(("mkdir", made.map(drop)))
            }
            _ => None,
        }
    }
}

/// The attempted operation, and its result.
type Tried = (&'static str, Result<(), FsError>);
