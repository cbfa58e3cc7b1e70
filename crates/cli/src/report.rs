//! The output of a verb that succeeds: text for people, JSON for programs, never both.
//!
//! A reader that goes away (`copyhold debug nodes POOL | head`) is no failure.

use std::io::{self, ErrorKind, Write};

use crate::failure::Failure;

/// Where results go, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) json: bool,
}

impl Report {
    /// Prints `value` as one line of JSON, or `text()`.
    pub(crate) fn show(
        self,
        value: &impl serde::Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let shown = match self.json {
            true => serde_json::to_string(value).expect("reports have string keys") + "\n",
            false => text(),
        };
        print(&shown)
    }

    /// A verb's remark on its work, for people only: `--json` prints nothing but data.
    pub(crate) fn note(self, text: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { Ok(()) } else { print(&(text() + "\n")) }
    }
}

pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::system("standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Rows under headings, columns as wide as they need; numbers (`>` before the heading) to the
/// right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<String> =
        headings.iter().map(|name| name.trim_start_matches('>').into()).collect();
    let width = |column: usize| {
        std::iter::once(&names)
            .chain(rows)
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(&names).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            match headings[column].starts_with('>') {
                true => line += &format!("{cell:>width$}  "),
                false => line += &format!("{cell:<width$}  "),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["data".into(), "12".into()], vec!["log".into(), "1024".into()]];
        assert_eq!(
            table(&["purpose", ">writes"], &rows),
            "purpose  writes\ndata         12\nlog        1024\n"
        );
    }
}
