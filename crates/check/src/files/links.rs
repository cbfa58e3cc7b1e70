//! Names against inodes.
//!
//! LINKS-L1  A name leads to an inode that exists and is of the type that the entry says.
//! LINKS-L2  An inode has as many links as names; a directory two and one for each directory in it,
//!           and for each entry of a subvolume, whether it counts or not.
//! LINKS-L3  A directory but the root has one name, in the directory that it calls its parent;
//!           going up from it one comes to the root.
//! LINKS-L4  An inode without links is on the list of orphans, and an inode on the list has none.
//!
//! Where items could not be read, missing ones may be among them: then only a surplus is reported.

use copyhold_format::item::{InodeItem, inode_key};
use copyhold_types::InodeNo;

use super::Walk;
use super::index::{DIRECTORY, Inode};
use super::paths;
use crate::checker::Checker;
use crate::problem::Problem;

impl Walk<'_> {
    pub(super) async fn check_links(&mut self, checker: &mut Checker) {
        self.count_subdirectories();
        self.check_names(checker).await;
        let complete = checker.lost_of(self.table()).is_empty();
        for inode in &self.index.inodes {
            self.check_inode(checker, inode, complete);
        }
        self.check_circles(checker);
        self.check_lists(checker, complete);
        let root = InodeNo::ROOT;
        let lost = checker.is_lost(self.table(), inode_key(root));
        if self.index.find(root).is_none() && !lost {
            let why = "its root directory does not exist".into();
            checker.report.add(Problem::Subvolume { subvol: self.subvol, why });
        }
    }

    fn count_subdirectories(&mut self) {
        for at in 0..self.index.names.len() {
            let name = self.index.names[at];
            if name.kind() == DIRECTORY
                && let Some(dir) = self.index.position(name.dir())
            {
                self.index.inodes[dir].subdirs += 1;
            }
        }
        for dir in std::mem::take(&mut self.holders) {
            if let Some(dir) = self.index.position(dir) {
                self.index.inodes[dir].subdirs += 1;
            }
        }
    }

    /// LINKS-L1.
    async fn check_names(&self, checker: &mut Checker) {
        let mut wrong = Vec::new();
        for name in &self.index.names {
            match self.index.find(name.to) {
                Some(inode) if inode.kind() == name.kind() => {}
                None if checker.is_lost(self.table(), inode_key(name.to)) => {}
                found => wrong.push((name.dir(), name.to, found.map(Inode::kind))),
            }
        }
        let pairs = wrong.iter().map(|(dir, to, _)| (*dir, *to)).collect();
        let names = paths::names(checker, self.table(), pairs).await;
        for (dir, to, found) in wrong {
            let name = names.get(&(dir, to)).cloned().unwrap_or_default();
            let dir = self.file(dir.0);
            let why = "it records another type than the file has".to_owned();
            checker.report.add(match found {
                None => Problem::MissingInode { dir, name, to },
                Some(_) => Problem::Entry { dir, name, why },
            });
        }
    }

    /// LINKS-L2, and the name of LINKS-L3.
    fn check_inode(&self, checker: &mut Checker, inode: &Inode, complete: bool) {
        let (ino, said) = (inode.ino(), inode.nlink);
        let file = self.file(ino.0);
        let names = self.index.names_of(ino);
        let is_root = ino == InodeNo::ROOT;
        let count = names.len() as u32;
        if said == 0 && count == 0 {
            if !self.orphans.contains(&ino.0) && complete {
                checker.report.add(Problem::UnlistedOrphan { file });
            }
            return;
        }
        if count == 0 && !is_root {
            if complete {
                checker.report.add(Problem::Unreachable { file, why: "it has no name" });
            }
            return;
        }
        let found = if inode.is_dir() { 2 + inode.subdirs } else { count };
        let counts = !(inode.is_dir() && said == InodeItem::LINKS_SATURATED);
        if counts && (found > said || (found < said && complete)) {
            checker.report.add(Problem::Links { file, said, found });
        }
        if inode.is_dir() {
            self.check_parent(checker, inode, complete);
        }
    }

    fn check_parent(&self, checker: &mut Checker, inode: &Inode, complete: bool) {
        let ino = inode.ino();
        let (file, names) = (self.file(ino.0), self.index.names_of(ino));
        let is_root = ino == InodeNo::ROOT;
        if names.len() > usize::from(!is_root) {
            let names = names.len() as u32;
            checker.report.add(Problem::DirectoryNames { file, names });
            return;
        }
        let found = if is_root { ino } else { names[0].dir() };
        let said = self.index.parent(ino).unwrap_or_default();
        if said != found && complete {
            checker.report.add(Problem::Parent { file, said, found });
        }
    }

    /// LINKS-L3: directories from which one goes up in a circle.
    fn check_circles(&self, checker: &mut Checker) {
        let inodes = &self.index.inodes;
        // For each directory the walk that came by, counted from 1.
        let mut walks = vec![0u32; inodes.len()];
        for (walk, start) in (1..).zip(inodes.iter().filter(|inode| inode.is_dir())) {
            let mut at = start.ino();
            while at != InodeNo::ROOT
                && let Some(place) = self.index.position(at)
                && walks[place] == 0
                && let Some(name) = self.index.names_of(at).first()
            {
                walks[place] = walk;
                at = name.dir();
            }
            // Where this walk came by before is a circle, which is gone round once more.
            while let Some(place) = self.index.position(at)
                && walks[place] == walk
            {
                walks[place] = u32::MAX;
                let why = "going up from it leads in a circle";
                checker.report.add(Problem::Unreachable { file: self.file(at.0), why });
                at = self.index.names_of(at)[0].dir();
            }
        }
    }

    /// LINKS-L4.
    fn check_lists(&self, checker: &mut Checker, complete: bool) {
        let lists = [("orphans", &self.orphans), ("files that are being cut", &self.truncates)];
        for (list, inos) in lists {
            for &ino in inos {
                let found = self.index.find(InodeNo(ino));
                let why = match found {
                    None if complete => "but does not exist",
                    Some(inode) if inode.nlink > 0 && list == "orphans" => "but has links",
                    _ => continue,
                };
                let file = self.file(ino);
                checker.report.add(Problem::Listed { file, list, why });
            }
        }
    }
}
