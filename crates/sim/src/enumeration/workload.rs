//! Every workload of one operation and of two, each operation with a persistence point behind it.
//!
//! They begin with the same small tree, all of it durable: a subvolume with the directories `A` and
//! `B`, and in each the files `foo` and `bar`, alike but for their content. A new object is called
//! `new`, or gets a name that was removed. Workloads that differ only by an exchange of the two
//! directories, or of the two files of one, are the same: the smallest of them stands for all.

use std::fmt;

use super::operation::{Operation, XATTR};
use super::possible::operations;
use super::symmetry::is_smallest;
use crate::fs_level::tree::{Dir, Kind, Object, ObjectId, Tree};

// The initial objects, by number.
pub(super) const HOME: ObjectId = 1;
pub(super) const SUBVOL: ObjectId = 2;
pub(super) const DIRS: [ObjectId; 2] = [3, 4];
pub(super) const FILES: [ObjectId; 4] = [5, 6, 7, 8];
/// A snapshot that is made first has its objects this much higher.
pub(super) const COPY: ObjectId = FILES[3] - SUBVOL + 1;

pub(super) const DIR_NAMES: [&[u8]; 2] = [b"A", b"B"];
pub(super) const FILE_NAMES: [&[u8]; 2] = [b"foo", b"bar"];
pub(super) const NEW: &[u8] = b"new";

/// The step after an operation that makes it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Persistence {
    Nothing,
    /// Of a file or a directory.
    Fsync(ObjectId),
    Sync,
    /// Time goes by, and timers do it.
    Timers,
    /// Everything is synced, and settled in its tables.
    Settle,
    /// The filesystem is closed.
    Close,
}

pub(super) type Step = (Operation, Persistence);

/// Workloads that differ in their last persistence point only.
#[derive(Clone, Debug)]
pub(super) struct Family {
    /// Steps of a workload that is in another family.
    pub(super) known: Vec<Step>,
    pub(super) last: Operation,
    pub(super) persistence: Vec<Persistence>,
}

/// One workload.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) steps: Vec<Step>,
}

/// The tree that every workload begins with, by the numbers that the model gives in this order.
pub(super) fn stage() -> Tree {
    let mut tree = Tree::default();
    let object = Object::new;
    let mode = 0o777 & !copyhold_fs::Caller::ROOT.umask;
    tree.put((Dir::Shared(0), b"c0-home".to_vec()), HOME, object(Kind::Dir, 0o755));
    tree.put((Dir::Own(HOME), b"sub".to_vec()), SUBVOL, object(Kind::Subvol, mode));
    for (dir, name) in DIRS.into_iter().zip(DIR_NAMES) {
        tree.put((Dir::Own(SUBVOL), name.to_vec()), dir, object(Kind::Dir, 0o755));
    }
    for (nth, file) in FILES.into_iter().enumerate() {
        let place = (Dir::Own(DIRS[nth / 2]), FILE_NAMES[nth % 2].to_vec());
        let mut object = object(Kind::File, 0o644);
        object.xattrs.insert(XATTR.to_vec(), b"a value".to_vec());
        tree.put(place, file, object);
    }
    tree
}

/// All of so many operations: one or two.
pub(super) fn families(length: usize) -> Vec<Family> {
    let stage = stage();
    let mut families = Vec::new();
    for first in operations(&stage) {
        if !is_smallest(std::slice::from_ref(&first), &[]) {
            continue;
        }
        let (tree, fsyncs) = after(&stage, &first);
        if length == 1 {
            let fsyncs = fsyncs.into_iter().map(Persistence::Fsync);
            let persistence = [Persistence::Nothing].into_iter().chain(fsyncs);
            let others =
                [Persistence::Sync, Persistence::Timers, Persistence::Settle, Persistence::Close];
            let persistence = persistence.chain(others).collect();
            families.push(Family { known: Vec::new(), last: first, persistence });
            continue;
        }
        let points = [Persistence::Nothing, Persistence::Sync].into_iter();
        for point in points.chain(fsyncs.iter().copied().map(Persistence::Fsync)) {
            if !is_smallest(std::slice::from_ref(&first), &[point]) {
                continue;
            }
            for second in operations(&tree) {
                if is_smallest(&[first.clone(), second.clone()], &[point]) {
                    families.push(pair((first.clone(), point), second, &tree, &fsyncs));
                }
            }
        }
    }
    families
}

fn pair(first: Step, last: Operation, tree: &Tree, fsyncs: &[ObjectId]) -> Family {
    let (tree, more) = after(tree, &last);
    let mut all: Vec<ObjectId> = fsyncs.iter().copied().chain(more).collect();
    all.retain(|id| tree.objects.contains_key(id));
    all.sort_unstable();
    all.dedup();
    let fsyncs = all.into_iter().map(Persistence::Fsync);
    // Whether the first had been made durable before makes little difference to tables.
    let settle = (first.1 == Persistence::Nothing).then_some(Persistence::Settle);
    let persistence = fsyncs.chain([Persistence::Sync]).chain(settle).collect();
    Family { known: vec![first], last, persistence }
}

impl Family {
    pub(super) fn workloads(&self) -> impl Iterator<Item = Workload> {
        self.persistence.iter().map(|point| {
            let mut steps = self.known.clone();
            steps.push((self.last.clone(), *point));
            Workload { steps }
        })
    }
}

/// The tree behind an operation, and the objects whose fsync then says something of it.
fn after(tree: &Tree, operation: &Operation) -> (Tree, Vec<ObjectId>) {
    let mut next = tree.objects.keys().chain(&FILES).max().copied().expect("there is something");
    let fresh = || {
        next += 1;
        next
    };
    let effect = operation.effect(tree, fresh);
    let mut touched = operation.touches(tree, effect.as_ref());
    if let (Operation::Snapshot { source, .. }, Some(effect)) = (operation, &effect) {
        // All copies are alike in this: its root and one file are enough.
        let is_file = |id: &&ObjectId| effect.tree.objects[*id].kind == Kind::File;
        let file = effect.copies.values().find(is_file).copied();
        let is_copy = |id: &ObjectId| effect.copies.values().any(|copy| copy == id);
        let root = effect.copies[source];
        touched.retain(|id| !is_copy(id) || *id == root || Some(*id) == file);
    }
    (effect.map_or_else(|| tree.clone(), |effect| effect.tree), touched)
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (operation, point)) in self.steps.iter().enumerate() {
            let comma = if nth > 0 { "; " } else { "" };
            write!(f, "{comma}{operation}")?;
            match point {
                Persistence::Nothing => {}
                Persistence::Fsync(id) => write!(f, "; fsync #{id}")?,
                Persistence::Sync => write!(f, "; sync")?,
                Persistence::Timers => write!(f, "; timers")?,
                Persistence::Settle => write!(f, "; sync and settle")?,
                Persistence::Close => write!(f, "; close")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::enumeration::symmetry::Symmetry;

    /// Whether each operation stands for itself and for others, without any left out or twice.
    #[test]
    fn every_operation_is_some_symmetry_of_one_that_is_taken() {
        let all: BTreeSet<Operation> = operations(&stage()).into_iter().collect();
        let taken = all.iter().filter(|one| is_smallest(std::slice::from_ref(*one), &[]));
        let mut covered = BTreeSet::new();
        let mut count = 0;
        for one in taken {
            count += 1;
            let orbit: BTreeSet<_> =
                Symmetry::all(false).map(|symmetry| symmetry.operation(one)).collect();
            for other in orbit {
                assert!(covered.insert(other), "two stand for one");
            }
        }
        assert_eq!(covered, all);
        assert!(count * 3 < all.len(), "{count} stand for {}", all.len());
    }

    #[test]
    fn every_pair_is_some_symmetry_of_one_that_is_taken() {
        let stage = stage();
        let taken: BTreeSet<(Operation, Operation)> = families(2)
            .into_iter()
            .filter(|family| family.known[0].1 == Persistence::Nothing)
            .map(|family| (family.known[0].0.clone(), family.last))
            .collect();
        for first in operations(&stage) {
            let copies = matches!(first, Operation::Snapshot { .. });
            for second in operations(&after(&stage, &first).0) {
                let stand_for = Symmetry::all(copies)
                    .map(|symmetry| (symmetry.operation(&first), symmetry.operation(&second)));
                let stand_for: BTreeSet<_> =
                    stand_for.filter(|pair| taken.contains(pair)).collect();
                assert_eq!(stand_for.len(), 1, "{first}; {second}");
            }
        }
    }

    #[test]
    fn every_kind_of_operation_is_there() {
        let first = operations(&stage()).into_iter().map(|operation| operation.name());
        let names: BTreeSet<&str> = first.collect();
        assert_eq!(names.len(), 20, "{names:?}, and rmdir of what was made before");
    }
}
