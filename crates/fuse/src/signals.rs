//! SIGTERM, SIGINT and SIGHUP, from the first moment of a daemon to its last.
//!
//! They are blocked in the thread that calls [`Signals::watch`], which must be the first of the
//! process, so that every later thread inherits it and none is ever interrupted by them. One thread
//! waits for them, and acts as the daemon's phase allows:
//!
//! * *Opening*: nothing is mounted, and a pool is opened the same way after a crash. The signal
//!   ends the process as if it were not blocked.
//! * *Mounting*: a mount without its daemon would stay in the tree. The signal waits.
//! * *Serving*: the first signal unmounts, as one would by hand. A busy mount is taken out of the
//!   tree and ends with its last user. A mount that another one covers, at its place or above it,
//!   cannot be reached by any path; it is unmounted when the cover is gone. The second signal
//!   breaks the connection. Once the filesystem has gone, and the pool is being closed, signals
//!   have no effect.
//!
//! SIGHUP has no effect if the process was started with it ignored, as nohup(1) does.
//!
//! SIGXFSZ would end the process at a write beyond its limit on file sizes, be it a line of the
//! log. It is ignored: then such a write fails with EFBIG.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use copyhold_sync::{Condvar, Mutex, of};
use rustix::event::{PollFd, PollFlags, poll};

use crate::desk::AbortOnPanic;
use crate::mount::{Mount, MountError};
use crate::sys;

const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// Polls as exceptional when a mount comes or goes.
const MOUNTS: &str = "/proc/self/mounts";

/// The signals that end a daemon.
#[derive(Debug)]
pub struct Signals {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: Mutex<Phase, of::DaemonPhase>,
    changed: Condvar,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    #[default]
    Opening,
    Mounting,
    Serving(Arc<Mount>),
}

/// From here on a write beyond the limit on file sizes fails with EFBIG instead of ending the
/// process.
pub fn fail_writes_beyond_limits() -> io::Result<()> {
    sys::ignore_signal(libc::SIGXFSZ)
}

impl Signals {
    /// Blocks the signals and starts the thread that waits for them. Call it before any other
    /// thread is started.
    pub fn watch() -> io::Result<Signals> {
        fail_writes_beyond_limits()?;
        let mut watched = SIGNALS.to_vec();
        // Blocked, a signal would arrive although it is ignored.
        if sys::is_ignored(libc::SIGHUP)? {
            watched.retain(|&signal| signal != libc::SIGHUP);
        }
        sys::block_signals(&watched)?;
        let file = File::from(sys::signal_fd(&watched)?);
        let shared = Arc::new(Shared::default());
        let waiting = Arc::clone(&shared);
        thread::Builder::new().name("signals".into()).spawn(move || {
            let _guard = AbortOnPanic;
            waiting.run(file);
        })?;
        Ok(Signals { shared })
    }

    /// From here on a signal waits until there is a mount.
    pub fn hold(&self) {
        self.shared.enter(Phase::Mounting);
    }

    /// From here on a signal unmounts.
    pub fn unmount_on_arrival(&self, mount: Arc<Mount>) {
        self.shared.enter(Phase::Serving(mount));
    }

    /// The mount could not be made: as at the beginning.
    pub fn release(&self) {
        self.shared.enter(Phase::Opening);
    }
}

impl Shared {
    fn enter(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }

    /// The thread.
    fn run(&self, mut file: File) {
        let Ok(signal) = wait(&mut file) else { return };
        let mount = self.mount(signal);
        unmount(&mount, &file);
        while wait(&mut file).is_ok() {
            if let Err(error) = mount.abort() {
                tracing::error!(%error, "the connection could not be broken");
            }
        }
    }

    /// The mount to unmount. Ends the process where nothing can be mounted yet.
    fn mount(&self, signal: i32) -> Arc<Mount> {
        let mut phase = self.phase.lock();
        loop {
            match &*phase {
                // With the lock held, so that nothing is mounted meanwhile.
                Phase::Opening => sys::end_by_signal(signal),
                Phase::Mounting => self.changed.wait(&mut phase),
                Phase::Serving(mount) => return Arc::clone(mount),
            }
        }
    }
}

/// Blocks until a signal arrives; its number.
fn wait(file: &mut File) -> io::Result<i32> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    file.read_exact(&mut info)?;
    let number = info.first_chunk().map(|four| u32::from_ne_bytes(*four));
    Ok(number.unwrap_or_default() as i32)
}

/// Unmounts `mount` until it is gone from the tree or another signal arrives.
fn unmount(mount: &Mount, signals: &File) {
    let mut is_told = false;
    loop {
        // Opened first: a change behind the look at the table is noticed.
        let table = File::open(MOUNTS);
        let mut failed = mount.unmount().err();
        if let Some(MountError::Busy { .. }) = failed {
            tracing::warn!("the mount is in use; detached until its last user leaves");
            mount.detach();
            failed = None;
        }
        let left = mount.all_places();
        let (Some(place), Ok(table)) = (left.first(), table) else { return };
        if !is_told {
            tell_why(place, failed);
            is_told = true;
        }
        if signal_before_change(signals, &table) {
            return;
        }
    }
}

/// Says why `place` is still mounted.
fn tell_why(place: &Path, failed: Option<MountError>) {
    let place = place.display();
    match failed {
        // No path leads to it.
        None | Some(MountError::Missing { .. }) => tracing::warn!(
            "another filesystem is mounted over {place} or over a directory above it; {place} \
             is unmounted as soon as that mount is gone. A second signal breaks the connection"
        ),
        Some(error) => tracing::error!(
            %error,
            "{place} could not be unmounted; tried again when mounts change. A second signal \
                 breaks the connection"
        ),
    }
}

/// Waits for a signal, which is left there, or for a change of the table of mounts.
fn signal_before_change(signals: &File, table: &File) -> bool {
    let mut waited = [
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI),
    ];
    match poll(&mut waited, None) {
        Ok(_) => waited[0].revents().contains(PollFlags::IN),
        Err(rustix::io::Errno::INTR) => false,
        // Without a way to wait there is only the next signal.
        Err(_) => true,
    }
}
