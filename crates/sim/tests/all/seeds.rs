//! Recorded seeds and a bounded number of others; `make simulate SEEDS=N` runs fresh ones.

use copyhold_format::item::ChecksumMode;
use copyhold_pool::FlushPolicy;
use copyhold_sim::{Level, Outcome, Plan};

const SEEDS: u64 = 60;

fn holds(plan: Plan) -> Outcome {
    plan.run().unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn recorded_regressions_hold() {
    for line in include_str!("../../regressions.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a level");
        let level = Level::ALL.into_iter().find(|level| level.name() == name).expect("a level");
        let seed = words.next().and_then(|seed| seed.parse().ok()).expect("a seed");
        let modes = Some(words.next() == Some("modes"));
        holds(Plan { modes, ..Plan::new(level, seed) });
    }
}

#[test]
fn histories_of_every_level_hold() {
    for level in Level::ALL {
        let mut sum = Outcome::default();
        (0..SEEDS).for_each(|seed| sum.add(&holds(Plan::new(level, seed))));
        // Half of the histories of full pools refill theirs; of the others most have enough to
        // delete, and of rogues most come to their limit.
        let least = if level == Level::Full { SEEDS / 3 } else { SEEDS / 2 };
        let reached = sum.reached;
        assert!(reached > least, "{}: only {reached} of {SEEDS} histories did", level.name());
        meet_deltas(level, &sum);
    }
}

/// Histories of pools write space maps whole, and what changed in them.
fn meet_deltas(level: Level, sum: &Outcome) {
    let (wholes, deltas) = (sum.whole_maps, sum.map_deltas);
    println!("{}: {wholes} space maps were written, and {deltas} deltas", level.name());
    assert!(level != Level::Pool || wholes > SEEDS && deltas > SEEDS);
}

#[test]
fn histories_of_pools_that_grow_hold() {
    for level in [Level::Pool, Level::Fs] {
        let mut sum = Outcome::default();
        let plan = |seed| Plan { grows: true, ..Plan::new(level, seed) };
        (0..SEEDS).for_each(|seed| sum.add(&holds(plan(seed))));
        assert!(sum.grown > SEEDS / 2, "{}: {} pools have grown", level.name(), sum.grown);
    }
}

/// Faults of the disk below tear, lose and rot tuples as data; nothing of a pool depends on a tuple
/// unless its extents say so.
#[test]
fn histories_on_devices_with_protection_information_hold() {
    let mut sum = Outcome::default();
    for level in Level::ALL {
        for (format, seed) in ["4096+16:64b", "512+8:16b", "4096+64:64b"].into_iter().zip(0..) {
            let protection = Some(format.parse().expect("it is a format"));
            for seed in (seed..SEEDS / 3).step_by(3) {
                let modes = (seed % 2 == 0).then_some(true);
                sum.add(&holds(Plan { protection, modes, ..Plan::new(level, seed) }));
            }
        }
    }
    assert!(sum.by_mode.iter().all(|count| *count > 0), "extents by mode: {:?}", sum.by_mode);
    let lost = sum.lost_writes[usize::from(ChecksumMode::Guard.code())];
    assert!(lost > 0, "lost writes by mode: {:?}", sum.lost_writes);
    assert!(sum.forgotten > 0, "no drive has forgotten a block");
}

#[test]
fn histories_with_even_flushes_hold() {
    hold_with(|plan| Plan { flush: FlushPolicy::Even, ..plan });
}

/// With space maps that each txg writes.
#[test]
fn histories_in_stock_mode_hold() {
    hold_with(|plan| Plan { stock: true, ..plan });
}

#[test]
fn histories_with_few_maps_in_memory_hold() {
    hold_with(|plan| Plan { few_maps: true, ..plan });
}

/// Histories of each level hold with a setting, which changes some of them.
fn hold_with(setting: impl Fn(Plan) -> Plan) {
    for level in Level::ALL {
        let mut sum = Outcome::default();
        (0..SEEDS / 3).for_each(|seed| sum.add(&holds(setting(Plan::new(level, seed)))));
        let differs = |seed| {
            let usual = Plan::new(level, seed);
            holds(setting(usual)).digest != holds(usual).digest
        };
        assert!((0..SEEDS).any(differs), "{}: the setting changes nothing", level.name());
        assert!(sum.recoveries > 0, "{}: no history was recovered", level.name());
        meet_deltas(level, &sum);
    }
}

#[test]
fn one_seed_is_one_history() {
    for level in Level::ALL {
        for seed in 0..20 {
            // Each tells a number for all turns of all tasks, and all requests with their bytes.
            let [one, other] = [1, 2].map(|_| Plan::new(level, seed).run().expect("it holds"));
            assert_eq!(one, other, "{} seed {seed}", level.name());
            let fresh = Plan::new(level, seed + 1000).run().expect("it holds");
            assert_ne!(one.digest, fresh.digest);
        }
    }
}
