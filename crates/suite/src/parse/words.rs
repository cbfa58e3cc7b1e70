//! The words of a line, and the things that words stand for.

use std::path::{Component, Path, PathBuf};

use crate::amount;
use crate::scenario::{GroupId, GroupName};

pub(super) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) fn new(content: &'a str) -> Words<'a> {
        Words { rest: content.trim() }
    }

    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.rest.split_whitespace().next()
    }

    /// The next word; `what` it is, in case there is none.
    pub(super) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        let word = self.peek().ok_or_else(|| format!("{what} is missing"))?;
        self.rest = self.rest[word.len()..].trim_start();
        Ok(word)
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        if is_next {
            self.rest = self.rest[word.len()..].trim_start();
        }
        is_next
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.peek() {
            None => Ok(()),
            Some(word) => Err(format!("'{word}' is not understood here")),
        }
    }

    pub(super) fn path(&mut self, what: &str) -> Result<PathBuf, String> {
        path(self.next(what)?)
    }

    pub(super) fn amount(&mut self, what: &str) -> Result<u64, String> {
        amount::parse(self.next(what)?)
    }

    pub(super) fn group(&mut self) -> Result<GroupName, String> {
        group(self.next("a group (1/100, or the path of a subvolume)")?)
    }

    /// All that is left, as groups.
    pub(super) fn groups(&mut self) -> Result<Vec<GroupName>, String> {
        let mut groups = Vec::new();
        while let Some(word) = self.peek() {
            self.take(word);
            groups.push(group(word)?);
        }
        Ok(groups)
    }
}

fn group(word: &str) -> Result<GroupName, String> {
    match GroupId::parse(word) {
        Some(id) => Ok(GroupName::Id(id)),
        None => Ok(GroupName::Subvolume(path(word)?)),
    }
}

/// PARSE-S3.
fn path(word: &str) -> Result<PathBuf, String> {
    let path = Path::new(word);
    match path.components().all(|part| matches!(part, Component::Normal(_))) {
        true => Ok(path.to_owned()),
        false => Err(format!("PARSE-S3: '{word}' is no path in the mount; write for example a/f")),
    }
}
