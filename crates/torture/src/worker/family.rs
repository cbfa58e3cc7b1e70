//! Operations on whole trees, through the program.

use std::collections::BTreeMap;
use std::io;

use super::{Step, Worker};
use crate::names::{Change, FileId, NameOp, Node};
use crate::thread::COMMON;

/// Trees that a thread has at most, the common one included.
const TREES_MAX: usize = 5;

impl Worker<'_> {
    /// Of a subvolume or of a snapshot; every third can not be written to.
    pub(super) fn snapshot(&mut self) -> Step {
        let name = format!("{}{}", self.thread.prefix, self.dice.below(2 * TREES_MAX));
        let Some(from) = self.own_tree() else { return Ok(()) };
        let trees = &self.thread.trees;
        if trees.len() == TREES_MAX || trees.contains_key(&name) {
            return Ok(());
        }
        let nodes: Vec<Node> = trees[&from].entries.values().copied().collect();
        let mut copies: BTreeMap<FileId, FileId> = BTreeMap::new();
        for node in nodes {
            if let Node::File(id) = node
                && !copies.contains_key(&id)
            {
                let copy = self.thread.files[id].copy();
                copies.insert(id, self.thread.add_file(copy));
            }
        }
        let is_readonly = self.dice.one_in(3);
        let (mount, mut verb) = (self.mount, vec!["subvolume", "snapshot"]);
        verb.extend(is_readonly.then_some("-r"));
        let (source, target) = (self.root.join(&from), self.root.join(&name));
        let change = Change::Snapshot { to: name, is_readonly, copies };
        self.change(NameOp { tree: from, change }, &[], |_| {
            mount.run(&verb, &[&source, &target]).map_err(io::Error::other)
        })?;
        Ok(())
    }

    /// Of any but the last.
    pub(super) fn delete(&mut self) -> Step {
        let Some(tree) = self.own_tree() else { return Ok(()) };
        if self.thread.trees.len() <= 2 {
            return Ok(());
        }
        let mount = self.mount;
        self.change(NameOp { tree, change: Change::Delete }, &[], |tree| {
            mount.run(&["subvolume", "delete"], &[tree]).map_err(io::Error::other)
        })?;
        Ok(())
    }

    /// Everything of everybody that is done is durable, contents included.
    pub(super) fn sync(&mut self) -> Step {
        let start = self.clock.stamp();
        self.mount.run(&["sync"], &[&self.root]).map_err(io::Error::other)?;
        self.clock.synced_at(start);
        self.thread.settle_all();
        Ok(())
    }

    fn own_tree(&mut self) -> Option<String> {
        let own = self.thread.trees.keys().filter(|name| *name != COMMON);
        let names: Vec<&String> = own.collect();
        self.dice.pick(&names).map(|name| (*name).clone())
    }
}
