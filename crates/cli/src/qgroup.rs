//! `copyhold qgroup`: groups of subvolumes, their usage, and limits.
//!
//! Arguments come in the order that btrfs users know. `show` is in `qgroup/show.rs`.

mod show;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::Report;
use crate::size::Size;
use copyhold_serve::wire::{Group, GroupChange, Limited, Question};

/// Show usage and set limits, of subvolumes and of groups of them
///
/// Each subvolume is a group of level 0: subvolume 7 is 0/7. An administrator creates groups of
/// higher levels, which have groups of lower levels as members. A limit applies to the group and
/// all groups below it. A new subvolume joins the groups of its parent subvolume, whose directory
/// has its entry, and its usage also counts against the limit of the parent subvolume.
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Show(show::Show),
    Create(Create),
    Destroy(Destroy),
    Assign(Assign),
    Remove(Remove),
    Limit(Limit),
    Reserve(Reserve),
    ClearStale(ClearStale),
}

/// Make a group of level 1 or above
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup create 1/100 /mnt")]
struct Create {
    /// As level/id
    id: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Remove a group that has no members
///
/// The group of a deleted subvolume is removed when the subvolume pays for no more bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup destroy 1/100 /mnt")]
struct Destroy {
    /// As level/id
    id: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Make a group a member of another one
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup assign 0/7 1/100 /mnt")]
struct Assign {
    /// The member, of a lower level
    source: Group,
    /// The group that it joins
    target: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// End a membership
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup remove 0/7 1/100 /mnt")]
struct Remove {
    /// The member
    source: Group,
    /// The group that it leaves
    target: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Set or clear the limit of a group
///
/// A limit may be below the usage. Writes are then refused until enough files are deleted;
/// deletions may exceed a limit by an overdraft.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold qgroup limit 10G 0/7 /mnt\n  \
    copyhold qgroup limit none 1/100 /mnt\n  \
    copyhold qgroup limit --inodes 100K 0/7 /mnt")]
struct Limit {
    /// Limit the exclusive usage; with simple quotas all usage is exclusive
    #[arg(short = 'e', long, group = "kind")]
    exclusive: bool,
    /// Limit the number of files and directories
    #[arg(long, group = "kind")]
    inodes: bool,
    /// Limit the number of snapshots that are made of the subvolume
    #[arg(long, group = "kind")]
    snapshots: bool,
    /// Limit the number of subvolumes inside the subvolume, or in the group
    #[arg(long, group = "kind")]
    subvolumes: bool,
    /// Bytes, or a number with K, M, G or T; or `none`
    size: Bound,
    /// As level/id
    id: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Reserve space for a subvolume
///
/// Writes of other subvolumes cannot take this part of the pool.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup reserve 1G 0/7 /mnt")]
struct Reserve {
    /// Bytes, or a number with K, M, G or T; or `none`
    size: Bound,
    /// The subvolume's group, as 0/id
    id: Group,
    /// Any directory or file of the mount
    path: PathBuf,
}

/// Remove groups of deleted subvolumes that pay for nothing
///
/// A background task also removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold qgroup clear-stale /mnt")]
struct ClearStale {
    /// Any directory or file of the mount
    path: PathBuf,
}

/// A size, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound(Option<u64>);

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        match text {
            "none" => Ok(Bound(None)),
            text => text.parse().map(|Size(bytes)| Bound(Some(bytes))),
        }
    }
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Show(show) => show.run(report),
            What::Create(Create { id, path }) => put(&path, GroupChange::Create { group: id }),
            What::Destroy(Destroy { id, path }) => put(&path, GroupChange::Destroy { group: id }),
            What::Assign(Assign { source, target, path }) => {
                put(&path, GroupChange::Assign { child: source, parent: target })
            }
            What::Remove(Remove { source, target, path }) => {
                put(&path, GroupChange::Remove { child: source, parent: target })
            }
            What::Limit(verb) => {
                let (group, limit, kind) = (verb.id, verb.size.0, verb.kind());
                put(&verb.path, GroupChange::Limit { group, kind, limit })
            }
            What::Reserve(Reserve { size: Bound(bytes), id, path }) => {
                put(&path, GroupChange::Reserve { group: id, bytes: bytes.unwrap_or(0) })
            }
            What::ClearStale(ClearStale { path }) => {
                let gone: u64 =
                    tenants::directory(&path)?.change(|| Ok(Question::GroupClearStale))?;
                report.note(|| format!("{gone} groups were removed"))
            }
        }
    }
}

fn put(path: &Path, change: GroupChange) -> Result<(), Failure> {
    tenants::directory(path)?.change(|| Ok(Question::Regroup { change: change.clone() }))
}

impl Limit {
    fn kind(&self) -> Limited {
        match (self.exclusive, self.inodes, self.snapshots, self.subvolumes) {
            (true, ..) => Limited::Exclusive,
            (_, true, ..) => Limited::Inodes,
            (_, _, true, _) => Limited::Snapshots,
            (.., true) => Limited::Subvolumes,
            _ => Limited::Referenced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_size_or_none() {
        assert_eq!("none".parse(), Ok(Bound(None)));
        assert_eq!("16M".parse(), Ok(Bound(Some(16 << 20))));
        assert_eq!("0".parse(), Ok(Bound(Some(0))));
        for nonsense in ["None", "-1", "", "12Q", "99999999999999999999"] {
            assert!(nonsense.parse::<Bound>().is_err(), "{nonsense}");
        }
    }
}
