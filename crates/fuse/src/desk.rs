//! The way of a request, by device or ring: it is admitted, polled once, and parked if it must
//! wait.
//!
//! Fast path.  The operation is ready when first polled: its answer has been sent from here, and
//!             its message and its place are used again (see [`crate::place`]). Nothing is
//!             allocated, no thread is woken.
//! Slow path.  It must wait: the future is parked with its message until it can continue (see
//!             [`crate::parking`]), and the next operation gets another place. The answer is sent
//!             by the last poll.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use copyhold_memory::MemoryCharge;
use copyhold_sync::{Condvar, Mutex, of};

use crate::Errno;
use crate::device::Device;
use crate::dispatch::{self, Message};
use crate::interrupt::Interrupts;
use crate::operations::Operations;
use crate::parking::FirstPoll;
use crate::payload::Buffers;
use crate::place::{Places, RequestTask, Tray};
use crate::protocol::{Answer, Dialect, NodeId, Opcode, Request, wire};
use crate::spawn::Spawner;

/// The state that all desks of a connection share.
pub(crate) struct Connection<O> {
    pub(crate) fs: Arc<O>,
    pub(crate) dialect: Dialect,
    pub(crate) spawner: Arc<dyn Spawner>,
    pub(crate) buffers: Buffers,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) waits: Waits,
    /// DESTROY was received.
    pub(crate) destroyed: AtomicBool,
    /// Only this user and root are served (`allow_root`).
    pub(crate) only: Option<u32>,
}

impl<O> Connection<O> {
    pub(crate) fn new(
        fs: Arc<O>,
        dialect: Dialect,
        spawner: Arc<dyn Spawner>,
        buffers: Buffers,
        only: Option<u32>,
    ) -> Arc<Connection<O>> {
        Arc::new(Connection {
            fs,
            dialect,
            spawner,
            buffers,
            interrupts: Arc::default(),
            waits: Waits::default(),
            destroyed: AtomicBool::new(false),
            only,
        })
    }
}

/// One way into the connection: a reader's, or that of a ring's thread.
pub(crate) struct Channel<O> {
    pub(crate) device: Device,
    pub(crate) connection: Arc<Connection<O>>,
    pub(crate) requests: AtomicU64,
}

/// The operations that wait.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    waiting: Mutex<usize, of::Desk>,
    landed: Condvar,
    /// How many ever had to wait.
    pub(crate) parked: AtomicU64,
}

impl Waits {
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

impl<O> Channel<O> {
    pub(crate) fn new(device: Device, connection: &Arc<Connection<O>>) -> Arc<Channel<O>> {
        let requests = AtomicU64::new(0);
        Arc::new(Channel { device, connection: Arc::clone(connection), requests })
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
pub(crate) async fn serve<O: Operations>(channel: Arc<Channel<O>>, tray: Arc<Tray>) -> Infallible {
    let Connection { fs, dialect, interrupts, .. } = &*channel.connection;
    loop {
        let mut message = tray.next().await;
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
    place: RequestTask<F>,
    spare: Arc<Places<F>>,
    first: FirstPoll,
}

impl<O: Operations, F: Future<Output = Infallible> + Send + 'static> Desk<O, F> {
    pub(crate) fn new(channel: Arc<Channel<O>>, serve: Serve<O, F>) -> Desk<O, F> {
        let first = FirstPoll::new(&channel.connection.spawner);
        let place = RequestTask::new(|tray| serve(Arc::clone(&channel), tray));
        Desk { channel, serve, place, spare: Arc::default(), first }
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

    /// With `allow_root`, others may use files opened for them, but nothing else.
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
    /// parked.
    pub(crate) fn poll(&mut self, message: Message) -> Option<Message> {
        let node = NodeId(message.header.nodeid);
        self.place.put(message);
        match self.place.poll(&mut Context::from_waker(&self.first.waker)) {
            Poll::Ready(message) => Some(message),
            Poll::Pending => {
                self.park(node);
                None
            }
        }
    }

    fn park(&mut self, node: NodeId) {
        let next = self.another_place();
        let place = std::mem::replace(&mut self.place, next);
        let first = FirstPoll::new(&self.channel.connection.spawner);
        let first = std::mem::replace(&mut self.first, first);
        self.channel.connection.waits.parked.fetch_add(1, Ordering::Relaxed);
        let held = place.held();
        first.bell.park(Box::pin(self.parked(place, node, held)));
    }

    /// Has the operation that `message` asks for polled on another CPU from the beginning.
    pub(crate) fn hand_over(&self, message: Message) {
        let (place, node) = (self.another_place(), NodeId(message.header.nodeid));
        place.put(message);
        self.channel.connection.spawner.run_elsewhere(Box::pin(self.parked(place, node, 0)));
    }

    fn another_place(&self) -> RequestTask<F> {
        let new = || RequestTask::new(|tray| (self.serve)(Arc::clone(&self.channel), tray));
        self.spare.take().unwrap_or_else(new)
    }

    fn parked(&self, place: RequestTask<F>, node: NodeId, held: usize) -> Parked<O, F> {
        let connection = Arc::clone(&self.channel.connection);
        connection.buffers.lend(held);
        connection.waits.start();
        let charge = connection.fs.charge(node, held + size_of::<F>());
        let spare = Arc::clone(&self.spare);
        Parked { place: Some(place), spare, held, charge, connection }
    }
}

/// An operation that waits, wherever it is polled.
struct Parked<O: Operations, F> {
    /// None when it has been served.
    place: Option<RequestTask<F>>,
    spare: Arc<Places<F>>,
    /// Bytes of a reader's buffer that it took along, and has still.
    held: usize,
    /// Of the memory that it takes.
    charge: Option<MemoryCharge>,
    connection: Arc<Connection<O>>,
}

impl<O: Operations, F: Future<Output = Infallible>> Parked<O, F> {
    /// PAYLOAD-M2: the operation may have taken or released its data.
    fn settle(&mut self) {
        let held = self.place.as_ref().map_or(0, RequestTask::held);
        let less = self.held.saturating_sub(held);
        if less == 0 {
            return;
        }
        self.held = held;
        self.connection.buffers.settle(less);
        if let Some(charge) = &self.charge {
            charge.change(-(less as i64));
        }
    }
}

impl<O: Operations, F: Future<Output = Infallible>> Future for Parked<O, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let served = self.place.as_mut().is_none_or(|place| place.poll(cx).is_ready());
        if !served {
            self.settle();
            return Poll::Pending;
        }
        if let Some(place) = self.place.take() {
            self.spare.give_back(place);
        }
        Poll::Ready(())
    }
}

impl<O: Operations, F> Drop for Parked<O, F> {
    fn drop(&mut self) {
        // The operation ends before it counts as landed.
        self.place = None;
        self.connection.buffers.settle(self.held);
        self.connection.waits.land();
    }
}

/// For threads that poll operations: the caller of one that panicked would wait in vain.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
