//! The possible contents of each file, now and after a crash.
//!
//! A file is the list of its contents, from the last durable one. A failed operation may have been
//! done, or not; so several contents may be possible now. Data that is not durable may be lost,
//! block by block: a block may have any content since then.

use std::collections::BTreeMap;

use copyhold_types::BLOCK_BYTES;

/// `None`: there is no such file.
pub(super) type Content = Option<Vec<u8>>;

#[derive(Clone, Debug)]
pub(super) struct Versions {
    all: Vec<Content>,
    /// From here on it can be now.
    now: usize,
    /// From here on it can be after a crash.
    durable: usize,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions { all: vec![None], now: 0, durable: 0 }
    }
}

impl Versions {
    pub(super) fn now(&self) -> &[Content] {
        &self.all[self.now..]
    }

    pub(super) fn after_crash(&self) -> &[Content] {
        &self.all[self.durable..]
    }

    pub(super) fn is_durable(&self) -> bool {
        self.durable + 1 == self.all.len()
    }

    /// It was changed in this way, or, if not `done`, perhaps.
    fn change(&mut self, done: bool, change: impl Fn(&Content) -> Content) {
        let changed: Vec<Content> = self.now().iter().map(change).collect();
        if done {
            self.now = self.all.len();
        }
        self.all.extend(changed);
    }

    fn is_synced(&mut self) {
        self.durable = self.now;
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) files: BTreeMap<String, Versions>,
}

impl Model {
    pub(super) fn change(&mut self, path: &str, done: bool, change: impl Fn(&Content) -> Content) {
        self.files.entry(path.to_owned()).or_default().change(done, change);
    }

    /// `to` becomes what `from` is.
    pub(super) fn copy(&mut self, from: &str, to: &str, done: bool) {
        let now = self.files.get(from).map_or(vec![None], |of| of.now().to_vec());
        let to = self.files.entry(to.to_owned()).or_default();
        if done {
            to.now = to.all.len();
        }
        to.all.extend(now);
    }

    /// An fsync of the file has succeeded.
    pub(super) fn is_synced(&mut self, path: &str) {
        self.files.entry(path.to_owned()).or_default().is_synced();
    }

    pub(super) fn all_is_synced(&mut self) {
        self.files.values_mut().for_each(Versions::is_synced);
    }
}

/// Whether a file can be what was found.
pub(super) fn may_be(found: &Content, allowed: &[Content]) -> bool {
    let Some(found) = found else { return allowed.contains(&None) };
    let allowed: Vec<&Vec<u8>> = allowed.iter().flatten().collect();
    let sizes = allowed.iter().map(|content| content.len());
    let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max()) else { return false };
    let block_of = |content: &[u8], at: usize, len: usize| {
        let mut block: Vec<u8> = content.iter().skip(at).take(len).copied().collect();
        block.resize(len, 0);
        block
    };
    let blocks = found.chunks(BLOCK_BYTES).enumerate();
    (least..=most).contains(&found.len())
        && blocks.into_iter().all(|(n, block)| {
            let was = |content: &&Vec<u8>| block_of(content, n * BLOCK_BYTES, block.len()) == block;
            // Where a file only grew as far as it is logged, there are zeros.
            allowed.iter().any(was)
        })
}

pub(super) fn written(content: &Content, at: usize, data: &[u8]) -> Content {
    let mut content = content.clone()?;
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
    Some(content)
}

pub(super) fn cut(content: &Content, len: usize) -> Content {
    let mut content = content.clone()?;
    content.resize(len, 0);
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(byte: u8, blocks: usize) -> Content {
        Some(vec![byte; blocks * BLOCK_BYTES])
    }

    #[test]
    fn what_failed_may_have_been_done_and_what_was_synced_stays() {
        let mut model = Model::default();
        model.change("a", true, |_| file(1, 1));
        model.is_synced("a");
        model.change("a", false, |of| written(of, 0, &[2; BLOCK_BYTES]));
        model.change("a", true, |of| written(of, BLOCK_BYTES, &[3; BLOCK_BYTES]));
        let of = &model.files["a"];
        assert_eq!(of.now().len(), 2);
        assert!(!may_be(&file(1, 1), of.now()) && may_be(&file(1, 1), of.after_crash()));
        assert!(!may_be(&None, of.after_crash()));
        let mixed = written(&file(2, 1), BLOCK_BYTES, &[3; BLOCK_BYTES]);
        assert!(may_be(&mixed, of.now()) && !may_be(&file(3, 1), of.after_crash()));
    }
}
