//! The effect of a dropped pointer: a share removed, space freed, or a line on a deadlist.
//!
//! ```text
//!   a holder drops pointers of a run         the holder: an epoch, nothing below it holds them now
//!     owned      shares of the run?    yes → one is taken
//!                                      no  → it is free, its origin's owner is refunded
//!     inherited  has the sibling dropped   no  → on the holder's deadlist
//!                it, too?                  yes → off the sibling's; the parent is the holder now
//! ```
//!
//! Parts of a run may go different ways. The decision is made from the tables at the moment it
//! is applied (R4), by look-ups that never wait: where one would have to read a node, and where a
//! pointer climbs far, the rest becomes a *pending* release, to be taken up later (R1, R28).
//! Releases are multisets: later is not different.
//!
//! An evaluation sees its own changes over the stored state; at its end it returns, for each
//! window that it touched, the differences. Its caller has the locks that keep others from
//! changing the same windows until the edits are applied (R16).
//!
//! RELEASE-L1  A pointer older than its family's first epoch is damage.
//! RELEASE-L2  As many references are dropped as there are: one more than the shares of a block, at
//!             most.
//! RELEASE-L3  With [`Evaluation::within_credit`], edits and pending releases never exceed the
//!             credit. A part that would exceed it becomes a pending release.

use std::collections::{BTreeMap, BTreeSet};

use copyhold_format::FormatError;
use copyhold_format::item::{Content, DeadItem, PendingItem, ShareItem, dead_key, share_key};
use copyhold_pool::EDITS_PER_RELEASE;
use copyhold_table::{Cached, Edit};
use copyhold_types::{BlockAddr, EpochId, Key, Pointer, Run, TableId};

use crate::family::{Epoch, Family};
use crate::segment::{Segment, Window, window_of, windows};

/// How many levels a pointer climbs before the rest is left for later.
const CLIMB_MAX: u32 = 4;

/// A deadlist's mark of blocks: `count` pointers of the set's epoch key were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead {
    pub content: Content,
    pub count: u32,
    pub origin: EpochId,
}

/// A window of a deadlist set, for the pointers of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadWindow {
    pub set: TableId,
    pub epoch: EpochId,
    pub window: BlockAddr,
}

/// Look-ups in tables, without waiting.
pub trait Lookup {
    fn dead(&self, at: DeadWindow) -> Result<Cached<Vec<Segment<Dead>>>, Damage>;

    /// Counts of shares in the window that begins at this block.
    fn shares(&self, window: BlockAddr) -> Result<Cached<Vec<Segment<u32>>>, Damage>;

    /// Whether nothing at all is shared: then shares need no look-up.
    fn nothing_is_shared(&self) -> bool;
}

/// `count` pointers that an epoch, and all below it, does not hold any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    pub holder: EpochId,
    pub pointer: Pointer,
    pub content: Content,
    pub count: u32,
}

/// Space that is no longer referenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    pub run: Run,
    pub content: Content,
    pub origin: EpochId,
}

/// A node has to be read before this can be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    Dead(DeadWindow),
    Shares(BlockAddr),
}

/// A table that edits belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EditTable {
    Deadlist(TableId),
    Shares,
}

/// The result of evaluated releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub edits: Vec<(EditTable, Key, Edit)>,
    pub freed: Vec<Freed>,
    pub pending: Vec<Release>,
    /// The nodes that the pending ones wait for.
    pub missing: BTreeSet<Missing>,
}

/// Pointers and tables that contradict each other; nothing may be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("{pointer:?} is dropped by epoch {holder}, which is not in its family")]
    NoHolder { holder: EpochId, pointer: Pointer },
    #[error("{pointer:?} is older than the family that drops it (RELEASE-L1)")]
    TooOld { pointer: Pointer },
    #[error("{run:?} is dropped more often than it is referred to (RELEASE-L2)")]
    TooOften { run: Run },
    #[error("{run:?} belongs to epoch {said} and {found} at once")]
    Origin { run: Run, said: EpochId, found: EpochId },
    #[error("segments of {0:?} overlap or cross their window (SEGMENT-G1)")]
    Segments(Missing),
    #[error("item {key} of {place:?}: {source}")]
    Item { place: EditTable, key: Key, source: FormatError },
}

/// A window as it was, and as it is to be.
struct Overlay<M> {
    stored: Vec<Segment<M>>,
    now: Window<M>,
    /// Edits between the two.
    edits: usize,
}

/// Evaluates releases of one family, which is held still meanwhile.
pub struct Evaluation<'a> {
    family: &'a Family,
    look: &'a dyn Lookup,
    dead: BTreeMap<DeadWindow, Overlay<Dead>>,
    shares: BTreeMap<BlockAddr, Overlay<u32>>,
    outcome: Outcome,
    climb_max: u32,
    /// Instead of taking shares: the references to drop.
    dropped: Option<Vec<(Run, u32)>>,
    /// Edits that the transaction has credit for. `None`: the caller obtains credit for the
    /// outcome.
    credit: Option<usize>,
    /// Edits of all windows so far.
    edits: usize,
    /// Parts not evaluated yet; each may still need one edit, as a pending release.
    parts_left: usize,
    /// Drops by siblings are not seen (`Sabotage::BlindBuries`).
    pub(crate) blind: bool,
}

impl<M: Copy + Eq> Overlay<M> {
    fn load(cached: Cached<Vec<Segment<M>>>, at: Missing) -> Result<Option<Self>, Damage> {
        let Cached::Known(stored) = cached else { return Ok(None) };
        let now = Window::new(stored.clone()).ok_or(Damage::Segments(at))?;
        Ok(Some(Overlay { stored, now, edits: 0 }))
    }

    /// Counts its edits again. Returns the old count and the new one.
    fn recount(&mut self) -> (usize, usize) {
        let (before, now) = (&self.stored, self.now.segments());
        let stays = |was: &Segment<M>| now.iter().any(|segment| segment.run.addr == was.run.addr);
        let gone = before.iter().filter(|was| !stays(was)).count();
        let edits = gone + now.iter().filter(|segment| !before.contains(segment)).count();
        (std::mem::replace(&mut self.edits, edits), edits)
    }

    /// The edits from the stored state to the present one, which is stored now: deletes, then
    /// puts.
    fn take_edits(&mut self, put: impl Fn(&Segment<M>) -> (Key, Edit)) -> Vec<(Key, Edit)> {
        let now = self.now.segments().to_vec();
        let before = std::mem::replace(&mut self.stored, now.clone());
        let stays = |was: &Segment<M>| now.iter().any(|segment| segment.run.addr == was.run.addr);
        let gone = before.iter().filter(|was| !stays(was)).map(|was| (put(was).0, Edit::Delete));
        let news = now.iter().filter(|segment| !before.contains(segment));
        gone.chain(news.map(&put)).collect()
    }
}

impl<'a> Evaluation<'a> {
    pub fn new(family: &'a Family, look: &'a dyn Lookup) -> Evaluation<'a> {
        Evaluation {
            family,
            look,
            dead: BTreeMap::new(),
            shares: BTreeMap::new(),
            outcome: Outcome::default(),
            climb_max: CLIMB_MAX,
            dropped: None,
            credit: None,
            edits: 0,
            parts_left: 0,
            blind: false,
        }
    }

    /// Only reports the references that would be dropped ([`Self::take_dropped`]). Shares, which
    /// this ignores, then decide about the free space. The [result](Self::take) is not to be
    /// applied.
    pub fn weighing(mut self) -> Evaluation<'a> {
        self.dropped = Some(Vec::new());
        self
    }

    pub fn take_dropped(&mut self) -> Vec<(Run, u32)> {
        self.dropped.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// For releases that are taken up from among the pending ones, and may climb further.
    pub fn climbing(mut self, levels: u32) -> Evaluation<'a> {
        self.climb_max = levels;
        self
    }

    /// Limits the outcome to [`EDITS_PER_RELEASE`] edits for each release (RELEASE-L3).
    pub fn within_credit(mut self) -> Evaluation<'a> {
        self.credit = Some(0);
        self
    }

    /// Whether there is credit for the evaluated releases, and for leaving so many parts more.
    fn fits(&self, parts: usize) -> bool {
        let all = self.edits + self.outcome.pending.len() + self.parts_left + parts;
        self.credit.is_none_or(|credit| all <= credit)
    }

    fn note_count(&mut self, (old, new): (usize, usize)) {
        self.edits = self.edits - old + new;
    }

    pub fn family(&self) -> &'a Family {
        self.family
    }

    pub fn release(&mut self, release: Release) -> Result<(), Damage> {
        let Release { holder, pointer, .. } = release;
        let damage = Damage::NoHolder { holder, pointer };
        let epoch = self.family.get(holder).ok_or(damage)?;
        let is_weighed = self.dropped.is_some();
        if epoch.owns(pointer.epoch) && !is_weighed && self.is_unshared(release.content) {
            return self.give_up(release, pointer.run, release.count);
        }
        let parts = windows(pointer.run).count();
        if let Some(credit) = &mut self.credit {
            // A run lies in two windows at most: an extent is no longer than one, a node is
            // shorter.
            debug_assert!(parts <= EDITS_PER_RELEASE, "{parts} windows of {pointer:?}");
            *credit += EDITS_PER_RELEASE;
        }
        self.parts_left += parts;
        for run in windows(pointer.run) {
            let part = Release { pointer: Pointer { run, ..pointer }, ..release };
            self.parts_left -= 1;
            self.release_part(epoch, part, 0)?;
        }
        Ok(())
    }

    /// Adds a reference to a run that is one already: a share. `false`: nothing is done, since a
    /// node has to be read first.
    pub fn share(&mut self, run: Run) -> Result<bool, Damage> {
        let known: Result<Vec<bool>, Damage> =
            windows(run).map(|part| self.load_shares(part)).collect();
        if known?.contains(&false) {
            return Ok(false);
        }
        for part in windows(run) {
            let overlay = self.shares.get_mut(&window_of(part.addr)).expect("it was loaded");
            overlay.now.update(part, |_, count| Some(count.unwrap_or(0) + 1));
            let (old, new) = overlay.recount();
            self.note_count((old, new));
            // A reflink has credit for the shares that it adds.
            self.credit = self.credit.map(|credit| (credit + new).saturating_sub(old));
        }
        Ok(true)
    }

    /// The outcome since the last call. It is to be applied before the next evaluation by another;
    /// more may be released then, over this outcome.
    pub fn take(&mut self) -> Outcome {
        for (at, overlay) in &mut self.dead {
            let place = EditTable::Deadlist(at.set);
            overlay.edits = 0;
            let edits = overlay.take_edits(|segment| dead_put(at.epoch, segment));
            self.outcome.edits.extend(edits.into_iter().map(|(key, edit)| (place, key, edit)));
        }
        for overlay in self.shares.values_mut() {
            overlay.edits = 0;
            let edits = overlay.take_edits(share_put).into_iter();
            self.outcome.edits.extend(edits.map(|(key, edit)| (EditTable::Shares, key, edit)));
        }
        (self.edits, self.parts_left) = (0, 0);
        self.credit = self.credit.map(|_| 0);
        std::mem::take(&mut self.outcome)
    }

    /// Nodes are never shared by reflink.
    fn is_unshared(&self, content: Content) -> bool {
        content == Content::Node || (self.shares.is_empty() && self.look.nothing_is_shared())
    }

    /// `release` lies in one window.
    fn release_part(&mut self, at: &Epoch, release: Release, climbed: u32) -> Result<(), Damage> {
        let release = Release { holder: at.id, ..release };
        match at.owns(release.pointer.epoch) {
            true => self.unshare(release),
            false if climbed > self.climb_max => {
                self.leave(release);
                Ok(())
            }
            false => self.bury(at, release, climbed),
        }
    }

    /// Takes shares where there are any; space without shares is free.
    fn unshare(&mut self, release: Release) -> Result<(), Damage> {
        let Release { pointer, content, count, .. } = release;
        if let Some(dropped) = &mut self.dropped {
            dropped.push((pointer.run, count));
            return Ok(());
        }
        if self.is_unshared(content) {
            return self.give_up(release, pointer.run, count);
        }
        if !self.load_shares(pointer.run)? {
            self.leave(release);
            return Ok(());
        }
        let mut left = Vec::new();
        let window = window_of(pointer.run.addr);
        let overlay = self.shares.get_mut(&window).expect("it was loaded");
        let before = overlay.now.update(pointer.run, |part, shares| {
            let shares = shares.unwrap_or(0);
            let taken = shares.min(count);
            left.push((part, count - taken));
            Some(shares - taken).filter(|&shares| shares > 0)
        });
        let count = overlay.recount();
        self.note_count(count);
        if !self.fits(0) {
            let overlay = self.shares.get_mut(&window).expect("it was loaded");
            overlay.now = before;
            let count = overlay.recount();
            self.note_count(count);
            self.leave(release);
            return Ok(());
        }
        left.into_iter().try_for_each(|(part, count)| self.give_up(release, part, count))
    }

    /// The last `count` references to a run are gone.
    fn give_up(&mut self, release: Release, run: Run, count: u32) -> Result<(), Damage> {
        match count {
            0 => return Ok(()),
            1 => {}
            _ => return Err(Damage::TooOften { run }),
        }
        let Release { pointer: Pointer { origin, .. }, content, .. } = release;
        if let Some(last) = self.outcome.freed.last_mut()
            && (last.content, last.origin) == (content, origin)
            && last.run.addr.device() == run.addr.device()
            && last.run.end() == run.addr.block()
        {
            last.run = Run::new(last.run.addr, last.run.blocks + run.blocks);
        } else {
            self.outcome.freed.push(Freed { run, content, origin });
        }
        Ok(())
    }

    /// Puts on this epoch's deadlist the pointers that its sibling still has, and continues with
    /// its parent for the pointers that the sibling had dropped.
    fn bury(&mut self, at: &Epoch, release: Release, climbed: u32) -> Result<(), Damage> {
        let Release { pointer, content, count, .. } = release;
        let (Some(sibling), Some(mine)) = (self.family.sibling(at.id), at.deadlist) else {
            return Err(Damage::TooOld { pointer });
        };
        let window =
            |set| DeadWindow { set, epoch: pointer.epoch, window: window_of(pointer.run.addr) };
        let mine = window(mine);
        let theirs = window(sibling.deadlist.expect("FAMILY-F2: siblings have deadlists"));
        // Both, so that nothing is done by halves.
        if !self.load_dead(theirs)? | !self.load_dead(mine)? {
            self.leave(release);
            return Ok(());
        }
        let (mut parts, mut wrong) = (Vec::new(), None);
        let overlay = self.dead.get_mut(&theirs).expect("it was loaded");
        let blind = self.blind;
        let before = overlay.now.update(pointer.run, |part, dead| {
            let Some(dead) = dead.filter(|_| !blind) else {
                parts.push((part, 0));
                return dead;
            };
            if dead.origin != pointer.origin || dead.content != content {
                wrong = Some((part, dead.origin));
            }
            let climbs = dead.count.min(count);
            parts.push((part, climbs));
            let left = dead.count - climbs;
            (left > 0).then_some(Dead { count: left, ..dead })
        });
        if let Some((run, found)) = wrong {
            return Err(Damage::Origin { run, said: pointer.origin, found });
        }
        let parent = at.parent.and_then(|parent| self.family.get(parent));
        let parent = parent.expect("RECOUNT-E3: a sibling's parent");
        let mut mine_before = None;
        for (run, climbs) in &parts {
            let before = self.put_dead(mine, *run, release, count - climbs)?;
            mine_before = mine_before.or(before);
        }
        parts.retain(|(_, climbs)| *climbs > 0);
        self.recount_dead([theirs, mine]);
        if !self.fits(parts.len()) {
            for (at, before) in [(theirs, Some(before)), (mine, mine_before)] {
                let overlay = self.dead.get_mut(&at).expect("it was loaded");
                before.into_iter().for_each(|before| overlay.now = before);
            }
            self.recount_dead([theirs, mine]);
            self.leave(release);
            return Ok(());
        }
        self.parts_left += parts.len();
        for (run, climbs) in parts {
            self.parts_left -= 1;
            let release = Release { pointer: Pointer { run, ..pointer }, count: climbs, ..release };
            self.release_part(parent, release, climbed + 1)?;
        }
        Ok(())
    }

    fn recount_dead(&mut self, windows: [DeadWindow; 2]) {
        for at in windows {
            let count = self.dead.get_mut(&at).expect("it was loaded").recount();
            self.note_count(count);
        }
    }

    /// Returns the window before the change; `None`: `count` is 0, and nothing changed.
    fn put_dead(
        &mut self,
        at: DeadWindow,
        run: Run,
        release: Release,
        count: u32,
    ) -> Result<Option<Window<Dead>>, Damage> {
        if count == 0 {
            return Ok(None);
        }
        let Release { pointer: Pointer { origin, .. }, content, .. } = release;
        let mut wrong = None;
        let overlay = self.dead.get_mut(&at).expect("it was loaded");
        let before = overlay.now.update(run, |part, dead| match dead {
            None => Some(Dead { content, count, origin }),
            Some(dead) => {
                if dead.origin != origin || dead.content != content {
                    wrong = Some(Damage::Origin { run: part, said: origin, found: dead.origin });
                }
                Some(Dead { count: dead.count + count, ..dead })
            }
        });
        wrong.map_or(Ok(Some(before)), Err)
    }

    fn leave(&mut self, release: Release) {
        self.outcome.pending.push(release);
    }

    /// Whether the window is known.
    fn load_dead(&mut self, at: DeadWindow) -> Result<bool, Damage> {
        if !self.dead.contains_key(&at) {
            let missing = Missing::Dead(at);
            let Some(overlay) = Overlay::load(self.look.dead(at)?, missing)? else {
                self.outcome.missing.insert(missing);
                return Ok(false);
            };
            self.dead.insert(at, overlay);
        }
        Ok(true)
    }

    /// Whether the window of `run` is known.
    fn load_shares(&mut self, run: Run) -> Result<bool, Damage> {
        let window = window_of(run.addr);
        if !self.shares.contains_key(&window) {
            let missing = Missing::Shares(window);
            let Some(overlay) = Overlay::load(self.look.shares(window)?, missing)? else {
                self.outcome.missing.insert(missing);
                return Ok(false);
            };
            self.shares.insert(window, overlay);
        }
        Ok(true)
    }
}

impl Release {
    /// As it is kept while it is pending.
    pub fn item(&self) -> PendingItem {
        let Release { holder: _, pointer, content, count } = *self;
        PendingItem { pointer, content, count }
    }

    pub fn from_item(holder: EpochId, item: &PendingItem) -> Release {
        let PendingItem { pointer, content, count } = *item;
        Release { holder, pointer, content, count }
    }

    /// The release that a segment of a deadlist recorded, for `holder` to drop once more.
    pub fn of_dead(holder: EpochId, epoch: EpochId, segment: &Segment<Dead>) -> Release {
        let Dead { content, count, origin } = segment.mark;
        let pointer = Pointer { run: segment.run, epoch, origin };
        Release { holder, pointer, content, count }
    }
}

fn dead_put(epoch: EpochId, segment: &Segment<Dead>) -> (Key, Edit) {
    let Segment { run, mark: Dead { content, count, origin } } = *segment;
    let item = DeadItem { blocks: run.blocks, content, count, origin };
    (dead_key(epoch, run.addr), Edit::put(&item.encode()))
}

fn share_put(segment: &Segment<u32>) -> (Key, Edit) {
    let Segment { run, mark: count } = *segment;
    let item = ShareItem { blocks: run.blocks, count };
    (share_key(run.addr), Edit::put(&item.encode()))
}
