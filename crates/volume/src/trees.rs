//! The trees of several families at once, locked in the order of their ids.

use std::collections::BTreeMap;

use copyhold_pool::{Pool, Transaction};
use copyhold_sync::{RwLockReadGuard, RwLockWriteGuard};
use copyhold_types::TableId;

use crate::error::{Result, VolumeError};
use crate::family::{Epoch, Family, FamilyId};
use crate::volumes::{FamilyCell, Subvol, Volumes};

/// Locked families, some of them to be changed.
pub(crate) struct Trees<'a>(BTreeMap<FamilyId, Guard<'a>>);

enum Guard<'a> {
    Shared(RwLockReadGuard<'a, Family>),
    Exclusive(RwLockWriteGuard<'a, Family>),
}

impl<'a> Trees<'a> {
    /// The families of `changed` exclusively; those of `still` shared, unless they are among them.
    pub(crate) fn lock(changed: &[&'a Subvol], still: &[&'a Subvol]) -> Trees<'a> {
        let mut cells = BTreeMap::new();
        cells.extend(still.iter().map(|subvol| (subvol.family.id, (&*subvol.family, false))));
        cells.extend(changed.iter().map(|subvol| (subvol.family.id, (&*subvol.family, true))));
        let lock = |(id, (family, exclusively)): (FamilyId, (&'a FamilyCell, bool))| {
            let guard = match exclusively {
                true => Guard::Exclusive(family.write_tree()),
                false => Guard::Shared(family.read_tree()),
            };
            (id, guard)
        };
        Trees(cells.into_iter().map(lock).collect())
    }

    pub(crate) fn of(&self, subvol: &Subvol) -> &Family {
        match &self.0[&subvol.family.id] {
            Guard::Shared(tree) => tree,
            Guard::Exclusive(tree) => tree,
        }
    }

    pub(crate) fn changed(&mut self, subvol: &Subvol) -> &mut Family {
        match self.0.get_mut(&subvol.family.id) {
            Some(Guard::Exclusive(tree)) => tree,
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
