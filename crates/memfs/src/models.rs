//! Histories of file locks for shuttle (`shuttle/tests/transport.rs`): threads wait for a lock, and
//! its owners release it at any moment of the wait.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use copyhold_fuse::Errno;
use copyhold_fuse::models::{join, wait};
use copyhold_fuse::protocol::{Handle, Lock, LockKind, LockOwner, NodeId};
use parking_lot::thread;

use crate::locks::Locks;

fn lock(owner: u64, kind: LockKind, flock: bool) -> Lock {
    let (start, end) = (0, if flock { u64::MAX } else { 9 });
    let owner = LockOwner(owner);
    Lock { handle: Handle(0), owner, kind, start, end, pid: 1, flock }
}

/// Owners of file locks that wait for one another, and one that is cancelled.
pub fn file_locks() {
    const FILE: NodeId = NodeId(1);
    const WRITER: usize = 100;
    let (locks, inside) = (Arc::new(Locks::default()), Arc::new(AtomicUsize::new(0)));
    for flock in [false, true] {
        let owners = (1..=4).map(|owner| {
            let (locks, inside) = (locks.clone(), inside.clone());
            thread::spawn(move || {
                let kind = if owner % 2 == 0 { LockKind::Read } else { LockKind::Write };
                let weight = if owner % 2 == 0 { 1 } else { WRITER };
                let mut waiting = Box::pin(locks.wait(FILE, lock(owner, kind, flock)));
                let result = if owner == 4 {
                    let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    drop(waiting);
                    let Poll::Ready(result) = polled else { return };
                    result
                } else {
                    wait(waiting)
                };
                assert_eq!(result, Ok(()));
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                assert!(before < WRITER && (weight == 1 || before == 0), "{before} are inside");
                thread::yield_now();
                inside.fetch_sub(weight, Ordering::SeqCst);
                match (flock, owner) {
                    (true, _) => locks.release_flock(FILE, LockOwner(owner)),
                    (false, 1) => locks.release_posix(FILE, LockOwner(owner)),
                    (false, _) => {
                        let unlock = lock(owner, LockKind::Unlock, false);
                        assert_eq!(locks.set(FILE, &unlock), Ok::<(), Errno>(()));
                    }
                }
            })
        });
        join(owners.collect());
    }
    assert!(locks.test(FILE, &lock(9, LockKind::Write, false)).is_none());
}
