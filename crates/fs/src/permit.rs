//! File flags and the changes that they refuse. Every operation that changes a file consults this
//! table.
//!
//! | way | `IMMUTABLE` refuses | `APPEND` refuses |
//! | --- | --- | --- |
//! | `Append`: bytes at or behind the end, preallocated space | yes | no |
//! | `Overwrite`: bytes before the end are replaced, zeroed or cut off | yes | yes |
//! | `Touch`: both times become the present | yes | no |
//! | `Attributes`: mode, owner, other times, extended attributes, ACLs | yes | yes |
//! | `Name`: the file gets a name, loses one, or gets another | yes | yes |
//! | `AddEntry`: the directory gets a name | yes | no |
//! | `RemoveEntry`: the directory loses a name, or the name leads elsewhere | yes | yes |
//! | `Accepted`: bytes and times that a cache in front took earlier | no | no |
//!
//! Each change needs a mount, a pool and a subvolume that may be written, too. Reading and the
//! access times that it sets are no changes. The right to set and clear the two flags is checked
//! where that is done (`setattr`).
//!
//! PERMIT-M1  The section that applies a change asks with the inode's state held. An operation that
//!            takes something away before that section (privileges) asks before it does so, too.
//! PERMIT-M2  Write-back of accepted data checks no permission: the change was made when it was
//!            accepted, here or by a cache in front of a descriptor that may write.

use crate::inode::{Inode, InodeState};
use crate::subvol::Subvol;
use crate::{FileFlags, Filesystem, FsError, Result, Sabotage};

/// How one file or directory is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Append,
    Overwrite,
    Touch,
    Attributes,
    Name,
    AddEntry,
    RemoveEntry,
    Accepted,
}

impl Way {
    /// New content from `offset` on in a file of `size` bytes.
    pub(crate) fn content(offset: u64, size: u64) -> Way {
        if offset < size { Way::Overwrite } else { Way::Append }
    }

    /// Nothing that was there is replaced.
    fn only_adds(self) -> bool {
        matches!(self, Way::Append | Way::Touch | Way::AddEntry)
    }
}

/// The permission that a copy to `offset` in a file of `size` bytes needs.
pub(crate) fn way_of_copy(fs: &Filesystem, offset: u64, size: u64) -> Way {
    match fs.breaks(Sabotage::CopyUnasked) {
        true => Way::Accepted,
        false => Way::content(offset, size),
    }
}

impl InodeState {
    /// Refuses a change that the file's flags forbid.
    pub(crate) fn permit(&self, way: Way) -> Result<()> {
        if way == Way::Accepted {
            return Ok(());
        }
        if self.has_flag(FileFlags::IMMUTABLE) {
            return Err(FsError::NotPermitted("the file is immutable"));
        }
        if self.has_flag(FileFlags::APPEND) && !way.only_adds() {
            return Err(FsError::NotPermitted("the file can only be appended to"));
        }
        Ok(())
    }

    pub(crate) fn has_flag(&self, flag: FileFlags) -> bool {
        FileFlags(self.item.flags).contains(flag)
    }
}

impl Filesystem {
    /// Refuses a change that the file's flags, its subvolume, the pool or the mount forbid.
    pub(crate) fn permit(&self, inode: &Inode, way: Way) -> Result<()> {
        self.permit_in(&inode.subvol)?;
        inode.state().permit(way)
    }

    /// Refuses every change in a subvolume that is read-only, by itself or with all.
    pub(crate) fn permit_in(&self, subvol: &Subvol) -> Result<()> {
        self.writable()?;
        subvol.writable()
    }
}
