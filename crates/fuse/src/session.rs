//! A mounted filesystem being served: INIT, the readers, and an orderly end.
//!
//! Start.  The first request is INIT. Once it is answered the mount can be used; then each reader
//!         gets a clone of the device and a thread.
//! End.    Unmounting (by us or anybody) or aborting makes every read of the device fail: the
//!         readers leave, what waits is finished, `destroy` is called unless the kernel asked for
//!         it itself. Only then does [`Session::wait`] return.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use thiserror::Error;

use crate::Errno;
use crate::device::{Device, End, Got};
use crate::mount::{Mount, MountError};
use crate::operations::Operations;
use crate::payload::Buffers;
use crate::protocol::{
    Answer, InitAnswer, Negotiated, NodeId, Notification, Request, Settings, parse_prefix, wire,
};
use crate::reader::{self, Channel, Connection, Flight};
use crate::spawn::Spawner;

/// Why a mounted filesystem could not be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    #[error(
        "the kernel's FUSE protocol {major}.{minor} is older than 7.31; Linux 5.4 or newer is needed"
    )]
    TooOld { major: u32, minor: u32 },
    #[error("the mount was gone before it could be served")]
    Gone,
    #[error("reading from /dev/fuse failed; is another program using the same descriptor?")]
    Device(#[source] io::Error),
    #[error("the kernel's first message is not INIT: {reason}")]
    NoInit { reason: String },
    #[error("a thread for the mount could not be started; raise the limit on processes")]
    Thread(#[source] io::Error),
}

/// How many requests were served, and how many of them had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u64,
    pub parked: u64,
}

/// Reads the counters of a session, also when it is over.
pub type CountersFn = Arc<dyn Fn() -> Counters + Send + Sync>;

/// A filesystem being served. Dropping it leaves the mount alone; see [`Session::wait`].
pub struct Session {
    mount: Arc<Mount>,
    notifier: Notifier,
    negotiated: Negotiated,
    readers: Vec<JoinHandle<End>>,
    counters: CountersFn,
    finish: Box<dyn FnOnce() + Send>,
}

/// Two readers for each CPU, so that one may be in a copy while the other reads; 16 at most.
fn usual_readers() -> usize {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (cpus * 2).clamp(2, 16)
}

impl Session {
    /// Serves `mount` with `fs`; operations that wait go to `spawner`. Returns when the mount can
    /// be used. `readers`: threads, or `None` for what suits this machine. After an error the mount
    /// is gone.
    pub fn start<O: Operations>(
        mount: Mount,
        fs: Arc<O>,
        spawner: Arc<dyn Spawner>,
        settings: &Settings,
        readers: Option<usize>,
    ) -> Result<Session, SessionError> {
        let mount = Arc::new(mount);
        let readers = readers.unwrap_or_else(usual_readers).max(1);
        let session = Session::begin(&mount, fs, spawner, settings, readers);
        if session.is_err() {
            mount.detach();
        }
        session
    }

    fn begin<O: Operations>(
        mount: &Arc<Mount>,
        fs: Arc<O>,
        spawner: Arc<dyn Spawner>,
        settings: &Settings,
        readers: usize,
    ) -> Result<Session, SessionError> {
        let first = mount.device().map_err(SessionError::Device)?;
        let negotiated = shake_hands(&first, settings)?;
        fs.init(&negotiated);
        let connection = Arc::new(Connection {
            fs,
            dialect: negotiated.dialect(),
            spawner,
            buffers: Buffers::new(buffer_bytes(negotiated.max_write), readers * 2),
            interrupts: Arc::default(),
            flight: Flight::default(),
            destroyed: AtomicBool::new(false),
            only: mount.only_owner(),
        });
        let mut channels = Vec::new();
        for _ in 0..readers {
            // Old or restricted kernels refuse to clone; sharing the descriptor works, too.
            let device = first.clone_device().or_else(|_| first.duplicate());
            channels.push(Arc::new(Channel {
                device: device.map_err(SessionError::Device)?,
                connection: Arc::clone(&connection),
                requests: AtomicU64::new(0),
            }));
        }
        let threads: io::Result<Vec<_>> = channels
            .iter()
            .enumerate()
            .map(|(number, channel)| start_reader(number, Arc::clone(channel)))
            .collect();
        let counted = Arc::clone(&connection);
        let counters = move || Counters {
            requests: channels.iter().map(|one| one.requests.load(Ordering::Relaxed)).sum(),
            parked: counted.flight.parked.load(Ordering::Relaxed),
        };
        Ok(Session {
            mount: Arc::clone(mount),
            notifier: Notifier { device: Arc::new(first) },
            negotiated,
            readers: threads.map_err(SessionError::Thread)?,
            counters: Arc::new(counters),
            finish: Box::new(move || finish(&connection)),
        })
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// For telling the kernel what changed behind its back.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    pub fn counters(&self) -> CountersFn {
        Arc::clone(&self.counters)
    }

    /// Asks the kernel to unmount; `wait` then returns. EBUSY while files are open or somebody's
    /// working directory is there.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.mount.unmount()
    }

    /// Blocks until the filesystem is unmounted or aborted, everything in flight is finished and
    /// `destroy` is done. A dead mount point (after an abort) is removed.
    pub fn wait(self) -> End {
        let ends: Vec<End> =
            self.readers.into_iter().map(|reader| reader.join().unwrap_or(End::Aborted)).collect();
        // Before the rest is finished: a new mount at the same place must not be mistaken for ours.
        let was_left = self.mount.end();
        (self.finish)();
        let aborted = was_left
            || self.mount.was_aborted()
            || ends.iter().any(|end| matches!(end, End::Aborted));
        let failed = ends.into_iter().find(|end| matches!(end, End::Failed(_)));
        failed.unwrap_or(if aborted { End::Aborted } else { End::Unmounted })
    }
}

fn start_reader<O: Operations>(
    number: usize,
    channel: Arc<Channel<O>>,
) -> io::Result<JoinHandle<End>> {
    thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
        // A request whose operation panicked would never be answered, and its caller never freed.
        let _guard = AbortOnPanic;
        reader::run(channel)
    })
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// After the last reader: nothing new can come.
fn finish<O: Operations>(connection: &Arc<Connection<O>>) {
    // Callers who waited for a lock have been told; nobody else ends that wait.
    connection.interrupts.end();
    connection.flight.drain();
    if connection.destroyed.swap(true, Ordering::AcqRel) {
        return;
    }
    // On the executors, where it may do I/O like any operation.
    let ending = Arc::clone(connection);
    connection.flight.start();
    connection.spawner.run(Box::pin(async move {
        ending.fs.destroy().await;
        ending.flight.land();
    }));
    connection.flight.drain();
}

/// The kernel wants room for the largest WRITE, and never less than 8 KiB.
fn buffer_bytes(max_write: u32) -> usize {
    wire::MIN_READ_BUFFER.max(max_write as usize)
}

/// Answers INIT.
fn shake_hands(device: &Device, settings: &Settings) -> Result<Negotiated, SessionError> {
    let mut head = [0; wire::WRITE_PREFIX];
    let mut rest = vec![0; buffer_bytes(settings.max_write)];
    loop {
        let len = match device.read(&mut head, &mut rest) {
            Got::Request(len) => len,
            Got::Again => continue,
            Got::Ended(End::Failed(error)) => return Err(SessionError::Device(error)),
            Got::Ended(_) => return Err(SessionError::Gone),
        };
        let no_init =
            |reason: &dyn std::fmt::Display| SessionError::NoInit { reason: reason.to_string() };
        let header = parse_prefix(&head, len).map_err(|error| no_init(&error))?;
        let message = [&head[..], &rest].concat();
        let args = &message[size_of::<wire::InHeader>()..len];
        let request = Request::parse(&header, args, Default::default());
        let init = match request.map_err(|error| no_init(&error))? {
            Request::Init(init) => init,
            _ => return Err(no_init(&format!("operation {}", header.opcode))),
        };
        match settings.answer(&init) {
            InitAnswer::Agreed(out, negotiated) => {
                device.reply(header.unique, &Answer::init(&out));
                return Ok(negotiated);
            }
            InitAnswer::TryOlder(out) => device.reply(header.unique, &Answer::init(&out)),
            InitAnswer::TooOld => {
                device.reply(header.unique, &Answer::error(Errno::EPROTO));
                return Err(SessionError::TooOld { major: init.major, minor: init.minor });
            }
        }
    }
}

/// Tells the kernel what it should no longer believe.
///
/// These calls wait for locks of the kernel that an operation in progress may hold: they must not
/// be made by an operation on the same directory or file before it has answered, nor by a thread
/// that other operations need.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Arc<Device>,
}

impl Notifier {
    /// Sends `notification`. `false`: the kernel had nothing that it would concern.
    pub fn notify(&self, notification: &Notification<'_>) -> Result<bool, Errno> {
        match self.device.notify(notification) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Drops the name, positive or negative.
    pub fn forget_entry(&self, parent: NodeId, name: &[u8]) -> Result<bool, Errno> {
        self.notify(&Notification::InvalEntry { parent, name, expire: false })
    }

    /// Drops the attributes alone. Waits for no lock.
    pub fn forget_attributes(&self, node: NodeId) -> Result<bool, Errno> {
        self.notify(&Notification::InvalInode { node, offset: -1, len: 0 })
    }

    /// Drops the attributes and all cached data.
    pub fn forget_inode(&self, node: NodeId) -> Result<bool, Errno> {
        self.notify(&Notification::InvalInode { node, offset: 0, len: 0 })
    }
}
