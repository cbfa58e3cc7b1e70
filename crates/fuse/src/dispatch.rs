//! From a request to its answer: parse, call the filesystem, encode.
//!
//! The future owns the message, so that names and values are borrowed from it for as long as the
//! operation takes; no operation allocates here.

use std::sync::Arc;

use zerocopy::FromBytes;

use crate::Errno;
use crate::interrupt::{Interrupted, Interrupts, unless};
use crate::operations::{Operations, Reply};
use crate::payload::Payload;
use crate::protocol::{
    Answer, Caller, Data, Dialect, Entries, NodeId, Opcode, ParseError, Read, Request, Write, wire,
};
use crate::uring::slot::Lease;

/// One request as it was read.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: wire::InHeader,
    /// The bytes behind the header, without the data of a WRITE.
    pub(crate) args: Vec<u8>,
    /// The data of a WRITE.
    pub(crate) payload: Option<Payload>,
    /// The entry that it came by, if it came by a ring and the payload has not got it.
    pub(crate) lease: Option<Lease>,
    /// Of a request that listens before it is begun.
    interrupted: Option<Interrupted>,
}

impl Message {
    pub(crate) fn new(
        header: wire::InHeader,
        args: Vec<u8>,
        payload: Option<Payload>,
        lease: Option<Lease>,
    ) -> Message {
        Message { header, args, payload, lease, interrupted: None }
    }

    /// The entry that the answer goes into, if the request came by a ring.
    pub(crate) fn take_lease(&mut self) -> Option<Lease> {
        let lent = || self.payload.take_if(|payload| payload.is_lent())?.into_lease();
        self.lease.take().or_else(lent)
    }

    /// Bytes of data that the request moves.
    pub(crate) fn moved(&self) -> usize {
        match Opcode::new(self.header.opcode) {
            Some(Opcode::Write) => self.payload.as_ref().map_or(0, |data| data.bytes().len()),
            Some(Opcode::Read) => self.wanted(),
            _ => 0,
        }
    }

    /// Bytes of names that the request wants at most.
    pub(crate) fn listed(&self) -> usize {
        match Opcode::new(self.header.opcode) {
            Some(Opcode::Readdir | Opcode::Readdirplus) => self.wanted(),
            _ => 0,
        }
    }

    fn wanted(&self) -> usize {
        wire::ReadIn::read_from_prefix(&self.args).map_or(0, |(read, _)| read.size as usize)
    }

    /// Makes a request that may wait for ever listen, although it is not begun.
    pub(crate) fn listen(&mut self, interrupts: &Arc<Interrupts>) {
        if Opcode::new(self.header.opcode) == Some(Opcode::Setlkw) {
            self.interrupted = Some(interrupts.listen(self.header.unique));
        }
    }
}

/// Computes the answer to `message`; FORGET and the like have been dealt with before.
pub(crate) async fn answer<O: Operations>(
    fs: &O,
    message: &mut Message,
    dialect: Dialect,
    interrupts: &Arc<Interrupts>,
) -> Answer {
    let Message { header, args, payload, interrupted, .. } = message;
    let request = match Request::parse(header, args, dialect) {
        Ok(request) => request,
        Err(error) => return Answer::error(refusal(&error)),
    };
    let caller = Caller::of(header);
    let node = NodeId(header.nodeid);
    let listen = || interrupted.take().unwrap_or_else(|| interrupts.listen(caller.unique));
    call(fs, caller, node, request, payload.as_mut(), listen).await.unwrap_or_else(Answer::error)
}

fn refusal(error: &ParseError) -> Errno {
    match error {
        ParseError::Opcode { .. } => Errno::ENOSYS,
        ParseError::Value { .. } => Errno::EINVAL,
        _ => {
            tracing::error!(%error, "the kernel's request is not understood; answered EIO");
            Errno::EIO
        }
    }
}

async fn call<O: Operations>(
    fs: &O,
    by: Caller,
    node: NodeId,
    request: Request<'_>,
    payload: Option<&mut Payload>,
    listen: impl FnOnce() -> Interrupted,
) -> Reply<Answer> {
    let done = |()| Answer::OK;
    Ok(match request {
        Request::Lookup { name } => Answer::lookup(&fs.lookup(by, node, name).await?),
        Request::Getattr { handle } => Answer::attr(&fs.getattr(by, node, handle).await?),
        Request::Setattr(set) => Answer::attr(&fs.setattr(by, node, set).await?),
        Request::Statx { handle, .. } => Answer::statx(&fs.statx(by, node, handle).await?),
        Request::Readlink => Answer::data(fs.readlink(by, node).await?.into()),
        Request::Symlink { name, target, new } => {
            Answer::entry(&fs.symlink(by, node, name, target, new).await?)
        }
        Request::Mknod { name, new } => Answer::entry(&fs.mknod(by, node, name, new).await?),
        Request::Mkdir { name, new } => Answer::entry(&fs.mkdir(by, node, name, new).await?),
        Request::Create { name, new, open } => {
            let (entry, opened) = fs.create(by, node, name, new, open).await?;
            Answer::created(&entry, &opened)
        }
        Request::Tmpfile { new, open } => {
            let (entry, opened) = fs.tmpfile(by, node, new, open).await?;
            Answer::created(&entry, &opened)
        }
        Request::Unlink { name } => done(fs.unlink(by, node, name).await?),
        Request::Rmdir { name } => done(fs.rmdir(by, node, name).await?),
        Request::Rename(rename) => done(fs.rename(by, node, rename).await?),
        Request::Link { node: file, name } => Answer::entry(&fs.link(by, file, node, name).await?),
        Request::Open(open) => Answer::opened(&fs.open(by, node, open).await?),
        Request::Read(read) => Answer::data(bounded(fs.read(by, node, read).await?, read.size)?),
        Request::Write(write) => Answer::written(write_data(fs, by, node, write, payload).await?),
        Request::Flush { handle, lock_owner } => {
            done(fs.flush(by, node, handle, lock_owner).await?)
        }
        Request::Release(release) => done(fs.release(by, node, release).await?),
        Request::Fsync { handle, data_only } => done(fs.fsync(by, node, handle, data_only).await?),
        Request::Opendir(open) => Answer::opened(&fs.opendir(by, node, open).await?),
        Request::Readdir(read) => entries(fs, by, node, read, false).await?,
        Request::Readdirplus(read) => entries(fs, by, node, read, true).await?,
        Request::Releasedir(release) => done(fs.releasedir(by, node, release).await?),
        Request::Fsyncdir { handle, data_only } => {
            done(fs.fsyncdir(by, node, handle, data_only).await?)
        }
        Request::Statfs => Answer::statfs(&fs.statfs(by, node).await?),
        Request::Syncfs => done(fs.syncfs(by).await?),
        Request::Setxattr(set) => done(fs.setxattr(by, node, set).await?),
        Request::Getxattr { name, size } => Answer::xattr(fs.getxattr(by, node, name).await?, size),
        Request::Listxattr { size } => Answer::xattr(fs.listxattr(by, node).await?, size),
        Request::Removexattr { name } => done(fs.removexattr(by, node, name).await?),
        Request::Access { mask } => done(fs.access(by, node, mask).await?),
        Request::Getlk(lock) => Answer::lock(fs.getlk(by, node, lock).await?.as_ref()),
        Request::Setlk(lock) => done(fs.setlk(by, node, lock).await?),
        Request::Setlkw(lock) => {
            let locked = unless(listen(), fs.setlkw(by, node, lock)).await;
            done(locked.unwrap_or(Err(Errno::EINTR))?)
        }
        Request::Fallocate(range) => done(fs.fallocate(by, node, range).await?),
        Request::Lseek(seek) => Answer::seek(fs.lseek(by, node, seek).await?),
        Request::CopyRange { mut copy, wide } => {
            if wide {
                return Ok(Answer::copied(fs.copy_range(by, node, copy).await?));
            }
            copy.length = copy.length.min(NARROW_COPY_MAX);
            Answer::written(fs.copy_range(by, node, copy).await? as u32)
        }
        Request::Ioctl(ioctl) => Answer::ioctl(fs.ioctl(by, node, ioctl).await?, ioctl.output_size),
        Request::Poll(poll) => Answer::poll(fs.poll(by, node, poll).await?),
        Request::Bmap { block, block_size } => {
            Answer::bmap(fs.bmap(by, node, block, block_size).await?)
        }
        Request::Destroy => {
            fs.destroy().await;
            Answer::OK
        }
        Request::Forget { .. }
        | Request::BatchForget(_)
        | Request::Interrupt { .. }
        | Request::NotifyReply
        | Request::Init(_) => return Err(Errno::EIO),
    })
}

/// The answer to the older COPY_FILE_RANGE has 32 bits.
const NARROW_COPY_MAX: u64 = !0xfff_u32 as u64;

/// A READ must not answer more than was requested: the kernel would fail it.
fn bounded(data: Data, room: u32) -> Reply<Data> {
    let len = data.len();
    if len > room as usize {
        tracing::error!(len, room, "read answered more than it was asked for; answered EIO");
        return Err(Errno::EIO);
    }
    Ok(data)
}

async fn write_data<O: Operations>(
    fs: &O,
    by: Caller,
    node: NodeId,
    write: Write,
    payload: Option<&mut Payload>,
) -> Reply<u32> {
    let payload = payload.ok_or(Errno::EIO)?;
    if payload.bytes().len() != write.size as usize {
        return Err(Errno::EIO);
    }
    fs.write(by, node, write, payload).await
}

async fn entries<O: Operations>(
    fs: &O,
    by: Caller,
    node: NodeId,
    read: Read,
    plus: bool,
) -> Reply<Answer> {
    let mut entries = Entries::new(read.size, plus);
    fs.readdir(by, node, read, &mut entries).await?;
    Ok(Answer::data(entries.into_data()))
}
