//! Lists of a few pages: reclaim takes from them in proportion, as from large ones.

use copyhold_memory::Arm;

use crate::cache::{Cache, Tenant};

const PAGES: u64 = 4000;

/// A stream that has nearly all of a cache asks for a hundredth of it. A list with a fivehundredth
/// of the cache gives a page or none, though reclaim looks at it in each round.
#[test]
fn a_list_of_eight_pages_gives_a_page_at_a_time() {
    let mut cache = Cache::new(Arm::Proportional, PAGES);
    let (small, mut stream) = (cache.tenant(0), cache.tenant(0));
    (0..8).for_each(|number| _ = cache.read(&small, number));
    while stream.pages() + 8 < PAGES {
        cache.read_next(&mut stream, u64::MAX);
    }
    (0..PAGES / 100).for_each(|_| cache.read_next(&mut stream, u64::MAX));
    assert!(small.pages() >= 7, "{} of 8 pages are left", small.pages());
    (0..PAGES / 2).for_each(|_| cache.read_next(&mut stream, u64::MAX));
    assert!(small.pages() <= 6, "SCANS-P3: {} of 8 pages are left", small.pages());
}

/// A page for one of a thousand tenants is no reason to take one of each.
#[test]
fn many_small_lists_give_no_more_than_is_needed() {
    let mut cache = Cache::new(Arm::Proportional, PAGES);
    let tenants: Vec<Tenant> = (0..PAGES / 4).map(|_| cache.tenant(0)).collect();
    let all = |tenants: &[Tenant]| tenants.iter().map(Tenant::pages).sum::<u64>();
    for number in 0..4 {
        tenants.iter().for_each(|tenant| _ = cache.read(tenant, number));
    }
    assert_eq!(all(&tenants), PAGES);
    for number in 4..12 {
        cache.read(&tenants[0], number);
        let left = all(&tenants);
        assert!(left >= PAGES - PAGES / 8, "{left} of {PAGES} pages are left");
    }
}
