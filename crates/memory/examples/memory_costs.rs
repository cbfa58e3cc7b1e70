//! The costs of accounting, in nanoseconds: a change of a charge, a new charge and its end, and a
//! walk of reclaim beside many idle groups.
//!
//! `cargo run --release -p copyhold-memory --example memory_costs`
#![allow(clippy::disallowed_methods, reason = "a program of its own")]

use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::time::Instant;

use copyhold_memory::{Memory, MemoryClass, MemoryOwner, RingKind, Rings};

const PAGE: usize = 4096;
/// Pages of the cache: a walk makes room for one, or for a batch.
const PAGES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Page(u64);

impl Hash for Page {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// Prints the least mean of some rounds: other programs only add to it.
fn show(what: &str, times: u32, mut step: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let began = Instant::now();
        (0..times).for_each(|_| step());
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(times));
    }
    println!("{what}: {best:.1} ns");
}

fn walks(idle: u64) {
    let memory = Memory::default();
    let groups: Vec<MemoryOwner> = (0..idle).map(|_| memory.add_owner()).collect();
    let of_group = |group: &MemoryOwner| group.charge(MemoryClass::Inode, 512);
    let charges: Vec<_> = groups.iter().map(of_group).collect();
    let stream = memory.add_owner();
    let mut rings = Rings::new(MemoryClass::Data, RingKind::TwoRings);
    drop(rings.set_bytes_max(&memory, PAGES * PAGE));
    let mut next = 0;
    let mut insert = || {
        next += 1;
        drop(rings.insert(&memory, Page(next), (), PAGE, &stream));
    };
    (0..PAGES).for_each(|_| insert());
    show(&format!("an insertion at the limit, {idle} idle groups"), 50, &mut insert);
    show(&format!("a picture of {idle} idle groups"), 20, || {
        black_box(memory.picture());
    });
    drop(charges);
}

fn main() {
    let memory = Memory::default();
    let owner = memory.add_owner();
    let charge = owner.charge(MemoryClass::Node, 0);
    show("a change of a charge", 1_000_000, || black_box(&charge).change(64));
    show("a charge and its end", 1_000_000, || {
        drop(black_box(owner.charge(MemoryClass::Data, 4096)));
    });
    [10, 1000, 10_000].into_iter().for_each(walks);
}
