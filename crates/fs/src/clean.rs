//! Which reads of file data the pool keeps in memory, and for which owner.
//!
//! Problem.  The kernel's page cache keeps what a file's reader has read, by inode. A second copy
//!           here would only take memory from it, except where the page cache keeps nothing, or the
//!           same once for each clone.
//! Idea.     A mount chooses ([`DataCache`]), and keeps nothing by default. `shared` keeps those
//!           extents that are older than their reader's first epoch: several subvolumes may refer
//!           to them, so no owner pays for them alone.
//!
//! KEEP-S1  An extent is *shared* if its epoch or its origin is before the first epoch of the
//!          reader's subvolume: it was inherited by a snapshot, or cloned from such an extent. If
//!          another tenant made it, the shared owner pays (OWNFROM-E1), or else the reader's
//!          subvolume.
//! KEEP-S2  One request for the device has extents of one owner only.

use std::fmt;
use std::str::FromStr;

use copyhold_memory::MemoryOwner;
use copyhold_types::{EpochId, Pointer};

use crate::Filesystem;
use crate::inode::Inode;

/// The reads of which data is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataCache {
    #[default]
    Off,
    /// Of extents that clones share.
    Shared,
    /// These, and direct reads: the kernel keeps nothing of them.
    Direct,
    /// All: for programs that read without the kernel.
    All,
}

impl DataCache {
    pub const ALL: [DataCache; 4] =
        [DataCache::Off, DataCache::Shared, DataCache::Direct, DataCache::All];

    pub fn name(self) -> &'static str {
        match self {
            DataCache::Off => "off",
            DataCache::Shared => "shared",
            DataCache::Direct => "direct",
            DataCache::All => "all",
        }
    }
}

impl fmt::Display for DataCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataCache {
    type Err = ();

    fn from_str(text: &str) -> Result<DataCache, ()> {
        DataCache::ALL.into_iter().find(|one| one.name() == text).ok_or(())
    }
}

/// The payer for a block that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    No,
    Shared,
    Own,
}

/// The choice for the extents of one read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeepRule {
    Nothing,
    /// Extents from before this epoch, and the others if `own`. The reader's tenant made those
    /// from `own_from` on.
    Before {
        first: EpochId,
        own_from: EpochId,
        own: bool,
    },
}

impl KeepRule {
    pub(crate) fn of(mode: DataCache, inode: &Inode, direct: bool) -> KeepRule {
        let own = match mode {
            DataCache::Off => return KeepRule::Nothing,
            DataCache::Shared => false,
            DataCache::Direct => direct,
            DataCache::All => true,
        };
        let (first, own_from) = (inode.subvol.volume.item().first, inode.owner().own_from());
        KeepRule::Before { first, own_from, own }
    }

    /// KEEP-S1.
    pub(crate) fn keep(self, pointer: &Pointer) -> Keep {
        let KeepRule::Before { first, own_from, own } = self else { return Keep::No };
        match pointer.epoch.min(pointer.origin) {
            made if made >= first && !own => Keep::No,
            made if made < own_from => Keep::Shared,
            _ => Keep::Own,
        }
    }
}

impl Keep {
    /// The owner of what `inode`'s reader keeps.
    pub(crate) fn owner<'a>(self, fs: &'a Filesystem, inode: &'a Inode) -> Option<&'a MemoryOwner> {
        match self {
            Keep::No => None,
            Keep::Shared => Some(fs.pool.memory().shared()),
            Keep::Own => Some(inode.owner()),
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_types::{BlockAddr, DeviceId, Run};

    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        for mode in DataCache::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("on".parse::<DataCache>(), Err(()));
    }

    #[test]
    fn what_another_tenant_made_is_shared() {
        let run = Run::new(BlockAddr::new(DeviceId(0), 7), 1);
        let keep = |epoch, origin, own| {
            let rule = KeepRule::Before { first: EpochId(10), own_from: EpochId(5), own };
            rule.keep(&Pointer { run, epoch: EpochId(epoch), origin: EpochId(origin) })
        };
        assert_eq!(keep(4, 4, false), Keep::Shared);
        assert_eq!(keep(12, 4, false), Keep::Shared, "a reflink of what it inherited");
        assert_eq!(keep(9, 5, false), Keep::Own, "its own snapshots have it, too");
        assert_eq!(keep(10, 10, true), Keep::Own);
        assert_eq!(keep(10, 12, false), Keep::No);
    }
}
