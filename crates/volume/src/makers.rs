//! The tenants that made an epoch, kept for epochs of deleted subvolumes.
//!
//! An epoch of a live subvolume is made by its tenant, so nothing is kept for it. For a sealed
//! epoch of a deleted one, all that is below would have to be looked at (MADEBY-M1).

use std::collections::BTreeMap;

use copyhold_types::{EpochId, SubvolId};

/// The tenants that made an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Makers {
    /// No live subvolume is below.
    None,
    One(SubvolId),
    Several,
}

impl Makers {
    pub(crate) fn with(self, other: Makers) -> Makers {
        match (self, other) {
            (Makers::None, one) | (one, Makers::None) => one,
            (one, other) if one == other => one,
            _ => Makers::Several,
        }
    }

    pub(crate) fn is_one(self) -> bool {
        matches!(self, Makers::One(_))
    }
}

/// The makers of sealed epochs of deleted subvolumes, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MakersBelow(BTreeMap<EpochId, Makers>);

impl MakersBelow {
    pub(crate) fn get(&self, epoch: EpochId) -> Makers {
        self.0.get(&epoch).copied().unwrap_or(Makers::None)
    }

    pub(crate) fn set(&mut self, epoch: EpochId, makers: Makers) {
        self.0.insert(epoch, makers);
    }

    pub(crate) fn forget(&mut self, epoch: EpochId) {
        self.0.remove(&epoch);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
