//! All inodes and all names of a subvolume, small and sorted.

use copyhold_types::{InodeNo, SubvolId, TableId};

/// `DT_DIR`, also the type in the upper bits of a mode.
pub(crate) const DIRECTORY: u8 = 4;

/// Inode number and type in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packed(u64);

impl Packed {
    fn new(ino: InodeNo, kind: u8) -> Packed {
        Packed(ino.0 << 4 | u64::from(kind & 0xf))
    }

    fn ino(self) -> InodeNo {
        InodeNo(self.0 >> 4)
    }

    fn kind(self) -> u8 {
        (self.0 & 0xf) as u8
    }
}

/// An inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    packed: Packed,
    pub(crate) nlink: u32,
    /// Directories that are in this one, counted by `links`.
    pub(crate) subdirs: u32,
}

impl Inode {
    pub(crate) fn ino(&self) -> InodeNo {
        self.packed.ino()
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.packed.kind() == DIRECTORY
    }

    /// As in the upper bits of a mode.
    pub(crate) fn kind(&self) -> u8 {
        self.packed.kind()
    }
}

/// An entry of a directory, without the name itself. Sorted by its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) to: InodeNo,
    dir: Packed,
}

impl Name {
    pub(crate) fn dir(&self) -> InodeNo {
        self.dir.ino()
    }

    /// The type of the inode by its entry.
    pub(crate) fn kind(&self) -> u8 {
        self.dir.kind()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FileIndex {
    pub(crate) subvol: SubvolId,
    pub(crate) table: TableId,
    /// By number.
    pub(crate) inodes: Vec<Inode>,
    pub(crate) names: Vec<Name>,
    /// Directories and where they say that they are, by number.
    pub(crate) parents: Vec<(InodeNo, InodeNo)>,
}

impl FileIndex {
    pub(crate) fn new(subvol: SubvolId, table: TableId) -> FileIndex {
        let (inodes, names, parents) = (Vec::new(), Vec::new(), Vec::new());
        FileIndex { subvol, table, inodes, names, parents }
    }

    /// Inodes come by number.
    pub(crate) fn add_inode(&mut self, ino: InodeNo, kind: u8, nlink: u32, parent: InodeNo) {
        self.inodes.push(Inode { packed: Packed::new(ino, kind), nlink, subdirs: 0 });
        if kind == DIRECTORY {
            self.parents.push((ino, parent));
        }
    }

    pub(crate) fn add_name(&mut self, dir: InodeNo, to: InodeNo, kind: u8) {
        self.names.push(Name { to, dir: Packed::new(dir, kind) });
    }

    pub(crate) fn sort(&mut self) {
        self.names.sort_unstable();
    }

    pub(crate) fn find(&self, ino: InodeNo) -> Option<&Inode> {
        self.position(ino).map(|at| &self.inodes[at])
    }

    pub(crate) fn position(&self, ino: InodeNo) -> Option<usize> {
        self.inodes.binary_search_by_key(&ino, Inode::ino).ok()
    }

    /// The names that lead to `ino`.
    pub(crate) fn names_of(&self, ino: InodeNo) -> &[Name] {
        let from = self.names.partition_point(|name| name.to < ino);
        let to = self.names.partition_point(|name| name.to <= ino);
        &self.names[from..to]
    }

    /// Where a directory says that it is.
    pub(crate) fn parent(&self, ino: InodeNo) -> Option<InodeNo> {
        let at = self.parents.binary_search_by_key(&ino, |(dir, _)| *dir).ok()?;
        Some(self.parents[at].1)
    }
}
