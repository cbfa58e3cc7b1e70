//! The kernel's protocol, `<linux/fuse.h>` 7.45, as values.
//!
//! `wire` has its structures byte for byte and `opcode` and `flags` its numbers; `parse` makes
//! requests of bytes, `reply`, `dirent` and `notification` make bytes of answers, `negotiate`
//! handles INIT. No I/O: the same code serves `/dev/fuse` and a ring, and is tested without either.

mod dirent;
mod error;
mod extension;
pub mod flags;
mod negotiate;
mod notification;
mod opcode;
mod parse;
mod reply;
mod request;
pub mod wire;

pub use dirent::{DirEntry, Entries};
pub use error::ParseError;
pub use extension::{Extensions, SecurityContext};
pub use negotiate::{InitAnswer, Negotiated, ReaddirPlus, Settings};
pub use notification::{Notification, PRUNE_MAX};
pub use opcode::{NotifyCode, Opcode};
pub use parse::{Dialect, parse_prefix};
pub use reply::{
    Answer, Attr, AttrReply, Data, Entry, IoctlReply, Lookup, Opened, Segment, Statfs,
};
pub use request::{
    Caller, CopyRange, Fallocate, Forget, ForgetList, Forgets, Handle, Ids, Init, Ioctl, Lock,
    LockKind, LockOwner, NewNode, NodeId, Open, Poll, Read, Release, Rename, Request, Seek,
    SetAttr, SetTime, SetXattr, Write,
};

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use copyhold_types::Timestamp;

    use super::*;

    pub(crate) fn attr(ino: u64, mode: u32) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: Some(time),
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            attributes: 0,
            attributes_mask: 0,
        }
    }

    pub(crate) fn entry(node: NodeId, mode: u32) -> Entry {
        let valid = Duration::from_secs(1);
        let attr = attr(node.0, mode);
        Entry { node, generation: 0, attr, entry_valid: valid, attr_valid: valid }
    }
}
