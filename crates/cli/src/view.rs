//! JSON as text for people: all values of `--json` are shown, so neither form lacks one.
//!
//! Scalars become aligned pairs; an object of objects, or an array of them, becomes a table. Any
//! other object is a section of its own: its name, then its fields in the same way. A number of
//! bytes is a field whose name ends in `bytes`.

use serde_json::{Map, Value};

use crate::report::table;
use crate::size::Size;

/// The text for an object.
pub(crate) fn text(value: &Value) -> String {
    let Value::Object(fields) = value else { return format!("{value}\n") };
    section("", fields)
}

/// The fields of an object. `title`: its name, behind the names of the objects that it is in.
fn section(title: &str, fields: &Map<String, Value>) -> String {
    let scalars = || fields.iter().filter(|(_, value)| is_scalar(value));
    let width = scalars().map(|(name, _)| heading(name).len()).max().unwrap_or_default();
    let mut text = match title {
        "" => String::new(),
        title => format!("{}\n", heading(title)),
    };
    for (name, value) in scalars() {
        text += &format!("{:width$}  {}\n", heading(name), cell(name, value));
    }
    for (name, value) in fields {
        let title = format!("{title} {name}");
        let part = match value {
            Value::Object(rows) if rows.values().all(Value::is_object) => {
                named_rows(title.trim_start(), rows)
            }
            Value::Object(fields) => section(title.trim_start(), fields),
            Value::Array(rows) if !is_scalar(value) => titled(title.trim_start(), rows),
            _ => continue,
        };
        if !text.is_empty() && !part.is_empty() {
            text.push('\n');
        }
        text += &part;
    }
    text
}

fn is_scalar(value: &Value) -> bool {
    match value {
        Value::Object(_) => false,
        Value::Array(items) => !items.iter().any(Value::is_object),
        _ => true,
    }
}

/// Rows without names, under `title` if they are in an object that has one.
fn titled(title: &str, rows: &[Value]) -> String {
    match title.contains(' ') {
        true => format!("{}\n{}", heading(title), rows_text(rows)),
        false => rows_text(rows),
    }
}

/// Rows that have a name, under `title`.
fn named_rows(title: &str, rows: &Map<String, Value>) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|(name, fields)| {
            let mut row = Map::from_iter([(title.to_owned(), name.clone().into())]);
            row.extend(fields.as_object().cloned().unwrap_or_default());
            row.into()
        })
        .collect();
    rows_text(&rows)
}

fn rows_text(rows: &[Value]) -> String {
    let Some(Value::Object(first)) = rows.first() else { return String::new() };
    let headings: Vec<String> = first
        .iter()
        .map(|(name, value)| match value.is_number() {
            true => format!(">{}", heading(name)),
            false => heading(name),
        })
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let cells: Vec<Vec<String>> =
        rows.iter().map(|row| first.keys().map(|name| cell(name, &row[name])).collect()).collect();
    table(&headings, &cells)
}

fn heading(name: &str) -> String {
    name.trim_end_matches("_bytes").replace('_', " ")
}

fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) if name.ends_with("bytes") => {
            number.as_u64().map_or_else(|| number.to_string(), |bytes| Size(bytes).to_string())
        }
        Value::String(text) if text.is_empty() => "-".into(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "-".into(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::Array(items) => {
            items.iter().map(|item| cell(name, item)).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_shows_every_field_of_the_json() {
        let shown = text(&json!({
            "pool": "/srv/pool.img",
            "size_bytes": 10u64 << 30,
            "read_only": null,
            "log_at": [64, 900],
            "counters": { "data": { "writes": 3, "written_bytes": 8192 } },
            "batches": [{ "txg": 7, "state": "good" }],
            "flush": {
                "policy": "even",
                "delta_bytes": [4096, 8192],
                "stock": null,
                "replay": { "edits": 5 },
                "rows": [{ "last_txg": 4, "blocks": 2 }],
            },
        }));
        assert!(shown.contains("size       10.0 GiB\n"), "{shown}");
        assert!(shown.contains("read only  -\n"), "{shown}");
        assert!(shown.contains("log at     64, 900\n"), "{shown}");
        assert!(
            shown.contains("counters  writes  written\ndata           3  8.0 KiB\n"),
            "{shown}"
        );
        assert!(shown.contains("txg  state\n  7  good\n"), "{shown}");
        let flush = "\nflush\npolicy  even\ndelta   4.0 KiB, 8.0 KiB\nstock   -\n";
        assert!(shown.contains(flush), "{shown}");
        assert!(shown.contains("\nflush replay\nedits  5\n"), "{shown}");
        assert!(shown.contains("\nflush rows\nlast txg  blocks\n       4       2\n"), "{shown}");
    }
}
