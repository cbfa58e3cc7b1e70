//! A mounted filesystem being served: INIT, the readers, and an orderly end.
//!
//! Start.  The first request is INIT. Once it is answered the mount can be used; then each reader
//!         gets a clone of the device and a thread. With a ring its threads come first and take
//!         the requests, and one reader is left.
//! End.    Unmounting (by any process) or aborting makes every read of the device fail: the
//!         readers end, waiting operations are finished, `destroy` is called unless the kernel
//!         requested it itself. Only then does [`Session::wait`] return.

use std::fmt::Debug;
use std::io;
use std::iter;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use thiserror::Error;

use crate::Errno;
use crate::backlog::Backlog;
use crate::desk::{AbortOnPanic, Channel, Connection};
use crate::device::{Device, End, Got};
use crate::mount::{Mount, MountError};
use crate::operations::Operations;
use crate::payload::Buffers;
use crate::protocol::{
    Answer, InitAnswer, Negotiated, NodeId, Notification, PRUNE_MAX, Request, Settings,
    parse_prefix, wire,
};
use crate::reader;
use crate::spawn::Spawner;
use crate::transport::Transport;
use crate::uring::Rings;

/// Why a mounted filesystem could not be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    #[error(
        "the kernel's FUSE protocol {major}.{minor} is older than 7.31; Linux 5.4 or newer is needed"
    )]
    TooOld { major: u32, minor: u32 },
    #[error("the mount was removed before the daemon could serve it")]
    Gone,
    #[error("reading from /dev/fuse failed; is another program using the same descriptor?")]
    Device(#[source] io::Error),
    #[error("too few file descriptors (limit {limit}); raise `ulimit -n`")]
    Descriptors { limit: u64 },
    #[error("the kernel's first message is not INIT: {reason}")]
    NoInit { reason: String },
    #[error("a thread for the mount could not be started; raise the limit on processes")]
    Thread(#[source] io::Error),
    #[error(
        "FUSE over io_uring is not available: {reason}; enable it as root with `echo Y > \
         /sys/module/fuse/parameters/enable_uring` (Linux 6.14 or newer), or mount with \
         transport=auto"
    )]
    NoRing { reason: String },
}

impl SessionError {
    fn device(error: io::Error) -> SessionError {
        match error.raw_os_error() {
            Some(libc::EMFILE) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                SessionError::Descriptors { limit: limit.current.unwrap_or(u64::MAX) }
            }
            _ => SessionError::Device(error),
        }
    }
}

/// How many requests were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u64,
    /// Of these: operations that had to wait.
    pub parked: u64,
    /// Requests that readers moved from the kernel's queue into memory before they served them.
    pub drained: u64,
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
    transport: InUse,
    finish: Box<dyn FnOnce() + Send>,
}

/// The chosen transport.
struct InUse {
    ring: bool,
    /// Why there is no ring although it was tried.
    refusal: Option<String>,
}

/// How to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Threads that read the device, or a number that suits this machine. A ring needs one.
    pub readers: Option<usize>,
    pub transport: Transport,
    /// Bytes of buffers for requests. Beyond them there are only those of writes that wait, each in
    /// one of its own size.
    pub memory: usize,
    /// Bytes of data of writes that wait, beyond which the readers of the device pause.
    pub waiting: usize,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            readers: None,
            transport: Transport::default(),
            memory: 64 << 20,
            waiting: 256 << 20,
        }
    }
}

/// Two readers for each CPU, so that one may be in a copy while the other reads; 16 at most.
fn usual_readers() -> usize {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (cpus * 2).clamp(2, 16)
}

impl Session {
    /// Serves `mount` with `fs`; operations that wait go to `spawner`. Returns when the mount can
    /// be used. After an error the mount is gone.
    pub fn start<O: Operations>(
        mount: Mount,
        fs: Arc<O>,
        spawner: Arc<dyn Spawner>,
        settings: &Settings,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let mount = Arc::new(mount);
        let prepare: Prepare<O> = Rings::prepare;
        let rings = options.transport.tries_ring().then_some(prepare);
        let session = Session::begin(&mount, fs, spawner, settings, options, rings);
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
        options: SessionOptions,
        prepare: Option<Prepare<O>>,
    ) -> Result<Session, SessionError> {
        let first = mount.device().map_err(SessionError::device)?;
        // Before a ring takes descriptors: without a reader there is no session.
        let reader = first.another().map_err(SessionError::device)?;
        let Agreed { negotiated, mut rings, refusal } =
            shake_hands(&first, settings, options.memory, prepare)?;
        fs.init(&negotiated);
        let readers = options.readers.unwrap_or_else(usual_readers).max(1);
        let buffers =
            Buffers::new(buffer_bytes(negotiated.max_write), options.memory, options.waiting);
        let only = mount.only_owner();
        let connection = Connection::new(fs, negotiated.dialect(), spawner, buffers, only);
        let mut channels = Vec::new();
        let mut transport = InUse { ring: rings.is_some(), refusal };
        if let Some(rings) = &mut rings {
            channels = rings
                .take_devices()
                .into_iter()
                .map(|one| Channel::new(one, &connection))
                .collect();
            if let Err(error) = rings.register(channels.clone()) {
                transport = InUse { ring: false, refusal: Some(error.to_string()) };
            }
        }
        if options.transport == Transport::Uring && !transport.ring {
            return Err(SessionError::NoRing { reason: transport.refusal.unwrap_or_default() });
        }
        let is_ring = transport.ring;
        let readers = if is_ring { 1 } else { readers };
        let backlog = if is_ring { None } else { backlog(&first, &connection, options.waiting) };
        // Where descriptors run out, fewer readers do.
        let more = (1..readers).map_while(|_| first.another().ok());
        let read = iter::once(reader).chain(more).map(|one| Channel::new(one, &connection));
        let read: Vec<_> = read.collect();
        channels.extend(read.iter().map(Arc::clone));
        channels.extend(backlog.iter().map(|one| Arc::clone(one.channel())));
        let drained = backlog.clone();
        let start = |(number, one)| {
            let backlog = backlog.clone();
            let read = move || match is_ring {
                true => reader::of_forgets(one),
                false => reader::run(one, backlog),
            };
            start_reader(number, read)
        };
        let threads: io::Result<Vec<_>> = read.into_iter().enumerate().map(start).collect();
        let counted = Arc::clone(&connection);
        let counters = move || Counters {
            requests: channels.iter().map(|one| one.requests.load(Ordering::Relaxed)).sum(),
            parked: counted.waits.parked.load(Ordering::Relaxed),
            drained: drained.as_ref().map_or(0, |backlog| backlog.drained()),
        };
        let end = move || {
            if let Some(rings) = rings {
                rings.end();
            }
            finish(&connection);
        };
        Ok(Session {
            mount: Arc::clone(mount),
            notifier: Notifier::to(Arc::new(first)),
            negotiated,
            readers: threads.map_err(SessionError::Thread)?,
            counters: Arc::new(counters),
            transport,
            finish: Box::new(end),
        })
    }

    /// How requests come, in words.
    pub fn transport(&self) -> String {
        match &self.transport {
            InUse { ring: true, .. } => "io_uring".to_owned(),
            InUse { refusal: None, .. } => "/dev/fuse".to_owned(),
            InUse { refusal: Some(reason), .. } => {
                format!("/dev/fuse, since the ring is refused: {reason}")
            }
        }
    }

    /// The terms agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// For notifying the kernel of changes behind its back.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    pub fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    pub fn counters(&self) -> CountersFn {
        Arc::clone(&self.counters)
    }

    /// Asks the kernel to unmount; `wait` then returns. EBUSY while files are open or a
    /// process has its working directory there.
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

/// The part of the memory of waiting requests that a backlog may have: 1/4.
const BACKLOG_PART: usize = 4;

/// The backlog of readers; none where the kernel gives no descriptor for it.
fn backlog<O: Operations>(
    device: &Device,
    connection: &Arc<Connection<O>>,
    waiting: usize,
) -> Option<Arc<Backlog<O>>> {
    let device = match device.without_waiting() {
        Ok(device) => device,
        Err(error) => {
            tracing::warn!(%error, "requests are served in the order of arrival, not by tenant");
            return None;
        }
    };
    Some(Arc::new(Backlog::new(Channel::new(device, connection), waiting / BACKLOG_PART)))
}

fn start_reader(
    number: usize,
    read: impl FnOnce() -> End + Send + 'static,
) -> io::Result<JoinHandle<End>> {
    thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
        // A request whose operation panicked would never be answered, and its caller never freed.
        let _guard = AbortOnPanic;
        read()
    })
}

/// After the last reader: nothing new can come.
fn finish<O: Operations>(connection: &Arc<Connection<O>>) {
    // Callers that waited for a lock have their answer; nothing else ends that wait.
    connection.interrupts.end();
    connection.waits.drain();
    if connection.destroyed.swap(true, Ordering::AcqRel) {
        return;
    }
    // On the executors, where it may do I/O like any operation.
    let ending = Arc::clone(connection);
    connection.waits.start();
    connection.spawner.run(Box::pin(async move {
        ending.fs.destroy().await;
        ending.waits.land();
    }));
    connection.waits.drain();
}

/// The kernel wants room for the largest WRITE, and never less than 8 KiB.
pub(crate) fn buffer_bytes(max_write: u32) -> usize {
    wire::MIN_READ_BUFFER.max(max_write as usize)
}

/// Makes rings of so many bytes for a connection that is about to be agreed, with this `max_write`.
pub(crate) type Prepare<O> = fn(&Device, u32, usize) -> io::Result<Rings<O>>;

/// The result of INIT.
pub(crate) struct Agreed<O> {
    pub(crate) negotiated: Negotiated,
    rings: Option<Rings<O>>,
    /// Why there are none, if they were tried.
    refusal: Option<String>,
}

/// Answers INIT. Rings are made before, so that the kernel is promised no ring that fails.
pub(crate) fn shake_hands<O: Operations>(
    device: &Device,
    settings: &Settings,
    memory: usize,
    prepare: Option<Prepare<O>>,
) -> Result<Agreed<O>, SessionError> {
    let mut head = [0; wire::WRITE_PREFIX];
    let mut rest = vec![0; buffer_bytes(settings.max_write)];
    loop {
        let len = match device.read(&mut head, &mut rest) {
            Got::Request(len) => len,
            Got::Again => continue,
            Got::Ended(End::Failed(error)) => return Err(SessionError::device(error)),
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
        let mut answer = settings.answer(&init);
        let (mut rings, mut refusal) = (None, None);
        if let (Some(prepare), InitAnswer::Agreed(..)) = (prepare, &answer) {
            let with_ring = Settings { over_io_uring: true, ..*settings }.answer(&init);
            match with_ring {
                InitAnswer::Agreed(_, agreed) if agreed.over_io_uring() => {
                    match prepare(device, agreed.max_write, memory) {
                        Ok(prepared) => (answer, rings) = (with_ring, Some(prepared)),
                        Err(error) => refusal = Some(error.to_string()),
                    }
                }
                _ => refusal = Some("the kernel does not offer it".to_owned()),
            }
        }
        match answer {
            InitAnswer::Agreed(out, negotiated) => {
                device.reply(header.unique, &Answer::init(&out));
                return Ok(Agreed { negotiated, rings, refusal });
            }
            InitAnswer::TryOlder(out) => device.reply(header.unique, &Answer::init(&out)),
            InitAnswer::TooOld => {
                device.reply(header.unique, &Answer::error(Errno::EPROTO));
                return Err(SessionError::TooOld { major: init.major, minor: init.minor });
            }
        }
    }
}

/// Notifies the kernel of cached state that is no longer valid.
///
/// These calls wait for locks of the kernel that an operation in progress may hold: they must not
/// be made by an operation on the same directory or file before it has answered, nor by a thread
/// that other operations need.
#[derive(Clone, Debug)]
pub struct Notifier {
    kernel: Arc<dyn Listener>,
}

/// A kernel that notifications reach: that of this machine, or the one of a test.
pub trait Listener: Debug + Send + Sync {
    /// ENOENT when the kernel has nothing cached that it would concern.
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno>;
}

impl Listener for Device {
    fn hear(&self, notification: &Notification<'_>) -> Result<(), Errno> {
        self.notify(notification)
    }
}

impl Notifier {
    pub fn to(kernel: Arc<dyn Listener>) -> Notifier {
        Notifier { kernel }
    }

    /// Sends `notification`. `false`: the kernel had nothing that it would concern.
    pub fn notify(&self, notification: &Notification<'_>) -> Result<bool, Errno> {
        match self.kernel.hear(notification) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Drops the name, positive or negative.
    pub fn forget_entry(&self, parent: NodeId, name: &[u8]) -> Result<bool, Errno> {
        self.notify(&Notification::InvalEntry { parent, name, expire: false })
    }

    /// Has the kernel release look-ups of `nodes` that it does not use: FORGETs come for them.
    /// `false`: it does not know how (before Linux 6.18).
    pub fn prune(&self, nodes: &[NodeId]) -> Result<bool, Errno> {
        for nodes in nodes.chunks(PRUNE_MAX) {
            match self.notify(&Notification::Prune { nodes }) {
                Ok(_) => {}
                Err(Errno::EINVAL) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Drops the attributes alone. Waits for no lock.
    pub fn forget_attributes(&self, node: NodeId) -> Result<bool, Errno> {
        self.notify(&Notification::InvalInode { node, offset: -1, len: 0 })
    }

    /// Drops the attributes, and the cached data of `range`, behind which dirty pages of it were
    /// written back. Waits for pages that are being read or written.
    pub fn forget_data(&self, node: NodeId, range: Range<u64>) -> Result<bool, Errno> {
        let Ok(offset) = i64::try_from(range.start) else { return Ok(false) };
        // No length is up to the end.
        let len = i64::try_from(range.end).map_or(0, |end| end - offset);
        self.notify(&Notification::InvalInode { node, offset, len })
    }

    /// Drops the attributes and all cached data.
    pub fn forget_inode(&self, node: NodeId) -> Result<bool, Errno> {
        self.notify(&Notification::InvalInode { node, offset: 0, len: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::mount::MountOptions;
    use crate::spawn::ThreadPerTask;
    use crate::stub::StubFs;
    use crate::uring::plan_too_many_queues;

    /// A mount whose kernel is offered a ring with one queue more than it has.
    fn begin(dir: &tempfile::TempDir, transport: Transport) -> Result<Session, SessionError> {
        let mount = Mount::new("stub".as_ref(), dir.path(), &MountOptions::default()).unwrap();
        let fs = Arc::new(StubFs::new());
        let prepare: Prepare<StubFs> =
            |device, max_write, _| Rings::start(device, plan_too_many_queues(max_write)?);
        let options = SessionOptions { transport, ..SessionOptions::default() };
        let (mount, settings) = (Arc::new(mount), Settings::default());
        let spawner = Arc::new(ThreadPerTask);
        let begun = Session::begin(&mount, fs, spawner, &settings, options, Some(prepare));
        if begun.is_err() {
            mount.detach();
        }
        begun
    }

    #[test]
    fn too_few_descriptors_are_told_with_their_limit() {
        let error = SessionError::device(io::Error::from_raw_os_error(libc::EMFILE));
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
        let says = format!("too few file descriptors (limit {limit}); raise `ulimit -n`");
        assert_eq!(error.to_string(), says);
        let error = SessionError::device(io::Error::from_raw_os_error(libc::EIO));
        assert!(matches!(error, SessionError::Device(_)), "{error}");
    }

    fn can_mount() -> bool {
        let enabled = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        let possible = rustix::process::geteuid().is_root()
            && Device::open().is_ok()
            && enabled.is_ok_and(|text| text.starts_with('Y'));
        if !possible {
            println!("left out: needs root, /dev/fuse, and FUSE over io_uring");
        }
        possible
    }

    #[test]
    fn a_ring_that_the_kernel_takes_in_part_is_done_without() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::TempDir::new().unwrap();
        let session = begin(&dir, Transport::Auto).unwrap();
        assert!(session.transport().starts_with("/dev/fuse, since"), "{}", session.transport());
        fs::write(dir.path().join("file"), [5; 300_000]).unwrap();
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), [5; 300_000]);
        session.unmount().unwrap();
        assert!(matches!(session.wait(), End::Unmounted));
    }

    #[test]
    fn a_ring_that_is_demanded_and_refused_is_an_error_and_no_mount_is_left() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::TempDir::new().unwrap();
        let error = begin(&dir, Transport::Uring).err().expect("it is refused");
        assert!(matches!(error, SessionError::NoRing { .. }), "{error}");
        assert!(crate::mount::mounted_at(dir.path()).unwrap().is_none());
    }
}
