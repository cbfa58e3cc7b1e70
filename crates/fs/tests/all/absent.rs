//! Names that do not exist, by each call that makes or removes one (`fs::names`, NAMES-N1).

use std::sync::Arc;
use std::time::Duration;

use copyhold_fs::{
    Caller, FileFlags, Filesystem, FsError, Looked, NameEvent, NodeId, OpenFlags, RenameFlags,
};
use copyhold_memory::MemoryClass;
use copyhold_types::SubvolId;
use futures_util::future::{join, join3};

use crate::common::tenants::{file, owner, root_of, snapshot, subvolume};
use crate::common::{ROOT, World, mkdir, seeds};

const BY: Caller = Caller::ROOT;
const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAIN };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };

/// The calls that give a name to a file, each in a tree of its own.
#[derive(Clone, Copy, Debug)]
enum Make {
    Mknod,
    Create,
    Mkdir,
    Symlink,
    Link,
    LinkTmpfile,
    RenameHere,
    RenameFromElsewhere,
    RenameWithWhiteout,
    CreateSubvolume,
    Snapshot,
    KeepAtRollback,
    MkdirForPlaceholder,
}

const WAYS: [Make; 13] = [
    Make::Mknod,
    Make::Create,
    Make::Mkdir,
    Make::Symlink,
    Make::Link,
    Make::LinkTmpfile,
    Make::RenameHere,
    Make::RenameFromElsewhere,
    Make::RenameWithWhiteout,
    Make::CreateSubvolume,
    Make::Snapshot,
    Make::KeepAtRollback,
    Make::MkdirForPlaceholder,
];

/// The subvolume "a" of a filesystem: a file, a subvolume inside, and a snapshot of each, so that
/// the snapshot of "a" has a placeholder.
struct Tree {
    fs: Arc<Filesystem>,
    top: NodeId,
    file: NodeId,
    elsewhere: NodeId,
    state: SubvolId,
    /// The root of the snapshot of "a".
    copy: NodeId,
}

impl Tree {
    async fn plant(fs: &Arc<Filesystem>) -> Tree {
        let a = subvolume(fs, "a").await;
        let top = root_of(a);
        let made = file(fs, top, "file").await;
        fs.release(made);
        let elsewhere = mkdir(fs, top, "elsewhere").await;
        fs.release(file(fs, elsewhere, "other").await);
        let inner = fs.create_subvolume(&BY, top, b"inner", None).await.unwrap();
        let state = fs.snapshot(inner, top, b"state", true, None).await.unwrap();
        let copy = root_of(snapshot(fs, a, "copy", false).await);
        Tree { fs: fs.clone(), top, file: made, elsewhere, state, copy }
    }

    /// The directory and the name that the call gives to a file.
    async fn place(&self, make: Make) -> (NodeId, &'static [u8]) {
        let Make::MkdirForPlaceholder = make else { return (self.top, b"new") };
        self.fs.rmdir(self.copy, b"inner").await.unwrap();
        (self.copy, b"inner")
    }

    async fn make(&self, make: Make, (dir, name): (NodeId, &[u8])) {
        let Tree { fs, top, .. } = self;
        let rename = async |from, of: &[u8], flags| {
            fs.rename(&BY, from, of, dir, name, flags).await.unwrap();
        };
        match make {
            Make::Mknod => drop(fs.mknod(&BY, dir, name, 0o010_600, 0).await.unwrap()),
            Make::Create => {
                let flags = OpenFlags::READ_WRITE;
                fs.release(fs.create(&BY, dir, name, 0o600, flags, true).await.unwrap().0.node);
            }
            Make::Mkdir | Make::MkdirForPlaceholder => {
                fs.mkdir(&BY, dir, name, 0o700).await.unwrap();
            }
            Make::Symlink => drop(fs.symlink(&BY, dir, name, b"target").await.unwrap()),
            Make::Link => drop(fs.link(self.file, dir, name).await.unwrap()),
            Make::LinkTmpfile => {
                let node = fs.tmpfile(&BY, dir, 0o600).await.unwrap().node;
                fs.link(node, dir, name).await.unwrap();
                fs.release(node);
            }
            Make::RenameHere => rename(*top, b"file", PLAIN).await,
            Make::RenameFromElsewhere => rename(self.elsewhere, b"other", PLAIN).await,
            Make::RenameWithWhiteout => rename(*top, b"file", WHITEOUT).await,
            Make::CreateSubvolume => {
                fs.create_subvolume(&BY, dir, name, None).await.unwrap();
            }
            Make::Snapshot => {
                fs.snapshot(self.state, dir, name, false, None).await.unwrap();
            }
            Make::KeepAtRollback => {
                let keep = Some((dir, name));
                fs.roll_back_subvolume(*top, b"inner", self.state, keep).await.unwrap();
            }
        }
    }
}

fn count(fs: &Filesystem, event: NameEvent) -> u64 {
    fs.names().totals()[event]
}

async fn is_found(fs: &Filesystem, dir: NodeId, name: &[u8]) -> bool {
    matches!(fs.look(dir, name).await.unwrap(), Looked::Found(_))
}

/// Runs in a filesystem of its own.
fn in_world(seed: u64, test: impl AsyncFnOnce(&Arc<Filesystem>)) {
    let world = World::new(seed, 16_384);
    world.run(async {
        let fs = world.open().await;
        test(&fs).await;
        world.close(fs).await;
    });
}

/// NAMES-N1.
#[test]
fn each_way_to_make_a_name_ends_its_absence() {
    for make in WAYS {
        in_world(1, async |fs| {
            let tree = Tree::plant(fs).await;
            let place = tree.place(make).await;
            let (live, hits) = (fs.names().live(), count(fs, NameEvent::Hit));
            let is_known = matches!(make, Make::MkdirForPlaceholder);
            for _ in 0..2 {
                assert!(!is_found(fs, place.0, place.1).await, "{make:?}");
            }
            // The first look-up makes the entry, unless a removal did; the others hit.
            assert_eq!(fs.names().live(), live + u64::from(!is_known), "{make:?}");
            assert_eq!(count(fs, NameEvent::Hit), hits + 1 + u64::from(is_known), "{make:?}");
            let positive = count(fs, NameEvent::Positive);
            tree.make(make, place).await;
            assert_eq!(count(fs, NameEvent::Positive), positive + 1, "{make:?}");
            assert!(is_found(fs, place.0, place.1).await, "{make:?}");
        });
    }
}

#[test]
fn removed_names_are_absent_and_those_that_stay_are_not() {
    in_world(2, async |fs| {
        let Tree { top, file: node, elsewhere, copy, .. } = Tree::plant(fs).await;
        let expect = |before: u64, more: u64, call: &str| {
            assert_eq!(count(fs, NameEvent::Retained) - before, more, "{call}");
            count(fs, NameEvent::Retained)
        };
        let rename = async |(from, name): (NodeId, &[u8]), (to, new): (NodeId, &[u8]), flags| {
            fs.rename(&BY, from, name, to, new, flags).await.unwrap();
        };
        let mut seen = count(fs, NameEvent::Retained);
        fs.link(node, top, b"second").await.unwrap();
        rename((top, b"file"), (top, b"second"), PLAIN).await;
        seen = expect(seen, 0, "rename between two names of a file");
        rename((top, b"file"), (elsewhere, b"other"), EXCHANGE).await;
        seen = expect(seen, 0, "exchange");
        rename((top, b"second"), (top, b"third"), WHITEOUT).await;
        seen = expect(seen, 0, "rename that leaves a whiteout");
        for (dir, name) in [(top, &b"file"[..]), (top, b"second"), (top, b"third")] {
            assert!(is_found(fs, dir, name).await);
        }

        let gone = async |dir, name: &[u8]| {
            let hits = count(fs, NameEvent::Hit);
            assert!(!is_found(fs, dir, name).await);
            assert_eq!(count(fs, NameEvent::Hit), hits + 1, "the removal has made the entry");
        };
        rename((top, b"third"), (top, b"fourth"), PLAIN).await;
        seen = expect(seen, 1, "rename in a directory");
        gone(top, b"third").await;
        rename((top, b"fourth"), (elsewhere, b"fourth"), PLAIN).await;
        seen = expect(seen, 1, "rename to another directory");
        gone(top, b"fourth").await;
        fs.unlink(elsewhere, b"fourth").await.unwrap();
        seen = expect(seen, 1, "unlink");
        gone(elsewhere, b"fourth").await;
        mkdir(fs, top, "dir").await;
        fs.rmdir(top, b"dir").await.unwrap();
        seen = expect(seen, 1, "rmdir");
        gone(top, b"dir").await;
        fs.rmdir(copy, b"inner").await.unwrap();
        seen = expect(seen, 1, "removal of a placeholder");
        gone(copy, b"inner").await;
        fs.delete_subvolume(top, b"inner", None).await.unwrap();
        expect(seen, 1, "delete_subvolume");
        gone(top, b"inner").await;
    });
}

/// A moment that differs by seed, so that the calls beside each other meet in many ways.
async fn pause(fs: &Filesystem) {
    let runtime = fs.pool().runtime();
    let nanos = 1 << (8 + runtime.random() % 14);
    runtime.sleep(Duration::from_nanos(nanos)).await;
}

/// Opens the filesystem again, so that no node of a table and no inode is in memory: each call
/// waits for the device.
async fn cold(world: &World, fs: Arc<Filesystem>) -> Arc<Filesystem> {
    world.close(fs).await;
    world.open().await
}

#[test]
fn look_ups_beside_a_creation_or_a_removal_leave_no_entry_that_is_wrong() {
    // Histories in which the look-ups of one name had different answers.
    let mut met = [0; 2];
    for seed in seeds(40) {
        let world = World::new(seed, 16_384);
        world.run(async {
            let fs = world.open().await;
            fs.release(file(&fs, ROOT, "there").await);
            let fs = cold(&world, fs).await;
            let look = async |name: &'static [u8]| {
                pause(&fs).await;
                is_found(&fs, ROOT, name).await
            };
            let make = async {
                pause(&fs).await;
                fs.mkdir(&BY, ROOT, b"new", 0o700).await.unwrap();
            };
            let (first, (), second) = join3(look(b"new"), make, look(b"new")).await;
            met[0] += usize::from(first != second);
            assert!(is_found(&fs, ROOT, b"new").await, "seed {seed}");
            assert_eq!(fs.names().live(), 0, "seed {seed}: an entry has an existing name");

            let remove = async {
                pause(&fs).await;
                fs.unlink(ROOT, b"there").await.unwrap();
            };
            let (first, (), second) = join3(look(b"there"), remove, look(b"there")).await;
            met[1] += usize::from(first != second);
            assert!(!is_found(&fs, ROOT, b"there").await, "seed {seed}");
            assert_eq!(fs.names().live(), 1, "seed {seed}: the removed name has an entry");
            world.close(fs).await;
        });
    }
    assert!(met.iter().all(|seen| *seen > 0), "the calls did not meet: {met:?}");
}

#[test]
fn a_look_up_in_a_subvolume_that_is_deleted_leaves_no_entry() {
    let mut ends = [0; 2];
    for seed in seeds(40) {
        let world = World::new(seed, 16_384);
        world.run(async {
            let fs = world.open().await;
            let a = subvolume(&fs, "a").await;
            fs.release(file(&fs, root_of(a), "file").await);
            let fs = cold(&world, fs).await;
            let owner = owner(&fs, a);
            let look = async {
                pause(&fs).await;
                fs.look(root_of(a), b"no").await
            };
            let delete = async {
                pause(&fs).await;
                fs.delete_subvolume(ROOT, b"a", None).await.unwrap();
            };
            match join(look, delete).await.0 {
                Ok(Looked::Absent(_)) => ends[0] += 1,
                Err(FsError::Stale) => ends[1] += 1,
                Ok(Looked::Found(_)) => panic!("seed {seed}: the name does not exist"),
                Err(error) => panic!("seed {seed}: {error}"),
            }
            let figures = fs.names().figures();
            assert!(figures.iter().all(|row| row.subvol != a), "seed {seed}: {figures:?}");
            assert_eq!(owner.charged(MemoryClass::Name), 0, "seed {seed}");
            world.close(fs).await;
        });
    }
    assert!(ends.iter().all(|seen| *seen > 0), "the calls did not meet: {ends:?}");
}

/// A creation that a flag of the directory refuses: the entry may be gone, the answers stay true.
#[test]
fn a_creation_that_is_refused_leaves_its_name_absent() {
    in_world(3, async |fs| {
        let dir = mkdir(fs, ROOT, "dir").await;
        assert!(!is_found(fs, dir, b"new").await);
        fs.set_flags(&BY, dir, FileFlags::IMMUTABLE, None).await.unwrap();
        assert!(fs.mkdir(&BY, dir, b"new", 0o700).await.is_err());
        for _ in 0..2 {
            assert!(!is_found(fs, dir, b"new").await);
        }
        fs.set_flags(&BY, dir, FileFlags(0), None).await.unwrap();
        fs.mkdir(&BY, dir, b"new", 0o700).await.unwrap();
        assert!(is_found(fs, dir, b"new").await);
    });
}
