//! Faults of a simulated device: armed for an exact request, or at a rate.

use std::collections::BTreeMap;

use copyhold_types::Purpose;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::RngCore;

/// A request to come: the `nth` (from 0) of those that match, counted from when it is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A read can only fail.
    Read {
        nth: u64,
    },
    Write {
        nth: u64,
        /// Only writes with this purpose, if given.
        why: Option<Purpose>,
    },
    Flush {
        nth: u64,
    },
    Discard {
        nth: u64,
    },
}

/// The fault of the request that a [`Trigger`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails while it is in flight; part of it may be found afterwards.
    PowerOff,
    /// It fails with this errno. Of a write any part may have been written; a failed flush loses
    /// part of its writes, and the next one succeeds (the trap of rule R12).
    Error(i32),
    /// It is acknowledged but does nothing.
    Lose,
    /// A write lands on another block, whose content it destroys; its own place stays as it was.
    Misdirect { to: u64 },
}

/// Faults per million requests of each kind; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    pub read_error: u32,
    pub write_error: u32,
    pub flush_error: u32,
    pub lost_write: u32,
    pub misdirected_write: u32,
    /// A bit flips in a block that is being read, and stays so.
    pub bit_rot: u32,
}

impl FaultRates {
    pub(super) fn hits(rate: u32, rng: &mut Xoshiro256PlusPlus) -> bool {
        rate > 0 && rng.next_u64() % 1_000_000 < u64::from(rate)
    }
}

/// How often a read error shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    Once,
    /// Until the block is written.
    UntilWritten,
    Forever,
}

/// Armed triggers and bad blocks.
#[derive(Debug, Default)]
pub(super) struct Armed {
    triggers: Vec<(Trigger, Fault)>,
    /// Of these each request that matches is hit from the first that was on.
    for_good: Vec<(Trigger, Fault)>,
    bad_blocks: BTreeMap<u64, (i32, Lasting)>,
}

/// Which kind of request is being matched.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read,
    Write(Purpose),
    Flush,
    Discard,
}

impl Trigger {
    /// The countdown, if a request of this kind matches.
    fn countdown(&mut self, kind: Kind) -> Option<&mut u64> {
        match (self, kind) {
            (Trigger::Read { nth }, Kind::Read) => Some(nth),
            (Trigger::Write { nth, why }, Kind::Write(of)) => {
                why.is_none_or(|why| why == of).then_some(nth)
            }
            (Trigger::Flush { nth }, Kind::Flush) => Some(nth),
            (Trigger::Discard { nth }, Kind::Discard) => Some(nth),
            _ => None,
        }
    }
}

impl Armed {
    pub(super) fn arm(&mut self, trigger: Trigger, fault: Fault) {
        self.triggers.push((trigger, fault));
    }

    pub(super) fn arm_for_good(&mut self, trigger: Trigger, fault: Fault) {
        self.for_good.push((trigger, fault));
    }

    pub(super) fn disarm(&mut self) {
        self.triggers.clear();
        self.for_good.clear();
    }

    /// Counts a request; the fault that it trips, if any.
    pub(super) fn trip(&mut self, kind: Kind) -> Option<Fault> {
        let mut tripped = None;
        self.triggers.retain_mut(|(trigger, fault)| match trigger.countdown(kind) {
            Some(0) if tripped.is_none() => {
                tripped = Some(*fault);
                false
            }
            Some(0) | None => true,
            Some(nth) => {
                *nth -= 1;
                true
            }
        });
        for (trigger, fault) in &mut self.for_good {
            match trigger.countdown(kind) {
                Some(0) => tripped = tripped.or(Some(*fault)),
                Some(nth) => *nth -= 1,
                None => {}
            }
        }
        tripped
    }

    pub(super) fn set_bad(&mut self, block: u64, errno: i32, lasting: Lasting) {
        self.bad_blocks.insert(block, (errno, lasting));
    }

    pub(super) fn heal(&mut self) {
        self.bad_blocks.clear();
    }

    /// The error that reading this range meets, if any.
    pub(super) fn read_error(&mut self, block: u64, blocks: u32) -> Option<i32> {
        let range = block..block + u64::from(blocks);
        let (&at, &(errno, lasting)) = self.bad_blocks.range(range).next()?;
        if lasting == Lasting::Once {
            self.bad_blocks.remove(&at);
        }
        Some(errno)
    }

    pub(super) fn written(&mut self, block: u64) {
        if matches!(self.bad_blocks.get(&block), Some((_, Lasting::UntilWritten))) {
            self.bad_blocks.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_counts_only_what_matches_and_trips_once() {
        let mut armed = Armed::default();
        armed.arm(Trigger::Write { nth: 1, why: Some(Purpose::Log) }, Fault::Lose);
        let seen = [Purpose::Log, Purpose::Data, Purpose::Log, Purpose::Log]
            .map(|why| armed.trip(Kind::Write(why)));
        assert_eq!(seen, [None, None, Some(Fault::Lose), None]);
        assert_eq!(armed.trip(Kind::Flush), None);
    }

    #[test]
    fn what_is_armed_for_good_hits_all_from_there_on_until_it_is_disarmed() {
        let mut armed = Armed::default();
        armed.arm_for_good(Trigger::Read { nth: 1 }, Fault::Error(5));
        let seen = [0; 3].map(|_| armed.trip(Kind::Read));
        assert_eq!(seen, [None, Some(Fault::Error(5)), Some(Fault::Error(5))]);
        armed.disarm();
        assert_eq!(armed.trip(Kind::Read), None);
    }
}
