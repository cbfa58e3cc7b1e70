//! Names of an inode's extended attributes: their list, and the bound of its length.
//!
//! Linux returns no list of names beyond 64 KiB (`XATTR_LIST_MAX`). Without a bound here, one inode
//! could have so many names that each listxattr reads megabytes. So a name that would pass the
//! bound is refused. An inode of an older version of this program may have more: its list is
//! refused after as many names as fit.
//!
//! The item of an inode counts its attributes, but not the bytes of their names. A list of fewer
//! than [`SURELY_FIT`] names is always short enough. For longer lists the bytes are counted once,
//! at the first name that is added, and kept with the inode in memory.
//!
//! XNAMES-N1  A count that is known is that of the logged attributes: it is counted under the map
//!            lock, and changes with the state that logs a change of attributes.

use copyhold_format::item::{XATTR, XATTR_NAME_MAX, XattrBucket};
use copyhold_runtime::yield_now;
use copyhold_types::{Key, Kind};

use crate::inode::Inode;
use crate::{Filesystem, FsError, Result};

/// Most bytes of a list of names, as Linux has it.
const LIST_MAX: usize = 64 << 10;
/// So many names of any length fit into a list.
const SURELY_FIT: u32 = (LIST_MAX / (XATTR_NAME_MAX + 1)) as u32;
/// Buckets of one look-up. The next look-up is another turn of the task.
const LOOKUP: usize = 64;

/// The names, each ended by a zero byte. The caller has the map lock.
///
/// # Errors
/// [`FsError::AttributeListTooBig`].
pub(crate) async fn names(fs: &Filesystem, inode: &Inode) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    if inode.state().item.xattrs == 0 {
        return Ok(names);
    }
    let mut from = Key::new(inode.node.ino.0, XATTR, 0);
    let end = Key::new(inode.node.ino.0, Kind(XATTR.0 + 1), 0);
    loop {
        let items = fs.range(&inode.subvol, from, end, LOOKUP).await?;
        for (_, value) in &items {
            let bucket = XattrBucket::parse(value)
                .map_err(|source| fs.damaged_record("an attribute bucket", inode.node, source))?;
            for entry in bucket.iter() {
                names.extend_from_slice(entry.name);
                names.push(0);
            }
        }
        if names.len() > LIST_MAX {
            return Err(FsError::AttributeListTooBig { max: LIST_MAX });
        }
        match items.last().and_then(|(key, _)| key.successor()) {
            Some(next) if items.len() == LOOKUP => from = next,
            _ => {
                inode.state().xattr_names.set(names.len());
                return Ok(names);
            }
        }
        yield_now().await;
    }
}

/// Refuses a change that adds `added` bytes of names beyond the bound. The caller has the map lock.
///
/// # Errors
/// [`FsError::Crowded`]: ENOSPC, as setxattr(2) has it for an attribute without room.
pub(crate) async fn expect_room_for_names(
    fs: &Filesystem,
    inode: &Inode,
    added: i64,
) -> Result<()> {
    let (count, known) = {
        let state = inode.state();
        (state.item.xattrs, state.xattr_names.get())
    };
    if added <= 0 || count < SURELY_FIT {
        return Ok(());
    }
    let crowded = FsError::Crowded {
        what: "name of an extended attribute: a file has at most 64 KiB of them",
    };
    let bytes = match known {
        Some(bytes) => bytes,
        None => match Box::pin(names(fs, inode)).await {
            Ok(names) => names.len(),
            Err(FsError::AttributeListTooBig { .. }) => return Err(crowded),
            Err(error) => return Err(error),
        },
    };
    if bytes + added as usize > LIST_MAX { Err(crowded) } else { Ok(()) }
}
