//! All names of a subvolume, each with its file, parents before their entries.
//!
//! Memory is for one path, a leaf of each directory on it, and a number for each directory: a
//! damaged image may have them in a circle, so each is gone into once.

use std::collections::BTreeSet;

use crate::damage::Damage;
use crate::directory::{Listing, Target};
use crate::files::Files;
use crate::inode::{FileKind, Inode, ROOT_INODE};
use crate::pool::Pool;
use crate::source::Source;
use crate::subvolume::Subvolume;

/// Longer paths are not followed; a program could not open them at once either.
const PATH_MAX: usize = 64 << 10;

/// The entry under a path.
#[derive(Debug)]
pub enum Place {
    File(Inode),
    /// The entry of another subvolume.
    Subvolume(u32),
    /// The entry that a snapshot has of a subvolume which is elsewhere, by that one's number: an
    /// empty directory.
    Placeholder(u64),
    /// A name whose file or subvolume is lost, or a directory of which names are lost.
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
                match (found, self.lost_subvolume(id)) {
                    (Some(found), _) if is_its(&found) => Place::Subvolume(found.id),
                    (None, Some(damage)) => {
                        Place::Lost(Damage::new(format!("subvolume {id}"), damage))
                    }
                    _ => Place::Placeholder(id),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A device without blocks.
    struct Empty;

    impl Source for Empty {
        fn blocks(&self) -> u64 {
            0
        }

        fn read(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
            unreachable!("it has no blocks")
        }
    }

    #[test]
    fn an_entry_is_a_placeholder_only_if_no_record_is_lost() {
        let of = |id| Subvolume {
            id,
            read_only: false,
            origin: None,
            holder: 1,
            directory: ROOT_INODE,
            table: 16,
        };
        let lost = Damage::new("the system table", "rotten");
        let pool = Pool::of_subvolumes(Empty, vec![of(1), of(2)], vec![(4..=5, lost)]);
        let root = of(1);
        let files = pool.files(&root);
        let place = |directory, id| pool.place(&root, &files, directory, Target::Subvolume(id));
        assert!(matches!(place(ROOT_INODE, 2), Place::Subvolume(2)));
        assert!(matches!(place(77, 2), Place::Placeholder(2)), "its entry is elsewhere");
        assert!(matches!(place(ROOT_INODE, 3), Place::Placeholder(3)));
        for id in [4, 5] {
            assert!(matches!(place(ROOT_INODE, id), Place::Lost(_)), "{id}");
        }
    }
}
