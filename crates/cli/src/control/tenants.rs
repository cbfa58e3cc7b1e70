//! Asking the daemon about tenants.
//!
//! A person names paths; a question is asked on a directory. So the verbs begin with what a path
//! means: the directory that it is or is in, a subvolume, or an entry that is to be made or taken
//! away. Numbers of inodes are those of nodes: a subvolume's root identifies the subvolume.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use copyhold_fs::NodeId;
use copyhold_fuse::Errno;
use copyhold_fuse::ask::ask;
use copyhold_fuse::mount::means_dead;
use copyhold_types::InodeNo;
use rustix::fs::{XattrFlags, fsetxattr};
use serde::de::DeserializeOwned;

use super::{Control, daemon_is_gone};
use crate::failure::Failure;
use crate::mount_table;
use copyhold_serve::control::{CHECKED, TENANTS};
use copyhold_serve::wire::{Asked, Page, Question, Refusal, Response, Token};

/// The code of a token that is valid no longer.
const EXPIRED: &str = "EKEYEXPIRED";
/// How often a change asks for new tokens.
const ATTEMPTS: usize = 4;

impl Control {
    /// The daemon's answer to a question that changes nothing.
    pub(crate) fn put<T: DeserializeOwned>(&self, question: &Question) -> Result<T, Failure> {
        self.ask(&Asked { token: None, question: question.clone() })
    }

    /// The daemon's answer to a question that changes something, with all proofs that it needs.
    /// `question` obtains the tokens of other directories.
    pub(crate) fn change<T: DeserializeOwned>(
        &self,
        question: impl Fn() -> Result<Question, Failure>,
    ) -> Result<T, Failure> {
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            let asked = |token| Ok(Asked { token: Some(token), question: question()? });
            match self.writable_token().and_then(asked).and_then(|asked| self.ask(&asked)) {
                Err(failure) if failure.code() == EXPIRED && attempts > 0 => {}
                done => return done,
            }
        }
    }

    /// Proves that this process has the directory open.
    pub(crate) fn token(&self) -> Result<Token, Failure> {
        self.put(&Question::Token)
    }

    /// Proves also that its mount permits writes: the kernel refuses the attribute otherwise.
    pub(crate) fn writable_token(&self) -> Result<Token, Failure> {
        let token = self.token()?;
        let set = fsetxattr(&self.file, CHECKED, token.as_bytes(), XattrFlags::empty());
        set.map(|()| token).map_err(|errno| {
            let directory = self.directory.display();
            match errno {
                rustix::io::Errno::ROFS => Failure::refused(Refusal::new(
                    "EROFS",
                    format!("{directory} is on a read-only mount; ask at a writable one"),
                )),
                errno => Failure::call(directory, &errno.into()),
            }
        })
    }

    fn ask<T: DeserializeOwned>(&self, asked: &Asked) -> Result<T, Failure> {
        let text = serde_json::to_vec(asked).expect("questions have string keys");
        let answer = ask(&self.file, TENANTS, &text).map_err(|errno| match errno {
            Errno::E2BIG => Failure::refused(Refusal::new("E2BIG", "too many groups at once")),
            errno => self.failed(errno),
        })?;
        let told = serde_json::from_slice(&answer).map_err(|error| self.misunderstood(&error))?;
        match told {
            Response::Answer(answer) => Ok(answer),
            Response::Error(refusal) => Err(Failure::refused(refusal)),
        }
    }

    /// All rows of a list that comes in pages; `question` says behind which number.
    pub(crate) fn put_all<T: DeserializeOwned>(
        &self,
        question: impl Fn(u64) -> Question,
    ) -> Result<Vec<T>, Failure> {
        collect(|after| self.put(&question(after)))
    }
}

fn collect<T>(page: impl Fn(u64) -> Result<Page<T>, Failure>) -> Result<Vec<T>, Failure> {
    let (mut rows, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = page(after)?;
        rows.extend(page.rows);
        // Whatever the daemon says, this ends.
        next = page.next.filter(|&next| next > after);
    }
    Ok(rows)
}

/// The directory that `path` is, or is in.
pub(crate) fn directory(path: &Path) -> Result<Control, Failure> {
    mount_table::holding(path)?;
    let found = metadata(path)?;
    let full = mount_table::absolute(path);
    Control::open(full.parent().filter(|_| !found.is_dir()).unwrap_or(path))
}

/// A subvolume's root directory.
#[derive(Debug)]
pub(crate) struct Root {
    /// Without links and dots.
    pub(crate) path: PathBuf,
    pub(crate) node: u64,
    device: u64,
}

/// The subvolume whose root directory `path` is.
pub(crate) fn subvolume(path: &Path) -> Result<Root, Failure> {
    mount_table::holding(path)?;
    let found = metadata(path)?;
    let node = NodeId::from_raw(found.ino()).filter(|node| node.ino == InodeNo::ROOT);
    let node = node.filter(|_| found.is_dir()).ok_or_else(|| {
        Failure::refused(Refusal::new(
            "EINVAL",
            format!(
                "{0} is not a subvolume; `copyhold subvolume list {0}` shows them",
                path.display()
            ),
        ))
    })?;
    Ok(Root { path: mount_table::absolute(path), node: node.raw(), device: found.dev() })
}

impl Root {
    /// That two subvolumes can be looked at together.
    pub(crate) fn with(&self, other: &Root) -> Result<(), Failure> {
        match self.device == other.device {
            true => Ok(()),
            false => Err(Failure::refused(Refusal::new(
                "EXDEV",
                format!(
                    "{} and {} are on different mounts",
                    self.path.display(),
                    other.path.display()
                ),
            ))),
        }
    }

    pub(crate) fn open(&self) -> Result<Control, Failure> {
        Control::open(&self.path)
    }

    /// The directory that holds its entry, and the entry's name.
    pub(crate) fn entry(&self) -> Result<Entry, Failure> {
        match self.node == NodeId::ROOT.raw() {
            true => Err(Failure::refused(Refusal::new(
                "EINVAL",
                format!("{} is the root of the pool, not a subvolume in it", self.path.display()),
            ))),
            false if mount_table::holding(&self.path)?.mount_point == self.path => {
                Err(Failure::refused(Refusal::new(
                    "EBUSY",
                    format!(
                        "{} is a mount point of the subvolume; use its path in the pool",
                        self.path.display()
                    ),
                )))
            }
            false => Entry::of(&self.path),
        }
    }

    /// Where a snapshot goes for which `target` was named: there, or into that directory.
    pub(crate) fn snapshot_entry(&self, target: &Path) -> Result<Entry, Failure> {
        let entry = match fs::metadata(target) {
            Ok(found) if found.is_dir() => {
                let name = self.path.file_name().filter(|_| self.node != NodeId::ROOT.raw());
                match name {
                    Some(name) => Entry { directory: target.to_owned(), name: name.to_owned() },
                    None => return Err(exists(target)),
                }
            }
            Ok(_) => return Err(exists(target)),
            Err(_) => Entry::of(target)?,
        };
        self.expect_same_mount(&entry)?;
        Ok(entry)
    }

    pub(crate) fn expect_same_mount(&self, entry: &Entry) -> Result<(), Failure> {
        if metadata(&entry.directory)?.dev() == self.device {
            return Ok(());
        }
        let (own, other) = (self.path.display(), entry.path());
        let what = format!("{own} and {} are on different mounts", other.display());
        Err(Failure::refused(Refusal::new("EXDEV", what)))
    }
}

/// A name in a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    directory: PathBuf,
    name: OsString,
}

impl Entry {
    fn of(path: &Path) -> Result<Entry, Failure> {
        let Some(name) = path.file_name() else {
            let what = format!("{} names nothing that could be made", path.display());
            return Err(Failure::refused(Refusal::new("EINVAL", what)));
        };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).to_owned();
        Ok(Entry { directory, name: name.to_owned() })
    }

    /// An entry that is to be made.
    pub(crate) fn new(path: &Path) -> Result<Entry, Failure> {
        let entry = Entry::of(path)?;
        match fs::symlink_metadata(path) {
            Ok(_) => Err(exists(path)),
            Err(_) => metadata(&entry.directory).map(|_| entry),
        }
    }

    pub(crate) fn open(&self) -> Result<Control, Failure> {
        mount_table::holding(&self.directory)?;
        Control::open(&self.directory)
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        OsStr::as_bytes(&self.name).to_owned()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }
}

fn metadata(path: &Path) -> Result<fs::Metadata, Failure> {
    fs::metadata(path).map_err(|error| match means_dead(&error) {
        true => daemon_is_gone(path),
        false => Failure::call(path.display(), &error),
    })
}

fn exists(path: &Path) -> Failure {
    Failure::refused(Refusal::new("EEXIST", format!("{} exists already", path.display())))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn pages_are_asked_for_until_there_is_none() {
        let asked = RefCell::new(Vec::new());
        let rows = collect(|after| {
            asked.borrow_mut().push(after);
            let rows: Vec<u64> = (after + 1..=7).take(3).collect();
            let next = rows.last().copied().filter(|&last| last < 7);
            Ok(Page { rows, next })
        });
        assert_eq!(rows.unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(*asked.borrow(), [0, 3, 6]);
    }

    #[test]
    fn a_daemon_that_repeats_itself_is_asked_once() {
        let rows = collect(|_| Ok(Page { rows: vec![1], next: Some(0) })).unwrap();
        assert_eq!(rows, [1]);
    }

    #[test]
    fn an_entry_is_a_name_in_a_directory() {
        let entry = |path: &str| Entry::of(Path::new(path)).map(|entry| entry.path());
        assert_eq!(entry("/a/b/").unwrap(), Path::new("/a/b"));
        assert_eq!(entry("b").unwrap(), Path::new("./b"));
        for nothing in ["/", "a/..", ""] {
            assert!(entry(nothing).unwrap_err().to_string().contains("names nothing"));
        }
    }
}
