//! The lines of a runfile on which its sections and options begin.
//!
//! Problem.  The parser joins two sections of one name, keeps the last of two options of one name,
//!           and gives values without their lines.
//! Idea.     The same rules for lines, and nothing of their values: a comment, a section, an
//!           option, or the continuation of an option, indented deeper than its first line.

const COMMENTS: [char; 2] = ['#', ';'];

/// A section, or an option of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) section: &'a str,
    /// `None` for the section itself.
    pub(crate) key: Option<&'a str>,
}

/// Options before the first section are those of `default`.
pub(crate) fn entries<'a>(text: &'a str, default: &'a str) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    let mut section = default;
    let mut option_indent = None;
    for (line, raw) in (1..).zip(text.lines()) {
        let text = raw.trim();
        let indent = raw.len() - raw.trim_start().len();
        if text.is_empty() || text.starts_with(COMMENTS) {
            continue;
        }
        if let Some(name) = text.strip_prefix('[') {
            section = name.rsplit_once(']').map_or(name, |(name, _)| name).trim();
            option_indent = None;
            entries.push(Entry { line, section, key: None });
        } else if option_indent.is_none_or(|option| indent <= option) {
            let key = text.split_once('=').map_or(text, |(key, _)| key.trim());
            option_indent = Some(indent);
            entries.push(Entry { line, section, key: Some(key) });
        }
    }
    entries
}

/// The line of a section, or of its option `key`; 0 if it has none.
pub(crate) fn line(entries: &[Entry<'_>], section: &str, key: Option<&str>) -> usize {
    let is_it = |entry: &&Entry<'_>| (entry.section, entry.key) == (section, key);
    entries.iter().find(is_it).map_or(0, |entry| entry.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_and_comments_are_no_entries() {
        let text = "\
user = a
# tests = ['x']
 [ a:b ] \n\
tests = ['x',

    y = 'z']
  ; no option
user
";
        let entries = entries(text, "D");
        let entry = |line, section, key| Entry { line, section, key };
        let expected = [
            entry(1, "D", Some("user")),
            entry(3, "a:b", None),
            entry(4, "a:b", Some("tests")),
            entry(8, "a:b", Some("user")),
        ];
        assert_eq!(entries, expected);
        assert_eq!(line(&entries, "a:b", None), 3);
        assert_eq!(line(&entries, "a:b", Some("user")), 8);
    }
}
