//! The trees of several families at once, locked in the order of their ids.

use copyhold_pool::{Pool, Transaction};
use copyhold_sync::{RwLockReadGuard, RwLockWriteGuard};
use copyhold_types::TableId;

use crate::error::{Result, VolumeError};
use crate::family::{Epoch, Family, FamilyId};
use crate::volumes::{FamilyCell, Subvol, Volumes};

/// An exchange of two subvolumes between two others concerns so many.
const FAMILIES_MAX: usize = 4;

/// Locked families, some of them to be changed.
pub(crate) struct Trees<'a>([Option<(FamilyId, Guard<'a>)>; FAMILIES_MAX]);

enum Guard<'a> {
    Shared(RwLockReadGuard<'a, Family>),
    Exclusive(RwLockWriteGuard<'a, Family>),
}

impl<'a> Trees<'a> {
    /// The families of `changed` exclusively; those of `still` shared, unless they are among them.
    pub(crate) fn lock(changed: &[&'a Subvol], still: &[&'a Subvol]) -> Trees<'a> {
        let mut cells: [Option<(&'a FamilyCell, bool)>; FAMILIES_MAX] = [None; FAMILIES_MAX];
        let changed = changed.iter().map(|subvol| (&*subvol.family, true));
        for (family, exclusively) in changed.chain(still.iter().map(|of| (&*of.family, false))) {
            if !cells.iter().flatten().any(|(other, _)| other.id == family.id) {
                let free = cells.iter_mut().find(|cell| cell.is_none());
                *free.expect("no operation concerns more families") = Some((family, exclusively));
            }
        }
        cells.sort_by_key(|cell| cell.map(|(family, _)| family.id));
        let lock = |(family, exclusively): (&'a FamilyCell, bool)| {
            let guard = match exclusively {
                true => Guard::Exclusive(family.write_tree()),
                false => Guard::Shared(family.read_tree()),
            };
            (family.id, guard)
        };
        Trees(cells.map(|cell| cell.map(lock)))
    }

    pub(crate) fn of(&self, subvol: &Subvol) -> &Family {
        let mut locked = self.0.iter().flatten();
        match locked.find(|(id, _)| *id == subvol.family.id) {
            Some((_, Guard::Shared(tree))) => tree,
            Some((_, Guard::Exclusive(tree))) => tree,
            None => unreachable!("the family was locked"),
        }
    }

    pub(crate) fn changed(&mut self, subvol: &Subvol) -> &mut Family {
        let mut locked = self.0.iter_mut().flatten();
        match locked.find(|(id, _)| *id == subvol.family.id) {
            Some((_, Guard::Exclusive(tree))) => tree,
            _ => unreachable!("the family was locked to be changed"),
        }
    }

    pub(crate) fn leaf(&self, subvol: &Subvol) -> Result<Epoch> {
        let leaf = self.of(subvol).leaf(subvol.id()).copied();
        leaf.ok_or(VolumeError::NoSubvolume(subvol.id()))
    }

    /// Edits of files are `here`'s, or those of [`Volumes::THERE`] `there`'s, but for those of the
    /// table `new`.
    pub(crate) fn lead(
        &self,
        tx: &mut Transaction,
        [here, there]: [&Subvol; 2],
        new: Option<TableId>,
    ) -> Result<()> {
        let (here, there) = (self.leaf(here)?.table, self.leaf(there)?.table);
        tx.readdress(|table| match table {
            Volumes::THERE => there,
            table if table > Pool::PENDING && Some(table) != new => here,
            table => table,
        });
        Ok(())
    }
}
