//! From the kernel's bytes to a [`Request`].
//!
//! The kernel is trusted not to lie, but not to be of our version, and the parser is fuzzed like
//! any other: each length is checked, any bytes give a request or a [`ParseError`]. Bytes behind
//! the known fields are ignored, since the protocol grows at the ends of its structures.

use zerocopy::FromBytes;

use copyhold_types::Timestamp;

use super::error::ParseError;
use super::extension::Extensions;
use super::opcode::Opcode;
use super::request::*;
use super::{flags, wire};

/// No kernel reads more at a time: INIT agrees on at most this. An answer to more could take any
/// amount of memory.
const READ_BYTES_MAX: u32 = 1 << 20;

/// The agreement of INIT, as far as the form of requests depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR has its long form.
    pub setxattr_ext: bool,
}

/// The header at the start of a message of `len` bytes, which must equal the header's length.
/// `start` has as many of them as were read into it.
pub fn parse_prefix(start: &[u8], len: usize) -> Result<wire::InHeader, ParseError> {
    let start = &start[..len.min(start.len())];
    let (header, _) =
        wire::InHeader::read_from_prefix(start).map_err(|_| ParseError::NoHeader { len })?;
    if header.len as usize != len {
        return Err(ParseError::Length { said: header.len, found: len });
    }
    Ok(header)
}

impl<'a> Request<'a> {
    /// `args`: all that follows the header, except the data of a WRITE.
    pub fn parse(
        header: &wire::InHeader,
        args: &'a [u8],
        dialect: Dialect,
    ) -> Result<Request<'a>, ParseError> {
        let opcode =
            Opcode::new(header.opcode).ok_or(ParseError::Opcode { number: header.opcode })?;
        let extension = usize::from(header.total_extlen) * 8;
        let split = args.len().checked_sub(extension).ok_or(ParseError::Extension)?;
        let (args, extensions) = args.split_at(split);
        Parser { opcode, extensions, rest: args }.request(dialect)
    }
}

struct Parser<'a> {
    opcode: Opcode,
    extensions: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn request(mut self, dialect: Dialect) -> Result<Request<'a>, ParseError> {
        Ok(match self.opcode {
            Opcode::Lookup => Request::Lookup { name: self.name()? },
            Opcode::Forget => Request::Forget { lookups: self.take::<wire::ForgetIn>()?.nlookup },
            Opcode::BatchForget => Request::BatchForget(self.forgets()?),
            Opcode::Getattr => Request::Getattr { handle: self.getattr()? },
            Opcode::Setattr => Request::Setattr(self.setattr()?),
            Opcode::Statx => self.statx()?,
            Opcode::Readlink => Request::Readlink,
            Opcode::Symlink => self.symlink()?,
            Opcode::Mknod => self.mknod()?,
            Opcode::Mkdir => self.mkdir()?,
            Opcode::Create => self.create()?,
            Opcode::Tmpfile => self.tmpfile()?,
            Opcode::Unlink => Request::Unlink { name: self.name()? },
            Opcode::Rmdir => Request::Rmdir { name: self.name()? },
            Opcode::Rename | Opcode::Rename2 => Request::Rename(self.rename()?),
            Opcode::Link => {
                let link: wire::LinkIn = self.take()?;
                Request::Link { node: NodeId(link.oldnodeid), name: self.name()? }
            }
            Opcode::Open => Request::Open(self.open()?),
            Opcode::Opendir => Request::Opendir(self.open()?),
            Opcode::Read => Request::Read(self.read()?),
            Opcode::Readdir => Request::Readdir(self.read()?),
            Opcode::Readdirplus => Request::Readdirplus(self.read()?),
            Opcode::Write => Request::Write(self.write()?),
            Opcode::Flush => {
                let flush: wire::FlushIn = self.take()?;
                let lock_owner = LockOwner(flush.lock_owner);
                Request::Flush { handle: Handle(flush.fh), lock_owner }
            }
            Opcode::Release => Request::Release(self.release()?),
            Opcode::Releasedir => Request::Releasedir(self.release()?),
            Opcode::Fsync => {
                let (handle, data_only) = self.fsync()?;
                Request::Fsync { handle, data_only }
            }
            Opcode::Fsyncdir => {
                let (handle, data_only) = self.fsync()?;
                Request::Fsyncdir { handle, data_only }
            }
            Opcode::Statfs => Request::Statfs,
            Opcode::Syncfs => Request::Syncfs,
            Opcode::Setxattr => Request::Setxattr(self.setxattr(dialect)?),
            Opcode::Getxattr => {
                let get: wire::GetxattrIn = self.take()?;
                Request::Getxattr { name: self.name()?, size: get.size }
            }
            Opcode::Listxattr => Request::Listxattr { size: self.take::<wire::GetxattrIn>()?.size },
            Opcode::Removexattr => Request::Removexattr { name: self.name()? },
            Opcode::Access => Request::Access { mask: self.take::<wire::AccessIn>()?.mask },
            Opcode::Getlk => Request::Getlk(self.lock()?),
            Opcode::Setlk => Request::Setlk(self.lock()?),
            Opcode::Setlkw => Request::Setlkw(self.lock()?),
            Opcode::Fallocate => Request::Fallocate(self.fallocate()?),
            Opcode::Lseek => Request::Lseek(self.seek()?),
            Opcode::CopyFileRange => Request::CopyRange { copy: self.copy()?, wide: false },
            Opcode::CopyFileRange64 => Request::CopyRange { copy: self.copy()?, wide: true },
            Opcode::Ioctl => Request::Ioctl(self.ioctl()?),
            Opcode::Poll => Request::Poll(self.poll()?),
            Opcode::Bmap => {
                let bmap: wire::BmapIn = self.take()?;
                Request::Bmap { block: bmap.block, block_size: bmap.blocksize }
            }
            Opcode::Interrupt => {
                Request::Interrupt { unique: self.take::<wire::InterruptIn>()?.unique }
            }
            Opcode::Init => Request::Init(self.init()?),
            Opcode::Destroy => Request::Destroy,
            Opcode::NotifyReply => Request::NotifyReply,
        })
    }

    fn take<T: FromBytes>(&mut self) -> Result<T, ParseError> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| ParseError::Short {
            opcode: self.opcode,
            wanted: size_of::<T>(),
            found: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(value)
    }

    /// Bytes up to a NUL, at least one.
    fn name(&mut self) -> Result<&'a [u8], ParseError> {
        let end = self.rest.iter().position(|&byte| byte == 0).unwrap_or(0);
        if end == 0 {
            return Err(ParseError::Name { opcode: self.opcode });
        }
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, wanted: usize) -> Result<&'a [u8], ParseError> {
        let found = self.rest.len();
        let short = ParseError::Short { opcode: self.opcode, wanted, found };
        let (bytes, rest) = self.rest.split_at_checked(wanted).ok_or(short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn forgets(&mut self) -> Result<ForgetList<'a>, ParseError> {
        let batch: wire::BatchForgetIn = self.take()?;
        let wanted = (batch.count as usize).saturating_mul(size_of::<wire::ForgetOne>());
        Ok(ForgetList(self.bytes(wanted)?))
    }

    fn getattr(&mut self) -> Result<Option<Handle>, ParseError> {
        let get: wire::GetattrIn = self.take()?;
        Ok((get.getattr_flags & flags::GETATTR_FH != 0).then_some(Handle(get.fh)))
    }

    fn statx(&mut self) -> Result<Request<'a>, ParseError> {
        let statx: wire::StatxIn = self.take()?;
        let handle = (statx.getattr_flags & flags::GETATTR_FH != 0).then_some(Handle(statx.fh));
        Ok(Request::Statx { handle, flags: statx.sx_flags, mask: statx.sx_mask })
    }

    fn setattr(&mut self) -> Result<SetAttr, ParseError> {
        let set: wire::SetattrIn = self.take()?;
        let has = |flag: u32| set.valid & flag != 0;
        let time = |given: u32, now: u32, secs: u64, nanos: u32| {
            let at = SetTime::At(timestamp(secs, nanos));
            has(given).then_some(if has(now) { SetTime::Now } else { at })
        };
        Ok(SetAttr {
            handle: has(flags::fattr::FH).then_some(Handle(set.fh)),
            lock_owner: has(flags::fattr::LOCKOWNER).then_some(LockOwner(set.lock_owner)),
            mode: has(flags::fattr::MODE).then_some(set.mode),
            uid: has(flags::fattr::UID).then_some(set.uid),
            gid: has(flags::fattr::GID).then_some(set.gid),
            size: has(flags::fattr::SIZE).then_some(set.size),
            atime: time(flags::fattr::ATIME, flags::fattr::ATIME_NOW, set.atime, set.atimensec),
            mtime: time(flags::fattr::MTIME, flags::fattr::MTIME_NOW, set.mtime, set.mtimensec),
            ctime: has(flags::fattr::CTIME).then(|| timestamp(set.ctime, set.ctimensec)),
            kill_suidgid: has(flags::fattr::KILL_SUIDGID),
        })
    }

    fn new_node(&self, mode: u32, umask: u32, rdev: u32) -> Result<NewNode<'a>, ParseError> {
        Ok(NewNode { mode, umask, rdev, extensions: Extensions::parse(self.extensions)? })
    }

    fn symlink(&mut self) -> Result<Request<'a>, ParseError> {
        let (name, target) = (self.name()?, self.name()?);
        let new = self.new_node(libc::S_IFLNK | 0o777, 0, 0)?;
        Ok(Request::Symlink { name, target, new })
    }

    fn mknod(&mut self) -> Result<Request<'a>, ParseError> {
        let node: wire::MknodIn = self.take()?;
        let new = self.new_node(node.mode, node.umask, node.rdev)?;
        Ok(Request::Mknod { name: self.name()?, new })
    }

    fn mkdir(&mut self) -> Result<Request<'a>, ParseError> {
        let dir: wire::MkdirIn = self.take()?;
        let mode = (dir.mode & !libc::S_IFMT) | libc::S_IFDIR;
        let new = self.new_node(mode, dir.umask, 0)?;
        Ok(Request::Mkdir { name: self.name()?, new })
    }

    fn new_file(&mut self) -> Result<(NewNode<'a>, Open), ParseError> {
        let create: wire::CreateIn = self.take()?;
        let mode = (create.mode & !libc::S_IFMT) | libc::S_IFREG;
        let new = self.new_node(mode, create.umask, 0)?;
        Ok((new, open(create.flags, create.open_flags)))
    }

    fn create(&mut self) -> Result<Request<'a>, ParseError> {
        let (new, open) = self.new_file()?;
        Ok(Request::Create { name: self.name()?, new, open })
    }

    /// The kernel sends a name that means nothing.
    fn tmpfile(&mut self) -> Result<Request<'a>, ParseError> {
        let (new, open) = self.new_file()?;
        Ok(Request::Tmpfile { new, open })
    }

    fn rename(&mut self) -> Result<Rename<'a>, ParseError> {
        let (new_parent, flags) = if self.opcode == Opcode::Rename2 {
            let rename: wire::Rename2In = self.take()?;
            (NodeId(rename.newdir), rename.flags)
        } else {
            (NodeId(self.take::<wire::RenameIn>()?.newdir), 0)
        };
        Ok(Rename { name: self.name()?, new_parent, new_name: self.name()?, flags })
    }

    fn open(&mut self) -> Result<Open, ParseError> {
        let args: wire::OpenIn = self.take()?;
        Ok(open(args.flags, args.open_flags))
    }

    fn read(&mut self) -> Result<Read, ParseError> {
        let read: wire::ReadIn = self.take()?;
        let owned = read.read_flags & flags::READ_LOCKOWNER != 0;
        Ok(Read {
            handle: Handle(read.fh),
            offset: read.offset,
            size: read.size.min(READ_BYTES_MAX),
            flags: read.flags,
            lock_owner: owned.then_some(LockOwner(read.lock_owner)),
        })
    }

    fn write(&mut self) -> Result<Write, ParseError> {
        let write: wire::WriteIn = self.take()?;
        let has = |flag: u32| write.write_flags & flag != 0;
        if write.offset.checked_add(write.size.into()).is_none() {
            return Err(ParseError::Value { opcode: self.opcode });
        }
        Ok(Write {
            handle: Handle(write.fh),
            offset: write.offset,
            size: write.size,
            flags: write.flags,
            lock_owner: has(flags::WRITE_LOCKOWNER).then_some(LockOwner(write.lock_owner)),
            cached: has(flags::WRITE_CACHE),
            kill_suidgid: has(flags::WRITE_KILL_SUIDGID),
        })
    }

    fn release(&mut self) -> Result<Release, ParseError> {
        let release: wire::ReleaseIn = self.take()?;
        Ok(Release {
            handle: Handle(release.fh),
            flags: release.flags,
            flush: release.release_flags & flags::RELEASE_FLUSH != 0,
            lock_owner: LockOwner(release.lock_owner),
            flock_unlock: release.release_flags & flags::RELEASE_FLOCK_UNLOCK != 0,
        })
    }

    fn fsync(&mut self) -> Result<(Handle, bool), ParseError> {
        let fsync: wire::FsyncIn = self.take()?;
        Ok((Handle(fsync.fh), fsync.fsync_flags & flags::FSYNC_FDATASYNC != 0))
    }

    fn setxattr(&mut self, dialect: Dialect) -> Result<SetXattr<'a>, ParseError> {
        let set = if dialect.setxattr_ext {
            self.take::<wire::SetxattrIn>()?
        } else {
            let short: [u32; 2] = self.take()?;
            wire::SetxattrIn { size: short[0], flags: short[1], ..Default::default() }
        };
        let name = self.name()?;
        let value = self.bytes(set.size as usize)?;
        let kill_sgid = set.setxattr_flags & flags::SETXATTR_ACL_KILL_SGID != 0;
        Ok(SetXattr { name, value, flags: set.flags, kill_sgid })
    }

    fn lock(&mut self) -> Result<Lock, ParseError> {
        let lock: wire::LkIn = self.take()?;
        let value = ParseError::Value { opcode: self.opcode };
        let kind = match i32::try_from(lock.lk.kind).map_err(|_| value)? {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return Err(value),
        };
        if lock.lk.end < lock.lk.start {
            return Err(value);
        }
        Ok(Lock {
            handle: Handle(lock.fh),
            owner: LockOwner(lock.owner),
            kind,
            start: lock.lk.start,
            end: lock.lk.end,
            pid: lock.lk.pid,
            flock: lock.lk_flags & flags::LK_FLOCK != 0,
        })
    }

    fn fallocate(&mut self) -> Result<Fallocate, ParseError> {
        let args: wire::FallocateIn = self.take()?;
        if args.offset.checked_add(args.length).is_none() {
            return Err(ParseError::Value { opcode: self.opcode });
        }
        Ok(Fallocate {
            handle: Handle(args.fh),
            offset: args.offset,
            length: args.length,
            mode: args.mode,
        })
    }

    fn seek(&mut self) -> Result<Seek, ParseError> {
        let seek: wire::LseekIn = self.take()?;
        Ok(Seek { handle: Handle(seek.fh), offset: seek.offset, whence: seek.whence })
    }

    fn copy(&mut self) -> Result<CopyRange, ParseError> {
        let copy: wire::CopyFileRangeIn = self.take()?;
        let fits = |offset: u64| offset.checked_add(copy.len).is_some();
        if !fits(copy.off_in) || !fits(copy.off_out) {
            return Err(ParseError::Value { opcode: self.opcode });
        }
        Ok(CopyRange {
            handle: Handle(copy.fh_in),
            offset: copy.off_in,
            target: NodeId(copy.nodeid_out),
            target_handle: Handle(copy.fh_out),
            target_offset: copy.off_out,
            length: copy.len,
            flags: copy.flags,
        })
    }

    fn ioctl(&mut self) -> Result<Ioctl<'a>, ParseError> {
        let ioctl: wire::IoctlIn = self.take()?;
        Ok(Ioctl {
            handle: Handle(ioctl.fh),
            command: ioctl.cmd,
            arg: ioctl.arg,
            input: self.bytes(ioctl.in_size as usize)?,
            output_size: ioctl.out_size,
            compat: ioctl.flags & flags::IOCTL_COMPAT != 0,
            directory: ioctl.flags & flags::IOCTL_DIR != 0,
        })
    }

    fn poll(&mut self) -> Result<Poll, ParseError> {
        let poll: wire::PollIn = self.take()?;
        Ok(Poll {
            handle: Handle(poll.fh),
            kernel_handle: poll.kh,
            events: poll.events,
            notify: poll.flags & flags::POLL_SCHEDULE_NOTIFY != 0,
        })
    }

    fn init(&mut self) -> Result<Init, ParseError> {
        let init: wire::InitIn = self.take()?;
        let mut all = u64::from(init.flags);
        if all & flags::init::INIT_EXT != 0 {
            all |= u64::from(self.take::<wire::InitInExt>()?.flags2) << 32;
        }
        let wire::InitIn { major, minor, max_readahead, .. } = init;
        Ok(Init { major, minor, max_readahead, flags: all })
    }
}

fn open(flags: u32, open_flags: u32) -> Open {
    Open { flags, kill_suidgid: open_flags & super::flags::OPEN_KILL_SUIDGID != 0 }
}

/// The kernel sends seconds before 1970 as a wrapped unsigned number.
fn timestamp(secs: u64, nanos: u32) -> Timestamp {
    Timestamp { secs: secs as i64, nanos: nanos.min(999_999_999) }
}

#[cfg(test)]
mod tests;
