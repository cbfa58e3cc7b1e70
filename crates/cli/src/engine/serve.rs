//! Serving a mounted pool, from opening it to its end.
//!
//! Order: watch for signals (before any thread), start the executors, open the pool (which recovers
//! it), mount, begin to serve. The way back is the other way round: unmounted, by whomever, the
//! session finishes what is in flight and closes the filesystem and the pool; then the process ends
//! and lets go of the lock.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use copyhold_device::OpenMode;
use copyhold_fs::{Atime, Filesystem};
use copyhold_fuse::mount::{DetachedMount, Mount};
use copyhold_fuse::{End, Session, SessionOptions, Signals};
use copyhold_pool::{Limits, OpenOptions, Pool};
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use super::memory::Shares;
use super::{Machine, describe, patiently, tenants};
use crate::adapter::{self, Adapter, Rules};
use crate::failure::Failure;
use crate::mount::Request;
use crate::mount_again;
use crate::mount_options::{EngineOptions, Options};

/// The kernel's read-ahead on this mount.
const READ_AHEAD_KIB: u32 = 1024;

/// A mounted pool, being served.
pub(crate) struct Served {
    session: Session,
    warnings: Vec<String>,
    // Ends last: closing needs it.
    _machine: Machine,
}

/// Opens the pool, mounts it and begins to serve; the mount is usable when this returns. `signals`
/// end the process before anything is mounted, and unmount after.
pub(crate) fn serve(request: Request, signals: &Signals) -> Result<Served, Failure> {
    let served = begin(request, signals);
    if served.is_err() {
        signals.release();
    }
    served
}

fn begin(request: Request, signals: &Signals) -> Result<Served, Failure> {
    raise_descriptors();
    let machine = Machine::start()?;
    let Request { pool: path, directory, options, fsname } = request;
    let (fs, shares) = open(&machine, &path, &options)?;
    copyhold_types::keep_spare(shares.spare() as usize);
    let transport = Arc::new(OnceLock::new());
    let shared = mount_again::described(&options);
    let describe = describer(&machine, &fs, &path, Arc::clone(&transport), shares, shared);
    let EngineOptions { readers, writeback_cache, nobtime, export, .. } = options.engine;
    let wanted = options.engine.transport;
    let user = rustix::process::geteuid();
    let mounted_by = (!user.is_root()).then(|| user.as_raw());
    let (owners_may, sees_callers) = (options.engine.user_subvolumes, adapter::sees_callers());
    // These options judge callers by their ids, which the kernel would no longer send.
    let needs_ids = options.mount.allow_root || owners_may;
    let maps_ids = user.is_root() && sees_callers && !needs_ids;
    let shown = options.shown.clone();
    signals.hold();
    let started = mount(&path, &directory, options, fsname).and_then(|(mount, tree)| {
        let rules = Rules { mounted_by, owners_may, sees_callers };
        let adapter = Adapter::new(fs.clone(), describe, rules).telling_births(!nobtime);
        let adapter = Arc::new(adapter);
        let spawner = Arc::new(machine.executors.clone());
        let mut settings = adapter::settings(writeback_cache);
        (settings.idmapped_mounts, settings.file_handles) = (maps_ids, export);
        shares.limit_kernel(&mut settings);
        let how = SessionOptions { readers, transport: wanted, memory: shares.requests() };
        let session = Session::start(mount, adapter.clone(), spawner, &settings, how)?;
        let _ = transport.set(session.transport());
        adapter.notify_through(session.notifier());
        Ok((session, tree))
    });
    let (session, tree) = match started {
        Ok(started) => started,
        Err(failure) => {
            machine.run(close(&fs))?;
            return Err(failure);
        }
    };
    if let Some(tree) = tree {
        let found = shown.find(&tree, &path);
        if let Err(failure) = found.and_then(|part| Ok(session.mount().attach(tree, part)?)) {
            // Without its tree it has ended, and closes its pool.
            session.wait();
            return Err(failure);
        }
    }
    read_ahead(session.mount());
    signals.unmount_on_arrival(session.mount().clone());
    tracing::info!("{} is mounted on {}", path.display(), directory.display());
    let cut = fs.pool().cut().map(|cut| {
        let path = path.display();
        format!(
            "the log of {path} was damaged; it goes on without {cut}. `copyhold check` tells \
                 what else that concerns"
        )
    });
    let tight = shares.warning().inspect(|warning| tracing::warn!("{warning}"));
    let warnings: Vec<String> = cut.into_iter().chain(tight).collect();
    Ok(Served { session, warnings, _machine: machine })
}

impl Served {
    /// Warnings for the user, although it is mounted.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Waits until it is unmounted and closed.
    pub(crate) fn wait(self) -> Result<(), Failure> {
        match self.session.wait() {
            End::Failed(error) => Err(Failure::system("/dev/fuse", &error)),
            _ => Ok(()),
        }
    }
}

/// As many descriptors as this process may have: the usual soft limit is for programs that use
/// select(2), and a machine of many CPUs needs more.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

fn open(
    machine: &Machine,
    path: &Path,
    options: &Options,
) -> Result<(Arc<Filesystem>, Shares), Failure> {
    let read_only = options.mount.read_only();
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = patiently(path, || machine.open_device(path, mode))?;
    let EngineOptions { memory, delta, commit, .. } = options.engine;
    let shares = Shares::of(memory, delta, device.geometry().blocks)?;
    let mut limits = Limits::default();
    shares.limit_pool(&mut limits);
    limits.txg_interval = commit.unwrap_or(limits.txg_interval);
    let mut settings = copyhold_fs::Options { read_only, ..Default::default() };
    shares.limit_files(&mut settings);
    settings.writeback_interval = limits.txg_interval;
    if options.mount.flags.contains(MountFlags::NOATIME) {
        settings.atime = Atime::Never;
    }
    let opened = machine.run(async {
        let cut_tail = options.engine.cut_tail;
        let open = OpenOptions { read_only, cut_tail, tenants: true, limits };
        let pool = Pool::open(machine.rt(), device, open).await?;
        if let Some(why) = pool.read_only().filter(|_| !read_only) {
            tracing::warn!("the pool can only be read: {why}");
        }
        let fs = Filesystem::open(pool, settings).await?;
        if !read_only && fs.pool().read_only().is_none() {
            tenants::count_all(&fs).await?;
        }
        Ok::<_, Failure>(fs)
    });
    Ok((opened?, shares))
}

/// A part of a pool can be shown when a daemon serves it.
fn mount(
    path: &Path,
    directory: &Path,
    options: Options,
    fsname: OsString,
) -> Result<(Mount, Option<DetachedMount>), Failure> {
    let is_whole = options.shown.is_whole();
    let mut options = options.mount;
    options.fsname.get_or_insert_with(|| fsname.to_string_lossy().into_owned());
    if is_whole {
        return Ok((Mount::new(path, directory, &options)?, None));
    }
    let (mount, tree) = Mount::unattached(path, directory, &options)?;
    Ok((mount, Some(tree)))
}

/// Only root may; a mount by other users is slower, not wrong.
fn read_ahead(mount: &Mount) {
    if let Err(error) = mount.set_read_ahead(READ_AHEAD_KIB) {
        tracing::debug!(%error, "read-ahead stays as it is");
    }
}

async fn close(fs: &Arc<Filesystem>) -> Result<(), Failure> {
    fs.close().await?;
    Ok(fs.pool().close().await?)
}

/// Answers `info` for as long as the pool is mounted.
fn describer(
    machine: &Machine,
    fs: &Arc<Filesystem>,
    path: &Path,
    transport: Arc<OnceLock<String>>,
    shares: Shares,
    options: Value,
) -> adapter::Describe {
    let (weak, pool, path) = (Arc::downgrade(fs), fs.pool().clone(), path.to_owned());
    let io = match machine.executors.refusal() {
        None if machine.executors.has_rings() => "io_uring".to_owned(),
        None => "threads".to_owned(),
        Some(error) => format!("threads, since io_uring is refused: {error}"),
    };
    Box::new(move || {
        let mut info = describe::pool(&pool, &path);
        info.shift_insert(1, "pid".into(), std::process::id().into());
        info.shift_insert(2, "io".into(), io.clone().into());
        // Unknown only to a question in the moment when serving begins.
        let transport = transport.get().cloned();
        info.shift_insert(3, "transport".into(), transport.into());
        info.insert("options".into(), options.clone());
        if let Some(fs) = weak.upgrade() {
            info.insert("memory".into(), describe::memory(&fs, &shares));
        }
        Value::Object(info).to_string()
    })
}
