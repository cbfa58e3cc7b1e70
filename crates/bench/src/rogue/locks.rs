//! Locks: advisory locks of both sorts, taken and released.
//!
//! All threads wait for one lock of flock(2), which belongs to an open file. Locks of fcntl(2)
//! belong to a process, so no thread waits for another one. Copyhold leaves both sorts to the
//! kernel; a store that keeps locks, as the null store does, gets a request for each call.

use std::fs::File;

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::setting::{Setting, Step, threads};
use crate::error::{BenchError, On};

pub(super) fn taken_and_released<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    drop(setting.file("shared")?);
    threads(setting.sizes.threads, |number| {
        let shared = File::open(setting.path("shared")).on("open")?;
        let own = setting.file(&format!("lock.{number}"))?;
        Ok(move || {
            flock(&shared, FlockOperation::LockExclusive).on("flock")?;
            let locked = fcntl_lock(&own, FlockOperation::LockExclusive);
            let released = fcntl_lock(&own, FlockOperation::Unlock);
            flock(&shared, FlockOperation::Unlock).on("flock")?;
            locked.and(released).on("fcntl")?;
            Ok(4)
        })
    })
}
