//! Files written into a directory of the host.
//!
//! Problem.  Names come from a damaged image. None of them may lead out of the directory, whatever
//!           it says and whatever stands there already.
//! Idea.     Every name is one component, created or opened relative to its open parent, and never
//!           through a symlink. Files are only made, never replaced.
//!
//! EXPORT-X1  The given directory, directories below it, and new files are changed; nothing
//!            outside. With `--force`, existing directories get owner, mode and times from the
//!            pool; existing files stay.
//! EXPORT-X2  A directory gets its mode and times when all below it was written: levels that a path
//!            has no more are left.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use copyhold_rescue::{Attribute, Chunk, FileKind, Inode};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, linkat, mkdirat, mknodat, openat, symlinkat,
};
use rustix::io::Errno;

use super::metadata::{Problems, of_name, of_open};
use super::sink::{Item, Problem, Sink, shown};
use crate::failure::{Failure, Kind};

/// A directory on the way to what is being written.
struct Level {
    name: Vec<u8>,
    dir: File,
    /// The attributes that are restored when it is left.
    later: Option<(Inode, Vec<Attribute>)>,
}

pub(super) struct Tree {
    /// From the directory that was given down; the first has no name.
    levels: Vec<Level>,
    /// The first name of each file that has several.
    links: BTreeMap<(u32, u64), Vec<Vec<u8>>>,
    /// Of directories that were left.
    problems: Vec<(String, Problem)>,
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::WRONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Tree {
    pub(super) fn into(dir: &Path, force: bool) -> Result<Tree, Failure> {
        let wrong = |error| Failure::system(dir.display(), &error);
        match fs::create_dir(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(wrong(error)),
            _ => {}
        }
        if !force && fs::read_dir(dir).map_err(wrong)?.next().is_some() {
            let why = format!("{}: not empty; --force writes into it all the same", dir.display());
            return Err(Failure::new(Kind::Exists, why));
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = openat(CWD, dir, flags, Mode::empty()).map_err(|error| wrong(error.into()))?;
        let level = Level { name: Vec::new(), dir: top.into(), later: None };
        Ok(Tree { levels: vec![level], links: BTreeMap::new(), problems: Vec::new() })
    }

    /// Leaves all levels behind the first so many.
    fn leave(&mut self, kept: usize) {
        while self.levels.len() > kept {
            let names = self.levels.iter().skip(1).map(|level| level.name.clone());
            let path: Vec<Vec<u8>> = names.collect();
            let Some(Level { dir, later: Some((inode, attributes)), .. }) = self.levels.pop()
            else {
                continue;
            };
            let mut problems = Problems::new();
            of_open(dir.as_fd(), &inode, &attributes, &mut problems);
            self.problems.extend(problems.into_iter().map(|why| (shown(&path), why)));
        }
    }

    /// Enters a directory: leaves those that are not on the way, and opens the others.
    fn enter(&mut self, path: &[Vec<u8>]) -> Result<&mut Level, Errno> {
        let names = self.levels[1..].iter().map(|level| &level.name);
        let common = names.zip(path).take_while(|(one, other)| one == other).count();
        self.leave(1 + common);
        for name in &path[common..] {
            let above = self.levels.last().expect("the first is kept").dir.as_fd();
            let dir = openat(above, OsStr::from_bytes(name), DIRECTORY, Mode::empty())?;
            self.levels.push(Level { name: name.clone(), dir: dir.into(), later: None });
        }
        Ok(self.levels.last_mut().expect("the first is kept"))
    }

    /// Makes a directory, unless it exists, and enters it.
    fn directory(&mut self, path: &[Vec<u8>]) -> Result<&mut Level, Errno> {
        if let Some((name, above)) = path.split_last() {
            let above = self.enter(above)?.dir.as_fd();
            match mkdirat(above, OsStr::from_bytes(name), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        self.enter(path)
    }

    /// Gives a file that was restored another name.
    fn link(&mut self, first: &[Vec<u8>], path: &[Vec<u8>]) -> Result<(), Errno> {
        let Some((name, above)) = path.split_last() else { return Err(Errno::ISDIR) };
        self.enter(above)?;
        let (top, parent) = (&self.levels[0].dir, &self.levels[above.len()].dir);
        // All on the way to it are directories that were opened as such.
        let first = first.join(&b'/');
        let (first, name) = (OsStr::from_bytes(&first), OsStr::from_bytes(name));
        linkat(top, first, parent, name, AtFlags::empty())
    }

    fn other(&mut self, item: &Item<'_>, problems: &mut Problems) -> Result<(), Errno> {
        let Some((name, above)) = item.path.split_last() else { return Err(Errno::NOTDIR) };
        let (name, inode) = (OsStr::from_bytes(name), item.inode);
        let parent = &self.enter(above)?.dir;
        let kind = match inode.kind {
            FileKind::Regular => return regular(parent, name, item, problems),
            FileKind::Symlink => {
                let target = match item.files.target(inode) {
                    Ok(target) => target,
                    Err(damage) => {
                        problems.push(Problem::lost(damage));
                        return Ok(());
                    }
                };
                symlinkat(OsStr::from_bytes(&target), parent, name)?;
                of_name(parent, name, inode, &item.attributes, true, problems);
                return Ok(());
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Directory => unreachable!("directories go to Self::directory"),
        };
        mknodat(parent, name, kind, Mode::RUSR | Mode::WUSR, inode.device.into())?;
        of_name(parent, name, inode, &item.attributes, false, problems);
        Ok(())
    }
}

fn regular(
    parent: &File,
    name: &OsStr,
    item: &Item<'_>,
    problems: &mut Problems,
) -> Result<(), Errno> {
    let file = File::from(openat(parent, name, NEW_FILE, Mode::RUSR | Mode::WUSR)?);
    if let Err(error) = file.set_len(item.inode.size) {
        let why = format!("{} bytes do not fit here: {error}", item.inode.size);
        problems.push(Problem::NotRestored(why));
        return Ok(());
    }
    let (mut lost, mut failed) = (None, None);
    item.files.content(item.inode, |chunk| match chunk {
        Chunk::Data { offset, bytes } if failed.is_none() => {
            failed = file.write_all_at(bytes, offset).err();
        }
        Chunk::Data { .. } => {}
        Chunk::Lost { offset, length, damage } => {
            let (total, _) = lost.get_or_insert((0, format!("from {offset} on: {damage}")));
            *total += length;
        }
    });
    if let Some((total, first)) = lost {
        let why = format!("up to {total} bytes are lost, zeros here, {first}");
        problems.push(Problem::Lost(why));
    }
    problems.extend(failed.map(|error| Problem::NotRestored(format!("content: {error}"))));
    of_open(file.as_fd(), item.inode, &item.attributes, problems);
    Ok(())
}

impl Sink for Tree {
    fn file(&mut self, item: Item<'_>, problems: &mut Problems) -> Result<(), Failure> {
        let has_links = item.inode.links > 1 && item.inode.kind != FileKind::Directory;
        let id = (item.subvolume, item.inode.number);
        let done = match self.links.get(&id).cloned() {
            _ if item.inode.kind == FileKind::Directory => {
                let Item { path, inode, attributes, .. } = item;
                let level = self.directory(path);
                level.map(|level| level.later = Some((inode.clone(), attributes)))
            }
            Some(first) => self.link(&first, item.path),
            None => {
                let done = self.other(&item, problems);
                if has_links && done.is_ok() {
                    self.links.insert(id, item.path.to_vec());
                }
                done
            }
        };
        problems.extend(done.err().map(Problem::not_restored));
        Ok(())
    }

    fn empty(&mut self, path: &[Vec<u8>], problems: &mut Problems) {
        let done = self.directory(path);
        problems.extend(done.err().map(Problem::not_restored));
    }

    fn finish(&mut self) -> Vec<(String, Problem)> {
        self.leave(0);
        std::mem::take(&mut self.problems)
    }
}
