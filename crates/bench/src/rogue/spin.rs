//! Spin: threads that compute and make no call to the filesystem.
//!
//! A neighbour beside it shows how much of a waiting time is that for a CPU.

use std::hint::{black_box, spin_loop};
use std::thread;

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

/// Between two looks at the end: about a millisecond.
const TURNS: u32 = 100_000;

pub(super) fn on_each_cpu<'a>(_setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    let cpus = thread::available_parallelism().on("the number of CPUs")?.get();
    threads(cpus as u32, |_| {
        Ok(|| {
            (0..TURNS).for_each(|turn| {
                black_box(turn);
                spin_loop();
            });
            Ok(1)
        })
    })
}
