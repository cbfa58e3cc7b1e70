//! Mounting a pool and serving it, as `mount` does: options of a command line, signals, and the
//! part of the pool that is shown.
//!
//! Order: watch for signals (before any thread), open the pool, mount, begin to serve. When the
//! session has ended the process ends, and releases the lock.

use copyhold::{MountOptions, Mounted, Mounting};
use copyhold_fuse::Signals;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{budget, patiently};
use crate::failure::Failure;
use crate::mount_options::{EngineOptions, Options};
use crate::mount_request::Request;

/// A mounted pool, being served.
pub(crate) struct Served {
    mounted: Mounted,
    warnings: Vec<String>,
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
    let Request { pool: path, directory, options, fsname } = request;
    let mut kernel = options.mount.clone();
    kernel.fsname.get_or_insert_with(|| fsname.to_string_lossy().into_owned());
    let how = MountOptions {
        kernel,
        memory: options.engine.memory.map(|size| size.0),
        delta: options.engine.delta.map(|size| size.0),
        serving: serving(&options),
    };
    let mounting = patiently(&path, || Ok(Mounting::open(&path, &how)?))?;
    let warnings = warnings(&mounting, &path);
    signals.hold();
    let mounted = match options.shown.is_whole() {
        true => mounting.mount(&directory)?,
        // A part of a pool can be shown when a daemon serves it.
        false => mounting.mount_part(&directory, |tree| options.shown.find(tree, &path))?,
    };
    if let Some(mount) = mounted.kernel() {
        signals.unmount_on_arrival(mount.clone());
    }
    tracing::info!("{} is mounted on {}", path.display(), directory.display());
    Ok(Served { mounted, warnings })
}

impl Served {
    /// Warnings for the user, although it is mounted.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Waits until it is unmounted and closed.
    pub(crate) fn wait(self) -> Result<(), Failure> {
        Ok(self.mounted.wait()?)
    }
}

fn warnings(mounting: &Mounting, path: &std::path::Path) -> Vec<String> {
    let cut = mounting.filesystem().pool().cut().map(|cut| {
        let path = path.display();
        format!(
            "the log of {path} was damaged; it goes on without {cut}. Run `copyhold check` to find \
             further damage"
        )
    });
    let tight = budget::warning(mounting.shares());
    cut.into_iter().chain(tight.inspect(|warning| tracing::warn!("{warning}"))).collect()
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

/// The options of a command line that a session takes.
fn serving(options: &Options) -> copyhold::ServingOptions {
    let EngineOptions { commit, readers, transport, writeback_cache, .. } = options.engine;
    let EngineOptions { nobtime, cut_tail, user_subvolumes, export, .. } = options.engine;
    let EngineOptions { public_lists, namespaces, data_cache, reclaim, flush, names, .. } =
        options.engine;
    let EngineOptions { replay, no_space_log, .. } = options.engine;
    copyhold::ServingOptions {
        commit,
        data_cache,
        reclaim,
        flush,
        replay: replay.map(|time| time.0),
        no_space_log,
        names,
        cut_tail,
        readers,
        transport,
        writeback_cache,
        no_birth_times: nobtime,
        user_subvolumes,
        public_lists,
        namespaces,
        export,
        shown: options.described(),
        ..Default::default()
    }
}
