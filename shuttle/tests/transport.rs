//! Where threads of the transport wait for each other: operations that are parked, file locks,
//! INTERRUPT, and answers on their way to a ring's thread. Who is forgotten waits for ever, and
//! shuttle tells of it.

use copyhold_fuse::models;
use copyhold_shuttle::{Order, explore_threads};

fn explore(history: fn()) {
    let times = std::env::var("TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    explore_threads(Order::Random, 1, times, history);
    explore_threads(Order::Priorities, 2, times, history);
}

#[test]
fn an_operation_that_waits_goes_on_once() {
    explore(models::first_polls);
}

#[test]
fn an_owner_of_a_file_lock_is_alone_and_found() {
    explore(copyhold_memfs::models::file_locks);
}

#[test]
fn an_interrupt_finds_its_request() {
    explore(models::interrupts);
}

#[test]
fn readers_that_move_the_queue_into_memory_leave_no_request_there() {
    explore(models::drains);
}

/// Its thread looks for the bell again and again, which with priorities may be for ever.
#[test]
fn an_answer_wakes_the_thread_that_sends_it() {
    explore_threads(Order::Random, 1, 1000, models::answers);
}
