//! The system table: subvolumes, their epochs, and the marks below which numbers were given out.
//!
//! Y1  A subvolume's current epoch has a record that names it, its table and its first epoch.
//! Y2  Every number in use is below the mark of its space (rule R9).

use std::collections::BTreeMap;

use copyhold_format::item::{EPOCH, EpochItem, SUBVOL, SubvolItem};
use copyhold_pool::{ID_MARK, IdSpace, Pool};
use copyhold_types::{Key, SubvolId};

use crate::checker::Checker;
use crate::files;
use crate::problem::Problem;

/// What the system table says.
#[derive(Default)]
struct System {
    subvols: BTreeMap<SubvolId, SubvolItem>,
    epochs: BTreeMap<u64, EpochItem>,
    marks: BTreeMap<Key, u64>,
    /// Subvolumes with a record that means nothing.
    bad: Vec<SubvolId>,
}

pub(crate) async fn check(checker: &mut Checker) {
    let mut system = System::default();
    if let Some(table) = checker.table(Pool::SYSTEM) {
        let mut items = checker.items(&table, Key::MIN..Key::MAX);
        while let Some(page) = items.next(&mut checker.report).await {
            page.iter().for_each(|(key, value)| system.add(checker, *key, value));
        }
    }
    let root = SubvolId::ROOT;
    let root_is_lost = system.bad.contains(&root) || checker.lost.contains_key(&Pool::SYSTEM);
    if !system.subvols.contains_key(&root) && !root_is_lost {
        checker.report.add(Problem::NoSubvolume { subvol: root });
    }
    for (&subvol, item) in &system.subvols {
        system.check_subvol(checker, subvol, item);
        checker.report.verified.subvolumes += 1;
        checker.known_tables.push(item.table);
        let mark = system.mark(IdSpace::Inode(subvol));
        files::check(checker, subvol, item, mark).await;
    }
}

impl System {
    fn add(&mut self, checker: &mut Checker, key: Key, value: &[u8]) {
        checker.report.verified.items += 1;
        match key.kind {
            SUBVOL if key.offset == 0 && key.object >> SubvolId::BITS == 0 => {
                let subvol = SubvolId(key.object as u32);
                match SubvolItem::parse(value) {
                    Ok(item) => drop(self.subvols.insert(subvol, item)),
                    Err(error) => {
                        self.bad.push(subvol);
                        let why = error.to_string();
                        checker.report.add(Problem::Subvolume { subvol, why });
                    }
                }
            }
            EPOCH if key.offset == 0 => match EpochItem::parse(key, value) {
                Ok(item) => drop(self.epochs.insert(key.object, item)),
                Err(error) => {
                    let (subvol, epoch) = (SubvolId::default(), key.object);
                    checker.report.add(Problem::Epoch { subvol, epoch, why: error.to_string() });
                }
            },
            ID_MARK if value.len() == 8 => {
                let mark = u64::from_le_bytes(value.try_into().expect("eight bytes"));
                self.marks.insert(key, mark);
            }
            _ => checker.report.add(Problem::UnknownItem { table: Pool::SYSTEM, key }),
        }
    }

    /// Numbers of this space from here on were never given out.
    fn mark(&self, space: IdSpace) -> u64 {
        self.marks.get(&space.key()).copied().unwrap_or(0)
    }

    fn check_subvol(&self, checker: &mut Checker, subvol: SubvolId, item: &SubvolItem) {
        let epoch = item.epoch.0;
        let why = match self.epochs.get(&epoch) {
            _ if checker.lost.contains_key(&Pool::SYSTEM) => None,
            None => Some("there is no record of it"),
            Some(record) if record.subvol != subvol => Some("it is another subvolume's"),
            Some(record) if record.table != item.table => Some("its table is another"),
            Some(record) if record.first != item.first => Some("its first epoch is another"),
            Some(_) => None,
        };
        if let Some(why) = why {
            checker.report.add(Problem::Epoch { subvol, epoch, why: why.into() });
        }
        let numbers = [
            ("table", item.table.0, IdSpace::Table),
            ("epoch", epoch, IdSpace::Epoch),
            ("subvolume", subvol.0.into(), IdSpace::Subvol),
        ];
        for (what, number, space) in numbers {
            let mark = self.mark(space);
            if number >= mark && number != u64::from(SubvolId::ROOT.0) {
                checker.report.add(Problem::IdMark { what, number, mark });
            }
        }
    }
}
