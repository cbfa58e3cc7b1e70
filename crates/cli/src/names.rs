//! `copyhold names`: names that do not exist, and the limit of those that are known.

use std::path::PathBuf;

use copyhold_serve::NamesLimit;
use copyhold_serve::wire::Question;
use copyhold_serve::wire::names::{NamesRow, NamesTotals};
use serde_json::{Map, Value, json};

use crate::control::tenants;
use crate::failure::Failure;
use crate::report::{Report, table};

/// Show and limit names that do not exist
///
/// The kernel remembers each name that was looked up in vain or removed, and so does the daemon,
/// to answer the next look-up at once. They share one limit: beyond it, names that were not asked
/// for lately are forgotten, first those of the subvolume that has most beyond its part. Parts
/// are by `weight` (`copyhold memory set`). A subvolume above its part waits for its look-ups
/// while the limit is reached; others do not.
#[derive(Debug, clap::Args)]
pub(crate) struct Verb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Show(Show),
    Set(Set),
    Drop(Drop),
}

/// Show the limit, and names by subvolume
///
/// `live` names are known; programs looked `hot` ones up again. All other columns count since the
/// mount. `created` names became known, `retained` ones of these by a removal or a rename;
/// `returned` ones were known before, and were removed to make room: if they are more than a tenth,
/// and `hits` are many, the limit is small, or the subvolume's `weight` is. `hits`
/// are look-ups that were answered from here; `recycled` names stayed, since a program had asked
/// for them again. Names went: `pruned` ones were forgotten ahead of the limit, `forced` ones at
/// the limit, `turned_positive` ones because a file got the name, `dropped` ones by command or
/// with their subvolume, and `replaced` ones beyond the limit, where the kernel may keep the
/// name. `delayed` requests waited at the limit, for `delay_us` microseconds in all. With
/// `--json`, `neg_hit_per_insert` and `neg_reinsert` are hits and returned names for each created
/// one, `setting` is the limit that was set, and `dentry_state` has the fields of the kernel's
/// `fs/dentry-state`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold names show /mnt\n  \
    copyhold names show --json /mnt | jq '.subvolumes[] | {path, live}'")]
struct Show {
    /// Any directory of the mount
    directory: PathBuf,
}

/// Change the limit until the unmount
///
/// The mount option `names=` sets it for good.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold names set /mnt limit=2%\n  \
    copyhold names set /mnt limit=1000000\n  \
    copyhold names set /mnt limit=off        any number, as filesystems without a limit")]
struct Set {
    /// Any directory of the mount
    directory: PathBuf,
    /// `limit=SIZE%`: a share of the memory, up to 10%, in dentries of 192 bytes; `limit=NUMBER`:
    /// so many names; `limit=off`. The daemon's own memory for names is a bound in any case.
    #[arg(value_name = "limit=LIMIT", value_parser = limit)]
    limit: NamesLimit,
}

/// Forget the names of a subvolume that do not exist
///
/// The daemon and the kernel forget them; the next look-up of each searches its directory again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  copyhold names drop /mnt/a")]
struct Drop {
    /// The root directory of the subvolume
    directory: PathBuf,
}

fn limit(text: &str) -> Result<NamesLimit, String> {
    match text.split_once('=') {
        Some(("limit", value)) => value.parse(),
        _ => Err(format!("'{text}' is no setting; write limit=2%, limit=1000000 or limit=off")),
    }
}

impl Verb {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        match self.what {
            What::Show(Show { directory }) => {
                let control = tenants::directory(&directory)?;
                let totals: NamesTotals = control.put(&Question::NamesTotals)?;
                let rows: Vec<NamesRow> = control.put_all(|after| Question::Names { after })?;
                let mut shown = json!(totals);
                shown["subvolumes"] = json!(rows);
                report.show(&shown, || text(&totals, &rows))
            }
            What::Set(Set { directory, limit }) => {
                let question = Question::SetNames { limit };
                let totals: NamesTotals = tenants::directory(&directory)?.put(&question)?;
                report.show(&totals, || summary(&totals))
            }
            What::Drop(Drop { directory }) => {
                let control = tenants::subvolume(&directory)?.open()?;
                let dropped: u64 = control.put(&Question::DropNames)?;
                report.show(&json!({ "dropped": dropped }), || format!("{dropped} forgotten\n"))
            }
        }
    }
}

fn summary(totals: &NamesTotals) -> String {
    let NamesTotals { live, limit, setting, bound_by, .. } = totals;
    match bound_by.as_str() {
        "off" => "no limit: the kernel keeps any number\n".to_owned(),
        "budget" => format!(
            "{live} of at most {limit} names, by the daemon's memory (setting: {setting})\n"
        ),
        _ => format!("{live} of at most {limit} names\n"),
    }
}

fn text(totals: &NamesTotals, rows: &[NamesRow]) -> String {
    let events: Vec<String> =
        rows.first().map_or(&totals.events, |row| &row.events).keys().cloned().collect();
    let mut headings = vec!["subvolume".to_owned(), ">live".into(), ">hot".into()];
    headings.extend(events.iter().map(|name| format!(">{name}")));
    let count = |of: &Map<String, Value>, name: &String| {
        of.get(name).and_then(Value::as_u64).unwrap_or(0).to_string()
    };
    let line = |row: &NamesRow| {
        let name = row.path.clone().unwrap_or_else(|| format!("subvolume {}", row.id));
        let mut line = vec![name, row.live.to_string(), row.hot.to_string()];
        line.extend(events.iter().map(|name| count(&row.events, name)));
        line
    };
    let lines: Vec<_> = rows.iter().map(line).collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    format!("{}{}", summary(totals), table(&headings, &lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_key_and_a_value() {
        assert_eq!(limit("limit=2%"), Ok(NamesLimit::Share(20)));
        assert_eq!(limit("limit=0"), Ok(NamesLimit::Off));
        for bad in ["2%", "limit", "limit=", "limit=-1", "size=2%", "limit=11%"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_subvolume() {
        let events = Map::from_iter([("pruned".to_owned(), json!(7))]);
        let row =
            NamesRow { id: 5, path: Some("a".into()), live: 3, events, ..NamesRow::default() };
        let (bound_by, setting) = ("budget".to_owned(), 20);
        let totals = NamesTotals { live: 3, limit: 9, setting, bound_by, ..Default::default() };
        let text = text(&totals, &[row, NamesRow { id: 6, ..NamesRow::default() }]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let limit = "3 of at most 9 names, by the daemon's memory (setting: 20)";
        assert_eq!(lines[0].join(" "), limit);
        assert_eq!(lines[1], ["subvolume", "live", "hot", "pruned"]);
        assert_eq!(lines[2], ["a", "3", "0", "7"]);
        assert_eq!(lines[3], ["subvolume", "6", "0", "0", "0"]);
    }
}
