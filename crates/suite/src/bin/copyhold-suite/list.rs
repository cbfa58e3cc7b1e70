//! Lists of a runfile: strings in quotes between brackets, as Python writes them.

/// The strings of `['a', "b"]`, or the reason why the text is no such list.
pub(crate) fn parse(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let mut rest = inner.ok_or_else(|| format!("'{text}' is no list; write ['a', 'b']"))?.trim();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let quote = rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'));
        let quote = quote.ok_or_else(|| format!("a quote is missing before '{rest}'"))?;
        let (item, behind) = rest[1..]
            .split_once(quote)
            .ok_or_else(|| format!("the closing quote of '{rest}' is missing"))?;
        items.push(item.to_owned());
        let behind = behind.trim_start();
        rest = match behind.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if behind.is_empty() => behind,
            None => return Err(format!("a comma is missing before '{behind}'")),
        };
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_python_reads_them() {
        for (text, expected) in [
            ("['a', 'b']", &["a", "b"][..]),
            ("['a',\n\"b c\",]", &["a", "b c"]),
            (" [ ] ", &[]),
            (r#"["it's"]"#, &["it's"]),
        ] {
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        for (text, reason) in [
            ("a", "is no list"),
            ("['a' 'b']", "a comma is missing before ''b''"),
            ("['a]", "closing quote"),
            ("[a]", "a quote is missing before 'a'"),
            ("['a',,]", "a quote is missing"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
