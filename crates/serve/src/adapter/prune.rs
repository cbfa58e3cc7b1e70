//! Makes the kernel forget names that do not exist, so that their number has a bound.
//!
//! Problem.  A name that was looked up in vain stays in the kernel's cache of names. Only a
//!           notification removes it, and one that comes late removes more: if a file has the
//!           name by then, the kernel drops that, with all that is mounted on it.
//! Idea.     Threads of their own take entries from [`AbsentNames`], those not asked for lately,
//!           and notify the kernel of each: one thread at a tenth of a processor ahead of the
//!           limit, more without that bound at the limit, while the threads that add names are held
//!           back. The name under way is known ([`Flights`]) until the kernel has answered.
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
//!           with the lock; the answer is ESTALE behind it, too. A rename answers without a
//!           validity: it is refused with ESTALE while its new name is in flight.
//! PRUNE-P4  The answer to a look-up keeps the lock of its directory shared, which a notification
//!           needs alone. So no look-up is delayed. A thread that has added a name, by a look-up or
//!           a removal, while the limit is reached and its group is above its part, is held at its
//!           next request for attributes of a directory of that subvolume ([`Debts`]). Each path
//!           through a directory requests them, without a lock: all answers with attributes of
//!           directories of such a group are valid for no time from the moment when entries are
//!           removed ahead of the limit, and before a look-up at the limit is answered, the kernel
//!           is notified that it has none. A thread without such a name waits nowhere.
//! PRUNE-P5  So each thread adds one name at most for each [`HOLD`] while the limit is reached, as
//!           long as at most [`HELD_MAX`](debts::HELD_MAX) of the subvolume wait. A thread owes
//!           nothing when it begins. A call that looks a name up with the lock of the directory, to
//!           make it, may request the attributes with that lock, and pays for its own look-up then:
//!           so while a flight waits for the lock longer than [`STUCK`], one request is answered
//!           every millisecond. One thread at a time notifies of names of a directory.
//!
//! Not closed: a mount on the descriptor that a creation has returned.

mod debts;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use copyhold_fs::{AbsentNames, Filesystem, NameEvent, NodeId as FsNode, Victim};
use copyhold_fuse::protocol::{NodeId, Notification};
use copyhold_fuse::{Errno, Notifier};
use copyhold_memory::MemoryOwner;
use copyhold_runtime::Rt;
use copyhold_sync::{Mutex, of};
use copyhold_types::SubvolId;
use event_listener::Event;

use debts::Debts;

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
/// Between two looks at the flights or the limit.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait of attributes at the limit, in looks.
const HOLD: u32 = 50;
/// A flight that lasts longer waits for the lock of its directory.
const STUCK: Duration = Duration::from_millis(3);
/// The longest wait of a look-up for a name in flight.
const LOOK_UP_WAIT: Duration = Duration::from_millis(100);
/// The longest wait for names that other threads have picked, in looks without another name.
const OTHERS_WAIT: u32 = 1000;

/// The names of which the kernel is being notified.
#[derive(Default)]
pub(super) struct Flights {
    all: Mutex<Vec<Flying>, of::NameFlights>,
    count: AtomicUsize,
}

/// A name in a directory, the only one there (PRUNE-P4).
struct Flying {
    dir: FsNode,
    name: Box<[u8]>,
    /// The kernel keeps a file that has the name.
    expires: bool,
    /// Its begin, or the last answer to a caller that may have the lock.
    since: Instant,
}

/// One of them.
struct Flight<'a> {
    of: &'a Flights,
    dir: FsNode,
}

impl Flights {
    /// None: another is in that directory.
    fn begin(&self, victim: &Victim) -> Option<Flight<'_>> {
        let (dir, name, expires) = (victim.dir, victim.name().into(), victim.expires);
        let mut all = self.all.lock();
        if all.iter().any(|flying| flying.dir == dir) {
            return None;
        }
        all.push(Flying { dir, name, expires, since: Instant::now() });
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(Flight { of: self, dir })
    }

    /// As [`Self::begin`], behind the other.
    fn begin_next(&self, victim: &Victim) -> Flight<'_> {
        loop {
            if let Some(flight) = self.begin(victim) {
                return flight;
            }
            thread::sleep(LOOK);
        }
    }

    fn any(&self, is: impl Fn(&Flying) -> bool) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && self.all.lock().iter().any(is)
    }

    /// Whether the kernel is forgetting this name.
    pub(super) fn has(&self, dir: FsNode, name: &[u8]) -> bool {
        self.any(|flying| flying.dir == dir && !flying.expires && *flying.name == *name)
    }

    /// Whether a flight waits for the lock of this directory, which the caller may have. Answers
    /// one caller, and the next one later.
    fn is_stuck_in(&self, dir: FsNode, now: Instant) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut all = self.all.lock();
        let is_stuck = |of: &Flying| now.saturating_duration_since(of.since) > STUCK;
        let stuck = all.iter_mut().find(|of| of.dir == dir && is_stuck(of));
        stuck.map(|flying| flying.since = now - (STUCK - LOOK)).is_some()
    }

    /// Waits until the name is not in flight, up to a bound.
    pub(super) async fn wait(&self, rt: &Rt, dir: FsNode, name: &[u8]) {
        for _ in 0..LOOK_UP_WAIT.as_millis() {
            if !self.has(dir, name) {
                return;
            }
            rt.sleep(LOOK).await;
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut all = self.of.all.lock();
        let at = all.iter().position(|flying| flying.dir == self.dir);
        all.swap_remove(at.expect("it was put there"));
        drop(all);
        self.of.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The threads, as many as are needed now.
#[derive(Default)]
pub(super) struct Pruner {
    pub(super) flights: Arc<Flights>,
    pub(super) debts: Debts,
    pruning: Arc<AtomicUsize>,
    forcing: Arc<AtomicUsize>,
}

/// One of the threads that may run, until it ends, in whichever way, or does not begin.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Running> {
        let is_free = |taken: usize| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, is_free).ok()?;
        Some(Running(taken.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tells those that wait for a thread that it has ended, or does not begin.
struct Told(Arc<Event>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify(usize::MAX);
    }
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
        if let Some(running) = Running::take(&self.pruning, 1) {
            let worker = worker();
            spawn("prune", move || {
                let _running = running;
                let _ended = worker.prune();
            });
        }
        if let Some(running) = Running::take(&self.forcing, threads_wanted(names)) {
            let worker = worker();
            spawn("prune-now", move || {
                let _running = running;
                let _ended = worker.force();
            });
        }
    }

    /// Holds a request of a thread that has added a name, while the limit is reached, and its group
    /// is above its part (PRUNE-P4).
    pub(super) async fn hold(&self, fs: &Filesystem, dir: FsNode) {
        let Some(_held) = self.debts.hold(dir.subvol) else { return };
        let mut looks = 0;
        let is_free = || !is_over(fs, dir.subvol) || self.flights.is_stuck_in(dir, Instant::now());
        while looks < HOLD && !is_free() {
            fs.pool().runtime().sleep(LOOK).await;
            looks += 1;
        }
        if looks > 0 {
            fs.names().note_delay(dir.subvol, looks * LOOK);
        }
    }

    /// Has the kernel forget all names of a subvolume that do not exist.
    pub(super) async fn forget_all(&self, fs: &Arc<Filesystem>, notifier: &Notifier, of: SubvolId) {
        let (fs, flights) = (Arc::downgrade(fs), self.flights.clone());
        let worker = Worker { fs, notifier: notifier.clone(), flights };
        let done = Arc::new(Event::new());
        let (listener, told) = (done.listen(), Told(done));
        spawn("prune-all", move || {
            let _told = told;
            let _ended = worker.forget_all(of, || thread::sleep(LOOK));
        });
        listener.await;
    }
}

/// Whether the limit is reached, and the group of the subvolume is above its part.
pub(super) fn is_over(fs: &Filesystem, subvol: SubvolId) -> bool {
    let is_over = |owner: &MemoryOwner| fs.names().is_over(owner);
    fs.names().is_full() && fs.volumes().subvol(subvol).is_some_and(|of| is_over(of.owner()))
}

/// Whether names of the group of the subvolume are removed ahead of the limit.
pub(super) fn is_short_for(fs: &Filesystem, subvol: SubvolId) -> bool {
    let is_short = |owner: &MemoryOwner| fs.names().is_short_for(owner);
    fs.names().is_short() && fs.volumes().subvol(subvol).is_some_and(|of| is_short(of.owner()))
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

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
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
                names.end_turns();
                return Ok(());
            }
            let sum = names.created();
            let inflow = sum - created.replace(sum).unwrap_or(sum);
            let mut left = (inflow + inflow / 4).clamp(RUN.0, RUN.1) as usize;
            while left > 0 {
                let victims = names.pick(STEP.min(left));
                if victims.is_empty() {
                    return rest(fs, PAUSE);
                }
                left = left.saturating_sub(victims.len());
                if self.forget_free(names, &victims, NameEvent::Pruned)? == 0 {
                    break;
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
                return rest(fs, LOOK);
            }
            if self.forget_free(names, &victims, NameEvent::Forced)? == 0 {
                drop(fs);
                thread::sleep(LOOK);
            }
        }
    }

    /// Other threads may put names back that they have picked: the end is behind that.
    fn forget_all(&self, of: SubvolId, mut wait: impl FnMut()) -> Result<(), Ended> {
        let fs = self.fs.upgrade().ok_or(Ended)?;
        let (names, subvol) = (fs.names(), fs.volumes().subvol(of));
        let Some(subvol) = subvol else { return Ok(()) };
        let live = || names.live_of(subvol.owner()) as usize;
        // Each twice, since look-ups spare some, and a few new ones: a program may add names for
        // ever.
        let (mut left, mut waits) = (2 * live() + STEP, 0);
        while left > 0 && waits < OTHERS_WAIT && live() > 0 {
            let victims = names.pick_all(subvol.owner(), STEP);
            if victims.is_empty() {
                waits += 1;
                wait();
                continue;
            }
            (left, waits) = (left.saturating_sub(victims.len()), 0);
            for victim in &victims {
                let flight = self.flights.begin_next(victim);
                self.forget(names, victim, NameEvent::Dropped, flight)?;
            }
        }
        Ok(())
    }

    /// Forgets those in directories without another flight, and puts the others back; how many
    /// are forgotten.
    fn forget_free(
        &self,
        names: &AbsentNames,
        victims: &[Victim],
        event: NameEvent,
    ) -> Result<usize, Ended> {
        let (mut forgotten, mut taken) = (0, None);
        for victim in victims {
            let is_taken = taken == Some(victim.dir);
            let Some(flight) = (!is_taken).then(|| self.flights.begin(victim)).flatten() else {
                taken = Some(victim.dir);
                names.put_back(victim);
                continue;
            };
            self.forget(names, victim, event, flight)?;
            forgotten += 1;
        }
        Ok(forgotten)
    }

    fn forget(
        &self,
        names: &AbsentNames,
        victim: &Victim,
        event: NameEvent,
        _flight: Flight<'_>,
    ) -> Result<(), Ended> {
        let (parent, name) = (NodeId(victim.dir.raw()), victim.name());
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

/// The end of a thread that finds nothing to do: not at once, since look-ups begin the next.
fn rest(fs: Arc<Filesystem>, pause: Duration) -> Result<(), Ended> {
    drop(fs);
    thread::sleep(pause);
    Ok(())
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
