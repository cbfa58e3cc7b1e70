//! All names of a subvolume, each with its file, parents before what is in them.
//!
//! Memory is for one path, a leaf of each directory on it, and a number for each directory: a
//! damaged image may have them in a circle, so each is gone into once.

use std::collections::BTreeSet;

use crate::damage::Damage;
use crate::directory::{Listing, Target};
use crate::inode::{FileKind, Inode, ROOT_INODE};
use crate::pool::{Files, Pool};
use crate::source::Source;
use crate::subvolume::Subvolume;

/// Longer paths are not followed; a program could not open them at once either.
const PATH_MAX: usize = 64 << 10;

/// What stands under a path.
#[derive(Debug)]
pub enum Place {
    File(Inode),
    /// The entry of another subvolume.
    Subvolume(u32),
    /// The entry that a snapshot has of a subvolume which is elsewhere: an empty directory.
    Placeholder,
    /// A name whose file is lost, or a directory of which names are lost.
    Lost(Damage),
}

/// A step of a walk. The path is that from the root of the subvolume, which itself has none.
#[derive(Debug)]
pub struct Step<'a> {
    pub path: &'a [Vec<u8>],
    pub place: Place,
}

struct Level {
    directory: u64,
    listing: Listing,
}

impl<S: Source> Pool<S> {
    /// Gives every name of a subvolume to `take`, its root directory first.
    pub fn walk(&self, subvolume: &Subvolume, mut take: impl FnMut(Step<'_>)) {
        let files = self.files(subvolume);
        let mut path: Vec<Vec<u8>> = Vec::new();
        let mut seen = BTreeSet::from([ROOT_INODE]);
        match files.inode(ROOT_INODE) {
            Ok(root) => take(Step { path: &path, place: Place::File(root) }),
            Err(damage) => take(Step { path: &path, place: Place::Lost(damage) }),
        }
        let level = |directory| Level { directory, listing: Listing::of(directory) };
        let mut levels = vec![level(ROOT_INODE)];
        while let Some(at) = levels.last_mut() {
            let entry = at.listing.next(&files);
            for damage in at.listing.damage.drain(..) {
                take(Step { path: &path, place: Place::Lost(damage) });
            }
            let Some(entry) = entry else {
                levels.pop();
                path.pop();
                continue;
            };
            path.push(entry.name);
            let place = self.place(subvolume, &files, at.directory, entry.to);
            let deeper = deeper(&place, &path, &mut seen);
            match deeper {
                Ok(deeper) => {
                    take(Step { path: &path, place });
                    levels.extend(deeper.map(level));
                    if deeper.is_some() {
                        continue; // Its name stays on the path.
                    }
                }
                Err(damage) => take(Step { path: &path, place: Place::Lost(damage) }),
            }
            path.pop();
        }
    }

    fn place(&self, of: &Subvolume, files: &Files<'_>, directory: u64, to: Target) -> Place {
        match to {
            Target::Inode(number) => match files.inode(number) {
                Ok(inode) => Place::File(inode),
                Err(damage) => Place::Lost(damage),
            },
            Target::Subvolume(id) => {
                let found = u32::try_from(id).ok().and_then(|id| self.subvolume(id));
                let is_its = |it: &&Subvolume| it.holder == of.id && it.directory == directory;
                match found.filter(is_its) {
                    Some(found) => Place::Subvolume(found.id),
                    None => Place::Placeholder,
                }
            }
        }
    }
}

/// The directory that is to be gone into, if it is one.
fn deeper(
    place: &Place,
    path: &[Vec<u8>],
    seen: &mut BTreeSet<u64>,
) -> Result<Option<u64>, Damage> {
    let Place::File(inode) = place else { return Ok(None) };
    if inode.kind != FileKind::Directory {
        return Ok(None);
    }
    let wrong = |why| Err(Damage::new(format!("directory {}", inode.number), why));
    if path.iter().map(|name| name.len() + 1).sum::<usize>() > PATH_MAX {
        return wrong("its path is too long");
    }
    match seen.insert(inode.number) {
        true => Ok(Some(inode.number)),
        false => wrong("it has a second name"),
    }
}
