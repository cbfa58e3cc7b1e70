//! Releases that were left for later, taken up in bounded steps.
//!
//! Look-ups there must not wait, so what they would have to read is read before, and the step is
//! tried again. It may fail to help, when the cache forgets sooner than the step comes: then what
//! is unknown stays pending, and the rest is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::{PENDING, PendingItem};
use copyhold_pool::{Cached, Credit, Pool, Tier, Transaction, Value};
use copyhold_types::{EpochId, Key};

use crate::error::{Result, VolumeError};
use crate::family::{Family, FamilyId};
use crate::release::{Evaluation, Missing, Outcome, Release};
use crate::sabotage::Sabotage;
use crate::stored::{Stored, fetch};
use crate::volumes::{FamilyCell, Volumes};

/// Releases that one step takes.
pub(crate) const RELEASES_PER_STEP: usize = 64;
/// Levels that a release climbs in one step.
const LEVELS_PER_STEP: u32 = 64;
/// How often what is missing is read before a step does without.
const TRIES: usize = 4;
/// Bytes of an edit of deadlists, shares and pending releases, and of a step's records.
const EDIT_BYTES: usize = 48;
const RECORD_BYTES: usize = 512;
/// Should somebody else's releases change what a step comes to, while it waits for credit.
const SPARE_EDITS: usize = 32;

/// How long a decision waits that is made early.
const MEANWHILE: Duration = Duration::from_millis(200);

/// Pending releases of one family.
type Batch = (Arc<FamilyCell>, Vec<(Key, Release)>);

impl Volumes {
    /// Takes up pending releases, of one family. Whether there were any.
    pub(crate) async fn pending_step(&self) -> Result<bool> {
        let (from, to) = (Key::MIN, Key::MAX);
        let items = self.pool.range(Pool::PENDING, from, to, RELEASES_PER_STEP).await?;
        let mut by_family: BTreeMap<FamilyId, Batch> = BTreeMap::new();
        for (key, value) in items {
            let release = parse(key, &value)?;
            let family = self.state.map.read().epochs.get(&release.holder).cloned();
            let Some(family) = family else {
                let Release { holder, pointer, .. } = release;
                return Err(crate::release::Damage::NoHolder { holder, pointer }.into());
            };
            by_family
                .entry(family.id)
                .or_insert_with(|| (family, Vec::new()))
                .1
                .push((key, release));
        }
        let any = !by_family.is_empty();
        for (family, releases) in by_family.into_values() {
            let mut tx = Transaction::new();
            releases.iter().for_each(|(key, _)| tx.delete(Pool::PENDING, *key));
            let releases = releases.into_iter().map(|(_, release)| release).collect::<Vec<_>>();
            self.release_step(&family, &releases, tx).await?;
        }
        Ok(any)
    }

    /// Applies `tx` together with what the releases come to. Credit is for just that: a step that
    /// frees must not want the space of one that buries (R21).
    pub(crate) async fn release_step(
        &self,
        family: &FamilyCell,
        releases: &[Release],
        tx: Transaction,
    ) -> Result<()> {
        let mut tx = Some(tx);
        let mut held: Option<(usize, Credit)> = None;
        if self.ledger().breaks(Sabotage::DecideEarly) {
            return self.release_decided_early(family, releases, tx.take()).await;
        }
        for attempt in 0.. {
            let (missing, wanted) = {
                let tree = family.read_tree();
                let _burial = family.lock_burial();
                let look = self.stored();
                let _shares = look.sharing.then(|| self.state.shares.lock());
                let outcome = self.evaluate(&tree, releases, &look)?;
                if !outcome.missing.is_empty() && attempt < TRIES {
                    (outcome.missing, None)
                } else {
                    let others = tx.as_ref().map_or(0, Transaction::len);
                    let edits = others + outcome.edits.len() + outcome.pending.len();
                    let enough = held.take().filter(|(of, _)| *of >= edits);
                    let credit = enough.map(|(_, credit)| credit);
                    let (tier, bytes) = (Tier::FinishSubvolume, bytes_of(edits));
                    if let Some(credit) = credit.or_else(|| self.pool.try_admit(tier, edits, bytes))
                    {
                        let tx = tx.take().expect("it is applied once");
                        self.apply_decided(credit, tx, outcome, None)?;
                        return Ok(());
                    }
                    (BTreeSet::new(), Some(edits + SPARE_EDITS))
                }
            };
            fetch(&self.pool, &missing).await?;
            if let Some(edits) = wanted {
                let credit = self.pool.admit(Tier::FinishSubvolume, edits, bytes_of(edits)).await?;
                held = Some((edits, credit));
            }
        }
        unreachable!("a step is tried until it is applied")
    }

    /// Breaks R4: what was decided is applied later, without a look at what has changed.
    async fn release_decided_early(
        &self,
        family: &FamilyCell,
        releases: &[Release],
        tx: Option<Transaction>,
    ) -> Result<()> {
        let evaluate = || self.evaluate(&family.read_tree(), releases, &self.stored());
        let mut outcome = evaluate()?;
        for _ in 0..TRIES {
            fetch(&self.pool, &outcome.missing).await?;
            outcome = evaluate()?;
        }
        let edits = outcome.edits.len() + outcome.pending.len() + SPARE_EDITS;
        let (tier, bytes) = (Tier::FinishSubvolume, bytes_of(edits));
        let credit = self.pool.admit(tier, edits, bytes).await?;
        self.pool.runtime().sleep(MEANWHILE).await;
        self.apply_decided(credit, tx.unwrap_or_default(), outcome, None).map(drop)
    }

    fn evaluate(&self, tree: &Family, releases: &[Release], look: &Stored<'_>) -> Result<Outcome> {
        let mut evaluation = Evaluation::new(tree, look).climbing(LEVELS_PER_STEP);
        releases.iter().try_for_each(|release| evaluation.release(*release))?;
        Ok(evaluation.take())
    }

    /// Whether a release of this holder is pending; `Unknown`: a node has to be read.
    pub(crate) fn has_pending(&self, holder: EpochId) -> Cached<bool> {
        let (from, to) = pending_of(holder);
        match self.pool.range_cached(Pool::PENDING, from, to, 1) {
            Cached::Known(items) => Cached::Known(!items.is_empty()),
            Cached::Unknown => Cached::Unknown,
        }
    }

    /// Reads what [`Self::has_pending`] needs.
    pub(crate) async fn fetch_pending(&self, holder: EpochId) -> Result<()> {
        let (from, to) = pending_of(holder);
        self.pool.range(Pool::PENDING, from, to, 1).await?;
        Ok(())
    }

    /// For those who add to the table of shares: what they miss is read.
    pub(crate) async fn fetch_missing(&self, missing: &BTreeSet<Missing>) -> Result<()> {
        fetch(&self.pool, missing).await
    }
}

fn bytes_of(edits: usize) -> usize {
    edits * EDIT_BYTES + RECORD_BYTES
}

fn pending_of(holder: EpochId) -> (Key, Key) {
    (Key::new(holder.0, PENDING, 0), Key::new(holder.0, PENDING, u64::MAX))
}

fn parse(key: Key, value: &Value) -> Result<Release> {
    let wrong = |source| VolumeError::Record { key, source };
    let item = PendingItem::parse(value).map_err(wrong)?;
    Ok(Release::from_item(EpochId(key.object), &item))
}
