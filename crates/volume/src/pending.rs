//! Releases that were left for later, taken up in bounded steps.
//!
//! Look-ups there must not wait, so the nodes that they need are read before and kept, and the step
//! is tried again. Where that does not help, since the tables change faster, the unknown ones stay
//! pending, and the rest is done. Releases obstructed by damage are set aside (`aside`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use copyhold_format::item::{PENDING, PendingItem};
use copyhold_pool::{
    Cached, Credit, KeptNodes, Pool, RELEASE_EDIT_BYTES, Tier, Transaction, Value,
};

const _: () = assert!(RELEASE_EDIT_BYTES == Key::BYTES + PendingItem::BYTES);
use copyhold_types::{EpochId, Key};

use crate::error::{Result, VolumeError};
use crate::family::{Family, FamilyId};
use crate::release::{Damage, Evaluation, Outcome, Release};
use crate::sabotage::Sabotage;
use crate::stored::{Stored, fetch};
use crate::volumes::{FamilyCell, Volumes};

/// Releases that one step takes.
pub(crate) const RELEASES_PER_STEP: usize = 64;
/// Levels that a release climbs in one step.
const LEVELS_PER_STEP: u32 = 64;
/// How often missing nodes are read before a step does without.
const TRIES: usize = 4;
/// Tier of each step: an accepted deletion can always continue.
const TIER: Tier = Tier::FinishSubvolume;
/// Bytes of a step's records.
const RECORD_BYTES: usize = 512;
/// Spare edits, should other releases change the result of a step while it waits for credit.
const SPARE_EDITS: usize = 32;

/// How long a decision waits that is made early.
const MEANWHILE: Duration = Duration::from_millis(200);

/// Credit for a step of so many edits that frees so many runs.
struct Held {
    edits: usize,
    runs: usize,
    credit: Credit,
}

/// Pending releases of one family, as they are stored.
type Batch = (Arc<FamilyCell>, Vec<(Key, Value)>);

impl Volumes {
    /// Takes up pending releases that are not set aside ([`Aside`]). Whether there were any.
    pub(crate) async fn pending_step(&self) -> Result<bool> {
        let items = self.next_pending().await?;
        let any = !items.is_empty();
        let mut by_family: BTreeMap<FamilyId, Batch> = BTreeMap::new();
        for (key, value) in items {
            let family = self.state.map.read().epochs.get(&EpochId(key.object)).cloned();
            match family {
                Some(family) => by_family
                    .entry(family.id)
                    .or_insert_with(|| (family, Vec::new()))
                    .1
                    .push((key, value)),
                None => self.set_aside(key, &no_holder(key, &value)),
            }
        }
        // Releases that are refused space keep no other family waiting.
        let (mut taken, mut refused) = (by_family.is_empty() && any, None);
        for (family, items) in by_family.into_values() {
            match self.take_up_each(&family, &items).await {
                Err(error) if error.is_full() => refused = Some(error),
                done => {
                    done?;
                    taken = true;
                }
            }
        }
        match refused {
            Some(refused) if !taken => Err(refused),
            _ => Ok(any),
        }
    }

    /// Takes up releases of one family, together if nothing is damaged; sets those aside that
    /// cannot be.
    async fn take_up_each(&self, family: &FamilyCell, items: &[(Key, Value)]) -> Result<()> {
        match self.take_up(family, items).await {
            Err(error) if error.is_damage() => {}
            done => return done,
        }
        for (at, (key, _)) in items.iter().enumerate() {
            match self.take_up(family, &items[at..=at]).await {
                Err(error) if error.is_damage() => self.set_aside(*key, &error),
                done => done?,
            }
        }
        Ok(())
    }

    /// All of these releases of one family, or none.
    async fn take_up(&self, family: &FamilyCell, items: &[(Key, Value)]) -> Result<()> {
        let mut tx = Transaction::new();
        items.iter().for_each(|(key, _)| tx.delete(Pool::PENDING, *key));
        let releases: Result<Vec<Release>> =
            items.iter().map(|(key, value)| parse(*key, value)).collect();
        self.release_step(family, &releases?, tx).await
    }

    fn set_aside(&self, key: Key, error: &VolumeError) {
        let now = self.pool.runtime().now();
        if self.state.aside.lock().set(key, now) {
            let holder = EpochId(key.object);
            tracing::error!(
                "space released by epoch {holder} cannot be freed now; it is tried again after a \
                 pause: {error}"
            );
        }
    }

    /// The next pending releases that are not set aside.
    async fn next_pending(&self) -> Result<Vec<(Key, Value)>> {
        if !self.state.aside.lock().is_partly_unreadable() {
            match self.next_anywhere().await {
                Err(error) if error.is_damage() => {
                    tracing::error!("pending releases cannot all be read: {error}");
                    let now = self.pool.runtime().now();
                    self.state.aside.lock().set_partly_unreadable(now);
                }
                found => return found,
            }
        }
        self.next_by_holder().await
    }

    async fn next_anywhere(&self) -> Result<Vec<(Key, Value)>> {
        let others = self.state.aside.lock().others();
        for (from, to) in others {
            let items = self.pool.range(Pool::PENDING, from, to, RELEASES_PER_STEP).await?;
            if !items.is_empty() {
                return Ok(items);
            }
        }
        Ok(Vec::new())
    }

    /// Of the first holder whose releases can be read; those of holders before it are set aside.
    async fn next_by_holder(&self) -> Result<Vec<(Key, Value)>> {
        let holders: Vec<EpochId> = self.state.map.read().epochs.keys().copied().collect();
        for holder in holders {
            let (from, to) = self.state.aside.lock().rest_of(holder);
            if from >= to {
                continue;
            }
            match self.pool.range(Pool::PENDING, from, to, RELEASES_PER_STEP).await {
                Ok(items) if items.is_empty() => {}
                Ok(items) => return Ok(items),
                Err(error) => {
                    let error = VolumeError::from(error);
                    if !error.is_damage() {
                        return Err(error);
                    }
                    self.set_aside(to, &error);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Applies `tx` together with the outcome of the releases. Credit is for just that: a step
    /// that frees must not want the space of one that buries (R21).
    pub(crate) async fn release_step(
        &self,
        family: &FamilyCell,
        releases: &[Release],
        tx: Transaction,
    ) -> Result<()> {
        let mut tx = Some(tx);
        let mut held: Option<Held> = None;
        let kept = KeptNodes::default();
        if self.ledger().breaks(Sabotage::DecideEarly) {
            return self.release_decided_early(family, releases, tx.take()).await;
        }
        for attempt in 0.. {
            let (missing, wanted) = {
                let tree = family.read_tree();
                let _burial = family.lock_burial();
                let look = self.stored_locked().with(&kept);
                let outcome = self.evaluate(&tree, releases, &look)?;
                if !outcome.missing.is_empty() && attempt < TRIES {
                    (outcome.missing, None)
                } else {
                    let others = tx.as_ref().map_or(0, Transaction::len);
                    let edits = others + outcome.edits.len() + outcome.pending.len();
                    let freed = outcome.freed.len();
                    let enough = held.take().filter(|of| of.edits >= edits && of.runs >= freed);
                    let credit = enough.map(|held| held.credit);
                    let now = || self.pool.try_admit_freeing(TIER, edits, bytes_of(edits), freed);
                    if let Some(credit) = credit.or_else(now) {
                        let tx = tx.take().expect("it is applied once");
                        self.apply_decided(credit, tx, outcome, None)?;
                        return Ok(());
                    }
                    (BTreeSet::new(), Some((edits + SPARE_EDITS, freed + SPARE_EDITS)))
                }
            };
            fetch(&self.pool, &missing, &kept).await?;
            if let Some((edits, runs)) = wanted {
                let bytes = bytes_of(edits);
                let credit = self.pool.admit_freeing(TIER, edits, bytes, runs).await?;
                held = Some(Held { edits, runs, credit });
            }
        }
        unreachable!("a step is tried until it is applied")
    }

    /// Breaks R4: a decision is applied later, without a look at changes since.
    async fn release_decided_early(
        &self,
        family: &FamilyCell,
        releases: &[Release],
        tx: Option<Transaction>,
    ) -> Result<()> {
        let kept = KeptNodes::default();
        let look = || self.stored().with(&kept);
        let evaluate = || self.evaluate(&family.read_tree(), releases, &look());
        let mut outcome = evaluate()?;
        for _ in 0..TRIES {
            fetch(&self.pool, &outcome.missing, &kept).await?;
            outcome = evaluate()?;
        }
        let edits = outcome.edits.len() + outcome.pending.len() + SPARE_EDITS;
        let credit = self.pool.admit(TIER, edits, bytes_of(edits)).await?;
        self.pool.runtime().sleep(MEANWHILE).await;
        self.apply_decided(credit, tx.unwrap_or_default(), outcome, None).map(drop)
    }

    fn evaluate(&self, tree: &Family, releases: &[Release], look: &Stored<'_>) -> Result<Outcome> {
        let mut evaluation = Evaluation::new(tree, look).climbing(LEVELS_PER_STEP);
        releases.iter().try_for_each(|release| evaluation.release(*release))?;
        Ok(evaluation.take())
    }

    /// Whether a release of this holder is pending; `Unknown`: a node has to be read.
    pub(crate) fn has_pending(&self, holder: EpochId, kept: &KeptNodes) -> Cached<bool> {
        match kept.range_cached(&self.pool, Pool::PENDING, pending_of(holder), 1) {
            Cached::Known(items) => Cached::Known(!items.is_empty()),
            Cached::Unknown => Cached::Unknown,
        }
    }

    /// Reads the nodes that [`Self::has_pending`] needs.
    pub(crate) async fn fetch_pending(&self, holder: EpochId, kept: &KeptNodes) -> Result<()> {
        kept.range(&self.pool, Pool::PENDING, pending_of(holder), 1).await?;
        Ok(())
    }
}

/// The error of a release by an epoch that does not exist.
fn no_holder(key: Key, value: &Value) -> VolumeError {
    match parse(key, value) {
        Ok(Release { holder, pointer, .. }) => Damage::NoHolder { holder, pointer }.into(),
        Err(error) => error,
    }
}

fn bytes_of(edits: usize) -> usize {
    edits * RELEASE_EDIT_BYTES + RECORD_BYTES
}

fn pending_of(holder: EpochId) -> (Key, Key) {
    (Key::new(holder.0, PENDING, 0), Key::new(holder.0, PENDING, u64::MAX))
}

fn parse(key: Key, value: &Value) -> Result<Release> {
    let wrong = |source| VolumeError::Record { key, source };
    let item = PendingItem::parse(value).map_err(wrong)?;
    Ok(Release::from_item(EpochId(key.object), &item))
}
