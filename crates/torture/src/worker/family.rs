//! Operations on whole trees, through the program.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::{Step, Worker};
use crate::names::{Change, FileId, NameOp, Node};
use crate::thread::COMMON;

/// Trees that a thread has at most, the common one included.
const TREES_MAX: usize = 5;

impl Worker<'_> {
    /// Of a subvolume or of a snapshot; every third can not be written to. It is read at once.
    pub(super) fn snapshot(&mut self) -> Step {
        let name = format!("{}{}", self.thread.prefix, self.dice.below(2 * TREES_MAX));
        let Some(from) = self.own_tree() else { return Ok(()) };
        let trees = &self.thread.trees;
        if trees.len() == TREES_MAX || trees.contains_key(&name) {
            return Ok(());
        }
        let copies = self.copies(&from);
        let is_readonly = self.dice.one_in(3);
        let (pool, mut verb) = (self.pool, vec!["subvolume", "snapshot"]);
        verb.extend(is_readonly.then_some("-r"));
        let (source, target) = (self.root.join(&from), self.root.join(&name));
        let change = Change::Snapshot { to: name.clone(), is_readonly, copies };
        self.change(NameOp { tree: from, change }, &[], |_| {
            pool.run(&verb, &[&source, &target]).map_err(io::Error::other)
        })?;
        self.read_all(&name)
    }

    /// A tree becomes what another one is: all of a thread's trees are of one family.
    pub(super) fn roll_back(&mut self) -> Step {
        let (Some(tree), Some(to)) = (self.own_writable_tree(), self.own_tree()) else {
            return Ok(());
        };
        if tree == to {
            return Ok(());
        }
        let change = Change::RollBack { to: to.clone(), copies: self.copies(&to) };
        let (pool, snapshot) = (self.pool, self.root.join(&to));
        self.change(NameOp { tree: tree.clone(), change }, &[], |tree| {
            pool.run(&["subvolume", "rollback"], &[tree, &snapshot]).map_err(io::Error::other)
        })?;
        self.read_all(&tree)
    }

    /// A tree that is read-only for a while has all that was written to it, and takes nothing.
    pub(super) fn guard(&mut self) -> Step {
        let Some(tree) = self.own_writable_tree() else { return Ok(()) };
        self.set_read_only(&tree, true)?;
        self.read_all(&tree)?;
        match std::fs::create_dir(self.path(&tree, "never")) {
            Err(refused) if refused.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
            other => return Err(io::Error::other(format!("mkdir, read-only: {other:?}"))),
        }
        self.set_read_only(&tree, false)
    }

    /// A kill may have left a tree read-only ([`Self::guard`]).
    pub(super) fn make_writable(&mut self) -> Step {
        let own = self.thread.trees.iter().filter(|(name, _)| *name != COMMON);
        let writable = own.filter(|(_, tree)| !tree.is_readonly);
        let names: Vec<String> = writable.map(|(name, _)| name.clone()).collect();
        names.iter().try_for_each(|name| self.set_read_only(name, false))
    }

    fn set_read_only(&self, tree: &str, on: bool) -> Step {
        let (tree, on) = (self.root.join(tree), if on { "true" } else { "false" });
        let given: [&Path; 3] = [&tree, Path::new("ro"), Path::new(on)];
        self.pool.run(&["property", "set"], &given).map_err(io::Error::other).map(drop)
    }

    /// New files for those of a tree that is about to be copied.
    fn copies(&mut self, from: &str) -> BTreeMap<FileId, FileId> {
        let nodes: Vec<Node> = self.thread.trees[from].entries.values().copied().collect();
        let mut copies: BTreeMap<FileId, FileId> = BTreeMap::new();
        for node in nodes {
            if let Node::File(id) = node
                && !copies.contains_key(&id)
            {
                let copy = self.thread.files[id].copy();
                copies.insert(id, self.thread.add_file(copy));
            }
        }
        copies
    }

    /// Of any but the last.
    pub(super) fn delete(&mut self) -> Step {
        let Some(tree) = self.own_tree() else { return Ok(()) };
        if self.thread.trees.len() <= 2 {
            return Ok(());
        }
        let pool = self.pool;
        self.change(NameOp { tree, change: Change::Delete }, &[], |tree| {
            pool.run(&["subvolume", "delete"], &[tree]).map_err(io::Error::other)
        })?;
        Ok(())
    }

    /// Everything of everybody that is done is durable, contents included.
    pub(super) fn sync(&mut self) -> Step {
        let start = self.clock.stamp();
        self.pool.run(&["sync"], &[&self.root]).map_err(io::Error::other)?;
        self.clock.synced_at(start);
        self.thread.settle_all();
        Ok(())
    }

    fn own_writable_tree(&mut self) -> Option<String> {
        self.own_tree().filter(|tree| !self.thread.trees[tree].is_readonly)
    }

    fn own_tree(&mut self) -> Option<String> {
        let own = self.thread.trees.keys().filter(|name| *name != COMMON);
        let names: Vec<&String> = own.collect();
        self.dice.pick(&names).map(|name| (*name).clone())
    }
}
