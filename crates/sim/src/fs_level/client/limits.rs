//! A client's operations on quotas, and its knowledge of the remaining quota.
//!
//! Not all charges are known: freed blocks may be pending, and nodes count. So a bound is predicted
//! on both sides: a write after which files refer to more data than a limit allows is refused; one
//! that leaves a wide margin is accepted (rule R23).

use std::collections::BTreeMap;

use copyhold_format::item::Limits;
use copyhold_fs::FsError;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{Ledger, LimitKind, QuotaError};

use super::{Client, Done};
use crate::fs_level::content::Content;
use crate::fs_level::counts::{self, Count};
use crate::fs_level::promises::{Holder, Promise};
use crate::fs_level::tree::{Dir, Kind, ObjectId, Tree};
use crate::fs_level::usage::Bytes;
use crate::fs_level::world::World;

/// More than nodes, unflushed edits and what is on its way ever take of a simulated pool.
pub(super) const MARGIN: u64 = 4 << 20;
/// More than a client ever has, with what is yet to be given back.
const INODES_MARGIN: u64 = 1 << 20;

/// The expected effect of limits on a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    none: bool,
    ample: bool,
    /// It was known while no client had turned quotas again.
    turns: u64,
}

impl Client {
    /// Sets a limit of one of its subvolumes, mostly to what is soon reached.
    pub(super) async fn set_limit(&mut self, subvol: ObjectId) -> Done {
        let (used, count) = {
            let world = self.world();
            let Some(node) = world.nodes.get(&subvol).filter(|_| world.usage.eras.is_on()) else {
                return Ok(());
            };
            let of = node.subvol;
            let used = used(&world, None).get(&of).map_or(0, |used| used.most);
            (used, world.counts(&BTreeMap::new()).get(&of).copied().unwrap_or_default())
        };
        let kinds = [LimitKind::Referenced, LimitKind::Inodes, LimitKind::Snapshots];
        let kind = self.dice.pick(&kinds);
        let mut near = |used: u64, bits: u64, margin: u64| {
            let near = used + self.dice.magnitude(bits);
            self.dice.pick(&[None, Some(near), Some(used + 2 * margin)])
        };
        let limit = match kind {
            LimitKind::Inodes => near(count.inodes, 4, INODES_MARGIN),
            LimitKind::Snapshots => near(count.snapshots, 2, INODES_MARGIN),
            _ => near(used, 19, MARGIN),
        };
        let holder = Holder::Subvol(subvol);
        // Not below what it is sure to get.
        let least = self.promised(holder).reserve;
        let limit = limit.map(|limit| limit.max(if kind == kinds[0] { least } else { 0 }));
        let promise = |mut was: Promise| {
            *match kind {
                LimitKind::Inodes => &mut was.limits.inodes,
                LimitKind::Snapshots => &mut was.limits.snapshots,
                _ => &mut was.limits.referenced,
            } = limit;
            was
        };
        let change = |ledger: &Ledger, id| ledger.limit(id, kind, limit);
        self.promise("limit", holder, promise, change).await
    }

    /// The known remaining quota for an inode in a directory.
    pub(super) fn room_for_inode(&self, tree: &Tree, dir: Dir) -> Room {
        let more = Count { inodes: 1, ..Count::default() };
        self.room_for_more(tree, tree.subvol_of(dir), more)
    }

    /// The known remaining quota for a snapshot, whose entry is to be in a directory.
    pub(super) fn room_for_snapshot(&self, tree: &Tree, source: ObjectId, dir: Dir) -> Room {
        let more = Count { snapshots: 1, ..Count::default() };
        let of_source = self.room_for_more(tree, Some(source), more);
        let copies = tree.within(source).into_iter();
        let world = self.world();
        let counts = |id: &ObjectId| {
            let is_root = tree.objects[id].kind == Kind::Subvol && *id != source;
            let is_real = !is_root && tree.objects[id].kind != Kind::Placeholder;
            world.usage.eras.counts(*id).filter(|_| is_real)
        };
        let (sure, doubtful): (Vec<_>, Vec<_>) =
            copies.filter_map(|id| counts(&id)).partition(|sure| *sure);
        let (inodes, doubtful) = (sure.len() as u64, doubtful.len() as u64);
        drop(world);
        let more = Count { inodes, doubtful, snapshots: 0 };
        let of_holder = self.room_for_more(tree, tree.subvol_of(dir), more);
        Room {
            none: of_source.none || of_holder.none,
            ample: of_source.ample && of_holder.ample,
            turns: of_source.turns,
        }
    }

    /// The remaining limits on inodes and snapshots of a subvolume and of its parent subvolumes.
    fn room_for_more(&self, tree: &Tree, subvol: Option<ObjectId>, more: Count) -> Room {
        let world = self.world();
        if !self.exact || !world.usage.eras.is_steadily_on() {
            return Room::default();
        }
        let counts = counts::of(tree, &world.usage, |_| 0);
        let generation = world.usage.eras.now().generation;
        let mut room = Room { none: false, ample: true, turns: world.usage.eras.turns() };
        let asked = subvol.into_iter().chain(tree.holders(subvol));
        for asked in asked {
            let holder = Holder::Subvol(asked);
            let limits = tree.promises.get(generation, holder).limits;
            let has = counts.get(&Some(asked)).copied().unwrap_or_default();
            // Bytes of nodes are not known, nor all that is in a group.
            room.ample &= limits.referenced.is_none();
            let above = tree.promises.above(generation, holder).into_iter();
            let mut above = above.map(|id| tree.promises.get(generation, Holder::Group(id)).limits);
            room.ample &= above.all(|limits| limits == Limits::default());
            let snapshots = limits.snapshots.filter(|_| more.snapshots > 0);
            // A snapshot has what is unlinked and not removed yet, too: of that nothing is known.
            let pairs = [
                (limits.inodes, (has.inodes, more.inodes), has.doubtful + more.doubtful),
                (snapshots, (has.snapshots, more.snapshots), 0),
            ];
            for (limit, (has, more), doubtful) in pairs {
                let Some(limit) = limit else { continue };
                room.none |= more > 0 && has + more > limit;
                room.ample &= has + more + doubtful + INODES_MARGIN <= limit;
            }
        }
        room
    }

    /// The known remaining quota for a write, which begins.
    pub(super) fn room_for(&self, id: ObjectId, offset: u64, bytes: &[u8]) -> Room {
        let mut world = self.world();
        if !self.exact {
            return Room::default();
        }
        let payer = world.nodes[&id].subvol;
        world.usage.write(payer, bytes);
        if !world.usage.eras.is_steadily_on() {
            return Room::default();
        }
        let mut room = Room { none: false, ample: true, turns: world.usage.eras.turns() };
        let tree = world.logs[self.id].now();
        let limited = limited(&world, tree, id);
        if limited.is_empty() {
            return room;
        }
        let mut changed = world.data[&id].now().clone();
        changed.write(offset, bytes);
        let [before, after] = [None, Some((id, &changed))].map(|change| used(&world, change));
        for (limit, members) in limited {
            let sum = |of: &BTreeMap<SubvolId, Bytes>| {
                let mut sum = Bytes::default();
                members.iter().filter_map(|member| of.get(member)).for_each(|of| sum.add(*of));
                sum
            };
            let (before, after) = (sum(&before), sum(&after));
            room.none |= after.least > limit && after.least > before.most;
            room.ample &= after.most + MARGIN <= limit;
        }
        room
    }

    pub(super) fn check_room<T>(&self, room: Room, wrote: &Result<T, FsError>) {
        if self.world().usage.eras.turns() != room.turns {
            return;
        }
        let refused = matches!(wrote, Err(FsError::Quota(QuotaError::Exceeded(_))));
        assert!(!room.none || wrote.is_err(), "R23: a limit is exceeded and nobody minds");
        let plenty = room.ample && refused;
        assert!(!plenty, "R23: refused, with much room: {:?}", wrote.as_ref().err());
    }
}

/// The limits that a write to a file is under, each with the subvolumes for which it is.
fn limited(world: &World, tree: &Tree, id: ObjectId) -> Vec<(u64, Vec<SubvolId>)> {
    let generation = world.usage.eras.now().generation;
    let number = |subvol: &ObjectId| world.nodes.get(subvol).map(|node| node.subvol);
    let way_up = |from: Option<ObjectId>| {
        std::iter::successors(from, |subvol| tree.home_of(*subvol)).collect::<Vec<_>>()
    };
    let all: Vec<ObjectId> = tree.subvols().into_iter().map(|(_, id)| id).collect();
    let limit = |holder| tree.promises.get(generation, holder).limits.referenced;
    let above = way_up(tree.subvol_with(id));
    let mut limited = Vec::new();
    for subvol in &above {
        if let Some(limit) = limit(Holder::Subvol(*subvol)) {
            let inside = all.iter().filter(|other| way_up(Some(**other)).contains(subvol));
            limited.push((limit, inside.filter_map(number).collect()));
        }
    }
    // The groups of the one that pays, and only those.
    let groups = above.first().map(|own| tree.promises.above(generation, Holder::Subvol(*own)));
    for group in groups.into_iter().flatten() {
        if let Some(limit) = limit(Holder::Group(group)) {
            let is_member = |other: &&ObjectId| {
                tree.promises.above(generation, Holder::Subvol(**other)).contains(&group)
            };
            limited.push((limit, all.iter().filter(is_member).filter_map(number).collect()));
        }
    }
    limited
}

/// Bytes of data that are referred to, by payer, as far as clients know; with one file as it will
/// be.
fn used(world: &World, change: Option<(ObjectId, &Content)>) -> BTreeMap<SubvolId, Bytes> {
    let files = world.files().into_iter().map(|id| match change {
        Some((changed, content)) if changed == id => content,
        _ => world.data[&id].now(),
    });
    world.usage.of(files)
}
