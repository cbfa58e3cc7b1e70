//! The ioctls that reach us: flags and project of a file, trimming, and going down.
//!
//! The kernel copies what the number of a command says, in and out. Flags are asked for by
//! `FS_IOC_GETFLAGS` or as `struct fsxattr`, whichever the caller prefers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use copyhold_fs::{FileFlags, NodeId};

use super::{Server, convert};
use crate::Errno;
use crate::operations::Reply;
use crate::protocol::{Caller, Ioctl, IoctlReply};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
/// Its argument is a pointer to flags that the kernel does not copy for us.
const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    minlen: u64,
}

/// Flags of a file with their bits in `FsXattr::xflags`.
const XFLAGS: [(FileFlags, u32); 6] = [
    (FileFlags::IMMUTABLE, 0x8),
    (FileFlags::APPEND, 0x10),
    (FileFlags::SYNC, 0x20),
    (FileFlags::NOATIME, 0x40),
    (FileFlags::NODUMP, 0x80),
    (FileFlags::PROJINHERIT, 0x200),
];

fn to_xflags(flags: FileFlags) -> u32 {
    XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, bit)| bit).sum()
}

fn from_xflags(xflags: u32, old: FileFlags) -> Reply<FileFlags> {
    let known: u32 = XFLAGS.iter().map(|(_, bit)| bit).sum();
    if xflags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let set = XFLAGS.iter().filter(|(_, bit)| xflags & bit != 0).map(|(flag, _)| flag.0);
    // What this structure has no bit for stays as it is.
    let has_bit: u32 = XFLAGS.iter().map(|(flag, _)| flag.0).sum();
    Ok(FileFlags(old.0 & !has_bit | set.sum::<u32>()))
}

fn input<T: FromBytes>(ioctl: &Ioctl<'_>) -> Reply<T> {
    T::read_from_prefix(ioctl.input).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
}

fn output(value: &(impl IntoBytes + Immutable)) -> IoctlReply {
    IoctlReply { result: 0, output: value.as_bytes().to_vec() }
}

fn only_root(by: Caller) -> Reply<()> {
    if by.uid == 0 { Ok(()) } else { Err(Errno::EPERM) }
}

impl Server {
    pub(super) async fn ioctl_on(
        &self,
        by: Caller,
        node: NodeId,
        ioctl: Ioctl<'_>,
    ) -> Reply<IoctlReply> {
        let caller = convert::caller(by, 0);
        match ioctl.command {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => {
                Ok(output(&self.fs.getattr(node).await?.flags.0))
            }
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
                let flags = FileFlags(input::<u32>(&ioctl)?);
                self.fs.set_flags(&caller, node, flags, None).await?;
                Ok(IoctlReply::default())
            }
            FS_IOC_GETVERSION => Ok(output(&self.fs.getattr(node).await?.generation)),
            FS_IOC_FSGETXATTR => {
                let attr = self.fs.getattr(node).await?;
                let (xflags, projid) = (to_xflags(attr.flags), attr.project);
                Ok(output(&FsXattr { xflags, projid, ..FsXattr::default() }))
            }
            FS_IOC_FSSETXATTR => {
                let wanted: FsXattr = input(&ioctl)?;
                let old = self.fs.getattr(node).await?.flags;
                let flags = from_xflags(wanted.xflags, old)?;
                self.fs.set_flags(&caller, node, flags, Some(wanted.projid)).await?;
                Ok(IoctlReply::default())
            }
            FITRIM => {
                only_root(by)?;
                let range: TrimRange = input(&ioctl)?;
                let len = self.fs.trim(range.minlen).await?;
                Ok(output(&TrimRange { len, ..range }))
            }
            FS_IOC_SHUTDOWN => {
                only_root(by)?;
                tracing::warn!("told to go down: all input and output fails from now on");
                self.fs.shut_down(false).await?;
                Ok(IoctlReply::default())
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_the_way_through_fsxattr() {
        let flags = FileFlags(FileFlags::IMMUTABLE.0 | FileFlags::NOATIME.0 | FileFlags::DIRSYNC.0);
        assert_eq!(to_xflags(flags), 0x48);
        assert_eq!(from_xflags(0x48, flags), Ok(flags), "dirsync has no bit there and stays");
        assert_eq!(from_xflags(0, flags), Ok(FileFlags::DIRSYNC));
        assert_eq!(from_xflags(0x8000_0000, flags), Err(Errno::EOPNOTSUPP));
    }
}
