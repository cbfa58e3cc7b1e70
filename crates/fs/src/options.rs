//! Settings of one mount.

use std::time::Duration;

use crate::{DataCache, Sabotage};

/// When reading changes the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// When it is not newer than the last change, or a day old.
    Relative,
    Never,
}

/// How a filesystem is opened. The defaults are those of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// Dirty data is written at this age, at the latest.
    pub writeback_interval: Duration,
    /// Writers wait while this much is dirty or being written. Writeback starts at half of it.
    pub dirty_bytes_max: u64,
    /// A file with this much dirty data is written at once.
    pub file_dirty_bytes_start: u64,
    /// An fsync with at most this much dirty data sends it beside the batch (P12); 0 never.
    pub attach_bytes_max: u64,
    pub atime: Atime,
    /// The reads of which the pool keeps data in memory, within its `clean_data_bytes`.
    pub data_cache: DataCache,
    /// Clean inodes kept in memory.
    pub inodes_max: usize,
    /// Nodes that the front end may hold before it is asked to give some up
    /// ([`crate::Filesystem::surplus_lookups`]).
    pub lookups_max: usize,
    /// Names that do not exist and are known; 0: none, and the front end may know any number.
    pub names_max: u64,
    /// The most that the limit of these can be changed to.
    pub names_room: u64,
    /// Whether returned entries count as look-ups that `forget` releases. A front end without a
    /// name cache of its own sets it to false; then an unlinked file exists as long as it is open.
    pub count_lookups: bool,
    /// Refuse changes, although the pool could take them.
    pub read_only: bool,
    /// A broken rule, with the feature `sabotage`.
    pub sabotage: Option<Sabotage>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            writeback_interval: Duration::from_secs(5),
            dirty_bytes_max: 64 << 20,
            file_dirty_bytes_start: 8 << 20,
            attach_bytes_max: 64 << 10,
            atime: Atime::Relative,
            data_cache: DataCache::default(),
            inodes_max: 65_536,
            lookups_max: 1 << 20,
            names_max: 1 << 16,
            names_room: u32::MAX.into(),
            count_lookups: true,
            read_only: false,
            sabotage: None,
        }
    }
}
