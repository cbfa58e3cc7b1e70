//! Space maps: each copy, that it is the map of its metaslab, and that the descriptor agrees.
//!
//! The allocated blocks of a map are compared with the references elsewhere (`reach`), together
//! with the edits of the log that the map does not have yet.

use copyhold_format::space_map::{Descriptor, METASLAB, SpaceMap};
use copyhold_pool::Pool;
use copyhold_space::MetaslabId;
use copyhold_types::{Key, NodePtr, Purpose};

use crate::checker::Checker;
use crate::copies::Copies;
use crate::problem::{Owner, Problem};

/// Comes before anything else is counted as referred to: where a map is lost nothing is known.
pub(crate) async fn check(checker: &mut Checker) {
    let Some(table) = checker.table(Pool::TABLES) else { return };
    let mut items = checker.items(&table, Key::MIN..Key::MAX);
    let mut maps = Vec::new();
    while let Some(page) = items.next(&mut checker.report).await {
        for (key, value) in page.iter().filter(|(key, _)| key.kind == METASLAB) {
            if let Some((id, descriptor)) = parse(checker, *key, value) {
                let pieces = check_map(checker, id, descriptor).await;
                maps.extend(pieces.into_iter().map(|piece| (id, piece)));
            }
        }
    }
    // The pool may have set it aside for an error that has passed.
    for id in checker.pool.space_map().set_aside() {
        checker.reach.set_unknown(checker.blocks_of(id));
    }
    for (id, map) in maps {
        checker.refer_node(&map, Owner::Map(id));
    }
}

/// The item of a metaslab, read once more: one that does not parse has kept the pool from opening.
fn parse(checker: &mut Checker, key: Key, value: &[u8]) -> Option<(MetaslabId, Descriptor)> {
    let parsed = Descriptor::parse_key(key).and_then(|id| Ok((id, Descriptor::parse(value)?)));
    match parsed {
        Ok(((device, index), descriptor)) => Some((MetaslabId { device, index }, descriptor)),
        Err(error) => {
            let why = format!("the item {key}: {error}");
            checker.report.add(Problem::Table { table: Pool::TABLES, why });
            None
        }
    }
}

/// Checks one map; the allocated runs of the map itself, a pointer to each.
async fn check_map(checker: &mut Checker, id: MetaslabId, descriptor: Descriptor) -> Vec<NodePtr> {
    let Some(ptr) = descriptor.map else {
        if descriptor.is_lost {
            let why = "an older program has recorded it as lost".to_owned();
            checker.report.add(Problem::Map { metaslab: id, why });
        }
        return Vec::new();
    };
    let copies = Copies::read(checker.pool.device(), ptr, Purpose::Map).await;
    checker.report.verified.map_copies += copies.count;
    let Some(buf) = &copies.good else {
        checker.reach.set_unknown(checker.blocks_of(id));
        checker.report.add(Problem::Map { metaslab: id, why: copies.complaints() });
        return copies.pieces;
    };
    for (run, why) in &copies.bad {
        checker.report.add(Problem::MapCopy { metaslab: id, run: *run, why: why.clone() });
    }
    if let Some(why) = wrong(checker, id, &descriptor, buf) {
        checker.report.add(Problem::MapContent { metaslab: id, why });
    }
    copies.pieces
}

fn wrong(
    checker: &Checker,
    id: MetaslabId,
    descriptor: &Descriptor,
    bytes: &[u8],
) -> Option<String> {
    let map = match SpaceMap::parse(bytes) {
        Ok(map) => map,
        Err(error) => return Some(error.to_string()),
    };
    let (place, blocks) = (map.place(), checker.blocks_of(id));
    let size = blocks.end - blocks.start;
    let found = (place.device, place.index, place.first_block);
    // A map that was written before the device grew has fewer blocks.
    if found != (id.device, id.index, blocks.start) || u64::from(place.blocks) > size {
        return Some(format!("it is the map of {place:?}"));
    }
    if map.allocated() != descriptor.allocated {
        let (map, said) = (map.allocated(), descriptor.allocated);
        return Some(format!("{map} blocks are allocated in it, {said} in its descriptor"));
    }
    if map.complete_to() != descriptor.complete_to {
        let (map, said) = (map.complete_to(), descriptor.complete_to);
        return Some(format!("it is complete to txg {map}, and its descriptor records {said}"));
    }
    None
}
