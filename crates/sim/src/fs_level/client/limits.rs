//! What a client does about quotas, and what it knows of the room that limits leave it.
//!
//! Not all that counts is known: what is freed may be on its way, and nodes count. So a bound is
//! predicted on both sides: a write after which more data is referred to than a limit allows is
//! refused; one that leaves a wide margin is accepted (rule R23).

use std::collections::BTreeMap;

use copyhold_fs::FsError;
use copyhold_types::SubvolId;
use copyhold_volume::quota::{GroupId, LimitKind, QuotaError};

use super::{Client, Done};
use crate::fs_level::content::Content;
use crate::fs_level::tree::{Kind, ObjectId, Tree};
use crate::fs_level::world::World;

/// More than nodes, unflushed edits and what is on its way ever take of a simulated pool.
const MARGIN: u64 = 4 << 20;

/// What limits must say of a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    none: bool,
    ample: bool,
}

impl Client {
    /// Sets the limit of one of its subvolumes, mostly to what is soon reached.
    pub(super) async fn set_limit(&mut self, subvol: ObjectId) -> Done {
        let (of, used) = {
            let world = self.world();
            let Some(node) = world.nodes.get(&subvol).filter(|_| world.usage.on) else {
                return Ok(());
            };
            (node.subvol, used_now(&world))
        };
        let used = used.get(&of).copied().unwrap_or(0);
        let more = self.dice.magnitude(19);
        let limit = self.dice.pick(&[None, Some(used + more), Some(used + 2 * MARGIN)]);
        self.world().usage.set_limit(of, limit);
        let change = |ledger: &copyhold_volume::quota::Ledger| {
            ledger.limit(GroupId::of(of), LimitKind::Referenced, limit)
        };
        let set = self.fs.change_quotas(change).await;
        self.given("limit", set).map(drop)
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
        if inside.iter().all(|(subvol, _)| world.usage.limit(*subvol).is_none()) {
            return Room { none: false, ample: true };
        }
        let mut changed = world.data[&id].now().clone();
        changed.write(offset, bytes);
        let [before, after] = [None, Some((id, &changed))].map(|change| used(&world, change));
        let mut room = Room { none: false, ample: true };
        for (subvol, members) in inside {
            let Some(limit) = world.usage.limit(subvol) else { continue };
            let sum = |of: &BTreeMap<SubvolId, u64>| -> u64 {
                members.iter().filter_map(|member| of.get(member)).sum()
            };
            let (before, after) = (sum(&before), sum(&after));
            room.none |= after > limit && after > before;
            room.ample &= after + MARGIN <= limit;
        }
        room
    }

    pub(super) fn check_room(&self, room: Room, wrote: &Result<(), FsError>) {
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
