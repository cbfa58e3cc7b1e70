//! What goes on in the background: pending releases, and deletions step by step (R17, R18).

use copyhold_format::item::{Content, Step, SubvolState, epoch_key, subvol_key};
use copyhold_types::{Key, SubvolId, TableId};
use copyhold_volume::family::FamilyId;
use copyhold_volume::release::Release;

use crate::world::{Broken, PENDING, SYSTEM, World, dead_segment};

impl World {
    /// One step of something that waits.
    pub(crate) fn background(&mut self) -> Result<(), String> {
        let pending: Vec<(Key, Release)> = self.pending().collect();
        if !pending.is_empty() && self.below(2) == 0 {
            let (key, release) = pending[self.below(pending.len() as u64) as usize];
            return self.take_up(key, release);
        }
        let dying = self.dying();
        if dying.is_empty() {
            return Ok(());
        }
        let subvol = dying[self.below(dying.len() as u64) as usize];
        self.deletion_step(subvol).map(drop)
    }

    fn take_up(&mut self, key: Key, release: Release) -> Result<(), String> {
        let family = self.families.values().find(|family| family.get(release.holder).is_some());
        let family = family.ok_or(format!("{release:?} has no family"))?.id();
        let levels = self.below(3) as u32;
        let outcome = self.evaluate(family, Some(levels), &[release])?;
        self.tables.get_mut(&PENDING).unwrap().remove(&key);
        self.apply(outcome)
    }

    /// Deletions that may go on: one in each family, the one that has begun (R17).
    fn dying(&self) -> Vec<SubvolId> {
        let dying = |state| matches!(state, SubvolState::Dying(_));
        let all = self.subvols.iter().filter(|(_, item)| dying(item.state));
        let all: Vec<SubvolId> = all.map(|(&subvol, _)| subvol).collect();
        if self.config.broken == Some(Broken::ConcurrentDeletions) {
            return all;
        }
        let begun =
            |subvol: &SubvolId| self.subvols[subvol].state != SubvolState::Dying(Step::Settle);
        let mut families: Vec<FamilyId> = Vec::new();
        let mut chosen = Vec::new();
        let (first, then): (Vec<_>, Vec<_>) = all.iter().copied().partition(begun);
        for subvol in first.into_iter().chain(then) {
            let family = self.home(subvol);
            if !family.is_some_and(|family| families.contains(&family)) {
                families.extend(family);
                chosen.push(subvol);
            }
        }
        chosen
    }

    /// The family that a deletion is of: where its leaf is, or was.
    fn home(&self, subvol: SubvolId) -> Option<FamilyId> {
        let with = |found: &dyn Fn(&copyhold_volume::family::Family) -> bool| {
            self.families.values().find(|family| found(family)).map(|family| family.id())
        };
        match self.subvols[&subvol].state {
            SubvolState::Dying(Step::Rebury { heir, .. }) => {
                with(&|family| family.get(heir).is_some())
            }
            _ => with(&|family| family.leaf(subvol).is_some()),
        }
    }

    fn go_on(&mut self, subvol: SubvolId, step: Step) {
        self.subvols.get_mut(&subvol).unwrap().state = SubvolState::Dying(step);
        self.put_subvol(subvol);
    }

    /// Whether anything could be done.
    fn deletion_step(&mut self, subvol: SubvolId) -> Result<bool, String> {
        let SubvolState::Dying(step) = self.subvols[&subvol].state else { unreachable!() };
        match step {
            Step::Settle => {
                let leaf = self.leaf(subvol).id;
                if self.config.broken == Some(Broken::WalkedUnsettled) {
                    self.trees.get_mut(&leaf).unwrap().dirty.clear();
                }
                self.settle(leaf)?;
                self.go_on(subvol, Step::Walk(Key::MIN));
                Ok(true)
            }
            Step::Walk(from) => self.walk(subvol, from).map(|()| true),
            Step::Absorb => self.absorb(subvol),
            Step::Rebury { heir, inherited, left } => {
                let family = self.home(subvol).ok_or("an heir without family")?;
                let items = self.tables.get_mut(&inherited).unwrap();
                let mut releases = Vec::new();
                while let Some((key, value)) = items.pop_first() {
                    let (epoch, segment) =
                        (copyhold_types::EpochId(key.object), dead_segment(key, &value));
                    releases.push(Release::of_dead(heir, epoch, &segment));
                    if releases.len() == 2 {
                        break;
                    }
                }
                if releases.is_empty() {
                    self.go_on(subvol, Step::Forget { sets: Some([inherited, left]) });
                }
                self.release(family, &releases)?;
                Ok(true)
            }
            Step::Forget { sets } => {
                for set in sets.into_iter().flatten() {
                    self.tables.remove(&set);
                }
                self.subvols.remove(&subvol);
                self.tables.get_mut(&SYSTEM).unwrap().remove(&subvol_key(subvol));
                Ok(true)
            }
        }
    }

    /// Releases what is owned under one node; what is older is skipped with all below.
    fn walk(&mut self, subvol: SubvolId, from: Key) -> Result<(), String> {
        let (leaf, family) = (self.leaf(subvol), self.family_of(subvol));
        let tree = &self.trees[&leaf.id];
        let nodes = tree.nodes.as_ref().ok_or("a tree is walked that is not settled")?;
        let Some((&group, &node)) = nodes.range(from.object..).next() else {
            self.go_on(subvol, Step::Absorb);
            return Ok(());
        };
        let owned = |epoch| leaf.owns(epoch);
        let mut releases = Vec::new();
        let blocks = tree.blocks.range(World::group_blocks(group));
        for (_, &(block, epoch, origin)) in blocks.filter(|(_, block)| owned(block.1)) {
            if !owned(node.epoch) {
                return Err("an owned block under a node that is not".into());
            }
            let run = copyhold_types::Run::new(crate::world::addr(block), 1);
            let pointer = copyhold_types::Pointer { run, epoch, origin };
            releases.push(Release { holder: leaf.id, pointer, content: Content::Data, count: 1 });
        }
        if owned(node.epoch) {
            let content = Content::Node;
            releases.push(Release { holder: leaf.id, pointer: node, content, count: 1 });
        }
        self.go_on(subvol, Step::Walk(World::group_key(group + 1)));
        self.release(family, &releases)
    }

    fn absorb(&mut self, subvol: SubvolId) -> Result<bool, String> {
        let (leaf, family) = (self.leaf(subvol), self.family_of(subvol));
        let holders = [Some(leaf.id), leaf.parent];
        if self.pending().any(|(_, release)| holders.contains(&Some(release.holder))) {
            return Ok(false);
        }
        self.trees.remove(&leaf.id);
        let Some(done) = self.families.get_mut(&family).unwrap().absorb(subvol) else {
            self.families.remove(&family);
            self.forget_epochs(&[leaf.id]);
            self.go_on(subvol, Step::Forget { sets: None });
            return Ok(true);
        };
        self.forget_epochs(&[leaf.id, done.parent.id]);
        self.put_epoch(family, done.heir);
        let heir = *self.families[&family].get(done.heir).unwrap();
        if heir.is_live() {
            self.subvols.get_mut(&heir.subvol).unwrap().first = heir.first;
            self.put_subvol(heir.subvol);
        }
        let (inherited, left): (TableId, TableId) = (done.inherited, done.left);
        self.tables.remove(&left);
        self.tables.entry(left).or_default();
        self.go_on(subvol, Step::Rebury { heir: done.heir, inherited, left });
        Ok(true)
    }

    fn forget_epochs(&mut self, epochs: &[copyhold_types::EpochId]) {
        let system = self.tables.get_mut(&SYSTEM).unwrap();
        epochs.iter().for_each(|&epoch| drop(system.remove(&epoch_key(epoch))));
    }

    /// Brings all that waits to its end.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        for round in 0.. {
            let pending: Vec<(Key, Release)> = self.pending().collect();
            let idle = pending.is_empty();
            pending.into_iter().try_for_each(|(key, release)| self.take_up(key, release))?;
            let dying = self.dying();
            if idle && dying.is_empty() {
                break;
            }
            for subvol in dying {
                if self.subvols.contains_key(&subvol) {
                    self.deletion_step(subvol)?;
                }
            }
            if round > 10_000 {
                return Err("the background work does not end".into());
            }
        }
        Ok(())
    }

    pub(crate) fn delete_everything(&mut self) -> Result<(), String> {
        self.config.unknown = 0;
        for subvol in self.live() {
            self.delete(subvol);
            self.drain()?;
            self.recount()?;
        }
        Ok(())
    }
}
