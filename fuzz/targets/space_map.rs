//! Space maps: counts hold, no run leaves the metaslab.

#![no_main]

use copyhold_format::space_map::SpaceMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(map) = SpaceMap::parse(data) else { return };
    let sum: u32 = map.runs().map(|(_, blocks)| blocks).sum();
    assert_eq!(sum, map.allocated());
    assert!(map.runs().all(|(at, blocks)| at + blocks <= map.place().blocks));
    assert!(map.longest_free() <= map.place().blocks);
    assert_eq!(SpaceMap::parse(&map.encode()), Ok(map));
});
