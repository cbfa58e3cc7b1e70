//! Changes of quotas: of groups, of limits, and whether there are any.
//!
//! One at a time, and applied before the next is made: the ledger relies on it.

use std::sync::atomic::Ordering;

use copyhold_pool::{Credit, IdSpace, Transaction};
use copyhold_types::{EpochId, Txg};

use crate::error::Result;
use crate::quota::{Ledger, QuotaError, Rows};
use crate::volumes::{Volumes, residents};

impl Volumes {
    /// Makes a change of groups, limits or heirs and logs the ledger's rows. Credit for
    /// [`Self::LIFE_EDITS`], or for the edits that the change is known to take.
    pub fn change_quotas(
        &self,
        credit: Credit,
        change: impl FnOnce(&Ledger) -> std::result::Result<Rows, QuotaError>,
    ) -> Result<Txg> {
        let _owners = self.state.owners.lock();
        let mut tx = Transaction::new();
        self.put_rows(change(&self.state.ledger)?, &mut tx);
        Ok(self.pool.apply(credit, tx)?)
    }

    /// Turns quotas on: epochs that begin from here on are counted. Nothing is rewritten; a
    /// subvolume takes a new epoch when it next writes ([`Self::is_outdated`], [`Self::renew`]).
    pub async fn enable_quotas(&self, credit: Credit) -> Result<Txg> {
        let mut credit = Some(credit);
        loop {
            let from = EpochId(self.pool.next_id(IdSpace::Epoch).await?);
            let living = residents(self);
            let _owners = self.state.owners.lock();
            // Neither an epoch nor a subvolume has begun meanwhile.
            let is_newest = self.state.newest.load(Ordering::Acquire) < from.0;
            if !is_newest || living != residents(self) {
                continue;
            }
            let mut tx = Transaction::new();
            self.put_rows(self.state.ledger.enable(from, living)?, &mut tx);
            let credit = credit.take().expect("it is applied once");
            return Ok(self.pool.apply(credit, tx)?);
        }
    }

    /// Turns quotas off; groups, limits and relations are lost, their records go in the background.
    pub fn disable_quotas(&self, credit: Credit) -> Result<Txg> {
        let _owners = self.state.owners.lock();
        let mut tx = Transaction::new();
        self.put_rows(self.state.ledger.disable(), &mut tx);
        let txg = self.pool.apply(credit, tx)?;
        self.state.ledger.disabled();
        Ok(txg)
    }
}
