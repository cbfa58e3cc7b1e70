//! Sharing extents: further references to runs with a reference already.
//!
//! A share is a reference of its own, with the current epoch of its maker and the origin of its
//! source. Neither family changes from the moment the source's pointers are known to exist until
//! the shares are applied (R44): the caller holds the files' own locks, so that the source does not
//! drop the shared runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use copyhold_format::item::Content;
use copyhold_pool::{Credit, KeptNodes, Pool, Transaction};
use copyhold_types::{EpochId, Run, Txg};

use crate::error::{Result, VolumeError};
use crate::quota::Hold;
use crate::release::{Evaluation, Missing, Release};
use crate::sabotage::Sabotage;
use crate::snapshot_guard::Births;
use crate::stored::fetch;
use crate::volumes::{Subvol, Volumes};

/// The nodes that have to be read before runs can be shared.
#[derive(Debug)]
pub struct Unread(BTreeSet<Missing>);

impl Volumes {
    /// Makes further references to `runs`, which the caller has seen in `from` and keeps there.
    /// `build` is given the epoch that their pointers are to have, and makes the transaction that
    /// puts them in `to`, with the pointers that it drops there; it is called once, unless
    /// something has to be read first: then nothing has happened, and `credit` is as it was.
    /// Credit is for the edits of both, 2 edits of 32 bytes for every 32 blocks of `runs` among
    /// them.
    pub fn try_reflink(
        &self,
        from: &Subvol,
        to: &Subvol,
        runs: &[Run],
        kept: &KeptNodes,
        (credit, hold): (&mut Option<Credit>, Option<&mut Hold>),
        build: impl FnOnce(EpochId) -> Transaction,
    ) -> Result<std::result::Result<Txg, Unread>> {
        let families = BTreeMap::from([(from.family.id, &from.family), (to.family.id, &to.family)]);
        let trees: BTreeMap<_, _> =
            families.iter().map(|(id, family)| (*id, family.read_tree())).collect();
        from.check_live()?;
        to.check_changeable()?;
        let tree = &trees[&to.family.id];
        let leaf = *tree.leaf(to.id()).ok_or(VolumeError::NoSubvolume(to.id()))?;
        let _burial = to.family.lock_burial();
        // Releases from now on look for shares.
        self.state.sharing.store(true, Ordering::Release);
        let look = self.stored_locked().with(kept);
        let mut evaluation = Evaluation::new(tree, &look).within_credit();
        let mut known = true;
        let uncounted = self.ledger().breaks(Sabotage::UncountedShares);
        for run in runs.iter().filter(|_| !uncounted) {
            known &= evaluation.share(*run)?;
        }
        if !known {
            return Ok(Err(Unread(evaluation.take().missing)));
        }
        let mut tx = build(leaf.current);
        tx.readdress(|table| if table > Pool::PENDING { leaf.table } else { table });
        for pointer in tx.take_released() {
            let (holder, content) = (leaf.id, Content::Data);
            evaluation.release(Release { holder, pointer, content, count: 1 })?;
        }
        let credit = credit.take().expect("credit for what is applied");
        let births = Births { subvol: to.id(), epoch: leaf.current, inode: None, hold };
        self.apply_decided(credit, tx, evaluation.take(), Some(births)).map(Ok)
    }

    /// Reads the nodes that [`Self::try_reflink`] needed, and keeps them for the next try.
    pub async fn read_shares(&self, unread: Unread, kept: &KeptNodes) -> Result<()> {
        fetch(&self.pool, &unread.0, kept).await
    }

    /// As [`Self::try_reflink`], again and again until all is read.
    pub async fn reflink(
        &self,
        from: &Subvol,
        to: &Subvol,
        runs: &[Run],
        (credit, mut hold): (Credit, Option<&mut Hold>),
        build: impl FnOnce(EpochId) -> Transaction,
    ) -> Result<Txg> {
        let (mut credit, mut build) = (Some(credit), Some(build));
        let kept = KeptNodes::default();
        loop {
            let made = |epoch| (build.take().expect("it is built once"))(epoch);
            let cost = (&mut credit, hold.as_deref_mut());
            match self.try_reflink(from, to, runs, &kept, cost, made)? {
                Ok(txg) => return Ok(txg),
                Err(unread) => self.read_shares(unread, &kept).await?,
            }
        }
    }
}
