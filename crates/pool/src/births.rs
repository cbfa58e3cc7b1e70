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
//!           A mount writes no block with a tag before a batch of its own is durable: the next
//!           mount has later births, though this one may be killed before a block is installed.
//! BIRTH-B2  If a write fails, its claims become free at once: they are promised to its blocks
//!           (DIRTY-D2). That birth is spoiled: blocks that are written while its txg is open have
//!           their checksums in the item.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use copyhold_device::pi::{Format, Guards};
use copyhold_device::{DeviceError, Protect};
use copyhold_format::item::Checksums;
use copyhold_space::{Claim, Reservation};
use copyhold_types::{BLOCK_BYTES, Bufs, Run, Txg};

use crate::devices::Devices;
use crate::{Pool, PoolError, Sabotage};

/// Births of one pool.
#[derive(Debug, Default)]
pub(crate) struct Births {
    /// The newest txg that is spoiled.
    spoiled: AtomicU64,
    /// The newest txg that the mount found.
    found: AtomicU64,
    /// Memory has changed already ([`Sabotage::ChangeMemory`]).
    changed: AtomicBool,
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

    /// The newest txg of the log at the mount.
    pub(crate) fn begin(&self, found: Txg) {
        self.found.store(found.get(), Relaxed);
    }

    fn spoil(&self, open: Txg) {
        self.spoiled.fetch_max(open.get(), Relaxed);
    }

    /// The guards of other data, once.
    pub(crate) fn sabotage(&self, protect: &mut Protect) {
        if let Protect::Guard { guards, .. } = protect
            && !self.changed.swap(true, Relaxed)
            && let Some(last) = guards.last_mut()
        {
            *last ^= 1;
        }
    }
}

/// The protection of blocks whose space has just been claimed. The places of their checksums that
/// the pool's device does not have fall back to the item.
pub fn protection(pool: &Pool, wanted: Checksums) -> Protection {
    match wanted {
        Checksums::Item => Protection::PLAIN,
        _ => {
            let has_tags = pool.device().protection().is_some() && has_trace(pool);
            let protection = pool.data.births.protection(pool.open_txg(), wanted, has_tags);
            match pool.sabotaged(Sabotage::NoBirth) {
                true => Protection { birth: 0, ..protection },
                false => protection,
            }
        }
    }
}

/// Makes tags possible, before space is claimed for blocks that want them. Once in each mount it
/// commits an empty batch, if there was none (BIRTH-B1).
pub async fn leave_trace(pool: &Arc<Pool>, wanted: Checksums) -> Result<(), PoolError> {
    let wants_tags = Protection { checksums: wanted, birth: 0 }.has_tags();
    if !wants_tags || has_trace(pool) || pool.device().protection().is_none() {
        return Ok(());
    }
    Box::pin(pool.commit_empty()).await
}

/// Whether a batch of this mount is durable.
fn has_trace(pool: &Pool) -> bool {
    pool.durable_txg().get() > pool.data.births.found.load(Relaxed)
}

/// Releases a claim that has been written with tags, and is not needed (BIRTH-B1).
pub fn defer_written(pool: &Pool, claim: Claim) {
    pool.space.defer(pool.open_txg(), claim);
}

/// Claims that were written with tags were dropped, since a transaction failed (BIRTH-B2).
pub fn spoil_birth(pool: &Pool) {
    pool.data.births.spoil(pool.open_txg());
}

/// Releases a claim of which the writing has failed; its blocks stay reserved (BIRTH-B2).
pub fn cancel_written(pool: &Pool, claim: Claim, to: &mut Reservation) {
    spoil_birth(pool);
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
        if !matches!(error, DeviceError::Integrity { .. }) {
            return error.into();
        }
        match self.changed_blocks() {
            blocks if blocks.is_empty() => error.into(),
            blocks => PoolError::MemoryChanged { blocks, error: Box::new(error) },
        }
    }

    /// The blocks that have other guards than those sent.
    fn changed_blocks(&self) -> Box<[u32]> {
        let now = guards_of(&self.format, &self.data);
        let of_block = BLOCK_BYTES / self.format.data_bytes();
        let blocks = now.chunks(of_block).zip(self.guards.chunks(of_block));
        (0..).zip(blocks).filter(|(_, (now, sent))| now != sent).map(|(nth, _)| nth).collect()
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
    use copyhold_types::{Buf, Purpose};

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
        let mut other = [7; 2 * BLOCK_BYTES];
        other[BLOCK_BYTES] = 8;
        let differs = explain(guards_of(&format, &Buf::from_bytes(&other).into()));
        assert_eq!(differs.changed_blocks(), [1], "{differs}");
        assert!(!differs.is_refused_guard() && same.changed_blocks().is_empty());
    }

    #[test]
    fn a_birth_is_the_low_half_of_a_txg() {
        assert_eq!(birth_of(Txg::new((1 << 32) + 5).unwrap()), 5);
    }
}
