//! The invariants, counted from what live subvolumes refer to.

use std::collections::BTreeMap;

use copyhold_format::item::{Content, ShareItem};
use copyhold_types::{BlockAddr, EpochId, Run};

use crate::world::{SHARES, World, dead_segment};

/// For each block and each (family, pointer's epoch): the most pointers that one subvolume has.
/// Those are references of their own; what other subvolumes have of them is inherited.
type References = BTreeMap<u64, BTreeMap<(EpochId, EpochId), u32>>;

impl World {
    pub(crate) fn recount(&self) -> Result<(), String> {
        self.check_families()?;
        let mut arrived = self.clone();
        arrived.config.unknown = 0;
        arrived.drain()?;
        arrived.check_space()
    }

    /// RECOUNT-E3, RECOUNT-E4 and RECOUNT-E5.
    fn check_families(&self) -> Result<(), String> {
        for family in self.families.values() {
            family.check().map_err(|bad| bad.to_string())?;
            for epoch in family.epochs() {
                let Some(sibling) = family.sibling(epoch.id) else { continue };
                let sets = [epoch, sibling].map(|epoch| &self.tables[&epoch.deadlist.unwrap()]);
                for (key, value) in sets[0] {
                    if epoch.owns(EpochId(key.object)) {
                        return Err(format!("RECOUNT-E4: {key} is epoch {}'s own", epoch.id));
                    }
                    let run = dead_segment(*key, value).run;
                    let overlaps = sets[1].iter().any(|(other, value)| {
                        let theirs = dead_segment(*other, value).run;
                        other.object == key.object && overlap(run, theirs)
                    });
                    if overlaps {
                        return Err(format!("RECOUNT-E5: {key} was dropped by siblings"));
                    }
                }
            }
        }
        Ok(())
    }

    /// RECOUNT-E1, RECOUNT-E2 and RECOUNT-E6, when nothing is on its way.
    fn check_space(&self) -> Result<(), String> {
        let (mut held, mut references) = (BTreeMap::new(), References::new());
        for subvol in self.live() {
            let (leaf, family) = (self.leaf(subvol), self.family_of(subvol).0);
            let tree = self.materialised(leaf.id);
            let mut mine: References = BTreeMap::new();
            for &(block, epoch, origin) in tree.blocks.values() {
                held.insert(block, (origin, Content::Data));
                *mine.entry(block).or_default().entry((family, epoch)).or_default() += 1;
            }
            for (block, counts) in mine {
                for (of, count) in counts {
                    let most = references.entry(block).or_default().entry(of).or_default();
                    *most = count.max(*most);
                }
            }
        }
        for (epoch, tree) in &self.trees {
            for node in tree.nodes.iter().flat_map(BTreeMap::values) {
                for block in node.run.addr.block()..node.run.end() {
                    held.insert(block, (node.origin, Content::Node));
                }
            }
            if !self.families.values().any(|family| family.get(*epoch).is_some()) {
                return Err(format!("the tree of epoch {epoch} is nobody's"));
            }
        }
        if held != self.allocated {
            let differs = |(block, what): (&u64, _)| {
                let found = self.allocated.get(block);
                (found != Some(what)).then_some((*block, found.copied()))
            };
            let live: Vec<_> = held.iter().filter_map(differs).take(5).collect();
            let unheld = self.allocated.iter().filter(|(block, _)| !held.contains_key(block));
            let leaked: Vec<_> = unheld.take(5).collect();
            return Err(format!("RECOUNT-E1: live but not allocated {live:?}, leaked {leaked:?}"));
        }
        self.check_usage()?;
        self.check_shares(&references)
    }

    fn check_usage(&self) -> Result<(), String> {
        let mut usage = BTreeMap::new();
        self.allocated.values().for_each(|of| *usage.entry(*of).or_default() += 1);
        let mut counted = self.usage.clone();
        counted.retain(|_, blocks| *blocks != 0);
        match counted == usage {
            true => Ok(()),
            false => Err(format!("RECOUNT-E2: counted {counted:?}, is {usage:?}")),
        }
    }

    fn check_shares(&self, references: &References) -> Result<(), String> {
        let mut shares = BTreeMap::new();
        for (key, value) in &self.tables[&SHARES] {
            let item = ShareItem::parse(*key, value).map_err(|e| e.to_string())?;
            let start = BlockAddr::from_raw(key.offset).block();
            (start..start + u64::from(item.blocks)).for_each(|block| {
                shares.insert(block, item.count);
            });
        }
        let counts = references.iter().map(|(&block, of)| (block, of.values().sum::<u32>() - 1));
        let wanted: BTreeMap<u64, u32> = counts.filter(|(_, shares)| *shares > 0).collect();
        match shares == wanted {
            true => Ok(()),
            false => Err(format!("RECOUNT-E6: shares are {shares:?}, should be {wanted:?}")),
        }
    }

    fn materialised(&self, epoch: EpochId) -> &crate::world::Tree {
        &self.trees[&epoch]
    }
}

fn overlap(one: Run, other: Run) -> bool {
    one.addr.block() < other.end() && other.addr.block() < one.end()
}
