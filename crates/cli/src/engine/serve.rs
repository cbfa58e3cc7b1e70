//! Mounting a pool and serving it, as `mount` does: options of a command line, signals, and the
//! part of the pool that is shown.
//!
//! Order: watch for signals (before any thread), start the executors, open the pool, mount, begin
//! to serve. When the session has ended the process ends, and lets go of the lock.

use std::ffi::OsString;
use std::path::Path;

use copyhold_device::OpenMode;
use copyhold_fuse::Signals;
use copyhold_fuse::mount::{DetachedMount, Mount};
use copyhold_memory::Shares;
use copyhold_serve::{Opened, Serving};
use rustix::mount::MountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Machine, budget, patiently};
use crate::failure::Failure;
use crate::mount::Request;
use crate::mount_again;
use crate::mount_options::{EngineOptions, Options};

/// A mounted pool, being served.
pub(crate) struct Served {
    serving: Serving,
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
    let how = of_mount(&options);
    let (opened, shares) = open(&machine, &path, &options, &how)?;
    let cut = opened.filesystem.pool().cut().map(|cut| {
        let path = path.display();
        format!(
            "the log of {path} was damaged; it goes on without {cut}. Run `copyhold check` to find \
             further damage"
        )
    });
    let shown = options.shown.clone();
    signals.hold();
    let (mount, tree) = match mount(&path, &directory, options, fsname) {
        Ok(mounted) => mounted,
        Err(failure) => {
            opened.close(&machine.executors)?;
            return Err(failure);
        }
    };
    let serving = Serving::start(&machine.executors, opened, mount, &how)?;
    if let Some(tree) = tree {
        let found = shown.find(&tree, &path);
        if let Err(failure) = found.and_then(|part| Ok(serving.mount().attach(tree, part)?)) {
            // Without its tree it has ended, and closes its pool.
            let _ = serving.wait();
            return Err(failure);
        }
    }
    signals.unmount_on_arrival(serving.mount().clone());
    tracing::info!("{} is mounted on {}", path.display(), directory.display());
    let tight = budget::warning(&shares).inspect(|warning| tracing::warn!("{warning}"));
    let warnings: Vec<String> = cut.into_iter().chain(tight).collect();
    Ok(Served { serving, warnings, _machine: machine })
}

impl Served {
    /// Warnings for the user, although it is mounted.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Waits until it is unmounted and closed.
    pub(crate) fn wait(self) -> Result<(), Failure> {
        Ok(self.serving.wait()?)
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

/// Options of a command line, as the session takes them.
fn of_mount(options: &Options) -> copyhold_serve::Options {
    let EngineOptions { commit, readers, transport, writeback_cache, .. } = options.engine;
    let EngineOptions { nobtime, cut_tail, user_subvolumes, export, .. } = options.engine;
    copyhold_serve::Options {
        read_only: options.mount.read_only(),
        no_atime: options.mount.flags.contains(MountFlags::NOATIME),
        commit,
        cut_tail,
        readers,
        transport,
        writeback_cache,
        no_birth_times: nobtime,
        user_subvolumes,
        export,
        needs_ids: options.mount.allow_root,
        shown: mount_again::described(options),
    }
}

fn open(
    machine: &Machine,
    path: &Path,
    options: &Options,
    how: &copyhold_serve::Options,
) -> Result<(Opened, Shares), Failure> {
    let mode = if how.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = patiently(path, || machine.open_device(path, mode))?;
    let EngineOptions { memory, delta, .. } = options.engine;
    let shares = budget::shares(memory, delta, device.geometry().blocks)?;
    Ok((copyhold_serve::open(&machine.executors, path, device, shares, how)?, shares))
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
