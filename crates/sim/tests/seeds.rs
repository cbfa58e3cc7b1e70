//! Recorded seeds and a bounded number of others; `make simulate SEEDS=N` runs fresh ones.

use copyhold_sim::{Level, Plan};

const SEEDS: u64 = 60;

fn holds(plan: Plan) {
    if let Err(failure) = plan.run() {
        panic!("{failure}");
    }
}

#[test]
fn recorded_regressions_hold() {
    for line in include_str!("../regressions.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a level");
        let level = Level::ALL.into_iter().find(|level| level.name() == name).expect("a level");
        let seed = words.next().and_then(|seed| seed.parse().ok()).expect("a seed");
        holds(Plan::new(level, seed));
    }
}

#[test]
fn histories_of_every_level_hold() {
    for level in Level::ALL {
        (0..SEEDS).for_each(|seed| holds(Plan::new(level, seed)));
    }
}

#[test]
fn one_seed_is_one_history() {
    for level in Level::ALL {
        for seed in 0..10 {
            // async-lock's RwLock lets a task that has waited for half a millisecond of real time
            // go first: on a machine that stalls, a history of a filesystem can differ once.
            let twice = || [1, 2].map(|_| Plan::new(level, seed).run().expect("it holds"));
            let mut outcomes = twice();
            for _ in 0..4 {
                if outcomes[0] != outcomes[1] && level == Level::Fs {
                    outcomes = twice();
                }
            }
            assert_eq!(outcomes[0], outcomes[1], "{} seed {seed}", level.name());
            let other = Plan::new(level, seed + 1000).run().expect("it holds");
            assert_ne!(outcomes[0].digest, other.digest);
        }
    }
}
