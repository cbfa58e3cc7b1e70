//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: no rule is ever broken.

#[cfg(feature = "sabotage")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::quota::Ledger;
#[cfg(feature = "sabotage")]
use crate::volumes::Volumes;

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R4: what a pending release comes to is decided, and applied some time later.
    DecideEarly,
    /// R10: what is preallocated is written in place, whoever else refers to it.
    AlwaysInPlace,
    /// R16: whoever drops an inherited pointer does not see that its sibling has.
    BlindBuries,
    /// R17: all deletions of a family go on at once.
    DeleteTogether,
    /// R18: a tree is walked that is not settled.
    WalkUnsettled,
    /// R23: limits are not looked at.
    IgnoreLimits,
    /// R24: a txg logs the usage that the one before left.
    LateUsage,
    /// R25: who was there when quotas were enabled goes on with an epoch that is not counted.
    KeepEpoch,
    /// R44: a reflink does not say that there is another reference.
    UncountedShares,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 9] = [
        Sabotage::DecideEarly,
        Sabotage::AlwaysInPlace,
        Sabotage::BlindBuries,
        Sabotage::DeleteTogether,
        Sabotage::WalkUnsettled,
        Sabotage::IgnoreLimits,
        Sabotage::LateUsage,
        Sabotage::KeepEpoch,
        Sabotage::UncountedShares,
    ];
}

/// Which rule is broken.
#[cfg(feature = "sabotage")]
#[derive(Debug, Default)]
pub(crate) struct Broken {
    /// One more than its place among all; 0: none.
    rule: AtomicUsize,
    /// What [`Sabotage::LateUsage`] holds back.
    pub(crate) late: parking_lot::Mutex<crate::quota::Rows>,
}

impl Ledger {
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: Sabotage) -> bool {
        self.broken.rule.load(Relaxed) == rule as usize + 1
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn breaks(&self, _: Sabotage) -> bool {
        false
    }

    /// The rows that are logged instead of these.
    #[cfg(feature = "sabotage")]
    pub(crate) fn hold_back(&self, rows: crate::quota::Rows) -> crate::quota::Rows {
        match self.breaks(Sabotage::LateUsage) {
            true => std::mem::replace(&mut self.broken.late.lock(), rows),
            false => rows,
        }
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn hold_back(&self, rows: crate::quota::Rows) -> crate::quota::Rows {
        rows
    }
}

#[cfg(feature = "sabotage")]
impl Volumes {
    /// Breaks a rule from now on.
    pub fn break_rule(&self, rule: Sabotage) {
        self.ledger().broken.rule.store(rule as usize + 1, Relaxed);
    }
}
