//! Sessions that a kernel could have, to begin with.

use copyhold_fuse::protocol::{Opcode, wire};
use copyhold_serve::control::INFO;
use zerocopy::{Immutable, IntoBytes};

use super::how;

/// Nodes by their place in what is known at the beginning.
const ROOT: u8 = 0;
const DIR: u8 = 1;
const FILE: u8 = 3;
/// Of the first node that is made.
const NEW: u8 = 20;

/// An input that is being written.
struct Session(Vec<u8>);

impl Session {
    fn new() -> Session {
        Session(vec![0])
    }

    fn ask(mut self, opcode: Opcode, node: u8, args: &[&[u8]]) -> Session {
        self.push(0, opcode, node, args);
        self
    }

    /// Not waited for.
    fn hurry(mut self, opcode: Opcode, node: u8, args: &[&[u8]]) -> Session {
        self.push(how::AT_ONCE, opcode, node, args);
        self
    }

    fn push(&mut self, flags: u8, opcode: Opcode, node: u8, args: &[&[u8]]) {
        let args = args.concat();
        let place = Opcode::ALL.iter().position(|&other| other == opcode).expect("one of all");
        let names_node = match opcode {
            Opcode::Rename
            | Opcode::Rename2
            | Opcode::Link
            | Opcode::CopyFileRange
            | Opcode::CopyFileRange64 => how::NAMES_NODE,
            _ => 0,
        };
        self.0.extend([flags | how::LONG | names_node, place as u8, node]);
        self.0.extend((args.len() as u16).to_le_bytes());
        self.0.extend(args);
    }
}

fn bytes(value: &(impl IntoBytes + Immutable)) -> &[u8] {
    value.as_bytes()
}

fn create(name: &[u8]) -> Vec<u8> {
    [bytes(&wire::CreateIn { flags: 2, mode: 0o100644, umask: 0o22, open_flags: 0 }), name].concat()
}

fn write(offset: u64, data: &[u8]) -> Vec<u8> {
    let size = data.len() as u32;
    [bytes(&wire::WriteIn { offset, size, ..Default::default() }), data].concat()
}

fn read(offset: u64, size: u32) -> wire::ReadIn {
    wire::ReadIn { offset, size, ..Default::default() }
}

fn names() -> Session {
    let mkdir = wire::MkdirIn { mode: 0o755, umask: 0 };
    let mknod = wire::MknodIn { mode: 0o010644, ..Default::default() };
    let rename = wire::Rename2In { newdir: ROOT.into(), flags: 2, padding: 0 };
    Session::new()
        .ask(Opcode::Lookup, ROOT, &[b"dir\0"])
        .ask(Opcode::Mkdir, ROOT, &[bytes(&mkdir), b"a\0"])
        .ask(Opcode::Mknod, NEW, &[bytes(&mknod), b"p\0"])
        .ask(Opcode::Symlink, ROOT, &[b"s\0", b"target\0"])
        .ask(Opcode::Link, ROOT, &[bytes(&wire::LinkIn { oldnodeid: FILE.into() }), b"l\0"])
        .ask(Opcode::Rename, ROOT, &[bytes(&wire::RenameIn { newdir: DIR.into() }), b"l\0m\0"])
        .ask(Opcode::Rename2, ROOT, &[bytes(&rename), b"a\0dir\0"])
        .ask(Opcode::Unlink, ROOT, &[b"s\0"])
        .ask(Opcode::Rmdir, ROOT, &[b"snap\0"])
        .ask(Opcode::Readdir, DIR, &[bytes(&read(0, 4096))])
        .ask(Opcode::Readdirplus, DIR, &[bytes(&read(3, 4096))])
        .ask(Opcode::Readlink, 6, &[])
        .ask(Opcode::Forget, NEW, &[bytes(&wire::ForgetIn { nlookup: 1 })])
        .ask(Opcode::Fsyncdir, ROOT, &[bytes(&wire::FsyncIn::default())])
}

fn data() -> Session {
    let fallocate = wire::FallocateIn { offset: 5000, length: 9000, mode: 3, ..Default::default() };
    let copy = wire::CopyFileRangeIn {
        nodeid_out: NEW.into(),
        off_out: 65_536,
        len: 65_536,
        ..Default::default()
    };
    let lseek = wire::LseekIn { offset: 4096, whence: 3, ..Default::default() };
    let setattr = wire::SetattrIn { valid: 1 << 3, size: 3000, ..Default::default() };
    Session::new()
        .ask(Opcode::Create, ROOT, &[&create(b"f\0")])
        .hurry(Opcode::Write, NEW, &[&write(0, &[1; 5000])])
        .hurry(Opcode::Write, NEW, &[&write(70_000, &[2; 4096])])
        .hurry(Opcode::Read, FILE, &[bytes(&read(0, 65_536))])
        .ask(Opcode::Fallocate, NEW, &[bytes(&fallocate)])
        .hurry(Opcode::Fsync, NEW, &[bytes(&wire::FsyncIn::default())])
        .hurry(Opcode::Setattr, NEW, &[bytes(&setattr)])
        .ask(Opcode::CopyFileRange, FILE, &[bytes(&copy)])
        .ask(Opcode::CopyFileRange64, FILE, &[bytes(&copy)])
        .ask(Opcode::Lseek, FILE, &[bytes(&lseek)])
        .ask(Opcode::Unlink, ROOT, &[b"f\0"])
        .ask(Opcode::Flush, NEW, &[bytes(&wire::FlushIn::default())])
        .ask(Opcode::Release, NEW, &[bytes(&wire::ReleaseIn::default())])
        .ask(Opcode::Syncfs, ROOT, &[&[0; 8]])
}

fn rest() -> Session {
    let setxattr = wire::SetxattrIn { size: 5, ..Default::default() };
    let getxattr = wire::GetxattrIn { size: 4096, padding: 0 };
    let forgets = wire::BatchForgetIn { count: 1, dummy: 0 };
    let forget = wire::ForgetOne { nodeid: 2, nlookup: 1 };
    let lock = wire::LkIn {
        lk: wire::FileLock { start: 0, end: 9, kind: 1, pid: 1 },
        ..Default::default()
    };
    let ioctl = wire::IoctlIn { cmd: 0x8008_6601, out_size: 8, ..Default::default() };
    let mut session = Session::new()
        .ask(Opcode::Setxattr, FILE, &[bytes(&setxattr), b"user.x\0", b"value"])
        .ask(Opcode::Getxattr, FILE, &[bytes(&getxattr), b"user.long\0"])
        .ask(Opcode::Listxattr, FILE, &[bytes(&getxattr)])
        .ask(Opcode::Removexattr, FILE, &[b"user.x\0"])
        .ask(Opcode::BatchForget, ROOT, &[bytes(&forgets), bytes(&forget)])
        .ask(Opcode::Setlk, FILE, &[bytes(&lock)])
        .ask(Opcode::Ioctl, FILE, &[bytes(&ioctl)])
        .ask(Opcode::Tmpfile, ROOT, &[&create(b"#\0")])
        .ask(Opcode::Getattr, FILE, &[bytes(&wire::GetattrIn::default())])
        .ask(Opcode::Statx, FILE, &[bytes(&wire::StatxIn::default())]);
    for opcode in [Opcode::Statfs, Opcode::Access, Opcode::Open, Opcode::Opendir, Opcode::Poll] {
        session = session.ask(opcode, ROOT, &[&[0; 24]]);
    }
    session.ask(Opcode::Interrupt, ROOT, &[&4u64.to_ne_bytes()]).ask(Opcode::Destroy, ROOT, &[])
}

/// Numbers as large as they can be.
fn extremes() -> Session {
    let info = wire::IoctlIn { cmd: INFO.number(), out_size: u32::MAX, ..Default::default() };
    let most = i64::MAX as u64;
    let size = |size| wire::SetattrIn { valid: 1 << 3, size, ..Default::default() };
    let fallocate =
        |offset, length, mode| wire::FallocateIn { offset, length, mode, ..Default::default() };
    let copy = wire::CopyFileRangeIn {
        nodeid_out: 4,
        off_out: 1 << 43,
        len: u64::MAX,
        ..Default::default()
    };
    let mut session = Session::new()
        .ask(Opcode::Ioctl, ROOT, &[bytes(&info)])
        .ask(Opcode::Readdirplus, DIR, &[bytes(&read(u64::MAX, u32::MAX))])
        .ask(Opcode::Readdir, DIR, &[bytes(&read(0, u32::MAX))])
        .ask(Opcode::Read, FILE, &[bytes(&read(0, u32::MAX))])
        .ask(Opcode::Write, FILE, &[&write(most - 8192, &[1; 4096])])
        .ask(Opcode::Write, FILE, &[&write(1 << 43, &[1; 4096])])
        .ask(Opcode::Read, FILE, &[bytes(&read(4096, u32::MAX))])
        .ask(Opcode::Fallocate, FILE, &[bytes(&fallocate(0, 1 << 43, 3))])
        .ask(Opcode::Fallocate, FILE, &[bytes(&fallocate(0, 1 << 43, 0x10))])
        .ask(Opcode::Fallocate, FILE, &[bytes(&fallocate(1 << 40, 1 << 42, 0))])
        .ask(Opcode::Fallocate, FILE, &[bytes(&fallocate(u64::MAX, u64::MAX, 1))])
        .ask(Opcode::CopyFileRange64, FILE, &[bytes(&copy)]);
    for end in [most, u64::MAX, 1 << 43, 5000] {
        session = session.ask(Opcode::Setattr, FILE, &[bytes(&size(end))]);
        let lseek = wire::LseekIn { offset: end - 1, whence: 4, ..Default::default() };
        session = session.ask(Opcode::Lseek, FILE, &[bytes(&lseek)]);
    }
    session
}

/// Each operation with any arguments.
fn all() -> Session {
    let mut session = Session::new();
    for &opcode in Opcode::ALL {
        session = session.ask(opcode, FILE, &[&[0, 0, 0, 1].repeat(22), b"a\0b\0"]);
    }
    session
}

pub(crate) fn begin() -> Vec<Vec<u8>> {
    [names(), data(), rest(), extremes(), all()].map(|session| session.0).into()
}
