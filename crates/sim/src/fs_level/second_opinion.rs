//! The state of an image as another reader finds it.
//!
//! Problem.  The model allows every state that no promise excludes, and `check` replays and parses
//!           with the code of the engine. A replay that is wrong, but always in the same way and
//!           within the bounds of the model, is never noticed.
//! Idea.     `copyhold-rescue` shares no code with the engine and is written from the page of the
//!           format. It reads the image that the engine is to recover from. The engine's state
//!           after recovery, before any change, must be the same: names, inodes with their times,
//!           targets, attributes and content.
//!
//! Times of access are left out: looking changes them.

use std::collections::BTreeMap;
use std::io;

use copyhold_device::sim::SimImage;
use copyhold_fs::FileKind;
use copyhold_rescue::{
    BLOCK, Chunk, ContentDigest, FileKind as Kind, Files, Inode, Place, Pool, ROOT_SUBVOLUME,
    Source, Subvolume, Time,
};
use copyhold_types::{InodeNo, Timestamp};

use super::tree::Path;
use super::verify::{Found, Names};

/// Numbers from here on are placeholders': the subvolume's number is added.
const FIRST_PLACEHOLDER: u64 = 1 << (InodeNo::BITS - 1);

/// The compared properties of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    File(Box<File>),
    /// The entry of a subvolume that is elsewhere: an empty directory without attributes.
    Placeholder {
        subvolume: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct File {
    /// Of the inode in its subvolume.
    number: (u32, u64),
    /// Type and permissions.
    mode: u32,
    links: u32,
    owner: (u32, u32),
    size: u64,
    /// Of modification, change and birth.
    times: [Time; 3],
    flags: (u32, u32, u32),
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: u128,
    read_only: bool,
}

/// An image of a machine that is switched off.
struct Image<'a>(&'a SimImage);

impl Source for Image<'_> {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (place, nth) in bytes.chunks_exact_mut(BLOCK).zip(0..) {
            place.copy_from_slice(&self.0.read_block(block + nth));
        }
        Ok(())
    }
}

/// The engine, which has recovered from `image`, shows what is in it: `names`, and `root`, the root
/// directory of the pool.
///
/// # Panics
/// It does not.
pub(crate) fn compare(image: &SimImage, root: &Found, names: &Names) {
    let pool = Pool::open(Image(image));
    let pool = pool.unwrap_or_else(|damage| panic!("the second opinion: {damage}"));
    let mut read = all(&pool);
    assert_eq!(read.remove(&Path::new()), Some(engine(root)), "the second opinion of the root");
    for (path, found) in names {
        let show = || String::from_utf8_lossy(&path.join(&b'/')).into_owned();
        let Some(read) = read.get(path) else {
            panic!("the second opinion has no {}: {:?}", show(), pool.damage());
        };
        let found = engine(found);
        assert!(
            *read == found,
            "the second opinion of {}: it is {read:?}, and the engine shows {found:?}",
            show()
        );
    }
    let extra = read.keys().find(|path| !names.contains_key(*path));
    if let Some(extra) = extra {
        panic!("the engine has no {}", String::from_utf8_lossy(&extra.join(&b'/')));
    }
}

fn engine(found: &Found) -> Seen {
    let attr = &found.attr;
    if let Some(subvolume) = attr.node.ino.0.checked_sub(FIRST_PLACEHOLDER) {
        let is_empty = attr.kind == FileKind::Directory && (attr.nlink, attr.size) == (2, 0);
        assert!(is_empty && found.xattrs.is_empty(), "no placeholder: {attr:?}");
        return Seen::Placeholder { subvolume };
    }
    let time = |time: Timestamp| Time { seconds: { time.secs }, nanos: { time.nanos } };
    Seen::File(Box::new(File {
        number: (attr.node.subvol.0, attr.node.ino.0),
        mode: attr.st_mode(),
        links: attr.nlink,
        owner: (attr.uid, attr.gid),
        size: attr.size,
        times: [attr.mtime, attr.ctime, attr.btime].map(time),
        flags: (attr.flags.0, attr.project, attr.rdev),
        target: found.target.clone(),
        xattrs: found.xattrs.clone(),
        content: ContentDigest::of(&found.bytes),
        read_only: found.read_only,
    }))
}

/// Every name, from the root, which has an empty one, down through all subvolumes.
fn all(pool: &Pool<Image<'_>>) -> BTreeMap<Path, Seen> {
    let mut seen = BTreeMap::new();
    let mut subvolumes = vec![(Path::new(), ROOT_SUBVOLUME)];
    while let Some((above, id)) = subvolumes.pop() {
        let subvolume = pool.subvolume(id).expect("it was found by its number");
        let files = pool.files(subvolume);
        pool.walk(subvolume, |step| {
            let path: Path = [&above[..], step.path].concat();
            match step.place {
                Place::File(inode) => drop(seen.insert(path, file(subvolume, &files, &inode))),
                Place::Subvolume(id) => subvolumes.push((path, id)),
                Place::Placeholder(subvolume) => {
                    drop(seen.insert(path, Seen::Placeholder { subvolume }));
                }
                Place::Lost(damage) => panic!("the second opinion: {damage}"),
            }
        });
    }
    seen
}

fn file(subvolume: &Subvolume, files: &Files<'_>, inode: &Inode) -> Seen {
    let (attributes, lost) = files.attributes(inode);
    assert_eq!(lost, [], "the second opinion");
    let target = match inode.kind {
        Kind::Symlink => files.target(inode),
        _ => Ok(Vec::new()),
    };
    let target = target.unwrap_or_else(|damage| panic!("the second opinion: {damage}"));
    let mut content = ContentDigest::default();
    files.content(inode, |chunk| match chunk {
        Chunk::Data { offset, bytes } => content.add(offset, bytes),
        Chunk::Lost { damage, .. } => panic!("the second opinion: {damage}"),
    });
    let size = if inode.kind == Kind::Regular { inode.size } else { 0 };
    let read_only = inode.number == InodeNo::ROOT.0 && subvolume.read_only;
    Seen::File(Box::new(File {
        number: (subvolume.id, inode.number),
        mode: inode.st_mode(),
        links: inode.links,
        owner: (inode.uid, inode.gid),
        size: inode.size,
        times: [inode.modified, inode.changed, inode.born],
        flags: (inode.flags, inode.project, inode.device),
        target,
        xattrs: attributes.into_iter().map(|it| (it.name, it.value)).collect(),
        content: content.finish(size),
        read_only,
    }))
}
