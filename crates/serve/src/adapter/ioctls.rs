//! The ioctls: file flags, project ids, labels, trim, shutdown, and our own control.
//!
//! Numbers are those of `<linux/fs.h>`; the group of our own is in `control.rs`.

use std::sync::Arc;

use copyhold_fs::{FileFlags, Filesystem, NodeId};
use copyhold_fuse::protocol::{Caller, Ioctl, IoctlReply};
use copyhold_fuse::{Errno, Reply};

use super::convert::judged;
use super::rules::Rules;
use crate::control;
use crate::errno::errno;

/// Makes the answer to the control ioctl that asks for the state of the pool: JSON, with all fields
/// or with those for callers without privilege.
pub(crate) type Describe = Box<dyn Fn(bool) -> String + Send + Sync>;

const SYNC: u32 = control::SYNC.number();
const INFO: u32 = control::INFO.number();

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETFLAGS_32: u32 = 0x8004_6601;
/// The value of the kernel; that of a caller has the size of the command.
const SETFLAGS_BYTES: usize = 4;
const GETVERSION: u32 = 0x8008_7601;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const GETFSLABEL: u32 = 0x8100_9431;
const FITRIM: u32 = 0xc018_5879;
pub(super) const SHUTDOWN: u32 = 0x8004_587d;
const LABEL_BYTES: usize = 256;
const FSXATTR_BYTES: usize = 28;
/// `SHUTDOWN`: commit everything, then stop; and stop without writing anything more.
const LOG_FLUSH: u32 = 1;
const NO_FLUSH: u32 = 2;

/// `FS_XFLAG_…` and the file flag that is the same.
const XFLAGS: [(u32, FileFlags); 6] = [
    (0x008, FileFlags::IMMUTABLE),
    (0x010, FileFlags::APPEND),
    (0x020, FileFlags::SYNC),
    (0x040, FileFlags::NOATIME),
    (0x080, FileFlags::NODUMP),
    (0x200, FileFlags::PROJINHERIT),
];

/// The kernel does not know what its users ask for by these.
pub(super) fn changes_attributes(command: u32) -> bool {
    matches!(command, SETFLAGS | FSSETXATTR)
}

/// Whether the kernel has made this request of an ioctl of its own: then it has checked the owner,
/// CAP_LINUX_IMMUTABLE and that the mount permits writes, and sends its own value, without an
/// address of the caller. A caller's ioctl arrives with that address, unchecked; SETFLAGS has eight
/// bytes then. Linux before 5.13 passes all of them on unchecked.
fn is_checked(ioctl: &Ioctl<'_>) -> bool {
    ioctl.arg == 0 && (ioctl.command != SETFLAGS || ioctl.input.len() == SETFLAGS_BYTES)
}

pub(super) async fn answer(
    fs: &Arc<Filesystem>,
    describe: &Describe,
    rules: Rules,
    by: Caller,
    node: NodeId,
    ioctl: &Ioctl<'_>,
) -> Reply<IoctlReply> {
    let output = match ioctl.command {
        GETFLAGS => flags_of(fs, node).await?.0.to_ne_bytes().to_vec(),
        // The kernel turns the commands of programs of 32 bits into the others.
        GETFLAGS_32 if ioctl.compat => flags_of(fs, node).await?.0.to_ne_bytes().to_vec(),
        SETFLAGS | FSSETXATTR if !is_checked(ioctl) => return Err(Errno::ENOTTY),
        SETFLAGS => {
            let flags = FileFlags(word(ioctl.input, 0)?);
            fs.set_flags(&judged(by), node, flags, None).await.map_err(errno)?;
            Vec::new()
        }
        GETVERSION => fs.getattr(node).await.map_err(errno)?.generation.to_ne_bytes().to_vec(),
        FSGETXATTR => get_xflags(fs, node).await?,
        FSSETXATTR => {
            set_xflags(fs, by, node, ioctl.input).await?;
            Vec::new()
        }
        GETFSLABEL => {
            let mut label = fs.pool().label().name.clone().into_bytes();
            label.resize(LABEL_BYTES, 0);
            label
        }
        FITRIM => trim(fs, rules, by, ioctl.input).await?,
        SHUTDOWN => {
            privileged(rules, by)?;
            // The kernel copies the caller's flags only for commands that are said to write, so
            // they do not arrive. A caller that wanted no flush finds a later state than without
            // one, but never less than what he had synced.
            let how = word(ioctl.input, 0).unwrap_or(LOG_FLUSH);
            fs.shut_down(how != NO_FLUSH).await.map_err(errno)?;
            Vec::new()
        }
        SYNC => {
            fs.sync().await.map_err(errno)?;
            Vec::new()
        }
        INFO => {
            let mut text = describe(rules.sees_all(rules.who(by))).into_bytes();
            // One zero at least ends the text.
            if text.len() >= ioctl.output_size as usize {
                return Err(Errno::EOVERFLOW);
            }
            text.push(0);
            text
        }
        _ => return Err(Errno::ENOTTY),
    };
    let room = ioctl.output_size as usize;
    let output = output.into_iter().take(room).collect();
    Ok(IoctlReply { result: 0, output })
}

fn privileged(rules: Rules, by: Caller) -> Reply<()> {
    if rules.privileges(rules.who(by)) { Ok(()) } else { Err(Errno::EPERM) }
}

async fn flags_of(fs: &Filesystem, node: NodeId) -> Reply<FileFlags> {
    Ok(fs.getattr(node).await.map_err(errno)?.flags)
}

fn word(input: &[u8], at: usize) -> Reply<u32> {
    let bytes = input.get(at..at + 4).ok_or(Errno::EINVAL)?;
    Ok(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

/// `struct fsxattr`: flags, extent size hint, extents, project, hint of copies, padding.
async fn get_xflags(fs: &Filesystem, node: NodeId) -> Reply<Vec<u8>> {
    let attr = fs.getattr(node).await.map_err(errno)?;
    let set = XFLAGS.iter().filter(|(_, flag)| attr.flags.contains(*flag));
    let xflags = set.fold(0, |all, (xflag, _)| all | xflag);
    let mut bytes = vec![0; FSXATTR_BYTES];
    bytes[..4].copy_from_slice(&xflags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&attr.project.to_ne_bytes());
    Ok(bytes)
}

async fn set_xflags(fs: &Arc<Filesystem>, by: Caller, node: NodeId, input: &[u8]) -> Reply<()> {
    let (xflags, project) = (word(input, 0)?, word(input, 12)?);
    let known = XFLAGS.iter().fold(0, |all, (xflag, _)| all | xflag);
    if xflags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // Flags that this structure cannot name stay as they are.
    let named = XFLAGS.iter().fold(0, |all, (_, flag)| all | flag.0);
    let mut flags = flags_of(fs, node).await?.0 & !named;
    for (xflag, flag) in XFLAGS {
        if xflags & xflag != 0 {
            flags |= flag.0;
        }
    }
    fs.set_flags(&judged(by), node, FileFlags(flags), Some(project)).await.map_err(errno)
}

/// `struct fstrim_range`: start, length, least length; the length comes back as what was trimmed.
async fn trim(fs: &Filesystem, rules: Rules, by: Caller, input: &[u8]) -> Reply<Vec<u8>> {
    privileged(rules, by)?;
    let mut range = input.get(..24).ok_or(Errno::EINVAL)?.to_vec();
    let number = |at: usize| u64::from_ne_bytes(range[at..at + 8].try_into().expect("eight bytes"));
    let (start, len, least) = (number(0), number(8), number(16));
    let trimmed = fs.trim(start, len, least).await.map_err(errno)?;
    range[8..16].copy_from_slice(&trimmed.to_ne_bytes());
    Ok(range)
}
