//! What a client does about quotas, and what it knows of the room that limits leave it.
//!
//! Not all that counts is known: what is freed may be on its way, and nodes count. So a bound is
//! predicted on both sides: a write after which more data is referred to than a limit allows is
//! refused; one that leaves a wide margin is accepted (rule R23).

use std::collections::BTreeMap;

use copyhold_format::item::Limits;
use copyhold_fs::FsError;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, Ledger, LimitKind, QuotaError};

use super::{Client, Done};
use crate::fs_level::content::Content;
use crate::fs_level::counts::{self, Count};
use crate::fs_level::tree::{Dir, Kind, ObjectId, Tree};
use crate::fs_level::world::World;

/// More than nodes, unflushed edits and what is on its way ever take of a simulated pool.
const MARGIN: u64 = 4 << 20;
/// More than a client ever has, with what is yet to be given back.
const INODES_MARGIN: u64 = 1 << 20;

/// What limits must say of a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    none: bool,
    ample: bool,
}

impl Client {
    /// Sets a limit of one of its subvolumes, mostly to what is soon reached.
    pub(super) async fn set_limit(&mut self, subvol: ObjectId) -> Done {
        let (of, used, count, was) = {
            let world = self.world();
            let Some(node) = world.nodes.get(&subvol).filter(|_| world.usage.on) else {
                return Ok(());
            };
            let of = node.subvol;
            let used = used_now(&world).get(&of).copied().unwrap_or(0);
            let count = world.counts().get(&of).copied().unwrap_or_default();
            (of, used, count, world.usage.limits(of))
        };
        let kinds = [LimitKind::Referenced, LimitKind::Inodes, LimitKind::Snapshots];
        let kind = self.dice.pick(&kinds);
        let mut near = |used: u64, bits: u64, margin: u64| {
            let near = used + self.dice.magnitude(bits);
            self.dice.pick(&[None, Some(near), Some(used + 2 * margin)])
        };
        let (limit, limits) = match kind {
            LimitKind::Inodes => {
                let inodes = near(count.inodes, 4, INODES_MARGIN);
                (inodes, Limits { inodes, ..was })
            }
            LimitKind::Snapshots => {
                let snapshots = near(count.snapshots, 2, INODES_MARGIN);
                (snapshots, Limits { snapshots, ..was })
            }
            _ => {
                let referenced = near(used, 19, MARGIN);
                (referenced, Limits { referenced, ..was })
            }
        };
        self.world().usage.set_limits(of, limits);
        let change = |ledger: &Ledger| ledger.limit(GroupId::of(of), kind, limit);
        let set = self.fs.change_quotas(change).await;
        self.given("limit", set).map(drop)
    }

    /// What is known of the room for an inode in a directory.
    pub(super) fn room_for_inode(&self, tree: &Tree, dir: Dir) -> Room {
        let more = Count { inodes: 1, snapshots: 0 };
        self.room_for_more(tree, tree.subvol_of(dir), more)
    }

    /// What is known of the room for a snapshot, whose entry is to be in a directory.
    pub(super) fn room_for_snapshot(&self, tree: &Tree, source: ObjectId, dir: Dir) -> Room {
        let more = Count { inodes: 0, snapshots: 1 };
        let of_source = self.room_for_more(tree, Some(source), more);
        let copies = tree.within(source).into_iter();
        let world = self.world();
        let is_counted = |id: &ObjectId| {
            let is_root = tree.objects[id].kind == Kind::Subvol && *id != source;
            !is_root && tree.objects[id].kind != Kind::Placeholder && world.usage.is_counted(*id)
        };
        let inodes = copies.filter(is_counted).count() as u64;
        drop(world);
        let more = Count { inodes, snapshots: 0 };
        let of_holder = self.room_for_more(tree, tree.subvol_of(dir), more);
        Room { none: of_source.none || of_holder.none, ample: of_source.ample && of_holder.ample }
    }

    /// What limits on inodes and snapshots leave in a subvolume and in those that hold it.
    fn room_for_more(&self, tree: &Tree, subvol: Option<ObjectId>, more: Count) -> Room {
        let world = self.world();
        if !self.exact || !world.usage.on {
            return Room::default();
        }
        let counts = counts::of(tree, &world.usage);
        let mut room = Room { none: false, ample: true };
        let asked = subvol.into_iter().chain(tree.holders(subvol));
        for asked in asked {
            let limits = world.usage.limits(world.nodes[&asked].subvol);
            let has = counts.get(&Some(asked)).copied().unwrap_or_default();
            // Bytes of nodes are not known.
            room.ample &= limits.referenced.is_none();
            let pairs = [
                (limits.inodes, has.inodes, more.inodes),
                (limits.snapshots, has.snapshots, more.snapshots),
            ];
            for (limit, has, more) in pairs {
                let Some(limit) = limit.filter(|_| more > 0) else { continue };
                room.none |= has + more > limit;
                room.ample &= has + more + INODES_MARGIN <= limit;
            }
        }
        room
    }

    /// What is known of the room for a write, which begins.
    pub(super) fn room_for(&self, id: ObjectId, offset: u64, bytes: &[u8]) -> Room {
        let mut world = self.world();
        if !self.exact || !world.usage.on {
            return Room::default();
        }
        let payer = world.nodes[&id].subvol;
        world.usage.write(payer, bytes);
        let tree = world.logs[self.id].now();
        let inside = inside(&world, tree, id);
        if inside.iter().all(|(subvol, _)| world.usage.limits(*subvol).referenced.is_none()) {
            return Room { none: false, ample: true };
        }
        let mut changed = world.data[&id].now().clone();
        changed.write(offset, bytes);
        let [before, after] = [None, Some((id, &changed))].map(|change| used(&world, change));
        let mut room = Room { none: false, ample: true };
        for (subvol, members) in inside {
            let Some(limit) = world.usage.limits(subvol).referenced else { continue };
            let sum = |of: &BTreeMap<SubvolId, u64>| -> u64 {
                members.iter().filter_map(|member| of.get(member)).sum()
            };
            let (before, after) = (sum(&before), sum(&after));
            room.none |= after > limit && after > before;
            room.ample &= after + MARGIN <= limit;
        }
        room
    }

    pub(super) fn check_room<T>(&self, room: Room, wrote: &Result<T, FsError>) {
        let refused = matches!(wrote, Err(FsError::Quota(QuotaError::Exceeded(_))));
        assert!(!room.none || wrote.is_err(), "R23: a limit is exceeded and nobody minds");
        let plenty = room.ample && refused;
        assert!(!plenty, "R23: refused, with much room: {:?}", wrote.as_ref().err());
    }
}

/// The subvolumes whose limits a file is under but for the root's, each with those inside it.
fn inside(world: &World, tree: &Tree, id: ObjectId) -> Vec<(SubvolId, Vec<SubvolId>)> {
    let number = |subvol: &ObjectId| world.nodes.get(subvol).map(|node| node.subvol);
    let way_up = |from: Option<ObjectId>| {
        std::iter::successors(from, |subvol| tree.home_of(*subvol)).collect::<Vec<_>>()
    };
    let all = tree.objects.iter().filter(|(_, object)| object.kind == Kind::Subvol);
    let all: Vec<ObjectId> = all.map(|(id, _)| *id).collect();
    let above = way_up(tree.subvol_with(id));
    let members = |subvol: &ObjectId| {
        let below = all.iter().filter(|other| way_up(Some(**other)).contains(subvol));
        below.filter_map(number).collect()
    };
    above.iter().filter_map(|subvol| Some((number(subvol)?, members(subvol)))).collect()
}

/// Bytes of data that are referred to, by payer, as far as clients know; with one file as it will
/// be.
fn used(world: &World, change: Option<(ObjectId, &Content)>) -> BTreeMap<SubvolId, u64> {
    let files = world.files().into_iter().map(|id| match change {
        Some((changed, content)) if changed == id => content,
        _ => world.data[&id].now(),
    });
    world.usage.of(files)
}

fn used_now(world: &World) -> BTreeMap<SubvolId, u64> {
    used(world, None)
}
