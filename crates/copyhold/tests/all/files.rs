//! Files by handle and by path, with the traits and types of `std`.

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use copyhold::{
    ChangeKind, CreateOptions, Error, FileKind, FileOptions, FsError, GroupId, LimitKind,
    OpenOptions, Pool, SetAttr, SetTime, Timestamp,
};

fn new_pool(dir: &tempfile::TempDir) -> Pool {
    let path = dir.path().join("pool.img");
    Pool::create(&path, &CreateOptions::sized(64 << 20)).unwrap();
    Pool::open(&path, OpenOptions::default()).unwrap()
}

#[test]
fn a_file_is_read_written_and_sought_as_one_of_std() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    let mut file = volume.create("lines").unwrap();
    for line in 0..1000 {
        writeln!(file, "line {line}").unwrap();
    }
    let end = file.stream_position().unwrap();
    assert_eq!(file.metadata().unwrap().size, end);
    file.rewind().unwrap();
    let lines: io::Result<Vec<String>> = BufReader::new(&file).lines().collect();
    assert_eq!(lines.unwrap()[999], "line 999");
    assert_eq!(file.seek(SeekFrom::End(-4)).unwrap(), end - 4);
    let mut tail = String::new();
    file.read_to_string(&mut tail).unwrap();
    assert_eq!(tail, "999\n");
    assert_eq!(file.seek(SeekFrom::Current(-(end as i64) - 1)).unwrap_err().kind(), InvalidInput);
    file.write_all_at(b"LINE", 0).unwrap();
    let mut head = [0; 6];
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"LINE 0");
    assert_eq!(file.read_at(&mut head, end).unwrap(), 0);
    file.set_len(6).unwrap();
    file.sync_data().unwrap();
    assert_eq!(volume.read("lines").unwrap(), b"LINE 0");
    file.allocate(0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().size, 1 << 20);
    file.punch_hole(0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().blocks, 0);
    assert_eq!(file.path(), Path::new("lines"));

    // By its handle it is there without a name, and behind the end of the pool it is not.
    volume.remove_file("lines").unwrap();
    file.write_all_at(b"nameless", 0).unwrap();
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"namele");
    pool.close().unwrap();
    let gone = file.metadata().unwrap_err();
    assert!(matches!(gone, Error::Filesystem(FsError::ShutDown)), "{gone}");
}

use ErrorKind::InvalidInput;

#[test]
fn options_of_an_open_decide_what_a_file_takes() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    let open = |path: &str, options: FileOptions| volume.open_with(path, &options);
    assert_eq!(open("a", FileOptions::read_write()).err().unwrap().kind(), ErrorKind::NotFound);
    let new = FileOptions { create_new: true, ..FileOptions::read_write() };
    write!(open("a", new.clone()).unwrap(), "first").unwrap();
    assert_eq!(open("a", new).err().unwrap().kind(), ErrorKind::AlreadyExists);

    let log = FileOptions { append: true, ..FileOptions::reading() };
    let (mut one, mut two) = (open("a", log.clone()).unwrap(), open("a", log).unwrap());
    write!(one, " second").unwrap();
    write!(two, " third").unwrap();
    assert_eq!(volume.read("a").unwrap(), b"first second third");

    let mut reading = volume.open("a").unwrap();
    let refused = reading.write(b"x").unwrap_err();
    let source = refused.get_ref().and_then(|error| error.downcast_ref::<Error>()).unwrap();
    assert!(matches!(source, Error::NotOpen { to: "write", .. }), "{refused}");
    let write_only = FileOptions { read: false, ..FileOptions::read_write() };
    assert!(open("a", write_only).unwrap().read(&mut [0]).is_err());

    // A link that leads to nothing is followed where a file is made, and names no new file.
    volume.create_dir("d").unwrap();
    volume.symlink("d/made", "link").unwrap();
    volume.write("link", b"through").unwrap();
    assert_eq!(volume.read("d/made").unwrap(), b"through");
    volume.symlink("nowhere", "other").unwrap();
    let new = FileOptions { create_new: true, ..FileOptions::read_write() };
    assert_eq!(open("other", new).err().unwrap().kind(), ErrorKind::AlreadyExists);
    assert_eq!(volume.open("d").err().unwrap().kind(), ErrorKind::IsADirectory);
    let cut = FileOptions { truncate: true, ..FileOptions::reading() };
    assert_eq!(open("a", cut).err().unwrap().kind(), ErrorKind::InvalidInput);
    assert_eq!(volume.read("a").unwrap(), b"first second third");
}

#[test]
fn names_are_made_linked_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    volume.create_dir_all("a/b/c").unwrap();
    volume.create_dir_all("/a/b/c/").unwrap();
    volume.write("a/b/file", &[1; 10_000]).unwrap();
    assert_eq!(volume.create_dir_all("a/b/file/x").unwrap_err().kind(), ErrorKind::NotADirectory);
    volume.hard_link("a/b/file", "a/same").unwrap();
    assert_eq!(volume.metadata("a/same").unwrap().nlink, 2);
    assert_eq!(volume.copy("a/same", "a/copy").unwrap(), 10_000);
    assert_eq!(volume.read("a/copy").unwrap(), [1; 10_000]);
    // The target keeps its content where the source is none to copy, or is the target itself.
    assert_eq!(volume.copy("a/b", "a/copy").unwrap_err().kind(), ErrorKind::IsADirectory);
    assert_eq!(volume.copy("a/b/file", "a/same").unwrap_err().kind(), InvalidInput);
    assert_eq!(volume.read("a/copy").unwrap(), volume.read("a/same").unwrap());
    volume.symlink("b/file", "a/link").unwrap();
    assert_eq!(volume.read_link("a/link").unwrap(), Path::new("b/file"));
    assert_eq!(volume.metadata("a/link").unwrap().kind, FileKind::Regular);
    assert_eq!(volume.symlink_metadata("a/link").unwrap().kind, FileKind::Symlink);
    assert!(volume.exists("a/link").unwrap() && !volume.exists("a/file").unwrap());
    let mut names: Vec<_> = volume.list("a").unwrap().into_iter().map(|item| item.name).collect();
    names.sort();
    assert_eq!(names, ["b", "copy", "link", "same"]);

    volume.create_subvolume("a/tenant").unwrap().write("kept", b"x").unwrap();
    let nested = volume.remove_dir_all("a").unwrap_err();
    assert!(matches!(nested, Error::File { source: FsError::IsSubvolume(_), .. }), "{nested}");
    assert_eq!(volume.read("a/tenant/kept").unwrap(), b"x");
    assert!(volume.remove_dir_all("a/tenant").is_err());
    assert_eq!(volume.read("a/tenant/kept").unwrap(), b"x");
    volume.delete_subvolume("a/tenant").unwrap();
    volume.create_dir("elsewhere").unwrap();
    volume.symlink("elsewhere", "to").unwrap();
    assert_eq!(volume.remove_dir_all("to").unwrap_err().kind(), ErrorKind::NotADirectory);
    volume.write("elsewhere/kept", b"x").unwrap();
    volume.symlink("../elsewhere", "a/b/out").unwrap();
    volume.symlink("nothing", "a/dangling").unwrap();
    assert_eq!(volume.create_dir_all("a/dangling").unwrap_err().kind(), ErrorKind::NotFound);
    volume.remove_dir_all("a").unwrap();
    assert!(!volume.exists("a").unwrap());
    assert_eq!(volume.read("elsewhere/kept").unwrap(), b"x");
}

#[test]
fn attributes_are_set_and_extended_ones_kept() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    volume.write("f", b"x").unwrap();
    let then = Timestamp { secs: 1_000_000, nanos: 5 };
    let set = SetAttr {
        mode: Some(0o600),
        uid: Some(7),
        mtime: Some(SetTime::At(then)),
        ..SetAttr::default()
    };
    volume.set_attributes("f", &set).unwrap();
    let found = volume.metadata("f").unwrap();
    assert_eq!((found.mode, found.uid, found.mtime), (0o600, 7, then));
    assert_eq!(volume.xattr("f", "user.a").unwrap(), None);
    volume.set_xattr("f", "user.a", b"1").unwrap();
    volume.set_xattr("f", "user.a", b"2").unwrap();
    volume.set_xattr("f", "user.b", &[3; 9000]).unwrap();
    assert_eq!(volume.xattr("f", "user.a").unwrap().unwrap(), b"2");
    let mut names = volume.xattrs("f").unwrap();
    names.sort();
    assert_eq!(names, ["user.a", "user.b"]);
    volume.remove_xattr("f", "user.a").unwrap();
    let missing = volume.remove_xattr("f", "user.a").unwrap_err();
    assert!(matches!(missing, Error::File { source: FsError::NoAttribute, .. }), "{missing}");
}

#[test]
fn a_subvolume_is_compared_and_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let root = pool.root();
    let work = root.create_subvolume("work").unwrap();
    work.create_dir("src").unwrap();
    work.write("src/old", b"same").unwrap();
    work.write("gone", b"x").unwrap();
    let before = root.snapshot_read_only("work", "before").unwrap();
    work.rename("src/old", "src/new").unwrap();
    work.remove_file("gone").unwrap();
    work.write("src/added", b"y").unwrap();
    let changes = before.diff(&work).unwrap();
    let found: Vec<_> = changes.iter().map(|one| (one.path.to_str().unwrap(), &one.what)).collect();
    assert!(found.contains(&("gone", &ChangeKind::Deleted)), "{found:?}");
    assert!(found.contains(&("src/added", &ChangeKind::Added)), "{found:?}");
    let renamed = ChangeKind::Renamed { from: "src/old".into() };
    assert!(found.contains(&("src/new", &renamed)) && found.len() == 3, "{found:?}");
    assert_eq!(work.diff(&work).unwrap(), []);

    let back = root.roll_back("work", &before, Some("kept".as_ref())).unwrap();
    assert_eq!(back.read("src/old").unwrap(), b"same");
    assert_eq!(root.read("work/gone").unwrap(), b"x");
    assert_eq!(root.read("kept/src/added").unwrap(), b"y");
    assert_ne!(back.id(), work.id());
    let strange = root.create_subvolume("strange").unwrap();
    assert_eq!(root.roll_back("work", &strange, None).err().unwrap().kind(), InvalidInput);
    // A volume of another pool, where the same number names another subvolume.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = new_pool(&elsewhere);
    other.root().create_subvolume("work").unwrap();
    let same_id = other.root().snapshot_read_only("work", "before").unwrap();
    assert_eq!(same_id.id(), before.id());
    assert!(matches!(root.roll_back("work", &same_id, None), Err(Error::OtherPool(_))));
    assert!(matches!(before.diff(&same_id), Err(Error::OtherPool(_))));
}

#[test]
fn a_group_limits_the_sum_of_its_members() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let (root, groups) = (pool.root(), pool.groups());
    assert_eq!(groups.list().unwrap_err().kind(), ErrorKind::NotConnected);
    pool.enable_quotas().unwrap();
    let team = GroupId::new(1, 100).unwrap();
    groups.create(team).unwrap();
    let tenants = ["a", "b"].map(|name| root.create_subvolume(name).unwrap());
    for tenant in &tenants {
        groups.add_member(team, GroupId::of(tenant.id())).unwrap();
    }
    groups.set_limit(team, LimitKind::Referenced, Some(4 << 20)).unwrap();
    tenants[0].write("f", &vec![1; 3 << 20]).unwrap();
    let full = tenants[1].write("f", &vec![1; 3 << 20]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::QuotaExceeded, "{full}");
    assert!(io::Error::from(full).to_string().contains("1/100"));
    root.sync().unwrap();
    let shown = groups.get(team).unwrap();
    assert!((3 << 20..4 << 20).contains(&shown.referenced) && shown.members.len() == 2);
    groups.remove_member(team, GroupId::of(tenants[1].id())).unwrap();
    tenants[1].write("f", &vec![1; 3 << 20]).unwrap();
    let first = GroupId::of(tenants[0].id());
    groups.set_reserve(first, 8 << 20).unwrap();
    assert_eq!(groups.get(first).unwrap().reserve, 8 << 20);
    assert!(groups.set_reserve(first, 1 << 40).is_err(), "the pool has not so much");
    assert!(groups.destroy(team).is_err(), "it has a member");
    groups.remove_member(team, first).unwrap();
    groups.destroy(team).unwrap();
    assert!(groups.get(team).is_err());
}

#[test]
fn a_place_that_holds_data_is_overwritten_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.img");
    let none = Pool::create(&path, &CreateOptions::default()).unwrap_err();
    assert!(matches!(none, Error::NoSize { .. }) && !path.exists(), "{none}");
    // A call that fails leaves a link alone that it did not make.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/not/there", &link).unwrap();
    for options in [CreateOptions::default(), CreateOptions::sized(64 << 20)] {
        Pool::create(&link, &options).unwrap_err();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/not/there"));
    }
    let device = Pool::create("/dev/no-such-disk", &CreateOptions::sized(64 << 20)).unwrap_err();
    assert!(matches!(device, Error::NoDevice { .. }), "{device}");
    let first = Pool::create(&path, &CreateOptions::sized(64 << 20)).unwrap();
    let again = Pool::create(&path, &CreateOptions::default()).unwrap_err();
    assert!(again.to_string().contains("holds a pool already"), "{again}");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    Pool::open(&path, OpenOptions::default()).unwrap().close().unwrap();
    let force = CreateOptions { force: true, preallocate: true, ..CreateOptions::default() };
    assert_ne!(Pool::create(&path, &force).unwrap(), first);
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    // An empty file of the right size is one to use.
    let empty = dir.path().join("empty.img");
    fs::File::create(&empty).unwrap().set_len(64 << 20).unwrap();
    Pool::create(&empty, &CreateOptions::default()).unwrap();
    assert_eq!(fs::metadata(&empty).unwrap().len(), 64 << 20);
}

/// As path_resolution(7) has it.
#[test]
fn a_slash_at_the_end_demands_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    volume.write("file", b"x").unwrap();
    volume.create_dir("dir/").unwrap();
    volume.symlink("dir", "link").unwrap();
    volume.symlink("file/", "to-file").unwrap();
    volume.symlink("new/", "to-new").unwrap();
    let errno = |result: Result<(), Error>| result.unwrap_err().errno();
    assert_eq!(errno(volume.read("file/").map(drop)), libc::ENOTDIR);
    assert_eq!(errno(volume.read("to-file").map(drop)), libc::ENOTDIR);
    assert_eq!(errno(volume.remove_file("file/")), libc::ENOTDIR);
    assert_eq!(errno(volume.remove_file("dir/")), libc::EISDIR);
    assert_eq!(errno(volume.remove_file("missing/")), libc::ENOENT);
    assert_eq!(errno(volume.write("new/", b"x")), libc::EISDIR);
    assert_eq!(errno(volume.write("file/", b"x")), libc::EISDIR);
    assert!(volume.write("to-new", b"x").is_err());
    assert_eq!(errno(volume.symlink("file", "other/")), libc::ENOENT);
    assert_eq!(errno(volume.hard_link("file", "dir/")), libc::EEXIST);
    assert_eq!(errno(volume.rename("file", "moved/")), libc::ENOTDIR);
    assert_eq!(errno(volume.rename("file/", "moved")), libc::ENOTDIR);
    assert_eq!(volume.symlink_metadata("link").unwrap().kind, FileKind::Symlink);
    assert_eq!(volume.symlink_metadata("link/").unwrap().kind, FileKind::Directory);
    volume.rename("dir/", "other/").unwrap();
    volume.rename("other", "dir").unwrap();
    assert_eq!(volume.list("").unwrap().len(), 5);
    volume.remove_dir("dir/").unwrap();
    pool.close().unwrap();
}

/// A path that leads to another directory than the one it names must not have that emptied.
#[test]
fn a_tree_is_removed_only_by_its_own_name() {
    let dir = tempfile::tempdir().unwrap();
    let pool = new_pool(&dir);
    let volume = pool.root();
    volume.create_dir_all("d/sub").unwrap();
    volume.write("d/x", b"kept").unwrap();
    volume.symlink("d", "link").unwrap();
    for other in ["link/", "link", "d/.", "d/sub/..", "d/x"] {
        volume.remove_dir_all(other).expect_err(other);
        assert_eq!(volume.read("d/x").unwrap(), b"kept", "{other}");
    }
    volume.remove_dir_all("d/").unwrap();
    assert!(!volume.exists("d").unwrap());
    pool.close().unwrap();
}
