//! Differences between two snapshots, or between a snapshot and its source.
//!
//! Problem.  Tables say which items differ; people want to know which paths do, at the cost of
//!           the changes.
//! Idea.     Items that differ come in order, so those of one file come together. Each becomes
//!           *facts* ([`Fact`]), a bounded number at a time, and the caller collects them
//!           ([`Changes`]) and asks for the names that it lacks (`names`). Nothing is remembered
//!           here in between.
//!
//! CHANGES-C1  A number means the same file on both sides, unless both made files since they
//!             parted: then the files of one number were born at different times, or are of
//!             different types, and are two files. Of a directory that is two, all entries are
//!             reported.
//! CHANGES-C2  A file without a name (open and unlinked) is none.
//!
//! A file was changed in content when blocks were written, dropped or moved, or its size changed;
//! no comparison of bytes decides that. Space that is only allocated is no content. Consequences
//! of other changes are not reported: access times, change times, a directory's own times and size
//! where its entries changed, a file's time of modification where its content did.

mod names;
mod summary;

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::FormatError;
use copyhold_format::item::{
    DIRENT, DIRENT_SUBVOL, DirBucket, EXTENT, Extent, ExtentState, INLINE, INODE, InodeItem,
    SYMLINK, XATTR, XATTR_VALUE, inode_key,
};
use copyhold_pool::Value;
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, Timestamp};
use copyhold_volume::Scanned;

pub use names::{Named, Names, Side};
pub use summary::{Change, Changes, Places, What};

use crate::{FileKind, Filesystem, FsError, NodeId, Result};

/// Keys of the first file.
const FIRST: Key = Key { object: InodeNo::ROOT.0, kind: INODE, offset: 0 };
/// Items of a directory of CHANGES-C1 that are read at a time.
const ENTRIES: usize = 512;

/// The attributes of a file on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// Type and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub born: Timestamp,
    /// The directory where it has a name, or had; 0: unknown.
    pub home: InodeNo,
}

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    File(InodeNo),
    Subvolume(SubvolId),
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Inode {
        ino: InodeNo,
        /// Before and after; `None`: there is no such file.
        sides: [Option<Brief>; 2],
        /// Permissions, owners or flags.
        metadata: bool,
        resized: bool,
        /// Its time of modification.
        touched: bool,
    },
    Content {
        ino: InodeNo,
    },
    Xattrs {
        ino: InodeNo,
    },
    /// A name that is on one side only: `added`, or gone.
    Name {
        dir: InodeNo,
        name: Vec<u8>,
        to: Target,
        kind: FileKind,
        added: bool,
    },
}

type Pair = [Option<Value>; 2];

impl Brief {
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// CHANGES-C1.
    fn is_same(&self, other: &Brief) -> bool {
        self.born == other.born && self.kind() == other.kind()
    }
}

impl Filesystem {
    /// Writes the dirty data of a subvolume, so that a scan of it meets all data accepted before;
    /// returns the number that it stamps from now on (`Volumes::generation`).
    pub async fn settle_for_scan(self: &std::sync::Arc<Self>, id: SubvolId) -> Result<EpochId> {
        if self.writable().is_ok() {
            self.write_subvol(id).await?;
        }
        Ok(self.volumes.generation(&*self.scanned(id)?)?)
    }

    /// A subvolume that is to be looked at only.
    pub fn scanned(&self, id: SubvolId) -> Result<std::sync::Arc<copyhold_volume::Subvol>> {
        self.usable()?;
        let subvol = self.volumes.subvol(id).ok_or(FsError::Stale)?;
        if subvol.is_dying() { Err(FsError::Stale) } else { Ok(subvol) }
    }

    /// The facts that differ from `from` on, about `most` items; each key's facts come together.
    ///
    /// # Errors
    /// The two do not share by snapshot.
    pub async fn changes(
        &self,
        [old, new]: [SubvolId; 2],
        from: Option<Key>,
        most: usize,
    ) -> Result<Scanned<(Key, Vec<Fact>)>> {
        let sides = [&*self.scanned(old)?, &*self.scanned(new)?];
        let from = from.map_or(FIRST, |from| from.max(FIRST));
        if from != Key::new(from.object, INODE, 0)
            && let [Some(old), Some(new)] = self.briefs(sides, InodeNo(from.object)).await?
            && !old.is_same(&new)
        {
            return self.both(sides, from).await;
        }
        let found = self.volumes.differing(sides[0], sides[1], from..Key::MAX, most).await?;
        let (mut items, mut next) = (Vec::new(), found.next);
        // The file of which nothing more needs to be known.
        let mut done = None;
        for (key, pair) in found.items {
            if done == Some(key.object) {
                continue;
            }
            let facts = self.facts(sides[1].id(), key, &pair)?;
            let is_content = key.kind == EXTENT && !facts.is_empty();
            done = is_content.then_some(key.object).or(done);
            let is_two = matches!(&facts[..], [Fact::Inode { sides: [Some(old), Some(new)], .. }]
                if !old.is_same(new));
            if !facts.is_empty() {
                items.push((key, facts));
            }
            if is_two {
                return Ok(Scanned { items, next: key.successor() });
            }
        }
        // A long file is not gone through to its end.
        if let (Some(at), Some(object)) = (next, done)
            && at.object == object
        {
            next = Some(Key::new(object + 1, INODE, 0));
        }
        Ok(Scanned { items, next })
    }

    /// All entries of two directories of one number, as gone and as added.
    async fn both(
        &self,
        sides: [&copyhold_volume::Subvol; 2],
        from: Key,
    ) -> Result<Scanned<(Key, Vec<Fact>)>> {
        let end = Key::new(from.object, XATTR, 0);
        let mut found: BTreeMap<Key, Pair> = BTreeMap::new();
        let mut next = None;
        for (n, side) in sides.into_iter().enumerate() {
            let items = self.volumes.range(side, from, end, ENTRIES).await?;
            if items.len() == ENTRIES {
                let last = items[ENTRIES - 1].0.successor();
                next = [next, last].into_iter().flatten().min();
            }
            for (key, value) in items {
                found.entry(key).or_default()[n] = Some(value);
            }
        }
        let mut items = Vec::new();
        for (key, [old, new]) in found {
            if key.kind == DIRENT && next.is_none_or(|next| key < next) {
                let [mut gone, added] =
                    [[old, None], [None, new]].map(|pair| self.facts(sides[1].id(), key, &pair));
                gone.as_mut().map_err(|error| error.clone())?.extend(added?);
                items.push((key, gone?));
            }
        }
        Ok(Scanned { items, next: next.or(Some(Key::new(from.object + 1, INODE, 0))) })
    }

    async fn briefs(
        &self,
        sides: [&copyhold_volume::Subvol; 2],
        ino: InodeNo,
    ) -> Result<[Option<Brief>; 2]> {
        let mut briefs = [None; 2];
        for (brief, side) in briefs.iter_mut().zip(sides) {
            if let Some(value) = self.volumes.get(side, inode_key(ino)).await? {
                let wrong =
                    |source| self.damaged_record("the inode item", node(side.id(), ino), source);
                *brief = brief_of(&InodeItem::parse(&value).map_err(wrong)?);
            }
        }
        Ok(briefs)
    }

    /// The facts that follow from the two values of a key.
    fn facts(&self, subvol: SubvolId, key: Key, pair: &Pair) -> Result<Vec<Fact>> {
        let ino = InodeNo(key.object);
        let facts = match key.kind {
            INODE => inode_facts(ino, pair),
            DIRENT => name_facts(ino, pair),
            EXTENT => content_facts(ino, pair),
            INLINE | SYMLINK => Ok(vec![Fact::Content { ino }]),
            XATTR | XATTR_VALUE => Ok(vec![Fact::Xattrs { ino }]),
            _ => Ok(Vec::new()),
        };
        facts.map_err(|source| {
            self.damaged_record(&format!("item {key}"), node(subvol, ino), source)
        })
    }
}

fn node(subvol: SubvolId, ino: InodeNo) -> NodeId {
    NodeId { subvol, ino }
}

/// CHANGES-C2.
fn brief_of(item: &InodeItem) -> Option<Brief> {
    let InodeItem { mode, uid, gid, nlink: links, btime: born, parent: home, .. } = *item;
    (links > 0).then_some(Brief { mode: mode.into(), uid, gid, links, born, home })
}

fn inode_facts(ino: InodeNo, pair: &Pair) -> Result<Vec<Fact>, FormatError> {
    let parse = |value: &Option<Value>| value.as_deref().map(InodeItem::parse).transpose();
    let items = [parse(&pair[0])?, parse(&pair[1])?];
    let sides = items.map(|item| item.as_ref().and_then(brief_of));
    let [Some(old), Some(new)] = items else {
        let (metadata, resized, touched) = (false, false, false);
        return Ok(vec![Fact::Inode { ino, sides, metadata, resized, touched }]);
    };
    let kept = |item: &InodeItem| {
        let InodeItem { mode, uid, gid, flags, project, rdev, .. } = *item;
        (mode, uid, gid, flags, project, rdev)
    };
    let metadata = kept(&old) != kept(&new);
    let resized = old.size != new.size && !new.is_dir();
    let touched = old.mtime != new.mtime;
    Ok(vec![Fact::Inode { ino, sides, metadata, resized, touched }])
}

fn content_facts(ino: InodeNo, pair: &Pair) -> Result<Vec<Fact>, FormatError> {
    let mut written = false;
    for value in pair.iter().flatten() {
        written |= Extent::parse(value)?.state != ExtentState::Unwritten;
    }
    Ok(written.then_some(Fact::Content { ino }).into_iter().collect())
}

fn name_facts(dir: InodeNo, pair: &Pair) -> Result<Vec<Fact>, FormatError> {
    let parse = |value: &Option<Value>| -> Result<BTreeSet<(Vec<u8>, u8, InodeNo)>, FormatError> {
        let bucket = value.as_deref().map_or(Ok(DirBucket::EMPTY), DirBucket::parse)?;
        Ok(bucket.iter().map(|entry| (entry.name.to_vec(), entry.kind, entry.ino)).collect())
    };
    let [old, new] = [parse(&pair[0])?, parse(&pair[1])?];
    let fact = |(name, kind, ino): &(Vec<u8>, u8, InodeNo), added| {
        let (to, kind) = match *kind {
            DIRENT_SUBVOL => (Target::Subvolume(SubvolId(ino.0 as u32)), FileKind::Directory),
            kind => {
                let kind = FileKind::from_dirent_type(kind).unwrap_or(FileKind::Regular);
                (Target::File(*ino), kind)
            }
        };
        Fact::Name { dir, name: name.clone(), to, kind, added }
    };
    let gone = old.difference(&new).map(|entry| fact(entry, false));
    Ok(gone.chain(new.difference(&old).map(|entry| fact(entry, true))).collect())
}
