//! The messages between program and daemon about tenants: JSON in both directions.
//!
//! A request names a directory as its object, and the directory's permissions decide. A list that
//! may not fit into one answer comes in pages, in the order of a number; each request names the
//! number behind which its page begins, so the daemon remembers nothing.
//!
//! Names in questions are bytes, as the kernel has them. Paths in answers are for people and for
//! JSON, where bytes that are no UTF-8 cannot be.

pub mod growth;
pub mod memory;
pub mod names;
pub mod scan;
mod token;

use std::fmt;
use std::str::FromStr;

use copyhold_format::item::{BadGroupId, GroupId};
use serde::{Deserialize, Serialize};

use crate::NamesLimit;
use growth::PoolSize;
use memory::{Brief, MemoryChange};
use scan::Scan;

pub use token::Token;

/// A question. If its answer changes the pool, it has a writable token of its own directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    #[serde(default)]
    pub token: Option<Token>,
    #[serde(flatten)]
    pub question: Question,
}

/// One question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Question {
    /// A [`Token`] of this directory.
    Token,
    /// Makes a subvolume in this directory.
    Create {
        name: Vec<u8>,
        /// Permissions to withhold from all users.
        umask: u32,
        groups: Vec<Group>,
    },
    /// Snapshots a subvolume, named by its root's token, into this directory.
    Snapshot {
        source: Token,
        name: Vec<u8>,
        read_only: bool,
        groups: Vec<Group>,
    },
    /// Deletes a subvolume of this directory.
    Delete {
        name: Vec<u8>,
        /// The token of its root.
        heir: Option<Token>,
    },
    /// Puts a new snapshot of a subvolume, named by its root's token, in the place of a subvolume
    /// of this directory.
    RollBack {
        name: Vec<u8>,
        snapshot: Token,
        keep: Option<Keep>,
    },
    /// [`Subvolume`]s with ids behind this one, in a [`Page`].
    Subvolumes {
        after: u64,
    },
    /// The [`Subvolume`] that this directory is in.
    Subvolume,
    /// Ids of subvolumes that are being freed, behind this one, in a [`Page`].
    Leaving {
        after: u64,
    },
    /// Forbids or allows changes in the subvolume whose root this directory is.
    SetReadOnly {
        on: bool,
    },
    /// A step of looking through the subvolume whose root this directory is; see there for answers.
    Scan {
        step: Scan,
    },
    /// [`Room`] in this directory.
    Room,
    QuotaEnable {
        simple: bool,
    },
    QuotaDisable,
    /// [`QuotaStatus`]
    QuotaStatus,
    QuotaRescan,
    /// [`GroupRow`]s behind this one, in a [`Page`]. Those of subvolumes come first.
    Groups {
        after: u64,
    },
    Regroup {
        change: GroupChange,
    },
    /// How many went.
    GroupClearStale,
    /// [`memory::MemoryRow`]s behind this number in a [`Page`]: of all groups at the root
    /// subvolume, else of those at and inside the subvolume that this directory is in. The number
    /// of a row is its id and one.
    Memory {
        after: u64,
    },
    /// The [`memory::MemoryRow`] of the subvolume that this directory is in, or of the shared
    /// group.
    MemoryGroup {
        shared: bool,
    },
    /// Changes limits of the subvolume whose root this directory is, or of the shared group.
    SetMemory {
        shared: bool,
        change: MemoryChange,
    },
    /// Evicts caches of the same; how many bytes that were.
    ReclaimMemory {
        shared: bool,
        bytes: u64,
    },
    /// [`names::NamesRow`]s of subvolumes behind this one in a [`Page`].
    Names {
        after: u64,
    },
    /// [`names::NamesTotals`]
    NamesTotals,
    /// Changes the limit of absent names until the unmount; the [`names::NamesTotals`] then.
    SetNames {
        limit: NamesLimit,
    },
    /// Forgets the absent names of the subvolume whose root this directory is; how many there were.
    DropNames,
    /// Makes the pool larger; [`growth::Resized`].
    Grow {
        size: PoolSize,
    },
}

impl Question {
    /// Whether the answer changes the pool: the question then needs a writable token of its own
    /// directory.
    pub fn changes(&self) -> bool {
        match self {
            Question::Create { .. }
            | Question::Snapshot { .. }
            | Question::Delete { .. }
            | Question::RollBack { .. }
            | Question::SetReadOnly { .. }
            | Question::QuotaEnable { .. }
            | Question::QuotaDisable
            | Question::Regroup { .. }
            | Question::GroupClearStale
            | Question::SetMemory { .. }
            | Question::Grow { .. } => true,
            Question::Token
            | Question::Subvolumes { .. }
            | Question::Subvolume
            | Question::Leaving { .. }
            | Question::Scan { .. }
            | Question::Room
            | Question::QuotaStatus
            | Question::QuotaRescan
            | Question::Groups { .. }
            | Question::Memory { .. }
            | Question::MemoryGroup { .. }
            | Question::ReclaimMemory { .. }
            | Question::Names { .. }
            | Question::NamesTotals
            | Question::SetNames { .. }
            | Question::DropNames => false,
        }
    }
}

/// The new place of the old state after a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Its writable token.
    pub directory: Token,
    pub name: Vec<u8>,
}

/// An administrator's change of groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupChange {
    Create { group: Group },
    Destroy { group: Group },
    Assign { child: Group, parent: Group },
    Remove { child: Group, parent: Group },
    Limit { group: Group, kind: Limited, limit: Option<u64> },
    Reserve { group: Group, bytes: u64 },
}

/// The daemon's answer to the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response<T> {
    Answer(T),
    Error(Refusal),
}

/// Why not, with the name of an errno.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: String,
    pub message: String,
}

impl Refusal {
    pub fn new(code: &str, message: impl Into<String>) -> Refusal {
        Refusal { code: code.to_owned(), message: message.into() }
    }
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// Behind which number the next page begins, if there is one.
    pub next: Option<u64>,
}

/// A row of a page, by its number.
pub trait Numbered: Serialize {
    fn number(&self) -> u64;
}

/// A quota group, written `level/id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Group(pub GroupId);

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Group {
    type Err = BadGroupId;

    fn from_str(text: &str) -> Result<Group, BadGroupId> {
        text.parse().map(Group)
    }
}

impl TryFrom<String> for Group {
    type Error = BadGroupId;

    fn try_from(text: String) -> Result<Group, BadGroupId> {
        text.parse()
    }
}

impl From<Group> for String {
    fn from(group: Group) -> String {
        group.to_string()
    }
}

/// The resource that a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limited {
    Referenced,
    Exclusive,
    Inodes,
    Snapshots,
    Subvolumes,
}

/// A subvolume, as `subvolume list` and `show` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subvolume {
    pub id: u32,
    /// From the root of the mount; `null` for one that is being freed.
    pub path: Option<String>,
    /// The subvolume that holds its directory entry.
    pub parent: Option<u32>,
    pub readonly: bool,
    /// The subvolume that it is a snapshot of.
    pub origin: Option<u32>,
    /// As in RFC 3339, in UTC.
    pub created: String,
    pub state: SubvolumeState,
    /// The number that it stamps on its writes, as `subvolume find-new` takes it.
    pub generation: Option<u64>,
    /// The bytes that one being freed still pays for, where quotas know: at most so much is yet to
    /// be freed, for the data that snapshots and clones share is in it.
    pub freeing_bytes: Option<u64>,
    /// Of one that is being freed, how much of its tree has been gone through.
    pub freed_percent: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubvolumeState {
    Live,
    /// Deleted, and being freed in the background.
    Deleting,
}

impl Numbered for Subvolume {
    fn number(&self) -> u64 {
        self.id.into()
    }
}

impl Numbered for u32 {
    fn number(&self) -> u64 {
        (*self).into()
    }
}

/// Rows are behind 0, and the shared group is the first.
impl Numbered for Brief {
    fn number(&self) -> u64 {
        u64::from(self.0.id) + 1
    }
}

/// Whether quotas are on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    pub enabled: bool,
    /// `simple`, or `null` when they are off.
    pub mode: Option<String>,
    /// How often they were enabled.
    pub generation: u64,
    /// Data written by an older epoch is not counted.
    pub counted_from_epoch: Option<u64>,
    /// Records of quotas that were turned off, not yet removed.
    pub leftovers: u64,
}

/// A quota group, as `qgroup show` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    pub id: Group,
    /// Of a subvolume: from the root of the mount, or what a deleted one was called.
    pub path: Option<String>,
    /// `live`, `tombstone` or `stale`
    pub state: String,
    /// Of a deleted subvolume: since when it is.
    pub deleted: Option<String>,
    pub referenced: u64,
    pub exclusive: u64,
    pub data: u64,
    pub metadata: u64,
    pub reserved: u64,
    /// The most that unflushed changes will take.
    pub unflushed: u64,
    pub inodes: u64,
    pub snapshots: u64,
    /// Living subvolumes below the group, or inside the subvolume.
    pub subvolumes: u64,
    pub limits: GroupLimits,
    /// Bytes that it is sure to get.
    pub reserve: u64,
    pub parents: Vec<Group>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    pub referenced: Option<u64>,
    pub exclusive: Option<u64>,
    pub inodes: Option<u64>,
    pub snapshots: Option<u64>,
    pub subvolumes: Option<u64>,
}

impl Numbered for GroupRow {
    fn number(&self) -> u64 {
        self.id.0.raw()
    }
}

/// The room of a tenant: the smaller of the rests below its limits and in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    pub subvolume: u32,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
    pub inodes_available: u64,
    /// A limit leaves less than the pool does.
    pub limited: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_are_text_in_both_directions() {
        let group: Group = "1/100".parse().unwrap();
        assert_eq!(json!(group), json!("1/100"));
        assert_eq!(serde_json::from_value::<Group>(json!("1/100")).unwrap(), group);
        assert!(serde_json::from_value::<Group>(json!("100")).is_err());
        assert!(serde_json::from_value::<Group>(json!("1/-1")).is_err());
    }

    #[test]
    fn a_question_survives_the_way_and_an_unknown_one_is_refused() {
        let groups = vec!["1/7".parse().unwrap()];
        let questions = [
            Question::Create { name: vec![0xff, b'a'], umask: 0o22, groups: groups.clone() },
            Question::Snapshot {
                source: Token::from_random([7, 1]),
                name: vec![b'b'],
                read_only: true,
                groups,
            },
            Question::Subvolume,
            Question::Groups { after: u64::MAX },
            Question::Regroup { change: GroupChange::Create { group: "1/7".parse().unwrap() } },
        ];
        for question in questions {
            let asked = Asked { token: Some(Token::from_random([1, 2])), question };
            let text = serde_json::to_vec(&asked).unwrap();
            assert_eq!(serde_json::from_slice::<Asked>(&text).unwrap(), asked);
        }
        assert!(serde_json::from_value::<Question>(json!({"ask": "dance"})).is_err());
    }

    #[test]
    fn an_answer_and_a_refusal_are_told_apart() {
        let told = json!(Response::Answer(Page { rows: vec![3], next: None::<u64> }));
        assert_eq!(told, json!({"answer": {"rows": [3], "next": null}}));
        let refusal = json!({"error": {"code": "EDQUOT", "message": "no"}});
        let told: Response<Page<u32>> = serde_json::from_value(refusal).unwrap();
        assert_eq!(told, Response::Error(Refusal::new("EDQUOT", "no")));
    }
}
