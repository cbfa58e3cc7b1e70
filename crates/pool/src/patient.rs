//! Writes that wait for space below the pool (rule R32).
//!
//! Problem.  A sparse pool file needs space of its host when a block is written first; on a host
//!           that copies on write, each time. The host may have none, long after the pool has
//!           accepted the data, and for any write: data, nodes, even the log.
//! Idea.     The pool writes through this device, which tries such a write again until there is
//!           space. The layers above notice only the delay; no data is lost.
//!
//! A device is distinguished from a file: for a file, space can be made by deleting another one,
//! and writes wait as long as it takes. A block device without space is thin, and the layer below
//! has mostly waited already; writes wait for [`THIN_PATIENCE`] from when it became full, then
//! they fail as on any device that fails, at once until one succeeds. A write of another purpose
//! than those that failed does not count: the log is written to blocks that the device has
//! allocated.
//!
//! PATIENT-W1  One line is logged when the first write begins to wait, one when none waits any
//!             more.
//! PATIENT-W2  Waiting ends when the pool has stopped (`health`).
//! PATIENT-W3  While a pool is being opened, no write waits: a mount fails instead.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use copyhold_device::pi::Format;
use copyhold_device::{Counters, Device, DeviceError, DynDevice, Expect, Geometry, Protect};
use copyhold_runtime::{BoxFuture, Rt};
use copyhold_sync::{Mutex, of};
use copyhold_types::{Buf, Bufs, DeviceId, Nanos, Purpose};

use crate::Limits;
use crate::health::Health;
use crate::sabotage::Sabotage;

/// A write that the host had no space for is tried again so often.
const RETRY: Duration = Duration::from_secs(1);
/// How long writes wait for a thin device: as long as dm-thin itself does by default.
const THIN_PATIENCE: Duration = Duration::from_secs(60);

/// See the module's text.
pub(crate) struct Patient {
    below: DynDevice,
    rt: Rt,
    health: Arc<Health>,
    waits: Arc<Waits>,
    /// [`Sabotage::LogDoesNotWait`].
    hasty: Option<Purpose>,
}

#[derive(Default)]
struct Waits {
    /// PATIENT-W3.
    begun: AtomicBool,
    /// Purposes of writes that have found no space since `full_since`, a bit each.
    refused: AtomicU8,
    state: Mutex<HostSpaceState, of::HostSpace>,
}

#[derive(Default)]
struct HostSpaceState {
    waiting: u64,
    /// Since when no write has found space.
    full_since: Option<Nanos>,
}

impl Patient {
    pub(crate) fn new(
        below: DynDevice,
        rt: Rt,
        health: Arc<Health>,
        limits: &Limits,
    ) -> Arc<Patient> {
        let hasty = limits.breaks(Sabotage::LogDoesNotWait).then_some(Purpose::Log);
        Arc::new(Patient { below, rt, health, waits: Arc::default(), hasty })
    }

    /// The pool is open: from here on writes wait.
    pub(crate) fn begin(&self) {
        self.waits.begun.store(true, Ordering::Release);
    }

    /// Whether any write waits. While one does, freed space may stay out of reach: a flush that
    /// waits keeps the log full, and the commits that would free the space wait for the flush. A
    /// caller that needs this space waits, too, and is not refused (R22).
    pub(crate) fn writes_wait(&self) -> bool {
        self.waits.state.lock().waiting > 0
    }
}

/// See [`Waits::refused`].
fn bit(why: Purpose) -> u8 {
    1 << why as u8
}

impl Waits {
    /// A write has found space.
    fn written(&self, why: Purpose) {
        // Nearly always nothing was refused, and this is all that a write pays.
        if self.refused.load(Ordering::Relaxed) & bit(why) != 0 {
            let mut state = self.state.lock();
            state.full_since = None;
            self.refused.store(0, Ordering::Relaxed);
        }
    }

    /// A write has found no space; whether it is to be tried again.
    fn refuse(&self, error: &DeviceError, why: Purpose, now: Nanos, is_first: bool) -> bool {
        if !self.begun.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let since = *state.full_since.get_or_insert(now);
        self.refused.fetch_or(bit(why), Ordering::Relaxed);
        let waited = Duration::from_nanos(now.saturating_sub(since));
        if error.is_thin_full() && waited >= THIN_PATIENCE {
            return false;
        }
        state.waiting += u64::from(is_first);
        let begins = is_first && state.waiting == 1;
        drop(state);
        if begins {
            tracing::error!("{error}: writes wait until there is space again");
        }
        true
    }
}

/// A write that waits, or has waited.
struct Waiting {
    waits: Arc<Waits>,
    name: String,
    is_written: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.waits.state.lock();
        state.waiting -= 1;
        let goes_on = self.is_written && state.waiting == 0;
        drop(state);
        if goes_on {
            tracing::warn!("{} has space again: writes continue", self.name);
        }
    }
}

impl Device for Patient {
    fn id(&self) -> DeviceId {
        self.below.id()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn protection(&self) -> Option<Format> {
        self.below.protection()
    }

    fn identity(&self) -> Option<[u8; 16]> {
        self.below.identity()
    }

    fn read_expecting(
        &self,
        block: u64,
        blocks: u32,
        why: Purpose,
        expect: Expect,
    ) -> BoxFuture<'static, Result<Buf, DeviceError>> {
        self.below.read_expecting(block, blocks, why, expect)
    }

    fn write_protected(
        &self,
        block: u64,
        data: Bufs,
        why: Purpose,
        protect: Protect,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        // Begun at the call, as any request.
        let mut write = self.below.write_protected(block, data.clone(), why, protect.clone());
        let (below, rt) = (self.below.clone(), self.rt.clone());
        let (health, waits) = (self.health.clone(), self.waits.clone());
        let is_hasty = self.hasty == Some(why);
        Box::pin(async move {
            let mut waiting: Option<Waiting> = None;
            loop {
                let error = match write.await {
                    Err(error) if error.is_host_full() || error.is_thin_full() => error,
                    result => {
                        if result.is_ok() {
                            waits.written(why);
                        }
                        if let Some(waiting) = &mut waiting {
                            waiting.is_written = result.is_ok();
                        }
                        return result;
                    }
                };
                if is_hasty || !waits.refuse(&error, why, rt.now(), waiting.is_none()) {
                    return Err(error);
                }
                waiting.get_or_insert_with(|| Waiting {
                    waits: waits.clone(),
                    name: below.geometry().name,
                    is_written: false,
                });
                rt.sleep(RETRY).await;
                if health.check().is_err() {
                    return Err(error); // PATIENT-W2
                }
                write = below.write_protected(block, data.clone(), why, protect.clone());
            }
        })
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.below.flush()
    }

    fn discard(&self, block: u64, blocks: u64) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.below.discard(block, blocks)
    }

    fn measure(&self) -> Result<u64, DeviceError> {
        self.below.measure()
    }

    /// Without waiting for space: growth is refused then, and nothing is lost.
    fn grow(&self, blocks: u64, room: Range<u64>) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.below.grow(blocks, room)
    }

    fn release(&self) {
        self.below.release();
    }

    fn counters(&self) -> &Counters {
        self.below.counters()
    }
}

#[cfg(test)]
mod tests {
    use copyhold_device::sim::make_namespace;
    use copyhold_device::{SimDevice, Verifier};
    use copyhold_runtime::{Runtime, SeededRuntime};
    use copyhold_types::BLOCK_BYTES;

    use super::*;

    const FORMAT: &str = "4096+16:64b";

    fn world() -> (Arc<SeededRuntime>, Arc<SimDevice>, Arc<Patient>) {
        let rt = SeededRuntime::new(1);
        let disk = SimDevice::new(rt.clone() as Rt, DeviceId(0), 100, 1);
        let namespace = make_namespace(&rt, &disk, FORMAT);
        let patient = Patient::new(namespace, rt.clone(), Arc::default(), &Limits::default());
        patient.begin();
        (rt, disk, patient)
    }

    fn guarded(data: &[u8]) -> Protect {
        let format: Format = FORMAT.parse().unwrap();
        Protect::Guard { birth: 7, guards: format.guards(data) }
    }

    #[test]
    fn a_write_that_waits_for_space_keeps_its_protection() {
        let (rt, disk, patient) = world();
        assert_eq!(patient.protection(), FORMAT.parse().ok());
        assert!(patient.identity().is_some());
        let data = Buf::from_bytes(&[9; BLOCK_BYTES]);
        disk.set_host_free(Some(0));
        let protect = guarded(&data);
        let write = patient.write_protected(5, data.clone().into(), Purpose::Data, protect);
        rt.spawn(Box::pin(async move { write.await.expect("there is space again") }));
        rt.block_on(rt.sleep(10 * RETRY));
        assert!(patient.writes_wait());
        disk.set_host_free(None);
        rt.block_on(rt.sleep(2 * RETRY));
        assert!(!patient.writes_wait());
        let read = patient.read_expecting(5, 1, Purpose::Data, Expect::Guard { birth: 7 });
        assert!(*rt.block_on(read).unwrap() == *data);
        let read = patient.read_expecting(5, 1, Purpose::Data, Expect::Guard { birth: 8 });
        assert!(matches!(rt.block_on(read), Err(DeviceError::Integrity { .. })));
    }

    #[test]
    fn a_guard_that_the_device_refuses_is_reported_at_once() {
        let (rt, _, patient) = world();
        let since = rt.now();
        let protect = guarded(&[1; BLOCK_BYTES]);
        let write = patient.write_protected(5, Buf::zeroed(1).into(), Purpose::Data, protect);
        let refused = rt.block_on(write).expect_err("the data has another guard");
        let by = Verifier::Device;
        assert!(matches!(refused, DeviceError::Integrity { by: found, .. } if found == by));
        assert!(rt.now() - since < RETRY.as_nanos() as u64 && !patient.writes_wait());
    }
}
