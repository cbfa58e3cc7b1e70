//! A list that keeps a group of equal values once.
//!
//! The chunks of an empty metaslab of 16 GiB are 16,384 equal values of 16 bytes.
//!
//! GROUPED-G1  A group of equal values is kept once; any other has a list of its values.

const GROUP: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Group<T> {
    Same(T),
    Each(Box<[T]>),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Grouped<T> {
    groups: Vec<Group<T>>,
    len: usize,
    /// Values in lists of their own.
    listed: usize,
}

impl<T: Copy + PartialEq> Grouped<T> {
    pub(crate) fn from_fn(len: usize, mut value: impl FnMut(usize) -> T) -> Grouped<T> {
        let mut listed = 0;
        let group = |first: usize| {
            let values: Vec<T> = (first..len.min(first + GROUP)).map(&mut value).collect();
            if values.iter().all(|value| *value == values[0]) {
                return Group::Same(values[0]);
            }
            listed += values.len();
            Group::Each(values.into())
        };
        let groups = (0..len).step_by(GROUP).map(group).collect();
        Grouped { groups, len, listed }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The memory of its parts.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.groups[..]) + self.listed * size_of::<T>()
    }

    /// The value of [`Self::bytes`] for so many values, of which so many are in lists.
    pub(crate) fn bytes_with(len: usize, listed: usize) -> usize {
        len.div_ceil(GROUP) * size_of::<Group<T>>() + listed * size_of::<T>()
    }

    pub(crate) fn get(&self, at: usize) -> T {
        match &self.groups[at / GROUP] {
            Group::Same(value) => *value,
            Group::Each(values) => values[at % GROUP],
        }
    }

    pub(crate) fn set(&mut self, at: usize, value: T) {
        let first = at / GROUP * GROUP;
        let count = (self.len - first).min(GROUP);
        let group = &mut self.groups[at / GROUP];
        match group {
            Group::Same(same) if *same == value || count == 1 => *same = value,
            Group::Same(same) => {
                let mut values = vec![*same; count];
                values[at - first] = value;
                self.listed += count;
                *group = Group::Each(values.into());
            }
            Group::Each(values) => {
                values[at - first] = value;
                // Nearly always the first look says no.
                if values.iter().all(|other| *other == value) {
                    self.listed -= count;
                    *group = Group::Same(value);
                }
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len).map(|at| self.get(at))
    }

    /// The first place in `range` where `wanted` is true.
    pub(crate) fn find(
        &self,
        range: std::ops::Range<usize>,
        wanted: impl Fn(&T) -> bool,
    ) -> Option<usize> {
        let mut at = range.start;
        while at < range.end {
            match &self.groups[at / GROUP] {
                Group::Same(value) if wanted(value) => return Some(at),
                Group::Each(values) if wanted(&values[at % GROUP]) => return Some(at),
                Group::Same(_) => at = (at / GROUP + 1) * GROUP,
                Group::Each(_) => at += 1,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_behaves_as_a_list(
            len in 1usize..200,
            steps in prop::collection::vec((0usize..200, 0u8..3), 0..80),
            from in 0usize..200,
        ) {
            let mut list = Grouped::from_fn(len, |at| (at > 100) as u8);
            let mut model: Vec<u8> = (0..len).map(|at| (at > 100) as u8).collect();
            for (at, value) in steps {
                list.set(at % len, value);
                model[at % len] = value;
                prop_assert_eq!(list.iter().collect::<Vec<_>>(), &model[..]);
            }
            let from = from % len;
            let wanted = (from..len).find(|&at| model[at] == 1);
            prop_assert_eq!(list.find(from..len, |value| *value == 1), wanted);
            let again = Grouped::from_fn(len, |at| model[at]);
            prop_assert_eq!(again.groups, list.groups, "GROUPED-G1");
            prop_assert_eq!(again.listed, list.listed);
        }
    }
}
