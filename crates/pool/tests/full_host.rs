//! What the pool does where there is no space below it: a file's host is waited for, whatever is
//! written; a thin device only for a while (rule R32).
//!
//! A program of its own, since each of its tests listens to what the pool reports: beside tests
//! without a listener, a place in the code could be asked in their threads, and be silent for all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use copyhold_device::pi::Format;
use copyhold_device::sim::{Fault, SimConfig, SimDevice, SimImage, Trigger};
use copyhold_device::{
    Counters, Device, DeviceError, DynDevice, Expect, Geometry, IoError, Protect,
};
use copyhold_pool::{
    BlockMode, CreateOptions, LaneClass, OpenOptions, Pool, PoolError, Tier, Transaction,
};
use copyhold_runtime::{BoxFuture, Rt, Runtime, SeededRuntime};
use copyhold_types::{Buf, Bufs, DeviceId, Key, Kind, Purpose, TableId};

const TABLE: TableId = TableId(100);
const ENOSPC: i32 = 28;

struct Machine {
    rt: Arc<SeededRuntime>,
    disk: Arc<SimDevice>,
    lines: Arc<Lines>,
    /// Each test has one: a place in the code is asked once whether anybody listens, and of one
    /// listener only in its own thread.
    _listening: tracing::subscriber::DefaultGuard,
}

impl Machine {
    fn new() -> Machine {
        let rt = SeededRuntime::new(1);
        let image = SimImage::empty(4096);
        let disk = SimDevice::from_image(rt.clone() as Rt, DeviceId(0), image, SimConfig::new(1));
        let lines = Arc::new(Lines::default());
        let _listening = tracing::subscriber::set_default(lines.clone());
        Machine { rt, disk, lines, _listening }
    }

    fn open(&self, device: DynDevice) -> Result<Arc<Pool>, PoolError> {
        self.rt.block_on(Pool::open(self.rt.clone(), device, OpenOptions::default()))
    }

    fn new_pool(&self, device: DynDevice) -> Arc<Pool> {
        let rt: Rt = self.rt.clone();
        self.rt.block_on(Pool::create(&rt, &device, &CreateOptions::default())).unwrap();
        self.open(device).unwrap()
    }

    /// Writes for `why` find no space from now on.
    fn fill(&self, why: Purpose) {
        self.disk.arm_for_good(Trigger::Write { nth: 0, why: Some(why) }, Fault::Error(ENOSPC));
    }

    async fn pass(&self, seconds: u64) {
        self.rt.sleep(Duration::from_secs(seconds)).await;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.rt.drop_tasks();
    }
}

async fn put(pool: &Arc<Pool>, n: u64) -> Result<(), PoolError> {
    let mut tx = Transaction::new();
    tx.put(TABLE, Key::new(1, Kind(40), n), vec![n as u8; 40]);
    let credit = pool.admit(Tier::Write, 1, 64).await?;
    let txg = pool.apply(credit, tx)?;
    pool.commit(txg).await
}

async fn write_data(pool: &Arc<Pool>) -> Result<(), PoolError> {
    let mut reserved = pool.reserve(8, Tier::Write).await?;
    let claims = pool.claim(LaneClass::Data, 8, &mut reserved)?;
    for claim in &claims {
        let data = Buf::zeroed(claim.run().blocks as usize).into();
        pool.write(claim.run(), data, Purpose::Data, BlockMode::PLAIN).await?;
    }
    Ok(())
}

/// Runs `work` beside the test; whether it has ended, and well.
fn begin(
    machine: &Machine,
    work: impl Future<Output = Result<(), PoolError>> + Send + 'static,
) -> Arc<[AtomicBool; 2]> {
    let ended = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let tell = ended.clone();
    machine.rt.spawn(Box::pin(async move {
        let result = work.await;
        tell[1].store(result.is_ok(), Relaxed);
        tell[0].store(true, Relaxed);
    }));
    ended
}

/// A host that copies on write may have no space for what was written before: the ring.
#[test]
fn log_writes_wait_for_the_host_as_data_does() {
    for why in [Purpose::Log, Purpose::Data] {
        let machine = Machine::new();
        let pool = machine.new_pool(machine.disk.clone());
        machine.rt.block_on(async {
            put(&pool, 1).await.unwrap();
            machine.fill(why);
            let worker = pool.clone();
            let ended = begin(&machine, async move {
                write_data(&worker).await?;
                put(&worker, 2).await
            });
            machine.pass(3600).await;
            assert!(!ended[0].load(Relaxed), "{why:?} waits");
            machine.disk.disarm();
            machine.pass(5).await;
            assert!(ended[0].load(Relaxed) && ended[1].load(Relaxed), "{why:?} goes on");
            pool.close().await.unwrap();
        });
        drop(pool);
        let pool = machine.open(machine.disk.clone()).unwrap();
        let found = machine.rt.block_on(pool.get(TABLE, Key::new(1, Kind(40), 2))).unwrap();
        assert_eq!(found.as_deref(), Some(&[2; 40][..]));
    }
}

/// PATIENT-W3: a mount does not wait, and its error names the reason.
#[test]
fn a_pool_is_not_opened_where_the_host_has_no_space_for_its_log() {
    let machine = Machine::new();
    let pool = machine.new_pool(machine.disk.clone());
    machine.rt.block_on(pool.close()).unwrap();
    drop(pool);
    machine.fill(Purpose::Log);
    let refused = machine.open(machine.disk.clone()).err().expect("there is no space");
    assert!(matches!(&refused, PoolError::Device(error) if error.is_host_full()), "{refused}");
    machine.disk.disarm();
    machine.open(machine.disk.clone()).unwrap();
}

/// A block device that was given less space than it claims to have.
struct Thin(Arc<SimDevice>);

impl Device for Thin {
    fn id(&self) -> DeviceId {
        self.0.id()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.0.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.0.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.0.read_expecting(block, blocks, why, expect)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        let write = self.0.write_protected(block, data, why, protect);
        Box::pin(async move {
            write.await.map_err(|error| match error {
                DeviceError::Write { name, block, blocks, why, source: IoError(ENOSPC) } => {
                    let source = IoError(ENOSPC);
                    DeviceError::ThinFull { name, block, blocks, why, source }
                }
                error => error,
            })
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.0.flush()
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.0.discard(block, blocks)
    }

    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}

#[test]
fn a_thin_device_is_waited_for_a_minute() {
    let machine = Machine::new();
    let pool = machine.new_pool(Arc::new(Thin(machine.disk.clone())));
    machine.rt.block_on(async {
        machine.fill(Purpose::Data);
        let worker = pool.clone();
        let ended = begin(&machine, async move { write_data(&worker).await });
        machine.pass(30).await;
        assert!(!ended[0].load(Relaxed), "space may come");
        machine.disk.disarm();
        machine.pass(5).await;
        assert!(ended[1].load(Relaxed), "it has come");
    });
}

#[test]
fn writes_to_a_thin_device_fail_when_no_space_comes_and_work_when_it_does() {
    let machine = Machine::new();
    let pool = machine.new_pool(Arc::new(Thin(machine.disk.clone())));
    machine.rt.block_on(async {
        machine.fill(Purpose::Data);
        let since = machine.rt.now();
        for _ in 0..20 {
            let failed = write_data(&pool).await.unwrap_err();
            assert!(matches!(&failed, PoolError::Device(error) if error.is_thin_full()));
        }
        // Each of them does not wait anew.
        let waited = Duration::from_nanos(machine.rt.now() - since);
        assert!(waited < Duration::from_secs(70), "{waited:?}");
        put(&pool, 1).await.expect("the log has its space");
        machine.disk.disarm();
        write_data(&pool).await.unwrap();
        // As any log that cannot be written (R12).
        machine.fill(Purpose::Log);
        put(&pool, 2).await.unwrap_err();
        assert!(matches!(put(&pool, 3).await, Err(PoolError::Stopped { .. })));
    });
}

#[test]
fn a_thin_device_that_becomes_full_again_is_waited_for_again() {
    let machine = Machine::new();
    let pool = machine.new_pool(Arc::new(Thin(machine.disk.clone())));
    machine.rt.block_on(async {
        machine.fill(Purpose::Data);
        write_data(&pool).await.unwrap_err();
        put(&pool, 1).await.unwrap();
        let since = machine.rt.now();
        write_data(&pool).await.unwrap_err();
        let waited = Duration::from_nanos(machine.rt.now() - since);
        assert!(waited < Duration::from_secs(1), "a write of the log says nothing about data");
        machine.disk.disarm();
        write_data(&pool).await.expect("there is space again");
        for why in [Purpose::Data, Purpose::Log] {
            machine.fill(why);
            let worker = pool.clone();
            let ended = begin(&machine, async move {
                write_data(&worker).await?;
                put(&worker, 2).await
            });
            machine.pass(30).await;
            assert!(!ended[0].load(Relaxed), "{why:?}: it has been full for half a minute");
            machine.disk.disarm();
            machine.pass(5).await;
            assert!(ended[1].load(Relaxed), "{why:?}: space has come");
        }
    });
}

/// Counts what is logged.
#[derive(Default)]
struct Lines {
    full: AtomicUsize,
    again: AtomicUsize,
}

struct Message(String);

impl tracing::field::Visit for Message {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{value:?}");
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let counted = [("writes wait", &self.full), ("writes continue", &self.again)];
        for (_, count) in counted.into_iter().filter(|(text, _)| message.0.contains(text)) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn one_line_says_that_writes_wait_and_one_that_they_go_on() {
    let machine = Machine::new();
    let lines = machine.lines.clone();
    let pool = machine.new_pool(machine.disk.clone());
    machine.rt.block_on(async {
        machine.fill(Purpose::Data);
        let workers: Vec<_> = (0..50)
            .map(|_| {
                let worker = pool.clone();
                begin(&machine, async move { write_data(&worker).await })
            })
            .collect();
        machine.pass(100).await;
        assert_eq!((lines.full.load(Relaxed), lines.again.load(Relaxed)), (1, 0));
        machine.disk.disarm();
        machine.pass(5).await;
        assert!(workers.iter().all(|ended| ended[1].load(Relaxed)));
        assert_eq!((lines.full.load(Relaxed), lines.again.load(Relaxed)), (1, 1));
    });
}
