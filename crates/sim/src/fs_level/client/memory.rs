//! A client's changes of limits of memory groups, and its orders to evict.
//!
//! All five limits of a subvolume are a part of the client's tree: after a recovery they are those
//! after the same number of steps (LIMITS-M1, LIMITS-M2). The client chooses by dice of its own, so
//! all else that it does stays what it was.

use copyhold_memory::GroupLimits;

use super::{Client, Done};
use crate::dice::Dice;
use crate::fs_level::tree::ObjectId;
use crate::memory_orders;

/// How a client is about memory groups.
pub(crate) struct Operator {
    pub(crate) dice: Dice,
    /// It changes limits.
    pub(crate) limits: bool,
}

impl Client {
    /// Mostly nothing.
    pub(super) async fn manage_memory(&mut self) -> Done {
        if !self.operator.limits || !self.operator.dice.one_in(8) {
            return Ok(());
        }
        let all: Vec<ObjectId> = self.tree().subvols().into_iter().map(|(_, id)| id).collect();
        let order = self.operator.dice.below(8);
        if all.is_empty() || order == 0 {
            return self.limit_shared_memory().await;
        }
        let subvol = self.operator.dice.pick(&all);
        if order < 3 {
            let number = self.world().nodes[&subvol].subvol;
            memory_orders::evict(&self.fs, &mut self.operator.dice, number);
            return Ok(());
        }
        self.limit_memory(subvol).await
    }

    /// Changes one or all of the limits of a subvolume.
    async fn limit_memory(&mut self, subvol: ObjectId) -> Done {
        let mut tree = self.tree();
        let was = tree.memory.get(&subvol).copied().unwrap_or_default();
        let limits = memory_orders::other_limits(&mut self.operator.dice, was);
        tree.memory.insert(subvol, limits);
        let number = self.world().nodes[&subvol].subvol;
        self.begin("memory limits", tree, &[]);
        let set = memory_orders::set_limits(&self.fs, Some(number), &limits).await;
        let set = self.given("memory limits", set)?.unwrap_or(false);
        self.end(set);
        let owner = self.fs.volumes().subvol(number).map(|subvol| subvol.owner().limits());
        assert!(!set || owner == Some(limits), "LIMITS-M1: {owner:?}");
        Ok(())
    }

    /// All clients change these, so no client expects them to stay.
    async fn limit_shared_memory(&mut self) -> Done {
        let dice = &mut self.operator.dice;
        let limits = memory_orders::other_limits(dice, GroupLimits::default());
        let set = memory_orders::set_limits(&self.fs, None, &limits).await;
        self.given("memory limits", set).map(drop)
    }
}
