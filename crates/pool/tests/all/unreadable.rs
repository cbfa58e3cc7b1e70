//! Blocks that cannot be read when a pool is opened: read again, taken from the other copy, or told
//! with the ways out. An error decides nothing (R13).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use copyhold_device::sim::{Lasting, SimImage};
use copyhold_format::label::Label;
use copyhold_format::uberblock::Uberblock;
use copyhold_log::{Ring, recover};
use copyhold_pool::{Pool, PoolError, Tier, Transaction, read_labels, read_uberblocks};
use copyhold_runtime::Runtime;
use copyhold_table::NodeVisit;
use copyhold_types::{Key, Kind, NodePtr, Run, TableId};

use crate::extents;
use crate::machine::{CUT_TAIL, Machine, READ_ONLY, WRITING};

const TABLE: TableId = TableId(100);
const LOG_BYTES: u64 = 1 << 20;
const LASTING: [Lasting; 3] = [Lasting::Once, Lasting::UntilWritten, Lasting::Forever];

impl Machine {
    async fn ring(&self) -> (Label, Uberblock, Ring) {
        let device = self.device();
        let label = read_labels(&device).await.unwrap().label;
        let newest = read_uberblocks(&device, &label).await.unwrap().pop().unwrap();
        let (at, blocks) = (label.log, label.log_blocks);
        let ring = Ring::new(device, at, blocks, label.pool, label.secret);
        (label, newest, ring)
    }

    /// The label, and position and blocks of the log's last batch, its pieces included.
    fn last_batch(&self) -> (Label, u64, u64) {
        self.rt.block_on(async {
            let (label, newest, ring) = self.ring().await;
            let found = recover(&ring, &newest).await.unwrap();
            let start = found.batches.last().unwrap().start;
            (label, start, found.next_position - start)
        })
    }

    /// Position and blocks of each frame of the log.
    fn frames(&self) -> Vec<(u64, u64)> {
        self.rt.block_on(async {
            let (_, newest, ring) = self.ring().await;
            let frames = ring.scan(newest.head).await.frames;
            frames.into_values().map(|found| (found.frame.position, found.frame.blocks)).collect()
        })
    }
}

fn refused(opened: Result<Arc<Pool>, PoolError>) -> String {
    let error = opened.err().expect("it is refused");
    assert!(matches!(error, PoolError::Unreadable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("-o ro") && text.contains("-o cut-tail"), "{text}");
    text
}

// -- any block ----------------------------------------------------------------

/// Files, some in tables and some in the log, and the blocks of their data.
fn with_everything() -> (SimImage, Vec<Run>) {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    let runs = machine.rt.block_on(async {
        let mut runs = Vec::new();
        for n in 0..8 {
            runs.push(extents::commit(&pool, n, n as u8 + 1, 1).await);
            if n % 2 == 1 && n < 6 {
                pool.flush_all().await.unwrap();
            }
        }
        runs
    });
    drop(pool);
    (machine.disk.crash(1), runs)
}

/// Labels, uberblocks, log, maps and nodes are kept twice: one block that cannot be read keeps
/// nobody out and loses nothing.
#[test]
fn any_one_block_may_be_unreadable_in_every_mode() {
    let (image, runs) = with_everything();
    let data: Vec<u64> = runs.iter().map(|run| run.addr.block()).collect();
    let is_held = |block: &u64| image.read_block(*block) != [0; 4096] && !data.contains(block);
    let held: Vec<u64> = (0..image.blocks()).filter(is_held).collect();
    assert!(held.len() > 60, "{} blocks", held.len());
    for block in held {
        for lasting in [Lasting::Once, Lasting::Forever] {
            for mode in [WRITING, READ_ONLY, CUT_TAIL] {
                let machine = Machine::on(&image);
                machine.break_blocks(&[block], lasting);
                let what = format!("block {block}, {lasting:?}, {mode:?}");
                let pool = machine.open(mode).unwrap_or_else(|error| panic!("{what}: {error}"));
                for n in 0..8 {
                    let found = read(&machine, &pool, n);
                    assert!(matches!(found, Ok(Some(byte)) if byte == n as u8 + 1), "{what}, {n}");
                }
                assert_eq!(pool.cut(), None, "{what}");
            }
        }
    }
}

/// Blocks that are kept twice, and both places.
fn copies(image: &SimImage, data: &[u64]) -> Vec<[u64; 2]> {
    let mut places: HashMap<[u8; 4096], Vec<u64>> = HashMap::new();
    for block in (0..image.blocks()).filter(|block| !data.contains(block)) {
        let bytes = image.read_block(block);
        if bytes != [0; 4096] {
            places.entry(bytes).or_default().push(block);
        }
    }
    let mut pairs: Vec<_> =
        places.into_values().filter_map(|places| <[u64; 2]>::try_from(places).ok()).collect();
    pairs.sort_unstable();
    pairs
}

/// Writes four more files, until a block is needed that cannot be read, or free space is wanted
/// whose map cannot; says how many were acknowledged.
fn write_four_more(machine: &Machine, pool: &Arc<Pool>) -> u64 {
    machine.rt.block_on(async {
        for n in 8..12 {
            if let Err(error) = pool.get(TABLE, extents::key(n)).await {
                assert!(error.to_string().contains("Input/output error"), "{error}");
                return n - 8;
            }
            if let Err(error) = pool.reserve(1, Tier::Write).await {
                assert!(matches!(error, PoolError::Full { free: 0, .. }), "{error}");
                return n - 8;
            }
            extents::commit(pool, n, n as u8 + 1, 1).await;
            if let Err(error) = pool.flush_all().await {
                assert!(error.to_string().contains("Input/output error"), "{error}");
            }
        }
        4
    })
}

/// A mount reads around a block that neither copy gives, answers with an error where it is needed,
/// or is refused and names the ways out. Once both copies can be read, all content is there again,
/// but for a tail that was given up.
#[test]
fn a_block_that_no_copy_gives_is_told_and_nothing_is_lost_with_it() {
    let (image, runs) = with_everything();
    let data: Vec<u64> = runs.iter().map(|run| run.addr.block()).collect();
    let pairs = copies(&image, &data);
    assert!(pairs.len() > 30, "{} pairs", pairs.len());
    let [mut opened, mut refused] = [0; 2];
    for pair in pairs {
        for mode in [WRITING, READ_ONLY, CUT_TAIL] {
            let machine = Machine::on(&image);
            machine.break_blocks(&pair, Lasting::Forever);
            let what = format!("blocks {pair:?}, {mode:?}");
            let mut acknowledged = 8;
            match machine.open(mode) {
                Ok(pool) => {
                    opened += 1;
                    for n in 0..8 {
                        let found = read(&machine, &pool, n);
                        let is_right = match &found {
                            Ok(Some(byte)) => *byte == n as u8 + 1,
                            Ok(None) => mode != WRITING && pool.cut().is_some(),
                            Err(error) => error.to_string().contains("Input/output error"),
                        };
                        assert!(is_right, "{what}, {n}: {found:?}");
                    }
                    if mode != READ_ONLY {
                        acknowledged += write_four_more(&machine, &pool);
                    }
                }
                Err(error) => {
                    refused += 1;
                    let text = error.to_string();
                    // Of labels and tables there is nothing to be given up.
                    let is_told =
                        text.contains("for Label failed") || text.contains("`copyhold check`");
                    let names_ways_out = text.contains("-o ro") && text.contains("-o cut-tail");
                    assert!(is_told || names_ways_out, "{what}: {text}");
                }
            }
            machine.rt.drop_tasks();
            let machine = Machine::on(&machine.disk.crash(1));
            let pool = machine.open(WRITING).unwrap_or_else(|error| panic!("{what}: {error}"));
            for n in 0..acknowledged {
                let found = read(&machine, &pool, n);
                let may_be_cut = n < 8 && mode == CUT_TAIL && matches!(found, Ok(None));
                let is_there = matches!(found, Ok(Some(byte)) if byte == n as u8 + 1);
                assert!(is_there || may_be_cut, "{what}, healed, {n}: {found:?}");
            }
        }
    }
    assert!(opened > 30 && refused > 3, "{opened} opened, {refused} refused");
}

// -- nodes ------------------------------------------------------------------

/// The leaf that has the files which were flushed.
fn leaf(machine: &Machine) -> NodePtr {
    let pool = machine.open(READ_ONLY).unwrap();
    let table = pool.tables().into_iter().find(|table| table.id() == TABLE).unwrap();
    let mut nodes = Vec::new();
    let mut visit = |visit: NodeVisit<'_>| nodes.push(visit.ptr);
    machine.rt.block_on(table.for_each_node(pool.node_source(), true, &mut visit));
    nodes[0]
}

/// A read looks at one copy, and each mount draws which one comes first; no mount changes anything.
#[test]
fn a_rotten_copy_of_a_node_is_found_by_some_mount_and_repaired() {
    let (image, _) = with_everything();
    let runs: Vec<Run> = leaf(&Machine::on(&image)).runs().collect();
    assert_eq!(runs.len(), 2, "copies");
    for bad in runs {
        let block = bad.addr.block();
        let mut now = image.clone();
        now.corrupt(block, |bytes| bytes[1] ^= 1);
        for mount in 0..16 {
            let machine = Machine::seeded(&now, mount);
            let pool = machine.open(WRITING).unwrap();
            assert_eq!(read(&machine, &pool, 0).unwrap(), Some(1));
            machine.rt.block_on(machine.rt.sleep(Duration::from_secs(1)));
            drop(pool);
            now = machine.disk.image();
        }
        assert!(now.read_block(block) == image.read_block(block), "block {block} is rotten still");
    }
}

// -- data of the last batch -------------------------------------------------

/// Five files are acknowledged; the last of them has so many blocks.
fn with_data(last_blocks: u64) -> (SimImage, Run) {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    let last = machine.rt.block_on(async {
        for n in 0..4 {
            extents::commit(&pool, n, n as u8 + 1, 1).await;
        }
        extents::commit(&pool, 4, 5, last_blocks).await
    });
    drop(pool);
    (machine.disk.crash(1), last)
}

fn read(machine: &Machine, pool: &Arc<Pool>, n: u64) -> Result<Option<u8>, PoolError> {
    machine.rt.block_on(extents::read(pool, n))
}

#[test]
fn the_only_block_of_the_last_batch_is_read_again_or_told_or_cut() {
    let (image, run) = with_data(1);
    for lasting in LASTING {
        for mode in [WRITING, READ_ONLY, CUT_TAIL, [true, true]] {
            let machine = Machine::on(&image);
            machine.break_blocks(&[run.addr.block()], lasting);
            let opened = machine.open(mode);
            if mode == WRITING && lasting != Lasting::Once {
                let text = refused(opened);
                assert!(text.contains("data that txg"), "{text}");
                continue;
            }
            let pool = opened.unwrap();
            assert_eq!(read(&machine, &pool, 3).unwrap(), Some(4));
            match (lasting, mode) {
                (Lasting::Once, _) => assert_eq!(read(&machine, &pool, 4).unwrap(), Some(5)),
                (_, READ_ONLY) => {
                    let error = read(&machine, &pool, 4).expect_err("that extent is not there");
                    assert!(matches!(error, PoolError::Device(_)), "{error}");
                }
                _ => {
                    assert_eq!(read(&machine, &pool, 4).unwrap(), None);
                    assert!(pool.cut().is_some_and(|cut| cut.contains("cannot be read")));
                }
            }
        }
    }
}

#[test]
fn a_last_batch_is_kept_if_all_else_that_it_brought_is_there() {
    let (image, run) = with_data(3);
    for bad in 0..3 {
        let machine = Machine::on(&image);
        machine.break_blocks(&[run.addr.block() + bad], Lasting::Forever);
        let pool = machine.open(WRITING).unwrap();
        let error = read(&machine, &pool, 4).expect_err("a block of it is not there");
        assert!(matches!(error, PoolError::Device(_)), "{error}");
        assert_eq!((read(&machine, &pool, 3).unwrap(), pool.cut()), (Some(4), None));
    }
}

#[test]
fn an_unreadable_block_does_not_hide_that_another_is_torn() {
    let (mut image, run) = with_data(3);
    image.corrupt(run.addr.block(), |bytes| bytes[7] ^= 1);
    let machine = Machine::on(&image);
    machine.break_blocks(&[run.addr.block() + 1], Lasting::Forever);
    let pool = machine.open(WRITING).unwrap();
    assert_eq!(read(&machine, &pool, 4).unwrap(), None);
}

// -- the log ----------------------------------------------------------------

fn noise(n: u64, len: usize) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| byte()).collect()
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

/// A txg of so many items from this one on, of some bytes each, is acknowledged.
async fn commit(pool: &Arc<Pool>, first: u64, items: u64, bytes: usize) {
    let mut tx = Transaction::new();
    (first..first + items).for_each(|n| tx.put(TABLE, key(n), noise(n, bytes)));
    let credit = pool.admit(Tier::Write, tx.len(), items as usize * (bytes + 500)).await.unwrap();
    let txg = pool.apply(credit, tx).unwrap();
    pool.commit(txg).await.unwrap();
}

/// Five txgs of four blocks of log each are acknowledged.
fn with_log() -> SimImage {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    machine.rt.block_on(async {
        for n in 0..5 {
            commit(&pool, n * 10, 10, 1500).await;
        }
    });
    drop(pool);
    machine.disk.crash(1)
}

/// The last of the txgs did not fit before the end of the ring.
fn with_skip() -> SimImage {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    for _ in 0..200 {
        machine.rt.block_on(commit(&pool, 40, 10, 1500));
        let image = machine.disk.image();
        let frames = Machine::on(&image).frames();
        let [.., before, last] = frames[..] else { continue };
        if last.0 % 256 == 0 && before.0 + before.1 < last.0 {
            drop(pool);
            return image;
        }
    }
    panic!("each frame fits before the end of the ring");
}

/// The last of the txgs has a piece.
fn with_piece() -> SimImage {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    machine.rt.block_on(async {
        commit(&pool, 0, 10, 1500).await;
        commit(&pool, 10, 40, 2000).await;
    });
    drop(pool);
    machine.disk.crash(1)
}

fn has_last(machine: &Machine, pool: &Arc<Pool>) -> bool {
    machine.rt.block_on(pool.get(TABLE, key(49))).unwrap().is_some()
}

#[test]
fn a_frame_is_put_together_from_the_blocks_of_both_copies() {
    let image = with_log();
    let (label, start, blocks) = Machine::on(&image).last_batch();
    assert!(blocks >= 3, "{blocks} blocks");
    let at = |copy: usize, block: u64| label.log[copy] + start % label.log_blocks + block;
    for (one, other) in [(0, 1), (1, 0), (1, 2)] {
        for lasting in LASTING {
            let machine = Machine::on(&image);
            machine.break_blocks(&[at(0, one), at(1, other)], lasting);
            let pool = machine.open(WRITING).unwrap();
            assert!(has_last(&machine, &pool), "{one}, {other}: an acknowledged txg is cut");
        }
        let mut rotten = image.clone();
        rotten.corrupt(at(0, one), |bytes| bytes[200] ^= 1);
        rotten.corrupt(at(1, other), |bytes| bytes[300] ^= 1);
        let machine = Machine::on(&rotten);
        let pool = machine.open(WRITING).unwrap();
        assert!(has_last(&machine, &pool), "{one}, {other}: an acknowledged txg is cut");
        // Each copy has been made whole from the other.
        for copy in 0..2 {
            for block in 0..blocks {
                let now = machine.disk.read_block_now(at(copy, block));
                assert_eq!(now, image.read_block(at(copy, block)), "copy {copy}, block {block}");
            }
        }
    }
}

#[test]
fn a_log_that_may_go_on_in_what_cannot_be_read_is_refused_and_not_cut() {
    let image = with_log();
    let (label, start, _) = Machine::on(&image).last_batch();
    let at = |copy: usize, block: u64| label.log[copy] + start % label.log_blocks + block;
    let mut rotten = image.clone();
    rotten.corrupt(at(1, 1), |bytes| bytes[300] ^= 1);
    // One copy cannot be read where the other is bad; or both cannot be read, at the end of the
    // log, or where it never was.
    let far = [label.log[0] + 200, label.log[1] + 200];
    let cases: [(&SimImage, &[u64]); 3] =
        [(&rotten, &[at(0, 1)]), (&image, &[at(0, 1), at(1, 1)]), (&image, &far)];
    for (case, (image, bad)) in cases.into_iter().enumerate() {
        let on = |lasting| {
            let machine = Machine::on(image);
            machine.break_blocks(bad, lasting);
            machine
        };
        let text = refused(on(Lasting::Forever).open(WRITING));
        assert!(text.contains("of the log"), "{text}");
        for mode in [READ_ONLY, CUT_TAIL] {
            let machine = on(Lasting::UntilWritten);
            let pool = machine.open(mode).unwrap();
            assert_eq!(has_last(&machine, &pool), case == 2);
            assert!(pool.cut().is_some(), "it is told");
        }
        let machine = on(Lasting::Once);
        let pool = machine.open(WRITING).unwrap();
        assert!(has_last(&machine, &pool), "a passing error decides nothing");
    }
}

/// Ways in which the first block of a frame rots.
const ROT: [fn(&mut [u8; 4096]); 3] =
    [|block| block.fill(0), |block| block[0] ^= 1, |block| block[56..64].fill(0)];

/// No copy claims that a frame is there, or neither claim can be believed.
#[test]
fn a_frame_whose_first_block_no_copy_gives_is_not_cut() {
    let images = [with_log(), with_skip(), with_piece()];
    assert!(Machine::on(&images[2]).frames().len() > 3, "the last batch has a piece");
    for (case, image) in images.iter().enumerate() {
        let (label, start, _) = Machine::on(image).last_batch();
        let at = |copy: usize| label.log[copy] + start % label.log_blocks;
        for (rot, copy) in ROT.into_iter().flat_map(|rot| [(rot, 0), (rot, 1)]) {
            let mut rotten = image.clone();
            rotten.corrupt(at(copy), rot);
            let on = |lasting| {
                let machine = Machine::on(&rotten);
                machine.break_blocks(&[at(1 - copy)], lasting);
                machine
            };
            let pool = on(Lasting::Once);
            assert!(has_last(&pool, &pool.open(WRITING).unwrap()), "case {case}");
            for lasting in [Lasting::UntilWritten, Lasting::Forever] {
                let text = refused(on(lasting).open(WRITING));
                assert!(text.contains("of the log"), "{text}");
                for mode in [READ_ONLY, CUT_TAIL] {
                    let machine = on(lasting);
                    let pool = machine.open(mode).unwrap();
                    assert!(pool.cut().is_some(), "it is told");
                    machine.rt.block_on(pool.close()).unwrap();
                    drop(pool);
                    if mode == CUT_TAIL {
                        machine.open(WRITING).expect("what was given up stays so");
                    }
                }
            }
        }
    }
}

/// At the start of the ring is the log of the lap before.
#[test]
fn a_block_before_the_end_of_the_log_is_not_missed() {
    let image = with_skip();
    let (label, ..) = Machine::on(&image).last_batch();
    let mut frames = Machine::on(&image).frames();
    let (last, _) = frames.pop().unwrap();
    for (position, copy) in [(last - 1, 0), (last - 1, 1), (last + 20, 0), (last + 20, 1)] {
        let machine = Machine::on(&image);
        machine.break_blocks(&[label.log[copy] + position % 256], Lasting::Forever);
        assert!(has_last(&machine, &machine.open(WRITING).unwrap()));
    }
}

/// The txgs that are given up are more than are skipped at each mount.
#[test]
fn a_log_that_was_cut_is_not_in_doubt_again() {
    let (machine, pool) = Machine::new_pool(LOG_BYTES);
    machine.rt.block_on(async {
        for n in 0..40 {
            commit(&pool, n, 1, 100).await;
        }
    });
    drop(pool);
    let image = machine.disk.crash(1);
    let (label, start, _) = Machine::on(&image).last_batch();
    let at = |copy: usize, back: u64| label.log[copy] + (start - back) % label.log_blocks;
    for (lost, rot) in [10, 30].into_iter().flat_map(|lost| [(lost, 0), (lost, 200)]) {
        let mut rotten = image.clone();
        (0..lost).for_each(|back| rotten.corrupt(at(1, back), |bytes| bytes[rot] ^= 1));
        let bad: Vec<u64> = (0..lost).map(|back| at(0, back)).collect();
        let machine = Machine::on(&rotten);
        machine.break_blocks(&bad, Lasting::UntilWritten);
        refused(machine.open(WRITING));
        let pool = machine.open(CUT_TAIL).unwrap();
        let is_behind = pool.open_txg().get() > 40 + lost;
        assert!(is_behind, "R13: txg {} may be one that was given up", pool.open_txg());
        machine.rt.block_on(async {
            commit(&pool, 100, 1, 100).await;
            pool.close().await.unwrap();
        });
        drop(pool);
        let pool = machine.open(WRITING).expect("what was given up stays so");
        let found = |n| machine.rt.block_on(pool.get(TABLE, key(n))).unwrap().is_some();
        assert!(found(100) && found(39 - lost) && !found(40 - lost), "{lost}, {rot}");
    }
}
