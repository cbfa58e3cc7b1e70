//! References to blocks, counted: lists of runs that are laid over each other.
//!
//! A list is in order and canonical when [`overlay`] has made it: of one kind of reference no two
//! runs overlap. Each run has a count in each of `N` lanes; the caller gives lanes their meaning.

use copyhold_format::item::Content;
use copyhold_types::{BlockAddr, EpochId, Pointer, Run};

/// The common properties of all references to one piece that snapshots share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct What {
    pub(crate) content: Content,
    pub(crate) epoch: EpochId,
    pub(crate) origin: EpochId,
}

/// A run of blocks that are referred to equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ref<const N: usize> {
    pub(crate) what: What,
    /// The first block, with its device.
    at: u64,
    blocks: u32,
    pub(crate) counts: [u32; N],
}

impl<const N: usize> Ref<N> {
    pub(crate) fn new(content: Content, pointer: Pointer, counts: [u32; N]) -> Ref<N> {
        let Pointer { run, epoch, origin } = pointer;
        let what = What { content, epoch, origin };
        Ref { what, at: run.addr.raw(), blocks: run.blocks, counts }
    }

    pub(crate) fn run(&self) -> Run {
        Run::new(BlockAddr::from_raw(self.at), self.blocks)
    }

    /// With other counts.
    pub(crate) fn lanes<const M: usize>(&self, counts: [u32; M]) -> Ref<M> {
        Ref { what: self.what, at: self.at, blocks: self.blocks, counts }
    }

    pub(crate) fn end(&self) -> u64 {
        self.at.saturating_add(self.blocks.into())
    }

    /// Leaves what is from `at` on; whether there is any.
    fn cut(&mut self, at: u64) -> bool {
        let end = self.end();
        (self.at, self.blocks) = (at, end.saturating_sub(at) as u32);
        self.blocks > 0
    }
}

/// Sums up overlapping references, lane by lane.
pub(crate) fn overlay<const N: usize>(mut refs: Vec<Ref<N>>) -> Vec<Ref<N>> {
    refs.sort_by_key(|one| (one.what, one.at));
    let mut out: Vec<Ref<N>> = Vec::with_capacity(refs.len());
    // Those that begin at the same block, and the rests of those that began before.
    let mut open: Vec<Ref<N>> = Vec::new();
    let mut rest = refs.into_iter().peekable();
    loop {
        if open.is_empty() {
            match rest.next() {
                Some(one) => open.push(one),
                None => return out,
            }
        }
        let (what, at) = (open[0].what, open[0].at);
        while let Some(next) = rest.next_if(|next| (next.what, next.at) == (what, at)) {
            open.push(next);
        }
        let mut end = open.iter().map(Ref::end).min().expect("one is open");
        if let Some(next) = rest.peek().filter(|next| next.what == what) {
            end = end.min(next.at);
        }
        let mut counts = [0; N];
        for one in &open {
            for (sum, count) in counts.iter_mut().zip(one.counts) {
                *sum = count.saturating_add(*sum);
            }
        }
        push(&mut out, Ref { what, at, blocks: (end - at) as u32, counts });
        open.retain_mut(|one| one.cut(end));
    }
}

/// Appends, or makes the last one longer.
fn push<const N: usize>(out: &mut Vec<Ref<N>>, next: Ref<N>) {
    if let Some(last) = out.last_mut()
        && (last.what, last.end(), last.counts) == (next.what, next.at, next.counts)
        && let Some(blocks) = last.blocks.checked_add(next.blocks)
    {
        last.blocks = blocks;
        return;
    }
    out.push(next);
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;

    use super::*;

    fn one(at: u64, blocks: u32, epoch: u64, counts: [u32; 2]) -> Ref<2> {
        let run = Run::new(BlockAddr::new(DeviceId(0), at), blocks);
        let (epoch, origin) = (EpochId(epoch), EpochId(1));
        Ref::new(Content::Data, Pointer { run, epoch, origin }, counts)
    }

    #[test]
    fn runs_are_cut_where_another_begins_or_ends() {
        let found = overlay(vec![one(15, 10, 1, [0, 3]), one(10, 10, 1, [1, 0])]);
        let wanted = [one(10, 5, 1, [1, 0]), one(15, 5, 1, [1, 3]), one(20, 5, 1, [0, 3])];
        assert_eq!(found, wanted);
    }

    #[test]
    fn neighbours_that_agree_are_one() {
        let refs = vec![one(10, 5, 1, [1, 0]), one(15, 5, 1, [1, 0]), one(12, 2, 2, [1, 0])];
        assert_eq!(overlay(refs), [one(10, 10, 1, [1, 0]), one(12, 2, 2, [1, 0])]);
    }

    #[test]
    fn what_contains_another_goes_on_behind_it() {
        let found = overlay(vec![one(10, 10, 1, [1, 0]), one(12, 2, 1, [1, 0])]);
        let wanted = [one(10, 2, 1, [1, 0]), one(12, 2, 1, [2, 0]), one(14, 6, 1, [1, 0])];
        assert_eq!(found, wanted);
        assert_eq!(overlay(found), wanted);
    }
}
