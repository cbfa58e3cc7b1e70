//! The system table: subvolumes, their epochs, quotas, and the marks below which numbers were given
//! out.
//!
//! SYSTEM-Y1  A subvolume's current epoch has a record that names it, its table and its first
//!            epoch; and each live epoch is a subvolume's.
//! SYSTEM-Y2  Every number in use is below the mark of its space (rule R9).
//! SYSTEM-Y3  A live subvolume has one entry, in the directory that its record names (R39); going
//!            up from holder to holder one comes to the root.
//! SYSTEM-Y4  Who pays exists, and relations of groups are such as could be made.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{
    EPOCH, EpochItem, EpochState, GROUP, HEIR, INODES, InodesItem, MEMBER, MEMORY, MemoryItem,
    QUOTA, QuotaItem, SHARED_MEMORY, SUBVOL, Step, SubvolItem, SubvolState, USAGE, UsageItem,
    memory_key, usage_key,
};
use copyhold_pool::{ID_MARK, IdSpace, Pool};
use copyhold_types::{EpochId, InodeNo, Key, SubvolId, TableId};
use copyhold_volume::family::{BadFamily, Family};
use copyhold_volume::quota::{Loader, Resident};

use crate::checker::Checker;
use crate::files;
use crate::problem::Problem;
use crate::refs::Ref;
use crate::role::Role;

/// The records of the system table.
#[derive(Default)]
pub(crate) struct System {
    subvols: BTreeMap<SubvolId, SubvolItem>,
    epochs: BTreeMap<EpochId, EpochItem>,
    marks: BTreeMap<Key, u64>,
    roles: BTreeMap<TableId, Role>,
    quotas: QuotaItem,
    usage: BTreeMap<EpochId, UsageItem>,
    inodes: BTreeMap<SubvolId, InodesItem>,
    /// Subvolumes with limits of memory.
    memory: Vec<SubvolId>,
    groups: Loader,
    /// Subvolumes with a record that means nothing.
    bad: Vec<SubvolId>,
}

impl System {
    pub(crate) async fn read(checker: &mut Checker) -> System {
        let mut system = System::default();
        if let Some(table) = checker.table(Pool::SYSTEM) {
            let mut items = checker.items(&table, Key::MIN..Key::MAX);
            while let Some(page) = items.next(&mut checker.report).await {
                page.iter().for_each(|(key, value)| system.add(checker, *key, value));
            }
        }
        system.assign_roles();
        system
    }

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
                Ok(item) => drop(self.epochs.insert(EpochId(key.object), item)),
                Err(error) => {
                    let (subvol, epoch) = (SubvolId::default(), key.object);
                    checker.report.add(Problem::Epoch { subvol, epoch, why: error.to_string() });
                }
            },
            ID_MARK if value.len() == 8 => {
                let mark = u64::from_le_bytes(value.try_into().expect("eight bytes"));
                self.marks.insert(key, mark);
            }
            MEMORY => self.add_memory(checker, key, value),
            QUOTA | USAGE | GROUP | MEMBER | HEIR | INODES => self.add_quota(checker, key, value),
            _ => checker.report.add(Problem::UnknownItem { table: Pool::SYSTEM, key }),
        }
    }

    fn add_memory(&mut self, checker: &mut Checker, key: Key, value: &[u8]) {
        match MemoryItem::parse(key, value) {
            Ok((subvol, _)) => self.memory.push(subvol),
            Err(error) => {
                let (table, why) = (Pool::SYSTEM, error.to_string());
                checker.report.add(Problem::Record { table, key, why });
            }
        }
    }

    fn add_quota(&mut self, checker: &mut Checker, key: Key, value: &[u8]) {
        if let Err(error) = self.groups.row(key, value) {
            let (table, why) = (Pool::SYSTEM, error.to_string());
            return checker.report.add(Problem::Record { table, key, why });
        }
        match key.kind {
            QUOTA => self.quotas = QuotaItem::parse(value).unwrap_or_default(),
            USAGE => {
                let item = UsageItem::parse(value).ok();
                self.usage.extend(item.map(|item| (EpochId(key.object), item)));
            }
            INODES => {
                let item = InodesItem::parse(value).ok();
                self.inodes.extend(item.map(|item| (SubvolId(key.object as u32), item)));
            }
            _ => {}
        }
    }

    fn assign_roles(&mut self) {
        for table in [Pool::TABLES, Pool::SYSTEM, Pool::SHARES, Pool::PENDING] {
            self.roles.insert(table, Role::Own);
        }
        for (&epoch, item) in &self.epochs {
            let files = match self.is_several() {
                true => Role::Files { epoch, first: item.first },
                false => Role::Own,
            };
            if item.state == EpochState::Sealed || self.subvols.contains_key(&item.subvol) {
                self.roles.insert(item.table, files);
            }
            self.roles.extend(item.deadlist.map(|set| (set, Role::Own)));
        }
        for item in self.subvols.values() {
            let (epoch, first) = (item.epoch, item.first);
            let released = |before| Role::Released { epoch, first, before };
            let (role, sets) = match item.state {
                SubvolState::Live | SubvolState::Dying(Step::Settle) => {
                    self.roles.entry(item.table).or_insert(Role::Own);
                    continue;
                }
                SubvolState::Dying(Step::Walk(from)) => (released(from), None),
                SubvolState::Dying(Step::Absorb) => (released(Key::MAX), None),
                SubvolState::Dying(Step::Rebury { inherited, left, .. }) => {
                    (released(Key::MAX), Some([inherited, left]))
                }
                SubvolState::Dying(Step::Forget { sets }) => (released(Key::MAX), sets),
            };
            self.roles.insert(item.table, role);
            self.roles.extend(sets.into_iter().flatten().map(|set| (set, Role::Own)));
        }
    }

    fn is_several(&self) -> bool {
        self.subvols.len() > 1 || self.epochs.len() > 1
    }

    pub(crate) async fn check(&self, checker: &mut Checker) {
        let root = SubvolId::ROOT;
        let root_is_lost = self.bad.contains(&root) || checker.lost.contains_key(&Pool::SYSTEM);
        if !self.subvols.contains_key(&root) && !root_is_lost {
            checker.report.add(Problem::NoSubvolume { subvol: root });
        }
        for (&subvol, item) in &self.subvols {
            self.check_subvol(checker, subvol, item);
            checker.report.verified.subvolumes += 1;
        }
        for (&epoch, item) in &self.epochs {
            self.check_epoch(checker, epoch, item);
        }
        self.check_groups(checker);
        self.check_memory(checker);
        checker.counting = self.is_several() || self.quotas.counted_from.is_some();
        for table in [Pool::SHARES, Pool::PENDING] {
            if let Some(table) = checker.table(table) {
                let mut items = checker.items(&table, Key::MIN..Key::MAX);
                checker.counting |= items.next(&mut checker.report).await.is_some();
            }
        }
    }

    // -- looking ------------------------------------------------------------

    pub(crate) fn role(&self, table: TableId) -> Role {
        self.roles.get(&table).copied().unwrap_or(Role::Unknown)
    }

    pub(crate) fn subvol(&self, subvol: SubvolId) -> Option<&SubvolItem> {
        self.subvols.get(&subvol)
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = SubvolId> {
        let live = self.subvols.iter().filter(|(_, item)| item.state == SubvolState::Live);
        live.map(|(subvol, _)| *subvol)
    }

    /// Whether the space of a dying subvolume is being released, or has been.
    pub(crate) fn is_walked(&self, subvol: SubvolId) -> bool {
        let state = self.subvols.get(&subvol).map(|item| item.state);
        matches!(state, Some(SubvolState::Dying(Step::Walk(_) | Step::Absorb)))
    }

    /// Heirs, and the deadlists that are to be released for them.
    pub(crate) fn inherited(&self) -> Vec<(EpochId, TableId)> {
        let inherited = |item: &SubvolItem| match item.state {
            SubvolState::Dying(Step::Rebury { heir, inherited, .. }) => Some((heir, inherited)),
            _ => None,
        };
        self.subvols.values().filter_map(inherited).collect()
    }

    pub(crate) fn families(&self) -> Result<Vec<Family>, BadFamily> {
        Family::restore(&self.epochs)
    }

    /// Checks the files of a live subvolume. Returns the references of its extents, if those are
    /// counted.
    pub(crate) async fn files(&self, checker: &mut Checker, subvol: SubvolId) -> Vec<Ref<1>> {
        let Some(item) = self.subvols.get(&subvol) else { return Vec::new() };
        let mark = self.mark(IdSpace::Inode(subvol));
        let newest = self.epochs.get(&item.epoch).map_or(item.epoch, |epoch| epoch.current);
        let said = self.inodes.get(&subvol).filter(|_| self.quotas.counted_from.is_some());
        let counted_from = said.map_or(InodeNo(u64::MAX), |said| said.counted_from);
        let bounds = files::Bounds { mark, newest, counted_from };
        let (refs, found) = files::check(checker, subvol, item, bounds).await;
        let is_whole = checker.lost_of(item.table).is_empty();
        if let Some(said) = said.map(|said| said.count).filter(|said| *said != found && is_whole) {
            checker.report.add(Problem::Inodes { subvol, said, found });
        }
        refs
    }

    /// Numbers of this space from here on were never given out.
    fn mark(&self, space: IdSpace) -> u64 {
        self.marks.get(&space.key()).copied().unwrap_or(0)
    }

    // -- judging ------------------------------------------------------------

    /// SYSTEM-Y1 and SYSTEM-Y2.
    fn check_subvol(&self, checker: &mut Checker, subvol: SubvolId, item: &SubvolItem) {
        let epoch = item.epoch.0;
        let is_absorbed =
            matches!(item.state, SubvolState::Dying(Step::Rebury { .. } | Step::Forget { .. }));
        let why = match self.epochs.get(&item.epoch) {
            _ if checker.lost.contains_key(&Pool::SYSTEM) => None,
            None if is_absorbed => None,
            None => Some("there is no record of it"),
            Some(_) if is_absorbed => Some("it has been absorbed"),
            Some(record) if record.subvol != subvol => Some("it is another subvolume's"),
            Some(record) if record.table != item.table => Some("its table is another"),
            Some(record) if record.first != item.first => Some("its first epoch is another"),
            Some(_) => None,
        };
        if let Some(why) = why {
            checker.report.add(Problem::Epoch { subvol, epoch, why: why.into() });
        }
        self.check_mark(checker, "table", item.table.0, IdSpace::Table);
        self.check_mark(checker, "epoch", epoch, IdSpace::Epoch);
        if subvol != SubvolId::ROOT {
            self.check_mark(checker, "subvolume", subvol.0.into(), IdSpace::Subvol);
        }
    }

    fn check_epoch(&self, checker: &mut Checker, epoch: EpochId, item: &EpochItem) {
        let is_at_it = |record: &SubvolItem| record.epoch == epoch;
        let is_sealed = self.epochs.values().any(|child| child.parent == Some(epoch));
        let is_known = self.bad.is_empty() && !checker.lost.contains_key(&Pool::SYSTEM);
        if !is_sealed && is_known && !self.subvols.get(&item.subvol).is_some_and(is_at_it) {
            let (subvol, why) = (item.subvol, "its subvolume is not at it".into());
            // A subvolume with a record of its own has been reported above.
            if !self.subvols.contains_key(&subvol) {
                checker.report.add(Problem::Epoch { subvol, epoch: epoch.0, why });
            }
        }
        let is_told = |record: &SubvolItem| record.epoch == item.current;
        if !self.subvols.values().any(is_told) {
            self.check_mark(checker, "epoch", item.current.0, IdSpace::Epoch);
        }
        if let Some(set) = item.deadlist {
            self.check_mark(checker, "table", set.0, IdSpace::Table);
        }
    }

    fn check_mark(&self, checker: &mut Checker, what: &'static str, number: u64, space: IdSpace) {
        let mark = self.mark(space);
        if number >= mark {
            checker.report.add(Problem::IdMark { what, number, mark });
        }
    }

    /// SYSTEM-Y3, when the files of all have been looked at.
    pub(crate) fn places(&self, checker: &mut Checker) {
        if !checker.lost.is_empty() {
            return;
        }
        let mut entries: BTreeMap<(SubvolId, InodeNo, SubvolId), u32> = BTreeMap::new();
        for entry in std::mem::take(&mut checker.subvol_entries) {
            *entries.entry(entry).or_default() += 1;
        }
        for subvol in self.live().filter(|subvol| *subvol != SubvolId::ROOT) {
            let place = self.subvols[&subvol].place;
            let found = entries.get(&(place.subvol, place.directory, subvol)).copied();
            let why = match found.unwrap_or(0) {
                1 if self.leads_to_root(subvol) => continue,
                1 => "what holds it leads in a circle, or to what is gone".to_owned(),
                0 => "there is no entry of it".to_owned(),
                many => format!("there are {many} entries of it"),
            };
            let (holder, directory) = (place.subvol, place.directory);
            checker.report.add(Problem::SubvolumeEntry { subvol, holder, directory, why });
        }
    }

    fn leads_to_root(&self, subvol: SubvolId) -> bool {
        let (mut at, mut seen) = (subvol, BTreeSet::new());
        while at != SubvolId::ROOT && seen.insert(at) {
            let holder = self.subvols.get(&at).filter(|item| item.state == SubvolState::Live);
            let Some(holder) = holder else { return false };
            at = holder.place.subvol;
        }
        at == SubvolId::ROOT
    }

    /// LIMITS-M1.
    fn check_memory(&self, checker: &mut Checker) {
        let lives =
            |subvol: &SubvolId| *subvol == SHARED_MEMORY || self.live().any(|live| live == *subvol);
        for subvol in self.memory.iter().filter(|subvol| !lives(subvol)) {
            let (table, key) = (Pool::SYSTEM, memory_key(*subvol));
            let why = "limits of memory of a subvolume that does not live".to_owned();
            checker.report.add(Problem::Record { table, key, why });
        }
    }

    /// SYSTEM-Y4.
    fn check_groups(&self, checker: &mut Checker) {
        if checker.lost.contains_key(&Pool::SYSTEM) || !self.bad.is_empty() {
            return;
        }
        let residents = self.live().map(|subvol| {
            let item = &self.subvols[&subvol];
            let holder = Some(item.place.subvol).filter(|&holder| holder != subvol);
            Resident { subvol, holder, origin: item.origin }
        });
        let payers = self.epochs.values().map(|item| (item.current, item.subvol));
        let (_, strays) = self.groups.clone().finish(residents, payers);
        for stray in strays {
            checker.report.add(Problem::Quota { why: stray.to_string() });
        }
        for subvol in self.live().filter(|subvol| !self.inodes.contains_key(subvol)) {
            let epoch = self.epochs.get(&self.subvols[&subvol].epoch).map(|item| item.current);
            if self.quotas.counted_from.is_some_and(|from| epoch.is_some_and(|at| at >= from)) {
                let why = format!("no item records the inode count of subvolume {subvol}");
                checker.report.add(Problem::Quota { why });
            }
        }
    }

    /// RECOUNT-E2: rows of usage against the bytes of data and of nodes that each epoch pays for.
    pub(crate) fn usage(&self, checker: &mut Checker, found: &BTreeMap<EpochId, [u64; 2]>) {
        let Some(from) = self.quotas.counted_from else { return };
        let epochs: BTreeSet<EpochId> = self.usage.keys().chain(found.keys()).copied().collect();
        for epoch in epochs.range(from..) {
            let row = self.usage.get(epoch);
            let said = row.map_or([0; 2], |row| [row.data, row.metadata]);
            if row.is_some() && said == [0; 2] {
                let (table, key) = (Pool::SYSTEM, usage_key(*epoch));
                let why = "a row of usage that counts nothing".into();
                checker.report.add(Problem::Record { table, key, why });
            }
            let found = found.get(epoch).copied().unwrap_or_default();
            for (n, what) in ["data", "metadata"].into_iter().enumerate() {
                if said[n] != found[n] {
                    let (epoch, said, found) = (*epoch, said[n], found[n]);
                    checker.report.add(Problem::Usage { epoch, what, said, found });
                }
            }
        }
    }
}
