//! Operations on what is in files, in whole blocks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use super::{Step, Worker};
use crate::file::Content;
use crate::found;
use crate::names::{FileId, Node};
use copyhold_torture::content::{BLOCK, block};

/// Blocks that a file has at most.
const FILE_MAX: usize = 48;
/// Blocks of one write at most.
const WRITE_MAX: usize = 12;

impl Worker<'_> {
    pub(super) fn write(&mut self) -> Step {
        let tree = self.tree();
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        let first = self.dice.below(FILE_MAX - WRITE_MAX);
        let count = 1 + self.dice.below(WRITE_MAX);
        let mut after = self.thread.files[id].now().clone();
        after.resize(after.len().max(first + count), 0);
        let mut bytes = Vec::with_capacity(count * BLOCK);
        for token in &mut after[first..first + count] {
            self.tokens += 1;
            *token = self.tokens;
            bytes.extend(block(*token));
        }
        let file = OpenOptions::new().write(true).open(self.path(&tree, &path))?;
        self.content(id, after, || file.write_all_at(&bytes, (first * BLOCK) as u64))?;
        if self.dice.one_in(4) { self.fsync_file(id, &file) } else { Ok(()) }
    }

    pub(super) fn truncate(&mut self) -> Step {
        let tree = self.tree();
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        let size = if self.dice.one_in(4) { 0 } else { self.dice.below(FILE_MAX) };
        let mut after = self.thread.files[id].now().clone();
        after.resize(size, 0);
        let file = OpenOptions::new().write(true).open(self.path(&tree, &path))?;
        self.content(id, after, || file.set_len((size * BLOCK) as u64))
    }

    pub(super) fn punch(&mut self) -> Step {
        let tree = self.tree();
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        let (first, count) = (self.dice.below(FILE_MAX), 1 + self.dice.below(WRITE_MAX));
        let mut after = self.thread.files[id].now().clone();
        after.iter_mut().skip(first).take(count).for_each(|token| *token = 0);
        let file = OpenOptions::new().write(true).open(self.path(&tree, &path))?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (offset, length) = ((first * BLOCK) as u64, (count * BLOCK) as u64);
        self.content(id, after, || Ok(fallocate(&file, how, offset, length)?))
    }

    /// Blocks of one file become blocks of another, shared where both are in one subvolume.
    pub(super) fn copy(&mut self) -> Step {
        let tree = self.tree();
        let (Some((from, source)), Some((to, target))) = (self.file(&tree), self.file(&tree))
        else {
            return Ok(());
        };
        let content = self.thread.files[source].now().clone();
        if source == target || content.is_empty() {
            return Ok(());
        }
        let first = self.dice.below(content.len());
        let count = (content.len() - first).min(WRITE_MAX);
        let at = self.dice.below(FILE_MAX - WRITE_MAX);
        let mut after = self.thread.files[target].now().clone();
        after.resize(after.len().max(at + count), 0);
        after[at..at + count].copy_from_slice(&content[first..first + count]);
        let source = File::open(self.path(&tree, &from))?;
        let file = OpenOptions::new().write(true).open(self.path(&tree, &to))?;
        self.content(target, after, || {
            let (mut from, mut to) = ((first * BLOCK) as u64, (at * BLOCK) as u64);
            let mut left = count * BLOCK;
            while left > 0 {
                match copy_file_range(&source, Some(&mut from), &file, Some(&mut to), left)? {
                    0 => return Err(io::Error::other("the copy ended early")),
                    copied => left -= copied,
                }
            }
            Ok(())
        })
    }

    pub(super) fn fsync(&mut self) -> Step {
        let tree = self.tree();
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        let file = File::open(self.path(&tree, &path))?;
        self.fsync_file(id, &file)
    }

    fn fsync_file(&mut self, id: FileId, file: &File) -> Step {
        file.sync_all()?;
        let change = self.thread.files[id].changed;
        self.thread.files[id].settle();
        self.fsynced(change);
        Ok(())
    }

    /// Of any tree, also a snapshot: what is there is what was written last.
    pub(super) fn read(&mut self) -> Step {
        let trees: Vec<&String> = self.thread.trees.keys().collect();
        let Some(tree) = self.dice.pick(&trees).map(|tree| (*tree).clone()) else { return Ok(()) };
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        self.expect_content(&tree, &path, id)
    }

    /// Each file of a tree is what was written to it last.
    pub(super) fn read_all(&mut self, tree: &str) -> Step {
        let entries = self.thread.trees[tree].entries.clone();
        for (path, node) in entries {
            if let Node::File(id) = node {
                self.expect_content(tree, &path, id)?;
            }
        }
        Ok(())
    }

    fn expect_content(&self, tree: &str, path: &str, id: FileId) -> Step {
        let content = found::content(&self.path(tree, path))?;
        if content == *self.thread.files[id].now() {
            return Ok(());
        }
        let should = self.thread.files[id].now();
        let what = format!("{tree}/{path} is {content:x?}, and should be {should:x?}");
        Err(io::Error::other(what))
    }

    /// Does a change of a file's content, and writes its history.
    fn content(
        &mut self,
        id: FileId,
        after: Content,
        action: impl FnOnce() -> io::Result<()>,
    ) -> Step {
        let start = self.clock.stamp();
        self.thread.files[id].begin(start, after);
        action()?;
        let end = self.clock.stamp();
        self.thread.files[id].end(end);
        Ok(())
    }
}
