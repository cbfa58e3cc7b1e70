//! The states that a crash at one moment can leave.
//!
//! With up to [`ALL_SUBSETS_MAX`] writes that are not durable: every subset of them. With more:
//! none, all, each beginning of their order, and each of them missing. And each of them torn: its
//! first half there, behind all that came before it, and its second half, among all others.

use std::fmt;

use copyhold_device::sim::SimImage;
use copyhold_types::BLOCK_BYTES;

use super::tape::{Change, Content, Moment, Overlay};

const ALL_SUBSETS_MAX: usize = 6;
const SECTOR_BYTES: usize = copyhold_device::sim::SECTOR_BYTES;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

/// The part of a write that a crash keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    Nothing,
    All,
    FirstHalf,
    SecondHalf,
}

/// The part of each non-durable write that a crash keeps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Choice(Vec<Kept>);

impl Choice {
    fn by(count: usize, kept: impl Fn(usize) -> bool) -> Choice {
        let of = |nth| if kept(nth) { Kept::All } else { Kept::Nothing };
        Choice((0..count).map(of).collect())
    }

    fn with(mut self, nth: usize, kept: Kept) -> Choice {
        self.0[nth] = kept;
        self
    }
}

/// Every choice among so many writes, in an order that begins with nothing.
pub(super) fn choices(count: usize) -> Vec<Choice> {
    let mut all = Vec::new();
    if count <= ALL_SUBSETS_MAX {
        all.extend((0..1_usize << count).map(|set| Choice::by(count, |nth| set >> nth & 1 == 1)));
    } else {
        all.extend((0..=count).map(|prefix| Choice::by(count, |nth| nth < prefix)));
        all.extend((0..count).map(|one| Choice::by(count, |nth| nth != one)));
    }
    for torn in 0..count {
        all.push(Choice::by(count, |nth| nth < torn).with(torn, Kept::FirstHalf));
        all.push(Choice::by(count, |_| true).with(torn, Kept::SecondHalf));
    }
    all
}

impl Moment {
    /// The disk after a crash that keeps these parts.
    pub(super) fn crash(&self, beginning: &SimImage, choice: &Choice) -> Overlay {
        let mut found = self.durable.clone();
        for (change, kept) in self.loose.iter().zip(&choice.0) {
            let sectors = change.len() * SECTORS;
            let there = match kept {
                Kept::Nothing => 0..0,
                Kept::All => 0..sectors,
                Kept::FirstHalf => 0..sectors / 2,
                Kept::SecondHalf => sectors / 2..sectors,
            };
            land(&mut found, beginning, change, there);
        }
        found
    }
}

/// Puts these sectors of a change.
fn land(found: &mut Overlay, beginning: &SimImage, change: &Change, there: std::ops::Range<usize>) {
    for (nth, (block, content)) in change.iter().enumerate() {
        let first = nth * SECTORS;
        let (from, to) = (there.start.max(first), there.end.min(first + SECTORS));
        if (from, to) == (first, first + SECTORS) {
            found.put(*block, content.clone());
        } else if from < to {
            let under = found.get(*block).map(Content::read);
            let mut bytes = under.unwrap_or_else(|| beginning.read_block(*block));
            let torn = (from - first) * SECTOR_BYTES..(to - first) * SECTOR_BYTES;
            bytes[torn.clone()].copy_from_slice(&content.read()[torn]);
            found.put(*block, Content::of(Some(bytes.into())));
        }
    }
}

impl fmt::Display for Choice {
    /// A sign for each write, in their order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = |kept: &Kept| match kept {
            Kept::Nothing => '-',
            Kept::All => '+',
            Kept::FirstHalf => '<',
            Kept::SecondHalf => '>',
        };
        let signs: String = self.0.iter().map(sign).collect();
        write!(f, "[{signs}]")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn few_writes_are_kept_in_every_combination() {
        for count in 0..=ALL_SUBSETS_MAX {
            let all: BTreeSet<Choice> = choices(count).into_iter().collect();
            let whole = |choice: &&Choice| {
                choice.0.iter().all(|kept| matches!(kept, Kept::Nothing | Kept::All))
            };
            assert_eq!(all.iter().filter(whole).count(), 1 << count);
        }
    }

    #[test]
    fn of_many_writes_each_is_missing_once_last_once_and_torn_twice() {
        let count = 10;
        let all: BTreeSet<String> = choices(count).iter().map(Choice::to_string).collect();
        for expected in [
            "[----------]",
            "[++++++++++]",
            "[++++------]",
            "[++++-+++++]",
            "[++++<-----]",
            "[++++>+++++]",
        ] {
            assert!(all.contains(expected), "{expected}");
        }
    }
}
