//! The operations of a workload, and their effects on the model's tree and on a file's content.
//!
//! An operation names directories and files by their number in the model, so it means the same
//! thing wherever operations before it have moved them.

use std::collections::BTreeMap;
use std::fmt;

use copyhold_fs::{Caller, FallocateMode};

use crate::dice::Dice;
use crate::fs_level::content::Content;
use crate::fs_level::rights::{ACCESS, Acl, DEFAULT};
use crate::fs_level::span::Span;
use crate::fs_level::tree::{Dir, Kind, Object, ObjectId, Place, Tree};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Create(Place),
    Mkdir(Place),
    /// A file that is made without a name, and then gets this.
    Tmpfile(Place),
    Write(ObjectId, Stretch),
    /// By a descriptor that was opened for that.
    Append(ObjectId),
    Allocate(ObjectId, Allocation),
    Truncate(ObjectId, Size),
    /// By opening it.
    OpenTruncate(ObjectId),
    SetMode(ObjectId),
    SetOwner(ObjectId),
    /// Of a file its access ACL, of a directory what it passes on.
    SetAcl(ObjectId),
    /// From the first to the second.
    Reflink(ObjectId, ObjectId, Part),
    SetXattr(ObjectId, Xattr),
    RemoveXattr(ObjectId),
    Link(ObjectId, Place),
    Unlink(Place),
    Rmdir(Place),
    Rename(Place, Place),
    /// The smaller place first.
    Exchange(Place, Place),
    Snapshot {
        source: ObjectId,
        to: Place,
        read_only: bool,
    },
    DeleteSubvolume(Place),
}

/// Where a write goes, in a file of [`FILE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stretch {
    /// The first block, whole.
    Block,
    /// A part of the second.
    Within,
    /// From the end on, beyond the last block.
    Append,
    /// Behind a hole.
    Beyond,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Allocation {
    Extend,
    KeepSize,
    Punch,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    Nothing,
    Less,
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// All, over all that the target has.
    Whole,
    /// The second block, over the first.
    Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Xattr {
    New,
    Replace,
}

/// Two blocks and a part of a third.
pub(super) const FILE_BYTES: u64 = 10_000;
/// An attribute that every file has at the beginning.
pub(super) const XATTR: &[u8] = b"user.has";
const FRESH_XATTR: &[u8] = b"user.new";
pub(super) const MODE: u32 = 0o640;
/// User and group.
pub(super) const OWNER: (u32, u32) = (7, 8);
const APPENDED_BYTES: usize = 3000;

/// Which ACL of an object is set, and to what.
pub(super) fn acl_of(object: &Object) -> (&'static [u8], Acl) {
    let (users, groups) = (BTreeMap::from([(OWNER.0, 6)]), BTreeMap::from([(OWNER.1, 4)]));
    let acl = Acl { owner: 6, users, group: 4, groups, mask: Some(6), other: 0 };
    (if object.kind.is_dir() { DEFAULT } else { ACCESS }, acl)
}

impl Stretch {
    pub(super) const ALL: [Stretch; 4] =
        [Stretch::Block, Stretch::Within, Stretch::Append, Stretch::Beyond];

    /// Offset and length.
    pub(super) fn range(self) -> (u64, u64) {
        match self {
            Stretch::Block => (0, 4096),
            Stretch::Within => (5000, 700),
            Stretch::Append => (FILE_BYTES, 3000),
            Stretch::Beyond => (20_000, 100),
        }
    }
}

impl Allocation {
    pub(super) const ALL: [Allocation; 4] =
        [Allocation::Extend, Allocation::KeepSize, Allocation::Punch, Allocation::Zero];

    pub(super) fn range(self) -> (u64, u64) {
        match self {
            Allocation::Extend | Allocation::KeepSize => (8192, 12_288),
            Allocation::Punch => (4096, 4096),
            Allocation::Zero => (1000, 6000),
        }
    }

    pub(super) fn mode(self) -> FallocateMode {
        match self {
            Allocation::Extend => FallocateMode::Allocate { keep_size: false },
            Allocation::KeepSize => FallocateMode::Allocate { keep_size: true },
            Allocation::Punch => FallocateMode::Punch,
            Allocation::Zero => FallocateMode::Zero { keep_size: false },
        }
    }
}

impl Size {
    pub(super) const ALL: [Size; 3] = [Size::Nothing, Size::Less, Size::More];

    pub(super) fn bytes(self) -> u64 {
        match self {
            Size::Nothing => 0,
            Size::Less => 5000,
            Size::More => 30_000,
        }
    }
}

impl Part {
    pub(super) const ALL: [Part; 2] = [Part::Whole, Part::Block];

    /// Offset in the source, in the target, and length of what there is.
    pub(super) fn of(self, source: &Content) -> (u64, u64, u64) {
        match self {
            Part::Whole => (0, 0, source.size()),
            Part::Block => (4096, 0, source.size().saturating_sub(4096).min(4096)),
        }
    }
}

impl Xattr {
    pub(super) const ALL: [Xattr; 2] = [Xattr::New, Xattr::Replace];

    pub(super) fn name(self) -> &'static [u8] {
        match self {
            Xattr::New => FRESH_XATTR,
            Xattr::Replace => XATTR,
        }
    }

    /// One beside the inode, and one that is longer than what was there.
    pub(super) fn value(self) -> Vec<u8> {
        match self {
            Xattr::New => vec![b'n'; 20],
            Xattr::Replace => vec![b'r'; 3000],
        }
    }
}

/// The effect of an operation on names and attributes of the tree.
pub(super) struct Effect {
    pub(super) tree: Tree,
    /// The new objects, except for the copies of a snapshot.
    pub(super) made: Option<ObjectId>,
    /// The snapshot's object for each object of its source.
    pub(super) copies: BTreeMap<ObjectId, ObjectId>,
    /// Objects whose data is there if this is (R35).
    pub(super) brings: Vec<ObjectId>,
}

impl Operation {
    /// Nothing, if it changes only the content of a file.
    pub(super) fn effect(
        &self,
        tree: &Tree,
        mut fresh: impl FnMut() -> ObjectId,
    ) -> Option<Effect> {
        let mut effect =
            Effect { tree: tree.clone(), made: None, copies: BTreeMap::new(), brings: Vec::new() };
        let tree = &mut effect.tree;
        let place_of = |place: &Place| place.clone();
        match self {
            Operation::Create(place) | Operation::Mkdir(place) | Operation::Tmpfile(place) => {
                let is_dir = matches!(self, Operation::Mkdir(_));
                let (kind, mode) = if is_dir { (Kind::Dir, 0o755) } else { (Kind::File, 0o644) };
                let id = fresh();
                let new = Object::made_in(tree.own(place.0), kind, mode, &Caller::ROOT);
                tree.put(place.clone(), id, new);
                effect.made = Some(id);
            }
            Operation::SetMode(id) | Operation::SetOwner(id) | Operation::SetAcl(id) => {
                let object = tree.objects.get_mut(id).expect("it has a name");
                object.ctime = Span::Now;
                match self {
                    Operation::SetMode(_) => object.chmod(MODE, &Caller::ROOT),
                    Operation::SetOwner(_) => object.chown(Some(OWNER.0), Some(OWNER.1)),
                    _ => {
                        let (name, acl) = acl_of(object);
                        object.set_acl(name, Some(&acl));
                    }
                }
            }
            Operation::Link(id, place) => tree.link(place.clone(), *id),
            Operation::Unlink(place) | Operation::Rmdir(place) => tree.remove(place),
            Operation::Rename(from, to) => {
                let (id, replaced) = (tree.entries[from], tree.entries.get(to).copied());
                // Two names of one file: nothing happens.
                if replaced != Some(id) {
                    tree.rename(from, place_of(to));
                    effect.brings.extend(replaced.map(|_| id));
                }
            }
            Operation::Exchange(a, b) => {
                let both = [tree.entries[a], tree.entries[b]];
                // Two names of one file: nothing happens.
                if both[0] != both[1] {
                    effect.brings.extend(both);
                    tree.exchange(a, b);
                }
            }
            Operation::SetXattr(id, xattr) => {
                let object = tree.objects.get_mut(id).expect("it has a name");
                object.xattrs.insert(xattr.name().to_vec(), xattr.value());
                object.ctime = Span::Now;
            }
            Operation::RemoveXattr(id) => {
                let object = tree.objects.get_mut(id).expect("it has a name");
                object.xattrs.remove(XATTR);
                object.ctime = Span::Now;
            }
            Operation::Snapshot { source, to, read_only } => {
                let within = tree.within(*source);
                effect.copies = within.into_iter().map(|old| (old, fresh())).collect();
                tree.snapshot(*source, to.clone(), &effect.copies);
                if *read_only {
                    tree.read_only.insert(effect.copies[source]);
                }
                effect.brings = effect.copies.values().copied().collect();
            }
            Operation::DeleteSubvolume(place) => tree.delete(place),
            Operation::Write(..)
            | Operation::Append(_)
            | Operation::Allocate(..)
            | Operation::Truncate(..)
            | Operation::OpenTruncate(_)
            | Operation::Reflink(..) => return None,
        }
        Some(effect)
    }

    /// The new content of the changed file; `source`: the content that a reflink copies.
    pub(super) fn change(&self, content: &mut Content, source: Option<&Content>) {
        match self {
            Operation::Write(id, stretch) => {
                let bytes = self.bytes(*id, *stretch);
                content.write(stretch.range().0, &bytes);
            }
            Operation::Allocate(_, allocation) => {
                let (offset, len) = allocation.range();
                if matches!(allocation, Allocation::Punch | Allocation::Zero) {
                    content.zero(offset, len);
                }
                if matches!(allocation, Allocation::Extend | Allocation::Zero) {
                    content.set_size(content.size().max(offset + len));
                }
            }
            Operation::Append(id) => content.write(content.size(), &appended(*id)),
            Operation::OpenTruncate(_) => content.set_size(0),
            Operation::Truncate(_, size) => content.set_size(size.bytes()),
            Operation::Reflink(_, _, part) => {
                let source = source.expect("a reflink has a source");
                let (from, to, len) = part.of(source);
                content.write(to, &source.read(from, len));
            }
            _ => unreachable!("it changes no content"),
        }
    }

    /// The content of a write: the same each time, and different in each file and place.
    pub(super) fn bytes(&self, id: ObjectId, stretch: Stretch) -> Vec<u8> {
        let (offset, len) = stretch.range();
        Dice::new(id << 32 | offset).bytes(len as usize)
    }

    /// The objects whose own last change this is, of those that exist afterwards: an fsync of one
    /// of them promises it. (A copy of nothing changes nothing; the caller checks that.)
    pub(super) fn touches(&self, before: &Tree, effect: Option<&Effect>) -> Vec<ObjectId> {
        let of = |place: &Place| before.entries.get(place).copied();
        let dir = |place: &Place| match place.0 {
            Dir::Own(id) => Some(id),
            Dir::Shared(_) => None,
        };
        let made = effect.and_then(|effect| effect.made);
        let touched: Vec<Option<ObjectId>> = match self {
            Operation::Create(place) | Operation::Mkdir(place) | Operation::Tmpfile(place) => {
                vec![made, dir(place)]
            }
            Operation::Write(id, _)
            | Operation::Append(id)
            | Operation::OpenTruncate(id)
            | Operation::SetMode(id)
            | Operation::SetOwner(id)
            | Operation::SetAcl(id)
            | Operation::Allocate(id, _)
            | Operation::Truncate(id, _)
            | Operation::Reflink(_, id, _)
            | Operation::SetXattr(id, _)
            | Operation::RemoveXattr(id) => vec![Some(*id)],
            Operation::Link(id, place) => vec![Some(*id), dir(place)],
            Operation::Unlink(place) | Operation::Rmdir(place) => vec![of(place), dir(place)],
            // Two names of one file: nothing happens.
            Operation::Rename(from, to) | Operation::Exchange(from, to) if of(from) == of(to) => {
                vec![]
            }
            Operation::Rename(from, to) | Operation::Exchange(from, to) => {
                vec![of(from), dir(from), of(to), dir(to)]
            }
            Operation::Snapshot { to, .. } => {
                let copies = effect.into_iter().flat_map(|effect| effect.copies.values());
                copies.map(|id| Some(*id)).chain([dir(to)]).collect()
            }
            Operation::DeleteSubvolume(place) => vec![dir(place)],
        };
        let after = effect.map_or(before, |effect| &effect.tree);
        let mut touched: Vec<ObjectId> = touched.into_iter().flatten().collect();
        touched.retain(|id| after.objects.contains_key(id));
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// For the model, which keeps what made each version of a file.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Operation::Create(_) => "create",
            Operation::Mkdir(_) => "mkdir",
            Operation::Tmpfile(_) => "tmpfile and link",
            Operation::Write(..) => "write",
            Operation::Append(_) => "append",
            Operation::OpenTruncate(_) => "open to truncate",
            Operation::SetMode(_) => "chmod",
            Operation::SetOwner(_) => "chown",
            Operation::SetAcl(_) => "set ACL",
            Operation::Allocate(..) => "fallocate",
            Operation::Truncate(..) => "truncate",
            Operation::Reflink(..) => "reflink",
            Operation::SetXattr(..) => "set xattr",
            Operation::RemoveXattr(_) => "remove xattr",
            Operation::Link(..) => "link",
            Operation::Unlink(_) => "unlink",
            Operation::Rmdir(_) => "rmdir",
            Operation::Rename(..) => "rename",
            Operation::Exchange(..) => "exchange",
            Operation::Snapshot { .. } => "snapshot",
            Operation::DeleteSubvolume(_) => "delete subvolume",
        }
    }
}

/// The content that is appended to a file.
pub(super) fn appended(id: ObjectId) -> Vec<u8> {
    Dice::new(id << 32 | 1).bytes(APPENDED_BYTES)
}

/// A place as a reader of messages knows it: the directory's number, and the name.
pub(super) struct Shown<'a>(pub(super) &'a Place);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, name) = self.0;
        let name = String::from_utf8_lossy(name);
        match dir {
            Dir::Shared(0) => write!(f, "/{name}"),
            Dir::Shared(n) => write!(f, "/shared{n}/{name}"),
            Dir::Own(id) => write!(f, "#{id}/{name}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Operation::Create(place)
            | Operation::Mkdir(place)
            | Operation::Tmpfile(place)
            | Operation::Unlink(place)
            | Operation::Rmdir(place)
            | Operation::DeleteSubvolume(place) => write!(f, "{name} {}", Shown(place)),
            Operation::Write(id, stretch) => write!(f, "{name} #{id} {stretch:?}"),
            Operation::Allocate(id, allocation) => write!(f, "{name} #{id} {allocation:?}"),
            Operation::Truncate(id, size) => write!(f, "{name} #{id} to {}", size.bytes()),
            Operation::Reflink(from, to, part) => write!(f, "{name} #{from} to #{to} {part:?}"),
            Operation::SetXattr(id, xattr) => write!(f, "{name} #{id} {xattr:?}"),
            Operation::RemoveXattr(id)
            | Operation::Append(id)
            | Operation::OpenTruncate(id)
            | Operation::SetMode(id)
            | Operation::SetOwner(id)
            | Operation::SetAcl(id) => write!(f, "{name} #{id}"),
            Operation::Link(id, place) => write!(f, "{name} #{id} as {}", Shown(place)),
            Operation::Rename(from, to) => write!(f, "{name} {} to {}", Shown(from), Shown(to)),
            Operation::Exchange(a, b) => write!(f, "{name} {} and {}", Shown(a), Shown(b)),
            Operation::Snapshot { source, to, read_only } => {
                let how = if *read_only { ", read-only" } else { "" };
                write!(f, "{name} #{source} as {}{how}", Shown(to))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enumeration::workload::{DIRS, FILES, NEW, stage};

    fn after(tree: &Tree, operation: &Operation) -> Tree {
        operation.effect(tree, || unreachable!("it makes nothing")).expect("of names").tree
    }

    #[test]
    fn two_names_of_one_file_are_renamed_and_exchanged_without_a_change() {
        let name = (Dir::Own(DIRS[0]), b"foo".to_vec());
        let other = (Dir::Own(DIRS[1]), NEW.to_vec());
        let mut tree = stage();
        tree.link(other.clone(), FILES[0]);
        tree.objects
            .values_mut()
            .for_each(|object| (object.mtime, object.ctime) = (Span::Any, Span::Any));
        for operation in
            [Operation::Rename(name.clone(), other.clone()), Operation::Exchange(name, other)]
        {
            let after = after(&tree, &operation);
            assert_eq!(after.entries, tree.entries, "{operation}");
            assert_eq!(after.objects, tree.objects, "{operation}");
        }
    }
}
