//! Promises to a write before it is accepted: blocks of the pool, and room under the limits of its
//! payer (R23). Both go with the dirty data until it is installed.
//!
//! Mostly there is room at once. The work for lack of room is large and rare, so its future is on
//! the heap: it would make that of every operation as large.

use copyhold_pool::{Credit, Pool, PoolError, Reservation, Tier, Wanted};
use copyhold_runtime::yield_now;
use copyhold_types::{BLOCK_BYTES, Nanos};
use copyhold_volume::quota::{self, Exceeded, GroupId, Hold, QuotaError, Request, Resource};
use copyhold_volume::tenant_of;
use std::sync::Arc;
use std::time::Duration;

use crate::refusal_pace::{Pace, PerKind};
use crate::subvol::Subvol;
use crate::{Filesystem, FsError, Result};

/// How long a request takes steps that free space, before a limit refuses it; and how long it asks
/// again, before the pool is full for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Before it is looked again whether the kernel has forgotten the unlinked files; each time twice
/// as long, so often.
const FORGETTING: Duration = Duration::from_millis(2);
const LOOKS: u32 = 6;

/// Blocks to be claimed, and the hold that they are charged to.
#[derive(Debug)]
pub(crate) struct Promise {
    pub(crate) space: Reservation,
    pub(crate) hold: Hold,
}

/// Credit of a transaction, with the hold for the items that it adds to tables.
pub(crate) struct Charge {
    pub(crate) credit: Credit,
    pub(crate) hold: Hold,
}

impl From<Credit> for Charge {
    fn from(credit: Credit) -> Charge {
        Charge { credit, hold: Hold::nothing() }
    }
}

impl Promise {
    pub(crate) fn blocks(&self) -> u64 {
        self.space.blocks()
    }

    pub(crate) fn join(&mut self, other: Promise) {
        self.space.join(other.space);
        // A hold from before quotas were turned off and on again is released.
        drop(self.hold.join(other.hold));
    }

    pub(crate) fn split(&mut self, blocks: u64) -> Promise {
        let hold = self.hold.split(data(blocks));
        Promise { space: self.space.split(blocks), hold }
    }
}

/// The bytes that a block of data adds to nodes, in two copies: an extent takes 11 to 25 bytes in
/// a leaf.
const NODES_PER_BLOCK: u64 = 128;

/// The needs of `blocks` blocks of data.
pub(crate) fn data(blocks: u64) -> Request {
    let (data, metadata) = (blocks * BLOCK_BYTES as u64, blocks * NODES_PER_BLOCK);
    Request { data, metadata, ..Request::default() }
}

/// How many blocks a write wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// All or none.
    All,
    /// As many as there is room for.
    Some,
    /// All or none: content that becomes zeros. Blocks replace others, so a limit may be exceeded
    /// as by a change.
    Zeros,
}

impl Filesystem {
    /// A promise of `blocks` blocks, if there is room for them at once.
    pub(crate) fn promise_now(&self, subvol: &Subvol, blocks: u64) -> Result<Promise> {
        let hold = self.volumes.ledger().hold(subvol.id(), data(blocks), quota::Tier::Data)?;
        Ok(Promise { space: self.space_now(subvol, blocks)?, hold })
    }

    /// Blocks of the pool that are kept for the reserves of other subvolumes.
    fn kept(&self, subvol: &Subvol) -> u64 {
        self.volumes.ledger().kept_for_others(subvol.id()).div_ceil(BLOCK_BYTES as u64)
    }

    /// Blocks of the pool, as long as those that are kept for others are left.
    fn space_now(&self, subvol: &Subvol, blocks: u64) -> Result<Reservation> {
        let kept = self.kept(subvol);
        Ok(self.pool.reserve_now(Wanted { blocks, left: kept }, Tier::Write)?)
    }

    async fn space(&self, subvol: &Subvol, blocks: u64) -> Result<Reservation> {
        let kept = self.kept(subvol);
        match self.pool.reserve(Wanted { blocks, left: kept }, Tier::Write).await {
            Err(PoolError::Full { .. }) if kept > 0 => Err(FsError::Kept { blocks, kept }),
            space => Ok(space?),
        }
    }

    /// A promise of `blocks` blocks. Before a refusal this filesystem frees all that it can (R22).
    /// With [`Take::Some`], as many blocks as there is room for, and the error that refused the
    /// rest.
    pub(crate) async fn promise(
        self: &Arc<Self>,
        subvol: &Subvol,
        blocks: u64,
        take: Take,
    ) -> Result<(Option<Promise>, Option<FsError>)> {
        match self.promise_all(subvol, blocks).await {
            Err(refused) if take == Take::Some && refused.is_full() => {
                Ok((self.promise_most(subvol, blocks), Some(refused)))
            }
            promise => Ok((Some(promise?), None)),
        }
    }

    /// All of `blocks` blocks. Space of unlinked files is not refused because the kernel is still
    /// reporting its forgets.
    pub(crate) async fn promise_all(
        self: &Arc<Self>,
        subvol: &Subvol,
        blocks: u64,
    ) -> Result<Promise> {
        match self.promise_now(subvol, blocks) {
            Ok(promise) => Ok(promise),
            Err(_) => Box::pin(self.promise_patiently(subvol, blocks)).await,
        }
    }

    async fn promise_patiently(self: &Arc<Self>, subvol: &Subvol, blocks: u64) -> Result<Promise> {
        let (mut looks, until) = (0, refused_at(self.rt.now()));
        loop {
            // Before the request: a file removed meanwhile may come too late for this time.
            let is_over = looks > LOOKS || self.rt.now() > until;
            let is_last = looks > 0 && (is_over || !self.is_reaping());
            let refused = match self.promise_in_time(subvol, blocks).await {
                Err(refused) if refused.is_full() && !is_last => refused,
                promise => return promise,
            };
            if looks > 0 {
                self.rt.sleep(FORGETTING * 2_u32.pow(looks - 1)).await;
            }
            if let FsError::Quota(QuotaError::Exceeded(Exceeded { group, .. })) = refused {
                let pace = pace_of(self, subvol, group);
                let turn = pace.write_back.turn().await;
                if let Ok(promise) = self.promise_now(subvol, blocks) {
                    return Ok(promise);
                }
                let may_work = turn.begin(self.rt.now());
                match may_work {
                    true => self.write_back_and_reap().await,
                    false if looks == 0 => return Err(refused),
                    // A deletion has paid for a removal under way (SETTLE-P3).
                    false => self.reaper_idle().await,
                }
                if let Ok(promise) = self.promise_now(subvol, blocks) {
                    if may_work {
                        turn.note_room(self.rt.now());
                    }
                    return Ok(promise);
                }
            } else {
                self.write_back_and_reap().await;
            }
            looks += 1;
        }
    }

    /// All of `blocks` blocks, with space that is being freed.
    async fn promise_in_time(self: &Arc<Self>, subvol: &Subvol, blocks: u64) -> Result<Promise> {
        let hold = self.hold(subvol, data(blocks), quota::Tier::Data).await?;
        Ok(Promise { space: self.space(subvol, blocks).await?, hold })
    }

    /// The blocks that there is room for at once, fewer than `blocks`: power of two by power of
    /// two.
    fn promise_most(&self, subvol: &Subvol, blocks: u64) -> Option<Promise> {
        let mut most: Option<Promise> = None;
        let mut step = blocks.next_power_of_two() / 2;
        while step > 0 {
            let have = most.as_ref().map_or(0, Promise::blocks);
            if have + step <= blocks
                && let Ok(more) = self.promise_now(subvol, step)
            {
                match &mut most {
                    Some(most) => most.join(more),
                    None => most = Some(more),
                }
            }
            step /= 2;
        }
        most
    }

    /// Credit for a transaction of names and attributes, charged to its subvolume's owner.
    pub(crate) async fn charge(
        self: &Arc<Self>,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> Result<Charge> {
        self.charge_for(subvol, tier, edits, bytes, 0).await
    }

    /// As [`Self::charge`], of a transaction that makes `inodes` inodes.
    pub(crate) async fn charge_for(
        self: &Arc<Self>,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
        inodes: u64,
    ) -> Result<Charge> {
        let wanted = Request { inodes, ..Request::for_edits(edits, bytes) };
        let hold = self.hold(subvol, wanted, quota_tier(tier)).await;
        let hold = hold.inspect_err(|refused| self.report_refusal(subvol, refused))?;
        let credit = credit_for(self, subvol, tier, (edits, bytes), inodes).await?;
        Ok(Charge { credit, hold })
    }

    /// As [`Self::admit`], for a creation: waits for the reaper, whose locks come after those of
    /// directories ([`Self::hold_inodes`], R22).
    async fn admit_patiently(
        self: &Arc<Self>,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> Result<Credit> {
        let until = refused_at(self.rt.now());
        for look in 0..LOOKS {
            self.reaper_idle().await;
            // Read before the attempt: a file reaped later would be missed.
            let is_last = !self.is_reaping() || self.rt.now() > until;
            match self.admit(subvol, tier, edits, bytes).await {
                Err(refused) if refused.is_full() && !is_last => {}
                credit => return credit,
            }
            self.rt.sleep(FORGETTING * 2_u32.pow(look)).await;
        }
        self.admit(subvol, tier, edits, bytes).await
    }

    async fn admit(
        self: &Arc<Self>,
        subvol: &Subvol,
        tier: Tier,
        edits: usize,
        bytes: usize,
    ) -> Result<Credit> {
        // A transaction that tidies up may take space kept for others: it frees more.
        if tier == Tier::Write && self.kept(subvol) > 0 {
            drop(self.space(subvol, 1).await?);
        }
        Ok(self.pool.admit(tier, edits, bytes).await?)
    }

    pub(crate) async fn hold(
        self: &Arc<Self>,
        subvol: &Subvol,
        wanted: Request,
        tier: quota::Tier,
    ) -> Result<Hold> {
        match self.volumes.ledger().hold(subvol.id(), wanted, tier) {
            Err(QuotaError::Exceeded(Exceeded { resource: Resource::Inodes, .. })) => {
                Box::pin(self.hold_inodes(subvol, wanted, tier)).await
            }
            Err(QuotaError::Exceeded(_)) => {
                Box::pin(self.hold_patiently(subvol, wanted, tier)).await
            }
            other => {
                let hold = other?;
                if tier == quota::Tier::Delete {
                    subvol.deletions.note_one();
                }
                Ok(hold)
            }
        }
    }

    async fn hold_patiently(
        self: &Arc<Self>,
        subvol: &Subvol,
        wanted: Request,
        tier: quota::Tier,
    ) -> Result<Hold> {
        // Edits take less than was held for them, and freed space comes back (R22). No lock of
        // an inode may be waited for: the caller has some.
        if let Some(hold) = hold_settled(self, subvol, wanted, tier).await? {
            return Ok(hold);
        }
        let until = refused_at(self.rt.now());
        loop {
            let group = match self.volumes.ledger().hold(subvol.id(), wanted, tier) {
                Err(QuotaError::Exceeded(of)) if self.rt.now() < until => of.group,
                hold => return Ok(hold?),
            };
            if !self.volumes.free_step_for(group).await {
                // Another may have taken the last step, and was waited for.
                return Ok(self.volumes.ledger().hold(subvol.id(), wanted, tier)?);
            }
            yield_now().await;
        }
    }

    /// Files that were unlinked count until they are reaped, which is soon done (R22): the kernel
    /// may still be reporting its forgets. A task that makes a file has locks of directories only,
    /// which come before those that the reaper waits for.
    async fn hold_inodes(
        self: &Arc<Self>,
        subvol: &Subvol,
        wanted: Request,
        tier: quota::Tier,
    ) -> Result<Hold> {
        let ledger = self.volumes.ledger();
        for look in 0..LOOKS {
            self.reaper_idle().await;
            if let Ok(hold) = ledger.hold(subvol.id(), wanted, tier) {
                return Ok(hold);
            }
            self.rt.sleep(FORGETTING * 2_u32.pow(look)).await;
        }
        self.reaper_idle().await;
        Ok(ledger.hold(subvol.id(), wanted, tier)?)
    }
}

/// As [`Filesystem::promise_now`], of blocks that are made dirty in this way.
pub(crate) fn promise_now_to(
    fs: &Filesystem,
    subvol: &Subvol,
    blocks: u64,
    take: Take,
) -> Result<Promise> {
    if take != Take::Zeros {
        return fs.promise_now(subvol, blocks);
    }
    let hold = fs.volumes.ledger().hold(subvol.id(), data(blocks), quota::Tier::Change)?;
    Ok(Promise { space: fs.space_now(subvol, blocks)?, hold })
}

/// The part of [`Filesystem::charge_for`] that the pool gives.
pub(crate) async fn credit_for(
    fs: &Arc<Filesystem>,
    subvol: &Subvol,
    tier: Tier,
    (edits, bytes): (usize, usize),
    inodes: u64,
) -> Result<Credit> {
    match fs.admit(subvol, tier, edits, bytes).await {
        Err(refused) if refused.is_full() && inodes > 0 && fs.is_reaping() => {
            Box::pin(fs.admit_patiently(subvol, tier, edits, bytes)).await
        }
        credit => credit,
    }
}

/// Counts the edits of a transaction that finishes an accepted removal, and so is refused by no
/// limit. Items of one file lie together, so nothing but the ends of their range is copied.
pub(crate) fn owe(fs: &Filesystem, subvol: &Subvol, needs: Request) {
    subvol.deletions.note_one();
    fs.volumes.ledger().owes(subvol.id(), needs.metadata);
}

/// The part of a limit that a transaction of this tier may take.
pub(crate) fn quota_tier(tier: Tier) -> quota::Tier {
    match tier {
        Tier::Write => quota::Tier::Write,
        Tier::Change => quota::Tier::Change,
        _ => quota::Tier::Delete,
    }
}

/// When a request that begins now is refused at the latest.
fn refused_at(now: Nanos) -> Nanos {
    now + PATIENCE.as_nanos() as Nanos
}

/// The pace of work before `group` refuses a request of this owner.
fn pace_of(fs: &Filesystem, subvol: &Subvol, group: GroupId) -> PerKind<Pace> {
    let tenant = tenant_of(&fs.volumes, subvol.id());
    fs.refusals.paces.of(group, tenant, &subvol.deletions, fs.rt.now())
}

/// A hold in the room that a flush of the owner's edits makes; `None` if it makes too little, or
/// if flushes made none lately (`refusal_pace`).
async fn hold_settled(
    fs: &Filesystem,
    subvol: &Subvol,
    wanted: Request,
    tier: quota::Tier,
) -> Result<Option<Hold>> {
    let ledger = fs.volumes.ledger();
    let group = match ledger.hold(subvol.id(), wanted, tier) {
        Err(QuotaError::Exceeded(of)) => of.group,
        hold => return Ok(Some(hold?)),
    };
    let pace = pace_of(fs, subvol, group);
    let turn = pace.flush.turn().await;
    match ledger.hold(subvol.id(), wanted, tier) {
        Err(QuotaError::Exceeded(_)) => {}
        hold => return Ok(Some(hold?)),
    }
    if !has_edits(&fs.pool, subvol) || !turn.begin(fs.rt.now()) {
        return Ok(None);
    }
    if let Err(error) = fs.pool.flush_edits_of(subvol.table()).await {
        tracing::debug!(%error, "a limit is looked at again, though a flush has failed");
        fs.pool.check_writable()?;
    }
    match ledger.hold(subvol.id(), wanted, tier) {
        Err(QuotaError::Exceeded(_)) => Ok(None),
        hold => {
            turn.note_room(fs.rt.now());
            Ok(Some(hold?))
        }
    }
}

/// Whether a flush turns an estimate of a subvolume's unflushed edits into their real space.
fn has_edits(pool: &Arc<Pool>, subvol: &Subvol) -> bool {
    let table = pool.table(subvol.table());
    table.unflushed_bytes() > 0 || table.under().is_some()
}
