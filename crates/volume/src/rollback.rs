//! A subvolume returns to the state of a snapshot.
//!
//! A new snapshot of that snapshot gets the entry of the subvolume, its groups, limits and reserve.
//! The old subvolume is dying from then on, with the new one as heir, or stays alive under another
//! entry. All of it is one transaction: a crash leaves the state before or after. The new one has
//! an id of its own, so references to the old state cannot be taken for the new.

use std::sync::Arc;

use copyhold_format::item::{ParentDirectory, Step, SubvolItem, SubvolState, subvol_key};
use copyhold_memory::GroupLimits;
use copyhold_pool::{Credit, Pool, Transaction};
use copyhold_types::{InodeNo, SubvolId, Timestamp, Txg};

use crate::birth::{NewSubvol, Numbers};
use crate::error::{Result, VolumeError};
use crate::limits;
use crate::quota::{Replaced, Resident};
use crate::sabotage::Sabotage;
use crate::trees::Trees;
use crate::volumes::{Subvol, Volumes};

/// The fate of the old state.
#[derive(Clone, Copy, Debug)]
pub enum OldState<'a> {
    /// It is deleted, as of now; `name` is the name that it had.
    Deleted { since: Timestamp, name: &'a [u8] },
    /// The old state stays a subvolume, with its entry here.
    Kept(ParentDirectory),
}

impl Volumes {
    /// Puts a new snapshot of `snapshot` in the place of `old`. `new` has that place, and its
    /// groups are `old`'s, whatever it says. `tx` has the edits of the directories: the entry's,
    /// and under [`Self::THERE`] those of the one where `old` goes on.
    ///
    /// # Errors
    /// `old` is the root, or holds others and is not kept; the two share no history. A limit
    /// refuses what the rollback adds.
    #[allow(clippy::too_many_arguments)] // each is a different thing
    pub fn roll_back(
        &self,
        old: &Subvol,
        snapshot: &Subvol,
        numbers: &Numbers,
        new: &NewSubvol,
        next_inode: InodeNo,
        then: OldState<'_>,
        credit: Credit,
        mut tx: Transaction,
    ) -> Result<(Arc<Subvol>, Txg)> {
        if old.id() == SubvolId::ROOT {
            return Err(VolumeError::Root(old.id()));
        }
        if old.id() == snapshot.id() || old.family_number() != snapshot.family_number() {
            return Err(VolumeError::Unrelated { subvol: old.id(), snapshot: snapshot.id() });
        }
        let here = self.holder(new.place)?;
        let there = match then {
            OldState::Kept(place) => self.holder(place)?,
            OldState::Deleted { .. } => here.clone(),
        };
        let mut trees = Trees::lock(&[old], &[&*here, &*there]);
        snapshot.check_live()?;
        for subvol in [old, &*here, &*there] {
            subvol.check_changeable()?;
        }
        assert!(old.item().place == new.place, "who is replaced has that entry");
        let holders = [&*here, &*there];
        let owners = self.state.owners.lock();
        if let (OldState::Deleted { .. }, Some(held)) = (then, self.held_by(old.id())) {
            return Err(VolumeError::Holds(old.id(), held));
        }
        if let OldState::Kept(_) = then {
            self.state.map.read().check_nesting(there.id(), Some(old.id()))?;
            self.state.ledger.check_move(old.id(), there.id())?;
        }
        self.check_sealable(&trees, snapshot, numbers)?;
        let (holder, origin) = (Some(here.id()), Some(snapshot.id()));
        let resident = Resident { subvol: numbers.subvol, holder, origin };
        let (item, replaced) = match then {
            OldState::Deleted { since, name } => {
                let state = SubvolState::Dying(Step::Settle);
                (SubvolItem { state, ..old.item() }, Replaced::Deleted { since, name })
            }
            OldState::Kept(place) => {
                (SubvolItem { place, ..old.item() }, Replaced::Kept { holder: there.id() })
            }
        };
        let rows = self.state.ledger.replace_subvolume(resident, old.id(), replaced)?;
        self.put_rows(rows, &mut tx);
        tx.put(Pool::SYSTEM, subvol_key(old.id()), &item.encode()[..]);
        if !self.ledger().breaks(Sabotage::LoseMemoryLimits) {
            limits::copy(&mut tx, old.owner(), numbers.subvol);
        }
        let dies = (item.state != SubvolState::Live).then(|| old.id());
        // Given, not copied: a kept state would have the same promise beside it (LIMITS-M2).
        limits::forget(&mut tx, old.id(), old.owner());
        let made =
            self.branch(&mut trees, snapshot, holders, numbers, new, next_inode, dies, credit, tx)?;
        made.0.owner().set_limits(&old.owner().limits());
        old.owner().set_limits(&GroupLimits::default());
        match item.state {
            SubvolState::Live => {
                old.set_item(item);
                self.state.map.write().has_moved(old, here.id());
            }
            SubvolState::Dying(_) => {
                self.set_step(old, item);
            }
        }
        old.set_last_txg(made.1);
        let families = self.state.map.read().families_inside(&[old]);
        drop((owners, trees));
        self.renew_own_content(families);
        Ok(made)
    }
}
