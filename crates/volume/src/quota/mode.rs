//! Turning quotas on and off.
//!
//! *On* is one record that names an epoch, and nothing is rewritten: space with an older origin is
//! never counted, neither when it was born nor when it dies (R25). It takes effect in memory
//! before its record is applied: a crash in between leaves rows without a status, which are swept.
//!
//! *Off* is one record too, and takes effect after it is applied: until then sums are kept, so that
//! they are right after a crash in between. Then all other records are swept, in steps.

use std::sync::atomic::Ordering::Relaxed;

use copyhold_format::item::{QuotaItem, quota_key};
use copyhold_pool::Edit;
use copyhold_types::{EpochId, Key};

use super::groups::Groups;
use super::{Ledger, QuotaError, Resident, Rows};

impl Ledger {
    /// Turns quotas on, or leaves them on. `from` is an epoch that has not begun; the caller lets
    /// no subvolume and no epoch begin from its choice to the end of this call. `residents` are
    /// all living subvolumes. Each takes a new epoch before it next writes.
    pub fn enable(
        &self,
        from: EpochId,
        residents: impl IntoIterator<Item = Resident>,
    ) -> Result<Rows, QuotaError> {
        let mut groups = self.groups.lock();
        if groups.from.is_some() {
            return Ok(Rows::new());
        }
        if !groups.leftovers.is_empty() {
            return Err(QuotaError::Clearing);
        }
        let residents: Vec<_> = residents.into_iter().collect();
        for resident in &residents {
            self.add_account(&mut groups, resident.subvol);
        }
        groups.place_residents(&residents);
        groups.share_residents(&residents);
        residents.iter().for_each(|resident| groups.set_way(resident.subvol));
        groups.from = Some(from);
        groups.generation += 1;
        self.counted_from.store(from.0, Relaxed);
        Ok(vec![groups.status()])
    }

    /// Full mode, which is not built.
    pub fn enable_full(&self) -> Result<Rows, QuotaError> {
        Err(QuotaError::FullMode)
    }

    /// The record that turns quotas off: all groups, limits and relations are lost. When it is
    /// applied, the caller calls [`Self::disabled`]; meanwhile it changes no groups.
    pub fn disable(&self) -> Rows {
        let groups = self.groups.lock();
        if groups.from.is_none() {
            return Rows::new();
        }
        let item = QuotaItem { counted_from: None, generation: groups.generation };
        vec![(quota_key(), Edit::Put((&item.encode()).into()))]
    }

    /// Quotas are off from now on. Their remaining records are swept.
    pub fn disabled(&self) {
        let mut groups = self.groups.lock();
        groups.from = None;
        self.counted_from.store(Self::OFF, Relaxed);
        self.forget_all(&mut groups);
    }

    /// There is never anything to rescan.
    pub fn rescan(&self) -> Result<(), QuotaError> {
        self.on().map(drop)?;
        Err(QuotaError::Rescan)
    }
}

impl Groups {
    pub(super) fn status(&self) -> (Key, Edit) {
        let item = QuotaItem { counted_from: self.from, generation: self.generation };
        (quota_key(), Edit::Put((&item.encode()).into()))
    }
}
