//! A mounted filesystem in memory for one test, of the transport or of that filesystem.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use copyhold_fuse::mount::{Mount, MountOptions};
use copyhold_fuse::protocol::Settings;
use copyhold_fuse::{
    Counters, CountersFn, End, Notifier, Operations, Session, SessionOptions, ThreadPerTask,
    Transport,
};
use copyhold_memfs::{Contents, MemoryFs};
use tempfile::TempDir;

/// All tests run on the transport that `COPYHOLD_TEST_TRANSPORT` names: auto, dev or uring.
pub fn options() -> SessionOptions {
    let named = std::env::var("COPYHOLD_TEST_TRANSPORT").ok();
    let transport = named.map_or(Transport::Auto, |name| name.parse().unwrap());
    SessionOptions { transport, ..SessionOptions::default() }
}

pub fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

pub struct Mounted {
    pub dir: TempDir,
    pub mount: Arc<Mount>,
    pub notifier: Notifier,
    counters: CountersFn,
    served: Option<JoinHandle<End>>,
}

impl Mounted {
    pub fn memory() -> Mounted {
        Mounted::new(Arc::new(MemoryFs::new(Contents::Kept)), &Settings::default())
    }

    pub fn new<O: Operations>(fs: Arc<O>, settings: &Settings) -> Mounted {
        Mounted::with(fs, settings, options())
    }

    pub fn with<O: Operations>(
        fs: Arc<O>,
        settings: &Settings,
        options: SessionOptions,
    ) -> Mounted {
        let dir = TempDir::new().unwrap();
        let mount = Mount::new(Path::new("memory"), dir.path(), &MountOptions::default()).unwrap();
        Mounted::start(dir, mount, fs, settings, options)
    }

    pub fn serve<O: Operations>(
        dir: TempDir,
        mount: Mount,
        fs: Arc<O>,
        settings: &Settings,
    ) -> Mounted {
        Mounted::start(dir, mount, fs, settings, options())
    }

    fn start<O: Operations>(
        dir: TempDir,
        mount: Mount,
        fs: Arc<O>,
        settings: &Settings,
        options: SessionOptions,
    ) -> Mounted {
        let spawner = Arc::new(ThreadPerTask);
        let session = Session::start(mount, fs, spawner, settings, options).unwrap();
        let mount = Arc::clone(session.mount());
        let notifier = session.notifier();
        let counters = session.counters();
        let served = Some(std::thread::spawn(move || session.wait()));
        Mounted { dir, mount, notifier, counters, served }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn counters(&self) -> Counters {
        (self.counters)()
    }

    /// Unmounts and waits for the end.
    pub fn end(mut self) -> End {
        self.mount.unmount().unwrap();
        self.served.take().unwrap().join().unwrap()
    }

    /// Waits for the end that comes from elsewhere.
    pub fn wait(mut self) -> End {
        self.served.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(served) = self.served.take() {
            // A test that has failed may never let its own operations end.
            if std::thread::panicking() {
                let _ = self.mount.abort();
                return;
            }
            if self.mount.unmount().is_err() {
                self.mount.abort().unwrap();
            }
            let _ = served.join();
        }
    }
}
