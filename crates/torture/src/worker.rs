//! One thread at work: operations at random on names and files of its own, each written into its
//! history before it is done, until the filesystem goes away.
//!
//! Changes of names are in `names.rs`, of what is in files in `contents.rs`, of whole trees in
//! `family.rs`.

mod contents;
mod family;
mod names;

use std::io;
use std::path::{Path, PathBuf};

use copyhold_harness::Pool;
use copyhold_torture::dice::Dice;

use crate::clock::{Clock, Stamp};
use crate::names::{Change, FileId, NameOp, Node};
use crate::thread::Thread;

/// What came of one operation: not done, since there was nothing to do it with, or failed.
type Step = io::Result<()>;

pub(crate) struct Worker<'a> {
    pool: &'a Pool,
    root: PathBuf,
    clock: &'a Clock,
    thread: &'a mut Thread,
    dice: Dice,
    /// Tokens of this round that are taken.
    tokens: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        pool: &'a Pool,
        clock: &'a Clock,
        thread: &'a mut Thread,
        seed: u64,
        round: u64,
    ) -> Worker<'a> {
        let dice = Dice::new(seed, round, thread.number as u64);
        // No two writes of any thread in any round have the same.
        let tokens = (round + 1) << 40 | (thread.number as u64) << 32;
        Worker { pool, root: pool.mount_point(), clock, thread, dice, tokens }
    }

    /// Works until the round is over, and says how much was done. An error before that is a
    /// failure, and so is content that is not what was written.
    pub(crate) fn run(mut self) -> Result<u64, String> {
        let mut operations = 0;
        match self.make_writable() {
            Err(error) if !self.clock.is_over() => return Err(format!("writable: {error}")),
            _ => {}
        }
        while !self.clock.is_over() {
            let (what, step) = self.step();
            match step {
                Ok(()) => operations += 1,
                Err(_) if self.clock.is_over() => break,
                Err(error) => return Err(format!("{what}: {error}")),
            }
        }
        Ok(operations)
    }

    fn step(&mut self) -> (&'static str, Step) {
        match self.dice.below(200) {
            0..=29 => ("create", self.create()),
            30..=79 => ("write", self.write()),
            80..=104 => ("fsync", self.fsync()),
            105..=119 => ("read", self.read()),
            120..=134 => ("rename", self.rename()),
            135..=139 => ("exchange", self.exchange()),
            140..=151 => ("unlink", self.unlink()),
            152..=159 => ("link", self.link()),
            160..=169 => ("truncate", self.truncate()),
            170..=175 => ("punch", self.punch()),
            176..=183 => ("copy", self.copy()),
            184..=187 => ("mkdir", self.make_directory()),
            188..=189 => ("rmdir", self.remove_directory()),
            190..=191 => ("fsync of a directory", self.fsync_directory()),
            192 => ("rollback", self.roll_back()),
            193 => ("read-only", self.guard()),
            194..=196 => ("snapshot", self.snapshot()),
            197..=198 => ("subvolume delete", self.delete()),
            _ => ("sync", self.sync()),
        }
    }

    fn path(&self, tree: &str, path: &str) -> PathBuf {
        self.root.join(tree).join(path)
    }

    /// Does a change of names, and writes its history.
    fn change<T>(
        &mut self,
        op: NameOp,
        touched: &[FileId],
        action: impl FnOnce(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        let start = self.clock.stamp();
        for &id in touched {
            self.thread.files[id].changed = start;
        }
        let replaces = match &op.change {
            Change::Rename { to, .. } => self.thread.trees[&op.tree].entries.contains_key(to),
            Change::Exchange { .. } => true,
            _ => false,
        };
        if replaces {
            let number = self.thread.operations();
            touched.iter().for_each(|&id| self.thread.files[id].replaces(number, start));
        }
        let tree = self.root.join(&op.tree);
        self.thread.begin(op, start);
        let answer = action(&tree)?;
        self.thread.end(self.clock.stamp());
        Ok(answer)
    }

    /// A tree that can be written to.
    fn tree(&mut self) -> String {
        let writable = self.thread.trees.iter().filter(|(_, tree)| !tree.is_readonly);
        let names: Vec<&String> = writable.map(|(name, _)| name).collect();
        (*self.dice.pick(&names).expect("the common one can be written to")).clone()
    }

    /// Some file under one of its names, in `tree`.
    fn file(&mut self, tree: &str) -> Option<(String, FileId)> {
        let files: Vec<(&String, FileId)> = self.thread.trees[tree]
            .entries
            .iter()
            .filter_map(|(path, node)| match node {
                Node::File(id) => Some((path, *id)),
                Node::Directory => None,
            })
            .collect();
        self.dice.pick(&files).map(|(path, id)| ((*path).clone(), *id))
    }

    fn directory(&mut self, tree: &str) -> Option<String> {
        let entries = self.thread.trees[tree].entries.iter();
        let are = entries.filter(|(_, node)| **node == Node::Directory);
        let paths: Vec<&String> = are.map(|(path, _)| path).collect();
        self.dice.pick(&paths).map(|path| (*path).clone())
    }

    /// A path for something new or old, in a directory that is there or in the tree's root.
    fn some_path(&mut self, tree: &str, kind: char) -> String {
        let name = format!("{}{kind}{}", self.thread.prefix, self.dice.below(24));
        match self.directory(tree) {
            Some(directory) if kind == 'f' && self.dice.one_in(2) => format!("{directory}/{name}"),
            _ => name,
        }
    }

    fn fsynced(&mut self, change: Stamp) {
        if change != 0 {
            self.thread.fsynced(change);
            self.clock.fsynced(change);
        }
    }
}
