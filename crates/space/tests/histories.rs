//! Random histories of a space against a plain model, through crashes.

mod model;

use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Run};
use model::World;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[derive(Clone, Debug)]
enum Step {
    Reserve { blocks: u64, tier: Tier },
    DropReservation { pick: usize },
    Claim { pick: usize, lane: Lane, blocks: u64 },
    ClaimRun { pick: usize, lane: Lane, blocks: u32 },
    Cancel { pick: usize, into: usize },
    Defer { pick: usize },
    Split { pick: usize, blocks: u32 },
    Log { pick: usize, late: bool },
    LogAll,
    Free { pick: usize, skip: u32, blocks: u32, late: bool, twice: bool },
    FreeMany { every: usize },
    Advance { steps: usize },
    Release { pinned: u64 },
    Freeze,
    Put { pick: usize },
    Abort { pick: usize },
    Trim,
    Discard { least: u32, keep_warm: bool },
    EndDiscard { pick: usize, done: bool },
    Grow { more: u64, area: u32 },
    Crash { all: bool },
    Load { pick: usize },
    Evict { limit: u64 },
    SetAside { pick: usize, frees: usize },
}

fn lane() -> impl Strategy<Value = Lane> {
    let class = prop_oneof![Just(LaneClass::Data), Just(LaneClass::Node), Just(LaneClass::Sync)];
    (0usize..3, class).prop_map(|(cpu, class)| Lane { cpu, class })
}

fn step() -> impl Strategy<Value = Step> {
    let tier = prop_oneof![
        6 => Just(Tier::Write),
        1 => Just(Tier::Change),
        1 => Just(Tier::Delete),
        1 => Just(Tier::FinishDelete),
        1 => Just(Tier::DeleteSubvolume),
        1 => Just(Tier::FinishSubvolume),
        1 => Just(Tier::Internal),
    ];
    let size = || prop_oneof![4 => 1u64..40, 2 => 100u64..1200, 1 => Just(6000u64)];
    let pick = || 0usize..1000;
    prop_oneof![
        6 => (size(), tier).prop_map(|(blocks, tier)| Step::Reserve { blocks, tier }),
        1 => pick().prop_map(|pick| Step::DropReservation { pick }),
        8 => (pick(), lane(), size())
            .prop_map(|(pick, lane, blocks)| Step::Claim { pick, lane, blocks }),
        3 => (pick(), lane(), 1u32..300)
            .prop_map(|(pick, lane, blocks)| Step::ClaimRun { pick, lane, blocks }),
        2 => (pick(), 0usize..4).prop_map(|(pick, into)| Step::Cancel { pick, into }),
        1 => pick().prop_map(|pick| Step::Defer { pick }),
        1 => (pick(), 0u32..300).prop_map(|(pick, blocks)| Step::Split { pick, blocks }),
        5 => (pick(), any::<bool>()).prop_map(|(pick, late)| Step::Log { pick, late }),
        3 => Just(Step::LogAll),
        8 => (pick(), 0u32..300, 0u32..300, any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(pick, skip, blocks, late, twice)| Step::Free { pick, skip, blocks, late, twice }
        ),
        1 => (2usize..5).prop_map(|every| Step::FreeMany { every }),
        8 => (1usize..5).prop_map(|steps| Step::Advance { steps }),
        4 => (0u64..3).prop_map(|pinned| Step::Release { pinned }),
        5 => Just(Step::Freeze),
        5 => pick().prop_map(|pick| Step::Put { pick }),
        1 => pick().prop_map(|pick| Step::Abort { pick }),
        2 => Just(Step::Trim),
        2 => (0u32..600, any::<bool>())
            .prop_map(|(least, keep_warm)| Step::Discard { least, keep_warm }),
        2 => (pick(), any::<bool>()).prop_map(|(pick, done)| Step::EndDiscard { pick, done }),
        1 => (0u64..900, 1u32..70).prop_map(|(more, area)| Step::Grow { more, area }),
        1 => any::<bool>().prop_map(|all| Step::Crash { all }),
        1 => pick().prop_map(|pick| Step::Load { pick }),
        6 => prop_oneof![Just(0u64), 0u64..20_000].prop_map(|limit| Step::Evict { limit }),
        1 => (pick(), 0usize..4).prop_map(|(pick, frees)| Step::SetAside { pick, frees }),
    ]
}

fn apply(world: &mut World, step: Step) {
    let among = |pick: usize, count: usize| (count > 0).then(|| pick % count);
    match step {
        Step::Reserve { blocks, tier } => world.reserve(blocks, tier),
        Step::DropReservation { pick } => {
            if let Some(at) = among(pick, world.reservations.len()) {
                world.drop_reservation(at);
            }
        }
        Step::Claim { pick, lane, blocks } => {
            if let Some(at) = among(pick, world.reservations.len()) {
                world.claim(at, lane, blocks);
            }
        }
        Step::ClaimRun { pick, lane, blocks } => {
            if let Some(at) = among(pick, world.reservations.len()) {
                world.claim_run(at, lane, blocks);
            }
        }
        Step::Cancel { pick, into } => {
            if let Some(at) = among(pick, world.claims.len()) {
                let into = (into < world.reservations.len()).then_some(into);
                world.cancel(at, into);
            }
        }
        Step::Defer { pick } => {
            if let Some(at) = among(pick, world.claims.len()) {
                world.defer(at);
            }
        }
        Step::Split { pick, blocks } => {
            if let Some(at) = among(pick, world.claims.len()) {
                world.split(at, blocks);
            }
        }
        Step::Log { pick, late } => {
            if let Some(at) = among(pick, world.claims.len()) {
                world.log(at, late);
            }
        }
        Step::LogAll => {
            while !world.claims.is_empty() {
                world.log(0, false);
            }
        }
        Step::Free { pick, skip, blocks, late, twice } => {
            if let Some(at) = among(pick, world.allocated.len()) {
                world.free_run(at, skip, blocks, late, twice);
            }
        }
        Step::FreeMany { every } => {
            for at in (0..world.allocated.len()).rev().step_by(every) {
                world.free_run(at, at as u32, 3, false, false);
            }
        }
        Step::Advance { steps } => (0..steps).for_each(|_| world.advance()),
        Step::Release { pinned } => world.release(pinned),
        Step::Freeze => world.freeze(),
        Step::Put { pick } => {
            if let Some(at) = among(pick, world.jobs.len()) {
                world.put(at);
            }
        }
        Step::Abort { pick } => {
            if let Some(at) = among(pick, world.jobs.len()) {
                world.abort(at);
            }
        }
        Step::Trim => world.trim(),
        Step::Discard { least, keep_warm } => {
            let (from, to) = if keep_warm { (0, u64::MAX) } else { (300, 9000) };
            let unknown = !keep_warm;
            let freed_before = None;
            world.discard(Discardable {
                least,
                freed_before,
                keep_warm,
                unknown,
                from,
                to,
                runs: 3,
            })
        }
        Step::EndDiscard { pick, done } => {
            if let Some(at) = among(pick, world.discards.len()) {
                world.end_discard(at, done);
            }
        }
        Step::Grow { more, area } => world.grow(more, area),
        Step::Crash { all } => world.crash(all),
        Step::Load { pick } => world.load_one(pick),
        Step::Evict { limit } => world.evict(limit),
        Step::SetAside { pick, frees } => world.set_aside(pick, frees),
    }
}

/// Returns how many deltas of maps were written.
fn run(mut world: World, steps: Vec<Step>) -> u32 {
    for step in steps {
        apply(&mut world, step);
        world.check();
    }
    world.crash(true);
    world.check();
    world.deltas
}

#[test]
fn histories_write_deltas_of_maps() {
    let mut runner = TestRunner::deterministic();
    // Maps that are away seldom have a base, frees and no other edits when they are flushed.
    for (prefer_deltas, maps_bytes, histories, least) in
        [(true, None, 60, 20), (false, Some(1000), 180, 12)]
    {
        let config = Config { prefer_deltas, maps_bytes, ..Config::default() };
        let history = prop::collection::vec(step(), 400);
        let deltas = (0..histories).map(|_| {
            let steps = history.new_tree(&mut runner).expect("no filter refuses it").current();
            run(World::new(&[(2900, 256), (700, 256)], &fixed(), 2, config), steps)
        });
        let deltas: u32 = deltas.sum();
        assert!(deltas >= least, "{deltas} with {config:?}");
    }
}

/// Writes nearly all maps, and evicts them.
fn settle(world: &mut World) {
    for _ in 0..3 {
        (0..20).for_each(|_| world.freeze());
        put_all(world);
        (0..6).for_each(|_| world.advance());
        world.release(0);
    }
    world.trim();
    world.evict(0);
}

fn put_all(world: &mut World) {
    while !world.jobs.is_empty() {
        world.put(0);
    }
}

#[test]
fn deltas_are_given_up_or_installed_beside_maps_that_cannot_be_read() {
    let config = Config { reserve_blocks: Some(0), prefer_deltas: true, ..Config::default() };
    let mut world = World::new(&[(2900, 256), (700, 256)], &fixed(), 2, config);
    for round in 0..40 {
        world.reserve(if round == 0 { 1500 } else { 60 }, Tier::Write);
        world.claim(0, Lane { cpu: 0, class: LaneClass::Data }, u64::MAX);
        world.drop_reservation(0);
        apply(&mut world, Step::LogAll);
        settle(&mut world);
        for at in 0..6 {
            world.free_run(at % world.allocated.len(), 7 * round, 2, false, false);
        }
        (0..3).for_each(|_| world.advance());
        (0..8).for_each(|_| world.freeze());
        if round % 2 == 1 {
            put_all(&mut world);
        }
        for pick in 0..3 {
            world.set_aside(pick, round as usize % 3);
            world.check();
        }
    }
    world.crash(true);
    world.check();
    let (given_up, installed) = (world.given_up, world.installed_aside);
    assert!(given_up >= 10 && installed >= 10, "{given_up} and {installed}");
}

fn fixed() -> Vec<Run> {
    let run = |device, block, blocks| Run::new(BlockAddr::new(DeviceId(device), block), blocks);
    vec![run(0, 0, 70), run(0, 900, 300), run(1, 0, 1), run(1, 650, 50)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_small_and_often_full_space_behaves_as_a_vector_of_blocks(
        steps in prop::collection::vec(step(), 1..200),
        reserve in 0u64..400,
        prefer_deltas in any::<bool>(),
    ) {
        let (reserve_blocks, warm_blocks) = (Some(reserve), Some(300));
        let config = Config { reserve_blocks, warm_blocks, prefer_deltas, ..Config::default() };
        run(World::new(&[(2900, 1024), (700, 256)], &fixed(), 2, config), steps);
    }

    #[test]
    fn a_space_whose_maps_do_not_fit_in_memory_behaves_as_a_vector_of_blocks(
        steps in prop::collection::vec(step(), 1..200),
        reserve in 0u64..100,
        maps_bytes in 0u64..3000,
    ) {
        let maps_bytes = Some(maps_bytes);
        let config = Config { reserve_blocks: Some(reserve), maps_bytes, ..Config::default() };
        run(World::new(&[(2900, 256), (700, 256)], &fixed(), 2, config), steps);
    }

    #[test]
    fn a_larger_space_with_lanes_behaves_as_a_vector_of_blocks(
        steps in prop::collection::vec(step(), 1..120),
        prefer_deltas in any::<bool>(),
    ) {
        let config = Config { warm_blocks: Some(1000), prefer_deltas, ..Config::default() };
        run(World::new(&[(9000, 2048), (3000, 4096)], &fixed(), 1, config), steps);
    }
}
