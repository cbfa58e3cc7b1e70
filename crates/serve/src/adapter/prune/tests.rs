//! A name that is made while the kernel is forgetting it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use copyhold_fuse::protocol::{Caller, Entry, Extensions, Ids, Lookup, NewNode, Rename};
use copyhold_fuse::{Listener, Operations, Reply};
use copyhold_runtime::Executors;

use super::super::Adapter;
use super::super::kernel::{adapter, device, executors, open};
use super::*;

const BY: Caller = Caller { unique: 1, ids: Some(Ids { uid: 0, gid: 0 }), pid: 0 };
const ROOT: NodeId = NodeId::ROOT;

/// A kernel that begins and ends each notification of a name when the test does.
#[derive(Debug)]
struct Gate {
    begins: Sender<()>,
    /// Ends with the test, too.
    ends: parking_lot::Mutex<Option<Receiver<()>>>,
}

impl Listener for Gate {
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        if let Notification::InvalEntry { expire: false, .. } = notification {
            let _begun = self.begins.send(());
            let _landed = self.ends.lock().as_ref().map(Receiver::recv);
        }
        Ok(())
    }
}

struct World {
    executors: Arc<Executors>,
    fs: Arc<Filesystem>,
    adapter: Arc<Adapter>,
    gate: Arc<Gate>,
    begun: parking_lot::Mutex<Receiver<()>>,
}

impl World {
    fn new() -> World {
        let executors = executors();
        let device = device(executors.clone());
        let fs = executors.block_on(open(executors.clone(), device, None)).expect("it opens");
        let adapter = adapter(&fs);
        let (begins, begun) = channel();
        let gate = Arc::new(Gate { begins, ends: Default::default() });
        adapter.notify_through(Notifier::to(gate.clone()));
        World { executors, fs, adapter, gate, begun: begun.into() }
    }

    fn look(&self, name: &[u8]) -> Reply<Lookup> {
        self.executors.block_on(self.adapter.lookup(BY, ROOT, name))
    }

    fn make(&self, name: &[u8]) -> Entry {
        let new = NewNode { mode: 0o755, umask: 0, rdev: 0, extensions: Extensions::default() };
        self.executors.block_on(self.adapter.mkdir(BY, ROOT, name, new)).expect("it is made")
    }

    fn rename(&self, name: &[u8], new_name: &[u8]) -> Reply<()> {
        let rename = Rename { name, new_parent: ROOT, new_name, flags: 0 };
        self.executors.block_on(self.adapter.rename(BY, ROOT, rename))
    }

    /// Does this while the one absent name is in flight, and ends the flight.
    fn in_flight<T>(&self, work: impl FnOnce(&dyn Fn()) -> T) -> T {
        let worker = Worker {
            fs: Arc::downgrade(&self.fs),
            notifier: Notifier::to(self.gate.clone()),
            flights: self.adapter.pruner.flights.clone(),
        };
        thread::scope(|threads| {
            let (land, ends) = channel();
            *self.gate.ends.lock() = Some(ends);
            let pruning = threads.spawn(move || worker.forget_all(SubvolId::ROOT));
            self.await_flight();
            let done = work(&|| land.send(()).expect("it waits"));
            assert!(pruning.join().expect("it does not panic").is_ok());
            done
        })
    }

    fn await_flight(&self) {
        self.begun.lock().recv().expect("a notification begins");
    }

    fn end(self) {
        let World { executors, fs, adapter, gate, begun: _ } = self;
        drop((adapter, gate));
        executors.block_on(fs.close()).expect("it closes");
        executors.block_on(fs.pool().close()).expect("it closes");
        executors.shutdown();
    }
}

fn is_absent(looked: &Reply<Lookup>) -> bool {
    matches!(looked, Ok(Lookup::Absent { .. }))
}

#[test]
fn a_name_that_is_made_in_flight_is_looked_up_anew() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")));
    let looked = world.in_flight(|land| {
        assert_eq!(world.make(b"x").entry_valid, Duration::ZERO, "PRUNE-P3");
        world.executors.block_on(async {
            let mut looks = pin!(world.adapter.lookup(BY, ROOT, b"x"));
            poll_fn(|context| {
                assert!(looks.as_mut().poll(context).is_pending(), "it waits for the flight");
                Poll::Ready(())
            })
            .await;
            land();
            looks.await
        })
    });
    assert!(matches!(looked, Err(Errno::ESTALE)), "{looked:?}");
    assert!(matches!(world.look(b"x"), Ok(Lookup::Found(found)) if !found.entry_valid.is_zero()));
    world.end();
}

/// The look-up of a removal has the lock for which the notification waits.
#[test]
fn a_look_up_of_a_name_in_flight_is_answered_in_the_end() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")));
    world.in_flight(|land| {
        world.make(b"x");
        let looked = world.look(b"x");
        assert!(matches!(looked, Ok(Lookup::Found(of)) if of.entry_valid.is_zero()), "PRUNE-P3");
        land();
    });
    world.end();
}

#[test]
fn a_rename_to_a_name_in_flight_is_refused_once() {
    let world = World::new();
    world.make(b"y");
    assert!(is_absent(&world.look(b"x")));
    world.in_flight(|land| {
        assert_eq!(world.rename(b"y", b"x"), Err(Errno::ESTALE));
        assert_eq!(world.rename(b"y", b"x"), Ok(()));
        land();
        // The old name is absent now, and the last to be forgotten.
        world.await_flight();
        land();
    });
    assert!(matches!(world.look(b"x"), Ok(Lookup::Found(_))));
    world.end();
}

#[test]
fn a_name_that_is_asked_for_in_flight_stays_known() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")));
    world.in_flight(|land| {
        assert!(is_absent(&world.look(b"x")));
        land();
        // The name is doomed again: it is not asked for any more.
        world.await_flight();
        land();
    });
    assert_eq!(world.fs.names().live(), 0);
    let counts = world.fs.names().totals();
    assert_eq!((counts[NameEvent::Recycled], counts[NameEvent::Dropped]), (1, 1), "NAMES-N3");
    world.end();
}

#[test]
fn delays_grow_with_the_excess() {
    let limit = 256_000;
    assert_eq!(delay(limit - 1, limit), None);
    assert_eq!(delay(limit, limit), Some(DELAY.0));
    assert_eq!(delay(limit + slack(limit) / 8, limit), Some(2 * DELAY.0));
    assert_eq!(delay(limit + slack(limit), limit), Some(DELAY.1));
    assert_eq!(delay(u64::MAX / 16, limit), Some(DELAY.1));
}
