//! Steps of looking through a subvolume: questions and answers.
//!
//! A step looks at a bounded number of items and returns the cursor of the next step. Only the
//! caller keeps the cursor, so a scan ends with its program.

use copyhold_fs::{Brief, Fact, FileKind, Target};
use copyhold_types::{InodeNo, Key, Kind, SubvolId, Timestamp};
use serde::{Deserialize, Serialize};

use super::token::Token;

/// A step, asked on the root of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scan {
    /// Writes what is dirty; its generation.
    Begin,
    /// [`FactRow`]s of the differences from another subvolume, named by its root's token, to this.
    Changes { from: Token, at: Option<At> },
    /// For each inode the directory of its latest name; `null`: there is no such inode.
    Homes { inodes: Vec<u64> },
    /// [`NameRow`]s in a directory, or in all of them.
    Named { directory: Option<u64>, inodes: Vec<u64>, at: Option<At> },
    /// [`FreshRow`]s of this generation or newer.
    Fresh { since: u64, at: Option<At> },
    /// [`WeighedStep`]: the space that a deletion would free, and without `exclusive` all that is
    /// held.
    Weigh { exclusive: bool, dropped: bool, at: Option<At> },
}

impl Scan {
    /// The token of another subvolume that it looks at, too.
    pub fn other(&self) -> Option<&Token> {
        match self {
            Scan::Changes { from, .. } => Some(from),
            _ => None,
        }
    }
}

/// The position at which a scan continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At(pub u64, pub u8, pub u64);

impl From<Key> for At {
    fn from(key: Key) -> At {
        At(key.object, key.kind.0, key.offset)
    }
}

impl From<At> for Key {
    fn from(At(object, kind, offset): At) -> Key {
        Key::new(object, Kind(kind), offset)
    }
}

/// How many items of how many lie behind, roughly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub done: u64,
    pub of: u64,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step<T> {
    pub rows: Vec<T>,
    pub next: Option<At>,
    pub progress: Done,
}

/// Data of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreshRow {
    pub inode: u64,
    pub offset: u64,
    pub bytes: u64,
    /// `null`: it lies in its item, and what is near that is newer.
    pub extent: Option<ExtentRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentRow {
    pub address: u64,
    pub generation: u64,
    pub unwritten: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRow {
    pub directory: u64,
    pub name: Vec<u8>,
    pub inode: u64,
}

/// The result of a step of weighing, in blocks (`copyhold_volume::Weighed`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeighedStep {
    pub held: u64,
    pub exclusive: u64,
    /// Address, blocks, references that would go, references beyond the first, whether it is held.
    pub shared: Vec<(u64, u32, u32, u32, bool)>,
    /// With whether it is of what the sibling has dropped.
    pub next: Option<(bool, At)>,
    pub progress: Done,
}

/// A fact, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FactRow {
    Inode { ino: u64, sides: [Option<BriefRow>; 2], metadata: bool, resized: bool, touched: bool },
    Content(u64),
    Xattrs(u64),
    Name { dir: u64, name: Vec<u8>, to: u64, is_subvolume: bool, kind: u8, added: bool },
}

/// Mode, user, group, links, birth in seconds and nanoseconds, home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BriefRow(u32, u32, u32, u32, i64, u32, u64);

impl From<Brief> for BriefRow {
    fn from(brief: Brief) -> BriefRow {
        let Brief { mode, uid, gid, links, born, home } = brief;
        BriefRow(mode, uid, gid, links, born.secs, born.nanos, home.0)
    }
}

impl From<BriefRow> for Brief {
    fn from(BriefRow(mode, uid, gid, links, secs, nanos, home): BriefRow) -> Brief {
        let born = Timestamp { secs, nanos };
        Brief { mode, uid, gid, links, born, home: InodeNo(home) }
    }
}

impl From<Fact> for FactRow {
    fn from(fact: Fact) -> FactRow {
        match fact {
            Fact::Inode { ino, sides, metadata, resized, touched } => {
                let sides = sides.map(|side| side.map(BriefRow::from));
                FactRow::Inode { ino: ino.0, sides, metadata, resized, touched }
            }
            Fact::Content { ino } => FactRow::Content(ino.0),
            Fact::Xattrs { ino } => FactRow::Xattrs(ino.0),
            Fact::Name { dir, name, to, kind, added } => {
                let (to, is_subvolume) = match to {
                    Target::File(ino) => (ino.0, false),
                    Target::Subvolume(subvol) => (subvol.0.into(), true),
                };
                let kind = kind.dirent_type();
                FactRow::Name { dir: dir.0, name, to, is_subvolume, kind, added }
            }
        }
    }
}

impl From<FactRow> for Fact {
    fn from(row: FactRow) -> Fact {
        match row {
            FactRow::Inode { ino, sides, metadata, resized, touched } => {
                let sides = sides.map(|side| side.map(Brief::from));
                Fact::Inode { ino: InodeNo(ino), sides, metadata, resized, touched }
            }
            FactRow::Content(ino) => Fact::Content { ino: InodeNo(ino) },
            FactRow::Xattrs(ino) => Fact::Xattrs { ino: InodeNo(ino) },
            FactRow::Name { dir, name, to, is_subvolume, kind, added } => {
                let kind = FileKind::from_dirent_type(kind).unwrap_or(FileKind::Regular);
                let to = match is_subvolume {
                    true => Target::Subvolume(SubvolId(to as u32)),
                    false => Target::File(InodeNo(to)),
                };
                Fact::Name { dir: InodeNo(dir), name, to, kind, added }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_way() {
        let born = Timestamp { secs: -5, nanos: 7 };
        let brief = Brief { mode: 0o100644, uid: 1, gid: 2, links: 3, born, home: InodeNo(4) };
        let (metadata, resized, touched) = (true, false, true);
        let ino = InodeNo(9);
        let name = |to| Fact::Name {
            dir: InodeNo(1),
            name: vec![b'a', 0xff],
            to,
            kind: FileKind::Directory,
            added: true,
        };
        let facts = [
            Fact::Inode { ino, sides: [Some(brief), None], metadata, resized, touched },
            Fact::Content { ino },
            Fact::Xattrs { ino },
            name(Target::File(ino)),
            name(Target::Subvolume(SubvolId(7))),
        ];
        for fact in facts {
            let text = serde_json::to_vec(&FactRow::from(fact.clone())).unwrap();
            let row: FactRow = serde_json::from_slice(&text).unwrap();
            assert_eq!(Fact::from(row), fact);
        }
    }
}
