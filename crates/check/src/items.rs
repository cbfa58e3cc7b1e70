//! The items of a table in order, a page at a time, without those that cannot be read.

use std::ops::Range;
use std::sync::Arc;

use copyhold_pool::{Pool, Value};
use copyhold_table::Table;
use copyhold_types::Key;

use crate::problem::Problem;
use crate::report::Draft;

/// Items of a page.
const PAGE: usize = 1024;

/// See the module.
pub(crate) struct Items {
    pool: Arc<Pool>,
    table: Arc<Table>,
    /// The ranges still to be read, the last first.
    stretches: Vec<Range<Key>>,
}

impl Items {
    /// `lost`: ranges to leave out, in order.
    pub(crate) fn new(
        pool: Arc<Pool>,
        table: Arc<Table>,
        range: Range<Key>,
        lost: &[Range<Key>],
    ) -> Items {
        let mut stretches = Vec::new();
        let mut from = range.start;
        for gap in lost.iter().filter(|gap| gap.start < range.end && range.start < gap.end) {
            if from < gap.start {
                stretches.push(from..gap.start);
            }
            from = from.max(gap.end);
        }
        if from < range.end {
            stretches.push(from..range.end);
        }
        stretches.reverse();
        Items { pool, table, stretches }
    }

    /// The next items, at least one; `None` at the end.
    pub(crate) async fn next(&mut self, report: &mut Draft) -> Option<Vec<(Key, Value)>> {
        while let Some(stretch) = self.stretches.pop() {
            let nodes = self.pool.node_source();
            let page = match self.table.range(nodes, stretch.clone(), PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    // Only a node that became unreadable after it was looked at.
                    let why = error.to_string();
                    report.add(Problem::Table { table: self.table.id(), why });
                    continue;
                }
            };
            let next = page.last().and_then(|(key, _)| key.successor());
            if page.len() == PAGE
                && let Some(next) = next
                && next < stretch.end
            {
                self.stretches.push(next..stretch.end);
            }
            if !page.is_empty() {
                return Some(page);
            }
        }
        None
    }
}
