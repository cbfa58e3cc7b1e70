//! The point at which a pool with a damaged log continues, if the administrator discards the rest
//! (`cut-tail`, R2, R14).
//!
//! Problem.  The log can be followed up to some txg; later ones were durable, and are lost with
//!           all between. The uberblock may name a head that moved because of one of those: the
//!           edits before it were flushed to bases that no remaining batch names. Replaying from
//!           that head would lose old changes, too, and take blocks in use for free.
//! Idea.     A state is whole when the uberblock that it begins at names nothing durable that comes
//!           after it. If the newest does, an older one whose log is still there is taken: its head
//!           is further back, and the root is in the last batch.
//! Order.    The chosen older uberblock is written as the newest and flushed; then the unreadable
//!           log is overwritten; then comes the first batch of the new incarnation, which hides
//!           the discarded txgs (R13). Until that is durable, each opening reports the damage
//!           again.
//!
//! LOGCUT-D1  No pool is written from a state that is not whole.
//! LOGCUT-D2  An error of the device ends nothing (R13): if unreadable blocks may be more of the
//!            log, readers use the log before them, and it is cut only on demand.
//!
//! Blocks that the lost txgs freed may have been used again: a remaining reference to them fails
//! its checksum, and `check` lists it.

use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Damage, Recovered, Ring, recover_readable};

use crate::config::OpenOptions;
use crate::uberblocks::Uberblocks;
use crate::{PoolError, Sabotage};

/// Uberblocks that may still have their log (R6).
const OLDER: usize = 3;

/// The start of recovery, and its result.
pub(crate) struct Start {
    pub(crate) uberblock: Uberblock,
    /// Heads of all uberblocks up to it, its own last: their log is kept (R6).
    pub(crate) heads: Vec<u64>,
    pub(crate) recovered: Recovered,
    /// A description of the discarded part of the log, if any.
    pub(crate) cut: Option<String>,
}

/// The uberblocks that may serve in place of the newest, each state once. A discarded one knows
/// more than the newest does, and leads past the cut.
fn older_than(newest: &Uberblock, all: &[Uberblock]) -> Vec<Uberblock> {
    let is_older = |it: &&Uberblock| it.durable <= newest.durable && it.head <= newest.head;
    let mut older: Vec<Uberblock> = all.iter().rev().filter(is_older).cloned().collect();
    older.dedup_by(|next, it| *next == Uberblock { number: next.number, ..it.clone() });
    older.into_iter().skip(1).take(OLDER).collect()
}

impl Start {
    pub(crate) async fn find(
        uberblocks: &Uberblocks,
        ring: &Ring,
        options: &OpenOptions,
    ) -> Result<Start, PoolError> {
        let heads = uberblocks.all.iter().map(|uberblock| uberblock.head).collect();
        let uberblock = uberblocks.newest().clone();
        let mut recovered = recover_readable(ring, &uberblock).await;
        let (damage, in_doubt) = (recovered.damage.take(), recovered.in_doubt.take());
        let newest = Start { uberblock, heads, recovered, cut: None };
        if let Some(unreadable) = in_doubt {
            if !options.read_only && !options.cut_tail {
                return Err(unreadable.into());
            }
            if damage.is_none() {
                let cut = format!("the part that cannot be read: {unreadable}");
                return Ok(Start { cut: Some(cut), ..newest });
            }
        }
        match damage {
            None => Ok(newest),
            Some(_) if options.limits.breaks(Sabotage::CutInTheMiddle) => Ok(newest),
            Some(damage) if !options.read_only && !options.cut_tail => Err(damage.into()),
            Some(damage) => {
                let older = older_than(&newest.uberblock, &uberblocks.all);
                if newest.is_whole() {
                    return Ok(newest.told(&damage, ""));
                }
                match newest.go_back(ring, older).await {
                    Some(start) => Ok(start.told(&damage, "")),
                    None if !options.read_only => Err(hopeless(&damage)),
                    None => {
                        Ok(newest.told(&damage, ", and of older changes one cannot tell which"))
                    }
                }
            }
        }
    }

    /// Whether the state at the end of the readable log has existed.
    fn is_whole(&self) -> bool {
        self.uberblock.durable.get() <= self.recovered.last
    }

    /// The same with an older uberblock. Positions, txgs and incarnations that were used since
    /// stay used.
    async fn go_back(&self, ring: &Ring, older: Vec<Uberblock>) -> Option<Start> {
        let newest = &self.recovered;
        for uberblock in
            older.into_iter().filter(|u| newest.next_position <= u.head + ring.blocks())
        {
            let mut recovered = recover_readable(ring, &uberblock).await;
            recovered.next_position = recovered.next_position.max(newest.next_position);
            recovered.next_txg = recovered.next_txg.max(newest.next_txg);
            recovered.incarnation = recovered.incarnation.max(newest.incarnation);
            recovered.confirmed = true; // The newest uberblock comes after it.
            let uberblock = Uberblock { number: self.uberblock.number, ..uberblock };
            // It is written as the newest, and those behind it mean nothing.
            let heads = vec![uberblock.head];
            let start = Start { uberblock, heads, recovered, cut: None };
            if start.is_whole() {
                return Some(start);
            }
        }
        None
    }

    fn told(self, damage: &Damage, more: &str) -> Start {
        let damage = Damage { last: self.recovered.last, ..damage.clone() };
        Start { cut: Some(damage.lost() + more), ..self }
    }
}

fn hopeless(damage: &Damage) -> PoolError {
    let why = format!(
        "{damage}. Here it cannot be cut: the newest uberblock stands on what is lost, and the log \
         of the ones before it is gone, too. Copy what can be read (-o ro) to another pool"
    );
    PoolError::damaged("the log", why)
}
