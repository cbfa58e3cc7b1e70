//! Where the entries of subvolumes are.
//!
//! A subvolume's record names the directory that holds its entry, and only there the entry counts
//! (R39). So a move of an entry rewrites the record in the same transaction. The subvolume that
//! holds the directory is its *holder*: space inside a subvolume cannot escape its limit, so if
//! an entry goes to another subvolume, all charges inside move along.

use copyhold_format::item::{ParentDirectory, SubvolItem, subvol_key};
use copyhold_pool::{Credit, Pool, Transaction};
use copyhold_types::{InodeNo, SubvolId, TableId, Txg};

use crate::error::{Result, VolumeError};
use crate::quota::Hold;
use crate::trees::Trees;
use crate::volumes::{Subvol, Volumes};

impl Volumes {
    /// Whose files edits are, in a transaction that changes directories of two subvolumes: those of
    /// this table are the second's.
    pub const THERE: TableId = TableId(14);

    /// Entries have moved to other directories; `tx` has the edits of the directories, which are in
    /// `holders[0]`, or those of [`Self::THERE`] in `holders[1]`. The caller ensures that no
    /// subvolume moves into itself. A new parent subvolume may end above its limit. `made`: an
    /// inode that is created in `holders[0]`, for which `hold` is.
    pub fn moved(
        &self,
        moves: &[(&Subvol, ParentDirectory)],
        holders: [&Subvol; 2],
        made: Option<InodeNo>,
        (credit, mut hold): (Credit, Hold),
        mut tx: Transaction,
    ) -> Result<Txg> {
        let subvols: Vec<&Subvol> = moves.iter().map(|(subvol, _)| *subvol).collect();
        let trees = Trees::lock(&subvols, &holders);
        subvols.iter().try_for_each(|subvol| subvol.check_live())?;
        holders.iter().try_for_each(|holder| holder.check_changeable())?;
        if let Some((root, _)) = moves.iter().find(|(subvol, _)| subvol.id() == SubvolId::ROOT) {
            return Err(VolumeError::Root(root.id()));
        }
        trees.lead(&mut tx, holders, None)?;
        let _owners = self.state.owners.lock();
        let items = moves.iter().map(|(subvol, place)| {
            assert!(holders.iter().any(|holder| holder.id() == place.subvol), "a holder is one");
            SubvolItem { place: *place, ..subvol.item() }
        });
        let items: Vec<SubvolItem> = items.collect();
        for (subvol, item) in subvols.iter().zip(&items) {
            tx.put(Pool::SYSTEM, subvol_key(subvol.id()), &item.encode()[..]);
            if item.place.subvol != subvol.item().place.subvol {
                self.state.ledger.move_subvolume(subvol.id(), item.place.subvol);
            }
        }
        let ledger = &self.state.ledger;
        let txg = self.pool.apply_with(credit, tx, |_, _| {
            let count =
                |ino| ledger.report_miscount(ledger.created(holders[0].id(), ino, Some(&mut hold)));
            made.into_iter().for_each(count);
            hold.spend_metadata();
        })?;
        for (subvol, item) in subvols.into_iter().zip(items) {
            subvol.set_item(item);
            subvol.set_last_txg(txg);
        }
        Ok(txg)
    }
}
