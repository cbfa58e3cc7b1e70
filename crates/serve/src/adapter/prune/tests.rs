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
    /// Notifications of attributes.
    attributes: AtomicUsize,
    /// Ends with the test, too.
    ends: parking_lot::Mutex<Option<Receiver<()>>>,
}

impl Listener for Gate {
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        if let Notification::InvalEntry { expire: false, .. } = notification {
            let _begun = self.begins.send(());
            let _landed = self.ends.lock().as_ref().map(Receiver::recv);
        }
        if matches!(notification, Notification::InvalInode { offset: -1, .. }) {
            self.attributes.fetch_add(1, Ordering::Relaxed);
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
        let gate =
            Arc::new(Gate { begins, attributes: AtomicUsize::new(0), ends: Default::default() });
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
            // Each later flight lands at once.
            drop(land);
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
fn a_look_up_of_a_name_in_flight_is_refused_in_the_end() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")));
    world.in_flight(|land| {
        world.make(b"x");
        assert!(matches!(world.look(b"x"), Err(Errno::ESTALE)), "PRUNE-P3");
        land();
    });
    world.end();
}

#[test]
fn a_rename_to_a_name_in_flight_is_refused() {
    let world = World::new();
    world.make(b"y");
    assert!(is_absent(&world.look(b"x")));
    world.in_flight(|land| {
        assert_eq!(world.rename(b"y", b"x"), Err(Errno::ESTALE));
        assert_eq!(world.rename(b"y", b"x"), Err(Errno::ESTALE));
        land();
    });
    assert_eq!(world.rename(b"y", b"x"), Ok(()));
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
fn attributes_of_a_directory_are_held_at_the_limit_and_requested_for_each_path() {
    let world = World::new();
    let attributes = || {
        let answer = world.executors.block_on(world.adapter.getattr(BY, ROOT, None));
        let counts = world.fs.names().totals();
        (answer.expect("it is there").valid, counts[NameEvent::DelayUs] / 1000)
    };
    assert!(!attributes().0.is_zero());
    world.fs.names().set_limit(400);
    let fill = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let name = format!("name-{number}");
            let looked = world.fs.look(FsNode::ROOT, name.as_bytes());
            world.executors.block_on(looked).expect("it is looked up");
        }
    };
    fill(0..396);
    assert_eq!(attributes(), (Duration::ZERO, 0), "PRUNE-P4");
    fill(396..440);
    let (hold, long_hold) = (u64::from(HOLD), u64::from(LONG_HOLD));
    assert_eq!(attributes(), (Duration::ZERO, hold), "PRUNE-P5");
    fill(440..600);
    assert_eq!(attributes(), (Duration::ZERO, hold + long_hold), "PRUNE-P5");
    // This begins threads that remove names.
    assert!(is_absent(&world.look(b"name-600")));
    let notified = world.gate.attributes.load(Ordering::Relaxed);
    assert_eq!(notified, 1, "PRUNE-P4: the kernel has no attributes");
    world.fs.names().set_limit(10_000);
    assert!(!attributes().0.is_zero());
    world.end();
}

/// Each may be the one that has the lock.
#[test]
fn requests_for_attributes_are_answered_one_after_the_other_while_a_flight_waits() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")));
    let flights = &world.adapter.pruner.flights;
    let owner = world.fs.volumes().subvol(SubvolId::ROOT).expect("it is there").owner().clone();
    let victims = world.fs.names().pick_all(&owner, 1);
    let flight = flights.begin(&victims[0]);
    let waits = |time| flights.all.lock()[0].since = Instant::now() - time;
    // It has begun in the future, so no time of the test makes it wait.
    flights.all.lock()[0].since = Instant::now() + HOLD * LOOK;
    assert!(!flights.is_stuck_in(FsNode::ROOT));
    waits(2 * STUCK);
    assert!(flights.is_stuck_in(FsNode::ROOT), "PRUNE-P4");
    let next = flights.all.lock()[0].since + STUCK;
    assert!(Instant::now() + LOOK >= next, "PRUNE-P4");
    drop(flight);
    assert!(!flights.is_stuck_in(FsNode::ROOT));
    victims.iter().for_each(|victim| world.fs.names().put_back(victim));
    drop(victims);
    world.end();
}

#[test]
fn one_flight_at_a_time_is_in_a_directory() {
    let world = World::new();
    assert!(is_absent(&world.look(b"x")) && is_absent(&world.look(b"y")));
    let flights = &world.adapter.pruner.flights;
    let owner = world.fs.volumes().subvol(SubvolId::ROOT).expect("it is there").owner().clone();
    let victims = world.fs.names().pick_all(&owner, 64);
    let first = flights.begin(&victims[0]);
    assert!(first.is_some() && flights.begin(&victims[1]).is_none(), "PRUNE-P4");
    drop(first);
    assert!(flights.begin(&victims[1]).is_some());
    victims.iter().for_each(|victim| world.fs.names().put_back(victim));
    drop(victims);
    world.end();
}

#[test]
fn a_thread_that_panics_or_does_not_begin_leaves_its_place() {
    let taken = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(Event::new());
    let place = || Place::take(&taken, 1).expect("it is free");
    for runs in [false, true] {
        let (place, told) = (place(), Told(done.clone()));
        assert!(Place::take(&taken, 1).is_none());
        let listener = done.listen();
        let work = move || {
            let _held = (place, told);
            std::panic::resume_unwind(Box::new("of the test"));
        };
        if runs {
            assert!(thread::spawn(work).join().is_err());
        } else {
            drop(work);
        }
        event_listener::Listener::wait(listener);
    }
    assert_eq!(taken.load(Ordering::Relaxed), 0);
}
