//! Rules broken on purpose, so that a test can see the simulation notice.
//!
//! Without the feature `sabotage` this is nothing: no rule is ever broken.

#[cfg(feature = "sabotage")]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use copyhold_format::item::DeadItem;
use copyhold_pool::{Edit, Transaction};
use copyhold_types::{Key, SubvolId, TableId};

use crate::quota::Ledger;
#[cfg(feature = "sabotage")]
use crate::volumes::Volumes;

/// One broken rule each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// R4: the outcome of a pending release is decided, and applied some time later.
    DecideEarly,
    /// R10: preallocated space is written in place, even if others refer to it.
    AlwaysInPlace,
    /// R16: the drop of an inherited pointer does not see that the sibling has dropped it.
    BlindBuries,
    /// R17: all deletions of a family run at once.
    DeleteTogether,
    /// R18: a tree is walked that is not settled.
    WalkUnsettled,
    /// R21: the releases of a transaction exceed its credit.
    IgnoreCredit,
    /// R23: limits are not looked at.
    IgnoreLimits,
    /// COUNTER-N4: the overdraft follows the usage.
    FeedOverdraft,
    /// R23: owners that were deleted inside one count no more when that has an heir.
    LoseTombstones,
    /// R23: the successor of a subvolume is not promised the reserve of the old one.
    LoseReserve,
    /// R24: a txg logs the usage that the one before left.
    LateUsage,
    /// R25: a subvolume from before quotas keeps an epoch that is not counted.
    KeepEpoch,
    /// R26: rows of usage stay when no space is left that they count.
    KeepRows,
    /// R27: neighbouring segments of a deadlist are not joined.
    SplitSegments,
    /// R28: a deletion releases all that it finds in one step.
    OneStep,
    /// R29: any number of unflushed tables may lie over each other.
    DeepForks,
    /// R42: the charges of a deleted subvolume are given to its heir some time after the deletion.
    HeirLater,
    /// R44: a reflink does not say that there is another reference.
    UncountedShares,
    /// LIMITS-M2: a rollback records no limits of memory for the state that takes the place.
    LoseMemoryLimits,
}

impl Sabotage {
    /// All of them, in the order of the rules.
    pub const ALL: [Sabotage; 19] = [
        Sabotage::DecideEarly,
        Sabotage::AlwaysInPlace,
        Sabotage::BlindBuries,
        Sabotage::DeleteTogether,
        Sabotage::WalkUnsettled,
        Sabotage::IgnoreCredit,
        Sabotage::IgnoreLimits,
        Sabotage::FeedOverdraft,
        Sabotage::LoseTombstones,
        Sabotage::LoseReserve,
        Sabotage::LateUsage,
        Sabotage::KeepEpoch,
        Sabotage::KeepRows,
        Sabotage::SplitSegments,
        Sabotage::OneStep,
        Sabotage::DeepForks,
        Sabotage::HeirLater,
        Sabotage::UncountedShares,
        Sabotage::LoseMemoryLimits,
    ];
}

/// Which rule is broken.
#[cfg(feature = "sabotage")]
#[derive(Debug, Default)]
pub(crate) struct Broken {
    /// One more than its place among all; 0: none.
    rule: AtomicUsize,
    /// The rows that [`Sabotage::LateUsage`] delays.
    pub(crate) late: copyhold_sync::Mutex<crate::quota::Rows, copyhold_sync::of::SabotageRows>,
    /// The dead, and their heirs, that [`Sabotage::HeirLater`] has not reported.
    heirs: copyhold_sync::Mutex<Vec<(SubvolId, SubvolId)>, copyhold_sync::of::SabotageHeirs>,
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

impl Ledger {
    /// Whether the deletion is to say nothing of the heir.
    #[cfg(feature = "sabotage")]
    pub(crate) fn tells_later(&self, dead: SubvolId, heir: SubvolId) -> bool {
        let later = self.breaks(Sabotage::HeirLater);
        if later {
            self.broken.heirs.lock().push((dead, heir));
        }
        later
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn tells_later(&self, _: SubvolId, _: SubvolId) -> bool {
        false
    }

    /// The heir of a dead owner that is to be reported now.
    #[cfg(feature = "sabotage")]
    pub(crate) fn late_heir(&self, dead: SubvolId) -> Option<SubvolId> {
        let mut heirs = self.broken.heirs.lock();
        let at = heirs.iter().position(|(of, _)| *of == dead)?;
        Some(heirs.swap_remove(at).1)
    }

    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn late_heir(&self, _: SubvolId) -> Option<SubvolId> {
        None
    }
}

/// Adds an edit of a deadlist as two, where it says something of several blocks.
pub(crate) fn split(table: TableId, key: Key, edit: Edit, tx: &mut Transaction) {
    let item = match &edit {
        Edit::Put(value) => DeadItem::parse(key, value).ok(),
        Edit::Delete => None,
    };
    let Some(item) = item.filter(|item| item.blocks > 1) else { return tx.edit(table, key, edit) };
    let rest = Key { offset: key.offset + 1, ..key };
    tx.put(table, key, &DeadItem { blocks: 1, ..item }.encode()[..]);
    tx.put(table, rest, &DeadItem { blocks: item.blocks - 1, ..item }.encode()[..]);
}

#[cfg(feature = "sabotage")]
impl Volumes {
    /// Breaks a rule from now on.
    pub fn break_rule(&self, rule: Sabotage) {
        self.ledger().broken.rule.store(rule as usize + 1, Relaxed);
    }
}
