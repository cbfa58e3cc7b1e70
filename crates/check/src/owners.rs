//! The other references to a block that is referred to twice: looked for only when there is one,
//! in a second walk over everything that refers.

use std::collections::BTreeMap;

use copyhold_format::item::{EXTENT, Extent};
use copyhold_format::space_map::{Descriptor, METASLAB};
use copyhold_pool::Pool;
use copyhold_space::MetaslabId;
use copyhold_types::{BlockAddr, InodeNo, Key, NodePtr, Run, SubvolId, TableId};

use crate::checker::Checker;
use crate::problem::{FileId, Owner, Problem};

/// The first owner of each block that has several, by the first block of the finding.
#[derive(Default)]
struct Wanted {
    owners: BTreeMap<BlockAddr, (Run, Option<Owner>)>,
}

impl Wanted {
    fn refer(&mut self, run: Run, by: Owner) {
        let end = BlockAddr::new(run.addr.device(), run.end().min(BlockAddr::MAX_BLOCK));
        for (_, (twice, owner)) in self.owners.range_mut(..end) {
            let meets = twice.addr.device() == run.addr.device() && twice.end() > run.addr.block();
            if meets && owner.is_none() {
                *owner = Some(by);
            }
        }
    }
}

/// Completes findings of blocks that are referred to twice.
pub(crate) async fn find(checker: &mut Checker) {
    let mut wanted = Wanted::default();
    for problem in &checker.report.problems {
        if let Problem::Twice { run, .. } = problem {
            wanted.owners.insert(run.addr, (*run, None));
        }
    }
    if wanted.owners.is_empty() {
        return;
    }
    nodes(checker, &mut wanted).await;
    maps(checker, &mut wanted).await;
    let tables: Vec<_> = checker.files.iter().map(|files| (files.subvol, files.table)).collect();
    for (subvol, table) in tables {
        extents(checker, subvol, table, &mut wanted).await;
    }
    for problem in &mut checker.report.problems {
        if let Problem::Twice { run, by, and } = problem {
            // Nothing else found: it refers to the block twice itself.
            *and = wanted.owners.get(&run.addr).and_then(|(_, owner)| *owner).or(Some(*by));
        }
    }
}

async fn nodes(checker: &Checker, wanted: &mut Wanted) {
    for table in checker.pool.tables() {
        let id = table.id();
        let mut found = Vec::new();
        let mut visit = |visit: copyhold_table::NodeVisit<'_>| found.push((visit.ptr, visit.level));
        table.for_each_node(checker.pool.node_source(), false, &mut visit).await;
        for (ptr, level) in found {
            for piece in checker.pieces_of(ptr).await {
                piece.runs().for_each(|run| wanted.refer(run, Owner::Node { table: id, level }));
            }
        }
    }
}

async fn maps(checker: &mut Checker, wanted: &mut Wanted) {
    let Some(table) = checker.table(Pool::TABLES) else { return };
    let mut items = checker.items(&table, Key::MIN..Key::MAX);
    while let Some(page) = items.next(&mut checker.report).await {
        for (key, value) in page.iter().filter(|(key, _)| key.kind == METASLAB) {
            let (Ok((device, index)), Ok(found)) =
                (Descriptor::parse_key(*key), Descriptor::parse(value))
            else {
                continue;
            };
            let owner = Owner::Map(MetaslabId { device, index });
            for part in found.parts() {
                let pieces = checker.pieces_of(part).await;
                pieces.iter().flat_map(NodePtr::runs).for_each(|run| wanted.refer(run, owner));
            }
        }
    }
}

async fn extents(checker: &mut Checker, subvol: SubvolId, table: TableId, wanted: &mut Wanted) {
    let Some(table) = checker.table(table) else { return };
    let mut items = checker.items(&table, Key::MIN..Key::MAX);
    while let Some(page) = items.next(&mut checker.report).await {
        for (key, value) in page.iter().filter(|(key, _)| key.kind == EXTENT) {
            if let Ok(extent) = Extent::parse(value) {
                let file = FileId { subvol, ino: InodeNo(key.object) };
                wanted.refer(extent.pointer.run, Owner::File { file, block: key.offset });
            }
        }
    }
}
