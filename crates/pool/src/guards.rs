//! Guards that the host makes of data, and writes of which the device refuses them.
//!
//! Problem.  A device with protection information compares the guards of a write with the data that
//!           has arrived. If they differ, either the data changed on the way, and the host still
//!           has it; or it changed in memory, after the guards were made.
//! Idea.     The pool keeps the data and the guards of a write until it completes. It computes
//!           refused guards again.
//!
//! GUARD-G1  If the guards are the same, the data changed on the way. The caller may write the same
//!           data again: to the same blocks, which then have it with the same birth, or to others,
//!           if it gives these up. The pool itself repeats nothing.
//! GUARD-G2  If the guards differ, the memory changed: the error names the changed blocks, and is
//!           reported before they are written again: new guards would vouch for the change.
//! GUARD-G3  Each refusal is counted by its cause (DEV-D3), and logged here, once; so is that of a
//!           repair. A tag that the device refuses is no change of data: it is logged, and never
//!           counted as one.
//!
//! A write that the device accepts costs a reference to its data, and a copy of its guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use copyhold_device::pi::{Format, Guards};
use copyhold_device::{DeviceError, Protect};
use copyhold_format::item::ChecksumMode;
use copyhold_types::{BLOCK_BYTES, Bufs, DeviceId, Run};

use crate::PoolError;
use crate::births::BlockMode;
use crate::devices::Devices;
use crate::failures::{Failure, Failures};

impl BlockMode {
    /// The protection that the device gives to `data`; the host makes its guards here.
    pub(crate) fn protect(self, devices: &Devices, run: Run, data: &Bufs) -> Protect {
        let birth = self.birth;
        match (self.checksums, devices.protection_of(run.addr.device())) {
            (ChecksumMode::Guard, Some(format)) => {
                Protect::Guard { birth, guards: guards_of(&format, data) }
            }
            (ChecksumMode::Guard | ChecksumMode::Offload, _) => Protect::Offload { birth },
            (ChecksumMode::Item | ChecksumMode::None, _) => Protect::Plain,
        }
    }
}

/// The guards of `data`.
fn guards_of(format: &Format, data: &Bufs) -> Guards {
    data.iter().flat_map(|buf| format.guards(buf)).collect()
}

/// A write with guards of the host, until it completes.
pub(crate) struct GuardedWrite {
    format: Format,
    data: Bufs,
    guards: Guards,
    device: DeviceId,
    failures: Arc<Failures>,
}

impl GuardedWrite {
    /// None if the write has no guards of the host.
    pub(crate) fn of(
        devices: &Devices,
        run: Run,
        data: &Bufs,
        protect: &Protect,
    ) -> Option<GuardedWrite> {
        let Protect::Guard { guards, .. } = protect else { return None };
        let device = run.addr.device();
        let format = devices.protection_of(device)?;
        let failures = devices.failures().clone();
        Some(GuardedWrite { format, data: data.clone(), guards: guards.clone(), device, failures })
    }

    /// The error of this write (GUARD-G1, GUARD-G2).
    fn explain(self, error: DeviceError) -> PoolError {
        if !error.is_refused_guard() {
            if matches!(error, DeviceError::Integrity { .. }) {
                tracing::error!(
                    "{error}: the device refuses tags of the host, not a change of data"
                );
            }
            return error.into();
        }
        let blocks = self.changed_blocks();
        if blocks.is_empty() {
            self.failures.count(self.device, Failure::ChangedOnTheWay);
            tracing::warn!("{error}: the data changed on the way to the device");
            return error.into();
        }
        self.failures.count(self.device, Failure::ChangedInMemory);
        let count = blocks.len();
        tracing::error!("{error}: {count} blocks of the write changed in memory; fsync fails");
        PoolError::MemoryChanged { blocks, error: Box::new(error) }
    }

    /// The blocks that have other guards than those sent.
    fn changed_blocks(&self) -> Box<[u32]> {
        let now = guards_of(&self.format, &self.data);
        let of_block = BLOCK_BYTES / self.format.data_bytes();
        let blocks = now.chunks(of_block).zip(self.guards.chunks(of_block));
        (0..).zip(blocks).filter(|(_, (now, sent))| now != sent).map(|(nth, _)| nth).collect()
    }
}

/// The error of a write; `guarded` if it had guards of the host.
pub(crate) fn explain(guarded: Option<GuardedWrite>, error: DeviceError) -> PoolError {
    match guarded {
        Some(write) => write.explain(error),
        None => error.into(),
    }
}

/// The sabotage [`ChangeMemory`](crate::Sabotage::ChangeMemory): one write has a guard of other
/// data.
#[derive(Debug, Default)]
pub(crate) struct ChangedMemory(AtomicBool);

impl ChangedMemory {
    pub(crate) fn change_once(&self, protect: &mut Protect) {
        if let Protect::Guard { guards, .. } = protect
            && !self.0.swap(true, Relaxed)
            && let Some(last) = guards.last_mut()
        {
            *last ^= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use copyhold_device::pi::Kind;
    use copyhold_device::{Access, Verifier};
    use copyhold_types::{Buf, Purpose};

    use super::*;

    #[test]
    fn a_refused_guard_is_computed_again_and_a_refused_tag_is_not() {
        let format: Format = "4096+16:64b".parse().unwrap();
        let data: Bufs = Buf::from_bytes(&[7; 2 * BLOCK_BYTES]).into();
        let refused = |kind| DeviceError::Integrity {
            name: "disk".into(),
            block: 3,
            blocks: 1,
            why: Purpose::Data,
            access: Access::Write,
            kind,
            by: Verifier::Device,
        };
        let device = DeviceId(0);
        let failures = Arc::new(Failures::of([device].into_iter()));
        let explain = |guards, kind| {
            let (data, failures) = (data.clone(), failures.clone());
            GuardedWrite { format, data, guards, device, failures }.explain(refused(kind))
        };
        for kind in [Kind::App, Kind::Reference, Kind::Storage, Kind::Escape] {
            let tag = explain(guards_of(&format, &data), kind);
            assert!(!tag.is_refused_guard(), "GUARD-G3: {tag}");
        }
        let same = explain(guards_of(&format, &data), Kind::Guard);
        assert!(same.is_refused_guard(), "GUARD-G1: {same}");
        let mut other = [7; 2 * BLOCK_BYTES];
        other[BLOCK_BYTES] = 8;
        let differs = explain(guards_of(&format, &Buf::from_bytes(&other).into()), Kind::Unknown);
        assert_eq!(differs.changed_blocks(), [1], "GUARD-G2: {differs}");
        assert!(!differs.is_refused_guard() && same.changed_blocks().is_empty());
        let counted = Failure::REFUSED_GUARDS.map(|kind| failures.get(device, kind));
        assert_eq!(counted, [1, 1], "GUARD-G3");
    }
}
