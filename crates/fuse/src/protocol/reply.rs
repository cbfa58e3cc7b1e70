//! Answers: results of operations, put into the kernel's bytes.
//!
//! An [`Answer`] is an error, or a body that is either *fixed* (one of the structures of
//! [`wire`], kept inline) or *data* (read bytes, entries, attribute values), which is never copied
//! on its way into `writev`. The header is added when it is sent.

use std::io::IoSlice;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use zerocopy::{Immutable, IntoBytes};

use copyhold_types::{Buf, Timestamp};

use super::request::{Handle, Lock, LockKind, NodeId};
use super::wire;
use crate::Errno;

/// The attributes that stat(2) and statx(2) show of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Time of birth, where it is known.
    pub btime: Option<Timestamp>,
    /// Type and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// As the kernel packs it for user space (`makedev`, 32 bits).
    pub rdev: u32,
    pub blksize: u32,
    /// `STATX_ATTR_…` that are set, and those that could be.
    pub attributes: u64,
    pub attributes_mask: u64,
}

/// Attributes and for how long the kernel may use them without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrReply {
    pub attr: Attr,
    pub valid: Duration,
}

/// A name that was looked up or made. Each one that is answered is a lookup to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub node: NodeId,
    /// With the node unique for the life of the filesystem (NFS handles).
    pub generation: u64,
    pub attr: Attr,
    pub entry_valid: Duration,
    pub attr_valid: Duration,
}

/// The answer to LOOKUP. Absence can be remembered by the kernel too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    Found(Entry),
    Absent { valid: Duration },
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    pub handle: Handle,
    /// See [`super::flags::fopen`].
    pub flags: u32,
}

/// statfs(2); all counts in units of `frsize`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
    pub bsize: u32,
    pub frsize: u32,
    pub name_max: u32,
}

/// The result of an ioctl: the return value of the call, and the bytes copied to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    pub result: i32,
    pub output: Vec<u8>,
}

/// A piece of [`Data`].
#[derive(Clone, Debug)]
pub enum Segment {
    Bytes(Vec<u8>),
    /// `len` bytes of a shared buffer.
    Part {
        buf: Buf,
        start: usize,
        len: usize,
    },
    Zeros(usize),
}

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Linux takes 1,024 pieces in one `writev`.
const PIECES_MAX: usize = 1000;

/// Bytes on their way to the kernel, in pieces, not copied.
#[derive(Clone, Debug, Default)]
pub struct Data {
    segments: SmallVec<[Segment; 1]>,
}

impl Data {
    pub fn zeros(len: usize) -> Data {
        Data { segments: smallvec![Segment::Zeros(len)] }
    }

    pub fn push(&mut self, segment: Segment) {
        if let Segment::Part { buf, start, len } = &segment {
            assert!(start + len <= buf.len(), "segment {start}+{len} of {} bytes", buf.len());
        }
        self.segments.push(segment);
    }

    pub fn len(&self) -> usize {
        self.segments
            .iter()
            .map(|segment| match segment {
                Segment::Bytes(bytes) => bytes.len(),
                Segment::Part { len, .. } | Segment::Zeros(len) => *len,
            })
            .sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.each_piece(|piece| all.extend_from_slice(piece));
        all
    }

    fn each_piece<'a>(&'a self, mut visit: impl FnMut(&'a [u8])) {
        for segment in &self.segments {
            match segment {
                Segment::Bytes(bytes) => visit(bytes),
                Segment::Part { buf, start, len } => visit(&buf[*start..start + len]),
                Segment::Zeros(len) => {
                    (0..*len).step_by(ZEROS.len()).for_each(|at| {
                        visit(&ZEROS[..ZEROS.len().min(len - at)]);
                    });
                }
            }
        }
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Data {
        Data { segments: smallvec![Segment::Bytes(bytes)] }
    }
}

const FIXED_MAX: usize = size_of::<wire::StatxOut>();

/// The larger variant is the one to be kept without a box: most answers are fixed.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum Body {
    Fixed { len: u16, bytes: [u8; FIXED_MAX] },
    Data(Data),
}

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    error: i32,
    body: Option<Body>,
}

impl Answer {
    pub const OK: Answer = Answer { error: 0, body: None };

    pub fn error(errno: Errno) -> Answer {
        Answer { error: -errno.code(), body: None }
    }

    pub fn is_error(&self) -> bool {
        self.error != 0
    }

    fn fixed<T: IntoBytes + Immutable>(value: &T) -> Answer {
        Answer::pair(value, &[0u8; 0])
    }

    fn pair<A: IntoBytes + Immutable, B: IntoBytes + Immutable + ?Sized>(
        first: &A,
        second: &B,
    ) -> Answer {
        let (first, second) = (first.as_bytes(), second.as_bytes());
        let len = first.len() + second.len();
        let mut bytes = [0; FIXED_MAX];
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..len].copy_from_slice(second);
        Answer { error: 0, body: Some(Body::Fixed { len: len as u16, bytes }) }
    }

    pub fn data(data: Data) -> Answer {
        Answer { error: 0, body: Some(Body::Data(data)) }
    }

    pub fn init(init: &wire::InitOut) -> Answer {
        Answer::fixed(init)
    }

    pub fn lookup(lookup: &Lookup) -> Answer {
        match lookup {
            Lookup::Found(entry) => Answer::entry(entry),
            Lookup::Absent { valid } => {
                let (entry_valid, entry_valid_nsec) = seconds(*valid);
                Answer::fixed(&wire::EntryOut {
                    entry_valid,
                    entry_valid_nsec,
                    ..Default::default()
                })
            }
        }
    }

    pub fn entry(entry: &Entry) -> Answer {
        Answer::fixed(&entry_out(entry))
    }

    /// CREATE and TMPFILE.
    pub fn created(entry: &Entry, opened: &Opened) -> Answer {
        Answer::pair(&entry_out(entry), &open_out(opened))
    }

    pub fn opened(opened: &Opened) -> Answer {
        Answer::fixed(&open_out(opened))
    }

    pub fn attr(reply: &AttrReply) -> Answer {
        let (attr_valid, attr_valid_nsec) = seconds(reply.valid);
        let attr = attr_wire(&reply.attr);
        Answer::fixed(&wire::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr })
    }

    pub fn statx(reply: &AttrReply) -> Answer {
        let (attr_valid, attr_valid_nsec) = seconds(reply.valid);
        let stat = statx_wire(&reply.attr);
        Answer::fixed(&wire::StatxOut { attr_valid, attr_valid_nsec, stat, ..Default::default() })
    }

    pub fn written(size: u32) -> Answer {
        Answer::fixed(&wire::WriteOut { size, padding: 0 })
    }

    pub fn copied(bytes_copied: u64) -> Answer {
        Answer::fixed(&wire::CopyFileRangeOut { bytes_copied })
    }

    pub fn statfs(statfs: &Statfs) -> Answer {
        Answer::fixed(&wire::Kstatfs {
            blocks: statfs.blocks,
            bfree: statfs.free,
            bavail: statfs.available,
            files: statfs.files,
            ffree: statfs.files_free,
            bsize: statfs.bsize,
            namelen: statfs.name_max,
            frsize: statfs.frsize,
            ..Default::default()
        })
    }

    /// GETXATTR and LISTXATTR: with `room` 0 the answer is only the size.
    pub fn xattr(value: Vec<u8>, room: u32) -> Answer {
        match u32::try_from(value.len()) {
            Ok(size) if room == 0 => Answer::fixed(&wire::GetxattrOut { size, padding: 0 }),
            Ok(size) if size <= room => Answer::data(value.into()),
            _ => Answer::error(Errno::ERANGE),
        }
    }

    /// GETLK: the conflicting lock, or none.
    pub fn lock(conflict: Option<&Lock>) -> Answer {
        let lk = conflict.map_or_else(
            || wire::FileLock { kind: libc::F_UNLCK as u32, ..Default::default() },
            |lock| wire::FileLock {
                start: lock.start,
                end: lock.end,
                kind: match lock.kind {
                    LockKind::Read => libc::F_RDLCK,
                    LockKind::Write => libc::F_WRLCK,
                    LockKind::Unlock => libc::F_UNLCK,
                } as u32,
                pid: lock.pid,
            },
        );
        Answer::fixed(&wire::LkOut { lk })
    }

    pub fn seek(offset: u64) -> Answer {
        Answer::fixed(&wire::LseekOut { offset })
    }

    pub fn bmap(block: u64) -> Answer {
        Answer::fixed(&wire::BmapOut { block })
    }

    pub fn poll(revents: u32) -> Answer {
        Answer::fixed(&wire::PollOut { revents, padding: 0 })
    }

    /// `reply.output` is cut to the `room` that the caller has.
    pub fn ioctl(mut reply: IoctlReply, room: u32) -> Answer {
        let header = wire::IoctlOut { result: reply.result, ..Default::default() };
        reply.output.truncate(room as usize);
        let mut data = Data::from(header.as_bytes().to_vec());
        data.push(Segment::Bytes(reply.output));
        Answer::data(data)
    }

    pub fn body_len(&self) -> usize {
        match &self.body {
            None => 0,
            Some(Body::Fixed { len, .. }) => usize::from(*len),
            Some(Body::Data(data)) => data.len(),
        }
    }

    /// Writes the body behind the header to the start of `place`, which must have room for it.
    pub fn write_body(&self, place: &mut [u8]) {
        match &self.body {
            None => {}
            Some(Body::Fixed { len, bytes }) => {
                let len = usize::from(*len);
                place[..len].copy_from_slice(&bytes[..len]);
            }
            Some(Body::Data(data)) => {
                let mut rest = place;
                data.each_piece(|piece| {
                    let (here, behind) = std::mem::take(&mut rest).split_at_mut(piece.len());
                    here.copy_from_slice(piece);
                    rest = behind;
                });
            }
        }
    }

    /// The header of the message.
    pub fn header(&self, unique: u64) -> wire::OutHeader {
        let len = (size_of::<wire::OutHeader>() + self.body_len()) as u32;
        wire::OutHeader { len, error: self.error, unique }
    }

    /// Hands `send` the whole message in pieces, as `writev` takes them.
    pub fn with_message<R>(&self, unique: u64, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        let header = self.header(unique);
        let mut pieces: SmallVec<[IoSlice<'_>; 4]> = smallvec![IoSlice::new(header.as_bytes())];
        match &self.body {
            None => {}
            Some(Body::Fixed { len, bytes }) => {
                pieces.push(IoSlice::new(&bytes[..usize::from(*len)]));
            }
            Some(Body::Data(data)) => data.each_piece(|piece| pieces.push(IoSlice::new(piece))),
        }
        if pieces.len() <= PIECES_MAX {
            return send(&pieces);
        }
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        send(&[IoSlice::new(&all)])
    }
}

fn seconds(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

pub(super) fn entry_out(entry: &Entry) -> wire::EntryOut {
    let (entry_valid, entry_valid_nsec) = seconds(entry.entry_valid);
    let (attr_valid, attr_valid_nsec) = seconds(entry.attr_valid);
    wire::EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr_wire(&entry.attr),
    }
}

fn open_out(opened: &Opened) -> wire::OpenOut {
    wire::OpenOut { fh: opened.handle.0, open_flags: opened.flags, backing_id: 0 }
}

fn attr_wire(attr: &Attr) -> wire::Attr {
    wire::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.secs as u64,
        mtime: attr.mtime.secs as u64,
        ctime: attr.ctime.secs as u64,
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

fn statx_wire(attr: &Attr) -> wire::Statx {
    let time = |at: Timestamp| wire::SxTime { tv_sec: at.secs, tv_nsec: at.nanos, reserved: 0 };
    let birth = if attr.btime.is_some() { libc::STATX_BTIME } else { 0 };
    wire::Statx {
        mask: libc::STATX_BASIC_STATS | birth,
        blksize: attr.blksize,
        attributes: attr.attributes,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        attributes_mask: attr.attributes_mask,
        atime: time(attr.atime),
        btime: time(attr.btime.unwrap_or_default()),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: libc::major(attr.rdev.into()),
        rdev_minor: libc::minor(attr.rdev.into()),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(answer: &Answer) -> Vec<u8> {
        answer.with_message(7, |pieces| pieces.concat_all())
    }

    trait ConcatAll {
        fn concat_all(&self) -> Vec<u8>;
    }

    impl ConcatAll for [IoSlice<'_>] {
        fn concat_all(&self) -> Vec<u8> {
            self.iter().flat_map(|piece| piece.to_vec()).collect()
        }
    }

    #[test]
    fn a_message_says_its_own_length() {
        let data = Data::from(b"abc".to_vec());
        for answer in [Answer::OK, Answer::error(Errno::EIO), Answer::seek(9), Answer::data(data)] {
            let bytes = message(&answer);
            assert_eq!(bytes[..4], (bytes.len() as u32).to_ne_bytes());
            assert_eq!(bytes[8..16], 7u64.to_ne_bytes());
        }
        assert_eq!(message(&Answer::error(Errno::ENOENT))[4..8], (-2i32).to_ne_bytes());
    }

    #[test]
    fn an_extended_attribute_answers_size_value_or_erange() {
        assert_eq!(Answer::xattr(vec![1; 5], 0).body_len(), size_of::<wire::GetxattrOut>());
        assert_eq!(Answer::xattr(vec![1; 5], 5).body_len(), 5);
        assert!(Answer::xattr(vec![1; 5], 4).is_error());
        assert_eq!(Answer::xattr(vec![], 4).body_len(), 0);
    }

    #[test]
    fn data_keeps_its_pieces_in_order_even_when_there_are_too_many() {
        let mut data = Data::default();
        let mut expected = Vec::new();
        for n in 0..1500u32 {
            let byte = n as u8;
            data.push(Segment::Bytes(vec![byte; 3]));
            expected.extend_from_slice(&[byte; 3]);
        }
        data.push(Segment::Zeros(70_000));
        expected.resize(expected.len() + 70_000, 0);
        data.push(Segment::Part { buf: Buf::from_bytes(b"hello"), start: 1, len: 3 });
        expected.extend_from_slice(b"ell");
        assert_eq!(data.len(), expected.len());
        assert_eq!(data.to_vec(), expected);
        let answer = Answer::data(data);
        let mut place = vec![9; expected.len() + 5];
        answer.write_body(&mut place);
        assert_eq!(
            (&place[..expected.len()], &place[expected.len()..]),
            (&expected[..], &[9; 5][..])
        );
        assert_eq!(message(&answer)[16..], expected);
    }

    #[test]
    fn times_before_1970_survive() {
        let before = Timestamp { secs: -5, nanos: 3 };
        let attr = Attr { mtime: before, ..crate::protocol::tests::attr(1, libc::S_IFREG) };
        assert_eq!(attr_wire(&attr).mtime as i64, -5);
        assert_eq!(statx_wire(&attr).mtime.tv_sec, -5);
    }
}
