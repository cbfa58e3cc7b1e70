//! The objects of one client: its names, and their targets.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::ChecksumMode;
use copyhold_fs::{Attr, FileFlags};
use copyhold_memory::GroupLimits;
use copyhold_types::Timestamp;

use super::promises::{Holder, Promises};
use super::span::Span;

/// Something with a name, numbered over the whole history.
pub(crate) type ObjectId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dir {
    /// Everybody's; never removed.
    Shared(usize),
    Own(ObjectId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Dir,
    Fifo,
    Symlink(Vec<u8>),
    /// Seen as a directory.
    Subvol,
    /// The entry in a snapshot for a subvolume of its source (R39): an empty directory.
    Placeholder,
}

impl Kind {
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self, Kind::Dir | Kind::Subvol | Kind::Placeholder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) flags: u32,
    /// Of a file that of new extents, of a directory that of new files.
    pub(crate) checksum_mode: ChecksumMode,
    /// ACLs are among them.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// When it was made.
    pub(crate) born: Span,
    /// When its names changed; of a file, its content knows (`content`).
    pub(crate) mtime: Span,
    /// When anything but content changed.
    pub(crate) ctime: Span,
}

impl Object {
    /// Root's, made by the operation that is about to begin.
    pub(crate) fn new(kind: Kind, mode: u32) -> Object {
        let (born, mtime, ctime) = (Span::Now, Span::Now, Span::Now);
        let (checksum_mode, xattrs) = (ChecksumMode::Item, BTreeMap::new());
        Object { kind, mode, uid: 0, gid: 0, flags: 0, checksum_mode, xattrs, born, mtime, ctime }
    }

    /// The operation that makes this of it begins.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.times().into_iter().for_each(|time| time.begin(now));
    }

    /// It has ended.
    pub(crate) fn end(&mut self, now: Timestamp) {
        self.times().into_iter().for_each(|time| time.end(now));
    }

    /// Its times are those that are found.
    pub(crate) fn is_found(&mut self, attr: &Attr) {
        [self.born, self.mtime, self.ctime] = [attr.btime, attr.mtime, attr.ctime].map(Span::At);
    }

    fn times(&mut self) -> [&mut Span; 3] {
        [&mut self.born, &mut self.mtime, &mut self.ctime]
    }
}

pub(crate) type Place = (Dir, Vec<u8>);
pub(crate) type Path = Vec<Vec<u8>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) entries: BTreeMap<Place, ObjectId>,
    pub(crate) objects: BTreeMap<ObjectId, Object>,
    /// Subvolumes that are read-only.
    pub(crate) read_only: BTreeSet<ObjectId>,
    /// The subvolume that each placeholder stands for.
    pub(crate) stands_for: BTreeMap<ObjectId, ObjectId>,
    /// The source of each snapshot, also of a deleted one.
    pub(crate) origins: BTreeMap<ObjectId, ObjectId>,
    /// To its subvolumes and groups.
    pub(crate) promises: Promises,
    /// Limits of the memory of subvolumes; the default limits are left out.
    pub(crate) memory: BTreeMap<ObjectId, GroupLimits>,
}

impl Tree {
    pub(crate) fn put(&mut self, place: Place, id: ObjectId, object: Object) {
        self.names_change(place.0);
        assert!(self.entries.insert(place, id).is_none(), "a name leads to one object");
        self.objects.insert(id, object);
    }

    pub(crate) fn link(&mut self, place: Place, id: ObjectId) {
        self.names_change(place.0);
        self.changes(id);
        assert!(self.entries.insert(place, id).is_none(), "a name leads to one object");
    }

    pub(crate) fn remove(&mut self, place: &Place) {
        self.names_change(place.0);
        let id = self.entries.remove(place).expect("the name is there");
        self.changes(id);
        if self.links(id) == 0 {
            self.objects.remove(&id);
        }
    }

    pub(crate) fn rename(&mut self, from: &Place, to: Place) {
        self.names_change(from.0);
        self.names_change(to.0);
        let id = self.entries.remove(from).expect("the name is there");
        self.changes(id);
        if let Some(replaced) = self.entries.insert(to, id) {
            self.changes(replaced);
            if self.links(replaced) == 0 {
                self.objects.remove(&replaced);
            }
        }
    }

    pub(crate) fn exchange(&mut self, a: &Place, b: &Place) {
        self.names_change(a.0);
        self.names_change(b.0);
        let (one, other) = (self.entries[a], self.entries[b]);
        self.changes(one);
        self.changes(other);
        self.entries.insert(a.clone(), other);
        self.entries.insert(b.clone(), one);
    }

    /// The operation that is about to begin changes the names in a directory.
    fn names_change(&mut self, dir: Dir) {
        let Dir::Own(id) = dir else { return };
        let dir = self.objects.get_mut(&id).expect("a directory");
        (dir.mtime, dir.ctime) = (Span::Now, Span::Now);
    }

    /// It changes an object's name, or how many it has. Of a subvolume that is not the root's.
    fn changes(&mut self, id: ObjectId) {
        let object = self.objects.get_mut(&id).expect("it has a name");
        if object.kind != Kind::Subvol {
            object.ctime = Span::Now;
        }
    }

    /// The operation that makes this of the tree begins.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.objects.values_mut().for_each(|object| object.begin(now));
    }

    /// It has ended.
    pub(crate) fn end(&mut self, now: Timestamp) {
        self.objects.values_mut().for_each(|object| object.end(now));
    }

    /// The checksum mode of each file.
    pub(crate) fn file_modes(&self) -> impl Iterator<Item = (ObjectId, ChecksumMode)> {
        let files = self.objects.iter().filter(|(_, object)| object.kind == Kind::File);
        files.map(|(id, object)| (*id, object.checksum_mode))
    }

    pub(crate) fn links(&self, id: ObjectId) -> u32 {
        self.entries.values().filter(|other| **other == id).count() as u32
    }

    pub(crate) fn is_empty(&self, dir: ObjectId) -> bool {
        !self.entries.keys().any(|(of, _)| *of == Dir::Own(dir))
    }

    pub(crate) fn subdirs(&self, dir: Dir) -> u32 {
        let within = self.entries.iter().filter(|((of, _), _)| *of == dir);
        within.filter(|(_, id)| self.objects[id].kind.is_dir()).count() as u32
    }

    pub(crate) fn count_in(&self, dir: Dir) -> u64 {
        self.entries.keys().filter(|(of, _)| *of == dir).count() as u64
    }

    /// Whether `dir` is `of`, or lies below it.
    pub(crate) fn is_within(&self, dir: Dir, of: ObjectId) -> bool {
        let Dir::Own(id) = dir else { return false };
        let parent = || self.entries.iter().find(|(_, child)| **child == id);
        id == of || parent().is_some_and(|((parent, _), _)| self.is_within(*parent, of))
    }

    /// The subvolume that a directory is in; `None`: the one that holds everything.
    pub(crate) fn subvol_of(&self, dir: Dir) -> Option<ObjectId> {
        let Dir::Own(id) = dir else { return None };
        if self.objects[&id].kind == Kind::Subvol {
            return Some(id);
        }
        let parent = self.entries.iter().find(|(_, child)| **child == id);
        parent.and_then(|((parent, _), _)| self.subvol_of(*parent))
    }

    /// Of a file or a directory, by any of its names.
    pub(crate) fn home_of(&self, id: ObjectId) -> Option<ObjectId> {
        let name = self.entries.iter().find(|(_, child)| **child == id);
        name.and_then(|((dir, _), _)| self.subvol_of(*dir))
    }

    /// The subvolume whose files an object is among, a subvolume's root its own.
    pub(crate) fn subvol_with(&self, id: ObjectId) -> Option<ObjectId> {
        match self.objects[&id].kind {
            Kind::Subvol => Some(id),
            _ => self.home_of(id),
        }
    }

    /// The parent subvolumes of a subvolume, up to the root subvolume, which is omitted.
    pub(crate) fn holders(&self, subvol: Option<ObjectId>) -> Vec<ObjectId> {
        let holder = |of: ObjectId| self.home_of(of);
        std::iter::successors(subvol.and_then(holder), |of| holder(*of)).collect()
    }

    /// Whether a directory is in a subvolume that may be changed.
    pub(crate) fn is_writable(&self, dir: Dir) -> bool {
        self.subvol_of(dir).is_none_or(|subvol| !self.read_only.contains(&subvol))
    }

    /// Whether names may come there.
    pub(crate) fn takes_names(&self, dir: Dir) -> bool {
        let has = |dir: &Object| dir.has_flag(FileFlags::IMMUTABLE);
        self.is_writable(dir) && self.own(dir).is_none_or(|dir| !has(dir))
    }

    /// Whether names may go there, and lead elsewhere.
    pub(crate) fn gives_names(&self, dir: Dir) -> bool {
        self.is_writable(dir) && self.own(dir).is_none_or(|dir| !dir.is_guarded())
    }

    pub(crate) fn is_there(&self, dir: Dir) -> bool {
        matches!(dir, Dir::Shared(_)) || self.own(dir).is_some()
    }

    pub(crate) fn own(&self, dir: Dir) -> Option<&Object> {
        if let Dir::Own(id) = dir { self.objects.get(&id) } else { None }
    }

    /// Whether a name of a directory may go, or lead elsewhere.
    pub(crate) fn is_loose(&self, place: &Place) -> bool {
        let is_free = |id: &ObjectId| !self.objects[id].is_guarded();
        self.gives_names(place.0) && self.entries.get(place).is_none_or(is_free)
    }

    /// Whether the object is in a subvolume that may be changed.
    pub(crate) fn is_in_writable(&self, id: ObjectId) -> bool {
        let is_placeholder = self.objects[&id].kind == Kind::Placeholder;
        let subvol = self.subvol_with(id);
        !is_placeholder && subvol.is_none_or(|subvol| !self.read_only.contains(&subvol))
    }

    /// Whether the object itself may be changed.
    pub(crate) fn may_change(&self, id: ObjectId) -> bool {
        !self.objects[&id].is_guarded() && self.is_in_writable(id)
    }

    /// Whether the entry of another subvolume is in it: then it cannot go.
    pub(crate) fn holds_any(&self, subvol: ObjectId) -> bool {
        let mut held = self.subvols().into_iter();
        held.any(|((dir, _), _)| self.subvol_of(dir) == Some(subvol))
    }

    pub(crate) fn subvols(&self) -> Vec<(Place, ObjectId)> {
        let is_subvol = |id: &ObjectId| self.objects[id].kind == Kind::Subvol;
        let subvols = self.entries.iter().filter(|(_, id)| is_subvol(id));
        subvols.map(|(place, id)| (place.clone(), *id)).collect()
    }

    /// All that is in a subvolume, its root too, and the roots of those that it holds.
    pub(crate) fn within(&self, subvol: ObjectId) -> Vec<ObjectId> {
        let is_inside = |dir: Dir| self.subvol_of(dir) == Some(subvol);
        let inside = self.entries.iter().filter(|((dir, _), _)| is_inside(*dir));
        let mut all: Vec<ObjectId> = inside.map(|(_, id)| *id).chain([subvol]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A second subvolume with the same content, whose objects have these numbers.
    pub(crate) fn snapshot(&mut self, subvol: ObjectId, to: Place, ids: &BTreeMap<ObjectId, u64>) {
        let copies = self.copies(subvol, ids);
        let holder = self.subvol_of(to.0);
        self.names_change(to.0);
        self.put_copies(subvol, to, ids, copies);
        self.promises.join(ids[&subvol], holder);
    }

    /// A subvolume that is empty.
    pub(crate) fn make_subvol(&mut self, place: Place, id: ObjectId, object: Object) {
        let holder = self.subvol_of(place.0);
        self.put(place, id, object);
        self.promises.join(id, holder);
    }

    /// The subvolume at `place` becomes a snapshot of `subvol`; the old one is deleted, or moved
    /// elsewhere.
    pub(crate) fn roll_back(
        &mut self,
        place: &Place,
        subvol: ObjectId,
        keep: Option<&Place>,
        ids: &BTreeMap<ObjectId, u64>,
    ) {
        let copies = self.copies(subvol, ids);
        self.names_change(place.0);
        let old = self.entries[place];
        self.promises.replace(old, ids[&subvol]);
        if let Some(limits) = self.memory.remove(&old) {
            self.memory.insert(ids[&subvol], limits);
        }
        match keep {
            Some(keep) => self.rename(place, keep.clone()),
            None => self.delete(place),
        }
        self.put_copies(subvol, place.clone(), ids, copies);
    }

    /// The objects and entries of a snapshot that is made now.
    fn copies(
        &self,
        subvol: ObjectId,
        ids: &BTreeMap<ObjectId, u64>,
    ) -> (BTreeMap<ObjectId, Object>, BTreeMap<Place, ObjectId>) {
        let is_inside = |dir: Dir| self.subvol_of(dir) == Some(subvol);
        let inside = self.entries.iter().filter(|((dir, _), _)| is_inside(*dir));
        let entries = inside.map(|((dir, name), id)| {
            let Dir::Own(dir) = dir else { panic!("a subvolume has no shared directories") };
            ((Dir::Own(ids[dir]), name.clone()), ids[id])
        });
        let objects = ids.iter().map(|(old, new)| {
            let mut object = self.objects[old].clone();
            if object.kind == Kind::Subvol && *old != subvol {
                object.kind = Kind::Placeholder;
            }
            (*new, object)
        });
        (objects.collect(), entries.collect())
    }

    fn put_copies(
        &mut self,
        subvol: ObjectId,
        to: Place,
        ids: &BTreeMap<ObjectId, u64>,
        (objects, entries): (BTreeMap<ObjectId, Object>, BTreeMap<Place, ObjectId>),
    ) {
        self.objects.extend(objects);
        self.entries.extend(entries);
        self.origins.insert(ids[&subvol], subvol);
        for (old, new) in ids.iter().filter(|(old, _)| **old != subvol) {
            let stands_for = match self.objects[new].kind {
                Kind::Placeholder => *self.stands_for.get(old).unwrap_or(old),
                _ => continue,
            };
            self.stands_for.insert(*new, stands_for);
        }
        assert!(self.entries.insert(to, ids[&subvol]).is_none(), "a name leads to one object");
    }

    /// Whether a placeholder is where the subvolume is that it stands for: which is not to be.
    pub(crate) fn has_twins(&self) -> bool {
        let dir_of =
            |id| self.entries.iter().find(|(_, other)| **other == id).map(|((dir, _), _)| dir);
        let placeholders =
            self.entries.iter().filter_map(|((dir, _), id)| Some((dir, *self.stands_for.get(id)?)));
        placeholders.into_iter().any(|(dir, subvol)| dir_of(subvol) == Some(dir))
    }

    /// The representative of a family, the subvolumes that share anything by snapshot: the first of
    /// them.
    pub(crate) fn family_of(&self, subvol: ObjectId) -> ObjectId {
        self.origins.get(&subvol).map_or(subvol, |origin| self.family_of(*origin))
    }

    /// A subvolume goes with all that is in it.
    pub(crate) fn delete(&mut self, place: &Place) {
        self.names_change(place.0);
        let subvol = self.entries[place];
        let gone = self.within(subvol);
        self.entries.retain(|_, id| !gone.contains(id));
        self.objects.retain(|id, _| !gone.contains(id));
        self.read_only.remove(&subvol);
        self.promises.remove(Holder::Subvol(subvol));
        self.memory.remove(&subvol);
    }

    /// Every name with its whole path.
    pub(crate) fn paths(&self) -> BTreeMap<Path, ObjectId> {
        let mut paths = BTreeMap::new();
        for ((dir, name), id) in &self.entries {
            let mut path = self.path_of(*dir);
            path.push(name.clone());
            paths.insert(path, *id);
        }
        paths
    }

    fn path_of(&self, dir: Dir) -> Path {
        match dir {
            Dir::Shared(0) => Path::new(),
            Dir::Shared(n) => vec![shared_name(n)],
            Dir::Own(id) => {
                let ((parent, name), _) =
                    self.entries.iter().find(|(_, child)| **child == id).expect("it has a name");
                let mut path = self.path_of(*parent);
                path.push(name.clone());
                path
            }
        }
    }
}

/// Directories that all clients use; the first is the root.
pub(crate) const SHARED_DIRS: usize = 3;

pub(crate) fn shared_name(n: usize) -> Vec<u8> {
    format!("shared{n}").into_bytes()
}
