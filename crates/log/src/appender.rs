//! Where the next frame goes.

use std::collections::VecDeque;

/// Uberblocks whose log is kept, so that older ones stay usable when the newest is lost (R6).
pub const UBERBLOCKS_KEPT: usize = 3;

/// The ring has no room for a frame until an uberblock moves the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log ring is full: {wanted} blocks wanted, {free} free")]
pub struct RingFull {
    pub wanted: u64,
    pub free: u64,
}

/// Assigns positions in order.
#[derive(Debug)]
pub struct Appender {
    ring_blocks: u64,
    next: u64,
    /// Heads of the newest uberblocks, oldest first; positions before the first may be reused.
    heads: VecDeque<u64>,
}

impl Appender {
    /// `next`: first position that may be written; `heads`: of the newest uberblocks, the newest
    /// last. Of older ones those count whose log is still there.
    pub fn new(ring_blocks: u64, next: u64, heads: &[u64]) -> Appender {
        let head = *heads.last().expect("there is an uberblock");
        assert!(head <= next && next <= head + ring_blocks, "head {head}, next {next}");
        let older = &heads[heads.len().saturating_sub(UBERBLOCKS_KEPT)..];
        let heads = older.iter().copied().filter(|&at| at <= head && next <= at + ring_blocks);
        Appender { ring_blocks, next, heads: heads.collect() }
    }

    /// A position for a frame of `blocks` blocks, which never crosses the ring's end.
    pub fn place(&mut self, blocks: u64) -> Result<u64, RingFull> {
        let position = self.fitting(blocks);
        if position + blocks > self.limit() {
            return Err(RingFull { wanted: blocks, free: self.free() });
        }
        self.next = position + blocks;
        Ok(position)
    }

    fn fitting(&self, blocks: u64) -> u64 {
        let at = self.next % self.ring_blocks;
        if at + blocks <= self.ring_blocks { self.next } else { self.next - at + self.ring_blocks }
    }

    /// Positions from here on hold frames that a kept uberblock needs.
    pub fn limit(&self) -> u64 {
        self.floor() + self.ring_blocks
    }

    /// An uberblock with this head is durable on every label.
    pub fn uberblock_written(&mut self, head: u64) {
        debug_assert!(self.heads.back().is_none_or(|&last| last <= head));
        self.heads.push_back(head);
        while self.heads.len() > UBERBLOCKS_KEPT {
            self.heads.pop_front();
        }
    }

    /// Releases the log that older uberblocks need. Only for tests that break rule R6 on purpose.
    pub fn reuse_before(&mut self, head: u64) {
        self.heads = VecDeque::from([head]);
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    /// Head of the newest uberblock.
    pub fn head(&self) -> u64 {
        *self.heads.back().expect("there is always a head")
    }

    /// Head of the oldest uberblock that is kept: positions before it may be overwritten.
    pub fn floor(&self) -> u64 {
        *self.heads.front().expect("there is always a head")
    }

    /// Blocks from the newest head to the end of the log: a recovery would read them.
    pub fn live(&self) -> u64 {
        self.next - self.head()
    }

    /// Blocks that frames of at most `frame` blocks surely find a place for: at the end of the ring
    /// one of them may leave nearly its size behind.
    pub fn room(&self, frame: u64) -> u64 {
        let end = (self.next / self.ring_blocks + 1) * self.ring_blocks;
        let skipped = if end < self.limit() { frame.saturating_sub(1) } else { 0 };
        self.free().saturating_sub(skipped)
    }

    /// Blocks until [`RingFull`].
    pub fn free(&self) -> u64 {
        self.limit().saturating_sub(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_crosses_the_end_of_the_ring() {
        let mut log = Appender::new(10, 0, &[0]);
        assert_eq!(log.place(7), Ok(0));
        assert_eq!(log.place(4), Err(RingFull { wanted: 4, free: 3 }));
        (0..3).for_each(|_| log.uberblock_written(7));
        assert_eq!(log.place(4), Ok(10));
    }

    #[test]
    fn frames_find_the_room_that_they_were_promised_wherever_the_ring_ends() {
        for ring in [16, 17, 40] {
            for next in ring..2 * ring {
                for frame in 1..ring / 2 {
                    let mut log = Appender::new(ring, next, &[next - 3]);
                    let mut left = log.room(frame);
                    // The largest first, then the rest.
                    while left > 0 {
                        let blocks = frame.min(left);
                        assert!(log.place(blocks).is_ok(), "{ring}, {next}, {frame}: {left} left");
                        left -= blocks;
                    }
                }
            }
        }
    }

    #[test]
    fn what_the_last_three_uberblocks_need_is_kept() {
        let mut log = Appender::new(10, 0, &[0]);
        assert_eq!(log.place(10), Ok(0));
        for head in [2, 4] {
            log.uberblock_written(head);
            assert!(log.place(1).is_err(), "the first uberblock still needs position 0");
        }
        log.uberblock_written(6);
        assert_eq!((log.free(), log.live()), (2, 4));
        assert_eq!(log.place(2), Ok(10));
    }

    #[test]
    fn what_the_last_three_uberblocks_need_is_kept_after_a_mount() {
        let mut log = Appender::new(10, 11, &[1, 2, 4, 6]);
        assert_eq!((log.head(), log.floor(), log.free()), (6, 2, 1));
        log.uberblock_written(7);
        assert_eq!(log.floor(), 4);
        // The log of the oldest has been overwritten.
        assert_eq!(Appender::new(10, 13, &[2, 4, 6]).floor(), 4);
    }
}
