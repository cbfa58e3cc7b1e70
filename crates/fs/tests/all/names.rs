//! Directories, links, files without names, owners.

use std::sync::Arc;

use copyhold_fs::{
    Caller, FileFlags, FileKind, Filesystem, FsError, NodeId, OpenFlags, RenameFlags, SetAttr,
    SetTime, XattrSet,
};
use copyhold_types::Timestamp;

use crate::common::*;

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

#[test]
fn an_unlinked_file_lives_until_it_is_closed_and_forgotten() {
    let world = World::new(1, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &pattern(1, 50_000)).await;
        fs.fsync(node, false).await.unwrap();
        fs.unlink(ROOT, b"file").await.unwrap();
        assert_eq!(fs.getattr(node).await.unwrap().nlink, 0);
        assert_eq!(read(&fs, node, 0, 50_000).await, pattern(1, 50_000));
        write(&fs, node, 50_000, b"more").await;
        fs.release(node);
        // Looked up once by create: an O_PATH descriptor may still open it again.
        fs.open_node(node, OpenFlags::READ).await.unwrap();
        fs.release(node);
        fs.forget(node, 1);
        fs.sync().await.unwrap();
        world.close(fs).await;
        let fs = world.open().await;
        assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)));
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn what_was_open_without_a_name_at_a_crash_is_gone_after_it() {
    let mut world = World::new(2, 16384);
    let rt = world.rt.clone();
    let (fs, node) = rt.block_on(async {
        let fs = world.open().await;
        let node = create(&fs, "file").await;
        write(&fs, node, 0, &pattern(1, 500_000)).await;
        fs.fsync(node, false).await.unwrap();
        fs.unlink(ROOT, b"file").await.unwrap();
        fs.tmpfile(&Caller::ROOT, ROOT, 0o600).await.unwrap();
        fs.sync().await.unwrap();
        (fs, node)
    });
    world = world.crash(fs, 7);
    world.run(async {
        let fs = world.open().await;
        fs.pool().runtime().sleep(std::time::Duration::from_secs(1)).await;
        assert!(matches!(fs.getattr(node).await, Err(FsError::Stale)));
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn a_tmpfile_gets_a_name_once() {
    let world = World::new(3, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = fs.tmpfile(&Caller::ROOT, ROOT, 0o600).await.unwrap().node;
        write(&fs, node, 0, b"content").await;
        fs.link(node, ROOT, b"named").await.unwrap();
        assert_eq!(fs.getattr(node).await.unwrap().nlink, 1);
        fs.unlink(ROOT, b"named").await.unwrap();
        assert!(matches!(fs.link(node, ROOT, b"again").await, Err(FsError::NotFound)));
        let other = fs.tmpfile(&Caller::ROOT, ROOT, 0o600).await.unwrap().node;
        fs.link(other, ROOT, b"kept").await.unwrap();
        world.close(fs).await;
        let fs = world.open().await;
        assert_eq!(names(&fs, ROOT).await, [".", "..", "kept"]);
        check_space(&fs).await;
        world.close(fs).await;
    });
}

#[test]
fn rename_leaves_a_whiteout_and_exchanges_directories() {
    let world = World::new(4, 16384);
    world.run(async {
        let fs = world.open().await;
        let (a, b) = (mkdir(&fs, ROOT, "a").await, mkdir(&fs, ROOT, "b").await);
        mkdir(&fs, a, "x").await;
        let file = create(&fs, "file").await;
        let whiteout = RenameFlags { whiteout: true, ..PLAIN };
        fs.rename(&Caller::ROOT, ROOT, b"file", b, b"moved", whiteout).await.unwrap();
        let white = fs.lookup(ROOT, b"file").await.unwrap().attr;
        assert_eq!((white.kind, white.rdev), (FileKind::CharDevice, 0));
        assert_eq!(fs.lookup(b, b"moved").await.unwrap().node, file);
        let exchange = RenameFlags { exchange: true, ..PLAIN };
        fs.rename(&Caller::ROOT, a, b"x", b, b"moved", exchange).await.unwrap();
        assert_eq!(fs.getattr(a).await.unwrap().nlink, 2);
        assert_eq!(fs.getattr(b).await.unwrap().nlink, 3);
        let moved = fs.lookup(b, b"moved").await.unwrap();
        assert_eq!(fs.lookup(moved.node, b"..").await.unwrap().node, b);
        let under = fs.rename(&Caller::ROOT, ROOT, b"b", moved.node, b"b", PLAIN).await;
        assert!(matches!(under, Err(FsError::Invalid(_))));
        world.close(fs).await;
    });
}

#[test]
fn names_of_255_bytes_are_kept_and_longer_ones_refused() {
    let world = World::new(5, 16384);
    world.run(async {
        let fs = world.open().await;
        let long = "é".repeat(127) + "x";
        mkdir(&fs, ROOT, &long).await;
        assert!(lookup(&fs, &long).await.is_ok());
        let longer = [b'y'; 256];
        for result in [
            fs.lookup(ROOT, &longer).await.map(drop),
            fs.mkdir(&Caller::ROOT, ROOT, &longer, 0o700).await.map(drop),
            fs.rename(&Caller::ROOT, ROOT, long.as_bytes(), ROOT, &longer, PLAIN).await,
        ] {
            assert!(matches!(result, Err(FsError::NameTooLong { len: 256, max: 255 })));
        }
        world.close(fs).await;
    });
}

#[test]
fn a_set_group_id_directory_passes_its_group_on() {
    let world = World::new(6, 16384);
    world.run(async {
        let fs = world.open().await;
        let dir = mkdir(&fs, ROOT, "shared").await;
        let set = SetAttr { gid: Some(50), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, dir, &set).await.unwrap();
        let set = SetAttr { mode: Some(0o2775), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, dir, &set).await.unwrap();
        let user = Caller { groups: Some(vec![50]), ..Caller::new(1000, 1000, 0o022) };
        let sub = fs.mkdir(&user, dir, b"sub", 0o777).await.unwrap().attr;
        assert_eq!((sub.uid, sub.gid, sub.mode), (1000, 50, 0o2755));
        let stranger = Caller { groups: Some(vec![]), ..user };
        let flags = OpenFlags::READ_WRITE;
        let (file, _) = fs.create(&stranger, dir, b"f", 0o2770, flags, true).await.unwrap();
        assert_eq!((file.attr.gid, file.attr.mode), (50, 0o750));
        world.close(fs).await;
    });
}

#[test]
fn a_change_of_owner_or_content_takes_privileges_away() {
    let world = World::new(7, 16384);
    world.run(async {
        let fs = world.open().await;
        let node = create(&fs, "tool").await;
        let chmod = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        fs.setattr(&Caller::ROOT, node, &chmod(0o6755)).await.unwrap();
        let any = XattrSet::Any;
        fs.set_xattr(&Caller::ROOT, node, b"security.capability", b"x", any, false).await.unwrap();
        let kill = copyhold_fs::WriteFlags { kill_priv: true, ..Default::default() };
        fs.write(node, 0, b"new", kill).await.unwrap();
        assert_eq!(fs.getattr(node).await.unwrap().mode, 0o755);
        let gone = fs.get_xattr(node, b"security.capability").await;
        assert!(matches!(gone, Err(FsError::NoAttribute)));
        fs.setattr(&Caller::ROOT, node, &chmod(0o6745)).await.unwrap();
        let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
        // Without group execution the bit means locking, and stays.
        assert_eq!(fs.setattr(&Caller::ROOT, node, &chown).await.unwrap().mode, 0o2745);
        fs.setattr(&Caller::ROOT, node, &chmod(0o6755)).await.unwrap();
        let kill = SetAttr { kill_priv: true, ..SetAttr::default() };
        assert_eq!(fs.setattr(&Caller::ROOT, node, &kill).await.unwrap().mode, 0o755);
        world.close(fs).await;
    });
}

#[test]
fn a_copy_up_keeps_privileges_at_a_change_of_owner_until_it_has_a_name() {
    let world = World::new(7, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = Caller::ROOT;
        let privileged = async |node| {
            let chmod = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
            fs.setattr(&root, node, &chmod).await.unwrap();
            let any = XattrSet::Any;
            fs.set_xattr(&root, node, b"security.capability", b"x", any, false).await.unwrap();
        };
        let left = async |node, uid| {
            let chown = SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() };
            let mode = fs.setattr(&root, node, &chown).await.unwrap().mode;
            (mode, fs.get_xattr(node, b"security.capability").await.is_ok())
        };
        let copy = fs.tmpfile_for_copy_up(&root, ROOT, 0o600).await.unwrap().node;
        privileged(copy).await;
        assert_eq!(left(copy, 5).await, (0o6755, true));
        fs.link(copy, ROOT, b"copy").await.unwrap();
        assert_eq!(left(copy, 6).await, (0o755, false));
        let programs = fs.tmpfile(&root, ROOT, 0o600).await.unwrap().node;
        privileged(programs).await;
        assert_eq!(left(programs, 5).await, (0o755, false));
        world.close(fs).await;
    });
}

#[test]
fn flags_guard_files_and_survive() {
    let world = World::new(8, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = Caller::ROOT;
        let node = create(&fs, "log").await;
        write(&fs, node, 0, b"one").await;
        fs.set_flags(&root, node, FileFlags::APPEND, Some(7)).await.unwrap();
        assert!(fs.write(node, 1, b"x", Default::default()).await.is_err());
        write(&fs, node, 3, b"two").await;
        assert!(matches!(fs.unlink(ROOT, b"log").await, Err(FsError::NotPermitted(_))));
        let shorter = SetAttr { size: Some(0), ..SetAttr::default() };
        assert!(fs.setattr(&root, node, &shorter).await.is_err());
        expect_no_acl(&fs, node).await;
        fs.set_flags(&root, node, FileFlags::IMMUTABLE, None).await.unwrap();
        expect_no_acl(&fs, node).await;
        assert!(fs.write(node, 6, b"x", Default::default()).await.is_err());
        assert!(fs.open_node(node, OpenFlags::READ_WRITE).await.is_err());
        let user = Caller::new(1000, 1000, 0);
        assert!(fs.set_flags(&user, node, FileFlags(0), None).await.is_err());
        world.close(fs).await;
        let fs = world.open().await;
        let attr = fs.getattr(node).await.unwrap();
        assert_eq!((attr.flags, attr.project, attr.size), (FileFlags::IMMUTABLE, 7, 6));
        world.close(fs).await;
    });
}

/// Not even one that says no more than the mode does is accepted.
async fn expect_no_acl(fs: &Arc<Filesystem>, node: NodeId) {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    let mode = fs.getattr(node).await.unwrap().mode;
    let entry = |tag: u8| [tag, 0, 6, 0, 0xff, 0xff, 0xff, 0xff];
    let plain = [&[2, 0, 0, 0][..], &entry(1), &entry(4), &entry(0x20)].concat();
    for value in [&plain[..], &[2, 0, 0, 0]] {
        let set = fs.set_xattr(&Caller::ROOT, node, ACCESS, value, XattrSet::Any, false).await;
        assert!(matches!(set, Err(FsError::NotPermitted(_))), "{set:?}");
    }
    assert_eq!(fs.getattr(node).await.unwrap().mode, mode);
}

#[test]
fn times_move_as_linux_moves_them() {
    let world = World::new(9, 16384);
    world.run(async {
        let fs = world.open().await;
        let pause = || fs.pool().runtime().sleep(std::time::Duration::from_secs(2));
        let node = create(&fs, "file").await;
        let born = fs.getattr(node).await.unwrap();
        assert_eq!((born.atime, born.mtime, born.ctime), (born.btime, born.btime, born.btime));
        pause().await;
        write(&fs, node, 0, b"data").await;
        let written = fs.getattr(node).await.unwrap();
        assert!(written.mtime > born.mtime && written.ctime == written.mtime);
        pause().await;
        read(&fs, node, 0, 4).await;
        let accessed = fs.getattr(node).await.unwrap();
        assert!(accessed.atime > written.mtime && accessed.mtime == written.mtime);
        pause().await;
        read(&fs, node, 0, 4).await;
        // Relative: it is newer than the change already.
        assert_eq!(fs.getattr(node).await.unwrap().atime, accessed.atime);
        let at = Timestamp { secs: -5, nanos: 7 };
        let set = SetAttr {
            mtime: Some(SetTime::At(at)),
            atime: Some(SetTime::At(at)),
            ..SetAttr::default()
        };
        let set = fs.setattr(&Caller::ROOT, node, &set).await.unwrap();
        assert_eq!((set.atime, set.mtime), (at, at));
        assert!(set.ctime > accessed.ctime);
        let before = fs.getattr(ROOT).await.unwrap();
        pause().await;
        fs.unlink(ROOT, b"file").await.unwrap();
        let after = fs.getattr(ROOT).await.unwrap();
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
        world.close(fs).await;
    });
}

#[test]
fn a_default_acl_is_inherited_and_takes_the_place_of_the_umask() {
    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            bytes.extend(tag.to_le_bytes().into_iter().chain(perm.to_le_bytes()));
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
    const NONE: u32 = u32::MAX;
    let world = World::new(10, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = Caller::ROOT;
        let dir = mkdir(&fs, ROOT, "dir").await;
        let default = acl(&[(1, 7, NONE), (2, 6, 77), (4, 5, NONE), (16, 7, NONE), (32, 0, NONE)]);
        let (name, any) = (b"system.posix_acl_default", XattrSet::Any);
        fs.set_xattr(&root, dir, name, &default, any, false).await.unwrap();
        let user = Caller::new(1000, 1000, 0o077);
        let flags = OpenFlags::READ_WRITE;
        let (file, _) = fs.create(&user, dir, b"file", 0o664, flags, true).await.unwrap();
        assert_eq!(file.attr.mode, 0o660);
        let guest = Caller::new(77, 77, 0);
        fs.access(&guest, file.node, 6).await.unwrap();
        let other = Caller::new(78, 78, 0);
        assert!(matches!(fs.access(&other, file.node, 4).await, Err(FsError::AccessDenied)));
        let sub = fs.mkdir(&user, dir, b"sub", 0o755).await.unwrap().node;
        assert_eq!(fs.get_xattr(sub, name).await.unwrap(), default);
        // chmod narrows the mask, and with it the guest.
        let chmod = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        fs.setattr(&root, file.node, &chmod).await.unwrap();
        assert!(fs.access(&guest, file.node, 2).await.is_err());
        fs.access(&guest, file.node, 4).await.unwrap();
        let broken = fs.set_xattr(&root, dir, name, b"\x02\0\0\0\x01", any, false).await;
        assert!(matches!(broken, Err(FsError::Invalid(_))));
        world.close(fs).await;
    });
}

#[test]
fn attributes_of_64_kib_are_kept_and_larger_ones_refused() {
    let world = World::new(11, 16384);
    world.run(async {
        let fs = world.open().await;
        let root = Caller::ROOT;
        let node = create(&fs, "file").await;
        let value = pattern(5, 65_536);
        fs.set_xattr(&root, node, b"user.big", &value, XattrSet::Create, false).await.unwrap();
        let again = fs.set_xattr(&root, node, b"user.big", b"", XattrSet::Create, false).await;
        assert!(matches!(again, Err(FsError::Exists)));
        let absent = fs.set_xattr(&root, node, b"user.no", b"", XattrSet::Replace, false).await;
        assert!(matches!(absent, Err(FsError::NoAttribute)));
        let larger = vec![0; 65_537];
        let refused = fs.set_xattr(&root, node, b"user.b", &larger, XattrSet::Any, false).await;
        assert!(matches!(refused, Err(FsError::AttributeTooBig { .. })));
        world.close(fs).await;
        let fs = world.open().await;
        assert_eq!(fs.get_xattr(node, b"user.big").await.unwrap(), value);
        fs.remove_xattr(node, b"user.big").await.unwrap();
        assert!(fs.list_xattr(node).await.unwrap().is_empty());
        world.close(fs).await;
    });
}

#[test]
fn a_listing_goes_on_where_it_stopped_while_names_come_and_go() {
    let world = World::new(12, 16384);
    world.run(async {
        let fs = world.open().await;
        for n in 0..500 {
            mkdir(&fs, ROOT, &format!("stays{n}")).await;
        }
        let mut seen = std::collections::BTreeMap::new();
        let mut after = 0;
        for round in 0.. {
            let (before, mut room) = (after, 17);
            fs.readdirplus(ROOT, after, &mut |entry| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                after = entry.cookie;
                *seen.entry(entry.name.to_vec()).or_insert(0) += 1;
                true
            })
            .await
            .unwrap();
            if before == after {
                break;
            }
            mkdir(&fs, ROOT, &format!("new{round}")).await;
            if round > 3 {
                fs.rmdir(ROOT, format!("new{}", round - 3).as_bytes()).await.unwrap();
            }
        }
        for n in 0..500 {
            assert_eq!(seen.get(format!("stays{n}").as_bytes()), Some(&1), "stays{n}");
        }
        world.close(fs).await;
    });
}
