//! Space maps: each copy of the base and of its deltas, that they are the map of their metaslab,
//! and that the descriptor agrees.
//!
//! The allocated blocks of a map are compared with the references elsewhere (`reach`), together
//! with the edits of the log that the map does not have yet.

use copyhold_format::space_map::{Descriptor, METASLAB, SpaceMap};
use copyhold_pool::Pool;
use copyhold_space::MetaslabId;
use copyhold_types::{Buf, Key, NodePtr, Purpose};

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

/// Checks one map with its deltas; the allocated runs of the map itself, a pointer to each.
async fn check_map(checker: &mut Checker, id: MetaslabId, descriptor: Descriptor) -> Vec<NodePtr> {
    if descriptor.is_lost {
        let why = "an older program has recorded it as lost".to_owned();
        checker.report.add(Problem::Map { metaslab: id, why });
    }
    let (mut parts, mut pieces) = (Vec::new(), Vec::new());
    for ptr in descriptor.parts() {
        let copies = Copies::read(checker.pool.device(), ptr, Purpose::Map).await;
        checker.report.verified.map_copies += copies.count;
        match &copies.good {
            Some(buf) => {
                for (run, why) in &copies.bad {
                    let (run, why) = (*run, why.clone());
                    checker.report.add(Problem::MapCopy { metaslab: id, run, why });
                }
                parts.push(buf.clone());
            }
            None => {
                checker.reach.set_unknown(checker.blocks_of(id));
                checker.report.add(Problem::Map { metaslab: id, why: copies.complaints() });
            }
        }
        pieces.extend(copies.pieces);
    }
    let is_whole = parts.len() == descriptor.parts().count();
    if let Some(why) = wrong(checker, id, &descriptor, &parts).filter(|_| is_whole) {
        checker.report.add(Problem::MapContent { metaslab: id, why });
    }
    pieces
}

fn wrong(
    checker: &Checker,
    id: MetaslabId,
    descriptor: &Descriptor,
    parts: &[Buf],
) -> Option<String> {
    let (base, deltas) = parts.split_first()?;
    let map = match SpaceMap::parse_parts(base, deltas) {
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
