//! Values of the engine and values of the kernel's protocol.

use std::time::Duration;

use copyhold_fs::OpenFlags;
use copyhold_fuse::Errno;
use copyhold_fuse::protocol::flags::fopen;
use copyhold_fuse::protocol::{
    Attr, AttrReply, Caller, Data, Entry, Handle, NewNode, NodeId, Open, Opened, Segment, SetAttr,
    SetTime,
};

/// Names change only through the kernel, which knows what it changes.
const NAMES_VALID: Duration = Duration::from_secs(24 * 3600);
/// So do attributes, but for one: the space that a file takes is known once its data is written.
pub(super) const ATTRIBUTES_VALID: Duration = Duration::from_secs(60);

const ACCESS_MODES: u32 = 0o3;
const WRITE_ONLY: u32 = 0o1;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
/// The bits of a mode that are a file's own: permissions, set-id bits, sticky.
const PERMISSIONS: u32 = 0o7777;
/// Preferred size of a request, as stat(2) shows it.
const BLOCK_SIZE: u32 = 4096;
/// STATX_ATTR_ bits, which have the numbers of the file flags.
const STATX_IMMUTABLE: u64 = 0x10;
const STATX_APPEND: u64 = 0x20;
const STATX_NODUMP: u64 = 0x40;
const STATX_SHOWN: u64 = STATX_IMMUTABLE | STATX_APPEND | STATX_NODUMP;

/// The node that the kernel names; it only knows those from earlier answers.
pub(super) fn known(node: NodeId) -> Result<copyhold_fs::NodeId, Errno> {
    copyhold_fs::NodeId::from_raw(node.0).ok_or(Errno::ESTALE)
}

fn node_id(node: copyhold_fs::NodeId) -> NodeId {
    NodeId(node.raw())
}

/// The caller that creates a file and becomes its owner. `new` has the umask and, if the kernel
/// sends it, the directory's group where the caller is in it.
///
/// # Errors
/// EOVERFLOW, as the kernel answers, if the caller has no id in the pool (idmapped mounts).
pub(super) fn maker(by: Caller, new: Option<&NewNode<'_>>) -> Result<copyhold_fs::Caller, Errno> {
    let ids = by.ids.ok_or(Errno::EOVERFLOW)?;
    let groups: Option<Vec<u32>> =
        new.map(|new| new.extensions.groups().collect()).filter(|groups: &Vec<u32>| {
            // None sent means that none is known.
            !groups.is_empty()
        });
    let umask = new.map_or(0, |new| new.umask);
    Ok(copyhold_fs::Caller { groups, ..copyhold_fs::Caller::new(ids.uid, ids.gid, umask) })
}

/// The caller of a change that the kernel has judged already.
pub(super) fn judged(by: Caller) -> copyhold_fs::Caller {
    by.ids.map_or(copyhold_fs::Caller::ROOT, |ids| copyhold_fs::Caller::new(ids.uid, ids.gid, 0))
}

pub(super) fn file_mode(new: &NewNode<'_>) -> u32 {
    new.mode & PERMISSIONS
}

pub(super) fn to_open(open: &Open) -> OpenFlags {
    let access = open.flags & ACCESS_MODES;
    OpenFlags {
        read: access != WRITE_ONLY,
        write: access != 0,
        append: open.flags & O_APPEND != 0,
        truncate: open.flags & O_TRUNC != 0,
        kill_priv: open.kill_suidgid,
    }
}

/// The times of what a writeback cache took from a descriptor earlier; it sends nothing else so.
fn are_of_accepted_writes(set: &SetAttr) -> bool {
    let SetAttr { handle, mtime, ctime, .. } = *set;
    let times = SetAttr { handle, mtime, ctime, ..SetAttr::default() };
    *set == times && handle.is_some() && mtime.is_some() && ctime.is_some()
}

pub(super) fn set_attr(set: &SetAttr) -> copyhold_fs::SetAttr {
    let time = |time: SetTime| match time {
        SetTime::Now => copyhold_fs::SetTime::Now,
        SetTime::At(at) => copyhold_fs::SetTime::At(at),
    };
    copyhold_fs::SetAttr {
        mode: set.mode.map(|mode| mode & PERMISSIONS),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        ctime: set.ctime,
        kill_priv: set.kill_suidgid || sets_nothing(set),
        empties: set.size == Some(0),
        accepted: are_of_accepted_writes(set),
    }
}

/// The kernel sends that where a user without the right to keep them writes to a file with setuid
/// or setgid, and leaves it to us to take them away. Before most writes it says so again; behind
/// overlayfs, which writes as who mounted it, it does not.
fn sets_nothing(set: &SetAttr) -> bool {
    let SetAttr { handle: _, lock_owner: _, mode, uid, gid, size, atime, mtime, ctime, .. } = set;
    let numbers = mode.is_none() && uid.is_none() && gid.is_none() && size.is_none();
    numbers && atime.is_none() && mtime.is_none() && ctime.is_none()
}

fn attr(attr: &copyhold_fs::Attr) -> Attr {
    Attr {
        ino: attr.node.raw(),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: Some(attr.btime),
        mode: attr.st_mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        attributes: u64::from(attr.flags.0) & STATX_SHOWN,
        attributes_mask: STATX_SHOWN,
    }
}

/// `valid`: how long the kernel may believe the attributes (`Adapter::validity`).
pub(super) fn answer(found: &copyhold_fs::Attr, valid: Duration) -> AttrReply {
    AttrReply { attr: attr(found), valid }
}

/// `attr_valid`: as in [`answer`].
pub(super) fn found(entry: &copyhold_fs::Entry, attr_valid: Duration) -> Entry {
    Entry {
        node: node_id(entry.node),
        generation: entry.attr.generation.into(),
        attr: attr(&entry.attr),
        entry_valid: NAMES_VALID,
        attr_valid,
    }
}

/// The result of a read; the bytes of cached buffers are not copied.
pub(super) fn data(read: copyhold_fs::ReadData) -> Data {
    let mut data = Data::default();
    for (buf, range) in read.into_pieces() {
        data.push(Segment::Part { buf, start: range.start, len: range.len() });
    }
    data
}

/// An open for direct I/O has the kernel drop its cache of the file. Each direct write would have
/// to, and one that may not wait is retried many times before the kernel stops. FLUSH comes at a
/// close only if there may be something to do then (`Filesystem::flush`).
pub(super) fn opened(open: &Open, flush: bool) -> Opened {
    let mut flags = fopen::CACHE_DIR | fopen::PARALLEL_DIRECT_WRITES;
    if open.flags & O_DIRECT == 0 {
        flags |= fopen::KEEP_CACHE;
    }
    if !flush {
        flags |= fopen::NOFLUSH;
    }
    Opened { handle: Handle(0), flags }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_modes_are_told_apart() {
        let open = |flags| to_open(&Open { flags, kill_suidgid: false });
        assert_eq!((open(0).read, open(0).write), (true, false));
        assert_eq!((open(1).read, open(1).write), (false, true));
        assert_eq!((open(2).read, open(2).write), (true, true));
        assert!(open(0o3001).append && open(0o3001).truncate);
    }

    #[test]
    fn a_change_of_nothing_takes_privileges_away() {
        assert!(set_attr(&SetAttr::default()).kill_priv);
        let chmod = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
        assert!(!set_attr(&chmod).kill_priv);
    }

    #[test]
    fn a_node_that_cannot_be_is_stale() {
        assert_eq!(known(NodeId(0)), Err(Errno::ESTALE));
        assert_eq!(known(NodeId::ROOT).map(node_id), Ok(NodeId::ROOT));
    }
}
