//! Where allocations go, and who gets the last blocks.

use copyhold_space::*;
use copyhold_types::{BlockAddr, DeviceId, Run, Txg};

const DATA: Lane = Lane { cpu: 0, class: LaneClass::Data };
const NODE: Lane = Lane { cpu: 0, class: LaneClass::Node };
const SYNC: Lane = Lane { cpu: 0, class: LaneClass::Sync };

fn layout(blocks: u64) -> MetaslabLayout {
    MetaslabLayout::for_device(DeviceId(0), blocks, Some(4096))
}

fn run(block: u64, blocks: u32) -> Run {
    Run::new(BlockAddr::new(DeviceId(0), block), blocks)
}

/// Room for `chunks` MiB; one CPU.
fn space(chunks: u64, reserve: u64) -> Space {
    let config =
        Config { reserve_blocks: Some(reserve), warm_blocks: Some(512), ..Config::default() };
    Space::new(&[layout(chunks * 256)], &[], 1, config)
}

fn claim(space: &Space, lane: Lane, blocks: u64) -> Vec<Run> {
    let mut promise = space.reserve(blocks, Tier::Internal).unwrap();
    let claims = space.claim(lane, blocks, &mut promise).unwrap();
    claims.into_iter().map(|claim| space.log_alloc(Txg::FIRST, claim)).collect()
}

fn claim_run(space: &Space, lane: Lane, blocks: u32) -> Result<Run, NoSpace> {
    let mut promise = space.reserve(u64::from(blocks), Tier::Internal)?;
    let claim = space.claim_run(lane, blocks, &mut promise)?;
    Ok(space.log_alloc(Txg::FIRST, claim))
}

fn free(space: &Space, run: Run) {
    space.log_free(Txg::FIRST, run).unwrap();
}

/// Fills the space, then frees what `keep` does not want.
fn fill_and_free(space: &Space, keep: impl Fn(u64) -> bool) {
    let blocks = space.figures().free;
    let runs = claim(space, DATA, blocks);
    for block in runs.iter().flat_map(|run| (0..run.blocks).map(|at| run.slice(at, 1))) {
        if !keep(block.addr.block()) {
            free(space, block);
        }
    }
    space.release_deferred(Txg::FIRST);
    space.check();
}

#[test]
fn each_tier_may_take_its_part_of_the_reserve() {
    let space = space(16, 1000);
    let take = |blocks, tier| space.reserve(blocks, tier);
    let writes = take(3096, Tier::Write).unwrap();
    let refused = take(1, Tier::Write).unwrap_err();
    assert_eq!(refused, NoSpace { wanted: 1, free: 1000, reserve: 1000, on_the_way: 0 });
    let changes = take(250, Tier::Change).unwrap();
    assert!(take(1, Tier::Change).is_err());
    let deletes = take(250, Tier::Delete).unwrap();
    assert!(take(1, Tier::Delete).is_err());
    let reaped = take(125, Tier::FinishDelete).unwrap();
    assert!(take(1, Tier::FinishDelete).is_err());
    let subvolumes = take(125, Tier::DeleteSubvolume).unwrap();
    assert!(take(1, Tier::DeleteSubvolume).is_err());
    let steps = take(125, Tier::FinishSubvolume).unwrap();
    assert!(take(1, Tier::FinishSubvolume).is_err());
    let internal = take(4000, Tier::Internal).unwrap();
    assert_eq!(space.figures().available(), 0);
    drop((writes, changes, deletes, reaped, subvolumes, steps, internal));
    assert_eq!(space.figures().available(), 3096);
}

#[test]
fn what_was_freed_is_reported_as_on_its_way() {
    let space = space(4, 0);
    let runs = claim(&space, DATA, 1024);
    free(&space, runs[0]);
    let refused = space.reserve(1, Tier::Write).unwrap_err();
    assert_eq!(refused.on_the_way, u64::from(runs[0].blocks));
    assert!(refused.to_string().contains("delete files"), "{refused}");
}

#[test]
fn every_accepted_block_can_be_placed_though_lanes_hold_the_rest() {
    let space = Space::new(
        &[layout(32 * 256)],
        &[],
        4,
        Config { reserve_blocks: Some(0), ..Config::default() },
    );
    for cpu in 0..4 {
        for class in [LaneClass::Data, LaneClass::Node, LaneClass::Sync] {
            claim(&space, Lane { cpu, class }, 1);
        }
    }
    space.check();
    let left = 32 * 256 - 12;
    let mut promise = space.reserve(left, Tier::Write).unwrap();
    let claims = space.claim(SYNC, left, &mut promise).unwrap();
    assert_eq!(claims.iter().map(|claim| u64::from(claim.run().blocks)).sum::<u64>(), left);
    space.check();
}

#[test]
fn small_synchronous_writes_lie_side_by_side_and_apart_from_data() {
    let space = space(64, 0);
    let mut sync = Vec::new();
    for _ in 0..20 {
        sync.extend(claim(&space, SYNC, 1));
        claim(&space, DATA, 3);
    }
    let first = sync[0].addr.block();
    let wanted: Vec<Run> = (0..20).map(|at| run(first + at, 1)).collect();
    assert_eq!(sync, wanted);
}

#[test]
fn a_large_write_gets_whole_chunks_in_one_run() {
    let space = space(64, 0);
    claim(&space, SYNC, 1);
    let runs = claim(&space, DATA, 10 * 256 + 30);
    assert_eq!(runs, [run(256, 2560), run(11 * 256, 30)]);
}

#[test]
fn chunks_with_large_free_runs_come_first() {
    let space = space(64, 0);
    // Every other block is free, and in chunk 40 runs of 32.
    let in_runs = |block| (40 * 256..41 * 256).contains(&block);
    fill_and_free(&space, |block| if in_runs(block) { block % 64 < 32 } else { block % 2 == 0 });
    let runs = claim(&space, DATA, 32);
    assert_eq!(runs, [run(40 * 256 + 32, 32)]);
    let runs = claim(&space, DATA, 200);
    assert_eq!(runs.iter().filter(|run| run.blocks == 32).count(), 3);
    assert_eq!(runs.iter().filter(|run| run.blocks == 1).count(), 200 - 96);
    space.check();
}

#[test]
fn fragmented_space_is_used_to_the_last_block() {
    let space = space(32, 0);
    fill_and_free(&space, |block| block % 3 == 0);
    let left = space.figures().free;
    let runs = claim(&space, DATA, left);
    assert!(runs.iter().all(|run| run.blocks <= 2));
    assert_eq!(space.figures().free, 0);
    assert!(space.reserve(1, Tier::Write).is_err());
    assert!(claim_run(&space, NODE, 1).is_err());
}

#[test]
fn data_leaves_runs_for_nodes() {
    let space = space(64, 16 * 256);
    // 16 chunks are free as a whole, of the others every other block.
    fill_and_free(&space, |block| block >= 16 * 256 && block % 2 == 0);
    let mut promise = space.reserve(space.figures().available(), Tier::Write).unwrap();
    let blocks = promise.blocks();
    let claims = space.claim(DATA, blocks, &mut promise).unwrap();
    assert!(space.reserve(1, Tier::Write).is_err());
    // Half of the reserve is still there in runs.
    for _ in 0..8 * 256 / 8 {
        assert_eq!(claim_run(&space, NODE, 8).unwrap().blocks, 8);
    }
    drop(claims);
    space.check();
}

#[test]
fn a_run_longer_than_a_chunk_is_found() {
    let space = space(32, 0);
    fill_and_free(&space, |block| !(1000..1400).contains(&block));
    assert_eq!(claim_run(&space, NODE, 400), Ok(run(1000, 400)));
    assert!(claim_run(&space, NODE, 1).is_err());
}

#[test]
fn nodes_and_small_synchronous_writes_go_where_something_was_written_before() {
    let space = space(64, 0);
    space.mark_warm(run(50 * 256, 512)).unwrap();
    assert_eq!(claim(&space, SYNC, 1), [run(50 * 256, 1)]);
    assert_eq!(claim_run(&space, NODE, 8), Ok(run(51 * 256, 8)));
    space.check();
}

#[test]
fn discards_leave_warm_space_and_young_frees() {
    let space = space(64, 0);
    claim(&space, DATA, 16 * 256);
    let txg = |n| Txg::new(n).unwrap();
    space.log_free(txg(5), run(0, 8 * 256)).unwrap();
    space.log_free(txg(9), run(8 * 256, 8 * 256)).unwrap();
    space.release_deferred(txg(9));
    let which = |freed_before, keep_warm| Discardable {
        least: 256,
        freed_before,
        keep_warm,
        unknown: false,
        from: 0,
        to: u64::MAX,
        runs: usize::MAX,
    };
    let old: Vec<Discard> = space.take_discardable(which(Some(txg(9)), true));
    assert_eq!(old.iter().map(Discard::run).collect::<Vec<_>>(), [run(0, 8 * 256)]);
    space.check();
    assert_eq!(space.figures().discarding, 8 * 256);
    old.into_iter().for_each(|discard| space.discard_done(discard));
    let more = space.take_discardable(which(None, true));
    assert_eq!(more.iter().map(|discard| discard.run().blocks).sum::<u32>(), 6 * 256);
    // Not done: still warm.
    drop(more);
    let all = space.take_discardable(which(None, false));
    assert_eq!(all.iter().map(|discard| discard.run().blocks).sum::<u32>(), 8 * 256);
    space.check();
}

/// What a user's trim of some blocks takes.
fn trim(from: u64, to: u64) -> Discardable {
    let keep_warm = false;
    Discardable { least: 0, freed_before: None, keep_warm, unknown: true, from, to, runs: 99 }
}

/// Whether it was written before the pool was opened, nobody knows.
#[test]
fn a_trim_takes_all_that_is_free_once_and_keeps_to_its_range() {
    let space = space(64, 0);
    claim(&space, DATA, 256);
    let trimmed = |from, to| {
        let taken = space.take_discardable(trim(from, to));
        let blocks = taken.iter().map(|discard| discard.run().blocks).sum::<u32>();
        taken.into_iter().for_each(|discard| space.discard_done(discard));
        space.check();
        blocks / 256
    };
    assert_eq!(trimmed(20 * 256 + 1, 24 * 256), 3);
    assert_eq!(trimmed(64 * 256, u64::MAX), 0);
    assert_eq!(trimmed(0, u64::MAX), 64 - 1 - 3);
    assert_eq!(trimmed(0, u64::MAX), 0);
    // What is used and free again is worth it again.
    claim(&space, DATA, 256).into_iter().for_each(|run| free(&space, run));
    space.release_deferred(Txg::FIRST);
    assert_eq!(trimmed(0, u64::MAX), 1);
}

#[test]
fn a_discard_takes_nothing_that_is_promised() {
    let space = space(64, 512);
    claim(&space, DATA, 64 * 256);
    free(&space, run(0, 4 * 256));
    space.release_deferred(Txg::FIRST);
    let promise = space.reserve(300, Tier::Write).unwrap();
    let which = trim(0, u64::MAX);
    let taken = space.take_discardable(which);
    assert_eq!(taken.iter().map(|discard| discard.run().blocks).sum::<u32>(), 0);
    drop(promise);
    let taken = space.take_discardable(which);
    assert_eq!(taken.iter().map(|discard| discard.run().blocks).sum::<u32>(), 512);
}
