//! The executors of a pool's calls, and the end of the pool.
//!
//! A blocking call polls its work on the thread of its caller. The work of a call of
//! [`crate::nonblocking`] is a task of the executors: it goes on whatever the caller does with the
//! future, so a future that is dropped leaves no work half done.
//!
//! ENGINE-E1  A call keeps the pool open as long as it lasts: the end waits for calls, and those
//!            that come later return [`FsError::ShutDown`].
//! ENGINE-E2  Behind the end nothing is left of the pool: the device is closed and unlocked, and
//!            executors that were started for this pool alone are shut down, with their threads and
//!            descriptors.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use copyhold_device::{DeviceError, DynDevice, OpenMode};
use copyhold_fs::{Filesystem, FsError, NodeId};
use copyhold_runtime::Runtime;
use copyhold_runtime::executors::{Config, Executors};
use copyhold_sync::{Condvar, Mutex, of};
use copyhold_types::DeviceId;
use futures_channel::oneshot;

use crate::Error;
use crate::view::View;

/// Executors for one pool.
pub(crate) fn start(cpus: Option<usize>) -> Result<Arc<Executors>, Error> {
    Executors::start(Config { cpus, ..Config::default() }).map_err(Error::Start)
}

/// The device at `path`, with a namespace that is on it.
pub(crate) fn open_device(
    executors: &Arc<Executors>,
    path: &Path,
    mode: OpenMode,
) -> Result<DynDevice, DeviceError> {
    let (rt, reactor) = (executors.clone(), executors.reactor());
    executors.block_on(copyhold_device::open(rt, reactor, DeviceId(0), path, mode))
}

pub(crate) struct Engine {
    calls: Mutex<Calls, of::LibraryCalls>,
    /// The last call has ended.
    idle: Condvar,
}

struct Calls {
    /// None behind the end.
    open: Option<Open>,
    under_way: usize,
}

/// An open pool, and its executors.
pub(crate) struct Open {
    pub(crate) executors: Arc<Executors>,
    pub(crate) filesystem: Arc<Filesystem>,
    /// The executors have no other user.
    pub(crate) is_alone: bool,
}

impl Engine {
    pub(crate) fn new(open: Open) -> Arc<Engine> {
        let calls = Calls { open: Some(open), under_way: 0 };
        Arc::new(Engine { calls: Mutex::new(calls), idle: Condvar::new() })
    }

    /// Runs `work` on this thread, below the root of a subvolume, if the pool is still open.
    pub(crate) fn run<T>(
        &self,
        root: NodeId,
        work: impl AsyncFnOnce(&View) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (_call, fs, executors) = Call::begin(self)?;
        executors.block_on(work(&View { fs, root }))
    }

    /// Runs `work` as a task of the executors, if the pool is still open. The task begins whether
    /// or not the future is polled.
    pub(crate) fn spawn<T: Send + 'static, W, F>(
        self: &Arc<Self>,
        root: NodeId,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<T, W, F>
    where
        W: FnOnce(View) -> F,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (report, result) = oneshot::channel();
        if let Ok((call, fs, executors)) = Call::begin(self.clone()) {
            let work = work(View { fs, root });
            executors.spawn(Box::pin(async move {
                let done = work.await;
                drop(call);
                // A caller who has dropped the future wants no result.
                let _ = report.send(done);
            }));
        }
        // Otherwise the task was never begun, or was dropped by the end of its executors.
        async { result.await.unwrap_or(Err(Error::Filesystem(FsError::ShutDown))) }
    }

    /// Releases a node that was opened, unless the pool has released all of them at its end.
    pub(crate) fn release(&self, node: NodeId) {
        if let Ok((_call, fs, _)) = Call::begin(self) {
            fs.release(node);
        }
    }

    /// Waits for calls under way (ENGINE-E1). None, if it has ended before.
    pub(crate) fn take(&self) -> Option<Open> {
        let mut calls = self.calls.lock();
        let open = calls.open.take();
        while calls.under_way > 0 {
            self.idle.wait(&mut calls);
        }
        open
    }
}

/// A call under way, until it is dropped.
struct Call<E: AsRef<Engine>>(E);

impl AsRef<Engine> for Engine {
    fn as_ref(&self) -> &Engine {
        self
    }
}

impl<E: AsRef<Engine>> Call<E> {
    #[allow(clippy::type_complexity)] // a call, and what it works with
    fn begin(engine: E) -> Result<(Call<E>, Arc<Filesystem>, Arc<Executors>), Error> {
        let mut calls = engine.as_ref().calls.lock();
        let open = calls.open.as_ref().ok_or(FsError::ShutDown)?;
        let (fs, executors) = (open.filesystem.clone(), open.executors.clone());
        calls.under_way += 1;
        drop(calls);
        Ok((Call(engine), fs, executors))
    }
}

impl<E: AsRef<Engine>> Drop for Call<E> {
    fn drop(&mut self) {
        let engine = self.0.as_ref();
        let mut calls = engine.calls.lock();
        calls.under_way -= 1;
        if calls.under_way == 0 {
            engine.idle.notify_all();
        }
    }
}

/// ENGINE-E2.
impl Drop for Open {
    fn drop(&mut self) {
        if self.is_alone {
            self.executors.shutdown();
        } else {
            self.executors.block_on(self.filesystem.pool().abandon());
        }
        self.filesystem.pool().device().release();
    }
}
