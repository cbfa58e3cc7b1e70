//! The content of one file, and what a crash may leave of it.
//!
//! In core.  `base`: what is durable, at least. `changes`: all since, each with the content behind
//!           it. The newest is what a reader sees.
//!
//! CRASHED-F1  After a crash each block is what it was in `base` or behind some change, and the
//!             size is that of one of them, or between two of which a write made the second.
//! CRASHED-F2  An fsync makes the newest content the base. So does a snapshot for the copy in it.
//! CRASHED-F3  A rename over another name takes the content with it: where the rename is found,
//!             changes before it are not missing.

use crate::clock::Stamp;
use copyhold_torture::content::Token;

/// A token for each block.
pub(crate) type Content = Vec<Token>;

#[derive(Clone)]
struct Change {
    /// When it was done; `None` while it is under way, or never answered.
    end: Option<Stamp>,
    after: Content,
}

#[derive(Clone, Default)]
pub(crate) struct File {
    /// `None` if the call that made it was never answered.
    pub(crate) inode: Option<u64>,
    /// When its last change began, also of its names; zero if that is durable.
    pub(crate) changed: Stamp,
    base: Content,
    changes: Vec<Change>,
    /// Number of the rename, and when it began.
    replaced: Vec<(usize, Stamp)>,
}

impl File {
    pub(crate) fn durable(inode: Option<u64>, base: Content) -> File {
        File { inode, base, ..File::default() }
    }

    pub(crate) fn now(&self) -> &Content {
        self.changes.last().map_or(&self.base, |change| &change.after)
    }

    /// A change that begins at `start`.
    pub(crate) fn begin(&mut self, start: Stamp, after: Content) {
        self.changed = start;
        self.changes.push(Change { end: None, after });
    }

    pub(crate) fn end(&mut self, end: Stamp) {
        self.changes.last_mut().expect("it began").end = Some(end);
    }

    /// CRASHED-F3: the name operation `number` began at `start`, and replaces a name by this file.
    pub(crate) fn replaces(&mut self, number: usize, start: Stamp) {
        self.replaced.push((number, start));
    }

    /// CRASHED-F2.
    pub(crate) fn settle(&mut self) {
        self.base = self.now().clone();
        self.changes.clear();
        self.changed = 0;
    }

    /// CRASHED-F2, for a copy in a snapshot.
    pub(crate) fn copy(&self) -> File {
        File::durable(self.inode, self.now().clone())
    }

    /// Whether `found` may be there after a crash that kept the first `names` operations on names,
    /// and all content that was complete at `synced`.
    pub(crate) fn verify(
        &self,
        found: &[Token],
        names: usize,
        synced: Stamp,
    ) -> Result<(), String> {
        let renames = self.replaced.iter().filter(|(number, _)| *number < names);
        let floor = renames.map(|(_, start)| *start).fold(synced, Stamp::max);
        let is_kept = |change: &&Change| change.end.is_some_and(|end| end < floor);
        let kept = self.changes.iter().take_while(is_kept).count();
        let base = kept.checked_sub(1).map_or(&self.base, |last| &self.changes[last].after);
        let states: Vec<&Content> =
            std::iter::once(base).chain(self.changes[kept..].iter().map(|it| &it.after)).collect();
        let size = found.len();
        let is_size = states.iter().any(|state| state.len() == size)
            || states.windows(2).any(|pair| (pair[0].len()..pair[1].len()).contains(&size));
        if !is_size {
            let sizes: Vec<usize> = states.iter().map(|state| state.len()).collect();
            return Err(format!("{size} blocks, and should be one of {sizes:?}"));
        }
        for (number, token) in found.iter().enumerate() {
            let of = |state: &&Content| state.get(number).copied().unwrap_or(0);
            if !states.iter().any(|state| of(state) == *token) {
                let allowed: Vec<Token> = states.iter().map(of).collect();
                return Err(format!("block {number} is of write {token:x}, not of {allowed:x?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> File {
        let mut file = File::durable(Some(7), vec![1, 2]);
        for (start, after) in [(10, vec![1, 3]), (20, vec![1, 3, 4])] {
            file.begin(start, after);
            file.end(start + 1);
        }
        file
    }

    #[test]
    fn blocks_are_old_or_new_each_for_itself() {
        let file = written();
        for found in [&[1, 2][..], &[1, 3], &[1, 2, 4], &[1, 3, 0], &[1, 3, 4]] {
            file.verify(found, 0, 0).unwrap();
        }
        for found in [&[1][..], &[1, 4], &[0, 2], &[1, 3, 4, 0]] {
            file.verify(found, 0, 0).unwrap_err();
        }
    }

    #[test]
    fn what_is_synced_is_not_missing() {
        let mut file = written();
        file.verify(&[1, 2], 0, 12).unwrap_err();
        file.verify(&[1, 3], 0, 12).unwrap();
        file.settle();
        file.verify(&[1, 3], 0, 0).unwrap_err();
        file.verify(&[1, 3, 4], 0, 0).unwrap();
    }

    #[test]
    fn a_rename_over_a_name_takes_the_content_along_where_it_is_found() {
        let mut file = written();
        file.replaces(5, 30);
        file.verify(&[1, 2], 5, 0).unwrap();
        file.verify(&[1, 2], 6, 0).unwrap_err();
    }
}
