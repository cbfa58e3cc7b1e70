//! Births: the txg numbers that tags of blocks have.
//!
//! Problem.  A tuple agrees with its block even if the block is an old one: a write that the
//!           device lost does not show. Only a tag that no earlier content of the same place has
//!           tells them apart.
//! Idea.     The tag has the txg that was open when the block was written, and the extent's item
//!           says which. Freed space is allocatable two txgs later, so the next content has a
//!           later birth. Space that was written and is not needed waits as long.
//!
//! BIRTH-B1  Place and birth name one content. A written claim that no transaction logs is
//!           deferred, not free at once. Recovery continues at a txg of which the log has no trace.
//! BIRTH-B2  If a write fails, its claims become free at once: they are promised to its blocks
//!           (DIRTY-D2). That birth is spoiled: blocks that are written while its txg is open have
//!           their checksums in the item.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_device::pi::{Format, Guards};
use copyhold_device::{DeviceError, Protect};
use copyhold_format::item::Checksums;
use copyhold_space::{Claim, Reservation};
use copyhold_types::{Bufs, Run, Txg};

use crate::devices::Devices;
use crate::{Pool, PoolError, Sabotage};

/// Births of one pool.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// The newest txg that is spoiled.
    spoiled: AtomicU64,
}

/// The checksums of blocks that are written, and their birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    pub checksums: Checksums,
    pub birth: u32,
}

impl Births {
    /// Of blocks that are written while `open` is the open txg.
    fn protection(&self, open: Txg, wanted: Checksums, has_tags: bool) -> Protection {
        let has_tags = has_tags && self.spoiled.load(Relaxed) < open.get();
        Protection { checksums: wanted.on_device(has_tags), birth: birth_of(open) }
    }

    fn spoil(&self, open: Txg) {
        self.spoiled.fetch_max(open.get(), Relaxed);
    }
}

/// The protection of blocks whose space has just been claimed. The places of their checksums that
/// the pool's device does not have fall back to the item.
pub fn protection(pool: &Pool, wanted: Checksums) -> Protection {
    match wanted {
        Checksums::Item => Protection::PLAIN,
        _ => {
            let has_tags = pool.device().protection().is_some();
            let protection = pool.data.births.protection(pool.open_txg(), wanted, has_tags);
            match pool.sabotaged(Sabotage::NoBirth) {
                true => Protection { birth: 0, ..protection },
                false => protection,
            }
        }
    }
}

/// Releases a claim that has been written with tags, and is not needed (BIRTH-B1).
pub fn defer_written(pool: &Pool, claim: Claim) {
    pool.space.defer(pool.open_txg(), claim);
}

/// Releases a claim of which the writing has failed; its blocks stay reserved (BIRTH-B2).
pub fn cancel_written(pool: &Pool, claim: Claim, to: &mut Reservation) {
    pool.data.births.spoil(pool.open_txg());
    claim.cancel_into(to);
}

/// The birth of blocks that are written while `txg` is open.
pub fn birth_of(txg: Txg) -> u32 {
    txg.get() as u32
}

impl Protection {
    /// Nothing beside the blocks.
    pub const PLAIN: Protection = Protection { checksums: Checksums::Item, birth: 0 };

    /// Whether blocks have tags beside them.
    pub fn has_tags(self) -> bool {
        matches!(self.checksums, Checksums::Guard | Checksums::Offload)
    }

    /// The protection of `data` as the device gets it; the host makes its guards here.
    pub(crate) fn protect(self, devices: &Devices, run: Run, data: &Bufs) -> Protect {
        let birth = self.birth;
        match (self.checksums, devices.protection_of(run.addr.device())) {
            (Checksums::Guard, Some(format)) => {
                Protect::Guard { birth, guards: guards_of(&format, data) }
            }
            (Checksums::Guard | Checksums::Offload, _) => Protect::Offload { birth },
            (Checksums::Item | Checksums::None, _) => Protect::Plain,
        }
    }
}

/// Data that was sent with guards of the host.
pub(crate) struct Sent {
    format: Format,
    data: Bufs,
    guards: Guards,
}

impl Sent {
    pub(crate) fn of(devices: &Devices, run: Run, data: &Bufs, protect: &Protect) -> Option<Sent> {
        let Protect::Guard { guards, .. } = protect else { return None };
        let format = devices.protection_of(run.addr.device())?;
        Some(Sent { format, data: data.clone(), guards: guards.clone() })
    }

    /// Why the device has refused its guards: the data changed on the way there, or in memory.
    pub(crate) fn explain(self, error: DeviceError) -> PoolError {
        match error {
            DeviceError::Integrity { .. } if guards_of(&self.format, &self.data) != self.guards => {
                PoolError::MemoryChanged(error)
            }
            error => error.into(),
        }
    }
}

/// The guards of `data`.
pub(crate) fn guards_of(format: &Format, data: &Bufs) -> Guards {
    data.iter().flat_map(|buf| format.guards(buf)).collect()
}

#[cfg(test)]
mod tests {
    use copyhold_device::pi::Kind;
    use copyhold_device::{Access, Verifier};
    use copyhold_types::{BLOCK_BYTES, Buf, Purpose};

    use super::*;

    #[test]
    fn a_spoiled_birth_is_given_to_no_block() {
        let births = Births::default();
        let txg = |number| Txg::new(number).unwrap();
        let at = |number| births.protection(txg(number), Checksums::Guard, true);
        assert_eq!(at(7), Protection { checksums: Checksums::Guard, birth: 7 });
        births.spoiled.store(7, Relaxed);
        assert_eq!(at(7).checksums, Checksums::Item, "BIRTH-B2");
        assert_eq!(at(8).checksums, Checksums::Guard);
        let none = births.protection(txg(7), Checksums::None, true);
        assert_eq!(none.checksums, Checksums::None, "needs no birth");
    }

    #[test]
    fn a_refused_guard_is_computed_again() {
        let format: Format = "4096+16:64b".parse().unwrap();
        let data: Bufs = Buf::from_bytes(&[7; 2 * BLOCK_BYTES]).into();
        let refused = || DeviceError::Integrity {
            name: "disk".into(),
            block: 3,
            blocks: 1,
            why: Purpose::Data,
            access: Access::Write,
            kind: Kind::Guard,
            by: Verifier::Device,
        };
        let explain = |guards| {
            let sent = Sent { format, data: data.clone(), guards };
            sent.explain(refused())
        };
        let same = explain(guards_of(&format, &data));
        assert!(same.is_refused_guard(), "the data changed on its way: {same}");
        let other: Bufs = Buf::from_bytes(&[8; 2 * BLOCK_BYTES]).into();
        let differs = explain(guards_of(&format, &other));
        assert!(matches!(differs, PoolError::MemoryChanged(_)), "{differs}");
        assert!(!differs.is_refused_guard());
    }

    #[test]
    fn a_birth_is_the_low_half_of_a_txg() {
        assert_eq!(birth_of(Txg::new((1 << 32) + 5).unwrap()), 5);
    }
}
