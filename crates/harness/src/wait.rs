//! Waiting for another process in a test.

use std::thread;
use std::time::Duration;

/// Returns when `condition` is true. The limit of 30 s only ends a test that has failed.
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("the condition is still false after 30 s");
}
