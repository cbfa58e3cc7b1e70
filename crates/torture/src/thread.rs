//! What one thread has done since the mount, and what a crash may leave of it.
//!
//! In core.  `base`: its trees when the mount was made. `done`: its operations on names since, the
//!           last of which may never have been answered. `files`: content (`file.rs`).
//!
//! THREAD-T1  What is found is `base` with the first so many of `done`: the *cut*.
//! THREAD-T2  The cut is not before what was promised: by an fsync of this thread's, up to the
//!            operation before it (`promised`), or by anybody's, all that ended before what that
//!            one made durable.
//! THREAD-T3  Contents are what CRASHED-F1 to CRASHED-F3 allow at the cut.
//! THREAD-T4  All threads' cuts are one cut of one order (CLOCK-C1): nothing is found that began
//!            after something which is missing had ended.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::clock::{Clock, Stamp};
use crate::file::{Content, File};
use crate::found::{self, Everything, Found};
use crate::names::{Effect, FileId, NameOp, Node, Tree, Trees};

/// Where all threads have files beside each other.
pub(crate) const COMMON: &str = "common";

struct Done {
    op: NameOp,
    start: Stamp,
    /// `None` if it was never answered.
    end: Option<Stamp>,
}

pub(crate) struct Thread {
    pub(crate) number: usize,
    /// What the names of its trees, and of its files in `common`, begin with.
    pub(crate) prefix: String,
    base: Trees,
    done: Vec<Done>,
    promised: usize,
    /// What is there now.
    pub(crate) trees: Trees,
    pub(crate) files: Vec<File>,
}

/// Where this thread's history was cut, as far as can be told.
pub(crate) struct Cut {
    /// When the last operation that is there for sure began.
    pub(crate) last_kept: Stamp,
    /// When the first that is missing for sure ended.
    pub(crate) first_missing: Option<Stamp>,
}

impl Thread {
    /// With its subvolume and the common directory, both empty.
    pub(crate) fn new(number: usize) -> Thread {
        let prefix = format!("t{number:02}-");
        let names = [COMMON.to_owned(), format!("{prefix}0")];
        let trees: Trees = names.map(|name| (name, Tree::default())).into();
        let (base, done, files) = (trees.clone(), Vec::new(), Vec::new());
        Thread { number, prefix, base, done, promised: 0, trees, files }
    }

    /// How many operations on names there were, which is also the number of the next.
    pub(crate) fn operations(&self) -> usize {
        self.done.len()
    }

    /// An operation on names begins; it may never end.
    pub(crate) fn begin(&mut self, op: NameOp, start: Stamp) {
        self.done.push(Done { op, start, end: None });
    }

    pub(crate) fn end(&mut self, end: Stamp) {
        let done = self.done.last_mut().expect("it began");
        done.end = Some(end);
        done.op.apply(&mut self.trees);
    }

    pub(crate) fn add_file(&mut self, file: File) -> FileId {
        self.files.push(file);
        self.files.len() - 1
    }

    /// An fsync has returned, of something that changed last at `change`: THREAD-T2.
    pub(crate) fn fsynced(&mut self, change: Stamp) {
        let now = self.done.iter().take_while(|done| done.start <= change).count();
        self.promised = self.promised.max(now);
    }

    /// When the last change of names in a directory began, if it has not moved since.
    pub(crate) fn last_change_in(&self, tree: &str, directory: &str) -> Option<Stamp> {
        let mut effects =
            self.done.iter().rev().map(|done| (done.op.effect(tree, directory), done.start));
        let (effect, start) = effects.find(|(effect, _)| *effect != Effect::None)?;
        (effect == Effect::Inside).then_some(start)
    }

    pub(crate) fn settle_all(&mut self) {
        self.promised = self.done.len();
        self.files.iter_mut().for_each(File::settle);
    }

    /// THREAD-T1 to THREAD-T3; `clock` is of the time before the crash. What is found is the new
    /// beginning.
    pub(crate) fn verify(&mut self, root: &Path, clock: &Clock) -> Result<Cut, String> {
        let found = found::everything(root, COMMON, &self.prefix).map_err(|it| it.to_string())?;
        let cuts = self.cuts(&found, clock)?;
        let (&first, &last) = (cuts.start(), cuts.end());
        let mut trees = self.base.clone();
        self.done[..last].iter().for_each(|done| done.op.apply(&mut trees));
        let files = self.verify_contents(&trees, root, first, clock)?;
        let cut = Cut {
            last_kept: self.done[..first].last().map_or(0, |done| done.start),
            first_missing: self.done.get(last).and_then(|done| done.end),
        };
        self.begin_again(trees, files);
        Ok(cut)
    }

    /// The first and the last cut that what is found may be: THREAD-T1, THREAD-T2.
    fn cuts(&self, found: &Everything, clock: &Clock) -> Result<RangeInclusive<usize>, String> {
        let durable = clock.durable();
        let ended = |done: &&Done| done.end.is_some_and(|end| end < durable);
        let promised = self.promised.max(self.done.iter().take_while(ended).count());
        let mut trees = self.base.clone();
        let mut cuts: Option<(usize, usize)> = None;
        let mut before = false;
        for cut in 0..=self.done.len() {
            if let Some(done) = cut.checked_sub(1).map(|last| &self.done[last]) {
                done.op.apply(&mut trees);
            }
            if !self.is_found(&trees, found) {
                continue;
            }
            match cut < promised {
                true => before = true,
                false => cuts = Some((cuts.map_or(cut, |(first, _)| first), cut)),
            }
        }
        let (first, last) = cuts.ok_or_else(|| match before {
            true => format!("its names are older than what was promised ({promised})"),
            false => format!("its names never were like this: {}", self.difference(found)),
        })?;
        Ok(first..=last)
    }

    fn is_found(&self, trees: &Trees, found: &Everything) -> bool {
        trees.len() == found.len()
            && trees.iter().zip(found).all(|((name, tree), (found_name, entries))| {
                name == found_name
                    && tree.entries.len() == entries.len()
                    && tree.entries.iter().zip(entries).all(|((path, node), (at, found))| {
                        path == at && self.is_same(*node, *found)
                    })
            })
    }

    fn is_same(&self, node: Node, found: Found) -> bool {
        match (node, found) {
            (Node::Directory, Found::Directory) => true,
            (Node::File(id), Found::File(inode)) => {
                self.files[id].inode.is_none_or(|its| its == inode)
            }
            _ => false,
        }
    }

    /// Against what was there last, for a person.
    fn difference(&self, found: &Everything) -> String {
        let trees: Vec<&String> = found.keys().collect();
        let should: Vec<&String> = self.trees.keys().collect();
        let mut text = format!("trees {trees:?}, at the end {should:?}");
        for (name, tree) in &self.trees {
            let Some(entries) = found.get(name) else { continue };
            for (path, found) in entries {
                let same = tree.entries.get(path).is_some_and(|node| self.is_same(*node, *found));
                if !same {
                    text += &format!("; {name}/{path} is {found:?}");
                }
            }
            for path in tree.entries.keys().filter(|path| !entries.contains_key(*path)) {
                text += &format!("; no {name}/{path}");
            }
        }
        text
    }

    /// THREAD-T3. What is in each file.
    fn verify_contents(
        &self,
        trees: &Trees,
        root: &Path,
        names: usize,
        clock: &Clock,
    ) -> Result<BTreeMap<FileId, Content>, String> {
        let mut contents = BTreeMap::new();
        for (name, tree) in trees {
            for (path, node) in &tree.entries {
                let Node::File(id) = *node else { continue };
                if contents.contains_key(&id) {
                    continue;
                }
                let content = found::content(&root.join(name).join(path));
                let content = content.map_err(|error: io::Error| error.to_string());
                let verified = content.and_then(|content| {
                    self.files[id].verify(&content, names, clock.synced())?;
                    Ok(content)
                });
                let content = verified.map_err(|what| format!("{name}/{path}: {what}"))?;
                contents.insert(id, content);
            }
        }
        Ok(contents)
    }

    /// What a recovered pool shows is durable; files without a name are no more.
    fn begin_again(&mut self, mut trees: Trees, contents: BTreeMap<FileId, Content>) {
        let mut ids = BTreeMap::new();
        let mut files = Vec::new();
        for (id, content) in contents {
            ids.insert(id, files.len());
            files.push(File::durable(self.files[id].inode, content));
        }
        for node in trees.values_mut().flat_map(|tree| tree.entries.values_mut()) {
            if let Node::File(id) = node {
                *id = ids[id];
            }
        }
        *self = Thread { base: trees.clone(), trees, files, ..Thread::new(self.number) };
    }
}

/// THREAD-T4.
pub(crate) fn verify_order(cuts: &[Cut]) -> Result<(), String> {
    let kept = cuts.iter().map(|cut| cut.last_kept).max().unwrap_or(0);
    let missing = cuts.iter().enumerate().filter_map(|(at, cut)| Some((at, cut.first_missing?)));
    for (thread, ended) in missing {
        if ended < kept {
            let what = format!("what ended at {ended} is missing, what began at {kept} is there");
            return Err(format!("of thread {thread} {what}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::found::inode;
    use crate::names::Change;
    use copyhold_torture::content::block;

    /// A thread that has made a file of one block, and the directory that a crash left.
    struct World {
        left: tempfile::TempDir,
        clock: Clock,
        thread: Thread,
        made: Stamp,
    }

    impl World {
        fn new() -> World {
            let (left, clock, mut thread) =
                (tempfile::tempdir().unwrap(), Clock::default(), Thread::new(0));
            for tree in thread.trees.keys() {
                std::fs::create_dir(left.path().join(tree)).unwrap();
            }
            let id = thread.add_file(File::default());
            let change = Change::Make { path: "f".into(), node: Node::File(id) };
            let made = clock.stamp();
            thread.begin(NameOp { tree: "t00-0".into(), change }, made);
            thread.end(clock.stamp());
            thread.files[id].begin(clock.stamp(), vec![7]);
            thread.files[id].end(clock.stamp());
            World { left, clock, thread, made }
        }

        fn find(&mut self, bytes: &[u8]) {
            let path = self.left.path().join("t00-0/f");
            std::fs::write(&path, bytes).unwrap();
            self.thread.files[0].inode = Some(inode(&path.metadata().unwrap()));
        }

        fn verify(&mut self) -> Result<Cut, String> {
            self.thread.verify(self.left.path(), &self.clock)
        }
    }

    #[test]
    fn a_name_may_be_missing_until_it_is_promised() {
        World::new().verify().unwrap();
        let mut own = World::new();
        own.thread.fsynced(own.made);
        assert!(own.verify().err().unwrap().contains("older than what was promised"));
        let mut anothers = World::new();
        anothers.clock.fsynced(anothers.clock.stamp());
        assert!(anothers.verify().err().unwrap().contains("older than what was promised"));
    }

    #[test]
    fn a_name_that_was_never_made_is_noticed() {
        let mut world = World::new();
        std::fs::write(world.left.path().join("t00-0/g"), "").unwrap();
        assert!(world.verify().err().unwrap().contains("never were like this"));
    }

    #[test]
    fn content_may_be_missing_until_it_is_promised_and_is_never_foreign() {
        for found in [vec![], block(0), block(7)] {
            let mut world = World::new();
            world.find(&found);
            world.verify().unwrap();
        }
        for found in [block(8), [&block(7)[..512], &block(0)[512..]].concat(), vec![0; 512]] {
            let mut world = World::new();
            world.find(&found);
            world.verify().err().unwrap();
        }
        let mut synced = World::new();
        synced.find(&[]);
        synced.thread.files[0].settle();
        synced.verify().err().unwrap();
    }

    #[test]
    fn a_cut_may_not_have_what_began_after_something_that_is_missing() {
        let cut = |last_kept, first_missing| Cut { last_kept, first_missing };
        verify_order(&[cut(5, Some(7)), cut(6, None)]).unwrap();
        verify_order(&[cut(5, Some(7)), cut(8, None)]).unwrap_err();
    }
}
