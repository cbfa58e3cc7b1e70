//! Makes the kernel forget names that do not exist, so that their number has a bound.
//!
//! Problem.  A name that was looked up in vain stays in the kernel's cache of names. Only a
//!           notification removes it, and one that comes late removes more: if a file has the
//!           name by then, the kernel drops that, with all that is mounted on it.
//! Idea.     Threads of their own take entries from [`AbsentNames`], those not asked for lately,
//!           and notify the kernel of each: one thread at a tenth of a processor ahead of the
//!           limit, more without that bound at the limit, while the answers of the tenant above
//!           its part are delayed. The name under way is known ([`Flights`]) until the kernel has
//!           answered.
//!
//! PRUNE-P1  No thread that answers requests sends these notifications: the kernel waits in them
//!           for the lock of the directory, whose owner may wait for an answer.
//! PRUNE-P2  A name is in flight before its entry is confirmed. A change that makes the name
//!           removes the entry, and looks for the flight afterwards. So either the entry is not
//!           confirmed, or the change sees the flight.
//! PRUNE-P3  The answer to a creation of a name in flight, or its entry in a listing, is valid
//!           for no time. So the next path over the name sends a look-up, which holds no lock of
//!           the directory. That look-up waits until the flight is over, and is answered ESTALE:
//!           the kernel looks the name up anew, and no mount can be on the entry that the
//!           notification has dropped. The wait is bounded, since a removal looks the name up
//!           with the lock.
//!
//! A rename answers without a validity. It is refused once with ESTALE while its new name is in
//! flight, and the kernel repeats it.
//!
//! Not closed: a flight that waits for the lock longer than [`LOOK_UP_WAIT`]; a rename that is
//! repeated within the same flight; a mount on the descriptor that a creation has returned.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fs::{Absent, AbsentNames, Filesystem, NameEvent, NodeId as FsNode, Victim};
use copyhold_fuse::protocol::{NodeId, Notification};
use copyhold_fuse::{Errno, Notifier};
use copyhold_runtime::Rt;
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;
use event_listener::Event;

/// Names of one run: at least, and at most.
const RUN: (u64, u64) = (256, 65_536);
/// Between two runs, and when less than a fortieth of the limit is free.
const PAUSE: Duration = Duration::from_millis(100);
const HURRY: Duration = Duration::from_millis(20);
/// Free thousandths of the limit: hurry below, stop at.
const SCARCE: u64 = 25;
const ENOUGH: u64 = 100;
/// The pruner uses at most one part in so many of a processor.
const CPU_PARTS: u32 = 10;
/// Names between two looks at the time.
const STEP: usize = 64;
/// Threads at the limit.
const THREADS: usize = 8;
/// Shortest and longest delay of an answer at the limit.
const DELAY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));
/// Delays of one answer while there are too many names.
const DELAYS: usize = 100;
/// The longest wait of a look-up for a name in flight.
const LOOK_UP_WAIT: Duration = Duration::from_millis(100);

/// A name in a directory.
type Name = (FsNode, Box<[u8]>);

/// The names of which the kernel is being notified.
#[derive(Default)]
pub(super) struct Flights {
    names: Mutex<Vec<Name>, of::NameFlights>,
    count: AtomicUsize,
}

/// One of them.
struct Flight<'a> {
    of: &'a Flights,
    dir: FsNode,
    name: &'a [u8],
}

impl Flights {
    fn begin<'a>(&'a self, dir: FsNode, name: &'a [u8]) -> Flight<'a> {
        self.names.lock().push((dir, name.into()));
        self.count.fetch_add(1, Ordering::SeqCst);
        Flight { of: self, dir, name }
    }

    pub(super) fn has(&self, dir: FsNode, name: &[u8]) -> bool {
        self.count.load(Ordering::SeqCst) > 0
            && self.names.lock().iter().any(|(at, of)| *at == dir && **of == *name)
    }

    /// Waits until the name is not in flight; whether that is so in time.
    pub(super) async fn wait(&self, rt: &Rt, dir: FsNode, name: &[u8]) -> bool {
        for _ in 0..LOOK_UP_WAIT.as_millis() {
            if !self.has(dir, name) {
                return true;
            }
            rt.sleep(Duration::from_millis(1)).await;
        }
        false
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut names = self.of.names.lock();
        let at = names.iter().position(|(dir, name)| *dir == self.dir && **name == *self.name);
        names.swap_remove(at.expect("it was put there"));
        drop(names);
        self.of.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The threads, as many as are needed now.
#[derive(Default)]
pub(super) struct Pruner {
    pub(super) flights: Arc<Flights>,
    is_pruning: Arc<AtomicBool>,
    forcing: Arc<AtomicUsize>,
}

/// The connection has ended.
struct Ended;

/// One thread's means.
struct Worker {
    fs: Weak<Filesystem>,
    notifier: Notifier,
    flights: Arc<Flights>,
}

impl Pruner {
    /// To be called when names were added.
    pub(super) fn look_at(&self, fs: &Arc<Filesystem>, notifier: Option<&Notifier>) {
        let names = fs.names();
        if !names.is_short() {
            return;
        }
        let Some(notifier) = notifier else { return };
        let worker = || Worker {
            fs: Arc::downgrade(fs),
            notifier: notifier.clone(),
            flights: self.flights.clone(),
        };
        if !self.is_pruning.swap(true, Ordering::AcqRel) {
            let (worker, is_pruning) = (worker(), self.is_pruning.clone());
            spawn("prune", move || {
                let _ended = worker.prune();
                is_pruning.store(false, Ordering::Release);
            });
        }
        let wanted = threads_wanted(names);
        if self.forcing.load(Ordering::Relaxed) < wanted {
            if self.forcing.fetch_add(1, Ordering::AcqRel) >= wanted {
                self.forcing.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            let (worker, forcing) = (worker(), self.forcing.clone());
            spawn("prune-now", move || {
                let _ended = worker.force();
                forcing.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    /// Delays the answer of a tenant that is above its part while the limit is reached.
    pub(super) async fn delay(&self, fs: &Filesystem, subvol: SubvolId, absent: &Absent) {
        if !absent.is_over {
            return;
        }
        let (names, mut delayed) = (fs.names(), Duration::ZERO);
        for _ in 0..DELAYS {
            let Some(delay) = delay(names.published(), names.limit()) else { break };
            fs.pool().runtime().sleep(delay).await;
            delayed += delay;
            if delay < DELAY.1 {
                break;
            }
        }
        names.note_delay(subvol, delayed);
    }

    /// Has the kernel forget all names of a subvolume that do not exist.
    pub(super) async fn forget_all(&self, fs: &Arc<Filesystem>, notifier: &Notifier, of: SubvolId) {
        let (fs, flights) = (Arc::downgrade(fs), self.flights.clone());
        let worker = Worker { fs, notifier: notifier.clone(), flights };
        let done = Arc::new(Event::new());
        let (listener, told) = (done.listen(), done.clone());
        spawn("prune-all", move || {
            let _ended = worker.forget_all(of);
            told.notify(usize::MAX);
        });
        listener.await;
    }
}

/// Threads at the limit: more, the further it is passed.
fn threads_wanted(names: &AbsentNames) -> usize {
    let (used, limit) = (names.published(), names.limit());
    match used.checked_sub(limit) {
        Some(beyond) => THREADS.min(1 + (beyond / (slack(limit) / 8).max(1)) as usize),
        None => 0,
    }
}

/// Entries by which the limit may be passed for a moment.
fn slack(limit: u64) -> u64 {
    (limit / 256).max(64)
}

/// Longer, the further the limit is passed.
fn delay(used: u64, limit: u64) -> Option<Duration> {
    let beyond = used.checked_sub(limit)?;
    let (least, most) = DELAY;
    let doublings = (8 * beyond / slack(limit)).min(16) as u32;
    Some((least * (1 << doublings)).min(most))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    // Dropped without being run, the work of waiters ends with it.
    if let Err(error) = thread::Builder::new().name(name.into()).spawn(work) {
        tracing::warn!(%error, "a thread that has the kernel forget names could not start");
    }
}

impl Worker {
    /// Removes cold entries while less than a twentieth of the limit is free, until a tenth is.
    fn prune(&self) -> Result<(), Ended> {
        let (mut pace, mut created) = (Pace::new(), None);
        loop {
            let fs = self.fs.upgrade().ok_or(Ended)?;
            let names = fs.names();
            if names.limit() == 0 || names.free() >= ENOUGH {
                return Ok(());
            }
            let sum = names.totals()[NameEvent::Created];
            let inflow = sum - created.replace(sum).unwrap_or(sum);
            let mut left = (inflow + inflow / 4).clamp(RUN.0, RUN.1) as usize;
            while left > 0 {
                let victims = names.pick(STEP.min(left));
                if victims.is_empty() {
                    return Ok(());
                }
                left = left.saturating_sub(victims.len());
                for victim in &victims {
                    self.forget(names, victim, NameEvent::Pruned)?;
                }
                pace.rest();
            }
            let pause = if names.free() < SCARCE { HURRY } else { PAUSE };
            drop(fs);
            thread::sleep(pause);
        }
    }

    /// Removes cold entries while the limit is reached.
    fn force(&self) -> Result<(), Ended> {
        loop {
            let fs = self.fs.upgrade().ok_or(Ended)?;
            let names = fs.names();
            let room = slack(names.limit()).min(names.limit() / 4);
            if names.limit() == 0 || names.published() + room < names.limit() {
                return Ok(());
            }
            let victims = names.pick(STEP);
            if victims.is_empty() {
                return Ok(());
            }
            victims.iter().try_for_each(|of| self.forget(names, of, NameEvent::Forced))?;
        }
    }

    fn forget_all(&self, of: SubvolId) -> Result<(), Ended> {
        let fs = self.fs.upgrade().ok_or(Ended)?;
        let Some(subvol) = fs.volumes().subvol(of) else { return Ok(()) };
        let most = fs.names().live().div_ceil(STEP as u64);
        // Each at most twice: some expire first.
        for _ in 0..2 * most + 2 {
            let victims = fs.names().pick_all(subvol.owner(), STEP);
            if victims.is_empty() {
                break;
            }
            victims.iter().try_for_each(|of| self.forget(fs.names(), of, NameEvent::Dropped))?;
        }
        Ok(())
    }

    fn forget(&self, names: &AbsentNames, victim: &Victim, event: NameEvent) -> Result<(), Ended> {
        let (parent, name) = (NodeId(victim.dir.raw()), victim.name());
        let _flight = (!victim.expires).then(|| self.flights.begin(victim.dir, name));
        // PRUNE-P2.
        if !names.confirm(victim) {
            return Ok(());
        }
        let expire = victim.expires;
        match self.notifier.notify(&Notification::InvalEntry { parent, name, expire }) {
            // `false`: the kernel has dropped the name, or the directory, by itself.
            Ok(_) => names.finish(victim, event),
            Err(error) => {
                names.finish(victim, NameEvent::Dropped);
                if matches!(error, Errno::ENOTCONN | Errno::ENODEV | Errno::EBADF) {
                    return Err(Ended);
                }
                tracing::debug!(?error, "the kernel did not forget a name");
            }
        }
        Ok(())
    }
}

/// Holds a thread to its part of a processor.
struct Pace {
    begin: Instant,
    busy: Duration,
}

impl Pace {
    fn new() -> Pace {
        Pace { begin: Instant::now(), busy: busy() }
    }

    fn rest(&mut self) {
        let (used, passed) = (busy().saturating_sub(self.busy), self.begin.elapsed());
        if let Some(early) = (used * CPU_PARTS).checked_sub(passed) {
            thread::sleep(early);
        }
        *self = Pace::new();
    }
}

/// Time of a processor that this thread has used.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
