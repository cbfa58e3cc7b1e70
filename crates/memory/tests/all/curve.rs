//! The curve of reclaim: a protected tenant re-reads its set at random, a rival needs room all the
//! time, and the protection is lowered from above the set's size to nothing in six steps.
//!
//! The tenant looks at its pages far more often than reclaim does, so it keeps its set, and reclaim
//! looks at its list in proportion to the part above the protection: the line `1 - low / set`. A
//! tenant that reads as seldom as reclaim looks loses pages. Then the pressure on one of its pages,
//! beside that on a page of the rival, follows `1 - low / usage`.

use copyhold_memory::{Arm, Event};

use crate::cache::{Cache, Tenant};

/// Pages of the set, in nineteenths; the cache has 1.26 times as much, the rival's file 1.35 times.
const PART: u64 = 100;
const SET: u64 = 19 * PART;
const CACHE: u64 = SET * 126 / 100;
const FILE: u64 = SET * 512 / 380;
const STEPS: [u64; 6] = [21, 17, 12, 8, 4, 0];
/// Reads of the rival until the lists are as they stay, and while they are measured.
const READS: u64 = 20_000;

/// The figures of one step.
struct Step {
    scanned: f64,
    stolen: u64,
    /// Pages of the set in memory: their mean, and the least.
    pages: f64,
    pages_min: u64,
    /// How often reclaim looked at a page of the set, beside a page of the rival.
    pressure: f64,
}

/// Fresh groups with so much `low`; the set is read `eagerness` times for each read of the rival.
fn step(arm: Arm, low: u64, eagerness: u64) -> Step {
    let mut cache = Cache::new(arm, CACHE);
    let (tenant, mut rival) = (cache.tenant(low), cache.tenant(0));
    let mut rounds = |see: &mut dyn FnMut(&Tenant, &Tenant)| {
        for _ in 0..READS {
            (0..eagerness).for_each(|_| cache.read_any(&tenant, SET));
            cache.read_next(&mut rival, FILE);
            see(&tenant, &rival);
        }
        [tenant.scanned(), rival.scanned(), tenant.stolen()]
    };
    let before = rounds(&mut |_, _| ());
    let (mut sums, mut pages_min) = ([0, 0], u64::MAX);
    let after = rounds(&mut |tenant, rival| {
        sums = [sums[0] + tenant.pages(), sums[1] + rival.pages()];
        pages_min = pages_min.min(tenant.pages());
    });
    let [scanned, of_rival] = [0, 1].map(|of| (after[of] - before[of]) as f64);
    let [pages, pages_of_rival] = sums.map(|sum| sum as f64 / READS as f64);
    let refused = tenant.events(Event::Bypass) + rival.events(Event::Bypass);
    assert_eq!((refused, tenant.events(Event::Low)), (0, 0), "the rival has pages to give");
    Step {
        scanned,
        stolen: after[2] - before[2],
        pages,
        pages_min,
        pressure: (scanned / pages) / (of_rival / pages_of_rival),
    }
}

fn steps(arm: Arm, eagerness: u64) -> [Step; 6] {
    STEPS.map(|parts| step(arm, parts * PART, eagerness))
}

/// How often reclaim looks at the set in each step, in hundredths of the last.
fn curve(arm: Arm) -> [f64; 6] {
    let steps = steps(arm, 20);
    let shown = steps.each_ref().map(|step| step.scanned / steps[5].scanned * 100.0);
    println!("{arm}: {shown:.1?}");
    shown
}

#[test]
fn scans_of_a_set_that_stays_follow_the_part_above_its_protection() {
    let shown = curve(Arm::Proportional);
    for (parts, shown) in STEPS.into_iter().zip(shown) {
        let ideal = (100.0 - parts as f64 / 19.0 * 100.0).max(0.0);
        assert!((shown - ideal).abs() <= 1.0, "low {parts}/19: {shown}, not {ideal}");
    }
    assert_eq!(shown[0], 0.0, "SCANS-P1");
}

/// `set / low - 1`, at most all: a protection of less than half of the set counts for nothing.
#[test]
fn the_first_published_rule_bends_and_all_or_nothing_has_a_cliff() {
    let published = curve(Arm::Published);
    for (parts, shown) in STEPS.into_iter().zip(published) {
        let rule = if parts > 19 { 0.0 } else { (1900.0 / parts as f64 - 100.0).min(100.0) };
        assert!((shown - rule).abs() <= 3.0, "low {parts}/19: {shown}, not {rule}");
    }
    let binary = curve(Arm::Binary);
    assert!(binary[0] == 0.0 && binary[1..].iter().all(|shown| *shown > 95.0), "{binary:?}");
    assert!(curve(Arm::Off).iter().all(|shown| (shown - 100.0).abs() <= 3.0));
}

#[test]
fn the_pressure_on_a_tenant_that_loses_pages_follows_its_usage() {
    let steps = steps(Arm::Proportional, 2);
    for (parts, step) in STEPS.into_iter().zip(&steps) {
        let low = (parts * PART) as f64;
        let ideal = (1.0 - low / step.pages).max(0.0);
        let shown = step.pressure / steps[5].pressure;
        println!("low {parts}/19: {:.0} pages, {shown:.3} for {ideal:.3}", step.pages);
        assert!((shown - ideal).abs() <= 0.03, "low {parts}/19: {shown}, not {ideal}");
        assert!(step.pages_min as f64 >= 0.95 * low.min(SET as f64), "{parts}: {}", step.pages_min);
    }
    assert_eq!((steps[0].scanned, steps[0].stolen), (0.0, 0), "SCANS-P1");
    assert!(steps.is_sorted_by(|a, b| a.scanned <= b.scanned), "less protection, more pressure");
}
