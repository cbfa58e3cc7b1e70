//! The names that one thread owns, and the operations that change them.
//!
//! A thread has trees: its part of one directory that all threads share, a subvolume, and snapshots
//! of that, writable ones among them. Nobody else touches these names, so what is there after a
//! crash is what was there behind some number of its operations.

use std::collections::BTreeMap;

/// A file of this thread, however many names it has. In a snapshot it is another one.
pub(crate) type FileId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    File(FileId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) is_readonly: bool,
    /// By path from the tree's root.
    pub(crate) entries: BTreeMap<String, Node>,
}

impl Tree {
    /// What a snapshot of it is; `copies` has its files for those of this one.
    fn copy(&self, is_readonly: bool, copies: &BTreeMap<FileId, FileId>) -> Tree {
        let mut copy = Tree { is_readonly, entries: self.entries.clone() };
        for node in copy.entries.values_mut() {
            if let Node::File(id) = node {
                *id = copies[id];
            }
        }
        copy
    }
}

/// By name below the mount point.
pub(crate) type Trees = BTreeMap<String, Tree>;

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Make {
        path: String,
        node: Node,
    },
    Remove {
        path: String,
    },
    /// Of a file or a directory, over a file or onto a free name.
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    /// `copies`: which file of the snapshot is the copy of which.
    Snapshot {
        to: String,
        is_readonly: bool,
        copies: BTreeMap<FileId, FileId>,
    },
    Delete,
    /// The tree becomes what a snapshot of it is.
    RollBack {
        to: String,
        copies: BTreeMap<FileId, FileId>,
    },
}

/// A change in, or of, the tree with this name.
#[derive(Clone, Debug)]
pub(crate) struct NameOp {
    pub(crate) tree: String,
    pub(crate) change: Change,
}

impl NameOp {
    pub(crate) fn apply(&self, trees: &mut Trees) {
        match &self.change {
            Change::Snapshot { to, is_readonly, copies } => {
                let copy = trees[&self.tree].copy(*is_readonly, copies);
                trees.insert(to.clone(), copy);
            }
            Change::RollBack { to, copies } => {
                let copy = trees[to].copy(false, copies);
                trees.insert(self.tree.clone(), copy);
            }
            Change::Delete => drop(trees.remove(&self.tree)),
            _ => self.apply_inside(&mut trees.get_mut(&self.tree).expect("it is there").entries),
        }
    }

    fn apply_inside(&self, entries: &mut BTreeMap<String, Node>) {
        match &self.change {
            Change::Make { path, node } => drop(entries.insert(path.clone(), *node)),
            Change::Remove { path } => drop(entries.remove(path)),
            Change::Rename { from, to } => {
                for (path, node) in take(entries, from) {
                    entries.insert(format!("{to}{}", &path[from.len()..]), node);
                }
            }
            Change::Exchange { one, other } => {
                let (first, second) = (entries[one], entries[other]);
                entries.insert(one.clone(), second);
                entries.insert(other.clone(), first);
            }
            Change::Snapshot { .. } | Change::Delete | Change::RollBack { .. } => {
                unreachable!("these concern the tree")
            }
        }
    }
}

/// What an operation does to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Makes, moves or removes it.
    Itself,
    /// Changes which names are in it.
    Inside,
    None,
}

impl NameOp {
    pub(crate) fn effect(&self, tree: &str, directory: &str) -> Effect {
        let paths = match &self.change {
            Change::Snapshot { to, .. } if to == tree => return Effect::Itself,
            Change::Delete | Change::RollBack { .. } if self.tree == tree => return Effect::Itself,
            Change::Snapshot { .. } | Change::Delete | Change::RollBack { .. } => {
                return Effect::None;
            }
            _ if self.tree != tree => return Effect::None,
            Change::Make { path, .. } | Change::Remove { path } => [path, path],
            Change::Rename { from, to } => [from, to],
            Change::Exchange { one, other } => [one, other],
        };
        let is_inside =
            |path: &String| path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        match paths {
            _ if paths.iter().any(|path| *path == directory) => Effect::Itself,
            _ if paths.into_iter().any(is_inside) => Effect::Inside,
            _ => Effect::None,
        }
    }
}

/// Takes a file out, or a directory with all in it.
fn take(entries: &mut BTreeMap<String, Node>, path: &str) -> Vec<(String, Node)> {
    let below = format!("{path}/");
    let is_it = |name: &&String| **name == path || name.starts_with(&below);
    let names: Vec<String> = entries.keys().filter(is_it).cloned().collect();
    let take = |name: String| entries.remove_entry(&name).expect("it was listed");
    names.into_iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(change: Change) -> NameOp {
        NameOp { tree: "a".into(), change }
    }

    #[test]
    fn a_directory_moves_with_what_is_in_it_and_a_snapshot_has_files_of_its_own() {
        let mut trees = Trees::from([("a".into(), Tree::default())]);
        let make = |path: &str, node| op(Change::Make { path: path.into(), node });
        make("d", Node::Directory).apply(&mut trees);
        make("d/f", Node::File(1)).apply(&mut trees);
        make("dd", Node::File(2)).apply(&mut trees);
        op(Change::Rename { from: "d".into(), to: "e".into() }).apply(&mut trees);
        let names: Vec<&str> = trees["a"].entries.keys().map(String::as_str).collect();
        assert_eq!(names, ["dd", "e", "e/f"]);
        let copies = BTreeMap::from([(1, 10), (2, 20)]);
        op(Change::Snapshot { to: "b".into(), is_readonly: true, copies }).apply(&mut trees);
        assert_eq!(trees["b"].entries["e/f"], Node::File(10));
        assert_eq!(trees["a"].entries["e/f"], Node::File(1));
        op(Change::Remove { path: "dd".into() }).apply(&mut trees);
        let copies = BTreeMap::from([(10, 11), (20, 21)]);
        op(Change::RollBack { to: "b".into(), copies }).apply(&mut trees);
        assert_eq!(trees["a"].entries["e/f"], Node::File(11));
        assert_eq!(trees["a"].entries["dd"], Node::File(21));
        assert!(!trees["a"].is_readonly);
        op(Change::Delete).apply(&mut trees);
        assert_eq!(trees.len(), 1);
    }
}
