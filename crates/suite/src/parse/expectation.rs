//! One expectation.

use super::words::Words;
use crate::amount::Range;
use crate::errno::Errno;
use crate::scenario::{Expectation, GroupName, State};

pub(super) fn read(words: &mut Words<'_>) -> Result<Expectation, String> {
    let expectation = match words.next("what is expected")? {
        "errno" => Expectation::Errno(alternatives(words, "an errno", errno)?),
        "accepted" => Expectation::Accepted(range(words)?),
        "usage" => usage(words)?,
        "state" => Expectation::State {
            group: words.group()?,
            states: alternatives(words, "a state", state)?,
        },
        "rows" => Expectation::Rows(groups_or_none(words)?),
        "parents" => {
            Expectation::Parents { group: words.group()?, parents: groups_or_none(words)? }
        }
        "limit" => {
            let group = words.group()?;
            let limit = if words.take("none") { None } else { Some(range(words)?) };
            Expectation::Limit { group, limit }
        }
        other => {
            return Err(format!(
                "'{other}' cannot be expected; it is errno, accepted, usage, state, rows, parents \
                 or limit"
            ));
        }
    };
    Ok(expectation)
}

fn usage(words: &mut Words<'_>) -> Result<Expectation, String> {
    let group = words.group()?;
    let (mut data, mut metadata, mut total) = (None, None, None);
    let is_bare = !words.peek().is_some_and(|word| ["data", "metadata", "total"].contains(&word));
    if is_bare {
        data = Some(range(words)?);
    }
    while let Some(word) = words.peek() {
        words.take(word);
        let place = match word {
            "data" => &mut data,
            "metadata" => &mut metadata,
            "total" => &mut total,
            other => return Err(format!("'{other}': usage is of data, metadata or total")),
        };
        if place.replace(range(words)?).is_some() {
            return Err(format!("'{word}' is said twice"));
        }
    }
    Ok(Expectation::Usage { group, data, metadata, total })
}

fn range(words: &mut Words<'_>) -> Result<Range, String> {
    Range::parse(words.next("an amount")?)
}

/// `A or B or C`.
fn alternatives<T>(
    words: &mut Words<'_>,
    what: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut found = vec![parse(words.next(what)?)?];
    while words.take("or") {
        found.push(parse(words.next(what)?)?);
    }
    Ok(found)
}

fn errno(word: &str) -> Result<Option<Errno>, String> {
    match word {
        "none" => Ok(None),
        name => {
            let errno = Errno::named(name);
            errno.map(Some).ok_or_else(|| format!("'{name}' is no errno that is known here"))
        }
    }
}

fn state(word: &str) -> Result<State, String> {
    State::named(word)
        .ok_or_else(|| format!("'{word}' is no state; it is live, tombstone, stale or absent"))
}

fn groups_or_none(words: &mut Words<'_>) -> Result<Vec<GroupName>, String> {
    if words.take("none") {
        return Ok(Vec::new());
    }
    let groups = words.groups()?;
    if groups.is_empty() { Err("groups are missing; or write 'none'".into()) } else { Ok(groups) }
}
