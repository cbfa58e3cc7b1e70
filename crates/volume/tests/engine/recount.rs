//! What live subvolumes refer to, counted: content, space, shares, usage.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::item::{GroupId, MEMORY, ShareItem};
use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::{Condition, Pool};
use copyhold_table::NodeVisit;
use copyhold_types::{BlockAddr, EpochId, Key, NodePtr, Purpose, Run, SubvolId};

use crate::world::{Files, LIMITS, World, numbers_of};

fn blocks(run: Run) -> std::ops::Range<u64> {
    run.addr.block()..run.end()
}

impl World {
    /// Every live subvolume has the files that were written to it.
    pub(crate) fn compare(&self) {
        let found = self.found();
        assert!(found.keys().eq(self.model.keys()), "{:?} live", found.keys());
        for (subvol, wanted) in &self.model {
            let found = &found[subvol];
            assert!(found == wanted, "subvolume {subvol}: {}", difference(found, wanted));
        }
    }

    /// The files of the living.
    pub(crate) fn found(&self) -> BTreeMap<SubvolId, Files> {
        let live = self.volumes.list().into_iter().filter(|subvol| !subvol.is_dying());
        live.map(|subvol| (subvol.id(), self.files_of(subvol.id()))).collect()
    }

    fn files_of(&self, subvol: SubvolId) -> Files {
        let limits = self.volumes.subvol(subvol).unwrap().owner().limits();
        let mut found: Files = numbers_of(&limits).into_iter().collect();
        for (key, extent) in self.extents(subvol) {
            let run = extent.pointer.run;
            let read = self.pool().read(run, Condition::Nothing, Purpose::Data, None);
            let data = self.rt.block_on(read).unwrap();
            for (n, block) in data.chunks(4096).enumerate() {
                let tag = u64::from_le_bytes(block[..8].try_into().unwrap());
                let at = (key.object, key.offset + n as u64);
                assert!(found.insert(at, tag).is_none(), "{subvol}: {at:?} twice");
            }
        }
        found
    }

    /// LIMITS-M1.
    fn check_limits(&self) {
        let (from, to) = (Key::MIN, Key::MAX);
        let rows = self.rt.block_on(self.pool().range(Pool::SYSTEM, from, to, usize::MAX)).unwrap();
        let limited = rows.into_iter().filter(|(key, _)| key.kind == MEMORY);
        let limited: Vec<SubvolId> = limited.map(|(key, _)| SubvolId(key.object as u32)).collect();
        let has_limits =
            |(_, files): &(&SubvolId, &Files)| files.range((LIMITS, 0)..).next().is_some();
        let wanted: Vec<SubvolId> = self.model.iter().filter(has_limits).map(|of| *of.0).collect();
        assert_eq!(limited, wanted, "LIMITS-M1");
    }

    /// RECOUNT-E1, RECOUNT-E2 and RECOUNT-E6, when all that is on its way has arrived.
    pub(crate) fn recount(&mut self) {
        self.finish();
        self.check_limits();
        let nodes = self.nodes();
        let mut held: BTreeMap<u64, String> = BTreeMap::new();
        let mut hold = |run: Run, what: String| {
            blocks(run).for_each(|block| {
                let was = held.insert(block, what.clone());
                assert!(was.is_none(), "block {block} is {} and {what}", was.unwrap_or_default());
            });
        };
        for ptr in &nodes {
            ptr.runs().for_each(|run| hold(run, format!("{ptr:?}")));
        }
        let mut data: BTreeMap<u64, EpochId> = BTreeMap::new();
        for subvol in self.model.keys() {
            for (_, extent) in self.extents(*subvol) {
                let origin = extent.pointer.origin;
                for block in blocks(extent.pointer.run) {
                    let said = data.insert(block, origin);
                    assert!(said.is_none_or(|said| said == origin), "{block} has one origin");
                }
            }
        }
        data.keys().for_each(|&block| {
            hold(Run::new(BlockAddr::from_raw(block), 1), "data".into());
        });
        let found = self.allocated();
        let wanted: BTreeSet<u64> = held.keys().copied().collect();
        let lost: Vec<_> = wanted.difference(&found).map(|b| (b, &held[b])).take(5).collect();
        let leaked: Vec<_> = found.difference(&wanted).take(10).collect();
        assert!(
            lost.is_empty() && leaked.is_empty(),
            "RECOUNT-E1: lost {lost:?}, leaked {leaked:?}"
        );
        self.recount_shares();
        if self.config.quotas {
            self.recount_usage(&data, &nodes);
        }
    }

    /// Nodes of all tables, and space maps.
    fn nodes(&self) -> BTreeSet<NodePtr> {
        let mut nodes = BTreeSet::new();
        let pool = self.pool();
        for table in pool.tables() {
            let mut visit = |visit: NodeVisit<'_>| nodes.extend([visit.ptr]);
            self.rt.block_on(table.for_each_node(pool.node_source(), false, &mut visit));
        }
        let items = pool.range(Pool::TABLES, Key::MIN, Key::MAX, usize::MAX);
        for (key, value) in self.rt.block_on(items).unwrap() {
            if key.kind == METASLAB {
                nodes.extend(Descriptor::parse(&value).unwrap().parts());
            }
        }
        let nodes: Vec<NodePtr> = nodes.into_iter().collect();
        self.rt.block_on(pool.pieces_of(&nodes)).unwrap().into_iter().collect()
    }

    fn allocated(&self) -> BTreeSet<u64> {
        let (space, label) = (self.pool().space_map(), self.pool().label());
        let areas = Label::areas(label.blocks).map(|start| start..start + AREA_BLOCKS);
        let log = label.log.map(|start| start..start + label.log_blocks);
        let is_fixed = |block: &u64| areas.iter().chain(&log).any(|area| area.contains(block));
        let runs = space.metaslabs().flat_map(|id| space.allocated_runs(id));
        runs.flat_map(blocks).filter(|block| !is_fixed(block)).collect()
    }

    /// References of their own: for each epoch of pointers in a family, the most that one of its
    /// subvolumes has.
    fn recount_shares(&self) {
        let mut most: BTreeMap<u64, BTreeMap<(u64, EpochId), u32>> = BTreeMap::new();
        for subvol in self.model.keys() {
            let family = self.volumes.subvol(*subvol).unwrap().family_number();
            let mut mine: BTreeMap<(u64, EpochId), u32> = BTreeMap::new();
            for (_, extent) in self.extents(*subvol) {
                for block in blocks(extent.pointer.run) {
                    *mine.entry((block, extent.pointer.epoch)).or_default() += 1;
                }
            }
            for ((block, epoch), count) in mine {
                let most = most.entry(block).or_default().entry((family, epoch)).or_default();
                *most = count.max(*most);
            }
        }
        let counts = most.into_iter().map(|(block, of)| (block, of.values().sum::<u32>() - 1));
        let wanted: BTreeMap<u64, u32> = counts.filter(|(_, count)| *count > 0).collect();
        let items = self.pool().range(Pool::SHARES, Key::MIN, Key::MAX, usize::MAX);
        let mut found = BTreeMap::new();
        for (key, value) in self.rt.block_on(items).unwrap() {
            let item = ShareItem::parse(key, &value).unwrap();
            let run = Run::new(BlockAddr::from_raw(key.offset), item.blocks);
            found.extend(blocks(run).map(|block| (block, item.count)));
        }
        assert!(found == wanted, "RECOUNT-E6: {found:?}, not {wanted:?}");
    }

    /// What each living owner pays for; the first epoch of all is older than the quotas.
    fn recount_usage(&self, data: &BTreeMap<u64, EpochId>, nodes: &BTreeSet<NodePtr>) {
        let ledger = self.volumes.ledger();
        assert_eq!(ledger.miscounts(), 0);
        let mut wanted: BTreeMap<SubvolId, (u64, u64)> = BTreeMap::new();
        for origin in data.values().filter(|origin| ledger.counts(**origin)) {
            wanted.entry(self.payer(self.owners[origin])).or_default().0 += 4096;
        }
        for ptr in nodes.iter().filter(|ptr| ledger.counts(ptr.epoch)) {
            let bytes: u64 = ptr.runs().map(Run::bytes).sum();
            wanted.entry(self.payer(self.owners[&ptr.epoch])).or_default().1 += bytes;
        }
        for group in ledger.show().unwrap() {
            let subvol = SubvolId(group.id.id() as u32);
            let wanted = wanted.remove(&subvol).unwrap_or_default();
            assert_eq!((group.data, group.metadata), wanted, "RECOUNT-E2: {}", GroupId::of(subvol));
        }
        assert!(wanted.is_empty(), "RECOUNT-E2: nobody pays for {wanted:?}");
    }
}

fn difference(found: &Files, wanted: &Files) -> String {
    let differs = |at: &&(u64, u64)| found.get(*at) != wanted.get(*at);
    let all: BTreeSet<(u64, u64)> = found.keys().chain(wanted.keys()).copied().collect();
    let some: Vec<_> = all.iter().filter(differs).take(5).collect();
    some.iter()
        .map(|at| format!("{at:?}: {:?}, not {:?}; ", found.get(at), wanted.get(at)))
        .collect()
}
