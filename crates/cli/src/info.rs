//! `copyhold info`: what a pool is and how it does.
//!
//! A mounted pool is asked through its daemon, another one is opened read-only. Both answer with
//! the same JSON object, and the text for people is made from that, so nothing is shown in one and
//! not in the other: a number of bytes is a field whose name ends in `_bytes` (or `bytes`), and an
//! object of objects is a table.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::control::Control;
use crate::engine;
use crate::failure::{Failure, Kind};
use crate::mount_table;
use crate::report::{Report, table};
use crate::size::Size;

/// Show what a pool is and how it does
///
/// Of a mounted pool also what its devices did since the mount, by purpose: file data, log, nodes
/// of tables, space maps, labels.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    copyhold info /srv/pool.img\n  \
    copyhold info /mnt --json | jq .counters.log")]
pub(crate) struct Info {
    /// A pool, or a directory where one is mounted
    target: PathBuf,
}

impl Info {
    pub(crate) fn run(self, report: Report) -> Result<(), Failure> {
        let info = self.ask()?;
        report.show(&info, || text(&info))
    }

    fn ask(&self) -> Result<Value, Failure> {
        match mount_table::named(&self.target) {
            Ok(mounts) => {
                let mount = &mounts[0];
                let mut info = Control::open(&mount.mount_point)?.info()?;
                let at: Vec<_> =
                    mounts.iter().map(|mount| mount.mount_point.to_string_lossy()).collect();
                if let Value::Object(fields) = &mut info {
                    fields.insert("mounted_at".into(), at.join(", ").into());
                }
                Ok(info)
            }
            Err(failure) if failure.kind == Kind::NotMounted => {
                if self.target.is_dir() {
                    return Err(failure);
                }
                engine::info(&self.target)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Scalars as aligned pairs, then each object of objects as a table.
fn text(info: &Value) -> String {
    let Value::Object(fields) = info else { return format!("{info}\n") };
    let is_table = |value: &Value| matches!(value, Value::Object(_));
    let width = fields.keys().map(String::len).max().unwrap_or_default();
    let mut text = String::new();
    for (name, value) in fields.iter().filter(|(_, value)| !is_table(value)) {
        text += &format!("{:width$}  {}\n", heading(name), cell(name, value));
    }
    for (name, value) in fields {
        if let Value::Object(rows) = value {
            text += &format!("\n{}", rows_text(name, rows));
        }
    }
    text
}

fn rows_text(name: &str, rows: &Map<String, Value>) -> String {
    let Some(Value::Object(first)) = rows.values().next() else { return String::new() };
    let title = heading(name);
    let numbers: Vec<String> = first.keys().map(|key| format!(">{}", heading(key))).collect();
    let headings: Vec<&str> =
        std::iter::once(title.as_str()).chain(numbers.iter().map(String::as_str)).collect();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|(row, fields)| {
            let cells = first.keys().map(|key| cell(key, &fields[key]));
            std::iter::once(row.clone()).chain(cells).collect()
        })
        .collect();
    table(&headings, &rows)
}

fn heading(name: &str) -> String {
    name.trim_end_matches("_bytes").replace('_', " ")
}

fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) if name.ends_with("bytes") => {
            number.as_u64().map_or_else(|| number.to_string(), |bytes| Size(bytes).to_string())
        }
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_shows_every_field_of_the_json() {
        let info = json!({
            "pool": "/srv/pool.img",
            "size_bytes": 10u64 << 30,
            "read_only": false,
            "counters": { "data": { "writes": 3, "written_bytes": 8192 } },
        });
        let text = text(&info);
        assert!(text.contains("size        10.0 GiB\n"), "{text}");
        assert!(text.contains("read only   no\n"), "{text}");
        assert!(text.contains("counters  writes  written\ndata           3  8.0 KiB\n"), "{text}");
    }
}
