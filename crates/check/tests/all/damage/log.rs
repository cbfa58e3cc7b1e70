//! The log: frames in one copy, in both, in the middle.

use copyhold_check::{Problem, Severity};
use copyhold_device::sim::SimImage;
use copyhold_format::label::Label;
use copyhold_log::{Recovered, Ring, recover};
use copyhold_pool::{PoolError, Transaction, read_labels, read_uberblocks};
use copyhold_types::{Key, Kind};

use super::pool::{DIR, Power, TABLE, inode, kinds, report, rot, sound};

/// The sound pool after some commits more, and a loss of power: all of it is in the log.
fn unsettled() -> SimImage {
    let power = Power::on(&sound());
    let pool = power.open(false).unwrap();
    let files = super::pool::Files { pool };
    power.rt.block_on(async {
        for n in 0..6 {
            files.change_inode(DIR, |item| item.uid = n).await;
        }
        // More records than a batch holds: they go into pieces, too.
        for n in 0..120 {
            let mut tx = Transaction::new();
            tx.put(TABLE, Key::new(DIR.0, Kind(200), n), noise(n));
            let credit = files.pool.admit(copyhold_pool::Tier::Write, 1, 4096).await.unwrap();
            files.pool.apply(credit, tx).unwrap();
        }
        files.pool.commit(files.pool.open_txg()).await.unwrap();
        for n in 0..120 {
            let mut tx = Transaction::new();
            tx.delete(TABLE, Key::new(DIR.0, Kind(200), n));
            let credit = files.pool.admit(copyhold_pool::Tier::Write, 1, 4096).await.unwrap();
            files.pool.apply(credit, tx).unwrap();
        }
        files.change_inode(DIR, |item| item.uid = inode(4, 2).uid).await;
    });
    power.rt.drop_tasks();
    power.device.image()
}

/// Bytes that do not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    (0..2000).map(|_| next()).collect()
}

struct Log {
    label: Label,
    recovered: Recovered,
    /// Position and blocks of every frame of the chain, in order.
    batches: Vec<u64>,
    pieces: Vec<u64>,
}

fn log_of(image: &SimImage) -> Log {
    let power = Power::on(image);
    let device = power.device();
    power.rt.block_on(async {
        let label = read_labels(&device).await.unwrap().label;
        let uberblock = read_uberblocks(&device, &label).await.unwrap().pop().unwrap();
        let ring = Ring::new(device.clone(), label.log, label.log_blocks, label.pool, label.secret);
        let recovered = recover(&ring, &uberblock).await.unwrap();
        let scan = ring.scan(uberblock.head).await;
        let frames = || scan.frames.values().map(|found| &found.frame);
        let position = |digest| frames().find(|f| f.digest == digest).unwrap().position;
        let batches = recovered.batches.iter().map(|batch| position(batch.digest)).collect();
        let pieces = recovered.batches.iter().flat_map(|batch| &batch.batch.pieces);
        let pieces = pieces.map(|piece| piece.position).collect();
        Log { label, recovered, batches, pieces }
    })
}

impl Log {
    fn rot(&self, image: &mut SimImage, copy: usize, position: u64) {
        rot(image, self.label.log[copy] + position % self.label.log_blocks);
    }
}

#[test]
fn a_log_that_waits_to_be_replayed_is_sound() {
    let image = unsettled();
    let log = log_of(&image);
    assert!(log.batches.len() > 6 && !log.pieces.is_empty(), "{:?}", log.recovered);
    assert!(kinds(&image).is_empty());
}

#[test]
fn a_frame_that_is_damaged_in_one_copy_is_repaired_by_the_other() {
    let sound = unsettled();
    let log = log_of(&sound);
    for position in [log.batches[1], log.pieces[0]] {
        for copy in 0..2 {
            let mut image = sound.clone();
            log.rot(&mut image, copy, position);
            let report = report(&image);
            let [Problem::LogCopy { copy: found, position: at, last: false, .. }] =
                report.problems().collect::<Vec<_>>()[..]
            else {
                panic!("{report:?}");
            };
            assert_eq!((*found, *at), (copy, position));
            assert_eq!(report.worst(), Some(Severity::Repairable));
            let power = Power::on(&image);
            let pool = power.open(false).unwrap();
            power.rt.drop_tasks();
            drop(pool);
            assert!(kinds(&power.device.image()).is_empty(), "opening has repaired it");
        }
    }
}

#[test]
fn a_batch_in_the_middle_that_is_damaged_in_both_copies_is_never_taken_for_the_end() {
    let mut image = unsettled();
    let log = log_of(&image);
    (0..2).for_each(|copy| log.rot(&mut image, copy, log.batches[2]));
    let report = report(&image);
    let Some(Problem::Log { last, .. }) = report.problems().find(|problem| problem.kind() == "log")
    else {
        panic!("{report:?}");
    };
    assert_eq!(*last, log.recovered.batches[1].txg.get());
    assert_eq!(report.worst(), Some(Severity::Fatal));

    let power = Power::on(&image);
    let Err(error) = power.open(false) else { panic!("it opened to write") };
    assert!(matches!(error, PoolError::Log(_)), "{error}");
    assert!(power.open(true).is_ok(), "it can be read");
}

#[test]
fn a_piece_in_the_middle_that_is_damaged_in_both_copies_is_damage_too() {
    let mut image = unsettled();
    let log = log_of(&image);
    (0..2).for_each(|copy| log.rot(&mut image, copy, log.pieces[0]));
    assert!(kinds(&image).contains(&"log"));
    assert!(matches!(Power::on(&image).open(false), Err(PoolError::Log(_))));
}

#[test]
fn a_last_batch_that_is_in_one_copy_alone_is_what_a_crash_leaves() {
    let mut image = unsettled();
    let log = log_of(&image);
    assert!(!log.recovered.confirmed, "nobody has had the time to mark it");
    log.rot(&mut image, 0, log.batches[log.batches.len() - 1]);
    let report = report(&image);
    assert!(report.is_clean(), "{report:?}");
    assert!(matches!(report.findings[0].problem, Problem::LogCopy { last: true, .. }));
}

#[test]
fn a_log_that_neither_copy_gives_is_told_and_what_is_before_it_is_checked() {
    let image = unsettled();
    let log = log_of(&image);
    let power = Power::on(&image);
    for start in log.label.log {
        let block = start + log.batches[1] % log.label.log_blocks;
        power.device.break_block(block, 5, copyhold_device::sim::Lasting::Forever);
    }
    let report = power.check().unwrap();
    let kinds: Vec<_> = report.problems().map(Problem::kind).collect();
    assert_eq!(kinds, ["log-unreadable"]);
    assert!(power.open(false).is_err());
}
