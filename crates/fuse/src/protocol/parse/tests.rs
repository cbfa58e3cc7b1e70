use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn header(opcode: Opcode, args: &[u8], extension_words: u16) -> wire::InHeader {
    wire::InHeader {
        len: (size_of::<wire::InHeader>() + args.len()) as u32,
        opcode: opcode as u32,
        unique: 2,
        nodeid: 1,
        total_extlen: extension_words,
        ..Default::default()
    }
}

fn parse(opcode: Opcode, args: &[u8]) -> Result<Request<'_>, ParseError> {
    Request::parse(&header(opcode, args, 0), args, Dialect { setxattr_ext: true })
}

#[test]
fn a_name_ends_at_its_nul_and_is_not_empty() {
    let Ok(Request::Lookup { name }) = parse(Opcode::Lookup, b"abc\0") else { panic!() };
    assert_eq!(name, b"abc");
    for bad in [&b""[..], b"abc", b"\0"] {
        assert_eq!(
            parse(Opcode::Lookup, bad).unwrap_err(),
            ParseError::Name { opcode: Opcode::Lookup }
        );
    }
}

#[test]
fn only_the_attributes_that_are_valid_are_set() {
    use flags::fattr;
    let valid = fattr::SIZE | fattr::MTIME | fattr::MTIME_NOW | fattr::KILL_SUIDGID | fattr::ATIME;
    let atime = (-3i64) as u64;
    let args = wire::SetattrIn { valid, size: 9, uid: 5, atime, ..Default::default() };
    let Ok(Request::Setattr(set)) = parse(Opcode::Setattr, args.as_bytes()) else { panic!() };
    let expected = SetAttr {
        size: Some(9),
        mtime: Some(SetTime::Now),
        atime: Some(SetTime::At(Timestamp { secs: -3, nanos: 0 })),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    assert_eq!(set, expected);
}

#[test]
fn both_renames_become_one() {
    let names = b"old\0new\0";
    let args = [wire::RenameIn { newdir: 7 }.as_bytes(), names].concat();
    let Ok(Request::Rename(rename)) = parse(Opcode::Rename, &args) else { panic!() };
    assert_eq!((rename.new_parent, rename.flags), (NodeId(7), 0));
    let two = wire::Rename2In { newdir: 7, flags: libc::RENAME_EXCHANGE, padding: 0 };
    let args = [two.as_bytes(), names].concat();
    let Ok(Request::Rename(rename)) = parse(Opcode::Rename2, &args) else { panic!() };
    assert_eq!((rename.name, rename.new_name), (&b"old"[..], &b"new"[..]));
    assert_eq!(rename.flags, libc::RENAME_EXCHANGE);
}

#[test]
fn a_security_context_comes_behind_the_name() {
    let body = [
        wire::ExtHeader { size: 8 + 8 + 2 + 3, kind: 1 }.as_bytes(),
        wire::Secctx { size: 3, padding: 0 }.as_bytes(),
        b"l\0abc\0\0\0",
    ]
    .concat();
    let args = [wire::MkdirIn { mode: 0o755, umask: 0o22 }.as_bytes(), b"dir\0", &body].concat();
    let header = header(Opcode::Mkdir, &args, (body.len() / 8) as u16);
    let request = Request::parse(&header, &args, Dialect::default()).unwrap();
    let Request::Mkdir { name, new } = request else { panic!() };
    assert_eq!((name, new.mode, new.umask), (&b"dir"[..], libc::S_IFDIR | 0o755, 0o22));
    let context = new.extensions.security_contexts().next().unwrap();
    assert_eq!((context.name, context.value), (&b"l"[..], &b"abc"[..]));
}

#[test]
fn setxattr_has_a_short_and_a_long_form() {
    let long = wire::SetxattrIn { size: 2, flags: 1, setxattr_flags: 1, padding: 0 };
    let args = [long.as_bytes(), b"user.a\0vv"].concat();
    let Ok(Request::Setxattr(set)) = parse(Opcode::Setxattr, &args) else { panic!() };
    assert_eq!((set.name, set.value, set.kill_sgid), (&b"user.a"[..], &b"vv"[..], true));
    let args = [&long.as_bytes()[..8], b"user.a\0vv"].concat();
    let short = Request::parse(&header(Opcode::Setxattr, &args, 0), &args, Dialect::default());
    let Ok(Request::Setxattr(set)) = short else { panic!() };
    assert_eq!((set.value, set.flags, set.kill_sgid), (&b"vv"[..], 1, false));
}

#[test]
fn a_batch_of_forgets_is_counted_before_it_is_read() {
    let forgets = [wire::ForgetOne { nodeid: 4, nlookup: 2 }; 2];
    let args = [wire::BatchForgetIn { count: 2, dummy: 0 }.as_bytes(), forgets.as_bytes()].concat();
    let Ok(Request::BatchForget(list)) = parse(Opcode::BatchForget, &args) else { panic!() };
    let all: Vec<Forget> = list.into_iter().collect();
    assert_eq!(all, [Forget { node: NodeId(4), lookups: 2 }; 2]);
    assert!(parse(Opcode::BatchForget, &args[..args.len() - 1]).is_err());
}

#[test]
fn locks_with_an_unknown_kind_or_an_end_before_the_start_are_refused() {
    let lk = wire::FileLock { start: 5, end: 9, kind: libc::F_WRLCK as u32, pid: 3 };
    let lock = |lk| wire::LkIn { owner: 8, lk, lk_flags: flags::LK_FLOCK, ..Default::default() };
    let args = lock(lk);
    let Ok(Request::Setlkw(found)) = parse(Opcode::Setlkw, args.as_bytes()) else { panic!() };
    assert_eq!((found.kind, found.flock, found.end), (LockKind::Write, true, 9));
    assert!(parse(Opcode::Setlk, lock(wire::FileLock { kind: 9, ..lk }).as_bytes()).is_err());
    assert!(parse(Opcode::Setlk, lock(wire::FileLock { end: 4, ..lk }).as_bytes()).is_err());
}

#[test]
fn a_message_must_be_as_long_as_it_says() {
    let args = b"abc\0";
    let mut message = [header(Opcode::Lookup, args, 0).as_bytes(), args].concat();
    assert!(parse_prefix(&message, message.len()).is_ok());
    message.push(0);
    assert_eq!(
        parse_prefix(&message, message.len()),
        Err(ParseError::Length { said: 44, found: 45 })
    );
    assert_eq!(parse_prefix(&message, 39), Err(ParseError::NoHeader { len: 39 }));
}

impl PartialEq for wire::InHeader {
    fn eq(&self, other: &wire::InHeader) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

proptest! {
    /// Visits the items of iterators, too: they were checked only by counting.
    #[test]
    fn any_bytes_give_a_request_or_an_error(
        number in prop_oneof![0u32..64, any::<u32>()],
        args in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
        extension_words in prop_oneof![0u16..8, any::<u16>()],
        setxattr_ext: bool,
    ) {
        let header = wire::InHeader {
            opcode: number,
            total_extlen: extension_words,
            ..header(Opcode::Lookup, &args, 0)
        };
        match Request::parse(&header, &args, Dialect { setxattr_ext }) {
            Ok(Request::BatchForget(list)) => {
                prop_assert!(list.into_iter().count() * 16 <= args.len());
            }
            Ok(
                Request::Mkdir { new, .. } | Request::Mknod { new, .. }
                | Request::Create { new, .. } | Request::Tmpfile { new, .. }
                | Request::Symlink { new, .. }
            ) => {
                let contexts = new.extensions.security_contexts();
                prop_assert!(contexts.map(|one| one.name.len()).sum::<usize>() <= args.len());
                prop_assert!(new.extensions.groups().count() * 4 <= args.len());
            }
            Ok(_) | Err(_) => {}
        }
    }

    #[test]
    fn any_message_has_a_header_or_not(
        message in prop::collection::vec(any::<u8>(), 0..100),
        len in 0usize..200,
    ) {
        let _ = parse_prefix(&message, len);
    }
}

/// Found by fuzzing: an answer of 4 GiB of zeros was put together in memory.
#[test]
fn a_read_asks_for_no_more_than_a_mount_can() {
    let args = wire::ReadIn { size: u32::MAX, ..Default::default() };
    for opcode in [Opcode::Read, Opcode::Readdir, Opcode::Readdirplus] {
        match parse(opcode, args.as_bytes()) {
            Ok(Request::Read(read) | Request::Readdir(read) | Request::Readdirplus(read)) => {
                assert_eq!(read.size, 1 << 20);
            }
            other => panic!("{other:?}"),
        }
    }
}
