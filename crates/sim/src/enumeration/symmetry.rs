//! Workloads that are the same but for names.
//!
//! The two directories are alike, and so are the two files of each: whatever is done in one can be
//! done in the other. Of all sequences that are taken for each other the smallest stands for all.
//! (In the engine they are not quite the same: names hash to other places, and numbers of inodes
//! have an order.)

use super::operation::Operation;
use super::workload::{COPY, DIR_NAMES, DIRS, FILE_NAMES, FILES, Persistence, SUBVOL};
use crate::fs_level::tree::{Dir, ObjectId, Place};

/// Which of `A` and `B` a number is, or its copy in a snapshot.
pub(super) fn original(dir: ObjectId) -> Option<usize> {
    DIRS.iter().position(|old| *old == dir || *old + COPY == dir)
}

/// Which names are taken for each other.
#[derive(Clone, Copy)]
pub(super) struct Symmetry {
    dirs: bool,
    files: [bool; 2],
    /// The first operation is a snapshot: higher numbers are of its copies.
    copies: bool,
}

impl Symmetry {
    pub(super) fn all(copies: bool) -> impl Iterator<Item = Symmetry> {
        let bit = |n: usize, bit: usize| n >> bit & 1 == 1;
        (0..8).map(move |n| Symmetry { dirs: bit(n, 0), files: [bit(n, 1), bit(n, 2)], copies })
    }

    fn object(self, id: ObjectId) -> ObjectId {
        if let Some(nth) = DIRS.iter().position(|dir| *dir == id) {
            return DIRS[nth ^ usize::from(self.dirs)];
        }
        if let Some(nth) = FILES.iter().position(|file| *file == id) {
            let (dir, file) = (nth / 2, nth % 2);
            let (dir, file) = (dir ^ usize::from(self.dirs), file ^ usize::from(self.files[dir]));
            return FILES[dir * 2 + file];
        }
        let is_copy = self.copies && (SUBVOL + COPY..=FILES[3] + COPY).contains(&id);
        if is_copy { self.object(id - COPY) + COPY } else { id }
    }

    fn place(self, (dir, name): &Place) -> Place {
        let Dir::Own(id) = *dir else { return (*dir, name.clone()) };
        let is_root = id == SUBVOL || (self.copies && id == SUBVOL + COPY);
        let name = match original(id) {
            _ if is_root => swapped(name, DIR_NAMES, self.dirs),
            Some(old) => swapped(name, FILE_NAMES, self.files[old]),
            None => name.clone(),
        };
        (Dir::Own(self.object(id)), name)
    }

    pub(super) fn operation(self, operation: &Operation) -> Operation {
        let (id, place) = (|id: &ObjectId| self.object(*id), |place: &Place| self.place(place));
        match operation {
            Operation::Create(at) => Operation::Create(place(at)),
            Operation::Mkdir(at) => Operation::Mkdir(place(at)),
            Operation::Tmpfile(at) => Operation::Tmpfile(place(at)),
            Operation::Append(of) => Operation::Append(id(of)),
            Operation::OpenTruncate(of) => Operation::OpenTruncate(id(of)),
            Operation::SetMode(of) => Operation::SetMode(id(of)),
            Operation::SetOwner(of) => Operation::SetOwner(id(of)),
            Operation::SetAcl(of) => Operation::SetAcl(id(of)),
            Operation::Write(of, stretch) => Operation::Write(id(of), *stretch),
            Operation::Allocate(of, allocation) => Operation::Allocate(id(of), *allocation),
            Operation::Truncate(of, size) => Operation::Truncate(id(of), *size),
            Operation::Reflink(from, to, part) => Operation::Reflink(id(from), id(to), *part),
            Operation::SetXattr(of, xattr) => Operation::SetXattr(id(of), *xattr),
            Operation::RemoveXattr(of) => Operation::RemoveXattr(id(of)),
            Operation::Link(of, at) => Operation::Link(id(of), place(at)),
            Operation::Unlink(at) => Operation::Unlink(place(at)),
            Operation::Rmdir(at) => Operation::Rmdir(place(at)),
            Operation::Rename(from, to) => Operation::Rename(place(from), place(to)),
            Operation::Exchange(a, b) => {
                let (a, b) = (place(a), place(b));
                Operation::Exchange(a.clone().min(b.clone()), a.max(b))
            }
            Operation::Snapshot { source, to, read_only } => {
                Operation::Snapshot { source: id(source), to: place(to), read_only: *read_only }
            }
            Operation::DeleteSubvolume(at) => Operation::DeleteSubvolume(place(at)),
        }
    }

    fn persistence(self, point: Persistence) -> Persistence {
        match point {
            Persistence::Fsync(id) => Persistence::Fsync(self.object(id)),
            other => other,
        }
    }
}

fn swapped(name: &[u8], pair: [&[u8]; 2], swap: bool) -> Vec<u8> {
    let nth = pair.iter().position(|one| *one == name).filter(|_| swap);
    nth.map_or(name, |nth| pair[1 - nth]).to_vec()
}

/// Whether it stands for all that are the same but for names: operations, and the persistence
/// points between them.
pub(super) fn is_smallest(operations: &[Operation], points: &[Persistence]) -> bool {
    let copies = matches!(operations[0], Operation::Snapshot { .. });
    Symmetry::all(copies).all(|symmetry| {
        let same: Vec<Operation> =
            operations.iter().map(|operation| symmetry.operation(operation)).collect();
        let same_points: Vec<Persistence> =
            points.iter().map(|point| symmetry.persistence(*point)).collect();
        let order = operations[0].cmp(&same[0]);
        let order = order.then_with(|| points.cmp(&same_points));
        order.then_with(|| operations.cmp(&same)).is_le()
    })
}
