//! Between the words of the kernel and those of `copyhold-fs`; the one table of errors to errno.

use copyhold_fs::{FileFlags, FsError, OpenFlags, RenameFlags, XattrSet};

use crate::Errno;
use crate::operations::Reply;
use crate::protocol::{Attr, Caller, Data, NodeId, Open, Segment, SetAttr, SetTime, Statfs};

/// What the kernel is told. `EIO` stands for damage, failing devices and a filesystem that has been
/// stopped; the log says which.
pub fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong { .. } => Errno::ENAMETOOLONG,
        FsError::TooManyLinks { .. } => Errno::EMLINK,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NotPermitted(_) => Errno::EPERM,
        FsError::AccessDenied => Errno::EACCES,
        FsError::ReadOnly { .. } => Errno::EROFS,
        FsError::NoSpace(_) | FsError::Crowded { .. } => Errno::ENOSPC,
        FsError::FileTooBig { .. } => Errno::EFBIG,
        FsError::AttributeTooBig { .. } => Errno::E2BIG,
        FsError::NoAttribute => Errno::ENODATA,
        FsError::NotSupported(_) => Errno::EOPNOTSUPP,
        FsError::PastEnd => Errno::ENXIO,
        FsError::CrossSubvolume => Errno::EXDEV,
        FsError::Busy(_) => Errno::EBUSY,
        FsError::Stale => Errno::ESTALE,
        FsError::Damaged { .. }
        | FsError::Record { .. }
        | FsError::Pool(_)
        | FsError::ShutDown => Errno::EIO,
        other => {
            tracing::error!(error = %other, "an error without an errno; answered EIO");
            Errno::EIO
        }
    }
}

impl From<FsError> for Errno {
    fn from(error: FsError) -> Errno {
        errno(&error)
    }
}

pub(super) fn node(node: NodeId) -> Reply<copyhold_fs::NodeId> {
    copyhold_fs::NodeId::from_raw(node.0).ok_or(Errno::ESTALE)
}

pub(super) fn caller(by: Caller, umask: u32) -> copyhold_fs::Caller {
    copyhold_fs::Caller::new(by.uid, by.gid, umask)
}

/// Flags of a file that statx(2) shows, with the bits it has for them.
const SHOWN: [(FileFlags, i32); 3] = [
    (FileFlags::IMMUTABLE, libc::STATX_ATTR_IMMUTABLE),
    (FileFlags::APPEND, libc::STATX_ATTR_APPEND),
    (FileFlags::NODUMP, libc::STATX_ATTR_NODUMP),
];

pub(super) fn attr(attr: &copyhold_fs::Attr) -> Attr {
    let set = SHOWN.iter().filter(|(flag, _)| attr.flags.contains(*flag));
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
        blksize: copyhold_types::BLOCK_BYTES as u32,
        attributes: set.map(|(_, bit)| *bit as u64).sum(),
        attributes_mask: SHOWN.iter().map(|(_, bit)| *bit as u64).sum(),
    }
}

pub(super) fn set_attr(set: &SetAttr) -> copyhold_fs::SetAttr {
    let time = |time: SetTime| match time {
        SetTime::Now => copyhold_fs::SetTime::Now,
        SetTime::At(at) => copyhold_fs::SetTime::At(at),
    };
    copyhold_fs::SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        ctime: set.ctime,
        kill_priv: set.kill_suidgid,
    }
}

pub(super) fn open_flags(open: Open) -> OpenFlags {
    let has = |flag: i32| open.flags & flag as u32 != 0;
    let mode = open.flags as i32 & libc::O_ACCMODE;
    OpenFlags {
        read: mode != libc::O_WRONLY,
        write: mode != libc::O_RDONLY,
        append: has(libc::O_APPEND),
        truncate: has(libc::O_TRUNC),
        kill_priv: open.kill_suidgid,
    }
}

pub(super) fn rename_flags(flags: u32) -> Reply<RenameFlags> {
    let all = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    if flags & !all != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

pub(super) fn xattr_set(flags: u32) -> Reply<XattrSet> {
    match flags as i32 {
        0 => Ok(XattrSet::Any),
        libc::XATTR_CREATE => Ok(XattrSet::Create),
        libc::XATTR_REPLACE => Ok(XattrSet::Replace),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn statfs(found: &copyhold_fs::StatFs) -> Statfs {
    Statfs {
        blocks: found.blocks,
        free: found.blocks_free,
        available: found.blocks_available,
        files: found.files,
        files_free: found.files_free,
        bsize: found.block_bytes,
        frsize: found.block_bytes,
        name_max: found.name_max,
    }
}

pub(super) fn data(read: copyhold_fs::ReadData) -> Data {
    let mut data = Data::default();
    for (buf, range) in read.into_pieces() {
        data.push(Segment::Part { buf, start: range.start, len: range.len() });
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_keep_their_meaning() {
        let open = |flags: i32| open_flags(Open { flags: flags as u32, kill_suidgid: false });
        let found = open(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC);
        assert!(!found.read && found.write && found.append && found.truncate);
        let found = open(libc::O_RDWR);
        assert!(found.read && found.write && !found.append);
        assert!(open(libc::O_RDONLY).read);
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(rename_flags(8), Err(Errno::EINVAL));
        assert!(rename_flags(libc::RENAME_WHITEOUT).unwrap().whiteout);
        assert_eq!(xattr_set(3), Err(Errno::EINVAL));
    }

    #[test]
    fn a_full_pool_and_a_damaged_block_are_two_answers() {
        assert_eq!(errno(&FsError::Crowded { what: "inode" }), Errno::ENOSPC);
        assert_eq!(errno(&FsError::ShutDown), Errno::EIO);
        assert_eq!(errno(&FsError::Stale), Errno::ESTALE);
    }
}
