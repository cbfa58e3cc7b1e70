//! `copyhold debug export`: the readable files of a pool, also of one that does not open.
//!
//! The reader behind it is `copyhold-rescue`, which shares no code with the engine. It needs one
//! label and one uberblock, and goes on past all other damage. If neither copy of the log can be
//! read, files are shown as the tables have them, and may be old or mixed. This verb walks the
//! subvolumes and gives each name to a *sink*: `restore` writes files, `listing` prints them.
//! Problems are printed as they are found, by their kind ([`Problem`]), which also decides the exit
//! code.

mod listing;
mod metadata;
mod restore;
mod sink;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use copyhold_rescue::{FileKind, Files, Inode, Place, Pool, ROOT_SUBVOLUME, Step, Subvolume};
use serde_json::{Value, json};

use crate::engine::Medium;
use crate::failure::{Failure, Kind};
use crate::report::{Report, print};

use sink::{Item, Problem, Sink, shown};

/// Copy all readable files of a pool into a directory
///
/// This verb is for a pool that does not open. It needs one label and one uberblock. If neither
/// copy of the log can be read, files have the content of the tables, which may be old or mixed.
/// The pool is only read.
///
/// Each problem is a line: `damaged` for a structure of the pool, `lost` for content or names, with
/// zeros where bytes are lost, `not restored` for what the destination refuses. The command exits
/// with 3 if anything was lost, or if the log or the tables are damaged, so that files may be old;
/// else with 1 if something was not restored.
///
/// Data is verified by the checksums in its extents (mode `item`), or by the tuples beside its
/// blocks (modes `guard` and `offload`; of an NVMe namespace, by /dev/ngXnY only). Where no tuples
/// are found, a `damaged` line says so, and such data is copied unverified. A block whose tuple
/// cannot be read is `lost`. Data of the mode `none` is never verified.
///
/// Subvolumes are copied to the paths of their entries; one whose entry is lost is `subvolume-ID`.
/// Owners, device files and attributes need root. The file flags of chattr are not restored.
/// With --json each line is an object, the last one the summary.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold debug export /srv/pool.img /srv/rescued\n  \
    copyhold debug export /srv/pool.img --list")]
pub(super) struct Export {
    /// The file, the block device, or the NVMe namespace (/dev/ngXnY)
    pool: PathBuf,
    /// An empty directory; it is made if it does not exist
    #[arg(required_unless_present = "list")]
    dir: Option<PathBuf>,
    /// Only the subvolume with this id
    #[arg(long, value_name = "ID")]
    subvolume: Option<u32>,
    /// Write into a directory that is not empty: existing directories get owner, mode and times
    /// from the pool, existing files stay
    #[arg(long)]
    force: bool,
    /// List the files with digests of their contents, and write nothing
    #[arg(long, conflicts_with = "dir")]
    list: bool,
}

/// The outcome of an export.
#[derive(Default)]
struct Summary {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u64,
    losses: u64,
    not_restored: u64,
}

struct Walk<'a> {
    pool: &'a Pool<Medium>,
    json: bool,
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
            json: report.json,
            sink,
            summary: Summary::default(),
            waiting: Vec::new(),
            seen: BTreeSet::new(),
            only: self.subvolume.is_some(),
            stopped: None,
        };
        for damage in pool.damage().iter().chain(pool.label_damage()) {
            walk.report("the pool", &Problem::Damaged(damage.to_string()))?;
        }
        let first = self.subvolume.unwrap_or(ROOT_SUBVOLUME);
        if pool.subvolume(first).is_none() && self.subvolume.is_some() {
            let why = format!("there is no readable subvolume {first}");
            return Err(Failure::new(Kind::NotFound, why));
        }
        walk.walk_subvolumes(first)?;
        let summary = walk.summary;
        report.show(&summary.json(), || summary.text())?;
        summary.outcome(&self.pool, !pool.damage().is_empty())
    }

    fn open(&self) -> Result<Pool<Medium>, Failure> {
        Pool::open(Medium::open(&self.pool)?).map_err(|damage| {
            let why = format!("{}: no file can be read: {damage}", self.pool.display());
            Failure::new(Kind::NotAPool, why)
        })
    }
}

impl Walk<'_> {
    fn walk_subvolumes(&mut self, first: u32) -> Result<(), Failure> {
        match self.pool.subvolume(first) {
            Some(_) => self.waiting.push((Vec::new(), first)),
            None => self.report("subvolume 1", &Problem::lost("its record is lost"))?,
        }
        self.walk_waiting()?;
        if !self.only {
            // Their entries are lost.
            let ids: Vec<u32> = self.pool.subvolumes().map(|subvolume| subvolume.id).collect();
            for id in ids {
                if !self.seen.contains(&id) {
                    let name = format!("subvolume-{id}").into_bytes();
                    self.waiting.push((vec![name], id));
                    self.walk_waiting()?;
                }
            }
        }
        for (path, problem) in self.sink.finish() {
            self.report(&path, &problem)?;
        }
        Ok(())
    }

    fn walk_waiting(&mut self) -> Result<(), Failure> {
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
                problems.extend(lost.iter().map(Problem::lost));
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
            Place::Placeholder(_) => self.sink.empty(&path, &mut problems),
            Place::Lost(damage) => problems.push(Problem::lost(damage)),
        }
        problems.iter().try_for_each(|problem| self.report(&shown(&path), problem))
    }

    /// Prints and counts a problem.
    fn report(&mut self, path: &str, problem: &Problem) -> Result<(), Failure> {
        let (kind, why) = match problem {
            Problem::Damaged(why) => ("damaged", why),
            Problem::Lost(why) => ("lost", why),
            Problem::NotRestored(why) => ("not restored", why),
        };
        self.summary.losses += u64::from(matches!(problem, Problem::Lost(_)));
        self.summary.not_restored += u64::from(matches!(problem, Problem::NotRestored(_)));
        match self.json {
            true => {
                print(&(json!({ "path": path, kind.replace(' ', "_"): why }).to_string() + "\n"))
            }
            false => print(&format!("{kind}: {path}: {why}\n")),
        }
    }
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
        let Summary { files, directories, others, bytes, losses, not_restored } = self;
        json!({ "summary": {
            "files": files,
            "directories": directories,
            "others": others,
            "bytes": bytes,
            "losses": losses,
            "not_restored": not_restored,
        }})
    }

    fn text(&self) -> String {
        let Summary { files, directories, others, bytes, losses, not_restored } = self;
        let what = format!("{files} files of {bytes} bytes, {directories} directories");
        format!("{what}, {others} others; {losses} losses, {not_restored} not restored\n")
    }

    /// `may_be_old`: the log or the tables of the pool are damaged.
    fn outcome(&self, pool: &Path, may_be_old: bool) -> Result<(), Failure> {
        let Summary { losses, not_restored, .. } = self;
        let fail = |kind, why: String| {
            Err(Failure::new(kind, format!("{}: {why}, as listed", pool.display())))
        };
        match (losses, not_restored) {
            (1.., _) => fail(Kind::Damaged, format!("{losses} losses")),
            _ if may_be_old => {
                fail(Kind::Damaged, "the pool is damaged, and files may be old or mixed".into())
            }
            (_, 1..) => fail(Kind::Failed, format!("{not_restored} things not restored")),
            _ => Ok(()),
        }
    }
}
