//! The check of an open pool, from the trees up to the files.
//!
//! Order.    Space maps; trees, by pointer, which also finds unreadable nodes, the pool's own
//!           first, for they say whose the others are; then the items of each subvolume, edits over
//!           bases, family by family; last, allocated blocks without a reference. A step leaves
//!           out the parts that an earlier one found to be unreadable: one bad node is one
//!           finding, not one for each item that it held.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use copyhold_format::node::{LINEAGE, Lineage, PARTITION, pieces_of};
use copyhold_format::space_map::METASLAB;
use copyhold_pool::{Pool, find_table, metaslab_view};
use copyhold_space::MetaslabId;
use copyhold_table::Table;
use copyhold_types::{BlockAddr, InodeNo, Key, NodePtr, Run, SubvolId, TableId};

use crate::files::FileIndex;
use crate::items::Items;
use crate::options::Options;
use crate::problem::{Owner, Problem};
use crate::reach::{Flaw, Reach};
use crate::report::{Draft, Report};
use crate::role::Role;
use crate::system::System;
use crate::tree::TreeCheck;
use crate::{families, maps, owners};

/// The state of a check.
pub(crate) struct Checker {
    pub(crate) pool: Arc<Pool>,
    pub(crate) options: Options,
    pub(crate) report: Draft,
    pub(crate) reach: Reach,
    /// Ranges of keys that cannot be read, in order.
    pub(crate) lost: BTreeMap<TableId, Vec<Range<Key>>>,
    /// Nodes that cannot be read, by their first copy.
    unreadable: BTreeSet<BlockAddr>,
    /// The files of subvolumes, of those that there is room for ([`FILES_KEPT`]).
    pub(crate) files: Vec<FileIndex>,
    /// Whether references are counted: something is, or may be, shared or paid for.
    pub(crate) counting: bool,
    /// Tables that others lie over, some of which may have taken over its nodes already.
    forked: BTreeSet<TableId>,
    /// Entries of subvolumes: holder, directory, and whose they are.
    pub(crate) subvol_entries: Vec<(SubvolId, InodeNo, SubvolId)>,
}

/// Inodes and names that are kept for naming files that a finding of another subvolume is about.
const FILES_KEPT: usize = 1 << 20;

impl Checker {
    /// `report`: problems found before the pool was opened.
    pub(crate) async fn run(pool: &Arc<Pool>, options: Options, report: Draft) -> Report {
        let _pin = pool.pin();
        let mut checker = Checker::look(pool, options, report).await;
        let files = checker.affected_files().await;
        checker.report.finish(files)
    }

    /// The space that a node has allocated, as far as it can be read: where it cannot, the check
    /// of its tree or map says so.
    pub(crate) async fn pieces_of(&self, ptr: NodePtr) -> Vec<NodePtr> {
        let pieces = self.pool.pieces_of(&[ptr]).await;
        pieces.unwrap_or_else(|_| pieces_of(&ptr, &[]))
    }

    /// Everything is looked at, and findings are not yet put in words.
    pub(crate) async fn look(pool: &Arc<Pool>, options: Options, report: Draft) -> Checker {
        let mut reach = Reach::new(&pool.label());
        // One map at a time: they may not fit in memory together.
        for id in pool.space_map().metaslabs() {
            reach.add_allocated(&metaslab_view(pool, id).await.allocated);
        }
        let mut checker = Checker {
            reach,
            pool: pool.clone(),
            options,
            report,
            lost: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            files: Vec::new(),
            counting: false,
            forked: pool.tables().iter().filter_map(|of| Some(of.under()?.id())).collect(),
            subvol_entries: Vec::new(),
        };
        maps::check(&mut checker).await;
        let (first, others): (Vec<_>, Vec<_>) =
            pool.tables().into_iter().partition(|table| table.id() <= Pool::SYSTEM);
        for table in &first {
            checker.tree(table, Role::Own).await;
        }
        let system = System::read(&mut checker).await;
        for table in &others {
            checker.tree(table, system.role(table.id())).await;
        }
        system.check(&mut checker).await;
        families::check(&mut checker, &system).await;
        system.places(&mut checker);
        checker.unknown_tables(&system).await;
        checker.space();
        owners::find(&mut checker).await;
        checker
    }

    /// Whether all that refers to space could be read.
    pub(crate) fn has_read_all_references(&self) -> bool {
        self.lost.is_empty() && self.unreadable.is_empty()
    }

    async fn tree(&mut self, table: &Table, role: Role) {
        let mut descriptors = table.descriptors();
        descriptors.sort_by_key(|(_, descriptor)| descriptor.start);
        let released = role.released_before(&descriptors);
        let mut check = TreeCheck {
            device: self.pool.device(),
            table: table.id(),
            role,
            seen: Some(&self.reach),
            unreadable: &mut self.unreadable,
            newest: self.pool.open_txg(),
            report: &mut self.report,
            nodes: Vec::new(),
            lost: Vec::new(),
        };
        check.partitions(&descriptors[released..]).await;
        let (nodes, lost) = (check.nodes, check.lost);
        let is_forked = self.forked.contains(&table.id());
        self.report.verified.tables += 1;
        for (ptr, level) in nodes {
            let by = Owner::Node { table: table.id(), level };
            match role.is_inherited(ptr.epoch) || is_forked {
                true => ptr.runs().for_each(|run| self.refer_again(run, by)),
                false => self.refer_node(&ptr, by),
            }
        }
        if !lost.is_empty() {
            self.lost.insert(table.id(), lost);
        }
    }

    pub(crate) fn refer_node(&mut self, ptr: &NodePtr, by: Owner) {
        for run in ptr.runs() {
            self.refer(run, by);
        }
    }

    /// Counts a reference, and reports its errors.
    pub(crate) fn refer(&mut self, run: Run, by: Owner) {
        let flaws = self.reach.refer(run);
        self.flaws(flaws, by);
    }

    /// The same of a reference that may be one of several.
    pub(crate) fn refer_again(&mut self, run: Run, by: Owner) {
        let flaws = self.reach.refer_again(run);
        self.flaws(flaws, by);
    }

    fn flaws(&mut self, flaws: Vec<Flaw>, by: Owner) {
        for flaw in flaws {
            self.report.add(match flaw {
                Flaw::Outside(run, why) => Problem::Outside { run, by, why },
                Flaw::Dangling(run) => Problem::Dangling { run, by },
                Flaw::Twice(run) => Problem::Twice { run, by, and: None },
            });
        }
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Arc<Table>> {
        find_table(&self.pool, id)
    }

    /// The items of a table, as far as they can be read.
    pub(crate) fn items(&self, table: &Arc<Table>, range: Range<Key>) -> Items {
        Items::new(self.pool.clone(), table.clone(), range, &self.lost_of(table.id()))
    }

    /// The keys that cannot be read of a table, or of the tables that it lies over.
    pub(crate) fn lost_of(&self, table: TableId) -> Vec<Range<Key>> {
        if self.lost.is_empty() {
            return Vec::new();
        }
        let base = self.table(table).map_or(table, |table| families::lowest(&table).id());
        self.lost.get(&base).cloned().unwrap_or_default()
    }

    pub(crate) fn is_lost(&self, table: TableId, key: Key) -> bool {
        self.lost_of(table).iter().any(|range| range.contains(&key))
    }

    /// Keeps the files of a subvolume to name them later, as long as there is room; those of one
    /// with findings always.
    pub(crate) fn keep(&mut self, index: FileIndex, has_findings: bool) {
        let size = |index: &FileIndex| index.inodes.len() + index.names.len();
        let kept: usize = self.files.iter().map(size).sum();
        if has_findings || self.files.is_empty() || kept + size(&index) <= FILES_KEPT {
            self.files.push(index);
        }
    }

    /// The items of the table of tables beside partitions and metaslabs, and unknown tables:
    /// one that is handed over in steps may have outlived its epoch, and has tables over it.
    async fn unknown_tables(&mut self, system: &System) {
        let Some(tables) = self.table(Pool::TABLES) else { return };
        let mut items = self.items(&tables, Key::MIN..Key::MAX);
        let mut under = BTreeSet::new();
        while let Some(page) = items.next(&mut self.report).await {
            for (key, value) in page {
                match key.kind {
                    PARTITION | METASLAB => {}
                    LINEAGE => under.extend(self.lineage(key, &value)),
                    _ => self.report.add(Problem::UnknownItem { table: Pool::TABLES, key }),
                }
            }
        }
        for table in self.pool.tables() {
            if system.role(table.id()) != Role::Unknown || under.contains(&table.id()) {
                continue;
            }
            let mut count = 0;
            let mut items = self.items(&table, Key::MIN..Key::MAX);
            while let Some(page) = items.next(&mut self.report).await {
                count += page.len() as u64;
            }
            if count > 0 {
                self.report.add(Problem::UnknownTable { table: table.id(), items: count });
            }
        }
    }

    /// The table that a table lies over, which must exist.
    fn lineage(&mut self, key: Key, value: &[u8]) -> Option<TableId> {
        let why = match Lineage::parse(value) {
            Ok(Lineage::Over(under)) if self.table(under).is_some() => return Some(under),
            Ok(Lineage::Over(under)) => {
                format!("it lies over table {under}, which does not exist")
            }
            Ok(Lineage::Gone(_)) => return None,
            Err(error) => error.to_string(),
        };
        self.report.add(Problem::Table { table: TableId(key.object), why });
        None
    }

    /// REACH-S1: allocated blocks without a reference.
    fn space(&mut self) {
        self.report.verified.allocated_blocks = self.reach.allocated_blocks();
        if self.lost.is_empty() {
            for run in self.reach.leaked() {
                self.report.add(Problem::Leaked { run });
            }
            return;
        }
        let blocks = self.reach.leaked().map(|run| u64::from(run.blocks)).sum();
        if blocks > 0 {
            self.report.add(Problem::Unaccounted { blocks });
        }
    }

    /// The blocks of a metaslab.
    pub(crate) fn blocks_of(&self, id: MetaslabId) -> Range<u64> {
        let label = self.pool.label();
        let start = u64::from(id.index).saturating_mul(label.metaslab_blocks);
        start..(start + label.metaslab_blocks).min(label.blocks)
    }
}
