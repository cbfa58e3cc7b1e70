//! Where the entries of subvolumes are.
//!
//! A subvolume's record names the directory that holds its entry, and only there the entry counts
//! (R39). So a move of an entry rewrites the record in the same transaction. The subvolume that
//! holds the directory is its *holder*: space inside a subvolume cannot escape its limit, so if
//! an entry goes to another subvolume, all charges inside move along.
//!
//! PLACE-P1  A chain of subvolumes inside each other has at most [`NESTING_MAX`] members, the root
//!           not counted: moving one changes the charges of each subvolume inside it in each holder
//!           above it, under locks that all subvolumes share (R28).

use std::sync::Arc;

use copyhold_format::item::{ParentDirectory, SubvolItem, subvol_key};
use copyhold_pool::{Credit, Pool, Transaction};
use copyhold_types::{InodeNo, SubvolId, TableId, Txg};

use crate::NESTING_MAX;
use crate::error::{Result, VolumeError};
use crate::quota::Hold;
use crate::trees::Trees;
use crate::volumes::{Map, Subvol, Volumes};

/// The tenant of a subvolume: the outermost subvolume that it is inside of, or it itself, below the
/// root subvolume, which is a tenant of its own.
pub fn tenant_of(volumes: &Volumes, subvol: SubvolId) -> SubvolId {
    volumes.state.map.read().tenant_of(subvol)
}

/// At most `most` living subvolumes at and inside `top`, of the root all, with ids from `first` on.
/// A list in such pages looks at each subvolume once.
pub fn living_inside(
    volumes: &Volumes,
    top: SubvolId,
    first: u64,
    most: usize,
) -> Vec<Arc<Subvol>> {
    let map = volumes.state.map.read();
    let before = SubvolId(u32::try_from(first.saturating_sub(1)).unwrap_or(u32::MAX));
    let living = map.subvols.behind(before).filter(|subvol| !subvol.is_dying());
    let is_inside = |id| top == SubvolId::ROOT || map.holders_of(id).any(|holder| holder == top);
    living.filter(|subvol| is_inside(subvol.id())).take(most).cloned().collect()
}

impl Map {
    /// Whether a subvolume may come into being inside `holder`, or `moved` may go there (PLACE-P1).
    pub(crate) fn check_nesting(&self, holder: SubvolId, moved: Option<SubvolId>) -> Result<()> {
        let inside = moved.map_or(0, |moved| self.levels_inside(moved));
        match self.holders_of(holder).count() + inside >= NESTING_MAX {
            true => Err(VolumeError::TooDeep(holder)),
            false => Ok(()),
        }
    }

    /// As [`tenant_of`].
    pub(crate) fn tenant_of(&self, subvol: SubvolId) -> SubvolId {
        self.holders_of(subvol).last().unwrap_or(subvol)
    }

    /// The holders of a subvolume, from itself upwards, without the root.
    pub(crate) fn holders_of(&self, subvol: SubvolId) -> impl Iterator<Item = SubvolId> {
        let holder = |at: &SubvolId| Some(self.subvols.get(*at)?.item().place.subvol);
        let up = std::iter::successors(Some(subvol), holder);
        up.take_while(|at| *at != SubvolId::ROOT).take(NESTING_MAX + 1)
    }

    fn levels_inside(&self, subvol: SubvolId) -> usize {
        let (mut levels, mut level) = (0, Vec::from_iter(self.subvols.held_by(subvol)));
        while !level.is_empty() && levels < NESTING_MAX {
            levels += 1;
            level = level.into_iter().flat_map(|at| self.subvols.held_by(at)).collect();
        }
        levels
    }
}

impl Volumes {
    /// Whose files edits are, in a transaction that changes directories of two subvolumes: those of
    /// this table are the second's.
    pub const THERE: TableId = TableId(14);

    /// Entries have moved to other directories; `tx` has the edits of the directories, which are in
    /// `holders[0]`, or those of [`Self::THERE`] in `holders[1]`. No subvolume moves into itself.
    /// `asks`: limits of a new parent subvolume may refuse the move; or it may end above them.
    /// `made`: an inode that is created in `holders[0]`; the hold is for it.
    pub fn moved(
        &self,
        moves: &[(&Subvol, ParentDirectory)],
        holders: [&Subvol; 2],
        made: Option<InodeNo>,
        asks: bool,
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
        let owners = self.state.owners.lock();
        for (subvol, place) in moves.iter().filter(|(of, to)| of.item().place.subvol != to.subvol) {
            self.state.map.read().check_nesting(place.subvol, Some(subvol.id()))?;
            if asks {
                self.state.ledger.check_move(subvol.id(), place.subvol)?;
            }
        }
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
        let tenant = |subvol: &Subvol| self.state.map.read().tenant_of(subvol.id());
        let before: Vec<SubvolId> = subvols.iter().map(|subvol| tenant(subvol)).collect();
        for (subvol, item) in subvols.iter().zip(items) {
            let before = subvol.item().place.subvol;
            subvol.set_item(item);
            self.state.map.write().has_moved(subvol, before);
            subvol.set_last_txg(txg);
        }
        let moved = subvols.into_iter().zip(before);
        let moved = moved.filter(|(subvol, before)| tenant(subvol) != *before);
        let moved: Vec<&Subvol> = moved.map(|(subvol, _)| subvol).collect();
        let families = self.state.map.read().families_inside(&moved);
        drop((owners, trees));
        self.renew_own_content(families);
        Ok(txg)
    }
}
