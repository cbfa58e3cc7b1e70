//! Requests and bytes of a device by purpose: a measure of speed where clocks are noise.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use copyhold_types::{BLOCK_BYTES, Purpose};

#[derive(Debug, Default)]
struct Cell {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Counts since the device was opened. Relaxed: each number is exact, a snapshot is not atomic.
#[derive(Debug, Default)]
pub struct Counters {
    cells: [Cell; Purpose::ALL.len()],
    flushes: AtomicU64,
    discards: AtomicU64,
    discarded_bytes: AtomicU64,
}

impl Counters {
    pub fn read(&self, why: Purpose, blocks: u32) {
        let cell = &self.cells[why as usize];
        cell.reads.fetch_add(1, Relaxed);
        cell.read_bytes.fetch_add(u64::from(blocks) * BLOCK_BYTES as u64, Relaxed);
    }

    pub fn write(&self, why: Purpose, blocks: u64) {
        let cell = &self.cells[why as usize];
        cell.writes.fetch_add(1, Relaxed);
        cell.written_bytes.fetch_add(blocks * BLOCK_BYTES as u64, Relaxed);
    }

    pub fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub fn discard(&self, blocks: u64) {
        self.discards.fetch_add(1, Relaxed);
        self.discarded_bytes.fetch_add(blocks * BLOCK_BYTES as u64, Relaxed);
    }

    pub fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot {
            purposes: Purpose::ALL.map(|why| {
                let cell = &self.cells[why as usize];
                PurposeCount {
                    reads: cell.reads.load(Relaxed),
                    read_bytes: cell.read_bytes.load(Relaxed),
                    writes: cell.writes.load(Relaxed),
                    written_bytes: cell.written_bytes.load(Relaxed),
                }
            }),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            discarded_bytes: self.discarded_bytes.load(Relaxed),
        }
    }
}

/// Requests and bytes of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeCount {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

impl Add for PurposeCount {
    type Output = PurposeCount;

    fn add(self, more: PurposeCount) -> PurposeCount {
        PurposeCount {
            reads: self.reads + more.reads,
            read_bytes: self.read_bytes + more.read_bytes,
            writes: self.writes + more.writes,
            written_bytes: self.written_bytes + more.written_bytes,
        }
    }
}

/// The counters at one moment, indexed by `Purpose as usize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSnapshot {
    pub purposes: [PurposeCount; Purpose::ALL.len()],
    pub flushes: u64,
    pub discards: u64,
    pub discarded_bytes: u64,
}

impl Add for CounterSnapshot {
    type Output = CounterSnapshot;

    fn add(self, more: CounterSnapshot) -> CounterSnapshot {
        CounterSnapshot {
            purposes: Purpose::ALL
                .map(|why| self.purposes[why as usize] + more.purposes[why as usize]),
            flushes: self.flushes + more.flushes,
            discards: self.discards + more.discards,
            discarded_bytes: self.discarded_bytes + more.discarded_bytes,
        }
    }
}
