//! A scenario: steps on a fresh filesystem, and what must be seen after them.
//!
//! What each word of a file means is in `docs/scenarios.md`; `parse.rs` reads it.

use std::fmt;
use std::path::PathBuf;

use crate::amount::Range;
use crate::errno::Errno;

/// What a scenario is played on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Kind {
    Copyhold,
    Btrfs,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Copyhold => "copyhold",
            Kind::Btrfs => "btrfs",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Kind> {
        [Kind::Copyhold, Kind::Btrfs].into_iter().find(|kind| kind.name() == name)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) title: String,
    /// Section of the reference whose case this is.
    pub(crate) section: String,
    /// Why Copyhold's figures are not the kernel's.
    pub(crate) differs: Option<String>,
    /// The only target that it makes sense on, and why.
    pub(crate) only: Option<(Kind, String)>,
    /// Mount options.
    pub(crate) options: Vec<(Kind, String)>,
    /// Size of the filesystem.
    pub(crate) bytes: u64,
    pub(crate) lines: Vec<Line>,
}

/// One line that does something.
#[derive(Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) target: Option<Kind>,
    pub(crate) action: Action,
}

impl Line {
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        self.target.is_none_or(|target| target == kind)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Step(Step),
    Expect(Expectation),
}

/// A group: `1/100` by its id, or the one that came with a subvolume, by the subvolume's path when
/// it was made (so it has a name when the subvolume is gone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupName {
    Id(GroupId),
    Subvolume(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupId {
    pub(crate) level: u16,
    pub(crate) id: u64,
}

impl GroupId {
    pub(crate) fn of_subvolume(id: u64) -> GroupId {
        GroupId { level: 0, id }
    }

    /// `level/id`.
    pub(crate) fn parse(text: &str) -> Option<GroupId> {
        let (level, id) = text.split_once('/')?;
        Some(GroupId { level: level.parse().ok()?, id: id.parse().ok()? })
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level, self.id)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Create { path: PathBuf, groups: Vec<GroupName> },
    Snapshot { source: PathBuf, path: PathBuf, readonly: bool, groups: Vec<GroupName> },
    Delete { path: PathBuf, heir: Option<PathBuf> },
    Rollback { path: PathBuf, snapshot: PathBuf, keep: Option<PathBuf> },
    Write { path: PathBuf, span: Span, how: How },
    Overwrite { path: PathBuf, span: Span, how: How },
    Fallocate { path: PathBuf, span: Span },
    Punch { path: PathBuf, span: Span },
    Truncate { path: PathBuf, bytes: u64 },
    Unlink { path: PathBuf },
    Files { directory: PathBuf, count: u64, bytes: u64 },
    Clear { directory: PathBuf },
    Mkdir { path: PathBuf },
    Symlink { path: PathBuf },
    Link { source: PathBuf, path: PathBuf },
    Rename { source: PathBuf, path: PathBuf },
    Chmod { path: PathBuf, mode: u32 },
    Setxattr { path: PathBuf, bytes: u64 },
    Reflink { source: PathBuf, path: PathBuf },
    Dedupe { source: PathBuf, path: PathBuf },
    Defragment { path: PathBuf },
    Open { path: PathBuf },
    Close { path: PathBuf },
    Enable,
    Disable,
    Rescan,
    Limit { group: GroupName, bytes: Option<u64> },
    GroupCreate { group: GroupName },
    GroupDestroy { group: GroupName },
    GroupAssign { member: GroupName, group: GroupName },
    GroupRemove { member: GroupName, group: GroupName },
    Sync,
    Remount,
}

/// A part of a file, done in calls of `chunk` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: u64,
    /// `None`: to the end of the file.
    pub(crate) bytes: Option<u64>,
    pub(crate) chunk: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    pub(crate) direct: bool,
    /// An fsync after each call.
    pub(crate) fsync: bool,
    /// Zeros instead of data that does not compress.
    pub(crate) zeros: bool,
    /// The same data each time, for deduplication.
    pub(crate) same: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Expectation {
    /// Of the step before: one of these; `None` is success.
    Errno(Vec<Option<Errno>>),
    /// Of the step before: bytes written or allocated, or files made.
    Accepted(Range),
    Usage {
        group: GroupName,
        data: Option<Range>,
        metadata: Option<Range>,
        total: Option<Range>,
    },
    State {
        group: GroupName,
        states: Vec<State>,
    },
    /// Exactly these, the top level aside.
    Rows(Vec<GroupName>),
    Parents {
        group: GroupName,
        parents: Vec<GroupName>,
    },
    Limit {
        group: GroupName,
        limit: Option<Range>,
    },
}

impl Expectation {
    /// Whether it is about the step before it, and not about the accounts.
    pub(crate) fn is_of_a_step(&self) -> bool {
        matches!(self, Expectation::Errno(_) | Expectation::Accepted(_))
    }
}

/// What became of the owner that a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Live,
    /// The subvolume is deleted and still pays for something.
    Tombstone,
    /// The subvolume is gone and so are its bytes; the row is not.
    Stale,
    /// There is no row.
    Absent,
}

impl State {
    const NAMES: [(&'static str, State); 4] = [
        ("live", State::Live),
        ("tombstone", State::Tombstone),
        ("stale", State::Stale),
        ("absent", State::Absent),
    ];

    pub(crate) fn named(name: &str) -> Option<State> {
        State::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, state)| state)
    }

    pub(crate) fn name(self) -> &'static str {
        State::NAMES.into_iter().find(|(_, state)| *state == self).map_or("", |(name, _)| name)
    }
}
