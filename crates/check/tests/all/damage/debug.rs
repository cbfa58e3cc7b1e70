//! The debug views, on whole and on damaged pools.

use copyhold_check::debug;

use super::pool::{Power, TABLE, rot, sound};

#[test]
fn views_show_what_is_there() {
    let power = Power::on(&sound());
    let pool = power.open(true).unwrap();
    let labels = power.rt.block_on(debug::labels(&power.device()));
    assert!(labels.ends.iter().all(|end| end.state == "good" && end.label.is_some()));
    assert!(labels.uberblocks.len() > 2);
    let log = power.rt.block_on(debug::log(&power.device())).unwrap();
    assert_eq!((log.damage, log.last_is_confirmed), (None, true));
    let tables = debug::tables(&pool);
    assert!(tables.iter().filter(|partition| partition.table == TABLE.0).count() > 1);
    let nodes = power.rt.block_on(debug::nodes(&pool, Some(TABLE)));
    assert!(nodes.iter().all(|node| node.state == "good" && node.items.is_some()));
    let inner = nodes.iter().filter(|node| node.level == "inner").count();
    assert_eq!(inner, tables.iter().filter(|p| p.table == TABLE.0 && p.height == 1).count());
    let space = power.rt.block_on(debug::space(&pool));
    let sum: u64 = space.metaslabs.iter().map(|metaslab| metaslab.allocated_blocks).sum();
    assert_eq!(sum, space.allocated_blocks);
    assert_eq!(space.free_blocks_by_run.iter().sum::<u64>(), space.free_blocks);
    let class = space.longest_free_blocks.ilog2() as usize;
    assert_eq!(class + 1, space.free_blocks_by_run.len(), "the longest run is in the last class");
    let map = pool.space_map();
    let unallocated = map.metaslabs().flat_map(|id| map.view(id).free_and_freeing);
    let unallocated: u64 = unallocated.map(|run| u64::from(run.blocks)).sum();
    assert_eq!(unallocated, space.free_blocks + space.freeing_blocks);
    let parts = space.metaslabs.iter().filter_map(|metaslab| metaslab.fragmentation);
    let (least, most) = (parts.clone().min(), parts.max());
    assert!((least..=most).contains(&space.fragmentation), "{:?}", space.fragmentation);
}

#[test]
fn what_is_damaged_is_shown_as_far_as_it_can_be_read() {
    let mut image = sound();
    rot(&mut image, 0);
    rot(&mut image, 17);
    let power = Power::on(&image);
    let labels = power.rt.block_on(debug::labels(&power.device()));
    assert_eq!(labels.ends[0].state, "label does not match its digest");
    assert_eq!(labels.ends[1].state, "good");
    let bad = labels.uberblocks.iter().filter(|uberblock| uberblock.number.is_none());
    assert_eq!(
        bad.map(|uberblock| (uberblock.end, uberblock.slot)).collect::<Vec<_>>(),
        [("start", 1)]
    );

    let pool = power.open(true).unwrap();
    let node = power.rt.block_on(debug::nodes(&pool, Some(TABLE))).pop().unwrap();
    let first = node.at.split(&[':', ' '][..]).nth(1).unwrap().parse().unwrap();
    rot(&mut image, first);
    let power = Power::on(&image);
    let pool = power.open(true).unwrap();
    let node = power.rt.block_on(debug::nodes(&pool, Some(TABLE))).pop().unwrap();
    assert!(node.state.contains("digest") && node.items.is_some(), "{node:?}");
}
