//! How a node counts an account.

/// How an account's sums enter those of a node above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    /// It is the group of level 0 of the account itself.
    Own,
    /// It is below this group.
    Member,
    /// It is held inside this subvolume: only the counters of limits.
    Inside,
}

impl Share {
    /// The load of `subvolumes` living subvolumes in the subvolume that holds them: no owner pays
    /// for the tables with their records.
    pub(super) fn records(self, subvolumes: i64) -> i64 {
        if self == Share::Inside { subvolumes * SUBVOLUME_BYTES } else { 0 }
    }
}

/// Bytes of a subvolume's records: its own, its epochs', its marks', its name's.
const SUBVOLUME_BYTES: i64 = 4096;
