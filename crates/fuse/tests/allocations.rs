//! The fast path allocates nothing: counted, not timed.

#![allow(clippy::disallowed_methods)] // tests of threads and processes

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Mounted;
use copyhold_fuse::Transport;
use copyhold_fuse::protocol::Settings;
use copyhold_harness::needs;
use copyhold_memfs::{Contents, MemoryFs};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of the whole process while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn reads_and_writes_that_are_ready_at_once_allocate_nothing() {
    if !needs::are_met() {
        return;
    }
    let fs = Arc::new(MemoryFs::new(Contents::Dropped));
    let mounted = Mounted::new(fs, &Settings::default());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = options.open(mounted.path("file")).unwrap();
    // A ring hands larger ones to another CPU, which costs some.
    let is_ring = match common::options().transport {
        Transport::Auto => copyhold_harness::transport::has_ring(),
        forced => forced == Transport::Uring,
    };
    let mut data = vec![1; if is_ring { 32 << 10 } else { 128 << 10 }];
    let mut rounds = |count: u64| {
        for round in 0..count {
            file.write_all_at(&data[..4096], round * 4096).unwrap();
            file.write_all_at(&data, round * 4096).unwrap();
            file.read_exact_at(&mut data[..4096], round * 4096).unwrap();
        }
    };
    // Each reader makes its buffers when it is first used.
    rounds(500);
    let served = mounted.counters().requests;
    let made = allocations(|| rounds(1000));
    assert!(mounted.counters().requests >= served + 3000);
    // A reader that slept until now may still make its own.
    assert!(made < 200, "{made} allocations for 3000 requests");
}
