//! File locks, POSIX and flock, of one mount.
//!
//! Problem.  The kernel asks for locks in terms of its own owners and leaves waiting, waking and
//!           deadlocks to us. The filesystem below has no locks: they are not stored.
//! Idea.     Per file two sets of ranges, one for each family of locks, which ignore one another as
//!           in the kernel. A waiter is a future that tries again when something on that file is
//!           released; dropping it cancels the wait.
//! Deadlock. Before a POSIX lock waits, the owners in its way are followed: to the locks they wait
//!           for, and to the owners in the way of those. Coming back to the asker is EDEADLK.
//!           flock locks are not followed, as in the kernel.
//!
//! LOCKS-K3  A file without locks and waiters has no entry.
//!
//! One mutex guards everything: locks are rare, and each step is short.

mod ranges;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use copyhold_fuse::Errno;
use copyhold_fuse::protocol::{Handle, Lock, LockKind, LockOwner, NodeId};
use copyhold_sync::{Mutex, of};

use ranges::{Held, Ranges};

/// All locks of a mount.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    state: Mutex<LocksState, of::FileLocks>,
}

#[derive(Debug, Default)]
struct LocksState {
    files: BTreeMap<NodeId, File>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct File {
    posix: Ranges,
    flock: Ranges,
    /// By ticket, so that the longest waiting tries first.
    waiters: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    lock: Lock,
    waker: Waker,
}

impl File {
    fn ranges(&mut self, flock: bool) -> &mut Ranges {
        if flock { &mut self.flock } else { &mut self.posix }
    }

    fn wakers(&self) -> Vec<Waker> {
        self.waiters.values().map(|waiter| waiter.waker.clone()).collect()
    }

    fn is_idle(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty() && self.waiters.is_empty()
    }
}

impl LocksState {
    /// Sets `lock` if nothing is in its way. The answer's first half has the waiters that should
    /// try again.
    fn try_set(&mut self, node: NodeId, lock: &Lock) -> (Vec<Waker>, Result<(), Errno>) {
        let file = self.files.entry(node).or_default();
        let ranges = file.ranges(lock.flock);
        // A flock is converted by releasing the old one first, even if the new one is refused:
        // otherwise two owners that turn shared into exclusive would wait for each other.
        let gave_up = lock.flock && ranges.drop_owner(lock.owner);
        let is_free = ranges.conflicts(lock).next().is_none();
        if is_free {
            ranges.set(lock);
        }
        let result = if is_free { Ok(()) } else { Err(Errno::EAGAIN) };
        // Anything but a refusal may have made room: an unlock, a downgrade, a smaller range.
        let wakers = if gave_up || result.is_ok() { file.wakers() } else { Vec::new() };
        self.tidy(node);
        (wakers, result)
    }

    /// LOCKS-K3.
    fn tidy(&mut self, node: NodeId) {
        if self.files.get(&node).is_some_and(File::is_idle) {
            self.files.remove(&node);
        }
    }

    /// Whether waiting for `lock` would wait for its own owner.
    fn is_deadlock(&self, node: NodeId, lock: &Lock) -> bool {
        let mut seen = vec![lock.owner];
        let mut ahead = self.in_the_way(node, lock);
        while let Some(owner) = ahead.pop() {
            if owner == lock.owner {
                return true;
            }
            if seen.contains(&owner) {
                continue;
            }
            seen.push(owner);
            for (&node, file) in &self.files {
                for waiter in file.waiters.values() {
                    if waiter.lock.owner == owner && !waiter.lock.flock {
                        ahead.extend(self.in_the_way(node, &waiter.lock));
                    }
                }
            }
        }
        false
    }

    fn in_the_way(&self, node: NodeId, lock: &Lock) -> Vec<LockOwner> {
        let Some(file) = self.files.get(&node) else { return Vec::new() };
        file.posix.conflicts(lock).map(|held| held.owner).collect()
    }
}

impl Locks {
    /// A lock that is in the way of `lock`, if any.
    pub(crate) fn test(&self, node: NodeId, lock: &Lock) -> Option<Lock> {
        let mut state = self.state.lock();
        let held = *state.files.get_mut(&node)?.ranges(lock.flock).conflicts(lock).next()?;
        Some(shown(&held, lock.flock))
    }

    /// Sets or removes a lock, or `EAGAIN`.
    pub(crate) fn set(&self, node: NodeId, lock: &Lock) -> Result<(), Errno> {
        let (wakers, result) = self.state.lock().try_set(node, lock);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Sets a lock when nothing is in its way any more, or `EDEADLK` where that could never be.
    /// Giving up is dropping the future.
    pub(crate) fn wait(self: &Arc<Locks>, node: NodeId, lock: Lock) -> Wait {
        Wait { locks: Arc::clone(self), node, lock, ticket: None }
    }

    /// Drops the POSIX locks of `owner`: it has closed a descriptor of this file.
    pub(crate) fn release_posix(&self, node: NodeId, owner: LockOwner) {
        self.release(node, owner, false);
    }

    /// Drops the flock of `owner`: the open file was closed for the last time.
    pub(crate) fn release_flock(&self, node: NodeId, owner: LockOwner) {
        self.release(node, owner, true);
    }

    fn release(&self, node: NodeId, owner: LockOwner, flock: bool) {
        let wakers = {
            let mut state = self.state.lock();
            let Some(file) = state.files.get_mut(&node) else { return };
            if !file.ranges(flock).drop_owner(owner) {
                return;
            }
            let wakers = file.wakers();
            state.tidy(node);
            wakers
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn shown(held: &Held, flock: bool) -> Lock {
    Lock {
        handle: Handle(0),
        owner: held.owner,
        kind: if held.write { LockKind::Write } else { LockKind::Read },
        start: held.start,
        end: held.end,
        pid: held.pid,
        flock,
    }
}

/// See [`Locks::wait`].
#[derive(Debug)]
pub(crate) struct Wait {
    locks: Arc<Locks>,
    node: NodeId,
    lock: Lock,
    /// While it is among the waiters.
    ticket: Option<u64>,
}

impl Future for Wait {
    type Output = Result<(), Errno>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wait = &mut *self;
        let (wakers, result) = {
            let mut state = wait.locks.state.lock();
            let (wakers, result) = state.try_set(wait.node, &wait.lock);
            let result = match result {
                Err(Errno::EAGAIN)
                    if wait.lock.flock || !state.is_deadlock(wait.node, &wait.lock) =>
                {
                    let ticket = *wait.ticket.get_or_insert_with(|| {
                        state.next_ticket += 1;
                        state.next_ticket
                    });
                    let waiter = Waiter { lock: wait.lock, waker: cx.waker().clone() };
                    state.files.entry(wait.node).or_default().waiters.insert(ticket, waiter);
                    Poll::Pending
                }
                Err(Errno::EAGAIN) => Poll::Ready(Err(Errno::EDEADLK)),
                result => Poll::Ready(result),
            };
            (wakers, result)
        };
        wakers.into_iter().for_each(Waker::wake);
        if result.is_ready() {
            wait.leave();
        }
        result
    }
}

impl Wait {
    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = self.locks.state.lock();
        if let Some(file) = state.files.get_mut(&self.node) {
            file.waiters.remove(&ticket);
        }
        state.tidy(self.node);
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const FILE: NodeId = NodeId(1);
    const OTHER: NodeId = NodeId(2);

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        let owner = LockOwner(owner);
        Lock { handle: Handle(0), owner, kind, start, end, pid: owner.0 as u32, flock: false }
    }

    fn flock(owner: u64, kind: LockKind) -> Lock {
        Lock { flock: true, ..lock(owner, kind, 0, u64::MAX) }
    }

    fn poll(wait: &mut Wait, count: &Arc<Count>) -> Poll<Result<(), Errno>> {
        let waker = Waker::from(Arc::clone(count));
        Pin::new(wait).poll(&mut Context::from_waker(&waker))
    }

    fn is_tidy(locks: &Locks) -> bool {
        locks.state.lock().files.is_empty()
    }

    #[test]
    fn a_conflict_is_shown_and_refused_until_it_is_released() {
        let locks = Locks::default();
        locks.set(FILE, &lock(1, LockKind::Write, 10, 19)).unwrap();
        let wanted = lock(2, LockKind::Read, 15, 30);
        let found = locks.test(FILE, &wanted).unwrap();
        assert_eq!((found.start, found.end, found.pid, found.kind), (10, 19, 1, LockKind::Write));
        assert_eq!(locks.set(FILE, &wanted), Err(Errno::EAGAIN));
        assert_eq!(locks.set(FILE, &lock(2, LockKind::Read, 20, 30)), Ok(()));
        locks.release_posix(FILE, LockOwner(1));
        assert_eq!(locks.set(FILE, &wanted), Ok(()));
        locks.release_posix(FILE, LockOwner(2));
        assert!(is_tidy(&locks));
    }

    #[test]
    fn flock_and_posix_locks_do_not_see_each_other() {
        let locks = Locks::default();
        locks.set(FILE, &flock(1, LockKind::Write)).unwrap();
        assert_eq!(locks.set(FILE, &lock(2, LockKind::Write, 0, 5)), Ok(()));
        assert_eq!(locks.set(FILE, &flock(2, LockKind::Read)), Err(Errno::EAGAIN));
        locks.release_flock(FILE, LockOwner(1));
        assert_eq!(locks.set(FILE, &flock(2, LockKind::Read)), Ok(()));
    }

    #[test]
    fn who_waits_is_woken_by_the_release_and_gets_the_lock() {
        let locks = Arc::new(Locks::default());
        let count = Arc::new(Count::default());
        locks.set(FILE, &lock(1, LockKind::Write, 0, 9)).unwrap();
        let mut wait = locks.wait(FILE, lock(2, LockKind::Write, 5, 6));
        assert!(poll(&mut wait, &count).is_pending());
        locks.set(FILE, &lock(1, LockKind::Unlock, 5, 9)).unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(&mut wait, &count), Poll::Ready(Ok(())));
        assert!(locks.test(FILE, &lock(1, LockKind::Read, 6, 6)).is_some());
    }

    #[test]
    fn giving_up_leaves_nothing_behind() {
        let locks = Arc::new(Locks::default());
        let count = Arc::new(Count::default());
        locks.set(FILE, &lock(1, LockKind::Read, 0, 9)).unwrap();
        let mut wait = locks.wait(FILE, lock(2, LockKind::Write, 0, 9));
        assert!(poll(&mut wait, &count).is_pending());
        drop(wait);
        locks.release_posix(FILE, LockOwner(1));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert!(is_tidy(&locks));
    }

    #[test]
    fn a_circle_of_waiters_is_refused_and_a_chain_is_not() {
        let locks = Arc::new(Locks::default());
        let count = Arc::new(Count::default());
        locks.set(FILE, &lock(1, LockKind::Write, 0, 0)).unwrap();
        locks.set(OTHER, &lock(2, LockKind::Write, 0, 0)).unwrap();
        locks.set(FILE, &lock(3, LockKind::Write, 7, 7)).unwrap();
        let mut second = locks.wait(FILE, lock(2, LockKind::Write, 0, 0));
        let mut third = locks.wait(OTHER, lock(3, LockKind::Read, 0, 0));
        assert!(poll(&mut second, &count).is_pending());
        assert!(poll(&mut third, &count).is_pending());
        let mut first = locks.wait(FILE, lock(1, LockKind::Read, 7, 7));
        assert_eq!(poll(&mut first, &count), Poll::Ready(Err(Errno::EDEADLK)));
        // The others go on as before.
        locks.release_posix(FILE, LockOwner(1));
        assert_eq!(poll(&mut second, &count), Poll::Ready(Ok(())));
    }

    #[test]
    fn two_shared_flocks_can_both_ask_for_an_exclusive_one() {
        let locks = Arc::new(Locks::default());
        let count = Arc::new(Count::default());
        locks.set(FILE, &flock(1, LockKind::Read)).unwrap();
        locks.set(FILE, &flock(2, LockKind::Read)).unwrap();
        let mut first = locks.wait(FILE, flock(1, LockKind::Write));
        assert!(poll(&mut first, &count).is_pending());
        let mut second = locks.wait(FILE, flock(2, LockKind::Write));
        assert_eq!(poll(&mut second, &count), Poll::Ready(Ok(())));
        assert_eq!(locks.set(FILE, &flock(2, LockKind::Unlock)), Ok(()));
        assert_eq!(poll(&mut first, &count), Poll::Ready(Ok(())));
    }
}
