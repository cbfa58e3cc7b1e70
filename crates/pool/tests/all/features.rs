//! What a pool may make use of is in its labels before it is used, whatever program made it.

use std::sync::Arc;

use copyhold_device::DynDevice;
use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimImage, Trigger};
use copyhold_format::label::{Features, Label, NODE_BYTES_MAX};
use copyhold_pool::{
    CreateOptions, Limits, OpenOptions, Pool, PoolError, Tier, Transaction, read_labels,
    use_features,
};
use copyhold_runtime::{Rt, SeededRuntime};
use copyhold_types::{DeviceId, Key, Kind, TableId};
use futures_util::future::{Either, select};

const BLOCKS: u64 = 1 << 14;
const TABLE: TableId = TableId(100);

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
}

impl Machine {
    fn on(image: SimImage) -> Machine {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1));
        Machine { rt, disk }
    }

    fn create(&self, options: &CreateOptions) -> Result<Label, PoolError> {
        let device: DynDevice = self.disk.clone();
        self.rt.block_on(Pool::create(&(self.rt.clone() as Rt), &device, options))
    }

    fn open(&self, options: OpenOptions) -> Result<Arc<Pool>, PoolError> {
        self.rt.block_on(Pool::open(self.rt.clone() as Rt, self.disk.clone(), options))
    }

    /// Whether it was opened before the power failed.
    fn open_until_off(&self) -> bool {
        let opened = Pool::open(self.rt.clone(), self.disk.clone(), OpenOptions::default());
        let first = select(Box::pin(opened), self.disk.until_off());
        self.rt.block_on(async { matches!(first.await, Either::Left((Ok(_), _))) })
    }

    /// As both ends have it; whether they are the same.
    fn label(&self) -> (Label, bool) {
        let device: DynDevice = self.disk.clone();
        let labels = self.rt.block_on(read_labels(&device)).unwrap();
        (labels.label, labels.problems == [None, None])
    }

    fn crash(&self) -> SimImage {
        let image = self.disk.crash(1);
        self.rt.drop_tasks();
        image
    }
}

/// A pool that an older program has made, which knows no fragments.
fn old_pool() -> SimImage {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    let label = machine.create(&CreateOptions::default()).unwrap();
    let mut image = machine.disk.image();
    let old = Label { features: Features::default(), ..label };
    let bytes: [u8; 4096] = old.encode().try_into().unwrap();
    Label::areas(BLOCKS).into_iter().for_each(|at| image.corrupt(at, |block| *block = bytes));
    image
}

fn may_have_fragments_and_deltas(label: &Label) -> bool {
    label.features.incompat == Features::FRAGMENTS | Features::MAP_DELTAS
}

#[test]
fn a_new_pool_says_that_nodes_may_be_in_fragments() {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    assert!(may_have_fragments_and_deltas(&machine.create(&CreateOptions::default()).unwrap()));
    assert!(may_have_fragments_and_deltas(&machine.label().0));
}

#[test]
fn an_old_pool_says_it_from_the_first_mount_that_may_write() {
    let image = old_pool();
    let machine = Machine::on(image.clone());
    machine.open(OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    assert_eq!(machine.disk.image(), image);
    machine.open(OpenOptions::default()).unwrap();
    let (label, is_same) = machine.label();
    assert!(may_have_fragments_and_deltas(&label) && is_same, "{label:?}");
}

/// The pool opens, and both labels say it in the end; nothing else was written before one did.
#[test]
fn the_power_may_fail_at_any_moment_of_that_mount() {
    let mut writes = 0;
    loop {
        let machine = Machine::on(old_pool());
        machine.disk.arm(Trigger::Write { nth: writes, why: None }, Fault::PowerOff);
        let opened = machine.open_until_off();
        let image = machine.crash();
        let machine = Machine::on(image);
        machine.open(OpenOptions::default()).unwrap();
        let (label, is_same) = machine.label();
        assert!(
            may_have_fragments_and_deltas(&label) && is_same,
            "after {writes} writes: {label:?}"
        );
        if opened {
            break;
        }
        writes += 1;
    }
    assert!(writes > 2, "{writes} writes are those of the labels only");
}

const LIMITS: Features =
    Features { compat: 0, ro_compat: Features::MEMORY_LIMITS, incompat: Features::CHECKSUM_MODES };

fn has_limits(label: &Label) -> bool {
    label.features.with(LIMITS) == label.features
}

/// A feature that comes into use later is in both labels when the call returns; if the power fails
/// before, one label is whole, and the next call writes both.
#[test]
fn the_power_may_fail_at_any_moment_of_naming_a_feature() {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    machine.create(&CreateOptions::default()).unwrap();
    let image = machine.disk.image();
    for writes in 0.. {
        let machine = Machine::on(image.clone());
        let pool = machine.open(OpenOptions::default()).unwrap();
        machine.disk.arm(Trigger::Write { nth: writes, why: None }, Fault::PowerOff);
        let named = select(Box::pin(use_features(&pool, LIMITS)), machine.disk.until_off());
        let named = machine.rt.block_on(async { matches!(named.await, Either::Left((Ok(()), _))) });
        drop(pool);
        let machine = Machine::on(machine.crash());
        let pool = machine.open(OpenOptions::default()).unwrap();
        let (label, is_same) = machine.label();
        assert!(is_same && (has_limits(&label) || !named), "after {writes} writes: {label:?}");
        machine.rt.block_on(use_features(&pool, LIMITS)).unwrap();
        let (again, is_same) = machine.label();
        assert!(has_limits(&again) && is_same, "after {writes} writes: {again:?}");
        let grew = again.generation - label.generation;
        assert_eq!(grew, u64::from(!has_limits(&label)), "it is written once");
        if named {
            assert!(writes >= 2, "each label is written");
            break;
        }
    }
}

#[test]
fn a_read_only_pool_names_no_feature() {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    machine.create(&CreateOptions::default()).unwrap();
    let image = machine.disk.image();
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let pool = machine.open(read_only).unwrap();
    let named = machine.rt.block_on(use_features(&pool, LIMITS));
    assert!(matches!(named, Err(PoolError::ReadOnly { .. })), "{named:?}");
    assert_eq!(machine.disk.image(), image);
}

async fn put(pool: &Arc<Pool>, n: u64) {
    let mut tx = Transaction::new();
    let noise =
        (0..1000_u64).map(|i| ((n * 1000 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8);
    tx.put(TABLE, Key::new(1, Kind(40), n), noise.collect::<Vec<u8>>());
    let credit = pool.admit(Tier::Write, 1, 1100).await.unwrap();
    pool.apply(credit, tx).unwrap();
}

#[test]
fn the_largest_leaf_may_lie_in_single_blocks_and_a_larger_one_is_refused() {
    let machine = Machine::on(SimImage::empty(BLOCKS));
    let of =
        |node_bytes| CreateOptions { node_bytes: Some(node_bytes), ..CreateOptions::default() };
    let refused = machine.create(&of(2 * NODE_BYTES_MAX)).unwrap_err();
    assert!(refused.to_string().contains("512 KiB"), "{refused}");
    machine.create(&of(NODE_BYTES_MAX)).unwrap();
    let limits = Limits { run_max: Some(1), ..Limits::default() };
    let pool = machine.open(OpenOptions { limits, ..OpenOptions::default() }).unwrap();
    machine.rt.block_on(async {
        for n in 0..1100 {
            put(&pool, n).await;
        }
        pool.flush_all().await.unwrap();
        let table = pool.tables().into_iter().find(|table| table.id() == TABLE).unwrap();
        let mut most = 0;
        let visit = &mut |visit: copyhold_table::NodeVisit<'_>| {
            most = most.max(if visit.ptr.fragmented { visit.ptr.blocks } else { 0 });
        };
        table.for_each_node(pool.node_source(), true, visit).await;
        assert!(most > 100, "the largest leaf has {most} blocks");
    });
}
