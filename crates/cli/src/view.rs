//! JSON as text for people: all values of `--json` are shown, so neither form lacks one.
//!
//! Scalars become aligned pairs; an object of objects, or an array of them, becomes a table. A
//! number of bytes is a field whose name ends in `bytes`.

use serde_json::{Map, Value};

use crate::report::table;
use crate::size::Size;

/// The text for an object.
pub(crate) fn text(value: &Value) -> String {
    let Value::Object(fields) = value else { return format!("{value}\n") };
    let is_scalar = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => !items.iter().any(Value::is_object),
        _ => true,
    };
    let scalars = || fields.iter().filter(|(_, value)| is_scalar(value));
    let width = scalars().map(|(name, _)| heading(name).len()).max().unwrap_or_default();
    let mut text = String::new();
    for (name, value) in scalars() {
        text += &format!("{:width$}  {}\n", heading(name), cell(name, value));
    }
    for (name, value) in fields {
        let rows = match value {
            Value::Object(rows) => named_rows(name, rows),
            Value::Array(rows) => rows_text(rows),
            _ => continue,
        };
        if !text.is_empty() && !rows.is_empty() {
            text.push('\n');
        }
        text += &rows;
    }
    text
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
        }));
        assert!(shown.contains("size       10.0 GiB\n"), "{shown}");
        assert!(shown.contains("read only  -\n"), "{shown}");
        assert!(shown.contains("log at     64, 900\n"), "{shown}");
        assert!(
            shown.contains("counters  writes  written\ndata           3  8.0 KiB\n"),
            "{shown}"
        );
        assert!(shown.contains("txg  state\n  7  good\n"), "{shown}");
    }
}
