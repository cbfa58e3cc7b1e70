//! Who may do what.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};

use rustix::fs::{IFlags, XattrFlags, getxattr, ioctl_getflags, ioctl_setflags, setxattr};
use rustix::io::Errno;

use crate::observer::{as_nobody, number, tool};
use crate::site::{NOBODY, Site};

#[test]
fn a_change_of_owner_and_a_write_by_a_stranger_take_setuid_away() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("program");
    fs::write(&path, "x").unwrap();
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
    chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!(mode(), 0o755);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    assert!(as_nobody(&site, "echo longer > program"));
    assert_eq!(mode(), 0o777);
    for write in [
        "echo more >> program",
        "dd if=/dev/zero bs=4k count=1 oflag=direct conv=notrunc of=program",
    ] {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert!(as_nobody(&site, write));
        assert_eq!(mode(), 0o777, "behind `{write}`");
    }
}

#[test]
fn umask_and_the_group_of_a_setgid_directory_are_applied() {
    let Some(site) = Site::mounted(&[]) else { return };
    let dir = site.path("dir");
    fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(77)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o2777)).unwrap();
    assert!(as_nobody(&site, "umask 027; mkdir dir/sub; touch dir/file"));
    let sub = fs::metadata(dir.join("sub")).unwrap();
    assert_eq!((sub.mode() & 0o7777, sub.gid(), sub.uid()), (0o2750, 77, NOBODY));
    let file = fs::metadata(dir.join("file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.gid()), (0o640, 77));
}

#[test]
fn permissions_and_the_sticky_bit_hold_against_others() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("secret"), "mine").unwrap();
    fs::set_permissions(site.path("secret"), Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&site, "cat secret"));
    assert!(!as_nobody(&site, "touch new"));
    assert!(!as_nobody(&site, "chown 65534 secret"));
    fs::create_dir(site.path("tmp")).unwrap();
    fs::set_permissions(site.path("tmp"), Permissions::from_mode(0o1777)).unwrap();
    fs::write(site.path("tmp/mine"), "").unwrap();
    assert!(as_nobody(&site, "touch tmp/his && rm tmp/his"));
    assert!(!as_nobody(&site, "rm -f tmp/mine"));
}

/// An ACL as the kernel has it.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn acls_grant_deny_are_inherited_and_follow_chmod() {
    const ANY: u32 = u32::MAX;
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    fs::write(&path, "secret").unwrap();
    let granting = acl(&[(1, 6, ANY), (2, 4, NOBODY), (4, 0, ANY), (0x10, 4, ANY), (0x20, 0, ANY)]);
    setxattr(&path, "system.posix_acl_access", &granting, XattrFlags::empty()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "the mask is the group's");
    assert!(as_nobody(&site, "cat file > /dev/null"));
    assert!(!as_nobody(&site, "echo > file"));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&site, "cat file > /dev/null"), "chmod sets the mask");

    fs::create_dir(site.path("dir")).unwrap();
    let inherited =
        acl(&[(1, 7, ANY), (2, 7, NOBODY), (4, 5, ANY), (0x10, 7, ANY), (0x20, 0, ANY)]);
    let name = "system.posix_acl_default";
    setxattr(site.path("dir"), name, &inherited, XattrFlags::empty()).unwrap();
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o666).open(site.path("dir/file"));
    assert_eq!(file.unwrap().metadata().unwrap().mode() & 0o777, 0o660, "no umask here");
    fs::create_dir(site.path("dir/sub")).unwrap();
    site.again();
    let mut value = [0; 100];
    let len = getxattr(site.path("dir/sub"), name, &mut value).unwrap();
    assert_eq!(value[..len], inherited);
}

#[test]
fn immutable_and_append_only_files_are_guarded() {
    let Some(site) = Site::mounted(&[]) else { return };
    let path = site.path("file");
    fs::write(&path, "abc").unwrap();
    let file = File::open(&path).unwrap();
    let denied = |result: std::io::Result<()>| number(result.unwrap_err()) == Errno::PERM;
    ioctl_setflags(&file, IFlags::APPEND).unwrap();
    assert!(denied(OpenOptions::new().write(true).open(&path).map(drop)));
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"d").unwrap();
    assert!(denied(fs::remove_file(&path)));
    ioctl_setflags(&file, IFlags::IMMUTABLE | IFlags::NOATIME).unwrap();
    drop(file);
    site.again();
    let file = File::open(&path).unwrap();
    assert_eq!(ioctl_getflags(&file).unwrap(), IFlags::IMMUTABLE | IFlags::NOATIME);
    assert!(denied(OpenOptions::new().append(true).open(&path).map(drop)));
    assert!(denied(fs::rename(&path, site.path("other"))));
    assert!(denied(fs::hard_link(&path, site.path("other"))));
    assert!(denied(fs::set_permissions(&path, Permissions::from_mode(0o600))));
    assert!(!as_nobody(&site, "chattr -i file"));
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"abcd");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_change_of_flags_shows_in_ctime_at_once() {
    let Some(site) = Site::mounted(&[]) else { return };
    fs::write(site.path("file"), b"1").unwrap();
    let changed = || {
        let found = fs::metadata(site.path("file")).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    let before = changed();
    assert!(tool("chattr", &["+d"], &site.path("file")).status.success());
    assert!(changed() > before, "{before:?}");
}
