//! A list to which more may be appended while other threads look at it: of a pool's metaslabs.
//!
//! Problem.  Each allocation and free names a metaslab by its number, so a lock around the list
//!           would be taken for each. But a pool that grows needs a longer list.
//! Idea.     A growth hangs a further list behind the last one, once, without a lock. Numbers and
//!           references stay valid. A look-up costs one comparison, and one more for each growth
//!           since the pool was opened that lies before the metaslab.

use std::ops::Index;
use std::sync::OnceLock;

/// See the module.
#[derive(Debug)]
pub(crate) struct AppendList<T> {
    own: Vec<T>,
    more: OnceLock<Box<AppendList<T>>>,
}

impl<T> AppendList<T> {
    pub(crate) fn new(own: Vec<T>) -> AppendList<T> {
        AppendList { own, more: OnceLock::new() }
    }

    fn lists(&self) -> impl Iterator<Item = &AppendList<T>> {
        std::iter::successors(Some(self), |list| list.more.get().map(Box::as_ref))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.lists().flat_map(|list| &list.own)
    }

    /// Appends items. One caller at a time. Without items no list is added, which each look-up
    /// would pass.
    pub(crate) fn append(&self, more: Vec<T>) {
        if more.is_empty() {
            return;
        }
        let last = self.lists().last().expect("the list itself is the first");
        let appended = last.more.set(Box::new(AppendList::new(more)));
        assert!(appended.is_ok(), "one growth at a time");
    }
}

impl<T> Index<usize> for AppendList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        let (mut list, mut at) = (self, index);
        while at >= list.own.len() {
            at -= list.own.len();
            list = list.more.get().expect("an item of the list");
        }
        &list.own[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_appended_list_is_found_and_an_empty_one_is_not_added() {
        let list = AppendList::new(vec![0, 1]);
        for more in [vec![], vec![2, 3], vec![], vec![4]] {
            list.append(more);
        }
        assert!(list.iter().copied().eq(0..5) && (0..5).all(|at| list[at] == at));
        assert_eq!(list.lists().count(), 3);
    }
}
