//! From facts to paths.
//!
//! ```text
//!   a name gone and a name added of one file     renamed, as many as there are of both
//!   another name gone, or added                  deleted, or added
//!   the path of both, of two files               modified: its content was replaced
//!   other facts of a file on both sides          modified
//! ```
//!
//! Paths begin at the subvolume's root. A deleted path and the source of a rename are paths of the
//! old side, all others of the new one: below a renamed directory that alone is reported as
//! renamed. A file that has several names and changed is reported under one of them.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_types::InodeNo;

use super::names::{Named, Names, Side};
use super::{Brief, Fact, Target};
use crate::FileKind;

/// More directories over each other are a way in a circle.
const DEPTH_MAX: usize = 4096;

/// The kind of a path's change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Deleted,
    Renamed { from: Vec<u8> },
    Added,
    Modified { content: bool, metadata: bool, xattrs: bool },
}

/// A line of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: Vec<u8>,
    pub what: What,
    pub kind: FileKind,
    /// It is the entry of a nested subvolume, whose files are not compared.
    pub is_subvolume: bool,
    /// Names of the file, of which only changed ones and one of a modified file are listed.
    pub links: Option<u32>,
}

/// Facts, collected.
#[derive(Debug, Default)]
pub struct Changes {
    files: BTreeMap<InodeNo, FileFacts>,
    names: BTreeMap<Target, [BTreeSet<Entry>; 2]>,
    /// On either side, as directories say.
    kinds: BTreeMap<Target, [Option<FileKind>; 2]>,
    /// Directories with other entries.
    relisted: BTreeSet<InodeNo>,
}

/// A directory, and a name in it.
type Entry = (InodeNo, Vec<u8>);

#[derive(Clone, Copy, Debug, Default)]
struct FileFacts {
    sides: Option<[Option<Brief>; 2]>,
    metadata: bool,
    resized: bool,
    touched: bool,
    content: bool,
    xattrs: bool,
}

impl FileFacts {
    /// Whether the file is on both sides.
    fn stays(&self) -> bool {
        match &self.sides {
            None => true,
            Some([Some(old), Some(new)]) => old.is_same(new),
            Some(_) => false,
        }
    }

    fn links(&self) -> Option<u32> {
        let [old, new] = self.sides?;
        new.or(old).map(|brief| brief.links)
    }
}

impl What {
    /// Another file, or another directory, has the path.
    fn replaced(is_dir: bool) -> What {
        What::Modified { content: !is_dir, metadata: is_dir, xattrs: false }
    }

    /// Of one path; `false`: the two are listed apart.
    fn take_in(&mut self, other: &What) -> bool {
        let What::Modified { content, metadata, xattrs } = self else { return false };
        let What::Modified { content: c, metadata: m, xattrs: x } = *other else { return false };
        (*content, *metadata, *xattrs) = (*content | c, *metadata | m, *xattrs | x);
        true
    }
}

impl Changes {
    pub fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Inode { ino, sides, metadata, resized, touched } => {
                let file = self.files.entry(ino).or_default();
                file.sides = Some(sides);
                (file.metadata, file.resized, file.touched) = (metadata, resized, touched);
            }
            Fact::Content { ino } => self.files.entry(ino).or_default().content = true,
            Fact::Xattrs { ino } => self.files.entry(ino).or_default().xattrs = true,
            Fact::Name { dir, name, to, kind, added } => {
                self.kinds.entry(to).or_default()[usize::from(added)] = Some(kind);
                self.relisted.insert(dir);
                self.names.entry(to).or_default()[usize::from(added)].insert((dir, name));
            }
        }
    }

    /// Files and names of which something is known so far.
    pub fn len(&self) -> usize {
        self.files.len() + self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The changes by path; of one path, deletions come first.
    pub fn summary<N: Names>(mut self, names: &mut N) -> Result<Vec<Change>, N::Error> {
        let mut places = Places::new(names);
        self.tell_two_files(&mut places)?;
        for (target, [gone, added]) in &self.names {
            let Target::File(ino) = *target else { continue };
            for (side, entries) in [(Side::Old, gone), (Side::New, added)] {
                if let Some(entry) = entries.first() {
                    places.known.insert((side, ino), entry.clone());
                }
            }
        }
        let mut changes = self.moved(&mut places)?;
        changes.extend(self.modified(&mut places)?);
        changes.sort_by(|a, b| (&a.path, &a.what).cmp(&(&b.path, &b.what)));
        // A path may lead to another file than before, which was changed besides.
        changes.dedup_by(|next, last| next.path == last.path && last.what.take_in(&next.what));
        Ok(changes)
    }

    /// Of two files of one number all names are gone, or added, those too that look alike
    /// (CHANGES-C1).
    fn tell_two_files<N: Names>(&mut self, places: &mut Places<'_, N>) -> Result<(), N::Error> {
        let mut wanted: [BTreeMap<InodeNo, Option<InodeNo>>; 2] = Default::default();
        let mut several: [BTreeSet<InodeNo>; 2] = Default::default();
        for (&ino, file) in self.files.iter().filter(|(_, file)| !file.stays()) {
            let Some([Some(old), Some(new)]) = file.sides else { continue };
            let known = self.names.entry(Target::File(ino)).or_default();
            let kinds = self.kinds.entry(Target::File(ino)).or_default();
            for (n, brief) in [old, new].into_iter().enumerate() {
                kinds[n] = Some(brief.kind());
                let is_dir = brief.kind() == FileKind::Directory;
                let names = if is_dir { 1 } else { brief.links as usize };
                match names {
                    _ if known[n].len() >= names || ino == InodeNo::ROOT => {}
                    1 => drop(wanted[n].insert(ino, Some(brief.home))),
                    _ => drop(several[n].insert(ino)),
                }
            }
        }
        for (n, side) in [Side::Old, Side::New].into_iter().enumerate() {
            let mut found = Vec::new();
            if !several[n].is_empty() {
                found = places.names.named(side, None, &several[n])?;
            }
            let inos: Vec<InodeNo> = wanted[n].keys().copied().collect();
            places.find_some(side, &inos, &wanted[n])?;
            for ino in inos {
                if let Some((dir, name)) = places.known.get(&(side, ino)).cloned() {
                    found.push(Named { dir, name, ino });
                }
            }
            for Named { dir, name, ino } in found {
                self.relisted.insert(dir);
                self.names.entry(Target::File(ino)).or_default()[n].insert((dir, name));
            }
        }
        Ok(())
    }

    /// Names that came and went.
    fn moved<N: Names>(&self, places: &mut Places<'_, N>) -> Result<Vec<Change>, N::Error> {
        for (n, side) in [Side::Old, Side::New].into_iter().enumerate() {
            let entries = self.names.values().flat_map(|names| &names[n]);
            places.find(side, &entries.map(|(dir, _)| *dir).collect(), &BTreeMap::new())?;
        }
        let mut changes = Vec::new();
        let (mut went, mut came) = (BTreeMap::new(), BTreeMap::new());
        for (target, [gone, added]) in &self.names {
            let file = match target {
                Target::File(ino) => self.files.get(ino).copied().unwrap_or_default(),
                Target::Subvolume(_) => FileFacts::default(),
            };
            let pairs = if file.stays() { gone.len().min(added.len()) } else { 0 };
            let kinds = self.kinds.get(target).copied().unwrap_or_default();
            let kind = |what: &What| match what {
                What::Deleted => kinds[0].or(kinds[1]),
                _ => kinds[1].or(kinds[0]),
            };
            let change = |path, what| Change {
                path,
                kind: kind(&what).unwrap_or(FileKind::Regular),
                what,
                is_subvolume: matches!(target, Target::Subvolume(_)),
                links: file.links(),
            };
            for (from, to) in gone.iter().zip(added).take(pairs) {
                let [from, to] = [(Side::Old, from), (Side::New, to)]
                    .map(|(side, entry)| places.path_of(side, entry));
                // In two directories of one number and path, it has not moved.
                if let (Some(from), Some(to)) = (from, to)
                    && from != to
                {
                    changes.push(change(to, What::Renamed { from }));
                }
            }
            for entry in gone.iter().skip(pairs) {
                if let Some(path) = places.path_of(Side::Old, entry) {
                    went.insert(path.clone(), change(path, What::Deleted));
                }
            }
            for entry in added.iter().skip(pairs) {
                if let Some(path) = places.path_of(Side::New, entry) {
                    came.insert(path.clone(), change(path, What::Added));
                }
            }
        }
        for (path, added) in came {
            let same = |gone: &&Change| {
                (gone.kind, gone.is_subvolume) == (added.kind, added.is_subvolume)
                    && !gone.is_subvolume
            };
            if went.get(&path).filter(same).is_none() {
                changes.push(added);
                continue;
            }
            went.remove(&path);
            let what = What::replaced(added.kind == FileKind::Directory);
            changes.push(Change { what, ..added });
        }
        changes.extend(went.into_values());
        Ok(changes)
    }

    /// Files that are on both sides, and not the same.
    fn modified<N: Names>(&self, places: &mut Places<'_, N>) -> Result<Vec<Change>, N::Error> {
        let (mut changed, mut homes) = (Vec::new(), BTreeMap::new());
        for (&ino, file) in self.files.iter().filter(|(_, file)| file.stays()) {
            let Some(what) = self.what(ino, file) else { continue };
            let brief = file.sides.and_then(|[_, new]| new);
            homes.insert(ino, brief.map(|brief| brief.home));
            changed.push((ino, file, what));
        }
        places.find(Side::New, &homes.keys().copied().collect(), &homes)?;
        let mut changes = Vec::new();
        for (ino, file, what) in changed {
            if let Some(path) = places.path(Side::New, ino) {
                let (kind, links) = (self.kind_of(ino, file), file.links());
                changes.push(Change { path, what, kind, is_subvolume: false, links });
            }
        }
        Ok(changes)
    }

    fn kind_of(&self, ino: InodeNo, file: &FileFacts) -> FileKind {
        let brief = file.sides.and_then(|[old, new]| new.or(old));
        let known = || self.kinds.get(&Target::File(ino)).and_then(|[old, new]| new.or(*old));
        brief.map(|brief| brief.kind()).or_else(known).unwrap_or(FileKind::Regular)
    }

    fn what(&self, ino: InodeNo, file: &FileFacts) -> Option<What> {
        let is_dir = self.kind_of(ino, file) == FileKind::Directory;
        let content = !is_dir && (file.content || file.resized);
        let follows = content || (is_dir && self.relisted.contains(&ino));
        let metadata = file.metadata || (file.touched && !follows);
        let xattrs = file.xattrs;
        let any = content || metadata || xattrs;
        any.then_some(What::Modified { content, metadata, xattrs })
    }
}

/// The paths of files, as far as they were requested.
pub struct Places<'a, N> {
    names: &'a mut N,
    known: BTreeMap<(Side, InodeNo), Entry>,
    /// They have no name that can be found.
    lost: BTreeSet<(Side, InodeNo)>,
}

impl<'a, N: Names> Places<'a, N> {
    pub fn new(names: &'a mut N) -> Places<'a, N> {
        Places { names, known: BTreeMap::new(), lost: BTreeSet::new() }
    }

    /// Finds names of these files, and of all directories above; `homes` as far as they are known.
    pub fn find(
        &mut self,
        side: Side,
        wanted: &BTreeSet<InodeNo>,
        homes: &BTreeMap<InodeNo, Option<InodeNo>>,
    ) -> Result<(), N::Error> {
        let mut todo = wanted.clone();
        while !todo.is_empty() {
            let is_open = |ino: &InodeNo| {
                *ino != InodeNo::ROOT
                    && !self.known.contains_key(&(side, *ino))
                    && !self.lost.contains(&(side, *ino))
            };
            let open: Vec<InodeNo> = todo.iter().copied().filter(is_open).collect();
            self.find_some(side, &open, homes)?;
            let above = todo.iter().filter_map(|ino| self.known.get(&(side, *ino)));
            let above: BTreeSet<InodeNo> = above.map(|(dir, _)| *dir).collect();
            // Known directories may lie below unknown ones; a circle ends where nothing is new.
            todo = above.into_iter().filter(|dir| *dir != InodeNo::ROOT).collect();
            if open.is_empty() && todo.iter().all(|dir| self.is_rooted(side, *dir)) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the way up from it is known, or known to be lost.
    fn is_rooted(&self, side: Side, ino: InodeNo) -> bool {
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            match self.known.get(&(side, at)) {
                _ if at == InodeNo::ROOT || self.lost.contains(&(side, at)) => return true,
                Some((dir, _)) => at = *dir,
                None => return false,
            }
        }
        true
    }

    fn find_some(
        &mut self,
        side: Side,
        open: &[InodeNo],
        homes: &BTreeMap<InodeNo, Option<InodeNo>>,
    ) -> Result<(), N::Error> {
        let hint = |ino: &InodeNo| homes.get(ino).copied().flatten();
        let asked: Vec<InodeNo> = open.iter().copied().filter(|ino| hint(ino).is_none()).collect();
        let told = match asked.is_empty() {
            true => Vec::new(),
            false => self.names.homes(side, &asked)?,
        };
        let told: BTreeMap<InodeNo, Option<InodeNo>> = asked.into_iter().zip(told).collect();
        let mut by_home: BTreeMap<InodeNo, BTreeSet<InodeNo>> = BTreeMap::new();
        for ino in open {
            let home = hint(ino).or_else(|| told.get(ino).copied().flatten());
            match home.filter(|home| home.0 != 0) {
                Some(home) => drop(by_home.entry(home).or_default().insert(*ino)),
                None if told.get(ino) == Some(&None) => drop(self.lost.insert((side, *ino))),
                None => {}
            }
        }
        for (home, wanted) in by_home {
            let found = self.names.named(side, Some(home), &wanted)?;
            self.learn(side, found);
        }
        let is_missing = |ino: &&InodeNo| {
            !self.known.contains_key(&(side, **ino)) && !self.lost.contains(&(side, **ino))
        };
        let missing: BTreeSet<InodeNo> = open.iter().filter(is_missing).copied().collect();
        if !missing.is_empty() {
            let found = self.names.named(side, None, &missing)?;
            self.learn(side, found);
        }
        for ino in missing {
            if !self.known.contains_key(&(side, ino)) {
                self.lost.insert((side, ino));
            }
        }
        Ok(())
    }

    fn learn(&mut self, side: Side, found: Vec<Named>) {
        for Named { dir, name, ino } in found {
            self.known.entry((side, ino)).or_insert((dir, name));
        }
    }

    /// The path of a file that was looked for; `None`: it has no name.
    pub fn path(&self, side: Side, ino: InodeNo) -> Option<Vec<u8>> {
        match ino {
            InodeNo::ROOT => Some(b".".to_vec()),
            ino => self.path_of(side, self.known.get(&(side, ino))?),
        }
    }

    fn path_of(&self, side: Side, entry: &Entry) -> Option<Vec<u8>> {
        let (mut dir, mut names) = (entry.0, vec![&entry.1[..]]);
        while dir != InodeNo::ROOT {
            let (above, name) = self.known.get(&(side, dir))?;
            names.push(name);
            dir = *above;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}
