//! `copyhold debug export`: the readable files of a pool, also of one that does not open.
//!
//! The reader behind it is `copyhold-rescue`, which shares no code with the engine, needs one good
//! copy of a label, an uberblock and the log, and goes on past what is lost. This verb walks the
//! subvolumes and gives each name to a *sink*: `restore` writes files, `listing` prints them. What
//! is not restored whole is printed as it is found; the exit code says whether anything was.

mod listing;
mod metadata;
mod restore;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use copyhold_rescue::{
    Attribute, FileKind, Files, Inode, Place, Pool, ROOT_SUBVOLUME, Seekable, Step, Subvolume,
};
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::failure::{Failure, Kind};
use crate::report::{Report, print};

/// Copy all readable files of a pool into a directory
///
/// For a pool that does not open: it needs one readable label, uberblock and copy of the log, and
/// goes on past all other damage. The pool is only read. Each file that cannot be copied whole is
/// reported, with zeros where bytes are lost; the command then exits with 3.
///
/// Subvolumes come where their entries are, and those whose entry is lost as `subvolume-ID`.
/// Owners, device files and attributes need root. The file flags of chattr are not restored.
/// With --json each line is an object, the last one the summary.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold debug export /srv/pool.img /srv/rescued\n  \
    copyhold debug export /srv/pool.img --list")]
pub(super) struct Export {
    /// The file or block device
    pool: PathBuf,
    /// An empty directory; it is made if it does not exist
    #[arg(required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// Only the subvolume with this id
    #[arg(long, value_name = "ID")]
    subvolume: Option<u32>,
    /// Write into a directory that is not empty; files in it are not replaced
    #[arg(long)]
    force: bool,
    /// List the files with digests of their contents, and write nothing
    #[arg(long, conflicts_with = "dir")]
    list: bool,
}

/// A file that is to be shown or restored.
struct Item<'a> {
    subvolume: u32,
    path: &'a [Vec<u8>],
    inode: &'a Inode,
    files: &'a Files<'a>,
    attributes: Vec<Attribute>,
}

/// Where files go. Problems are texts for people, each of the file at hand.
trait Sink {
    fn file(&mut self, item: Item<'_>, problems: &mut Vec<String>) -> Result<(), Failure>;

    /// An entry that leads elsewhere, or nowhere: an empty directory.
    fn empty(&mut self, path: &[Vec<u8>], problems: &mut Vec<String>);

    /// The end; what went wrong with directories that were left meanwhile.
    fn finish(&mut self) -> Vec<(String, String)>;
}

/// The outcome of an export.
#[derive(Default)]
struct Summary {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    damaged: u64,
}

struct Walk<'a> {
    pool: &'a Pool<Seekable<File>>,
    report: Report,
    sink: Box<dyn Sink>,
    summary: Summary,
    /// Subvolumes that are still to be gone through, with their places.
    waiting: Vec<(Vec<Vec<u8>>, u32)>,
    seen: BTreeSet<u32>,
    /// One subvolume alone.
    only: bool,
    stopped: Option<Failure>,
}

impl Export {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let pool = self.open()?;
        let sink: Box<dyn Sink> = match &self.dir {
            Some(dir) => Box::new(restore::Tree::into(dir, self.force)?),
            None => Box::new(listing::Listing { report }),
        };
        let mut walk = Walk {
            pool: &pool,
            report,
            sink,
            summary: Summary::default(),
            waiting: Vec::new(),
            seen: BTreeSet::new(),
            only: self.subvolume.is_some(),
            stopped: None,
        };
        for damage in pool.damage() {
            walk.problem("the pool", &damage.to_string())?;
        }
        let first = self.subvolume.unwrap_or(ROOT_SUBVOLUME);
        if pool.subvolume(first).is_none() && self.subvolume.is_some() {
            let why = format!("there is no readable subvolume {first}");
            return Err(Failure::new(Kind::NotFound, why));
        }
        walk.all(first)?;
        let summary = walk.summary;
        report.show(&summary.json(), || summary.text())?;
        if summary.damaged == 0 {
            return Ok(());
        }
        let (pool, damaged) = (self.pool.display(), summary.damaged);
        Err(Failure::new(Kind::Damaged, format!("{pool}: {damaged} losses, as listed")))
    }

    fn open(&self) -> Result<Pool<Seekable<File>>, Failure> {
        let wrong = |error| Failure::system(self.pool.display(), &error);
        let file = File::open(&self.pool).map_err(wrong)?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
            let why = format!("{}: in use; unmount it first", self.pool.display());
            return Err(Failure::new(Kind::InUse, why));
        }
        let source = Seekable::new(file).map_err(wrong)?;
        Pool::open(source).map_err(|damage| {
            let why = format!("{}: nothing can be read of it: {damage}", self.pool.display());
            Failure::new(Kind::NotAPool, why)
        })
    }
}

impl Walk<'_> {
    fn all(&mut self, first: u32) -> Result<(), Failure> {
        match self.pool.subvolume(first) {
            Some(_) => self.waiting.push((Vec::new(), first)),
            None => self.problem("subvolume 1", "its record is lost")?,
        }
        self.go_on()?;
        if !self.only {
            // Their entries are lost.
            let ids: Vec<u32> = self.pool.subvolumes().map(|subvolume| subvolume.id).collect();
            for id in ids {
                if !self.seen.contains(&id) {
                    let name = format!("subvolume-{id}").into_bytes();
                    self.waiting.push((vec![name], id));
                    self.go_on()?;
                }
            }
        }
        for (path, why) in self.sink.finish() {
            self.problem(&path, &why)?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Failure> {
        while let Some((place, id)) = self.waiting.pop() {
            let Some(subvolume) = self.pool.subvolume(id) else { continue };
            if !self.seen.insert(id) {
                continue;
            }
            let pool = self.pool;
            let files = pool.files(subvolume);
            pool.walk(subvolume, |step| {
                if self.stopped.is_none() {
                    self.stopped = self.step(subvolume, &files, &place, step).err();
                }
            });
            if let Some(failure) = self.stopped.take() {
                return Err(failure);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        subvolume: &Subvolume,
        files: &Files<'_>,
        above: &[Vec<u8>],
        step: Step<'_>,
    ) -> Result<(), Failure> {
        let path = [above, step.path].concat();
        let mut problems = Vec::new();
        match step.place {
            Place::File(inode) => {
                let (attributes, lost) = files.attributes(&inode);
                problems.extend(lost.iter().map(ToString::to_string));
                self.summary.count(&inode);
                let id = subvolume.id;
                let item = Item { subvolume: id, path: &path, inode: &inode, files, attributes };
                self.sink.file(item, &mut problems)?;
            }
            Place::Subvolume(id) => {
                self.sink.empty(&path, &mut problems);
                if !self.only {
                    self.waiting.push((path.clone(), id));
                }
            }
            Place::Placeholder => self.sink.empty(&path, &mut problems),
            Place::Lost(damage) => problems.push(damage.to_string()),
        }
        problems.iter().try_for_each(|why| self.problem(&shown(&path), why))
    }

    fn problem(&mut self, path: &str, why: &str) -> Result<(), Failure> {
        self.summary.damaged += 1;
        match self.report.json {
            true => print(&(json!({ "path": path, "lost": why }).to_string() + "\n")),
            false => print(&format!("lost: {path}: {why}\n")),
        }
    }
}

/// A path as people and programs read it, from the root of the pool.
fn shown(path: &[Vec<u8>]) -> String {
    let shown = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
    if shown.is_empty() { "/".into() } else { shown }
}

impl Summary {
    fn count(&mut self, inode: &Inode) {
        match inode.kind {
            FileKind::Regular => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(inode.size);
            }
            FileKind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
    }

    fn json(&self) -> Value {
        let Summary { files, directories, others, bytes, damaged } = self;
        json!({ "summary": {
            "files": files,
            "directories": directories,
            "others": others,
            "bytes": bytes,
            "losses": damaged,
        }})
    }

    fn text(&self) -> String {
        let Summary { files, directories, others, bytes, damaged } = self;
        let what = format!("{files} files of {bytes} bytes, {directories} directories");
        format!("{what}, {others} others; {damaged} losses\n")
    }
}
