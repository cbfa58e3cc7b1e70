//! A log that is damaged in its middle: refused, read as far as it goes, or cut on demand.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{SimConfig, SimDevice, SimImage};
use copyhold_format::label::{Label, RING_SLOTS, RING_START};
use copyhold_log::{Recovered, Ring, recover};
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, PoolError, Tier, Transaction, read_labels,
    read_uberblocks,
};
use copyhold_runtime::{BoxFuture, Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, TableId};

const BLOCKS: u64 = 4096;

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn on(image: &SimImage) -> Machine {
        let rt = SeededRuntime::new(1);
        let config = SimConfig::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image.clone(), config);
        Machine { rt, disk }
    }

    fn device(&self) -> DynDevice {
        self.disk.clone()
    }

    fn open(&self, options: OpenOptions) -> Result<Arc<Pool>, PoolError> {
        self.rt.block_on(Pool::open(self.rt.clone() as Rt, self.device(), options))
    }

    fn log(&self) -> (Label, Recovered) {
        self.rt.block_on(async {
            let device = self.device();
            let label = read_labels(&device).await.unwrap().label;
            let newest = read_uberblocks(&device, &label).await.unwrap().pop().unwrap();
            let (at, blocks) = (label.log, label.log_blocks);
            let ring = Ring::new(device, at, blocks, label.pool, label.secret);
            (label, recover(&ring, &newest).await.unwrap())
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

fn limits() -> Limits {
    Limits { delta_bytes: 1 << 20, ..Limits::default() }
}

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, limits: limits(), ..OpenOptions::default() }
}

fn writing(cut_tail: bool) -> OpenOptions {
    OpenOptions { cut_tail, limits: limits(), ..OpenOptions::default() }
}

/// Several tables, so that one is flushed while another pins the log.
fn table(n: u64) -> TableId {
    TableId(100 + n % 4)
}

fn key(n: u64) -> Key {
    Key::new(1, Kind(40), n)
}

fn put(pool: &Arc<Pool>, n: u64) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let mut tx = Transaction::new();
        tx.put(table(n), key(n), vec![n as u8; 40]);
        let credit = pool.admit(Tier::Write, 1, 64).await.unwrap();
        let txg = pool.apply(credit, tx).unwrap();
        pool.commit(txg).await.unwrap();
    })
}

/// Which of the items 0..100 there are.
fn items(machine: &Machine, pool: &Arc<Pool>) -> Vec<u64> {
    machine.rt.block_on(async {
        let mut found = Vec::new();
        for n in 0..100 {
            if pool.get(table(n), key(n)).await.unwrap().is_some() {
                found.push(n);
            }
        }
        found
    })
}

/// A pool whose power went after it had put the items 0..`count`, each in a txg of its own.
fn crashed(count: u64, limits: Limits) -> SimImage {
    let machine = Machine::on(&SimImage::empty(BLOCKS));
    let options = CreateOptions { log_bytes: Some(1 << 20), ..CreateOptions::default() };
    let rt = machine.rt.clone() as Rt;
    machine.rt.block_on(Pool::create(&rt, &machine.device(), &options)).unwrap();
    let pool = machine.open(OpenOptions { limits, ..OpenOptions::default() }).unwrap();
    for n in 0..count {
        machine.rt.block_on(put(&pool, n));
    }
    machine.disk.image()
}

/// Both copies of a block of the log rot.
fn rot(image: &mut SimImage, label: &Label, position: u64) {
    for start in label.log {
        image.corrupt(start + position % label.log_blocks, |bytes| bytes[100] ^= 1);
    }
}

/// Ten items, and the batch of the seventh is lost.
fn damaged() -> SimImage {
    let mut image = crashed(10, Limits::default());
    let (label, found) = Machine::on(&image).log();
    rot(&mut image, &label, found.batches[found.batches.len() - 4].start);
    image
}

#[test]
fn a_log_damaged_in_its_middle_is_refused_with_the_way_out() {
    let machine = Machine::on(&damaged());
    let error = machine.open(writing(false)).err().expect("it is refused");
    let PoolError::Log(damage) = &error else { panic!("{error}") };
    assert!(damage.newest >= damage.last + 4, "{damage:?}");
    assert!(damage.frames >= 3 && damage.bytes >= 3 * 4096, "{damage:?}");
    let text = error.to_string();
    assert!(text.contains("-o cut-tail") && text.contains(&damage.lost()), "{text}");
    let pool = machine.open(read_only()).unwrap();
    assert_eq!(items(&machine, &pool), (0..6).collect::<Vec<_>>());
    assert_eq!(pool.cut(), Some(&*damage.lost()));
    let written = machine.device().counters().snapshot();
    assert!(written.purposes.iter().all(|purpose| purpose.writes == 0));
}

#[test]
fn a_cut_log_goes_on_and_what_was_cut_never_comes_back() {
    let machine = Machine::on(&damaged());
    let pool = machine.open(writing(true)).unwrap();
    assert!(pool.cut().unwrap().starts_with("what txgs"), "{:?}", pool.cut());
    assert_eq!(items(&machine, &pool), (0..6).collect::<Vec<_>>());
    machine.rt.block_on(put(&pool, 50));
    // Again after a loss of power, and without the option.
    let machine = Machine::on(&machine.disk.image());
    let pool = machine.open(writing(false)).unwrap();
    assert_eq!(pool.cut(), None);
    assert_eq!(items(&machine, &pool), (0..6).chain([50]).collect::<Vec<_>>());
    machine.rt.block_on(pool.close()).unwrap();
    let machine = Machine::on(&machine.disk.image());
    let pool = machine.open(writing(false)).unwrap();
    assert_eq!(items(&machine, &pool), (0..6).chain([50]).collect::<Vec<_>>());
}

/// The head moved because of a flush whose record is lost: from the newest uberblock, what came
/// before that head would be missing.
#[test]
fn a_cut_before_the_newest_uberblock_begins_at_an_older_one() {
    let (mut cuts, mut twice) = (0, 0);
    for count in 20..100 {
        let mut image = crashed(count, Limits { delta_bytes: 1024, ..Limits::default() });
        let (label, found) = Machine::on(&image).log();
        let newest = uberblock(&image);
        let stands_on = |txg: u64| txg == newest.durable.get() && newest.before_head_txg < txg;
        let Some(lost) = found.batches.iter().find(|batch| stands_on(batch.txg.get())) else {
            continue;
        };
        rot(&mut image, &label, lost.start);
        let machine = Machine::on(&image);
        assert!(machine.open(writing(false)).is_err());
        let Ok(pool) = machine.open(writing(true)) else { continue };
        cuts += 1;
        let all = items(&machine, &pool);
        assert_eq!(all, (0..all.len() as u64).collect::<Vec<_>>(), "a beginning");
        machine.rt.block_on(put(&pool, 99));
        let image = machine.disk.image();
        let newest = uberblock(&image).number;
        for lost in 0..=2 {
            // Those that remain know nothing of what was given up (UBER-U1).
            let mut image = image.clone();
            for number in newest + 1 - lost..=newest {
                for area in Label::areas(label.blocks) {
                    let block = area + RING_START + number % RING_SLOTS;
                    image.corrupt(block, |bytes| bytes[9] ^= 1);
                }
            }
            let machine = Machine::on(&image);
            let pool = machine.open(writing(false)).unwrap();
            assert_eq!(items(&machine, &pool), [&all[..], &[99]].concat(), "{lost} lost");
        }
        // The log of what was gone back to is damaged, too: no uberblock that was given up serves.
        let gone_back_to = uberblock(&image);
        if gone_back_to.durable.get() > gone_back_to.before_head_txg {
            let mut image = image.clone();
            rot(&mut image, &label, gone_back_to.head);
            for mode in [read_only(), writing(true)] {
                let machine = Machine::on(&image);
                let Ok(pool) = machine.open(mode) else { continue };
                let left = items(&machine, &pool);
                assert!(!left.contains(&99), "a state that was given up: {left:?}");
                twice += 1;
            }
        }
    }
    assert!(twice > 0, "no such damage was found");
    assert!(cuts > 0, "no such crash was found");
}

fn uberblock(image: &SimImage) -> copyhold_format::uberblock::Uberblock {
    let machine = Machine::on(image);
    machine.rt.block_on(async {
        let label = read_labels(&machine.device()).await.unwrap().label;
        read_uberblocks(&machine.device(), &label).await.unwrap().pop().unwrap()
    })
}

#[test]
fn a_sound_log_is_not_cut() {
    let machine = Machine::on(&crashed(10, Limits::default()));
    let pool = machine.open(writing(true)).unwrap();
    assert_eq!((pool.cut(), items(&machine, &pool)), (None, (0..10).collect()));
}
