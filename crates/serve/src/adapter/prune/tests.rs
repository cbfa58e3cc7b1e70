//! A name that is made while the kernel is forgetting it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use copyhold_fuse::protocol::{
    Caller, Entry, Extensions, Ids, Lookup, NewNode, Rename, SetAttr, SetTime,
};
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
    /// Its answer to each notification of a name, if that is an error.
    error: parking_lot::Mutex<Option<Errno>>,
    /// Notifications of names.
    names: AtomicUsize,
}

impl Listener for Gate {
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        if let Notification::InvalEntry { expire: false, .. } = notification {
            let _begun = self.begins.send(());
            let _landed = self.ends.lock().as_ref().map(Receiver::recv);
        }
        if matches!(notification, Notification::InvalEntry { .. }) {
            self.names.fetch_add(1, Ordering::Relaxed);
            return self.error.lock().map_or(Ok(()), Err);
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
        let zero = || AtomicUsize::new(0);
        let (ends, error) = Default::default();
        let gate = Arc::new(Gate { begins, attributes: zero(), ends, error, names: zero() });
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

    fn worker(&self) -> Worker {
        Worker {
            fs: Arc::downgrade(&self.fs),
            notifier: Notifier::to(self.gate.clone()),
            flights: self.adapter.pruner.flights.clone(),
        }
    }

    /// Does this while the one absent name is in flight, and ends the flight.
    fn in_flight<T>(&self, work: impl FnOnce(&dyn Fn()) -> T) -> T {
        let worker = self.worker();
        thread::scope(|threads| {
            let (land, ends) = channel();
            *self.gate.ends.lock() = Some(ends);
            let pruning =
                threads.spawn(move || worker.forget_all(SubvolId::ROOT, || thread::sleep(LOOK)));
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

/// A kernel without the name, and one that fails for another reason, end the entry all the same.
#[test]
fn names_that_the_kernel_does_not_have_end_without_an_error() {
    for (error, ended) in [(Errno::ENOENT, NameEvent::Pruned), (Errno::EIO, NameEvent::Dropped)] {
        let world = World::new();
        world.fill(400, 0..398);
        *world.gate.error.lock() = Some(error);
        let worker = world.worker();
        assert!(worker.prune().is_ok(), "{error:?}");
        let (counts, live) = (world.fs.names().totals(), world.fs.names().live());
        assert!(counts[ended] > 0 && live + counts[ended] == 398, "{live}, {counts:?}");
        assert!(world.fs.names().free() >= ENOUGH, "{error:?}");
        assert!(!world.adapter.pruner.flights.any(|_| true), "a name stays in flight");
        world.end();
    }
}

/// No other notification follows; look-ups go on without a kernel.
#[test]
fn a_thread_ends_at_the_first_name_when_the_connection_has_ended() {
    for error in [Errno::ENOTCONN, Errno::ENODEV] {
        let world = World::new();
        world.fill(400, 0..398);
        *world.gate.error.lock() = Some(error);
        let worker = world.worker();
        let all = worker.forget_all(SubvolId::ROOT, || panic!("it does not wait"));
        let ends = [worker.prune(), worker.force(), all];
        assert!(ends.iter().all(Result::is_err), "{error:?}");
        assert_eq!(world.gate.names.load(Ordering::Relaxed), 3, "{error:?}");
        assert!(!world.adapter.pruner.flights.any(|_| true), "a name stays in flight");
        let (counts, live) = (world.fs.names().totals(), world.fs.names().live());
        assert_eq!(live + counts[NameEvent::Dropped], 398, "NAMES-N2: {counts:?}");
        assert!(is_absent(&world.look(b"name-397")) && is_absent(&world.look(b"new")));
        world.end();
    }
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

impl World {
    /// The limit is `limit`, and there are so many names.
    fn fill(&self, limit: u64, names: std::ops::Range<u32>) {
        self.fs.names().set_limit(limit);
        for number in names {
            let name = format!("name-{number}");
            let looked = self.fs.look(FsNode::ROOT, name.as_bytes());
            self.executors.block_on(looked).expect("it is looked up");
        }
    }

    /// The validity of the root directory's attributes for a thread, and the milliseconds for which
    /// the request was held.
    fn attributes(&self, thread: u32) -> (Duration, u64) {
        let delay = || self.fs.names().totals()[NameEvent::DelayUs] / 1000;
        let before = delay();
        let by = Caller { pid: thread, ..BY };
        let answer = self.executors.block_on(self.adapter.getattr(by, ROOT, None));
        (answer.expect("it is there").valid, delay() - before)
    }

    /// A name that a thread adds. No thread is begun that removes one.
    fn owes(&self, thread: u32) {
        self.adapter.pruner.debts.note(thread, SubvolId::ROOT);
    }
}

const HELD: (Duration, u64) = (Duration::ZERO, HOLD as u64);
const NOT_HELD: (Duration, u64) = (Duration::ZERO, 0);

#[test]
fn a_thread_waits_at_the_limit_once_for_each_name_that_it_added() {
    let world = World::new();
    assert!(!world.attributes(1).0.is_zero());
    world.fill(400, 0..396);
    world.owes(1);
    assert_eq!(world.attributes(1), NOT_HELD, "below the limit");
    world.fill(400, 396..440);
    for _ in 0..2 {
        world.owes(1);
        assert_eq!(world.attributes(2), NOT_HELD, "PRUNE-P4: another thread owes that");
        assert_eq!(world.attributes(1), HELD, "PRUNE-P5");
        assert_eq!(world.attributes(1), NOT_HELD, "PRUNE-P4: no new name");
    }
    world.owes(0);
    assert_eq!([world.attributes(0), world.attributes(0)], [HELD, NOT_HELD]);
    world.fs.names().set_limit(10_000);
    assert!(!world.attributes(1).0.is_zero());
    world.end();
}

#[test]
fn look_ups_and_removals_at_the_limit_leave_a_debt_and_a_creation_pays_it() {
    let world = World::new();
    let owes = |by: Caller| world.adapter.pruner.debts.take(by.pid, SubvolId::ROOT);
    let by = Caller { pid: 5, ..BY };
    let new = || NewNode { mode: 0o755, umask: 0, rdev: 0, extensions: Extensions::default() };
    let look = |name: &'static [u8]| {
        let looked = world.executors.block_on(world.adapter.lookup(by, ROOT, name));
        assert!(is_absent(&looked));
    };
    for name in [&b"a"[..], b"b"] {
        world.make(name);
    }
    look(b"below");
    assert!(!owes(by));
    // Threads that remove names wait for the test.
    let (land, ends) = channel();
    *world.gate.ends.lock() = Some(ends);
    world.fill(400, 0..440);
    look(b"new");
    let notified = world.gate.attributes.load(Ordering::Relaxed);
    assert_eq!(notified, 1, "PRUNE-P4: the kernel has no attributes");
    assert!(owes(by) && !owes(by), "PRUNE-P4");
    look(b"new");
    assert!(!owes(by), "the name is not new");
    world.executors.block_on(world.adapter.rmdir(by, ROOT, b"a")).expect("it is removed");
    assert!(owes(by), "PRUNE-P4");
    let rename = Rename { name: b"b", new_parent: ROOT, new_name: b"c", flags: 0 };
    world.executors.block_on(world.adapter.rename(by, ROOT, rename)).expect("it is renamed");
    assert!(owes(by), "PRUNE-P4");
    look(b"made");
    world.executors.block_on(world.adapter.mkdir(by, ROOT, b"made", new())).expect("it is made");
    assert!(!owes(by), "the name exists");
    drop(land);
    world.end();
}

/// PRUNE-P4: each kind of answer that has attributes of a directory.
#[test]
fn attributes_of_a_directory_are_valid_for_no_time_in_each_answer_while_names_are_short() {
    let world = World::new();
    let (adapter, run) = (&world.adapter, &world.executors);
    world.make(b"dir");
    let validities = |made: &[u8]| -> Vec<(&str, Duration)> {
        let time = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let set = run.block_on(adapter.setattr(BY, ROOT, time)).expect("it is set").valid;
        let Ok(Lookup::Found(found)) = world.look(b"dir") else { panic!("it is there") };
        let statx = run.block_on(adapter.statx(BY, ROOT, None)).expect("it is there").valid;
        let got = run.block_on(adapter.getattr(BY, ROOT, None)).expect("it is there").valid;
        let made = world.make(made).attr_valid;
        let node = FsNode::from_raw(found.node.0).expect("it is a node");
        let attr = run.block_on(world.fs.getattr(node)).expect("it is there");
        let entry = copyhold_fs::Entry { node, attr };
        let listed = adapter.named(FsNode::ROOT, b"dir", &entry).attr_valid;
        let looked_up = ("lookup", found.attr_valid);
        let asked = [("getattr", got), ("statx", statx), ("setattr", set)];
        [&asked[..], &[looked_up, ("readdir", listed), ("mkdir", made)]].concat()
    };
    let before = validities(b"one");
    assert!(before.iter().all(|(_, valid)| !valid.is_zero()), "{before:?}");
    world.fill(400, 0..396);
    let short = validities(b"two");
    assert!(short.iter().all(|(_, valid)| valid.is_zero()), "{short:?}");
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
    let begin = flights.all.lock()[0].since;
    let is_stuck = |time| flights.is_stuck_in(FsNode::ROOT, begin + time);
    assert!(!is_stuck(STUCK));
    assert!(is_stuck(2 * STUCK), "PRUNE-P5");
    assert!(!is_stuck(2 * STUCK + LOOK) && is_stuck(2 * STUCK + 2 * LOOK), "PRUNE-P5");
    drop(flight);
    assert!(!is_stuck(4 * STUCK));
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
fn all_names_are_forgotten_although_another_thread_has_picked_some() {
    let world = World::new();
    world.fill(400, 0..10);
    let owner = world.fs.volumes().subvol(SubvolId::ROOT).expect("it is there").owner().clone();
    let names = world.fs.names();
    let mut picked = Some(names.pick_all(&owner, 3));
    let put_back = || picked.take().into_iter().flatten().for_each(|of| names.put_back(&of));
    assert!(world.worker().forget_all(SubvolId::ROOT, put_back).is_ok());
    assert_eq!((names.live(), names.totals()[NameEvent::Dropped]), (0, 10));
    // One that no thread puts back.
    world.fill(400, 0..1);
    let _picked = names.pick_all(&owner, 1);
    let mut waits = 0;
    assert!(world.worker().forget_all(SubvolId::ROOT, || waits += 1).is_ok());
    assert_eq!((names.live(), waits), (1, OTHERS_WAIT));
    world.end();
}

#[test]
fn a_thread_that_panics_or_does_not_begin_leaves_its_place() {
    let taken = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(Event::new());
    let place = || Running::take(&taken, 1).expect("it is free");
    for runs in [false, true] {
        let (place, told) = (place(), Told(done.clone()));
        assert!(Running::take(&taken, 1).is_none());
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
