//! Everything that can be wrong with a pool, one variant a kind of damage.
//!
//! A problem names the damaged part and its place; its `Display` is that, `meaning` (in
//! `meaning.rs`) is its effect for a user with files in the pool, and the remedy.

use copyhold_format::item::{DIRENT, EXTENT, INLINE, INODE, SYMLINK, XATTR, XATTR_VALUE};
use copyhold_format::node::Level;
use copyhold_space::MetaslabId;
use copyhold_types::{EpochId, InodeNo, Key, Kind, Run, SubvolId, TableId, Txg};

/// One end of a device, where a label area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Start,
    End,
}

impl End {
    pub(crate) const BOTH: [End; 2] = [End::Start, End::End];

    pub fn name(self) -> &'static str {
        match self {
            End::Start => "start",
            End::End => "end",
        }
    }
}

/// A file by its number; the finding has its path, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    pub subvol: SubvolId,
    pub ino: InodeNo,
}

impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {} of subvolume {}", self.ino, self.subvol)
    }
}

/// The owner of a reference to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Node {
        table: TableId,
        level: Level,
    },
    Map(MetaslabId),
    /// An extent whose first file block is `block`.
    File {
        file: FileId,
        block: u64,
    },
    /// An extent of a subvolume that is being deleted.
    Dying {
        subvol: SubvolId,
    },
    /// Pointers that an epoch has dropped, or is to drop, and may not have to itself.
    Release {
        holder: EpochId,
    },
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Node { table, level } => write!(f, "{} of table {table}", level_name(*level)),
            Owner::Map(metaslab) => write!(f, "the space map of {metaslab}"),
            Owner::File { file, block } => write!(f, "block {block} of {file}"),
            Owner::Dying { subvol } => write!(f, "subvolume {subvol}, which is being deleted"),
            Owner::Release { holder } => write!(f, "what epoch {holder} is to release"),
        }
    }
}

pub(crate) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Leaf => "a leaf",
        Level::Inner => "an inner node",
    }
}

fn kind_name(kind: &Kind) -> &'static str {
    match *kind {
        INODE => "the inode item",
        INLINE => "the inline data",
        SYMLINK => "the target of the symlink",
        XATTR | XATTR_VALUE => "an extended attribute",
        DIRENT => "a bucket of names",
        EXTENT => "an extent",
        _ => "an item",
    }
}

/// How bad a problem is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The pool cannot be used, or only read.
    Fatal,
    /// Something that was stored is gone.
    DataLost,
    /// Nothing may be lost yet, but writing to the pool could lose it.
    AtRisk,
    /// A copy is bad and the other good: it is repaired when the pool is next written to.
    Repairable,
    /// Space that nothing uses and nothing frees.
    Leak,
    /// Of no consequence, or the trace that a crash leaves.
    Cosmetic,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Fatal => "fatal",
            Severity::DataLost => "data-lost",
            Severity::AtRisk => "at-risk",
            Severity::Repairable => "repairable",
            Severity::Leak => "leak",
            Severity::Cosmetic => "cosmetic",
        }
    }
}

/// The finding of a check. See the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    // -- device ---------------------------------------------------------------------------------
    #[error("{device}: a copy of the header of protection information is bad: {why}")]
    HeaderCopy { device: String, why: String },
    #[error("{device}: the label at the {} is damaged: {why}", .end.name())]
    Label { device: String, end: End, why: String },
    #[error("{device}: the labels at both ends are good, but differ in {what}")]
    LabelsDiffer { device: String, what: &'static str },
    #[error("{device}: uberblock {number} is damaged in slot {slot} at the {}", .end.name())]
    UberblockCopy { device: String, end: End, slot: u64, number: u64 },
    #[error("{device}: the uberblock in slot {slot} is damaged at both ends")]
    Uberblock { device: String, slot: u64 },
    #[error("{device}: the pool cannot be opened: {why}")]
    CannotOpen { device: String, why: String },

    // -- log ------------------------------------------------------------------------------------
    #[error(
        "{device}: copy {copy} of the log lacks the {what} of txg {txg} at position {position} \
         (block {block}); the other copy has it"
    )]
    LogCopy {
        device: String,
        copy: usize,
        what: &'static str,
        txg: Txg,
        position: u64,
        block: u64,
        /// Whether it belongs to the last batch that nothing proves durable.
        last: bool,
    },
    #[error("the log is damaged after txg {last}, in both copies: {evidence}")]
    Log { last: u64, evidence: String },
    #[error("{device}: the log cannot be read: {why}")]
    LogUnreadable { device: String, why: String },
    #[error("the log has invalid records of txg {txg}: {why}")]
    LogRecord { txg: Txg, why: String },

    // -- nodes ----------------------------------------------------------------------------------
    #[error("a copy of {} of table {table} at {run:?} is damaged: {why}", level_name(*.level))]
    NodeCopy { table: TableId, level: Level, run: Run, why: String },
    #[error(
        "{} of table {table} with keys from {from} to {to} is damaged in every copy: {why}",
        level_name(*.level)
    )]
    Node { table: TableId, level: Level, from: Key, to: Key, why: String },
    #[error("{} of table {table} at {run:?} is whole, but wrong: {why}", level_name(*.level))]
    NodeContent { table: TableId, level: Level, run: Run, why: String },
    #[error("a copy of a node of a layer of table {table} at {run:?} is damaged: {why}")]
    LayerCopy { table: TableId, run: Run, why: String },
    #[error(
        "a layer of table {table} with changes to keys from {from} to {to} is damaged in every \
         copy: {why}"
    )]
    Layer { table: TableId, from: Key, to: Key, why: String },
    #[error("a layer of table {table} at {run:?} is whole, but wrong: {why}")]
    LayerContent { table: TableId, run: Run, why: String },
    #[error("table {table}: {why}")]
    Table { table: TableId, why: String },
    #[error("no item refers to table {table}, which has {items} items")]
    UnknownTable { table: TableId, items: u64 },

    // -- space ----------------------------------------------------------------------------------
    #[error("a copy of the space map of {metaslab} at {run:?} is damaged: {why}")]
    MapCopy { metaslab: MetaslabId, run: Run, why: String },
    #[error("the space map of {metaslab} is damaged in every copy: {why}")]
    Map { metaslab: MetaslabId, why: String },
    #[error("the space map of {metaslab} is whole, but wrong: {why}")]
    MapContent { metaslab: MetaslabId, why: String },
    #[error("{run:?} is allocated, but nothing refers to it")]
    Leaked { run: Run },
    #[error(
        "{blocks} blocks are allocated without a known reference; damaged nodes may refer to them"
    )]
    Unaccounted { blocks: u64 },
    #[error("{run:?} is free, but {by} refers to it")]
    Dangling { run: Run, by: Owner },
    #[error("{run:?} is referred to by {by}, and by {}", or_unknown(.and))]
    Twice { run: Run, by: Owner, and: Option<Owner> },
    #[error("{run:?}, which {by} refers to, is not space for data: {why}")]
    Outside { run: Run, by: Owner, why: &'static str },

    // -- system ---------------------------------------------------------------------------------
    #[error("there is no record of subvolume {subvol}")]
    NoSubvolume { subvol: SubvolId },
    #[error("the record of subvolume {subvol} is wrong: {why}")]
    Subvolume { subvol: SubvolId, why: String },
    #[error("epoch {epoch} of subvolume {subvol}: {why}")]
    Epoch { subvol: SubvolId, epoch: u64, why: String },
    #[error("{what} {number} is in use, but the high-water mark of these numbers is {mark}")]
    IdMark { what: &'static str, number: u64, mark: u64 },
    #[error("table {table} has an item {key} of a kind that does not belong there")]
    UnknownItem { table: TableId, key: Key },

    // -- tenants --------------------------------------------------------------------------------
    #[error("the epochs of subvolumes do not form valid families: epoch {epoch}: {why}")]
    Family { epoch: EpochId, why: String },
    #[error("the item {key} of table {table} is invalid: {why}")]
    Record { table: TableId, key: Key, why: String },
    #[error(
        "the deadlist of epoch {epoch} has {run:?} {said} times, and should have it {found} times"
    )]
    Deadlist { epoch: EpochId, run: Run, said: u32, found: u32 },
    #[error("the pending releases of epoch {holder} cannot be evaluated: {why}")]
    Pending { holder: EpochId, why: String },
    #[error("{run:?} has {said} shares (references beyond the first), and should have {found}")]
    Shares { run: Run, said: u32, found: u32 },
    #[error("{run:?} has two origins: epoch {origin} and epoch {other}")]
    Origin { run: Run, origin: EpochId, other: EpochId },
    #[error("the usage of epoch {epoch} records {said} bytes of {what}, and should be {found}")]
    Usage { epoch: EpochId, what: &'static str, said: u64, found: u64 },
    #[error("the inode count of subvolume {subvol} is {said}, and should be {found}")]
    Inodes { subvol: SubvolId, said: u64, found: u64 },
    #[error("quota items contradict each other: {why}")]
    Quota { why: String },
    #[error(
        "by its item, subvolume {subvol} is in directory {directory} of subvolume {holder}, but \
         {why}"
    )]
    SubvolumeEntry { subvol: SubvolId, holder: SubvolId, directory: InodeNo, why: String },

    // -- files ----------------------------------------------------------------------------------
    #[error("{} of {file} (key {key}) is damaged: {why}", kind_name(&.key.kind))]
    Item { file: FileId, key: Key, why: String },
    #[error("{file} has {items} items, but no inode item")]
    NoInode { file: FileId, items: u64 },
    #[error("an entry {name:?} in directory {dir} leads to inode {to}, which does not exist")]
    MissingInode { dir: FileId, name: String, to: InodeNo },
    #[error("the entry {name:?} in directory {dir} is wrong: {why}")]
    Entry { dir: FileId, name: String, why: String },
    #[error("the link count of {file} is {said}, and should be {found}")]
    Links { file: FileId, said: u32, found: u32 },
    #[error("{file} is a directory with {names} names")]
    DirectoryNames { file: FileId, names: u32 },
    #[error("{file} is a directory in {found}, and records {said} as its parent")]
    Parent { file: FileId, said: InodeNo, found: InodeNo },
    #[error("{file} cannot be reached: {why}")]
    Unreachable { file: FileId, why: &'static str },
    #[error("{file} has no links, and is not on the list of orphans")]
    UnlistedOrphan { file: FileId },
    #[error("{file} is on the list of {list}, {why}")]
    Listed { file: FileId, list: &'static str, why: &'static str },
    #[error("{file}: its {field} is {said}, and should be {found}")]
    Field { file: FileId, field: &'static str, said: u64, found: u64 },
    #[error("{file} has {} that it cannot have: {why}", kind_name(&.key.kind))]
    Misplaced { file: FileId, key: Key, why: &'static str },
    #[error("{file} is a symlink without a target")]
    NoTarget { file: FileId },
    #[error("{file}: its inline data is missing")]
    NoInline { file: FileId },
    #[error("{file}: the extent at block {block} is wrong: {why}")]
    Extent { file: FileId, block: u64, why: String },
    #[error("{file}: the attribute {name:?} is wrong: {why}")]
    Xattr { file: FileId, name: String, why: String },
    #[error("{file}: the ACL {name} is wrong: {why}")]
    Acl { file: FileId, name: String, why: String },
    #[error("{file}: {blocks} blocks from block {block} on, at {run:?}, are damaged: {why}")]
    Data { file: FileId, block: u64, blocks: u32, run: Run, why: String },
}

fn or_unknown(owner: &Option<Owner>) -> String {
    owner.map_or_else(|| "something else".to_owned(), |owner| owner.to_string())
}
