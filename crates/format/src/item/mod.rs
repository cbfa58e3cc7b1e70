//! The items of a filesystem: the meaning of each kind of key and the content of its value.
//!
//! ```text
//! a subvolume's table                                   value
//!   (ino, INODE, 0)                                     inode.rs
//!   (ino, INLINE, 0)         block 0 of a tiny file     its bytes, at most INLINE_MAX, then zeros
//!   (ino, SYMLINK, 0)                                   the target, 1 to SYMLINK_MAX bytes
//!   (dir, DIRENT, bucket)    names with one hash        dirent.rs
//!   (ino, XATTR, bucket)     attributes with one hash   xattr.rs, acl.rs
//!   (ino, XATTR_VALUE, n)    a piece of a long value    its bytes
//!   (ino, EXTENT, block)     file blocks from `block`   extent.rs
//!   (0, ORPHAN, ino)         no name; may be open       empty
//!   (0, TRUNCATE, ino)       being cut in steps         u64: the first block that is gone
//! the pool's system table
//!   (subvolume, SUBVOL, 0)                              subvol.rs
//!   (epoch, EPOCH, 0)                                   epoch.rs
//!   (subvolume, MEMORY, 0)                              memory.rs
//!   QUOTA, USAGE, GROUP, MEMBER, HEIR, INODES           quota.rs
//! a deadlist set, the shares, pending releases
//!   (epoch, DEAD, address), (0, SHARE, address), (holder, PENDING, sequence)   deadlist.rs
//! ```
//!
//! Numbers in values are little-endian.

mod acl;
mod checksum_mode;
mod deadlist;
mod dirent;
mod epoch;
mod extent;
mod hash;
mod inode;
mod memory;
mod quota;
mod subvol;
mod xattr;

use copyhold_types::{InodeNo, Key, Kind};

pub use acl::{
    ACCESS_ACL, Acl, AclEntry, DEFAULT_ACL, GROUP_OBJ, MASK, NAMED_GROUP, NAMED_USER, OTHER,
    USER_OBJ, encode_acl,
};
pub use checksum_mode::ChecksumMode;
pub use deadlist::{
    Content, DeadItem, PendingItem, ShareItem, WINDOW_BLOCKS, dead_key, pending_key, share_key,
};
pub use dirent::{DIRENT_BUCKET_MAX, DIRENT_SUBVOL, DirBucket, Dirent, NAME_MAX};
pub use epoch::{EpochItem, EpochState, epoch_key};
pub use extent::{EXTENT_BLOCKS_MAX, Extent, ExtentState};
pub use hash::{HashKey, cookie, dirent_bucket, xattr_bucket};
pub use inode::{InodeFlags, InodeItem};
pub use memory::{MEMORY, MemoryItem, SHARED_MEMORY, memory_key};
pub use quota::{
    BadGroupId, GROUP, GroupId, GroupItem, HEIR, INODES, InodesItem, Limits, MEMBER, QUOTA,
    QuotaItem, TOMBSTONE_NAME_MAX, Tombstone, USAGE, UsageItem, encode_heir, group_key, heir_key,
    inodes_key, member_key, parse_heir, quota_key, usage_key,
};
pub use subvol::{ParentDirectory, Step, SubvolFlags, SubvolItem, SubvolState, subvol_key};
pub use xattr::{
    XATTR_BUCKET_MAX, XATTR_NAME_MAX, XATTR_SHORT_MAX, XATTR_VALUE_MAX, XATTR_VALUE_PIECE, Xattr,
    XattrBucket, XattrValue, xattr_piece,
};

use crate::FormatError;

pub const INODE: Kind = Kind(10);
pub const INLINE: Kind = Kind(11);
pub const SYMLINK: Kind = Kind(12);
pub const DIRENT: Kind = Kind(13);
pub const XATTR: Kind = Kind(14);
pub const XATTR_VALUE: Kind = Kind(15);
/// Fixed: leaves cut its value into columns, see `node::schema`.
pub const EXTENT: Kind = Kind(16);
pub const ORPHAN: Kind = Kind(17);
pub const TRUNCATE: Kind = Kind(18);
pub const SUBVOL: Kind = Kind(20);
pub const EPOCH: Kind = Kind(21);
pub const DEAD: Kind = Kind(22);
pub const SHARE: Kind = Kind(23);
pub const PENDING: Kind = Kind(24);

/// Longest content of a file that lives in its INLINE item.
pub const INLINE_MAX: usize = 2048;
/// Longest target of a symlink.
pub const SYMLINK_MAX: usize = 4095;
/// The object under which a table lists entries for many of its files.
pub const LISTS: u64 = 0;

pub fn inode_key(ino: InodeNo) -> Key {
    Key::new(ino.0, INODE, 0)
}

pub fn inline_key(ino: InodeNo) -> Key {
    Key::new(ino.0, INLINE, 0)
}

pub fn symlink_key(ino: InodeNo) -> Key {
    Key::new(ino.0, SYMLINK, 0)
}

/// `block` counts 4 KiB blocks of the file.
pub fn extent_key(ino: InodeNo, block: u64) -> Key {
    Key::new(ino.0, EXTENT, block)
}

pub fn orphan_key(ino: InodeNo) -> Key {
    Key::new(LISTS, ORPHAN, ino.0)
}

pub fn truncate_key(ino: InodeNo) -> Key {
    Key::new(LISTS, TRUNCATE, ino.0)
}

/// The value of a TRUNCATE item: blocks from this one on are gone.
pub fn encode_truncate(first_block: u64) -> [u8; 8] {
    first_block.to_le_bytes()
}

pub fn parse_truncate(value: &[u8]) -> Result<u64, FormatError> {
    let bytes = value
        .try_into()
        .map_err(|_| FormatError::Short { what: "truncate item", len: value.len() })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Checks the value of an INLINE item.
pub fn parse_inline(value: &[u8]) -> Result<&[u8], FormatError> {
    if value.len() > INLINE_MAX {
        return Err(FormatError::Field {
            what: "inline data",
            field: "length",
            value: value.len() as u64,
        });
    }
    Ok(value)
}

/// Checks the value of a SYMLINK item.
pub fn parse_symlink(value: &[u8]) -> Result<&[u8], FormatError> {
    if value.is_empty() || value.len() > SYMLINK_MAX || value.contains(&0) {
        return Err(FormatError::Field {
            what: "symlink",
            field: "length",
            value: value.len() as u64,
        });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use copyhold_types::SubvolId;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = InodeItem::parse(&bytes);
            let _ = DirBucket::parse(&bytes);
            let _ = XattrBucket::parse(&bytes);
            let _ = Extent::parse(&bytes);
            let _ = SubvolItem::parse(&bytes);
            let _ = EpochItem::parse(Key::new(7, EPOCH, 0), &bytes);
            let _ = MemoryItem::parse(memory_key(SubvolId(7)), &bytes);
            let _ = parse_truncate(&bytes);
            let _ = parse_inline(&bytes);
            let _ = parse_symlink(&bytes);
        }
    }
}
