//! Sharing extents: further references to runs that somebody refers to already.
//!
//! A share is a reference of its own, with the current epoch of whoever makes it and the origin of
//! what it was made from. Both families stand still from the moment the source's pointers are known
//! to be there until the shares are applied (R44): the caller holds the files' own locks, so that
//! the source does not drop what is being shared.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use copyhold_format::item::Content;
use copyhold_pool::{Credit, Pool, Transaction};
use copyhold_types::{EpochId, Run, Txg};

use crate::error::{Result, VolumeError};
use crate::quota::Hold;
use crate::release::{Evaluation, Release};
use crate::volumes::{Subvol, Volumes};

impl Volumes {
    /// Makes further references to `runs`, which the caller has seen in `from` and keeps there.
    /// `build` is given the epoch that their pointers are to have, and makes the transaction that
    /// puts them in `to`, with what it drops there; it is called once. Credit is for the edits of
    /// both, 2 edits of 32 bytes for every 32 blocks of `runs` among them.
    pub async fn reflink(
        &self,
        from: &Subvol,
        to: &Subvol,
        runs: &[Run],
        (credit, mut hold): (Credit, Option<&mut Hold>),
        build: impl FnOnce(EpochId) -> Transaction,
    ) -> Result<Txg> {
        let (mut credit, mut build) = (Some(credit), Some(build));
        loop {
            let missing = {
                let families =
                    BTreeMap::from([(from.family.id, &from.family), (to.family.id, &to.family)]);
                let trees: BTreeMap<_, _> =
                    families.iter().map(|(id, family)| (*id, family.tree.read())).collect();
                from.check_live()?;
                to.check_live()?;
                let tree = &trees[&to.family.id];
                let leaf = *tree.leaf(to.id()).ok_or(VolumeError::NoSubvolume(to.id()))?;
                let _burial = to.family.burial.lock();
                // Whoever releases from now on asks for shares.
                self.state.sharing.store(true, Ordering::Release);
                let _shares = self.state.shares.lock();
                let look = self.stored();
                let mut evaluation = Evaluation::new(tree, &look);
                let mut known = true;
                for run in runs {
                    known &= evaluation.share(*run)?;
                }
                if known {
                    let mut tx = (build.take().expect("it is built once"))(leaf.current);
                    tx.readdress(|table| if table > Pool::PENDING { leaf.table } else { table });
                    for pointer in tx.take_released() {
                        let (holder, content) = (leaf.id, Content::Data);
                        evaluation.release(Release { holder, pointer, content, count: 1 })?;
                    }
                    let credit = credit.take().expect("it is applied once");
                    let births = Some((leaf.current, hold.as_deref_mut()));
                    return self.apply_decided(credit, tx, evaluation.take(), births);
                }
                evaluation.take().missing
            };
            self.fetch_missing(&missing).await?;
        }
    }
}
