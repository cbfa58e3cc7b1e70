//! The check of an open pool, from the trees up to the files.
//!
//! Order.    Space maps; trees, by pointer, which also tells what cannot be read; subvolumes; then
//!           the items of each subvolume, edits over bases; last, what is allocated and was not
//!           referred to. A step leaves out what an earlier one found to be unreadable: one bad
//!           node is one finding, not one for each item that it held.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use copyhold_format::node::PARTITION;
use copyhold_format::space_map::METASLAB;
use copyhold_pool::Pool;
use copyhold_space::MetaslabId;
use copyhold_table::Table;
use copyhold_types::{Key, NodePtr, Run, TableId};

use crate::files::FileIndex;
use crate::items::Items;
use crate::problem::{Owner, Problem};
use crate::reach::{Flaw, Reach};
use crate::report::{Draft, Report};
use crate::tree::TreeCheck;
use crate::{Options, maps, owners, system};

/// The state of a check.
pub(crate) struct Checker {
    pub(crate) pool: Arc<Pool>,
    pub(crate) options: Options,
    pub(crate) report: Draft,
    pub(crate) reach: Reach,
    /// Ranges of keys that cannot be read, in order.
    pub(crate) lost: BTreeMap<TableId, Vec<Range<Key>>>,
    /// Tables whose items somebody looks after.
    pub(crate) known_tables: Vec<TableId>,
    /// The files of each subvolume.
    pub(crate) files: Vec<FileIndex>,
}

impl Checker {
    /// `report`: what was found before the pool was opened.
    pub(crate) async fn run(pool: &Arc<Pool>, options: Options, report: Draft) -> Report {
        let _pin = pool.pin();
        let space = pool.space_map();
        let allocated = space.metaslabs().flat_map(|id| space.allocated_runs(id));
        let mut checker = Checker {
            reach: Reach::new(pool.label(), allocated),
            pool: pool.clone(),
            options,
            report,
            lost: BTreeMap::new(),
            known_tables: vec![Pool::TABLES, Pool::SYSTEM],
            files: Vec::new(),
        };
        maps::check(&mut checker).await;
        for table in pool.tables() {
            checker.tree(&table).await;
        }
        system::check(&mut checker).await;
        checker.unknown_tables().await;
        checker.space();
        owners::find(&mut checker).await;
        let files = checker.affected_files().await;
        checker.report.finish(files)
    }

    async fn tree(&mut self, table: &Table) {
        let mut descriptors = table.descriptors();
        descriptors.sort_by_key(|(_, descriptor)| descriptor.start);
        let mut check = TreeCheck {
            device: self.pool.device(),
            table: table.id(),
            newest: self.pool.open_txg(),
            report: &mut self.report,
            nodes: Vec::new(),
            lost: Vec::new(),
        };
        check.partitions(&descriptors).await;
        let (nodes, lost) = (check.nodes, check.lost);
        self.report.verified.tables += 1;
        for (ptr, level) in nodes {
            self.refer_node(&ptr, Owner::Node { table: table.id(), level });
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

    /// Counts a reference, and says what is wrong with it.
    pub(crate) fn refer(&mut self, run: Run, by: Owner) {
        for flaw in self.reach.refer(run) {
            self.report.add(match flaw {
                Flaw::Outside(run, why) => Problem::Outside { run, by, why },
                Flaw::Dangling(run) => Problem::Dangling { run, by },
                Flaw::Twice(run) => Problem::Twice { run, by, and: None },
            });
        }
    }

    pub(crate) fn table(&self, id: TableId) -> Option<Arc<Table>> {
        self.pool.tables().into_iter().find(|table| table.id() == id)
    }

    /// The items of a table, as far as they can be read.
    pub(crate) fn items(&self, table: &Arc<Table>, range: Range<Key>) -> Items {
        let lost = self.lost.get(&table.id()).cloned().unwrap_or_default();
        Items::new(self.pool.clone(), table.clone(), range, &lost)
    }

    pub(crate) fn is_lost(&self, table: TableId, key: Key) -> bool {
        self.lost.get(&table).is_some_and(|lost| lost.iter().any(|range| range.contains(&key)))
    }

    /// What the table of tables has beside partitions and metaslabs, and tables that nobody knows.
    async fn unknown_tables(&mut self) {
        let Some(tables) = self.table(Pool::TABLES) else { return };
        let mut items = self.items(&tables, Key::MIN..Key::MAX);
        while let Some(page) = items.next(&mut self.report).await {
            for (key, _) in page {
                if key.kind != PARTITION && key.kind != METASLAB {
                    self.report.add(Problem::UnknownItem { table: Pool::TABLES, key });
                }
            }
        }
        for table in self.pool.tables() {
            if self.known_tables.contains(&table.id()) {
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

    /// S1: what is allocated and was not referred to.
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
