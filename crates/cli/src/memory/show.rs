//! `copyhold memory show`: the groups with limits and figures.
//!
//! For people a tree: a group above those that it holds, these a little to the right.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::{Report, table};
use crate::size::Size;
use copyhold_serve::wire::Question;
use copyhold_serve::wire::memory::{Bound, MemoryRow};

/// Show the memory and the limits of groups
///
/// At the root of the pool, all groups are shown, else the group of the subvolume that DIR is in,
/// and those inside. Each row counts all that the group holds. `shared` is for data that belongs to
/// no single subvolume. `kept min` and `kept low` are the parts of `min` and `low` that the groups
/// above leave at the next walk of reclaim.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold memory show /mnt\n  \
    copyhold memory show --json /mnt | jq '.[] | select(.current > .low)'")]
pub(super) struct Show {
    /// Show bytes
    #[arg(long)]
    raw: bool,
    /// Any directory of the mount
    directory: PathBuf,
}

impl Show {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let control = tenants::directory(&self.directory)?;
        let rows: Vec<MemoryRow> = control.put_all(|after| Question::Memory { after })?;
        report.show(&rows, || self.text(&rows))
    }

    fn text(&self, rows: &[MemoryRow]) -> String {
        let classes: Vec<String> =
            MemoryRow::default().class.keys().map(|name| format!(">{name}")).collect();
        let limits = [">current", ">peak", ">min", ">low", ">high", ">max", ">weight"];
        let kept = [">kept min", ">kept low"];
        let headings: Vec<&str> = std::iter::once("group")
            .chain(limits)
            .chain(kept)
            .chain(classes.iter().map(String::as_str))
            .collect();
        let lines: Vec<_> =
            tree(rows).into_iter().map(|(depth, row)| self.line(depth, row)).collect();
        table(&headings, &lines)
    }

    fn line(&self, depth: usize, row: &MemoryRow) -> Vec<String> {
        let bytes = |bytes: u64| match (bytes, self.raw) {
            (0, _) => "0".to_owned(),
            (bytes, true) => bytes.to_string(),
            (bytes, false) => Size(bytes).to_string(),
        };
        let bound = |bound: Bound| match bound {
            Bound::NONE => "max".to_owned(),
            Bound(limit) => bytes(limit),
        };
        let mut line = vec![format!("{:indent$}{}", "", name(row), indent = 2 * depth)];
        line.extend([row.current, row.peak].map(bytes));
        line.extend([row.min, row.low, row.high, row.max].map(bound));
        line.push(row.weight.to_string());
        line.extend([row.effective.min, row.effective.low].map(bytes));
        line.extend(row.class.values().map(|value| bytes(value.as_u64().unwrap_or(0))));
        // An older daemon may have fewer classes, a newer one more.
        line.resize(10 + MemoryRow::default().class.len(), "-".into());
        line
    }
}

fn name(row: &MemoryRow) -> String {
    match &row.path {
        Some(path) => path.clone(),
        None if row.id == 0 => "shared".into(),
        None => format!("subvolume {}", row.id),
    }
}

/// Rows with their depth, each group before those that it holds; each row once.
fn tree(rows: &[MemoryRow]) -> Vec<(usize, &MemoryRow)> {
    let known: BTreeSet<u32> = rows.iter().map(|row| row.id).collect();
    let mut held: BTreeMap<Option<u32>, Vec<&MemoryRow>> = BTreeMap::new();
    for row in rows {
        held.entry(row.parent.filter(|parent| known.contains(parent))).or_default().push(row);
    }
    let mut pile: Vec<(usize, &MemoryRow)> = Vec::new();
    let mut lines = Vec::new();
    // Groups whose pages were read before and after a move may seem to hold each other.
    while let Some(tops) = held.remove(&None).or_else(|| held.pop_first().map(|(_, rows)| rows)) {
        pile.extend(tops.into_iter().rev().map(|row| (0, row)));
        while let Some((depth, row)) = pile.pop() {
            lines.push((depth, row));
            let below = held.remove(&Some(row.id)).unwrap_or_default();
            pile.extend(below.into_iter().rev().map(|row| (depth + 1, row)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: u32, parent: Option<u32>) -> MemoryRow {
        MemoryRow { id, parent, path: (id > 0).then(|| format!("s{id}")), ..MemoryRow::default() }
    }

    #[test]
    fn groups_stand_under_their_holders() {
        let rows = [
            row(0, None),
            row(1, None),
            row(5, None),
            row(6, Some(7)),
            row(7, Some(5)),
            row(9, None),
        ];
        let lines = tree(&rows);
        let shown: Vec<_> = lines.iter().map(|(depth, row)| (*depth, row.id)).collect();
        assert_eq!(shown, [(0, 0), (0, 1), (0, 5), (1, 7), (2, 6), (0, 9)]);
    }

    #[test]
    fn the_table_shows_limits_and_classes() {
        let mut own = row(5, None);
        (own.current, own.low, own.max) = (3 << 20, Bound(340 << 20), Bound(1 << 30));
        own.class.insert("node".into(), json!(3 << 20));
        own.effective.low = 100;
        let show = |raw| Show { raw, directory: "/".into() }.text(&[row(0, None), own.clone()]);
        let text = show(false);
        let lines: Vec<&str> = text.lines().collect();
        let heads =
            "group current peak min low high max weight kept min kept low node inode data dirty";
        let found: Vec<&str> = lines[0].split_whitespace().collect();
        assert!(found.join(" ").starts_with(heads), "{text}");
        assert!(lines[1].starts_with("shared        0"), "{text}");
        for cell in ["s5", "3.0 MiB", "340.0 MiB", "max", "1.0 GiB", "100 B"] {
            assert!(lines[2].contains(cell), "{cell} in {text}");
        }
        assert!(show(true).contains(" 356515840 "), "{}", show(true));
    }

    /// A table shows each row once, with any parents.
    #[test]
    fn each_row_is_shown_once() {
        const ROWS: u32 = 4;
        for number in 0..6_u32.pow(ROWS) {
            let parent = |id: u32| match number / 6_u32.pow(id) % 6 {
                5 => None,
                parent => Some(parent),
            };
            let rows: Vec<MemoryRow> = (0..ROWS).map(|id| row(id, parent(id))).collect();
            let mut ids: Vec<u32> = tree(&rows).iter().map(|(_, row)| row.id).collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..ROWS).collect::<Vec<_>>(), "{rows:?}");
        }
    }
}
