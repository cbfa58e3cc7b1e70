//! Operations on names.

use std::fs::{self, File as HostFile, OpenOptions};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Step, Worker};
use crate::file::File;
use crate::found;
use crate::names::{Change, NameOp, Node};

impl Worker<'_> {
    pub(super) fn create(&mut self) -> Step {
        let tree = self.tree();
        let path = self.some_path(&tree, 'f');
        if self.thread.trees[&tree].entries.contains_key(&path) {
            return Ok(());
        }
        let id = self.thread.add_file(File::default());
        let change = Change::Make { path: path.clone(), node: Node::File(id) };
        let found = self.change(NameOp { tree, change }, &[id], |tree| {
            let path = tree.join(&path);
            let file = OpenOptions::new().write(true).create_new(true).open(path)?;
            Ok(found::inode(&file.metadata()?))
        })?;
        self.thread.files[id].inode = Some(found);
        Ok(())
    }

    pub(super) fn unlink(&mut self) -> Step {
        let tree = self.tree();
        let Some((path, id)) = self.file(&tree) else { return Ok(()) };
        let change = Change::Remove { path: path.clone() };
        self.change(NameOp { tree, change }, &[id], |tree| fs::remove_file(tree.join(&path)))
    }

    pub(super) fn link(&mut self) -> Step {
        let tree = self.tree();
        let Some((from, id)) = self.file(&tree) else { return Ok(()) };
        let path = self.some_path(&tree, 'f');
        if self.thread.trees[&tree].entries.contains_key(&path) {
            return Ok(());
        }
        let change = Change::Make { path: path.clone(), node: Node::File(id) };
        self.change(NameOp { tree, change }, &[id], |tree| {
            fs::hard_link(tree.join(&from), tree.join(&path))
        })
    }

    /// Of a file, over another or onto a free name, or of a directory onto a free name.
    pub(super) fn rename(&mut self) -> Step {
        let tree = self.tree();
        if self.dice.one_in(5) {
            return self.rename_directory(tree);
        }
        let Some((from, id)) = self.file(&tree) else { return Ok(()) };
        let to = self.some_path(&tree, 'f');
        // Of two names of one file a rename does nothing.
        if self.thread.trees[&tree].entries.get(&to) == Some(&Node::File(id)) {
            return Ok(());
        }
        let change = Change::Rename { from: from.clone(), to: to.clone() };
        self.change(NameOp { tree, change }, &[id], |tree| {
            fs::rename(tree.join(&from), tree.join(&to))
        })
    }

    fn rename_directory(&mut self, tree: String) -> Step {
        let Some(from) = self.directory(&tree) else { return Ok(()) };
        let to = self.some_path(&tree, 'd');
        if self.thread.trees[&tree].entries.contains_key(&to) {
            return Ok(());
        }
        let change = Change::Rename { from: from.clone(), to: to.clone() };
        self.change(NameOp { tree, change }, &[], |tree| {
            fs::rename(tree.join(&from), tree.join(&to))
        })
    }

    pub(super) fn exchange(&mut self) -> Step {
        let tree = self.tree();
        let (Some((one, first)), Some((other, second))) = (self.file(&tree), self.file(&tree))
        else {
            return Ok(());
        };
        if first == second {
            return Ok(());
        }
        let change = Change::Exchange { one: one.clone(), other: other.clone() };
        self.change(NameOp { tree, change }, &[first, second], |tree| {
            let (one, other) = (tree.join(&one), tree.join(&other));
            Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
        })
    }

    pub(super) fn make_directory(&mut self) -> Step {
        let tree = self.tree();
        let path = self.some_path(&tree, 'd');
        if self.thread.trees[&tree].entries.contains_key(&path) {
            return Ok(());
        }
        let change = Change::Make { path: path.clone(), node: Node::Directory };
        self.change(NameOp { tree, change }, &[], |tree| fs::create_dir(tree.join(&path)))
    }

    pub(super) fn remove_directory(&mut self) -> Step {
        let tree = self.tree();
        let Some(path) = self.directory(&tree) else { return Ok(()) };
        let below = format!("{path}/");
        if self.thread.trees[&tree].entries.keys().any(|path| path.starts_with(&below)) {
            return Ok(());
        }
        let change = Change::Remove { path: path.clone() };
        self.change(NameOp { tree, change }, &[], |tree| fs::remove_dir(tree.join(&path)))
    }

    /// It makes durable what changed last among the names in it.
    pub(super) fn fsync_directory(&mut self) -> Step {
        let tree = self.tree();
        let Some(path) = self.directory(&tree) else { return Ok(()) };
        let change = self.thread.last_change_in(&tree, &path).unwrap_or(0);
        HostFile::open(self.path(&tree, &path))?.sync_all()?;
        self.fsynced(change);
        Ok(())
    }
}
