//! A protected tenant grows by memory that reclaim cannot take, beside a stream without protection:
//! the stream gives way step by step, and no page is refused as long as it has some.
//!
//! The published rule of 2019 refused too early: the part of a list that protection keeps was no
//! reason for the second pass, which keeps only `min` (SCANS-P2).

use copyhold_memory::{Arm, Event, MemoryClass};

use crate::cache::{Cache, PAGE, Tenant};

/// Pages of all memory, of which the tenant is promised 83 hundredths.
const ALL: u64 = 4800;
const LOW: u64 = ALL * 83 / 100;
const STEP: u64 = 48;
/// Pages that the tenant reads once, and those that the stream reads in each step.
const SET: u64 = 1000;
const READS: u64 = 2000;

/// The state after a step.
struct Grown {
    /// Pages that cannot be taken.
    pinned: u64,
    /// Pages of the stream.
    stream: u64,
    /// Refused pages of both tenants, so far.
    refused: u64,
}

/// Pins more and more of the tenant's memory, until no room is left for any other. Returns the
/// stream, too.
fn grow(arm: Arm) -> (Vec<Grown>, Tenant) {
    let mut cache = Cache::new(arm, ALL);
    let (tenant, mut stream) = (cache.tenant(LOW), cache.tenant(0));
    let pinned = tenant.owner.charge(MemoryClass::Dirty, 0);
    (0..SET).for_each(|number| _ = cache.read(&tenant, number));
    (0..ALL).for_each(|_| cache.read_next(&mut stream, u64::MAX));
    let mut grown = Vec::new();
    for pages in (0..=ALL).step_by(STEP as usize) {
        pinned.change((pages * PAGE) as i64 - pinned.bytes());
        cache.set_pages_max(ALL - pages);
        (0..READS).for_each(|_| cache.read_next(&mut stream, u64::MAX));
        let refused = [&tenant, &stream].map(|of| of.events(Event::Bypass)).iter().sum();
        grown.push(Grown { pinned: pages, stream: stream.pages(), refused });
    }
    (grown, stream)
}

#[test]
fn no_page_is_refused_before_nearly_all_memory_is_pinned() {
    let (grown, stream) = grow(Arm::Proportional);
    let refused = grown.iter().find(|at| at.refused > 0).map_or(ALL, |at| at.pinned);
    assert!(refused >= ALL * 97 / 100, "a page is refused with {refused} of {ALL} pinned");
    for step in grown.windows(2) {
        let [before, after] = [&step[0], &step[1]].map(|at| at.stream);
        let pinned = step[1].pinned;
        assert!(after + ALL / 8 >= before, "{before} fall to {after} with {pinned} pinned");
    }
    let (stolen, scanned) = (stream.stolen(), stream.scanned());
    assert!(stolen * 10 >= scanned * 9, "{stolen} of {scanned} pages are evicted");
}

/// All pages of the only tenant are in use, and 17 hundredths of them are not protected. The first
/// pass finds only pages in use, and the second one takes those that were not used since.
#[test]
fn a_list_that_protection_only_shortens_is_taken_from_in_the_second_pass() {
    let mut cache = Cache::new(Arm::Proportional, ALL);
    let (tenant, newcomer) = (cache.tenant(LOW), cache.tenant(0));
    for _ in 0..2 {
        (0..ALL).for_each(|number| _ = cache.read(&tenant, number));
    }
    assert_eq!(tenant.pages(), ALL);
    cache.read(&newcomer, 0);
    assert_eq!((newcomer.pages(), newcomer.events(Event::Bypass)), (1, 0), "SCANS-P2");
    assert!(tenant.pages() >= ALL - ALL / 8, "RECLAIM-R3: {} pages are left", tenant.pages());
}
