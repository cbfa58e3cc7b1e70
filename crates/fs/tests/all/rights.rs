//! Every way to change a file, against the flags that forbid it and the privileges that it takes.
//!
//! What each way is to do beside immutable and append-only files is what ext4 does; the tests of
//! the mount (`cli/tests/kernel/rights.rs`) ask ext4 itself.

use std::sync::Arc;

use copyhold_fs::{
    Attr, Caller, FallocateMode, FileFlags, Filesystem, FsError, ListFlags, NodeId, OpenFlags,
    Options, ReadFlags, RenameFlags, Result, SetAttr, SetTime, WriteFlags, XattrSet,
};
use copyhold_types::{SubvolId, Timestamp};

use crate::common::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
const NONE: u32 = u32::MAX;
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
/// Bytes of the file that is to be changed.
const SIZE: u64 = 12_288;

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Owner, group and others as in `mode`, a mask that is the group's, and `named` further users.
fn acl_of(mode: u16, named: u32) -> Vec<u8> {
    let mut entries = vec![(1, mode >> 6 & 7, NONE)];
    entries.extend((0..named).map(|uid| (2, 6, uid + 1000)));
    entries.extend([(4, 4, NONE), (16, mode >> 3 & 7, NONE), (32, mode & 7, NONE)]);
    acl(&entries)
}

fn chmod(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// A directory with a file that has everything to lose, and others to try it with.
#[derive(Clone, Copy)]
struct Site {
    top: NodeId,
    dir: NodeId,
    file: NodeId,
    source: NodeId,
}

impl Site {
    async fn new(fs: &Arc<Filesystem>, top: NodeId, name: &str) -> Site {
        let root = &Caller::ROOT;
        let by = Caller::new(1000, 1000, 0);
        let dir = fs.mkdir(root, top, name.as_bytes(), 0o777).await.unwrap().node;
        let make = async |name: &str| {
            let flags = OpenFlags::READ_WRITE;
            fs.create(&by, dir, name.as_bytes(), 0o644, flags, true).await.unwrap().0.node
        };
        let (file, source) = (make("file").await, make("source").await);
        make("other").await;
        fs.mkdir(&by, dir, b"sub", 0o755).await.unwrap();
        for (node, seed) in [(file, 1), (source, 2)] {
            fs.write(node, 0, &pattern(seed, SIZE as usize), Default::default()).await.unwrap();
            fs.fsync(node, false).await.unwrap();
        }
        let any = XattrSet::Any;
        fs.set_xattr(root, file, b"user.one", b"1", any, false).await.unwrap();
        fs.set_xattr(root, file, CAPABILITY, b"cap", any, false).await.unwrap();
        fs.set_xattr(root, file, ACCESS, &acl_of(0o755, 1), any, false).await.unwrap();
        fs.setattr(root, file, &chmod(0o6755)).await.unwrap();
        Site { top, dir, file, source }
    }

    /// All that a refused change must leave.
    async fn shown(&self, fs: &Arc<Filesystem>) -> (Vec<Attr>, Vec<u8>, Vec<u8>, Vec<String>) {
        let mut attrs = Vec::new();
        for node in [self.dir, self.file] {
            let attr = fs.getattr(node).await.unwrap();
            attrs.push(Attr { atime: Timestamp::default(), ..attr });
        }
        let content = fs.read(self.file, 0, 1 << 20).await.unwrap().to_vec();
        let mut xattrs = fs.list_xattr(self.file).await.unwrap();
        for name in [CAPABILITY, ACCESS, b"user.one"] {
            xattrs.extend(fs.get_xattr(self.file, name).await.unwrap());
        }
        (attrs, content, xattrs, names(fs, self.dir).await)
    }
}

/// What is flagged: the file, or the directory that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    File,
    Dir,
}

/// A way, what is flagged for it, and whether append-only things permit it. Immutable ones permit
/// none.
const WAYS: &[(&str, Of, bool)] = &[
    ("write before the end", Of::File, false),
    ("write at the end", Of::File, true),
    ("write blocks before the end", Of::File, false),
    ("append", Of::File, true),
    ("open to write", Of::File, false),
    ("open to append", Of::File, true),
    ("open to truncate", Of::File, false),
    ("shorten", Of::File, false),
    ("lengthen", Of::File, false),
    ("allocate", Of::File, true),
    ("punch", Of::File, false),
    ("zero", Of::File, false),
    ("copy blocks over it", Of::File, false),
    ("copy bytes over it", Of::File, false),
    ("copy blocks behind it", Of::File, true),
    ("copy bytes behind it", Of::File, true),
    ("chmod", Of::File, false),
    ("chown", Of::File, false),
    ("set times", Of::File, false),
    ("touch", Of::File, true),
    ("set an attribute", Of::File, false),
    ("remove an attribute", Of::File, false),
    ("set an ACL", Of::File, false),
    ("set an ACL that says nothing", Of::File, false),
    ("remove an ACL", Of::File, false),
    ("link", Of::File, false),
    ("unlink", Of::File, false),
    ("rename", Of::File, false),
    ("rename over it", Of::File, false),
    ("exchange", Of::File, false),
    ("create in", Of::Dir, true),
    ("mkdir in", Of::Dir, true),
    ("mknod in", Of::Dir, true),
    ("symlink in", Of::Dir, true),
    ("tmpfile in", Of::Dir, true),
    ("link into", Of::Dir, true),
    ("rename into", Of::Dir, true),
    ("subvolume in", Of::Dir, true),
    ("snapshot into", Of::Dir, true),
    ("unlink from", Of::Dir, false),
    ("rmdir from", Of::Dir, false),
    ("rename within", Of::Dir, false),
    ("rename out of", Of::Dir, false),
    ("whiteout in", Of::Dir, false),
    ("set a default ACL", Of::Dir, false),
    ("chmod the directory", Of::Dir, false),
];

/// Goes one way, as one who keeps no privileges where content changes.
async fn go(fs: &Arc<Filesystem>, at: Site, way: &str) -> Result<()> {
    let root = &Caller::ROOT;
    let user = &Caller::new(2000, 2000, 0);
    let Site { top, dir, file, source } = at;
    let kill = WriteFlags { kill_priv: true, ..WriteFlags::default() };
    let size = |size| SetAttr { size: Some(size), kill_priv: true, ..SetAttr::default() };
    let open =
        |append, truncate| OpenFlags { append, truncate, kill_priv: true, ..OpenFlags::READ_WRITE };
    let opened = async |flags| {
        fs.open_node(file, flags).await?;
        fs.release(file);
        Ok(())
    };
    let copy = async |from, to, len| {
        fs.copy_file_range_by(user, (source, from), (file, to), len).await.map(drop)
    };
    let rename = async |from: (NodeId, &[u8]), to: (NodeId, &[u8]), flags| {
        fs.rename(root, from.0, from.1, to.0, to.1, flags).await
    };
    let allocate = |len, mode| fs.fallocate_by(user, file, 4096, len, mode);
    let set_xattr = async |node, name: &[u8], value: &[u8]| {
        fs.set_xattr(root, node, name, value, XattrSet::Any, false).await
    };
    let setattr = async |node, set| fs.setattr(user, node, &set).await.map(drop);
    let at_time = Some(SetTime::At(Timestamp { secs: 7, nanos: 7 }));
    let now = Some(SetTime::Now);
    match way {
        "write before the end" => fs.write(file, 5, b"x", kill).await,
        "write at the end" => fs.write(file, SIZE, b"x", kill).await,
        "write blocks before the end" => {
            fs.write(file, 4096, &[1; 4096], WriteFlags::default()).await
        }
        "append" => fs.write(file, 0, b"x", WriteFlags { append: true, ..kill }).await,
        "open to write" => opened(open(false, false)).await,
        "open to append" => opened(open(true, false)).await,
        "open to truncate" => opened(open(true, true)).await,
        "shorten" => setattr(file, size(10)).await,
        "lengthen" => setattr(file, size(SIZE + 10)).await,
        "allocate" => allocate(SIZE, FallocateMode::Allocate { keep_size: true }).await,
        "punch" => allocate(4096, FallocateMode::Punch).await,
        "zero" => allocate(4096, FallocateMode::Zero { keep_size: true }).await,
        "copy blocks over it" => copy(0, 4096, 4096).await,
        "copy bytes over it" => copy(10, 20, 30).await,
        "copy blocks behind it" => copy(0, SIZE, 4096).await,
        "copy bytes behind it" => copy(10, SIZE, 30).await,
        "chmod" => setattr(file, chmod(0o600)).await,
        "chown" => setattr(file, SetAttr { uid: Some(5), ..SetAttr::default() }).await,
        "set times" => setattr(file, SetAttr { mtime: at_time, ..SetAttr::default() }).await,
        "touch" => setattr(file, SetAttr { atime: now, mtime: now, ..SetAttr::default() }).await,
        "set an attribute" => set_xattr(file, b"user.two", b"2").await,
        "remove an attribute" => fs.remove_xattr(file, b"user.one").await,
        "set an ACL" => set_xattr(file, ACCESS, &acl_of(0o770, 2)).await,
        "set an ACL that says nothing" => set_xattr(file, ACCESS, b"").await,
        "remove an ACL" => fs.remove_xattr(file, ACCESS).await,
        "link" => fs.link(file, dir, b"second").await.map(drop),
        "unlink" => fs.unlink(dir, b"file").await,
        "rename" => rename((dir, b"file"), (dir, b"new"), PLAIN).await,
        "rename over it" => rename((dir, b"other"), (dir, b"file"), PLAIN).await,
        "exchange" => {
            let flags = RenameFlags { exchange: true, ..PLAIN };
            rename((dir, b"other"), (dir, b"file"), flags).await
        }
        "create in" => {
            let flags = OpenFlags::READ_WRITE;
            let made = fs.create(user, dir, b"new", 0o644, flags, true).await?;
            fs.release(made.0.node);
            Ok(())
        }
        "mkdir in" => fs.mkdir(user, dir, b"new", 0o755).await.map(drop),
        "mknod in" => fs.mknod(user, dir, b"new", 0o010_644, 0).await.map(drop),
        "symlink in" => fs.symlink(user, dir, b"new", b"file").await.map(drop),
        "tmpfile in" => {
            let made = fs.tmpfile(user, dir, 0o600).await?;
            fs.release(made.node);
            Ok(())
        }
        "link into" => fs.link(source, dir, b"second").await.map(drop),
        "rename into" => {
            let name = format!("from{}", dir.ino.0);
            fs.mkdir(user, top, name.as_bytes(), 0o755).await?;
            rename((top, name.as_bytes()), (dir, b"new"), PLAIN).await
        }
        "subvolume in" => fs.create_subvolume(root, dir, b"new", None).await.map(drop),
        "snapshot into" => fs.snapshot(SubvolId::ROOT, dir, b"new", true, None).await.map(drop),
        "unlink from" => fs.unlink(dir, b"other").await,
        "rmdir from" => fs.rmdir(dir, b"sub").await,
        "rename within" => rename((dir, b"other"), (dir, b"new"), PLAIN).await,
        "rename out of" => {
            let name = format!("out{}", dir.ino.0);
            rename((dir, b"other"), (top, name.as_bytes()), PLAIN).await
        }
        "whiteout in" => {
            let flags = RenameFlags { whiteout: true, ..PLAIN };
            rename((dir, b"other"), (dir, b"new"), flags).await
        }
        "set a default ACL" => set_xattr(dir, DEFAULT, &acl_of(0o770, 1)).await,
        "chmod the directory" => setattr(dir, chmod(0o700)).await,
        _ => unreachable!("{way}"),
    }
}

#[test]
fn every_way_to_change_a_file_asks_its_flags_first() {
    let world = World::new(81, 32768);
    world.run(async {
        let fs = world.open().await;
        let root = &Caller::ROOT;
        for (n, &(way, of, appends)) in WAYS.iter().enumerate() {
            for (flag, permits) in [
                (FileFlags(0), true),
                (FileFlags::NODUMP, true),
                (FileFlags::APPEND, appends),
                (FileFlags::IMMUTABLE, false),
            ] {
                let site = Site::new(&fs, ROOT, &format!("{n}-{}", flag.0)).await;
                let flagged = if of == Of::File { site.file } else { site.dir };
                fs.set_flags(root, flagged, flag, None).await.unwrap();
                let before = site.shown(&fs).await;
                let went = go(&fs, site, way).await;
                match permits {
                    true => assert!(went.is_ok(), "{way}, {flag:?}: {went:?}"),
                    false => {
                        let refused = matches!(went, Err(FsError::NotPermitted(_)));
                        assert!(refused, "{way}, {flag:?}: {went:?}");
                        assert_eq!(site.shown(&fs).await, before, "{way}, {flag:?}");
                    }
                }
            }
        }
        world.close(fs).await;
    });
}

#[test]
fn nothing_changes_in_a_read_only_subvolume_or_mount() {
    let world = World::new(82, 32768);
    world.run(async {
        let fs = world.open().await;
        let subvol = tenants::subvolume(&fs, "tenant").await;
        let mut sites = Vec::new();
        for (n, &(way, ..)) in WAYS.iter().enumerate() {
            let top = tenants::root_of(subvol);
            sites.push((way, Site::new(&fs, top, &format!("{n}")).await));
        }
        fs.set_subvolume_read_only(subvol, true).await.unwrap();
        expect_read_only(&fs, &sites).await;
        fs.set_subvolume_read_only(subvol, false).await.unwrap();
        world.close(fs).await;
        let options = Options { read_only: true, ..Options::default() };
        let fs = world.open_with(options).await;
        expect_read_only(&fs, &sites).await;
        assert!(matches!(fs.trim(0, u64::MAX, 0).await, Err(FsError::ReadOnly { .. })));
        world.close(fs).await;
    });
}

async fn expect_read_only(fs: &Arc<Filesystem>, sites: &[(&str, Site)]) {
    for (way, site) in sites {
        let before = site.shown(fs).await;
        let went = go(fs, *site, way).await;
        assert!(matches!(went, Err(FsError::ReadOnly { .. })), "{way}: {went:?}");
        assert_eq!(site.shown(fs).await, before, "{way}");
    }
    let writes = fs.access(&Caller::ROOT, sites[0].1.file, 2).await;
    assert!(matches!(writes, Err(FsError::ReadOnly { .. })), "{writes:?}");
}

#[test]
fn an_immutable_file_keeps_its_other_flags_and_its_subvolume() {
    let world = World::new(83, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = &Caller::ROOT;
        let node = create(&fs, "file").await;
        let immutable = FileFlags::IMMUTABLE;
        let both = FileFlags(immutable.0 | FileFlags::NODUMP.0);
        fs.set_flags(root, node, immutable, None).await.unwrap();
        fs.set_flags(root, node, immutable, None).await.expect("it changes nothing");
        assert!(matches!(
            fs.set_flags(root, node, both, None).await,
            Err(FsError::NotPermitted(_))
        ));
        let project = fs.set_flags(root, node, immutable, Some(9)).await;
        assert!(matches!(project, Err(FsError::NotPermitted(_))));
        fs.set_flags(root, node, FileFlags::NODUMP, Some(9)).await.expect("clearing it is allowed");

        let subvol = tenants::subvolume(&fs, "tenant").await;
        let snapshot = tenants::snapshot(&fs, subvol, "then", true).await;
        fs.set_flags(root, tenants::root_of(subvol), immutable, None).await.unwrap();
        let deleted = fs.delete_subvolume(ROOT, b"tenant", None).await.map(drop);
        let back = fs.roll_back_subvolume(ROOT, b"tenant", snapshot, None).await.map(drop);
        for refused in [deleted, back] {
            assert!(matches!(refused, Err(FsError::NotPermitted(_))), "{refused:?}");
        }
        tenants::snapshot(&fs, subvol, "flagged", true).await;
        fs.delete_subvolume(ROOT, b"flagged", None).await.expect("nobody could clear its flag");
        world.close(fs).await;
    });
}

/// What changes content, by whom; what is left of a mode, and whether capabilities stay.
#[test]
fn a_change_of_content_takes_privileges_as_linux_does() {
    let root = Caller::ROOT;
    let stranger = Caller::new(2000, 2000, 0);
    let member = Caller::new(2000, 1000, 0);
    let allocate = FallocateMode::Allocate { keep_size: false };
    let zero = FallocateMode::Zero { keep_size: false };
    let world = World::new(84, 32768);
    world.run(async {
        let fs = world.open().await;
        let mut n = 0;
        for (mode, by_stranger, by_member) in
            [(0o6755, 0o755, 0o755), (0o6745, 0o745, 0o2745), (0o2765, 0o765, 0o2765)]
        {
            for (caller, left) in [(&root, mode), (&stranger, by_stranger), (&member, by_member)] {
                for way in 0..6 {
                    n += 1;
                    let Site { file, source, .. } = Site::new(&fs, ROOT, &format!("{n}")).await;
                    fs.setattr(&root, file, &chmod(mode)).await.unwrap();
                    match way {
                        0 => fs.fallocate_by(caller, file, 0, 9000, allocate).await.unwrap(),
                        1 => fs.fallocate_by(caller, file, 5, 9, zero).await.unwrap(),
                        2 => {
                            let punch = FallocateMode::Punch;
                            fs.fallocate_by(caller, file, 0, 4096, punch).await.unwrap();
                        }
                        3 => {
                            let ends = ((source, 0), (file, 0));
                            let copied = fs.copy_file_range_by(caller, ends.0, ends.1, SIZE).await;
                            assert_eq!(copied.unwrap(), SIZE);
                        }
                        4 => {
                            let ends = ((source, 1), (file, 2));
                            let copied = fs.copy_file_range_by(caller, ends.0, ends.1, 3).await;
                            assert_eq!(copied.unwrap(), 3);
                        }
                        _ => {
                            let kill_priv = !caller.is_privileged();
                            let set = SetAttr { size: Some(9), kill_priv, ..SetAttr::default() };
                            fs.setattr(caller, file, &set).await.unwrap();
                        }
                    }
                    let found = fs.getattr(file).await.unwrap().mode;
                    assert_eq!(found, left, "{mode:o}, {caller:?}, way {way}: {found:o}");
                    let capability = fs.get_xattr(file, CAPABILITY).await;
                    assert_eq!(capability.is_ok(), caller.is_privileged(), "{caller:?}, {way}");
                }
            }
        }
        world.close(fs).await;
    });
}

#[test]
fn a_file_that_is_written_synchronously_is_durable_behind_every_change_of_content() {
    for way in ["write", "copy", "share", "zero", "shorten", "lengthen"] {
        let mut world = World::new(85, 16384);
        let rt = world.rt.clone();
        let (fs, file, expected) = rt.block_on(async {
            let fs = world.open().await;
            let Site { file, source, .. } = Site::new(&fs, ROOT, "dir").await;
            fs.set_flags(&Caller::ROOT, file, FileFlags::SYNC, None).await.unwrap();
            fs.sync().await.unwrap();
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            let zero = FallocateMode::Zero { keep_size: true };
            match way {
                "write" => fs.write(file, 3, b"abc", Default::default()).await.unwrap(),
                "copy" => drop(fs.copy_file_range(source, 1, file, 2, 3).await.unwrap()),
                "share" => drop(fs.copy_file_range(source, 0, file, 0, 8192).await.unwrap()),
                "zero" => fs.fallocate(file, 0, 8192, zero).await.unwrap(),
                "shorten" => drop(fs.setattr(&Caller::ROOT, file, &size(9)).await.unwrap()),
                _ => drop(fs.setattr(&Caller::ROOT, file, &size(99_999)).await.unwrap()),
            }
            let expected = read(&fs, file, 0, 100_000).await;
            (fs, file, expected)
        });
        world = world.crash(fs, 3);
        world.run(async {
            let fs = world.open().await;
            assert_eq!(read(&fs, file, 0, 100_000).await, expected, "{way}");
            world.close(fs).await;
        });
    }
}

#[test]
fn acls_are_as_long_as_attributes_and_are_inherited_and_restricted_like_short_ones() {
    let world = World::new(86, 32768);
    world.run(async {
        let fs = world.open().await;
        let (root, any) = (&Caller::ROOT, XattrSet::Any);
        for (n, named) in [1, 123, 124, 400, 507, 8187].into_iter().enumerate() {
            let dir = mkdir(&fs, ROOT, &format!("d{n}")).await;
            fs.set_xattr(root, dir, DEFAULT, &acl_of(0o770, named), any, false).await.unwrap();
            let flags = OpenFlags::READ_WRITE;
            let made = fs.create(root, dir, b"file", 0o660, flags, true).await;
            let file = made.unwrap().0.node;
            let sub = fs.mkdir(root, dir, b"sub", 0o700).await.unwrap().node;
            assert_eq!(fs.get_xattr(file, ACCESS).await.unwrap(), acl_of(0o660, named));
            assert_eq!(fs.get_xattr(sub, ACCESS).await.unwrap(), acl_of(0o700, named));
            assert_eq!(fs.get_xattr(sub, DEFAULT).await.unwrap(), acl_of(0o770, named));
            fs.setattr(root, file, &chmod(0o640)).await.unwrap();
            assert_eq!(fs.get_xattr(file, ACCESS).await.unwrap(), acl_of(0o640, named));
            let last = Caller::new(1000 + named - 1, 5, 0);
            fs.access(&last, file, 4).await.unwrap();
            assert!(matches!(fs.access(&last, file, 2).await, Err(FsError::AccessDenied)));
            fs.set_xattr(root, file, ACCESS, &acl_of(0o640, 1), any, false).await.unwrap();
            fs.remove_xattr(sub, DEFAULT).await.unwrap();
        }
        let longer = acl_of(0o770, 8188);
        let refused = fs.set_xattr(root, ROOT, DEFAULT, &longer, any, false).await;
        assert!(matches!(refused, Err(FsError::AttributeTooBig { .. })), "{refused:?}");
        fs.sync().await.unwrap();
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn removing_an_acl_that_is_not_there_is_no_error() {
    let world = World::new(87, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        let before = fs.getattr(node).await.unwrap();
        fs.remove_xattr(node, ACCESS).await.unwrap();
        fs.remove_xattr(ROOT, DEFAULT).await.unwrap();
        assert_eq!(fs.getattr(node).await.unwrap(), before);
        let other = fs.remove_xattr(node, b"user.none").await;
        assert!(matches!(other, Err(FsError::NoAttribute)), "{other:?}");
        world.close(fs).await;
    });
}

/// ACL-C1: whatever a crash leaves, the mask is the group's permissions.
#[test]
fn a_mode_and_its_acl_survive_a_crash_together() {
    for seed in seeds(60) {
        let mut world = World::new(seed, 8192);
        let rt = world.rt.clone();
        let (fs, node) = rt.block_on(async {
            let fs = world.open().await;
            let node = create(&fs, "file").await;
            let (root, any) = (&Caller::ROOT, XattrSet::Any);
            fs.set_xattr(root, node, ACCESS, &acl_of(0o660, 1), any, false).await.unwrap();
            fs.sync().await.unwrap();
            let pool = fs.pool().clone();
            let commits = async {
                for _ in 0..4 {
                    pool.commit(pool.open_txg()).await.unwrap();
                }
            };
            let change = async {
                if seed % 2 == 0 {
                    fs.setattr(root, node, &chmod(0o600)).await.unwrap();
                } else {
                    // What setfacl -b sends: the group's own permissions, and no mask.
                    let plain = acl(&[(1, 6, NONE), (4, 0, NONE), (32, 0, NONE)]);
                    fs.set_xattr(root, node, ACCESS, &plain, any, false).await.unwrap();
                }
            };
            futures_util::future::join(commits, change).await;
            (fs, node)
        });
        world = world.crash(fs, seed);
        world.run(async {
            let fs = world.open().await;
            let mode = fs.getattr(node).await.unwrap().mode;
            let acl = fs.get_xattr(node, ACCESS).await;
            let granted = acl.is_ok_and(|acl| acl == acl_of(0o660, 1));
            assert_eq!(granted, mode == 0o660, "seed {seed}: mode {mode:o}");
            world.close(fs).await;
        });
    }
}

#[test]
fn a_whiteout_inherits_as_any_file_that_mknod_makes() {
    let world = World::new(88, 16384);
    world.run(async {
        let fs = world.open().await;
        let (root, any) = (&Caller::ROOT, XattrSet::Any);
        let dir = mkdir(&fs, ROOT, "dir").await;
        fs.set_xattr(root, dir, DEFAULT, &acl_of(0o770, 200), any, false).await.unwrap();
        let group = SetAttr { gid: Some(77), ..chmod(0o2775) };
        fs.setattr(root, dir, &group).await.unwrap();
        fs.mknod(root, dir, b"file", 0o100_644, 0).await.unwrap();
        let flags = RenameFlags { whiteout: true, ..PLAIN };
        fs.rename(root, dir, b"file", dir, b"new", flags).await.unwrap();
        let made = fs.mknod(root, dir, b"by-hand", 0o020_000, 0).await.unwrap();
        let white = fs.lookup(dir, b"file").await.unwrap();
        let same = |attr: Attr| (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev, attr.nlink);
        assert_eq!(same(white.attr), same(made.attr));
        let acl = fs.get_xattr(white.node, ACCESS).await.unwrap();
        assert_eq!(acl, fs.get_xattr(made.node, ACCESS).await.unwrap());
        world.close(fs).await;
    });
}

#[test]
fn an_error_in_a_listing_comes_behind_the_entries_that_were_counted() {
    use copyhold_format::item::inode_key;
    use copyhold_pool::{Tier, Transaction};
    let world = World::new(89, 16384);
    world.run(async {
        let fs = world.open().await;
        let mut nodes = Vec::new();
        for n in 0..40 {
            nodes
                .push(fs.mknod(&Caller::ROOT, ROOT, format!("{n}").as_bytes(), 0o100_644, 0).await);
        }
        let mut order = Vec::new();
        fs.readdir(ROOT, 0, &mut |entry| {
            order.push((entry.node, entry.cookie));
            true
        })
        .await
        .unwrap();
        let (lost, before) = (order[20].0, order[19].1);
        let table = fs.volumes().subvol(SubvolId::ROOT).unwrap().files();
        world.close(fs).await;
        let pool = world.pool(false).await;
        let mut tx = Transaction::new();
        tx.delete(table, inode_key(lost.ino));
        let credit = pool.admit(Tier::Write, 1, 4096).await.unwrap();
        pool.apply(credit, tx).unwrap();
        pool.close().await.unwrap();

        let fs = world.open().await;
        let flags = ListFlags { attributes: true, no_atime: false };
        let mut seen = Vec::new();
        let mut take = |entry: &copyhold_fs::DirEntry<'_>| {
            seen.push((entry.node, entry.cookie));
            true
        };
        fs.list(ROOT, 0, flags, &mut take).await.expect("entries were taken");
        assert_eq!(seen, order[..20]);
        let held = seen.iter().filter(|(node, _)| *node != ROOT).count();
        assert_eq!(fs.inodes_and_lookups().1, held);
        let next = fs.list(ROOT, before, flags, &mut |_| true).await;
        assert!(matches!(next, Err(FsError::Damaged { .. })), "{next:?}");
        for (node, _) in seen.iter().filter(|(node, _)| *node != ROOT) {
            fs.forget(*node, 1);
        }
        assert_eq!(fs.inodes_and_lookups().1, 0);
        world.close(fs).await;
    });
}

#[test]
fn who_reads_without_access_times_leaves_them() {
    let world = World::new(90, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, b"content").await;
        fs.pool().runtime().sleep(std::time::Duration::from_secs(2)).await;
        let atimes = async || {
            let file = fs.getattr(node).await.unwrap().atime;
            (file, fs.getattr(ROOT).await.unwrap().atime)
        };
        let before = atimes().await;
        let quiet = ReadFlags { no_atime: true, ..ReadFlags::default() };
        assert_eq!(fs.read_with(node, 0, 7, quiet).await.unwrap().to_vec(), b"content");
        let listing = ListFlags { no_atime: true, ..ListFlags::default() };
        fs.list(ROOT, 0, listing, &mut |_| true).await.unwrap();
        assert_eq!(atimes().await, before);
        read(&fs, node, 0, 7).await;
        names(&fs, ROOT).await;
        let after = atimes().await;
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
        world.close(fs).await;
    });
}

#[test]
fn a_directory_has_more_than_65_000_subdirectories() {
    const MANY: u32 = 65_100;
    let world = World::with_log(91, 131_072, 16 << 20);
    world.run(async {
        let fs = world.open_with(Options { count_lookups: false, ..Options::default() }).await;
        let by = &Caller::ROOT;
        let dir = mkdir(&fs, ROOT, "dir").await;
        for n in 0..MANY {
            fs.mkdir(by, dir, format!("{n}").as_bytes(), 0o755).await.unwrap();
        }
        assert_eq!(fs.getattr(dir).await.unwrap().nlink, MANY + 2);
        fs.create_subvolume(by, dir, b"subvolume", None).await.unwrap();
        mkdir(&fs, ROOT, "from-outside").await;
        fs.rename(by, ROOT, b"from-outside", dir, b"inside", PLAIN).await.unwrap();
        assert_eq!(fs.getattr(dir).await.unwrap().nlink, MANY + 4);
        for n in 0..200 {
            fs.rmdir(dir, format!("{n}").as_bytes()).await.unwrap();
        }
        world.close(fs).await;
        let fs = world.open().await;
        assert_eq!(fs.getattr(dir).await.unwrap().nlink, MANY + 4 - 200);
        world.close(fs).await;
    });
}
