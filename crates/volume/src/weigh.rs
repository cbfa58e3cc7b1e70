//! The space of a subvolume, and the part that its deletion now would free: by one scan.
//!
//! ```text
//!   its own pointers    written since its first epoch           no other has them by snapshot
//!   the sibling's       what the sibling has dropped, and it    the sibling, in their parent's
//!   deadlist            has not                                 place, releases it: `release`
//! ```
//!
//! It is the deletion (`deletion`) as a dry run: the same items are walked, the same decision is
//! made for each, and nothing is applied. The remaining shares decide about blocks that were
//! reflinked: they become free if all their references go, of which several may be in this
//! subvolume. So references to such blocks are returned to the caller, which adds them up
//! ([`Tally`]): a step is bounded, and the daemon remembers nothing. Memory for that is about a
//! hundred bytes for each 128 KiB that are shared by reflink.
//!
//! Data only: nodes are left out. While other tasks write or deletions run, the result has no
//! single moment; else it is exact.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use copyhold_format::item::{Content, EXTENT, Extent, WINDOW_BLOCKS, share_key};
use copyhold_pool::{KeptNodes, Pool};
use copyhold_table::PartialItems;
use copyhold_types::{BlockAddr, EpochId, Key, NodePtr, Run};

use crate::error::{Result, VolumeError};
use crate::release::{Damage, Evaluation, Missing, Release};
use crate::segment::{Segment, Window, window_of, windows};
use crate::stored::{dead_segment, fetch, keys, share_segment};
use crate::volumes::{Subvol, Volumes};

/// Levels of the family that are climbed at a time.
const LEVELS: u32 = 64;

/// The scope of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighing {
    /// All that it holds.
    All,
    /// Only pointers that may be exclusive: the total is not known then.
    Exclusive,
}

/// Where a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeighAt {
    Files(Key),
    Dropped(Key),
}

/// References to blocks that were reflinked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRun {
    pub run: Run,
    /// References that would go with the subvolume.
    pub drops: u32,
    /// References beyond the first, in the pool.
    pub shares: u32,
    /// Whether the subvolume holds it, as far as this step knows.
    pub held: bool,
}

/// The result of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weighed {
    /// Blocks with one reference.
    pub held: u64,
    /// Of them, those that would become free.
    pub exclusive: u64,
    pub shared: Vec<SharedRun>,
    pub next: Option<WeighAt>,
}

/// The results of steps, added up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    held: u64,
    exclusive: u64,
    shared: BTreeMap<BlockAddr, Window<Several>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Several {
    drops: u32,
    shares: u32,
    held: bool,
}

impl Tally {
    pub fn add(&mut self, step: &Weighed) {
        self.held += step.held;
        self.exclusive += step.exclusive;
        for &SharedRun { run, drops, shares, held } in &step.shared {
            for part in windows(run) {
                let empty = || Window::new(Vec::new()).expect("nothing is in order");
                let window = self.shared.entry(window_of(part.addr)).or_insert_with(empty);
                window.update(part, |_, known| {
                    let known = known.unwrap_or(Several { drops: 0, shares, held: false });
                    Some(Several { drops: known.drops + drops, shares, held: known.held | held })
                });
            }
        }
    }

    /// Blocks that the subvolume holds, each once.
    pub fn total(&self) -> u64 {
        self.held + self.blocks(|several| several.held)
    }

    /// Blocks that would become free were it deleted.
    pub fn exclusive(&self) -> u64 {
        self.exclusive + self.blocks(|several| several.drops > several.shares)
    }

    fn blocks(&self, which: impl Fn(&Several) -> bool) -> u64 {
        let segments = self.shared.values().flat_map(|window| window.segments());
        let these = segments.filter(|segment| which(&segment.mark));
        these.map(|segment| u64::from(segment.run.blocks)).sum()
    }
}

impl WeighAt {
    pub const START: WeighAt = WeighAt::Files(Key::MIN);
}

impl Volumes {
    /// One step of weighing a live subvolume, over about `most` items; where the files end, the
    /// drops of its sibling begin.
    pub async fn weigh(
        &self,
        subvol: &Subvol,
        what: Weighing,
        at: WeighAt,
        most: usize,
    ) -> Result<Weighed> {
        match at {
            WeighAt::Files(from) => self.weigh_files(subvol, what, from, most).await,
            WeighAt::Dropped(from) => self.weigh_dropped(subvol, from, most).await,
        }
    }

    async fn weigh_files(
        &self,
        subvol: &Subvol,
        what: Weighing,
        from: Key,
        most: usize,
    ) -> Result<Weighed> {
        let leaf = self.leaf(subvol)?;
        let wants = |ptr: &NodePtr| what == Weighing::All || leaf.owns(ptr.epoch);
        let PartialItems { items, next } = self.partial_items(subvol, from, most, &wants).await?;
        let next = next.map_or(WeighAt::Dropped(Key::MIN), WeighAt::Files);
        let mut weighed = Weighed { next: Some(next), ..Weighed::default() };
        for (key, value) in items {
            let Some(value) = value.filter(|_| key.kind == EXTENT) else { continue };
            let wrong = |source| VolumeError::Record { key, source };
            let pointer = Extent::parse(&value).map_err(wrong)?.pointer;
            let drops = u32::from(leaf.owns(pointer.epoch));
            if drops > 0 || what == Weighing::All {
                self.add(&mut weighed, pointer.run, drops, true).await?;
            }
        }
        Ok(weighed)
    }

    async fn weigh_dropped(&self, subvol: &Subvol, from: Key, most: usize) -> Result<Weighed> {
        let mut weighed = Weighed::default();
        let found = {
            let leaf = self.leaf(subvol)?;
            let tree = subvol.family.read_tree();
            tree.sibling(leaf.id).and_then(|sibling| leaf.parent.zip(sibling.deadlist))
        };
        // Alone in its family, it owns all that it holds.
        let Some((parent, set)) = found else { return Ok(weighed) };
        let items = self.pool.range(set, from, Key::MAX, most).await?;
        if items.len() == most {
            let next = items.last().and_then(|(key, _)| key.successor());
            weighed.next = next.map(WeighAt::Dropped);
        }
        for (key, value) in items {
            let segment = dead_segment(set, key, &value)?;
            if segment.mark.content == Content::Data {
                let release = Release::of_dead(parent, EpochId(key.object), &segment);
                for (run, drops) in self.dropped(subvol, release).await? {
                    self.add(&mut weighed, run, drops, false).await?;
                }
            }
        }
        Ok(weighed)
    }

    /// The references that the release of this one would drop.
    async fn dropped(&self, subvol: &Subvol, release: Release) -> Result<Vec<(Run, u32)>> {
        let (mut dropped, mut todo) = (Vec::new(), vec![release]);
        let kept = KeptNodes::default();
        while !todo.is_empty() {
            let missing = {
                let tree = subvol.family.read_tree();
                let _burial = subvol.family.lock_burial();
                let look = self.stored().with(&kept);
                let mut evaluation = Evaluation::new(&tree, &look).climbing(LEVELS).weighing();
                for release in std::mem::take(&mut todo) {
                    match evaluation.release(release) {
                        // The family is another one by now.
                        Err(Damage::NoHolder { .. }) => {}
                        released => released?,
                    }
                }
                dropped.append(&mut evaluation.take_dropped());
                let outcome = evaluation.take();
                todo = outcome.pending;
                outcome.missing
            };
            fetch(&self.pool, &missing, &kept).await?;
        }
        Ok(dropped)
    }

    /// Adds a run of which `drops` references would go.
    async fn add(&self, weighed: &mut Weighed, run: Run, drops: u32, held: bool) -> Result<()> {
        let mut alone = |run: Run| {
            weighed.held += u64::from(run.blocks) * u64::from(held);
            weighed.exclusive += u64::from(run.blocks) * u64::from(drops > 0);
        };
        if !self.state.sharing.load(Ordering::Acquire) {
            alone(run);
            return Ok(());
        }
        for part in windows(run) {
            let shares = self.shares(window_of(part.addr)).await?;
            let mut window =
                Window::new(shares).ok_or(Damage::Segments(Missing::Shares(part.addr)))?;
            window.update(part, |run, shares| {
                match shares {
                    None => alone(run),
                    Some(shares) => weighed.shared.push(SharedRun { run, drops, shares, held }),
                }
                shares
            });
        }
        Ok(())
    }

    /// The segments of the table of shares in a window.
    async fn shares(&self, window: BlockAddr) -> Result<Vec<Segment<u32>>> {
        let (from, to) = keys(share_key(window));
        let items = self.pool.range(Pool::SHARES, from, to, WINDOW_BLOCKS as usize).await?;
        let segments = items.iter().map(|(key, value)| share_segment(*key, value));
        Ok(segments.collect::<std::result::Result<_, _>>()?)
    }
}
