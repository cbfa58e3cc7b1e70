//! The possible operations on a tree: every operation, in the few places that are enumerated.

use super::operation::{Allocation, Operation, Part, Size, Stretch, XATTR, Xattr};
use super::symmetry::original;
use super::workload::{DIR_NAMES, FILE_NAMES, HOME, NEW};
use crate::fs_level::tree::{Dir, Kind, Object, ObjectId, Place, Tree};

/// All operations that a tree allows, of the kinds and in the places that are enumerated.
pub(super) fn operations(tree: &Tree) -> Vec<Operation> {
    let of_kind = |kind: Kind| tree.objects.iter().filter(move |(_, of)| of.kind == kind);
    let pliable = |kind: Kind| -> Vec<ObjectId> {
        of_kind(kind).map(|(id, _)| *id).filter(|id| tree.may_change(*id)).collect()
    };
    let files = pliable(Kind::File);
    let dirs: Vec<ObjectId> = pliable(Kind::Dir).into_iter().filter(|id| *id != HOME).collect();
    let mut all = Vec::new();
    for dir in &dirs {
        let free = free_names(tree, *dir, file_names(*dir));
        all.extend(free.iter().cloned().map(Operation::Create));
        all.extend(free.iter().cloned().map(Operation::Mkdir));
        all.extend(free.iter().cloned().map(Operation::Tmpfile));
        all.push(Operation::SetXattr(*dir, Xattr::New));
        all.extend([Operation::SetMode(*dir), Operation::SetAcl(*dir)]);
    }
    for root in pliable(Kind::Subvol) {
        all.extend(free_names(tree, root, top_names()).into_iter().map(Operation::Mkdir));
    }
    for file in &files {
        of_content(tree, *file, &mut all);
        all.extend(
            [Operation::SetMode, Operation::SetOwner, Operation::SetAcl].map(|of| of(*file)),
        );
        all.extend(Xattr::ALL.map(|xattr| Operation::SetXattr(*file, xattr)));
        if tree.objects[file].xattrs.contains_key(XATTR) {
            all.push(Operation::RemoveXattr(*file));
        }
        let homes = dirs.iter().filter(|dir| tree.home_of(**dir) == tree.home_of(*file));
        let free = homes.flat_map(|dir| free_names(tree, *dir, file_names(*dir)));
        all.extend(free.map(|place| Operation::Link(*file, place)));
    }
    of_names(tree, &dirs, &mut all);
    of_subvolumes(tree, &mut all);
    all
}

fn of_content(tree: &Tree, file: ObjectId, all: &mut Vec<Operation>) {
    all.extend(Stretch::ALL.map(|stretch| Operation::Write(file, stretch)));
    all.extend(Allocation::ALL.map(|allocation| Operation::Allocate(file, allocation)));
    all.extend(Size::ALL.map(|size| Operation::Truncate(file, size)));
    all.extend([Operation::Append(file), Operation::OpenTruncate(file)]);
    let is_source = |(id, of): &(&ObjectId, &Object)| of.kind == Kind::File && **id != file;
    for (source, _) in tree.objects.iter().filter(is_source) {
        all.extend(Part::ALL.map(|part| Operation::Reflink(*source, file, part)));
    }
}

/// Names that come, go and lead elsewhere.
fn of_names(tree: &Tree, dirs: &[ObjectId], all: &mut Vec<Operation>) {
    let is_loose = |place: &Place, id: &ObjectId| {
        let kind = &tree.objects[id].kind;
        tree.is_writable(place.0) && matches!(kind, Kind::File | Kind::Dir) && *id != HOME
    };
    let loose: Vec<(&Place, &ObjectId)> =
        tree.entries.iter().filter(|(place, id)| is_loose(place, id)).collect();
    for (from, id) in &loose {
        let is_dir = tree.objects[id].kind.is_dir();
        match is_dir {
            true if tree.is_empty(**id) => all.push(Operation::Rmdir((*from).clone())),
            true => {}
            false => all.push(Operation::Unlink((*from).clone())),
        }
        let stays = |dir: Dir| tree.subvol_of(dir) == tree.subvol_of(from.0);
        let is_inside = |dir: Dir| is_dir && tree.is_within(dir, **id);
        let root = tree.subvol_of(from.0).filter(|_| is_dir);
        let homes = dirs.iter().map(|dir| (*dir, file_names(*dir)));
        let homes = homes.chain(root.map(|root| (root, top_names())));
        let free = homes.flat_map(|(dir, names)| free_names(tree, dir, names));
        let free = free.filter(|to| stays(to.0) && !is_inside(to.0));
        all.extend(free.map(|to| Operation::Rename((*from).clone(), to)));
        for (to, other) in &loose {
            let is_alike = tree.objects[other].kind.is_dir() == is_dir;
            if to == from || !is_alike || !stays(to.0) || is_inside(to.0) {
                continue;
            }
            if !is_dir || tree.is_empty(**other) {
                all.push(Operation::Rename((*from).clone(), (*to).clone()));
            }
            if from < to && !(is_dir && tree.is_within(from.0, **other)) {
                all.push(Operation::Exchange((*from).clone(), (*to).clone()));
            }
        }
    }
}

fn of_subvolumes(tree: &Tree, all: &mut Vec<Operation>) {
    let names = [&b"snap"[..], b"snap2"].map(|name| (Dir::Own(HOME), name.to_vec()));
    let free = names.into_iter().find(|place| !tree.entries.contains_key(place));
    let to = free.expect("two operations make two snapshots at most");
    for (place, source) in tree.subvols() {
        all.extend([false, true].map(|read_only| Operation::Snapshot {
            source,
            to: to.clone(),
            read_only,
        }));
        all.push(Operation::DeleteSubvolume(place));
    }
}

fn free_names(
    tree: &Tree,
    dir: ObjectId,
    names: impl IntoIterator<Item = &'static [u8]>,
) -> Vec<Place> {
    let places = names.into_iter().map(|name| (Dir::Own(dir), name.to_vec()));
    places.filter(|place| !tree.entries.contains_key(place)).collect()
}

/// Objects in a new directory have one name only.
fn file_names(dir: ObjectId) -> Vec<&'static [u8]> {
    if original(dir).is_some() {
        vec![FILE_NAMES[0], FILE_NAMES[1], NEW]
    } else {
        vec![FILE_NAMES[0]]
    }
}

fn top_names() -> Vec<&'static [u8]> {
    vec![DIR_NAMES[0], DIR_NAMES[1], NEW]
}
