//! Interrupts: threads whose waiting calls a signal interrupts about once a millisecond.
//!
//! Each thread writes a block and makes it durable, and takes a lock that all of them want. One
//! more thread sends the signals. Their handler does nothing, and lets no call begin again by
//! itself: a call that the filesystem ends early fails with EINTR.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, fsync};
use rustix::io::{Errno, pwrite};
use rustix::thread::gettid;

use super::setting::{Setting, Step, threads};
use super::writes::content;
use crate::error::{BenchError, On};
use crate::places::BLOCK;

const SIGNAL: libc::c_int = libc::SIGUSR1;
const PAUSE: Duration = Duration::from_millis(1);

/// The threads that get signals, as the kernel numbers them.
type Victims = Arc<Mutex<Vec<libc::pid_t>>>;

pub(super) fn of_waiting_calls<'a>(setting: &Setting<'a>) -> Result<Vec<Step<'a>>, BenchError> {
    handle_signal().on("a handler of signals")?;
    drop(setting.file("shared")?);
    let victims = Victims::default();
    let mut steps = threads(setting.sizes.threads, |number| {
        let shared = File::open(setting.path("shared")).on("open")?;
        let own = setting.file(&format!("interrupted.{number}"))?;
        let (block, mut victims) = (content(BLOCK), Some(Arc::clone(&victims)));
        Ok(move || {
            if let Some(victims) = victims.take() {
                let own = gettid().as_raw_nonzero().get();
                victims.lock().unwrap_or_else(PoisonError::into_inner).push(own);
            }
            wait_and_work(&own, &shared, &block)
        })
    })?;
    steps.extend(threads(1, |_| {
        let victims = Arc::clone(&victims);
        Ok(move || signal_all(&victims))
    })?);
    Ok(steps)
}

fn wait_and_work(own: &File, shared: &File, block: &[u8]) -> Result<u64, BenchError> {
    pwrite(own, block, 0).on("write")?;
    fsync(own).on("fsync")?;
    let locked = flock(shared, FlockOperation::LockExclusive);
    // A lock that is granted in the moment of the signal, or whose release is interrupted, would
    // keep the others waiting for good.
    while let Err(error) = flock(shared, FlockOperation::Unlock) {
        if error != Errno::INTR {
            return Err(error).on("flock");
        }
    }
    locked.on("flock")?;
    Ok(4)
}

/// Signals are no calls of the rogue.
fn signal_all(victims: &Victims) -> Result<u64, BenchError> {
    for &victim in victims.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        send(victim).on("tgkill")?;
    }
    thread::sleep(PAUSE);
    Ok(0)
}

fn send(victim: libc::pid_t) -> io::Result<()> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes three numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, victim, SIGNAL) };
    let error = io::Error::last_os_error();
    // Near the end a thread may be gone.
    match sent == 0 || error.raw_os_error() == Some(libc::ESRCH) {
        true => Ok(()),
        false => Err(error),
    }
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Without SA_RESTART.
fn handle_signal() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = do_nothing;
    // SAFETY: all zeros are a `sigaction` without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the kernel only reads `action` while the call lasts, and the handler touches nothing.
    match unsafe { libc::sigaction(SIGNAL, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
