//! Which blocks are referred to, against which are allocated: three bits a block.
//!
//! REACH-S1  A block is allocated exactly when something refers to it; and then one thing does, or
//!           else all that do are of a kind that may be shared. How often they may is `families`'
//!           business.
//! REACH-S2  Nothing refers to a label or the log.

use std::ops::Range;

use copyhold_format::label::{AREA_BLOCKS, Label};
use copyhold_types::{BlockAddr, DeviceId, Run};

/// One bit a block of a device.
struct Blocks(Vec<u64>);

impl Blocks {
    fn new(blocks: u64) -> Blocks {
        Blocks(vec![0; blocks.div_ceil(64) as usize])
    }

    fn has(&self, block: u64) -> bool {
        self.0[block as usize / 64] & 1 << (block % 64) != 0
    }

    /// Whether it was there already.
    fn insert(&mut self, block: u64) -> bool {
        let had = self.has(block);
        self.0[block as usize / 64] |= 1 << (block % 64);
        had
    }
}

/// How a reference is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Outside(Run, &'static str),
    Dangling(Run),
    Twice(Run),
}

/// The space of one device.
pub(crate) struct Reach {
    device: DeviceId,
    blocks: u64,
    /// Labels and log.
    fixed: [Range<u64>; 4],
    allocated: Blocks,
    reached: Blocks,
    /// Blocks whose reference may be one of many.
    shared: Blocks,
    /// Ranges whose space map is lost, so that nothing is known to be allocated.
    unknown: Vec<Range<u64>>,
}

impl Reach {
    pub(crate) fn new(label: &Label) -> Reach {
        let [start, end] = Label::areas(label.blocks).map(|at| at..at + AREA_BLOCKS);
        let [first, second] = label.log.map(|at| at..at + label.log_blocks);
        Reach {
            device: label.device,
            blocks: label.blocks,
            fixed: [start, first, second, end],
            allocated: Blocks::new(label.blocks),
            reached: Blocks::new(label.blocks),
            shared: Blocks::new(label.blocks),
            unknown: Vec::new(),
        }
    }

    /// Runs that are allocated by a space map and the log.
    pub(crate) fn add_allocated(&mut self, runs: &[Run]) {
        for block in runs.iter().flat_map(|run| run.addr.block()..run.end()) {
            self.allocated.insert(block);
        }
    }

    /// Nothing is known of these blocks.
    pub(crate) fn set_unknown(&mut self, blocks: Range<u64>) {
        self.unknown.push(blocks);
    }

    pub(crate) fn allocated_blocks(&self) -> u64 {
        self.allocated.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether something refers to all of these blocks.
    pub(crate) fn has(&self, run: Run) -> bool {
        let is_inside = run.addr.device() == self.device && run.end() <= self.blocks;
        is_inside && (run.addr.block()..run.end()).all(|block| self.reached.has(block))
    }

    /// Notes a reference that must be the only one.
    pub(crate) fn refer(&mut self, run: Run) -> Vec<Flaw> {
        self.note(run, false)
    }

    /// Notes a reference that others of its kind may be beside.
    pub(crate) fn refer_again(&mut self, run: Run) -> Vec<Flaw> {
        self.note(run, true)
    }

    /// The errors of a reference, as runs that are as long as possible.
    fn note(&mut self, run: Run, may_share: bool) -> Vec<Flaw> {
        if run.addr.device() != self.device || run.end() > self.blocks {
            return vec![Flaw::Outside(run, "it is on no device of the pool")];
        }
        let meets = |fixed: &&Range<u64>| fixed.start < run.end() && run.addr.block() < fixed.end;
        if self.fixed.iter().any(|fixed| meets(&fixed)) {
            return vec![Flaw::Outside(run, "a label or the log is there")];
        }
        let mut flaws = Vec::new();
        for block in run.addr.block()..run.end() {
            let one = Run::new(BlockAddr::new(self.device, block), 1);
            let is_shared =
                if may_share { self.shared.insert(block) } else { self.shared.has(block) };
            if self.reached.insert(block) {
                if !(may_share && is_shared) {
                    push(&mut flaws, Flaw::Twice(one));
                }
            } else if !self.allocated.has(block) && !self.is_unknown(block) {
                push(&mut flaws, Flaw::Dangling(one));
            }
        }
        flaws
    }

    fn is_unknown(&self, block: u64) -> bool {
        self.unknown.iter().any(|range| range.contains(&block))
    }

    /// Runs in a range of blocks that something refers to.
    pub(crate) fn reached_in(&self, blocks: Range<u64>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for block in blocks.filter(|block| self.reached.has(*block)) {
            match runs.last_mut() {
                Some(last) if last.end() == block => last.blocks += 1,
                _ => runs.push(Run::new(BlockAddr::new(self.device, block), 1)),
            }
        }
        runs
    }

    /// Runs that are allocated and not referred to.
    pub(crate) fn leaked(&self) -> impl Iterator<Item = Run> + '_ {
        let leaked = |block: u64| self.allocated.has(block) && !self.reached.has(block);
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < self.blocks && !leaked(at) {
                let word = at as usize / 64;
                let skip = at % 64 == 0 && self.allocated.0[word] & !self.reached.0[word] == 0;
                at += if skip { 64 } else { 1 };
            }
            let first = at;
            while at < self.blocks && at - first < u64::from(u32::MAX) && leaked(at) {
                at += 1;
            }
            let run = |blocks| Run::new(BlockAddr::new(self.device, first), blocks);
            (at > first).then(|| run((at - first) as u32))
        })
    }
}

/// Appends a flaw of one block, or makes the last one longer by it.
fn push(flaws: &mut Vec<Flaw>, flaw: Flaw) {
    match (flaws.last_mut(), flaw) {
        (Some(Flaw::Twice(run)), Flaw::Twice(next))
        | (Some(Flaw::Dangling(run)), Flaw::Dangling(next))
            if run.end() == next.addr.block() =>
        {
            run.blocks += 1;
        }
        _ => flaws.push(flaw),
    }
}

#[cfg(test)]
mod tests {
    use copyhold_format::label::Features;
    use copyhold_types::{PoolId, Timestamp};

    use super::*;

    fn reach(label: &Label, allocated: impl Iterator<Item = Run>) -> Reach {
        let mut reach = Reach::new(label);
        reach.add_allocated(&allocated.collect::<Vec<_>>());
        reach
    }

    fn label() -> Label {
        Label {
            pool: PoolId([1; 16]),
            secret: 1,
            device: DeviceId(0),
            devices: 1,
            generation: 1,
            features: Features::default(),
            namespace: None,
            created: Timestamp::default(),
            blocks: 1000,
            log: [64, 872],
            log_blocks: 64,
            metaslab_blocks: 256,
            node_bytes: 4096,
            partition_leaves: 8,
            name: String::new(),
        }
    }

    fn run(block: u64, blocks: u32) -> Run {
        Run::new(BlockAddr::new(DeviceId(0), block), blocks)
    }

    #[test]
    fn what_is_referred_to_once_and_allocated_is_right() {
        let mut reach = reach(&label(), [run(200, 10), run(300, 5)].into_iter());
        assert_eq!(reach.refer(run(200, 10)), []);
        assert_eq!(reach.leaked().collect::<Vec<_>>(), [run(300, 5)]);
        assert_eq!(reach.refer(run(300, 5)), []);
        assert_eq!(reach.leaked().count(), 0);
        assert_eq!(reach.allocated_blocks(), 15);
    }

    #[test]
    fn flaws_are_told_as_runs() {
        let mut reach = reach(&label(), [run(200, 10)].into_iter());
        assert_eq!(reach.refer(run(202, 3)), []);
        let flaws = [Flaw::Twice(run(202, 3)), Flaw::Dangling(run(210, 2))];
        assert_eq!(reach.refer(run(200, 12)), flaws);
        assert_eq!(reach.refer(run(500, 1)), [Flaw::Dangling(run(500, 1))]);
        reach.set_unknown(600..700);
        assert_eq!(reach.refer(run(650, 1)), []);
    }

    #[test]
    fn what_may_be_shared_is_shared_with_its_kind_only() {
        let mut reach = reach(&label(), [run(200, 10)].into_iter());
        assert_eq!(reach.refer_again(run(200, 6)), []);
        assert_eq!(reach.refer_again(run(204, 4)), []);
        assert!(reach.has(run(200, 8)) && !reach.has(run(200, 9)));
        assert_eq!(reach.refer(run(207, 2)), [Flaw::Twice(run(207, 1))]);
        assert_eq!(reach.refer_again(run(208, 1)), [Flaw::Twice(run(208, 1))]);
    }

    #[test]
    fn labels_and_log_are_no_place_for_data() {
        let mut reach = reach(&label(), std::iter::empty());
        for bad in [run(63, 1), run(100, 40), run(870, 4), run(999, 1), run(990, 50)] {
            assert!(matches!(reach.refer(bad)[..], [Flaw::Outside(..)]), "{bad:?}");
        }
    }
}
