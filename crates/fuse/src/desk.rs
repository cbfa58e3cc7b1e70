//! What becomes of a request, whichever way it came: it is admitted, polled once, and parked if it
//! must wait.
//!
//! Fast path.  The operation is ready when first polled: its answer has been sent from here, and
//!             its message and its place are used again (see [`crate::tray`]). Nothing is
//!             allocated, nobody is woken.
//! Slow path.  It must wait: the future is parked with its message until it can go on (see
//!             [`crate::parking`]), and the next operation gets a new place. The answer is sent by
//!             whoever polls it last.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::{Condvar, Mutex};

use crate::Errno;
use crate::device::Device;
use crate::dispatch::{self, Message};
use crate::interrupt::Interrupts;
use crate::operations::Operations;
use crate::parking::FirstPoll;
use crate::payload::Buffers;
use crate::protocol::{Answer, Dialect, NodeId, Opcode, Request, wire};
use crate::spawn::Spawner;
use crate::tray::Tray;

/// What all desks of a connection share.
pub(crate) struct Connection<O> {
    pub(crate) fs: Arc<O>,
    pub(crate) dialect: Dialect,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) buffers: Buffers,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) flight: Flight,
    /// DESTROY was received.
    pub(crate) destroyed: AtomicBool,
    /// Only this user and root are served (`allow_root`).
    pub(crate) only: Option<u32>,
}

/// One way into the connection: a reader's, or that of a ring's thread.
pub(crate) struct Channel<O> {
    pub(crate) device: Device,
    pub(crate) connection: Arc<Connection<O>>,
    pub(crate) requests: AtomicU64,
}

/// The operations that wait.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    waiting: Mutex<usize>,
    landed: Condvar,
    /// How many ever had to wait.
    pub(crate) parked: AtomicU64,
}

impl Flight {
    pub(crate) fn start(&self) {
        *self.waiting.lock() += 1;
    }

    pub(crate) fn land(&self) {
        let mut waiting = self.waiting.lock();
        *waiting -= 1;
        if *waiting == 0 {
            self.landed.notify_all();
        }
    }

    /// Blocks until no operation waits.
    pub(crate) fn drain(&self) {
        let mut waiting = self.waiting.lock();
        while *waiting > 0 {
            self.landed.wait(&mut waiting);
        }
    }
}

impl<O: Operations> Channel<O> {
    /// Sends `answer` the way that `message` came.
    fn reply(&self, message: &mut Message, answer: &Answer) {
        match message.take_lease() {
            Some(lease) => lease.answer(message.header.unique, answer),
            None => self.device.reply(message.header.unique, answer),
        }
    }
}

/// Serves the requests of `tray`, each from its message to its answer.
pub(crate) async fn serve<O: Operations>(channel: Arc<Channel<O>>, tray: Arc<Tray>) {
    let Connection { fs, dialect, interrupts, .. } = &*channel.connection;
    while let Some(mut message) = tray.next().await {
        let answer = dispatch::answer(&**fs, &mut message, *dialect, interrupts).await;
        channel.reply(&mut message, &answer);
        tray.give_back(message);
    }
}

/// How [`serve`] is begun; it names the type of its future.
pub(crate) type Serve<O, F> = fn(Arc<Channel<O>>, Arc<Tray>) -> F;

/// Where the requests of one thread are dealt with.
pub(crate) struct Desk<O, F> {
    channel: Arc<Channel<O>>,
    serve: Serve<O, F>,
    tray: Arc<Tray>,
    /// What serves the tray.
    place: Pin<Box<F>>,
    first: FirstPoll,
}

impl<O: Operations, F: Future<Output = ()> + Send + 'static> Desk<O, F> {
    pub(crate) fn new(channel: Arc<Channel<O>>, serve: Serve<O, F>) -> Desk<O, F> {
        let first = FirstPoll::new(&channel.connection.spawner);
        let tray = Arc::<Tray>::default();
        let place = Box::pin(serve(Arc::clone(&channel), Arc::clone(&tray)));
        Desk { channel, serve, tray, place, first }
    }

    pub(crate) fn channel(&self) -> &Arc<Channel<O>> {
        &self.channel
    }

    /// Whether `message` is an operation to be polled. If not, it has been dealt with.
    pub(crate) fn admits(&self, message: &mut Message) -> bool {
        self.channel.requests.fetch_add(1, Ordering::Relaxed);
        let opcode = Opcode::new(message.header.opcode);
        if !self.may_ask(&message.header, opcode) {
            self.channel.reply(message, &Answer::error(Errno::EACCES));
            return false;
        }
        match opcode {
            Some(opcode) if !opcode.expects_reply() => {
                self.hear(message);
                false
            }
            Some(Opcode::Destroy) => {
                self.channel.connection.destroyed.store(true, Ordering::Release);
                true
            }
            _ => true,
        }
    }

    /// With `allow_root`, others may use what was opened for them, but nothing else.
    fn may_ask(&self, header: &wire::InHeader, opcode: Option<Opcode>) -> bool {
        let harmless = opcode.is_some_and(|opcode| {
            matches!(
                opcode,
                Opcode::Read
                    | Opcode::Write
                    | Opcode::Fsync
                    | Opcode::Flush
                    | Opcode::Release
                    | Opcode::Readdir
                    | Opcode::Readdirplus
                    | Opcode::Fsyncdir
                    | Opcode::Releasedir
                    | Opcode::Destroy
                    | Opcode::Syncfs
            ) || !opcode.expects_reply()
        });
        match self.channel.connection.only {
            Some(owner) => harmless || header.uid == owner || header.uid == 0,
            None => true,
        }
    }

    /// A message that expects no answer.
    fn hear(&self, message: &Message) {
        let connection = &self.channel.connection;
        match Request::parse(&message.header, &message.args, connection.dialect) {
            Ok(Request::Forget { lookups }) => {
                connection.fs.forget(NodeId(message.header.nodeid), lookups);
            }
            Ok(Request::BatchForget(list)) => {
                list.into_iter().for_each(|one| connection.fs.forget(one.node, one.lookups));
            }
            Ok(Request::Interrupt { unique }) => connection.interrupts.interrupt(unique),
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "the kernel's message is not understood"),
        }
    }

    /// Polls the operation that `message` asks for, once: the message if it is done, else it is
    /// parked. `held`: bytes of a reader's buffer that it takes along then.
    pub(crate) fn poll(&mut self, message: Message, held: usize) -> Option<Message> {
        self.tray.put(message);
        let context = &mut Context::from_waker(&self.first.waker);
        assert!(self.place.as_mut().poll(context).is_pending(), "it serves until it is parked");
        let done = self.tray.take_or_clear();
        if done.is_none() {
            self.park(held);
        }
        done
    }

    fn park(&mut self, held: usize) {
        let connection = &self.channel.connection;
        connection.buffers.lend(held);
        connection.flight.start();
        connection.flight.parked.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::clone(connection);
        let next = Desk::new(Arc::clone(&self.channel), self.serve);
        let Desk { place, first, .. } = std::mem::replace(self, next);
        first.bell.park(Box::pin(Parked { place: Some(place), held, connection }));
    }

    /// Has the operation that `message` asks for polled on another CPU from the beginning.
    pub(crate) fn hand_over(&self, message: Message) {
        let connection = Arc::clone(&self.channel.connection);
        connection.flight.start();
        let spawner = Arc::clone(&connection.spawner);
        let operation = (self.serve)(Arc::clone(&self.channel), Arc::new(Tray::of(message)));
        let place = Some(Box::pin(operation));
        spawner.run_elsewhere(Box::pin(Parked { place, held: 0, connection }));
    }
}

/// An operation that waits, wherever it is polled.
struct Parked<O: Operations, F> {
    place: Option<Pin<Box<F>>>,
    /// Bytes of a reader's buffer that it took along.
    held: usize,
    connection: Arc<Connection<O>>,
}

impl<O: Operations, F: Future<Output = ()>> Future for Parked<O, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.place.as_mut().map_or(Poll::Ready(()), |place| place.as_mut().poll(cx))
    }
}

impl<O: Operations, F> Drop for Parked<O, F> {
    fn drop(&mut self) {
        // The operation ends before it counts as landed.
        self.place = None;
        self.connection.buffers.settle(self.held);
        self.connection.flight.land();
    }
}

/// For threads that poll operations: nobody would wait for the answer of one that panicked in vain.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
