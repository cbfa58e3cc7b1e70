//! Segments of runs in windows: the form in which deadlists and shares mark blocks.
//!
//! Runs that are dropped or shared overlap in any way. So the marks of blocks are kept in
//! segments, runs whose blocks have equal marks, in a canonical form (`format::item`, R27):
//!
//! SEGMENT-G1  Segments of a window are disjoint and ascend, and none crosses the window.
//! SEGMENT-G2  Neighbours that touch have different marks: there is one way to write a window.
//!
//! A change reads a window, changes part of it, and writes the differences.

use copyhold_format::item::WINDOW_BLOCKS;
use copyhold_types::{BlockAddr, Run};

/// Consecutive blocks of one window that say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<M> {
    pub run: Run,
    pub mark: M,
}

/// The segments of one window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window<M> {
    segments: Vec<Segment<M>>,
}

/// The parts of a run that lie in one window each, in order.
pub fn windows(run: Run) -> impl Iterator<Item = Run> {
    let mut rest = Some(run);
    std::iter::from_fn(move || {
        let run = rest.take()?;
        let window = u64::from(WINDOW_BLOCKS);
        let here = run.blocks.min((window - run.addr.block() % window) as u32);
        if here < run.blocks {
            rest = Some(run.slice(here, run.blocks - here));
        }
        Some(run.slice(0, here))
    })
}

/// The first block of the window that has `addr`.
pub fn window_of(addr: BlockAddr) -> BlockAddr {
    let block = addr.block();
    BlockAddr::new(addr.device(), block - block % u64::from(WINDOW_BLOCKS))
}

impl<M: Copy + Eq> Window<M> {
    /// From segments in order; `None` if they break SEGMENT-G1.
    pub fn new(segments: Vec<Segment<M>>) -> Option<Window<M>> {
        let ascend = segments.windows(2).all(|pair| {
            let [one, next] = [pair[0].run, pair[1].run];
            window_of(one.addr) == window_of(next.addr) && one.end() <= next.addr.block()
        });
        ascend.then_some(Window { segments })
    }

    pub fn segments(&self) -> &[Segment<M>] {
        &self.segments
    }

    /// Changes the marks of the blocks of `run`, which lies in this window. `change` gets each
    /// part of which the same is said so far (`None`: nothing), in order. Returns the window
    /// before the change.
    pub fn update(
        &mut self,
        run: Run,
        mut change: impl FnMut(Run, Option<M>) -> Option<M>,
    ) -> Window<M> {
        let mut out = Vec::with_capacity(self.segments.len() + 2);
        let (from, to) = (run.addr.block(), run.end());
        // Where the next part of `run` begins that was not passed yet.
        let mut at = from;
        let mut tell = |out: &mut Vec<Segment<M>>, start: u64, end: u64, mark| {
            if start < end {
                let run = run.slice((start - from) as u32, (end - start) as u32);
                change(run, mark).into_iter().for_each(|mark| push(out, Segment { run, mark }));
            }
        };
        for &segment in &self.segments {
            let (start, end) = (segment.run.addr.block(), segment.run.end());
            if start >= to {
                tell(&mut out, at, to, None);
                at = to;
            }
            let keep = |out: &mut Vec<Segment<M>>, start: u64, end: u64| {
                if start < end {
                    let skip = (start - segment.run.addr.block()) as u32;
                    let run = segment.run.slice(skip, (end - start) as u32);
                    push(out, Segment { run, mark: segment.mark });
                }
            };
            keep(&mut out, start, end.min(from));
            let (inside, inside_end) = (start.max(from), end.min(to));
            if inside < inside_end {
                tell(&mut out, at, inside, None);
                tell(&mut out, inside, inside_end, Some(segment.mark));
                at = inside_end;
            }
            keep(&mut out, start.max(to), end);
        }
        tell(&mut out, at, to, None);
        Window { segments: std::mem::replace(&mut self.segments, out) }
    }
}

/// Adds a segment behind the others, joined to the last where they agree (SEGMENT-G2).
fn push<M: Copy + Eq>(out: &mut Vec<Segment<M>>, next: Segment<M>) {
    if let Some(last) = out.last_mut()
        && last.mark == next.mark
        && last.run.addr.device() == next.run.addr.device()
        && last.run.end() == next.run.addr.block()
    {
        last.run = Run::new(last.run.addr, last.run.blocks + next.run.blocks);
        return;
    }
    out.push(next);
}

#[cfg(test)]
mod tests {
    use copyhold_types::DeviceId;
    use proptest::prelude::*;

    use super::*;

    fn run(block: u64, blocks: u32) -> Run {
        Run::new(BlockAddr::new(DeviceId(1), block), blocks)
    }

    #[test]
    fn a_run_is_cut_where_windows_meet() {
        let parts: Vec<Run> = windows(run(30, 70)).collect();
        assert_eq!(parts, [run(30, 2), run(32, 32), run(64, 32), run(96, 4)]);
        assert_eq!(window_of(run(63, 1).addr), run(32, 1).addr);
    }

    #[test]
    fn segments_out_of_order_or_across_windows_are_no_window() {
        let segments = |runs: &[Run]| {
            Window::new(runs.iter().map(|&run| Segment { run, mark: 1 }).collect()).is_some()
        };
        assert!(segments(&[run(1, 2), run(5, 1)]));
        assert!(!segments(&[run(1, 5), run(5, 1)]));
        assert!(!segments(&[run(1, 5), run(32, 1)]));
    }

    proptest! {
        #[test]
        fn a_window_is_as_its_blocks_one_by_one(
            steps in proptest::collection::vec((0..32u64, 1..=32u32, 0..3u32), 1..20),
        ) {
            let mut window = Window::new(Vec::new()).unwrap();
            let mut plain = [0; 32];
            for (at, blocks, add) in steps {
                let run = run(64 + at, blocks.min(32 - at as u32));
                let mut told = Vec::new();
                // Adds up to 2 and then begins again with nothing.
                let next = |mark: u32| (mark + add) % 3;
                window.update(run, |part, mark| {
                    told.push(part);
                    Some(next(mark.unwrap_or(0))).filter(|&mark| mark > 0)
                });
                for slot in &mut plain[at as usize..][..run.blocks as usize] {
                    *slot = next(*slot);
                }
                prop_assert_eq!(told.iter().map(|part| part.blocks).sum::<u32>(), run.blocks);
                prop_assert!(told.windows(2).all(|pair| pair[0].end() == pair[1].addr.block()));
                let mut found = [0; 32];
                for Segment { run, mark } in window.segments() {
                    let at = (run.addr.block() - 64) as usize;
                    found[at..at + run.blocks as usize].fill(*mark);
                }
                prop_assert_eq!(found, plain);
                prop_assert!(Window::new(window.segments().to_vec()).is_some(), "SEGMENT-G1");
                let canonical = window.segments().windows(2).all(|pair| {
                    pair[0].run.end() < pair[1].run.addr.block() || pair[0].mark != pair[1].mark
                });
                prop_assert!(canonical, "SEGMENT-G2");
            }
        }
    }
}
