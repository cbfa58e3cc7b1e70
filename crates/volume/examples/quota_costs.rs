//! What quotas cost: nanoseconds per charge, closing and snapshot, bytes per subvolume.
//!
//! `cargo run --release -p copyhold-volume --example quota_costs`

#![allow(clippy::disallowed_methods, reason = "a program of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use copyhold_types::{EpochId, InodeNo, SubvolId, Txg};
use copyhold_volume::quota::{Amount, Hold, Inherit, Ledger, Request, Resident, Tier};

const ROUNDS: u64 = 2_000_000;
const SNAPSHOTS: u32 = 10_000;

fn resident(id: u32) -> Resident {
    Resident { subvol: SubvolId(id), holder: Some(SubvolId(1)), origin: None }
}

fn epoch(subvol: u32) -> EpochId {
    EpochId(100 + u64::from(subvol))
}

/// Quotas with two tenants, each in a group of its own and both in a third one.
fn tenants() -> Ledger {
    let ledger = Ledger::default();
    ledger.enable(EpochId(100), [1, 2, 3].map(resident)).unwrap();
    ledger.create("2/1".parse().unwrap()).unwrap();
    for tenant in [2, 3] {
        let group = format!("1/{tenant}").parse().unwrap();
        ledger.create(group).unwrap();
        ledger.assign(format!("0/{tenant}").parse().unwrap(), group).unwrap();
        ledger.assign(group, "2/1".parse().unwrap()).unwrap();
        ledger.begin_epoch(epoch(tenant), SubvolId(tenant), InodeNo(1)).unwrap();
    }
    ledger
}

/// A write: reserved, charged, and what it replaces refunded.
fn write(ledger: &Ledger, subvol: u32) {
    let amount = Amount::data(4096);
    let wanted = Request { data: 4096, ..Request::default() };
    let mut hold = ledger.hold(SubvolId(subvol), wanted, Tier::Write).unwrap();
    ledger.charge(epoch(subvol), amount, Some(&mut hold)).unwrap();
    ledger.refund(epoch(subvol), amount).unwrap();
    drop(black_box(hold));
}

fn per(what: &str, count: u64, act: impl FnOnce()) {
    let allocations = ALLOCATIONS.load(Relaxed);
    let start = Instant::now();
    act();
    let ns = start.elapsed().as_nanos() as f64 / count as f64;
    let allocations = (ALLOCATIONS.load(Relaxed) - allocations) as f64 / count as f64;
    println!("{what:<52} {ns:>9.1} ns {allocations:>7.2} allocations");
}

fn main() {
    let off = Ledger::default();
    per("a write, quotas off", ROUNDS, || (0..ROUNDS).for_each(|_| write(&off, 2)));
    let ledger = tenants();
    per("a write, of an owner in two groups", ROUNDS, || {
        (0..ROUNDS).for_each(|_| write(&ledger, 2));
    });
    let before = LIVE.load(Relaxed);
    per("a snapshot, ten thousand of them", SNAPSHOTS.into(), || {
        for id in 10..10 + SNAPSHOTS {
            let new = Resident { origin: Some(SubvolId(2)), ..resident(id) };
            let mut hold = Hold::nothing();
            ledger.create_subvolume(new, &Inherit::FromHolder, Some(&mut hold)).unwrap();
            ledger.begin_epoch(epoch(id), SubvolId(id), InodeNo(1)).unwrap();
        }
    });
    let bytes = (LIVE.load(Relaxed) - before) / u64::from(SNAPSHOTS);
    println!("{:<52} {bytes:>9} bytes", "memory of a snapshot");
    per("a write, with ten thousand snapshots", ROUNDS, || {
        (0..ROUNDS).for_each(|_| write(&ledger, 2));
    });
    ledger.closing(Txg::FIRST);
    (10..10 + SNAPSHOTS).for_each(|id| write(&ledger, id));
    per("closing a txg, each row that changed", SNAPSHOTS.into(), || {
        black_box(ledger.closing(Txg::FIRST.next()));
    });
    per("closing a txg in which nothing changed", 1, || {
        black_box(ledger.closing(Txg::FIRST.next()));
    });
    per("two tenants on two threads, each write of one", ROUNDS, || {
        std::thread::scope(|scope| {
            for tenant in [2, 3] {
                let ledger = &ledger;
                scope.spawn(move || (0..ROUNDS).for_each(|_| write(ledger, tenant)));
            }
        });
    });
}

/// Counts allocations, and bytes that are alive.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
