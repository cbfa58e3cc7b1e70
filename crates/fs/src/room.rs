//! Room under a limit for a change that is built under locks which other calls need.
//!
//! Problem.  Before a limit refuses a change, its owner's edits are flushed and steps of deletions
//!           are taken, for up to half a minute. Write-back for all tenants takes the map lock of
//!           each dirty file, and moves between all subvolumes take one lock.
//! Idea.     Under its locks, a change asks the limit once. If the limit refuses, the change ends
//!           with its locks, the call waits for the room, and the change begins again with it.
//!
//! ROOM-W1  A call that waits for room under a limit has no map lock, no lock of moves or of
//!          preallocated space, and no lock of a directory outside of the limited subvolume.

use std::sync::Arc;

use copyhold_volume::quota::{self, Hold, QuotaError, Request};

use crate::subvol::Subvol;
use crate::{Filesystem, FsError, Result};

/// Waits of one call: other calls may change the needs of a change between its attempts.
const WAITS_MAX: u32 = 8;

/// The room of one owner for the attempts of a change.
#[derive(Default)]
pub(crate) struct Room {
    /// Since a limit refused an attempt.
    refusal: Option<Box<Refusal>>,
}

#[derive(Default)]
struct Refusal {
    /// The last request, if a limit refused it.
    refused: Option<(Request, quota::Tier)>,
    /// Obtained by a wait.
    hold: Option<(Hold, quota::Tier)>,
    waits: u32,
}

impl Room {
    /// For an attempt; does not wait.
    pub(crate) fn hold(
        &mut self,
        fs: &Filesystem,
        owner: &Subvol,
        wanted: Request,
        tier: quota::Tier,
    ) -> Result<Hold> {
        if let Some(refusal) = &mut self.refusal {
            refusal.refused = None;
            match refusal.hold.take() {
                Some((hold, of)) if of == tier && covers(hold.left(), wanted) => return Ok(hold),
                other => drop(other),
            }
        }
        let hold = fs.volumes.ledger().hold(owner.id(), wanted, tier);
        if matches!(hold, Err(QuotaError::Exceeded(_))) {
            self.refusal.get_or_insert_default().refused = Some((wanted, tier));
        }
        let hold = hold?;
        if tier == quota::Tier::Delete {
            owner.deletions.note_one();
        }
        Ok(hold)
    }

    /// The last attempt ended because the owner had no room.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.refused.is_some())
    }

    /// Waits for the room that an attempt lacked; then there may be another one. Returns `error`,
    /// with which the attempt ended, if that has another cause. The caller has no lock of ROOM-W1.
    pub(crate) async fn wait(
        &mut self,
        fs: &Arc<Filesystem>,
        owner: &Subvol,
        error: FsError,
    ) -> Result<()> {
        let Some(refusal) = &mut self.refusal else { return Err(error) };
        let Some((wanted, tier)) = refusal.refused.take() else { return Err(error) };
        let hold = match refusal.waits < WAITS_MAX {
            true => Box::pin(fs.hold(owner, wanted, tier)).await,
            false => Err(error),
        };
        refusal.waits += 1;
        let hold = hold.inspect_err(|error| fs.report_refusal(owner, error))?;
        refusal.hold = Some((hold, tier));
        Ok(())
    }
}

/// Of requests for metadata and inodes.
fn covers(has: Request, wanted: Request) -> bool {
    let is_all = Request { metadata: 0, inodes: 0, ..wanted } == Request::default();
    is_all && has.metadata >= wanted.metadata && has.inodes >= wanted.inodes
}
