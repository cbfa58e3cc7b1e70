//! One thread, its subvolume, and clones of it: a disk image in each that is written at random, and
//! small files beside it.
//!
//! SOAK-N1  Operations that free space are never refused: unlink, subvolume deletion. Accepted data
//!          is never refused later, so neither is fsync.
//! SOAK-N2  A clone is there behind a crash, once anything newer of the tenant was made durable. A
//!          clone that was deleted may be there again, and is deleted again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use copyhold_harness::Pool;
use copyhold_torture::dice::Dice;

use crate::disk::{Disk, is_full};
use crate::pressure::Pressure;
use crate::series::{Kind, Latencies};
use crate::watch::Watch;

const CLONES_MAX: usize = 4;
const SMALL_BYTES_MAX: usize = 40_000;
/// Files made or removed by one operation.
const SMALL_AT_ONCE: usize = 10;
/// Blocks of one write, and of one punch, at most.
const WRITE_MAX: usize = 16;
const PUNCH_MAX: usize = 256;

/// The mount, the pressure and the latencies, shared by all tenants.
pub(crate) struct Context<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) pressure: &'a Pressure,
    pub(crate) latencies: &'a Latencies,
}

pub(crate) struct Tenant {
    number: usize,
    trees: BTreeMap<String, Tree>,
    version: u32,
    clones: u64,
}

#[derive(Clone, Debug)]
struct Tree {
    disk: Disk,
    /// Numbers of the small files that may be there.
    small: Range<u64>,
    /// It is there behind a crash, too.
    is_durable: bool,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
enum Step {
    Overwrite,
    Fsync,
    Read,
    Punch(usize),
    MakeSmall,
    RemoveSmall,
    Snapshot,
    DeleteClone,
}

impl Tenant {
    /// A subvolume with an image of `blocks`, all of them written.
    pub(crate) fn create(number: usize, blocks: usize, cx: &Context<'_>) -> io::Result<Tenant> {
        let mut tenant = Tenant { number, trees: BTreeMap::new(), version: 0, clones: 0 };
        let base = tenant.base();
        let root = cx.pool.mount_point().join(&base);
        cx.pool.run(&["subvolume", "create"], &[&root]).map_err(io::Error::other)?;
        fs::create_dir(root.join("small"))?;
        let disk = Disk::new(number as u8, blocks);
        tenant.trees.insert(base.clone(), Tree { disk, small: 0..0, is_durable: false });
        let file = Disk::open(&root.join("disk"))?;
        let version = tenant.next_version();
        let disk = &mut tenant.tree(&base).disk;
        for start in (0..blocks).step_by(PUNCH_MAX) {
            disk.write(&file, start..blocks.min(start + PUNCH_MAX), version)?;
        }
        tenant.fsync(&base, &file)?;
        Ok(tenant)
    }

    /// Works until the round is over. The number of operations.
    pub(crate) fn work(
        &mut self,
        cx: &Context<'_>,
        watch: &Watch,
        mut dice: Dice,
    ) -> Result<u64, String> {
        let mut operations = 0;
        while !watch.is_over() {
            let step = choose(&mut dice, cx.pressure.shrinks());
            watch.begin(self.number, &format!("{step:?}"));
            match self.step(step, cx, &mut dice) {
                Ok(()) => operations += 1,
                Err(_) if watch.is_over() => break,
                Err(error) if is_full(&error) && step.may_be_refused() => {
                    cx.latencies.refused();
                    cx.pressure.refused();
                }
                Err(error) => return Err(format!("{step:?}: {error}")),
            }
        }
        watch.end(self.number);
        Ok(operations)
    }

    /// Behind a crash: every block of every tree.
    pub(crate) fn verify(&mut self, pool: &Pool) -> Result<(), String> {
        let found = self.found(pool).map_err(|error| error.to_string())?;
        for name in &found {
            if !self.trees.contains_key(name) {
                let path = pool.mount_point().join(name);
                pool.run(&["subvolume", "delete"], &[&path]).map_err(|error| error.to_string())?;
            }
        }
        let lost = |name: &String, tree: &Tree| tree.is_durable && !found.contains(name);
        if let Some((name, _)) = self.trees.iter().find(|(name, tree)| lost(name, tree)) {
            return Err(format!("{name}, which was durable, is not there"));
        }
        self.trees.retain(|name, _| found.contains(name));
        for (name, tree) in &mut self.trees {
            let root = pool.mount_point().join(name);
            tree.verify(&root).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }

    fn base(&self) -> String {
        format!("tenant{}", self.number)
    }

    /// This tenant's trees on the mount.
    fn found(&self, pool: &Pool) -> io::Result<Vec<String>> {
        let (base, clone) = (self.base(), format!("{}-", self.base()));
        let names = fs::read_dir(pool.mount_point())?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let own = |name: &io::Result<String>| {
            name.as_ref().map_or(true, |name| *name == base || name.starts_with(&clone))
        };
        names.filter(own).collect()
    }

    fn tree(&mut self, name: &str) -> &mut Tree {
        self.trees.get_mut(name).expect("it is one of its trees")
    }

    fn next_version(&mut self) -> u32 {
        self.version += 1;
        self.version
    }

    fn step(&mut self, step: Step, cx: &Context<'_>, dice: &mut Dice) -> io::Result<()> {
        let names: Vec<&String> = self.trees.keys().collect();
        let name = (*dice.pick(&names).expect("there is a base")).clone();
        let root = cx.pool.mount_point().join(&name);
        let version = self.next_version();
        let latencies = cx.latencies;
        let tree = self.tree(&name);
        match step {
            Step::MakeSmall => return tree.make_small(&root, latencies, dice),
            Step::RemoveSmall => return tree.remove_small(&root, latencies),
            Step::Snapshot => return self.snapshot(cx),
            Step::DeleteClone => return self.delete_clone(cx),
            _ => {}
        }
        let file = Disk::open(&root.join("disk"))?;
        let range = range(dice, tree.disk.blocks(), step);
        let disk = &mut tree.disk;
        match step {
            Step::Overwrite => latencies.time(Kind::Write, || disk.write(&file, range, version)),
            Step::Punch(_) => latencies.time(Kind::Punch, || disk.punch(&file, range, version)),
            Step::Read => latencies.time(Kind::Read, || disk.read(&file, range)),
            _ => latencies.time(Kind::Fsync, || self.fsync(&name, &file)),
        }
    }

    /// All names of the tenant are durable with it, and the content of this file.
    fn fsync(&mut self, name: &str, file: &File) -> io::Result<()> {
        file.sync_all()?;
        self.trees.values_mut().for_each(|tree| tree.is_durable = true);
        self.tree(name).disk.promise();
        Ok(())
    }

    fn snapshot(&mut self, cx: &Context<'_>) -> io::Result<()> {
        if self.trees.len() > CLONES_MAX {
            return Ok(());
        }
        self.clones += 1;
        let (base, clone) = (self.base(), format!("{}-{}", self.base(), self.clones));
        let source = self.tree(&base);
        let copy =
            Tree { disk: source.disk.cloned(), small: source.small.clone(), is_durable: false };
        self.trees.insert(clone.clone(), copy);
        let paths = [&base, &clone].map(|name| cx.pool.mount_point().join(name));
        let made = cx.latencies.time(Kind::Snapshot, || {
            run(cx.pool, &["subvolume", "snapshot"], &[&paths[0], &paths[1]])
        });
        made.inspect_err(|error| {
            if is_full(error) {
                self.trees.remove(&clone);
            }
        })
    }

    fn delete_clone(&mut self, cx: &Context<'_>) -> io::Result<()> {
        let base = self.base();
        let Some(oldest) = self.trees.keys().find(|name| **name != base).cloned() else {
            return Ok(());
        };
        self.trees.remove(&oldest);
        let path = cx.pool.mount_point().join(&oldest);
        cx.latencies
            .time(Kind::DeleteSubvolume, || run(cx.pool, &["subvolume", "delete"], &[&path]))
    }
}

impl Step {
    /// SOAK-N1.
    fn may_be_refused(self) -> bool {
        !matches!(self, Step::Fsync | Step::Read | Step::RemoveSmall | Step::DeleteClone)
    }
}

fn choose(dice: &mut Dice, shrinks: bool) -> Step {
    let roll = dice.below(1000);
    match (shrinks, roll) {
        (_, 0..=499) => Step::Overwrite,
        (_, 500..=579) => Step::Fsync,
        (_, 580..=639) => Step::Read,
        (_, 640..=699) => Step::Punch(WRITE_MAX),
        (false, 700..=984) => Step::MakeSmall,
        (false, 985..=989) => Step::DeleteClone,
        (false, _) => Step::Snapshot,
        (true, 700..=899) => Step::RemoveSmall,
        (true, 900..=979) => Step::Punch(PUNCH_MAX),
        (true, _) => Step::DeleteClone,
    }
}

fn range(dice: &mut Dice, blocks: usize, step: Step) -> Range<usize> {
    let most = if let Step::Punch(most) = step { most } else { WRITE_MAX };
    // Half of the writes are single blocks.
    let len = if dice.one_in(2) { 1 } else { 1 + dice.below(most.min(blocks)) };
    let start = dice.below(blocks - len + 1);
    start..start + len
}

/// The program says `full` where a system call says ENOSPC.
fn run(pool: &Pool, verb: &[&str], paths: &[&std::path::Path]) -> io::Result<()> {
    pool.run(verb, paths).map(drop).map_err(|error| match error.to_string().contains("\"full\"") {
        true => io::Error::new(io::ErrorKind::StorageFull, error),
        false => io::Error::other(error),
    })
}

impl Tree {
    fn make_small(
        &mut self,
        root: &std::path::Path,
        latencies: &Latencies,
        dice: &mut Dice,
    ) -> io::Result<()> {
        for _ in 0..SMALL_AT_ONCE {
            let path = small(root, self.small.end);
            let bytes = vec![self.small.end as u8; 1 + dice.below(SMALL_BYTES_MAX)];
            self.small.end += 1;
            latencies.time(Kind::SmallFile, || fs::write(&path, &bytes))?;
        }
        Ok(())
    }

    /// The oldest ones.
    fn remove_small(&mut self, root: &std::path::Path, latencies: &Latencies) -> io::Result<()> {
        for number in self.small.clone().take(2 * SMALL_AT_ONCE) {
            let path = small(root, number);
            let removed = latencies.time(Kind::Unlink, || fs::remove_file(&path));
            // A crash may have lost it, or its creation was refused.
            removed.or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            self.small.start = number + 1;
        }
        Ok(())
    }

    fn verify(&mut self, root: &std::path::Path) -> io::Result<()> {
        self.is_durable = true;
        self.disk.verify(&Disk::open(&root.join("disk"))?)?;
        for entry in fs::read_dir(root.join("small"))? {
            fs::read(entry?.path())?;
        }
        Ok(())
    }
}

fn small(root: &std::path::Path, number: u64) -> PathBuf {
    root.join("small").join(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_shrinks_makes_nothing_new() {
        let mut dice = Dice::new(1, 0, 0);
        for _ in 0..10_000 {
            let step = choose(&mut dice, true);
            assert!(!matches!(step, Step::MakeSmall | Step::Snapshot), "{step:?}");
            let range = range(&mut dice, 20, step);
            assert!(!range.is_empty() && range.end <= 20, "{range:?}");
        }
    }
}
