//! Numbers that name things: txg, epoch, subvolume, inode, table, pool.

use std::fmt;
use std::num::NonZeroU64;

/// Transaction group number. There is no txg 0, so `Option<Txg>` is free and reads "not yet".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Txg(NonZeroU64);

impl Txg {
    pub const FIRST: Txg = Txg(NonZeroU64::MIN);

    pub fn new(number: u64) -> Option<Txg> {
        NonZeroU64::new(number).map(Txg)
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }

    pub fn next(self) -> Txg {
        self.plus(1)
    }

    pub fn plus(self, n: u64) -> Txg {
        Txg(self.0.checked_add(n).expect("txg numbers do not run out"))
    }

    pub fn prev(self) -> Option<Txg> {
        Txg::new(self.get() - 1)
    }
}

impl fmt::Display for Txg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A stretch of a subvolume's life between snapshots; one growing number for the pool. 0 is
    /// the pool itself: a pointer that carries it has no owner and is never buried (rule R20).
    EpochId(u64)
);
id!(
    /// A subvolume. At most 28 bits, so that it fits a node id beside the inode number (rule R40).
    SubvolId(u32)
);
id!(
    /// A file of one subvolume. At most 36 bits (rule R40). 1 is the root directory.
    InodeNo(u64)
);
id!(
    /// A table. Never reused.
    TableId(u64)
);
id!(
    /// Counts the read-write mounts of a pool, except those that continue the last one (OPEN-O2).
    /// In every batch header, so that batches cut by a recovery can never come back (rule R13).
    Incarnation(u64)
);

impl EpochId {
    pub const POOL: EpochId = EpochId(0);
}

impl InodeNo {
    pub const ROOT: InodeNo = InodeNo(1);
    pub const BITS: u32 = 36;
}

impl SubvolId {
    /// The pool's root subvolume.
    pub const ROOT: SubvolId = SubvolId(1);
    pub const BITS: u32 = 28;
}

/// Identity of a pool: a random (version 4) UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
