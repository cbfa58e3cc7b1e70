//! `copyhold qgroup show`: the usage of each group.
//!
//! For people a tree: groups that are in no other one first, members under them, a little to the
//! right. A group that is in several groups is shown in each; the rows below it only once. With
//! `--sort` the rows are in that order instead, as those of `--json` are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::{Report, table};
use crate::size::Size;
use copyhold_serve::wire::{Group, GroupLimits, GroupRow, Question};

/// Show the usage and the limits of subvolumes and groups
///
/// `used` counts the blocks that the subvolume wrote and that a file or a snapshot still refers to.
/// Members are listed under their group. A `tombstone` is a deleted subvolume that still pays for
/// blocks that other subvolumes share.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold qgroup show /mnt\n  \
    copyhold qgroup show --sort used /mnt\n  \
    copyhold qgroup show --json /mnt | jq '.[] | select(.state == \"tombstone\")'")]
pub(super) struct Show {
    /// Show bytes
    #[arg(long)]
    raw: bool,
    /// Sort by this column, largest first, and do not show a tree
    #[arg(long, value_name = "FIELD")]
    sort: Option<Field>,
    /// Write all dirty data to the pool first, so that the figures include it
    #[arg(long)]
    sync: bool,
    /// Any directory or file of the mount
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Field {
    /// By level and number, smallest first
    Id,
    /// By path, in the order of the alphabet
    Path,
    #[value(aliases = ["referenced", "exclusive", "rfer", "excl"])]
    Used,
    Data,
    Metadata,
    Reserved,
    #[value(alias = "max-rfer")]
    Limit,
}

impl Show {
    pub(super) fn run(self, report: Report) -> Result<(), Failure> {
        let control = tenants::directory(&self.path)?;
        if self.sync {
            control.sync()?;
        }
        let mut rows: Vec<GroupRow> = control.put_all(|after| Question::Groups { after })?;
        if let Some(field) = self.sort {
            sort(&mut rows, field);
        }
        report.show(&rows, || self.text(&rows))
    }

    fn text(&self, rows: &[GroupRow]) -> String {
        let lines = match self.sort {
            Some(_) => rows.iter().map(|row| (0, row)).collect(),
            None => tree(rows),
        };
        let lines: Vec<_> = lines.into_iter().map(|(depth, row)| self.line(depth, row)).collect();
        table(&["group", ">used", ">data", ">metadata", ">reserved", ">limit", "what"], &lines)
    }

    fn line(&self, depth: usize, row: &GroupRow) -> Vec<String> {
        let bytes = |bytes: u64| match self.raw {
            true => bytes.to_string(),
            false => Size(bytes).to_string(),
        };
        let mut line = vec![format!("{:indent$}{}", "", row.id, indent = 2 * depth)];
        line.extend([row.referenced, row.data, row.metadata, row.reserved].map(bytes));
        line.push(limit(&row.limits).map_or("-".into(), bytes));
        line.push(what(row, bytes));
        line
    }
}

/// The limit that binds.
fn limit(limits: &GroupLimits) -> Option<u64> {
    limits.referenced.into_iter().chain(limits.exclusive).min()
}

fn what(row: &GroupRow, bytes: impl Fn(u64) -> String) -> String {
    let mut what = row.path.clone().unwrap_or_default();
    let mut add = |text: String| {
        what += if what.is_empty() { "" } else { ", " };
        what += &text;
    };
    if row.state != "live" {
        add(row.state.clone());
    }
    if let Some(since) = &row.deleted {
        add(format!("deleted {since}"));
    }
    if row.reserve > 0 {
        add(format!("{} guaranteed", bytes(row.reserve)));
    }
    for (limit, used, things) in [
        (row.limits.inodes, row.inodes, "inodes"),
        (row.limits.snapshots, row.snapshots, "snapshots"),
        (row.limits.subvolumes, row.subvolumes, "subvolumes"),
    ] {
        if let Some(limit) = limit {
            add(format!("{used} of {limit} {things}"));
        }
    }
    if what.is_empty() { "-".into() } else { what }
}

fn sort(rows: &mut [GroupRow], field: Field) {
    match field {
        Field::Id => rows.sort_by_key(|row| row.id),
        Field::Path => rows.sort_by(|a, b| a.path.cmp(&b.path)),
        Field::Used => rows.sort_by_key(|row| Reverse(row.referenced)),
        Field::Data => rows.sort_by_key(|row| Reverse(row.data)),
        Field::Metadata => rows.sort_by_key(|row| Reverse(row.metadata)),
        Field::Reserved => rows.sort_by_key(|row| Reverse(row.reserved)),
        Field::Limit => rows.sort_by_key(|row| Reverse(limit(&row.limits).unwrap_or(u64::MAX))),
    }
}

/// Rows with their depth, each group before its members.
fn tree(rows: &[GroupRow]) -> Vec<(usize, &GroupRow)> {
    let mut members: BTreeMap<Group, Vec<&GroupRow>> = BTreeMap::new();
    let known: BTreeSet<Group> = rows.iter().map(|row| row.id).collect();
    for row in rows {
        for parent in &row.parents {
            members.entry(*parent).or_default().push(row);
        }
    }
    let is_top = |row: &&GroupRow| !row.parents.iter().any(|parent| known.contains(parent));
    let mut tops: Vec<(usize, &GroupRow)> =
        rows.iter().filter(is_top).map(|row| (0, row)).collect();
    // The highest levels first: the last one shown is on top of the pile.
    tops.sort_by_key(|(_, row)| (row.id.0.level(), Reverse(row.id)));
    let (mut pile, mut lines) = (tops, Vec::new());
    while let Some((depth, row)) = pile.pop() {
        lines.push((depth, row));
        let below = members.remove(&row.id).unwrap_or_default();
        pile.extend(below.into_iter().rev().map(|member| (depth + 1, member)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: &str, parents: &[&str], used: u64) -> GroupRow {
        GroupRow {
            id: id.parse().unwrap(),
            path: None,
            state: "live".into(),
            deleted: None,
            referenced: used,
            exclusive: used,
            data: used,
            metadata: 0,
            reserved: 0,
            unflushed: 0,
            inodes: 0,
            snapshots: 0,
            subvolumes: 0,
            limits: GroupLimits::default(),
            reserve: 0,
            parents: parents.iter().map(|parent| parent.parse().unwrap()).collect(),
        }
    }

    fn ids(lines: &[(usize, &GroupRow)]) -> Vec<String> {
        lines.iter().map(|(depth, row)| format!("{depth} {}", row.id)).collect()
    }

    #[test]
    fn the_json_of_a_group_is_a_contract() {
        let mut shown = row("0/7", &["1/100", "2/1"], 4096);
        shown.limits.referenced = Some(1 << 20);
        let shown = json!(shown);
        for (field, value) in [
            ("id", json!("0/7")),
            ("path", json!(null)),
            ("state", json!("live")),
            ("referenced", json!(4096)),
            ("exclusive", json!(4096)),
            ("data", json!(4096)),
            ("metadata", json!(0)),
            ("reserved", json!(0)),
            ("parents", json!(["1/100", "2/1"])),
        ] {
            assert_eq!(shown[field], value, "{field}");
        }
        assert_eq!(shown["limits"]["referenced"], 1 << 20);
        assert_eq!(shown["limits"]["exclusive"], json!(null));
    }

    #[test]
    fn members_stand_under_their_groups_and_a_diamond_is_shown_once_below() {
        let rows = [
            row("0/5", &[], 1),
            row("0/7", &["1/1", "1/2"], 1),
            row("0/8", &["1/2"], 1),
            row("1/1", &["2/1"], 1),
            row("1/2", &["2/1"], 2),
            row("2/1", &[], 2),
        ];
        let lines = ids(&tree(&rows));
        assert_eq!(lines, ["0 2/1", "1 1/1", "2 0/7", "1 1/2", "2 0/7", "2 0/8", "0 0/5"]);
    }

    #[test]
    fn many_ways_to_a_group_are_not_all_walked() {
        let mut rows = vec![row("40/1", &[], 1), row("40/2", &[], 1)];
        for level in (0..40).rev() {
            let above = [format!("{}/1", level + 1), format!("{}/2", level + 1)];
            let above = [above[0].as_str(), above[1].as_str()];
            rows.extend([1, 2].map(|id| row(&format!("{level}/{id}"), &above, 1)));
        }
        let shown: BTreeSet<Group> = tree(&rows).iter().map(|(_, row)| row.id).collect();
        assert_eq!(shown.len(), rows.len());
        assert!(tree(&rows).len() < 2 * rows.len());
    }

    #[test]
    fn what_binds_and_who_is_dead_is_shown() {
        let show = Show { raw: true, sort: Some(Field::Used), sync: false, path: "/".into() };
        let mut dead = row("0/9", &[], 10);
        dead.state = "tombstone".into();
        dead.path = Some("base".into());
        dead.deleted = Some("2026-11-21T10:00:00Z".into());
        dead.limits = GroupLimits { referenced: Some(70), exclusive: Some(50), ..dead.limits };
        let mut rows = vec![dead, row("0/7", &[], 4096)];
        sort(&mut rows, Field::Used);
        let text = show.text(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("0/7    4096"), "{text}");
        assert!(lines[2].contains(" 50  base, tombstone, deleted 2026-11-21"), "{text}");
    }
}
