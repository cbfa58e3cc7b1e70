//! Where an export's files go, and the problems on the way.

use copyhold_rescue::{Attribute, Files, Inode};

use crate::failure::Failure;

/// A file that is to be shown or restored.
pub(super) struct Item<'a> {
    pub(super) subvolume: u32,
    pub(super) path: &'a [Vec<u8>],
    pub(super) inode: &'a Inode,
    pub(super) files: &'a Files<'a>,
    pub(super) attributes: Vec<Attribute>,
}

/// A problem, with a text for people.
pub(super) enum Problem {
    /// A structure of the pool is damaged; no single file is.
    Damaged(String),
    /// Content or names are lost.
    Lost(String),
    /// The destination refuses something.
    NotRestored(String),
}

/// Where files go. Each problem is of the file at hand.
pub(super) trait Sink {
    fn file(&mut self, item: Item<'_>, problems: &mut Vec<Problem>) -> Result<(), Failure>;

    /// An entry that leads elsewhere, or nowhere: an empty directory.
    fn empty(&mut self, path: &[Vec<u8>], problems: &mut Vec<Problem>);

    /// The end; problems of directories, with their paths.
    fn finish(&mut self) -> Vec<(String, Problem)>;
}

impl Problem {
    pub(super) fn lost(why: impl ToString) -> Problem {
        Problem::Lost(why.to_string())
    }

    pub(super) fn not_restored(why: impl ToString) -> Problem {
        Problem::NotRestored(why.to_string())
    }
}

/// A path as people and programs read it, from the root of the pool.
pub(super) fn shown(path: &[Vec<u8>]) -> String {
    let shown = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
    if shown.is_empty() { "/".into() } else { shown }
}
