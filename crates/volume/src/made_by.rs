//! Which content of a subvolume its own tenant made, when a pool is opened (OWNFROM-E1).
//!
//! Each epoch of a family has the number of the subvolume that lived in it. From its leaf upwards,
//! a subvolume's content is its tenant's as long as that made the epochs. The maker of an epoch may
//! be deleted: then the tenant owns it if no other one has subvolumes below it.
//!
//! A snapshot within a tenant gets the epoch of its source without a look at the family.

use copyhold_types::EpochId;

use crate::family::{Epoch, Family};
use crate::volumes::{Map, Subvol};

impl Map {
    /// The first epoch of all that the tenant of `subvol` made.
    pub(crate) fn own_from(&self, subvol: &Subvol) -> EpochId {
        let family = subvol.family.read_tree();
        let Some(mut at) = family.leaf(subvol.id()) else { return subvol.item().first };
        while let Some(above) = at.parent.and_then(|parent| family.get(parent))
            && self.is_made_by_tenant(&family, above, subvol)
        {
            at = above;
        }
        at.first
    }

    fn is_made_by_tenant(&self, family: &Family, epoch: &Epoch, subvol: &Subvol) -> bool {
        let is_tenants = |of: &Subvol| of.owner().tenant() == subvol.owner().tenant();
        match self.subvols.get(&epoch.subvol) {
            Some(maker) => is_tenants(maker),
            None => {
                let below = family.below(epoch.id);
                below.iter().filter_map(|of| self.subvols.get(of)).all(|of| is_tenants(of))
            }
        }
    }
}
