//! Waiting for what another process does in its own time.

use std::thread;
use std::time::Duration;

/// Returns when `condition` holds; the limit only ends a test that has failed.
#[track_caller]
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not happen");
}
