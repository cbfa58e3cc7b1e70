//! The kinds of rogues, with the steps that each repeats and the errors that belong to it.

use clap::ValueEnum;
use rustix::io::Errno;

use super::setting::{Setting, Step};
use super::{
    copies, creates, deep, holes, interrupts, listings, locks, mapping, queue, reads, renames,
    spin, subvolumes, writes, xattrs,
};
use crate::error::BenchError;
use crate::target::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RogueKind {
    /// A busy loop on each CPU, without calls to the filesystem: for comparison
    Spin,
    /// Many threads that write at their full limit
    Limit,
    /// A thousand threads that write 256 KiB at a time
    #[value(alias = "write")]
    Dirty,
    /// Asynchronous direct writes of 1 MiB, a thousand in flight
    Queue,
    /// A thousand threads that write 4 KiB directly
    Direct,
    /// Listings of a huge directory, with a stat of each entry that asks the filesystem
    #[value(alias = "walk")]
    List,
    /// Extended attributes of 64 KiB
    Xattr,
    /// Holes of 4 KiB punched into data
    Punch,
    /// Renames of new files over one name
    Rename,
    /// Snapshots made, changed and deleted
    Snapshots,
    /// Advisory locks of both sorts, taken and released
    Locks,
    /// Writes, fsyncs and locks that signals interrupt
    Interrupts,
    /// Copies of a huge sparse file by copy_file_range
    Copy,
    /// A dirty mapping and msync
    Mmap,
    /// Directories renamed at the bottom of a deep tree
    Deep,
    /// Files made and unlinked, so many of each thread at a time
    Create,
    /// Direct reads of a large file at random
    Read,
}

impl RogueKind {
    /// Whether its subvolume gets a quota limit.
    pub(super) fn has_limit(self) -> bool {
        self == RogueKind::Limit
    }

    /// The reason for which it does not run on this kind of filesystem, if there is one.
    pub(super) fn left_out(self, kind: Kind) -> Option<&'static str> {
        let has_subvolumes = matches!(kind, Kind::Copyhold | Kind::Btrfs);
        match self {
            RogueKind::Limit if !has_subvolumes => Some("it has no limits"),
            RogueKind::Snapshots if !has_subvolumes => Some("it has no snapshots"),
            RogueKind::Copy if !has_subvolumes && kind != Kind::Xfs => {
                Some("its copies share nothing, so a sparse file would fill it")
            }
            _ => None,
        }
    }

    /// Errors that the kind provokes; any other one is reported as a failure.
    pub(super) fn expected(self) -> &'static [Errno] {
        match self {
            RogueKind::Limit => &[Errno::DQUOT],
            // Kernel filesystems take attributes of one block or less.
            RogueKind::Xattr => &[Errno::NOSPC],
            RogueKind::Interrupts => &[Errno::INTR],
            _ => &[],
        }
    }

    /// Prepares its files; the steps of its threads.
    pub(super) fn steps<'a>(self, setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
        match self {
            RogueKind::Spin => spin::on_each_cpu(setting),
            RogueKind::Limit => writes::at_the_limit(setting),
            RogueKind::Dirty => writes::large_and_buffered(setting),
            RogueKind::Queue => queue::deep(setting),
            RogueKind::Direct => writes::small_and_direct(setting),
            RogueKind::List => listings::of_a_huge_directory(setting),
            RogueKind::Xattr => xattrs::large(setting),
            RogueKind::Punch => holes::punched(setting),
            RogueKind::Rename => renames::over_one_name(setting),
            RogueKind::Snapshots => subvolumes::made_and_deleted(setting),
            RogueKind::Locks => locks::taken_and_released(setting),
            RogueKind::Interrupts => interrupts::of_waiting_calls(setting),
            RogueKind::Copy => copies::of_a_sparse_file(setting),
            RogueKind::Mmap => mapping::dirtied(setting),
            RogueKind::Deep => deep::renames(setting),
            RogueKind::Create => creates::of_new_names(setting),
            RogueKind::Read => reads::of_a_large_file(setting),
        }
    }
}

impl std::fmt::Display for RogueKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value().expect("no kind is hidden");
        f.write_str(value.get_name())
    }
}
