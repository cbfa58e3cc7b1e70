//! The meaning of problems: how bad, for whom, and the remedy.

use copyhold_pool::Pool;
use copyhold_types::{InodeNo, SubvolId, TableId};

use crate::problem::{FileId, Owner, Problem, Severity};

const RESTORE: &str = "restore what is affected from a backup";
const REPAIRED: &str = "nothing is lost: the other copy is good, and mounting the pool writes this \
                        one again";
const OTHER_COPY: &str = "nothing is lost: the other copy is good, and is read instead; this one \
                          is written again when one of the next two mounts reads it, or when this \
                          part of the pool is next written";
const READ_ONLY: &str = "copy what you need while it is mounted read-only, and restore the pool \
                         from a backup";

/// Files that a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affected {
    Nobody,
    File(FileId),
    Two(FileId, FileId),
    /// Those of the table with inode numbers in this range, which may hold few of them.
    Inodes(TableId, InodeNo, InodeNo),
}

impl Problem {
    /// Stable name of the kind of damage.
    pub fn kind(&self) -> &'static str {
        match self {
            Problem::HeaderCopy { .. } => "header-copy",
            Problem::Label { .. } => "label",
            Problem::LabelsDiffer { .. } => "labels-differ",
            Problem::UberblockCopy { .. } => "uberblock-copy",
            Problem::Uberblock { .. } => "uberblock",
            Problem::CannotOpen { .. } => "cannot-open",
            Problem::LogCopy { .. } => "log-copy",
            Problem::Log { .. } => "log",
            Problem::LogUnreadable { .. } => "log-unreadable",
            Problem::LogRecord { .. } => "log-record",
            Problem::NodeCopy { .. } => "node-copy",
            Problem::Node { .. } => "node",
            Problem::NodeContent { .. } => "node-content",
            Problem::LayerCopy { .. } => "layer-copy",
            Problem::Layer { .. } => "layer",
            Problem::LayerContent { .. } => "layer-content",
            Problem::Table { .. } => "table",
            Problem::UnknownTable { .. } => "unknown-table",
            Problem::MapCopy { .. } => "map-copy",
            Problem::Map { .. } => "map",
            Problem::MapContent { .. } => "map-content",
            Problem::Leaked { .. } => "leaked",
            Problem::Unaccounted { .. } => "unaccounted",
            Problem::Dangling { .. } => "dangling",
            Problem::Twice { .. } => "twice",
            Problem::Outside { .. } => "outside",
            Problem::NoSubvolume { .. } => "no-subvolume",
            Problem::Subvolume { .. } => "subvolume",
            Problem::Epoch { .. } => "epoch",
            Problem::IdMark { .. } => "id-mark",
            Problem::UnknownItem { .. } => "unknown-item",
            Problem::Family { .. } => "family",
            Problem::Record { .. } => "record",
            Problem::Deadlist { .. } => "deadlist",
            Problem::Pending { .. } => "pending",
            Problem::Shares { .. } => "shares",
            Problem::Origin { .. } => "origin",
            Problem::Usage { .. } => "usage",
            Problem::Inodes { .. } => "inodes",
            Problem::Quota { .. } => "quota",
            Problem::SubvolumeEntry { .. } => "subvolume-entry",
            Problem::Item { .. } => "item",
            Problem::NoInode { .. } => "no-inode",
            Problem::MissingInode { .. } => "missing-inode",
            Problem::Entry { .. } => "entry",
            Problem::Links { .. } => "links",
            Problem::DirectoryNames { .. } => "directory-names",
            Problem::Parent { .. } => "parent",
            Problem::Unreachable { .. } => "unreachable",
            Problem::UnlistedOrphan { .. } => "unlisted-orphan",
            Problem::Listed { .. } => "listed",
            Problem::Field { .. } => "field",
            Problem::Misplaced { .. } => "misplaced",
            Problem::NoTarget { .. } => "no-target",
            Problem::NoInline { .. } => "no-inline",
            Problem::Extent { .. } => "extent",
            Problem::Xattr { .. } => "xattr",
            Problem::Acl { .. } => "acl",
            Problem::Data { .. } => "data",
        }
    }

    pub fn severity(&self) -> Severity {
        use Severity::{AtRisk, Cosmetic, DataLost, Fatal, Leak, Repairable};
        match self {
            Problem::CannotOpen { .. }
            | Problem::Log { .. }
            | Problem::LogUnreadable { .. }
            | Problem::LogRecord { .. }
            | Problem::NoSubvolume { .. }
            | Problem::Subvolume { .. }
            | Problem::MapContent { .. }
            | Problem::Family { .. }
            | Problem::Table { .. } => Fatal,
            Problem::Node { table, .. } | Problem::Layer { table, .. } if is_pools_own(*table) => {
                Fatal
            }
            Problem::Node { .. }
            | Problem::Layer { .. }
            | Problem::Item { .. }
            | Problem::NoInode { .. }
            | Problem::MissingInode { .. }
            | Problem::Unreachable { .. }
            | Problem::SubvolumeEntry { .. }
            | Problem::NoTarget { .. }
            | Problem::NoInline { .. }
            | Problem::Xattr { .. }
            | Problem::Acl { .. }
            | Problem::Data { .. } => DataLost,
            Problem::LogCopy { last: true, .. }
            | Problem::UberblockCopy { .. }
            | Problem::Uberblock { .. } => Cosmetic,
            Problem::HeaderCopy { .. }
            | Problem::Label { .. }
            | Problem::LogCopy { .. }
            | Problem::NodeCopy { .. }
            | Problem::LayerCopy { .. }
            | Problem::MapCopy { .. } => Repairable,
            Problem::Links { said, found, .. } if said > found => Leak,
            Problem::Deadlist { said, found, .. } if said < found => Leak,
            Problem::Shares { said, found, .. } if said > found => Leak,
            Problem::Deadlist { .. }
            | Problem::Shares { .. }
            | Problem::Record { .. }
            | Problem::LabelsDiffer { .. }
            | Problem::NodeContent { .. }
            | Problem::LayerContent { .. }
            | Problem::Dangling { .. }
            | Problem::Twice { .. }
            | Problem::Outside { .. }
            | Problem::Epoch { .. }
            | Problem::IdMark { .. }
            | Problem::Entry { .. }
            | Problem::Links { .. }
            | Problem::DirectoryNames { .. }
            | Problem::Parent { .. }
            | Problem::Misplaced { .. }
            | Problem::Extent { .. } => AtRisk,
            Problem::Map { .. }
            | Problem::Leaked { .. }
            | Problem::Unaccounted { .. }
            | Problem::UnknownTable { .. }
            | Problem::Pending { .. }
            | Problem::Origin { .. }
            | Problem::Usage { .. }
            | Problem::Inodes { .. }
            | Problem::Quota { .. }
            | Problem::UnlistedOrphan { .. } => Leak,
            Problem::UnknownItem { .. } | Problem::Listed { .. } | Problem::Field { .. } => {
                Cosmetic
            }
        }
    }

    /// The meaning for the user, and the remedy.
    pub fn meaning(&self) -> String {
        match self {
            Problem::HeaderCopy { .. } => {
                "nothing is lost: the other copy is good; `copyhold check --repair` writes this one \
                 again if it is damaged"
                    .into()
            }
            Problem::Label { .. } | Problem::LogCopy { last: false, .. } => REPAIRED.into(),
            Problem::LabelsDiffer { .. } => {
                "the label with the higher generation is used; a program wrote only one of them, \
                 or the label at one end belongs to another pool"
                    .into()
            }
            Problem::NodeCopy { .. } | Problem::LayerCopy { .. } | Problem::MapCopy { .. } => {
                OTHER_COPY.into()
            }
            Problem::UberblockCopy { .. } => {
                "nothing is lost: the other end of the device has it; a crash while it was written \
                 leaves the same trace"
                    .into()
            }
            Problem::Uberblock { .. } => {
                "nothing is lost: an older or newer one is used; a crash while it was written \
                 leaves the same trace"
                    .into()
            }
            Problem::LogCopy { .. } => {
                "the power failed while the last commit was being written; mounting the pool \
                 completes it"
                    .into()
            }
            Problem::CannotOpen { .. } => {
                format!(
                    "no file in it can be read as it is; keep the device as it is, and {RESTORE}"
                )
            }
            Problem::Log { last, .. } => format!(
                "changes of metadata after txg {last} are lost, also synced ones, and newer blocks \
                 on the device may not match the older state; {READ_ONLY}"
            ),
            Problem::LogUnreadable { .. } => {
                format!("recent changes cannot be read, so the pool cannot be opened; {RESTORE}")
            }
            Problem::LogRecord { .. } => {
                format!("a program wrote invalid content; {RESTORE}, and report this")
            }
            Problem::Node { table, .. } | Problem::Layer { table, .. } if is_pools_own(*table) => {
                format!("the pool cannot be opened without it; {RESTORE}")
            }
            Problem::Node { .. } => format!(
                "the files named below, or parts of them, or names in these directories cannot be \
                 read (EIO); {RESTORE}"
            ),
            Problem::Layer { .. } => format!(
                "the newest changes of the files named below, or of parts of them, are lost; these \
                 parts return EIO instead of their older content; {RESTORE}"
            ),
            Problem::NodeContent { .. }
            | Problem::LayerContent { .. }
            | Problem::MapContent { .. }
            | Problem::Table { .. } => {
                format!(
                    "a program wrote invalid content, or the content was changed on purpose; \
                     {READ_ONLY}"
                )
            }
            Problem::UnknownTable { .. } => {
                "space that no subvolume uses, unless a newer program made it".into()
            }
            Problem::Map { .. } => {
                "no file is affected; nothing is written to this metaslab until \
                                    its map can be read, or until `copyhold check --repair` has \
                                    made a new one"
                    .into()
            }
            Problem::Leaked { .. } => "no file is affected; this space is not used any more".into(),
            Problem::Unaccounted { .. } => {
                "the damaged nodes may refer to these blocks, so the repair does not free them"
                    .into()
            }
            Problem::Dangling { .. } => format!(
                "its content is correct now, but a write to the pool may overwrite it; {READ_ONLY}"
            ),
            Problem::Twice { .. } => format!(
                "at most one of both has correct content, and the deletion of one destroys the \
                 other; {READ_ONLY}"
            ),
            Problem::Outside { .. } => format!("these blocks cannot be read or freed; {READ_ONLY}"),
            Problem::NoSubvolume { .. } => {
                "there are no files in the pool; if its creation was interrupted, create it again"
                    .into()
            }
            Problem::Subvolume { .. } => format!("its files cannot be reached; {RESTORE}"),
            Problem::Epoch { .. } => {
                format!("the blocks that snapshots share are not known; {READ_ONLY}")
            }
            Problem::Family { .. } => {
                format!(
                    "the blocks that snapshots share are not known, so the pool cannot be mounted; \
                     {RESTORE}"
                )
            }
            Problem::Record { .. } => format!("operations that need this item fail; {READ_ONLY}"),
            Problem::Deadlist { said, found, .. } if said > found => format!(
                "when the other subvolume releases the blocks, they will be freed while they are \
                 in use; {READ_ONLY}"
            ),
            Problem::Shares { said, found, .. } if said < found => format!(
                "deleting one of the files that share the blocks destroys the content of the \
                 others; {READ_ONLY}"
            ),
            Problem::Deadlist { .. } | Problem::Shares { .. } => {
                "no file is affected; its space will not be freed with the last file that uses it"
                    .into()
            }
            Problem::Pending { .. } => {
                "no file is affected; this space is never freed, and the space of deleted \
                 subvolumes that wait for these releases is not freed either"
                    .into()
            }
            Problem::Origin { .. } | Problem::Usage { .. } | Problem::Inodes { .. } => {
                "no file is affected; quota limits refuse writes too early or too late. Disable \
                 quotas and enable them again to reset the counters"
                    .into()
            }
            Problem::Quota { .. } => {
                "no file is affected; this relation or limit is not applied. Set it again".into()
            }
            Problem::SubvolumeEntry { .. } => format!(
                "the subvolume is whole, but no path leads to it, or more than one; {READ_ONLY}"
            ),
            Problem::IdMark { .. } => format!(
                "the number may be assigned a second time, so two objects would have the same \
                 number; {READ_ONLY}"
            ),
            Problem::UnknownItem { .. } => {
                "no code reads this item; a newer program may have written it".into()
            }
            Problem::Item { .. } => {
                format!("the file, or this part of it, cannot be read (EIO); {RESTORE}")
            }
            Problem::NoInode { .. } => {
                format!("a file is gone, and its content cannot be reached; {RESTORE}")
            }
            Problem::MissingInode { .. } => {
                format!("the file of this name is gone; {RESTORE}, and remove the name")
            }
            Problem::Entry { .. } => {
                "a look-up may not find the name although the directory lists it; copy the \
                 directory elsewhere, and remove this one"
                    .into()
            }
            Problem::Links { said, found, .. } if said > found => {
                "its space will not be freed when its last name is removed".into()
            }
            Problem::Links { .. } => {
                "removing one of its names removes the file, though others are left; copy it \
                 before you remove any"
                    .into()
            }
            Problem::DirectoryNames { .. } | Problem::Parent { .. } => {
                "its `..` is not the directory that has its entry; move it to another directory"
                    .into()
            }
            Problem::Unreachable { .. } => {
                format!("it is whole, but no path leads to it; {RESTORE}")
            }
            Problem::UnlistedOrphan { .. } => {
                "it was removed, but its space is never freed; no file is affected".into()
            }
            Problem::Listed { .. } => {
                "no file is affected; the next mount corrects the list".into()
            }
            Problem::Field { .. } => {
                "the content of the file is correct; this field of stat(2) is not".into()
            }
            Problem::Misplaced { .. } | Problem::Extent { .. } => {
                format!("this part of the file may have content that it never had; {READ_ONLY}")
            }
            Problem::NoTarget { .. } => format!("the link has no target; {RESTORE}"),
            Problem::NoInline { .. } => format!("the file reads as zeros; {RESTORE}"),
            Problem::Xattr { .. } => {
                format!("the attribute cannot be read or found; set it again, or {RESTORE}")
            }
            Problem::Acl { .. } => {
                "the ACL and the mode contradict each other; set both again, with setfacl and chmod"
                    .into()
            }
            Problem::Data { blocks, .. } => format!(
                "reading these {} KiB of the file gives EIO; {RESTORE}, or write them again",
                u64::from(*blocks) * 4
            ),
        }
    }

    /// Whether files of this subvolume may have to be named for it.
    pub(crate) fn is_about(&self, subvol: SubvolId, table: TableId) -> bool {
        match self.affected() {
            Affected::Nobody => false,
            Affected::File(file) => file.subvol == subvol,
            Affected::Two(one, other) => one.subvol == subvol || other.subvol == subvol,
            Affected::Inodes(of, ..) => of == table,
        }
    }

    pub(crate) fn affected(&self) -> Affected {
        match self {
            Problem::Node { table, from, to, .. } | Problem::Layer { table, from, to, .. }
                if !is_pools_own(*table) =>
            {
                let last = if to.kind.0 == 0 && to.offset == 0 {
                    to.object.saturating_sub(1)
                } else {
                    to.object
                };
                Affected::Inodes(*table, InodeNo(from.object), InodeNo(last))
            }
            Problem::Dangling { by, .. } | Problem::Outside { by, .. } => of_owner(by),
            Problem::Twice { by, and, .. } => match (of_owner(by), and.as_ref().map(of_owner)) {
                (Affected::File(a), Some(Affected::File(b))) if a != b => Affected::Two(a, b),
                (Affected::Nobody, Some(other)) => other,
                (one, _) => one,
            },
            Problem::MissingInode { dir: file, .. }
            | Problem::Entry { dir: file, .. }
            | Problem::Item { file, .. }
            | Problem::Links { file, .. }
            | Problem::DirectoryNames { file, .. }
            | Problem::Parent { file, .. }
            | Problem::Unreachable { file, .. }
            | Problem::Field { file, .. }
            | Problem::Misplaced { file, .. }
            | Problem::NoTarget { file }
            | Problem::NoInline { file }
            | Problem::Extent { file, .. }
            | Problem::Xattr { file, .. }
            | Problem::Acl { file, .. }
            | Problem::Data { file, .. }
            | Problem::NoInode { file, .. } => Affected::File(*file),
            _ => Affected::Nobody,
        }
    }
}

fn is_pools_own(table: TableId) -> bool {
    table == Pool::TABLES || table == Pool::SYSTEM
}

fn of_owner(owner: &Owner) -> Affected {
    match owner {
        Owner::File { file, .. } => Affected::File(*file),
        _ => Affected::Nobody,
    }
}
