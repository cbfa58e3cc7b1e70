//! The entries that the front end is to forget.
//!
//! Entries of the tenant with most beyond its part come first, cold ones, a few of each shard.
//! Entries that the front end believes for long expire there before they are removed, since it
//! hides their look-ups; at the limit this holds only for names that it asked for again. Otherwise
//! nothing would be removed in the turn in which all names expire.

use std::sync::atomic::Ordering::Relaxed;

use copyhold_memory::MemoryOwner;

use super::shard::{Picked, Shard};
use super::{AbsentNames, NameEvent, SHARDS};
use crate::NodeId;

/// Tenants without a name to take that a choice passes over.
const OWNERS: usize = 8;

/// An entry that the front end is to forget.
#[derive(Debug)]
pub struct Victim {
    pub dir: NodeId,
    /// The front end is to ask again, and may keep it.
    pub expires: bool,
    shard: usize,
    picked: Picked,
}

impl Victim {
    pub fn name(&self) -> &[u8] {
        &self.picked.name
    }
}

impl AbsentNames {
    /// Whether entries are to be removed ahead of the limit: less than a twentieth is free.
    pub fn is_short(&self) -> bool {
        let limit = self.scarce.limit();
        limit > 0 && self.scarce.used() > limit - limit / 20
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        let limit = self.scarce.limit();
        limit > 0 && self.scarce.used() >= limit
    }

    /// Whether entries of this tenant are to be removed ahead of the limit.
    pub fn is_short_for(&self, owner: &MemoryOwner) -> bool {
        self.is_short() && self.scarce.has_used_up_part(owner)
    }

    /// The free part of the limit, in thousandths.
    pub fn free(&self) -> u64 {
        let limit = self.scarce.limit().max(1);
        limit.saturating_sub(self.scarce.used()) / limit.div_ceil(1000)
    }

    /// About `most` cold entries of the tenant with most beyond its part, to be forgotten by
    /// the front end. Each is then handed to [`Self::confirm`] and [`Self::finish`].
    pub fn pick(&self, most: usize) -> Vec<Victim> {
        for _ in 0..OWNERS {
            let Some(owner) = self.scarce.most_over(&self.memory) else { break };
            let victims = self.pick_of(&owner, most);
            if !victims.is_empty() {
                return victims;
            }
            // The kernel is forgetting all names of this tenant, or look-ups have hit them.
            self.scarce.pass_over(&owner);
        }
        Vec::new()
    }

    /// Cold entries of this tenant.
    pub(super) fn pick_of(&self, owner: &MemoryOwner, most: usize) -> Vec<Victim> {
        let now = self.is_full();
        self.pick_by(most, |shard, each, picked| shard.pick(owner.slot(), each, now, picked))
    }

    /// As [`Self::pick`], of this tenant, hot entries too.
    pub fn pick_all(&self, owner: &MemoryOwner, most: usize) -> Vec<Victim> {
        self.pick_by(most, |shard, each, picked| shard.pick_any(owner.slot(), each, picked))
    }

    fn pick_by(
        &self,
        most: usize,
        pick: impl Fn(&mut Shard, usize, &mut Vec<Picked>),
    ) -> Vec<Victim> {
        let mut victims = Vec::with_capacity(most);
        let each = most.div_ceil(SHARDS);
        let first = self.turn.fetch_add(1, Relaxed) as usize;
        let mut picked = Vec::new();
        for at in (first..first + SHARDS).map(|at| at % SHARDS) {
            pick(&mut self.shards[at].0.lock(), each, &mut picked);
            victims.extend(picked.drain(..).filter_map(|picked| {
                let dir = NodeId::from_raw(picked.dir)?;
                Some(Victim { dir, expires: picked.expires, shard: at, picked })
            }));
        }
        victims
    }

    /// Whether the front end is still to forget it: the name is absent, without a look-up since.
    pub fn confirm(&self, victim: &Victim) -> bool {
        let mut shard = self.shards[victim.shard].0.lock();
        victim.expires || shard.confirm(&victim.picked, &self.scarce)
    }

    /// The front end cannot forget it now.
    pub fn put_back(&self, victim: &Victim) {
        if !victim.expires {
            self.shards[victim.shard].0.lock().put_back(&victim.picked, &self.scarce);
        }
    }

    /// The front end has forgotten the name.
    pub fn finish(&self, victim: &Victim, event: NameEvent) {
        if !victim.expires {
            let mut shard = self.shards[victim.shard].0.lock();
            shard.finish(&victim.picked, event, self.forgets_asked, &self.scarce);
        }
    }
}
