//! The faults of a life, from switching a machine on to its end.

use copyhold_device::sim::{Fault, Trigger};
use copyhold_types::Purpose;

use crate::Plan;
use crate::dice::Dice;
use crate::machine::Machine;

const EIO: i32 = 5;

/// One life has one of these; a history has several lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// The pool is closed, or the machine is switched off when everybody is done.
    Calm,
    /// The power fails at some moment.
    PowerCut,
    /// The power fails while a certain kind of write is in flight.
    PowerCutAtWrite,
    /// The power fails during a flush.
    PowerCutAtFlush,
    /// The daemon is killed while a write or a flush is in flight; the disk keeps its cache, and
    /// the power may fail at the next mount.
    Killed,
    /// The power fails during a discard.
    PowerCutAtDiscard,
    /// The power fails while everything is being settled: nodes, records, uberblocks.
    PowerCutInSettling,
    /// A flush fails once.
    FlushError,
    /// A write fails once.
    WriteError,
    /// A write of metadata, which is kept twice, is lost.
    LostWrite,
    /// The host's disk is full for a while; it may be one that copies on write.
    HostFull,
    /// One copy of a node or a space map rots.
    NodeRot,
    /// The power fails, and the log rots in several places, each in one of the copies.
    LogRot,
    /// Both copies of the log rot in the same place, after everything has come to rest.
    LogRotTwice,
    /// The power fails, and afterwards a part of the log is unreadable in one copy, in both for a
    /// while, each copy in another block of a frame, or one where the other is rotten.
    LogUnreadable,
    /// The power fails, and afterwards no copy of a space map can be read, for a moment or a life.
    MapUnreadable,
    /// While everything is settled no copy of some lists of fragments can be read.
    ListUnreadable,
    /// The power fails, and the newest uberblocks rot on both labels.
    UberblockRot,
    /// The power fails or the daemon is killed, and afterwards data of the last batches cannot be
    /// read for a while.
    TailUnreadable,
    /// Data of the last batch rots after everything has come to rest.
    TailRot,
    /// The power fails; the next recovery reads data wrongly, a later one does not.
    Misread,
}

impl Weather {
    pub const ALL: [Weather; 21] = [
        Weather::Calm,
        Weather::PowerCut,
        Weather::PowerCutAtWrite,
        Weather::PowerCutAtFlush,
        Weather::Killed,
        Weather::PowerCutAtDiscard,
        Weather::PowerCutInSettling,
        Weather::FlushError,
        Weather::WriteError,
        Weather::LostWrite,
        Weather::HostFull,
        Weather::NodeRot,
        Weather::LogRot,
        Weather::LogRotTwice,
        Weather::LogUnreadable,
        Weather::MapUnreadable,
        Weather::ListUnreadable,
        Weather::UberblockRot,
        Weather::TailUnreadable,
        Weather::TailRot,
        Weather::Misread,
    ];

    /// Losing power is what happens most.
    pub(crate) fn today(dice: &mut Dice) -> Weather {
        const CUTS: [Weather; 3] =
            [Weather::PowerCut, Weather::PowerCutAtWrite, Weather::PowerCutAtFlush];
        if dice.one_in(2) { dice.pick(&CUTS) } else { dice.pick(&Weather::ALL) }
    }

    /// Comes over a machine that is at work; where its power fails by itself, within `2^bits` ns.
    pub(crate) fn come_over(self, machine: &Machine, dice: &mut Dice, bits: u64, plan: &Plan) {
        if let Some((trigger, fault)) = self.fault(dice) {
            plan.tell(|| format!("{fault:?} at {trigger:?}"));
            machine.disk.arm(trigger, fault);
        }
        match self {
            Weather::PowerCut => machine.fail_power_in(dice.magnitude(bits)),
            Weather::HostFull => {
                machine.fill_host(dice.magnitude(24), dice.magnitude(6), dice.one_in(2));
            }
            _ => {}
        }
    }

    /// The planned faults of the disk's requests.
    fn fault(self, dice: &mut Dice) -> Option<(Trigger, Fault)> {
        let nth = dice.magnitude(8);
        let any = Trigger::Write { nth, why: None };
        let why = dice.pick(&Purpose::OF_ENGINE);
        let of_kind = Trigger::Write { nth: dice.magnitude(5), why: Some(why) };
        Some(match self {
            Weather::PowerCutAtWrite if dice.one_in(4) => (any, Fault::PowerOff),
            Weather::PowerCutAtWrite => (of_kind, Fault::PowerOff),
            Weather::Killed if dice.one_in(2) => (of_kind, Fault::PowerOff),
            Weather::PowerCutAtFlush
            | Weather::Killed
            | Weather::TailUnreadable
            | Weather::Misread => (Trigger::Flush { nth: dice.magnitude(6) }, Fault::PowerOff),
            Weather::PowerCutAtDiscard => {
                (Trigger::Discard { nth: dice.magnitude(2) }, Fault::PowerOff)
            }
            Weather::FlushError => (Trigger::Flush { nth: dice.magnitude(6) }, Fault::Error(EIO)),
            Weather::WriteError => (of_kind, Fault::Error(EIO)),
            Weather::LostWrite => {
                let kept_twice = [Purpose::Log, Purpose::Leaf, Purpose::Inner, Purpose::Map];
                let why = Some(dice.pick(&kept_twice));
                (Trigger::Write { nth: dice.magnitude(6), why }, Fault::Lose)
            }
            _ => return None,
        })
    }

    /// Whether the machine goes on without what ran on it.
    pub(crate) fn kills(self) -> bool {
        self == Weather::Killed
    }

    /// Whether clients may see errors.
    pub(crate) fn shows(self) -> bool {
        matches!(self, Weather::FlushError | Weather::WriteError)
    }
}
