//! A pool that is served at a mount, from opening it to its end.
//!
//! Order: open the pool (which recovers it), mount, begin to serve. The way back is the other way
//! round: unmounted, by any process, the session finishes the requests in flight and closes the
//! filesystem and the pool.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use copyhold_device::DynDevice;
use copyhold_fs::{Atime, DataCache, Filesystem};
use copyhold_fuse::mount::{Mount, MountOptions};
use copyhold_fuse::protocol::Settings;
use copyhold_fuse::{End, Operations, Session, SessionOptions, Transport};
use copyhold_memory::{Arm, Shares};
use copyhold_pool::{FlushPolicy, Limits, OpenOptions, Pool};
use copyhold_runtime::{Executors, Rt};
use rustix::mount::MountFlags;
use serde_json::Value;

use crate::adapter::{self, Adapter, Rules};
use crate::{NamesLimit, Namespaces, ServeError, budget, describe, tenants};

/// The kernel's read-ahead on a mount.
const READ_AHEAD_KIB: u32 = 1024;

/// The options of a pool and of its one session.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub read_only: bool,
    /// Reads never change times of access.
    pub no_atime: bool,
    /// How old unsynced changes may get, a second at least; `None`: [`Limits::txg_interval`]'s
    /// default.
    pub commit: Option<Duration>,
    /// Discard the part of a damaged log that cannot be read.
    pub cut_tail: bool,
    /// The reads of which clean data is kept in memory.
    pub data_cache: DataCache,
    /// How promises to memory groups count.
    pub reclaim: Arm,
    /// When edits and maps are flushed; `None`: [`FlushPolicy::Even`].
    pub flush: Option<FlushPolicy>,
    /// The time that a recovery may take, which limits the log; `None`: 1.5 million edits.
    pub replay: Option<Duration>,
    /// Each txg writes the space maps that it changed, for comparison.
    pub no_space_log: bool,
    /// How many absent names may be known.
    pub names: NamesLimit,
    /// Threads that read the kernel's requests.
    pub readers: Option<usize>,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// The kernel gathers small writes and sends them when it likes, or at fsync.
    pub writeback_cache: bool,
    /// The time when files were made is not reported.
    pub no_birth_times: bool,
    /// Owners of directories may make, snapshot and delete subvolumes in them.
    pub user_subvolumes: bool,
    /// All users see all subvolumes and groups, and the state of the pool.
    pub public_lists: bool,
    /// The mount namespaces from which the pool is managed.
    pub namespaces: Namespaces,
    /// Files can be opened by their handles.
    pub export: bool,
    /// The kernel judges callers by their ids (`allow_root`).
    pub needs_ids: bool,
    /// Shown by `info` as the options of this mount.
    pub shown: Value,
}

impl Options {
    /// With what the options of a mount say of the pool: `ro`, `noatime`, and `allow_root`.
    pub fn of_mount(self, mount: &MountOptions) -> Options {
        Options {
            read_only: mount.read_only(),
            no_atime: self.no_atime || mount.flags.contains(MountFlags::NOATIME),
            needs_ids: self.needs_ids || mount.allow_root,
            ..self
        }
    }
}

/// An open pool, and the budget of its memory.
pub struct Opened {
    pub filesystem: Arc<Filesystem>,
    shares: Shares,
    path: PathBuf,
}

/// Opens the pool on `device`, which has the name `path`, within a budget.
///
/// # Errors
/// The pool cannot be opened; nothing is left of the attempt.
pub fn open(
    executors: &Arc<Executors>,
    path: &Path,
    device: DynDevice,
    shares: Shares,
    options: &Options,
) -> Result<Opened, ServeError> {
    let read_only = options.read_only;
    let mut limits = Limits { replay: options.replay, ..Limits::default() };
    budget::limit_pool(&shares, options.data_cache, &mut limits);
    let commit = options.commit.map(|age| age.max(Duration::from_secs(1)));
    limits.txg_interval = commit.unwrap_or(limits.txg_interval);
    limits.flush = options.flush.unwrap_or(FlushPolicy::Even);
    limits.space_log = !options.no_space_log;
    let data_cache = options.data_cache;
    let mut settings = copyhold_fs::Options { read_only, data_cache, ..Default::default() };
    budget::limit_files(&shares, options.names, &mut settings);
    settings.writeback_interval = limits.txg_interval;
    if options.no_atime {
        settings.atime = Atime::Never;
    }
    let open = OpenOptions { read_only, cut_tail: options.cut_tail, tenants: true, limits };
    let filesystem = executors.block_on(async {
        let fs = open_filesystem(executors.clone(), device, open, settings).await?;
        fs.pool().memory().set_budget(shares.budget);
        fs.pool().memory().set_arm(options.reclaim);
        if let Some(why) = fs.pool().read_only().filter(|_| !read_only) {
            tracing::warn!("the pool is read-only: {why}");
        }
        Ok::<_, ServeError>(fs)
    })?;
    Ok(Opened { filesystem, shares, path: path.to_owned() })
}

/// Opens a pool and its filesystem. If the pool is open for writing, and quotas are on, they count
/// in all subvolumes from here on: a crash may have come while they were turned on.
pub async fn open_filesystem(
    rt: Rt,
    device: DynDevice,
    open: OpenOptions,
    settings: copyhold_fs::Options,
) -> Result<Arc<Filesystem>, ServeError> {
    let read_only = settings.read_only;
    let pool = Pool::open(rt, device, open).await?;
    let fs = Filesystem::open(pool, settings).await?;
    if !read_only && fs.pool().read_only().is_none() {
        tenants::count_all(&fs).await?;
    }
    Ok(fs)
}

impl Opened {
    /// Writes everything, and closes the pool.
    pub fn close(self, executors: &Executors) -> Result<(), ServeError> {
        executors.block_on(async {
            self.filesystem.close().await?;
            Ok(self.filesystem.pool().close().await?)
        })
    }
}

/// A mounted pool.
pub struct Serving {
    session: Session,
    adapter: Arc<Adapter>,
}

impl Serving {
    /// Serves a pool at a mount. The mount is usable when this returns.
    ///
    /// # Errors
    /// The connection to the kernel cannot be made: the pool is closed.
    pub fn start(
        executors: &Arc<Executors>,
        opened: Opened,
        mount: Mount,
        options: &Options,
    ) -> Result<Serving, ServeError> {
        match Serving::begin(executors, &opened, mount, options) {
            Ok(serving) => Ok(serving),
            Err(error) => {
                opened.close(executors)?;
                Err(error)
            }
        }
    }

    fn begin(
        executors: &Arc<Executors>,
        opened: &Opened,
        mount: Mount,
        options: &Options,
    ) -> Result<Serving, ServeError> {
        let shares = opened.shares;
        copyhold_types::keep_spare(shares.spare() as usize);
        let transport = Arc::new(OnceLock::new());
        let describe = describer(executors, opened, transport.clone(), options.shown.clone());
        let user = rustix::process::geteuid();
        let sees_callers = adapter::sees_callers();
        let rules = Rules {
            mounted_by: (!user.is_root()).then(|| user.as_raw()),
            owners_may: options.user_subvolumes,
            sees_callers,
            public_lists: options.public_lists,
            namespaces: options.namespaces,
        };
        let adapter = Adapter::new(opened.filesystem.clone(), describe, rules);
        let adapter = Arc::new(adapter.telling_births(!options.no_birth_times));
        let mut settings = adapter::settings(options.writeback_cache);
        // These options judge callers by their ids, which the kernel would no longer send.
        let needs_ids = options.needs_ids || options.user_subvolumes;
        settings.idmapped_mounts = user.is_root() && sees_callers && !needs_ids;
        settings.file_handles = options.export;
        budget::limit_kernel(&shares, &mut settings);
        let how = SessionOptions {
            readers: options.readers,
            transport: options.transport,
            memory: shares.request_buffers() as usize,
            waiting: shares.requests as usize,
        };
        let spawner = Arc::new(executors.clone());
        let session = Session::start(mount, adapter.clone(), spawner, &settings, how)?;
        let _ = transport.set(session.transport());
        adapter.notify_through(session.notifier());
        read_ahead(session.mount());
        Ok(Serving { session, adapter })
    }

    pub fn mount(&self) -> &Arc<Mount> {
        self.session.mount()
    }

    /// Waits until it is unmounted and closed.
    ///
    /// # Errors
    /// The connection to the kernel has failed, or closing the pool has: the next opening recovers
    /// all that a sync has returned for.
    pub fn wait(self) -> Result<(), ServeError> {
        match self.session.wait() {
            End::Failed(error) => Err(ServeError::Connection(error)),
            _ => Ok(self.adapter.closed()?),
        }
    }
}

/// Only root may; a mount by other users is slower, not wrong.
fn read_ahead(mount: &Mount) {
    if let Err(error) = mount.set_read_ahead(READ_AHEAD_KIB) {
        tracing::debug!(%error, "read-ahead stays as it is");
    }
}

/// Answers `info` for as long as the pool is mounted.
fn describer(
    executors: &Executors,
    opened: &Opened,
    transport: Arc<OnceLock<String>>,
    options: Value,
) -> adapter::Describe {
    let (weak, pool) = (Arc::downgrade(&opened.filesystem), opened.filesystem.pool().clone());
    let (path, shares) = (opened.path.clone(), opened.shares);
    let io = match executors.refusal() {
        None if executors.has_rings() => "io_uring".to_owned(),
        None => "threads".to_owned(),
        Some(error) => format!("threads, since io_uring is refused: {error}"),
    };
    Box::new(move |is_full| {
        if !is_full {
            return describe::outline(&pool).to_string();
        }
        let mut info = describe::pool(&pool, &path);
        info.shift_insert(1, "pid".into(), std::process::id().into());
        info.shift_insert(2, "io".into(), io.clone().into());
        // Unknown only to a question in the moment when serving begins.
        let transport = transport.get().cloned();
        info.shift_insert(3, "transport".into(), transport.into());
        info.insert("options".into(), options.clone());
        if let Some(fs) = weak.upgrade() {
            info.insert("memory".into(), describe::memory(&fs, &shares));
            info.insert("names".into(), describe::names(&fs));
        }
        Value::Object(info).to_string()
    })
}

/// A filesystem as a mount serves it, without one: answers the kernel's requests, and the questions
/// that come by ioctl(2), for a pool that root has mounted and whose owners of directories may make
/// subvolumes. There are no processes to look up: user 0 is root.
pub fn operations(fs: Arc<Filesystem>) -> impl Operations {
    let described = fs.pool().clone();
    let describe = move |is_full: bool| match is_full {
        true => Value::Object(describe::pool(&described, Path::new("pool"))).to_string(),
        false => describe::outline(&described).to_string(),
    };
    let (sees_callers, namespaces) = (false, Namespaces::Any);
    let (mounted_by, owners_may, public_lists) = (Some(0), true, false);
    let rules = Rules { mounted_by, owners_may, sees_callers, public_lists, namespaces };
    Adapter::new(fs, Box::new(describe), rules)
}

/// The requests of a mount to the kernel, unless its options say otherwise.
pub fn settings() -> Settings {
    adapter::settings(false)
}
