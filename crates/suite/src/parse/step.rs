//! One step.

use super::words::Words;
use crate::amount;
use crate::scenario::{GroupName, How, Span, Step};

/// Calls are of this size unless `by` says otherwise.
const CHUNK_DEFAULT: u64 = 1 << 20;

pub(super) fn read(first: &str, words: &mut Words<'_>) -> Result<Step, String> {
    let step = match first {
        "create" => {
            Step::Create { path: words.path("the subvolume's path")?, groups: in_groups(words)? }
        }
        "snapshot" => Step::Snapshot {
            readonly: words.take("-r"),
            source: words.path("the source")?,
            path: words.path("the snapshot's path")?,
            groups: in_groups(words)?,
        },
        "delete" => {
            let path = words.path("the subvolume's path")?;
            let heir = if words.take("heir") { Some(words.path("the heir's path")?) } else { None };
            Step::Delete { path, heir }
        }
        "rollback" => {
            let path = words.path("the subvolume's path")?;
            let snapshot = words.path("the snapshot's path")?;
            let keep =
                if words.take("keep") { Some(words.path("the old state's path")?) } else { None };
            Step::Rollback { path, snapshot, keep }
        }
        "write" => {
            let path = words.path("the file")?;
            let bytes = words.amount("how much to write")?;
            let (span, how) = span_and_how(Some(bytes), words)?;
            Step::Write { path, span, how }
        }
        "overwrite" => {
            let path = words.path("the file")?;
            let bytes = leading_amount(words)?;
            let (span, how) = span_and_how(bytes, words)?;
            Step::Overwrite { path, span, how }
        }
        "fallocate" => {
            let path = words.path("the file")?;
            let bytes = words.amount("how much to allocate")?;
            let chunk = Some(bytes).filter(|_| !words.rest().contains("by "));
            let mut span = plain_span(Some(bytes), words)?;
            span.chunk = chunk.unwrap_or(span.chunk);
            Step::Fallocate { path, span }
        }
        "punch" => {
            let path = words.path("the file")?;
            let bytes = words.amount("the size of the hole")?;
            Step::Punch { path, span: plain_span(Some(bytes), words)? }
        }
        "truncate" => {
            Step::Truncate { path: words.path("the file")?, bytes: words.amount("size")? }
        }
        "unlink" => Step::Unlink { path: words.path("the file")? },
        "files" => {
            let directory = words.path("the directory")?;
            let count = words.amount("how many files")?;
            let bytes = if words.take("of") { words.amount("their size")? } else { 0 };
            Step::Files { directory, count, bytes }
        }
        "clear" => Step::Clear { directory: words.path("the directory")? },
        "mkdir" => Step::Mkdir { path: words.path("the directory")? },
        "symlink" => Step::Symlink { path: words.path("the link")? },
        "link" => Step::Link { source: words.path("the file")?, path: words.path("the new name")? },
        "rename" => {
            Step::Rename { source: words.path("the old name")?, path: words.path("the new name")? }
        }
        "chmod" => {
            let digits = words.next("the mode")?;
            let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777);
            let mode =
                mode.ok_or_else(|| format!("'{digits}' is no mode; write for example 600"))?;
            Step::Chmod { mode, path: words.path("the file")? }
        }
        "setxattr" => {
            Step::Setxattr { path: words.path("the file")?, bytes: words.amount("its size")? }
        }
        "reflink" => {
            Step::Reflink { source: words.path("the source")?, path: words.path("the target")? }
        }
        "dedupe" => {
            Step::Dedupe { source: words.path("the source")?, path: words.path("the target")? }
        }
        "defragment" => Step::Defragment { path: words.path("the file")? },
        "open" => Step::Open { path: words.path("the file")? },
        "close" => Step::Close { path: words.path("the file")? },
        "enable" => Step::Enable,
        "disable" => Step::Disable,
        "rescan" => Step::Rescan,
        "limit" => Step::Limit { group: words.group()?, bytes: limit(words)? },
        "qgroup" => group_step(words)?,
        "sync" => Step::Sync,
        "remount" => Step::Remount,
        other => return Err(format!("'{other}' is no step; docs/scenarios.md lists them")),
    };
    Ok(step)
}

fn group_step(words: &mut Words<'_>) -> Result<Step, String> {
    let step = match words.next("create, destroy, assign or remove")? {
        "create" => Step::GroupCreate { group: words.group()? },
        "destroy" => Step::GroupDestroy { group: words.group()? },
        "assign" => Step::GroupAssign { member: words.group()?, group: words.group()? },
        "remove" => Step::GroupRemove { member: words.group()?, group: words.group()? },
        other => return Err(format!("'qgroup {other}': it is create, destroy, assign or remove")),
    };
    Ok(step)
}

fn limit(words: &mut Words<'_>) -> Result<Option<u64>, String> {
    if words.take("none") { Ok(None) } else { words.amount("the limit").map(Some) }
}

fn in_groups(words: &mut Words<'_>) -> Result<Vec<GroupName>, String> {
    if !words.take("in") {
        return Ok(Vec::new());
    }
    let groups = words.groups()?;
    if groups.is_empty() { Err("behind 'in' belong groups".into()) } else { Ok(groups) }
}

fn leading_amount(words: &mut Words<'_>) -> Result<Option<u64>, String> {
    let is_amount = words.peek().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    if is_amount { words.amount("how much").map(Some) } else { Ok(None) }
}

fn plain_span(bytes: Option<u64>, words: &mut Words<'_>) -> Result<Span, String> {
    let (span, how) = span_and_how(bytes, words)?;
    if how == How::default() { Ok(span) } else { Err("that is for writing only".into()) }
}

fn span_and_how(bytes: Option<u64>, words: &mut Words<'_>) -> Result<(Span, How), String> {
    let mut span = Span { at: 0, bytes, chunk: CHUNK_DEFAULT };
    let mut how = How::default();
    while let Some(word) = words.peek() {
        words.take(word);
        match word {
            "at" => span.at = words.amount("where")?,
            "by" => span.chunk = words.amount("the size of each call")?,
            "direct" => how.direct = true,
            "fsync" => how.fsync = true,
            "zeros" => how.zeros = true,
            "same" => how.same = true,
            other => return Err(format!("'{other}' is not understood here")),
        }
    }
    let aligned = [span.at, span.chunk, span.bytes.unwrap_or(0)].map(|it| it.is_multiple_of(4096));
    if how.direct && aligned.contains(&false) {
        return Err("direct writing is in multiples of 4K".into());
    }
    match span.chunk {
        0 => Err(format!("calls of {} bytes never end", amount::show(0))),
        _ => Ok((span, how)),
    }
}
