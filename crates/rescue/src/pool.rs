//! A pool as its image says it is: label, log, tables, and the subvolumes in them.
//!
//! Opening needs one label and one uberblock, and goes on past all other damage. One copy of the
//! log and one copy of each node are enough for a whole pool. If the log is damaged, an older
//! uberblock is tried, whose chain may lead to a state that is known to be whole; else the newest
//! state is shown, and reported as doubtful. If neither copy of the log can be read, files are
//! shown as the tables have them, and may be old or mixed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::chain::Chain;
use crate::content::{Chunk, Run, read_content, read_extents};
use crate::damage::Damage;
use crate::directory::{Attribute, attributes};
use crate::files::Files;
use crate::inode::{FileKind, Inode};
use crate::key::{Key, SUBVOLUME};
use crate::label::{Label, UBERBLOCKS_KEPT, Uberblock};
use crate::replay::Replay;
use crate::source::Source;
use crate::subvolume::Subvolume;
use crate::tables::{Found, SYSTEM, Tables};
use crate::tuples::Tuples;

pub struct Pool<S> {
    source: S,
    label: Label,
    /// The checksums of data that are beside it.
    tuples: Option<Tuples>,
    tables: Tables,
    subvolumes: BTreeMap<u32, Subvolume>,
    /// Ranges of subvolumes' numbers whose records are lost.
    lost_subvolumes: Vec<(RangeInclusive<u64>, Damage)>,
    label_damage: Vec<Damage>,
    damage: Vec<Damage>,
}

impl<S: Source> Pool<S> {
    /// # Errors
    /// There is no label, no uberblock, or a malformed descriptor of the table of tables.
    pub fn open(source: S) -> Result<Pool<S>, Damage> {
        let (label, label_damage) = Label::find(&source)?;
        let tuples = Tuples::find(&source, &label);
        let chain = newest(&source, &label)?;
        let replay = Replay::of(&source, &chain);
        let mut damage = chain.damage;
        if label.has_checksums_elsewhere && label.protection.is_some() && tuples.is_none() {
            let why = "they cannot be found: data whose checksums are there is not verified";
            damage.push(Damage::new("the tuples of the device", why));
        }
        damage.extend(replay.damage.iter().cloned());
        let tables = Tables::open(&source, &chain.tables, replay)?;
        damage.extend(tables.damage().cloned());
        let (subvolumes, lost_subvolumes) = (BTreeMap::new(), Vec::new());
        let mut pool = Pool {
            source,
            label,
            tuples,
            tables,
            subvolumes,
            lost_subvolumes,
            label_damage,
            damage,
        };
        pool.find_subvolumes();
        Ok(pool)
    }

    fn find_subvolumes(&mut self) {
        let (subvolumes, damage) = (&mut self.subvolumes, &mut self.damage);
        let lost_subvolumes = &mut self.lost_subvolumes;
        self.tables.scan(&self.source, SYSTEM, Key::default(), Key::MAX, |found| match found {
            Found::Item(key, value) if key.kind == SUBVOLUME => {
                match Subvolume::parse(key.object, value) {
                    Ok(Some(found)) => drop(subvolumes.insert(found.id, found)),
                    Ok(None) => {}
                    Err(why) => {
                        let wrong = Damage::new(format!("subvolume {}", key.object), why);
                        lost_subvolumes.push((key.object..=key.object, wrong.clone()));
                        damage.push(wrong);
                    }
                }
            }
            Found::Item(..) => {}
            Found::Lost { first, last, damage: lost } => {
                let wrong = Damage::new("the system table", lost);
                lost_subvolumes.push((first.object..=last.object, wrong.clone()));
                damage.push(wrong);
            }
        });
    }

    pub fn label(&self) -> &Label {
        &self.label
    }

    /// Copies of the label that are bad: no file is affected.
    pub fn label_damage(&self) -> &[Damage] {
        &self.label_damage
    }

    /// The damage of the log and the tables of the pool: files may be missing, or older than they
    /// should be.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Those that live, by number.
    pub fn subvolumes(&self) -> impl Iterator<Item = &Subvolume> {
        self.subvolumes.values()
    }

    pub fn subvolume(&self, id: u32) -> Option<&Subvolume> {
        self.subvolumes.get(&id)
    }

    /// A pool of these subvolumes, without files.
    #[cfg(test)]
    pub(crate) fn of_subvolumes(
        source: S,
        subvolumes: Vec<Subvolume>,
        lost_subvolumes: Vec<(RangeInclusive<u64>, Damage)>,
    ) -> Pool<S> {
        // The descriptor of a table without a base.
        let tables = Tables::open(&source, &[0; 36], Replay::default()).expect("nothing is read");
        Pool {
            source,
            label: Label::with_log([64, 128], 64),
            tuples: None,
            tables,
            subvolumes: subvolumes.into_iter().map(|found| (found.id, found)).collect(),
            lost_subvolumes,
            label_damage: Vec::new(),
            damage: Vec::new(),
        }
    }

    /// Why the record of a subvolume may be lost.
    pub(crate) fn lost_subvolume(&self, id: u64) -> Option<&Damage> {
        let mut lost = self.lost_subvolumes.iter();
        lost.find(|(ids, _)| ids.contains(&id)).map(|(_, damage)| damage)
    }

    /// The files of a subvolume.
    pub fn files(&self, subvolume: &Subvolume) -> Files<'_> {
        let (source, tuples) = (&self.source, self.tuples.as_ref());
        Files { source, tuples, tables: &self.tables, table: subvolume.table }
    }
}

/// The chain to go by: that of the newest uberblock, unless it is damaged and an older one, whose
/// log is still there, leads to a state that is whole.
fn newest(source: &dyn Source, label: &Label) -> Result<Chain, Damage> {
    let uberblocks = Uberblock::all(source, label);
    let Some((first, older)) = uberblocks.split_first() else {
        return Err(Damage::new("the uberblocks", "none of them can be read"));
    };
    let mut newest = Chain::follow(source, label, first);
    if first.may_be_old(source, label) {
        newest.damage.push(Damage::new("the uberblocks", "newer ones may be lost"));
    }
    if newest.last_txg >= first.durable {
        return Ok(newest);
    }
    let older = older.iter().filter(|uberblock| uberblock.is_older_than(first));
    for uberblock in older.take(UBERBLOCKS_KEPT) {
        // The newest one comes after it: nothing that its chain leads to was in flight.
        let older = Uberblock { durable: first.durable, ..uberblock.clone() };
        let is_there = newest.end <= older.head.saturating_add(label.log_blocks);
        let mut chain = Chain::follow(source, label, &older);
        if is_there && chain.last_txg >= uberblock.durable {
            chain.damage.splice(0..0, newest.damage);
            return Ok(chain);
        }
    }
    Ok(newest)
}

// These call `content` and `directory`, which read through `Files`.
impl Files<'_> {
    /// The attributes of a file, and the damage.
    pub fn attributes(&self, inode: &Inode) -> (Vec<Attribute>, Vec<Damage>) {
        attributes(self, inode.number)
    }

    /// Gives the content of a regular file, in the order of offsets; ranges neither given nor lost
    /// are zeros.
    pub fn content(&self, inode: &Inode, mut take: impl FnMut(Chunk<'_>)) {
        if inode.kind == FileKind::Regular {
            read_content(self, inode, &mut take);
        }
    }

    /// Gives the extents of a file; returns the damage.
    pub fn extents(&self, inode: &Inode, mut take: impl FnMut(Run)) -> Vec<Damage> {
        read_extents(self, inode.number, &mut take)
    }
}
