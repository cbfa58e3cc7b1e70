//! Which files findings are about, by path.
//!
//! The index knows which directory holds an inode, but no names. So first the pairs of directory
//! and inode on all ways to the root are gathered, and then each directory is read once.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{DIRENT, DirBucket};
use copyhold_types::{InodeNo, Key, TableId};

use super::index::FileIndex;
use crate::checker::Checker;
use crate::meaning::Affected;
use crate::problem::FileId;
use crate::report::AffectedFile;

/// Files that are named for a range of inodes.
const NAMED_MAX: usize = 20;
/// Longest way to the root that is followed.
const DEPTH_MAX: usize = 512;

/// The first name of each inode in each directory.
pub(super) async fn names(
    checker: &mut Checker,
    table: TableId,
    pairs: BTreeSet<(InodeNo, InodeNo)>,
) -> BTreeMap<(InodeNo, InodeNo), String> {
    let mut names = BTreeMap::new();
    let Some(table) = checker.table(table) else { return names };
    let dirs: BTreeSet<InodeNo> = pairs.iter().map(|(dir, _)| *dir).collect();
    for dir in dirs {
        let all = Key::new(dir.0, DIRENT, 0)..Key::new(dir.0, DIRENT, u64::MAX);
        let mut items = checker.items(&table, all);
        while let Some(page) = items.next(&mut checker.report).await {
            let buckets = page.iter().filter_map(|(_, value)| DirBucket::parse(value).ok());
            for entry in buckets.flat_map(|bucket| bucket.iter()) {
                if pairs.contains(&(dir, entry.ino)) {
                    let name = || String::from_utf8_lossy(entry.name).into_owned();
                    names.entry((dir, entry.ino)).or_insert_with(name);
                }
            }
        }
    }
    names
}

impl Checker {
    /// For each problem, the files that it is about.
    pub(crate) async fn affected_files(&mut self) -> Vec<Vec<AffectedFile>> {
        let problems = &self.report.problems;
        let wanted: Vec<Vec<FileId>> =
            problems.iter().map(|problem| self.files_of(problem.affected())).collect();
        let mut paths = BTreeMap::new();
        for at in 0..self.files.len() {
            let subvol = self.files[at].subvol;
            let all = wanted.iter().flatten().filter(|file| file.subvol == subvol);
            let inos: BTreeSet<InodeNo> = all.map(|file| file.ino).collect();
            let pairs = inos.iter().flat_map(|ino| way_up(&self.files[at], *ino)).collect();
            let names = names(self, self.files[at].table, pairs).await;
            for ino in inos {
                paths.insert(FileId { subvol, ino }, path(&self.files[at], &names, ino));
            }
        }
        let affected = |file: FileId| AffectedFile {
            subvolume: file.subvol.0,
            inode: file.ino.0,
            path: paths.get(&file).cloned().flatten(),
        };
        wanted.into_iter().map(|files| files.into_iter().map(affected).collect()).collect()
    }

    fn files_of(&self, affected: Affected) -> Vec<FileId> {
        match affected {
            Affected::Nobody => Vec::new(),
            Affected::File(file) => vec![file],
            Affected::Two(one, other) => vec![one, other],
            Affected::Inodes(table, from, to) => {
                let index = self.files.iter().find(|index| index.table == table);
                let Some(index) = index else { return Vec::new() };
                let inodes = index.inodes.iter().map(|inode| inode.ino());
                let named = index.names.iter().map(|name| name.to);
                let known: BTreeSet<InodeNo> =
                    inodes.chain(named).filter(|ino| (from..=to).contains(ino)).collect();
                let file = |ino| FileId { subvol: index.subvol, ino };
                known.into_iter().take(NAMED_MAX).map(file).collect()
            }
        }
    }
}

/// Pairs of directory and inode from `ino` up to the root.
fn way_up(index: &FileIndex, ino: InodeNo) -> Vec<(InodeNo, InodeNo)> {
    let mut way = Vec::new();
    let mut at = ino;
    while at != InodeNo::ROOT && way.len() < DEPTH_MAX {
        let Some(name) = index.names_of(at).first() else { break };
        way.push((name.dir(), at));
        at = name.dir();
    }
    way
}

fn path(
    index: &FileIndex,
    names: &BTreeMap<(InodeNo, InodeNo), String>,
    ino: InodeNo,
) -> Option<String> {
    if ino == InodeNo::ROOT {
        return Some("/".into());
    }
    let way = way_up(index, ino);
    let reaches = way.last().is_some_and(|(dir, _)| *dir == InodeNo::ROOT);
    let mut path = String::new();
    for pair in way.iter().rev() {
        path.push('/');
        path += names.get(pair)?;
    }
    reaches.then_some(path)
}
